"""Pytest fixtures: a broker or a cluster of one's own for a test, or a broker for the session.

    def test_orders_arrive(barnabas_broker):
        producer = KafkaProducer(bootstrap_servers=barnabas_broker.bootstrap_servers)

`barnabas_broker` is fresh for each test: its own directory, port and topics.
`barnabas_cluster` is three nodes, fresh for each test; barnabas.Cluster says how to hurt them.
`barnabas_shared_broker` is started once a session (once a worker under pytest-xdist): use unique
topic names with it. Override the fixture `barnabas_config` to give the brokers other properties.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from barnabas.broker import Broker

if TYPE_CHECKING:
    from barnabas.cluster import Cluster


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


@pytest.fixture
def barnabas_cluster(barnabas_config: dict[str, object]) -> Iterator[Cluster]:
    """A fresh cluster of three nodes for one test."""
    from barnabas.cluster import Cluster

    with Cluster(config=barnabas_config) as cluster:
        yield cluster
