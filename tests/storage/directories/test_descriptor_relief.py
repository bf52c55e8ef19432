"""Out of descriptors: whoever keeps files open for speed gives some up, whoever asks (S-17)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage import files
from storage.open_files import OpenFileCache
from tests.storage.log_support import FaultyDisk, append, environment, make_log, read_from


class Holder:
    """Frees one descriptor the first time it is asked."""

    def __init__(self, exhausted: list[bool]) -> None:
        self._exhausted = exhausted

    def shrink(self, count: int) -> int:
        assert count > 0
        was_exhausted = self._exhausted[0]
        self._exhausted[0] = False
        return int(was_exhausted)


def test_syncing_a_directory_takes_a_descriptor_from_an_idle_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exhausted = [True]

    def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o777) -> int:
        if exhausted[0]:
            raise OSError(errno.EMFILE, "too many open files", os.fspath(path))
        return os.open(path, flags, mode)

    monkeypatch.setattr(files, "open_file", open_file)
    monkeypatch.setattr(files, "descriptor_holders", set())
    with pytest.raises(OSError, match="too many"):
        files.sync_directory(tmp_path)
    files.descriptor_holders.add(Holder(exhausted))
    files.sync_directory(tmp_path)
    assert exhausted == [False]


def test_another_failure_costs_nobody_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exhausted = [True]
    monkeypatch.setattr(files, "descriptor_holders", {Holder(exhausted)})
    with pytest.raises(FileNotFoundError):
        files.sync_directory(tmp_path / "absent")
    assert exhausted == [True]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(monkeypatch)


@pytest.mark.timeout(30)
def test_a_log_whose_own_index_asks_gives_its_descriptor(tmp_path: Path, disk: FaultyDisk) -> None:
    """It holds the index's lock while it asks: who gives way must not want it (N6)."""
    shared = environment(tmp_path, open_files=OpenFileCache(64))
    log = make_log(tmp_path / "one", env=shared)
    append(log, "a")
    append(make_log(tmp_path / "other", env=shared), "b")
    disk.fail("open_file", errno.EMFILE, only=lambda path, *_: str(path).endswith(".index"))
    log.active_segment.offset_index.flush()
    assert [record.value for record in read_from(log)] == [b"a"]
