"""Topics into a lake and back: every row once, and the restored topics are what was archived."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compat_tests.pipeline.conftest import SMALL_SPARK, Pipeline, command_line, environment
from compat_tests.pipeline.records import (
    FIRST_MS,
    assert_same_rows,
    create,
    fill_mixed,
    fill_plain,
    from_kafka,
    held,
    read_all,
)
from compat_tests.support.brokers import RunningBroker
from compat_tests.support.wait import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

KAFKA_COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType",
                 "headers"]  # fmt: skip


def lasting(fresh_broker: Callable[..., RunningBroker]) -> RunningBroker:
    """A broker that keeps our records of 2023."""
    return fresh_broker({"log.retention.ms": -1})


def test_archive_keeps_every_column_and_replay_restores_partitions_order_and_times(
    spark: SparkSession,
    fresh_broker: Callable[..., RunningBroker],
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    bootstrap = lasting(fresh_broker).bootstrap_servers
    fill_mixed(bootstrap, "orders", 400, codecs=("none", "lz4"))
    lake = tmp_path / "lake"
    done = pipeline("archive", "--bootstrap", bootstrap, "--pattern", "ord.*", "--to", lake)
    assert done.returncode == 0, done.stderr
    assert "archived 800 rows" in done.stdout
    assert "lag 0" in done.stdout
    archived = spark.read.parquet(str(lake)).select(*KAFKA_COLUMNS)
    kafka = from_kafka(spark, bootstrap, "orders").select(*KAFKA_COLUMNS)
    assert assert_same_rows(kafka, archived) == 800
    assert (lake / "topic=orders" / "day=2023-11-14").is_dir()

    replay = ("replay", "--from", lake, "--bootstrap", bootstrap)
    done = pipeline(*replay, "--topic", "restored", "--keep-partitions")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "counts and checksums of keys, values and headers match the archive" in done.stdout
    assert "timestamps: as archived" in done.stdout
    original = read_all(bootstrap, "orders", 3)
    assert read_all(bootstrap, "restored", 3) == original

    again = pipeline(*replay, "--topic", "restored")
    assert again.returncode == 1
    assert "already holds records" in again.stderr

    since = FIRST_MS + 100 * 60_000
    limited = pipeline(
        *replay, "--topic-prefix", "late-", "--since", since, "--until", since + 60_000 * 50,
        "--rate", 100,
    )  # fmt: skip
    assert limited.returncode == 0, limited.stdout + limited.stderr
    late = [row for rows in read_all(bootstrap, "late-orders", 3).values() for row in rows]
    assert len(late) == 2 * 50
    assert {row[3] for row in late} == {since + number * 60_000 for number in range(50)}


def test_compaction_is_never_seen_half_done_and_removes_nothing_a_reader_holds(
    spark: SparkSession,
    fresh_broker: Callable[..., RunningBroker],
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    bootstrap = lasting(fresh_broker).bootstrap_servers
    create(bootstrap, "small", 2)
    fill_plain(bootstrap, "small", 1200, partitions=2)
    lake = tmp_path / "lake"
    archive = ("archive", "--bootstrap", bootstrap, "--topics", "small", "--to", lake)
    done = pipeline(*archive, "--max-per-trigger", 100)
    assert done.returncode == 0, done.stderr
    files_before = spark.read.parquet(str(lake)).inputFiles()
    held = spark.read.parquet(str(lake))  # a reader that planned before the compaction
    counts: list[int] = []
    stop = threading.Event()

    def keep_reading() -> None:
        while not stop.is_set():
            frame = spark.read.parquet(str(lake))
            counts.append(frame.select("topic", "partition", "offset").distinct().count())
            counts.append(frame.count())

    reader = threading.Thread(target=keep_reading)
    reader.start()
    try:
        done = pipeline("archive", "--to", lake, "--compact", "--grace", "1h")
    finally:
        stop.set()
        reader.join()
    assert done.returncode == 0, done.stderr
    assert "compacted" in done.stdout
    assert counts
    assert set(counts) == {1200}
    files_after = spark.read.parquet(str(lake)).inputFiles()
    assert len(files_after) < len(files_before) / 2
    assert held.selectExpr("sum(length(value))").count() == 1
    assert held.count() == 1200

    fill_plain(bootstrap, "small", 300, partitions=2, start=1200)
    assert pipeline(*archive).returncode == 0  # the query goes on from the log we replaced
    swept = pipeline("archive", "--to", lake, "--compact", "--grace", "0s")
    assert swept.returncode == 0, swept.stderr
    assert "removed" in swept.stdout
    once = spark.read.parquet(str(lake)).select("topic", "partition", "offset")
    assert once.count() == once.distinct().count() == 1500


def test_ctrl_c_ends_a_standing_archive_cleanly_and_it_goes_on_later(
    spark: SparkSession,
    fresh_broker: Callable[..., RunningBroker],
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    bootstrap = lasting(fresh_broker).bootstrap_servers
    create(bootstrap, "live", 1)
    fill_plain(bootstrap, "live", 100)
    lake = tmp_path / "lake"
    arguments = ("archive", "--bootstrap", bootstrap, "--topics", "live", "--to", lake)
    standing = subprocess.Popen(
        command_line(*arguments, "--every", "1s", *SMALL_SPARK),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
        cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (lake / "_spark_metadata" / "0").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    standing.send_signal(signal.SIGINT)
    out, err = standing.communicate(timeout=60)
    assert standing.returncode == 130, err
    assert "Traceback" not in err
    assert "the same command goes on" in out
    fill_plain(bootstrap, "live", 50, start=100)
    done = pipeline(*arguments)
    assert done.returncode == 0, done.stderr
    offsets = spark.read.parquet(str(lake)).select("offset").orderBy("offset").collect()
    assert [row.offset for row in offsets] == list(range(150))


def test_segments_writes_an_archive_that_replay_takes(
    spark: SparkSession,
    fresh_broker: Callable[..., RunningBroker],
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    broker = lasting(fresh_broker)
    fill_mixed(broker.bootstrap_servers, "orders", 300, codecs=("zstd",))
    original = read_all(broker.bootstrap_servers, "orders", 3)
    broker.stop()
    lake = tmp_path / "lake"
    done = pipeline("segments", broker.data_dir, "--topic", "orders", "--to", lake)
    assert done.returncode == 0, done.stderr
    assert "read 300 rows of orders" in done.stdout
    shown = pipeline("segments", broker.data_dir, "--topic", "orders", "--offsets", "0:10-20")
    assert shown.returncode == 0, shown.stderr
    assert "read 210 rows" in shown.stdout
    broker.start()
    moved = tmp_path / "moved"
    lake.rename(moved)  # an archive may be moved; replay finds its files all the same
    done = pipeline(
        "replay", "--from", moved, "--bootstrap", broker.bootstrap_servers, "--topic", "back",
        "--keep-partitions",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_all(broker.bootstrap_servers, "back", 3) == original


def test_a_replay_lives_through_a_kill_of_the_broker_and_doubles_nothing(
    fresh_broker: Callable[..., RunningBroker], pipeline: Pipeline, tmp_path: Path
) -> None:
    broker = lasting(fresh_broker)
    bootstrap = broker.bootstrap_servers
    create(bootstrap, "steady", 2)
    fill_plain(bootstrap, "steady", 2000, partitions=2)
    lake = tmp_path / "lake"
    done = pipeline("archive", "--bootstrap", bootstrap, "--topics", "steady", "--to", lake)
    assert done.returncode == 0, done.stderr
    replay = subprocess.Popen(
        command_line(
            "replay", "--from", lake, "--bootstrap", bootstrap, "--topic", "again",
            "--keep-partitions", "--rate", 300, *SMALL_SPARK,
        ),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path,
    )  # fmt: skip
    eventually(lambda: held(bootstrap, "again", 2) > 200, timeout_s=120, every_s=0.2)
    broker.kill()
    time.sleep(1.0)
    broker.start()
    out, err = replay.communicate(timeout=200)
    assert replay.returncode == 0, out + err
    assert "match the archive" in out
    assert "retries" in out, "the kill was not noticed: the test proved nothing"
    assert read_all(bootstrap, "again", 2) == read_all(bootstrap, "steady", 2)
