"""The assignors: what they promise, and that they are Apache Kafka's, move for move."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.coordinator.consumer.assignors import ASSIGNORS, GroupSpec, MemberSpec
from server.coordinator.consumer.member import Partitions
from testkit import jars
from testkit.quick_jvm import QUICK_JVM
from testkit.require import require_command
from wire.primitives import uuid_to_text

INPUTS = 10_000
SEED = 17


def a_group(rng: random.Random) -> GroupSpec:
    """A group in its life: `target` is what an assignor made of an earlier one."""
    topics = [rng.randbytes(16) for _ in range(rng.choice((1, 1, 2, 3, 5, 20)))]
    counts = {topic_id: rng.choice((1, 1, 2, 3, 5, 8, 20)) for topic_id in topics}
    is_homogeneous = rng.random() < 0.5
    members = {}
    for number in range(rng.choice((1, 2, 3, 4, 8, 20))):
        some = topics if is_homogeneous else [t for t in topics if rng.random() < 0.6]
        instance = f"i{rng.randrange(10**6)}" if rng.random() < 0.3 else None
        members[f"m{rng.randrange(10**6)}-{number}"] = MemberSpec(instance, frozenset(some), {})
    return GroupSpec(members, counts, is_homogeneous)


def later(rng: random.Random, spec: GroupSpec, target: dict[str, Partitions]) -> GroupSpec:
    """Members came, went and subscribed anew; topics came, went and grew."""
    gone = {topic_id for topic_id in spec.counts if rng.random() < 0.1}
    counts = {
        topic_id: count + rng.choice((0, 0, 0, 1, 4))
        for topic_id, count in spec.counts.items()
        if topic_id not in gone
    }
    for _ in range(rng.choice((0, 0, 1, 2))):
        counts[rng.randbytes(16)] = rng.randrange(1, 9)
    members: dict[str, MemberSpec] = {}
    for member_id, member in spec.members.items():
        if rng.random() < 0.2 and len(spec.members) > 1:
            continue
        topics = (
            frozenset(counts)
            if spec.is_homogeneous
            else frozenset(t for t in counts if (t in member.topics) is (rng.random() < 0.8))
        )
        members[member_id] = MemberSpec(member.instance_id, topics, target.get(member_id, {}))
    for number in range(rng.choice((0, 0, 1, 3))):
        some = [t for t in counts if spec.is_homogeneous or rng.random() < 0.6]
        members[f"n{rng.randrange(10**6)}-{number}"] = MemberSpec(None, frozenset(some), {})
    shuffled = list(members.items())
    rng.shuffle(shuffled)
    return GroupSpec(dict(shuffled), counts, spec.is_homogeneous)


def lives(name: str, count: int) -> Iterator[tuple[GroupSpec, dict[str, Partitions]]]:
    rng = random.Random(f"{SEED} {name}")
    spec = a_group(rng)
    for _ in range(count):
        if rng.random() < 0.15 or not spec.members or not spec.counts:
            spec = a_group(rng)
        target = ASSIGNORS[name](spec)
        yield spec, target
        spec = later(rng, spec, target)


@pytest.mark.parametrize("name", ASSIGNORS)
def test_every_partition_is_given_to_one_who_subscribes(name: str) -> None:
    for spec, target in lives(name, 1_000):
        given: Counter[tuple[bytes, int]] = Counter()
        for member_id, topics in target.items():
            assert set(topics) <= spec.members[member_id].topics
            assert all(topics.values()), "no topic without partitions"
            given.update((topic_id, p) for topic_id, of in topics.items() for p in of)
        wanted = {t for member in spec.members.values() for t in member.topics}
        assert given == {(t, p): 1 for t in wanted for p in range(spec.counts[t])}


def test_uniform_gives_everybody_as_much_and_moves_the_least() -> None:
    for spec, target in lives("uniform", 1_000):
        if not spec.is_homogeneous or not target:
            continue
        sizes = [sum(map(len, topics.values())) for topics in target.values()]
        assert max(sizes) - min(sizes) <= 1
        total, members = sum(sizes), len(spec.members)
        had = sorted(
            (
                sum(len(of) for t, of in member.target.items() if t in spec.counts)
                for member in spec.members.values()
            ),
            reverse=True,
        )
        quota, extra = divmod(total, members)
        could_keep = sum(min(n, quota + (at < extra)) for at, n in enumerate(had))
        kept = sum(
            len(of & target[member_id].get(t, frozenset()))
            for member_id, member in spec.members.items()
            for t, of in member.target.items()
        )
        assert kept == could_keep


def test_range_gives_neighbours_and_the_same_of_topics_that_are_alike() -> None:
    for spec, target in lives("range", 1_000):
        for topics in target.values():
            for partitions in topics.values():
                assert max(partitions) - min(partitions) == len(partitions) - 1
            alike: dict[int, set[frozenset[int]]] = {}
            for topic_id, partitions in topics.items():
                alike.setdefault(spec.counts[topic_id], set()).add(partitions)
            assert not spec.is_homogeneous or all(len(one) == 1 for one in alike.values())


def test_they_are_those_of_apache_kafka() -> None:
    require_command("java", "apt-get install openjdk-17-jre-headless")
    asked, ours = [], []
    for name in ASSIGNORS:
        for spec, target in lives(name, INPUTS // len(ASSIGNORS)):
            asked.append(_question(name, spec))
            ours.append(_answer(target))
    done = subprocess.run(
        [jars.java(), *QUICK_JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
         "-cp", f"{jars.libs()}/*", str(Path(__file__).with_name("Assign.java"))],
        input="\n".join(asked) + "\n", capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    theirs = [line.rstrip() for line in done.stdout.splitlines()]
    for question, our, their in zip(asked, ours, theirs, strict=True):
        assert our == their, question


def _question(name: str, spec: GroupSpec) -> str:
    counts = ",".join(f"{uuid_to_text(t)}={count}" for t, count in spec.counts.items())
    kind = "homogeneous" if spec.is_homogeneous else "heterogeneous"
    members = [
        f"{member_id}={member.instance_id or ''}={','.join(map(uuid_to_text, member.topics))}="
        + _topics(member.target)
        for member_id, member in spec.members.items()
    ]
    return " ".join([name, kind, counts, *members])


def _topics(topics: Partitions) -> str:
    return ",".join(
        f"{uuid_to_text(t)}:{'.'.join(map(str, sorted(of)))}" for t, of in topics.items()
    )


def _answer(target: dict[str, Partitions]) -> str:
    return " ".join(
        f"{member_id}="
        + ",".join(
            sorted(
                f"{uuid_to_text(t)}:" + "".join(f"{p}." for p in sorted(of))
                for t, of in topics.items()
            )
        )
        for member_id, topics in sorted(target.items())
    )
