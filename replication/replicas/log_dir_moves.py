"""Moving replicas between the log directories of this node (AlterReplicaLogDirs, KIP-113).

What: a replica that moves gets a future log in the other directory
(`storage.directories.future_logs`). It is filled from the current log, batch for batch, while that
goes on serving. When it has everything, the controller is told where the replica will be
(AssignReplicasToDirs), and once it knows, the future log takes the current one's place. Kafka:
ReplicaAlterLogDirsThread, Partition.maybeReplaceCurrentWithFutureReplica.

States of a move:

    FOUND --the mover's turn--> OPENING <-- asked for
    OPENING --its future log is there--> COPYING
    COPYING --caught up--> ASSIGNING --the controller knows--> ASSIGNED --nothing missing--> moved
       '-- another directory asked for, the replica leaves, a disk fails --> (none)

FOUND is what a stop interrupted. From COPYING on, the copy goes on in every state.

The order of the last two steps is the point of KIP-858: should the other directory fail, the
controller knows at once which replicas went with it. A move that ends after the controller was told
is taken back with another report.

What is copied: the batches, which bring leader epochs and producer state along; at the end high
watermark, log start and the leader epochs that have no record (`PartitionLog.take_over`). A current
log that is cut off cuts the future one (`follower_writes`). Retention and compaction
work on the current log only.

Threads: `alter` from any, and it waits for the disk moved to; `resume` and `cancel` from any, and
they wait for no disk; `turn` copies up to `_TURN_BYTES` and is run by the mover's thread, or a
simulator. The last bytes are copied under the partition's lock, while nothing can be appended: at
most `_REST_BYTES`, and the copy gets its name. What waits for a disk, the syncs before and after
and what is done to the old log, happens under no lock.

Locks: `_lock` guards the map and is held for nothing else, so that a disk that hangs holds up its
own moves only. Order: partition, `_lock`; partition, log. A partition is stopped before its move is
cancelled: so a move that begins meanwhile either sees that it is stopped, or is cancelled.

Gaps: one thread for all moves (num.replica.alter.log.dirs.threads); what a log still knows of
idempotent producers whose batches were deleted is not copied.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from replication.following.replication_quota import ReplicationQuota
from wire.errors import KafkaError
from wire.primitives import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

    from replication.partition.partition import Partition
    from storage.directories.log_manager import LogManager
    from storage.log.partition_log import PartitionLog
    from storage.log.results import LogAppendInfo

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_TURN_BYTES = 8 << 20
_REST_BYTES = 1 << 20
_WAIT_MS = 50
_RETRY_MS = 1_000


class Assign(Protocol):
    """`assignments.AssignmentsManager.report`."""

    def __call__(
        self,
        topic_id: bytes,
        partition_index: int,
        directory_id: bytes,
        on_known: Callable[[], object] | None = None,
    ) -> None: ...


class MoveState(Enum):
    """See the module."""

    FOUND = "found at the start"
    OPENING = "opening the future log"
    COPYING = "copying"
    ASSIGNING = "telling the controller"
    ASSIGNED = "the controller knows"


class _Move:
    __slots__ = ("_future", "directory", "key", "partition", "state")

    def __init__(self, partition: Partition, directory: Path, state: MoveState) -> None:
        self.key = partition.topic_partition
        self.partition = partition
        self.directory = directory
        self.state = state
        self._future: PartitionLog | None = None

    @property
    def future(self) -> PartitionLog:
        assert self._future is not None, f"{self.key} has no future log yet"
        return self._future

    def begin_copying(self, future: PartitionLog) -> None:
        self._future = future
        self.state = MoveState.COPYING


class LogDirMoves:
    """All moves of this node; see the module."""

    def __init__(
        self,
        log_manager: LogManager,
        node_id: int,
        assign: Assign,
        run_later: Callable[[int, Callable[[], object]], object],
        quota: ReplicationQuota,
        on_moved: Callable[[Partition], object],
    ) -> None:
        """`run_later(delay_ms, job)`: on the mover's thread. `on_moved` is called with no lock held
        after a partition's log was replaced."""
        self.quota = quota
        self._lock = threading.Lock()
        self._manager = log_manager
        self._node_id = node_id
        self._assign = assign
        self._run_later = run_later
        self._on_moved = on_moved
        self._moves: dict[TopicPartition, _Move] = {}
        self._is_planned = False
        self._is_stopped = False

    @property
    def count(self) -> int:
        return len(self._moves)

    def state(self, key: TopicPartition) -> MoveState | None:
        """For tests and diagnosis."""
        move = self._moves.get(key)
        return None if move is None else move.state

    # ------------------------------------------------------------------ beginning and ending

    def alter(self, partition: Partition, directory: Path) -> None:
        """Have the replica in `directory`; where it is already, a move elsewhere ends.

        Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        move = _Move(partition, directory, MoveState.OPENING)
        log = partition.open_log()
        with self._lock:
            before = self._moves.get(move.key)
            if before is not None and before.directory == directory:
                return
            if log.directory.parent != directory:
                self._moves[move.key] = move
            elif before is not None:
                del self._moves[move.key]
        if before is not None and not self._end(before):
            self._forget(move)
            self.alter(partition, directory)  # it is elsewhere since
            return
        if log.directory.parent != directory:
            self._open(move)
            self._plan(0)

    def resume(self, partition: Partition, directory: Path) -> None:
        """Go on with what a stop interrupted, of which `directory` has the future log."""
        with self._lock:
            key = partition.topic_partition
            self._moves.setdefault(key, _Move(partition, directory, MoveState.FOUND))
        self._plan(0)

    def destination(self, key: TopicPartition) -> Path | None:
        """The directory a replica is on its way to, None if it does not move."""
        move = self._moves.get(key)
        return None if move is None else move.directory

    def cancel(self, key: TopicPartition) -> None:
        """The replica, which is stopped, moves no more."""
        with self._lock:
            move = self._moves.pop(key, None)
        if move is not None:
            self._end(move)

    def _open(self, move: _Move) -> None:
        """Give the move its future log. Raises KafkaError; it is over then."""
        key, partition = move.key, move.partition
        futures = self._manager.future_logs
        try:
            log = partition.open_log()
            future = futures.create(key, partition.topic_id, log.config, move.directory)
        except KafkaError as error:
            logger.error("move not begun partition=%s-%s error=%s", *key, error)
            self._forget(move)
            raise
        with partition.lock, self._lock:
            is_wanted = partition.log is not None and self._is_current(move)
            if is_wanted:
                partition.future_log = future
                move.begin_copying(future)
        if not is_wanted:
            self._forget(move)
            futures.drop(future)
            return
        logger.info("moving replica partition=%s-%s from=%s to=%s",
                    *key, log.directory.parent, move.directory)  # fmt: skip

    def _end(self, move: _Move) -> bool:
        """A move that is not in the map any more leaves nothing behind; False if the replica has
        moved already."""
        partition, key = move.partition, move.key
        if move.state is MoveState.FOUND:
            self._manager.future_logs.delete(key)
        if move.state in (MoveState.FOUND, MoveState.OPENING):
            return True  # who opens it sees that it is over
        with partition.lock:
            if partition.future_log is not move.future:
                return False
            partition.future_log = None
        self._manager.future_logs.drop(move.future)
        log = partition.log
        if move.state is not MoveState.COPYING and log is not None:
            actual = self._manager.directory_id(log.directory.parent)
            self._assign(partition.topic_id, key.partition_index, actual)
        logger.info("move ended partition=%s-%s state=%s", *key, move.state.name)
        return True

    def _forget(self, move: _Move) -> bool:
        """Take a move out of the map; False if it was over already."""
        with self._lock:
            is_current = self._is_current(move)
            if is_current:
                del self._moves[move.key]
            return is_current

    def shutdown(self) -> None:
        """Copy nothing more; the moves go on after the next start."""
        self._is_stopped = True

    # ------------------------------------------------------------------ copying

    def _plan(self, delay_ms: int) -> None:
        if not self._is_planned and not self._is_stopped:
            self._is_planned = True
            self._run_later(delay_ms, self._run)

    def _run(self) -> None:
        self._is_planned = False
        delay_ms = self.turn()
        if delay_ms is not None:
            self._plan(delay_ms)

    def turn(self) -> int | None:
        """One bounded piece of work; ms until there may be more, None if nothing moves."""
        delay_ms: int | None = None
        for move in list(self._moves.values()):
            if self._is_stopped:
                return None
            try:
                wait_ms = self._step(move)
            except KafkaError as error:
                wait_ms = self._failed(move, error)
            if wait_ms is not None and (delay_ms is None or wait_ms < delay_ms):
                delay_ms = wait_ms
        return delay_ms

    def _failed(self, move: _Move, error: KafkaError) -> int | None:
        if not self._is_current(move):
            return None
        futures = self._manager.future_logs
        if futures.get(move.key) is not move.future or move.future.is_offline:
            logger.error("move failed partition=%s-%s error=%s", *move.key, error)
            if self._forget(move):
                self._end(move)
            return None
        logger.warning("move is delayed partition=%s-%s error=%s", *move.key, error)
        return _RETRY_MS

    def _is_current(self, move: _Move) -> bool:
        return self._moves.get(move.key) is move

    def _step(self, move: _Move) -> int | None:
        """Copy; when there is nothing left to copy, go on to the next state."""
        partition = move.partition
        if move.state is MoveState.OPENING:
            return _WAIT_MS
        if partition.log is None:
            self._release(move)
            return None
        if move.state is MoveState.FOUND:
            move.state = MoveState.OPENING
            self._open(move)
            return 0
        move.future.environment.check_online()
        if self.quota.is_exceeded():
            return _RETRY_MS
        left = _TURN_BYTES
        while left > 0:
            copied = self._copy(move)
            if copied == 0:
                return self._caught_up(move)
            left -= copied
        return 0

    def _release(self, move: _Move) -> None:
        """The current log's directory failed: what was copied stays until the next start."""
        if self._forget(move):
            self._manager.future_logs.release(move.key)

    def _copy(self, move: _Move) -> int:
        """Copy the next piece; its size, 0 at the end of the current log. Raises KafkaError."""
        partition = move.partition
        current = partition.open_log()
        seen = current.truncations
        data = self._read(current, move.future)
        if not data:
            return 0
        with partition.lock:
            if partition.log is not current or current.truncations != seen:
                return len(data)  # cut off meanwhile: what was read may not be there any more
            size = self._append(move.future, data, current).size
        if self.quota.is_set:
            self.quota.record(size)
        return size

    @staticmethod
    def _append(future: PartitionLog, data: bytes, current: PartitionLog) -> LogAppendInfo:
        """Waits for no sync of the disk: the partition is locked."""
        return future.append_as_follower(data, current.latest_epoch, is_copy=True)

    def _read(self, current: PartitionLog, future: PartitionLog) -> bytes:
        offset = future.log_end_offset
        begins = not future.size and offset < current.log_start_offset
        if begins or not current.segments.items[0].base_offset <= offset <= current.log_end_offset:
            offset = current.log_start_offset
            future.truncate_fully_and_start_at(offset)
        return current.read_bytes(offset, _READ_BYTES, current.log_end_offset)

    # ------------------------------------------------------------------ changing over

    def _caught_up(self, move: _Move) -> int | None:
        if move.state in (MoveState.COPYING, MoveState.ASSIGNING):
            # Again and again: a report of where the replica still is may take this one's place.
            self._tell_controller(move)
        if move.state is not MoveState.ASSIGNED:
            return _WAIT_MS
        old = self._change_over(move)
        if old is None:
            return _WAIT_MS
        self._on_moved(move.partition)
        self._take_away(old, move.future)
        return None

    def _tell_controller(self, move: _Move) -> None:
        partition = move.partition
        directory_id = self._manager.directory_id(move.future.directory.parent)
        registration = partition.registration
        if registration is not None and registration.directory(self._node_id) == directory_id:
            move.state = MoveState.ASSIGNED
            return
        move.state = MoveState.ASSIGNING

        def note() -> None:
            move.state = MoveState.ASSIGNED

        self._assign(partition.topic_id, move.key.partition_index, directory_id, note)

    def _change_over(self, move: _Move) -> PartitionLog | None:
        """Copy the rest while nothing is appended, and serve from the copy; returns the old log,
        None: not yet."""
        partition, future = move.partition, move.future
        futures = self._manager.future_logs
        future.flush()
        prepared = partition.open_log()
        futures.prepare(future, prepared)
        with partition.lock:
            current = partition.log
            if current is not prepared or partition.is_electing or not self._is_current(move):
                return None
            if future.log_start_offset != current.log_start_offset:
                return None  # what is deleted stays deleted
            end_offset = current.log_end_offset
            rest = current.readable_bytes(future.log_end_offset, end_offset)
            if rest > _REST_BYTES or partition.waits_for_flush(end_offset):
                return None
            while future.log_end_offset < end_offset:
                self._append(future, self._read(current, future), current)
            if future.flushed_offset < current.flushed_offset:
                return None  # what was on disk stays on disk
            futures.promote(move.key, current)
            partition.replace_log(future)
            self._forget(move)
        return current

    def _take_away(self, old: PartitionLog, log: PartitionLog) -> None:
        """The log that `log` has replaced goes, once the name of that is on disk; it is tried again
        while there is no descriptor to sync it with. Where the disk failed both stay."""
        try:
            log.flush()
        except KafkaError as error:
            logger.warning("the log of before stays path=%s error=%s", old.directory, error)
            if not log.is_offline:
                self._run_later(_RETRY_MS, partial(self._take_away, old, log))
            return
        self._manager.discard(old)
