"""Opening a log after a clean stop, a crash, or a disk that lies.

What is kept is the longest valid prefix: batches whole, in order, with a right checksum (S-1). What
is only a hint (offset and time index) is rebuilt when it is missing or wrong; what follows from the
batches (transaction index, leader epochs, producer state) is made again from them (S-8).

Steps of `open_log`:
1. Temporary files: `.deleted` and `.cleaned` go; a compaction that had reached `.swap` is finished,
   unless its `.cleaned` files show that it had not (S-13).
2. Segments are found by their `.log` files; an index without a log goes.
3. After an unclean stop every segment from the recovery point on is read in full and checked; at
   the first invalid byte the rest is cut off and later segments are deleted. So are those behind a
   gap between two segments, which is data that was in a page cache and is gone: readers would skip
   it unaware. Whatever the topic's policy, nothing else leaves one up there: a segment is named by
   the offset where the one before it ends, also by a follower that copies batches with gaps
   (`PartitionLog.segment_for`), the cleaner keeps each segment's last batch, and what Apache
   Kafka's cleaner left without one was synced, which its checkpoint tells. Elsewhere only a
   segment whose indexes are missing or broken is read, for a broken transaction index with all
   from the newest producer snapshot before it. That no transaction index is there is no sign of
   harm: most segments never had one.
4. Leader epochs and producer state are cut to what is there; producer state is loaded from the
   newest usable snapshot and replayed from the batches after it (P-4).

Everything cut is logged with its size. Nothing is flushed here but a transaction index that was
made anew: the recovery point stays where it was, so a crash during recovery only means doing it
again.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from storage import files
from storage.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    CorruptCheckpoint,
    read_partition_metadata,
    write_partition_metadata,
)
from storage.config import LogConfig
from storage.environment import LogEnvironment
from storage.log.leader_epochs import EpochEntry, LeaderEpochCache
from storage.log.partition_log import PartitionLog
from storage.log.producer_replay import apply_batch, replay_producer_state, replayed_state
from storage.log.producer_state import ProducerStateManager
from storage.log.valid_batches import ValidBatches
from storage.open_files import OpenFileCache
from storage.segments.index import CorruptIndexError
from storage.segments.log_segments import LogSegments, make_segment
from storage.segments.segment import CorruptSegment, IndexMismatch, LogSegment
from storage.segments.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from wire.primitives import TopicPartition
from wire.record_batch import BatchHeader

logger = logging.getLogger(__name__)

_LONG_RECOVERY_BYTES = 256 * 1024 * 1024
"""From this many bytes on a recovery tells how far it is."""
_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_OFFSET_DIGITS = 20
T = TypeVar("T")


def recover_segment(
    segment: LogSegment,
    producer_state: ProducerStateManager | None = None,
    epochs: list[EpochEntry] | None = None,
    wall_ms: int = 0,
    known_epochs: Sequence[EpochEntry] = (),
) -> int:
    """Check a segment in full, rebuild its indexes, cut it to its valid prefix.

    Returns the bytes cut off. With a `producer_state` as of the segment's base offset that is
    brought forward and the transaction index is rebuilt; new leader epochs go to `epochs`.
    """
    segment.reset_indexes()
    if producer_state is not None:
        segment.txn_index.truncate()
    batches = ValidBatches(segment, epochs[-1].epoch if epochs else -1, known_epochs)
    for position, header in batches:
        segment.note_batch(position, header)
        if epochs is not None:
            _note_epoch(epochs, header)
        if producer_state is not None:
            apply_batch(producer_state, segment, position, header, wall_ms, index_aborted=True)
    removed = segment.size - batches.end
    if removed:
        logger.warning(
            "cutting invalid bytes path=%s position=%s bytes=%s reason=%s",
            segment.path,
            batches.end,
            removed,
            batches.problem,
        )
        segment.cut_to_size(batches.end)
    segment.become_inactive()
    return removed


def open_log(
    directory: Path,
    topic_partition: TopicPartition,
    config: LogConfig,
    environment: LogEnvironment,
    *,
    topic_id: bytes | None = None,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    had_clean_shutdown: bool = False,
) -> PartitionLog:
    """Open the log in `directory`, made if it is missing; see the module for the steps.

    `topic_id` is written to `partition.metadata` if that is missing; one that contradicts it raises
    ValueError. Raises OSError: the directory's disk is bad or full, or the files are not ours to
    read. A directory that was missing is missing after any error.
    """
    assert recovery_point >= 0 <= log_start_offset, "offsets of a log are not negative"
    recovery = _Recovery(directory, topic_partition, config, environment, had_clean_shutdown)
    is_new = not directory.is_dir()
    if is_new:
        files.mkdir(directory)
    try:
        if is_new:
            files.sync_directory(directory.parent)
        topic_id = _check_topic_id(directory, topic_id)
        return recovery.run(topic_id, recovery_point, log_start_offset)
    except OSError:
        recovery.close()
        if is_new:
            with suppress(OSError):
                files.remove_directory(directory)
        raise


def _check_topic_id(directory: Path, topic_id: bytes | None) -> bytes | None:
    path = directory / PARTITION_METADATA
    try:
        known = read_partition_metadata(path)
    except CorruptCheckpoint as error:
        raise ValueError(str(error)) from None
    if known is None:
        if topic_id is not None:
            write_partition_metadata(path, topic_id)
        return topic_id
    if topic_id is not None and topic_id != known:
        raise ValueError(f"{path} names another topic id")
    return known


class _Recovery:
    """One run of `open_log`."""

    def __init__(
        self,
        directory: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        environment: LogEnvironment,
        is_clean: bool,
    ) -> None:
        self._directory = directory
        self._topic_partition = topic_partition
        self._config = config
        self._environment = environment
        self._is_clean = is_clean
        self._segments = LogSegments()
        self._wall_ms = environment.clock.wall_ms()
        self._broken: list[LogSegment] = []
        self._without_aborted: list[LogSegment] = []
        """Segments whose transaction index must be made anew."""
        self._rebuilt: list[LogSegment] = []

    def run(
        self, topic_id: bytes | None, recovery_point: int, log_start_offset: int
    ) -> PartitionLog:
        finish_interrupted_swaps(self._directory)
        self._load_segments()
        epochs = self._load_epochs()
        producer_state = ProducerStateManager(
            self._topic_partition, self._directory, self._environment.producers
        )
        if not self._is_clean:
            self._recover(recovery_point, log_start_offset, producer_state, epochs)
        end_offset = self._find_end(log_start_offset, epochs)
        log_start_offset = max(log_start_offset, self._segments.items[0].base_offset)
        self._rebuild_txn_indexes(producer_state, log_start_offset)
        self._rebuild_indexes(self._broken)
        epochs.truncate_from_end(end_offset)
        epochs.sync()
        epochs.truncate_from_start(log_start_offset)
        producer_state.remove_stray_snapshots([s.base_offset for s in self._segments])
        self._replay(producer_state, log_start_offset, end_offset)
        log = PartitionLog(
            self._topic_partition,
            self._directory,
            self._config,
            self._environment,
            segments=self._segments,
            log_start_offset=log_start_offset,
            log_end_offset=end_offset,
            flushed_offset=end_offset if self._is_clean else min(recovery_point, end_offset),
            leader_epochs=epochs,
            producer_state=producer_state,
            topic_id=topic_id,
        )
        log.sync.note_sealed(self._rebuilt)
        return log

    def _replay(
        self, producer_state: ProducerStateManager, log_start_offset: int, end_offset: int
    ) -> None:
        self._with_repairs(
            lambda: replay_producer_state(
                producer_state, self._segments, log_start_offset, end_offset, self._wall_ms
            )
        )

    def _with_repairs(self, look: Callable[[], T]) -> T:
        """What `look` finds, after repairing each segment whose index proves wrong on the way."""
        for _ in range(1 + len(self._segments)):
            try:
                return look()
            except IndexMismatch as error:
                self._repair(error.segment)
        raise OSError(errno.EIO, f"indexes of {self._directory} do not fit their logs")

    def close(self) -> None:
        """Let go of the files of a log that cannot be opened."""
        for segment in self._segments:
            segment.close()

    def _rebuild_txn_indexes(
        self, producer_state: ProducerStateManager, log_start_offset: int
    ) -> None:
        """Which transactions were aborted, from the batches; the log files are not changed.

        By a state of its own: the log's is that of its newest snapshot, which alone may know of
        producers whose batches were deleted, and of transactions whose markers were compacted away.
        """
        broken = self._without_aborted
        if not broken:
            return
        files.sync_directory(self._directory)  # what `_note_broken` removed stays away
        start = broken[0].base_offset
        state = self._with_repairs(
            lambda: replayed_state(
                producer_state, self._segments, log_start_offset, start, self._wall_ms
            )
        )
        for segment in self._segments.from_floor(broken[0].base_offset):
            is_broken = segment in broken
            if is_broken:
                segment.txn_index.truncate()
            for position, header in segment.batches(0):
                apply_batch(
                    state, segment, position, header, self._wall_ms, index_aborted=is_broken
                )
            if is_broken:
                segment.txn_index.flush()
            if segment is broken[-1]:
                break

    def _make_segment(self, base_offset: int) -> LogSegment:
        return make_segment(self._directory, base_offset, self._config, self._environment)

    def _load_segments(self) -> None:
        """Find the `.log` files; rebuild indexes that are missing or cannot be read (S-10)."""
        names = os.listdir(self._directory)
        known_names = set(names)
        bases = sorted(base for name in names if (base := _offset_of(name, LOG_SUFFIX)) is not None)
        known = set(bases)
        for name in names:
            for suffix in _INDEX_SUFFIXES:
                base = _offset_of(name, suffix)
                if base is not None and base not in known:
                    logger.warning("removing index without log path=%s", self._directory / name)
                    files.unlink(self._directory / name)
        for base in bases:
            segment = self._make_segment(base)
            segment.load_size()
            self._segments.add(segment)
            problem = _index_problem(segment, known_names)
            if problem is not None:
                # After a crash the newest segments have no index yet: that is nothing to report.
                level = logging.WARNING if self._is_clean else logging.DEBUG
                logger.log(level, "rebuilding indexes path=%s reason=%s", segment.path, problem)
                self._note_broken(segment)

    def _note_broken(self, segment: LogSegment) -> None:
        """None of its indexes is to be believed. Called in the order of the segments.

        Its offset index, made anew last, is missing until then: should this start be cut short, the
        next one must not take half a transaction index for a whole one.
        """
        segment.offset_index.delete()
        self._broken.append(segment)
        self._without_aborted.append(segment)

    def _load_epochs(self) -> LeaderEpochCache:
        path = self._directory / LEADER_EPOCH_CHECKPOINT
        try:
            return LeaderEpochCache(path)
        except CorruptCheckpoint as error:
            logger.warning("leader epochs are made anew from the log reason=%s", error)
            epochs = LeaderEpochCache.empty(path)
            found: list[EpochEntry] = []
            for segment in self._segments:
                for _, header in self._with_valid_indexes(segment, lambda s: list(s.batches(0))):
                    _note_epoch(found, header)
            for entry in found:
                epochs.assign(*entry)
            return epochs

    def _with_valid_indexes(self, segment: LogSegment, look: Callable[[LogSegment], T]) -> T:
        """What `look` finds, after repairing the segment if its index or file proves wrong."""
        try:
            return look(segment)
        except (IndexMismatch, CorruptSegment) as error:
            logger.warning("rebuilding indexes path=%s reason=%s", segment.path, error)
            self._repair(segment)
            return look(segment)

    def _rebuild_indexes(self, segments: Iterable[LogSegment]) -> None:
        for segment in segments:
            if segment not in self._rebuilt:
                self._repair(segment)

    def _repair(self, segment: LogSegment) -> None:
        """Rebuild a segment's indexes; only if its batches do not hang together cut it as well."""
        try:
            segment.rebuild_indexes(is_active=False)
        except CorruptSegment:
            recover_segment(segment)
        self._rebuilt.append(segment)

    def _recover(
        self,
        recovery_point: int,
        log_start_offset: int,
        producer_state: ProducerStateManager,
        epochs: LeaderEpochCache,
    ) -> None:
        """Check everything from the recovery point on; cut at the first thing that is wrong."""
        unflushed = self._unflushed(recovery_point)
        if not unflushed:
            return
        self._doubt_last_flushed(recovery_point)
        self._replay(producer_state, log_start_offset, unflushed[0].base_offset)
        found: list[EpochEntry] = []
        total = sum(segment.size for segment in unflushed)
        done = 0
        for number, segment in enumerate(unflushed, 1):
            if total >= _LONG_RECOVERY_BYTES:
                logger.info(
                    "recovering log partition=%s segment %s/%s, %s of %s MiB done",
                    self._topic_partition,
                    number,
                    len(unflushed),
                    done >> 20,
                    total >> 20,
                )
            done += segment.size
            removed = recover_segment(segment, producer_state, found, self._wall_ms, epochs.entries)
            self._rebuilt.append(segment)
            if segment in self._without_aborted:
                self._without_aborted.remove(segment)
            if number < len(unflushed) and (
                removed or segment.read_next_offset() != unflushed[number].base_offset
            ):
                self._drop(unflushed[number:], "what lay before them is lost")
                break
        epochs.truncate_from_end(unflushed[0].base_offset + 1)
        for entry in found:
            if entry.epoch > epochs.latest_epoch:
                epochs.assign(*entry)

    def _doubt_last_flushed(self, recovery_point: int) -> None:
        """Of the segment that ends there the indexes are not on disk for sure: it was the active
        one when its log was flushed, and may have been sealed since."""
        segment = self._segments.floor(recovery_point - 1)
        if segment is not None and segment not in self._broken:
            self._note_broken(segment)

    def _unflushed(self, recovery_point: int) -> tuple[LogSegment, ...]:
        """The segments to check. One that is flushed is among them if it reaches into the next: the
        log began anew where that begins, and the files of what was before have kept their names.
        """
        unflushed = self._segments.from_floor(recovery_point)
        before = self._segments.floor(unflushed[0].base_offset - 1) if unflushed else None
        if before is None:
            return unflushed
        try:
            try:
                end = before.read_next_offset()
            except IndexMismatch:
                before.rebuild_indexes(is_active=False)
                end = before.read_next_offset()
        except CorruptSegment:
            return unflushed  # Damage in what was flushed is a fault of its disk: nothing to cut.
        return (before, *unflushed) if end > unflushed[0].base_offset else unflushed

    def _drop(self, segments: Sequence[LogSegment], reason: str) -> None:
        logger.warning(
            "deleting segments partition=%s count=%s first=%s bytes=%s reason=%s",
            self._topic_partition,
            len(segments),
            segments[0].base_offset,
            sum(segment.size for segment in segments),
            reason,
        )
        self._segments.remove(segments)
        for segment in segments:
            for noted in (self._broken, self._without_aborted, self._rebuilt):
                if segment in noted:
                    noted.remove(segment)
            segment.delete()

    def _find_end(self, log_start_offset: int, epochs: LeaderEpochCache) -> int:
        """The log end offset; makes sure that there is an active segment with sound indexes."""
        if len(self._segments):
            active = self._segments.active
            if active in self._broken:  # the next start checks it whole, if this one is cut short
                self._rebuild_indexes([active])
            end_offset = self._with_valid_indexes(
                active, lambda segment: segment.prepare_to_append()
            )
            if end_offset >= log_start_offset:
                return end_offset
            self._drop(self._segments.items, f"the log starts at {log_start_offset}")
            epochs.clear()
        segment = self._make_segment(log_start_offset)
        segment.create()
        self._segments.add(segment)
        return log_start_offset


def _note_epoch(epochs: list[EpochEntry], header: BatchHeader) -> None:
    if header.leader_epoch >= 0 and (not epochs or header.leader_epoch > epochs[-1].epoch):
        epochs.append(EpochEntry(header.leader_epoch, header.base_offset))


def _index_problem(segment: LogSegment, names: set[str]) -> str | None:
    """Why a segment's indexes must be rebuilt; None if nothing is known against them.

    Their contents are judged when they are used: each entry against the batch it names.
    """
    if segment.size == 0:
        return None
    try:
        for index in (segment.offset_index, segment.time_index):
            if index.path.name not in names:
                return f"{index.path.name} is missing"
            size = os.stat(index.path).st_size
            if size % index.ENTRY_BYTES:
                return f"{index.path.name} has {size} bytes"
        if segment.txn_index.path.name in names:
            segment.txn_index.sanity_check()
    except CorruptIndexError as error:
        return str(error)
    return None


def _offset_of(name: str, suffix: str) -> int | None:
    """The base offset in a segment file's name; None if it is not one with this suffix."""
    digits, dot, rest = name.partition(".")
    if dot + rest == suffix and len(digits) == _OFFSET_DIGITS and digits.isdecimal():
        return int(digits)
    return None


def finish_interrupted_swaps(directory: Path) -> None:
    """Remove temporary files; bring a compaction that got as far as `.swap` to its end (S-13).

    `.swap` files at or above the smallest `.cleaned` one belong to a swap whose other files were
    not renamed yet, so the old segments are complete and the `.swap` files go. The others replace
    the old segments whose offsets they cover.
    """
    names = os.listdir(directory)
    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    smallest_cleaned = min((int(name[:_OFFSET_DIGITS]) for name in cleaned), default=None)
    swaps: list[str] = []
    for name in names:
        is_swap = name.endswith(SWAP_SUFFIX) and name[:_OFFSET_DIGITS].isdecimal()
        if is_swap and (smallest_cleaned is None or int(name[:_OFFSET_DIGITS]) < smallest_cleaned):
            swaps.append(name)
        elif is_swap or name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX)):
            logger.info("removing temporary file path=%s", directory / name)
            files.unlink(directory / name)
    if swaps:
        _finish_swaps(directory, swaps)


def _finish_swaps(directory: Path, swaps: list[str]) -> None:
    bounds: list[int] = []
    for name in swaps:
        base = _offset_of(name, LOG_SUFFIX + SWAP_SUFFIX)
        if base is not None:
            bounds += [base, _end_of_swap(directory, base)]
    for name in os.listdir(directory):
        for suffix in (LOG_SUFFIX, *_INDEX_SUFFIXES):
            base = _offset_of(name, suffix)
            if base is not None and bounds and min(bounds) <= base < max(bounds):
                logger.info("removing compacted segment file path=%s", directory / name)
                files.unlink(directory / name)
    for name in swaps:
        logger.info("finishing interrupted swap path=%s", directory / name)
        files.replace(directory / name, directory / name.removesuffix(SWAP_SUFFIX))
    files.sync_directory(directory)


def _end_of_swap(directory: Path, base_offset: int) -> int:
    """The offset after the last batch of a `.swap` segment."""
    segment = LogSegment(
        directory,
        base_offset,
        index_interval_bytes=4096,
        index_size_max=0,
        created_ms=0,
        open_files=OpenFileCache(1),
        suffix=SWAP_SUFFIX,
    )
    segment.load_size()
    end_offset = base_offset
    for _, header in ValidBatches(segment):
        end_offset = header.next_offset
    segment.close()
    return end_offset
