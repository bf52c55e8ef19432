"""Live consumer groups of KIP-848 in a data directory that changes hands.

One node is killed, and one of the other kind starts on what it left, at the same address: members
must be to the one what they were to the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from testkit.brokers.nodes import RunningBroker
from testkit.clients.members import owned, poll_in_turns_until, read_one_each

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC, GROUP = "travels", "travellers"
CONFIG = {
    "node.id": 1, "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.min.heartbeat.interval.ms": 200, "group.consumer.assignment.interval.ms": 0,
}  # fmt: skip


@pytest.fixture
def hands(hands_of: Callable[..., dict[str, RunningBroker]]) -> dict[str, RunningBroker]:
    return hands_of(CONFIG)


@pytest.mark.parametrize("first", ["kafka", "barnabas"])
def test_members_do_not_notice(hands: dict[str, Any], first: str) -> None:
    second = "barnabas" if first == "kafka" else "kafka"
    one, other = hands[first], hands[second]
    if second == "kafka":  # which formats the directory at its first start
        other.start()
        other.stop()
    one.start()
    producer = Producer({"bootstrap.servers": one.bootstrap_servers})
    admin = AdminClient({"bootstrap.servers": one.bootstrap_servers})
    new = NewTopic(TOPIC, num_partitions=4, replication_factor=1)
    admin.create_topics([new])[TOPIC].result(20)
    config = {
        "bootstrap.servers": one.bootstrap_servers,
        "group.id": GROUP, "group.protocol": "consumer", "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "reconnect.backoff.max.ms": 500, "log_level": 0,
        "topic.metadata.refresh.interval.ms": 1_000,
    }  # fmt: skip
    members = [Consumer({**config, "group.instance.id": name}) for name in ("a", "b")]
    try:
        members[0].subscribe([TOPIC])
        members[1].subscribe([f"^{TOPIC[:-1]}.*"])
        poll_in_turns_until(
            members, lambda: [len(of) for of in owned(members)] == [2, 2], timeout_s=60
        )
        before, ids = owned(members), [member.memberid() for member in members]
        read_one_each(producer, members, TOPIC, 4)

        one.kill()
        other.start()
        read_one_each(producer, members, TOPIC, 4)
        assert owned(members) == before
        assert [member.memberid() for member in members] == ids
        members.pop().close()  # a static member goes for a while
        again = Consumer({**config, "group.instance.id": "b"})
        again.subscribe([f"^{TOPIC[:-1]}.*"])
        members.append(again)
        poll_in_turns_until(members, lambda: owned(members) == before, timeout_s=60)

        other.kill()
        one.start()
        read_one_each(producer, members, TOPIC, 4)
        assert owned(members) == before
        committed = members[0].committed([TopicPartition(TOPIC, p) for p in range(4)], timeout=30)
        assert [tp.offset for tp in committed] == [3] * 4
    finally:
        for member in members:
            member.close()
