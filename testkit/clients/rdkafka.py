"""Helpers for tests that use confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def set_configs(
    admin: AdminClient, kind: ResourceType, name: str, values: Mapping[str, object]
) -> None:
    """Set these of a topic, a broker or a group, and leave its others alone."""
    entries = [
        ConfigEntry(key, str(value), incremental_operation=AlterConfigOpType.SET)
        for key, value in values.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)


def send_all(producer: Any, topic: str, values: list[bytes], **kwargs: Any) -> list[Any]:
    """Sends the values and waits; the delivered messages in order. A failed one is a failure."""
    delivered: list[Any] = []
    failed: list[Any] = []

    def report(error: Any, message: Any) -> None:
        (failed if error else delivered).append(error or message)

    for value in values:
        producer.produce(topic, value, on_delivery=report, **kwargs)
        producer.poll(0)
    assert producer.flush(30) == 0
    assert not failed, failed[:3]
    return delivered


def read(consumer: Any, count: int, *, timeout_s: float = 20.0) -> list[Any]:
    """Polls until `count` messages came; an error event is a failure."""
    messages: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} in {timeout_s} s"
        for message in consumer.consume(count - len(messages), 0.5):
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


def until_done(call: Callable[[], object], deadline: float) -> None:
    """Repeat what may be repeated, as librdkafka's users are told to, until `deadline`, which is on
    the monotonic clock. Raises KafkaException."""
    while True:
        try:
            call()
            return
        except KafkaException as failed:
            if not failed.args[0].retriable() or time.monotonic() > deadline:
                raise
