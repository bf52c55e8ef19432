"""kafka-python in consumer groups: sharing, rebalances, commits, static members, patterns."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from kafka import ConsumerRebalanceListener, KafkaAdminClient, TopicPartition
from kafka.admin import MemberToRemove
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import CommitFailedError, IllegalGenerationError, UnknownMemberIdError

from testkit.clients.kpy import read
from testkit.clients.members import poll_all_until
from testkit.wait import eventually

FAST = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6000}


def fill(producer: Any, topic: str, partitions: int, each: int = 10) -> None:
    for i in range(each):
        for partition in range(partitions):
            producer.send(topic, b"%d-%d" % (partition, i), partition=partition)
    producer.flush(timeout=20)


def shares(members: list[Any]) -> list[int]:
    return sorted(len(member.assignment()) for member in members)


def test_subscribe_reads_all_partitions_and_commits_by_hand(
    make_topic: Any, new_producer: Any, new_consumer: Any, group_name: str
) -> None:
    topic = make_topic(3)
    fill(new_producer(), topic, 3)
    first = new_consumer(topic, group_id=group_name, enable_auto_commit=False)
    assert len(read(first, 30)) == 30
    first.commit()
    first.close()
    fill(new_producer(), topic, 3, each=2)
    second = new_consumer(topic, group_id=group_name, enable_auto_commit=False)
    assert sorted(record.offset for record in read(second, 6)) == [10, 10, 10, 11, 11, 11]


def test_without_a_commit_everything_is_read_again(
    make_topic: Any, new_producer: Any, new_consumer: Any, group_name: str
) -> None:
    topic = make_topic()
    fill(new_producer(), topic, 1)
    for _ in range(2):
        consumer = new_consumer(topic, group_id=group_name, enable_auto_commit=False)
        assert [record.offset for record in read(consumer, 10)] == list(range(10))
        consumer.close()


def test_auto_commit_writes_the_position_by_itself(
    make_topic: Any, new_producer: Any, new_consumer: Any, group_name: str, admin: KafkaAdminClient
) -> None:
    topic = make_topic()
    fill(new_producer(), topic, 1)
    consumer = new_consumer(topic, group_id=group_name, auto_commit_interval_ms=200)
    read(consumer, 10)
    one = TopicPartition(topic, 0)

    def committed() -> bool:
        consumer.poll(timeout_ms=50)
        offsets = admin.list_group_offsets(group_name)[group_name]
        return one in offsets and offsets[one].offset == 10

    eventually(committed, what="the auto commit of offset 10")


def test_asynchronous_commits_call_back(
    make_topic: Any, new_producer: Any, new_consumer: Any, group_name: str
) -> None:
    topic = make_topic()
    fill(new_producer(), topic, 1)
    consumer = new_consumer(topic, group_id=group_name, enable_auto_commit=False)
    read(consumer, 10)
    answers: list[Any] = []
    consumer.commit_async(callback=lambda offsets, response: answers.append(response))
    poll_all_until([consumer], lambda: answers)
    assert consumer.committed(TopicPartition(topic, 0)) == 10


@pytest.mark.parametrize(
    "assignor",
    [RangePartitionAssignor, RoundRobinPartitionAssignor, CooperativeStickyAssignor],
)
def test_three_members_share_six_partitions_and_take_over_what_one_leaves(
    assignor: Any, make_topic: Any, new_producer: Any, new_consumer: Any, group_name: str
) -> None:
    topic = make_topic(6)
    config = {"group_id": group_name, "partition_assignment_strategy": [assignor], **FAST}
    members = [new_consumer(topic, **config)]
    poll_all_until(members, lambda: shares(members) == [6])
    members.append(new_consumer(topic, **config))
    poll_all_until(members, lambda: shares(members) == [3, 3])
    members.append(new_consumer(topic, **config))
    poll_all_until(members, lambda: shares(members) == [2, 2, 2])
    together = set().union(*(member.assignment() for member in members))
    assert len(together) == 6
    members.pop(0).close()
    poll_all_until(members, lambda: shares(members) == [3, 3])
    fill(new_producer(), topic, 6, each=5)
    got: list[Any] = []

    def all_read() -> bool:
        for member in members:
            for batch in member.poll(timeout_ms=100).values():
                got.extend(batch)
        return len(got) >= 30

    eventually(all_read, what="30 records by two members")
    assert len({(record.partition, record.offset) for record in got}) == 30


def test_listeners_hear_of_revocation_and_assignment(
    make_topic: Any, new_consumer: Any, group_name: str
) -> None:
    topic = make_topic(2)
    heard: list[tuple[str, int]] = []

    class Ear(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            heard.append(("revoked", len(revoked)))

        def on_partitions_assigned(self, assigned: Any) -> None:
            heard.append(("assigned", len(assigned)))

    first = new_consumer(group_id=group_name, **FAST)
    first.subscribe([topic], listener=Ear())
    poll_all_until([first], lambda: ("assigned", 2) in heard)
    second = new_consumer(topic, group_id=group_name, **FAST)
    poll_all_until([first, second], lambda: shares([first, second]) == [1, 1])
    assert ("revoked", 2) in heard or ("revoked", 1) in heard


def test_a_member_that_vanishes_is_replaced_after_its_session(
    make_topic: Any, new_consumer: Any, group_name: str, bootstrap: str
) -> None:
    topic = make_topic(2)
    first = new_consumer(topic, group_id=group_name, **FAST)
    poll_all_until([first], lambda: shares([first]) == [2])
    command = [
        sys.executable, "-W", "ignore", "-m", "kafka.consumer", "-b", bootstrap, "-t", topic,
        "-g", group_name, "-C", "session_timeout_ms=6000",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
        try:
            poll_all_until([first], lambda: shares([first]) == [1])
        finally:
            other.kill()
    poll_all_until([first], lambda: shares([first]) == [2], what="the dead member's share")


def test_a_static_member_keeps_its_partitions_over_a_restart(
    make_topic: Any, new_consumer: Any, group_name: str, admin: KafkaAdminClient
) -> None:
    topic = make_topic(4)

    def member(instance: str) -> Any:
        return new_consumer(
            topic,
            group_id=group_name,
            group_instance_id=instance,
            **(FAST | {"session_timeout_ms": 20000}),
        )

    one, two = member("one"), member("two")
    poll_all_until([one, two], lambda: shares([one, two]) == [2, 2])
    kept = two.assignment()
    two.close()
    described = admin.describe_groups([group_name])[group_name]
    assert described["group_state"] == "Stable"
    assert {m["group_instance_id"] for m in described["members"]} == {"one", "two"}
    two_again = member("two")
    poll_all_until([one, two_again], lambda: shares([one, two_again]) == [2, 2])
    assert two_again.assignment() == kept


def test_a_pattern_finds_topics_that_come_later(
    make_topic: Any, topic_name: str, new_producer: Any, new_consumer: Any, group_name: str
) -> None:
    first = make_topic(suffix="-a")
    consumer = new_consumer(group_id=group_name, metadata_max_age_ms=500, **FAST)
    consumer.subscribe(pattern="^" + topic_name.replace(".", r"\.") + "-.*")
    poll_all_until([consumer], lambda: {tp.topic for tp in consumer.assignment()} == {first})
    second = make_topic(suffix="-b")
    poll_all_until(
        [consumer], lambda: {tp.topic for tp in consumer.assignment()} == {first, second}
    )
    new_producer().send(second, b"found").get(timeout=10)
    assert read(consumer, 1)[0].value == b"found"


def test_a_commit_of_an_expelled_member_fails(
    make_topic: Any, new_producer: Any, new_consumer: Any, group_name: str, admin: KafkaAdminClient
) -> None:
    topic = make_topic()
    fill(new_producer(), topic, 1)
    consumer = new_consumer(topic, group_id=group_name, enable_auto_commit=False, **FAST)
    read(consumer, 10)
    member_id = admin.describe_groups([group_name])[group_name]["members"][0]["member_id"]
    removed = admin.remove_group_members(group_name, [MemberToRemove(member_id=member_id)])
    assert [error.errno for error in removed.values()] == [0]
    with pytest.raises((CommitFailedError, IllegalGenerationError, UnknownMemberIdError)):
        consumer.commit()


def test_the_leaders_metadata_and_state_are_described(
    make_topic: Any, new_consumer: Any, group_name: str, admin: KafkaAdminClient
) -> None:
    topic = make_topic(2)
    consumer = new_consumer(topic, group_id=group_name, client_id="who-i-am", **FAST)
    poll_all_until([consumer], lambda: shares([consumer]) == [2])
    described = admin.describe_groups([group_name])[group_name]
    assert described["group_state"] == "Stable"
    assert described["protocol_type"] == "consumer"
    assert described["protocol_data"] == "range"
    (member,) = described["members"]
    assert member["client_id"] == "who-i-am"
    assert "127.0.0.1" in member["client_host"]


def test_consumers_in_threads_read_each_record_once(
    make_topic: Any, new_producer: Any, new_consumer: Any, group_name: str
) -> None:
    topic = make_topic(3)
    seen: list[tuple[int, int]] = []
    done = threading.Event()

    def work(consumer: Any) -> None:
        while not done.is_set():
            for batch in consumer.poll(timeout_ms=100).values():
                seen.extend((record.partition, record.offset) for record in batch)
                consumer.commit()

    config = {"group_id": group_name, "enable_auto_commit": False, **FAST}
    consumers = [new_consumer(topic, **config) for _ in range(3)]
    poll_all_until(consumers, lambda: shares(consumers) == [1, 1, 1])
    threads = [threading.Thread(target=work, args=(consumer,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    try:
        fill(new_producer(), topic, 3, each=100)
        eventually(lambda: len(seen) >= 300, what="300 records")
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert sorted(seen) == [(p, i) for p in range(3) for i in range(100)]
