"""The registry of tables: what every table must do, whichever it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest

from replication.metadata.image import (
    EMPTY_IMAGE,
    MetadataDelta,
    MetadataImage,
    delta_between,
    image_records,
)
from replication.metadata.registry import REPLAYS, TABLES
from tests.replication.metadata.test_image import (
    T1,
    T2,
    acl,
    broker,
    config,
    partition,
    quota,
    topic,
)
from wire.messages import metadata_records as m
from wire.schema import Record

CONTROLLER = m.RegisterControllerRecord(
    controller_id=7, incarnation_id=b"c" * 16, zk_migration_ready=False, end_points=[], features=[]
)
SCRAM = m.UserScramCredentialRecord(
    name="u", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
)
TOKEN = m.DelegationTokenRecord(
    owner="a", requester="a", renewers=[], issue_timestamp=1, max_timestamp=2,
    expiration_timestamp=2, token_id="t",
)  # fmt: skip
CASES: dict[str, tuple[list[Any], list[Any], Any]] = {
    # table: records that add, records that remove, the key that changed
    "features": (
        [m.FeatureLevelRecord(name="f", feature_level=3)],
        [m.FeatureLevelRecord(name="f", feature_level=0)],
        "f",
    ),
    "brokers": ([broker()], [m.UnregisterBrokerRecord(broker_id=1, broker_epoch=5)], 1),
    "controllers": ([CONTROLLER], [], 7),
    "topics_by_id": ([topic(), partition(0)], [m.RemoveTopicRecord(topic_id=T1)], None),
    "configs": ([config("x", "y")], [config("x", None)], (2, "orders")),
    "client_quotas": (
        [quota("a", 1.0)],
        [quota("a", 1.0, remove=True)],
        ((("user", "a", False),), "producer_byte_rate"),
    ),
    "next_producer_id": (
        [m.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=1000)],
        [],
        None,
    ),
    "acls": ([acl(1)], [m.RemoveAccessControlEntryRecord(id=b"\x01" * 16)], b"\x01" * 16),
    "scram_credentials": (
        [SCRAM],
        [m.RemoveUserScramCredentialRecord(name="u", mechanism=1)],
        ("u", 1),
    ),
    "delegation_tokens": ([TOKEN], [m.RemoveDelegationTokenRecord(token_id="t")], "t"),
}


def after(records: Sequence[Any], base: MetadataImage = EMPTY_IMAGE) -> MetadataDelta:
    delta = MetadataDelta(base)
    delta.replay_all(records)
    return delta


def applied(delta: MetadataDelta) -> MetadataImage:
    return delta.apply(1, 1, 1)


def test_every_attribute_of_the_image_is_a_table_and_every_record_has_one() -> None:
    where = {"offset", "epoch", "timestamp", "topics_by_name"}
    assert {each.name for each in fields(MetadataImage)} - where == {each.name for each in TABLES}
    assert {each.name for each in TABLES} == CASES.keys()
    known = {
        each
        for each in vars(m).values()
        if isinstance(each, type)
        and issubclass(each, Record)
        and getattr(each, "type_id", None) is not None
    }
    marks = {m.BeginTransactionRecord, m.EndTransactionRecord, m.AbortTransactionRecord}
    assert known - marks == REPLAYS.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_table_is_written_as_records_that_make_it_again(name: str) -> None:
    image = applied(after(CASES[name][0]))
    assert not image.state_equals(EMPTY_IMAGE)
    assert applied(after(list(image_records(image)))).state_equals(image)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[1]])
def test_what_is_removed_is_gone_from_the_next_image_and_not_from_the_last(name: str) -> None:
    before = applied(after(CASES[name][0]))
    written = list(image_records(before))
    gone = applied(after(CASES[name][1], before))
    assert gone.state_equals(EMPTY_IMAGE)
    assert list(image_records(before)) == written


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2] is not None])
def test_a_table_tells_what_changed_by_records_and_by_a_snapshot(name: str) -> None:
    add, remove, key = CASES[name]
    delta = after(add)
    assert delta.changed[name] == {key}
    image = applied(delta)
    others = {table.name for table in TABLES} - {name}
    for compared, told in (
        (delta_between(EMPTY_IMAGE, image), {key}),
        (delta_between(image, EMPTY_IMAGE), {key}),
        (delta_between(image, image), set()),
    ):
        assert compared.changed[name] == told
        assert not any(compared.changed[other] for other in others)
    if remove:
        assert after(remove, image).changed[name] == {key}


@pytest.mark.parametrize("by_snapshot", [False, True])
def test_a_topic_made_again_under_its_name_has_nothing_of_the_old_one(by_snapshot: bool) -> None:
    old = applied(after([topic(), partition(0), partition(1), config("x", "old")]))
    again = [topic(topic_id=T2), partition(0, T2)]
    if by_snapshot:
        delta = delta_between(old, applied(after(again)))
    else:
        delta = after([m.RemoveTopicRecord(topic_id=T1), *again], old)
    assert delta.deleted_topics == {"orders": T1}
    assert delta.changed_topics == {"orders"}
    assert delta.changed_partitions == {T2: {0}}
    new = applied(delta)
    assert new.topics_by_id.keys() == {T2}
    assert new.topics_by_name["orders"] is new.topics_by_id[T2]
    assert new.topics_by_name["orders"].partitions.keys() == {0}
    assert new.config(2, "orders") == {}
    assert old.topics_by_name["orders"].topic_id == T1
    assert old.config(2, "orders") == {"x": "old"}


def test_a_topic_made_again_with_configs_in_one_delta_has_those_only() -> None:
    old = applied(after([topic(), partition(0), config("x", "old"), config("y", "old")]))
    again = [m.RemoveTopicRecord(topic_id=T1), topic(topic_id=T2), config("x", "new")]
    delta = after(again, old)
    assert applied(delta).config(2, "orders") == {"x": "new"}
    assert delta.changed_configs == {(2, "orders")}


def test_what_is_replayed_after_an_image_was_taken_does_not_change_it() -> None:
    """The loader goes on with one delta until the node has started; others read images."""
    delta = after([topic(), partition(0), config("x", "1")])
    early = applied(delta)
    delta.replay_all([partition(1), config("x", "2"), config("y", "2")])
    late = applied(delta)
    assert early.topics_by_name["orders"].partitions.keys() == {0}
    assert early.config(2, "orders") == {"x": "1"}
    assert late.topics_by_name["orders"].partitions.keys() == {0, 1}
    assert late.config(2, "orders") == {"x": "2", "y": "2"}
