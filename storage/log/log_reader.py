"""The reading half of a partition log: offsets to slices of files, timestamps to offsets.

No read takes the log's lock. It sees where the log begins and ends as one `LogView` that the writer
replaces as a whole once the bytes are in the file, and the segments as a tuple that never changes
in place. Retention may rename or unlink a file under a reader: who has it open reads on, who has
not looks at the segments again (S-15).

Indexes are hints: when one proves wrong, at a second look with the lock too, it is rebuilt from the
log file and the read starts over (S-10). That takes the lock, as a look at the newest record's time
does, and nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from storage.environment import LogEnvironment
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.results import LogView, ReadResult
from storage.segments.index import CorruptIndexError
from storage.segments.log_segments import LogSegments
from storage.segments.segment import Batch, CorruptSegment, IndexMismatch, LogSegment
from storage.segments.transaction_index import AbortedTxn
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition
from wire.records import read_records

logger = logging.getLogger(__name__)

_ATTEMPTS = 4
_NOTHING = ReadResult(None)
T = TypeVar("T")


class TimestampAndOffset(NamedTuple):
    """A record found by its time; `leader_epoch` is that of its batch, -1 if none was stamped."""

    timestamp: int
    offset: int
    leader_epoch: int


class LogReader:
    """What readers of a log use; `PartitionLog` adds everything that changes it."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        environment: LogEnvironment,
        segments: LogSegments,
        view: LogView,
        leader_epochs: LeaderEpochCache,
    ) -> None:
        self.topic_partition = topic_partition
        self.environment = environment
        self.lock = threading.RLock()
        self.segments = segments
        self.view = view
        self.leader_epochs = leader_epochs
        self.is_closed = False

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self.view.log_start_offset

    @property
    def last_stable_offset(self) -> int:
        """First offset a read_committed reader may not see yet (V-2)."""
        return self.view.last_stable_offset

    @property
    def high_watermark(self) -> int:
        """Everything below is replicated, as far as this replica knows."""
        return self.view.high_watermark

    @property
    def log_end_offset(self) -> int:
        """The offset the next record gets."""
        return self.view.end_offset

    @property
    def size(self) -> int:
        """Bytes of all segments' log files."""
        return self.segments.size

    def read(
        self,
        offset: int,
        max_bytes: int,
        min_one: bool,
        upper_offset: int,
        *,
        include_aborted: bool = False,
    ) -> ReadResult:
        """Records from the batch that holds `offset` on, below `upper_offset`, as a file slice.

        At most `max_bytes`, and cut anywhere, but the first batch comes whole: larger than
        `max_bytes` if `min_one`, else not at all. `records` is None when there is nothing to read
        at or above `offset` yet. Raises KafkaError OFFSET_OUT_OF_RANGE outside of [start, end].
        Budget: 3 us at the end of the log, 10 us with an index lookup (benchmarks/micro/log.py).
        """
        view = self.view
        if offset < view.log_start_offset or offset > view.end_offset:
            raise self._out_of_range(offset)
        if offset >= upper_offset:
            return _NOTHING
        return self.with_valid_indexes(
            lambda: self._read(offset, max_bytes, min_one, upper_offset, include_aborted), offset
        )

    def read_bytes(self, offset: int, max_bytes: int, upper_offset: int) -> bytes:
        """As `read` with the first batch whole, but the bytes themselves: what the disk refuses is
        an error of the log like any other. Nothing to read gives none."""
        records = self.read(offset, max_bytes, True, upper_offset).records
        if records is None:
            return b""
        try:
            return records.read()
        except OSError as error:
            raise self._storage_error(error, "read") from error
        finally:
            records.close()

    def with_valid_indexes(self, look: Callable[[], T], offset: int | None = None) -> T:
        """Run `look`, again after rebuilding an index that proved wrong; errors as KafkaError."""
        rebuilt: set[LogSegment] = set()
        failures = 0
        is_locked = False
        while failures < _ATTEMPTS:
            try:
                return look()
            except IndexMismatch as error:
                if not is_locked:
                    # An append shows its index entry before its batch: nobody appends meanwhile.
                    is_locked, look = True, partial(self._locked, look)
                    continue
                # That the indexes of many segments are wrong is no failure, each is rebuilt once.
                failures += error.segment in rebuilt
                rebuilt.add(error.segment)
                self._rebuild_indexes(error.segment, error)
            except CorruptIndexError as error:
                logger.error("corrupt index partition=%s error=%s", self.topic_partition, error)
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "corrupt index") from error
            except CorruptSegment as error:
                logger.error("corrupt segment partition=%s error=%s", self.topic_partition, error)
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "corrupt log segment") from error
            except OSError as error:
                failures += 1
                is_missing = isinstance(error, FileNotFoundError) and not self.is_closed
                if not is_missing or failures == _ATTEMPTS:
                    raise self._storage_error(error, "read") from error
                # Retention or compaction renames the file under us, and holds the lock until the
                # segment knows its new name: wait for that, then look at the segments again.
                with self.lock:
                    pass
            if offset is not None and offset < self.log_start_offset:
                raise self._out_of_range(offset)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "index does not fit its log")

    def _locked(self, look: Callable[[], T]) -> T:
        with self.lock:
            return look()

    def _read(
        self, offset: int, max_bytes: int, min_one: bool, upper_offset: int, aborted: bool
    ) -> ReadResult:
        view = self.view
        segment = view.segment
        position = None
        segments: Sequence[LogSegment] = (segment,)
        if offset >= segment.base_offset:
            position = segment.position_of(offset)
        else:
            # All from one look: compaction may put one segment in the place of several meanwhile.
            segments = self.segments.from_floor(offset)
            if segments[0].base_offset > offset:
                raise self._out_of_range(offset)
            for segment in segments:
                position = segment.position_of(offset)
                if position is not None:
                    break  # else a gap at the segment's end: the next batch is in the next one
        if position is None:
            return _NOTHING
        limit = self._limit(view, segment, upper_offset)
        size = limit - position
        if size > max_bytes:
            first = segment.batch_size_at(position)
            size = min(size, max(max_bytes, first)) if min_one or first <= max_bytes else 0
        if size <= 0:
            return _NOTHING
        found = None
        if aborted:
            # From the same look, and before the file is opened: who finds it unlinked starts over.
            upto = min(self._end_of_read(segment, position + size), upper_offset)
            found = _collect_aborted(segments, offset, upto)
        return ReadResult(segment.slice(position, size), found)

    def _limit(self, view: LogView, segment: LogSegment, upper_offset: int) -> int:
        """Position in `segment` at which a read has to stop: its end, or the upper offset."""
        if segment is view.segment:
            if upper_offset >= view.end_offset:
                return view.position
            limit = segment.position_of(upper_offset)
            return view.position if limit is None else min(limit, view.position)
        higher = self.segments.higher(segment.base_offset)
        if higher is not None and upper_offset >= higher.base_offset:
            return segment.size
        limit = segment.position_of(upper_offset)
        return segment.size if limit is None else limit

    def readable_bytes(self, from_offset: int, upto_offset: int) -> int:
        """About how many bytes lie between two offsets; cheap for offsets near the log's end."""
        view = self.view
        upto_offset = min(upto_offset, view.end_offset)
        if from_offset >= upto_offset:
            return 0
        first = self.segments.floor(from_offset)
        if first is None:
            return self.size
        try:
            start = first.position_of(from_offset)
            stop = self._limit(view, first, upto_offset)
            total = stop - (first.size if start is None else start)
            for segment in self.segments.from_floor(from_offset)[1:]:
                if segment.base_offset < upto_offset:
                    total += self._limit(view, segment, upto_offset)
        except (IndexMismatch, CorruptSegment, OSError):
            return view.position  # an estimate may be wrong; the read that follows may not
        return max(total, 0)

    def _out_of_range(self, offset: int) -> KafkaError:
        view = self.view
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is outside of [{view.log_start_offset}, {view.end_offset}]",
        )

    def _rebuild_indexes(self, segment: LogSegment, reason: Exception) -> None:
        """The log file is right and its index is not: write the index anew (S-10)."""
        logger.warning(
            "rebuilding indexes partition=%s segment=%s reason=%s",
            self.topic_partition,
            segment.base_offset,
            reason,
        )
        with self.lock:
            try:
                segment.rebuild_indexes(is_active=segment is self.view.segment)
            except CorruptSegment as error:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "corrupt log segment") from error
            except OSError as error:
                raise self._storage_error(error, "index rebuild") from error

    def _storage_error(self, error: OSError, doing: str) -> KafkaError:
        """What an OSError means to clients; a file that went with its log tells nothing of the
        disk: who reads a log does not keep it from being deleted."""
        if isinstance(error, FileNotFoundError) and self.is_closed:
            return self._closed()
        return self.environment.storage_error(error, f"{doing} of {self.topic_partition}")

    def _closed(self) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} is closed")

    # -- by time ---------------------------------------------------------------------------------

    def offset_for_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record at or after `timestamp` (ListOffsets); None if all are older."""
        return self.with_valid_indexes(lambda: self._offset_for_timestamp(timestamp))

    def max_timestamp_offset(self) -> TimestampAndOffset | None:
        """The first record with the largest timestamp (KIP-734); None in a log without times."""
        return self.with_valid_indexes(self._max_timestamp_offset)

    def _offset_for_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        start = self.log_start_offset
        for segment in self.segments.items:
            if segment.max_timestamp < timestamp:
                continue
            for batch in segment.batches_since(timestamp, start):
                found = _first_record(segment, batch, timestamp, start)
                if found is not None:
                    return found
        return None

    def _max_timestamp_offset(self) -> TimestampAndOffset | None:
        for segment in self.segments.items:
            _ = segment.max_timestamp  # read from disk without the lock
        with self.lock:  # an append notes a batch's time before anybody finds the batch
            newest = max(self.segments.items, key=lambda segment: segment.max_timestamp)
            timestamp, offset = newest.max_timestamp, newest.max_timestamp_offset
        if timestamp < 0:
            return None
        batch = newest.search(offset)
        if batch is None:
            return None
        # Kafka names it even where DeleteRecords has left it below the log start.
        return _first_record(newest, batch, timestamp, 0)

    # -- by transaction --------------------------------------------------------------------------

    def aborted_transactions(self, from_offset: int, upto_offset: int) -> list[AbortedTxn]:
        """Aborted transactions with records in [from_offset, upto_offset) (V-3)."""
        return self.with_valid_indexes(
            lambda: _collect_aborted(
                self.segments.from_floor(from_offset), from_offset, upto_offset
            )
        )

    def _end_of_read(self, segment: LogSegment, position: int) -> int:
        """An offset that no batch before `position` of a segment reaches."""
        upto = segment.upper_bound_offset(position)
        if upto is None:
            higher = self.segments.higher(segment.base_offset)
            upto = self.view.end_offset if higher is None else higher.base_offset
        return upto

    # -- by epoch --------------------------------------------------------------------------------

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch not above `epoch`; (-1, -1) if unknown (E-4)."""
        return self.leader_epochs.end_offset_for(epoch, self.view.end_offset)


def _collect_aborted(
    segments: Iterable[LogSegment], from_offset: int, upto_offset: int
) -> list[AbortedTxn]:
    found: list[AbortedTxn] = []
    for segment in segments:
        aborted, is_complete = segment.txn_index.collect_aborted(from_offset, upto_offset)
        found += aborted
        if is_complete:
            break
    return found


def _first_record(
    segment: LogSegment, batch: Batch, timestamp: int, start_offset: int
) -> TimestampAndOffset | None:
    """The first record of a batch at or after `timestamp` and at or above `start_offset`."""
    position, header = batch
    data = segment.slice(position, header.size).read()
    for record in read_records(data, 0, header):
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return TimestampAndOffset(record.timestamp, record.offset, header.leader_epoch)
    return None
