"""A disk on which any call of a file may fail, or be the last of its process.

`tests.sim.disks` has what is forgotten of a file's bytes, page by page, and of what a failed sync
was to write (S-4). Here is what a fuzzer of one storage needs beside it:

* A `Fault` strikes at one call, whatever call that is: it fails with EMFILE, ENOSPC or EIO, writes
  short, or the process dies in the middle of it. After its death nothing it does reaches the disk.
* Names are forgotten in the order in which they were made. What was created, renamed or unlinked
  since its directory was last synced is in a journal, and a power loss undoes the journal's end, as
  a file system with ordered metadata does: a file that was unlinked comes back with its bytes.
"""

from __future__ import annotations

import errno
import gc
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from storage import files
from storage.directories.log_dir import RESERVE_FILE
from tests.sim.disks import Disks
from tests.sim.world import Killed, World

_WRITES = ("pwrite", "pwritev")
_SYNCS = ("fsync", "fsync_directory")
_NEEDS_DESCRIPTOR = ("open_file",)
_NEEDS_ROOM = (*_WRITES, "fsync", "open_file", "replace", "mkdir")
_CALLS = (
    *_WRITES, *_SYNCS, "open_file", "replace", "mkdir", "rmdir", "unlink", "ftruncate", "pread",
)  # fmt: skip

CRASH, SHORT = 0, -1
"""Faults that are no errors."""
_SUFFERS = {
    errno.EMFILE: _NEEDS_DESCRIPTOR,
    errno.ENOSPC: _NEEDS_ROOM,
    errno.EIO: _CALLS,
    SHORT: ("pwritev",),
    CRASH: _CALLS,
}
KINDS = tuple(_SUFFERS)
NAMES = {CRASH: "crash", SHORT: "short write", **errno.errorcode}


class Fault:
    """What happens at the `at`-th call that can suffer it, and at the `times` - 1 after it."""

    def __init__(self, kind: int, at: int, times: int) -> None:
        self.kind = kind
        self.has_struck: list[str] = []
        """The calls."""
        self._at = at
        self._left = times

    def strikes(self) -> bool:
        """Of a call that can suffer it: is it this one."""
        if not self._left:
            return False
        if self._at:
            self._at -= 1
            return False
        self._left -= 1
        return True

    def __str__(self) -> str:
        return f"{NAMES[self.kind]} at {', '.join(self.has_struck)}"


class _Directory:
    """What its path is now."""

    def __init__(self, path: str) -> None:
        self.path = path


class _Change(NamedTuple):
    """Of a name that is not synced; `undo` makes it as it was."""

    directory: _Directory
    undo: Callable[[], object]
    shadow: str | None
    """Another name, outside, of the file that this one no longer leads to."""


class _Worst(Random):
    """Of names the whole journal is lost, of bytes all that was not synced."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def random(self) -> float:
        return 0.99


class FaultyDisk(Disks):
    """Install with `with`. `root` and what is beside it are this disk's alone."""

    def __init__(self, world: World, root: Path) -> None:
        super().__init__(world)
        self.fault: Fault | None = None
        self.is_dead = False
        self.calls = 0
        self.root = root
        self._root = f"{root}/"
        self._shadows = root.with_name(root.name + "-shadows")
        self._shadows.mkdir()
        self._count = 0
        self._journal: list[_Change] = []
        self._directories: dict[str, _Directory] = {}

    @classmethod
    def below(cls, directory: Path) -> FaultyDisk:
        """One whose root is new."""
        root = directory / "root"
        root.mkdir()
        return cls(World(1), root)

    def __enter__(self) -> FaultyDisk:
        super().__enter__()
        for name in ("mkdir", "rmdir", "pread"):
            self._real[name] = getattr(files, name)
        inner = {name: getattr(files, name) for name in _CALLS}
        inner |= {name: getattr(self, "_" + name) for name in ("mkdir", "rmdir")}
        for name, call in inner.items():
            setattr(files, name, partial(self._call, name, call))
        return self

    # --- faults ---------------------------------------------------------------------------------

    def _call(self, name: str, inner: Callable[..., Any], *args: Any) -> Any:
        if self.is_dead:
            raise Killed
        self.calls += 1
        fault = self.fault
        if fault is None or not self._suffers(fault, name, *args) or not fault.strikes():
            return inner(*args)
        fault.has_struck.append(f"{name} {_target(args[0])}")
        if fault.kind == CRASH:
            self.is_dead = True
            if name in _WRITES:
                self._write_part(*args)
            raise Killed
        if fault.kind == SHORT:
            return self._write_part(*args)
        if name in _WRITES and self._world.chance(0.5):
            self._write_part(*args)
        if name == "fsync":
            found = os.fstat(args[0])
            self._lost[found.st_ino] = os.pread(args[0], found.st_size, 0)
        raise OSError(fault.kind, "simulated")

    @staticmethod
    def _suffers(fault: Fault, name: str, *args: Any) -> bool:
        if fault.kind == errno.ENOSPC and name == "open_file":
            return bool(args[1] & os.O_CREAT) and not os.path.exists(args[0])
        return name in _SUFFERS[fault.kind]

    def _write_part(self, fd: int, data: Any, position: int) -> int:
        data = data if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
        return os.pwrite(fd, bytes(data[: self._world.between(0, len(data) - 1)]), position)

    @property
    def has_lost(self) -> bool:
        """A failed sync was to write something that is still there."""
        return bool(self._lost)

    # --- names ----------------------------------------------------------------------------------

    def _directory_of(self, path: str) -> tuple[_Directory, str]:
        directory, name = os.path.split(path)
        return self._directories.setdefault(directory, _Directory(directory)), name

    def _note(self, path: Any, undo: Callable[[str, str | None], object], *, keep: bool) -> None:
        """`path` is about to change; `keep` if its file may come back."""
        path = os.fspath(path)
        if not path.startswith(self._root):
            return
        directory, name = self._directory_of(path)
        shadow = None
        if keep and os.path.exists(path):
            self._count += 1
            shadow = str(self._shadows / str(self._count))
            os.link(path, shadow)

        def undo_it() -> None:
            if os.path.isdir(directory.path):  # else it is gone, and that is on the disk
                undo(os.path.join(directory.path, name), shadow)

        self._journal.append(_Change(directory, undo_it, shadow))

    def _open_file(self, path: Any, flags: int, mode: int = 0o644) -> int:
        if flags & os.O_CREAT and not os.path.exists(path):
            self._note(path, lambda at, _: os.unlink(at), keep=False)
        return super()._open_file(path, flags, mode)

    def _unlink(self, path: Any) -> None:
        if os.path.exists(path):
            self._note(path, lambda at, shadow: os.rename(str(shadow), at), keep=True)
        super()._unlink(path)

    def _replace(self, source: Any, target: Any) -> None:
        source, target = os.fspath(source), os.fspath(target)
        if os.path.isdir(source):
            self._note(target, lambda at, _: self._rename_directory(at, source), keep=False)
            self._rename_directory(source, target)
            return
        if not os.path.exists(source):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", source)
        name = os.path.basename(source)

        def undo(at: str, shadow: str | None) -> None:
            os.rename(at, os.path.join(os.path.dirname(at), name))
            if shadow is not None:
                os.rename(shadow, at)

        self._note(target, undo, keep=True)
        os.replace(source, target)

    def _rename_directory(self, source: str, target: str) -> None:
        os.rename(source, target)
        if source in self._directories:
            self._directories[target] = self._directories.pop(source)
            self._directories[target].path = target

    def _mkdir(self, path: Any) -> None:
        self._note(path, lambda at, _: shutil.rmtree(at), keep=False)
        os.mkdir(path)

    def _rmdir(self, path: Any) -> None:
        os.rmdir(path)
        # What is made at its path later is another directory; this one may only come back.
        gone = self._directories.pop(os.fspath(path), None)
        if gone is not None:
            gone.path = ""

        def undo(at: str, _: str | None) -> None:
            os.mkdir(at)
            if gone is not None:
                gone.path = at

        self._note(path, undo, keep=False)

    def _fsync_directory(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        directory = self._directories.get(path)
        left = []
        for change in self._journal:
            if change.directory is not directory:
                left.append(change)
            elif change.shadow is not None:
                self._forget(change.shadow)
        self._journal = left

    def _forget(self, shadow: str) -> None:
        inode = os.stat(shadow)
        if inode.st_nlink == 1:
            self._durable.pop(inode.st_ino, None)
            self._lost.pop(inode.st_ino, None)
        os.unlink(shadow)

    # --- power loss -----------------------------------------------------------------------------

    def strike(self, root: Path) -> None:
        """The power fails; its process must be dead. Unsynced names go first, then bytes."""
        assert f"{root}/" == self._root, "one disk, one root"
        random = self._world.random
        count = len(self._journal)
        kept = random.choice((0, count, random.randint(0, count)))
        for change in reversed(self._journal[kept:]):
            change.undo()
        for change in self._journal[:kept]:
            if change.shadow is not None:
                self._forget(change.shadow)
        self._journal = []
        self._directories = {}
        for path in self._files(root):
            found = os.stat(path).st_ino
            now = Path(path).read_bytes()
            after = self._mixed(self._durable.get(found, b""), now, found)
            if after != now:
                Path(path).write_bytes(after)
        self.settle(root)

    def strike_hard(self) -> None:
        """Nothing that was not synced is there afterwards. Who used it must be forgotten."""
        gc.collect()  # a dead process has no descriptors
        before, self._world.random = self._world.random, _Worst()
        self.strike(self.root)
        self._world.random = before

    def settle(self, root: Path) -> None:
        """All that is there is on the disk."""
        self._journal = []
        self._durable = {
            os.stat(path).st_ino: Path(path).read_bytes() for path in self._files(root)
        }
        self._lost = {}

    @staticmethod
    def _files(root: Path) -> Sequence[str]:
        return [
            os.path.join(directory, name)
            for directory, _, names in sorted(os.walk(root))
            for name in sorted(set(names) - {RESERVE_FILE})
        ]

    # --- descriptors ----------------------------------------------------------------------------

    def open_below_root(self) -> list[str]:
        """What this process has open here."""
        found = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                path = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue
            if path.startswith(self._root):
                found.append(path)
        return found


def _target(of: Any) -> str:
    path = os.readlink(f"/proc/self/fd/{of}") if isinstance(of, int) else os.fspath(of)
    return "/".join(str(path).split("/")[-2:])
