"""Files of an archive on a disk of this machine, which are replaced without a JVM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.spark.hadoop_files import HadoopFiles


@pytest.fixture
def files() -> HadoopFiles:
    made = object.__new__(HadoopFiles)
    made.is_local = True
    return made


def test_two_who_replace_a_file_at_a_time_leave_what_one_of_them_wrote(
    files: HadoopFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of `archive` and one of `--compact` name a moved archive's files anew."""
    place, sync = tmp_path / "9.compact", os.fsync

    def meanwhile(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        files.replace_text(f"file:{place}", "of the other")
        assert place.read_text() == "of the other"
        sync(fd)

    monkeypatch.setattr(os, "fsync", meanwhile)
    files.replace_text(f"file:{place}", "of the first one")
    assert place.read_text() == "of the first one"
    assert os.listdir(tmp_path) == [place.name]


def test_a_file_that_cannot_be_replaced_stays_and_nothing_beside_it(
    files: HadoopFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "archive.json"
    files.replace_text(str(place), "as it was")

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.replace_text(str(place), "as it will never be")
    assert place.read_text() == "as it was"
    assert os.listdir(tmp_path) == [place.name]
