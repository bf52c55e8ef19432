"""spark-submit on a cluster that is there already: a standalone master and worker on loopback.

The Python of driver and executors sees PySpark, NumPy and PyArrow, but neither the checkout nor an
installed barnabas: what executors run travels in the job. (YARN, Kubernetes and remote disks are
not tried here.)
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compat_tests.pipeline.conftest import ROOT, environment, needs_spark
from compat_tests.pipeline.records import fill_mixed, read_all
from testkit.brokers.nodes import RunningBroker
from testkit.delivery.wheel import bare_python
from testkit.ports import free_ports, listens
from testkit.wait import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(900)]


def spark_command(name: str) -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent / "bin" / name)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The URL of a master with one worker; executors' folders are in tmp_path/work."""
    needs_spark()
    port, *pages = free_ports(3)
    url = f"spark://127.0.0.1:{port}"
    env = environment(SPARK_LOCAL_IP="127.0.0.1")
    deploy = "org.apache.spark.deploy"
    commands = (
        (f"{deploy}.master.Master", "--port", port),
        (f"{deploy}.worker.Worker", "--cores", 2, "--memory", "1g", "--work-dir",
         tmp_path / "work", url),
    )  # fmt: skip
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with open(tmp_path / "cluster.log", "wb") as log:
            for (main, *flags), page in zip(commands, pages, strict=True):
                words = (spark_command("spark-class"), main, "--host", "127.0.0.1", "--webui-port",
                         page, *flags)  # fmt: skip
                processes.append(
                    subprocess.Popen([str(word) for word in words], env=env, stdout=log, stderr=log)
                )
                if main.endswith("Master"):
                    eventually(lambda: listens("127.0.0.1", port), timeout_s=60)
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(30)


def test_archive_segments_and_replay_run_on_executors_that_have_nothing_of_ours(
    spark: SparkSession,
    cluster: str,
    fresh_broker: Callable[..., RunningBroker],
    tmp_path: Path,
) -> None:
    from pipeline.spark.session import connector

    environment_folder = tmp_path / "environment"
    environment_folder.mkdir()
    python = bare_python(environment_folder)
    broker = fresh_broker({"log.retention.ms": -1})
    bootstrap = broker.bootstrap_servers
    fill_mixed(bootstrap, "orders", 100)

    def submit(*arguments: object) -> str:
        words = (
            spark_command("spark-submit"), "--master", cluster, "--packages", connector(),
            "--executor-memory", "600m", "--conf", "spark.sql.shuffle.partitions=2",
            ROOT / "pipeline" / "__main__.py", *arguments,
        )  # fmt: skip
        done = subprocess.run(
            [str(word) for word in words],
            env=environment(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=str(python)),
            cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    lake, copy = tmp_path / "lake", tmp_path / "copy"
    out = submit("archive", "--bootstrap", bootstrap, "--topics", "orders", "--to", lake)
    assert "archived 500 rows" in out
    assert spark.read.parquet(str(lake)).count() == 500
    out = submit("replay", "--from", lake, "--bootstrap", bootstrap, "--topic", "restored",
                 "--keep-partitions")  # fmt: skip
    assert "counts and checksums of keys, values and headers match the archive" in out
    assert read_all(bootstrap, "restored", 3) == read_all(bootstrap, "orders", 3)
    broker.stop()
    out = submit("segments", broker.data_dir, "--topic", "orders", "--to", copy)
    assert "read 500 rows of orders" in out
    applications = os.listdir(tmp_path / "work")
    assert len(applications) == 3, "each job had executors of this cluster's worker"
