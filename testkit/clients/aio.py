"""Helpers for tests that use aiokafka: clients as context managers, reading with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@asynccontextmanager
async def producing(bootstrap: str, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **config)
    try:
        await producer.start()
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def consuming(bootstrap: str, *topics: str, **config: Any) -> AsyncIterator[AIOKafkaConsumer]:
    config.setdefault("auto_offset_reset", "earliest")
    consumer = AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, **config)
    try:
        await consumer.start()
        yield consumer
    finally:
        await consumer.stop()


@asynccontextmanager
async def administering(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def create(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
    async with administering(bootstrap) as admin:
        answer = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])
        assert all(error[1] == 0 for error in answer.topic_errors), answer


async def read(consumer: AIOKafkaConsumer, count: int, timeout_s: float = 20) -> list[Any]:
    records: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records in {timeout_s} s"
        for batch in (await consumer.getmany(timeout_ms=200)).values():
            records.extend(batch)
    return records


async def eventually(probe: Callable[[], Any], timeout_s: float = 20, what: str = "") -> None:
    deadline = time.monotonic() + timeout_s
    while not probe():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.05)
