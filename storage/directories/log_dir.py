"""One log directory at work: its checkpoint files, its reserve of disk space, what is in it.

Checkpoints are whole or absent (`storage.checkpoint`). When the disk is full they still must be
written, or a restart would recover far too much; so each directory holds a few MiB back and
releases them for this (S-16). From then on appends are refused, or they would eat the reserve up;
reads go on. As soon as there is room the reserve is taken back and appends are served again.

Lock: one per directory around writing a checkpoint file; a leaf.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from storage import files
from storage.checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    CleanShutdownFile,
    CorruptCheckpoint,
    OffsetCheckpoint,
)
from storage.directories.log_dirs import (
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    METADATA_TOPIC,
    STRAY_SUFFIX,
    parse_future_dir,
    parse_partition_dir,
)
from storage.environment import LogEnvironment
from storage.log.partition_log import PartitionLog
from wire.primitives import TopicPartition

logger = logging.getLogger(__name__)

RESERVE_FILE = ".reserve"
RESERVE_BYTES = 4 * 1024 * 1024

Offsets = dict[TopicPartition, int]


class LogDir:
    """A directory of `log.dirs`; made and owned by the log manager."""

    def __init__(self, path: Path, directory_id: bytes, environment: LogEnvironment) -> None:
        self.path = path
        self.directory_id = directory_id
        self.environment = environment
        self.clean_shutdown = CleanShutdownFile(path)
        self.recorded_recovery_points: Offsets = {}
        """What the checkpoint file says now."""
        self.failed_partitions: set[TopicPartition] = set()
        """Partitions whose log could not be opened; while there are any, no stop here is clean."""
        self._reserve = Reserve(path)
        self._recovery_points = OffsetCheckpoint(path / RECOVERY_POINT_CHECKPOINT)
        self._log_starts = OffsetCheckpoint(path / LOG_START_OFFSET_CHECKPOINT)
        self._high_watermarks = OffsetCheckpoint(path / HIGH_WATERMARK_CHECKPOINT)
        self._lock = threading.Lock()

    @property
    def is_online(self) -> bool:
        """False once a disk error took the directory offline."""
        return not self.environment.is_offline

    def read_checkpoints(self) -> tuple[Offsets, Offsets, Offsets]:
        """Recovery points, log starts, high watermarks. Raises OSError.

        A file that cannot be understood is as good as none: more is recovered than need be.
        """
        read: list[Offsets] = []
        for checkpoint in (self._recovery_points, self._log_starts, self._high_watermarks):
            try:
                read.append(checkpoint.read())
            except CorruptCheckpoint as error:
                logger.warning("ignoring corrupt checkpoint reason=%s", error)
                read.append({})
        self.recorded_recovery_points = read[0]
        return read[0], read[1], read[2]

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

    def find_futures(self) -> list[tuple[TopicPartition, Path]]:
        """Directories of replicas that were on their way here. Raises OSError."""
        return [
            (key, self.path / name)
            for name in sorted(os.listdir(self.path))
            if (key := parse_future_dir(name)) is not None
        ]

    def checkpoint_recovery_points(self, logs: Iterable[PartitionLog]) -> None:
        """Write below which offsets everything is on disk."""
        points = {log.topic_partition: log.flushed_offset for log in logs}
        if self._write(self._recovery_points, points):
            self.recorded_recovery_points = points

    def checkpoint_log_starts(self, logs: Iterable[PartitionLog]) -> None:
        """Write the log starts that lie above their first segment's."""
        starts = {
            log.topic_partition: log.log_start_offset
            for log in logs
            if log.log_start_offset > log.segments.items[0].base_offset
        }
        self._write(self._log_starts, starts)

    def checkpoint_high_watermarks(self, logs: Iterable[PartitionLog]) -> None:
        """Write every log's high watermark (H-10)."""
        self._write(
            self._high_watermarks, {log.topic_partition: log.high_watermark for log in logs}
        )

    def write_clean_marker(self, broker_epoch: int) -> None:
        """Say that everything here is flushed and closed; the last thing at shutdown (S-7)."""
        try:
            self.clean_shutdown.write(broker_epoch)
        except OSError as error:
            self.environment.storage_error(error, "clean shutdown marker")

    def _write(self, checkpoint: OffsetCheckpoint, offsets: Mapping[TopicPartition, int]) -> bool:
        """Write a file, on a full disk with the help of the reserve; True if it is written."""
        with self._lock:
            try:
                try:
                    checkpoint.write(offsets)
                except OSError as error:
                    if not files.is_disk_full(error) or not self.release_reserve():
                        raise
                    checkpoint.write(offsets)
            except OSError as error:
                self.environment.storage_error(error, f"checkpoint {checkpoint.path.name}")
                return False
        return True

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
        """Hold the space; False if there is none. Raises OSError for any other trouble."""
        if self.is_held:
            return True
        fd = files.open_or_relieve(self.path, files.CREATE)
        try:
            files.allocate(fd, RESERVE_BYTES)
        except OSError as error:
            with suppress(OSError):
                files.unlink(self.path)
            if not files.is_disk_full(error):
                raise
            return False
        finally:
            files.close(fd)
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
        for name in os.listdir(path):
            files.unlink(path / name)
        os.rmdir(path)
    except OSError as error:
        logger.warning("removing deleted log failed path=%s error=%s", path, error)
