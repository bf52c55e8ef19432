"""Log compaction: the threads that keep topics with `cleanup.policy=compact` to one record per key.

Why: `__consumer_offsets` and every table-like topic grow with each update; readers want the newest
value of each key, and a log that stays short enough to be read from its start.

How (Kafka: LogCleaner, LogCleanerManager): a cleaner chooses the log with the most dirty bytes
relative to its size, cleans it (`storage.cleaning.log_cleaning`), notes up to where, and goes on to
the next; when there is none it waits `log.cleaner.backoff.ms`. A log is dirty from the offset noted
in `cleaner-offset-checkpoint` of its log directory. What may not be cleaned yet: the active
segment, what is not below the high watermark and the last stable offset, and what is younger than
`min.compaction.lag.ms` (S-14). A log with dirty records older than `max.compaction.lag.ms` is
cleaned whatever its ratio.

A cleaning is not stopped for a truncation, a deletion or retention: those take the log's lock and
go ahead, and the cleaning finds out, at the latest before it swaps a segment, and gives up (Kafka:
abortAndPauseCleaning, which makes them wait). The noted offset goes back with a truncation
(`storage.dir_checkpoints`), or tombstones written after it would be taken for cleaned ones and let
older values come back.

A log whose cleaning fails for its contents (a checksum, a batch that cannot be read) is left alone
until the next start and logged once. A disk that fails takes its directory offline as ever.

Duties of the owner: the directories' checkpoints are read before `start`; `shutdown`.

Each log directory has a thread of its own: a disk that hangs keeps no other's logs from being
cleaned, which threads that take any log, as Kafka's do, would not ensure, for one after the other
would come to it. They share `log.cleaner.io.max.bytes.per.second`, and each has its part of
`log.cleaner.dedupe.buffer.size`.

Gaps: as many threads as directories, whatever `log.cleaner.threads` says; batches are compressed
with their codec's default level.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakSet

from storage.checkpoint import CLEANER_OFFSET_CHECKPOINT
from storage.cleaning.log_cleaning import CleanerStats, Cleaning, Pace
from storage.cleaning.offset_map import OffsetMap
from storage.config import STOP_WAIT_S, Clock
from storage.log.partition_log import PartitionLog
from storage.log.segment_swap import CleaningAborted
from storage.segments.segment import LogSegment
from wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


THREAD_NAME = "kafka-log-cleaner-thread-"


@dataclass(frozen=True, slots=True)
class CleanerConfig:
    """Kafka's keys, `.` as `_`. All but `log_cleaner_enable` may change while running."""

    log_cleaner_enable: bool = True
    log_cleaner_backoff_ms: int = 15_000
    """Wait when there was nothing to clean."""
    log_cleaner_dedupe_buffer_size: int = 134_217_728
    """Bytes for the offset map: see `storage.cleaning.offset_map` for how many keys that is."""
    log_cleaner_io_buffer_load_factor: float = 0.9
    log_cleaner_io_buffer_size: int = 524_288
    log_cleaner_io_max_bytes_per_second: float = 1.7976931348623157e308


@dataclass(slots=True)
class CleanableLog:
    """A log and what of it can be cleaned now (Kafka: LogToClean). Bytes are of log files."""

    log: PartitionLog
    first_dirty_offset: int
    first_uncleanable_offset: int
    """Base offset of a segment."""
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool
    """Dirty records are older than `max.compaction.lag.ms`."""

    @property
    def ratio(self) -> float:
        """Dirty part of the cleanable log, 0 to 1."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


class LogCleaner:
    """See the module. Made and told by the log manager; public methods from any thread."""

    def __init__(
        self,
        logs: Callable[[], Iterable[PartitionLog]],
        clock: Clock,
        config: CleanerConfig | None = None,
        directories: Iterable[Path] = (),
    ) -> None:
        """`logs` are in these directories."""
        self.config = config or CleanerConfig()
        self.uncleanable: WeakSet[PartitionLog] = WeakSet()
        """Whose contents could not be cleaned; not tried again, unlike another log of the name."""
        self.last_stats = CleanerStats()
        self.cleanings = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self._logs = logs
        self._clock = clock
        self._pace = Pace(clock, self.config.log_cleaner_io_max_bytes_per_second, self._wait)
        self._wake = threading.Event()
        self._is_stopping = False
        self._directories = tuple(directories)
        self._threads: list[threading.Thread] = []
        self._stats_lock = threading.Lock()

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin cleaning, first after one backoff; does nothing if the cleaner is not enabled."""
        if not self.config.log_cleaner_enable or self._threads:
            return
        for number, directory in enumerate(self._directories):
            thread = threading.Thread(
                target=self._run, args=(directory,), name=f"{THREAD_NAME}{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def shutdown(self) -> None:
        """Give up what is being cleaned and end the threads, but for those whose disk hangs."""
        self._is_stopping = True
        self._wake.set()
        deadline_s = time.monotonic() + STOP_WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            if thread.is_alive():
                logger.error(
                    "cleaner does not end, not waited for: its disk does not answer name=%s",
                    thread.name,
                )
        self._threads = []

    def reconfigure(self, config: CleanerConfig) -> None:
        """Obey another configuration from the next cleaning on, its speed at once."""
        self.config = config
        self._pace.bytes_per_second = config.log_cleaner_io_max_bytes_per_second

    def _run(self, directory: Path) -> None:
        self._wait(self.config.log_cleaner_backoff_ms / 1000)
        while not self._is_stopping:
            try:
                has_cleaned = self.clean_filthiest(directory)
            except Exception:
                logger.exception("cleaner failed, trying again later")
                has_cleaned = False
            if not has_cleaned:
                self._wait(self.config.log_cleaner_backoff_ms / 1000)

    def _wait(self, seconds: float) -> bool:
        """Whether the cleaner is stopping."""
        return self._wake.wait(min(seconds, threading.TIMEOUT_MAX))

    # -- choice ----------------------------------------------------------------------------------

    def choose(self, directory: Path | None = None) -> CleanableLog | None:
        """The log that needs cleaning most, in one directory or all; None if none is dirty."""
        best: CleanableLog | None = None
        for log in self._logs():
            if directory not in (None, log.directory.parent):
                continue
            if not log.config.is_compacted or log in self.uncleanable:
                continue
            candidate = self._examine(log)
            if candidate is None:
                continue
            if best is None or candidate.ratio > best.ratio:
                best = candidate
        return best

    def _examine(self, log: PartitionLog) -> CleanableLog | None:
        """A log's cleanable part if that is enough to be cleaned."""
        if log.is_closed or not log.environment.is_writable:
            return None
        try:
            cleanable = self.cleanable_part(log)
        except Exception as error:
            # Retention renames files under us, and a bad index is the reader's to repair.
            logger.warning(
                "cannot examine log for cleaning partition=%s error=%s", log.topic_partition, error
            )
            return None
        if cleanable.cleanable_bytes == 0:
            return None
        if cleanable.is_overdue or cleanable.ratio > log.config.min_cleanable_dirty_ratio:
            return cleanable
        return None

    def cleanable_part(self, log: PartitionLog) -> CleanableLog:
        """What of a log is clean, can be cleaned, and must wait."""
        first_dirty = log.environment.checkpoints.get(
            CLEANER_OFFSET_CHECKPOINT, log.topic_partition
        )
        start = log.log_start_offset
        if first_dirty is None or not start <= first_dirty <= log.log_end_offset:
            first_dirty = start
        segments = log.segments.items
        active = segments[-1]
        dirty = [s for s in log.segments.from_floor(first_dirty) if s is not active]
        wall_ms = self._clock.wall_ms()
        with log.lock:
            limit = min(log.last_stable_offset, active.base_offset)
        lag_ms = log.config.min_compaction_lag_ms
        if lag_ms > 0:
            young = (s.base_offset for s in dirty if s.largest_timestamp() > wall_ms - lag_ms)
            limit = min(limit, next(young, limit))
        # Only whole segments: the one that holds the limit waits.
        holder = log.segments.floor(max(limit, first_dirty))
        uncleanable = active.base_offset if holder is None else holder.base_offset
        clean = cleanable = 0
        dirty_base = dirty[0].base_offset if dirty else active.base_offset
        for segment in segments:
            if segment.base_offset >= uncleanable:
                break
            if segment.base_offset < dirty_base:
                clean += segment.size
            else:
                cleanable += segment.size
        return CleanableLog(
            log,
            first_dirty,
            uncleanable,
            clean,
            cleanable if first_dirty < uncleanable else 0,
            _is_overdue(log, dirty, wall_ms),
        )

    # -- work ------------------------------------------------------------------------------------

    def clean_filthiest(self, directory: Path | None = None) -> bool:
        """Clean the log that needs it most, in one directory or all; True if one was cleaned."""
        cleanable = self.choose(directory)
        if cleanable is None:
            return False
        log = cleanable.log
        try:
            self.clean(cleanable)
        except CleaningAborted as reason:
            logger.info("cleaning aborted partition=%s reason=%s", log.topic_partition, reason)
        except OSError as error:
            if not isinstance(error, FileNotFoundError) or getattr(error, "is_final", False):
                log.environment.storage_error(error, f"cleaning of {log.topic_partition}")
            # else: the log was renamed away, or retention was faster.
        except KafkaError as error:
            if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                self._give_up(log)
        except Exception:
            self._give_up(log)
        else:
            return True
        return False

    def _give_up(self, log: PartitionLog) -> None:
        """The contents cannot be cleaned: trying again would fail again."""
        logger.exception("log cannot be cleaned partition=%s", log.topic_partition)
        self.uncleanable.add(log)

    def clean(self, cleanable: CleanableLog) -> CleanerStats:
        """Clean one log now and note up to where. Raises what `Cleaning.run` raises."""
        config = self.config
        log = cleanable.log
        started_ms = self._clock.now_ms()
        offsets = OffsetMap(
            config.log_cleaner_dedupe_buffer_size // (len(self._directories) or 1),
            config.log_cleaner_io_buffer_load_factor,
        )
        cleaning = Cleaning(
            log,
            cleanable.first_dirty_offset,
            cleanable.first_uncleanable_offset,
            offsets,
            self._pace,
            io_buffer_bytes=config.log_cleaner_io_buffer_size,
            is_stopping=lambda: self._is_stopping,
        )
        end_offset = cleaning.run()
        log.environment.checkpoints.note_cleaned(log, end_offset, cleaning.truncations)
        stats = cleaning.stats
        stats.elapsed_ms = self._clock.now_ms() - started_ms
        with self._stats_lock:
            self.last_stats = stats
            self.cleanings += 1
            self.bytes_read += stats.bytes_read
            self.bytes_written += stats.bytes_written
        logger.info(
            "cleaned log partition=%s from=%s to=%s records=%s of %s bytes=%s of %s ms=%s",
            log.topic_partition,
            stats.start_offset,
            stats.end_offset,
            stats.records_written,
            stats.records_read,
            stats.bytes_written,
            stats.bytes_read,
            stats.elapsed_ms,
        )
        if stats.invalid_records:
            logger.warning(
                "dropped records without a key partition=%s count=%s",
                log.topic_partition,
                stats.invalid_records,
            )
        return stats


def _is_overdue(log: PartitionLog, dirty: Iterable[LogSegment], wall_ms: int) -> bool:
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms >= wall_ms:
        return False
    return any(0 < segment.first_timestamp < wall_ms - lag_ms for segment in dirty)
