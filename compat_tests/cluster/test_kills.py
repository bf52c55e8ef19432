"""C1, C2, C16: SIGKILL of leaders in a loop, of everything at once, and how long it is felt."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testkit.brokers.clusters import ClusterOfNodes
from testkit.checking.availability import recovery_times
from testkit.checking.history import now
from testkit.faults.rounds import TIMEOUT_S
from testkit.workloads.workload import Workload, wait

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

ACKED_AT_LEAST = 50_000
# broker.session.timeout.ms 3 s; the controller looks at it and elects, the client asks anew.
FAILOVER_P95_S = 4.5
WRITABLE_AFTER_ALL_S = 15.0


def test_c1_leaders_killed_in_a_loop_lose_double_and_reorder_nothing(
    make_cluster: Callable[..., ClusterOfNodes],
    tmp_path: Path,
    topic_name: str,
    rounds: Callable[[int], int],
    slack: float,
) -> None:
    cluster = make_cluster()
    chance = random.Random(20260101)
    kills: dict[int, list[int]] = {}
    with Workload(cluster, tmp_path, topic_name, rate=350) as load:
        load.await_each_producing()
        for _ in range(rounds(10)):
            victim = cluster.leader(topic_name, chance.randrange(load.partitions))
            led = led_by(cluster, victim, topic_name)
            at = now()
            cluster.kill(victim)
            kills[at] = led
            wait(chance.random() * 2)
            cluster.restart(victim)
            load.await_each_producing()
            cluster.await_full_isr(topic_name)
        if load.acked < ACKED_AT_LEAST:
            load.await_acked(ACKED_AT_LEAST - load.acked, timeout_s=120)
        report = load.prove()
    assert report.acked >= ACKED_AT_LEAST
    times = sorted(recovery_times(load.history(), kills).values())
    print(f"C16: {len(times)} kills, writable again {figures(times)}")
    assert percentile(times, 0.95) <= FAILOVER_P95_S * slack, times


def test_c2_all_nodes_killed_at_once_lose_nothing(
    make_cluster: Callable[..., ClusterOfNodes],
    tmp_path: Path,
    topic_name: str,
    rounds: Callable[[int], int],
    slack: float,
) -> None:
    cluster = make_cluster()
    kills: dict[int, list[int]] = {}
    with Workload(cluster, tmp_path, topic_name) as load:
        for _ in range(rounds(3)):
            load.await_each_producing(100)
            kills[now()] = list(range(load.partitions))
            cluster.kill_all()
            cluster.begin_start()
            cluster.await_nodes()
            load.await_each_producing()
            cluster.await_full_isr(topic_name)
        load.prove()
    times = sorted(recovery_times(load.history(), kills).values())
    print(f"C2: {len(times)} times, writable again {figures(times)}")
    assert max(times) <= WRITABLE_AFTER_ALL_S * slack, times


def test_c16_failover_with_the_timeouts_of_a_default_cluster(
    make_cluster: Callable[..., ClusterOfNodes], tmp_path: Path, topic_name: str,
    rounds: Callable[[int], int],
) -> None:  # fmt: skip
    if not rounds(0):
        pytest.skip("a part of the long form: CHAOS_ROUNDS")
    defaults: dict[str, Any] = {
        "broker.heartbeat.interval.ms": 2000, "broker.session.timeout.ms": 9000,
        "controller.quorum.election.timeout.ms": 1000,
        "controller.quorum.election.backoff.max.ms": 1000,
        "controller.quorum.fetch.timeout.ms": 2000, "replica.lag.time.max.ms": 30_000,
    }  # fmt: skip
    cluster = make_cluster(defaults)
    kills: dict[int, list[int]] = {}
    with Workload(cluster, tmp_path, topic_name, partitions=1) as load:
        for _ in range(min(rounds(0), 20)):
            load.await_each_producing()
            victim = cluster.leader(topic_name)
            kills[now()] = [0]
            cluster.kill(victim)
            load.await_each_producing(timeout_s=90)
            cluster.restart(victim)
            cluster.await_full_isr(topic_name, timeout_s=120)
        load.prove()
    times = sorted(recovery_times(load.history(), kills).values())
    print(f"C16, default timeouts: {len(times)} kills, writable again {figures(times)}")
    assert percentile(times, 0.95) <= 11.0, times


def led_by(cluster: ClusterOfNodes, node: int, topic: str) -> list[int]:
    view = cluster.view(node, topic).topics[topic]
    return [part.partition for part in view if part.leader == node]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[round((len(values) - 1) * share)]


def figures(values: list[float]) -> str:
    return (
        f"p50 {statistics.median(values):.2f} s, p95 {percentile(values, 0.95):.2f} s, "
        f"max {max(values):.2f} s"
    )
