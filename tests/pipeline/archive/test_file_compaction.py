"""Which files of an archive count after its compaction, and which are removed: no Spark."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pipeline.archive import file_compaction
from pipeline.archive.file_compaction import compact_files
from pipeline.archive.listing import data_files
from pipeline.archive.log import ArchiveLog, Description
from pipeline.archive.table import REMAINS_AGE_MS, CompactionTotals
from pipeline.errors import PipelineError
from tests.pipeline.archive.local_files import LocalFiles, data_file

MADE = Description("parquet", "day")


@pytest.fixture
def log(tmp_path: Path) -> ArchiveLog:
    """Of ten batches of a file each, so that Spark's log has its first .compact file."""
    files: Any = LocalFiles(tmp_path / "lake")
    made = ArchiveLog(files)
    for batch in range(10):
        made.commit(batch, [data_file(made, f"{batch}.parquet")], {})
    return made


def compact(log: ArchiveLog) -> CompactionTotals:
    return compact_files(None, log, MADE, 3_600_000, lambda text: None)  # type: ignore[arg-type]


def age(path: Path) -> None:
    """As old as what a killed run left, and older."""
    then_s = path.stat().st_mtime - REMAINS_AGE_MS / 1000 - 60
    os.utime(path, (then_s, then_s))


def test_two_compactions_at_a_time_leave_each_record_in_the_archive_once(
    log: ArchiveLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = count()

    def merge(*_: Any) -> list[dict[str, Any]]:
        number = next(numbers)
        if number == 0:  # while the first one merges, the other does all of it
            compact(log)
        return [data_file(log, f"merged-{number}.parquet")]

    monkeypatch.setattr(file_compaction, "_merge", merge)
    with pytest.raises(PipelineError, match="another run changed the archive's log"):
        compact(log)
    assert [Path(path).name for path in data_files(log.files.root)] == ["merged-1.parquet"]


def test_batches_that_are_archived_meanwhile_keep_nothing_from_being_merged(
    log: ArchiveLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def merge(*_: Any) -> list[dict[str, Any]]:
        for batch in range(10, 21):
            log.commit(batch, [data_file(log, f"{batch}.parquet")], {})
        return [data_file(log, "merged.parquet")]

    monkeypatch.setattr(file_compaction, "_merge", merge)
    compact(log)
    names = {Path(path).name for path in data_files(log.files.root)}
    assert names == {"merged.parquet", *(f"{batch}.parquet" for batch in range(10, 21))}


def test_what_a_batch_under_way_has_is_left_alone_whether_or_not_it_has_a_file_yet(
    log: ArchiveLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_compaction, "_small_files", lambda snapshot: [])
    own = Path(log.files.join("_barnabas"))
    begun, killed, killed_early, lasting = (
        own / f"batch-{name}" for name in ("begun", "killed", "killed-early", "lasting")
    )
    for folder in (begun, killed, killed_early, lasting):
        folder.mkdir()
    (lasting / "x.parquet").touch()
    (killed / "x.parquet").touch()
    for path in (killed / "x.parquet", killed, killed_early, lasting):
        age(path)
    compact(log)
    assert [path.exists() for path in (begun, lasting, killed, killed_early)] == [
        True, True, False, False,
    ]  # fmt: skip


def test_files_that_no_archive_makes_are_left_alone(
    log: ArchiveLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_compaction, "_small_files", lambda snapshot: [])
    own = Path(log.files.join("exports", "mine.parquet"))
    own.parent.mkdir()
    own.touch()
    data_file(log, "killed.parquet")
    for path in (own, Path(log.files.join("topic=t", "day=1", "killed.parquet"))):
        age(path)
    assert compact(log).removed == 1
    assert own.exists()


def test_who_reads_an_archive_does_not_walk_through_what_a_batch_under_way_has(
    log: ArchiveLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folders come and go: a walk that meets one that has just gone fails."""
    walk = log.files.walk
    walked: list[str] = []
    monkeypatch.setattr(log.files, "walk", lambda folder: walked.append(folder) or walk(folder))
    log.check_complete(log.snapshot())
    assert walked == [log.files.join("topic=t")]


def test_columns_that_a_run_adds_while_a_compaction_begins_are_in_the_merged_files(
    log: ArchiveLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = {"value": {"format": "avro", "type": {"struct": {"id": "bigint", "new": "string"}}}}
    log.describe(MADE)
    settle = log.settle
    seen: list[Description] = []

    def settle_slowly() -> None:
        settle()
        log.remember_typed(added)

    def merge(_spark: Any, _log: Any, _small: Any, made: Description, _: Any) -> list[Any]:
        seen.append(made)
        return [data_file(log, "merged.parquet")]

    monkeypatch.setattr(log, "settle", settle_slowly)
    monkeypatch.setattr(file_compaction, "_merge", merge)
    compact(log)
    assert [made.typed for made in seen] == [added]
