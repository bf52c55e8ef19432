"""The threads of storage: who syncs for those that wait, who works in the background of a
directory, who cleans.

While a directory hangs (`Disks.hang`) they wait for it, and nobody else does. What other threads
write or sync there themselves does not hang: a turn of theirs is one instant here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.cleaning.cleaner import LogCleaner
from storage.dir_checkpoints import DirCheckpoints, L
from storage.log.partition_log import PartitionLog
from tests.sim.world import SimTimer
from wire.errors import KafkaError

if TYPE_CHECKING:
    from tests.sim.node import SimNode


class SimFlusher:
    """The log flusher's thread: syncs a little later, many waiters with one sync."""

    def __init__(self, node: SimNode, directory: Path) -> None:
        self._node = node
        self._directory = directory
        self._waiting: dict[PartitionLog, list[Callable[[Any], object]]] = {}

    def flush_async(self, log: PartitionLog, callback: Callable[[Any], object]) -> None:
        is_first = log not in self._waiting
        self._waiting.setdefault(log, []).append(callback)
        if is_first:
            node = self._node
            delay_ms = node.world.between(1, 10)
            if node.world.chance(node.options.slow_sync):
                delay_ms = node.world.between(50, 400)
            self._later(delay_ms, log)

    def _later(self, delay_ms: int, log: PartitionLog) -> None:
        node, incarnation = self._node, self._node.incarnation
        node.world.after(delay_ms, lambda: node.do(lambda: self._begin(log), incarnation))

    def _begin(self, log: PartitionLog) -> None:
        hang_ms = self._node.cluster.disks.hangs_for_ms(self._directory)
        if hang_ms:
            self._later(hang_ms, log)
        else:
            self._flush(log)

    def _flush(self, log: PartitionLog) -> None:
        error = None
        callbacks = self._waiting.pop(log)
        try:
            log.flush()
        except KafkaError as failure:
            error = failure
        for callback in callbacks:
            callback(error)

    def shutdown(self) -> None:
        for log in list(self._waiting):
            self._flush(log)


class DirWorker(SimTimer):
    """The timer of a directory's worker."""

    def __init__(self, node: SimNode, directory: Path) -> None:
        super().__init__(node, node.incarnation)
        self._disks = node.cluster.disks
        self._directory = directory

    def _work(self) -> None:
        hang_ms = self._disks.hangs_for_ms(self._directory)
        if hang_ms:
            self._actor.plan(self._host.world.ms + hang_ms)
        else:
            super()._work()


def stall_while_noting(node: SimNode, checkpoints: DirCheckpoints) -> None:
    """Who writes down what logs say may stand still once it has looked at them."""
    real, incarnation = checkpoints.note, node.incarnation

    def looked_at(logs: Iterable[L]) -> Iterator[L]:
        yield from logs
        if node.world.chance(node.options.stalled_note) and not node.is_stopping:
            node.stand_still(incarnation, 300)

    def note(kind: str, logs: Iterable[L], offset_of: Callable[[L], int | None]) -> None:
        real(kind, looked_at(logs), offset_of)
        node.cluster.check.compare_noted(node)

    checkpoints.note = note  # type: ignore[method-assign, assignment]


class SimCleaner:
    """The cleaner's thread: cleans one log, and looks again. In the middle of a cleaning it may
    stand still, and everything else go on."""

    def __init__(self, node: SimNode, cleaner: LogCleaner) -> None:
        self._node = node
        self._incarnation = node.incarnation
        self._cleaner = cleaner
        cleaner.start = self._later  # type: ignore[method-assign]
        cleaner._pace.spend = self._spend  # type: ignore[method-assign]

    def _later(self) -> None:
        node, every_ms = self._node, self._node.options.clean_every_ms
        if every_ms:
            delay_ms = node.world.between(1, 2 * every_ms)
            node.world.after(delay_ms, lambda: node.do(self._turn, self._incarnation))

    def _turn(self) -> None:
        if not self._cleaner._is_stopping:
            self._later()
            self._cleaner.clean_filthiest()

    def _spend(self, _count: int) -> None:
        if self._node.world.chance(0.005):
            self._node.stand_still(self._incarnation, 150)
