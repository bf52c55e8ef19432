"""Mistakes that are told before Spark starts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pipeline import preflight
from pipeline.errors import PipelineError

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
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may do everything
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
    preflight.check_source("lake", str(tmp_path))
    with pytest.raises(PipelineError, match="lake does not exist; check --from"):
        preflight.check_source("lake", str(tmp_path / "lake"))
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineError, match="lake is no directory"):
        preflight.check_source("lake", str(tmp_path / "file"))
