"""Exactly once over three nodes, as Kafka's system tests try it (transactions_test): what two
copiers wrote in transactions equals what they read, though brokers and copiers die beside them.

In the long form each round bounces somebody else in another way; 34 rounds copy 204,000 records.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.admin import KafkaAdminClient

from testkit.brokers.clusters import ClusterOfNodes
from testkit.clients.rdkafka import read, send_all
from testkit.faults.rounds import LONG_FORM, TIMEOUT_S
from testkit.wait import eventually
from testkit.workloads.copier import (
    TRANSACTION_TIMEOUT_MS,
    Copier,
    JavaCopier,
    LibrdkafkaCopier,
)
from testkit.workloads.workload import create_topic, end_offsets, wait

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

IN_TURN = ["brokers hard", "copiers hard", "brokers clean", "copiers clean", "brokers paused"]
SHORT_FORM = {
    JavaCopier: [["brokers hard"], ["brokers paused"], ["copiers hard"]],
    LibrdkafkaCopier: [["brokers paused"]],
}
CASES = [
    pytest.param(
        program, bounces, id=f"{program.__name__}, {' and '.join(bounces)}",
        marks=[pytest.mark.java] if program is JavaCopier else [],
    )
    for program, short in SHORT_FORM.items()
    for bounces in ([IN_TURN] if LONG_FORM else short)
]  # fmt: skip
PARTITIONS = 2
PAUSE_S = 5.0  # the session is 3 s
RECORDS = 3_000
"""In each partition, for each round."""


@pytest.fixture
def copiers() -> Iterator[list[Copier]]:
    """Those that a test starts; none outlives it."""
    started: list[Copier] = []
    yield started
    for copier in started:
        copier.kill()


@pytest.mark.parametrize(("program", "bounces"), CASES)
def test_what_copiers_write_is_what_they_read(
    program: type[Copier],
    bounces: list[str],
    make_cluster: Callable[..., ClusterOfNodes],
    copiers: list[Copier],
    rounds: Callable[[int], int],
    tmp_path: Path,
) -> None:
    # Bounces hold a transaction up for seconds each: one that times out costs its copier's life.
    cluster = make_cluster({"transaction.max.timeout.ms": TRANSACTION_TIMEOUT_MS})
    bootstrap, count = cluster.bootstrap_servers, rounds(1)
    for topic in ("read", "written"):
        create_topic(bootstrap, topic, PARTITIONS)
    sent = [[b"%d" % n for n in range(RECORDS * count)] for _partition in range(PARTITIONS)]
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for partition, values in enumerate(sent):
        for number in range(count):
            some = values[RECORDS * number : RECORDS * (number + 1)]
            send_all(producer, "read", some, partition=partition)
    ends = end_offsets(bootstrap, "read", PARTITIONS)
    for number in range(PARTITIONS):
        copiers.append(
            program(f"copier-{number}", bootstrap, ("read", "written"), tmp_path, group="copiers")
        )
        copiers[-1].start()
    chance = random.Random(", ".join(bounces))
    for number in range(count):
        before = RECORDS * PARTITIONS * number
        await_committed(bootstrap, partial(is_beyond, before), copiers, timeout_s=120)
        victims, how = bounces[number % len(bounces)].split()
        if victims == "brokers":
            leaders = (cluster.leader(topic) for topic in ("__transaction_state", "written"))
            for node in {chance.choice(list(cluster.nodes)), *leaders}:
                bounce_broker(cluster, node, how)
        else:
            bounce_copiers(copiers, how, chance)
    await_committed(bootstrap, lambda found: found == ends, copiers, timeout_s=240)
    for copier in copiers:
        copier.stop()
    assert written(bootstrap, [len(values) for values in sent]) == sent


def bounce_broker(cluster: ClusterOfNodes, node: int, how: str) -> None:
    if how == "paused":
        cluster.pause(node)
        wait(PAUSE_S)
        cluster.resume(node)
    else:
        (cluster.kill if how == "hard" else cluster.stop_node)(node)
        wait(1)
        cluster.restart(node)
    for topic in ("read", "written"):
        cluster.await_full_isr(topic)


def bounce_copiers(copiers: list[Copier], how: str, chance: random.Random) -> None:
    for copier in copiers:
        (copier.kill if how == "hard" else copier.stop)()
        wait(chance.random())
        copier.start()


def committed(bootstrap: str) -> dict[int, int]:
    """What the group has read for good, by partition."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        found = admin.list_group_offsets("copiers")["copiers"]
        return {part.partition: offset.offset for part, offset in found.items()}
    finally:
        admin.close()


def is_beyond(count: int, found: dict[int, int]) -> bool:
    """More than that many records are copied for good: what comes next hits copiers at work."""
    return sum(max(0, offset) for offset in found.values()) > count


def await_committed(
    bootstrap: str,
    is_enough: Callable[[dict[int, int]], bool],
    copiers: list[Copier],
    *,
    timeout_s: float,
) -> None:
    """Until what the group has read for good is enough; no longer than the copiers do well."""

    def is_over() -> bool:
        return any(copier.has_failed for copier in copiers) or is_enough(committed(bootstrap))

    try:
        eventually(is_over, timeout_s=timeout_s, every_s=0.2, what="the copiers go on")
        assert not [copier.name for copier in copiers if copier.has_failed]
    finally:
        for copier in copiers:
            print(f"--- {copier.name}\n{copier.log_text()[-2000:]}")


def written(bootstrap: str, counts: list[int]) -> list[list[bytes]]:
    """All that a read_committed reader finds, and that there is nothing beyond."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0,
            "isolation.level": "read_committed",
        }
    )  # fmt: skip
    try:
        found = []
        for partition, count in enumerate(counts):
            consumer.assign([TopicPartition("written", partition, 0)])
            messages = read(consumer, count, timeout_s=60)
            messages += consumer.consume(1, 2.0)
            found.append([message.value() for message in messages])
        return found
    finally:
        consumer.close()
