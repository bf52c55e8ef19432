"""kill -9 of the driver and of the broker in mid-batch: every record is archived once.

Short in CI (PIPELINE_KILL_ROUNDS=4, the default); the full run is
`PIPELINE_KILL_ROUNDS=20 pytest compat_tests/pipeline/test_kill.py`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

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

ROUNDS = int(os.environ.get("PIPELINE_KILL_ROUNDS", "4"))
ROWS_A_ROUND = 3000

pytestmark = [
    pytest.mark.spark,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(120 + 150 * ROUNDS),
]


def test_every_record_is_archived_once_though_driver_and_broker_are_killed_in_mid_batch(
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
        "--max-per-trigger", 500,
    )  # fmt: skip
    dice = random.Random(7)
    killed_in_mid_batch = 0
    for number in range(ROUNDS):
        fill_plain(
            broker.bootstrap_servers, "ledger", ROWS_A_ROUND, partitions=2,
            start=number * ROWS_A_ROUND,
        )  # fmt: skip
        before = begun(lake)
        driver = start_driver(archive, tmp_path)
        wait_for_a_batch(driver, begun, lake, before)
        time.sleep(dice.uniform(0.0, 1.5))  # where in a batch it hits is the point of the test
        if number % 2:
            broker.kill()
            time.sleep(dice.uniform(0.0, 1.0))
        killed_in_mid_batch += bool(begun(lake) - before) and driver.poll() is None
        kill_driver(driver)
        if number % 2:
            broker.start()
    done = pipeline(*archive)
    assert done.returncode == 0, done.stderr
    require_each_once(spark.read.parquet(str(lake)), ROUNDS * ROWS_A_ROUND)
    assert killed_in_mid_batch, "no kill hit a batch under way: the test proved nothing"


def begun(lake: Path) -> set[str]:
    """Scratch folders: of a batch under way, and of those that were cut off."""
    return {path.name for path in (lake / "_barnabas").glob("batch-*")}
