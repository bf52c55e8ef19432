"""Archives of every format: published once and whole, compacted by their own means, read by others.

Without a broker: batches as `archive` writes them, step by step. What it is with one:
test_archive_formats.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compat_tests.pipeline.conftest import ROOT, Pipeline
from pipeline.archive.log import ArchiveLog, Description
from pipeline.archive.opening import open_table, table_of
from pipeline.archive.state import ArchivedTopic
from pipeline.archive.table import ArchiveTable
from pipeline.errors import PipelineError
from pipeline.spark.hadoop_files import HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(600)]

FORMATS = ("parquet", "delta", "iceberg")
NEW_FORMATS = FORMATS[1:]
ROWS = 6
"""Of a batch: half of them in each of two topics."""
FILES = 4
"""Of a batch: each of two tasks writes one for each topic."""


class Archive:
    """A directory that batches are written to, as `archive` does it."""

    def __init__(self, spark: SparkSession, folder: Path, kind: str) -> None:
        self.spark, self.folder, self.kind = spark, folder, kind
        log = ArchiveLog(HadoopFiles(spark, str(folder)))
        log.describe(Description(kind, "day"))

    def table(self) -> ArchiveTable:
        """As a new process has it."""
        log = ArchiveLog(HadoopFiles(self.spark, str(self.folder)))
        return table_of(self.spark, log, Description(self.kind, "day"))

    def frame(self, batch: int) -> DataFrame:
        first = batch * ROWS // 2
        return self.spark.range(ROWS, numPartitions=2).selectExpr(
            "cast(cast(id as string) as binary) as key",
            "cast(null as binary) as value",
            "array(struct('a' as key, cast('x' as binary) as value)) as headers",
            "0 as partition",
            f"{first} + id div 2 as offset",
            "timestamp_millis(1700000000000 + id) as timestamp",
            "0 as timestampType",
            "0 as generation",
            "if(id % 2 = 0, 'even', 'odd') as topic",
            "'2023-11-14' as day",
        )

    def state(self, batch: int) -> dict[str, ArchivedTopic]:
        to = (batch + 1) * ROWS // 2
        return {name: ArchivedTopic("A", 0, (to,)) for name in ("even", "odd")}

    def write(self, batch: int) -> None:
        table = self.table()
        assert table.publish(batch, table.stage(self.frame(batch)), self.state(batch))

    def holds(self, batches: int) -> None:
        """These batches, each once, and the state after them; nothing else."""
        table = self.table()
        moment = table.look()
        assert moment.latest_batch == batches - 1
        assert table.state(moment) == ({} if batches == 0 else self.state(batches - 1))
        expected = everything(batches)
        if batches:
            opened = open_table(self.spark, str(self.folder))
            assert opened.table.topics(opened.moment) == {"even", "odd"}
            assert counted(opened.table.rows(opened.moment, ["even", "odd"]).toPandas()) == expected
            with_spark = self.spark.read.format(self.kind).load(str(self.folder))
            assert counted(with_spark.toPandas()) == expected


def everything(batches: int) -> Counter[tuple[str, int]]:
    each = range(batches * ROWS // 2)
    return Counter((name, offset) for name in ("even", "odd") for offset in each)


def counted(pandas_frame: Any) -> Counter[tuple[str, int]]:
    topics: Iterable[Any] = pandas_frame["topic"]
    return Counter(zip(map(str, topics), map(int, pandas_frame["offset"]), strict=True))


@pytest.fixture(params=FORMATS)
def archive(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Archive:
    return Archive(spark, tmp_path / "lake", request.param)


@pytest.fixture(params=NEW_FORMATS)
def table_archive(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Archive:
    return Archive(spark, tmp_path / "lake", request.param)


def test_whatever_step_is_the_last_one_of_a_run_rows_and_state_belong_together(
    archive: Archive,
) -> None:
    archive.holds(0)
    archive.table().stage(archive.frame(0))  # killed before it was published
    archive.holds(0)
    archive.write(0)
    archive.holds(1)
    table = archive.table()
    staged = table.stage(archive.frame(1))
    archive.holds(1)
    archive.write(1)  # the next run, beside a zombie
    with pytest.raises(PipelineError, match="another run archives into"):
        table.publish(1, staged, archive.state(1))
    archive.holds(2)
    assert archive.table().publish(2, None, archive.state(1)), "a batch without rows"
    table = archive.table()
    assert table.look().latest_batch == 2
    assert table.state(table.look()) == archive.state(1)


def test_a_batch_that_two_runs_staged_is_published_by_one(archive: Archive) -> None:
    archive.write(0)
    first, second = archive.table(), archive.table()
    staged = first.stage(archive.frame(1)), second.stage(archive.frame(1))
    assert second.publish(1, staged[1], archive.state(1))
    with pytest.raises(PipelineError, match="another run archives into"):
        first.publish(1, staged[0], archive.state(1))
    archive.holds(2)


def test_readers_without_spark_see_published_rows_once(archive: Archive) -> None:
    """The lines of docs/pipeline.md, as written; beside a batch that was cut off, and files that
    compaction has replaced."""
    batches = 10 if archive.kind == "parquet" else 3  # Parquet's log is compacted every tenth
    for batch in range(batches):
        archive.write(batch)
    archive.table().stage(archive.frame(batches))
    totals = archive.table().compact(3_600_000, lambda text: None)
    assert totals.files_before > totals.files_after
    names = {"parquet": "barnabas.archive_files", "delta": "DeltaTable", "iceberg": "StaticTable"}
    text = (ROOT / "docs" / "pipeline.md").read_text()
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
                if names[archive.kind] in one]  # fmt: skip
    found: dict[str, Any] = {}
    exec(block.replace('"lake"', repr(str(archive.folder))), found)  # noqa: S102 - our docs
    expected = everything(batches)
    assert counted(found["in_duckdb"].df()) == expected
    assert counted(found["in_pandas"]) == expected
    assert counted(found["in_polars"].to_pandas()) == expected
    archive.holds(batches)


def test_compaction_keeps_rows_and_state_and_removes_what_was_replaced_after_the_grace(
    table_archive: Archive,
) -> None:
    archive = table_archive
    for batch in range(3):
        archive.write(batch)
    held = archive.table()
    moment = held.look()
    kept = archive.table().compact(3_600_000, lambda text: None)
    assert (kept.files_before, kept.files_after, kept.removed) == (3 * FILES, 2, 0)
    archive.holds(3)
    assert held.rows(moment, ["odd"]).count() == 3 * ROWS // 2, "a reader of before goes on"
    time.sleep(0.01)  # the grace is measured in milliseconds
    removed = archive.table().compact(0, lambda text: None)
    assert removed.removed >= 3 * FILES
    archive.holds(3)
    assert ArchiveLog(HadoopFiles(archive.spark, str(archive.folder))).description() is not None
    archive.write(3)
    archive.holds(4)


def test_a_batch_under_way_while_files_are_compacted_is_published_or_read_again(
    table_archive: Archive,
) -> None:
    archive = table_archive
    for batch in range(2):
        archive.write(batch)
    table = archive.table()
    staged = table.stage(archive.frame(2))
    archive.table().compact(0, lambda text: None)
    if not table.publish(2, staged, archive.state(2)):
        archive.holds(2)
        archive.write(2)
    archive.holds(3)


def test_columns_that_later_batches_have_are_added(table_archive: Archive) -> None:
    archive = table_archive
    archive.write(0)
    for batch, more in ((1, "struct(offset as a) as value_data"),
                        (2, "struct(offset as a, 'x' as b) as value_data")):  # fmt: skip
        table = archive.table()
        columns = archive.frame(batch).selectExpr(more, "*")
        assert table.publish(batch, table.stage(columns), archive.state(batch))
    archive.holds(3)
    frame = archive.spark.read.format(archive.kind).load(str(archive.folder))
    assert Counter(row[0] for row in frame.select("value_data.b").collect()) == {None: 12, "x": 6}


def test_a_moved_archive_of_delta_goes_on_and_one_of_iceberg_says_why_not(
    table_archive: Archive, pipeline: Pipeline
) -> None:
    archive = table_archive
    archive.write(0)
    moved = archive.folder.with_name("moved")
    shutil.move(archive.folder, moved)
    old, archive.folder = archive.folder, moved
    if archive.kind == "delta":
        archive.write(1)
        archive.holds(2)
    else:
        done = pipeline("archive", "--to", moved, "--compact")
        assert done.returncode == 1
        assert f"was moved or copied from file:{old}" in done.stderr


def test_a_decoded_column_may_get_a_time_without_a_zone_later(table_archive: Archive) -> None:
    """As when a schema gets a field of Avro's local-timestamp-millis."""
    archive, table = table_archive, table_archive.table()
    for batch, more in enumerate(("", ", timestamp_ntz'2026-01-31 12:00:00' as at")):
        frame = archive.frame(batch)
        typed = frame.selectExpr(f"struct(1L as a{more}) as value_data", *frame.columns)
        assert table.publish(batch, table.stage(typed), archive.state(batch))
    archive.holds(2)


def test_a_session_that_was_not_given_the_format_says_which_flag_gives_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.archive import opening

    folder = tmp_path / "lake" / "_barnabas"
    folder.mkdir(parents=True)
    (folder / "archive.json").write_text(json.dumps({"format": "delta", "partition_by": "day"}))
    monkeypatch.setattr(opening, "has_package", lambda spark, kind: False)
    with pytest.raises(PipelineError, match="archive of --format delta; say so by that flag"):
        open_table(spark, str(tmp_path / "lake"))
