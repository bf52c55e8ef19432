"""Configs that are changed while a whole node runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from server.config.kafka_config import KafkaConfig
from server.node.node import Node
from tests.server.wire_client import WireClient
from wire.messages.admin import IncrementalAlterConfigsRequest

BROKER_RESOURCE, SET, DELETE = 4, 0, 1


@pytest.fixture
def broker(tmp_path: Path):
    node = Node(KafkaConfig({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}))
    try:
        node.start()
        yield node
    finally:
        node.shutdown()


def alter(broker: Node, name: str, value: str | None) -> None:
    """Change one cluster-wide config and wait until the broker was told of it."""
    make = IncrementalAlterConfigsRequest.Resource
    request = IncrementalAlterConfigsRequest(
        resources=[
            make(
                resource_type=BROKER_RESOURCE,
                resource_name="",
                configs=[
                    make.Config(
                        name=name, config_operation=DELETE if value is None else SET, value=value
                    )
                ],
            )
        ],
        validate_only=False,
    )
    server = broker.broker_server
    told = threading.Event()

    def published(_offset: int) -> None:
        if server.metadata.config(BROKER_RESOURCE, "").get(name) == value:
            told.set()

    server.loader.when_published(published)
    with WireClient(broker.port) as client:
        (answer,) = client.ask(request, 1).responses
        assert (answer.error_code, answer.error_message) == (0, None)
    assert told.wait(30)


def test_what_logs_are_told_of_producers_changes_while_running(broker: Node) -> None:
    producers = broker.broker_server.log_manager.producers
    assert (producers.expiration_ms, producers.requires_verification) == (86_400_000, True)
    alter(broker, "producer.id.expiration.ms", "5000")
    alter(broker, "transaction.partition.verification.enable", "false")
    assert (producers.expiration_ms, producers.requires_verification) == (5000, False)
    alter(broker, "producer.id.expiration.ms", None)
    alter(broker, "transaction.partition.verification.enable", None)
    assert (producers.expiration_ms, producers.requires_verification) == (86_400_000, True)
