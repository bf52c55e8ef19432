"""The parts that travel to executors, against the broker's own codec; no Spark, no broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.archive.listing import plain_path
from pipeline.errors import PipelineError, explain
from pipeline.progress import table
from pipeline.replay.replay import target_names
from pipeline.replay.task import COLUMNS, chunks_of
from pipeline.sink.pieces import Place
from pipeline.spark import session
from pipeline.spark.hadoop_files import local_path


def test_batches_are_cut_where_a_slot_ends_and_rows_know_their_places() -> None:
    big = 2**63 - 1

    def rows(*these: tuple[Any, ...]) -> Any:
        kinds = (pa.string(), pa.int32(), pa.int32(), pa.int64(), pa.int64(), pa.int32(),
                 pa.binary(), pa.binary(),
                 pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
                 pa.timestamp("us", tz="UTC"))  # fmt: skip
        arrays = [pa.array(column, kind) for column, kind in zip(zip(*these), kinds)]  # noqa: B905
        return pa.RecordBatch.from_arrays(arrays, list(COLUMNS))

    def row(topic: str, source: int, generation: int, offset: int, total: int) -> tuple[Any, ...]:
        key = None if offset % 2 else b"k"
        return (topic, source, generation, offset, total, None, key, b"v%d" % offset,
                [{"key": "h", "value": None}] if offset == 9 else None, offset * 1000)  # fmt: skip

    batches = [
        rows(row("a", 0, 0, 5, big), row("a", 0, 0, 9, big), row("a", 0, 1, 2, -1),
             row("a", 1, 0, 0, 7)),
        rows(row("a", 1, 0, 1, 7), row("b", 1, 0, 1, 7)),
        rows(row("b", 1, 0, 3, 7)),
    ]  # fmt: skip
    chunks = list(chunks_of(iter(batches)))
    assert [(chunk.slot, len(chunk)) for chunk in chunks] == [
        (("a", 0), 3), (("a", 1), 1), (("a", 1), 1), (("b", 1), 1), (("b", 1), 1),
    ]  # fmt: skip
    first = chunks[0]
    assert [first.up_to(Place(*to)) for to in ((0, 5), (0, 6), (0, 10), (1, 2), (1, 3))] == [
        0, 1, 2, 2, 3,
    ]  # fmt: skip
    before = Place(0, 4, 10, 2**64 - 1)
    assert first.place(before, 0, 2) == Place(0, 10, 12, (2**64 - 1 + 2 * big) % 2**64)
    assert first.place(before, 0, 3) == Place(1, 3, 13, (2**64 - 2 + 2 * big) % 2**64)
    assert list(first.rows(1, 3)) == [
        ("a", None, None, b"v9", [("h", None)], 9),
        ("a", None, b"k", b"v2", None, 2),
    ]
    assert first.size(1, 3) == 2 + 3


def test_what_a_person_configured_for_spark_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# a cluster\nspark.master   spark://head:7077\nspark.ui.enabled=true\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS", "--conf spark.a='b c' --packages org:avro:1 pyspark-shell"
    )
    configured = session._configured()
    made = session._settings(configured, {"spark.sql.x": "1"}, None, session._packages(True, ()))
    assert made["spark.master"] == "spark://head:7077"
    assert "spark.ui.enabled" not in made
    assert made["spark.jars.packages"] == f"org:avro:1,{session.connector()}"
    assert configured["spark.a"] == "b c"
    assert made["spark.sql.session.timeZone"] == "UTC"
    assert session._settings(configured, {}, "local[2]", [])["spark.master"] == "local[2]"


def test_spark_is_given_what_a_table_format_needs_beside_what_a_person_configured() -> None:
    configured = {
        "spark.sql.extensions": "org.Mine",
        "spark.jars.packages": "io.delta:delta-spark_2.13:4.0.1",
    }
    made = session._settings(configured, {}, None, session._packages(True, ["delta"]))
    assert made["spark.sql.extensions"] == "org.Mine,io.delta.sql.DeltaSparkSessionExtension"
    assert made["spark.jars.packages"] == (f"io.delta:delta-spark_2.13:4.0.1,{session.connector()}")
    plain = session._settings({}, {}, None, session._packages(True, ["iceberg"]))
    assert "spark.sql.extensions" not in plain
    assert plain["spark.jars.packages"].endswith(
        ",org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0"
    )


def test_a_topic_flag_picks_one_or_renames_the_only_one() -> None:
    assert target_names(["a", "b"], None, "x-") == {"a": "x-a", "b": "x-b"}
    assert target_names(["a", "b"], "b", "") == {"b": "b"}
    assert target_names(["a"], "other", "") == {"a": "other"}
    with pytest.raises(PipelineError, match="but no c"):
        target_names(["a", "b"], "c", "")


def test_known_causes_are_found_in_what_spark_says() -> None:
    error = RuntimeError("Job aborted: java.io.IOException: No space left on device")
    assert "the disk is full" in (explain(error) or "")
    error = RuntimeError("Job aborted: java.lang.ArithmeticException: long overflow")
    assert "a timestamp that Spark cannot hold" in (explain(error) or "")
    error = RuntimeError("x\npipeline.segments.decode.SegmentError: /d/0.log: damaged\n at y")
    assert explain(error) == "/d/0.log: damaged"
    assert explain(ValueError("nothing we know")) is None


def test_paths_of_sparks_log_are_urls() -> None:
    assert plain_path("file:///lake/topic=a%20b/x.parquet") == "file:/lake/topic=a b/x.parquet"
    assert plain_path("hdfs://host:8020/lake/x") == "hdfs://host:8020/lake/x"
    assert local_path("file:/a/b") == local_path("file:///a/b") == "/a/b"


def test_a_table_lines_up() -> None:
    text = table(["name", "count"], [["a", 1234], ["bcd", None]])
    assert text.splitlines() == ["name  count", "----  -----", "a     1,234", "bcd       -"]
