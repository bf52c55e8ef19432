"""librdkafka's consumer: assignment, seeking, times, groups, static members, events."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    ConsumerGroupState,
    KafkaError,
    TopicPartition,
)

from testkit.clients.members import poll_in_turns_until
from testkit.clients.rdkafka import read, send_all
from testkit.wait import eventually

BASE_MS = int(time.time() * 1000) - 3_600_000
FAST = {
    "session.timeout.ms": 6000, "heartbeat.interval.ms": 200,
    "topic.metadata.refresh.interval.ms": 500,
}  # fmt: skip


@pytest.fixture
def filled(make_topic: Any, new_producer: Any) -> str:
    """Two partitions of 100 records, one second apart, values b"p-n"."""
    topic = make_topic(2)
    producer = new_producer()
    for i in range(100):
        for partition in (0, 1):
            producer.produce(
                topic, b"%d-%d" % (partition, i), partition=partition,
                timestamp=BASE_MS + i * 1000,
            )  # fmt: skip
    assert producer.flush(30) == 0
    return str(topic)


def shares(members: list[Any]) -> list[int]:
    return sorted(len(member.assignment()) for member in members)


def settle(members: list[Any], expected: list[int]) -> None:
    poll_in_turns_until(members, lambda: shares(members) == expected)


def test_assign_with_offsets_seek_and_position(filled: str, new_consumer: Any) -> None:
    consumer = new_consumer()
    consumer.assign([TopicPartition(filled, 0, 90)])
    assert [m.value() for m in read(consumer, 10)] == [b"0-%d" % i for i in range(90, 100)]
    assert consumer.position([TopicPartition(filled, 0)])[0].offset == 100
    consumer.seek(TopicPartition(filled, 0, 42))
    assert read(consumer, 1)[0].offset() == 42
    consumer.seek(TopicPartition(filled, 0, OFFSET_BEGINNING))
    assert read(consumer, 1)[0].offset() == 0
    consumer.assign([TopicPartition(filled, 1, OFFSET_END)])
    assert consumer.poll(0.5) is None


def test_watermarks_and_offsets_for_times(filled: str, new_consumer: Any) -> None:
    consumer = new_consumer()
    assert consumer.get_watermark_offsets(TopicPartition(filled, 0), timeout=10) == (0, 100)
    asked = [
        TopicPartition(filled, 0, BASE_MS + 10_000), TopicPartition(filled, 1, BASE_MS + 10_001)
    ]  # fmt: skip
    found = consumer.offsets_for_times(asked, timeout=10)
    assert [tp.offset for tp in found] == [10, 11]
    (beyond,) = consumer.offsets_for_times([TopicPartition(filled, 0, BASE_MS + 10**9)], timeout=10)
    assert beyond.offset == OFFSET_END


def test_the_end_of_a_partition_is_an_event(filled: str, new_consumer: Any) -> None:
    consumer = new_consumer(**{"enable.partition.eof": True})
    consumer.assign([TopicPartition(filled, 0, 98)])
    events = eventually(lambda: consumer.consume(3, 5), what="two records and the end")
    assert [event.offset() for event in events[:2]] == [98, 99]
    assert events[2].error().code() == KafkaError._PARTITION_EOF


def test_pause_and_resume(filled: str, new_consumer: Any) -> None:
    consumer = new_consumer()
    one, two = TopicPartition(filled, 0, 0), TopicPartition(filled, 1, 0)
    consumer.assign([one, two])
    consumer.pause([one])
    assert {m.partition() for m in read(consumer, 100)} == {1}
    consumer.resume([one])
    assert {m.partition() for m in read(consumer, 100)} == {0}


def test_manual_commits_are_read_back(filled: str, new_consumer: Any) -> None:
    first = new_consumer(filled)
    read(first, 200)
    done = first.commit(asynchronous=False)
    assert {tp.offset for tp in done} == {100}
    wanted = TopicPartition(filled, 0, 33, "a note")
    first.commit(offsets=[wanted], asynchronous=False)
    first.close()
    second = new_consumer(filled)
    committed = second.committed([TopicPartition(filled, 0), TopicPartition(filled, 1)], timeout=10)
    assert [tp.offset for tp in committed] == [33, 100]
    assert committed[0].metadata == "a note"
    assert sorted(m.offset() for m in read(second, 67)) == list(range(33, 100))


def test_stored_offsets_are_committed_by_themselves(filled: str, new_consumer: Any) -> None:
    consumer = new_consumer(filled, **{"enable.auto.commit": True, "auto.commit.interval.ms": 100})
    read(consumer, 200)
    both = [TopicPartition(filled, 0), TopicPartition(filled, 1)]
    eventually(
        lambda: (
            consumer.poll(0.05) is None
            and [tp.offset for tp in consumer.committed(both, timeout=5)] == [100, 100]
        ),
        what="both auto commits",
    )


def test_a_group_nobody_knows_has_no_offsets(filled: str, new_consumer: Any) -> None:
    consumer = new_consumer()
    (nothing,) = consumer.committed([TopicPartition(filled, 0)], timeout=10)
    assert nothing.offset == -1001
    assert nothing.error is None


def test_offsets_out_of_range_follow_the_policy(filled: str, new_consumer: Any) -> None:
    strict = new_consumer(**{"auto.offset.reset": "error"})
    strict.assign([TopicPartition(filled, 0, 5000)])
    event = eventually(lambda: strict.poll(1), what="an error event")
    assert event.error().code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
    lenient = new_consumer()
    lenient.assign([TopicPartition(filled, 0, 5000)])
    assert read(lenient, 1)[0].offset() == 0


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_three_members_share_and_take_over(
    strategy: str, make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic(6)
    config = {"partition.assignment.strategy": strategy, **FAST}
    members = [new_consumer(topic, **config)]
    settle(members, [6])
    members.append(new_consumer(topic, **config))
    settle(members, [3, 3])
    members.append(new_consumer(topic, **config))
    settle(members, [2, 2, 2])
    members.pop(0).close()
    settle(members, [3, 3])
    producer = new_producer()
    for partition in range(6):
        send_all(producer, topic, [b"%d" % i for i in range(5)], partition=partition)
    got: list[Any] = []

    def all_read() -> bool:
        for member in members:
            got.extend(m for m in member.consume(100, 0.1) if m.error() is None)
        return len(got) >= 30

    eventually(all_read, what="30 records by two members")
    assert len({(m.partition(), m.offset()) for m in got}) == 30


def test_a_static_member_comes_back_without_a_rebalance(make_topic: Any, new_consumer: Any) -> None:
    topic = make_topic(4)
    revoked: list[int] = []
    config = FAST | {"session.timeout.ms": 20000}
    one = new_consumer(**{"group.instance.id": "one", **config})
    one.subscribe([topic], on_revoke=lambda _, partitions: revoked.append(len(partitions)))
    two = new_consumer(topic, **{"group.instance.id": "two", **config})
    settle([one, two], [2, 2])
    kept = {(tp.topic, tp.partition) for tp in two.assignment()}
    revoked.clear()
    two.close()
    again = new_consumer(topic, **{"group.instance.id": "two", **config})
    settle([one, again], [2, 2])
    assert {(tp.topic, tp.partition) for tp in again.assignment()} == kept
    assert revoked == []


def test_two_of_the_same_instance_fence_each_other(make_topic: Any, new_consumer: Any) -> None:
    topic = make_topic()
    config = FAST | {"group.instance.id": "same"}
    first = new_consumer(topic, **config)
    settle([first], [1])
    second = new_consumer(topic, **config)

    def fenced() -> bool:
        second.poll(0.05)
        event = first.poll(0.05)
        return bool(
            event is not None
            and event.error() is not None
            and event.error().code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)
        )

    eventually(fenced, what="the first instance hears that it is fenced")
    settle([second], [1])


def test_a_pattern_subscription(make_topic: Any, topic_name: str, new_consumer: Any) -> None:
    first = make_topic(suffix="-a")
    consumer = new_consumer(**FAST)
    consumer.subscribe([f"^{topic_name}-.*"])
    settle([consumer], [1])
    second = make_topic(suffix="-b")
    settle([consumer], [2])
    assert {tp.topic for tp in consumer.assignment()} == {first, second}


def test_a_group_is_seen_by_the_admin_client(
    make_topic: Any, new_consumer: Any, admin: Any, group_name: str
) -> None:
    topic = make_topic(2)
    consumer = new_consumer(topic, **FAST)
    settle([consumer], [2])
    described = admin.describe_consumer_groups([group_name])[group_name].result(10)
    assert described.state == ConsumerGroupState.STABLE
    assert described.partition_assignor == "range"
    (member,) = described.members
    assert {tp.partition for tp in member.assignment.topic_partitions} == {0, 1}
    assert member.host.endswith("127.0.0.1")
