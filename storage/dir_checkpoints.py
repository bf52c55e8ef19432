"""What one log directory has written down about the logs in it, by their names, and who may say so.

Four files of Kafka's, each a line `<topic> <partition> <offset>` for each log:

    recovery-point-offset-checkpoint   below it everything is on disk
    log-start-offset-checkpoint        below it everything is deleted
    replication-offset-checkpoint      the high watermark
    cleaner-offset-checkpoint          below it everything is compacted

A name outlives its log: a topic is deleted and made again, a replica moves away and comes back, a
log is set aside. An offset of the dead log would then cut off, skip or expose records of the living
one. So every line has one owner, this object, which is told of each birth, death and truncation:

1. `note` writes what logs say of themselves. What a log said before it was truncated or closed is
   not written after it: the look at the log and the write are checked against each other under the
   lock (`truncations`, `is_closed`).
2. `lower` comes before a truncation and raises if it cannot be written: then nothing may be cut
   off. Afterwards no line of that log lies above the offset.
3. `forget` comes with a log's death, and again with `write` before another of its name is born.
4. `trim` comes once the logs of a directory are open: lines without a log go, lines above a log's
   end come down to it.

A file whose lines did not change is not written again.

Lock: a leaf, held while a file is written; a log's lock may be held when it is taken, never the
other way round.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from storage import files
from storage.checkpoint import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    CorruptCheckpoint,
    OffsetCheckpoint,
)
from wire.primitives import TopicPartition

logger = logging.getLogger(__name__)

CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
)

Offsets = Mapping[TopicPartition, int]


class CheckpointedLog(Protocol):
    """What has to be known of a log to write down what it says."""

    topic_partition: TopicPartition
    truncations: int
    """Raised under `lock` when a truncation begins."""
    is_closed: bool
    """True for good before `forget` is called for it."""

    @property
    def lock(self) -> AbstractContextManager[object]: ...


L = TypeVar("L", bound=CheckpointedLog)


class DirCheckpoints:
    """The offset checkpoints of one log directory; see the module. OSError is the disk's."""

    def __init__(self, directory: Path, make_room: Callable[[], bool] = files.no_room) -> None:
        """`make_room` frees some space of a full disk; False if there is none to free."""
        self._directory = directory
        self._make_room = make_room
        self._lock = threading.Lock()
        self._offsets: dict[str, dict[TopicPartition, int]] = {kind: {} for kind in CHECKPOINTS}
        self._recorded: dict[str, Offsets | None] = {kind: {} for kind in CHECKPOINTS}
        """What the files say; None where that is not known, or there is no file yet."""

    def read(self) -> None:
        """Take over what is written; a file that cannot be understood is as good as none: more is
        recovered, or cleaned again, than need be."""
        with self._lock:
            for kind in CHECKPOINTS:
                try:
                    self._offsets[kind] = self._file(kind).read()
                    is_there = (self._directory / kind).exists()
                    self._recorded[kind] = self._offsets[kind].copy() if is_there else None
                except CorruptCheckpoint as error:
                    logger.warning("ignoring corrupt checkpoint reason=%s", error)
                    self._offsets[kind], self._recorded[kind] = {}, None

    def get(self, kind: str, key: TopicPartition) -> int | None:
        """What is noted of a log in the checkpoint of this name; None for nothing."""
        with self._lock:
            return self._offsets[kind].get(key)

    def note(self, kind: str, logs: Iterable[L], offset_of: Callable[[L], int | None]) -> None:
        """Write down what `offset_of` says of each log, nothing where it says None."""
        seen: list[tuple[L, int, int | None]] = []
        for log in logs:
            with log.lock:
                seen.append((log, log.truncations, offset_of(log)))
        with self._lock:
            offsets = self._offsets[kind]
            for log, truncations, offset in seen:
                if not _is_as_it_was(log, truncations):
                    continue
                if offset is None:
                    offsets.pop(log.topic_partition, None)
                else:
                    offsets[log.topic_partition] = offset
            self._write(kind)

    def note_cleaned(self, log: CheckpointedLog, offset: int, truncations: int) -> None:
        """A log is compacted up to `offset`; ignored if it was truncated since its `truncations`
        were read, before the compaction, or is closed."""
        with self._lock:
            if _is_as_it_was(log, truncations):
                kind = CLEANER_OFFSET_CHECKPOINT
                self._offsets[kind][log.topic_partition] = offset
                self._write(kind)

    def lower(self, key: TopicPartition, offset: int) -> None:
        """A log is about to be cut off at `offset`. On OSError that must not happen.

        The caller has raised the log's `truncations`.
        """
        assert offset >= 0, f"{key} cannot be cut off at {offset}"
        with self._lock:
            for kind, offsets in self._offsets.items():
                if offsets.get(key, -1) > offset:
                    offsets[key] = offset
                recorded = self._recorded[kind]
                if recorded is None or recorded.get(key, -1) > offset:
                    self._write(kind)

    def forget(self, key: TopicPartition) -> None:
        """There is no log of this name any more; the files follow with `write`."""
        with self._lock:
            for offsets in self._offsets.values():
                offsets.pop(key, None)

    def trim(self, ends: Mapping[TopicPartition, int]) -> None:
        """These are the logs of this directory, and where they end."""
        with self._lock:
            for kind, offsets in self._offsets.items():
                trimmed = {k: min(o, ends[k]) for k, o in offsets.items() if k in ends}
                if trimmed != offsets:
                    self._offsets[kind] = trimmed
                    self._write(kind)

    def write(self) -> None:
        """Bring all files up to date."""
        with self._lock:
            for kind in CHECKPOINTS:
                self._write(kind)

    def _write(self, kind: str) -> None:
        offsets = self._offsets[kind]
        if offsets == self._recorded[kind]:
            return
        self._recorded[kind] = None  # a failure leaves the old lines or the new ones
        files.with_room(lambda: self._file(kind).write(offsets), self._make_room)
        self._recorded[kind] = offsets.copy()

    def _file(self, kind: str) -> OffsetCheckpoint:
        return OffsetCheckpoint(self._directory / kind)


def _is_as_it_was(log: CheckpointedLog, truncations: int) -> bool:
    return log.truncations == truncations and not log.is_closed
