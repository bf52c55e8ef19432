"""Topics that end and begin again under their names, deleted records, configs, moves, and kills."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.brokers.clusters import ClusterOfNodes
from testkit.faults.rounds import TIMEOUT_S
from testkit.workloads.administration import Administrator
from testkit.workloads.workload import Workload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

ALL = 0


def test_administration_goes_on_under_kills_and_no_life_of_a_topic_leaks_into_the_next(
    make_cluster: Callable[..., ClusterOfNodes],
    tmp_path: Path,
    topic_name: str,
    rounds: Callable[[int], int],
) -> None:
    cluster = make_cluster(
        {"log.segment.delete.delay.ms": 1000, "log.flush.start.offset.checkpoint.interval.ms": 500}
    )
    chance = random.Random(20261122)
    with Workload(cluster, tmp_path, topic_name, rate=100) as load:
        with Administrator(cluster, f"{topic_name[:60]}-a", chance) as administrator:
            for number in range(rounds(4)):
                load.await_each_producing()
                administrator.await_more(6)
                victim = ALL if number % 4 == 3 else chance.choice(sorted(cluster.nodes))
                if victim == ALL:
                    cluster.kill_all()
                    cluster.begin_start()
                    cluster.await_nodes()
                else:
                    cluster.kill(victim)
                    administrator.await_more(2)
                    cluster.restart(victim)
            load.await_each_producing()
        cluster.await_full_isr(topic_name)
        administrator.prove()
        load.prove()
