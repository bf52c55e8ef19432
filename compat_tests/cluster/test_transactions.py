"""Transactions over partitions of several brokers, while these are killed, paused and restarted.

What is proved: `testkit.workloads.transactions`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from testkit.brokers.clusters import ClusterOfNodes
from testkit.faults.rounds import TIMEOUT_S
from testkit.workloads.transactions import (
    PARTITIONS,
    STATE_TOPIC,
    Transactions,
    coordinator_of,
    create,
    read_committed,
)
from testkit.workloads.workload import wait

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

PAUSE_S = 5.0  # the session is 3 s


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
            victims = [coordinator_of(cluster, "tx")]
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
            cluster.begin_start()
            cluster.await_nodes()
        load.await_more(20)
    load.prove(read_committed(cluster, topic_name))


def test_a_leader_that_the_coordinator_cannot_reach_holds_up_its_own_transactions_only(
    make_cluster: Callable[..., ClusterOfNodes], topic_name: str
) -> None:
    """The controller reaches both, so nothing moves; markers wait until the link is healed."""
    cluster = make_cluster(proxied=True)
    far, near = f"{topic_name}-far", f"{topic_name}-near"
    for topic in (topic_name, far, near):
        create(cluster, topic)
    with Transactions(cluster, "first", topic_name) as first:  # makes __transaction_state
        first.await_more(1)
    controller = cluster.controller()
    ids = [f"tx-{number}" for number in range(40)]
    apart = [id_ for id_ in ids if coordinator_of(cluster, id_) != controller]
    coordinator = coordinator_of(cluster, apart[0])
    apart = [id_ for id_ in apart if coordinator_of(cluster, id_) == coordinator]
    (other,) = set(cluster.nodes) - {controller, coordinator}
    reached = [p for p in range(PARTITIONS) if cluster.leader(near, p) != other]
    with (
        Transactions(cluster, apart[0], far) as held_up,
        Transactions(cluster, apart[1], near, reached) as goes_on,
    ):
        held_up.await_more(5)
        goes_on.await_more(5)
        cluster.partition(coordinator, other)
        wait(PAUSE_S)  # until followers that cannot fetch have left the ISRs
        goes_on.await_more(30)
        cluster.heal()
        held_up.await_more(10)
        cluster.await_full_isr(far, near, STATE_TOPIC)
        goes_on.await_more(10)
    held_up.prove(read_committed(cluster, far))
    goes_on.prove(read_committed(cluster, near))
