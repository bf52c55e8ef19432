"""Disks that forget: what was not synced may be gone after a power loss, and syncs fail.

How: `storage.files`, the seam every change of a file goes through, is replaced for the time of a
run. Each sync remembers what the file then held, each sync of a directory which names were in it.
`strike` puts a node's directory back to that: a file keeps a random part of what was written after
its last sync, in pages of 512 bytes; a name that was never synced may be gone; a rename that was
not synced may be undone. After `kill -9` nothing is lost, for the page cache is the machine's.

A node can be told to die in the middle of its n-th file operation from now on (`die_after`): a
write is then cut short. A failed sync is the last word about its data: the next one says that all
is well, as Linux does, and the data are gone with the next power loss (S-4).

A directory can be full: writes come short, then fail with ENOSPC, as the making of files may. It
has room again when its reserve was given up (`storage.directories.log_dir`), and when there is
room; a reserve takes no real space here. Files in it may be refused for want of descriptors
(EMFILE), and its threads may hang (`tests.sim.disk_threads`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage import files
from storage.directories.log_dir import RESERVE_FILE
from storage.segments.segment_files import LOG_SUFFIX
from tests.sim.world import InvariantBroken, Killed, World

_PAGE = 512
_SEAMS = (
    "allocate", "fsync", "fsync_directory", "ftruncate", "open_file", "pwrite", "pwritev",
    "replace", "unlink",
)  # fmt: skip


class Disks:
    """Install with `with`; one for a whole cluster."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._durable: dict[int, bytes] = {}
        self._names: dict[str, set[str]] = {}
        self._undo: dict[str, dict[str, bytes | None]] = {}
        self._die_after: dict[int, int] = {}
        self._fail_sync: set[int] = set()
        self.failed: set[int] = set()
        """Nodes that were told of a failed sync since they were last struck."""
        self._lost: dict[int, bytes] = {}
        self.full: set[Path] = set()
        self._relieved: set[Path] = set()
        """Full ones that live on their reserve."""
        self._reserved: set[Path] = set()
        self._short_until_ms: dict[Path, int] = {}
        self._hangs_until_ms: dict[Path, int] = {}
        self._syncs_records = True
        self._real: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> Disks:
        for name in _SEAMS:
            self._real[name] = getattr(files, name)
            setattr(files, name, getattr(self, "_" + name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(files, name, real)

    # --- what may go wrong ----------------------------------------------------------------------

    def die_after(self, node_id: int, operations: int) -> None:
        self._die_after[node_id] = operations

    def fail_next_sync(self, node_id: int) -> None:
        self._fail_sync.add(node_id)

    def spare(self, node_id: int) -> None:
        """Nothing more goes wrong there."""
        self._die_after.pop(node_id, None)
        self._fail_sync.discard(node_id)

    def fill(self, directory: Path) -> None:
        self.full.add(directory)

    def make_room(self, directory: Path) -> None:
        self.full.discard(directory)
        self._relieved.discard(directory)

    def run_short(self, directory: Path, ms: int) -> None:
        """Nothing can be opened in a directory for a while."""
        self._short_until_ms[directory] = self._world.ms + ms

    def _is_short(self) -> bool:
        """Then who opens a file may have to sync another, to give its descriptor up (S-4)."""
        return any(self._world.ms <= until_ms for until_ms in self._short_until_ms.values())

    def hang(self, directory: Path, ms: int) -> None:
        self._hangs_until_ms[directory] = self._world.ms + ms

    def hangs_for_ms(self, directory: Path) -> int:
        """How much longer; 0 if it works."""
        return max(self._hangs_until_ms.get(directory, 0) - self._world.ms, 0)

    @contextmanager
    def syncing_no_records(self) -> Iterator[None]:
        """WorkersSyncRecords: who runs here must not wait for a disk."""
        self._syncs_records = False
        try:
            yield
        finally:
            self._syncs_records = True

    def spare_directories(self, directories: Iterable[Path]) -> None:
        """These work from now on, and have room."""
        for directory in directories:
            self.make_room(directory)
            self._short_until_ms.pop(directory, None)
            self._hangs_until_ms.pop(directory, None)

    def _is_full(self, path: str) -> bool:
        return any(path.startswith(f"{d}/") for d in self.full - self._relieved)

    def _is_last(self) -> bool:
        left = self._die_after.get(self._world.node)
        if left is None:
            return False
        if left > 0:
            self._die_after[self._world.node] = left - 1
            return False
        del self._die_after[self._world.node]
        return True

    # --- the seam -------------------------------------------------------------------------------

    def _pwritev(self, fd: int, buffers: Sequence[files.Buffer], position: int) -> int:
        if self._die_after and self._is_last():
            data = b"".join(buffers)
            os.pwrite(fd, data[: self._world.between(0, len(data))], position)
            raise Killed
        if self.full and self._is_full(_path_of(fd)):
            data = b"".join(buffers)
            return self._pwrite_full(fd, data[: self._world.between(0, len(data) - 1)], position)
        return int(self._real["pwritev"](fd, buffers, position))

    def _pwrite(self, fd: int, data: files.Buffer, position: int) -> int:
        """What is left of a short write."""
        if self.full and self._is_full(_path_of(fd)):
            return self._pwrite_full(fd, b"", position)
        return int(self._real["pwrite"](fd, data, position))

    @staticmethod
    def _pwrite_full(fd: int, data: bytes, position: int) -> int:
        if not data:
            raise OSError(errno.ENOSPC, "simulated: the disk is full")
        return os.pwrite(fd, data, position)

    def _allocate(self, fd: int, size: int) -> None:
        path = _path_of(fd)
        if any(path.startswith(f"{d}/") for d in self.full):
            raise OSError(errno.ENOSPC, "simulated: the disk is full")
        self._reserved.add(Path(path))

    def _open_file(self, path: Any, flags: int, mode: int = 0o644) -> int:
        name = os.fspath(path)
        for directory, until_ms in self._short_until_ms.items() if self._world.node else ():
            if self._world.ms < until_ms and name.startswith(f"{directory}/"):
                raise OSError(errno.EMFILE, "simulated: out of descriptors")
        is_new = flags & os.O_CREAT and self.full and not _exists(name)
        if is_new and self._is_full(name) and self._world.chance(0.5):
            raise OSError(errno.ENOSPC, "simulated: the disk is full")
        return int(self._real["open_file"](path, flags, mode))

    def _fsync(self, fd: int) -> None:
        if self._die_after and self._is_last():
            raise Killed
        if not self._syncs_records and not self._is_short() and _path_of(fd).endswith(LOG_SUFFIX):
            raise InvariantBroken(f"WorkersSyncRecords: {_path_of(fd)} is synced by another thread")
        found = os.fstat(fd)
        node = self._world.node
        if node in self._fail_sync:
            self._fail_sync.discard(node)
            self.failed.add(node)
            self._lost[found.st_ino] = os.pread(fd, found.st_size, 0)
            raise OSError(errno.EIO, "simulated: the disk failed")
        if found.st_ino in self._lost:
            return  # the kernel has forgotten that these pages were ever dirty
        self._durable[found.st_ino] = os.pread(fd, found.st_size, 0)

    def _fsync_directory(self, fd: int) -> None:
        if self._die_after and self._is_last():
            raise Killed
        path = _path_of(fd)
        self._names[path] = set(os.listdir(path))
        self._undo.pop(path, None)

    def _replace(self, source: Any, target: Any) -> None:
        if self._die_after and self._is_last():
            raise Killed
        target = str(target)
        if not os.path.isdir(source):
            directory, name = os.path.split(target)
            undo = self._undo.setdefault(directory, {})
            if name not in undo and name in self._names.get(directory, ()):
                undo[name] = self._durable.get(os.stat(target).st_ino) if _exists(target) else None
        self._real["replace"](source, target)

    def _unlink(self, path: Any) -> None:
        if self._die_after and self._is_last():
            raise Killed
        self._real["unlink"](path)
        path = Path(path)
        if path in self._reserved:
            self._reserved.discard(path)
            self._relieved.update({path.parent} & self.full)

    def _ftruncate(self, fd: int, size: int) -> None:
        if self._die_after and self._is_last():
            raise Killed
        self._real["ftruncate"](fd, size)

    # --- power loss -----------------------------------------------------------------------------

    def strike(self, root: Path) -> None:
        """The power of the machine with this directory fails. Its processes must be dead."""
        random = self._world.random
        for directory, _, names in sorted(os.walk(root)):
            durable_names = self._names.get(directory, set())
            undo = self._undo.pop(directory, {})
            for name in sorted(set(names) - {RESERVE_FILE}):
                path = os.path.join(directory, name)
                if name not in durable_names and random.random() < 0.5:
                    os.unlink(path)
                elif undo.get(name) is not None and random.random() < 0.5:
                    _write(path, undo[name] or b"")
                else:
                    found = os.stat(path).st_ino
                    now = Path(path).read_bytes()
                    _write(path, self._mixed(self._durable.get(found, b""), now, found))
        for directory, _, names in os.walk(root):
            self._names[directory] = set(names)
            for name in names:
                path = os.path.join(directory, name)
                self._durable[os.stat(path).st_ino] = Path(path).read_bytes()

    def _mixed(self, durable: bytes, now: bytes, inode: int) -> bytes:
        """Pages written since the last sync are there or not; what was synced is."""
        random = self._world.random
        # No longer: who starts after this reads what there is.
        is_lost = self._lost.pop(inode, None) is not None
        if now == durable or is_lost:
            return durable
        if len(now) < len(durable):  # cut off: the size on disk is the old one or the new one
            return random.choice((now, durable))
        size = random.choice((len(durable), len(now), random.randint(len(durable), len(now))))
        mixed = bytearray(size)
        for start in range(0, size, _PAGE):
            source = now if random.random() < 0.5 else durable
            page = source[start : min(start + _PAGE, size)]
            mixed[start : start + len(page)] = page
        keep = _common_prefix(durable, now)
        mixed[:keep] = durable[:keep]
        return bytes(mixed)


def _common_prefix(one: bytes, other: bytes) -> int:
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size
    low, high = 0, size
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def _exists(path: str) -> bool:
    return os.path.exists(path)


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
