"""A seeded program of operations on the logs of a node's storage, on a disk that fails under them.

A program is some lives of one node with two log directories: a start, operations of all kinds on a
few partitions, and an end, clean or not, with or without the machine's power. In any operation, the
start and the stop included, a call of a file may fail or be the process's last
(`tests.storage.faults.disk`). What each partition must then hold is in
`tests.storage.faults.model`, what else must be true in `tests.storage.faults.checks`.

One thread; time is virtual, and background work is done when it is due.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from storage.cleaning.cleaner import CleanerConfig
from storage.config import LogConfig, LogManagerConfig
from storage.directories import log_manager
from storage.directories.log_dirs import DELETE_SUFFIX
from storage.directories.log_manager import LogManager
from storage.log.partition_log import PartitionLog
from tests.sim.world import Alarms, InvariantBroken, Killed, NodeClock, World
from tests.storage.faults import checks
from tests.storage.faults.disk import CRASH, KINDS, SHORT, Fault, FaultyDisk
from tests.storage.faults.model import Content, Possible, Replica
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition

LIVES = (2, 4)
OPERATIONS = (6, 22)
FAULT_CHANCE = 0.3
KEYS = (
    TopicPartition("plain", 0), TopicPartition("plain", 1),
    TopicPartition("table", 0), TopicPartition("t-1", 0),
)  # fmt: skip
_PLAIN = LogConfig(
    segment_bytes=900, index_interval_bytes=180, segment_index_bytes=96, file_delete_delay_ms=500,
    retention_ms=20_000,
)  # fmt: skip
_TABLE = LogConfig(
    cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, segment_bytes=900,
    index_interval_bytes=180, file_delete_delay_ms=500, delete_retention_ms=500,
)  # fmt: skip


def config_of(topic: str) -> LogConfig:
    return _TABLE if topic == "table" else _PLAIN


class ProcessDied(Exception):
    """Of the node; its program goes on with another life."""


class DueJobs:
    """storage's Scheduler: jobs wait in the world's queue; one that fails is logged, as there."""

    def __init__(self, world: World) -> None:
        self._world = world

    def schedule_once(self, name: str, delay_ms: int, fn: Callable[[], object]) -> Any:
        self._world.after(delay_ms, partial(self._run, name, fn))

    def schedule(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("periodic jobs are operations of the program")

    def _run(self, name: str, fn: Callable[[], object]) -> None:
        try:
            fn()
        except OSError as error:
            self._world.tell(f"     job {name} failed: {error}")
        except Exception as error:
            raise InvariantBroken(f"NoUnexpectedError: job {name}: {error!r}") from error


class Node:
    """Storage that is started, used and stopped under faults; and the model of what is in it."""

    def __init__(self, seed: int, root: Path, *, tells_logs: bool = False) -> None:
        self.world = World(seed)
        self.disk = FaultyDisk(self.world, root)
        self.clock = NodeClock(self.world, disagrees=False)
        self.root = root
        self.dirs = [root / "one", root / "two"]
        for directory in self.dirs:
            directory.mkdir()
        self.replicas: dict[TopicPartition, Replica] = {}
        self.gone: dict[bytes, TopicPartition] = {}
        """Topics that were deleted, by their ids."""
        self.fault: Fault | None = None
        self.operations = 0
        self.faults_struck = 0
        self.written = 0
        self.manager: LogManager
        self.lost_power = False
        self.is_clean = dict.fromkeys(self.dirs, False)
        self.stop_was_struck = False
        self.jobs_wait = False
        """What the last operation left to the background is not done yet."""
        self._topics = 0
        self._alarms = Alarms(self.world, is_told=tells_logs)

    # --- faults ---------------------------------------------------------------------------------

    @contextmanager
    def faults(self, chance: float = FAULT_CHANCE, reach: int = 8) -> Iterator[None]:
        """Something may go wrong with the disk, at one of about `reach` calls."""
        world = self.world
        self.fault = None
        if world.chance(chance):
            kind = world.random.choice(KINDS)
            times = 1 if kind in (CRASH, SHORT) else world.random.choice((1, 1, 2, 1_000))
            self.fault = Fault(kind, world.between(0, world.random.choice((3, reach))), times)
        self.disk.fault = self.fault
        try:
            yield
        except Killed:
            self.die()
            raise ProcessDied from None
        finally:
            self.disk.fault = None
            if self.fault is not None and self.fault.has_struck:
                self.faults_struck += 1
                world.tell(f"     {self.fault}")

    @property
    def has_struck(self) -> bool:
        return self.fault is not None and bool(self.fault.has_struck)

    def attempt(self, what: Callable[[], Any]) -> tuple[bool, Any]:
        """Do it, and mostly what falls due with it, under a fault; (did it work, its result).

        KAFKA_STORAGE_ERROR is what a fault may make of it, and nothing else.
        """
        self.operations += 1
        with self.faults():
            try:
                result = what()
            except KafkaError as error:
                self.world.tell(f"     {error.code.name}: {error}")
                if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                    raise InvariantBroken(f"NoUnexpectedError: {error!r}") from error
                worked, result = False, None
            except (Killed, InvariantBroken):
                raise
            except Exception as error:
                raise InvariantBroken(f"NoUnexpectedError: {error!r}") from error
            else:
                worked = True
            self.jobs_wait = self.world.chance(0.2)  # for ever, if the process dies first
            if not self.jobs_wait:
                self.world.run_until(self.world.ms)
        self._check_refusal(worked)
        return worked, result

    def _check_refusal(self, worked: bool) -> None:
        """StorageErrorHasACause: who refuses had a fault now, or is offline or full."""
        if worked or self.has_struck:
            return
        if all(d.environment.is_writable for d in self.manager._dirs.values()):
            raise InvariantBroken("StorageErrorHasACause: nothing was wrong with the disk")

    def is_offline(self, directory: Path) -> bool:
        return not self.manager._dirs[directory].is_online

    # --- a life ---------------------------------------------------------------------------------

    def live(self, operate: Callable[[Node], None]) -> None:
        """Start, do something, and end; then look at what is left."""
        world = self.world
        try:
            self._start(chance=0.25)
            for _ in range(world.between(*OPERATIONS)):
                world.run_until(world.ms + world.random.choice((0, 1, 100, 1_000)))
                operate(self)
            if world.chance(0.5):
                self._stop()
            else:
                world.tell("kill")
                self.die()
        except ProcessDied:
            world.tell("the process died")
        # What a failed sync did not write is in nobody's memory once the cache has let it go; a
        # later process that syncs the file again would be told that all is well, as by Linux.
        if self.disk.has_lost or world.chance(0.4):
            world.tell("power loss")
            self.lost_power = True
            self.disk.strike(self.root)

    def end(self) -> None:
        """Look once more, without faults, twice: a clean stop must leave all as it was."""
        self._start(chance=0)
        self._stop(chance=0)
        if not all(self.is_clean.values()):
            raise InvariantBroken("CleanStop: nothing went wrong, but the stop was not clean")
        self._start(chance=0)
        self._stop(chance=0)
        left = self.disk.open_below_root()
        if left:
            raise InvariantBroken(f"NoDescriptorLeaks: {left}")

    def die(self) -> None:
        """The process is gone: its descriptors close, its jobs are dropped."""
        self.is_clean = dict.fromkeys(self.dirs, False)
        self._close_process()

    def _close_process(self) -> None:
        self.world._queue.clear()
        self.disk.is_dead = True
        if hasattr(self, "manager"):
            del self.manager
        gc.collect()
        self.disk.is_dead = False

    def _start(self, chance: float) -> None:
        """Start, then compare what is there with the model. Raises ProcessDied."""
        world = self.world
        was_clean = dict(self.is_clean)
        self.is_clean = dict.fromkeys(self.dirs, False)
        with self.faults(chance, reach=40):
            world.tell("start")
            self._make_manager()
            self.manager.startup(config_of)
            world.run_until(world.ms)
            offline = [d for d in self.dirs if self.is_offline(d)]
            broken = [d for d in self.manager._dirs.values() if d.failed_partitions]
            if self.has_struck and (offline or broken):
                world.tell("     the start failed, once more")
                self.die()
                raise ProcessDied
            has_struck = self.has_struck
        self._settle_copies()
        for replica in list(self.replicas.values()):
            self._recognise(replica, was_clean=was_clean[replica.directory])
        self._set_strays_aside()
        world.run_until(world.ms + 1)
        self._check_directories(may_leave=has_struck)
        self.lost_power = False

    def _make_manager(self) -> None:
        world = self.world
        jobs = DueJobs(world)
        self.manager = LogManager(
            {path: path.name.ljust(16).encode() for path in self.dirs},
            LogConfig(),
            self.clock,
            jobs,
            lambda path, error: world.tell(f"     {path.name} is offline: {error}"),
            LogManagerConfig(transaction_partition_verification_enable=False),
            cleaner_config=CleanerConfig(log_cleaner_dedupe_buffer_size=1 << 16),
        )
        self.manager._open_files.limit = world.random.choice((4, 4, 1_000))

    def _stop(self, chance: float = FAULT_CHANCE) -> None:
        self.world.tell("stop")
        with self.faults(chance, reach=30):
            self.manager.shutdown(7)
        if not self.has_struck and all(d.is_online for d in self.manager._dirs.values()):
            gc.collect()
            # What retention deleted is read until it is unlinked, some time after.
            still_open = [path for path in self.disk.open_below_root() if ".deleted" not in path]
            if still_open:
                raise InvariantBroken(f"NoDescriptorLeaks: a stop leaves {still_open}")
        self.stop_was_struck = bool(self.has_struck)
        for directory, log_dir in self.manager._dirs.items():
            self.is_clean[directory] = log_dir.clean_shutdown.exists()
        for replica in self.replicas.values():
            if self.is_clean[replica.directory] and not replica.may_be_gone:
                replica.flushed = replica.content.end
        self._close_process()

    # --- after a start --------------------------------------------------------------------------

    def _settle_copies(self) -> None:
        """As metadata does it: the copy in the directory it knows is the right one."""
        for key in self.manager.copies:
            replica = self.replicas.get(key)
            topic_id = replica and replica.topic_id
            where = self.manager.copies.settle(key, topic_id, replica and replica.directory)
            if where is not None and replica is not None:
                self.manager.get_or_create(key, topic_id, config_of(key.topic), where)

    def _recognise(self, replica: Replica, *, was_clean: bool) -> None:
        """The log is there and holds what it must; from now on it holds what was found."""
        key = replica.key
        log = self.manager.get(key)
        # A crash may come before the id is written; who asks for the log writes it then.
        ids = (replica.topic_id,) if replica.may_be_gone else (replica.topic_id, None)
        if log is None or log.topic_id not in ids:
            if not replica.may_be_gone:
                raise InvariantBroken(f"NothingIsLost: there is no log of {key}")
            del self.replicas[key]
            self.gone[replica.topic_id] = key
            return
        found = checks.content_of(log)
        starts = [one.content.start for one in replica.possible]
        replica.deleted_to = max(replica.deleted_to, *starts)
        checks.check_log(log, found, deleted_to=replica.deleted_to)
        self._check_content(replica, log, found)
        # Everything was synced, but a stop that could not note it leaves an earlier point.
        is_behind = self.stop_was_struck and log.flushed_offset < log.log_end_offset
        if was_clean and log.flushed_offset != log.log_end_offset and not is_behind:
            raise InvariantBroken(f"CleanStop: {key} has recovery point {log.flushed_offset}")
        replica.directory = log.directory.parent
        replica.may_be_gone = False
        content = self._explained(replica, found)
        replica.settle(content)
        replica.flushed = log.flushed_offset
        replica.high_watermark = log.high_watermark
        replica.noted_start = min(replica.noted_start, found.start)
        replica.epoch = max(replica.epoch, log.latest_epoch) + 1

    def _check_content(self, replica: Replica, log: PartitionLog, found: Content) -> None:
        told = f"{replica.key} found {found}, flushed {replica.flushed}, possible " + " or ".join(
            f"{one.content} from {one.min_end}" for one in replica.possible
        )
        if found.start < replica.noted_start and found.start < found.end:
            raise InvariantBroken(f"DeletedStaysDeleted: {replica.noted_start} was noted: {told}")
        limit = max(replica.high_watermark, found.start)
        if log.high_watermark > limit:
            raise InvariantBroken(f"NotedIsTrue: high watermark {log.high_watermark}, not {limit}")
        if not self.lost_power:
            if not any(
                one.explains(found, is_compacted=replica.is_compacted) for one in replica.possible
            ):
                raise InvariantBroken(f"NothingIsLost: {told}")
            return
        if not any(
            one.explains_up_to(found, replica.flushed, is_compacted=replica.is_compacted)
            for one in replica.possible
        ):
            raise InvariantBroken(f"FlushedStays: {told}")
        for batch in found.batches:
            if not replica.is_compacted and batch.identity not in replica.written:
                raise InvariantBroken(f"NothingIsInvented: {batch} in {told}")

    @staticmethod
    def _explained(replica: Replica, found: Content) -> Content:
        """What was found, with what lies below its start, or compaction has removed."""
        for one in reversed(replica.possible):
            if one.explains(found, is_compacted=replica.is_compacted):
                whole = one.content.cut(found.end)
                # A power loss may bring a record back that stood where compaction left a gap.
                more = (b for b in found.batches if b.header.base_offset >= whole.end)
                return Content(found.start, (*whole.batches, *more), found.end)
        if replica.is_compacted:
            return Content(found.start, found.batches, found.end)
        return found

    def _set_strays_aside(self) -> None:
        """Logs that metadata does not know; a deletion that a power loss undid."""
        for log in self.manager.all_logs():
            key = log.topic_partition
            replica = self.replicas.get(key)
            if replica is not None and log.topic_id in (replica.topic_id, None):
                continue
            if log.topic_id is not None and log.topic_id not in self.gone:
                raise InvariantBroken(f"NoStrangers: {key} of topic {log.topic_id!r}")
            self.world.tell(f"     {key} is stray")
            self.manager.delete(key)
        self.manager.future_logs.delete_unclaimed()

    def _check_directories(self, *, may_leave: bool) -> None:
        """NothingIsLeft: no directory of a log that is nobody's; `may_leave`: a start whose removal
        of a deleted one failed leaves it to the next start."""
        self.world.run_until(self.world.ms + 1_000)
        for directory in self.dirs:
            expected = {
                replica.key for replica in self.replicas.values() if replica.directory == directory
            }
            for path in directory.iterdir():
                left = ("-stray", DELETE_SUFFIX) if may_leave else "-stray"
                if not path.is_dir() or path.name.endswith(left):
                    continue
                if path.name not in {str(key) for key in expected}:
                    raise InvariantBroken(f"NothingIsLeft: {path}")

    def pristine_topic(self, key: TopicPartition, directory: Path) -> Replica:
        """The model of a topic that is about to be made."""
        self._topics += 1
        replica = Replica(
            key, b"topic %10d" % self._topics, directory, config_of(key.topic).is_compacted
        )
        replica.settle(Content())
        replica.may_be_gone = True
        return replica

    # --- after an operation ---------------------------------------------------------------------

    def doubt(self, replica: Replica, *outcomes: Possible) -> None:
        """An operation begins that may leave one of these in the files, should it be cut short."""
        replica.possible = [*replica.possible, *outcomes]

    def observe(self, replica: Replica, log: PartitionLog, *allowed: Possible) -> None:
        """An operation failed and the directory is online: the log must be one of these now; its
        files may still be as before."""
        found = checks.content_of(log)
        checks.check_segments(log)
        for one in allowed:
            if one.explains(found, is_compacted=replica.is_compacted):
                whole = one.content.cut(found.end)
                replica.content = Content(found.start, whole.batches, found.end)
                self.doubt(replica, Possible(replica.content, found.end))
                self.claim(replica, log)
                return
        raise InvariantBroken(
            f"AllOrNothing: {replica.key} holds {found}, not "
            + " or ".join(f"{one.content} from {one.min_end}" for one in allowed)
        )

    def claim(self, replica: Replica, log: PartitionLog) -> None:
        """What the log says is flushed must survive from now on."""
        if not log._files_behind.is_any:
            replica.flushed = log.flushed_offset
        replica.high_watermark = log.high_watermark


@contextmanager
def one_thread(node: Node) -> Iterator[None]:
    """What storage does at once in several threads is done in turn; its log is told."""

    def run_in_turn(_name: str, jobs: dict[Path, Callable[[], None]], _patience_s: float) -> None:
        for job in jobs.values():
            job()

    logger = logging.getLogger("storage")
    before = logger.propagate, logger.level
    logger.addHandler(node._alarms)
    logger.propagate = False
    logger.setLevel(node._alarms.level)
    try:
        with patch.object(log_manager, "run_for_each", run_in_turn):
            yield
    finally:
        logger.removeHandler(node._alarms)
        logger.propagate, logger.level = before
