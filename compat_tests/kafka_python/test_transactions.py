"""kafka-python's transactions: all or nothing, for records and for the offsets of groups."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import CommitFailedError, KafkaError, KafkaTimeoutError
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

from testkit.clients.kpy import CODECS, read
from testkit.wait import eventually


@pytest.fixture
def new_transactional(new_producer: Callable[..., KafkaProducer]) -> Callable[..., KafkaProducer]:
    """A producer whose transactions may begin: `new_transactional("id")`."""

    def make(transactional_id: str | None = None, **config: Any) -> KafkaProducer:
        producer = new_producer(
            transactional_id=transactional_id or f"tx-{uuid.uuid4().hex}", **config
        )
        producer.init_transactions()
        return producer

    return make


@pytest.fixture
def read_committed(new_consumer: Callable[..., KafkaConsumer]) -> Callable[..., KafkaConsumer]:
    def make(*topics: str, **config: Any) -> KafkaConsumer:
        return new_consumer(*topics, isolation_level="read_committed", **config)

    return make


def at(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, "", -1)


def values(records: list[Any]) -> list[bytes]:
    return [record.value for record in records]


# ---- records


@pytest.mark.parametrize("codec", CODECS)
def test_committed_records_are_read_and_aborted_ones_are_not(
    codec: str | None,
    make_topic: Any,
    new_transactional: Any,
    read_committed: Any,
    new_consumer: Any,
) -> None:
    topic = make_topic()
    producer = new_transactional(compression_type=codec)
    for number, ends_well in enumerate([True, False, False, True, True]):
        producer.begin_transaction()
        for i in range(20):
            producer.send(topic, b"%d-%02d-%s" % (number, i, b"keep" if ends_well else b"drop"))
        if ends_well:
            producer.commit_transaction()
        else:
            producer.flush()
            producer.abort_transaction()
    kept = [b"%d-%02d-keep" % (number, i) for number in (0, 3, 4) for i in range(20)]
    assert values(read(read_committed(topic), 60)) == kept
    assert len(read(new_consumer(topic), 100)) == 100, "who reads uncommitted sees all of it"


def test_a_transaction_over_many_partitions_is_whole(
    make_topic: Any, new_transactional: Any, read_committed: Any
) -> None:
    topic = make_topic(6)
    producer = new_transactional()
    producer.begin_transaction()
    for i in range(60):
        producer.send(topic, b"never", partition=i % 6)
    producer.flush()
    producer.abort_transaction()
    producer.begin_transaction()
    for i in range(60):
        producer.send(topic, b"%d" % i, partition=i % 6)
    producer.commit_transaction()
    found = read(read_committed(topic), 60)
    assert sorted(values(found)) == sorted(b"%d" % i for i in range(60))
    assert {record.partition for record in found} == set(range(6))


def test_an_open_transaction_holds_back_who_reads_committed(
    make_topic: Any, new_transactional: Any, new_producer: Any, read_committed: Any
) -> None:
    topic = make_topic()
    partition = TopicPartition(topic, 0)
    new_producer().send(topic, b"before").get(timeout=10)
    producer = new_transactional()
    producer.begin_transaction()
    producer.send(topic, b"in it").get(timeout=10)
    new_producer().send(topic, b"behind it").get(timeout=10)
    consumer = read_committed()
    consumer.assign([partition])
    assert values(read(consumer, 1)) == [b"before"]
    assert consumer.end_offsets([partition]) == {partition: 1}
    assert not consumer.poll(timeout_ms=500)
    producer.commit_transaction()
    assert values(read(consumer, 2)) == [b"in it", b"behind it"]
    assert consumer.end_offsets([partition]) == {partition: 4}


def test_a_transaction_of_nothing_ends(new_transactional: Any) -> None:
    producer = new_transactional()
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        end()


def test_a_newer_instance_fences_the_older_and_ends_its_transaction(
    make_topic: Any, new_transactional: Any, read_committed: Any
) -> None:
    topic = make_topic()
    transactional_id = f"tx-{uuid.uuid4().hex}"
    zombie = new_transactional(transactional_id)
    zombie.begin_transaction()
    zombie.send(topic, b"zombie").get(timeout=10)
    successor = new_transactional(transactional_id)
    with pytest.raises(KafkaError):
        zombie.send(topic, b"zombie").get(timeout=10)
    with pytest.raises(KafkaError):
        zombie.commit_transaction()
    # Not sooner: this client answers the refusal with another InitProducerId, which Kafka lets
    # fence whoever has a transaction open then.
    zombie.close(timeout=5)
    successor.begin_transaction()
    successor.send(topic, b"successor").get(timeout=10)
    successor.commit_transaction()
    assert values(read(read_committed(topic), 1)) == [b"successor"]


# ---- offsets


def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    make_topic: Any, new_transactional: Any, new_consumer: Any, group_name: str
) -> None:
    topic = make_topic(2)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    producer = new_transactional()
    consumer = new_consumer(group_id=group_name)
    producer.begin_transaction()
    producer.send_offsets_to_transaction({one: at(5), two: at(6)}, group_name)
    assert consumer.committed(one) is None, "not before the transaction is committed"
    producer.commit_transaction()
    eventually(lambda: consumer.committed(one) == 5 and consumer.committed(two) == 6)
    producer.begin_transaction()
    producer.send_offsets_to_transaction({one: at(50)}, group_name)
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({two: at(60)}, group_name)
    producer.commit_transaction()
    eventually(lambda: consumer.committed(two) == 60)
    assert consumer.committed(one) == 5


def test_who_reads_committed_is_told_of_no_offset_that_is_not_decided(
    make_topic: Any, new_transactional: Any, read_committed: Any, new_consumer: Any,
    group_name: str,
) -> None:  # fmt: skip
    topic = make_topic()
    partition = TopicPartition(topic, 0)
    producer = new_transactional()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({partition: at(5)}, group_name)
    careful = read_committed(group_id=group_name)
    with pytest.raises(KafkaTimeoutError):  # it asks again and again
        careful.committed(partition, timeout_ms=500)
    assert new_consumer(group_id=group_name).committed(partition) is None
    producer.commit_transaction()
    assert careful.committed(partition) == 5


def test_a_plain_commit_behind_a_pending_one_wins(
    make_topic: Any, new_transactional: Any, new_consumer: Any, group_name: str
) -> None:
    topic = make_topic()
    partition = TopicPartition(topic, 0)
    producer = new_transactional()
    consumer = new_consumer(group_id=group_name)
    consumer.assign([partition])
    producer.begin_transaction()
    producer.send_offsets_to_transaction({partition: at(5)}, group_name)
    consumer.commit({partition: at(2)})
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({TopicPartition(topic, 0): at(2)}, group_name + "-other")
    producer.commit_transaction()
    assert consumer.committed(partition) == 2


def test_a_member_of_an_older_generation_cannot_commit(
    make_topic: Any, new_transactional: Any, new_consumer: Any, group_name: str
) -> None:
    topic = make_topic()
    consumer = new_consumer(topic, group_id=group_name)
    eventually(lambda: consumer.poll(timeout_ms=100) == {} and consumer.assignment())
    known = consumer.group_metadata()
    zombie = ConsumerGroupMetadata(
        group_id=known.group_id,
        generation_id=known.generation_id - 1,
        member_id=known.member_id,
        group_instance_id=known.group_instance_id,
    )
    producer = new_transactional()
    producer.begin_transaction()
    offsets = {TopicPartition(topic, 0): at(5)}
    with pytest.raises(CommitFailedError):
        producer.send_offsets_to_transaction(offsets, zombie)
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send_offsets_to_transaction(offsets, known)
    producer.commit_transaction()
    eventually(lambda: consumer.committed(TopicPartition(topic, 0)) == 5)


def test_consume_transform_produce_is_exactly_once_through_aborts_and_rebirths(
    make_topic: Any, new_producer: Any, new_transactional: Any, read_committed: Any,
    group_name: str,
) -> None:  # fmt: skip
    source, target = make_topic(3), make_topic(3, suffix="-out")
    count = 300
    plain = new_producer()
    for i in range(count):
        plain.send(source, b"%d" % i, partition=i % 3)
    plain.flush()
    transactional_id = f"tx-{uuid.uuid4().hex}"
    done = 0
    for _ in range(40):
        # Each life does two transactions and half a third one, and is gone.
        producer = new_transactional(transactional_id)
        consumer = read_committed(source, group_id=group_name, enable_auto_commit=False,
                                  max_poll_records=17)  # fmt: skip
        for part in range(3):
            records = read(consumer, 1) if done < count else []
            if not records:
                break
            producer.begin_transaction()
            for record in records:
                producer.send(target, record.value, partition=record.partition)
            ends = {TopicPartition(r.topic, r.partition): at(r.offset + 1) for r in records}
            producer.send_offsets_to_transaction(ends, consumer.group_metadata())
            if part == 2:
                producer.flush()
                break
            producer.commit_transaction()
            done += len(records)
        consumer.close()
        if done == count:
            break
    assert done == count, "that many lives are enough"
    found = read(read_committed(target), count)
    assert sorted(values(found), key=int) == [b"%d" % i for i in range(count)]


def test_an_open_transaction_survives_kill_minus_9(fresh_broker: Any, group_name: str) -> None:
    broker = fresh_broker({"num.partitions": 1})
    config = {"bootstrap_servers": broker.bootstrap_servers}
    plain = KafkaProducer(**config)
    plain.send("source", b"x").get(timeout=10)
    plain.close()
    partition = TopicPartition("source", 0)
    producer = KafkaProducer(transactional_id="tx", **config)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("target", b"before").get(timeout=10)
    producer.send_offsets_to_transaction({partition: at(5)}, group_name)
    broker.kill()
    broker.start()
    producer.send("target", b"after").get(timeout=30)
    producer.commit_transaction()
    producer.close()
    consumer = KafkaConsumer(
        "target", group_id=group_name, isolation_level="read_committed",
        auto_offset_reset="earliest", **config,
    )  # fmt: skip
    assert values(read(consumer, 2)) == [b"before", b"after"]
    assert consumer.committed(partition) == 5
    consumer.close()
