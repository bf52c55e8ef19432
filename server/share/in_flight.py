"""The records of one share partition that are under way: their states, and the window they are in
(PURE; Kafka: InFlightState, InFlightBatch and the cached state of SharePartition).

    state         event                                    next          count
    AVAILABLE     acquired                                 ACQUIRED      +1
    ACQUIRED      accepted                                 ACKNOWLEDGED
    ACQUIRED      released, lock timed out, session gone   AVAILABLE, or ARCHIVED at the limit
    ACQUIRED      rejected, gap, of an aborted transaction ARCHIVED
    ACQUIRED      renewed                                  ACQUIRED, with a new lock
    AVAILABLE     not in the log any more (compaction)     ARCHIVED
    ACKNOWLEDGED, ARCHIVED: the end

What an acknowledgement changes is *pending* until it is persisted: nobody may acquire or
acknowledge the records then, and when it cannot be persisted they are their member's again.

How: records that were acquired together are one `Batch`, which has one `Run`, until something
happens to a part of it: then it has a run for each offset. The window is [start, next): `start` is
the first record whose delivery is not complete, `next` follows the last one acquired. All batches
are inside, sorted; what `start` has passed is forgotten. Between batches are offsets that no record
has, or after a load, that nobody has acquired yet (`gap_start`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from enum import IntEnum
from operator import attrgetter

NOBODY = ""
"""The member of records that are not acquired."""


class RecordState(IntEnum):
    """As it is persisted (Kafka: RecordState; 3 is reserved by KIP-1191)."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = RecordState

TERMINAL = frozenset((ACKNOWLEDGED, ARCHIVED))

NEXT_STATES = {
    AVAILABLE: frozenset((ACQUIRED, ARCHIVED)),
    ACQUIRED: frozenset((AVAILABLE, ACKNOWLEDGED, ARCHIVED)),
    ACKNOWLEDGED: frozenset(()),
    ARCHIVED: frozenset(()),
}
"""The only moves there are; taking back what was pending is none."""


class Run:
    """Neighbouring offsets, both ends included, of one state, count and member."""

    __slots__ = (
        "delivery_count", "first", "last", "lock_until_ms", "member_id", "pending_of", "state",
    )  # fmt: skip

    def __init__(
        self,
        first: int,
        last: int,
        state: RecordState,
        delivery_count: int,
        member_id: str = NOBODY,
        lock_until_ms: int | None = None,
    ) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.delivery_count = delivery_count
        self.member_id = member_id
        self.lock_until_ms = lock_until_ms
        """When the acquisition ends by itself, monotonic ms; kept while a change is pending."""
        self.pending_of: str | None = None
        """Whose records they were before the change that is not persisted yet; None: no change."""

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    @property
    def is_available(self) -> bool:
        """Whether it may be acquired now."""
        return self.state is AVAILABLE and self.pending_of is None

    @property
    def is_complete(self) -> bool:
        """Whether it ends here for sure."""
        return self.state in TERMINAL and self.pending_of is None


class Batch:
    """Records that were acquired, or loaded, together."""

    __slots__ = ("is_split", "runs", "size")

    def __init__(self, run: Run) -> None:
        self.runs = [run]
        self.is_split = False
        self.size = run.size
        """How many offsets it had at first."""

    @property
    def first(self) -> int:
        return self.runs[0].first

    @property
    def last(self) -> int:
        return self.runs[-1].last

    def split(self) -> None:
        """Have a run for each offset."""
        if self.is_split:
            return
        whole, self.is_split = self.runs[0], True
        self.runs = [
            Run(
                offset, offset, whole.state, whole.delivery_count, whole.member_id,
                whole.lock_until_ms,
            )
            for offset in range(whole.first, whole.last + 1)
        ]  # fmt: skip

    def between(self, first: int, last: int) -> list[Run]:
        """The runs that have offsets of [first, last]; whole ones of a batch that is not split."""
        if not self.is_split:
            return self.runs if first <= self.last and self.first <= last else []
        base = self.first
        return self.runs[max(first - base, 0) : max(last - base + 1, 0)]


_BY_FIRST = attrgetter("first")


class InFlight:
    """See the module."""

    __slots__ = (
        "_gap_end", "batches", "complete_count", "gap_start", "next_offset", "start_offset",
    )  # fmt: skip

    def __init__(self, start_offset: int) -> None:
        self.start_offset = start_offset
        self.next_offset = start_offset
        self.batches: list[Batch] = []
        self.complete_count = 0
        """How many records of the window need no delivery any more, pending ones included."""
        self.gap_start: int | None = None
        """From here on the holes of what was loaded may hold records (Kafka: GapWindow)."""
        self._gap_end = 0

    @property
    def count(self) -> int:
        """How many offsets the window has."""
        return self.next_offset - self.start_offset if self.batches else 0

    # -- batches -----------------------------------------------------------------------------

    def overlapping(self, first: int, last: int) -> list[Batch]:
        """The batches that have offsets of [first, last]."""
        batches = self.batches
        low = bisect_right(batches, first, key=_BY_FIRST)
        if low and batches[low - 1].last >= first:
            low -= 1
        return batches[low : bisect_right(batches, last, key=_BY_FIRST)]

    def add(self, batch: Batch) -> None:
        """Put it where nothing is."""
        at = bisect_left(self.batches, batch.first, key=_BY_FIRST)
        self.batches.insert(at, batch)
        self.next_offset = max(self.next_offset, batch.last + 1)

    def load(self, runs: list[Run]) -> None:
        """Take what was persisted, sorted and from the start on."""
        follows = self.start_offset
        for run in runs:
            if self.gap_start is None and run.first > follows:
                self.gap_start = follows
            follows = run.last + 1
            self.add(Batch(run))
            if run.state in TERMINAL:
                self.complete_count += run.size
        self._gap_end = self.next_offset
        self.advance()

    # -- states ------------------------------------------------------------------------------

    def turn(self, run: Run, state: RecordState) -> None:
        """Move a run on; ValueError for what the table does not have."""
        if state not in NEXT_STATES[run.state]:
            raise ValueError(f"{run.state.name} does not become {state.name}")
        run.state = state
        if state in TERMINAL:
            self.complete_count += run.size

    def take_back(self, run: Run) -> None:
        """Undo what is pending: the records are their member's again, as long as their lock is."""
        assert run.pending_of is not None
        if run.state in TERMINAL:
            self.complete_count -= run.size
        run.state, run.member_id, run.pending_of = ACQUIRED, run.pending_of, None

    # -- the window --------------------------------------------------------------------------

    @property
    def is_gap_open(self) -> bool:
        """Whether holes between the batches may hold records. Nothing was acquired past what was
        loaded: who does that has seen all of it."""
        return self.gap_start is not None and self._gap_end == self.next_offset

    def gap_seen_to(self, offset: int) -> None:
        """Holes before this offset have been looked at."""
        if self.gap_start is not None:
            is_inside = self.is_gap_open and offset < self._gap_end
            self.gap_start = max(self.gap_start, offset) if is_inside else None

    def advance(self) -> bool:
        """Move the start over what is complete; whether it moved."""
        gap_start = self.gap_start if self.is_gap_open else None
        start = self.start_offset
        for batch in self.batches:
            if gap_start is not None and batch.first > max(start, gap_start):
                start = max(start, gap_start)
                break
            unfinished = next((run for run in batch.runs if not run.is_complete), None)
            if unfinished is not None:
                start = unfinished.first
                break
            start = batch.last + 1
        else:
            start = self.next_offset
        return self.move_start(start)

    def move_start(self, offset: int) -> bool:
        """Forget everything before the offset; whether the start moved."""
        if offset <= self.start_offset:
            return False
        self.start_offset = offset
        self.gap_seen_to(offset)
        self.next_offset = max(self.next_offset, offset)
        passed = 0
        for batch in self.batches:
            if batch.first >= offset:
                break
            if batch.last < offset:
                passed += 1
            self._trim(batch, offset)
        del self.batches[:passed]
        return True

    def _trim(self, batch: Batch, offset: int) -> None:
        """Forget the part of a batch that is before the offset."""
        passed = 0
        for run in batch.runs:
            if run.first >= offset:
                break
            if run.state in TERMINAL:
                self.complete_count -= min(run.last + 1, offset) - run.first
            if run.last < offset:
                run.pending_of = None
                passed += 1
            else:
                run.first = offset
        if passed < len(batch.runs):
            del batch.runs[:passed]
