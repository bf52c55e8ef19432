"""High watermark and ISR against a small model, whatever followers and controller do (H-1 to H-7).

The model knows only what followers told the leader and what the controller committed; after each
step the partition's high watermark must be what the rules say, and no acknowledged record may be
missing on any member of any ISR that could become the committed one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from replication.metadata.image import (
    EMPTY_IMAGE,
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
)
from replication.partition.partition import Partition
from replication.partition.requests import AlteredIsr, FetchPartition, IsrChange
from storage.config import LogConfig
from storage.environment import LogEnvironment
from storage.log.append_source import FROM_CLIENT
from storage.recovery import open_log
from testkit.clock import WALL_MS, ManualClock
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition
from wire.records import Record, build_batch

TP, TOPIC_ID = TopicPartition("orders", 0), b"orders-topic-id!"
LAG_MS, MIN_ISR = 1_000, 2
FOLLOWERS = (2, 3, 4)
BATCH = build_batch([Record(-1, WALL_MS, b"k", b"v")])


class World:
    """One leader, three followers that are only offsets, and a controller that is slow."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock(10_000)
        self.image: MetadataImage = replace(
            EMPTY_IMAGE,
            brokers={
                i: BrokerRegistration(i, 70 + i, bytes(16), {}, fenced=False)
                for i in (1, *FOLLOWERS)
            },
        )
        self.asked: list[IsrChange] = []
        self.progress: list[Partition] = []
        self.late: list[tuple[IsrChange, AlteredIsr]] = []
        self.committed = PartitionRegistration(
            (1, *FOLLOWERS), (bytes(16),) * 4, (1, 2, 3, 4), 1, leader_epoch=3, partition_epoch=3
        )
        """What the controller decided last, told to the leader or not."""
        self.ends = dict.fromkeys(FOLLOWERS, 0)
        """How long each follower's log is."""
        self.told = dict.fromkeys(FOLLOWERS, -1)
        """What each follower's last fetch said, in this leader epoch."""
        self.log = open_log(
            root / str(TP), TP, LogConfig(min_insync_replicas=MIN_ISR),
            LogEnvironment(root, clock=self.clock), topic_id=TOPIC_ID,
        )  # fmt: skip
        self.partition = Partition(
            TP, TOPIC_ID, 1, self.clock, metadata=lambda: self.image,
            flush_async=lambda log, callback: None, on_progress=self.progress.append,
            alter_isr=self.asked.append, lag_ms_max=LAG_MS,
        )  # fmt: skip
        self.partition.make_leader(self.committed, self.log)
        self.high_watermark = 0
        self.history: list[str] = []

    # ---- what happens

    def append(self) -> None:
        try:
            self.partition.append_records_to_leader(
                BATCH, self.rng.choice((1, -1)), WALL_MS, FROM_CLIENT
            )
        except KafkaError as error:
            if error.code != ErrorCode.NOT_ENOUGH_REPLICAS:
                raise

    def fetch(self) -> None:
        follower = self.rng.choice(FOLLOWERS)
        end = self.ends[follower]
        request = FetchPartition(TP.topic, TOPIC_ID, 0, end, 0, current_leader_epoch=-1)
        epoch = self.image.brokers[follower].broker_epoch
        self.partition.update_follower_fetch_state(
            follower, epoch, request, *self.partition.leader_end()
        )
        self.told[follower] = end
        self.ends[follower] = self.rng.randint(end, self.log.log_end_offset)

    def lose_tail(self) -> None:
        """A follower restarts without what it had not flushed; its broker gets another epoch."""
        follower = self.rng.choice(FOLLOWERS)
        if follower in self.partition.role.isr_state.maximal_isr or follower in self.committed.isr:
            return
        self.ends[follower] = self.rng.randint(0, self.ends[follower])
        broker = self.image.brokers[follower]
        self._set(replace(broker, broker_epoch=broker.broker_epoch + 10))

    def fence(self) -> None:
        broker = self.image.brokers[self.rng.choice(FOLLOWERS)]
        self._set(replace(broker, fenced=not broker.fenced))

    def _set(self, broker: BrokerRegistration) -> None:
        self.image = replace(self.image, brokers={**self.image.brokers, broker.broker_id: broker})

    def pass_time(self) -> None:
        self.clock.ms += self.rng.choice((1, 100, LAG_MS // 2, 2 * LAG_MS))

    def shrink(self) -> None:
        self.partition.maybe_shrink_isr()

    def decide(self) -> None:
        """The controller looks at a change: commits it, refuses it, or its answer is lost."""
        if not self.asked:
            return
        change = self.asked.pop(0)
        isr = tuple(member for member, _ in change.isr)
        now = self.committed
        if (change.leader_epoch, change.partition_epoch) != (now.leader_epoch, now.partition_epoch):
            change.on_answer(ErrorCode.INVALID_UPDATE_VERSION)
            return
        if not all(self._may_join(member, epoch) for member, epoch in change.isr if member != 1):
            change.on_answer(ErrorCode.INELIGIBLE_REPLICA)
            return
        kind = self.rng.random()
        if kind < 0.15:
            change.on_answer(ErrorCode.OPERATION_NOT_ATTEMPTED)
            return
        if kind < 0.3:
            change.on_answer(ErrorCode.UNKNOWN_SERVER_ERROR)  # not decided: it is asked again
            return
        self.committed = replace(now, isr=isr, partition_epoch=now.partition_epoch + 1)
        answer = AlteredIsr(3, self.committed.partition_epoch, isr)
        if kind < 0.6:
            change.on_answer(answer)
        elif kind < 0.9:
            self.late.append((change, answer))

    def late_answer(self) -> None:
        """An answer that metadata, and what came of it, may have overtaken."""
        if self.late:
            change, answer = self.late.pop(self.rng.randrange(len(self.late)))
            change.on_answer(answer)

    def _may_join(self, member: int, epoch: int) -> bool:
        broker = self.image.brokers[member]
        return not broker.fenced and epoch in (-1, broker.broker_epoch)

    def deliver_metadata(self) -> None:
        self.partition.make_leader(self.committed, self.log)

    # ---- what must hold

    def check(self) -> None:
        partition, log = self.partition, self.log
        high_watermark = log.high_watermark
        assert self.high_watermark <= high_watermark <= log.log_end_offset, "only up, never beyond"
        if high_watermark > self.high_watermark:
            assert len(partition.isr) >= MIN_ISR, "committed without enough replicas"
        # Whoever the controller has, or may have, in the ISR has every acknowledged record.
        for member in {*partition.role.isr_state.maximal_isr, *self.committed.isr} - {1}:
            assert self.ends[member] >= high_watermark, f"replica {member} lacks committed records"
        self.high_watermark = high_watermark

    def expected(self) -> int:
        """H-1, by the model, as of a fetch just served."""
        state = self.partition.role.isr_state
        if len(state.isr) < MIN_ISR:
            return self.high_watermark
        ends = [self.log.log_end_offset]
        ends += [self.told[f] for f in FOLLOWERS if f in state.maximal_isr]
        return max(self.high_watermark, min(ends))


STEPS = (
    ("append", 6), ("fetch", 10), ("pass_time", 2), ("shrink", 2), ("decide", 4),
    ("deliver_metadata", 2), ("fence", 1), ("lose_tail", 1),
    ("late_answer", 1),
)  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_no_isr_the_controller_may_choose_lacks_a_committed_record(
    tmp_path: Path, seed: int
) -> None:
    world = World(tmp_path, seed)
    names = [name for name, weight in STEPS for _ in range(weight)]
    for _ in range(1500):
        name = world.rng.choice(names)
        world.history.append(name)
        try:
            getattr(world, name)()
            world.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, after {world.history[-12:]}: {error}") from error
    assert world.high_watermark > 50, "the run must have committed something"
    world.log.close()


def test_the_high_watermark_is_the_smallest_end_of_the_maximal_isr(tmp_path: Path) -> None:
    """Liveness: with everybody eligible and the ISR whole, nothing holds it back for long."""
    world = World(tmp_path, 7)
    for _ in range(500):
        world.append()
        world.fetch()
        assert world.log.high_watermark == world.expected()
        world.check()
    world.log.close()


# ---- H-7, answer by answer


@pytest.fixture
def expanding(tmp_path: Path) -> Iterator[World]:
    """Followers 2 and 3 in sync, 4 has just caught up and is proposed."""
    world = World(tmp_path, 1)
    world.committed = replace(world.committed, isr=(1, 2, 3), partition_epoch=4)
    world.deliver_metadata()
    for follower in (2, 3):
        fetched(world, follower, 0)
    fetched(world, 4, 0)
    assert world.partition.role.isr_state.proposed == {1, 2, 3, 4}
    assert len(world.asked) == 1
    yield world
    world.log.close()


def fetched(world: World, follower: int, offset: int) -> None:
    request = FetchPartition(TP.topic, TOPIC_ID, 0, offset, 0)
    epoch = world.image.brokers[follower].broker_epoch
    world.partition.update_follower_fetch_state(
        follower, epoch, request, *world.partition.leader_end()
    )


@pytest.mark.parametrize("code", [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA])
def test_what_the_controller_did_not_do_is_rolled_back(expanding: World, code: ErrorCode) -> None:
    expanding.asked.pop().on_answer(code)
    state = expanding.partition.role.isr_state
    assert (state.isr, state.is_inflight) == ({1, 2, 3}, False)
    fetched(expanding, 4, 0)
    assert len(expanding.asked) == 1, "the next fetch asks again"


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_where_the_controller_knows_better_the_change_stays_pending_until_metadata_comes(
    expanding: World, code: ErrorCode
) -> None:
    expanding.asked.pop().on_answer(code)
    assert expanding.partition.role.isr_state.maximal_isr == {1, 2, 3, 4}
    fetched(expanding, 4, 0)
    expanding.shrink()
    assert expanding.asked == []
    expanding.committed = replace(expanding.committed, isr=(1, 2), partition_epoch=5)
    expanding.deliver_metadata()
    assert expanding.partition.isr == {1, 2}
    assert not expanding.partition.role.isr_state.is_inflight


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_CONTROLLER])
def test_any_other_error_asks_again_for_the_same(expanding: World, code: ErrorCode) -> None:
    first = expanding.asked.pop()
    first.on_answer(code)
    (again,) = expanding.asked
    assert again[:5] == first[:5]
    again.on_answer(AlteredIsr(3, 5, (1, 2, 3, 4)))
    assert expanding.partition.isr == {1, 2, 3, 4}


def test_a_high_watermark_that_moves_with_an_answer_is_told_though_the_change_is_asked_for_again(
    tmp_path: Path,
) -> None:
    """Follower 4 might have joined and fell silent; what waited for it would hear of it never."""
    world = World(tmp_path, 1)
    world.committed = replace(world.committed, isr=(1, 2, 3), partition_epoch=4)
    world.deliver_metadata()
    for follower in (2, 3):
        fetched(world, follower, 0)
    world.clock.ms += 600
    broker = world.image.brokers[4]
    world._set(replace(broker, fenced=True))
    fetched(world, 4, 0)
    world._set(broker)
    for _ in range(2):
        world.partition.append_records_to_leader(BATCH, 1, WALL_MS, FROM_CLIENT)
    fetched(world, 2, 1)
    fetched(world, 3, 2)
    world.clock.ms += 600
    world.shrink()
    (change,) = world.asked
    assert [member for member, _ in change.isr] == [1, 3]
    world.clock.ms += 600
    assert (world.log.high_watermark, world.progress) == (0, [])
    change.on_answer(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert (world.log.high_watermark, world.progress) == (1, [world.partition])
    world.log.close()


def test_a_late_answer_does_not_undo_what_is_pending_since(expanding: World) -> None:
    """Metadata was faster than the answer, and another change is under way already."""
    late = expanding.asked.pop()
    expanding.committed = replace(expanding.committed, isr=(1, 2, 3, 4), partition_epoch=5)
    expanding.deliver_metadata()
    expanding.clock.ms += 2 * LAG_MS
    expanding.partition.append_records_to_leader(BATCH, 1, WALL_MS, FROM_CLIENT)
    for follower in (2, 3):
        fetched(expanding, follower, 1)
    expanding.shrink()
    pending = expanding.partition.role.isr_state
    assert pending.proposed == {1, 2, 3}
    late.on_answer(AlteredIsr(3, 5, (1, 2, 3, 4)))
    assert expanding.partition.role.isr_state is pending


def test_an_answer_of_another_leader_epoch_is_ignored(expanding: World) -> None:
    change = expanding.asked.pop()
    change.on_answer(AlteredIsr(2, 9, (1, 2)))
    assert expanding.partition.role.isr_state.is_inflight
    assert expanding.partition.role.partition_epoch == 4
