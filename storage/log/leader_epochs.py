"""Which leader epoch began at which offset: the basis of truncation (KIP-101, KIP-279).

A leader notes (epoch, its log end offset) before its first append in that epoch; a follower notes
it when a replicated batch carries a new epoch. Asked "where does your epoch e end?", a replica
answers from here, and the asker cuts what the other never had. Kafka: LeaderEpochFileCache.

Entries ascend strictly in epoch and in start offset. They are one immutable tuple that is replaced
as a whole, so readers need no lock; writers hold the log's lock.

Durability: what is assigned, and what is cut off from the end, is on disk before the call returns.
An epoch that was used must survive, or followers ask for an epoch that no one knows (E-3); one that
was cut off must not come back, for records of an older epoch may be written where it began. What is
cut off at the start is cut again when the log is loaded (S-8).
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import NamedTuple

from storage.checkpoint import read_leader_epochs, write_leader_epochs

logger = logging.getLogger(__name__)

UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1


class EpochEntry(NamedTuple):
    """The first offset of an epoch."""

    epoch: int
    start_offset: int


class LeaderEpochCache:
    """The epochs of one log, backed by its `leader-epoch-checkpoint`.

    The constructor raises CorruptCheckpoint when the file cannot be read; recovery then starts from
    `LeaderEpochCache.empty` and assigns what the log's batches say.
    """

    __slots__ = ("_entries", "latest_epoch", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: tuple[EpochEntry, ...] = ()
        self.latest_epoch = UNDEFINED_EPOCH
        """Largest epoch known, -1 for none: compared with every appended batch, so an attribute."""
        for epoch, start_offset in read_leader_epochs(path):
            self._add(EpochEntry(epoch, start_offset))

    @classmethod
    def empty(cls, path: Path) -> LeaderEpochCache:
        """A cache that ignores the file until it writes it."""
        cache = cls.__new__(cls)
        cache.path = path
        cache._entries = ()
        cache.latest_epoch = UNDEFINED_EPOCH
        return cache

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All entries, oldest first."""
        return self._entries

    @property
    def earliest_entry(self) -> EpochEntry | None:
        """The oldest epoch still in the log and its start, or None."""
        entries = self._entries
        return entries[0] if entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`; on disk when this returns.

        The same epoch again is ignored unless it begins earlier. Entries that contradict the new
        one (an epoch or start not below it) are dropped: the newer word is the leader's. Raises
        ValueError for negative numbers and OSError.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} at offset {start_offset}")
        if self._add(EpochEntry(epoch, start_offset)):
            self._write()

    def assign_all(self, entries: list[EpochEntry]) -> None:
        """`assign` many with one write, for recovery. Raises OSError."""
        added = [self._add(entry) for entry in entries]
        if any(added):
            self._write()

    def copy_from(self, other: LeaderEpochCache) -> None:
        """Have exactly `other`'s epochs, those without a record included (KAFKA-15608); on disk
        when this returns. Raises OSError."""
        self._replace(other.entries)
        self._write()

    def _add(self, entry: EpochEntry) -> bool:
        entries = self._entries
        if entries:
            latest = entries[-1]
            if entry.epoch == latest.epoch and entry.start_offset >= latest.start_offset:
                return False
        keep = len(entries)
        while keep and (
            entries[keep - 1].epoch >= entry.epoch
            or entries[keep - 1].start_offset >= entry.start_offset
        ):
            keep -= 1
        dropped = entries[keep:]
        # One dropped entry with the same start had no records: an election followed by another.
        if len(dropped) > 1 or (dropped and dropped[0].start_offset != entry.start_offset):
            logger.warning(
                "dropped contradicting leader epochs path=%s new=%s dropped=%s",
                self.path,
                entry,
                dropped,
            )
        self._replace((*entries[:keep], entry))
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, end offset, exclusive) for a replica or consumer that last saw `epoch` (E-4).

        The latest epoch ends at the log's end. An epoch above all known is (-1, -1). One below all
        known ends where the first known begins: what was before is gone. Else the largest known
        epoch not above it, which ends where the next one begins.
        """
        entries = self._entries
        if epoch == self.latest_epoch and epoch != UNDEFINED_EPOCH:
            return epoch, log_end_offset
        slot = bisect_right(entries, epoch, key=_epoch)
        if epoch == UNDEFINED_EPOCH or slot == len(entries):
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        next_start = entries[slot].start_offset
        return (entries[slot - 1].epoch, next_start) if slot else (epoch, next_start)

    def truncate_from_end(self, end_offset: int) -> None:
        """The log now ends at `end_offset`: forget epochs that begin there or later; on disk when
        this returns. Raises OSError."""
        entries = self._entries
        keep = bisect_left(entries, end_offset, key=_start_offset)
        if end_offset >= 0 and keep < len(entries):
            self._replace(entries[:keep])
            self._write()

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now starts at `start_offset`: forget older epochs; its own starts there."""
        entries = self._entries
        drop = bisect_right(entries, start_offset, key=_start_offset)
        if drop:
            first = EpochEntry(entries[drop - 1].epoch, start_offset)
            if first != entries[drop - 1] or drop > 1:
                self._replace((first, *entries[drop:]))

    def clear_and_flush(self) -> None:
        """Forget everything, on disk too. Raises OSError."""
        self._replace(())
        self._write()

    def _replace(self, entries: tuple[EpochEntry, ...]) -> None:
        self._entries = entries
        self.latest_epoch = entries[-1].epoch if entries else UNDEFINED_EPOCH

    def _write(self) -> None:
        write_leader_epochs(self.path, self._entries)


def _epoch(entry: EpochEntry) -> int:
    return entry.epoch


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset
