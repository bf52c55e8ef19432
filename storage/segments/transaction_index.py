"""The transaction index of one segment: which aborted transactions have their marker in it.

It is rebuilt only together with the producer state, and exists only where there is something in it.

Byte layout, big-endian (Kafka: AbortedTxn), 34 bytes each: int16 version 0, int64 producer_id,
first_offset, last_offset (of the abort marker), last_stable_offset (after it).

A file that was written stays open until it is synced: a write that fails on its way from the page
cache to the disk is told to who has the file open then (S-4), and no batch tells that an aborted
transaction is missing here.

Duties of the caller: appends and truncations come from one thread at a time (the log's lock);
lookups and `flush` may come from any thread at the same time. OSError from any method is the
disk's.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import NamedTuple

from storage import files
from storage.layout import ABORTED_TXN
from storage.open_files import FileHandle
from storage.segments.index import CorruptIndexError

_ABORTED_TXN = Struct(ABORTED_TXN)


class AbortedTxn(NamedTuple):
    """An aborted transaction; its marker is at `last_offset`, and the LSO after it is noted."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions whose markers are in one segment, in marker order.

    The file appears with the first one. An append is in the file when it returns (P-7: the last
    stable offset moves only then).
    """

    __slots__ = ("_aborted", "_is_new", "_lock", "_unsynced", "path", "start_offset")

    def __init__(self, path: Path, start_offset: int) -> None:
        self.path = path
        self.start_offset = start_offset
        self._aborted: list[AbortedTxn] | None = None
        self._unsynced: FileHandle | None = None
        self._is_new = False
        # A file that is being renamed is not one that does not exist, and one that is being written
        # is not read: what is read beside an append would lack it, and the next append cut it off.
        self._lock = Lock()

    @property
    def aborted(self) -> list[AbortedTxn]:
        """All entries. Raises CorruptIndexError for an unknown version or a broken file."""
        aborted = self._aborted
        if aborted is None:
            with self._lock:
                aborted = self._loaded()
        return aborted

    def append(self, txn: AbortedTxn) -> None:
        """Raises ValueError when the marker is not behind the last one, and OSError."""
        with self._lock:
            aborted = self._loaded()
            if aborted and txn.last_offset <= aborted[-1].last_offset:
                raise ValueError(f"{txn} is not behind the last of {self.path}")
            self._write([txn], keep=len(aborted))
            aborted.append(txn)

    def collect_aborted(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTxn], bool]:
        """Transactions overlapping [fetch_offset, upper_bound), and whether the search is complete.

        It is when an entry's last stable offset reaches the bound: nothing that begins below can
        abort later. Else the next segment's index must be searched too.
        """
        found: list[AbortedTxn] = []
        for txn in self.aborted:
            if txn.last_offset >= fetch_offset and txn.first_offset < upper_bound:
                found.append(txn)
            if txn.last_stable_offset >= upper_bound:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Drop transactions whose marker is at or above `offset`."""
        with self._lock:
            aborted = self._loaded()
            keep = [txn for txn in aborted if txn.last_offset < offset]
            if len(keep) < len(aborted):
                self._write([], keep=len(keep))
                self._aborted = keep

    def truncate(self) -> None:
        """Drop everything, whatever the file contains."""
        if self.path.exists():
            self._write([], keep=0)
        self._aborted = []

    def sanity_check(self) -> None:
        """Raise CorruptIndexError for a broken file, one cut within an entry, or entries that no
        segment has: a marker follows its records, and the markers of a segment ascend from its
        base. The file must be there."""
        next_offset = self.start_offset
        for txn in self.aborted:
            if not next_offset <= txn.last_offset > txn.first_offset:
                raise CorruptIndexError(f"{self.path}: {txn} is empty or before {next_offset}")
            next_offset = txn.last_offset + 1
        if self.path.stat().st_size != len(self.aborted) * _ABORTED_TXN.size:
            raise CorruptIndexError(f"{self.path} ends within an entry")

    def flush(self) -> None:
        """fsync, if there is a file; its name, too, if it was made here: that none is there is no
        sign of harm to who opens the log (S-5)."""
        if self._unsynced is not None:
            self.let_go()
        else:
            with suppress(FileNotFoundError):
                files.sync_file(self.path)
        if self._is_new:
            files.sync_directory(self.path.parent)
            self._is_new = False

    def let_go(self) -> None:
        """Close the file, synced, if it is open."""
        handle, self._unsynced = self._unsynced, None  # who writes from now on notes it again
        if handle is not None:
            files.fsync(handle.fd)

    def close(self) -> None:
        """Free the memory, and the file, synced or not; the next use reads it again."""
        self._aborted, self._unsynced = None, None

    def delete(self) -> None:
        """Remove the file, if there is one; who reads beside it may know what was in it."""
        self._unsynced = None
        with suppress(FileNotFoundError):
            files.unlink(self.path)

    def rename(self, path: Path) -> None:
        """Move the file, if there is one."""
        with self._lock:
            with suppress(FileNotFoundError):
                files.replace(self.path, path)
            self.path = path

    def _loaded(self) -> list[AbortedTxn]:
        aborted = self._aborted
        if aborted is None:
            aborted = self._aborted = self._read()
        return aborted

    def _read(self) -> list[AbortedTxn]:
        try:
            data = files.read_file(self.path)
        except FileNotFoundError:
            return []
        # A crash may leave part of an entry: it was never acknowledged, and truncation removes it.
        whole = len(data) - len(data) % _ABORTED_TXN.size
        aborted = []
        for version, *fields in _ABORTED_TXN.iter_unpack(data[:whole]):
            if version != 0:
                raise CorruptIndexError(f"{self.path} has an entry of version {version}")
            aborted.append(AbortedTxn(*fields))
        return aborted

    def _write(self, added: list[AbortedTxn], keep: int) -> None:
        end = keep * _ABORTED_TXN.size
        data = b"".join(_ABORTED_TXN.pack(0, *txn) for txn in added)
        if self._unsynced is None:
            self._is_new |= not self.path.exists()
        handle = self._unsynced or FileHandle.open(self.path, files.CREATE)
        try:
            files.ftruncate(handle.fd, end)
            if data:
                files.write_fully(handle.fd, [data], len(data), end)
        finally:
            self._unsynced = handle
