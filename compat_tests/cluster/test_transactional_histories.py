"""Transactional histories of real clients, checked for what Jepsen's Kafka workload looks for.

Clients of librdkafka and of Apache Kafka poll and send within transactions, some of which they
abort, while brokers are killed, stopped and cut off. `testkit.checking.checker` lists what none
of them may ever see. The controls: what a read_uncommitted reader of the same run saw, and clients
that poll what is not committed within their transactions.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testkit.brokers.clusters import ClusterOfNodes
from testkit.checking.checker import assert_clean
from testkit.faults.rounds import TIMEOUT_S
from testkit.workloads.transactional_workload import LIBRDKAFKA, TransactionalWorkload
from testkit.workloads.transactions import STATE_TOPIC, coordinator_of
from testkit.workloads.workload import wait

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(TIMEOUT_S)]

PAUSE_S = 4.0  # the session is 3 s


def test_no_client_sees_an_anomaly_whoever_dies_hangs_or_is_cut_off(
    make_cluster: Callable[..., ClusterOfNodes],
    tmp_path: Path,
    topic_name: str,
    rounds: Callable[[int], int],
) -> None:
    cluster = make_cluster(proxied=True)
    chance = random.Random(topic_name[:20])
    with TransactionalWorkload(cluster.bootstrap_servers, tmp_path, topic_name) as load:
        cluster.on_fault = load.fault
        load.await_commits(5)
        for number in range(rounds(1)):
            for fault in (kill, pause, CUTS[number % len(CUTS)]):
                victim = cluster.leader(topic_name, chance.randrange(4))
                if (number + (fault is pause)) % 2:
                    victim = coordinator_of(cluster, "librdkafka0")
                print(f"{fault.__name__} of node {victim}, {load}")
                fault(cluster, victim)
                cluster.await_full_isr(topic_name, STATE_TOPIC)
                load.await_commits(3)
        report = load.finish()
    print(report)
    assert_clean(report)
    assert not [call for call in report.hung if not call.startswith(LIBRDKAFKA)]
    control = load.seen_uncommitted()
    print(f"control: {control}")
    assert control.counts["aborted-read"] > 0, "the checker would have told"


def kill(cluster: ClusterOfNodes, victim: int) -> None:
    cluster.kill(victim)
    wait(1)
    cluster.restart(victim)


def pause(cluster: ClusterOfNodes, victim: int) -> None:
    cluster.pause(victim)
    wait(PAUSE_S)
    cluster.resume(victim)


def isolate(cluster: ClusterOfNodes, victim: int) -> None:
    cluster.isolate(victim)
    wait(PAUSE_S)
    cluster.heal()


def silence(cluster: ClusterOfNodes, victim: int) -> None:
    """One way: what it sends to other nodes is held back."""
    cluster.silence(victim)
    wait(PAUSE_S)
    cluster.heal()


def deafen(cluster: ClusterOfNodes, victim: int) -> None:
    """The other way: it sends, and hears nothing."""
    cluster.deafen(victim)
    wait(PAUSE_S)
    cluster.heal()


def cut_clients(cluster: ClusterOfNodes, victim: int) -> None:
    cluster.cut_clients_from(victim)
    wait(PAUSE_S)
    cluster.heal()


def bridge(cluster: ClusterOfNodes, victim: int) -> None:
    """It and one other do not reach each other; both reach the third."""
    cluster.partition(victim, min(set(cluster.nodes) - {victim}))
    wait(PAUSE_S)
    cluster.heal()


CUTS = (isolate, silence, deafen, cut_clients, bridge)


def test_the_checker_sees_what_transactions_poll_that_is_not_committed(
    fresh_broker: Callable[..., Any], tmp_path: Path, topic_name: str
) -> None:
    bootstrap = fresh_broker({"transaction.max.timeout.ms": 10_000}).bootstrap_servers
    load = TransactionalWorkload(
        bootstrap, tmp_path, topic_name, clients={LIBRDKAFKA: 2}, partitions=2, replicas=1,
        isolation="read_uncommitted",
    )  # fmt: skip
    with load:
        load.await_commits(150)  # enough that transactions of both meet
        report = load.finish()
    print(report)
    assert {"aborted-read", "precommitted-read", "read-past-lso", "G1c"} <= set(report.counts)
    of_the_log = set(report.counts) & {"lost-write", "unseen", "duplicate", "inconsistent-offsets"}
    assert not of_the_log, "only those polls were careless"
