"""Offsets of groups in every version, as bytes: shapes, errors, topic ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from server.handlers import group_offsets
from tests.server.handlers.groups_support import (
    Clientele,
    clients_of,
    commit_request,
    fetched,
    joined,
    topic_id,
)
from wire.errors import ErrorCode as E
from wire.messages.groups import OffsetDeleteRequest, OffsetFetchRequest
from wire.messages.transactions import TxnOffsetCommitRequest

UNKNOWN_ID = b"nobody has this!"


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clientele]:
    with clients_of(tmp_path) as clients:
        yield clients


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_in_every_version(clients: Clientele, version: int) -> None:
    request = commit_request(
        ("t", topic_id("t"), [0, 1, 2]), ("nobody", UNKNOWN_ID, [0]), ("u", topic_id("u"), [0])
    )
    answer = clients.ask(group_offsets.offset_commit, request, version)
    errors = {
        (topic.topic_id if version >= 10 else topic.name, p.partition_index): p.error_code
        for topic in answer.topics
        for p in topic.partitions
    }
    t, u, nobody = (
        (topic_id("t"), topic_id("u"), UNKNOWN_ID) if version >= 10 else ("t", "u", "nobody")
    )
    assert errors == {
        (t, 0): 0,
        (t, 1): 0,
        (t, 2): E.UNKNOWN_TOPIC_OR_PARTITION,
        (u, 0): 0,
        (nobody, 0): E.UNKNOWN_TOPIC_ID if version >= 10 else E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert len(answer.topics) == 3, "a topic is named once"
    assert fetched(clients, 9, ("t", [0, 1])) == {("t", 0): (100, 0), ("t", 1): (101, 0)}


@pytest.mark.parametrize(("topics", "is_costly"), [(None, True), ([], False)])
def test_to_fetch_all_that_groups_committed_is_costly(topics: Any, is_costly: bool) -> None:
    group = OffsetFetchRequest.Group(group_id="g", topics=topics)
    for version, request in (
        (7, OffsetFetchRequest(group_id="g", topics=topics)),
        (8, OffsetFetchRequest(groups=[group])),
    ):
        ctx: Any = SimpleNamespace(api_version=version)
        assert group_offsets.offset_fetch_is_costly(ctx, request) is is_costly


@pytest.mark.parametrize("version", range(2, 11))
def test_a_refused_commit_says_so_for_each_partition(clients: Clientele, version: int) -> None:
    joined(clients)
    request = commit_request(("t", topic_id("t"), [0, 7]), member_id="stranger")
    request.generation_id_or_member_epoch = 1
    answer = clients.ask(group_offsets.offset_commit, request, version)
    (topic,) = answer.topics
    assert {p.partition_index: p.error_code for p in topic.partitions} == {
        0: E.UNKNOWN_MEMBER_ID,
        7: E.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_commit_of_unknown_topics_only_is_answered_without_the_coordinator(
    clients: Clientele,
) -> None:
    request = commit_request(("nobody", UNKNOWN_ID, [0]))
    answer = clients.ask(group_offsets.offset_commit, request, 9)
    assert answer.topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(1, 11))
def test_fetch_in_every_version(clients: Clientele, version: int) -> None:
    clients.ask(group_offsets.offset_commit, commit_request(("t", topic_id("t"), [1])), 9)
    assert fetched(clients, version, ("t", [0, 1]), ("u", [0])) == {
        ("t", 0): (-1, 0),
        ("t", 1): (101, 0),
        ("u", 0): (-1, 0),
    }
    if version >= 2:
        assert fetched(clients, version) == {("t", 1): (101, 0)}


@pytest.mark.parametrize("version", range(1, 11))
def test_fetch_when_we_are_not_the_coordinator(clients: Clientele, version: int) -> None:
    clients.node.groups.shutdown()
    request = OffsetFetchRequest(
        group_id="g",
        topics=[OffsetFetchRequest.Topic(name="t", partition_indexes=[0])],
        groups=[OffsetFetchRequest.Group(group_id="g", topics=[])],
    )
    answer = clients.ask(group_offsets.offset_fetch, request, version)
    if version >= 8:
        assert [group.error_code for group in answer.groups] == [E.NOT_COORDINATOR]
    elif version >= 2:
        assert answer.error_code == E.NOT_COORDINATOR
    else:
        assert answer.topics[0].partitions[0].error_code == E.NOT_COORDINATOR


def test_many_groups_are_fetched_at_once_in_the_order_asked(clients: Clientele) -> None:
    for group in ("a", "b"):
        request = commit_request(("t", topic_id("t"), [0]), group=group)
        clients.ask(group_offsets.offset_commit, request, 9)
    asked = [OffsetFetchRequest.Group(group_id=g, topics=None) for g in ("b", "none", "a")]
    answer = clients.ask(group_offsets.offset_fetch, OffsetFetchRequest(groups=asked), 8)
    assert [(g.group_id, len(g.topics), g.error_code) for g in answer.groups] == [
        ("b", 1, 0), ("none", 0, 0), ("a", 1, 0),
    ]  # fmt: skip


def test_an_unknown_topic_id_is_told_and_the_others_are_served(clients: Clientele) -> None:
    clients.ask(group_offsets.offset_commit, commit_request(("t", topic_id("t"), [0])), 10)
    topic = OffsetFetchRequest.Group.Topic
    group = OffsetFetchRequest.Group(
        group_id="g",
        topics=[
            topic(topic_id=UNKNOWN_ID, partition_indexes=[0]),
            topic(topic_id=topic_id("t"), partition_indexes=[0]),
        ],
    )
    answer = clients.ask(group_offsets.offset_fetch, OffsetFetchRequest(groups=[group]), 10)
    found = {
        t.topic_id: (t.partitions[0].error_code, t.partitions[0].committed_offset)
        for t in answer.groups[0].topics
    }
    assert found == {UNKNOWN_ID: (E.UNKNOWN_TOPIC_ID, -1), topic_id("t"): (0, 100)}


def test_offset_delete(clients: Clientele) -> None:
    member = joined(clients)
    commit = commit_request(("t", topic_id("t"), [0]), ("u", topic_id("u"), [0]), member_id=member)
    commit.generation_id_or_member_epoch = 1
    clients.ask(group_offsets.offset_commit, commit, 9)
    part = OffsetDeleteRequest.Topic.Partition
    request = OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequest.Topic(name="t", partitions=[part(partition_index=0)]),
            OffsetDeleteRequest.Topic(
                name="u", partitions=[part(partition_index=0), part(partition_index=5)]
            ),
            OffsetDeleteRequest.Topic(name="nobody", partitions=[part(partition_index=0)]),
        ],
    )
    answer = clients.ask(group_offsets.offset_delete, request, 0)
    assert answer.error_code == 0
    assert {
        (t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions
    } == {
        ("t", 0): E.GROUP_SUBSCRIBED_TO_TOPIC,
        ("u", 0): 0,
        ("u", 5): E.UNKNOWN_TOPIC_OR_PARTITION,
        ("nobody", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert fetched(clients, 9) == {("t", 0): (100, 0)}
    request.group_id = ""
    assert clients.ask(group_offsets.offset_delete, request, 0).error_code == E.INVALID_GROUP_ID
    request.group_id = "none"
    assert clients.ask(group_offsets.offset_delete, request, 0).error_code == E.GROUP_ID_NOT_FOUND


def test_a_topic_made_again_does_not_inherit_offsets(clients: Clientele) -> None:
    """Even when the tombstones were never written, as after a crash between the two."""
    clients.ask(group_offsets.offset_commit, commit_request(("u", topic_id("u"), [0])), 9)
    image = clients.node.image
    again = image.topics_by_name["u"]
    again = type(again)("u", b"u, second life..", again.partitions)
    clients.node.image = type(image)(
        **{
            **{name: getattr(image, name) for name in image.__slots__},
            "topics_by_name": {**image.topics_by_name, "u": again},
            "topics_by_id": {**image.topics_by_id, again.topic_id: again},
        }
    )
    assert fetched(clients, 9, ("u", [0])) == {("u", 0): (-1, 0)}


# ---- transactions


def txn_request(*topics: tuple[str, list[int]], **how: Any) -> TxnOffsetCommitRequest:
    """Of producer 7, offsets 100 and up."""
    fields = {"group_id": "g", "member_id": "", "generation_id": -1, **how}
    make = TxnOffsetCommitRequest.Topic
    return TxnOffsetCommitRequest(
        transactional_id="tx",
        producer_id=7,
        producer_epoch=0,
        topics=[
            make(
                name=name,
                partitions=[
                    make.Partition(
                        partition_index=i, committed_offset=100 + i, committed_metadata="m"
                    )
                    for i in indexes
                ],
            )
            for name, indexes in topics
        ],
        **fields,
    )


def codes(answer: Any) -> dict[tuple[str, int], int]:
    found = [(t.name, p.partition_index, p.error_code) for t in answer.topics for p in t.partitions]
    assert len({name for name, *_ in found}) == len(answer.topics), "no topic twice"
    return {(name, index): error for name, index, error in found}


@pytest.mark.parametrize("version", range(6))
def test_txn_offset_commit_in_every_version(clients: Clientele, version: int) -> None:
    request = txn_request(("t", [0, 1, 9]), ("nowhere", [0]), ("u", [0]))
    answer = clients.ask(group_offsets.txn_offset_commit, request, version)
    assert codes(answer) == {
        ("t", 0): 0, ("t", 1): 0, ("u", 0): 0,
        ("t", 9): E.UNKNOWN_TOPIC_OR_PARTITION, ("nowhere", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
    }  # fmt: skip
    assert fetched(clients, 9, ("t", [0])) == {("t", 0): (-1, 0)}
    clients.node.end(7)
    assert fetched(clients, 9, ("t", [0, 1])) == {("t", 0): (100, 0), ("t", 1): (101, 0)}


@pytest.mark.parametrize("version", range(7, 11))
def test_who_wants_stable_offsets_is_told_to_wait(clients: Clientele, version: int) -> None:
    clients.ask(group_offsets.offset_commit, commit_request(("t", topic_id("t"), [1])), 9)
    clients.ask(group_offsets.txn_offset_commit, txn_request(("t", [0])), 5)
    expected = {("t", 0): (-1, E.UNSTABLE_OFFSET_COMMIT), ("t", 1): (101, 0)}
    assert fetched(clients, version, ("t", [0, 1]), stable=True) == expected
    assert fetched(clients, version, ("t", [0, 1])) == {("t", 0): (-1, 0), ("t", 1): (101, 0)}
    clients.node.end(7)
    assert fetched(clients, version, ("t", [0]), stable=True) == {("t", 0): (100, 0)}


def test_nothing_but_unknown_partitions_needs_no_coordinator(clients: Clientele) -> None:
    clients.node.groups.shutdown()
    answer = clients.ask(group_offsets.txn_offset_commit, txn_request(("no", [0, 1])), 5)
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(answer) == {("no", 0): unknown, ("no", 1): unknown}


@pytest.mark.parametrize("topics", [(), (("t", []),)])
def test_a_commit_of_nothing_begins_no_transaction(clients: Clientele, topics: Any) -> None:
    """Who asks the coordinator in version 5 adds the group to the transaction."""
    answer = clients.ask(group_offsets.txn_offset_commit, txn_request(*topics), 5)
    assert codes(answer) == {}
    assert clients.node.verifier.asked == []


@pytest.mark.parametrize("version", [3, 5])
def test_a_refused_commit_in_a_transaction_says_so_for_each_partition(
    clients: Clientele, version: int
) -> None:
    joined(clients)
    request = txn_request(("t", [0, 1]), ("no", [0]), member_id="zombie", generation_id=1)
    assert codes(clients.ask(group_offsets.txn_offset_commit, request, version)) == {
        ("t", 0): E.UNKNOWN_MEMBER_ID,
        ("t", 1): E.UNKNOWN_MEMBER_ID,
        ("no", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    nobody = txn_request(("t", [0]), group_id="")
    answer = clients.ask(group_offsets.txn_offset_commit, nobody, version)
    assert codes(answer) == {("t", 0): E.INVALID_GROUP_ID}


@pytest.mark.parametrize(
    ("version", "told"),
    [(0, E.COORDINATOR_NOT_AVAILABLE), (1, E.COORDINATOR_NOT_AVAILABLE),
     (2, E.COORDINATOR_LOAD_IN_PROGRESS), (5, E.COORDINATOR_LOAD_IN_PROGRESS)],
)  # fmt: skip
def test_old_producers_are_not_told_of_loading(clients: Clientele, version: int, told: E) -> None:
    """They crash (KAFKA-7296)."""
    clients.node.commit("g", 1)
    clients.node.loads_slowly = True
    clients.node.restart()
    answer = clients.ask(group_offsets.txn_offset_commit, txn_request(("t", [0])), version)
    assert codes(answer) == {("t", 0): told}
