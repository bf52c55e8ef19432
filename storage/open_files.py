"""Open files of segments: who keeps a descriptor alive, and how many there may be.

Two dangers, two rules. `pread` on a descriptor number that was closed and reused reads *another
file* (S-15): so a `FileHandle` is never closed by anyone who merely stops needing it; it closes
itself when its last user has let go, and a `FileSlice` on its way to a socket is a user. And
descriptors run out (S-17): so an `OpenFileCache` keeps at most `limit` segments open, and makes
those that were not used lately let go. A third one: a write that fails on its way from the page
cache to the disk is told to who has the file open then, and to nobody if nobody has (S-4): so a
segment that is not synced lets go after the others, and only after a sync.

`FileSlice` is what a read returns: so many bytes of one file from one position. It travels unseen
through the layers above down to the socket, where `send_to` is `os.sendfile`: the bytes go from the
page cache to the network and never become a Python object.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Protocol

from storage import files

logger = logging.getLogger(__name__)

_DESCRIPTORS_WANTED = 10_000
"""Enough for a small node; for a large one Kafka's documentation asks for 100,000."""
_SYNCS_SPARED = 32
"""How many that are not synced are passed over in looking for others."""


class FileHandle:
    """One open descriptor, shared by all who hold the handle, closed with the last of them."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def open(cls, path: str | os.PathLike[str], flags: int = files.READ_WRITE) -> FileHandle:
        return cls(files.open_or_relieve(path, flags))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # The default argument outlives the module's globals at interpreter exit.
        try:
            close(self.fd)
        except OSError as error:
            logger.error("closing a log file failed fd=%s error=%s", self.fd, error)


class FileBecameShorter(OSError):
    """A slice's file ends before the slice does: it was cut off, or its disk lost its end."""


class FileSlice:
    """`size` bytes of an open file from `position` on; holds the file open until closed or dropped.

    A slice is immutable and may be read from any thread; `close` belongs to its owner.
    """

    __slots__ = ("_handle", "position", "size")

    def __init__(self, handle: FileHandle, position: int, size: int) -> None:
        self._handle: FileHandle | None = handle
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"FileSlice(position={self.position}, size={self.size})"

    def send_to(self, sock_fd: int, offset: int, count: int) -> int:
        """Send up to `count` bytes from `offset` within the slice to a socket; return bytes sent.

        Raises BlockingIOError like a non-blocking socket, and OSError (EIO) if the file has become
        shorter than the slice: the promised bytes do not exist, so the connection must end.
        """
        if self._handle is None:
            raise ValueError("slice is closed")
        sendfile = files.sendfile
        if sendfile is None:
            return os.write(sock_fd, self.read(offset, min(count, 1 << 18)))
        sent: int = sendfile(sock_fd, self._handle.fd, self.position + offset, count)
        if sent == 0 and count > 0:
            raise FileBecameShorter(errno.EIO, "log file is shorter than the slice to send")
        return sent

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """The bytes from `offset` within the slice (all, or `size` of them).

        Raises OSError (EIO) if the file has become shorter than the slice.
        """
        if self._handle is None:
            raise ValueError("slice is closed")
        count = self.size - offset if size is None else min(size, self.size - offset)
        data = files.read_fully(self._handle.fd, count, self.position + offset)
        if len(data) != count:
            raise FileBecameShorter(errno.EIO, "log file is shorter than the slice to read")
        return data

    def part(self, offset: int, size: int) -> FileSlice:
        """`size` bytes from `offset` within the slice, a slice of its own."""
        if self._handle is None:
            raise ValueError("slice is closed")
        return FileSlice(self._handle, self.position + offset, min(size, self.size - offset))

    def close(self) -> None:
        """Let the file go; it closes when nobody else uses it."""
        self._handle = None


class FileOwner(Protocol):
    """A segment, as the cache sees it."""

    recently_used: bool

    @property
    def is_synced(self) -> bool:
        """False while closing the file could lose the news of a failed write."""

    def release_descriptor(self) -> None:
        """Let the descriptor go; the next use opens the file again. Takes no lock and opens no
        file: who asks may be in the middle of opening one, with any lock held."""

    def release_files(self) -> None:
        """Let go of the descriptor and of what is in memory."""


class OpenFileCache:
    """Keeps at most `limit` owners' files open: the second-chance form of least recently used.

    An owner registers when it opens its files and sets `recently_used` at each use, which costs the
    hot path one attribute store and no lock. On overflow the oldest registered owner that was not
    used since the last look is told to let go. The lock guards only the queue.
    """

    def __init__(self, limit: int) -> None:
        self.limit = max(limit, 4)
        self._lock = Lock()
        self._owners: deque[FileOwner] = deque()
        files.descriptor_holders.add(self)

    def opened(self, owner: FileOwner) -> None:
        """Note that `owner` has just opened its files; others may be told to close theirs."""
        with self._lock:
            victims = self._choose(len(self._owners) + 1 - self.limit)
            self._owners.append(owner)
        for victim in victims:
            victim.release_files()

    def closed(self, owner: FileOwner) -> None:
        """Forget an owner that closed its files itself."""
        with self._lock:
            try:
                self._owners.remove(owner)
            except ValueError:
                return

    def shrink(self, count: int) -> int:
        """Close the files of up to `count` owners now: the process is out of descriptors."""
        with self._lock:
            victims = self._choose(min(count, len(self._owners) - 1))
        for victim in victims:
            victim.release_descriptor()
        return len(victims)

    def __len__(self) -> int:
        return len(self._owners)

    def _choose(self, count: int) -> list[FileOwner]:
        owners = self._owners
        victims: list[FileOwner] = []
        unsynced: deque[FileOwner] = deque()
        chances = 2 * len(owners)  # all may be in use: then the oldest goes
        while len(victims) < count and owners and len(unsynced) < _SYNCS_SPARED:
            owner = owners.popleft()
            chances -= 1
            if owner.recently_used and chances > 0:
                owner.recently_used = False
                owners.append(owner)
            else:
                (victims if owner.is_synced else unsynced).append(owner)
        while len(victims) < count:
            victims.append((unsynced or owners).popleft())
        owners.extendleft(reversed(unsynced))
        return victims


def raise_descriptor_limit() -> int | None:
    """Raise the process's soft limit of descriptors to its hard one, as a JVM does; the limit then,
    None for no limit."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:  # macOS allows less than it says
            logger.warning("limit of open files cannot be raised soft=%s hard=%s error=%s",
                           soft, hard, error)  # fmt: skip
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return None
    if soft < _DESCRIPTORS_WANTED:
        logger.warning("limit of open files is low limit=%s wanted=%s: connections and log segments"
                       " share it (ulimit -n, LimitNOFILE)", soft, _DESCRIPTORS_WANTED)  # fmt: skip
    return soft


def descriptor_budget(reserved: int = 64) -> int:
    """How many segments may stay open under the process's limit of descriptors (S-17).

    A segment needs one, for its log file: indexes are read whole and keep none, but for aborted
    transactions that are not synced yet. Half of the limit belongs to segments, the rest to
    connections and everything else.
    """
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError):  # not a POSIX system
        soft = 1024
    if soft < 0 or soft > 1 << 20:
        soft = 1 << 20
    return max((soft - reserved) // 2, 8)
