"""The share coordinator's machine: who may write, what is written, and what a restart finds."""

from __future__ import annotations

from random import Random

import pytest

from server.coordinator.share.records import Snapshot, Update, decode_share
from server.coordinator.share.shard import Summary
from server.coordinator.sweeps import SWEEP_STEP_MS
from server.share.state_batches import ShareKey, StateBatch, combine
from tests.server.coordinator.share.share_support import KEY, TOPIC_ID, World
from wire.errors import ErrorCode as E
from wire.errors import KafkaError, MalformedFrame

BATCH_MAX = 200_000
"""Well below what a topic takes by default."""


def test_a_life_of_a_share_partition_writes_what_kafka_writes() -> None:
    """The worked writes of Apache Kafka 4.3.1 (10 records, delivery limit 2)."""
    world = World()
    assert world.initialize() is E.NONE
    assert isinstance(world.read(0), Snapshot)
    assert world.write(0, (0, 1, 2, 1), complete=2) is E.NONE
    assert world.write(2, (2, 2, 0, 1), (3, 3, 4, 1), (4, 4, 2, 1)) is E.NONE
    assert world.write(2, (2, 2, 4, 2), complete=3) is E.NONE
    assert world.state.batches == ((2, 2, 4, 2), (3, 3, 4, 1), (4, 4, 2, 1))
    assert world.initialize(4, 2) is E.NONE
    assert world.ask(lambda: world.shard.delete(KEY)) is E.NONE
    now = world.moment.wall_ms
    assert [record.value for record in world.written()] == [
        Snapshot(0, 2, 0, -1, now, now, (), -1),
        Update(0, 0, 0, (StateBatch(0, 1, 2, 1),), 2),
        Update(
            0, 0, 2,
            (StateBatch(2, 2, 0, 1), StateBatch(3, 3, 4, 1), StateBatch(4, 4, 2, 1)), 0,
        ),
        Update(0, 0, 2, (StateBatch(2, 2, 4, 2),), 3),
        Snapshot(1, 4, 0, 2, now, now, (), 0),
        None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (ShareKey("g", bytes(16), 0), E.INVALID_REQUEST),
        (ShareKey("g", TOPIC_ID, -1), E.INVALID_REQUEST),
        (ShareKey("g", TOPIC_ID, 2), E.UNKNOWN_TOPIC_OR_PARTITION),
        (ShareKey("g", b"x" * 16, 0), E.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_what_is_not_there_is_refused(key: ShareKey, code: E) -> None:
    world = World()
    assert world.initialize(key=key) is code
    assert world.ask(lambda: world.shard.delete(key)) is code
    with pytest.raises(KafkaError) as raised:
        world.shard.summary(key)
    assert raised.value.code is code
    assert world.read(key=key) is E.INVALID_REQUEST
    assert world.write(key=key) is E.INVALID_REQUEST
    assert not world.log


def test_state_must_be_initialized_before_it_is_read_or_written() -> None:
    world = World()
    assert world.read() is E.INVALID_REQUEST
    assert world.write() is E.INVALID_REQUEST
    assert world.shard.summary(KEY) == Summary(0, 0, -1, -1)
    assert world.ask(lambda: world.shard.delete(KEY)) is E.NONE
    assert not world.log


def test_a_new_leader_fences_the_old_one() -> None:
    world = World()
    world.initialize()
    world.read(3)
    assert world.write(leader_epoch=2) is E.FENCED_LEADER_EPOCH
    assert world.read(2) is E.FENCED_LEADER_EPOCH
    assert world.write(leader_epoch=3) is E.NONE
    assert world.write(leader_epoch=-1) is E.NONE
    world.restart()
    assert world.write(leader_epoch=2) is E.FENCED_LEADER_EPOCH
    assert world.shard.summary(KEY).leader_epoch == 3


def test_a_reset_fences_who_has_not_heard_of_it() -> None:
    world = World()
    world.initialize(2)
    assert world.initialize(1) is E.FENCED_STATE_EPOCH
    world.initialize(5, 100)
    assert world.write(state_epoch=4) is E.FENCED_STATE_EPOCH
    assert world.write(100, state_epoch=5) is E.NONE
    assert world.write(100, state_epoch=-1) is E.NONE
    assert world.shard.summary(KEY) == Summary(5, 0, 100, 0)


def test_a_reset_without_an_epoch_lets_nobody_in_who_was_fenced() -> None:
    world = World()
    world.initialize(5)
    world.initialize(-1, 100)
    assert world.write(state_epoch=4) is E.FENCED_STATE_EPOCH
    assert world.write(100, state_epoch=5) is E.NONE
    world.restart()
    assert world.write(state_epoch=4) is E.FENCED_STATE_EPOCH


def test_a_write_that_comes_late_does_not_take_the_start_back() -> None:
    """Its sender had given it up and asked again; it has gone on since. What was accepted between
    the two starts would be handed out again by who leads next."""
    world = World()
    world.initialize()
    world.read(3)
    first = [(0, 0, 4, 4), (1, 3, 2, 1)]
    assert world.write(0, *first, leader_epoch=3, complete=4) is E.NONE
    assert world.write(4, (6, 6, 2, 1), leader_epoch=3, complete=1) is E.NONE
    before = world.state
    assert world.write(0, *first, leader_epoch=3, complete=4) is E.NONE
    assert world.state == before
    world.restart()
    state = world.read(4)
    assert (state.start_offset, state.batches, state.complete_count) == (4, ((6, 6, 2, 1),), 1)


def test_a_late_write_tells_what_is_from_the_start_on() -> None:
    world = World()
    world.initialize()
    assert world.write(4, complete=0) is E.NONE
    assert world.write(2, (2, 5, 0, 2), complete=1) is E.NONE
    assert world.state.batches == ((4, 5, 0, 2),)
    assert world.state.start_offset == 4


def test_a_write_without_a_start_keeps_it() -> None:
    world = World()
    world.initialize()
    assert world.write(4, complete=2) is E.NONE
    assert world.write(-1, (7, 7, 2, 1), complete=3) is E.NONE
    state = world.state
    assert (state.start_offset, state.batches, state.complete_count) == (4, ((7, 7, 2, 1),), 3)


@pytest.mark.parametrize("state_epoch", [2, 3])
def test_who_asks_again_that_it_begins_takes_nothing_back(state_epoch: int) -> None:
    """The group's coordinator asks until it is told, and so does who takes its place; what it asked
    first may come last, when members have accepted records."""
    world = World()
    assert world.initialize(2) is E.NONE
    assert isinstance(world.read(3), Snapshot)
    assert world.write(0, (0, 4, 2, 1), leader_epoch=3, complete=5) is E.NONE
    assert world.initialize(state_epoch) is E.NONE
    assert world.state.batches == ((0, 4, 2, 1),)
    assert world.shard.summary(KEY) == Summary(2, 3, 0, 5)


def test_many_updates_become_a_snapshot() -> None:
    world = World(share_coordinator_snapshot_update_records_per_snapshot=3)
    world.initialize()
    for at in range(5):
        assert world.write(0, (at, at, 2, 1), complete=at + 1) is E.NONE
    kinds = [type(record.value) for record in world.written()]
    assert kinds == [Snapshot, Update, Update, Update, Snapshot, Update]
    snapshot = world.written()[4].value
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.snapshot_epoch, snapshot.batches) == (1, ((0, 3, 2, 1),))
    assert world.state.batches == ((0, 4, 2, 1),)


def test_state_of_a_deleted_topic_is_forgotten() -> None:
    world = World()
    world.initialize()
    world.ask(lambda: world.shard.topics_deleted([b"other".ljust(16), TOPIC_ID]))
    assert world.shard.summary(KEY) == Summary()
    world.restart()
    assert world.read() is E.INVALID_REQUEST


def test_state_of_a_topic_whose_end_was_not_heard_of_is_forgotten_when_it_is_cold() -> None:
    """Topics are deleted also while a shard is loaded, or finds too few replicas to write to."""
    world = World(share_coordinator_cold_partition_snapshot_interval_ms=10_000)
    kept = KEY._replace(topic_id=b"u".ljust(16))
    world.topics[kept.topic_id] = 1
    for key in (KEY, kept):
        world.initialize(key=key)
    del world.topics[TOPIC_ID]
    assert world.pass_time(9_999) == []
    written = world.pass_time(1)
    assert [(record.key, record.value is None) for record in written] == [
        (KEY, True), (kept, False),
    ]  # fmt: skip
    del world.topics[kept.topic_id]
    assert world.pass_time(10_000) == [(kept, None)], "nothing else is needed"
    world.restart()
    assert (world.read(), world.read(key=kept)) == (E.INVALID_REQUEST, E.INVALID_REQUEST)


def test_a_long_list_is_forgotten_in_batches_that_the_log_takes() -> None:
    world = World()
    keys = [ShareKey("g" * 1_000, TOPIC_ID, index) for index in range(250)]
    world.topics[TOPIC_ID] = len(keys)
    for key in keys:
        world.initialize(key=key)
    begun = len(world.log)
    world.ask(lambda: world.shard.topics_deleted([TOPIC_ID]))
    assert size(world, begun) < BATCH_MAX
    while world.pass_time(SWEEP_STEP_MS):
        pass
    assert {world.shard.summary(key) for key in keys} == {Summary()}


def test_much_that_grew_cold_is_written_in_batches_that_the_log_takes() -> None:
    world = World(share_coordinator_cold_partition_snapshot_interval_ms=10_000)
    keys = [KEY._replace(partition=index) for index in range(30)]
    world.topics[TOPIC_ID] = len(keys)
    for key in keys:
        world.initialize(key=key)
        world.write(0, *((2 * at, 2 * at, 2, 1) for at in range(500)), key=key)
    begun = len(world.log)
    world.pass_time(10_000)
    assert 0 < size(world, begun) < BATCH_MAX
    while world.pass_time(SWEEP_STEP_MS):
        pass
    assert {record.key for record in world.written(begun)} == set(keys)


def size(world: World, since: int) -> int:
    """Of what was written in one step."""
    return sum(len(key) + len(value or b"") for key, value in world.log[since:])


def test_what_grew_cold_is_written_once_more() -> None:
    world = World(share_coordinator_cold_partition_snapshot_interval_ms=10_000)
    world.initialize()
    world.write(0, (0, 0, 2, 1))
    assert world.pass_time(9_999) == []
    (record,) = world.pass_time(1)
    assert isinstance(record.value, Snapshot)
    assert (record.value.snapshot_epoch, record.value.batches) == (1, ((0, 0, 2, 1),))
    assert world.pass_time(10_000) == []  # nothing was written since


def test_what_is_before_the_oldest_snapshot_is_pruned() -> None:
    world = World(
        share_coordinator_state_topic_prune_interval_ms=1_000,
        share_coordinator_snapshot_update_records_per_snapshot=2,
    )
    other = KEY._replace(partition=1)
    world.initialize()
    world.initialize(key=other)
    for offset in range(3):
        world.write(0, (offset, offset, 2, 1))
    world.pass_time(1_000)
    assert world.pruned == [(7, 1)], "the other one's is still needed"
    world.pass_time(1_000)
    assert len(world.pruned) == 1, "nothing new"
    world.ask(lambda: world.shard.delete(other))
    world.pass_time(1_000)
    assert world.pruned[1:] == [(7, 4)]
    world.restart()
    world.pass_time(1_000)
    assert world.pruned[2:] == [(7, 4)]
    world.ask(lambda: world.shard.delete(KEY))
    world.pass_time(1_000)
    assert world.pruned[3:] == [(7, len(world.log) - 1)]


def test_unknown_records_are_skipped_and_malformed_ones_are_not() -> None:
    assert decode_share(b"\x00\x09", b"\x00\x00") is None
    assert decode_share(b"\x00\x00", b"\x00\x01") is None
    with pytest.raises(MalformedFrame):
        decode_share(b"\x00", None)


def test_random_writes_are_all_there_after_a_restart() -> None:
    for seed in range(60):
        random = Random(seed)
        world = World(share_coordinator_snapshot_update_records_per_snapshot=random.choice((1, 4)))
        world.initialize()
        told: list[StateBatch] = []
        start = 0
        for _ in range(random.randint(1, 25)):
            start += random.choice((0, 0, 1, 3))
            first = start + random.randint(0, 10)
            batch = StateBatch(
                first, first + random.randint(0, 5), random.choice((0, 2, 4)), random.randint(1, 4)
            )
            told.append(batch)
            world.write(start, batch)
            if random.random() < 0.2:
                world.restart()
            assert world.state.batches == tuple(combine(told, start)), seed
            told = [*world.state.batches]
