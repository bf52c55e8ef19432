"""Which leader epoch began at which offset: the basis of truncation (KIP-101, KIP-279).

A leader notes (epoch, its log end offset) before its first append in that epoch; a follower notes
it when a replicated batch carries a new epoch. Asked "where does your epoch e end?", a replica
answers from here, and the asker cuts what the other never had. Kafka: LeaderEpochFileCache.

Entries ascend strictly in epoch and in start offset. They are one immutable tuple that is replaced
as a whole, so readers need no lock; writers hold the log's lock.

Durability: changes are made in memory, and `sync` writes them, without the log's lock. An epoch
that was used must survive, or followers ask for an epoch that no one knows (E-3); one that was cut
off must not come back, for records of an older epoch may be written where it began. So the log
calls `sync` before it acknowledges what it wrote in a new epoch, before it appends after a
truncation, and before its recovery point passes an epoch's first batch: until then recovery finds
the epoch in the batches. What is cut off at the start is cut again when the log is loaded (S-8).
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import NamedTuple

from storage.checkpoint import read_leader_epochs, write_leader_epochs

logger = logging.getLogger(__name__)

UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1
_UNSETTLED = -2


class EpochEntry(NamedTuple):
    """The first offset of an epoch."""

    epoch: int
    start_offset: int


class LeaderEpochCache:
    """The epochs of one log, backed by its `leader-epoch-checkpoint`.

    The constructor raises CorruptCheckpoint when the file cannot be read; recovery then starts from
    `LeaderEpochCache.empty` and assigns what the log's batches say.
    """

    __slots__ = (
        "_entries",
        "_file_lock",
        "_lock",
        "_on_disk",
        "latest_epoch",
        "path",
        "settled_epoch",
    )

    def __init__(self, path: Path, *, ignore_file: bool = False) -> None:
        self.path = path
        self._entries: tuple[EpochEntry, ...] = ()
        self._on_disk: tuple[EpochEntry, ...] | None = None
        self._file_lock = threading.Lock()
        # A leaf: keeps `settled_epoch` true to the two tuples.
        self._lock = threading.Lock()
        self.latest_epoch = UNDEFINED_EPOCH
        """Largest epoch known, -1 for none."""
        self.settled_epoch = UNDEFINED_EPOCH
        """`latest_epoch` if the file says all that is known here, else -2: compared with every
        append's epoch, so an attribute."""
        if not ignore_file:
            for epoch, start_offset in read_leader_epochs(path):
                self.assign(epoch, start_offset)
            self._settle(self._entries)

    @classmethod
    def empty(cls, path: Path) -> LeaderEpochCache:
        """A cache that ignores the file until it writes it."""
        return cls(path, ignore_file=True)

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
        """Note that `epoch` begins at `start_offset`.

        The same epoch again is ignored unless it begins earlier. Entries that contradict the new
        one (an epoch or start not below it) are dropped: the newer word is the leader's. Raises
        ValueError for negative numbers.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} at offset {start_offset}")
        entry = EpochEntry(epoch, start_offset)
        entries = self._entries
        if entries:
            latest = entries[-1]
            if entry.epoch == latest.epoch and entry.start_offset >= latest.start_offset:
                return
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

    def copy_from(self, other: LeaderEpochCache) -> None:
        """Have exactly `other`'s epochs, those without a record included (KAFKA-15608)."""
        if self._entries != other.entries:
            self._replace(other.entries)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, end offset, exclusive) for a replica or consumer that last saw `epoch` (E-4).

        The latest epoch ends at the log's end. An epoch above all known is (-1, -1). One below all
        known ends where the first known begins: what was before is gone. Else the largest known
        epoch not above it, which ends where the next one begins.
        """
        entries = self._entries
        # Not `latest_epoch`: another epoch may begin between two looks.
        if entries and epoch == entries[-1].epoch:
            return epoch, log_end_offset
        slot = bisect_right(entries, epoch, key=_epoch)
        if epoch == UNDEFINED_EPOCH or slot == len(entries):
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        next_start = entries[slot].start_offset
        return (entries[slot - 1].epoch, next_start) if slot else (epoch, next_start)

    def truncate_from_end(self, end_offset: int) -> None:
        """The log now ends at `end_offset`: forget epochs that begin there or later."""
        keep = bisect_left(self._entries, end_offset, key=_start_offset)
        if end_offset >= 0 and keep < len(self._entries):
            self._replace(self._entries[:keep])

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now starts at `start_offset`: forget older epochs; its own starts there. The file
        may keep them."""
        entries = self._entries
        drop = bisect_right(entries, start_offset, key=_start_offset)
        if drop:
            kept = (EpochEntry(entries[drop - 1].epoch, start_offset), *entries[drop:])
            if kept != entries:
                was_settled = self.settled_epoch != _UNSETTLED
                self._replace(kept)
                if was_settled:
                    self._settle(self._entries)

    def clear(self) -> None:
        """Forget everything."""
        self._replace(())

    def sync(self) -> None:
        """Have on disk what is known now; one write at a time, none if nothing changed.

        Takes no lock of the log. Raises OSError: what is known is then tried again by the next.
        """
        with self._file_lock:
            entries = self._entries
            if entries is not self._on_disk:
                write_leader_epochs(self.path, entries)
                self._settle(entries)

    def _replace(self, entries: tuple[EpochEntry, ...]) -> None:
        with self._lock:
            self._entries = entries
            self.latest_epoch = entries[-1].epoch if entries else UNDEFINED_EPOCH
            self.settled_epoch = _UNSETTLED

    def _settle(self, on_disk: tuple[EpochEntry, ...]) -> None:
        with self._lock:
            self._on_disk = on_disk
            if on_disk is self._entries:
                self.settled_epoch = self.latest_epoch


def _epoch(entry: EpochEntry) -> int:
    return entry.epoch


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset
