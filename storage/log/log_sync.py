"""Getting a log onto the disk: what is not synced yet, and the one thread at a time that syncs it.

What a power loss may take is bounded by `flushed_offset` (Kafka: recovery point): everything below
it is on disk, and it moves only after the syncs returned (S-6). Sealed segments are synced once,
with their indexes; of the active segment only the log file is, because after a crash recovery
builds its indexes anew, also if it was sealed meanwhile. New files are on disk only once their
directory is (S-5).

Who wants a sync while one is running waits for it and then usually finds nothing left to do: that
is what makes a group commit. No lock that an append needs is held meanwhile.

A failed sync is final, whatever a second one would say (S-4); a lack of descriptors, which keeps it
from beginning, is not, nor a disk that has no room for the leader epochs, which come first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from storage import files
from storage.segments.segment import LogSegment
from wire.errors import KafkaError

if TYPE_CHECKING:
    from storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


class LogSync:
    """The unsynced part of one log. `note_*` are called under the log's lock."""

    __slots__ = ("_flush_lock", "_is_directory_dirty", "_is_renamed", "_sealed", "last_flush_ms")

    def __init__(self, now_ms: int) -> None:
        self.last_flush_ms = now_ms
        self._flush_lock = threading.Lock()
        self._sealed: list[LogSegment] = []
        self._is_directory_dirty = True
        self._is_renamed = False

    def note_sealed(self, segments: Iterable[LogSegment]) -> None:
        """These segments are complete and not synced, or not with their indexes."""
        self._sealed += segments

    def note_directory_changed(self) -> None:
        """Files were created."""
        self._is_directory_dirty = True

    def note_renamed(self) -> None:
        """The directory has another name."""
        self._is_renamed = True

    def flush(self, log: PartitionLog) -> None:
        """Sync up to the log's end as of now, then raise `flushed_offset`.

        Raises OSError, with `is_final` set if the directory must go offline, and KafkaError if it
        is offline already. A log that is closed, even while we are at it, is left alone; one whose
        directory gets another name meanwhile (the end of a move) is synced under that.
        """
        with self._flush_lock:
            while not self._flush(log):
                pass

    def _flush(self, log: PartitionLog) -> bool:
        """As `flush`; False if the directory was renamed meanwhile, and it must be done again."""
        with log.lock:
            log.environment.check_online()
            if log.is_closed:
                return True
            log.finish_files()  # or a start would find there what was cut off
            directory = log.directory
            end_offset = log.log_end_offset
            truncations = log.truncations
            started_ms = log.environment.clock.now_ms()
            sealed, self._sealed = self._sealed, []
            is_dirty, self._is_directory_dirty = self._is_directory_dirty, False
            is_renamed, self._is_renamed = self._is_renamed, False
            unflushed: Iterable[LogSegment] = ()
            if end_offset > log.flushed_offset:
                unflushed = log.segments.from_floor(log.flushed_offset)
        is_syncing = False
        try:
            # Below the recovery point no batch is read again to find its epoch (E-3).
            files.with_room(log.leader_epochs.sync, log.environment.make_room)
            is_syncing = True
            _sync(log, sealed, unflushed, is_dirty)
            if is_renamed:
                files.sync_directory(log.directory.parent)
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError)
            if is_missing and _is_gone(log):
                return True  # renamed or deleted as a whole meanwhile
            with log.lock:  # who renames the directory holds it until the log knows the new name
                self._sealed += sealed
                self._is_directory_dirty |= is_dirty
                self._is_renamed |= is_renamed
                if is_missing and log.directory != directory:
                    return False
            is_final = is_syncing and not files.is_out_of_descriptors(error)
            error.is_final = is_final  # type: ignore[attr-defined]
            raise
        with log.lock:
            self.last_flush_ms = started_ms
            # What was cut off and written again meanwhile is not what was synced.
            if truncations == log.truncations and end_offset > log.flushed_offset:
                log.flushed_offset = end_offset
        return True


def flush_unasked(log: PartitionLog) -> None:
    """A flush that nobody waits for: one line if it fails, a later one does its work."""
    try:
        log.flush()
    except KafkaError as error:
        logger.warning("background flush failed partition=%s error=%s", log.topic_partition, error)


def _is_gone(log: PartitionLog) -> bool:
    return log.is_closed


def _sync(
    log: PartitionLog, sealed: list[LogSegment], unflushed: Iterable[LogSegment], is_dirty: bool
) -> None:
    for segment in sealed:
        _sync_segment(segment, segment.flush)
    for segment in unflushed:
        if segment not in sealed:
            _sync_segment(segment, segment.flush_log)
    if is_dirty:
        log.producer_state.flush()
        files.sync_directory(log.directory)


def _sync_segment(segment: LogSegment, sync: Callable[[], None]) -> None:
    """Sync a segment, unless retention deletes it, if need be while we are at it."""
    try:
        if not segment.is_deleted:
            sync()
    except FileNotFoundError:
        if not segment.is_deleted:
            raise
