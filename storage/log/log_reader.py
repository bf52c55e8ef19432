"""The reading half of a partition log: offsets to slices of files, timestamps to offsets.

No read takes the log's lock at first. It sees where the log begins and ends as one `LogView` that
the writer replaces as a whole once the bytes are in the file, and the segments as a tuple that
never changes in place. Retention may rename or unlink a file under a reader: who has it open reads
on, who has not looks at the segments again (S-15).

Where a writer came in between, the read starts over with the lock. Indexes are hints: when one
proves wrong then, too, it is rebuilt from the log file and the read starts over (S-10). A look at
the newest record's time takes the lock, and nothing else does.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from storage.environment import LogEnvironment
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.results import LogView, ReadResult
from storage.open_files import FileBecameShorter
from storage.segments.index import CorruptIndexError
from storage.segments.log_segments import LogSegments
from storage.segments.segment import Batch, CorruptSegment, IndexMismatch, LogSegment
from storage.segments.transaction_index import AbortedTxn
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition
from wire.records import read_records

logger = logging.getLogger(__name__)

_BETWEEN_TWO_STATES = IndexMismatch, CorruptSegment, FileBecameShorter, FileNotFoundError
_NOTHING = ReadResult(None)
T = TypeVar("T")


class TimestampAndOffset(NamedTuple):
    """A record found by its time; `leader_epoch` is that of its batch, -1 if none was stamped."""

    timestamp: int
    offset: int
    leader_epoch: int


class LogReader:
    """What readers of a log use; `PartitionLog` adds everything that changes it."""

    truncations: int
    """Raised under the lock when one begins."""

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
        self._being_indexed: LogSegment | None = None

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
        return self.with_valid_indexes(lambda: self._read_bytes(offset, max_bytes, upper_offset))

    def _read_bytes(self, offset: int, max_bytes: int, upper_offset: int) -> bytes:
        records = self.read(offset, max_bytes, True, upper_offset).records
        if records is None:
            return b""
        try:
            return records.read()
        finally:
            records.close()

    def with_valid_indexes(self, look: Callable[[], T], offset: int | None = None) -> T:
        """Run `look`, again with the lock if a writer may have come in between, and then again
        after rebuilding an index that proved wrong; errors as KafkaError.

        What takes no lock may see an append's index entry before its batch, half of a truncation,
        a file between two names, or, where the log was cut off and written again, other bytes.
        """
        truncations = self.truncations
        try:
            found = look()
            if truncations == self.truncations:
                return found
        except _BETWEEN_TWO_STATES as error:
            if isinstance(error, FileNotFoundError) and self.is_closed:
                raise self._read_error(error) from error
        except KafkaError:
            if truncations == self.truncations:
                raise
        except (CorruptIndexError, OSError) as error:
            raise self._read_error(error) from error
        with self.lock:
            if offset is not None and offset < self.log_start_offset:
                raise self._out_of_range(offset)
            return self._look_with_lock(look)

    def _look_with_lock(self, look: Callable[[], T]) -> T:
        rebuilt: set[LogSegment] = set()
        while True:
            try:
                return look()
            except IndexMismatch as error:
                # That the indexes of many segments are wrong is no failure, each is rebuilt once.
                if error.segment in rebuilt:
                    message = "index does not fit its log"
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
                rebuilt.add(error.segment)
                self._rebuild_indexes(error.segment, error)
            except CorruptSegment as error:
                logger.error("corrupt segment partition=%s error=%s", self.topic_partition, error)
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "corrupt log segment") from error
            except (CorruptIndexError, OSError) as error:
                raise self._read_error(error) from error

    def _read_error(self, error: CorruptIndexError | OSError) -> KafkaError:
        if isinstance(error, OSError):
            return self._storage_error(error, "read")
        logger.error("corrupt index partition=%s error=%s", self.topic_partition, error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "corrupt index")

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
        if not aborted:
            return ReadResult(segment.slice(position, size))
        upto = min(self._end_of_read(segment, position + size), upper_offset)
        found = _collect_aborted(segments, offset, upto)
        records = segment.slice(position, size)
        self._check_files_are_there(segments)
        return ReadResult(records, found)

    def _check_files_are_there(self, segments: Iterable[LogSegment]) -> None:
        """A transaction index that is gone looks like that of a segment without any."""
        if self.is_closed:
            raise self._closed()
        for segment in segments:
            if segment.is_deleted:
                raise FileNotFoundError(errno.ENOENT, "deleted meanwhile", str(segment.path))

    def _limit(self, view: LogView, segment: LogSegment, upper_offset: int) -> int:
        """Position in `segment` at which a read has to stop: its end, or the upper offset."""
        if segment is view.segment:
            if upper_offset >= view.end_offset:
                return view.position
            return min(self._position_of(segment, upper_offset), view.position)
        higher = self.segments.higher(segment.base_offset)
        if higher is None:
            return self._position_of(segment, upper_offset)
        if upper_offset >= higher.base_offset:
            return segment.size
        limit = segment.position_of(upper_offset)
        return segment.size if limit is None else limit

    @staticmethod
    def _position_of(segment: LogSegment, offset: int) -> int:
        """Of an offset that the log had when the read began."""
        position = segment.position_of(offset)
        if position is None:
            raise IndexMismatch(segment, f"offset {offset} is cut off")
        return position

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
            self._being_indexed = segment
            try:
                segment.rebuild_indexes(is_active=segment is self.view.segment)
            except CorruptSegment as error:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "corrupt log segment") from error
            except OSError as error:
                raise self._storage_error(error, "index rebuild") from error
            finally:
                self._being_indexed = None

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
            # One whose indexes are being made anew finds its newest time again.
            if segment.max_timestamp < timestamp and segment is not self._being_indexed:
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
            raise IndexMismatch(newest, f"timestamp {timestamp} at offset {offset}")
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
