"""The assignor of tasks: what it promises, and that it is Apache Kafka's, move for move."""

from __future__ import annotations

import random
import subprocess
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from server.coordinator.streams_groups.assignor import Subtasks, TaskMember, assign
from server.coordinator.streams_groups.tasks import NO_TASKS, Partitions, Tasks, pairs
from testkit import jars
from testkit.quick_jvm import QUICK_JVM
from testkit.require import require_command

INPUTS = 10_000
SEED = 29


class Group(NamedTuple):
    """What an assignor is given."""

    members: dict[str, TaskMember]
    subtopologies: dict[str, Subtasks]
    standbys: int


def a_group(rng: random.Random) -> Group:
    count = rng.choice((1, 1, 2, 3, 5, 12))
    subtopologies = {
        str(number): Subtasks(rng.choice((1, 2, 3, 5, 8, 20)), rng.random() < 0.6)
        for number in sorted(range(count), key=str)
    }
    processes = [f"p{rng.randrange(10**6)}" for _ in range(rng.choice((1, 2, 3, 5, 17)))]
    members = {
        f"m{rng.randrange(10**6)}-{number}": TaskMember(rng.choice(processes), NO_TASKS)
        for number in range(rng.choice((1, 2, 3, 4, 8, 20, 40)))
    }
    return Group(members, subtopologies, rng.choice((0, 0, 1, 2)))


def later(rng: random.Random, group: Group, target: dict[str, Tasks]) -> Group:
    """Members came and went, topics have grown, the number of copies is another."""
    members = {
        id_: TaskMember(member.process_id, target[id_])
        for id_, member in group.members.items()
        if rng.random() < 0.8
    }
    processes = [member.process_id for member in group.members.values()]
    processes.append(f"q{rng.randrange(10**6)}")
    for number in range(rng.choice((0, 0, 1, 3)) or not members):
        members[f"n{rng.randrange(10**6)}-{number}"] = TaskMember(rng.choice(processes), NO_TASKS)
    grown = {
        id_: known._replace(tasks=known.tasks + rng.choice((0, 0, 0, 1, 4)))
        for id_, known in group.subtopologies.items()
    }
    standbys = rng.choice((group.standbys, group.standbys, group.standbys, 0, 1, 2))
    shuffled = list(members.items())
    rng.shuffle(shuffled)
    return Group(dict(shuffled), grown, standbys)


def lives(count: int) -> Iterator[tuple[Group, dict[str, Tasks]]]:
    rng = random.Random(SEED)
    group = a_group(rng)
    for _ in range(count):
        if rng.random() < 0.15:
            group = a_group(rng)
        target = assign(*group)
        yield group, target
        group = later(rng, group, target)


def test_the_order_of_tasks_takes_no_memory_for_the_names_of_their_subtopologies() -> None:
    members = {"m": TaskMember("p", NO_TASKS)}

    def peak_bytes(id_: str) -> int:
        tracemalloc.start()
        try:
            assign(members, {id_: Subtasks(4_000, True)}, 1)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # A name for each would be a megabyte; the collector and other threads have their moments.
    assert peak_bytes("s" * 255) < peak_bytes("s") + 500_000


def test_every_task_runs_once_and_its_copies_are_elsewhere() -> None:
    for group, target in lives(1_000):
        active = Counter(task for tasks in target.values() for task in pairs(tasks.active))
        assert active == {
            (id_, partition): 1
            for id_, known in group.subtopologies.items()
            for partition in range(known.tasks)
        }
        where: Counter[tuple[str, tuple[str, int]]] = Counter()
        copies: Counter[tuple[str, int]] = Counter()
        for id_, tasks in target.items():
            process = group.members[id_].process_id
            where.update((process, task) for task in [*pairs(tasks.active), *pairs(tasks.standby)])
            copies.update(pairs(tasks.standby))
            assert not tasks.warmup
        assert not where or max(where.values()) == 1
        others = len({member.process_id for member in group.members.values()}) - 1
        assert copies == {
            (id_, partition): min(group.standbys, others)
            for id_, known in group.subtopologies.items()
            if known.is_stateful and min(group.standbys, others)
            for partition in range(known.tasks)
        }


def test_nothing_moves_while_nothing_changes() -> None:
    for group, target in lives(300):
        if group.standbys:
            continue
        members = {
            id_: TaskMember(member.process_id, target[id_]) for id_, member in group.members.items()
        }
        sizes = [len(pairs(tasks.active)) for tasks in target.values()]
        if max(sizes) - min(sizes) <= 1:
            assert assign(members, group.subtopologies, 0) == target


def test_nobody_has_nothing() -> None:
    assert assign({}, {"0": Subtasks(2, is_stateful=True)}, 1) == {}


def test_it_is_that_of_apache_kafka() -> None:
    require_command("java", "apt-get install openjdk-17-jre-headless")
    asked, ours = [], []
    for group, target in lives(INPUTS):
        asked.append(_question(group))
        ours.append(
            " ".join(
                f"{id_}={_text(tasks.active)}={_text(tasks.standby)}"
                for id_, tasks in sorted(target.items())
            )
        )
    done = subprocess.run(
        [jars.java(), *QUICK_JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
         "-cp", f"{jars.libs()}/*", str(Path(__file__).with_name("AssignTasks.java"))],
        input="\n".join(asked) + "\n", capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    theirs = [line.rstrip() for line in done.stdout.splitlines()]
    for question, our, their in zip(asked, ours, theirs, strict=True):
        assert our == their, question


def _question(group: Group) -> str:
    known = ",".join(
        f"{id_}={one.tasks}={str(one.is_stateful).lower()}"
        for id_, one in group.subtopologies.items()
    )
    members = [
        f"{id_}={one.process_id}={_text(one.target.active)}={_text(one.target.standby)}"
        for id_, one in group.members.items()
    ]
    return " ".join([str(group.standbys), known, *members])


def _text(tasks: Partitions) -> str:
    return ",".join(f"{id_}:{'.'.join(map(str, sorted(of)))}" for id_, of in sorted(tasks.items()))
