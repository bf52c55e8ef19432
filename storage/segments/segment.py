"""A segment: one `.log` file of record batches and the indexes that are hints into it.

Its files, and what they are called: `storage.segments.segment_files`. Offsets in a segment start at
its base offset or above and stay within 2^31 - 1 of it, because index entries are relative.

What is true is the log file. An index entry is believed only when the batch header it points at
agrees (S-10); otherwise `IndexMismatch` is raised and the log rebuilds the indexes from the file.
The position to write at is `size`, ours, and moves only after the whole write returned (S-3).

Reading needs no lock: batches below `size` never change while they are readable. Duties of the
caller: 1. everything that changes a segment (append, truncate, roll, rename, close) runs under the
log's lock; 2. truncation never goes below what readers may see (the high watermark).

Positions of recently written batches are remembered, so that a reader at the end of the log needs
neither index nor scan.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from storage import files
from storage.open_files import FileHandle, OpenFileCache
from storage.segments.segment_files import SegmentFiles
from wire.errors import MalformedFrame
from wire.primitives import NO_TIMESTAMP
from wire.record_batch import BATCH_OVERHEAD, BatchHeader, read_header

logger = logging.getLogger(__name__)

RELATIVE_OFFSET_MAX = 2**31 - 1

_SCAN_CHUNK = 8192  # a little more than an index interval: finds any batch between two entries
_REMEMBERED_BATCHES = 256

Batch = tuple[int, BatchHeader]
"""A batch in a file: its position and its header."""


class IndexMismatch(Exception):
    """An index entry points at something that is not the batch it names: rebuild the indexes."""

    def __init__(self, segment: LogSegment, entry: str) -> None:
        super().__init__(f"index of {segment.path} disagrees with it: {entry}")
        self.segment = segment


class CorruptSegment(Exception):
    """The log file holds something that is no batch where one should start."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(f"{path} is corrupt at position {position}: {reason}")
        self.position = position


class LogSegment(SegmentFiles):
    """One segment; see the module for who may call what."""

    __slots__ = (
        "_first_timestamp",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_older",
        "_recent",
        "bytes_since_index",
        "created_ms",
        "index_interval_bytes",
        "is_index_full",
        "jitter_ms",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        *,
        index_interval_bytes: int,
        index_size_max: int,
        created_ms: int,
        open_files: OpenFileCache,
        suffix: str = "",
    ) -> None:
        """Refer to an existing segment; `create` makes the file of a new one."""
        super().__init__(directory, base_offset, suffix, index_size_max, open_files)
        self.index_interval_bytes = index_interval_bytes
        self.created_ms = created_ms
        self.jitter_ms = 0
        self.bytes_since_index = 0
        self.is_index_full = False
        self._max_timestamp: int | None = None  # None: not read from disk yet
        self._max_timestamp_offset = base_offset
        self._first_timestamp: int | None = None
        self._recent: dict[int, int] = {}
        self._older: dict[int, int] = {}

    def create(self) -> None:
        """Make the empty files; what an undone roll may have left in their place is set aside."""
        super().create()
        self._note_whether_full()
        self._max_timestamp = NO_TIMESTAMP

    # -- writing ---------------------------------------------------------------------------------

    def append(
        self,
        buffers: Sequence[files.Buffer],
        size: int,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
    ) -> None:
        """Append one batch given as buffers; on return it is written and may be read.

        Raises OSError after cutting the file back to what it was; if even that fails the error
        carries the attribute `is_final`, and nothing in the directory may be written any more.
        Budget: 4 us and one system call without an index entry (benchmarks/micro/log.py).
        """
        position = self.size
        handle = self._handle or self.handle()
        known = self._max_timestamp
        if known is None:
            known = self.max_timestamp
        known_offset = self._max_timestamp_offset
        try:
            if files.pwritev(handle.fd, buffers, position) != size:
                # Rare: write the whole once more, in a loop.
                files.write_fully(handle.fd, buffers, size, position)
            if max_timestamp > known:
                self._max_timestamp = max_timestamp
                self._max_timestamp_offset = last_offset
            if self.bytes_since_index > self.index_interval_bytes:
                self._append_index_entry(last_offset, position)
        except OSError as error:
            self._max_timestamp, self._max_timestamp_offset = known, known_offset
            self._cut_back(handle, position, base_offset, error)
            raise
        if position == 0:
            self._first_timestamp = max_timestamp
        self.bytes_since_index += size
        recent = self._recent
        recent[base_offset] = position
        if len(recent) >= _REMEMBERED_BATCHES:
            self._older, self._recent = recent, {}
        self.size = position + size
        if self._handle is not handle:
            self._keep(handle)

    def append_run(
        self, buffers: Sequence[files.Buffer], size: int, batches: Sequence[Batch]
    ) -> None:
        """`append` of batches that lie back to back, at these positions, in one write or not."""
        position = self.size
        handle = self._handle or self.handle()
        before = self.max_timestamp, self._max_timestamp_offset, self.bytes_since_index
        try:
            files.write_fully(handle.fd, buffers, size, position)
            for at, header in batches:
                self.note_batch(position + at, header)
                self._remember(self._recent, header.base_offset, position + at)
        except OSError as error:
            self._max_timestamp, self._max_timestamp_offset, self.bytes_since_index = before
            self._cut_back(handle, position, batches[0][1].base_offset, error)
            self._note_whether_full()
            raise
        if position == 0:
            self._first_timestamp = batches[0][1].max_timestamp
        self.size = position + size
        self.keep_unsynced(handle)

    def _append_index_entry(self, last_offset: int, position: int) -> None:
        if self.is_index_full:
            return  # rebuilt with a smaller limit than it was written with: fewer hints
        self.offset_index.append(last_offset, position)
        self.time_index.maybe_append(self.max_timestamp, self._max_timestamp_offset)
        self.bytes_since_index = 0
        self._note_whether_full()

    def _note_whether_full(self) -> None:
        self.is_index_full = self.offset_index.is_full or self.time_index.is_full

    def _cut_back(
        self, handle: FileHandle, position: int, base_offset: int, error: OSError
    ) -> None:
        """Undo a failed append, so that the file ends where the log ends (S-2)."""
        self._recent, self._older = {}, {}  # of a run, batches that will not be there
        try:
            files.ftruncate(handle.fd, position)
        except OSError as second:
            error.is_final = True  # type: ignore[attr-defined]
            error.add_note(f"and cutting the file back failed: {second}")
        for index in (self.offset_index, self.time_index):
            # In memory it is right in any case, and its file is written anew later.
            with suppress(OSError):
                index.truncate_to(base_offset)

    def _remember(self, recent: dict[int, int], base_offset: int, position: int) -> None:
        recent[base_offset] = position
        if len(recent) >= _REMEMBERED_BATCHES and self._recent is recent:
            self._older, self._recent = recent, {}

    def should_roll(
        self,
        size: int,
        last_offset: int,
        max_timestamp: int,
        segment_bytes: int,
        segment_ms: int,
        wall_ms: int,
    ) -> bool:
        """True if a batch must go to a new segment (S-11): size, age, full index, offset range."""
        if self.size == 0:
            return last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        if (
            self.size + size > segment_bytes
            or self.is_index_full
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        ):
            return True
        first = self._first_timestamp
        if first is None:
            first = self.first_timestamp
        waited = max_timestamp - first if first >= 0 else wall_ms - self.created_ms
        return waited > segment_ms - self.jitter_ms

    # -- timestamps ------------------------------------------------------------------------------

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp in the segment, -1 if it has none; read from disk once."""
        known = self._max_timestamp
        return self._find_max_timestamp()[0] if known is None else known

    @property
    def max_timestamp_offset(self) -> int:
        """Last offset of the first batch that has `max_timestamp`."""
        if self._max_timestamp is None:
            return self._find_max_timestamp()[1]
        return self._max_timestamp_offset

    def _find_max_timestamp(self) -> tuple[int, int]:
        """Read it, and keep it unless the segment was cut off meanwhile."""
        size = self.size
        found = self._read_max_timestamp()
        if size == self.size:
            self._max_timestamp_offset, self._max_timestamp = found[1], found[0]
        return found

    @property
    def first_timestamp(self) -> int:
        """Max timestamp of the first batch, -1 if there is none: the segment's age starts here."""
        if self._first_timestamp is None:
            first = next(self.batches(0), None)
            if first is None:
                return NO_TIMESTAMP
            self._first_timestamp = first[1].max_timestamp
        return self._first_timestamp

    def largest_timestamp(self) -> int:
        """What retention by time compares: record time, or the file's if records have none."""
        timestamp = self.max_timestamp
        if timestamp >= 0:
            return timestamp
        return self.last_modified_ms()

    def last_modified_ms(self) -> int:
        return os.stat(self.path).st_mtime_ns // 1_000_000

    def _read_max_timestamp(self) -> tuple[int, int]:
        """The last time index entry, or a later batch above it."""
        timestamp, offset = self.time_index.last_entry
        entry = self._time_index_entry(timestamp, offset)
        start = 0
        if entry is None:
            timestamp, offset = NO_TIMESTAMP, self.base_offset
        else:
            start = entry[0]
        for _, header in self.batches(start):
            # A batch that compaction emptied has the time of records that are gone.
            if header.max_timestamp > timestamp and header.records_count:
                timestamp, offset = header.max_timestamp, header.last_offset
        return timestamp, offset

    # -- reading ---------------------------------------------------------------------------------

    def batches(self, position: int, end: int | None = None) -> Iterator[Batch]:
        """Positions and headers of the batches from a batch start on, without checking CRCs.

        Raises CorruptSegment where no batch can be. Reads a chunk at a time; large batches cost one
        small read each.
        """
        limit = self.size if end is None else end
        handle = self.handle()
        chunk = b""
        chunk_start = position
        while position < limit:
            at = position - chunk_start
            if at + BATCH_OVERHEAD > len(chunk):
                chunk = files.read_fully(handle.fd, min(_SCAN_CHUNK, limit - position), position)
                chunk_start, at = position, 0
            try:
                header = read_header(chunk, at)
            except MalformedFrame as error:
                raise CorruptSegment(self.path, position, str(error)) from None
            size = header.size
            if header.last_offset_delta < 0 or position + size > limit:
                raise CorruptSegment(self.path, position, f"batch of {size} bytes")
            yield position, header
            position += size

    def search(self, offset: int) -> Batch | None:
        """The first batch whose last offset is at or above `offset`; None past the end.

        Raises IndexMismatch if the index entry used does not stand for a batch's last offset.
        """
        entry_offset, position = self.offset_index.lookup(offset)
        if not 0 <= position <= self.size:
            raise IndexMismatch(self, f"position {position}")
        is_entry = position > 0
        try:
            for batch in self.batches(position):
                last_offset = batch[1].last_offset
                if is_entry and last_offset != entry_offset:
                    raise IndexMismatch(self, f"offset {entry_offset} at {position}")
                is_entry = False
                if last_offset >= offset:
                    return batch
        except CorruptSegment as error:
            if is_entry:
                raise IndexMismatch(self, str(error)) from None
            raise
        return None

    def position_of(self, offset: int) -> int | None:
        """Position of the batch that holds `offset` or, in a gap, of the next; None past the end.

        Budget: 0.3 us for a batch start written lately, else an index lookup and about two reads.
        """
        position = self._recent.get(offset)
        if position is None:
            position = self._older.get(offset)
            if position is None:
                recent = self._recent  # a cut begins another: what was found before it is not kept
                found = self.search(offset)
                if found is None:
                    return None
                position = found[0]
                if found[1].base_offset == offset:
                    self._remember(recent, offset, position)
        return position

    def batch_size_at(self, position: int) -> int:
        """Size of the batch that starts at `position`."""
        for _, header in self.batches(position):
            return header.size
        raise CorruptSegment(self.path, position, "no batch")

    def upper_bound_offset(self, position: int) -> int | None:
        """An offset that no batch before `position` reaches; None: the segment's end."""
        bound = self.offset_index.upper_bound_offset(position)
        if bound is not None:
            batch = self.search(bound)
            if batch is None or batch[0] < position or batch[1].last_offset != bound:
                raise IndexMismatch(self, f"offset {bound}")
        return bound

    def batches_since(self, timestamp: int, start_offset: int) -> Iterator[Batch]:
        """Batches that may hold a record at or after `timestamp` and at or above `start_offset`."""
        entry = self._time_index_entry(*self.time_index.lookup(timestamp))
        position = entry[0] if entry is not None else 0
        if start_offset > self.base_offset:
            start = self.search(start_offset)
            if start is None:
                return
            position = max(position, start[0])
        for batch in self.batches(position):
            header = batch[1]
            if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
                yield batch

    def _time_index_entry(self, timestamp: int, offset: int) -> Batch | None:
        """The batch a time index entry names; None for "no entry". Raises IndexMismatch (S-10).

        The offset is the batch's last; older Apache Kafka names the record that has the time.
        """
        if timestamp < 0:
            return None
        batch = self.search(offset)
        if batch is None or batch[1].base_offset > offset or batch[1].max_timestamp != timestamp:
            raise IndexMismatch(self, f"timestamp {timestamp} at offset {offset}")
        return batch

    def prepare_to_append(self) -> int:
        """Make a segment read from disk the active one; returns the log's end offset.
        Raises IndexMismatch or CorruptSegment if its indexes or its end are not sound."""
        self._note_whether_full()
        self._max_timestamp = None
        _ = self.max_timestamp
        return self.read_next_offset()

    def read_next_offset(self) -> int:
        """The offset after the last batch; scans from the last index entry."""
        return self.end_below(self.offset_index.last_offset, self.size)

    def end_below(self, offset: int, position: int) -> int:
        """The offset after the last batch before `position`, where a batch above `offset` starts;
        the base offset if there is none. Raises IndexMismatch, CorruptSegment."""
        end_offset = self.base_offset
        first = self.search(self.offset_index.lookup(offset)[0])
        if first is not None:
            for _, header in self.batches(first[0], position):
                end_offset = header.next_offset
        return end_offset

    # -- changing --------------------------------------------------------------------------------

    def cut(self, position: int) -> None:
        """End at `position`, a batch's start, in memory: nothing behind it is found any more.

        Cannot fail; `finish_cut` must follow before anything is appended.
        """
        self.size, self._synced_size = position, -1
        self._recent, self._older = {}, {}
        if position == 0:
            self._first_timestamp = None
        self.bytes_since_index = 0

    def finish_cut(self, end_offset: int) -> None:
        """Cut indexes and file to what `cut` left, which ends at `end_offset`; may be repeated.

        Raises OSError, IndexMismatch, CorruptSegment.
        """
        self.offset_index.truncate_to(end_offset)
        self.time_index.truncate_to(end_offset)
        self.txn_index.truncate_to(end_offset)
        self._note_whether_full()
        self.shorten(self.size)
        self._max_timestamp, self._max_timestamp_offset = self._read_max_timestamp()

    def cut_to_size(self, size: int) -> None:
        """Shorten the log file; the indexes are the caller's business (recovery rebuilds them)."""
        self.shorten(size)
        self.size, self._synced_size = size, -1
        self._recent, self._older = {}, {}

    def rebuild_indexes(self, is_active: bool) -> None:
        """Write offset and time index anew from the batch headers; the log file is not changed.

        The transaction index needs producer state and is rebuilt by recovery only.
        """
        self.reset_indexes()
        for position, header in self.batches(0):
            self.note_batch(position, header)
        if not is_active:
            self.become_inactive()

    def reset_indexes(self) -> None:
        """Empty offset and time index, for `note_batch` to fill them again."""
        self.offset_index.truncate()
        self.time_index.truncate()
        self.bytes_since_index = 0
        self._note_whether_full()
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset

    def note_batch(self, position: int, header: BatchHeader) -> None:
        """Index one batch that is in the file already: what `append` would have written."""
        if header.max_timestamp > self.max_timestamp and header.records_count:
            self._max_timestamp = header.max_timestamp
            self._max_timestamp_offset = header.last_offset
        if self.bytes_since_index > self.index_interval_bytes:
            self._append_index_entry(header.last_offset, position)
        self.bytes_since_index += header.size

    def become_inactive(self) -> None:
        """Finish the indexes when nothing more is appended: last time entry, no spare space."""
        self.time_index.maybe_append(
            self.max_timestamp, self.max_timestamp_offset, skip_full_check=True
        )
        self._note_whether_full()  # should the roll fail, more is appended
        self.offset_index.trim_to_valid_size()
        self.time_index.trim_to_valid_size()
        self._recent, self._older = {}, {}

    def __repr__(self) -> str:
        return f"LogSegment(base_offset={self.base_offset}, size={self.size})"
