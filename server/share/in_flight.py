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
happens to a part of it: then that part is cut out, and has a run of its own (Kafka keeps a state
for each offset from then on; one batch may say that it has two thousand million). A run of which a
change is pending is not cut. A batch knows its runs that may be acquired: of a hundred thousand
nobody looks at all to find the next one (Kafka does). The window is [start, next): `start` is the
first record whose delivery is not complete, `next` follows the last one acquired. All batches are
inside, sorted; what `start` has passed is forgotten. Between batches are offsets that no record
has, or after a load, that nobody has acquired yet (`gap_start`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import groupby
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

    def cut(self, offset: int) -> Run:
        """End it before this offset, which is inside; what is from there on."""
        rest = Run(
            offset, self.last, self.state, self.delivery_count, self.member_id, self.lock_until_ms
        )
        self.last = offset - 1
        return rest

    @property
    def is_available(self) -> bool:
        """Whether it may be acquired now."""
        return self.state is AVAILABLE and self.pending_of is None

    @property
    def is_complete(self) -> bool:
        """Whether it ends here for sure."""
        return self.state in TERMINAL and self.pending_of is None


_BY_FIRST, _BY_LAST = attrgetter("first"), attrgetter("last")


class Batch:
    """Records that were acquired, or loaded, together."""

    __slots__ = ("available", "runs", "size")

    def __init__(self, run: Run) -> None:
        self.runs = [run]
        self.available = [run] if run.is_available else []
        """Those of its runs that may be acquired now. Who turns one takes it out."""
        self.size = run.size
        """How many offsets it had at first."""

    @property
    def first(self) -> int:
        return self.runs[0].first

    @property
    def last(self) -> int:
        return self.runs[-1].last

    def between(self, first: int, last: int) -> list[Run]:
        """The runs that have offsets of [first, last]; those at the ends may have others, too."""
        if last < self.first or self.last < first:
            return []
        low = bisect_right(self.runs, first, key=_BY_FIRST)
        return self.runs[max(low - 1, 0) : bisect_right(self.runs, last, key=_BY_FIRST)]

    def available_in(self, first: int, last: int) -> range:
        """Where in `available` those are that have offsets of [first, last]."""
        low = bisect_left(self.available, first, key=_BY_LAST)
        return range(low, bisect_right(self.available, last, lo=low, key=_BY_FIRST))

    def came_back(self, runs: Sequence[Run]) -> None:
        """These, which are sorted, may be acquired again."""
        among = self.available_in(runs[0].first, runs[-1].last)
        both = [*self.available[among.start : among.stop], *runs]
        self.available[among.start : among.stop] = sorted(both, key=_BY_FIRST)

    def cut(self, offsets: Sequence[int]) -> None:
        """Have runs begin at these offsets, which ascend: in one go, there may be thousands."""
        low = max(bisect_right(self.runs, offsets[0], key=_BY_FIRST) - 1, 0)
        high = bisect_right(self.runs, offsets[-1], key=_BY_FIRST)
        cut: list[Run] = []
        at = 0
        for run in self.runs[low:high]:
            cut.append(run)
            while at < len(offsets) and offsets[at] <= cut[-1].last:
                if offsets[at] > cut[-1].first:
                    cut.append(cut[-1].cut(offsets[at]))
                at += 1
        self.runs[low:high] = cut
        among = self.available_in(cut[0].first, cut[-1].last)
        self.available[among.start : among.stop] = [run for run in cut if run.is_available]

    def carve(self, run: Run, first: int, last: int) -> Run:
        """Have a run of its own for what it has of [first, last]."""
        if first <= run.first and run.last <= last:
            return run
        first, last = max(first, run.first), min(last, run.last)
        self.cut((first, last + 1))
        return self.between(first, first)[0]


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

    def cut(self, offsets: Sequence[int]) -> None:
        """Have runs begin at those of these offsets, which ascend, that batches have."""
        at = 0
        while at < len(offsets):
            ends = at + 1
            for batch in self.overlapping(offsets[at], offsets[at]):
                ends = bisect_right(offsets, batch.last, lo=at)
                batch.cut(offsets[at:ends])
            at = ends

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

    def came_back(self, runs: Iterable[Run]) -> None:
        """These, which are sorted, may be acquired again."""
        for batch, of in groupby(runs, lambda run: self.overlapping(run.first, run.first)[0]):
            batch.came_back(list(of))

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
            del batch.available[: batch.available_in(offset, offset).start]
