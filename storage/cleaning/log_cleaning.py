"""One cleaning of one log: read its dirty part, then write the log anew without what is outdated.

1. Everything appended so far is synced: no record may be dropped because of a newer one that a
   power failure can still take away.
2. The dirty part, from the first dirty offset on, fills the offset map, up to the first offset that
   may not be cleaned, or to where the map is full.
3. All segments below that are rewritten in groups that fit one segment (Kafka: Cleaner.
   groupSegmentsBySize), each batch by the rules of `storage.cleaning.batch_retention`, and each
   group is swapped in before the next is written (`storage.log.segment_swap`).

Every batch's checksum is verified before it is believed: a bit that flipped must not be stored
again under a checksum that fits. Nothing here holds the log's lock but for the swap. Duty of the
caller: one cleaning of a log at a time.

Pace: after every 16 KiB of work the thread sleeps for a moment, which hands the interpreter to the
threads that serve requests, and if `log.cleaner.io.max.bytes.per.second` asks for it, longer.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from storage import files
from storage.cleaning.batch_retention import (
    BatchFilter,
    CleanedTransactions,
    LastRecord,
    scan_records,
)
from storage.cleaning.offset_map import OffsetMap
from storage.config import Clock
from storage.log.partition_log import PartitionLog
from storage.log.segment_swap import CleaningAborted, replace_segments
from storage.segments.segment import RELATIVE_OFFSET_MAX, CorruptSegment, IndexMismatch, LogSegment
from storage.segments.segment_files import CLEANED_SUFFIX
from wire.errors import KafkaError, MalformedFrame
from wire.record_batch import BATCH_OVERHEAD, BatchHeader, check_crc, read_header
from wire.record_checks import records_body
from wire.records import read_records

_YIELD_BYTES = 16 * 1024
_YIELD_SECONDS = 0.0001
_THROTTLE_WINDOW_MS = 300
_LOOK_MS = 1_000
"""How often who waits looks whether the rate is another."""

FoundBatch = tuple[memoryview, BatchHeader]


@dataclass(slots=True)
class CleanerStats:
    """What one cleaning did (Kafka: CleanerStats). Bytes are of log files."""

    start_offset: int = 0
    end_offset: int = 0
    bytes_mapped: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    invalid_records: int = 0
    """Records without a key, dropped."""
    elapsed_ms: int = 0
    map_utilization: float = 0.0


class Pace:
    """How fast the cleaner may go: polite always, throttled if asked to (Kafka: Throttler).

    One for all threads: where one is too far ahead, all wait. At a rate of 0 until it is another.
    """

    def __init__(
        self, clock: Clock, bytes_per_second: float, wait: Callable[[float], object] = time.sleep
    ) -> None:
        """`wait` so many seconds; what it returns says whether to wait no more."""
        self.bytes_per_second = bytes_per_second
        self._clock = clock
        self._wait = wait
        self._lock = threading.Lock()
        self._since_yield = 0
        self._window_start_ms = clock.now_ms()
        self._in_window = 0

    def spend(self, count: int) -> None:
        """Note bytes read or written; sleeps when it is time to."""
        with self._lock:
            self._since_yield += count
            self._in_window += count
            if self._since_yield < _YIELD_BYTES:
                return
            self._since_yield = 0
        time.sleep(_YIELD_SECONDS)
        with self._lock:
            self._throttle()

    def _throttle(self) -> None:
        elapsed_ms = self._clock.now_ms() - self._window_start_ms
        if elapsed_ms < _THROTTLE_WINDOW_MS and self._in_window < self.bytes_per_second:
            return
        while (ahead_ms := self._ahead_ms()) >= 1:
            if self._wait(min(ahead_ms, _LOOK_MS) / 1000):
                break
        self._window_start_ms = self._clock.now_ms()
        self._in_window = 0

    def _ahead_ms(self) -> float:
        rate = self.bytes_per_second
        allowed_ms = self._in_window * 1000 / rate if rate else math.inf
        return allowed_ms - (self._clock.now_ms() - self._window_start_ms)


class Cleaning:
    """One run over one log; `run` once."""

    def __init__(
        self,
        log: PartitionLog,
        first_dirty_offset: int,
        first_uncleanable_offset: int,
        offsets: OffsetMap,
        pace: Pace,
        *,
        io_buffer_bytes: int,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._log = log
        self._first_dirty = first_dirty_offset
        self._first_uncleanable = first_uncleanable_offset
        self._offsets = offsets
        self._pace = pace
        self._io_bytes = max(io_buffer_bytes, _YIELD_BYTES)
        self._is_stopping = is_stopping
        self.truncations = log.truncations
        self.stats = CleanerStats(start_offset=first_dirty_offset)

    def run(self) -> int:
        """Clean; returns the first offset that is still dirty.

        Raises CleaningAborted, OSError, CorruptSegment, KafkaError (INVALID_RECORD: a batch cannot
        be read; KAFKA_STORAGE_ERROR of the first sync).
        """
        try:
            return self._run()
        except (CorruptSegment, KafkaError, ValueError):
            self._check_wanted()  # of a log that was truncated meanwhile anything may be read
            raise

    def _run(self) -> int:
        log = self._log
        log.flush()
        self._fill_map()
        end_offset = self._offsets.latest_offset + 1
        if end_offset <= self._first_dirty:
            return self._first_dirty
        segments = [s for s in log.segments.items if s.base_offset < end_offset]
        if not segments:
            raise CleaningAborted("segments were deleted")
        filter_ = self._make_filter()
        self._transactions.add_aborted(
            log.aborted_transactions(segments[0].base_offset, self._first_uncleanable)
        )
        groups = group_segments(
            segments,
            log.config.segment_bytes,
            log.config.segment_index_bytes,
            self._first_uncleanable,
        )
        for group in groups:
            self._clean_group(group, filter_)
        self.stats.end_offset = end_offset
        self.stats.map_utilization = self._offsets.utilization
        self.stats.invalid_records = filter_.invalid_records
        return end_offset

    def _make_filter(self) -> BatchFilter:
        log = self._log
        with log.lock:
            producers = {
                entry.producer_id: LastRecord(entry.last_data_offset, entry.producer_epoch)
                for entry in log.producer_state.active_producers()
            }
        self._transactions = CleanedTransactions()
        return BatchFilter(
            self._offsets,
            self._transactions,
            producers,
            log.environment.clock.wall_ms(),
            log.config.delete_retention_ms,
        )

    # -- the dirty part --------------------------------------------------------------------------

    def _fill_map(self) -> None:
        log = self._log
        start = self._first_dirty
        transactions = CleanedTransactions()
        transactions.add_aborted(log.aborted_transactions(start, self._first_uncleanable))
        dirty = [
            segment
            for segment in log.segments.from_floor(start)
            if segment.base_offset < self._first_uncleanable
        ]
        for index, segment in enumerate(dirty):
            if not self._map_segment(segment, transactions):
                return
            following = dirty[index + 1 : index + 2]
            # Where compaction left a gap at the end there is nothing to look at.
            end = following[0].base_offset if following else self._first_uncleanable
            self._offsets.advance(end - 1)

    def _map_segment(self, segment: LogSegment, transactions: CleanedTransactions) -> bool:
        """Put the keys of a segment; False if the map is full."""
        offsets, start = self._offsets, self._first_dirty
        for batch, header in self._batches(segment, _position_of(segment, start)):
            self.stats.bytes_mapped += header.size
            if header.is_control:
                transactions.on_control_batch(header, _control_key(batch, header))
            elif not transactions.on_batch(header) and header.records_count > 0:
                for record in scan_records(records_body(batch, 0, header), header):
                    if record.key is not None and record.offset >= start:
                        if offsets.is_full:
                            return False
                        offsets.put(record.key, record.offset)
            if header.last_offset >= start:
                offsets.advance(header.last_offset)
        return True

    # -- the whole -------------------------------------------------------------------------------

    def _clean_group(self, group: Sequence[LogSegment], filter_: BatchFilter) -> None:
        """Write one segment from a group of them and swap it in."""
        if not any(segment.size for segment in group) and len(group) == 1:
            return
        log = self._log
        cleaned = LogSegment(
            log.directory,
            group[0].base_offset,
            index_interval_bytes=log.config.index_interval_bytes,
            index_size_max=log.config.segment_index_bytes,
            created_ms=log.environment.clock.wall_ms(),
            open_files=log.environment.open_files,
            suffix=CLEANED_SUFFIX,
        )
        cleaned.delete()  # what an earlier run left behind
        cleaned.create()
        try:
            self._transactions.index = cleaned.txn_index
            self._write(group, cleaned, filter_)
            cleaned.become_inactive()
            cleaned.flush()
            modified_ns = os.stat(group[-1].path).st_mtime_ns
            os.utime(cleaned.path, ns=(modified_ns, modified_ns))
            replace_segments(log, cleaned, group, self.truncations)
        finally:
            if cleaned.suffix == CLEANED_SUFFIX:
                cleaned.delete()

    def _write(
        self, group: Sequence[LogSegment], cleaned: LogSegment, filter_: BatchFilter
    ) -> None:
        stats = self.stats
        writer = _SegmentWriter(cleaned, self._io_bytes)
        last = next((segment for segment in reversed(group) if segment.size), None)
        for segment in group:
            left = segment.size
            for batch, header in self._batches(segment, 0):
                left -= header.size
                result = filter_.filter(batch, header, segment is last and left == 0)
                stats.bytes_read += header.size
                stats.records_read += header.records_count
                if result is None:
                    continue
                writer.write(result.header, result.data)
                stats.bytes_written += result.header.size
                stats.records_written += result.records_kept
        writer.flush()

    # -- reading ---------------------------------------------------------------------------------

    def _batches(self, segment: LogSegment, position: int) -> Iterator[FoundBatch]:
        """The batches of a segment with right checksums, read a buffer at a time.

        A batch is valid until the next one is asked for. Raises CorruptSegment.
        """
        handle = segment.handle()
        end = segment.size
        chunk = memoryview(b"")
        at = 0
        wanted = 0
        while position < end:
            if at + max(wanted, BATCH_OVERHEAD) > len(chunk):
                self._check_wanted()
                size = min(max(wanted, self._io_bytes), end - position)
                chunk = memoryview(files.read_fully(handle.fd, size, position))
                at = 0
            try:
                header = read_header(chunk, at)
            except MalformedFrame as error:
                raise CorruptSegment(segment.path, position, str(error)) from None
            if header.size > end - position or (wanted and header.size != wanted):
                raise CorruptSegment(segment.path, position, f"batch of {header.size} bytes")
            if at + header.size > len(chunk):
                wanted = header.size
                continue
            wanted = 0
            if not check_crc(chunk, at, header):
                raise CorruptSegment(segment.path, position, "checksum differs")
            yield chunk[at : at + header.size], header
            self._pace.spend(header.size)
            at += header.size
            position += header.size

    def _check_wanted(self) -> None:
        """Raise CleaningAborted if nobody wants the result any more."""
        log = self._log
        if self._is_stopping():
            raise CleaningAborted("cleaner is stopping")
        if log.is_closed or log.is_offline:
            raise CleaningAborted("log was closed")
        if log.truncations != self.truncations:
            raise CleaningAborted("log was truncated")


class _SegmentWriter:
    """Appends batches to a new segment, a buffer at a time, and keeps its indexes."""

    def __init__(self, segment: LogSegment, buffer_bytes: int) -> None:
        self._segment = segment
        self._buffer_bytes = buffer_bytes
        self._parts: list[files.Buffer] = []
        self._pending: list[BatchHeader] = []
        self._size = 0

    def write(self, header: BatchHeader, data: files.Buffer) -> None:
        self._parts.append(bytes(data))
        self._pending.append(header)
        self._size += header.size
        if self._size >= self._buffer_bytes:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered. Raises OSError; the segment is then good for nothing."""
        if not self._size:
            return
        segment = self._segment
        position = segment.size
        data = b"".join(self._parts)
        handle = segment.handle()
        files.write_fully(handle.fd, [data], len(data), position)
        segment.size = position + len(data)
        segment.keep_unsynced(handle)
        for header in self._pending:
            segment.note_batch(position, header)
            position += header.size
        self._parts = []
        self._pending = []
        self._size = 0


def group_segments(
    segments: Sequence[LogSegment],
    segment_bytes: int,
    index_bytes: int,
    first_uncleanable_offset: int,
) -> list[list[LogSegment]]:
    """Neighbours that fit into one segment together: bytes, index bytes, offset range."""
    groups: list[list[LogSegment]] = []
    size = offset_index = time_index = 0
    for number, segment in enumerate(segments):
        following = segments[number + 1 : number + 2]
        end_offset = following[0].base_offset if following else first_uncleanable_offset
        size += segment.size
        offset_index += segment.offset_index.size
        time_index += segment.time_index.size
        if (
            groups
            and size <= segment_bytes
            and max(offset_index, time_index) <= index_bytes
            and (
                segment.size == 0
                or end_offset - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
            )
        ):
            groups[-1].append(segment)
            continue
        groups.append([segment])
        size = segment.size
        offset_index = segment.offset_index.size
        time_index = segment.time_index.size
    return groups


def _position_of(segment: LogSegment, offset: int) -> int:
    """Where to read from to see all from an offset on. By an entry that leads too far, records
    would outlive newer ones and deletions: then from the beginning."""
    try:
        found = segment.search(offset)
    except IndexMismatch:
        return 0
    return segment.size if found is None else found[0]


def _control_key(batch: memoryview, header: BatchHeader) -> bytes | None:
    if header.records_count == 0:
        return None
    for record in read_records(batch, 0, header):
        return record.key
    return None
