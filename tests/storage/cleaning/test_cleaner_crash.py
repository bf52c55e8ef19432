"""Compaction killed at every call that changes a file, with and without what was not synced.

The disk of the model: a crash of the process keeps everything. A power failure keeps what was
synced; of the names that were created, moved and removed since the last sync of the directory it
keeps the first few, in their order, as file systems with a journal do.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage import files
from storage.cleaning.cleaner import LogCleaner
from storage.config import LogConfig
from storage.environment import LogEnvironment
from storage.log.partition_log import PartitionLog
from testkit.clock import ManualClock
from tests.storage.cleaning.cleaner_support import Cleaned, compacted, records, table
from tests.storage.log_support import make_log
from wire.records import Record

CONFIG = compacted(segment_bytes=1000, delete_retention_ms=0, index_interval_bytes=100)


class Crash(BaseException):
    """The process ends here: nothing it would still do is done."""


class CrashingDisk:
    """Counts the calls that change files, ends the process at one of them, and forgets."""

    NAMES = ("open_file", "pwrite", "pwritev", "ftruncate", "replace", "unlink", "fsync")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, trash: Path) -> None:
        self.crash_at = -1
        self.count = 0
        self._trash = trash
        self._trashed = 0
        self._synced: dict[int, bytes] = {}
        """What is certain of each file written to, by inode."""
        self._undo: list[Callable[[], object]] = []
        """How to take back what happened to names since the last sync of a directory."""
        self._real = {name: getattr(files, name) for name in self.NAMES}
        self._sync_directory = files.fsync_directory
        for name in self.NAMES:
            monkeypatch.setattr(files, name, getattr(self, name))
        monkeypatch.setattr(files, "fsync_directory", self.fsync_directory)

    def reset(self, crash_at: int = -1) -> None:
        self.crash_at = crash_at
        self.count = 0
        self._synced.clear()
        self._undo.clear()

    def _next_trash(self) -> Path:
        self._trashed += 1
        return self._trash / str(self._trashed)

    def _step(self) -> None:
        if 0 <= self.crash_at <= self.count:
            raise Crash
        self.count += 1

    def open_file(self, path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_CREAT and not os.path.exists(path):
            self._step()
            self._undo.append(lambda: os.path.exists(path) and os.unlink(path))
        fd: int = self._real["open_file"](path, flags, *rest)
        if flags & os.O_TRUNC:
            self._synced.setdefault(os.fstat(fd).st_ino, b"")
        return fd

    def _about_to_change(self, fd: int) -> None:
        self._step()
        inode = os.fstat(fd).st_ino
        if inode not in self._synced:
            self._synced[inode] = os.pread(fd, os.fstat(fd).st_size, 0)

    def pwrite(self, fd: int, *rest: Any) -> int:
        self._about_to_change(fd)
        written: int = self._real["pwrite"](fd, *rest)
        return written

    def pwritev(self, fd: int, *rest: Any) -> int:
        self._about_to_change(fd)
        written: int = self._real["pwritev"](fd, *rest)
        return written

    def ftruncate(self, fd: int, size: int) -> None:
        self._about_to_change(fd)
        self._real["ftruncate"](fd, size)

    def fsync(self, fd: int) -> None:
        self._step()
        self._synced.pop(os.fstat(fd).st_ino, None)

    def fsync_directory(self, fd: int) -> None:
        self._step()
        self._undo.clear()

    def replace(self, source: Any, target: Any) -> None:
        if not os.path.exists(source):
            raise FileNotFoundError(source)
        self._step()
        kept = None
        if os.path.exists(target):
            kept = self._next_trash()
            os.link(target, kept)
        self._real["replace"](source, target)

        def undo() -> None:
            os.rename(target, source)
            if kept is not None:
                os.rename(kept, target)

        self._undo.append(undo)

    def unlink(self, path: Any) -> None:
        if not os.path.exists(path):
            raise FileNotFoundError(path)
        self._step()
        kept = self._next_trash()
        os.rename(path, kept)
        self._undo.append(lambda: os.rename(kept, path))

    def power_failure(self, directory: Path, names_kept: int) -> None:
        """Forget what was not synced but the first `names_kept` changes of names."""
        for undo in reversed(self._undo[names_kept:]):
            undo()
        for path in directory.rglob("*"):
            if path.is_file() and path.stat().st_ino in self._synced:
                path.write_bytes(self._synced[path.stat().st_ino])

    @property
    def names_changed(self) -> int:
        return len(self._undo)


def prepare(root: Path) -> tuple[dict[bytes, bytes], list[Record]]:
    """A log that was cleaned before and is dirty again, all on disk; what its readers know."""
    one = Cleaned(root, CONFIG)
    for number in range(40):
        key = b"k%d" % (number * 7 % 11)
        one.append((key, None if number % 5 == 0 else b"first %d" % number), codec=number % 3)
        if number % 9 == 0:
            one.append(
                (b"p", b"%d" % number),
                producer_id=5,
                producer_epoch=0,
                base_sequence=number // 9,
            )
        if number == 20:
            assert one.clean()
            one.clock.ms += 10
    one.roll()
    one.append((b"last", b"in the active segment"))
    one.log.update_high_watermark(one.log.log_end_offset)
    one.log.flush()
    one.log.close()
    rows = records(one.log)
    return table(rows), rows


def open_again(root: Path) -> tuple[PartitionLog, LogCleaner]:
    clock = ManualClock()
    clock.ms = 20
    environment = LogEnvironment(root, clock=clock)
    environment.checkpoints.read()
    log = make_log(root, CONFIG, environment)
    log.update_high_watermark(log.log_end_offset)
    return log, LogCleaner(lambda: [log], clock)


def check(root: Path, known: dict[bytes, bytes], before: list[Record], what: str) -> None:
    log, cleaner = open_again(root)
    names = os.listdir(log.directory)
    left = [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
    assert left == [], what
    for may_clean in (True, False):
        rows = records(log)
        assert table(rows) == known, what
        assert log.log_end_offset == before[-1].offset + 1, what
        originals = {row.offset: row for row in before}
        assert all(originals[row.offset] == row for row in rows), what
        producer = log.producer_state.producer(5)
        assert producer is not None, what
        assert producer.last_sequence == 4, what
        if may_clean:
            cleaner.clean_filthiest()
    assert not log.is_offline, what
    assert not cleaner.uncleanable, what


def cut(root: Path, disk: CrashingDisk, crash_at: int) -> bool:
    """Clean until the crash; False if it never came."""
    disk.reset()
    log, cleaner = open_again(root)
    log.flush()
    disk.reset(crash_at)
    try:
        assert cleaner.clean_filthiest()
    except Crash:
        return True
    return False


@pytest.mark.parametrize("part", [None, 0.0, 0.5, 1.0])
def test_a_stop_at_any_step_loses_and_revives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: float | None
) -> None:
    """A killed process (None) loses nothing that it wrote. A power failure loses what was not
    synced and keeps this part of the changes of names since the last sync of the directory."""
    known, before = prepare(tmp_path / "original")
    trash = tmp_path / "trash"
    trash.mkdir()
    disk = CrashingDisk(monkeypatch, trash)
    root = tmp_path / "crashed"
    for step in itertools.count():
        shutil.copytree(tmp_path / "original", root)
        is_cut = cut(root, disk, step)
        if is_cut and part is not None:
            disk.power_failure(root, int(disk.names_changed * part))
        disk.reset()
        check(root, known, before, f"stopped at step {step}")
        if not is_cut:
            break
        shutil.rmtree(root)
        for path in trash.iterdir():
            path.unlink()
    assert step > 50, "the cleaning must rewrite several groups of segments"


def test_a_cleaned_log_is_whole_after_a_crash_when_nothing_is_noted_of_it(tmp_path: Path) -> None:
    """No checkpoint tells that anything is synced, and the topic is not compacted any more: what
    the cleaner removed is not taken for lost."""
    log = Cleaned(tmp_path, compacted(segment_bytes=400, delete_retention_ms=0))
    for number in range(60):
        log.append((b"key-%d" % (number * number % 50), b"value %d" % number))
    assert log.clean()
    before = records(log.log)
    assert len(before) < 60
    assert len(log.log.segments) > 4
    recovered = make_log(tmp_path, LogConfig(segment_bytes=400))
    assert records(recovered) == before
