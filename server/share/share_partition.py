"""One share partition: which record is whose, and what must be persisted of it (PURE).

Why: every answer that a share group gets is decided here, so that it can be tried by the thousand
against a model (Kafka: SharePartition, KIP-932). States and window: `in_flight`; who gets what:
`acquisition`.

How: acknowledgements change the state at once, are pending until somebody has persisted the
`StateChange` they return, and are answered when `settle` has been told how that went. Changes of
one partition are persisted in the order they were made. To acquire changes nothing that is
persisted: a new leader may hand the records out again. A lock that ran out is final at once,
persisted or not.

The start offset in a change is the one of before: the window moves when the change is settled, and
the next change, or load, tells.

Callers take turns; times are monotonic ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from server.share.acquisition import Acquired, AcquireMode, Acquisition, Fetched, Span, Wish
from server.share.in_flight import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    NOBODY,
    InFlight,
    RecordState,
    Run,
)
from server.share.state_batches import StateBatch
from wire.errors import ErrorCode, KafkaError

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
"""The types of ShareAcknowledge; a gap is an offset that the client found no record at."""

_STATE_AFTER = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: AVAILABLE, REJECT: ARCHIVED}


COMPLETE_MAX = 2**31 - 1
"""What is persisted of the count is an int32; two batches may claim more records. Kafka's goes on
with the lowest negative number, and its lag is wrong by 2^32."""


class Limits(NamedTuple):
    """What a group may change at any time (`group.share.*`, and its group configs)."""

    lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    max_record_locks: int = 2_000
    is_renew_enabled: bool = True


class Acknowledgement(NamedTuple):
    """What a member says of records, both ends included."""

    first: int
    last: int
    types: Sequence[int]
    """One for all, or one for each offset."""

    def spans(self, start: int) -> Iterator[tuple[Span, int]]:
        """Neighbours of one type from `start` on, which is inside, and their type."""
        if len(self.types) == 1:
            yield Span(start, self.last), self.types[0]
            return
        for kind, these in groupby(self.types[start - self.first :]):
            first, start = start, start + sum(1 for _ in these)
            yield Span(first, start - 1), kind


class StateChange(NamedTuple):
    """What is to be persisted; tell `SharePartition.settle` how that went."""

    start_offset: int
    complete_count: int
    batches: list[StateBatch]
    pending: list[Run]


class SharePartition:
    """See the module."""

    def __init__(self, start_offset: int, persisted: Iterable[StateBatch] = ()) -> None:
        """`persisted` is sorted; ValueError if it overlaps or begins before the start."""
        runs = [Run(b.first, b.last, RecordState(b.state), b.delivery_count) for b in persisted]
        follows = start_offset
        for run in runs:
            if not follows <= run.first <= run.last or run.state is ACQUIRED:
                raise ValueError(f"state from {run.first} to {run.last} after {follows}")
            follows = run.last + 1
        self._flight = InFlight(start_offset)
        self._flight.load(runs)
        self._may_be_available = bool(runs)
        self.lock_deadline_ms: int | None = None
        """Until then no lock runs out."""

    @property
    def start_offset(self) -> int:
        """The first record whose delivery is not complete."""
        return self._flight.start_offset

    @property
    def complete_count(self) -> int:
        """How many records from the start on need no delivery any more."""
        return self._flight.complete_count

    # -- fetching ----------------------------------------------------------------------------

    @property
    def next_fetch_offset(self) -> int:
        """Where to read: the first record or hole that may be acquired, else what follows."""
        flight = self._flight
        gap = flight.gap_start if flight.is_gap_open else None
        if not self._may_be_available and gap is None:
            return flight.next_offset
        for batch in flight.batches:
            if gap is not None:
                if batch.first > gap:
                    return gap
                gap = max(gap, batch.last + 1)
            if batch.available:
                return batch.available[0].first
        self._may_be_available = False
        return flight.next_offset

    def last_wanted(self, max_records: int, end_offset: int, limits: Limits) -> int:
        """No acquisition of so many records goes further, but to the end of a record batch. The log
        can be read up to `end_offset`."""
        flight = self._flight
        left, last = max_records, self.start_offset
        if self._may_be_available and not flight.is_gap_open:
            for batch in flight.batches:
                for run in batch.available:
                    last = batch.available[-1].last
                    left -= run.size
                    if left <= 0:
                        return last
        room = min(left, limits.max_record_locks - flight.count)
        is_more = flight.is_gap_open or (room > 0 and flight.next_offset < end_offset)
        return flight.next_offset + max(room, 0) - 1 if is_more else last

    def can_acquire(self, limits: Limits) -> bool:
        """Whether a read can give anybody anything."""
        flight = self._flight
        is_full = flight.count >= limits.max_record_locks
        return not is_full or self.next_fetch_offset != flight.next_offset

    def acquire(self, fetched: Fetched, wish: Wish, limits: Limits) -> list[Acquired]:
        """Hand out records of what was read; nothing if nothing was, or nothing is wished for."""
        if not fetched.batches or wish.max_records <= 0:
            return []
        acquisition = Acquisition(self._flight, fetched, wish, limits.delivery_count_limit)
        acquired = acquisition.run(limits.max_record_locks)
        self._may_be_available |= wish.mode is AcquireMode.RECORD_LIMIT
        if acquired:
            self._lock_until(wish.lock_until_ms)
        return acquired

    def log_start_moved(self, log_start_offset: int) -> None:
        """Forget records that are in the log no more; acknowledging them still succeeds."""
        self._flight.move_start(log_start_offset)
        self._flight.advance()

    # -- acknowledging -----------------------------------------------------------------------

    def run_count(self, span: Span) -> int:
        """How many changes an acknowledgement of these records would make."""
        return sum(len(batch.between(*span)) for batch in self._flight.overlapping(*span))

    def acknowledge(
        self, member_id: str, acks: Sequence[Acknowledgement], limits: Limits, now_ms: int
    ) -> StateChange | None:
        """Take all acknowledgements, which ascend, or none; None: nothing to persist.

        Raises KafkaError, and nothing has changed: INVALID_RECORD_STATE for records that are not
        this member's (any more), INVALID_REQUEST for such as were never acquired. What the start
        has passed is acknowledged by now, and that again is no mistake.
        """
        taken: list[tuple[Span, int]] = []
        renewed: list[Span] = []
        for ack in acks:
            first = max(ack.first, self.start_offset)
            if first > ack.last:
                continue
            self._check_acquired(member_id, first, ack.last)
            for span, kind in ack.spans(first):
                if taken and span.first <= taken[-1][0].last:
                    raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "the record is acknowledged")
                if kind == RENEW:
                    _check_renewal(limits)
                    renewed.append(span)
                else:
                    taken.append((span, kind))
        both = [*renewed, *(span for span, _ in taken)]
        self._flight.cut(sorted({at for span in both for at in (span.first, span.last + 1)}))
        pending = []
        for span, kind in taken:
            for run in self._runs_of(span):
                self._begin(run, _STATE_AFTER[kind], limits)
                pending.append(run)
        for span in renewed:
            self._renew(span, now_ms + limits.lock_duration_ms)
        return self._change(pending)

    def release(self, member_id: str, limits: Limits) -> StateChange | None:
        """Take back what a member has, as when it has gone; None: nothing to persist."""
        released = [run for run in self._acquired_runs() if run.member_id == member_id]
        for run in released:
            self._begin(run, AVAILABLE, limits)
        return self._change(released)

    def expire_locks(self, now_ms: int, limits: Limits) -> StateChange | None:
        """Take back what was kept too long; None: nothing to persist."""
        expired: list[Run] = []
        self.lock_deadline_ms = None
        for run in self._acquired_runs():
            if run.lock_until_ms is None or run.lock_until_ms > now_ms:
                self._lock_until(run.lock_until_ms)
            else:
                self._begin(run, AVAILABLE, limits)
                expired.append(run)
        change = self._change(expired)
        self._commit(expired)
        return change if change is None else change._replace(pending=[])

    def settle(self, change: StateChange, *, is_persisted: bool) -> bool:
        """Make a change final, or take it back; whether a read may now give somebody more."""
        if is_persisted:
            self._commit(change.pending)
        else:
            self._take_back(change.pending)
        return self._flight.advance() or self._may_be_available

    # -- within ------------------------------------------------------------------------------

    def _acquired_runs(self) -> Iterator[Run]:
        for batch in self._flight.batches:
            for run in batch.runs:
                if run.state is ACQUIRED:
                    yield run

    def _check_acquired(self, member_id: str, first: int, last: int) -> None:
        flight = self._flight
        batches = flight.overlapping(first, last)
        if not batches or last > batches[-1].last:
            is_after = flight.batches and flight.batches[0].first <= first
            code = ErrorCode.INVALID_REQUEST if is_after else ErrorCode.INVALID_RECORD_STATE
            raise KafkaError(code, "records that were not acquired")
        for batch in batches:
            for run in batch.between(first, last):
                _check_owner(run, member_id)

    def _runs_of(self, span: Span) -> Iterator[Run]:
        """Those that were cut out for it."""
        for batch in self._flight.overlapping(*span):
            yield from batch.between(*span)

    def _renew(self, span: Span, lock_until_ms: int) -> None:
        for run in self._runs_of(span):
            run.lock_until_ms = lock_until_ms
        self._lock_until(lock_until_ms)

    def _begin(self, run: Run, state: RecordState, limits: Limits) -> None:
        """Move acquired records on, until it is settled."""
        if state is AVAILABLE and run.delivery_count >= limits.delivery_count_limit:
            state = ARCHIVED
        self._flight.turn(run, state)
        run.pending_of, run.member_id = run.member_id, NOBODY

    def _change(self, pending: list[Run]) -> StateChange | None:
        if not pending:
            return None
        batches = [
            StateBatch(run.first, run.last, run.state, run.delivery_count) for run in pending
        ]
        complete_count = min(self.complete_count, COMPLETE_MAX)
        return StateChange(self.start_offset, complete_count, batches, pending)

    def _commit(self, pending: list[Run]) -> None:
        settled = [run for run in pending if run.pending_of is not None]
        for run in settled:
            run.pending_of = run.lock_until_ms = None
        came_back = [run for run in settled if run.state is AVAILABLE]
        self._flight.came_back(came_back)
        self._may_be_available |= bool(came_back)

    def _take_back(self, pending: list[Run]) -> None:
        for run in pending:
            if run.pending_of is not None:
                self._flight.take_back(run)
                self._lock_until(run.lock_until_ms)

    def _lock_until(self, until_ms: int | None) -> None:
        if until_ms is not None:
            deadline_ms = self.lock_deadline_ms
            self.lock_deadline_ms = until_ms if deadline_ms is None else min(deadline_ms, until_ms)


def _check_owner(run: Run, member_id: str) -> None:
    if run.state is not ACQUIRED:
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "the record is not acquired")
    if run.member_id != member_id:
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "the record is another member's")


def _check_renewal(limits: Limits) -> None:
    if not limits.is_renew_enabled:
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "the group does not renew locks")
