"""The log that says which files of an archive count: its files, their order, and what may be wrong
with them. No Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.sql import functions

from pipeline.archive import log as archive_log
from pipeline.archive.listing import READ_TRIES
from pipeline.archive.log import (
    ArchiveLog,
    Description,
    LoggedFile,
    land,
    open_archive,
    read_files,
    topic_of,
)
from pipeline.archive.state import ArchivedTopic
from pipeline.errors import PipelineError
from tests.pipeline.archive.local_files import LocalFiles, data_file


@pytest.fixture
def files(tmp_path: Path) -> Any:
    return LocalFiles(tmp_path / "lake")


@pytest.fixture
def log(files: Any) -> ArchiveLog:
    return ArchiveLog(files)


def commit(log: ArchiveLog, *batches: int) -> None:
    """A file and a state each."""
    for batch in batches:
        state = {"t": ArchivedTopic("A", 0, (batch + 1,))}
        log.commit(batch, [data_file(log, f"{batch}.parquet")], state)


def names(log: ArchiveLog) -> list[str]:
    return [file.relative.rpartition("/")[2] for file in log.snapshot().files]


def metadata(log: ArchiveLog) -> Path:
    return Path(log.files.root, "_spark_metadata")


def test_every_tenth_file_of_the_log_lists_all_and_those_before_the_last_but_one_go(
    log: ArchiveLog,
) -> None:
    assert not log.exists()
    assert log.snapshot().latest_batch == -1
    commit(log, *range(9))
    assert log.exists()
    snapshot = log.snapshot()
    assert (snapshot.latest_batch, snapshot.compact_name, snapshot.compacted) == (8, None, [])
    commit(log, *range(9, 21))
    assert sorted(path.name for path in metadata(log).iterdir()) == sorted(
        ["9.compact", *map(str, range(10, 19)), "19.compact", "20"]
    )
    snapshot = log.snapshot()
    assert (snapshot.latest_batch, snapshot.compact_name) == (20, "19.compact")
    assert names(log) == [f"{batch}.parquet" for batch in range(21)]
    assert [file.relative for file in snapshot.compacted] == [
        f"topic=t/day=1/{batch}.parquet" for batch in range(20)
    ]
    assert len(snapshot.compact_entries) == 21, "and the state"
    assert log.state(snapshot)["t"].offsets == (21,)
    states = Path(log.files.root, "_barnabas/state")
    assert {path.name.partition("-")[0] for path in states.iterdir()} == set(map(str, range(9, 21)))


def test_what_is_among_the_states_and_is_none_stays(log: ArchiveLog) -> None:
    commit(log, *range(12))
    stray = Path(log.files.root, "_barnabas/state/of a person")
    stray.touch()
    commit(log, *range(12, 20))
    assert stray.exists()


def test_a_batch_is_committed_once(log: ArchiveLog) -> None:
    commit(log, 0)
    with pytest.raises(PipelineError, match="another run"):
        log.commit(0, [data_file(log, "of another.parquet")], {})
    assert names(log) == ["0.parquet"]


def test_a_log_with_a_hole_is_half_of_one(log: ArchiveLog) -> None:
    commit(log, *range(12))
    (metadata(log) / "10").unlink()
    with pytest.raises(PipelineError, match=r"half-written archive: .* lacks batch 10 of 11;"):
        log.snapshot()


@pytest.mark.parametrize("text", ["v2\n", "", "v1\nno json", 'v1\n{"action":"add","path":"/x"}'])
def test_a_file_of_the_log_that_cannot_be_read_is_named(log: ArchiveLog, text: str) -> None:
    commit(log, 0)
    (metadata(log) / "1").write_text(text)
    with pytest.raises(PipelineError):
        log.snapshot()


@pytest.mark.parametrize("times", [1, READ_TRIES - 1, READ_TRIES])
def test_a_log_that_is_compacted_while_it_is_read_is_read_again(
    log: ArchiveLog, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    commit(log, 0)
    plain, left = log.files.read_text, [times]

    def read_text(path: str) -> str:
        if left[0]:
            left[0] -= 1
            raise OSError("java.io.FileNotFoundException")
        return plain(path)

    monkeypatch.setattr(log.files, "read_text", read_text)
    if times == READ_TRIES:
        with pytest.raises(OSError, match="FileNotFound"):
            log.snapshot()
    else:
        assert names(log) == ["0.parquet"]


def test_another_failure_is_not_tried_again(
    log: ArchiveLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(log, 0)
    asked: list[str] = []

    def read_text(path: str) -> str:
        asked.append(path)
        raise OSError("Permission denied")

    monkeypatch.setattr(log.files, "read_text", read_text)
    with pytest.raises(OSError, match="Permission denied"):
        log.snapshot()
    assert len(asked) == 1


def test_an_archive_is_complete_when_each_file_is_there_with_its_size(log: ArchiveLog) -> None:
    commit(log, 0, 1, 2)
    Path(log.files.root, "topic=t/day=1/unlisted.parquet").touch()
    log.check_complete(log.snapshot())
    Path(log.files.root, "topic=t/day=1/1.parquet").write_text("1.parque")
    expected = r"1 of the 3 files .* missing or cut short \(the first: topic=t/day=1/1.parquet\)"
    with pytest.raises(PipelineError, match=expected):
        log.check_complete(log.snapshot())
    Path(log.files.root, "topic=t/day=1/0.parquet").unlink()
    with pytest.raises(PipelineError, match=r"2 of the 3 files .* \(the first: .*/0.parquet\)"):
        log.check_complete(log.snapshot())


def test_present_is_what_lies_in_folders_that_are_not_our_own(log: ArchiveLog) -> None:
    commit(log, 0)
    for folder in (".hidden", "_temporary", "day=none"):
        Path(log.files.root, folder).mkdir()
        Path(log.files.root, folder, "x.parquet").touch()
    found = {Path(info.path).name for info in log.present()}
    assert found == {"0.parquet", "x.parquet"}
    assert len(log.present()) == 2


# ---- the state


def test_a_batch_without_a_state_leads_to_the_one_before(log: ArchiveLog) -> None:
    commit(log, 0)
    log.commit(1, [data_file(log, "1.parquet")], None)
    assert log.state(log.snapshot())["t"].offsets == (1,)
    assert names(log) == ["0.parquet", "1.parquet"]
    lines = [json.loads(line) for line in (metadata(log) / "0").read_text().splitlines()[1:]]
    assert [line["isDir"] for line in lines] == [False, True], "Spark's readers leave it out"


def test_a_new_archive_has_an_empty_state_and_one_without_any_cannot_go_on(
    log: ArchiveLog,
) -> None:
    assert log.state(log.snapshot()) == {}
    log.commit(0, [data_file(log, "0.parquet")], None)
    for _ in range(2):
        with pytest.raises(PipelineError, match="does not know up to which offsets"):
            log.state(log.snapshot())
        log.describe(Description("parquet", "day"))


@pytest.mark.parametrize("place", ["where it was", "_checkpoint"])
def test_an_archive_of_earlier_versions_has_its_state_in_a_checkpoint(
    log: ArchiveLog, place: str
) -> None:
    log.commit(0, [data_file(log, "0.parquet")], None)
    content = {
        "format": "parquet",
        "partition_by": "day",
        "checkpoint": log.files.join("where it was"),
    }
    log.files.replace_text_in_new_folder(
        log.files.join("_barnabas/archive.json"), json.dumps(content)
    )
    with pytest.raises(PipelineError, match="does not know up to which offsets"):
        log.state(log.snapshot())
    text = 'v1\n{"batchWatermarkMs":0}\n{"orders":{"0":10}}'
    log.files.replace_text_in_new_folder(log.files.join(place, "offsets/0"), text)
    assert log.state(log.snapshot()) == {"orders": ArchivedTopic(None, 0, (10,))}


# ---- a moved archive


def test_the_files_of_a_moved_archive_are_named_where_they_are_now(
    log: ArchiveLog, tmp_path: Path
) -> None:
    commit(log, *range(11))
    moved_to = tmp_path / "a lake"
    shutil.move(log.files.root, moved_to)
    files: Any = LocalFiles(moved_to)
    moved = ArchiveLog(files)
    assert names(moved) == [f"{batch}.parquet" for batch in range(11)]
    before = {path.name: path.read_text() for path in metadata(moved).iterdir()}
    assert all(f"{tmp_path}/lake/" in text for text in before.values())
    moved.settle()
    after = {path.name: path.read_text() for path in metadata(moved).iterdir()}
    assert after.keys() == before.keys()
    assert all(f"{tmp_path}/a%20lake/" in text for text in after.values())
    assert not any(f"{tmp_path}/lake/" in text for text in after.values())
    assert moved.state(moved.snapshot())["t"].offsets == (11,)


def test_an_archive_that_lies_where_it_was_is_not_written(
    log: ArchiveLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(log, 0)
    monkeypatch.setattr(log, "replace_compact", None)
    log.settle()


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("file:/a b/x", "file:///a%20b/x"),
        ("hdfs://host:8020/a b", "hdfs://host%3A8020/a%20b"),
        ("/a b/x:y", "/a%20b/x%3Ay"),
    ],
)
def test_paths_are_urls_in_the_log(path: str, url: str) -> None:
    assert archive_log._as_url(path) == url


# ---- what is known of an archive


def test_an_archive_knows_how_it_was_made_and_keeps_its_id(log: ArchiveLog) -> None:
    assert log.description() is None
    log.describe(Description("orc", "hour", typed={"value": "json"}))
    made = log.description()
    assert made is not None
    assert (made.format, made.partition_by, made.checkpoint) == ("orc", "hour", None)
    assert made.typed == {"value": "json"}
    assert made.id
    assert made.folders == ["topic", "day", "hour"]
    assert Description("orc", "day").folders == ["topic", "day"]
    log.remember_typed({"value": "avro"})
    again = log.description()
    assert again is not None
    assert (again.id, again.format, again.typed) == (made.id, "orc", {"value": "avro"})


def test_what_is_known_already_is_not_written_again(
    log: ArchiveLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.describe(Description("parquet", "day", typed={"value": "json"}))
    monkeypatch.setattr(log.files, "replace_text", None)
    log.remember_typed({"value": "json"})


@pytest.mark.parametrize("text", ["no json", '{"format": "orc"}', "[]"])
def test_a_damaged_description_is_named(log: ArchiveLog, text: str) -> None:
    path = log.files.join("_barnabas/archive.json")
    log.files.replace_text_in_new_folder(path, text)
    with pytest.raises(PipelineError, match=r"archive\.json is damaged; restore it from a copy"):
        log.description()


# ---- landing


def test_landed_files_lie_in_the_archives_folders_and_on_the_disk_and_count_for_nothing(
    log: ArchiveLog,
) -> None:
    scratch = log.files.join("_barnabas", "batch-1")
    for name in (
        "topic=b/day=2/p.orc",
        "topic=a/day=1/p.parquet",
        "topic=a/day=1/.p.crc",
        "_SUCCESS",
    ):
        log.files.replace_text_in_new_folder(f"{scratch}/{name}", name)
    landed = land(log.files, scratch, "compact-1-")
    assert [(file.relative, file.size) for file in landed] == [
        ("topic=a/day=1/compact-1-p.parquet", 23),
        ("topic=b/day=2/compact-1-p.orc", 19),
    ]
    synced: Any = log.files
    assert synced.synced == [log.files.join(file.relative) for file in landed]
    assert not Path(scratch).exists()
    assert all(
        file.entry
        == {
            "path": quote(log.files.join(file.relative)), "size": file.size, "isDir": False,
            "modificationTime": log.files.info(log.files.join(file.relative)).modified_ms,
            "blockReplication": 1, "blockSize": 1, "action": "add",
        }
        for file in landed
    )  # fmt: skip
    assert not log.exists()
    assert land(log.files, log.files.join("_barnabas", "nothing")) == []


def test_a_file_has_the_topic_of_its_folder() -> None:
    file = LoggedFile("topic=or-ders/day=1/hour=2/x.parquet", 1, {})
    assert (topic_of(file), file.folder) == ("or-ders", "topic=or-ders/day=1/hour=2")
    assert not file.is_state
    assert LoggedFile("_barnabas/state/0-1.json", 1, {}).is_state


# ---- opening


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_log, "HadoopFiles", lambda spark, root: LocalFiles(Path(root)))


@pytest.mark.usefixtures("opened")
def test_a_directory_that_is_no_archive_or_half_of_one_is_told_apart(
    log: ArchiveLog, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=r"lake does not exist; check --from"):
        open_archive(None, log.files.root)
    Path(log.files.root).mkdir()
    with pytest.raises(PipelineError, match="lake is no archive: it holds no _spark_metadata"):
        open_archive(None, log.files.root)
    log.describe(Description("parquet", "day"))
    with pytest.raises(PipelineError, match=r"half-written .*: no batch of .*lake is complete"):
        open_archive(None, log.files.root)
    commit(log, 0)
    _, snapshot, made = open_archive(None, log.files.root)
    assert (snapshot.latest_batch, made.format) == (0, "parquet")
    Path(log.files.root, "topic=t/day=1/0.parquet").unlink()
    with pytest.raises(PipelineError, match="1 of the 1 files"):
        open_archive(None, log.files.root)


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize(
    ("folder", "name", "made"),
    [
        ("topic=t/day=1", "x.parquet", Description("parquet", "day")),
        ("topic=t/day=1/hour=2", "x.orc", Description("orc", "hour")),
        (None, "", Description("parquet", "day")),
    ],
)
def test_how_an_archive_was_made_is_told_by_its_files_where_the_description_is_lost(
    log: ArchiveLog, folder: str | None, name: str, made: Description
) -> None:
    log.commit(0, [data_file(log, name, folder)] if folder else [], {})
    assert open_archive(None, log.files.root)[2] == made


class Reader:
    """As much of Spark's as reading files takes, and how it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.read = self

    def createDataFrame(self, rows: list[Any], schema: str) -> str:  # noqa: N802 - Spark's
        self.asked.append(("empty", rows, schema))
        return "no rows"

    def __getattr__(self, name: str) -> Any:
        def note(*arguments: Any) -> Reader:
            self.asked.append((name, *arguments))
            return self

        return note


@pytest.mark.parametrize(("partition_by", "hour"), [("day", ""), ("hour", ", hour string")])
def test_files_are_read_by_their_names_and_with_their_folders(
    log: ArchiveLog, partition_by: str, hour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "expr", lambda text: text)
    reader = Reader()
    made = Description("orc", partition_by, typed=None)
    columns = archive_log.ARCHIVE_SCHEMA + hour
    assert read_files(reader, log, [], made) == "no rows"
    assert ("empty", [], columns) in reader.asked
    reader = Reader()
    assert read_files(reader, log, [LoggedFile("topic=t/day=*/x.orc", 1, {})], made) is reader
    assert reader.asked == [
        ("schema", columns),
        ("option", "basePath", log.files.root),
        ("option", "__globPaths__", "false"),
        ("format", "orc"),
        ("load", [log.files.join("topic=t/day=*/x.orc")]),
        ("withColumn", "generation", "coalesce(generation, 0)"),
    ]
    spark: Any = Reader()
    assert archive_log.empty_archive(spark, made) == "no rows"  # type: ignore[comparison-overlap]
    assert spark.asked == [("empty", [], columns)]
