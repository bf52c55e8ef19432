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
from testkit.workloads.streams import INTERNAL, SOURCE, TARGET, CountingWords
from testkit.workloads.transactions import STATE_TOPIC

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(TIMEOUT_S)]

WORDS = 300
"""In each round, before and after its kill."""


def test_words_are_counted_once_through_kills_of_nodes_and_of_the_application(
    make_cluster: Callable[..., ClusterOfNodes], tmp_path: Path, rounds: Callable[[int], int]
) -> None:
    try:
        jars.streams_class_path()
    except jars.JarsUnavailable as missing:
        require(False, f"Kafka Streams: {missing}")
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
