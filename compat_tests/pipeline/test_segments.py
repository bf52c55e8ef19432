"""`format("barnabas")` reads a log directory row for row as `format("kafka")` reads the broker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import barnabas
from compat_tests.pipeline.conftest import Pipeline
from compat_tests.pipeline.records import (
    FIRST_MS,
    assert_same_rows,
    create,
    fill_mixed,
    fill_plain,
    fill_transactions,
    from_kafka,
    transactional,
)
from testkit.brokers.nodes import ApacheKafka, RunningBroker
from testkit.wait import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

MIXED = "mixed"
ROWS_A_CODEC = 900


@pytest.fixture(scope="module")
def node(
    make_broker: Callable[..., RunningBroker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    """A broker with small segments and one topic of everything; its files are up to date."""
    config = {
        "log.segment.bytes": 1048576,
        "log.retention.ms": -1,
        "log.index.interval.bytes": 1024,
    }
    broker = make_broker(tmp_path_factory.mktemp("segments-broker"), config)
    broker.start()
    fill_mixed(broker.bootstrap_servers, MIXED, ROWS_A_CODEC)
    yield broker
    broker.kill()


@pytest.fixture(scope="module")
def segments(spark: SparkSession, node: RunningBroker) -> Callable[..., DataFrame]:
    def read(topic: str, **options: str) -> DataFrame:
        return reader_of(spark, topic).options(**options).load(str(node.data_dir))

    return read


def reader_of(spark: SparkSession, topic: str) -> DataFrameReader:
    """A reader of the columns of format("kafka"), headers included."""
    barnabas.register_source(spark)
    return spark.read.format("barnabas").option("topic", topic).option("includeHeaders", "true")


def wait_for_checkpoint(read: Callable[[], int], count: int) -> None:
    """The broker writes its high watermarks down every five seconds."""
    eventually(lambda: read() == count, timeout_s=60, every_s=1)


def test_every_codec_header_and_null_reads_as_kafka_reads_it(
    spark: SparkSession, node: RunningBroker, segments: Callable[..., DataFrame]
) -> None:
    wait_for_checkpoint(lambda: segments(MIXED).count(), 5 * ROWS_A_CODEC)
    count = assert_same_rows(from_kafka(spark, node.bootstrap_servers, MIXED), segments(MIXED))
    assert count == 5 * ROWS_A_CODEC
    closed = list(Path(node.data_dir, f"{MIXED}-0").glob("*.log"))
    assert len(closed) > 1, "the test needs closed segments, too"
    assert segments(MIXED).rdd.getNumPartitions() >= 3 * 2


def test_offsets_partitions_and_times_are_found_by_the_indexes(
    spark: SparkSession, node: RunningBroker, segments: Callable[..., DataFrame]
) -> None:
    wait_for_checkpoint(lambda: segments(MIXED).count(), 5 * ROWS_A_CODEC)
    kafka = from_kafka(spark, node.bootstrap_servers, MIXED)
    narrow = segments(
        MIXED,
        partitions="1",
        startingOffsets=json.dumps({MIXED: {"1": 777}}),
        endingOffsets=json.dumps({MIXED: {"1": 1234}}),
    )
    wanted = kafka.where("partition = 1 and offset >= 777 and offset < 1234")
    assert assert_same_rows(wanted, narrow) == 1234 - 777
    since, until = FIRST_MS + 300 * 60_000, FIRST_MS + 310 * 60_000
    timed = segments(MIXED, since=str(since), until=str(until))
    in_time = f"timestamp >= timestamp_millis({since}) and timestamp < timestamp_millis({until})"
    assert assert_same_rows(kafka.where(in_time), timed) == 5 * 10
    assert segments(MIXED, since=str(FIRST_MS + 10**10)).count() == 0


def test_a_directory_of_apache_kafka_reads_as_its_broker_serves_it(
    spark: SparkSession, apache_kafka: ApacheKafka
) -> None:
    fill_mixed(apache_kafka.bootstrap_servers, MIXED, ROWS_A_CODEC)
    frame = reader_of(spark, MIXED).load(str(apache_kafka.data_dir))
    wait_for_checkpoint(frame.count, 5 * ROWS_A_CODEC)
    assert len(list(Path(apache_kafka.data_dir, f"{MIXED}-0").glob("*.log"))) > 1
    assert_same_rows(from_kafka(spark, apache_kafka.bootstrap_servers, MIXED), frame)
    since = FIRST_MS + 300 * 60_000
    timed = reader_of(spark, MIXED).option("since", str(since))
    found = timed.load(str(apache_kafka.data_dir)).count()
    assert found == 5 * (ROWS_A_CODEC - 300)


@pytest.mark.parametrize("whose", ["node", "apache_kafka"])
def test_aborted_transactions_and_markers_are_left_out_and_open_ones_not_reached(
    spark: SparkSession,
    pipeline: Pipeline,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    whose: str,
) -> None:
    """By segments and by archive, as format("kafka") reads committed records."""
    broker: RunningBroker = request.getfixturevalue(whose)
    bootstrap, data_dir = broker.bootstrap_servers, str(broker.data_dir)
    topic = "transactions"
    create(bootstrap, topic, 2)
    fill_transactions(bootstrap, topic, count=12, records=20)
    still_open, behind = transactional(bootstrap), transactional(bootstrap)
    still_open.begin_transaction()
    still_open.produce(topic, b"open", partition=0)
    still_open.flush(30)
    behind.begin_transaction()
    behind.produce(topic, b"behind the open one", partition=0)
    behind.commit_transaction(30)
    committed = reader_of(spark, topic).load(data_dir)
    wait_for_checkpoint(committed.count, 8 * 20)
    kafka = from_kafka(spark, bootstrap, topic)
    assert_same_rows(kafka, committed)
    lake = tmp_path / "lake"
    done = pipeline("archive", "--bootstrap", bootstrap, "--topics", topic, "--to", lake)
    assert done.returncode == 0, done.stderr
    assert_same_rows(kafka, spark.read.parquet(str(lake)).select(*kafka.columns))
    every = reader_of(spark, topic).option("isolationLevel", "read_uncommitted")
    wait_for_checkpoint(lambda: every.load(data_dir).count(), 12 * 20 + 2)
    seen = {"kafka.isolation.level": "read_uncommitted"}
    assert_same_rows(from_kafka(spark, bootstrap, topic, **seen), every.load(data_dir))
    still_open.abort_transaction(30)


def test_a_copy_without_its_broker_is_read_to_the_log_end_when_asked(
    spark: SparkSession, node: RunningBroker, tmp_path: Path
) -> None:
    barnabas.register_source(spark)
    topic = "copied"
    create(node.bootstrap_servers, topic, 1)
    fill_plain(node.bootstrap_servers, topic, 250)
    fill_plain(node.bootstrap_servers, topic, 250, start=250)
    shutil.copytree(Path(node.data_dir, f"{topic}-0"), tmp_path / f"{topic}-0")
    reader = spark.read.format("barnabas").option("topic", topic)
    assert reader.load(str(tmp_path)).count() == 0, "no high watermark is known there"
    assert reader.option("readTo", "logEnd").load(str(tmp_path)).count() == 500
    log = next((tmp_path / f"{topic}-0").glob("*.log"))
    with open(log, "r+b") as file:
        file.truncate(log.stat().st_size - 3)  # a batch half written by a crash
    rest = reader.option("readTo", "logEnd").load(str(tmp_path))
    offsets = [row.offset for row in rest.select("offset").orderBy("offset").collect()]
    assert 250 <= len(offsets) < 500
    assert offsets == list(range(len(offsets)))


def test_a_damaged_batch_is_an_error_that_names_file_and_offset(
    spark: SparkSession, node: RunningBroker, tmp_path: Path
) -> None:
    barnabas.register_source(spark)
    topic = "damaged"
    create(node.bootstrap_servers, topic, 1)
    fill_plain(node.bootstrap_servers, topic, 100)
    shutil.copytree(Path(node.data_dir, f"{topic}-0"), tmp_path / f"{topic}-0")
    log = next((tmp_path / f"{topic}-0").glob("*.log"))
    with open(log, "r+b") as file:
        file.seek(90)
        file.write(b"\xff\xfe\xfd")
    reader = spark.read.format("barnabas").option("topic", topic).option("readTo", "logEnd")
    with pytest.raises(Exception, match=r"00000\.log.*offset 0.*checksum"):
        reader.load(str(tmp_path)).collect()
