"""Transactions over partitions of several brokers, while these are killed, paused and restarted.

What is proved: `compat_tests.support.transactions`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from compat_tests.support.clusters import ClusterOfNodes
from compat_tests.support.rounds import TIMEOUT_S
from compat_tests.support.transactions import PARTITIONS, Transactions, create, read_committed
from compat_tests.support.workload import wait

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

PAUSE_S = 5.0  # the session is 3 s
STATE_TOPIC = "__transaction_state"


def coordinator_of(cluster: ClusterOfNodes) -> int:
    return cluster.leader(STATE_TOPIC, 0)


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_transactions_are_whole_whoever_dies_or_hangs(
    make_cluster: Callable[..., ClusterOfNodes],
    topic_name: str,
    rounds: Callable[[int], int],
    fault: str,
) -> None:
    cluster = make_cluster({"transaction.state.log.num.partitions": 1})
    create(cluster, topic_name)
    chance = random.Random(7)
    with Transactions(cluster, "tx", topic_name) as load:
        load.await_more(20)
        for _ in range(rounds(2)):
            victims = [coordinator_of(cluster)]
            victims.append(cluster.leader(topic_name, chance.randrange(PARTITIONS)))
            for victim in victims:
                if fault == "kill":
                    cluster.kill(victim)
                    wait(chance.random())
                    load.await_more(5)
                    cluster.restart(victim)
                else:
                    cluster.pause(victim)
                    wait(PAUSE_S)
                    load.await_more(5)
                    cluster.resume(victim)
                load.await_more(10)
                cluster.await_full_isr(topic_name, STATE_TOPIC)
    load.prove(read_committed(cluster, topic_name))
    print(load)


def test_transactions_survive_the_end_of_everybody(
    make_cluster: Callable[..., ClusterOfNodes], topic_name: str, rounds: Callable[[int], int]
) -> None:
    cluster = make_cluster({"transaction.state.log.num.partitions": 1})
    create(cluster, topic_name)
    with Transactions(cluster, "tx", topic_name) as load:
        for _ in range(rounds(2)):
            load.await_more(20)
            cluster.kill_all()
            for node in cluster.nodes:
                cluster.launch(node)
            cluster.await_ready()
        load.await_more(20)
    load.prove(read_committed(cluster, topic_name))
