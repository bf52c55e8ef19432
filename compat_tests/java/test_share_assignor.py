"""Our assignor of share groups beside Apache Kafka's SimpleAssignor, on random groups.

Equal to the partition where Kafka's maps have an order: topic by topic, or with one topic. Where
all members have the same several topics, Kafka follows the hashes of their ids: there, what a
member gets and how many share a partition are compared, of groups that begin.
"""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from server.coordinator.share_groups.assignor import ShareMemberSpec, assign
from testkit import jars
from testkit.compiled import java_program
from testkit.quick_jvm import KAFKA_JVM

pytestmark = pytest.mark.java

GROUPS = 10_000

Held = list[tuple[int, int]]


class Group(NamedTuple):
    """By numbers: of topics, partitions and members."""

    counts: list[int]
    assignable: list[frozenset[int]]
    topics: list[list[int]]
    """Of each member."""
    held: list[Held]

    @property
    def is_homogeneous(self) -> bool:
        return all(topics == self.topics[0] for topics in self.topics)


def drawn(draw: random.Random) -> Group:
    counts = [draw.randint(1, 8) for _ in range(draw.randint(1, 3))]
    assignable = [
        frozenset(draw.sample(range(count), count if draw.random() < 0.8 else count // 2))
        for count in counts
    ]
    every = list(range(len(counts)))
    pool = [(topic, index) for topic in every for index in sorted(assignable[topic])]
    is_homogeneous, is_new = draw.random() < 0.4, draw.random() < 0.2
    topics, held = [], []
    for _ in range(draw.randint(1, 12)):
        own = every if is_homogeneous else sorted(draw.sample(every, draw.randint(1, len(every))))
        topics.append(own)
        some = 0 if is_new or draw.random() < 0.3 else draw.randint(0, min(len(pool), 5))
        held.append(sorted(draw.sample(pool, some)))
    return Group(counts, assignable, topics, held)


@pytest.fixture
def kafka() -> Iterator[subprocess.Popen[str]]:
    driver = Path(__file__).with_name("ShareAssignorDriver.java")
    jvm = subprocess.Popen(
        [jars.java(), "-Xmx256m", *KAFKA_JVM, *java_program(driver, jars.class_path())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, bufsize=1,
    )  # fmt: skip
    yield jvm
    jvm.kill()
    jvm.communicate()


def theirs(kafka: subprocess.Popen[str], group: Group) -> list[Held]:
    words = [len(group.counts)]
    for count, assignable in zip(group.counts, group.assignable, strict=True):
        words += [count, sum(1 << index for index in assignable)]
    words += [int(group.is_homogeneous), len(group.topics)]
    for topics, held in zip(group.topics, group.held, strict=True):
        words += [len(topics), *topics, len(held), *(number for pair in held for number in pair)]
    assert kafka.stdin is not None
    assert kafka.stdout is not None
    kafka.stdin.write(" ".join(map(str, words)) + "\n")
    answer = map(int, kafka.stdout.readline().split())
    found: list[Held] = [[] for _ in group.topics]
    for member, topic, index in zip(*[answer] * 3, strict=True):
        found[member].append((topic, index))
    return [sorted(of) for of in found]


def ours(group: Group) -> list[Held]:
    specs = {
        str(member): ShareMemberSpec(
            frozenset(map(_id, topics)),
            {_id(t): frozenset(i for of, i in held if of == t) for t, _ in held},
        )
        for member, (topics, held) in enumerate(zip(group.topics, group.held, strict=True))
    }
    assignable = {_id(topic): indexes for topic, indexes in enumerate(group.assignable)}
    found = assign(specs, assignable, is_homogeneous=group.is_homogeneous)
    return [
        sorted(
            (int.from_bytes(topic_id, "big"), index)
            for topic_id, indexes in found.get(member, {}).items()
            for index in indexes
        )
        for member in specs
    ]


def _id(topic: int) -> bytes:
    return topic.to_bytes(16, "big")


def shares(found: list[Held]) -> tuple[list[int], Counter[tuple[int, int]]]:
    """How many partitions each member has, and how many members each partition."""
    return list(map(len, found)), Counter(pair for of in found for pair in of)


def test_random_groups_are_assigned_as_apache_kafka_assigns_them(
    kafka: subprocess.Popen[str],
) -> None:
    equal = alike = 0
    for seed in range(GROUPS):
        group = drawn(random.Random(seed))
        mine, kafkas = ours(group), theirs(kafka, group)
        if not group.is_homogeneous or len(group.counts) == 1:
            assert mine == kafkas, f"seed {seed}: {group}"
            equal += 1
        elif not any(group.held):
            assert shares(mine) == shares(kafkas), f"seed {seed}: {group}"
            alike += 1
    assert equal > GROUPS / 2
    assert alike > GROUPS / 30
