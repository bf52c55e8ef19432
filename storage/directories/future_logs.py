"""Logs on their way to another directory of this node (KIP-113): `<topic>-<n>.<id>-future`.

A replica that moves has two logs for a while: the current one, which serves, and the future one,
which is filled from it by `replication.replicas.log_dir_moves`. Here is the future one's life on
disk:

    (none)  --create-->  future  --promote-->  current, and the old current is deleted
                 ^          |-----delete---->  (none)
                 '-- found at a start: the move goes on where it was

`promote` first gives the future log its name in its directory, then takes the old one's away: a
crash between leaves the partition whole in both directories (`storage.directories.copies` decides
at the next start), never in none. A future log in the directory where metadata knows the replica
was complete; it is adopted when the old one's disk does not come back.

Locks: `promote` takes both logs'; the map changes by single operations.

Gaps: the directory's name is cut when the topic's is longer than some 200 characters (as that of a
deleted one is); such a move begins anew after a restart.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from storage import files
from storage.config import LogConfig
from storage.directories.copies import topic_id_of
from storage.directories.log_dirs import FUTURE_SUFFIX, partition_dir_name, renamed_dir_name
from storage.log.partition_log import PartitionLog
from storage.recovery import open_log
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition

if TYPE_CHECKING:
    from storage.directories.log_manager import LogManager

logger = logging.getLogger(__name__)


class FutureLogs:
    """The future logs of one log manager; see the module."""

    def __init__(self, manager: LogManager) -> None:
        self.found: dict[TopicPartition, Path] = {}
        """What moved when the node stopped, and nobody claimed yet."""
        self._claimed: dict[TopicPartition, Path] = {}
        self._manager = manager
        self._logs: dict[TopicPartition, PartitionLog] = {}

    def get(self, key: TopicPartition) -> PartitionLog | None:
        """The future log of a partition, None if it does not move."""
        return self._logs.get(key)

    def all(self) -> list[PartitionLog]:
        return list(self._logs.values())

    def create(
        self, key: TopicPartition, topic_id: bytes, config: LogConfig, directory: Path
    ) -> PartitionLog:
        """Open the future log in `directory`: what a stop left of it there, or a new one.

        Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        log_dir = self._manager.online_dir(directory)
        log_dir.environment.check_writable()
        path = self._take_found(key)
        if path is not None and path.parent != directory:
            self._remove(key, path)
            path = None
        name = renamed_dir_name(key, os.urandom(16), FUTURE_SUFFIX)
        try:
            # Its recovery point was never written down: all that a stop left is checked.
            log = open_log(
                path or directory / name, key, config, log_dir.environment, topic_id=topic_id
            )
        except OSError as error:
            raise log_dir.environment.storage_error(error, f"creation of {name}") from error
        except ValueError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
        if self._logs.setdefault(key, log) is not log:
            self._close_and_remove(log)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"another move of {key} is beginning")
        logger.info("created future log partition=%s log_dir=%s", key, directory)
        return log

    def claim(self, key: TopicPartition, topic_id: bytes) -> Path | None:
        """The directory whose future log of this partition was found; it will be opened soon. One
        of another topic of that name goes."""
        path = self.found.pop(key, None)
        if path is None:
            return None
        if not _is_of(path, topic_id):
            self._remove(key, path)
            return None
        self._claimed[key] = path
        return path.parent

    def adopt(self, key: TopicPartition, topic_id: bytes, directory: Path) -> None:
        """Let what a stop left of a move to `directory` be the log there, if it left something.

        For a partition without a log that metadata knows in `directory`: the move had told so, and
        had all there was, before the old log was lost (Kafka: recoverAbandonedFutureLogs). Raises
        KafkaError KAFKA_STORAGE_ERROR.
        """
        path = self.found.get(key)
        if path is None or path.parent != directory or topic_id_of(path) != topic_id:
            return
        log_dir = self._manager.online_dir(directory)
        current = path.with_name(partition_dir_name(key))
        try:
            log_dir.checkpoints.forget(key)
            log_dir.checkpoints.write()
            files.replace(path, current)
            files.sync_directory(directory)
        except OSError as error:
            raise log_dir.environment.storage_error(error, f"renaming {path}") from error
        del self.found[key]
        logger.warning("future log takes the place of a lost one path=%s", current)

    def delete(self, key: TopicPartition) -> None:
        """Forget a move: the future log goes, the current one stays. Never raises."""
        path = self._take_found(key)
        log = self._logs.get(key)
        if log is not None:
            self.drop(log)
        if path is not None:
            self._remove(key, path)

    def drop(self, log: PartitionLog) -> None:
        """This future log goes, on the worker of its directory; never raises. One whose directory
        failed stays."""
        if self._logs.get(log.topic_partition) is log:
            del self._logs[log.topic_partition]
            self._manager.later(log.directory.parent, 0, partial(self._close_and_remove, log))

    def release(self, key: TopicPartition) -> None:
        """Let a future log's files go and leave them where they are, for the next start."""
        log = self._logs.pop(key, None)
        if log is not None:
            _close(log)

    def delete_unclaimed(self) -> None:
        """What was found at the start and belongs to no replica of this node."""
        for key in list(self.found):
            logger.info("future log of no replica here partition=%s", key)
            self.delete(key)

    def prepare(self, future: PartitionLog, current: PartitionLog) -> None:
        """Have on disk what there is to say of a future log that is about to be promoted.

        Before its name: a start in between drops what is noted of no log there, but would bring
        deleted records back if nothing were noted of this one. Waits for the disk, and so is called
        with no lock held. Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        future.take_over(current)
        try:
            self._manager.note(future)
        except OSError as error:
            doing = f"checkpoints of {future.topic_partition}"
            raise future.environment.storage_error(error, doing) from error

    def promote(self, key: TopicPartition, current: PartitionLog) -> PartitionLog:
        """The future log is the current one from now on, and its name is on disk with its `flush`.

        The caller holds the partition's lock, so that nobody deletes it meanwhile, has called
        `prepare`, has copied everything, and lets `LogManager.discard` take the old one away after
        that flush: with both names lost nothing would be found. Raises KafkaError
        KAFKA_STORAGE_ERROR with nothing changed if the future log cannot get its name, or has gone:
        its directory failed meanwhile.
        """
        manager = self._manager
        future = self._logs.get(key)
        if future is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{key} has no future log any more")
        path = future.directory.with_name(partition_dir_name(key))
        assert path.parent != current.directory.parent, "a replica moves to another directory"
        with current.lock, future.lock:
            assert future.log_end_offset == current.log_end_offset, "the copy is not complete"
            future.take_over(current)
            try:
                files.replace(future.directory, path)
            except OSError as error:
                raise future.environment.storage_error(error, f"renaming to {path}") from error
            future.change_directory(path)
            del self._logs[key]
            manager.put(future)
        logger.info("replica moved partition=%s log_dir=%s", key, path.parent)
        return future

    def take_from(self, directory: Path) -> list[PartitionLog]:
        """Moves into a directory end, as its disk failed; its logs are for the caller to close."""
        gone = [log for log in self.all() if log.directory.parent == directory]
        for log in gone:
            del self._logs[log.topic_partition]
        return gone

    def close(self, directory: Path) -> None:
        """Let the files in a directory go; the moves continue after the next start."""
        for log in self.take_from(directory):
            _close(log)

    def _take_found(self, key: TopicPartition) -> Path | None:
        return self._claimed.pop(key, None) or self.found.pop(key, None)

    def _close_and_remove(self, log: PartitionLog) -> None:
        _close(log, is_kept=False)
        self._remove_at_once(log.topic_partition, log.directory)

    def _remove(self, key: TopicPartition, path: Path) -> None:
        self._manager.later(path.parent, 0, partial(self._remove_at_once, key, path))

    def _remove_at_once(self, key: TopicPartition, path: Path) -> None:
        with suppress(KafkaError):  # an offline directory is left as it is
            self._manager.online_dir(path.parent).remove_log(key, path)


def _is_of(path: Path, topic_id: bytes) -> bool:
    """A move that was just begun may not have written whose log it is."""
    try:
        return topic_id_of(path) in (None, topic_id)
    except KafkaError:
        return False


def _close(log: PartitionLog, *, is_kept: bool = True) -> None:
    try:
        log.close(is_kept=is_kept)
    except KafkaError as error:
        logger.warning("closing a future log failed partition=%s error=%s", log.directory, error)
