"""What is done for the logs of each directory from time to time, on the directory's worker.

Retention, flushes by age, checkpoints (recovery points and log starts every minute, high watermarks
every five seconds), forgetting idle producers. Each job is for the directories that it is given, or
for all; what it finds wrong with one log concerns that log only.

Kafka: LogManager's and ReplicaManager's scheduled tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from wire.errors import KafkaError

if TYPE_CHECKING:
    from storage.config import Clock, LogManagerConfig, ScheduledTask, Scheduler
    from storage.directories.log_dir import LogDir
    from storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_INITIAL_DELAY_MS = 30_000
_FLUSH_CHECK_MS = 1_000


class Upkeep:
    """See the module. Its jobs may be called from any thread."""

    def __init__(
        self,
        dirs: Mapping[Path, LogDir],
        all_logs: Callable[[], list[PartitionLog]],
        clock: Clock,
    ) -> None:
        self._dirs = dirs
        self._all_logs = all_logs
        self._clock = clock
        self._tasks: list[ScheduledTask] = []

    def start(self, config: LogManagerConfig, workers: Mapping[Path, Scheduler | None]) -> None:
        """Begin the periodic work of each directory. Raises ValueError for one without a worker."""
        flush_ms = min(config.flush_scheduler_interval_ms, _FLUSH_CHECK_MS)
        jobs: list[tuple[str, int, Callable[[LogDir], object]]] = [
            ("log-retention", config.retention_check_interval_ms, self.delete_old_segments),
            ("log-flusher", flush_ms, self.flush_dirty_logs),
            (
                "recovery-point-checkpoint",
                config.flush_offset_checkpoint_interval_ms,
                self.checkpoint_recovery_points,
            ),
            (
                "log-start-offset-checkpoint",
                config.flush_start_offset_checkpoint_interval_ms,
                self.checkpoint_log_start_offsets,
            ),
            (
                "highwatermark-checkpoint",
                config.high_watermark_checkpoint_interval_ms,
                self.checkpoint_high_watermarks,
            ),
            (
                "producer-expiration",
                config.producer_id_expiration_check_interval_ms,
                self.remove_expired_producers,
            ),
        ]
        for path, log_dir in self._dirs.items():
            worker = workers[path]
            if worker is None:
                raise ValueError("background work needs a scheduler")
            for name, period_ms, job in jobs:
                delay_ms = min(period_ms, _INITIAL_DELAY_MS)
                self._tasks.append(
                    worker.schedule(name, period_ms, partial(job, log_dir), delay_ms)
                )

    def stop(self) -> None:
        """Begin nothing more; what is under way goes on."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def delete_old_segments(self, *log_dirs: LogDir) -> int:
        """Apply retention to the logs of these directories, or of all; segments deleted."""
        wall_ms = self._clock.wall_ms()
        return sum(
            _try(log, lambda log: log.delete_old_segments(wall_ms))
            for log in self.logs_in(log_dirs)
        )

    def flush_dirty_logs(self, *log_dirs: LogDir) -> None:
        """Sync logs whose unsynced data is older than their `flush.ms`."""
        now_ms = self._clock.now_ms()
        for log in self.logs_in(log_dirs):
            flush_ms = log.config.flush_ms
            is_old = now_ms - log.sync.last_flush_ms >= flush_ms
            if is_old and log.flushed_offset < log.log_end_offset:
                _try(log, lambda log: log.flush())

    def remove_expired_producers(self, *log_dirs: LogDir) -> int:
        """Forget producers that were idle too long; how many."""
        wall_ms = self._clock.wall_ms()
        count = 0
        for log in self.logs_in(log_dirs):
            with log.lock:
                count += log.producer_state.remove_expired(wall_ms)
        return count

    def checkpoint_recovery_points(self, *log_dirs: LogDir) -> None:
        """Write below which offsets everything is on disk."""
        for log_dir in self._online(log_dirs):
            log_dir.checkpoint_recovery_points(self.logs_in([log_dir]))

    def checkpoint_log_start_offsets(self, *log_dirs: LogDir) -> None:
        """Write the log starts that lie above their first segment's."""
        for log_dir in self._online(log_dirs):
            log_dir.checkpoint_log_starts(self.logs_in([log_dir]))

    def checkpoint_high_watermarks(self, *log_dirs: LogDir) -> None:
        """Write every log's high watermark (H-10); also see if a full disk has room again."""
        for log_dir in self._online(log_dirs):
            log_dir.restore_reserve()
            log_dir.checkpoint_high_watermarks(self.logs_in([log_dir]))

    def _online(self, log_dirs: Sequence[LogDir]) -> list[LogDir]:
        """Those of these directories, or of all, that are online."""
        return [log_dir for log_dir in log_dirs or self._dirs.values() if log_dir.is_online]

    def logs_in(self, log_dirs: Sequence[LogDir]) -> list[PartitionLog]:
        """The logs in these directories, or all."""
        if not log_dirs:
            return self._all_logs()
        environments = {id(log_dir.environment) for log_dir in log_dirs}  # a path costs 5 us
        return [log for log in self._all_logs() if id(log.environment) in environments]


def _try(log: PartitionLog, job: Callable[[PartitionLog], object]) -> int:
    """Run a background job on one log; what it raises concerns that log only."""
    try:
        result = job(log)
    except KafkaError as error:
        logger.warning("background job failed partition=%s error=%s", log.topic_partition, error)
        return 0
    return result if isinstance(result, int) else 0
