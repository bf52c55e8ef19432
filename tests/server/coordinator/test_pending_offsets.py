"""Offsets of transactions: who may commit them, when they count, and what becomes of them."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.coordinator.sweeps import SWEEP_RECORDS_MAX, SWEEP_STEP_MS
from tests.server.coordinator.group_support import GROUP, World, config
from wire.errors import ErrorCode as E
from wire.messages.groups import OffsetDeleteRequest, OffsetFetchRequest

UNSTABLE = -int(E.UNSTABLE_OFFSET_COMMIT)


def test_a_commit_counts_once_its_transaction_is_committed() -> None:
    world = World()
    world.commit(3)
    assert world.commit_in(7, 5) == 0
    assert world.fetch() == 3
    assert world.fetch(stable=True) == UNSTABLE
    world.end(7)
    assert world.fetch() == world.fetch(stable=True) == 5


def test_an_aborted_commit_never_was() -> None:
    world = World()
    world.commit_in(7, 5)
    assert (world.fetch(), world.fetch(stable=True)) == (-1, UNSTABLE)
    world.end(7, is_commit=False)
    assert world.fetch(stable=True) == -1


def test_a_transactions_last_word_counts() -> None:
    world = World()
    world.commit_in(7, 5)
    world.commit_in(7, 4)
    world.end(7)
    assert world.fetch() == 4


def test_a_marker_ends_one_producers_transaction_in_all_groups() -> None:
    world = World()
    world.commit_in(7, 5)
    world.commit_in(7, 6, partition=1)
    world.commit_in(7, 7, group="other", topic="u")
    world.commit_in(8, 8, partition=2)
    world.end(7)
    assert [world.fetch(partition=i, stable=True) for i in range(3)] == [5, 6, UNSTABLE]
    assert world.fetch("u", group="other") == 7


def test_a_marker_may_come_again_and_for_nobody() -> None:
    world = World()
    world.end(7)
    world.commit_in(7, 5)
    world.end(7)
    world.end(7, is_commit=False)
    world.end(7)
    assert world.fetch(stable=True) == 5


def test_the_newest_record_wins_whenever_its_marker_comes() -> None:
    """TX-40: otherwise a group that was rewound by hand would jump forward again."""
    world = World()
    world.commit_in(7, 5)
    world.commit(2)
    assert world.fetch(stable=True) == UNSTABLE, "not decided before the marker is there"
    world.end(7)
    assert world.fetch(stable=True) == 2


@pytest.mark.parametrize("ends", [(7, 8), (8, 7)])
def test_of_two_transactions_the_later_commit_wins(ends: tuple[int, int]) -> None:
    world = World()
    world.commit_in(7, 5)
    world.commit_in(8, 4)
    for producer_id in ends:
        world.end(producer_id)
    assert world.fetch(stable=True) == 4


def test_a_transaction_that_commits_again_is_the_later_one() -> None:
    world = World()
    world.commit_in(7, 5)
    world.commit_in(8, 6)
    world.commit_in(7, 4)
    world.end(7)
    world.end(8)
    assert world.fetch(stable=True) == 4


def test_a_fetch_of_everything_tells_what_is_unstable() -> None:
    world = World()
    world.commit(1, partition=0)
    world.commit(2, partition=1)
    world.commit_in(7, 5, partition=1)
    world.commit_in(7, 5, partition=2)
    request = OffsetFetchRequest.Group(group_id=GROUP, topics=None)

    def fetched(stable: bool) -> dict[int, tuple[int, int]]:
        answer = world.run(lambda: world.shard.fetch_offsets(request, stable)).response
        (topic,) = answer.topics
        return {p.partition_index: (p.committed_offset, p.error_code) for p in topic.partitions}

    assert fetched(stable=False) == {0: (1, 0), 1: (2, 0)}
    assert fetched(stable=True) == {0: (1, 0), 1: (-1, E.UNSTABLE_OFFSET_COMMIT)}


def test_the_record_is_kafkas() -> None:
    """Version 4, no topic id (TX-39); in the batch of its producer."""
    world = World()
    world.commit_in(2, 5, group="g1", topic="src")
    (batch,) = world.log
    assert (batch.producer_id, batch.is_commit) == (2, None)
    ((key, value),) = batch.records
    assert value is not None
    assert key.hex() == "000100026731000373726300000000"
    timestamp = world.moment.wall_ms.to_bytes(8, "big").hex()
    assert value.hex() == "000400000000000000050000000301" + timestamp + "00"


# ---- who may commit


def test_a_simple_consumer_may_commit_and_makes_a_group() -> None:
    world = World()
    assert world.commit_in(7, 5) == 0
    assert world.state() == "Empty"


def test_a_generation_of_an_unknown_group_is_illegal() -> None:
    world = World()
    assert world.commit_in(7, 5, member_id="m", generation=1) == E.ILLEGAL_GENERATION
    assert not world.log


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({}, 0),
        ({"generation": 1}, 0),
        ({"generation": 0}, E.ILLEGAL_GENERATION),
        ({"generation": 2}, E.ILLEGAL_GENERATION),
        ({"member_id": "zombie", "generation": 1}, E.UNKNOWN_MEMBER_ID),
        ({"generation": -1}, E.ILLEGAL_GENERATION),
    ],
)
def test_members_of_another_generation_are_fenced(how: dict[str, object], error: int) -> None:
    world = World()
    (member,) = world.stable()
    told = {"member_id": member, **how} if how else {}
    assert world.commit_in(7, 5, **told) == error  # type: ignore[arg-type]


def test_an_instance_that_was_replaced_is_fenced() -> None:
    world = World()
    old = world.join(instance_id="i").response.member_id
    world.join(instance_id="i")
    refused = world.commit_in(7, 5, member_id=old, instance_id="i", generation=1)
    assert refused == E.FENCED_INSTANCE_ID


def test_a_rebalance_does_not_stop_a_transaction() -> None:
    """A plain commit is told REBALANCE_IN_PROGRESS there."""
    world = World()
    member, joined = world.join_new()
    assert world.state() == "CompletingRebalance"
    generation = joined.response.generation_id
    assert world.commit(5, member_id=member, generation=generation) == E.REBALANCE_IN_PROGRESS
    assert world.commit_in(7, 5, member_id=member, generation=generation) == 0


def test_long_metadata_is_refused_for_its_partition() -> None:
    world = World(config(offset_metadata_max_bytes=3))
    assert world.commit_in(7, 5, metadata="four") == E.OFFSET_METADATA_TOO_LARGE
    assert world.commit_in(7, 5, metadata=None) == 0
    world.end(7)
    assert world.fetch() == 5


# ---- deleting and expiring


def test_deleted_offsets_stay_deleted_when_the_marker_comes() -> None:
    world = World()
    world.commit(1)
    world.commit_in(7, 5)
    world.commit_in(7, 6, partition=1)
    world.commit_in(8, 7, partition=1)
    request = OffsetDeleteRequest(
        group_id=GROUP,
        topics=[
            OffsetDeleteRequest.Topic(
                name="t",
                partitions=[
                    OffsetDeleteRequest.Topic.Partition(partition_index=i) for i in range(3)
                ],
            )
        ],
    )
    batches = len(world.log)
    group = world.run(lambda: world.shard.delete_offsets(request)).response
    assert [p.error_code for p in group.topics[0].partitions] == [0, 0, 0]
    (tombstones,) = world.log[batches:]
    assert len(tombstones.records) == 2, "one each, and none where nothing is"
    world.end(7)
    world.end(8)
    assert [world.fetch(partition=i, stable=True) for i in range(2)] == [-1, -1]
    assert world.replayed().digest() == world.shard.digest()


def test_a_deleted_group_is_not_raised_by_a_marker() -> None:
    world = World()
    world.commit(1)
    world.commit_in(7, 5)
    world.commit_in(7, 5, partition=1)
    assert world.run(lambda: world.shard.delete_group(GROUP)).error == 0
    world.end(7)
    assert world.shard.digest() == world.replayed().digest() == ((), (), ())


def test_a_deleted_topic_takes_pending_offsets_along() -> None:
    world = World()
    world.commit_in(7, 5)
    world.commit_in(7, 6, topic="stays")
    world.commit_in(8, 6, group="other")
    world.run(lambda: world.shard.on_topics_deleted({"t": b"1" * 16}))
    world.end(7)
    world.end(8)
    assert (world.fetch(), world.fetch("stays"), world.fetch(group="other")) == (-1, 6, -1)


def test_what_a_transaction_committed_for_a_topic_made_again_stays() -> None:
    """While the offsets of the old one go, in steps: its record does not say which topic it is of
    (TX-39)."""
    world = World()
    world.looks_twice = False
    ended, open_, aborted, old = range(SWEEP_RECORDS_MAX, SWEEP_RECORDS_MAX + 4)
    for partition in range(old):
        world.commit(100, partition=partition)
    world.commit_in(6, 100, partition=old)
    world.run(lambda: world.shard.on_topics_deleted({"t": b"1" * 16}))
    world.commit_in(7, 1, partition=ended)
    world.end(7)
    world.commit_in(8, 2, partition=open_)
    world.commit_in(9, 3, partition=aborted)
    world.end(9, is_commit=False)
    world.end(6)
    world.advance(SWEEP_STEP_MS)
    world.end(8)
    assert {key[1]: value.offset for key, value in world.shard.offsets.of_group(GROUP).items()} == {
        ended: 1,
        open_: 2,
    }


def test_what_a_transaction_is_about_to_replace_does_not_expire() -> None:
    """TX-42: nor does its group go."""
    world = World(config(offsets_retention_minutes=10, offsets_retention_check_interval_ms=60_000))
    world.commit(1)
    world.commit(1, partition=1)
    world.commit_in(7, 5)
    world.advance(20 * 60_000)
    assert (world.fetch(), world.fetch(partition=1)) == (1, -1)
    assert world.state() == "Empty"
    world.end(7, is_commit=False)
    world.advance(2 * 60_000)
    assert (world.fetch(), world.state()) == (-1, "none")


def test_a_group_with_nothing_but_a_pending_offset_stays() -> None:
    world = World(config(offsets_retention_minutes=10, offsets_retention_check_interval_ms=60_000))
    world.commit_in(7, 5)
    world.advance(20 * 60_000)
    assert world.state() == "Empty"
    world.end(7, is_commit=False)
    world.advance(2 * 60_000)
    assert world.state() == "none"


def test_a_group_whose_offsets_expire_beside_a_pending_one_stays() -> None:
    world = World(config(offsets_retention_minutes=10, offsets_retention_check_interval_ms=60_000))
    world.commit(1)
    world.commit_in(7, 5, partition=1)
    batches = len(world.log)
    world.advance(20 * 60_000)
    assert world.fetch() == -1
    (tombstones,) = world.log[batches:]
    assert len(tombstones.records) == 1, "of the offset, not of the group"
    world.end(7)
    assert world.fetch(partition=1) == 5


# ---- the rule, as Kafka has it


class Step(NamedTuple):
    """One thing that happens; what it does not need is ignored."""

    what: str
    producer_id: int
    partition: int


class Kafka:
    """OffsetMetadataManager's rule: what wins is compared by the offset of its record."""

    def __init__(self) -> None:
        self.committed: dict[int, tuple[int, int]] = {}
        """Partition to (offset of the record, offset that was committed)."""
        self.pending: defaultdict[int, dict[int, tuple[int, int]]] = defaultdict(dict)

    def apply(self, at: int, step: Step) -> None:
        what, producer_id, partition = step
        if what == "plain":
            self.committed[partition] = at, at
        elif what == "pending":
            self.pending[producer_id][partition] = at, at
        elif what == "delete":
            self.committed.pop(partition, None)
            for of in self.pending.values():
                of.pop(partition, None)
        else:
            ended = self.pending.pop(producer_id, {})
            for of, found in ended.items() if what == "commit" else ():
                if of not in self.committed or found[0] > self.committed[of][0]:
                    self.committed[of] = found

    def fetch(self, partition: int, stable: bool) -> int:
        if stable and any(partition in of for of in self.pending.values()):
            return UNSTABLE
        return self.committed.get(partition, (0, -1))[1]


_STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(["plain", "pending", "pending", "delete", "commit", "abort"]),
        st.integers(1, 3),
        st.integers(0, 1),
    ),
    max_size=30,
)


@given(_STEPS)
def test_any_order_of_commits_and_markers_ends_as_in_kafka(steps: list[Step]) -> None:
    world, kafka = World(), Kafka()
    world.looks_twice = False
    for at, step in enumerate(steps):
        what, producer_id, partition = step
        if what == "plain":
            world.commit(at, partition=partition)
        elif what == "pending":
            world.commit_in(producer_id, at, partition=partition)
        elif what == "delete":
            _delete(world, partition)
        else:
            world.end(producer_id, what == "commit")
        kafka.apply(at, step)
        for i in range(2):
            assert world.fetch(partition=i) == kafka.fetch(i, stable=False)
            assert world.fetch(partition=i, stable=True) == kafka.fetch(i, stable=True)
    assert world.replayed().digest() == world.shard.digest()
    for producer_id in (1, 2, 3):
        world.end(producer_id)
    assert not world.shard.offsets.pending_digest(), "nothing empty is kept"


def _delete(world: World, partition: int) -> None:
    topic = OffsetDeleteRequest.Topic(
        name="t", partitions=[OffsetDeleteRequest.Topic.Partition(partition_index=partition)]
    )
    request = OffsetDeleteRequest(group_id=GROUP, topics=[topic])
    world.run(lambda: world.shard.delete_offsets(request))
