"""Client metrics (KIP-714): kafka-client-metrics asks, and clients of librdkafka push."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from testkit.brokers.nodes import RunningBroker
from testkit.clients.java_tools import JavaTools
from testkit.wait import eventually

pytestmark = pytest.mark.java


class Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_a_subscription_makes_clients_push(
    java_tools: JavaTools, fresh_broker: Callable[..., RunningBroker]
) -> None:
    broker = fresh_broker({})

    def tool(*args: str) -> str:
        return java_tools.run(
            "ClientMetricsCommand", "--bootstrap-server", broker.bootstrap_servers, *args
        ).ok()

    tool(
        "--alter", "--name", "all", "--metrics", "*", "--interval", "300",
        "--match", "client_id=mea.*",
    )  # fmt: skip
    eventually(lambda: "all" in tool("--list"))
    described = tool("--describe", "--name", "all")
    assert "interval.ms=300" in described
    assert "client_id=mea.*" in described
    told = Told()
    logger = logging.getLogger("compat-telemetry")
    logger.addHandler(told)
    logger.setLevel(logging.DEBUG)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": "measured",
            "debug": "telemetry,protocol",
            "topic.metadata.refresh.interval.ms": 500,
        },
        logger=logger,
    )
    producer.produce("t", b"v")

    def answered(api: str) -> int:
        producer.poll(0.05)
        return sum(f"Received {api}Response" in line for line in told.lines)

    if broker.kind == "barnabas":  # Kafka lists the API where a plugin takes the metrics
        eventually(lambda: answered("PushTelemetry") >= 3)
        assert not any("PushTelemetry failed" in line for line in told.lines)
    producer.flush(5)
    tool("--delete", "--name", "all")
    eventually(lambda: "all" not in tool("--list"))
