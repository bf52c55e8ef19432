"""librdkafka's transactional producer and read_committed consumers through confluent-kafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from testkit.clients.rdkafka import read
from testkit.wait import eventually

TIMEOUT_S = 30.0


@pytest.fixture
def new_transactional(bootstrap: str) -> Callable[..., Producer]:
    """A producer that has begun its life: `new_transactional("id", **config)`."""

    def make(
        transactional_id: str | None = None, *, at: str = bootstrap, **config: Any
    ) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": at,
                "transactional.id": transactional_id or f"id-{uuid.uuid4().hex}",
                **config,
            }
        )
        producer.init_transactions(TIMEOUT_S)
        return producer

    return make


def send(producer: Producer, topic: str, values: Iterable[str], partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value.encode(), partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def values_of(messages: Iterable[Any]) -> list[str]:
    return [message.value().decode() for message in messages]


def end_offset(bootstrap: str, topic: str, isolation: IsolationLevel) -> int:
    """Of partition 0, as a reader of that isolation level is told."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partition = TopicPartition(topic, 0)
    found = admin.list_offsets({partition: OffsetSpec.latest()}, isolation_level=isolation)
    return int(found[partition].result(TIMEOUT_S).offset)


def error_of(call: Callable[[], object]) -> KafkaError:
    with pytest.raises(KafkaException) as raised:
        call()
    error: KafkaError = raised.value.args[0]
    return error


def test_committed_records_are_read_and_aborted_ones_are_not(
    make_topic: Any, new_transactional: Any, new_consumer: Any
) -> None:
    topic = make_topic(3)
    producer = new_transactional()
    committed: list[str] = []
    for number in range(12):
        producer.begin_transaction()
        rows = [f"{number}-{i}" for i in range(9)]
        for i, value in enumerate(rows):
            producer.produce(topic, value.encode(), partition=i % 3)
        if number % 3 == 2:
            producer.flush(TIMEOUT_S)
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
            committed += rows
    everything = {"group.id": uuid.uuid4().hex, "isolation.level": "read_uncommitted"}
    assert len(read(new_consumer(topic, **everything), 108)) == 108
    reader = new_consumer(topic, **{"isolation.level": "read_committed"})
    messages = read(reader, len(committed))
    assert sorted(values_of(messages)) == sorted(committed)
    for partition in range(3):
        in_order = values_of(m for m in messages if m.partition() == partition)
        assert in_order == [value for value in committed if int(value[-1]) % 3 == partition]
    assert reader.poll(1.0) is None


def test_an_open_transaction_holds_readers_back(
    bootstrap: str, make_topic: Any, new_transactional: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic()
    open_one, other = new_transactional(), new_transactional()
    plain = new_producer()
    send(plain, topic, ["before"])
    open_one.begin_transaction()
    send(open_one, topic, ["open"])
    other.begin_transaction()
    send(other, topic, ["decided"])
    other.commit_transaction(TIMEOUT_S)
    send(plain, topic, ["after"])
    reader = new_consumer(topic, **{"isolation.level": "read_committed"})
    assert values_of(read(reader, 1)) == ["before"]
    assert reader.poll(1.0) is None
    assert end_offset(bootstrap, topic, IsolationLevel.READ_COMMITTED) == 1
    assert end_offset(bootstrap, topic, IsolationLevel.READ_UNCOMMITTED) == 5
    open_one.commit_transaction(TIMEOUT_S)
    assert values_of(read(reader, 3)) == ["open", "decided", "after"]
    eventually(lambda: end_offset(bootstrap, topic, IsolationLevel.READ_COMMITTED) == 6)


@pytest.mark.parametrize("size", [1, 3000])
def test_interleaved_transactions_are_told_apart_however_small_the_fetches(
    make_topic: Any, new_transactional: Any, new_consumer: Any, size: int
) -> None:
    topic = make_topic()
    producers = [new_transactional() for _ in range(3)]
    expected: list[str] = []
    for round_number in range(6):
        for producer in producers:
            producer.begin_transaction()
        for step in range(4):
            for number, producer in enumerate(producers):
                value = f"{round_number}/{step}/{number}/"
                send(producer, topic, [value + "x" * 100])
                if (round_number + number) % 2:
                    expected.append(value)
        for number, producer in enumerate(producers):
            if (round_number + number) % 2:
                producer.commit_transaction(TIMEOUT_S)
            else:
                producer.abort_transaction(TIMEOUT_S)
    config = {"isolation.level": "read_committed", "fetch.message.max.bytes": size}
    found = values_of(read(new_consumer(topic, **config), len(expected)))
    assert [value.rstrip("x") for value in found] == expected


def test_transactions_that_wrote_nothing_end_well(make_topic: Any, new_transactional: Any) -> None:
    producer = new_transactional()
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        end(TIMEOUT_S)
    topic = make_topic()
    producer.begin_transaction()
    send(producer, topic, ["a"])
    producer.commit_transaction(TIMEOUT_S)


def test_a_failed_record_costs_its_transaction_and_no_other(
    make_topic: Any, new_transactional: Any, new_consumer: Any
) -> None:
    topic = make_topic(**{"max.message.bytes": "2000"})
    producer = new_transactional()
    producer.begin_transaction()
    send(producer, topic, ["good"])
    producer.produce(topic, b"x" * 5000)
    producer.flush(TIMEOUT_S)
    error = error_of(lambda: producer.commit_transaction(TIMEOUT_S))
    assert error.txn_requires_abort()
    producer.abort_transaction(TIMEOUT_S)
    # librdkafka does not give the lost record's sequence again: its next transaction fails, too,
    # and only then it asks for a new epoch (with either broker).
    producer.begin_transaction()
    send(producer, topic, ["skipped"])
    assert error_of(lambda: producer.commit_transaction(TIMEOUT_S)).txn_requires_abort()
    producer.abort_transaction(TIMEOUT_S)
    producer.begin_transaction()
    send(producer, topic, ["better"])
    producer.commit_transaction(TIMEOUT_S)
    reader = new_consumer(topic, **{"isolation.level": "read_committed"})
    assert values_of(read(reader, 1)) == ["better"]


# ---- producers that come again


def test_a_new_producer_fences_the_old_one_and_aborts_what_it_left(
    make_topic: Any, new_transactional: Any, new_consumer: Any
) -> None:
    topic = make_topic()
    transactional_id = f"id-{topic}"
    old = new_transactional(transactional_id)
    old.begin_transaction()
    send(old, topic, ["lost"])
    new = new_transactional(transactional_id)
    new.begin_transaction()
    send(new, topic, ["kept"])
    new.commit_transaction(TIMEOUT_S)
    old.produce(topic, b"zombie")
    error = error_of(lambda: old.commit_transaction(TIMEOUT_S))
    assert error.fatal()
    assert error.code() == KafkaError._FENCED
    reader = new_consumer(topic, **{"isolation.level": "read_committed"})
    assert values_of(read(reader, 1)) == ["kept"]
    assert reader.poll(1.0) is None


def test_a_transaction_that_takes_too_long_is_aborted(
    fresh_broker: Any, new_transactional: Any
) -> None:
    broker = fresh_broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 500})
    at, topic = broker.bootstrap_servers, "slow"
    producer = new_transactional("slow", at=at, **{"transaction.timeout.ms": 1500})
    producer.begin_transaction()
    send(producer, topic, ["too late"])
    assert end_offset(at, topic, IsolationLevel.READ_COMMITTED) == 0
    eventually(lambda: end_offset(at, topic, IsolationLevel.READ_COMMITTED) == 2, timeout_s=20)
    error = error_of(lambda: producer.commit_transaction(TIMEOUT_S))
    assert error.fatal()
    again = new_transactional("slow", at=at)
    again.begin_transaction()
    send(again, topic, ["in time"])
    again.commit_transaction(TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": at, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        assert values_of(read(consumer, 1)) == ["in time"]
    finally:
        consumer.close()


def test_a_timeout_above_the_brokers_maximum_is_refused(bootstrap: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": "patient",
            "transaction.timeout.ms": 1_000_000,
        }
    )
    error = error_of(lambda: producer.init_transactions(TIMEOUT_S))
    assert error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_transaction_outlives_its_broker(
    fresh_broker: Any, new_transactional: Any, end: str
) -> None:
    """kill -9 in the middle: the producer goes on where it was."""
    broker = fresh_broker()
    at, topic = broker.bootstrap_servers, "lives"
    producer = new_transactional(at=at)
    producer.begin_transaction()
    send(producer, topic, ["before"])
    broker.kill()
    broker.restart()
    send(producer, topic, ["after"])
    assert end_offset(at, topic, IsolationLevel.READ_COMMITTED) == 0
    (producer.commit_transaction if end == "commit" else producer.abort_transaction)(TIMEOUT_S)
    producer.begin_transaction()
    send(producer, topic, ["next"])
    producer.commit_transaction(TIMEOUT_S)
    expected = ["before", "after", "next"] if end == "commit" else ["next"]
    consumer = Consumer({"bootstrap.servers": at, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        assert values_of(read(consumer, len(expected))) == expected
    finally:
        consumer.close()


# ---- consume, transform, produce


def committed_offset(consumer: Consumer, topic: str, timeout_s: float = TIMEOUT_S) -> int:
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=timeout_s)
    return int(found.offset)


def test_positions_are_committed_with_the_records_or_not_at_all(
    make_topic: Any, new_transactional: Any, new_producer: Any, new_consumer: Any
) -> None:
    source = make_topic(suffix="-in")
    sink = make_topic(suffix="-out")
    send(new_producer(), source, [str(i) for i in range(30)])
    producer = new_transactional()
    consumer = new_consumer(source)
    rounds = 0
    done = 0
    while done < 30:
        messages = read(consumer, 5)
        producer.begin_transaction()
        for message in messages:
            producer.produce(sink, b"%d" % (int(message.value()) * 2))
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()),
            consumer.consumer_group_metadata(),
            TIMEOUT_S,
        )
        rounds += 1
        if rounds % 2:
            producer.flush(TIMEOUT_S)
            producer.abort_transaction(TIMEOUT_S)
            assert committed_offset(consumer, source) == (done or -1001)
            consumer.seek(TopicPartition(source, 0, done))
        else:
            producer.commit_transaction(TIMEOUT_S)
            done += 5
            eventually(lambda done=done: committed_offset(consumer, source) == done)  # type: ignore[misc]
    reader = new_consumer(sink, **{"group.id": uuid.uuid4().hex})
    assert values_of(read(reader, 30)) == [str(2 * i) for i in range(30)]
    assert reader.poll(1.0) is None


def test_a_position_that_is_not_decided_is_waited_for(
    make_topic: Any, new_transactional: Any, new_producer: Any, new_consumer: Any
) -> None:
    """KIP-447: or a rebalance in the middle of a transaction would read its records twice."""
    topic = make_topic()
    send(new_producer(), topic, ["a", "b"])
    consumer = new_consumer(topic)
    read(consumer, 2)
    producer = new_transactional()
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), TIMEOUT_S
    )
    error = error_of(lambda: committed_offset(consumer, topic, 2.0))
    assert error.code() in (KafkaError._TIMED_OUT, KafkaError.UNSTABLE_OFFSET_COMMIT)
    producer.commit_transaction(TIMEOUT_S)
    assert committed_offset(consumer, topic) == 2


def test_a_member_that_was_left_behind_cannot_commit(
    make_topic: Any, new_transactional: Any, new_producer: Any, new_consumer: Any
) -> None:
    """Its group went on without it: a rebalance fences it, whatever its producer's epoch says."""
    topic = make_topic()
    send(new_producer(), topic, ["a"])
    consumer = new_consumer(topic)
    read(consumer, 1)
    positions, metadata = (
        consumer.position(consumer.assignment()),
        consumer.consumer_group_metadata(),
    )
    consumer.close()
    read(new_consumer(topic), 1)  # the same group, another member
    producer = new_transactional()
    producer.begin_transaction()
    error = error_of(lambda: producer.send_offsets_to_transaction(positions, metadata, TIMEOUT_S))
    assert error.txn_requires_abort()
    producer.abort_transaction(TIMEOUT_S)


def test_many_small_transactions(
    make_topic: Any, new_transactional: Any, new_consumer: Any
) -> None:
    topic = make_topic(2)
    producer = new_transactional()
    started = time.monotonic()
    for number in range(200):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=number % 2)
        producer.commit_transaction(TIMEOUT_S)
    assert time.monotonic() - started < 60
    found = sorted(int(value) for value in values_of(read(new_consumer(topic), 200)))
    assert found == list(range(200))
