"""A consumer group of KIP-848 whose coordinator is killed, again and again: nobody moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from testkit.brokers.clusters import ClusterOfNodes
from testkit.clients.members import owned, poll_in_turns_until, read_one_each
from testkit.faults.rounds import TIMEOUT_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

PARTITIONS = 6
OFFSETS = "__consumer_offsets"
CONFIG = {
    "offsets.topic.num.partitions": 1,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.assignment.interval.ms": 0,
}


def test_members_keep_what_they_have_through_each_fail_over(
    make_cluster: Callable[..., ClusterOfNodes], topic_name: str, group_name: str
) -> None:
    cluster = make_cluster(CONFIG)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    new = NewTopic(topic_name, num_partitions=PARTITIONS, replication_factor=3)
    admin.create_topics([new])[topic_name].result(30)
    config = {
        "bootstrap.servers": cluster.bootstrap_servers, "group.id": group_name,
        "group.protocol": "consumer", "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "reconnect.backoff.max.ms": 500, "log_level": 0,
    }  # fmt: skip
    members = [Consumer(config) for _ in range(3)]
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    try:
        for member in members:
            member.subscribe([topic_name])
        poll_in_turns_until(
            members, lambda: [len(of) for of in owned(members)] == [2, 2, 2], timeout_s=60
        )
        before = owned(members)
        for number in range(1, 4):
            victim = cluster.leader(OFFSETS)
            cluster.kill(victim)
            read_one_each(producer, members, topic_name, PARTITIONS)
            assert owned(members) == before
            asked = [TopicPartition(topic_name, p) for p in range(PARTITIONS)]
            committed = members[0].committed(asked, timeout=60)
            assert [tp.offset for tp in committed] == [number] * PARTITIONS
            cluster.restart(victim)
            cluster.await_full_isr(topic_name, OFFSETS)
    finally:
        for member in members:
            member.close()
