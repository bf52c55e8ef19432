"""C4: a node that stops for longer than its session and comes back believing what it believed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.brokers.clusters import ClusterOfNodes
from testkit.faults.rounds import TIMEOUT_S
from testkit.workloads.workload import Workload, wait

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

PAUSE_S = 5.0  # the session is 3 s, the allowed lag 3 s


def test_c4_pauses_of_leader_follower_and_controller_change_nothing_that_was_acknowledged(
    make_cluster: Callable[..., ClusterOfNodes],
    tmp_path: Path,
    topic_name: str,
    rounds: Callable[[int], int],
) -> None:
    cluster = make_cluster()
    with Workload(cluster, tmp_path, topic_name) as load:
        load.await_each_producing()
        for _ in range(rounds(1)):
            for choose in (leader, follower, controller):
                victim = choose(cluster, topic_name)
                others = [node for node in cluster.nodes if node != victim]
                cluster.pause(victim)
                wait(PAUSE_S)
                load.await_each_producing()  # the others have taken over
                assert cluster.leader(topic_name, among=others) != victim
                assert cluster.controller(among=others) != victim
                cluster.resume(victim)
                cluster.await_full_isr(topic_name)
                load.await_each_producing()
        load.prove()


def leader(cluster: ClusterOfNodes, topic: str) -> int:
    return cluster.leader(topic)


def follower(cluster: ClusterOfNodes, topic: str) -> int:
    busy = {cluster.leader(topic), cluster.controller()}
    return max(set(cluster.nodes) - busy)


def controller(cluster: ClusterOfNodes, topic: str) -> int:
    return cluster.controller()
