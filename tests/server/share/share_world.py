"""A share partition, the log it is about, and a model of both that keeps one entry per offset."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from server.share.acquisition import Acquired, AcquireMode, Fetched, Span, Wish
from server.share.in_flight import ACQUIRED, ARCHIVED, AVAILABLE, RecordState
from server.share.share_partition import (
    RENEW,
    Acknowledgement,
    Limits,
    SharePartition,
    StateChange,
)
from server.share.state_batches import StateBatch, combine
from wire.errors import ErrorCode, KafkaError

MEMBERS = ("m1", "m2", "m3")


@dataclass
class Entry:
    """What the model knows of one offset."""

    state: RecordState = AVAILABLE
    count: int = 0
    member: str = ""
    lock_ms: int = 0
    pending_of: str | None = None


@dataclass
class World:
    """The real thing beside its model; every step compares the two."""

    random: Random
    limits: Limits
    log: list[Span] = field(default_factory=list)
    aborted: set[Span] = field(default_factory=set)
    log_start: int = 0
    log_end: int = 0
    now_ms: int = 0
    start_offset: int = 0
    persisted: dict[int, tuple[int, int]] = field(default_factory=dict)
    entries: dict[int, Entry] = field(default_factory=dict)
    changes: list[StateChange] = field(default_factory=list)
    delivered: set[int] = field(default_factory=set)
    accepted: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.partition = SharePartition(0)

    # -- the log -----------------------------------------------------------------------------

    def append(self) -> None:
        if self.random.random() < 0.15:
            self.log_end += self.random.randint(1, 6)  # compacted away
        base, self.log_end = self.log_end, self.log_end + self.random.randint(1, 12)
        span = Span(base, self.log_end - 1)
        self.log.append(span)
        if self.random.random() < 0.1:
            self.aborted.add(span)

    def compact(self) -> None:
        spans = [span for span in self.log[:-1] if span not in self.aborted]
        if spans:
            self.log.remove(self.random.choice(spans))

    def delete_records(self) -> None:
        self.log_start = self.random.randint(self.log_start, self.log_end)
        self.log = [span for span in self.log if span.last >= self.log_start]

    # -- fetching ----------------------------------------------------------------------------

    def fetch(
        self,
        member: str,
        max_records: int,
        mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
        batch_size: int = 500,
        batches: int = 100,
    ) -> list[Acquired]:
        partition = self.partition
        if not partition.can_acquire(self.limits):
            return []
        offset = partition.next_fetch_offset
        if offset < self.log_start:
            partition.log_start_moved(self.log_start)
            offset = partition.next_fetch_offset
        read = [span for span in self.log if span.last >= offset][:batches]
        aborted = [span for span in read if span in self.aborted]
        lock_until = self.now_ms + self.limits.lock_duration_ms
        wish = Wish(member, max_records, lock_until, mode, batch_size)
        acquired = partition.acquire(Fetched(offset, read, aborted), wish, self.limits)
        for span in aborted:
            for at in range(span.first, span.last + 1):
                entry = self.entries.setdefault(at, Entry())
                if entry.state is AVAILABLE and entry.pending_of is None:
                    entry.state = ARCHIVED  # skipped now, or at the latest when it is read again
        for got in acquired:
            assert got.first <= got.last
            for at in range(got.first, got.last + 1):
                self._hand_out(at, got.delivery_count, member, lock_until)
        if mode is AcquireMode.RECORD_LIMIT:
            assert sum(got.last - got.first + 1 for got in acquired) <= max(max_records, 0)
        return acquired

    def _hand_out(self, at: int, count: int, member: str, lock_until: int) -> None:
        entry = self.entries.setdefault(at, Entry())
        assert at >= self.log_start or at >= self.partition.start_offset
        assert (entry.state, entry.pending_of) == (AVAILABLE, None), at
        entry.count += 1
        assert count == entry.count <= self.limits.delivery_count_limit, at
        entry.state, entry.member, entry.lock_ms = ACQUIRED, member, lock_until
        self.delivered.add(at)

    # -- acknowledging -----------------------------------------------------------------------

    def acknowledge(self, member: str, *acks: Acknowledgement) -> ErrorCode:
        """Both must agree whether it is fine; and what was refused changed nothing."""
        expected = self._model_acknowledges(member, acks)
        try:
            change = self.partition.acknowledge(member, acks, self.limits, self.now_ms)
        except KafkaError as error:
            assert expected is None or self._has_holes(acks), (member, acks)
            return error.code
        assert expected is not None, (member, acks)
        for at, kind in expected:
            if kind == RENEW:
                self.entries[at].lock_ms = self.now_ms + self.limits.lock_duration_ms
        self._begin(change)
        return ErrorCode.NONE

    def _has_holes(self, acks: tuple[Acknowledgement, ...]) -> bool:
        """Whether some of it was never handed out: fine if the log has no such offsets (and nobody
        is told), refused if they are kept as available."""
        return any(at not in self.entries for ack in acks for at in range(ack.first, ack.last + 1))

    def _model_acknowledges(
        self, member: str, acks: tuple[Acknowledgement, ...]
    ) -> list[tuple[int, int]] | None:
        taken: dict[int, int] = {}
        for ack in acks:
            if ack.last < self.partition.start_offset:
                continue
            for at in range(max(ack.first, self.partition.start_offset), ack.last + 1):
                entry = self.entries.get(at)
                if entry is None and at < ack.last:
                    continue
                if entry is None or entry.state is not ACQUIRED or entry.member != member:
                    return None
                if taken.get(at, RENEW) != RENEW:
                    return None
                taken[at] = ack.types[0 if len(ack.types) == 1 else at - ack.first]
        return list(taken.items())

    def _begin(self, change: StateChange | None, *, is_final: bool = False) -> None:
        if change is None:
            return
        self.changes.append(change)
        for first, last, state, count in change.batches:
            for at in range(first, last + 1):
                entry = self.entries[at]
                assert (entry.state, entry.count) == (ACQUIRED, count), at
                entry.state = RecordState(state)
                entry.member, entry.pending_of = "", None if is_final else entry.member

    def settle(self, *, is_persisted: bool) -> None:
        change = self.changes.pop(0)
        if is_persisted:
            self.start_offset = max(self.start_offset, change.start_offset)
            self._persist(change.batches)
        self.partition.settle(change, is_persisted=is_persisted)
        if not change.pending:
            return
        for first, last, _, _ in change.batches:
            for at in range(first, last + 1):
                entry = self.entries[at]
                assert entry.pending_of is not None
                if not is_persisted:
                    assert at >= self.partition.start_offset or at < self.log_start, "lost"
                    entry.state, entry.member = ACQUIRED, entry.pending_of
                entry.pending_of = None

    def _persist(self, batches: list[StateBatch]) -> None:
        for first, last, state, count in batches:
            for at in range(first, last + 1):
                self.persisted[at] = (state, count)
                if state == 2:
                    assert at not in self.accepted, "acknowledged twice"
                    self.accepted.add(at)

    def release(self, member: str) -> None:
        change = self.partition.release(member, self.limits)
        mine = [at for at in self._kept() if self.entries[at].member == member]
        self._begin(change)
        assert all(self.entries[at].state is not ACQUIRED for at in mine)

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        deadline_ms = self.partition.lock_deadline_ms
        due = [at for at in self._kept() if self.entries[at].lock_ms <= self.now_ms]
        if due:
            assert deadline_ms is not None
            assert deadline_ms <= self.now_ms
        change = self.partition.expire_locks(self.now_ms, self.limits)
        self._begin(change, is_final=True)
        assert all(self.entries[at].state is not ACQUIRED for at in due)

    def _kept(self) -> list[int]:
        """Acquired offsets of the window."""
        start = self.partition.start_offset
        return [at for at, e in self.entries.items() if at >= start and e.state is ACQUIRED]

    # -- a new leader ------------------------------------------------------------------------

    def fail_over(self) -> None:
        """All that is in memory is lost; what is persisted comes back."""
        self.changes.clear()
        known = [StateBatch(at, at, *known) for at, known in self.persisted.items()]
        loaded = combine(known, self.start_offset)
        self.partition = SharePartition(self.start_offset, loaded)
        self.entries = {
            at: Entry(RecordState(state), count)
            for first, last, state, count in loaded
            for at in range(first, last + 1)
        }

    # -- the end -----------------------------------------------------------------------------

    def drain(self) -> None:
        """With all faults over, everything is delivered and accepted: nothing is stuck."""
        while self.changes:
            self.settle(is_persisted=True)
        self.pass_time(10 * self.limits.lock_duration_ms)
        for _ in range(20 * (self.log_end + 10)):
            while self.changes:
                self.settle(is_persisted=True)
            for got in self.fetch("m1", 10, batches=2):
                self.acknowledge("m1", Acknowledgement(got.first, got.last, [1]))
            if not self.changes and self.partition.next_fetch_offset >= self._readable_to():
                break
        assert self.partition.next_fetch_offset >= self._readable_to()
        assert not self._kept()

    def _readable_to(self) -> int:
        return self.log[-1].last + 1 if self.log else self.log_start
