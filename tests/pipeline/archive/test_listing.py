"""Which files of an archive count, read from its log without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.archive.listing import data_files, plain_path, relative, topics
from pipeline.spark.hadoop_files import local_path


def log(lake: Path, name: str, *paths: str) -> None:
    folder = lake / "_spark_metadata"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": path, "size": 1, "action": "add"}) for path in paths]
    (folder / name).write_text("\n".join(["v1", *lines]))


def test_what_no_batch_lists_does_not_count_nor_does_what_compaction_replaced(
    tmp_path: Path,
) -> None:
    lake = tmp_path / "lake"
    state = f"file://{lake}/_barnabas/state"
    log(lake, "8", f"file://{lake}/topic=a%20b/day=1/old.parquet", f"{state}/8-x.json")
    log(lake, "9.compact", f"file://{lake}/topic=a%20b/day=1/new.parquet", f"{state}/9-x.json")
    log(lake, "10", f"file://{lake}/topic=c/day=2/next.parquet", f"{state}/10-x.json")
    (lake / "_spark_metadata" / ".11.tmp").write_text("v1\nhalf a")
    found = [f"{lake}/topic=a b/day=1/new.parquet", f"{lake}/topic=c/day=2/next.parquet"]
    assert data_files(str(lake)) == found


def test_topics_are_those_of_files_and_of_the_last_state(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    log(lake, "0", f"file://{lake}/topic=a/day=1/x.parquet", f"{lake}/_barnabas/state/0-x.json")
    log(lake, "1", f"file://{lake}/topic=b/day=1/x.parquet", f"{lake}/_barnabas/state/1-x.json")
    (lake / "_barnabas" / "state").mkdir(parents=True)
    (lake / "_barnabas" / "state" / "1-x.json").write_text('{"topics": {"a": {}, "empty": {}}}')
    assert topics(str(lake)) == ({"a", "b"}, {"a", "b", "empty"})
    by_segments = tmp_path / "by-segments"
    log(by_segments, "0", f"file://{by_segments}/topic=a/day=1/x.parquet")
    assert topics(str(by_segments)) == ({"a"}, {"a"})


def test_a_moved_archive_is_read_where_it_is(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    log(lake, "0", "file:///elsewhere/topic=a/day=1/x.parquet")
    assert data_files(str(lake)) == [f"{lake}/topic=a/day=1/x.parquet"]


@pytest.mark.parametrize("root", ["file:/data", "file:/data/lake", "file:/data/lake/copy"])
def test_an_archive_that_was_copied_into_the_folder_above_is_not_the_original(root: str) -> None:
    for below in ("topic=a/day=1/x.parquet", "_barnabas/state/0-x.json"):
        assert relative({"path": f"file:///data/lake/{below}"}, root) == below
        assert relative({"path": f"/{below}"}, "/") == below


def test_other_directories_and_logs_with_holes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no archive of Parquet or ORC"):
        data_files(str(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is no archive of Parquet or ORC"):
        data_files(str(tmp_path / "file"))
    lake = tmp_path / "lake"
    log(lake, "0", "file:///elsewhere/topic=a/day=1/x.parquet")
    log(lake, "2", "file:///elsewhere/topic=a/day=1/y.parquet")
    with pytest.raises(ValueError, match="lacks batches; copy it again in full"):
        data_files(str(lake))
    log(lake, "1", "file:///elsewhere/x.parquet")
    with pytest.raises(ValueError, match="which is no file of an archive"):
        data_files(str(lake))


def test_paths_of_the_log_are_urls() -> None:
    assert plain_path("file:///lake/topic=a%20b/x.parquet") == "file:/lake/topic=a b/x.parquet"
    assert plain_path("hdfs://host:8020/lake/x") == "hdfs://host:8020/lake/x"


def test_paths_of_sparks_log_are_urls() -> None:
    assert plain_path("file:///lake/topic=a%20b/x.parquet") == "file:/lake/topic=a b/x.parquet"
    assert plain_path("hdfs://host:8020/lake/x") == "hdfs://host:8020/lake/x"
    assert local_path("file:/a/b") == local_path("file:///a/b") == "/a/b"
