"""The log of one partition: segments in a row, appended to at the end, read anywhere.

An append checks the batch (header and CRC, producer state), stamps offset and leader epoch into its
first 16 bytes and writes it with one system call at a position we track ourselves. The indexes, the
producer state and last the view move only after the whole write returned (S-3, P-7). What fails is
undone: the file is cut back, and if that fails too, the directory goes offline (S-2).

A read translates the offset to a position and returns a slice of the file, never beyond the upper
offset the caller may show: the high watermark, the last stable offset or the end.

Durability: an append is in the page cache when it returns. `flush` syncs; `flushed_offset` (Kafka:
recovery point) is the offset below which everything is on disk. `LogAppendInfo.must_flush` tells
the caller that `flush.messages` asks to wait for it before answering. A failed sync is final (S-4).

Locks: `lock` guards everything that changes the log. Reads take none: what the log shows is one
immutable `LogView`, which a change makes last, after everything it speaks of is there (or, when
something is taken away, before it goes), and the segments are a tuple that never changes. No lock
that an append needs is held across fsync, but in truncations. Lock order: partition, then log.

Duties of the caller: 1. only the leader's epoch appends as leader; 2. `update_high_watermark` only
with what is replicated; 3. truncating below the high watermark is the caller's decision and the
caller's log line; 4. what an append returned with `must_flush` is acknowledged only once
`flushed_offset` is above its last offset.

Who does what: checks before a write `storage.log.append`; one segment's files
`storage.segments.segment`; what may be deleted `storage.log.retention`; cutting off
`storage.log.truncation`; reading `storage.log.log_reader`; opening after a crash
`storage.recovery`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from storage import files
from storage.config import LogConfig
from storage.environment import LogEnvironment
from storage.log import retention
from storage.log.append import (
    base_offset,
    check_follower_batches,
    opening_header,
    prepare_batch,
    start_of_batch_around,
)
from storage.log.append_source import (
    FROM_CLIENT,
    FROM_COORDINATOR,
    FROM_RAFT,
    AppendSource,
    Verification,
)
from storage.log.follower_append import write_given
from storage.log.leader_append import append_batch, append_run, prepare_run
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.log_reader import LogReader
from storage.log.log_sync import LogSync, flush_unasked
from storage.log.producer_snapshot import BatchMetadata
from storage.log.producer_state import ProducerStateEntry, ProducerStateManager
from storage.log.results import LogAppendInfo, LogView, new_view
from storage.log.truncation import Cut, FilesBehind, install, plan_cut, plan_new_start
from storage.segments.log_segments import LogSegments, make_segment
from storage.segments.segment import RELATIVE_OFFSET_MAX, LogSegment
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition
from wire.record_batch import BatchHeader

logger = logging.getLogger(__name__)

__all__ = [
    "FROM_CLIENT",
    "FROM_COORDINATOR",
    "FROM_RAFT",
    "AppendSource",
    "LogAppendInfo",
    "PartitionLog",
]


class PartitionLog(LogReader):
    """The log of one partition, made by `storage.recovery.open_log`; rules in the module."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        directory: Path,
        config: LogConfig,
        environment: LogEnvironment,
        *,
        segments: LogSegments,
        log_start_offset: int,
        log_end_offset: int,
        flushed_offset: int,
        leader_epochs: LeaderEpochCache,
        producer_state: ProducerStateManager,
        topic_id: bytes | None = None,
    ) -> None:
        super().__init__(
            topic_partition,
            environment,
            segments,
            LogView(
                log_start_offset,
                log_start_offset,
                log_start_offset,
                log_end_offset,
                segments.active,
                segments.active.size,
            ),
            leader_epochs,
        )
        self.topic_id = topic_id
        self.directory = directory
        self.config = config
        self.flushed_offset = flushed_offset
        self.producer_state = producer_state
        self.sync = LogSync(environment.clock.now_ms())
        self.truncations = 0
        """How often something was cut off; who works without the lock sees by it that it was."""
        self._files_behind = FilesBehind()

    # -- state -----------------------------------------------------------------------------------

    @property
    def active_segment(self) -> LogSegment:
        """The segment appended to."""
        return self.view.segment

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch that wrote here, -1 in a fresh log."""
        return self.leader_epochs.latest_epoch

    @property
    def is_offline(self) -> bool:
        """True if the directory failed: every operation raises KAFKA_STORAGE_ERROR."""
        return self.environment.is_offline

    def update_config(self, config: LogConfig) -> None:
        """Obey another topic config from the next operation on."""
        with self.lock:
            self.config = config
            for segment in self.segments:
                segment.index_interval_bytes = config.index_interval_bytes

    def update_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark; True if it moved. Here it never goes back.

        Raises ValueError above the log end: nobody may promise what is not there.
        """
        with self.lock:
            start, _, high_watermark, end_offset, segment, position = self.view
            if offset <= high_watermark:
                return False
            if offset > end_offset:
                raise ValueError(f"high watermark {offset} is above log end {end_offset}")
            stable = self.producer_state.on_high_watermark_updated(offset)
            stable = offset if stable is None else max(min(stable, offset), start)
            self.view = new_view(LogView, (start, stable, offset, end_offset, segment, position))
            return True

    def publish_end(self, end_offset: int, segment: LogSegment) -> None:
        """The log reaches up to `end_offset` now, where `segment` ends; the last act of an append.

        The last stable offset stays: a transaction begins, and its marker lies, above the high
        watermark.
        """
        start, stable, high_watermark = self.view[:3]
        self.view = new_view(
            LogView, (start, stable, high_watermark, end_offset, segment, segment.size)
        )

    def publish(
        self,
        log_start_offset: int,
        high_watermark: int,
        end_offset: int,
        segment: LogSegment,
        position: int,
    ) -> None:
        """Show these from now on; the last stable offset follows from the producers."""
        assert log_start_offset <= high_watermark <= end_offset, "offsets of a log out of order"
        stable = self.producer_state.first_unstable_offset
        if stable is None:
            stable = high_watermark
        stable = max(min(stable, high_watermark), log_start_offset)
        self.view = LogView(log_start_offset, stable, high_watermark, end_offset, segment, position)

    # -- append ----------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: files.Buffer,
        leader_epoch: int,
        wall_ms: int,
        source: AppendSource = FROM_CLIENT,
    ) -> LogAppendInfo:
        """Check one record batch, give it the next offsets and write it.

        Raises KafkaError with the code protocol.md 7.2 lists; `record_errors` names bad records.
        KAFKA_STORAGE_ERROR means that nothing was written. Records are looked at one by one only
        where a rule needs them: see `storage.log.append`.
        Budget: 8 us for a small record without an index entry, 12 us if idempotent
        (benchmarks/micro/log.py).
        """
        assert leader_epoch >= 0, f"{self.topic_partition} has no leader of epoch {leader_epoch}"
        batch = prepare_batch(records, self.config, wall_ms, source)
        if leader_epoch > self.leader_epochs.settled_epoch:
            # On disk before the first append of the epoch, and without the lock.
            self.assign_epoch_start(leader_epoch, None)
        with self.lock:
            if self.is_closed or self._files_behind.is_any or not self.environment.is_writable:
                self._check_writable()
            try:
                return append_batch(self, batch, leader_epoch, wall_ms, source)
            except OSError as error:
                raise self._storage_error(error, "append") from error

    def append_run_as_leader(
        self,
        batches: Sequence[files.Buffer],
        leader_epoch: int,
        wall_ms: int,
        source: AppendSource = FROM_CLIENT,
    ) -> list[LogAppendInfo] | None:
        """`append_as_leader` of clients' batches that came together, with one write: all or none.

        None, with nothing done, if one of them is to be looked at by itself: `append_as_leader`
        says what is wrong with it, or does what it needs. Raises KAFKA_STORAGE_ERROR.
        """
        if leader_epoch > self.leader_epochs.settled_epoch:
            return None
        prepared = prepare_run(batches, self.config, wall_ms, source)
        if prepared is None:
            return None
        with self.lock:
            self._check_writable()
            try:
                return append_run(self, prepared, leader_epoch, wall_ms, source)
            except OSError as error:
                raise self._storage_error(error, "append") from error

    def find_duplicate(
        self, records: files.Buffer, leader_epoch: int, wall_ms: int, source: AppendSource
    ) -> LogAppendInfo | None:
        """What `append_as_leader` answers to a batch that is here already. Raises as it does."""
        header = opening_header(records)
        with self.lock:
            if (original := self.producer_state.find_duplicate(header, source)) is None:
                return None  # as most: by the header alone
            prepare_batch(records, self.config, wall_ms, source)
            return self.of_duplicate(original, leader_epoch)

    def leaves_a_gap(self, header: BatchHeader) -> bool:
        """See ProducerStateManager."""
        with self.lock:
            return self.producer_state.leaves_a_gap(header)

    def of_duplicate(self, original: BatchMetadata, leader_epoch: int) -> LogAppendInfo:
        """The answer to a batch that is here already."""
        must_flush = self.view.end_offset - self.flushed_offset >= self.config.flush_messages
        must_flush = must_flush and original.last_offset >= self.flushed_offset
        return LogAppendInfo.of_duplicate(original, self.log_start_offset, leader_epoch, must_flush)

    def segment_for(
        self, size: int, last_offset: int, max_timestamp: int, wall_ms: int
    ) -> LogSegment:
        """The active segment, or a new one if this append must not go there (S-11).

        A new one begins at the log's end, though a follower's batch may begin above it: to recovery
        a gap between segments is a loss. Only a batch too far above it to fit leaves one.
        """
        config = self.config
        segment = self.view.segment
        if size > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size} bytes, segment.bytes is {config.segment_bytes}",
            )
        if segment.should_roll(
            size, last_offset, max_timestamp, config.segment_bytes, config.max_segment_ms, wall_ms
        ):
            segment = self._roll(max(self.view.end_offset, last_offset - RELATIVE_OFFSET_MAX))
        return segment

    def append_as_follower(
        self,
        records: files.Buffer,
        leader_epoch: int,
        leader_start_offset: int = 0,
        *,
        is_copy: bool = False,
    ) -> LogAppendInfo:
        """Write batches as the leader stamped them: offsets from the log's end on, ascending (E-9).

        The longest valid prefix is written, with one system call if it fits into one segment; a
        partial batch at the end is left out. A log that ends within the first batch, and holds
        nothing above its own start or the leader's, begins anew with the whole of it: records are
        deleted by offset, batches are copied whole (Kafka: UnexpectedAppendOffsetException). Epochs
        that began in them are on disk on return, unless it is a copy, which nobody acknowledges
        before a flush. Raises KafkaError CORRUPT_MESSAGE or INVALID_RECORD if not even the first
        batch is valid, OFFSET_OUT_OF_RANGE if it starts below the log's end, FENCED_LEADER_EPOCH if
        it is of an epoch above `leader_epoch`, KAFKA_STORAGE_ERROR (what was written before the
        error stays).
        Budget: 5 us, and 2 us for each batch (benchmarks/micro/log.py).
        """
        with self.lock:
            self._check_writable()
            begin = end = self.view.end_offset
            if base_offset(records) < end <= max(self.view.log_start_offset, leader_start_offset):
                begin = start_of_batch_around(records, end)
            batches = check_follower_batches(records, begin, leader_epoch)
            if batches and begin < end:
                self._cut(self.with_valid_indexes(lambda: plan_new_start(self, begin)))
            try:
                info = write_given(self, records, batches)
            except OSError as error:
                raise self._storage_error(error, "append") from error
        if not is_copy:  # what the next fetch acknowledges
            self._sync_epochs()
        return info

    def assign_epoch_start(self, epoch: int, offset: int | None) -> None:
        """Note that a leader epoch begins at `offset`, None: at the log's end; on disk on return
        (E-3). Raises KafkaError KAFKA_STORAGE_ERROR."""
        with self.lock:
            self._check_online()
            self.leader_epochs.assign(epoch, self.view.end_offset if offset is None else offset)
        self._sync_epochs()

    def _sync_epochs(self) -> None:
        """Have the leader epochs on disk, a full one too: nobody reads of a leader that cannot note
        its epoch. Without the log's lock, since it syncs."""
        epochs = self.leader_epochs
        if epochs.settled_epoch == epochs.latest_epoch:
            return
        try:
            files.with_room(epochs.sync, self.environment.make_room)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self.is_closed:
                return  # deleted meanwhile
            raise self._storage_error(error, "leader epoch checkpoint") from error

    # -- roll ------------------------------------------------------------------------------------

    def roll(self) -> LogSegment:
        """Start a new segment now; an empty active segment is kept."""
        with self.lock:
            self._check_online()
            try:
                return self._roll(self.view.end_offset)
            except OSError as error:
                raise self._storage_error(error, "roll") from error

    def _roll(self, base_offset: int) -> LogSegment:
        """Seal the active segment and begin one at `base_offset`.

        All or nothing: when descriptors or disk run out, the old segment stays active (S-17).
        """
        active = self.view.segment
        if active.size == 0 and active.base_offset >= base_offset:
            return active
        self.producer_state.take_snapshot()
        active.become_inactive()
        segment = make_segment(self.directory, base_offset, self.config, self.environment)
        # The last that can fail: a start would take the file of no segment for the log's end.
        segment.create()
        self.segments.add(segment)
        self.sync.note_sealed([active])
        self.sync.note_directory_changed()
        self.publish_end(self.view.end_offset, segment)
        if self.environment.scheduler is not None:
            self.environment.scheduler.schedule_once("flush-log", 0, lambda: flush_unasked(self))
        return segment

    # -- durability ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Sync everything up to the log's end as of now, then raise `flushed_offset` (S-6).

        A failed sync takes the directory offline for good (S-4). Raises KafkaError
        KAFKA_STORAGE_ERROR. See `storage.log.log_sync`.
        """
        try:
            self.sync.flush(self)
        except OSError as error:
            raise self._storage_error(error, "flush") from error

    def start_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        supports_epoch_bump: bool,
    ) -> Verification | None:
        """See `ProducerStateManager.start_verification`."""
        wall_ms = self.environment.clock.wall_ms()
        with self.lock:
            return self.producer_state.start_verification(
                producer_id, producer_epoch, base_sequence, supports_epoch_bump, wall_ms
            )

    def active_producers(self) -> list[ProducerStateEntry]:
        """The producers the log remembers (DescribeProducers)."""
        with self.lock:
            return self.producer_state.active_producers()

    def change_directory(self, directory: Path) -> None:
        """Note that the log's directory was renamed, which the next `flush` has on disk; what is
        open stays open."""
        with self.lock:
            self.directory = directory
            self.sync.note_renamed()
            self.producer_state.directory = directory
            self.leader_epochs.path = directory / self.leader_epochs.path.name
            for segment in self.segments:
                segment.change_directory(directory)

    def take_over(self, current: PartitionLog) -> None:
        """This log, a copy of `current`'s batches, is to serve in its place.

        What does not follow from the batches is copied: config, high watermark, log start, as far
        as this log reaches, and the leader epochs, on disk on return. Raises KafkaError.
        """
        self.update_config(current.config)
        self.update_high_watermark(min(current.high_watermark, self.log_end_offset))
        with self.lock:
            log_start_offset = min(current.log_start_offset, self.high_watermark)
            if log_start_offset > self.log_start_offset:
                self._raise_log_start(log_start_offset)
        self.leader_epochs.copy_from(current.leader_epochs)
        self._sync_epochs()

    def close(self, *, is_kept: bool = True) -> None:
        """Finish the indexes and let all files go; durable only if `flush` came before.

        Of a log that is not kept, or is in an offline directory, nothing is written but indexes,
        which are hints. Raises KafkaError if the disk fails.
        """
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
            try:
                if is_kept and not self.environment.is_offline:
                    self.finish_files()
                    self.leader_epochs.sync()
                    self.producer_state.take_snapshot()
                    active = self.view.segment
                    active.become_inactive()
                    active.flush()
                    # A batch that is deleted tells nobody of its producer.
                    if self.producer_state.has_unsynced and self.producer_state.active_producers():
                        self.producer_state.flush()
                        files.sync_directory(self.directory)
            except OSError as error:
                raise self._storage_error(error, "close") from error
            finally:
                for segment in (*self.segments, *self._files_behind.segments):
                    segment.close()

    # -- taking away -----------------------------------------------------------------------------

    def increment_log_start_offset(self, offset: int) -> bool:
        """Make everything below `offset` unreadable (delete-records); files go with retention.

        True if it moved. Raises KafkaError OFFSET_OUT_OF_RANGE above the high watermark.
        """
        with self.lock:
            self._check_online()
            view = self.view
            if offset > view.high_watermark:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"offset {offset} is above the high watermark {view.high_watermark}",
                )
            if offset <= view.log_start_offset:
                return False
            self._raise_log_start(offset)
        self.environment.on_log_start_moved()
        return True

    def _raise_log_start(self, offset: int) -> None:
        self.leader_epochs.truncate_from_start(offset)
        self.producer_state.on_log_start_moved(offset)
        view = self.view
        self.publish(offset, view.high_watermark, view.end_offset, view.segment, view.position)

    def delete_old_segments(self, wall_ms: int) -> int:
        """Delete segments that retention by time or size, or the log start, gives up (S-15).

        Returns how many. Never one that reaches the high watermark.
        """
        with self.lock:
            self._check_online()
            gone = self.with_valid_indexes(lambda: retention.deletable_segments(self, wall_ms))
            if not gone:
                return 0
            try:
                if gone[-1] is self.view.segment:
                    roll = partial(self._roll, self.view.end_offset)
                    files.with_room(roll, self.environment.make_room)
                next_base = self.segments.higher(gone[-1].base_offset)
                assert next_base is not None, "the new active segment stays"
                if next_base.base_offset > self.log_start_offset:
                    self._raise_log_start(next_base.base_offset)
                self.segments.remove(gone)
                # From the oldest on: recovery takes a gap before later segments for their end.
                self._files_behind.note_removed(gone[::-1])
                self.finish_files()
            except OSError as error:
                raise self._storage_error(error, "retention") from error
        self.environment.on_log_start_moved()
        logger.info(
            "deleted old segments partition=%s count=%s log_start_offset=%s",
            self.topic_partition,
            len(gone),
            self.log_start_offset,
        )
        return len(gone)

    def truncate_to(self, offset: int) -> bool:
        """Cut off every batch that reaches `offset` or beyond; True if there was any.

        The log then ends where its last batch does: below `offset` in the middle of one or a gap.
        The flushed offset goes back, on disk too, before the first byte does (S-6). Raises
        KafkaError KAFKA_STORAGE_ERROR: the log is as it was, or it is cut and takes no append
        before its files are (`storage.log.truncation`).
        """
        assert offset >= 0, f"{self.topic_partition} cannot end at {offset}"
        with self.lock:
            self._check_online()
            is_shorter = offset < self.view.end_offset
            if is_shorter:
                self._cut(self.with_valid_indexes(lambda: plan_cut(self, offset)))
            else:
                self.leader_epochs.truncate_from_end(offset)
        self._sync_epochs()
        return is_shorter

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Throw all records away and begin anew at `offset` (a follower left behind, E-10); errors
        as in `truncate_to`."""
        assert offset >= 0, f"{self.topic_partition} cannot start at {offset}"
        with self.lock:
            self._check_online()
            self._cut(self.with_valid_indexes(lambda: plan_new_start(self, offset)))

    def _cut(self, cut: Cut) -> None:
        """Install what was planned, then bring the files to it."""
        active = cut.kept[-1]
        try:
            self._lower_flushed_offset(cut.end_offset)
            if cut.is_new_start and active not in self.segments:
                active.create()
        except OSError as error:
            raise self._storage_error(error, "truncation") from error
        self._files_behind.note_cut(active, install(self, cut))
        self.finish_files()
        if cut.is_new_start:
            # Not before: recovery from there on would not see what of the old log is left.
            self.flushed_offset = cut.end_offset

    def _lower_flushed_offset(self, offset: int) -> None:
        self.truncations += 1
        self.flushed_offset = min(self.flushed_offset, offset)
        self.environment.checkpoints.lower(self.topic_partition, offset)

    def finish_files(self) -> None:
        """Bring the files to what the log says, if they are not. Raises KafkaError."""
        if self._files_behind.is_any:
            self.with_valid_indexes(lambda: self._files_behind.finish(self))

    def _check_online(self) -> None:
        """Before a change: the directory is online, the log open, its last change in the files."""
        self.environment.check_online()
        if self.is_closed:
            raise self._closed()
        self.finish_files()

    def _check_writable(self) -> None:
        self.environment.check_writable()
        self._check_online()
