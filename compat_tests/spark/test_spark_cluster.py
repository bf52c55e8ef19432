"""Spark reads and writes a cluster of three while a node of it is killed and started again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from testkit.brokers.clusters import ClusterOfNodes
from testkit.wait import eventually
from testkit.workloads.workload import create_topic, end_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

PARTITIONS = 4
RATE = 600


class Feed(threading.Thread):
    """A table's rows as they come: `RATE` numbered records a second, in turn to each partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5,
             "reconnect.backoff.max.ms": 500, "log_level": 0}
        )  # fmt: skip
        self._topic = topic
        self._ending = threading.Event()
        self.sent = 0
        self.failed: list[str] = []

    def run(self) -> None:
        while not self._ending.wait(0.01):
            for _ in range(RATE // 100):
                self._producer.produce(
                    self._topic, b"%08d" % self.sent, partition=self.sent % PARTITIONS,
                    on_delivery=lambda error, _: error and self.failed.append(str(error)),
                )  # fmt: skip
                self.sent += 1
            self._producer.poll(0)
        self._producer.flush(120)

    def end(self) -> None:
        self._ending.set()
        self.join(150)
        assert not self.is_alive()
        assert not self.failed, self.failed[:3]


def read(spark: SparkSession, bootstrap: str, topic: str) -> dict[int, list[int]]:
    """Every row of a topic by Spark's batch source: numbers by partition, in order of offsets."""
    frame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .load()
        .selectExpr("partition", "offset", "cast(cast(value as string) as long) as number")
    )
    found: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
    for row in sorted(frame.collect(), key=lambda row: (row.partition, row.offset)):
        found[row.partition].append(row.number)
    return found


def copying(spark: SparkSession, bootstrap: str, source: str, sink: str, directory: Path) -> Any:
    """A streaming query from one topic to the same partitions of another."""
    frame: DataFrame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    return (
        frame.selectExpr("value", "partition")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", sink)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )


def test_no_row_is_lost_doubled_or_reordered_while_a_node_dies_and_comes_back(
    make_cluster: Callable[..., ClusterOfNodes],
    spark: SparkSession,
    tmp_path: Path,
    topic_name: str,
) -> None:
    cluster = make_cluster()
    bootstrap = cluster.bootstrap_servers
    source, sink = f"{topic_name}-in", f"{topic_name}-out"
    for topic in (source, sink):
        create_topic(bootstrap, topic, PARTITIONS)
    feed = Feed(bootstrap, source)
    feed.start()
    query = copying(spark, bootstrap, source, sink, tmp_path)
    try:
        copied = lambda: sum(end_offsets(bootstrap, sink, PARTITIONS).values())  # noqa: E731
        eventually(lambda: copied() > RATE, timeout_s=60, every_s=0.5, what="the first rows")
        for topic in (source, sink):
            victim = cluster.leader(topic)
            before = copied()
            cluster.kill(victim)
            eventually(
                lambda before=before: copied() > before + 3 * RATE, timeout_s=120, every_s=0.5,
                what=f"rows go on without node {victim}",
            )  # fmt: skip
            cluster.restart(victim)
            cluster.await_full_isr(source, sink)
        feed.end()
        eventually(
            lambda: copied() >= feed.sent, timeout_s=120, every_s=0.5, what="every row is copied"
        )
        assert query.exception() is None
        time.sleep(1)  # a row too many would come now
    finally:
        query.stop()
    expected = {p: list(range(p, feed.sent, PARTITIONS)) for p in range(PARTITIONS)}
    assert read(spark, bootstrap, source) == expected
    cluster.kill(cluster.leader(sink))  # a batch job must not mind either
    assert read(spark, bootstrap, sink) == expected
