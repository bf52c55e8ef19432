"""`archive --format delta` and `iceberg` against a broker: kill -9 of the driver and of the broker,
then compaction, replay and profile. (Every crash point, one by one: test_table_formats.)
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compat_tests.pipeline.conftest import Pipeline
from compat_tests.pipeline.kills import (
    kill_driver,
    require_each_once,
    start_driver,
    wait_for_a_batch,
)
from compat_tests.pipeline.records import create, fill_plain
from testkit.brokers.nodes import RunningBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = max(2, int(os.environ.get("PIPELINE_KILL_ROUNDS", "4")) // 2)
ROWS_A_ROUND = 1500

pytestmark = [
    pytest.mark.spark,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(240 + 150 * ROUNDS),
]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_every_record_is_in_the_table_once_though_driver_and_broker_are_killed(
    kind: str,
    spark: SparkSession,
    fresh_broker: Callable[..., RunningBroker],
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    broker = fresh_broker({"log.retention.ms": -1})
    create(broker.bootstrap_servers, "ledger", 2)
    lake = tmp_path / "lake"
    archive = (
        "archive", "--bootstrap", broker.bootstrap_servers, "--topics", "ledger", "--to", lake,
        "--format", kind, "--max-per-trigger", 500,
    )  # fmt: skip
    dice = random.Random(7)
    cut_off = 0
    for number in range(ROUNDS):
        fill_plain(
            broker.bootstrap_servers, "ledger", ROWS_A_ROUND, partitions=2,
            start=number * ROWS_A_ROUND,
        )  # fmt: skip
        before = data_files(lake)
        driver = start_driver(archive, tmp_path)
        wait_for_a_batch(driver, data_files, lake, before)
        if number:  # the first is cut off as soon as it has written anything
            broker.kill()
            time.sleep(dice.uniform(0.0, 1.5))
        kill_driver(driver)
        cut_off += bool(data_files(lake) - listed(kind, lake) - before)
        if number:
            broker.start()
    assert cut_off, "no kill hit a batch under way: the test proved nothing"

    done = pipeline(*archive)
    assert done.returncode == 0, done.stderr
    assert f'read it: spark.read.format("{kind}").load("{lake}")' in done.stdout
    require_each_once(spark.read.format(kind).load(str(lake)), ROUNDS * ROWS_A_ROUND)

    compacted = pipeline("archive", "--to", lake, "--compact")
    assert compacted.returncode == 0, compacted.stderr
    assert "compacted" in compacted.stdout
    require_each_once(spark.read.format(kind).load(str(lake)), ROUNDS * ROWS_A_ROUND)

    to = ("--bootstrap", broker.bootstrap_servers)
    replayed = pipeline("replay", "--from", lake, *to, "--topic-prefix", "again-")
    assert replayed.returncode == 0, replayed.stderr
    assert "counts and checksums of keys, values and headers match" in replayed.stdout

    profiled = pipeline("profile", "--from", lake, "--topic", "ledger")
    assert profiled.returncode == 0, profiled.stderr
    assert f"{ROUNDS * ROWS_A_ROUND:,}" in profiled.stdout


def data_files(lake: Path) -> set[str]:
    """Names of all that is on the disk, whether it counts or not."""
    return {path.name for path in lake.rglob("*.parquet") if "_delta_log" not in path.parts}


def listed(kind: str, lake: Path) -> set[str]:
    """Names of those that the table has."""
    paths: list[Any] = []
    if kind == "delta" and (lake / "_delta_log").exists():
        from deltalake import DeltaTable

        paths = DeltaTable(str(lake)).file_uris()
    if kind == "iceberg" and (lake / "metadata" / "version-hint.text").exists():
        from pyiceberg.table import StaticTable

        table = StaticTable.from_metadata(str(lake))
        paths = [task.file.file_path for task in table.scan().plan_files()]
    return {Path(path).name for path in paths}
