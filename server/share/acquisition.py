"""Which of the fetched records a member of a share group gets (PURE; Kafka:
SharePartition.acquire).

What was read is whole record batches, and of these the member gets what is available: records that
came back, holes of what was loaded, and what nobody had yet. In BATCH_OPTIMIZED mode `max_records`
is a soft limit: the record batch that crosses it is acquired to its end. In RECORD_LIMIT mode the
rest of that batch is kept as available.

A record that nobody can process must not take its neighbours with it: when a record has come back
often (`throttle_from`), fewer are handed out with it, half as many each time, and one on its last
attempt goes alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

from server.share.in_flight import ACQUIRED, ARCHIVED, AVAILABLE, NOBODY, Batch, InFlight, Run

_FIRST, _LAST = attrgetter("first"), attrgetter("last")


class AcquireMode(IntEnum):
    """ShareFetch's ShareAcquireMode (KIP-1206)."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class Span(NamedTuple):
    """Offsets, both ends included."""

    first: int
    last: int


class Acquired(NamedTuple):
    """Records handed out, both ends included."""

    first: int
    last: int
    delivery_count: int


class Fetched(NamedTuple):
    """What was read of the log for a share partition."""

    fetch_offset: int
    batches: Sequence[Span]
    """Base and last offset of each record batch, in order; at least one."""
    aborted: Sequence[Span] = ()
    """Those of an aborted transaction, in order, which read_committed keeps from the member."""


class Wish(NamedTuple):
    """What a member asks for, and for how long."""

    member_id: str
    max_records: int
    lock_until_ms: int
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
    batch_size: int = 2**31 - 1
    """In BATCH_OPTIMIZED mode, new records are cut at record batches about this far apart."""


def throttle_from(delivery_limit: int) -> int:
    """From which delivery count on fewer records are handed out (KIP-1191: half of the limit)."""
    return max(2, (delivery_limit + 1) // 2)


class Acquisition:
    """One member's share of one read; `run` does it."""

    def __init__(self, flight: InFlight, fetched: Fetched, wish: Wish, delivery_limit: int) -> None:
        self._flight = flight
        self._fetched = fetched
        self._wish = wish
        self._is_limited = wish.mode is AcquireMode.RECORD_LIMIT
        self._delivery_limit = delivery_limit
        self._throttle_from = throttle_from(delivery_limit)
        self._left = 0
        """How many more records the member gets; less than 0 once a batch crossed the limit."""
        self._first = fetched.batches[0].first
        self._last = fetched.batches[-1].last
        self._acquired: list[Acquired] = []

    def run(self, max_in_flight: int) -> list[Acquired]:
        """Acquire, and say what."""
        flight, fetch_offset = self._flight, self._fetched.fetch_offset
        self._left = min(self._wish.max_records, max_in_flight - flight.count)
        if self._left <= 0:  # full: only what came back
            self._last = min(self._last, flight.next_offset - 1)
            self._left = min(self._wish.max_records, flight.next_offset - fetch_offset)
        if self._left <= 0 or self._last < flight.start_offset:
            return []
        self._archive_missing(fetch_offset)
        self._walk()
        self._archive_aborted()
        flight.advance()
        return self._acquired

    def _archive_missing(self, fetch_offset: int) -> None:
        """The log has nothing between the offset that was asked for and the first one it gave."""
        flight, missing_to = self._flight, self._first - 1
        if missing_to < fetch_offset:
            return
        for batch in flight.overlapping(fetch_offset, missing_to):
            among = batch.available_in(fetch_offset, missing_to)
            for run in batch.available[among.start : among.stop]:
                flight.turn(batch.carve(run, fetch_offset, missing_to), ARCHIVED)
            among = batch.available_in(fetch_offset, missing_to)
            del batch.available[among.start : among.stop]
        flight.gap_seen_to(self._first)

    def _walk(self) -> None:
        """Go over what is cached of the range, and over the holes between and the rest after."""
        flight = self._flight
        batches = flight.overlapping(self._first, self._last)
        follows = batches[0].first if batches and batches[0].first < self._first else self._first
        for batch in batches:
            if flight.is_gap_open and follows < batch.first and self._left > 0:
                self._acquire_new(follows, batch.first - 1)
            if self._left <= 0 or not self._acquire_again(batch):
                return
            follows = batch.last + 1
        if self._left > 0 and follows <= self._last:
            self._acquire_new(follows, self._last)

    # -- records that came back --------------------------------------------------------------

    def _acquire_again(self, batch: Batch) -> bool:
        """Acquire what is available of a batch; False: let that be all."""
        if self._acquired and self._has_throttled(batch):
            return False
        return not self._take_some(batch)

    def _has_throttled(self, batch: Batch) -> bool:
        counts = (batch.available[at].delivery_count for at in self._wanted_of(batch))
        return any(count >= self._throttle_from for count in counts)

    def _wanted_of(self, batch: Batch) -> range:
        return batch.available_in(self._first, self._last)

    def _take_some(self, batch: Batch) -> bool:
        """Acquire of a batch's available runs as many records as may be handed out together;
        whether some were few because they came back often."""
        taken = 0
        ends = [self._left if self._is_limited else batch.size]
        """With so many it ends, unless it has more when that is known."""
        is_throttled = False
        goes_alone = self._delivery_limit > 2  # below that, every redelivery would
        low = at = self._wanted_of(batch).start
        while at < len(batch.available) and batch.available[at].first <= self._last:
            run = batch.available[at]
            over = run.delivery_count - self._throttle_from
            if over >= 0 and not is_throttled:
                is_throttled = True
                ends.append(max(batch.size >> (over + 1), 1))
            if goes_alone and run.delivery_count == self._delivery_limit - 1:
                if taken:
                    break
                ends.append(1)
            first = max(run.first, self._first)
            last = first + min(end - taken for end in ends if end > taken) - 1
            part = batch.carve(run, first, min(last, self._last))
            if part is not run:  # what is before it stays
                low = at = at + 1
            self._take(part, is_joined=taken > 0)
            taken += part.size
            at += 1
            if taken in ends:
                break
        del batch.available[low:at]
        return is_throttled

    def _take(self, run: Run, *, is_joined: bool = False) -> None:
        self._flight.turn(run, ACQUIRED)
        run.delivery_count += 1
        run.member_id = self._wish.member_id
        run.lock_until_ms = self._wish.lock_until_ms
        self._left -= run.size
        before = self._acquired[-1] if is_joined else None
        if before and before.last + 1 == run.first and before.delivery_count == run.delivery_count:
            self._acquired[-1] = before._replace(last=run.last)
        else:
            self._acquired.append(Acquired(run.first, run.last, run.delivery_count))

    # -- records that nobody had -------------------------------------------------------------

    def _acquire_new(self, first: int, last: int) -> None:
        """Acquire records of [first, last] that are cached nowhere."""
        flight = self._flight
        first = max(first, flight.start_offset)
        is_gap_open = flight.is_gap_open
        if last - first >= self._left:
            end = self._end_of_batch_with(first + self._left - 1)
            last = min(last, end) if is_gap_open else end
        if first > last:
            return
        if self._is_limited and last - first >= self._left:
            self._acquire_part(first, last)
        else:
            for span in self._cut(first, last):
                self._add(span)
            self._left -= last - first + 1
        flight.gap_seen_to(last + 1)

    def _end_of_batch_with(self, offset: int) -> int:
        """The last offset of the record batch that holds this one; itself if none does."""
        for span in self._fetched.batches:
            if span.first <= offset <= span.last:
                return span.last
        return offset

    def _cut(self, first: int, last: int) -> list[Span]:
        """New records as spans that begin with a record batch, and have about `batch_size`."""
        spans = []
        if not self._is_limited and last - first >= self._wish.batch_size:
            for base, _ in self._fetched.batches:
                if base > last:
                    break
                if base - first >= max(1, self._wish.batch_size):  # no span is empty
                    spans.append(Span(first, base - 1))
                    first = base
        spans.append(Span(first, last))
        return spans

    def _add(self, span: Span) -> None:
        wish = self._wish
        run = Run(*span, ACQUIRED, 1, wish.member_id, wish.lock_until_ms)
        self._flight.add(Batch(run))
        self._acquired.append(Acquired(*span, 1))

    def _acquire_part(self, first: int, last: int) -> None:
        """Acquire as many as are left, and keep the rest as available."""
        batch = Batch(Run(first, last, AVAILABLE, 0))
        self._flight.add(batch)
        self._take_some(batch)

    # -- aborted transactions ----------------------------------------------------------------

    def _archive_aborted(self) -> None:
        """Keep aborted records from the member. This is not persisted: it is found out again."""
        if not self._fetched.aborted or not self._acquired:
            return
        for first, last in self._fetched.aborted:
            for batch in self._flight.overlapping(first, last):
                self._archive_acquired(batch, first, last)
        self._acquired = _without(self._acquired, self._fetched.aborted)

    def _archive_acquired(self, batch: Batch, first: int, last: int) -> None:
        for run in batch.between(first, last):
            if run.state is ACQUIRED and run.member_id == self._wish.member_id:
                part = batch.carve(run, first, last)
                self._flight.turn(part, ARCHIVED)
                part.member_id, part.lock_until_ms = NOBODY, None


def _without(acquired: Iterable[Acquired], aborted: Sequence[Span]) -> list[Acquired]:
    """What is left of records acquired when others, which are in order, are taken out; there may be
    thousands of both."""
    left = []
    for first, last, count in acquired:
        low = bisect_left(aborted, first, key=_LAST)
        high = bisect_right(aborted, last, key=_FIRST)
        for gone in aborted[low:high]:
            if first < gone.first:
                left.append(Acquired(first, gone.first - 1, count))
            first = gone.last + 1
        if first <= last:
            left.append(Acquired(first, last, count))
    return left
