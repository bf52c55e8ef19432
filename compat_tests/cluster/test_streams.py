"""Kafka Streams with exactly_once_v2 on three nodes: its counts are right whoever was killed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit import jars
from testkit.brokers.clusters import ClusterOfNodes
from testkit.faults.rounds import TIMEOUT_S
from testkit.require import require
from testkit.workloads.streams import INTERNAL, SHORT_SESSIONS, SOURCE, TARGET, CountingWords
from testkit.workloads.transactions import STATE_TOPIC

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(TIMEOUT_S)]

WORDS = 300
"""In each round, before and after its kill."""
GROUP_TOPIC = "__consumer_offsets"


def require_streams() -> None:
    try:
        jars.streams_class_path()
    except jars.JarsUnavailable as missing:
        require(False, f"Kafka Streams: {missing}")


def test_words_are_counted_once_through_kills_of_nodes_and_of_the_application(
    make_cluster: Callable[..., ClusterOfNodes], tmp_path: Path, rounds: Callable[[int], int]
) -> None:
    require_streams()
    cluster = make_cluster({"transaction.state.log.num.partitions": 1})
    chance = random.Random(20261122)
    with CountingWords(cluster.bootstrap_servers, tmp_path, replicas=3) as words:
        words.say(WORDS)
        words.start()
        words.await_all()
        view = cluster.view(1)
        for topic in INTERNAL:
            assert all(len(part.replicas) == 3 for part in view.topics[topic]), topic
        for number in range(rounds(3)):
            words.say(WORDS)
            words.await_counts(2 * WORDS * number + WORDS + 1)  # it is at work when the kill comes
            led = STATE_TOPIC if number % 3 == 0 else chance.choice([SOURCE, TARGET, *INTERNAL])
            victim = cluster.leader(led)
            cluster.kill(victim)
            if number % 3 == 1:
                words.kill()
                words.start()
            words.say(WORDS)
            words.await_counts(2 * WORDS * number + 2 * WORDS + 1)
            cluster.restart(victim)
            cluster.await_full_isr()
        words.prove()


GROUPS = {
    "offsets.topic.num.partitions": 1,
    "group.streams.heartbeat.interval.ms": 300,
    "group.streams.min.heartbeat.interval.ms": 300,
    **SHORT_SESSIONS,
    "group.streams.assignment.interval.ms": 0,
    "group.streams.initial.rebalance.delay.ms": 100,
}


def test_a_streams_group_goes_on_through_kills_of_its_coordinator_and_of_instances(
    make_cluster: Callable[..., ClusterOfNodes], tmp_path: Path, rounds: Callable[[int], int]
) -> None:
    """KIP-1071, two instances: whoever takes over knows which of them has which task. Each round
    kills the group's coordinator; every second one an instance with it, whose tasks go to the other
    and back to the one that comes instead.
    """
    require_streams()
    cluster = make_cluster(GROUPS)
    with CountingWords(
        cluster.bootstrap_servers, tmp_path, replicas=3, protocol="streams"
    ) as words:
        words.say(WORDS)
        for _ in range(2):
            words.start()
        words.await_all()
        for number in range(rounds(3)):
            said = WORDS * (2 * number + 1)
            words.say(WORDS)
            words.await_counts(said + 1)  # they are at work when the kill comes
            victim = cluster.leader(GROUP_TOPIC)
            cluster.kill(victim)
            if number % 2:
                words.kill_eldest()
                words.await_counts(said + WORDS)
                words.start()
            words.say(WORDS)
            words.await_counts(said + WORDS + 1)
            cluster.restart(victim)
            cluster.await_full_isr()
        words.prove()
