"""The suite of W16: each test starts a broker, sends a few records and reads them with a group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from testkit.brokers.nodes import ApacheKafka, Barnabas

COUNT = int(os.environ.get("BENCH_TESTS", "1"))


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    make = Barnabas if os.environ.get("BENCH_BROKER") == "barnabas" else ApacheKafka
    with make(tmp_path) as broker:
        yield broker.bootstrap_servers


@pytest.mark.parametrize("number", range(COUNT))
def test_what_was_sent_comes_back(bootstrap: str, number: int) -> None:
    values = [f"{number}-{index}".encode() for index in range(10)]
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(30) == 0
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    seen: list[bytes | None] = []
    while len(seen) < len(values):
        message = consumer.poll(30)
        assert message is not None
        if not message.error():
            seen.append(message.value())
    consumer.close()
    assert seen == values
