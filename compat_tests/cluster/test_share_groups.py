"""A share group on three nodes whose leaders and coordinators are killed one after the other.

Every record is delivered and accepted; what was told to be accepted comes to nobody again; at the
end nothing is left. A record whose acknowledgement was answered with an error may be either.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from testkit.brokers.clusters import ClusterOfNodes
from testkit.clients.share_consumers import Received, ShareConsumers, ShareMember
from testkit.faults.rounds import TIMEOUT_S
from testkit.wait import eventually

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(TIMEOUT_S)]

PARTITIONS = 3
RECORDS = 30
"""Of each partition and round."""
STATE, OFFSETS = "__share_group_state", "__consumer_offsets"
CONFIG = {
    "offsets.topic.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "group.share.heartbeat.interval.ms": 300,
    "group.share.min.heartbeat.interval.ms": 300,
    "group.share.assignment.interval.ms": 0,
}
MEMBER = {
    "share.acknowledgement.mode": "explicit",
    "share.acquire.mode": "record_limit",
    "max.poll.records": 10,
    "reconnect.backoff.max.ms": 500,
}


class Ledger:
    """What members were given and what they said of it."""

    def __init__(self) -> None:
        self.accepted: set[tuple[int, int]] = set()
        self.unsure: set[tuple[int, int]] = set()
        self.given: set[tuple[int, int]] = set()

    def take(self, records: list[Received]) -> None:
        for record in records:
            at = (record.partition, record.offset)
            assert at not in self.accepted, f"{record} was accepted already"
            assert record.delivery_count <= 5, record
            self.given.add(at)

    def accept(self, member: ShareMember, records: list[Received]) -> None:
        """All of them, and look at what is answered."""
        for record in records:
            member.ack(record)
        outcomes = member.commit()
        for record in records:
            is_told = outcomes.get(record.partition) == "ok"
            (self.accepted if is_told else self.unsure).add((record.partition, record.offset))


def test_no_record_is_lost_or_stuck_through_each_fail_over(
    make_cluster: Callable[..., ClusterOfNodes], java_tools: Any, topic_name: str, group_name: str
) -> None:
    cluster = make_cluster(CONFIG)
    where = ("--bootstrap-server", cluster.bootstrap_servers)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    new = NewTopic(topic_name, num_partitions=PARTITIONS, replication_factor=3)
    admin.create_topics([new])[topic_name].result(30)
    java_tools.run("ConfigCommand", *where, "--entity-type", "groups", "--entity-name", group_name,
                   "--alter", "--add-config", "share.auto.offset.reset=earliest").ok()  # fmt: skip
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    ledger = Ledger()
    with ShareConsumers(cluster.bootstrap_servers) as consumers:
        members = [consumers.member(topic_name, group_name, **MEMBER) for _ in range(3)]
        for number, led in enumerate((topic_name, STATE, OFFSETS), start=1):
            _produce(producer, topic_name)
            held = _take_some(members, ledger)
            victim = cluster.leader(led)
            cluster.kill(victim)
            for member, records in held:
                ledger.accept(member, records)
            _produce(producer, topic_name)
            _take_all(members, ledger, 2 * number * RECORDS * PARTITIONS)
            cluster.restart(victim)
            cluster.await_full_isr(topic_name, STATE, OFFSETS)
        describe = ("ShareGroupCommand", *where, "--describe", "--group", group_name)
        eventually(
            lambda: _lags(java_tools.run(*describe).ok(), topic_name) == [0] * PARTITIONS,
            timeout_s=60, what="nothing is left",
        )  # fmt: skip
        for member in members:
            member.close()


def _produce(producer: Producer, topic: str) -> None:
    for number in range(RECORDS * PARTITIONS):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def _take_some(
    members: list[ShareMember], ledger: Ledger
) -> list[tuple[ShareMember, list[Received]]]:
    """Until each member has records; half of them it has accepted, the others it holds."""
    held = []
    for member in members:
        records = eventually(lambda member=member: member.poll(1.0), timeout_s=60, what="records")
        ledger.take(records)
        half = len(records) // 2
        ledger.accept(member, records[:half])
        held.append((member, records[half:]))
    return held


def _take_all(members: list[ShareMember], ledger: Ledger, count: int) -> None:
    """Until so many were given to somebody, and are accepted or may be."""
    deadline = time.monotonic() + 120
    while len(ledger.given) < count or len(ledger.accepted | ledger.unsure) < count:
        assert time.monotonic() < deadline, f"{len(ledger.given)} of {count} were given"
        for member in members:
            records = member.poll(0.2)
            ledger.take(records)
            if records:
                ledger.accept(member, records)


def _lags(described: str, topic: str) -> list[int]:
    return [int(lag) for lag in re.findall(rf"{topic} +\d+ +\d+ +(\d+)", described)]
