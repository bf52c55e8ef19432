"""A share partition at its leader: loading, one write and one fetch at a time, and its ends."""

from __future__ import annotations

from collections.abc import Callable

from server.share.acquisition import AcquireMode, Fetched, Span
from server.share.leading import (
    Around,
    LoadState,
    OnCode,
    PersistedState,
    Settings,
    ShareLeader,
)
from server.share.share_partition import ACCEPT, Acknowledgement, Limits, StateBatch, StateChange
from server.share.state_batches import ShareKey
from testkit.clock import ManualTimer
from wire.errors import ErrorCode as E
from wire.errors import KafkaError

KEY = ShareKey("g", b"t" * 16, 0)
LOCK_MS = 1_000


class Bench:
    """One leader; the persister answers when the test says so."""

    def __init__(self) -> None:
        self.timer = ManualTimer()
        self.reads: list[Callable[[PersistedState | KafkaError], None]] = []
        self.writes: list[tuple[StateChange, OnCode]] = []
        self.woken = 0
        self.when_woken: Callable[[], object] = lambda: None
        self.forgotten: list[ShareLeader] = []
        self.offset = 0
        limits = Limits(lock_duration_ms=LOCK_MS)
        around = Around(
            self,
            lambda _: Settings(limits, 0, -2),
            self._find_offset,
            lambda: self.timer.ms,
            self.timer.add,
            self._wake,
            self.forgotten.append,
        )
        self.leader = ShareLeader(KEY, "t", 3, around)

    def read(
        self,
        key: ShareKey,
        leader_epoch: int,
        on_complete: Callable[[PersistedState | KafkaError], None],
    ) -> None:
        assert (key, leader_epoch) == (KEY, 3)
        self.reads.append(on_complete)

    def write(
        self,
        key: ShareKey,
        state_epoch: int,
        leader_epoch: int,
        change: StateChange,
        on_complete: OnCode,
    ) -> None:
        assert (key, state_epoch, leader_epoch) == (KEY, 7, 3)
        self.writes.append((change, on_complete))

    def _find_offset(self, _: ShareKey, timestamp: int) -> int:
        assert timestamp == -2
        if self.offset < 0:
            raise KafkaError(E.OFFSET_NOT_AVAILABLE)
        return self.offset

    def _wake(self, key: ShareKey) -> None:
        assert key == KEY
        self.woken += 1
        self.when_woken()

    def load(self, start_offset: int = 0) -> list[E]:
        failures: list[E] = []
        self.leader.load(failures.append)
        self.reads.pop()(PersistedState(7, start_offset, []))
        return failures

    def fetch(self, last: int, member: str = "m") -> None:
        offset = self.leader.begin_fetch()
        assert offset is not None
        fetched = Fetched(offset, [Span(offset, last)])
        self.leader.acquire(member, fetched, 500, AcquireMode.BATCH_OPTIMIZED, 500)
        self.leader.end_fetch()

    def accept(self, first: int, last: int) -> list[E]:
        codes: list[E] = []
        self.leader.acknowledge("m", [Acknowledgement(first, last, [ACCEPT])], codes.append)
        return codes


def test_nobody_is_served_before_it_is_loaded() -> None:
    bench = Bench()
    bench.leader.load(lambda _: None)
    bench.leader.load(lambda _: None)
    assert len(bench.reads) == 1
    assert bench.leader.begin_fetch() is None
    bench.offset = 40
    bench.reads.pop()(PersistedState(7, -1, []))
    assert (bench.leader.begin_fetch(), bench.woken) == (40, 1)


def test_what_cannot_be_loaded_is_forgotten() -> None:
    for state in (
        KafkaError(E.COORDINATOR_NOT_AVAILABLE),
        PersistedState(7, 5, [StateBatch(3, 4, 0, 1)]),
    ):
        bench = Bench()
        failures: list[E] = []
        bench.leader.load(failures.append)
        bench.reads.pop()(state)
        assert bench.leader.is_over
        assert bench.forgotten == [bench.leader]
        assert len(failures) == 1
    bench = Bench()
    bench.offset = -1
    assert bench.load(-1) == [E.OFFSET_NOT_AVAILABLE]


def test_what_comes_during_a_write_goes_with_the_next_one() -> None:
    bench = Bench()
    bench.load()
    bench.fetch(9)
    answers = [bench.accept(at, at) for at in range(3)]
    ((change, persisted),) = bench.writes
    assert [batch.first for batch in change.batches] == [0]
    bench.writes.clear()
    persisted(E.NONE)
    ((change, persisted),) = bench.writes
    assert [batch.first for batch in change.batches] == [1, 2]
    assert answers == [[E.NONE], [], []]
    persisted(E.COORDINATOR_NOT_AVAILABLE)
    assert answers == [[E.NONE], [E.COORDINATOR_NOT_AVAILABLE], [E.COORDINATOR_NOT_AVAILABLE]]
    assert bench.accept(1, 2) == []


def test_one_fetch_at_a_time_and_who_was_refused_is_woken() -> None:
    bench = Bench()
    bench.load()
    woken = bench.woken
    assert bench.leader.begin_fetch() == 0
    assert bench.leader.begin_fetch() is None
    bench.leader.end_fetch()
    assert bench.woken == woken + 1
    assert bench.leader.begin_fetch() == 0
    bench.leader.end_fetch()
    assert bench.woken == woken + 1


def test_who_is_refused_while_others_are_woken_is_woken_after_them_not_within() -> None:
    """Two threads that look at fifty fetches refuse each other all the time."""
    bench = Bench()
    bench.load()
    bench.woken = within = 0

    def fetch_and_refuse() -> None:
        nonlocal within
        within += 1
        assert within == 1
        if bench.woken <= 1_000:
            assert bench.leader.begin_fetch() == 0
            assert bench.leader.begin_fetch() is None
            bench.leader.end_fetch()
        within -= 1

    bench.when_woken = fetch_and_refuse
    assert bench.leader.begin_fetch() == 0
    assert bench.leader.begin_fetch() is None
    bench.leader.end_fetch()
    assert bench.woken == 1_001


def test_who_is_refused_by_one_that_goes_on_is_woken_when_that_ends() -> None:
    bench = Bench()
    bench.load()
    bench.woken = 0

    def fetch() -> None:
        if bench.woken == 1:
            assert bench.leader.begin_fetch() == 0  # another thread's, which takes its time
            assert bench.leader.begin_fetch() is None

    bench.when_woken = fetch
    assert bench.leader.begin_fetch() == 0
    assert bench.leader.begin_fetch() is None
    bench.leader.end_fetch()
    assert bench.woken == 1
    bench.leader.end_fetch()
    assert bench.woken == 2


def test_locks_run_out_by_the_clock() -> None:
    bench = Bench()
    bench.load()
    bench.fetch(4)
    bench.timer.pass_(LOCK_MS - 1)
    assert not bench.writes
    bench.timer.pass_(1)
    ((change, _),) = bench.writes
    assert change.batches == [(0, 4, 0, 1)]
    assert bench.leader.begin_fetch() == 0


def test_locks_that_run_out_one_after_the_other_are_looked_at_together() -> None:
    bench = Bench()
    bench.load()
    for offset in range(10):
        bench.fetch(offset)
        bench.timer.pass_(1)
    bench.timer.pass_(LOCK_MS - 10)
    bench.writes.pop()[1](E.NONE)
    bench.timer.pass_(49)
    assert not bench.writes
    bench.timer.pass_(1)
    ((change, on_complete),) = bench.writes
    assert change.batches == [(offset, offset, 0, 1) for offset in range(1, 10)]
    on_complete(E.NONE)
    bench.timer.pass_(LOCK_MS)
    bench.fetch(9)
    bench.writes.clear()
    bench.timer.pass_(LOCK_MS)
    assert len(bench.writes) == 1, "a lock by itself runs out on time"


def test_state_that_is_gone_is_forgotten() -> None:
    bench = Bench()
    bench.load()
    bench.fetch(4)
    codes = bench.accept(0, 4)
    bench.writes.pop()[1](E.NOT_LEADER_OR_FOLLOWER)
    assert codes == [E.NOT_LEADER_OR_FOLLOWER]
    assert bench.forgotten == [bench.leader]
    bench.leader.fence()
    assert bench.leader.state is LoadState.FENCED
    assert bench.accept(0, 4) == [E.NOT_LEADER_OR_FOLLOWER]
    assert bench.leader.begin_fetch() is None
