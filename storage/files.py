"""Every call that changes or syncs a file of a log goes through here, and nothing else does.

Why: crashes, full disks, short writes and failing fsyncs must be testable. Code calls
`files.pwritev(...)` through the module, so a test replaces one name (`monkeypatch.setattr(files,
"pwritev", ...)`) to fail the n-th write, to write short, or to forget unsynced bytes. The functions
are the system calls themselves: the seam costs one attribute lookup.

Rules kept here: short writes are looped (S-2), positions are the caller's (S-3), there is no mmap
(S-18), and creating, renaming or removing a file is durable only after `sync_directory` (S-5).
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar
from weakref import WeakSet

_T = TypeVar("_T")

# A buffer of bytes for the system calls.
Buffer = bytes | bytearray | memoryview

READ_ONLY = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
READ_WRITE = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
CREATE = READ_WRITE | os.O_CREAT

open_file = os.open
close = os.close
pread = os.pread
pwrite = os.pwrite
ftruncate = os.ftruncate
fstat = os.fstat
unlink = os.unlink
replace = os.replace
mkdir = os.mkdir
rmdir = os.rmdir
sendfile = getattr(os, "sendfile", None)


def _pwritev(fd: int, buffers: Sequence[Buffer], position: int) -> int:
    """`os.pwritev` where the platform has none: one `pwrite` of the joined buffers."""
    return pwrite(fd, b"".join(buffers), position)


pwritev = getattr(os, "pwritev", _pwritev)


def _best_sync(full_sync: int | None) -> Callable[[int], object]:
    """How to have a file's bytes on the disk itself. `full_sync` is macOS's F_FULLFSYNC, if this is
    one: fsync leaves the bytes in the drive's cache there. Not all its file systems know it."""
    if full_sync is None:
        # fdatasync writes the new size too, which is all a reader after a crash needs.
        return getattr(os, "fdatasync", os.fsync)

    def sync(fd: int) -> None:
        try:
            fcntl.fcntl(fd, full_sync)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
            os.fsync(fd)

    return sync


fsync = _best_sync(getattr(fcntl, "F_FULLFSYNC", None))


def write_fully(fd: int, buffers: Sequence[Buffer], size: int, position: int) -> None:
    """Write all `size` bytes of `buffers` at `position`; a short write goes on where it stopped.

    Raises OSError with what was written left in place: the caller cuts the file back.
    """
    written = pwritev(fd, buffers, position)
    if written != size:
        _write_rest(fd, buffers, size, position, written)


def _write_rest(fd: int, buffers: Sequence[Buffer], size: int, position: int, written: int) -> None:
    """Finish a short write; one that returns 0 is a full disk, not retried for ever."""
    rest = memoryview(b"".join(buffers))
    assert len(rest) == size, "size must be the sum of the buffers"
    while written < size:
        count = pwrite(fd, rest[written:], position + written)
        if count <= 0:
            raise OSError(errno.ENOSPC, "write returned 0 bytes")
        written += count


def read_fully(fd: int, size: int, position: int) -> bytes:
    """Read `size` bytes at `position`, fewer only at the end of the file."""
    data: bytes = pread(fd, size, position)
    if len(data) == size or not data:
        return data
    parts = [data]
    got = len(data)
    while got < size:
        data = pread(fd, size - got, position + got)
        if not data:
            break
        parts.append(data)
        got += len(data)
    return b"".join(parts)


class DescriptorHolder(Protocol):
    """Somebody who keeps files open only to save opening them again."""

    def shrink(self, count: int) -> int:
        """Close up to `count` of them; returns how many were closed."""


descriptor_holders: WeakSet[DescriptorHolder] = WeakSet()


def open_or_relieve(path: str | os.PathLike[str], flags: int, mode: int = 0o644) -> int:
    """Open a file; if the process is out of descriptors, those kept idle are given up first (S-17).

    Raises OSError when even that does not help.
    """
    try:
        return open_file(path, flags, mode)
    except OSError as error:
        if not is_out_of_descriptors(error):
            raise
        if not sum(holder.shrink(8) for holder in list(descriptor_holders)):
            raise
    return open_file(path, flags, mode)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a file, opened as `open_or_relieve` does: what a log needs to be read or written
    again after its files were let go must not be what finds no descriptor.

    Raises OSError, FileNotFoundError among them.
    """
    with open(path, "rb", opener=open_or_relieve) as file:
        return file.read()


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make creations, renames and removals in a directory durable (S-5)."""
    fd = open_or_relieve(path, READ_ONLY)
    try:
        fsync_directory(fd)
    finally:
        close(fd)


# A name of its own, so that a test can fail the sync of a directory and not of a file; and for a
# directory fdatasync is no promise.
fsync_directory = os.fsync if fsync is getattr(os, "fdatasync", None) else fsync


def make_directories(path: Path) -> None:
    """Create a directory, and those above it that are missing, with their names on disk; the name
    of one that is there, too, since who made it may have died before that.

    A parent that we may not read cannot be synced, and is not; nor is one that does not know what
    that is (a read-only image), if the directory is there. Raises OSError.
    """
    made = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in made or [path]:
        with suppress(PermissionError if made else OSError):
            sync_directory(one.parent)


def remove_directory(path: str | os.PathLike[str]) -> None:
    """Remove a directory that has files only. Raises OSError."""
    for name in os.listdir(path):
        unlink(os.path.join(path, name))
    rmdir(path)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Sync one file by its path."""
    fd = open_or_relieve(path, READ_ONLY)
    try:
        fsync(fd)
    finally:
        close(fd)


def allocate(fd: int, size: int) -> None:
    """Reserve disk blocks for the first `size` bytes, really, not as a hole."""
    fallocate = getattr(os, "posix_fallocate", None)
    if fallocate is not None:
        fallocate(fd, 0, size)
        return
    zeros = bytes(1 << 16)
    for position in range(0, size, len(zeros)):
        write_fully(fd, [zeros], len(zeros), position)


def is_disk_full(error: OSError) -> bool:
    """No space, quota or file size left: the disk is healthy and may have room later (S-16)."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def no_room() -> bool:
    """There is nothing to free on a full disk."""
    return False


def with_room(write: Callable[[], _T], make_room: Callable[[], bool]) -> _T:
    """What must be written although the disk is full: once more in what `make_room` frees, if it
    frees something (S-16). Raises OSError."""
    try:
        return write()
    except OSError as error:
        if not is_disk_full(error) or not make_room():
            raise
    return write()


def is_out_of_descriptors(error: OSError) -> bool:
    """The process or the system has no file descriptor left: nothing is wrong with the disk."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def may_pass(error: OSError) -> bool:
    """A full disk and a lack of descriptors pass: what failed is tried afresh (S-16, S-17)."""
    return is_disk_full(error) or is_out_of_descriptors(error)
