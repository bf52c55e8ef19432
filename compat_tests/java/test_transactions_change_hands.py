"""Transactions in a data directory that goes from Apache Kafka to us, or from us to it.

One node, stopped or killed in the middle of transactions; the other kind starts on what it left.
Open transactions, their fences, epochs and offsets must be to the one what they were to the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from testkit.brokers.nodes import RunningBroker
from testkit.clients.java_tools import JavaTools
from testkit.wait import eventually

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC, GROUP = "travels", "positions"
CONFIG = {"node.id": 1, "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500}


@pytest.fixture
def hands(hands_of: Callable[..., dict[str, RunningBroker]]) -> dict[str, RunningBroker]:
    return hands_of(CONFIG)


def producer_of(broker: RunningBroker, transactional_id: str, **config: Any) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 60_000,
            "log_level": 0,
            **config,
        }
    )
    producer.init_transactions(60)
    return producer


def begun(broker: RunningBroker, transactional_id: str, offset: int, **config: Any) -> Producer:
    """A transaction that wrote its id, and the group's offset of a partition of its own."""
    producer = producer_of(broker, transactional_id, **config)
    producer.begin_transaction()
    producer.produce(TOPIC, transactional_id.encode(), partition=0)
    assert producer.flush(30) == 0
    consumer = consumer_of(broker)
    positions = [TopicPartition(TOPIC, 0, offset)]
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 30)
    consumer.close()
    return producer


def consumer_of(broker: RunningBroker) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )


def committed_offset(broker: RunningBroker) -> int:
    consumer = consumer_of(broker)
    (found,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=30)
    consumer.close()
    return int(found.offset)


def read(broker: RunningBroker, count: int) -> list[str]:
    """The first `count` committed values, and whatever comes right after them."""
    consumer = consumer_of(broker)
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[str] = []

    def enough() -> bool:
        found.extend(m.value().decode() for m in consumer.consume(10, timeout=1) if not m.error())
        return len(found) >= count

    eventually(enough, timeout_s=30, what=f"{count} committed values")
    found.extend(m.value().decode() for m in consumer.consume(10, timeout=1) if not m.error())
    consumer.close()
    return found


def states(broker: RunningBroker, tools: JavaTools) -> dict[str, str]:
    where = ("--bootstrap-server", broker.bootstrap_servers)
    table = tools.run("TransactionsCommand", *where, "list").ok().splitlines()[1:]
    rows = [line.split("\t") for line in table]
    return {row[0].strip(): row[3].strip() for row in rows}


def stop(broker: RunningBroker) -> None:
    broker.stop()


def kill(broker: RunningBroker) -> None:
    broker.kill()


@pytest.mark.parametrize("end", [stop, kill])
@pytest.mark.parametrize(("first", "second"), [("kafka", "barnabas"), ("barnabas", "kafka")])
def test_open_transactions_go_from_hand_to_hand(
    hands: dict[str, RunningBroker],
    java_tools: JavaTools,
    first: str,
    second: str,
    end: Callable[[RunningBroker], None],
) -> None:
    one, other = hands[first], hands[second]
    if second == "kafka":  # which formats the directory at its first start
        other.start()
        other.stop()
    one.start()
    admin = AdminClient({"bootstrap.servers": one.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
    begun(one, "committed", 10).commit_transaction(30)
    begun(one, "aborted", 20).abort_transaction(30)
    left = begun(one, "left", 30)
    late = begun(one, "late", 40, **{"transaction.timeout.ms": 15_000})
    assert read(one, 1) == ["committed"]
    end(one)

    other.start()
    found = states(other, java_tools)
    assert (found["committed"], found["aborted"]) == ("CompleteCommit", "CompleteAbort")
    assert found["left"] == "Ongoing"
    assert read(other, 1) == ["committed"]
    again = producer_of(other, "left")  # fences the one before, aborts what it left
    again.begin_transaction()
    again.produce(TOPIC, b"again", partition=0)
    again.commit_transaction(30)
    eventually(
        lambda: states(other, java_tools)["late"] == "CompleteAbort",
        timeout_s=60,
        what="the time of the late one runs out",
    )
    assert read(other, 2) == ["committed", "again"]
    assert committed_offset(other) == 10
    begun(other, "committed", 50).commit_transaction(30)
    assert committed_offset(other) == 50
    end(other)

    one.start()
    assert set(states(one, java_tools).values()) <= {"CompleteCommit", "CompleteAbort"}
    assert read(one, 3) == ["committed", "again", "committed"]
    assert committed_offset(one) == 50
    with pytest.raises(KafkaException, match=r"fenced|FENCED|epoch"):
        left.commit_transaction(30)
    del late
