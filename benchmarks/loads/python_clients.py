"""W14: what a Python user sees: kafka-python (with crc32c) and aiokafka, both ways."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from benchmarks.loads.base import Figures, LoadFailed, Place, create_topic, expect_records


def _figures(produce_s: float, consume_s: float, count: int) -> Figures:
    return {"produced_s": count / produce_s, "consumed_s": count / consume_s}


def kafka_python(place: Place, size: int, count: int) -> Figures:
    """Send `count` records, then read them; acks=1, one partition."""
    import crc32c  # noqa: F401  without it the client computes checksums in Python
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.structs import TopicPartition

    create_topic(place.bootstrap, place.topic)
    producer = KafkaProducer(bootstrap_servers=place.bootstrap, acks=1, linger_ms=5)
    payload = os.urandom(size)
    began = time.perf_counter()
    for _ in range(count):
        producer.send(place.topic, payload)
    producer.flush()
    produce_s = time.perf_counter() - began
    producer.close()
    expect_records(place.bootstrap, place.topic, 1, count)
    consumer = KafkaConsumer(bootstrap_servers=place.bootstrap, enable_auto_commit=False)
    partition = TopicPartition(place.topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    began = time.perf_counter()
    seen = 0
    while seen < count:
        records = consumer.poll(timeout_ms=20_000, max_records=5000)
        if not records:
            raise LoadFailed(f"{seen} of {count} records came")
        seen += sum(len(batch) for batch in records.values())
    consume_s = time.perf_counter() - began
    return _figures(produce_s, consume_s, count)


def aiokafka(place: Place, size: int, count: int) -> Figures:
    """The same with aiokafka."""
    create_topic(place.bootstrap, place.topic)
    return asyncio.run(_aiokafka(place, size, count))


async def _aiokafka(place: Place, size: int, count: int) -> Figures:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.structs import TopicPartition

    producer: Any = AIOKafkaProducer(bootstrap_servers=place.bootstrap, acks=1, linger_ms=5)
    await producer.start()
    payload = os.urandom(size)
    began = time.perf_counter()
    for _ in range(count):
        await producer.send(place.topic, payload)
    await producer.flush()
    produce_s = time.perf_counter() - began
    await producer.stop()
    expect_records(place.bootstrap, place.topic, 1, count)
    consumer: Any = AIOKafkaConsumer(bootstrap_servers=place.bootstrap, enable_auto_commit=False)
    await consumer.start()
    partition = TopicPartition(place.topic, 0)
    consumer.assign([partition])
    await consumer.seek_to_beginning(partition)
    began = time.perf_counter()
    seen = 0
    while seen < count:
        records = await consumer.getmany(timeout_ms=20_000, max_records=5000)
        if not records:
            raise LoadFailed(f"{seen} of {count} records came")
        seen += sum(len(batch) for batch in records.values())
    consume_s = time.perf_counter() - began
    await consumer.stop()
    return _figures(produce_s, consume_s, count)
