"""What a user runs from an installed wheel: a Spark job of their own, and `barnabas pipeline`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from compat_tests.pipeline.conftest import SMALL_SPARK, needs_spark
from compat_tests.pipeline.records import fill_mixed, read_all
from testkit.brokers.nodes import RunningBroker
from testkit.delivery.wheel import build, install, run

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

JOB = """\
import json, os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
import pipeline, server
import barnabas
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
barnabas.register_source(spark)
frame = (
    spark.read.format("barnabas")
    .option("topic", "orders")
    .option("includeHeaders", "true")
    .option("partitions", "0,1")
    .load(sys.argv[1])
)
rows = frame.selectExpr(
    "partition", "offset", "hex(key) as key", "hex(value) as value",
    "unix_millis(timestamp) as ms", "size(headers) as headers",
).orderBy("partition", "offset").collect()
spark.stop()
print(json.dumps({
    "rows": [list(row) for row in rows],
    "whose": [pipeline.WHOSE, server.WHOSE],
    "claimed": sorted({"wire", "storage", "replication"} & set(sys.modules)),
}))
"""


def test_a_users_job_reads_a_log_directory_beside_modules_named_as_ours(
    fresh_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    needs_spark()
    python = install(build(tmp_path), fresh_folder(tmp_path / "environment"))
    broker = fresh_broker({"log.retention.ms": -1})
    fill_mixed(broker.bootstrap_servers, "orders", 60)
    held = read_all(broker.bootstrap_servers, "orders", 3)
    broker.stop()
    project = fresh_folder(tmp_path / "project")
    (project / "pipeline.py").write_text("WHOSE = 'the user'\n")
    (project / "server.py").write_text("WHOSE = 'the user'\n")
    (project / "job.py").write_text(JOB)
    printed = run(python, "job.py", str(broker.data_dir), cwd=project)
    said = json.loads(printed.splitlines()[-1])
    assert said["whose"] == ["the user", "the user"]
    assert said["claimed"] == []
    assert said["rows"] == [
        [partition, offset, hexed(key), hexed(value), ms, len(headers) if headers else None]
        for partition in (0, 1)
        for offset, (key, value, headers, ms) in enumerate(held[partition])
    ]

    elsewhere = fresh_folder(tmp_path / "elsewhere")
    command = (python.parent / "barnabas", "pipeline", "segments", broker.data_dir)
    shown = run(*command, "--topic", "orders", *SMALL_SPARK, cwd=elsewhere)
    assert "read 300 rows of orders" in shown
    assert not list(elsewhere.iterdir())


def fresh_folder(path: Path) -> Path:
    path.mkdir()
    return path


def hexed(data: bytes | None) -> str | None:
    return None if data is None else data.hex().upper()
