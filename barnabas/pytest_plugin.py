"""Pytest fixtures: a broker of one's own for a test, or one for the whole session.

    def test_orders_arrive(barnabas_broker):
        producer = KafkaProducer(bootstrap_servers=barnabas_broker.bootstrap_servers)

`barnabas_broker` is fresh for each test: its own directory, port and topics.
`barnabas_shared_broker` is started once a session (once a worker under pytest-xdist): use unique
topic names with it. Override the fixture `barnabas_config` to give the brokers other properties.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas.broker import Broker


@pytest.fixture(scope="session")
def barnabas_config() -> dict[str, object]:
    """The brokers' properties, by Kafka's names; override it in your conftest.py."""
    return {}


@pytest.fixture
def barnabas_broker(barnabas_config: dict[str, object]) -> Iterator[Broker]:
    """A fresh broker for one test."""
    with Broker(config=barnabas_config) as broker:
        yield broker


@pytest.fixture(scope="session")
def barnabas_shared_broker(barnabas_config: dict[str, object]) -> Iterator[Broker]:
    """One broker for the whole session."""
    with Broker(config=barnabas_config) as broker:
        yield broker
