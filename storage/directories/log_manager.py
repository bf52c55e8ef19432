"""All logs of this node: opened at start, given out, looked after in the background, closed.

One LogManager owns the log directories. At start it reads and deletes each directory's clean
shutdown marker *before* it loads anything (S-7), opens every partition's log, recovering where the
stop was not clean, and removes what earlier deletions left. New partitions go to the directory with
the fewest. At shutdown everything is flushed and closed, checkpoints are written, and the marker
last, only where every log was loaded and closed without an error.

In the background each directory's worker looks after its logs (`storage.directories.upkeep`), and
another one there compacts them (`storage.cleaning.cleaner`).

A directory whose disk fails goes offline for good and alone; the others go on (B-7), also while it
hangs: its failure is reported by a thread that waits for no disk. A full disk is no failure:
checkpoints then get the directory's reserve, appends are refused until there is room again, and
reads never stop (S-16).

Locks: `creation_lock` serialises opening and deleting logs; `_lock` guards the map and is held for
map operations only. A log's own lock may be held when a directory's checkpoint lock is taken, never
the other way round.

The directory of `__cluster_metadata` is not ours: the quorum opens that log itself.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from storage.cleaning.cleaner import CleanerConfig, LogCleaner
from storage.config import (
    LONG_MAX,
    STOP_WAIT_S,
    Clock,
    LogConfig,
    LogManagerConfig,
    ProducerStateConfig,
    Scheduler,
)
from storage.directories.copies import Copies, topic_id_of
from storage.directories.each_dir import run_for_each
from storage.directories.flusher import FlushCallback
from storage.directories.future_logs import FutureLogs
from storage.directories.log_dir import LogDir, remove_tree
from storage.directories.log_dirs import (
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    partition_dir_name,
    renamed_dir_name,
)
from storage.directories.upkeep import Upkeep
from storage.log.partition_log import PartitionLog
from storage.open_files import OpenFileCache, descriptor_budget
from storage.segments.segment import CorruptSegment
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition

logger = logging.getLogger(__name__)

REMOVAL = "log-removal"


class LogManager:
    """See the module. Public methods may be called from any thread."""

    def __init__(
        self,
        dirs: Mapping[Path, bytes],
        default_config: LogConfig,
        clock: Clock,
        scheduler: Scheduler | None,
        on_dir_failure: Callable[[Path, OSError], None],
        config: LogManagerConfig | None = None,
        *,
        failed: Mapping[Path, OSError] | None = None,
        cleaner_config: CleanerConfig | None = None,
        workers: Mapping[Path, Scheduler] | None = None,
        run_urgently: Callable[[str, Callable[[], None]], object] | None = None,
    ) -> None:
        """`dirs` maps log directories to their ids, as `prepare_log_dirs` returned them; `failed`
        holds those that did not answer then. `workers` gives each directory a thread of its own,
        and `run_urgently` runs the report of a failed one on a thread that nothing holds up; all
        that is not given is left to `scheduler`."""
        self.default_config = default_config
        self.config = config or LogManagerConfig()
        self.producers = ProducerStateConfig(
            self.config.producer_id_expiration_ms,
            self.config.transaction_partition_verification_enable,
        )
        """Shared by all logs."""
        self.offline_dirs: set[Path] = set(failed or ())
        self.log_dirs: list[Path] = [*dirs, *(failed or ())]
        self.cordoned_dirs: frozenset[Path] = frozenset()
        """They keep the replicas they have and take no new ones (KIP-1066)."""
        self.previous_broker_epoch = -1
        """Broker epoch of the last stop if it was clean in every directory, else -1 (B-3)."""
        self._clock = clock
        self._workers = dict.fromkeys(dirs, scheduler) if workers is None else workers
        assert all(path in self._workers for path in dirs), "a directory has no worker"
        self._run_urgently = run_urgently or partial(_run_once, scheduler)
        self._on_dir_failure = on_dir_failure
        self._open_files = OpenFileCache(descriptor_budget())
        self._lock = threading.Lock()
        self.creation_lock = threading.Lock()
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self.cleaner = LogCleaner(self.all_logs, clock, cleaner_config, dirs)
        self.future_logs = FutureLogs(self)
        self.copies = Copies()
        self._dirs = {path: self._make_dir(path, uuid) for path, uuid in dirs.items()}
        self.upkeep = Upkeep(self._dirs, self.all_logs, clock)

    def _make_dir(self, path: Path, directory_id: bytes) -> LogDir:
        return LogDir(
            path,
            directory_id,
            clock=self._clock,
            open_files=self._open_files,
            scheduler=self._workers[path],
            on_failure=self._dir_failed,
            on_log_start_moved=self._log_start_moved,
            producers=self.producers,
        )

    # -- start -----------------------------------------------------------------------------------

    def startup(self, configs: Callable[[str], LogConfig]) -> None:
        """Open every log in every directory; `configs` gives a topic's config.

        A directory that fails goes offline; nothing is raised for it.
        """
        stops: dict[LogDir, int | None] = {}
        found: dict[LogDir, list[tuple[TopicPartition, Path]]] = {}
        for log_dir in self._dirs.values():
            try:
                stops[log_dir] = log_dir.take_clean_marker()
                found[log_dir] = self._read_dir(log_dir)
            except OSError as error:
                log_dir.environment.fail(error)
        self.copies.find(found)
        for log_dir, partitions in found.items():
            try:
                self._load_dir(log_dir, partitions, configs, is_clean=stops[log_dir] is not None)
            except OSError as error:
                log_dir.environment.fail(error)
        epochs = {stops[log_dir] if log_dir.is_online else None for log_dir in self._dirs.values()}
        epoch = epochs.pop() if len(epochs) == 1 else None
        if epoch is not None and not self.offline_dirs:
            self.previous_broker_epoch = epoch

    def _read_dir(self, log_dir: LogDir) -> list[tuple[TopicPartition, Path]]:
        """Its partitions; what is on its way here is noted, what was deleted goes."""
        log_dir.restore_reserve()
        log_dir.checkpoints.read()
        for key, path in log_dir.find_futures():
            logger.info("replica was on its way here partition=%s path=%s", key, path)
            self.future_logs.found[key] = path
        partitions, deleted = log_dir.find_partitions()
        for path in deleted:
            log_dir.later(REMOVAL, 0, partial(remove_tree, path))
        return partitions

    def _load_dir(
        self,
        log_dir: LogDir,
        partitions: Sequence[tuple[TopicPartition, Path]],
        configs: Callable[[str], LogConfig],
        *,
        is_clean: bool,
    ) -> None:
        started_ms = self._clock.now_ms()
        ends = dict.fromkeys((key for key, _ in partitions), LONG_MAX)
        count = 0
        for key, path in partitions:
            if key in self.copies:
                continue
            try:
                log = log_dir.load_log(key, configs(key.topic), is_clean)
            except (KafkaError, ValueError, CorruptSegment) as error:
                logger.error("cannot open log path=%s error=%s", path, error)
                log_dir.failed_partitions.add(key)
                continue
            ends[key] = log.log_end_offset
            self._logs[key] = log
            count += 1
        log_dir.trim_checkpoints(ends)
        logger.info(
            "loaded logs log_dir=%s count=%s clean=%s ms=%s",
            log_dir.path,
            count,
            is_clean,
            self._clock.now_ms() - started_ms,
        )

    def start_background(self) -> None:
        """Begin the periodic work of each directory; needs its worker."""
        self.upkeep.start(self.config, self._workers)
        self.cleaner.start()

    # -- logs ------------------------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """The log of a partition, None if there is none here or its directory is offline."""
        return self._logs.get(topic_partition)

    def all_logs(self) -> list[PartitionLog]:
        """All logs in directories that are online."""
        with self._lock:
            return list(self._logs.values())

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        config: LogConfig,
        directory: Path | None = None,
    ) -> PartitionLog:
        """The log of a partition, made if there is none, in `directory` or where there are fewest
        and the disk takes it.

        Raises KafkaError: INVALID_TOPIC_EXCEPTION for a name that cannot be a directory,
        INCONSISTENT_TOPIC_ID if the log is another topic's, KAFKA_STORAGE_ERROR if no directory can
        take it, or the one asked for is offline.
        """
        topic_partition = TopicPartition(*topic_partition)
        with self.creation_lock:
            log = self._logs.get(topic_partition)
            if log is None:
                log = self._create(topic_partition, topic_id, config, directory)
            elif topic_id is not None and log.topic_id is not None and log.topic_id != topic_id:
                raise KafkaError(
                    ErrorCode.INCONSISTENT_TOPIC_ID, f"{topic_partition} has another topic id"
                )
            return log

    def _create(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        config: LogConfig,
        directory: Path | None,
    ) -> PartitionLog:
        try:
            name = partition_dir_name(topic_partition)
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)) from None
        if directory is None:
            choices = self._choose_dirs(topic_partition, name, topic_id)
        else:
            choices = [self.online_dir(directory)]
        for log_dir in choices:
            try:
                log = self._create_in(log_dir, name, topic_partition, topic_id, config)
                break
            except KafkaError as error:
                if error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                failure = error
        else:
            raise failure
        with self._lock:
            self._logs[topic_partition] = log
        log_dir.failed_partitions.discard(topic_partition)
        logger.info("created log partition=%s log_dir=%s", topic_partition, log_dir.path)
        return log

    def _create_in(
        self,
        log_dir: LogDir,
        name: str,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        config: LogConfig,
    ) -> PartitionLog:
        log_dir.environment.check_writable()
        try:
            if not (log_dir.path / name).exists():
                log_dir.checkpoints.forget(topic_partition)
                log_dir.checkpoints.write()
            return log_dir.open_log(topic_partition, config, topic_id=topic_id)
        except OSError as error:
            raise log_dir.environment.storage_error(error, f"creation of {name}") from error
        except CorruptSegment as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except ValueError as error:
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, str(error)) from None

    def online_dir(self, directory: Path) -> LogDir:
        """Raises KafkaError KAFKA_STORAGE_ERROR."""
        chosen = self._dirs.get(directory)
        if chosen is None or not chosen.is_online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory} is offline")
        return chosen

    def _choose_dirs(
        self, topic_partition: TopicPartition, name: str, topic_id: bytes | None
    ) -> list[LogDir]:
        """The directories a partition may go to, those with the fewest first: a disk may turn out
        to be full or broken; where all are cordoned, any. One whose log could not be opened stays
        where it is, and one of another topic of that name is kept out of its way."""
        online = [log_dir for log_dir in self._dirs.values() if log_dir.is_online]
        if not online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "every log directory is offline")
        failed = [one for one in online if topic_partition in one.failed_partitions]
        holding = [one for one in failed if topic_id_of(one.path / name) in (None, topic_id)]
        free = [one for one in online if one not in failed]
        if holding or not free:
            return holding or online
        free = [one for one in free if one.path not in self.cordoned_dirs] or free
        if len(free) > 1:
            counts = Counter(id(log.environment) for log in self.all_logs())
            free.sort(key=lambda log_dir: counts[id(log_dir.environment)])
        return free

    def delete(self, topic_partition: TopicPartition) -> None:
        """Take a log away: renamed now, its files unlinked after file.delete.delay.ms.

        Does nothing if there is no such log. Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        self.future_logs.delete(topic_partition)
        log = self._rename_away(topic_partition, DELETE_SUFFIX)
        if log is not None:
            self._remove_later(log)

    def put(self, log: PartitionLog) -> None:
        """This is its partition's log from now on. `storage.directories.future_logs` only."""
        with self._lock:
            self._logs[log.topic_partition] = log

    def note(self, log: PartitionLog) -> None:
        """Write down now what there is to say of a log. For `future_logs` only. Raises OSError."""
        self._dir_of(log).note(log)

    def discard(self, log: PartitionLog) -> None:
        """Delete a log that another has replaced; never raises. For the mover of replicas only."""
        try:
            self._close_and_rename(log, DELETE_SUFFIX)
        except KafkaError as error:
            logger.error("deleting a log that moved failed path=%s error=%s", log.directory, error)
        else:
            self._remove_later(log)

    def _remove_later(self, log: PartitionLog) -> None:
        delay_ms = log.config.file_delete_delay_ms
        self._dir_of(log).later(REMOVAL, delay_ms, partial(remove_tree, log.directory))
        logger.info("deleted log partition=%s path=%s", log.topic_partition, log.directory)

    def mark_stray(self, topic_partition: TopicPartition) -> None:
        """Set aside a log that the cluster does not know as ours (B-8); nothing deletes it.

        Nobody waits for a sync: whoever wants it back has it checked as after a crash.
        """
        log = self._rename_away(topic_partition, STRAY_SUFFIX)
        if log is not None:
            logger.warning(
                "set stray log aside partition=%s path=%s", topic_partition, log.directory
            )

    def _rename_away(self, topic_partition: TopicPartition, suffix: str) -> PartitionLog | None:
        with self.creation_lock:
            with self._lock:
                log = self._logs.pop(topic_partition, None)
            if log is not None:
                self._close_and_rename(log, suffix)
            return log

    def _close_and_rename(self, log: PartitionLog, suffix: str) -> None:
        """Without a sync: the directory's worker does that. Should the old name come back with a
        power loss, the log's topic id tells that it is nobody's."""
        log.close(is_kept=False)
        name = renamed_dir_name(log.topic_partition, os.urandom(16), suffix)
        path = log.directory.with_name(name)
        self._dir_of(log).rename_away(log.directory, path)
        log.change_directory(path)
        self._dir_of(log).log_left(log.topic_partition)

    def _dir_of(self, log: PartitionLog) -> LogDir:
        return self._dirs[log.directory.parent]

    def update_topic_config(self, topic: str, config: LogConfig) -> None:
        """Give all logs of a topic another config."""
        for log in self.all_logs():
            if log.topic_partition.topic == topic:
                log.update_config(config)

    def flush_async(self, log: PartitionLog, callback: FlushCallback) -> None:
        """Sync a log soon, many waiters with one sync; then `callback(None or KafkaError)`."""
        self._dir_of(log).flusher.flush_async(log, callback)

    # -- directories -----------------------------------------------------------------------------

    def directory_id(self, path: Path) -> bytes:
        """The id of a log directory. Raises KeyError for one that did not answer at start."""
        return self._dirs[path].directory_id

    def directory_by_id(self, directory_id: bytes) -> Path | None:
        """The online directory with this id."""
        for log_dir in self._dirs.values():
            if log_dir.directory_id == directory_id and log_dir.is_online:
                return log_dir.path
        return None

    def dir_space(self, directory: Path) -> tuple[int, int]:
        """(total, usable) bytes of the file system a directory is on; -1 if it does not answer."""
        try:
            found = os.statvfs(directory)
        except OSError:
            return -1, -1
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def release_reserve(self, directory: Path) -> bool:
        """Give a full disk's reserve to who must still write (the metadata log); see `Reserve`."""
        log_dir = self._dirs.get(directory)
        return log_dir is not None and log_dir.release_reserve()

    def _dir_failed(self, path: Path, error: OSError) -> None:
        """Have somebody take a directory's logs away who holds no lock and waits for no disk."""
        self._run_urgently("log-dir-failure", partial(self._take_offline, path, error))

    def _take_offline(self, path: Path, error: OSError) -> None:
        """Take a directory's logs away from everyone, tell the broker, close them then (B-7)."""
        self.offline_dirs.add(path)
        with self._lock:
            environment = self._dirs[path].environment
            gone = [log for log in self._logs.values() if log.environment is environment]
            for log in gone:
                del self._logs[log.topic_partition]
        gone += self.future_logs.take_from(path)
        self._on_dir_failure(path, error)
        close = partial(_for_all, gone, "closing", PartitionLog.close)
        self._dirs[path].later("log-dir-failure-close", 0, close)

    def _log_start_moved(self, log_dir: LogDir) -> None:
        """Delete-records must survive a crash that comes before the next periodic checkpoint."""
        log_dir.soon("log-start-moved", partial(self.upkeep.checkpoint_log_start_offsets, log_dir))

    def later(self, directory: Path, delay_ms: int, job: Callable[[], object]) -> None:
        """Do something to a directory's disk on its worker. For `future_logs` only."""
        self._dirs[directory].later(REMOVAL, delay_ms, job)

    # -- shutdown --------------------------------------------------------------------------------

    def shutdown(self, broker_epoch: int = -1, patience_s: float = STOP_WAIT_S) -> None:
        """Flush and close every log, write the checkpoints, and the clean marker last (S-7).

        All directories at once. One whose disk does not answer in time is left to the next start,
        which finds no clean marker there.
        """
        self.upkeep.stop()
        self.cleaner.shutdown()
        run_for_each(
            "stop",
            {path: partial(self._stop_dir, self._dirs[path], broker_epoch) for path in self._dirs},
            patience_s,
        )
        with self._lock:
            self._logs.clear()

    def _stop_dir(self, log_dir: LogDir, broker_epoch: int) -> None:
        log_dir.flusher.shutdown()
        self.future_logs.close(log_dir.path)
        if not log_dir.is_online:
            return
        logs = self.upkeep.logs_in([log_dir])
        is_clean = _for_all(logs, "flushing", PartitionLog.flush)
        log_dir.checkpoint_recovery_points(logs)
        log_dir.checkpoint_log_starts(logs)
        log_dir.checkpoint_high_watermarks(logs)
        is_clean &= _for_all(logs, "closing", PartitionLog.close)
        if is_clean and log_dir.is_online and not log_dir.failed_partitions:
            log_dir.write_clean_marker(broker_epoch)


def _for_all(
    logs: Iterable[PartitionLog], doing: str, job: Callable[[PartitionLog], object]
) -> bool:
    """Do it to each; False if one of them failed."""
    has_failed = False
    for log in logs:
        try:
            job(log)
        except KafkaError as error:
            logger.error("%s failed partition=%s error=%s", doing, log.topic_partition, error)
            has_failed = True
    return not has_failed


def _run_once(scheduler: Scheduler | None, name: str, job: Callable[[], None]) -> None:
    if scheduler is None:
        job()
    else:
        scheduler.schedule_once(name, 0, job)
