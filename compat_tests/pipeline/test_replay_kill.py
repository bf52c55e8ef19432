"""kill -9 of driver, executors and broker while replay has a transaction open: every record once.

Short in CI (PIPELINE_KILL_ROUNDS=3, the default); the full run is
`PIPELINE_KILL_ROUNDS=20 pytest compat_tests/pipeline/test_replay_kill.py`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat_tests.pipeline.conftest import Pipeline, command_line
from compat_tests.pipeline.processes import Driver, wait_for_an_open_transaction
from compat_tests.pipeline.records import create, fill_mixed, read_all
from testkit.brokers.nodes import RunningBroker

ROUNDS = int(os.environ.get("PIPELINE_KILL_ROUNDS", "3"))
ROWS_A_ROUND = 800
RATE = 100
SOURCE, TARGET, PARTITIONS = "steady", "again", 2

pytestmark = [
    pytest.mark.spark,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(600 + 400 * ROUNDS),
]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    one = Driver(tmp_path)
    yield one
    one.end()


def test_a_replay_goes_on_though_driver_executors_and_broker_are_killed(
    transactional_broker: Callable[[], RunningBroker],
    driver: Driver,
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    broker = transactional_broker()
    bootstrap = broker.bootstrap_servers
    codecs = ("none", "zstd")
    fill_mixed(bootstrap, SOURCE, ROUNDS * ROWS_A_ROUND // 2, partitions=PARTITIONS, codecs=codecs)
    create(bootstrap, TARGET, PARTITIONS)
    lake = tmp_path / "lake"
    done = pipeline("archive", "--bootstrap", bootstrap, "--topics", SOURCE, "--to", lake)
    assert done.returncode == 0, done.stderr
    replay = ("replay", "--from", lake, "--bootstrap", bootstrap, "--topic", TARGET,
              "--keep-partitions")  # fmt: skip
    slowly = ("--rate", RATE, "--master", "local-cluster[1,2,500]", "--conf",
              "spark.executor.memory=500m", "--conf", "spark.sql.shuffle.partitions=2")  # fmt: skip
    dice = random.Random(5)
    for number in range(ROUNDS):
        if not driver.is_alive():
            process = driver.start_process(*command_line(*replay, *slowly))
        wait_for_an_open_transaction(bootstrap, TARGET, PARTITIONS, driver)
        time.sleep(dice.uniform(0.0, 1.0))  # where in a piece it hits is the point of the test
        if number % 3 == 0:
            driver.kill_driver()  # and start it while executors of the old one live on
        elif number % 3 == 1:
            dice.choice(driver.executors()).kill()
        else:
            broker.kill()
            time.sleep(dice.uniform(0.0, 1.0))
            broker.start()
    if not driver.is_alive():
        process = driver.start_process(*command_line(*replay, *slowly))
    assert process.wait(500 + 30 * ROUNDS) == 0, driver.log()
    assert "counts and checksums of keys, values and headers match the archive" in driver.log()
    assert "were there from an earlier run" in driver.log(), "the kill of the driver proved nothing"
    assert read_all(bootstrap, TARGET, PARTITIONS) == read_all(bootstrap, SOURCE, PARTITIONS)
    again = pipeline(*replay)
    assert again.returncode == 0, again.stderr
    assert "replayed 0 rows" in again.stdout
