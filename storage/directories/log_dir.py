"""One log directory at work: its checkpoint files, its reserve of disk space, what is in it.

What is noted of its logs has one owner (`storage.dir_checkpoints`). When the disk is full that
still must be written, or a restart would recover far too much; so each directory holds a few MiB
back and releases them for this (S-16). From then on appends are refused, or they would eat the
reserve up; reads go on. As soon as there is room the reserve is taken back and appends are served
again.

A disk that hangs holds up who needs it and nobody else: each directory has its own worker for
background work and its own flusher for those who wait for a sync.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from storage import files
from storage.checkpoint import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    CleanShutdownFile,
)
from storage.config import Clock, LogConfig, ProducerStateConfig, Scheduler
from storage.directories.flusher import Flusher
from storage.directories.log_dirs import (
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    STRAY_SUFFIX,
    parse_future_dir,
    parse_partition_dir,
    partition_dir_name,
    renamed_dir_name,
)
from storage.environment import LogEnvironment
from storage.log.partition_log import PartitionLog
from storage.open_files import OpenFileCache
from storage.recovery import open_log
from wire.primitives import METADATA_TOPIC, TopicPartition

logger = logging.getLogger(__name__)

RESERVE_FILE = ".reserve"
RESERVE_BYTES = 4 * 1024 * 1024


_SAID: dict[str, Callable[[PartitionLog], int | None]] = {
    RECOVERY_POINT_CHECKPOINT: lambda log: log.flushed_offset,
    # Kafka leaves out what the first segment's name tells; with the power the names of those before
    # it may come back.
    LOG_START_OFFSET_CHECKPOINT: lambda log: log.log_start_offset or None,
    HIGH_WATERMARK_CHECKPOINT: lambda log: log.high_watermark,
}
"""What a log says of itself for each checkpoint."""


class LogDir:
    """A directory of `log.dirs`; made and owned by the log manager."""

    def __init__(
        self,
        path: Path,
        directory_id: bytes,
        *,
        clock: Clock,
        open_files: OpenFileCache,
        scheduler: Scheduler | None,
        on_failure: Callable[[Path, OSError], None],
        on_log_start_moved: Callable[[LogDir], object],
        producers: ProducerStateConfig,
    ) -> None:
        """`scheduler`: the worker of this directory; None does background work at once."""
        self.path = path
        self.directory_id = directory_id
        self.flusher = Flusher()
        self.environment = LogEnvironment(
            path,
            clock=clock,
            open_files=open_files,
            scheduler=scheduler,
            on_failure=on_failure,
            on_log_start_moved=lambda: on_log_start_moved(self),
            producers=producers,
            make_room=self.release_reserve,
        )
        self.checkpoints = self.environment.checkpoints
        self.clean_shutdown = CleanShutdownFile(path)
        self.failed_partitions: set[TopicPartition] = set()
        """Partitions whose log could not be opened; while there are any, no stop here is clean."""
        self._reserve = Reserve(path)
        self._planned: set[str] = set()

    def later(self, name: str, delay_ms: int, job: Callable[[], object]) -> None:
        """Run `job` on this directory's worker."""
        worker = self.environment.scheduler
        if worker is None:
            job()
        else:
            worker.schedule_once(name, delay_ms, job)

    def soon(self, name: str, job: Callable[[], object]) -> None:
        """Run `job` on the worker, once for all who ask under this name before it begins."""

        def run() -> None:
            self._planned.discard(name)
            job()

        if name not in self._planned:
            self._planned.add(name)
            self.later(name, 0, run)

    @property
    def is_online(self) -> bool:
        """False once a disk error took the directory offline."""
        return not self.environment.is_offline

    def find_partitions(self) -> tuple[list[tuple[TopicPartition, Path]], list[Path]]:
        """(partition directories in name order, directories of deleted partitions).

        What is neither is logged and left alone. Raises OSError.
        """
        partitions: list[tuple[TopicPartition, Path]] = []
        deleted: list[Path] = []
        strays = 0
        for name in sorted(os.listdir(self.path)):
            path = self.path / name
            if name.startswith(".") or not path.is_dir():
                continue
            if name.endswith(DELETE_SUFFIX):
                deleted.append(path)
                continue
            if parse_future_dir(name) is not None:
                continue
            if name.endswith(STRAY_SUFFIX):
                strays += 1
                continue
            key = parse_partition_dir(name)
            if key is None or name.endswith(FUTURE_SUFFIX):
                logger.warning("leaving directory alone that is no log of ours path=%s", path)
            elif key.topic != METADATA_TOPIC:
                partitions.append((key, path))
        if strays:
            logger.warning(
                "stray logs of earlier starts take space until a person removes them log_dir=%s"
                " count=%s",
                self.path,
                strays,
            )
        return partitions, deleted

    def take_clean_marker(self) -> int | None:
        """Delete the clean marker before anything is loaded (S-7); the broker epoch it told, None
        if there was none: then the names here are synced, since who made them may have died before
        it did, and nobody would after it (S-5). Raises OSError."""
        marker = self.clean_shutdown
        if not marker.exists():
            files.sync_directory(self.path)
            return None
        epoch = marker.read_broker_epoch()
        marker.delete()
        return epoch

    def open_log(self, key: TopicPartition, config: LogConfig, **options: Any) -> PartitionLog:
        """Open or make a log here with what is noted of it; raises what `recovery.open_log` does,
        and ValueError for a name that cannot be a directory.

        What was compacted was synced before, by Apache Kafka's cleaner as by ours: it need not be
        recovered, and gaps between its segments are no loss.
        """
        noted = partial(self.checkpoints.get, key=key)
        synced = [noted(RECOVERY_POINT_CHECKPOINT), noted(CLEANER_OFFSET_CHECKPOINT)]
        log = open_log(
            self.path / partition_dir_name(key),
            key,
            config,
            self.environment,
            recovery_point=max(offset or 0 for offset in synced),
            log_start_offset=noted(LOG_START_OFFSET_CHECKPOINT) or 0,
            **options,
        )
        log.update_high_watermark(min(noted(HIGH_WATERMARK_CHECKPOINT) or 0, log.log_end_offset))
        return log

    def load_log(self, key: TopicPartition, config: LogConfig, is_clean: bool) -> PartitionLog:
        """`open_log` at a start: on a full disk, what recovery writes goes into the reserve."""
        return files.with_room(
            lambda: self.open_log(key, config, had_clean_shutdown=is_clean), self.release_reserve
        )

    def set_aside(self, key: TopicPartition, path: Path) -> None:
        """Rename a partition's directory, which nobody has opened, to `-stray`; never raises."""
        stray = path.with_name(renamed_dir_name(key, os.urandom(16), STRAY_SUFFIX))
        try:
            files.replace(path, stray)
        except OSError as error:
            self.environment.storage_error(error, f"renaming {path}")
            return
        logger.warning("set stray log aside partition=%s path=%s", key, stray)
        self.failed_partitions.discard(key)
        self.log_left(key)

    def find_futures(self) -> list[tuple[TopicPartition, Path]]:
        """Directories of replicas that were on their way here. Raises OSError."""
        return [
            (key, self.path / name)
            for name in sorted(os.listdir(self.path))
            if (key := parse_future_dir(name)) is not None
        ]

    def checkpoint_recovery_points(self, logs: Iterable[PartitionLog]) -> None:
        """Write below which offsets everything is on disk."""
        self._checkpoint(RECOVERY_POINT_CHECKPOINT, logs)

    def checkpoint_log_starts(self, logs: Iterable[PartitionLog]) -> None:
        """Write the log starts above 0."""
        self._checkpoint(LOG_START_OFFSET_CHECKPOINT, logs)

    def checkpoint_high_watermarks(self, logs: Iterable[PartitionLog]) -> None:
        """Write every log's high watermark (H-10)."""
        self._checkpoint(HIGH_WATERMARK_CHECKPOINT, logs)

    def _checkpoint(self, kind: str, logs: Iterable[PartitionLog]) -> None:
        self._try(lambda: self.checkpoints.note(kind, logs, _SAID[kind]), f"checkpoint {kind}")

    def note(self, log: PartitionLog) -> None:
        """Write down all that a log says of itself. Raises OSError."""
        for kind, offset_of in _SAID.items():
            self.checkpoints.note(kind, [log], offset_of)

    def trim_checkpoints(self, ends: Mapping[TopicPartition, int]) -> None:
        """The logs here are open and end so; see `DirCheckpoints.trim`."""
        self._try(lambda: self.checkpoints.trim(ends), "checkpoints")

    def rename_away(self, path: Path, to: Path) -> None:
        """Give the directory of a log that is closed another name: its way out. On a full disk the
        reserve makes room for that. Raises KafkaError KAFKA_STORAGE_ERROR, and the directory is
        offline: the log would be neither there nor gone."""
        try:
            files.with_room(lambda: files.replace(path, to), self.release_reserve)
        except OSError as error:
            error.is_final = True  # type: ignore[attr-defined]
            raise self.environment.storage_error(error, f"renaming {path}") from error

    def remove_log(self, key: TopicPartition, path: Path) -> None:
        """Unlink a log that nobody uses, under a name of the deleted: what a crash leaves of it
        must not look like a log to go on with. What fails is left to the next start. Never raises.
        """
        gone = path.with_name(renamed_dir_name(key, os.urandom(16), DELETE_SUFFIX))
        try:
            files.with_room(lambda: files.replace(path, gone), self.release_reserve)
            files.sync_directory(self.path)
        except OSError as error:
            self.environment.storage_error(error, f"removing {path}")
        else:
            remove_tree(gone)

    def log_left(self, key: TopicPartition) -> None:
        """A log was renamed: nothing that is noted of it may reach another of its name (L1)."""
        self.checkpoints.forget(key)
        self.soon("log-dir-sync", self._sync_names)

    def _sync_names(self) -> None:
        self._try(self.checkpoints.write, "checkpoints")
        self._try(lambda: files.sync_directory(self.path), "sync of the directory")

    def write_clean_marker(self, broker_epoch: int) -> None:
        """Say that everything here is flushed and closed; the last thing at shutdown (S-7)."""
        self._try(lambda: self.clean_shutdown.write(broker_epoch), "clean shutdown file")

    def _try(self, write: Callable[[], object], what: str) -> None:
        """What cannot be written now is tried again, unless the disk failed."""
        if self.is_online:
            try:
                write()
            except OSError as error:
                self.environment.storage_error(error, what)

    def release_reserve(self) -> bool:
        """Give the reserve to who must write; appends are refused from now on. False if used up."""
        if not self._reserve.release():
            return False
        self.environment.is_writable = False
        logger.error("disk is full, appends are refused log_dir=%s", self.path)
        return True

    def restore_reserve(self) -> None:
        """Take the reserve back if there is room, and serve appends again."""
        environment = self.environment
        if self._reserve.is_held or environment.is_offline:
            return
        try:
            if self._reserve.take() and not environment.is_writable:
                environment.is_writable = True
                logger.warning("disk has room again log_dir=%s", self.path)
        except OSError as error:
            environment.fail(error)


class Reserve:
    """A few MiB of a directory's disk, held so that a full disk still takes checkpoints (S-16).

    While it is released the directory takes no appends, or they would eat it up; reads go on. It is
    taken back as soon as there is room.
    """

    __slots__ = ("is_held", "path")

    def __init__(self, directory: Path) -> None:
        self.path = directory / RESERVE_FILE
        self.is_held = False

    def take(self) -> bool:
        """Hold the space; False if it cannot be had now. Raises OSError for any other trouble."""
        if self.is_held:
            return True
        try:
            fd = files.open_or_relieve(self.path, files.CREATE)
            try:
                files.allocate(fd, RESERVE_BYTES)
            finally:
                files.close(fd)
        except OSError as error:
            with suppress(OSError):
                files.unlink(self.path)
            if not files.may_pass(error):
                raise
            return False
        self.is_held = True
        return True

    def release(self) -> bool:
        """Give the space to the disk; False if it was given already."""
        if not self.is_held:
            return False
        self.is_held = False
        with suppress(FileNotFoundError):
            files.unlink(self.path)
        return True


def remove_tree(path: Path) -> None:
    """Unlink a partition directory that nobody uses any more."""
    try:
        files.remove_directory(path)
    except OSError as error:
        logger.warning("removing deleted log failed path=%s error=%s", path, error)
