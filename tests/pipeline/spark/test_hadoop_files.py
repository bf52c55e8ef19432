"""Files of an archive on a disk of this machine, which are replaced without a JVM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.spark.hadoop_files import HadoopFiles
from storage import files as storage_files


@pytest.fixture
def files(tmp_path: Path) -> HadoopFiles:
    made = object.__new__(HadoopFiles)
    made.is_local = True
    made.root = f"file:{tmp_path}"
    return made


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is on the disk, by its path, and how many names a folder had then."""
    found: list[str] = []

    def note(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        found.append(f"{path} {len(os.listdir(path))}" if os.path.isdir(path) else path)

    for name in ("fsync", "fsync_directory"):
        monkeypatch.setattr(storage_files, name, note)
    return found


def test_files_are_on_the_disk_with_all_that_leads_to_them(
    files: HadoopFiles, tmp_path: Path, synced: list[str]
) -> None:
    folders = [tmp_path / "topic=t" / day for day in ("day=1", "day=2")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "a.parquet").touch()
    (folders[0] / ".a.parquet.crc").touch()
    files.sync([f"file:{folder}/a.parquet" for folder in folders])
    assert sorted(synced) == sorted([
        f"{folders[0]}/a.parquet", f"{folders[0]}/.a.parquet.crc", f"{folders[1]}/a.parquet",
        f"{folders[0]} 2", f"{folders[1]} 1", f"{tmp_path}/topic=t 2", f"{tmp_path} 1",
        f"{tmp_path.parent} {len(os.listdir(tmp_path.parent))}",
    ])  # fmt: skip
    synced.clear()
    files.is_local = False
    files.sync(["hdfs://host/lake/a.parquet"])
    assert synced == []


def test_a_replaced_file_has_its_name_on_the_disk(
    files: HadoopFiles, tmp_path: Path, synced: list[str]
) -> None:
    folder = tmp_path / "_spark_metadata"
    folder.mkdir()
    files.replace_text(f"file:{folder}/0", "v1")
    assert synced[:2] in ([f"{folder} 1", f"{tmp_path} 1"], [f"{tmp_path} 1", f"{folder} 1"])


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
