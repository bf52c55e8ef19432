"""C9: partitions moved between four brokers under clients, with kills and a cancelled move."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from testkit.brokers.clusters import ClusterOfNodes
from testkit.faults.rounds import TIMEOUT_S
from testkit.wait import eventually
from testkit.workloads.workload import Workload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

THROTTLE = 20_000  # bytes a second: slow enough to be cancelled in the middle


def test_c9_partitions_move_under_fire_and_leave_nothing_behind(
    make_cluster: Callable[..., ClusterOfNodes],
    tmp_path: Path,
    topic_name: str,
    rounds: Callable[[int], int],
) -> None:
    config = {"log.segment.delete.delay.ms": 1000, "replica.fetch.max.bytes": THROTTLE}
    cluster = make_cluster(config, broker_only=1)
    chance = random.Random(20260109)
    mover = Mover(cluster, topic_name)
    with Workload(cluster, tmp_path, topic_name, size=400) as load:
        load.await_acked(3000)
        mover.cancel_in_the_middle(0, away_from(cluster, topic_name, 0, chance))
        load.await_each_producing()
        for number in range(rounds(4)):
            partition = number % load.partitions
            target = away_from(cluster, topic_name, partition, chance)
            mover.move({partition: target})
            victim = chance.choice(sorted(cluster.nodes))
            cluster.kill(victim)
            load.await_each_producing()
            cluster.restart(victim)
            mover.await_done({partition: target})
        everywhere = {p: away_from(cluster, topic_name, p, chance) for p in range(load.partitions)}
        mover.move(everywhere)
        mover.await_done(everywhere)
        load.await_each_producing()
        load.prove()
    eventually(
        lambda: not orphans(cluster, topic_name), timeout_s=30,
        what=f"no directory of a replica that moved away: {orphans(cluster, topic_name)}",
    )  # fmt: skip


class Mover:
    """What kafka-reassign-partitions does, through the admin API."""

    def __init__(self, cluster: ClusterOfNodes, topic: str) -> None:
        self._cluster, self._topic = cluster, topic

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        admin = KafkaAdminClient(bootstrap_servers=self._cluster.bootstrap_servers.split(","))
        try:
            return call(admin)
        finally:
            admin.close()

    def move(self, targets: dict[int, list[int] | None]) -> None:
        """Ask for these replicas; None cancels. An error of a partition is a failure."""
        asked = {TopicPartition(self._topic, p): replicas for p, replicas in targets.items()}
        answer = self._ask(lambda admin: admin.alter_partition_reassignments(asked))
        assert set(answer) == set(asked), answer
        assert not any(answer.values()), answer

    def under_way(self) -> dict[Any, Any]:
        found = self._ask(lambda admin: admin.list_partition_reassignments())
        return {place: state for place, state in found.items() if place.topic == self._topic}

    def await_done(self, targets: dict[int, list[int]]) -> None:
        eventually(lambda: not self.under_way(), timeout_s=90, every_s=0.3, what="moves done")
        self._cluster.await_full_isr(self._topic)
        for node in self._cluster.running():
            parts = self._cluster.view(node, self._topic).topics[self._topic]
            assert {p: list(parts[p].replicas) for p in targets} == targets

    def cancel_in_the_middle(self, partition: int, target: list[int]) -> None:
        """A throttled move that is called off: the partition is what it was."""
        before = self._cluster.view(1, self._topic).topics[self._topic][partition]
        self.throttle(THROTTLE)
        self.move({partition: target})
        (state,) = self.under_way().values()
        assert set(state["adding_replicas"]) == set(target) - set(before.replicas)
        assert set(state["removing_replicas"]) == set(before.replicas) - set(target)
        self.move({partition: None})
        self.throttle(None)
        # The same brokers; those that stayed in the target's order, as the revert leaves them.
        stayed = [node for node in target if node in before.replicas]
        left = [node for node in before.replicas if node not in target]
        self.await_done({partition: stayed + left})

    def throttle(self, rate: int | None) -> None:
        """Limit replication of the topic (None: no more), as --throttle does it."""
        operation = AlterConfigOpType.DELETE if rate is None else AlterConfigOpType.SET
        topic = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
        broker = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
        wanted = [(ResourceType.TOPIC, self._topic, topic, "*")]
        wanted += [
            (ResourceType.BROKER, str(node), broker, str(rate)) for node in self._cluster.nodes
        ]
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap_servers, "log_level": 0})
        for kind, name, keys, value in wanted:  # librdkafka takes one broker a call
            entries = [ConfigEntry(key, value, incremental_operation=operation) for key in keys]
            change = ConfigResource(kind, name, incremental_configs=entries)
            admin.incremental_alter_configs([change])[change].result(20)


def away_from(
    cluster: ClusterOfNodes, topic: str, partition: int, chance: random.Random
) -> list[int]:
    """Three brokers, one of them new to the partition, in any order."""
    node = cluster.running()[0]
    have = list(cluster.view(node, topic).topics[topic][partition].replicas)
    (new,) = set(cluster.nodes) - set(have)
    chosen = [new, *chance.sample(have, 2)]
    chance.shuffle(chosen)
    return chosen


def orphans(cluster: ClusterOfNodes, topic: str) -> list[str]:
    """Directories of the topic's partitions on nodes that are no replica of them.

    A partition that moved away while its broker was dead is set aside at the next start, as
    `-stray`, and stays: both brokers leave it to a person to delete it.
    """
    parts = cluster.view(cluster.running()[0], topic).topics[topic]
    return [
        f"node {node}: {path.name}"
        for node in cluster.nodes
        for path in cluster.node_data_dir(node).glob(f"{topic}-*")
        if not path.name.endswith("-stray")
        and not any(path.name == f"{topic}-{p.partition}" and node in p.replicas for p in parts)
    ]
