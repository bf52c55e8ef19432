"""Short names for the reliability tests."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def in_kafka(broker_kind: str) -> Any:
    """True when the broker under test is Apache Kafka: for the few expectations that differ."""
    return broker_kind == "kafka"
