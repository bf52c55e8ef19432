"""kafka-python clients of a test's own, closed at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def new_producer(bootstrap: str, closing: ExitStack) -> Callable[..., KafkaProducer]:
    def make(**config: Any) -> KafkaProducer:
        producer = KafkaProducer(bootstrap_servers=bootstrap, **config)
        closing.callback(producer.close, timeout=5)
        return producer

    return make


@pytest.fixture
def new_consumer(bootstrap: str, closing: ExitStack) -> Callable[..., KafkaConsumer]:
    def make(*topics: str, **config: Any) -> KafkaConsumer:
        config.setdefault("auto_offset_reset", "earliest")
        consumer = KafkaConsumer(*topics, bootstrap_servers=bootstrap, **config)
        closing.callback(consumer.close)
        if topics:
            # kafka-python 3.0.12: metadata that comes after the join makes the member join again,
            # and what a short poll leaves of that is forgotten; it waits for its partitions then.
            consumer.topics()
        return consumer

    return make


@pytest.fixture
def admin(bootstrap: str, closing: ExitStack) -> KafkaAdminClient:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    closing.callback(client.close)
    return client


@pytest.fixture
def make_topic(admin: KafkaAdminClient, topic_name: str) -> Callable[..., str]:
    """Creates the topic `topic_name`: `make_topic(3, **{"cleanup.policy": "compact"})`."""

    def make(partitions: int = 1, *, suffix: str = "", **configs: str) -> str:
        name = topic_name + suffix
        admin.create_topics(
            {name: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}},
            wait_for_metadata=True,
        )
        return name

    return make
