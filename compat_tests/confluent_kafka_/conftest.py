"""confluent-kafka (librdkafka) clients of a test's own, closed at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def new_producer(bootstrap: str) -> Callable[..., Producer]:
    """`new_producer(**{"linger.ms": 5})`; librdkafka ends it when it is no longer referenced."""

    def make(**config: Any) -> Producer:
        return Producer({"bootstrap.servers": bootstrap, **config})

    return make


@pytest.fixture
def new_consumer(bootstrap: str, closing: ExitStack, group_name: str) -> Callable[..., Consumer]:
    def make(*topics: str, **config: Any) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group_name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **config,
            }
        )
        closing.callback(consumer.close)
        if topics:
            consumer.subscribe(list(topics))
        return consumer

    return make


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def make_topic(admin: AdminClient, topic_name: str) -> Callable[..., str]:
    def make(partitions: int = 1, *, suffix: str = "", **configs: str) -> str:
        name = topic_name + suffix
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=configs)
        admin.create_topics([new])[name].result(20)
        return name

    return make
