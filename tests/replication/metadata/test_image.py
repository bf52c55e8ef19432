"""The image, the delta, the records of a snapshot, and records as bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.metadata.image import (
    EMPTY_IMAGE,
    MetadataDelta,
    MetadataImage,
    TransactionBuffer,
    image_records,
)
from replication.metadata.record_serde import MetadataRecordSerde, record_version
from wire.errors import MalformedFrame
from wire.messages import metadata_records as m

T1, T2 = b"\x01" * 16, b"\x02" * 16
DIR = b"\x0d" * 16


def topic(name: str = "orders", topic_id: bytes = T1) -> m.TopicRecord:
    return m.TopicRecord(name=name, topic_id=topic_id)


def partition(index: int = 0, topic_id: bytes = T1, **changes: Any) -> m.PartitionRecord:
    fields: dict[str, Any] = {
        "partition_id": index, "topic_id": topic_id, "replicas": [1], "isr": [1],
        "removing_replicas": [], "adding_replicas": [], "leader": 1, "leader_epoch": 0,
        "partition_epoch": 0, "directories": [DIR],
    }  # fmt: skip
    return m.PartitionRecord(**{**fields, **changes})


def broker(broker_id: int = 1, epoch: int = 5, **changes: Any) -> m.RegisterBrokerRecord:
    fields: dict[str, Any] = {
        "broker_id": broker_id, "incarnation_id": b"\x07" * 16, "broker_epoch": epoch,
        "end_points": [
            m.RegisterBrokerRecord.Endpoint(
                name="PLAINTEXT", host="h", port=9092, security_protocol=0
            )
        ],
        "features": [
            m.RegisterBrokerRecord.Feature(
                name="metadata.version", min_supported_version=7, max_supported_version=30
            )
        ],
        "rack": None, "log_dirs": [DIR],
    }  # fmt: skip
    return m.RegisterBrokerRecord(**{**fields, **changes})


def config(name: str, value: str | None, kind: int = 2, resource: str = "orders") -> Any:
    return m.ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)


def acl(identity: int) -> m.AccessControlEntryRecord:
    return m.AccessControlEntryRecord(
        id=bytes([identity]) * 16, resource_type=2, resource_name="orders", pattern_type=3,
        principal="User:a", host="*", operation=3, permission_type=3,
    )  # fmt: skip


def quota(user: str | None, value: float, remove: bool = False) -> m.ClientQuotaRecord:
    entity = m.ClientQuotaRecord.Entity(entity_type="user", entity_name=user)
    return m.ClientQuotaRecord(
        entity=[entity], key="producer_byte_rate", value=value, remove=remove
    )


def image_of(*records: Any, base: MetadataImage = EMPTY_IMAGE) -> MetadataImage:
    delta = MetadataDelta(base)
    delta.replay_all(records)
    return delta.apply(base.offset + len(records), 1, 1000)


def test_a_created_topic_is_found_by_name_and_by_id() -> None:
    image = image_of(topic(), partition(0), partition(1))
    found = image.topic("orders")
    assert found is image.topics_by_id[T1]
    assert found is not None
    assert sorted(found.partitions) == [0, 1]
    assert image.partition("orders", 1).leader == 1  # type: ignore[union-attr]


def test_an_older_image_does_not_change_when_a_newer_one_is_made() -> None:
    before = image_of(topic(), partition(0), config("retention.ms", "1"))
    change = m.PartitionChangeRecord(partition_id=0, topic_id=T1, leader=-1)
    after = image_of(change, config("retention.ms", "2"), config("x", "y"), base=before)
    assert before.partition("orders", 0).leader == 1  # type: ignore[union-attr]
    assert before.config(2, "orders") == {"retention.ms": "1"}
    assert after.partition("orders", 0).leader == -1  # type: ignore[union-attr]
    assert after.config(2, "orders") == {"retention.ms": "2", "x": "y"}


def test_a_leader_change_raises_the_leader_epoch_even_to_the_same_leader() -> None:
    image = image_of(topic(), partition(0))
    change = m.PartitionChangeRecord(partition_id=0, topic_id=T1, leader=1)
    changed = image_of(change, base=image).partition("orders", 0)
    assert changed is not None
    assert (changed.leader, changed.leader_epoch, changed.partition_epoch) == (1, 1, 1)


def test_a_change_without_a_leader_raises_only_the_partition_epoch() -> None:
    image = image_of(topic(), partition(0))
    change = m.PartitionChangeRecord(partition_id=0, topic_id=T1, isr=[])
    changed = image_of(change, base=image).partition("orders", 0)
    assert changed is not None
    assert (changed.isr, changed.leader_epoch, changed.partition_epoch) == ((), 0, 1)


def test_a_deleted_topic_takes_its_configs_along() -> None:
    image = image_of(topic(), partition(0), config("retention.ms", "1"))
    delta = MetadataDelta(image)
    delta.replay(m.RemoveTopicRecord(topic_id=T1))
    after = delta.apply(9, 1, 1)
    assert after.topics_by_name == {}
    assert after.configs == {}
    assert delta.deleted_topics == {"orders": T1}


def test_a_topic_made_again_is_deleted_and_changed_in_one_delta() -> None:
    delta = MetadataDelta(image_of(topic(), partition(0)))
    delta.replay_all([m.RemoveTopicRecord(topic_id=T1), topic("orders", T2), partition(0, T2)])
    after = delta.apply(9, 1, 1)
    assert delta.deleted_topics == {"orders": T1}
    assert delta.changed_topics == {"orders"}
    assert delta.changed_partitions == {T2: {0}}
    assert after.topics_by_name["orders"].topic_id == T2


def test_a_topic_that_comes_and_goes_within_a_delta_leaves_no_trace() -> None:
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_all([topic(), partition(0), m.RemoveTopicRecord(topic_id=T1)])
    assert delta.deleted_topics == {}
    assert delta.changed_topics == set()
    assert delta.apply(1, 1, 1).topics_by_id == {}


def test_a_null_config_value_deletes_the_key() -> None:
    image = image_of(config("a", "1"), config("b", "2"), config("a", None))
    assert image.config(2, "orders") == {"b": "2"}
    assert image_of(config("b", None), base=image).configs == {}


def test_registration_changes_fence_and_unfence_only_the_named_incarnation() -> None:
    image = image_of(broker(1, 5))
    assert image.alive_brokers() == []
    unfence = m.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, fenced=-1)
    alive = image_of(unfence, base=image)
    assert [b.broker_id for b in alive.alive_brokers()] == [1]
    stale = m.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=4, fenced=1)
    with pytest.raises(ValueError, match="epoch 4"):
        MetadataDelta(alive).replay(stale)


def test_old_records_of_fencing_are_understood() -> None:
    image = image_of(broker(1, 5), m.UnfenceBrokerRecord(id=1, epoch=5))
    assert image.is_active(1)
    assert not image_of(m.FenceBrokerRecord(id=1, epoch=5), base=image).is_active(1)
    gone = image_of(m.UnregisterBrokerRecord(broker_id=1, broker_epoch=5), base=image)
    assert gone.brokers == {}


def test_records_we_do_not_act_on_survive_in_a_snapshot() -> None:
    token = m.DelegationTokenRecord(
        owner="a", requester="a", renewers=[], issue_timestamp=1, max_timestamp=2,
        expiration_timestamp=2, token_id="t",
    )  # fmt: skip
    scram = m.UserScramCredentialRecord(
        name="u", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
    )
    image = image_of(acl(1), acl(2), quota("a", 1.0), quota(None, 2.0), token, scram)
    assert image_of(*image_records(image)).state_equals(image)
    less = image_of(
        m.RemoveAccessControlEntryRecord(id=b"\x01" * 16),
        quota("a", 0.0, remove=True),
        m.RemoveDelegationTokenRecord(token_id="t"),
        m.RemoveUserScramCredentialRecord(name="u", mechanism=1),
        base=image,
    )
    assert list(image_records(less)) == [quota(None, 2.0), acl(2)]


def test_clear_elr_forgets_the_eligible_leaders_of_one_topic_or_of_all() -> None:
    image = image_of(
        topic(), partition(0, eligible_leader_replicas=[1], last_known_elr=[1]),
        topic("other", T2), partition(0, T2, eligible_leader_replicas=[1]),
    )  # fmt: skip
    one = image_of(m.ClearElrRecord(topic_name="orders"), base=image)
    assert one.partition("orders", 0).elr == ()  # type: ignore[union-attr]
    assert one.partition("other", 0).elr == (1,)  # type: ignore[union-attr]
    every = image_of(m.ClearElrRecord(topic_name=""), base=image)
    assert every.partition("other", 0).elr == ()  # type: ignore[union-attr]


def test_producer_ids_never_fall() -> None:
    image = image_of(m.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=1000))
    with pytest.raises(ValueError, match="never fall"):
        image_of(m.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=999), base=image)


def test_a_change_of_what_does_not_exist_is_refused() -> None:
    for record in (
        m.PartitionChangeRecord(partition_id=0, topic_id=T1),
        m.RemoveTopicRecord(topic_id=T1),
        partition(0),
    ):
        with pytest.raises(ValueError, match="unknown"):
            MetadataDelta(EMPTY_IMAGE).replay(record)


def test_a_snapshot_begins_with_the_metadata_version() -> None:
    image = image_of(
        m.FeatureLevelRecord(name="aaa", feature_level=1),
        m.FeatureLevelRecord(name="metadata.version", feature_level=30),
        broker(),
        topic(),
        partition(),
    )
    kinds = [type(record).__name__ for record in image_records(image)]
    assert kinds == [
        "FeatureLevelRecord", "FeatureLevelRecord", "RegisterBrokerRecord", "TopicRecord",
        "PartitionRecord",
    ]  # fmt: skip
    assert next(image_records(image)).name == "metadata.version"


# --- metadata transactions ----------------------------------------------------------------------


def test_records_of_a_transaction_come_out_at_its_end() -> None:
    buffer = TransactionBuffer()
    begin, end = m.BeginTransactionRecord(name="x"), m.EndTransactionRecord()
    assert buffer.filter([topic(), begin, partition(0)]) == [topic()]
    assert buffer.in_transaction
    assert buffer.filter([partition(1), end, m.NoOpRecord()]) == [
        partition(0),
        partition(1),
        m.NoOpRecord(),
    ]
    assert not buffer.in_transaction


def test_an_aborted_transaction_leaves_nothing() -> None:
    buffer = TransactionBuffer()
    records = [m.BeginTransactionRecord(), topic(), m.AbortTransactionRecord(reason="crash")]
    assert buffer.filter([*records, m.NoOpRecord()]) == [m.NoOpRecord()]


@pytest.mark.parametrize(
    "records",
    [[m.EndTransactionRecord()], [m.BeginTransactionRecord(), m.BeginTransactionRecord()]],
    ids=["end without begin", "begin in begin"],
)
def test_unpaired_transaction_marks_are_refused(records: list[Any]) -> None:
    with pytest.raises(ValueError, match="transaction"):
        TransactionBuffer().filter(records)


# --- bytes --------------------------------------------------------------------------------------


def test_a_record_is_framed_as_kafka_frames_it() -> None:
    serde = MetadataRecordSerde()
    value = serde.encode(m.FeatureLevelRecord(name="metadata.version", feature_level=30))
    # frame version 1, type 12, version 0, compact string, int16, no tags
    assert value == b"\x01\x0c\x00\x11metadata.version\x00\x1e\x00"
    assert serde.decode(value) == m.FeatureLevelRecord(name="metadata.version", feature_level=30)


@pytest.mark.parametrize(
    ("level", "register", "partition_version"), [(7, 1, 0), (17, 3, 1), (27, 3, 2), (30, 4, 2)]
)
def test_record_versions_follow_the_metadata_version(
    level: int, register: int, partition_version: int
) -> None:
    assert record_version(broker(), level) == register
    assert record_version(partition(), level) == partition_version


def test_a_registration_change_takes_the_lowest_version_that_holds_it() -> None:
    change = m.BrokerRegistrationChangeRecord
    assert record_version(change(broker_id=1, broker_epoch=1, fenced=1), 30) == 0
    assert record_version(change(broker_id=1, broker_epoch=1, in_controlled_shutdown=1), 30) == 1
    assert record_version(change(broker_id=1, broker_epoch=1, log_dirs=[DIR]), 30) == 2
    assert record_version(change(broker_id=1, broker_epoch=1, cordoned_log_dirs=[]), 30) == 3


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x02\x00\x00", b"\x01\x7f\x00", b"\x01\x02\x09"])
def test_bytes_that_are_no_record_are_refused(value: bytes) -> None:
    with pytest.raises(MalformedFrame):
        MetadataRecordSerde().decode(value)


# --- property: what a snapshot says is what the image is ----------------------------------------

_names = st.sampled_from(["a", "b", "c"])


def _step(image: MetadataImage, choice: tuple[str, str, int]) -> list[Any]:
    """Records that are legal on `image`, picked by `choice`."""
    kind, name, number = choice
    existing = image.topics_by_name.get(name)
    if kind == "topic":
        if existing is not None:
            return [m.RemoveTopicRecord(topic_id=existing.topic_id)]
        fresh = bytes([number + 1, ord(name), image.offset % 256]) + bytes(13)
        return [topic(name, fresh), partition(0, fresh), config("k", str(number), 2, name)]
    if kind == "change" and existing is not None:
        return [
            m.PartitionChangeRecord(
                partition_id=0, topic_id=existing.topic_id, leader=number - 1,
                isr=[1] * (number % 2), eligible_leader_replicas=[1] * (number % 3 == 0),
                leader_recovery_state=number % 2,
            )
        ]  # fmt: skip
    if kind == "config":
        return [config(name, str(number) if number else None, 4, "")]
    if kind == "broker":
        return [broker(number, 100 + image.offset, rack=name, fenced=number % 2 == 0)]
    if kind == "feature":
        return [m.FeatureLevelRecord(name=name, feature_level=number)]
    if kind == "other":
        return [quota(name, float(number)), acl(number)]
    return [m.NoOpRecord()]


_choices = st.lists(
    st.tuples(
        st.sampled_from(["topic", "change", "config", "broker", "feature", "other"]),
        _names,
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(_choices)
def test_replaying_a_snapshot_gives_the_image_it_was_made_of(
    choices: list[tuple[str, str, int]],
) -> None:
    serde = MetadataRecordSerde()
    image = EMPTY_IMAGE
    log: list[bytes] = []
    for choice in choices:
        records = _step(image, choice)
        log += [serde.encode(record) for record in records]
        image = image_of(*records, base=image)
    from_snapshot = image_of(
        *(serde.decode(serde.encode(record)) for record in image_records(image))
    )
    from_log = image_of(*(serde.decode(value) for value in log))
    assert from_snapshot.state_equals(image)
    assert from_log.state_equals(image)
    assert not from_log.state_equals(replace(image, next_producer_id=77))
