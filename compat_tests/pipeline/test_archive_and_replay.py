"""Topics into a lake and back: every row once, and the restored topics are what was archived."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import barnabas
from compat_tests.pipeline.conftest import SMALL_SPARK, Pipeline, command_line, environment
from compat_tests.pipeline.records import (
    FIRST_MS,
    assert_same_rows,
    create,
    fill_mixed,
    fill_plain,
    fill_transactions,
    from_kafka,
    read_all,
)
from testkit.brokers.nodes import ApacheKafka, RunningBroker
from testkit.clients.cli import heed_signals

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
    fill_mixed(bootstrap, "orders", 200)
    lake = tmp_path / "lake"
    done = pipeline("archive", "--bootstrap", bootstrap, "--pattern", "ord.*", "--to", lake)
    assert done.returncode == 0, done.stderr
    assert "archived 1,000 rows" in done.stdout
    assert "lag 0" in done.stdout
    archived = spark.read.parquet(str(lake)).select(*KAFKA_COLUMNS)
    kafka = from_kafka(spark, bootstrap, "orders").select(*KAFKA_COLUMNS)
    assert assert_same_rows(kafka, archived) == 1000
    assert (lake / "topic=orders" / "day=2023-11-14").is_dir()

    replay = ("replay", "--from", lake, "--bootstrap", bootstrap)
    done = pipeline(*replay, "--topic", "restored", "--keep-partitions")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "counts and checksums of keys, values and headers match the archive" in done.stdout
    assert "timestamps: as archived" in done.stdout
    for partition, rows in read_all(bootstrap, "orders", 3).items():
        assert checked(done.stdout, f"restored-{partition}") == len(rows) > 300
    original = read_all(bootstrap, "orders", 3)
    assert read_all(bootstrap, "restored", 3) == original

    again = pipeline(*replay, "--topic", "restored")
    assert again.returncode == 1
    assert "there are records already in restored" in again.stderr


def checked(summary: str, name: str) -> int:
    """The count of a summary's row, once both of its counts and both of its checksums agree."""
    (row,) = (line for line in summary.splitlines() if line.startswith(name + " "))
    _, archived, restored, checksum, restored_checksum = row.split()
    assert archived == restored
    assert checksum == restored_checksum
    assert int(checksum, 16)
    return int(archived.replace(",", ""))


def test_replay_of_a_time_range_keeps_the_order_of_keys_and_the_rate(
    fresh_broker: Callable[..., RunningBroker], pipeline: Pipeline, tmp_path: Path
) -> None:
    bootstrap = lasting(fresh_broker).bootstrap_servers
    fill_mixed(bootstrap, "orders", 300, codecs=("none", "lz4"))
    lake = tmp_path / "lake"
    done = pipeline("archive", "--bootstrap", bootstrap, "--topics", "orders", "--to", lake)
    assert done.returncode == 0, done.stderr
    since = FIRST_MS + 100 * 60_000
    limited = pipeline(
        "replay", "--from", lake, "--bootstrap", bootstrap, "--topic-prefix", "late-",
        "--since", since, "--until", since + 60_000 * 150, "--rate", 100,
    )  # fmt: skip
    assert limited.returncode == 0, limited.stdout + limited.stderr
    assert checked(limited.stdout, "late-orders") == 2 * 150
    rate = re.search(r"replayed 300 rows, .* in [\d.]+ s \((\d+) rows/s\)", limited.stdout)
    assert rate is not None, limited.stdout
    assert int(rate.group(1)) <= 110
    late = read_all(bootstrap, "late-orders", 3)
    times = {row[3] for rows in late.values() for row in rows}
    assert times == {since + number * 60_000 for number in range(150)}
    before = read_all(bootstrap, "orders", 3)
    for name in {row[0] for rows in late.values() for row in rows} - {None}:
        wanted = [
            row for rows in before.values() for row in rows if row[0] == name and row[3] in times
        ]
        found = [row for rows in late.values() for row in rows if row[0] == name]
        assert sorted(found, key=by_time) == sorted(wanted, key=by_time)
        homes = [partition for partition, rows in late.items() if any(r[0] == name for r in rows)]
        assert len(homes) == 1, "a key has one partition"

    none_left = pipeline(
        "replay", "--from", lake, "--bootstrap", bootstrap, "--topic-prefix", "none-",
        "--until", "1999-01-01",
    )  # fmt: skip
    assert none_left.returncode == 1
    assert "no rows in that range" in none_left.stderr


def by_time(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (row[3], row[1] or b"", row[1] is None)


def test_replay_into_a_topic_with_its_own_timestamps_says_so(
    fresh_broker: Callable[..., RunningBroker], pipeline: Pipeline, tmp_path: Path
) -> None:
    bootstrap = lasting(fresh_broker).bootstrap_servers
    create(bootstrap, "few", 1)
    fill_plain(bootstrap, "few", 20)
    create(bootstrap, "stamped", 1, **{"message.timestamp.type": "LogAppendTime"})
    lake = tmp_path / "lake"
    assert pipeline("archive", "--bootstrap", bootstrap, "--topics", "few", "--to", lake).stdout
    done = pipeline("replay", "--from", lake, "--bootstrap", bootstrap, "--topic", "stamped")
    assert done.returncode == 0, done.stdout + done.stderr
    assert checked(done.stdout, "stamped") == 20
    assert "timestamps: the topic's own (LogAppendTime)" in done.stdout


def test_aborted_transactions_of_apache_kafka_are_not_archived_and_the_rest_replays_here(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    fresh_broker: Callable[..., RunningBroker],
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    source, target = apache_kafka.bootstrap_servers, lasting(fresh_broker).bootstrap_servers
    create(source, "transfers", 2)
    fill_transactions(source, "transfers", count=9, records=20)
    lake = tmp_path / "lake"
    done = pipeline("archive", "--bootstrap", source, "--topics", "transfers", "--to", lake)
    assert done.returncode == 0, done.stderr
    values = {bytes(row.value) for row in spark.read.parquet(str(lake)).select("value").collect()}
    assert values == {b"%d-%d" % (n, r) for n in range(9) if n % 3 != 1 for r in range(20)}
    done = pipeline("replay", "--from", lake, "--bootstrap", target, "--keep-partitions")
    assert done.returncode == 0, done.stdout + done.stderr
    assert checked(done.stdout, "transfers-0") + checked(done.stdout, "transfers-1") == 6 * 20
    assert read_all(target, "transfers", 2) == read_all(source, "transfers", 2)


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

    back = ("replay", "--from", lake, "--bootstrap", bootstrap, "--topic", "back")
    done = pipeline(*back, "--keep-partitions")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "match the archive" in done.stdout
    assert read_all(bootstrap, "back", 2) == read_all(bootstrap, "small", 2)


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
        cwd=tmp_path, start_new_session=True, preexec_fn=heed_signals,
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
    fill_mixed(broker.bootstrap_servers, "orders", 150)
    original = read_all(broker.bootstrap_servers, "orders", 3)
    broker.stop()
    lake = tmp_path / "lake"
    remains = lake / "topic=orders" / "day=2023-11-14"
    remains.mkdir(parents=True)
    (remains / "part-0.parquet").write_bytes(b"PAR1 and no more: the disk was full")
    copying = ("segments", broker.data_dir, "--topic", "orders", "--to", lake)
    refused = pipeline(*copying)
    assert refused.returncode == 1
    assert "is not empty" in refused.stderr
    (lake / "_barnabas").mkdir()
    (lake / "_barnabas" / "unfinished").touch()  # the note of a run of ours that was cut off
    done = pipeline(*copying)
    assert done.returncode == 0, done.stderr
    assert "not empty" in pipeline(*copying).stderr
    assert "read 750 rows of orders" in done.stdout
    shown = pipeline("segments", broker.data_dir, "--topic", "orders", "--offsets", "0:10-20")
    assert shown.returncode == 0, shown.stderr
    assert "read 10 rows" in shown.stdout
    missing = pipeline("segments", broker.data_dir, "--topic", "orders", "--offsets", "0:1-2,7:5-")
    assert missing.returncode == 1
    assert "has no partition 7" in missing.stderr
    broker.start()
    moved = tmp_path / "moved"
    lake.rename(moved)  # an archive may be moved; replay finds its files all the same
    done = pipeline(
        "replay", "--from", moved, "--bootstrap", broker.bootstrap_servers, "--topic", "back",
        "--keep-partitions",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_all(broker.bootstrap_servers, "back", 3) == original


def test_segments_of_a_topic_without_records_writes_an_archive_without_records(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    (data / "orders-0").mkdir(parents=True)
    (data / "orders-0" / f"{0:020d}.log").touch()
    (data / "replication-offset-checkpoint").write_text("0\n1\norders 0 0\n")
    done = pipeline("segments", data, "--topic", "orders", "--to", tmp_path / "lake")
    assert done.returncode == 0, done.stderr
    assert "read 0 rows of orders" in done.stdout
    assert barnabas.archive_files(str(tmp_path / "lake")) == []
