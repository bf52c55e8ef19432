"""librdkafka with KIP-848: joining, rebalances, static members, fences, restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from testkit.clients.members import poll_in_turns_until
from testkit.clients.rdkafka import read
from testkit.wait import eventually

QUICK = {
    "group.consumer.heartbeat.interval.ms": 200, "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.assignment.interval.ms": 0,
}  # fmt: skip
"""A rebalance takes some heartbeats of each member: 5 s each by default."""


@pytest.fixture(scope="module")
def broker(make_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """In place of the broker that all share."""
    running = make_broker(tmp_path_factory.mktemp("quick-groups"), QUICK)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def new_member(new_consumer: Any) -> Callable[..., Consumer]:
    def make(*topics: str, **config: Any) -> Consumer:
        own = {"group.protocol": "consumer", "topic.metadata.refresh.interval.ms": 500}
        consumer: Consumer = new_consumer(*topics, **own, **config)
        return consumer

    return make


def shares(members: list[Any]) -> list[int]:
    return sorted(len(member.assignment()) for member in members)


def settle(members: list[Any], expected: list[int]) -> None:
    poll_in_turns_until(members, lambda: shares(members) == expected, timeout_s=60)


def fill(new_producer: Any, topic: str, partitions: int, each: int = 10) -> None:
    producer = new_producer()
    for partition in range(partitions):
        for i in range(each):
            producer.produce(topic, b"%d-%d" % (partition, i), partition=partition)
    assert producer.flush(30) == 0


def test_members_share_the_partitions_and_read_all(
    make_topic: Any, new_producer: Any, new_member: Any, admin: AdminClient, group_name: str
) -> None:
    topic = make_topic(4)
    fill(new_producer, topic, 4)
    one = new_member(topic)
    assert len(read(one, 40)) == 40
    one.commit(asynchronous=False)
    two = new_member(topic)
    settle([one, two], [2, 2])
    described = admin.describe_consumer_groups([group_name])[group_name].result(20)
    assert described.type == ConsumerGroupType.CONSUMER
    assert described.partition_assignor == "uniform"
    assert sorted(len(m.assignment.topic_partitions) for m in described.members) == [2, 2]
    two.close()
    settle([one], [4])
    committed = one.committed([TopicPartition(topic, p) for p in range(4)], timeout=20)
    assert [tp.offset for tp in committed] == [10] * 4


def test_an_assignor_may_be_asked_for(make_topic: Any, new_member: Any) -> None:
    topic = make_topic(3)
    members = [new_member(topic, **{"group.remote.assignor": "range"}) for _ in range(2)]
    settle(members, [1, 2])
    for member in members:
        own = sorted(tp.partition for tp in member.assignment())
        assert own == list(range(own[0], own[0] + len(own)))


def test_topics_that_grow_and_come_are_assigned(
    make_topic: Any, new_member: Any, admin: AdminClient
) -> None:
    from confluent_kafka.admin import NewPartitions

    topic = make_topic(1)
    later = f"{topic}-later"
    member = new_member(topic, later)
    settle([member], [1])
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    settle([member], [3])
    make_topic(2, suffix="-later")
    settle([member], [5])


def test_a_regular_expression_is_matched_by_the_broker(make_topic: Any, new_member: Any) -> None:
    one = make_topic(2, suffix=".orders")
    make_topic(2, suffix=".other")
    stem = one.removesuffix(".orders")
    member = new_member(f"^{stem}\\.ord.*")
    settle([member], [2])
    make_topic(3, suffix=".ordinary")
    settle([member], [5])
    assert {tp.topic for tp in member.assignment()} == {one, f"{stem}.ordinary"}


def test_an_invalid_regular_expression_is_refused(make_topic: Any, new_member: Any) -> None:
    make_topic(1)
    errors: list[KafkaError] = []
    member = new_member("^(a)\\1", error_cb=errors.append)  # POSIX takes it, RE2 does not

    def told() -> bool:
        message = member.poll(0.5)
        if message is not None and message.error() is not None:
            errors.append(message.error())
        return bool(errors)

    eventually(told, what="an error of the subscription")
    assert "expression" in str(errors[0]).lower()


def test_a_static_member_comes_back_to_what_it_had(make_topic: Any, new_member: Any) -> None:
    topic = make_topic(4)
    one = new_member(topic, **{"group.instance.id": "one"})
    two = new_member(topic, **{"group.instance.id": "two"})
    settle([one, two], [2, 2])
    had = sorted(tp.partition for tp in two.assignment())
    two.close()
    again = new_member(topic, **{"group.instance.id": "two"})
    settle([one, again], [2, 2])
    assert sorted(tp.partition for tp in again.assignment()) == had


def test_a_second_static_member_of_one_id_is_told_that_it_is_taken(
    make_topic: Any, new_member: Any
) -> None:
    topic = make_topic(1)
    one = new_member(topic, **{"group.instance.id": "one"})
    settle([one], [1])
    other = new_member(topic, **{"group.instance.id": "one"})

    def told() -> Any:
        message = other.poll(0.5)
        one.poll(0)
        return None if message is None else message.error()

    error = eventually(told, what="the second member's error")
    assert error.code() in (KafkaError._FATAL, KafkaError.UNRELEASED_INSTANCE_ID)


def test_commits_of_strangers_are_refused_while_members_live(
    make_topic: Any, new_member: Any, new_consumer: Any, group_name: str
) -> None:
    topic = make_topic(1)
    member = new_member(topic)
    settle([member], [1])
    stranger = new_consumer()
    with pytest.raises(KafkaException) as refused:
        stranger.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    member.close()
    stranger.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)


def test_groups_change_their_protocol_member_by_member(
    make_topic: Any, new_member: Any, new_consumer: Any, admin: AdminClient, group_name: str
) -> None:
    """Both ways. Not with librdkafka's sticky assignors: their assignments carry data of their own,
    which either broker refuses to lose."""
    topic = make_topic(4)
    old = {
        "partition.assignment.strategy": "range", "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 200,
    }  # fmt: skip

    def kind() -> Any:
        return admin.describe_consumer_groups([group_name])[group_name].result(20).type

    classic = [new_consumer(topic, **old) for _ in range(2)]
    settle(classic, [2, 2])
    assert kind() == ConsumerGroupType.CLASSIC
    mixed = new_member(topic)
    settle([*classic, mixed], [1, 1, 2])
    assert kind() == ConsumerGroupType.CONSUMER
    classic[0].close()
    settle([classic[1], mixed], [2, 2])
    mixed.close()
    settle([classic[1]], [4])
    assert kind() == ConsumerGroupType.CLASSIC
    last = new_member(topic)
    settle([classic[1], last], [2, 2])
    classic[1].close()
    settle([last], [4])
    assert kind() == ConsumerGroupType.CONSUMER


def test_a_group_lives_through_a_kill_of_the_broker(
    fresh_broker: Any, topic_name: str, group_name: str
) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import NewTopic

    broker = fresh_broker(QUICK)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    new = NewTopic(topic_name, num_partitions=4, replication_factor=1)
    admin.create_topics([new])[topic_name].result(20)
    config = {
        "bootstrap.servers": broker.bootstrap_servers, "group.id": group_name,
        "group.protocol": "consumer", "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "reconnect.backoff.max.ms": 500,
    }  # fmt: skip
    members = [Consumer(config) for _ in range(2)]
    try:
        for member in members:
            member.subscribe([topic_name])
        settle(members, [2, 2])
        had = [sorted(tp.partition for tp in member.assignment()) for member in members]
        ids = [member.memberid() for member in members]
        broker.kill()
        broker.start()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for partition in range(4):
            producer.produce(topic_name, b"after", partition=partition)
        assert producer.flush(60) == 0
        got: list[Any] = []

        def all_read() -> bool:
            for member in members:
                message = member.poll(0.1)
                if message is not None and message.error() is None:
                    got.append(message.partition())
            return len(got) == 4

        eventually(all_read, timeout_s=60, what="all records after the kill")
        assert [sorted(tp.partition for tp in m.assignment()) for m in members] == had
        assert [member.memberid() for member in members] == ids
    finally:
        for member in members:
            member.close()
