"""What was begun under one leader epoch says nothing in another: fetches and acknowledgements that
a leader change overtakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from replication.partition.follower_writes import truncate_follower_to
from replication.partition.partition import Partition
from tests.replication.replicas.test_replica_manager import (
    ORDERS,
    ORDERS_0,
    Broker,
    batch,
    broker,
    led,
    read_from,
    topic,
    values_of,
)
from wire.errors import ErrorCode

__all__ = ["broker"]  # the fixture

BOTH = {"isr": (1, 2), "replicas": (1, 2)}


@pytest.fixture
def replicated(broker: Broker) -> Broker:
    """Topic orders, one partition on nodes 1 and 2, led here under epoch 0; 2 has the record."""
    broker.publish(topic("orders", ORDERS, led(0, **BOTH)))
    broker.produce((ORDERS_0, batch(b"cut off later")), acks=1)
    return broker


def in_the_middle_of(
    monkeypatch: pytest.MonkeyPatch, method: str, happens: Callable[[], object]
) -> None:
    """Right after the next call of `Partition.<method>` returned, before anything else."""
    real = getattr(Partition, method)

    def interrupted(self: Partition, *given: Any, **named: Any) -> Any:
        result = real(self, *given, **named)
        monkeypatch.setattr(Partition, method, real)
        happens()
        return result

    monkeypatch.setattr(Partition, method, interrupted)


def led_by_2_in_between(broker: Broker) -> None:
    """Epoch 1 cuts off what only epoch 0 had; epoch 2 is led here again."""
    broker.publish(topic("orders", ORDERS, led(1, leader=2, **BOTH)))
    truncate_follower_to(broker.manager.partition(ORDERS_0), 0, 1)
    broker.publish(topic("orders", ORDERS, led(2, **BOTH)))


@pytest.mark.parametrize("told_epoch", [0, -1])
def test_a_fetch_of_an_earlier_leader_epoch_does_not_move_the_high_watermark_of_a_later_one(
    replicated: Broker, monkeypatch: pytest.MonkeyPatch, told_epoch: int
) -> None:
    """L6, H-2: the offset names a record of epoch 0; another one stands there by now."""
    produced = []

    def change_leaders() -> None:
        led_by_2_in_between(replicated)
        produced.append(replicated.produce((ORDERS_0, batch(b"b"))))

    in_the_middle_of(monkeypatch, "read_records", change_leaders)
    request = read_from(1, start=0, current_leader_epoch=told_epoch)
    told = replicated.fetch(request, max_wait_ms=0, replica=2)

    assert replicated.manager.partition(ORDERS_0).high_watermark == 0
    assert produced[0].is_pending, "acknowledged although replica 2 does not have it"
    assert told.value[0].error_code == ErrorCode.FENCED_LEADER_EPOCH

    current = read_from(1, start=0, current_leader_epoch=2)
    replicated.fetch(current, max_wait_ms=0, replica=2)
    assert produced[0].value[0].error_code == 0
    assert values_of(replicated.fetch(read_from(0)).value[0]) == [b"b"]


def test_an_append_of_an_earlier_leadership_is_not_acknowledged_by_a_later_high_watermark(
    replicated: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the append and the look at the high watermark another replica led, and what stands
    at the offset now, committed, is another record."""

    def change_leaders() -> None:
        led_by_2_in_between(replicated)
        replicated.produce((ORDERS_0, batch(b"x", b"y")), acks=1)
        replicated.follower_fetches(2)

    in_the_middle_of(monkeypatch, "append_records_to_leader", change_leaders)
    told = replicated.produce((ORDERS_0, batch(b"lost")))
    assert replicated.manager.partition(ORDERS_0).high_watermark == 2
    assert told.value[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
