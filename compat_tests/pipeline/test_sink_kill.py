"""kill -9 of driver, executors and broker while the sink has a transaction open: every row once.

Short in CI (PIPELINE_KILL_ROUNDS=3, the default); the full run is
`PIPELINE_KILL_ROUNDS=20 pytest compat_tests/pipeline/test_sink_kill.py`; by the client that travels
with a job, when SINK_CLIENT=kafka-python stands before it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import barnabas
from compat_tests.pipeline.conftest import Pipeline
from compat_tests.pipeline.processes import Driver, wait_for_an_open_transaction
from compat_tests.pipeline.records import (
    assert_same_rows,
    create,
    fill_plain,
    from_kafka,
    read_all,
)
from testkit.brokers.nodes import RunningBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = int(os.environ.get("PIPELINE_KILL_ROUNDS", "3"))
ROWS_A_ROUND = 600
SOURCE, TARGET, PARTITIONS = "ledger", "copied", 3

pytestmark = [
    pytest.mark.spark,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(600 + 400 * ROUNDS),
]


class Job(Driver):
    """The streaming job: a driver, its JVM, and two executors of their own (local-cluster)."""

    def __init__(self, broker: RunningBroker, folder: Path) -> None:
        super().__init__(folder)
        self._broker = broker

    def start(self, **settings: str) -> subprocess.Popen[bytes]:
        script = Path(__file__).with_name("sink_job.py")
        words = (sys.executable, script, self._broker.bootstrap_servers, SOURCE, TARGET, 2,
                 self.folder / "checkpoint", "local-cluster[2,1,500]")  # fmt: skip
        return self.start_process(*words, **settings)

    def has_a_batch_half_done(self) -> bool:
        """Whether Spark has begun a batch that it does not know as done."""
        begun, done = (
            {path.name for path in (self.folder / "checkpoint" / kind).glob("[0-9]*")}
            for kind in ("offsets", "commits")
        )
        return bool(begun - done)


def require_each_once(bootstrap: str, expected: int) -> None:
    """That the target holds each row of `fill_plain` once, under its key; prints what it holds."""
    rows = [row for rows in read_all(bootstrap, TARGET, PARTITIONS).values() for row in rows]
    counts = Counter(value.partition(b"-")[0] for _, value, _, _ in rows)
    lost = {b"v%d" % number for number in range(expected)} - set(counts)
    twice = {value: count for value, count in counts.items() if count > 1}
    print(f"{len(rows):,} rows of {expected:,}: {len(lost)} lost, {len(twice)} more than once")
    assert not lost
    assert not twice
    assert len(counts) == expected
    assert all(value.startswith(b"v%s-x" % key) for key, value, _, _ in rows)


@pytest.fixture
def make_job() -> Iterator[Callable[[RunningBroker, Path], Job]]:
    """Makes jobs that end with the test."""
    made: list[Job] = []

    def make(broker: RunningBroker, folder: Path) -> Job:
        made.append(Job(broker, folder))
        return made[-1]

    yield make
    for job in made:
        job.end()


def test_every_row_is_written_once_though_driver_executors_and_broker_are_killed(
    spark: SparkSession,
    transactional_broker: Callable[[], RunningBroker],
    make_job: Callable[[RunningBroker, Path], Job],
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    broker = transactional_broker()
    bootstrap = broker.bootstrap_servers
    create(bootstrap, SOURCE, 2)
    create(bootstrap, TARGET, PARTITIONS)
    job = make_job(broker, tmp_path)
    dice = random.Random(11)
    killed_in_mid_batch = 0
    for number in range(ROUNDS):
        fill_plain(bootstrap, SOURCE, ROWS_A_ROUND, partitions=2, start=number * ROWS_A_ROUND)
        job.start(ROW_SECONDS="0.005")
        wait_for_an_open_transaction(bootstrap, TARGET, PARTITIONS, job)
        if number:
            time.sleep(dice.uniform(0.0, 0.5))  # where in a batch it hits is the point of the test
        if number % 3 == 0:
            job.kill_driver()
            killed_in_mid_batch += job.has_a_batch_half_done()
            continue
        if number % 3 == 1:
            dice.choice(job.executors()).kill()
        else:
            broker.kill()
            time.sleep(dice.uniform(0.0, 1.0))
            broker.start()
        time.sleep(dice.uniform(0.0, 5.0))
        job.kill_driver()
    last = job.start(AVAILABLE_NOW="1")
    assert last.wait(500) == 0, job.log()

    require_each_once(bootstrap, ROUNDS * ROWS_A_ROUND)
    print(f"{ROUNDS} rounds, {killed_in_mid_batch} drivers killed in mid batch")
    assert killed_in_mid_batch, "no kill hit a batch under way: the test proved nothing"

    lake = tmp_path / "lake"
    done = pipeline("archive", "--bootstrap", bootstrap, "--topics", TARGET, "--to", lake)
    assert done.returncode == 0, done.stderr
    columns = ["key", "value", "headers", "topic", "partition", "offset", "timestamp"]
    archived = spark.read.parquet(str(lake)).select(*columns)
    assert assert_same_rows(from_kafka(spark, bootstrap, TARGET).select(*columns), archived)
    broker.stop()
    barnabas.register_source(spark)
    segments = (
        spark.read.format("barnabas").option("topic", TARGET).option("includeHeaders", "true")
    )
    assert assert_same_rows(archived, segments.load(str(broker.data_dir)).select(*columns))
