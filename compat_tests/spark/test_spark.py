"""Spark's Kafka source and sink, batch and streaming, unchanged and with no special setting."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.structs import TopicPartition

from testkit.brokers.nodes import RunningBroker
from testkit.wait import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

Rows = list[tuple[Any, ...]]
# An hour ago: records older than a topic's retention.ms may be gone at any moment.
FIRST_TIMESTAMP_MS = int(time.time()) * 1000 - 3_600_000


def fill(
    bootstrap: str,
    topic: str,
    values: Iterable[str],
    *,
    partitions: int = 1,
    headers: list[tuple[str, bytes]] | None = None,
) -> None:
    """One record a value: round robin over partitions, one second of record time apart."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    if topic not in admin.list_topics():
        admin.create_topics([NewTopic(topic, partitions, 1)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for number, value in enumerate(values):
        producer.send(
            topic,
            value.encode(),
            key=f"k{number}".encode(),
            partition=number % partitions,
            timestamp_ms=FIRST_TIMESTAMP_MS + number * 1000,
            headers=headers or [],
        )
    producer.flush()
    producer.close()


def source(spark: SparkSession, bootstrap: str, **options: str) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return reader.options(**options).load()


def stream(spark: SparkSession, bootstrap: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return reader.options(**options).load()


def values_of(frame: DataFrame) -> list[str]:
    rows = frame.selectExpr("partition", "offset", "cast(value as string) as value").collect()
    return [row.value for row in sorted(rows, key=lambda row: (row.partition, row.offset))]


def finish(query: StreamingQuery, timeout_s: int = 120) -> None:
    """Wait for an availableNow query to end by itself."""
    try:
        assert query.awaitTermination(timeout_s), "the query did not end"
    finally:
        query.stop()


def to_parquet(frame: DataFrame, directory: Path, **triggers: Any) -> StreamingQuery:
    return (
        frame.selectExpr("topic", "partition", "offset", "cast(value as string) as value")
        .writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(**triggers)
        .start()
    )


def parquet_values(spark: SparkSession, directory: Path) -> list[str]:
    return values_of(spark.read.parquet(str(directory / "out")))


# ---- batch source


def test_a_batch_read_holds_every_column_of_every_record(
    spark: SparkSession, bootstrap: str, topic_name: str
) -> None:
    fill(bootstrap, topic_name, ["a", "b", "c"], headers=[("h", b"1"), ("h", b"2")])
    rows = source(spark, bootstrap, subscribe=topic_name, includeHeaders="true").collect()
    assert len(rows) == 3
    for number, row in enumerate(sorted(rows, key=lambda row: row.offset)):
        assert bytes(row.key) == f"k{number}".encode()
        assert bytes(row.value) == b"abc"[number : number + 1]
        assert (row.topic, row.partition, row.offset) == (topic_name, 0, number)
        assert row.timestamp.timestamp() * 1000 == FIRST_TIMESTAMP_MS + number * 1000
        assert row.timestampType == 0
        assert [(h.key, bytes(h.value)) for h in row.headers] == [("h", b"1"), ("h", b"2")]


def test_assign_reads_only_the_given_partitions(
    spark: SparkSession, bootstrap: str, topic_name: str
) -> None:
    fill(bootstrap, topic_name, [str(n) for n in range(9)], partitions=3)
    frame = source(spark, bootstrap, assign=json.dumps({topic_name: [1, 2]}))
    assert values_of(frame) == ["1", "4", "7", "2", "5", "8"]


def test_a_pattern_reads_every_matching_topic_and_no_internal_one(
    spark: SparkSession, bootstrap: str, topic_name: str
) -> None:
    fill(bootstrap, f"{topic_name}.x", ["x"])
    fill(bootstrap, f"{topic_name}.y", ["y"])
    frame = source(spark, bootstrap, subscribePattern=f"{topic_name}.*|__consumer_offsets")
    assert sorted(row.topic for row in frame.select("topic").collect()) == [
        f"{topic_name}.x",
        f"{topic_name}.y",
    ]


def test_offsets_as_start_and_end(spark: SparkSession, bootstrap: str, topic_name: str) -> None:
    fill(bootstrap, topic_name, [str(n) for n in range(10)])
    frame = source(
        spark,
        bootstrap,
        subscribe=topic_name,
        startingOffsets=json.dumps({topic_name: {"0": 3}}),
        endingOffsets=json.dumps({topic_name: {"0": 7}}),
    )
    assert values_of(frame) == ["3", "4", "5", "6"]
    special = source(
        spark,
        bootstrap,
        subscribe=topic_name,
        startingOffsets=json.dumps({topic_name: {"0": -2}}),
        endingOffsets=json.dumps({topic_name: {"0": -1}}),
    )
    assert special.count() == 10


def test_timestamps_as_start_and_end(spark: SparkSession, bootstrap: str, topic_name: str) -> None:
    fill(bootstrap, topic_name, [str(n) for n in range(10)], partitions=2)
    one_for_all = source(
        spark,
        bootstrap,
        subscribe=topic_name,
        startingTimestamp=str(FIRST_TIMESTAMP_MS + 4000),
        endingTimestamp=str(FIRST_TIMESTAMP_MS + 8000),
    )
    assert values_of(one_for_all) == ["4", "6", "5", "7"]
    by_partition = source(
        spark,
        bootstrap,
        subscribe=topic_name,
        startingOffsetsByTimestamp=json.dumps(
            {topic_name: {"0": FIRST_TIMESTAMP_MS + 3500, "1": FIRST_TIMESTAMP_MS + 9000}}
        ),
    )
    assert values_of(by_partition) == ["4", "6", "8", "9"]


def test_a_start_after_the_last_record_fails_or_reads_nothing_as_asked(
    spark: SparkSession, bootstrap: str, topic_name: str
) -> None:
    fill(bootstrap, topic_name, ["a"])
    late = {"subscribe": topic_name, "startingTimestamp": str(FIRST_TIMESTAMP_MS + 10**9)}
    with pytest.raises(Exception, match="No offset matched"):
        source(spark, bootstrap, **late).count()
    latest = source(spark, bootstrap, **late, startingOffsetsByTimestampStrategy="latest")
    assert latest.count() == 0


def test_min_partitions_splits_ranges_and_keeps_every_record(
    spark: SparkSession, bootstrap: str, topic_name: str
) -> None:
    fill(bootstrap, topic_name, [str(n) for n in range(100)])
    frame = source(spark, bootstrap, subscribe=topic_name, minPartitions="4")
    assert frame.rdd.getNumPartitions() >= 4
    assert values_of(frame) == [str(n) for n in range(100)]


# ---- streaming source


def test_available_now_reads_all_in_bounded_batches_and_ends(
    spark: SparkSession, bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    fill(bootstrap, topic_name, [str(n) for n in range(50)])
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    frame = stream(spark, bootstrap, subscribe=topic_name, **options)
    query = to_parquet(frame, tmp_path, availableNow=True)
    finish(query)
    batches = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert sum(batches) == 50
    assert max(batches) <= 20
    assert parquet_values(spark, tmp_path) == [str(n) for n in range(50)]


def test_a_running_query_sees_records_and_partitions_that_come_later(
    spark: SparkSession, broker: RunningBroker, topic_name: str, tmp_path: Path
) -> None:
    bootstrap = broker.bootstrap_servers
    fill(bootstrap, topic_name, ["first"])
    frame = stream(
        spark,
        bootstrap,
        subscribe=topic_name,
        startingOffsets="earliest",
        **{"kafka.metadata.max.age.ms": "500"},
    )
    query = to_parquet(frame, tmp_path, processingTime="200 milliseconds")
    try:
        eventually(lambda: parquet_values(spark, tmp_path) == ["first"], timeout_s=60)
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        admin.create_partitions({topic_name: 2})
        admin.close()
        producer = KafkaProducer(bootstrap_servers=bootstrap, metadata_max_age_ms=500)
        producer.send(topic_name, b"second", partition=0)
        eventually(lambda: 1 in producer.partitions_for(topic_name), timeout_s=30)
        producer.send(topic_name, b"third", partition=1)
        producer.flush()
        producer.close()
        eventually(
            lambda: parquet_values(spark, tmp_path) == ["first", "second", "third"], timeout_s=60
        )
    finally:
        query.stop()


def test_a_query_goes_on_from_its_checkpoint_after_the_broker_was_killed(
    spark: SparkSession,
    fresh_broker: Callable[..., RunningBroker],
    topic_name: str,
    tmp_path: Path,
) -> None:
    broker = fresh_broker()
    fill(broker.bootstrap_servers, topic_name, [str(n) for n in range(20)])
    options = {"subscribe": topic_name, "startingOffsets": "earliest"}
    first = stream(spark, broker.bootstrap_servers, **options)
    finish(to_parquet(first, tmp_path, availableNow=True))
    broker.kill()
    broker.start()
    fill(broker.bootstrap_servers, topic_name, [str(n) for n in range(20, 40)])
    again = stream(spark, broker.bootstrap_servers, **options)
    finish(to_parquet(again, tmp_path, availableNow=True))
    assert parquet_values(spark, tmp_path) == [str(n) for n in range(40)]


def test_a_query_lives_through_a_kill_of_the_broker_in_mid_stream(
    spark: SparkSession,
    fresh_broker: Callable[..., RunningBroker],
    topic_name: str,
    tmp_path: Path,
) -> None:
    broker = fresh_broker()
    bootstrap = broker.bootstrap_servers
    fill(bootstrap, topic_name, [str(n) for n in range(10)])
    frame = stream(spark, bootstrap, subscribe=topic_name, startingOffsets="earliest")
    query = to_parquet(frame, tmp_path, processingTime="200 milliseconds")
    try:
        eventually(lambda: len(parquet_values(spark, tmp_path)) == 10, timeout_s=60)
        broker.kill()
        broker.start()
        fill(bootstrap, topic_name, [str(n) for n in range(10, 20)])
        expected = [str(n) for n in range(20)]
        eventually(lambda: parquet_values(spark, tmp_path) == expected, timeout_s=90)
    finally:
        query.stop()


# ---- data loss


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.delete_records({TopicPartition(topic, 0): offset})
    admin.close()


def test_deleted_records_fail_the_query_or_are_skipped_as_asked(
    spark: SparkSession, bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    fill(bootstrap, topic_name, [str(n) for n in range(10)])
    delete_before(bootstrap, topic_name, 6)
    gone = {"subscribe": topic_name, "startingOffsets": json.dumps({topic_name: {"0": 2}})}
    with pytest.raises(Exception, match=r"(?i)data loss|missing|offset"):
        finish(to_parquet(stream(spark, bootstrap, **gone), tmp_path / "f", availableNow=True))
    lenient = stream(spark, bootstrap, **gone, failOnDataLoss="false")
    finish(to_parquet(lenient, tmp_path / "l", availableNow=True))
    assert parquet_values(spark, tmp_path / "l") == ["6", "7", "8", "9"]
    from_earliest = source(spark, bootstrap, subscribe=topic_name, startingOffsets="earliest")
    assert values_of(from_earliest) == ["6", "7", "8", "9"]


def test_a_topic_deleted_and_created_again_is_read_from_its_new_start(
    spark: SparkSession, bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    fill(bootstrap, topic_name, [str(n) for n in range(10)])
    options = {"subscribe": topic_name, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    finish(to_parquet(stream(spark, bootstrap, **options), tmp_path, availableNow=True))
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.delete_topics([topic_name])
    eventually(lambda: topic_name not in admin.list_topics())
    admin.close()
    fill(bootstrap, topic_name, ["new-0", "new-1", "new-2"])
    assert values_of(source(spark, bootstrap, subscribe=topic_name)) == ["new-0", "new-1", "new-2"]
    # The checkpoint's offset 10 lies beyond the new topic's end: Spark goes back to what there is.
    finish(to_parquet(stream(spark, bootstrap, **options), tmp_path, availableNow=True))
    fill(bootstrap, topic_name, ["new-3"])
    finish(to_parquet(stream(spark, bootstrap, **options), tmp_path, availableNow=True))
    assert "new-3" in parquet_values(spark, tmp_path)


# ---- sink


def test_a_batch_write_arrives_with_keys_headers_and_partitions(
    spark: SparkSession, bootstrap: str, topic_name: str
) -> None:
    fill(bootstrap, topic_name, [], partitions=2)
    frame = spark.range(100).selectExpr(
        "cast(id as string) as key",
        "cast(id * 2 as string) as value",
        "array(struct('origin' as key, cast('spark' as binary) as value)) as headers",
        "cast(id % 2 as int) as partition",
    )
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    writer.option("topic", topic_name).option("includeHeaders", "true").save()
    rows = source(spark, bootstrap, subscribe=topic_name, includeHeaders="true").collect()
    assert len(rows) == 100
    for row in rows:
        number = int(bytes(row.key))
        assert int(bytes(row.value)) == number * 2
        assert row.partition == number % 2
        assert [(h.key, bytes(h.value)) for h in row.headers] == [("origin", b"spark")]


def test_a_write_to_an_absent_topic_creates_it(
    spark: SparkSession, bootstrap: str, topic_name: str
) -> None:
    frame = spark.range(10).selectExpr("cast(id as string) as value")
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    writer.option("topic", topic_name).save()
    assert source(spark, bootstrap, subscribe=topic_name).count() == 10


def test_a_streaming_query_copies_one_topic_to_another(
    spark: SparkSession, bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    fill(bootstrap, topic_name, [str(n) for n in range(200)], partitions=4)
    copy = f"{topic_name}-copy"
    query = (
        stream(spark, bootstrap, subscribe=topic_name, startingOffsets="earliest")
        .select("key", "value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", copy)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    finish(query)
    copied = values_of(source(spark, bootstrap, subscribe=copy))
    assert sorted(copied, key=int) == [str(n) for n in range(200)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_topics_go_through_spark_both_ways(
    spark: SparkSession, bootstrap: str, topic_name: str, codec: str
) -> None:
    frame = spark.range(500).selectExpr("repeat(cast(id as string), 20) as value")
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    writer.option("topic", topic_name).option("kafka.compression.type", codec).save()
    read = values_of(source(spark, bootstrap, subscribe=topic_name))
    assert sorted(read) == sorted(str(n) * 20 for n in range(500))


def test_the_end_offset_never_steps_back_while_records_arrive(
    spark: SparkSession, bootstrap: str, topic_name: str
) -> None:
    fill(bootstrap, topic_name, ["0"])
    seen = 0
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and seen < 5:
        fill(bootstrap, topic_name, ["more"])
        count = source(spark, bootstrap, subscribe=topic_name).count()
        assert count > seen
        seen = count
    assert seen >= 2
