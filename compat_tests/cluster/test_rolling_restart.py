"""C8: every node stopped and started in turn, as an upgrade does it; clients notice nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.brokers.clusters import ClusterOfNodes
from testkit.checking.availability import longest_gaps
from testkit.faults.rounds import TIMEOUT_S
from testkit.workloads.workload import Workload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

GAP_S = 1.0


def test_c8_a_rolling_restart_is_no_error_of_any_client(
    make_cluster: Callable[..., ClusterOfNodes],
    tmp_path: Path,
    topic_name: str,
    rounds: Callable[[int], int],
    slack: float,
) -> None:
    cluster = make_cluster()
    with Workload(cluster, tmp_path, topic_name) as load:
        load.await_each_producing()
        for _ in range(rounds(1)):
            for node in cluster.nodes:
                leads = cluster.leader(topic_name) == node
                cluster.stop_node(node)
                if leads:  # it gave its leadership away before it ended
                    assert cluster.leader(topic_name) != node
                load.await_each_producing()
                cluster.restart(node)
                cluster.await_full_isr(topic_name)
        report = load.prove()
    assert report.unknown == 0
    gaps = sorted(longest_gaps(load.history()).values())
    print(f"C8: longest gap of each partition {', '.join(f'{gap:.2f}' for gap in gaps)} s")
    assert gaps[-1] < GAP_S * slack, gaps
