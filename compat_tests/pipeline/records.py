"""Records with everything a record can have, and what a broker holds of them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def create(bootstrap: str, topic: str, partitions: int, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(topic, partitions, 1, config=config)])
    made[topic].result(30)


def fill_mixed(
    bootstrap: str,
    topic: str,
    count: int,
    *,
    partitions: int = 3,
    codecs: Iterable[str] = CODECS,
    spread_ms: int = 60_000,
) -> None:
    """`count` records a codec, of everything: nulls, empty ones, long ones, doubled headers."""
    create(bootstrap, topic, partitions)
    dice = random.Random(topic)
    for codec in codecs:
        producer = Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20}
        )
        for number in range(count):
            producer.produce(
                topic,
                value(codec, number, dice),
                key=key(number),
                partition=number % partitions,
                timestamp=FIRST_MS + number * spread_ms,
                headers=headers(number),
            )
            if number % 200 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0


def key(number: int) -> bytes | None:
    if number % 5 == 0:
        return None
    return b"" if number % 17 == 0 else f"k{number % 50}".encode()


def value(codec: str, number: int, dice: random.Random) -> bytes | None:
    if number % 11 == 0:
        return None
    if number % 13 == 0:
        return b""
    if number % 100 == 7:
        return dice.randbytes(150_000)
    return f"{codec}-{number}-".encode() * (number % 9 + 1)


def headers(number: int) -> list[tuple[str, bytes | None]] | None:
    if number % 7 == 0:
        return [("x", bytes([number % 256]) * (number % 300))]
    if number % 3 == 0:
        return [("a", b"1"), ("\u00e9t\u00e9", None), ("a", b"")]
    return None


def fill_plain(
    bootstrap: str, topic: str, count: int, *, partitions: int = 1, start: int = 0
) -> None:
    """Small records with ascending numbers as keys, round robin."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(start, start + count):
        producer.produce(
            topic,
            b"v%d" % number,
            key=b"%d" % number,
            partition=number % partitions,
            timestamp=FIRST_MS + number,
        )
        if number % 500 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0


def transactional(bootstrap: str) -> Producer:
    """A producer with transactions of its own, ready to begin one."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"transactional-{uuid.uuid4()}",
            "transaction.timeout.ms": 600_000,  # what is left open stays so, however slow it is
        }
    )
    producer.init_transactions(30)
    return producer


def fill_transactions(bootstrap: str, topic: str, *, count: int, records: int) -> None:
    """`count` transactions over two partitions; every third, from the second on, is aborted."""
    producer = transactional(bootstrap)
    for number in range(count):
        producer.begin_transaction()
        for record in range(records):
            producer.produce(topic, b"%d-%d" % (number, record), partition=record % 2)
        producer.flush(30)
        if number % 3 == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[int, list[tuple[Any, ...]]]:
    """By partition, in order: (key, value, headers, timestamp in ms) of every committed record."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-all",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    found: dict[int, list[tuple[Any, ...]]] = {index: [] for index in range(partitions)}
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    open_partitions = set(range(partitions))
    while open_partitions:
        message = consumer.poll(30)
        assert message is not None, "no end of the topic within 30 s"
        if message.error():
            open_partitions.discard(message.partition())
            continue
        found[message.partition()].append(
            (message.key(), message.value(), message.headers(), message.timestamp()[1])
        )
    consumer.close()
    return found


def from_kafka(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    """The topic by Spark's own source, committed records only."""
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .options(**options)
        .load()
    )


def assert_same_rows(left: DataFrame, right: DataFrame) -> int:
    """Row for row equal, duplicates counted; the number of rows."""
    assert left.schema == right.schema
    count = left.count()
    assert count == right.count()
    assert left.exceptAll(right).count() == 0
    assert right.exceptAll(left).count() == 0
    return count


def held(bootstrap: str, topic: str, partitions: int, isolation: str = "read_committed") -> int:
    """How many offsets a topic has: below its last stable ones, or all."""
    with holding(bootstrap, topic, partitions, isolation) as ask:
        return ask()


@contextmanager
def holding(
    bootstrap: str, topic: str, partitions: int, isolation: str = "read_committed"
) -> Iterator[Callable[[], int]]:
    """Asks `held` again and again, by one client."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "looks", "isolation.level": isolation}
    )
    places = [TopicPartition(topic, index) for index in range(partitions)]
    try:
        yield lambda: sum(consumer.get_watermark_offsets(one, timeout=10)[1] for one in places)
    finally:
        consumer.close()
