"""Mistakes that are told before Spark starts."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pipeline import preflight
from pipeline.archive import listing
from pipeline.archive.log import ArchiveLog
from pipeline.cli import run_command
from pipeline.errors import PipelineError
from pipeline.segments import segments
from pipeline.spark import kafka_admin, session
from tests.pipeline.archive.local_files import LocalFiles

MADE_AS = ("parquet", "topic")


@pytest.fixture(autouse=True)
def no_hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)


def test_a_path_is_of_this_machine_unless_something_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert preflight.local_directory("lake", None, {}) == os.path.abspath("lake")
    assert preflight.local_directory("/lake", "local[2]", {}) == "/lake"
    assert preflight.local_directory("file:///lake", "spark://host:7077", {}) == "/lake"
    assert preflight.local_directory("s3a://bucket/lake", None, {}) is None
    assert preflight.local_directory("/lake", "spark://host:7077", {}) is None
    assert preflight.local_directory("/lake", None, {"spark.hadoop.fs.defaultFS": "hdfs:"}) is None
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert preflight.local_directory("/lake", None, {}) is None


def test_an_archive_may_be_made_below_a_directory_that_is_there(tmp_path: Path) -> None:
    preflight.check_target("lake", str(tmp_path / "not" / "yet"), MADE_AS)


def test_an_archive_cannot_be_made_below_a_file_or_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        with pytest.raises(PipelineError, match=f"{name} is no directory; choose another --to"):
            preflight.check_target("lake", str(tmp_path / name / "lake"), MADE_AS)


def test_a_directory_that_cannot_be_written_or_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(dir: str) -> None:  # root may do everything
        raise PermissionError(errno.EACCES, "Permission denied", dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PipelineError, match="cannot be written; check who owns it"):
        preflight.check_target("lake", str(tmp_path / "lake"), MADE_AS)
    with pytest.raises(PipelineError, match="lake cannot be read; check who owns it"):
        preflight.check_source("lake", str(tmp_path))


def test_an_archive_goes_on_as_it_was_made_only(tmp_path: Path) -> None:
    (tmp_path / "_barnabas").mkdir()
    described = tmp_path / "_barnabas" / "archive.json"
    described.write_text(json.dumps({"format": "parquet", "partition_by": "date"}))
    preflight.check_target("lake", str(tmp_path), ("parquet", "date"))
    with pytest.raises(PipelineError, match="--format parquet --partition-by date; give the same"):
        preflight.check_target("lake", str(tmp_path), MADE_AS)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{"])
def test_what_only_spark_can_judge_is_left_to_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "_barnabas").mkdir()
    (tmp_path / "_barnabas" / "archive.json").write_text(text)
    preflight.check_target("lake", str(tmp_path), MADE_AS)


def test_a_source_is_a_directory_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="lake does not exist; check --from"):
        preflight.check_source("lake", str(tmp_path / "lake"))
    with pytest.raises(PipelineError, match="lake does not exist; check --to"):
        preflight.check_source("lake", str(tmp_path / "lake"), "--to")
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineError, match="lake is no directory"):
        preflight.check_source("lake", str(tmp_path / "file"))


def test_a_directory_of_other_things_is_told_and_one_that_a_kill_left_is_not(
    tmp_path: Path,
) -> None:
    lake = tmp_path / "lake"
    preflight.check_empty("lake", str(lake))
    (lake / listing.OWN).mkdir(parents=True)
    (lake / listing.OWN / ".archive.json.tmp").touch()
    preflight.check_empty("lake", str(lake))
    (lake / "photo").touch()
    with pytest.raises(PipelineError, match=r"lake already holds other files \(photo, ...\)"):
        preflight.check_empty("lake", str(lake))
    (lake / listing.METADATA).mkdir()
    with pytest.raises(PipelineError, match="an archive of another program"):
        preflight.check_empty("lake", str(lake))
    (lake / preflight.DESCRIPTION).touch()
    preflight.check_empty("lake", str(lake))


def test_what_a_kill_left_is_removed_only_where_nothing_else_is(tmp_path: Path) -> None:
    """As the rest of a disk's only copy that was put beside it since."""
    names = ("_barnabas", "_spark_metadata", "topic=orders", "topic=gone")
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(PipelineError, match=r"is not empty; choose an empty directory"):
        preflight.check_new("lake", str(tmp_path))
    (tmp_path / preflight.UNFINISHED).touch()
    preflight.check_new("lake", str(tmp_path))
    (tmp_path / "rest-of-the-disk").mkdir()
    with pytest.raises(PipelineError, match=r"is not empty \(rest-of-the-disk, ...\); choose"):
        preflight.check_new("lake", str(tmp_path))
    files: Any = LocalFiles(tmp_path)
    with pytest.raises(PipelineError, match=r"is not empty \(rest-of-the-disk, ...\); choose"):
        segments._make_room(files, ArchiveLog(files))
    (tmp_path / "rest-of-the-disk").rmdir()
    segments._make_room(files, ArchiveLog(files))
    assert os.listdir(tmp_path) == []


def test_an_archive_is_not_written_into_the_directory_of_a_broker(tmp_path: Path) -> None:
    data, orders = tmp_path / "data", tmp_path / "data" / "orders-0"
    orders.mkdir(parents=True)
    preflight.check_new("lake", str(orders / "lake"))
    (data / "meta.properties").touch()
    for lake in (data, data / "lake", orders / "not" / "yet"):
        with pytest.raises(PipelineError, match=rf"lake lies in {data}, which is the directory of"):
            preflight.check_new("lake", str(lake))
        with pytest.raises(PipelineError, match="choose another --to"):
            preflight.check_target("lake", str(lake), MADE_AS)
    preflight.check_new("lake", str(tmp_path / "lake"))


def test_a_directory_without_an_archive_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="lake is no archive: it holds no _spark_metadata"):
        preflight.check_source("lake", str(tmp_path))
    (tmp_path / listing.METADATA).mkdir()  # of an archive whose description was lost
    preflight.check_source("lake", str(tmp_path))


def test_a_table_of_iceberg_that_was_moved_is_told_without_spark(tmp_path: Path) -> None:
    lake = tmp_path / "my lake"
    for folder in ("_barnabas", "metadata"):
        (lake / folder).mkdir(parents=True)
    made = {"format": "iceberg", "partition_by": "day"}
    (lake / preflight.DESCRIPTION).write_text(json.dumps(made))
    preflight.check_source("lake", str(lake))  # without a table: killed before its first batch
    (lake / "metadata" / "version-hint.text").write_text("3\n")
    table = lake / "metadata" / "v3.metadata.json"
    for place in (lake, f"file:{lake}", f"file://{lake}"):
        table.write_text(json.dumps({"location": str(place)}))
        preflight.check_source("lake", str(lake))
    (tmp_path / "link").symlink_to(lake)
    preflight.check_source("link", str(tmp_path / "link"))
    for elsewhere in ("s3://bucket/lake", "hdfs://name/lake"):
        table.write_text(json.dumps({"location": elsewhere}))
        preflight.check_source("lake", str(lake))
    table.write_text(json.dumps({"location": f"file:{tmp_path}/old"}))
    with pytest.raises(PipelineError, match="lake was moved or copied from file:"):
        preflight.check_source("lake", str(lake))
    with pytest.raises(PipelineError, match="has whole paths in it"):
        preflight.check_target("lake", str(lake), ("iceberg", "day"))


def test_topics_are_asked_of_a_broker_that_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_topics", lambda *_: ["__consumer_offsets", "orders"])
    preflight.check_topics("b:1", ["orders"], {}, "ord.*")
    with pytest.raises(PipelineError, match="no topic a on b:1; there are: orders"):
        preflight.check_topics("b:1", ["orders", "a"], {})
    with pytest.raises(PipelineError, match="no topic of b:1 matches 'rd'; there are: orders"):
        preflight.check_topics("b:1", [], {}, "rd")
    monkeypatch.setattr(preflight, "_topics", lambda *_: None)
    preflight.check_topics("b:1", ["a"], {}, "rd")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["archive", "--compact", "--to"], "is no archive"),
        (["profile", "--topic", "t", "--from"], "is no archive"),
    ],
)
def test_a_directory_without_an_archive_is_told_before_spark_starts(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(session, "open_session", lambda *_, **__: pytest.fail("Spark started"))
    assert run_command([*arguments, str(tmp_path)]) == 1
    assert told in capsys.readouterr().err


def test_the_grace_of_a_compaction_is_refused_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "open_session", lambda *_, **__: pytest.fail("Spark started"))
    flags = ["--bootstrap", "b:1", "--topics", "t", "--to", "lake", "--grace", "0s"]
    assert run_command(["archive", *flags]) == 2
    assert "--grace goes with --compact" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["replay", "--bootstrap", "b:1"], "holds a, b, but no typo; --topic picks one"),
        (["profile"], "holds no records of typo; there are: a, b"),
    ],
)
def test_a_topic_that_is_not_archived_is_told_before_spark_starts(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "_barnabas").mkdir()
    made = {"format": "parquet", "partition_by": "day"}
    (tmp_path / preflight.DESCRIPTION).write_text(json.dumps(made))
    (tmp_path / listing.METADATA).mkdir()
    lines = [json.dumps({"path": f"/topic={name}/x.parquet", "action": "add"}) for name in "ab"]
    (tmp_path / listing.METADATA / "0").write_text("\n".join(["v1", *lines]))
    monkeypatch.setattr(kafka_admin, "check_reachable", lambda *_: None)
    monkeypatch.setattr(session, "open_session", lambda *_, **__: pytest.fail("Spark started"))
    assert run_command([*arguments, "--from", str(tmp_path), "--topic", "typo"]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("command", ["segments", "profile", "rescue"])
def test_a_broker_s_directory_that_may_not_be_read_is_one_line(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(path: object = ".") -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setattr(os, "listdir", refused)  # root may do everything
    monkeypatch.setattr(os, "scandir", refused)
    options = ["--to", str(tmp_path / "lake")] if command == "rescue" else ["--topic", "orders"]
    assert run_command([command, str(data), *options]) == 1
    told = capsys.readouterr().err
    assert told == f"barnabas: {data}: Permission denied; check who owns it\n"


def test_a_reader_of_the_pipe_that_has_gone_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(session, "open_session", gone)
    monkeypatch.setattr(segments, "plan_segments", lambda _: [])
    with capsys.disabled():  # what is left of the real standard output is dropped
        code = run_command(["segments", str(tmp_path), "--topic", "orders"])
    assert code == 0
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system nobody writes to")
def test_a_file_system_that_takes_no_files_is_seen_whoever_asks() -> None:
    with pytest.raises(PipelineError, match=r"/proc cannot be written|permission denied: /proc"):
        preflight.check_target("/proc/lake", "/proc/lake", MADE_AS)
