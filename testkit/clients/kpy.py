"""Helpers for tests that use kafka-python."""

from __future__ import annotations

import time
from typing import Any

from kafka import KafkaConsumer

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


def read(consumer: KafkaConsumer, count: int, *, timeout_s: float = 20.0) -> list[Any]:
    """Polls until `count` records came (fails after `timeout_s`), in the order of their arrival."""
    records: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records in {timeout_s} s"
        for batch in consumer.poll(timeout_ms=500).values():
            records.extend(batch)
    return records
