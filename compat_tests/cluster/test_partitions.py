"""C5: links cut by a proxy, one node from the others, both ways or one, and clients from a node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.link_proxy import CLIENT
from testkit.brokers.clusters import ClusterOfNodes
from testkit.faults.rounds import TIMEOUT_S
from testkit.workloads.workload import Workload, wait

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

CUT_S = 7.0  # more than the session (3 s), the lag (3 s) and an election
ACKED_MEANWHILE = 100


def test_c5_partitions_lose_nothing_and_the_rest_goes_on(
    make_cluster: Callable[..., ClusterOfNodes],
    tmp_path: Path,
    topic_name: str,
    rounds: Callable[[int], int],
) -> None:
    cluster = make_cluster(proxied=True)
    with Workload(cluster, tmp_path, topic_name) as load:
        load.await_each_producing()
        assert_every_link_is_known(cluster)
        for _ in range(rounds(1)):
            for name, cut in CUTS.items():
                before = load.acked
                cut(cluster, topic_name)
                wait(CUT_S)
                meanwhile = load.acked - before
                print(f"{name}: {meanwhile} records acknowledged while it lasted")
                assert meanwhile >= ACKED_MEANWHILE, name
                cluster.heal()
                cluster.await_full_isr(topic_name, timeout_s=30)
                load.await_each_producing()
        load.prove()


def test_the_checker_sees_what_acks_1_loses_with_an_isolated_leader(
    make_cluster: Callable[..., ClusterOfNodes], tmp_path: Path, topic_name: str
) -> None:
    """The control: with acks=1 the same fault does lose records, and these tests would tell."""
    cluster = make_cluster(proxied=True)
    careless = {"acks": 1, "enable.idempotence": False}
    load = Workload(
        cluster, tmp_path, topic_name, producers={"confluent": 1}, producer_config=careless,
        partitions=1, groups=False,
    )  # fmt: skip
    with load:
        load.await_acked(100)
        old = cluster.leader(topic_name)
        cluster.isolate(old)
        others = [node for node in cluster.nodes if node != old]
        cluster.leader(topic_name, among=others)
        wait(2)
        cluster.heal()
        cluster.await_full_isr(topic_name)
        load.await_acked(100)
        report = load.finish()
    print(report)
    assert report.lost > 0


def isolate_leader(cluster: ClusterOfNodes, topic: str) -> None:
    cluster.isolate(cluster.leader(topic))


def isolate_follower(cluster: ClusterOfNodes, topic: str) -> None:
    cluster.isolate(max(set(cluster.nodes) - {cluster.leader(topic), cluster.controller()}))


def isolate_controller(cluster: ClusterOfNodes, topic: str) -> None:
    cluster.isolate(cluster.controller())


def silence_leader(cluster: ClusterOfNodes, topic: str) -> None:
    cluster.silence(cluster.leader(topic))


def deafen_leader(cluster: ClusterOfNodes, topic: str) -> None:
    cluster.deafen(cluster.leader(topic))


def cut_leader_from_followers(cluster: ClusterOfNodes, topic: str) -> None:
    """Two nodes do not reach each other, and both reach the third (a bridge)."""
    leader = cluster.leader(topic)
    cluster.partition(leader, min(set(cluster.nodes) - {leader}))


def cut_clients_from_leader(cluster: ClusterOfNodes, topic: str) -> None:
    cluster.cut_clients_from(cluster.leader(topic))


CUTS: dict[str, Callable[[ClusterOfNodes, str], None]] = {
    function.__name__: function
    for function in (
        isolate_leader, isolate_follower, isolate_controller, silence_leader, deafen_leader,
        cut_leader_from_followers, cut_clients_from_leader,
    )
}  # fmt: skip


def assert_every_link_is_known(cluster: ClusterOfNodes) -> None:
    """Each node was seen to reach each other, and nobody unknown speaks on their listeners."""
    seen = cluster.sources()
    print(seen)
    between = {pair for name in ("INTERNAL", "CONTROLLER") for pair in seen.get(name, [])}
    assert not [pair for pair in between if pair.startswith(CLIENT)], seen
    expected = {f"{a} {b}" for a in cluster.nodes for b in cluster.nodes if a != b}
    assert expected <= between, expected - between
