"""How regular expressions of groups are looked at, beside others who need the same thread."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server.coordinator.consumer import regexes
from server.coordinator.group_messages import Client
from testkit.clock import WALL_MS
from tests.server.coordinator.group_node import Node
from tests.server.coordinator.group_support import Answer
from wire.messages.groups import ConsumerGroupHeartbeatRequest

WAIT_MS = regexes.REFRESH_MIN_MS + 1


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    try:
        node.create("__consumer_offsets", 3)
        node.create("orders", 1)
        node.loads_slowly = True
        yield node
    finally:
        node.close()


def beat(node: Node, member: str, epoch: int, regex: str | None = None, group: str = "g") -> None:
    request = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch)
    if epoch == 0:
        request.rebalance_timeout_ms, request.topic_partitions = 60_000, []
        request.subscribed_topic_regex = regex
    answer = Answer()
    node.groups.consumer_group_heartbeat(request, Client("c", "/h", 1), answer)
    assert answer.error == 0


def looked_at(node: Node, group: str = "g") -> dict[str, Any]:
    machine = node.groups.runtime.shards()[node.groups.partition_for(group)].inspect()
    assert machine is not None
    return dict(machine.consumer.groups[group].regexes)


def all_of(
    looks: Iterator[tuple[str, frozenset[str]] | None],
) -> dict[str, frozenset[str]]:
    return dict(one for one in looks if one is not None)


def work_off(jobs: list[Callable[[], None]]) -> None:
    while jobs:
        jobs.pop(0)()


def test_who_is_to_be_loaded_waits_for_one_expression_and_not_for_all(node: Node) -> None:
    jobs = node.loads
    for number in range(3):
        beat(node, f"m{number}", 0, f"orders|{number}")
    work_off(jobs)
    node.pass_time(WAIT_MS)
    beat(node, "m0", 1)
    seen: list[int] = []
    jobs.append(lambda: seen.append(len(looked_at(node))))
    jobs.pop(0)()
    assert len(jobs) == 2, "the rest comes after who waits"
    work_off(jobs)
    assert seen == [1], "what is found is told together: m0's is from before"
    assert len(looked_at(node)) == 3


def test_who_is_to_be_loaded_waits_for_one_group_and_not_for_all(node: Node) -> None:
    """Of hundreds each with an expression that takes long; they take turns."""
    jobs = node.loads
    for group in "ghi":
        for number in range(2):
            beat(node, f"m{number}", 0, f"orders|{number}", group)
    for _ in range(3):
        assert len(jobs) == 1
        jobs.pop(0)()
    assert not jobs
    node.pass_time(WAIT_MS)
    for group in "ghi":
        beat(node, "m0", 1, group=group)
    for _ in range(3):
        jobs.pop(0)()
    assert [len(looked_at(node, group)) for group in "ghi"] == [1, 1, 1]
    for count in range(1, 4):
        jobs.pop(0)()
        assert sum(len(looked_at(node, group)) for group in "ghi") == 3 + count
    assert not jobs


def test_who_is_to_be_loaded_waits_for_some_topics_and_not_for_all(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an expression needs while it matches is kept meanwhile: no other one is begun."""
    monkeypatch.setattr(regexes, "NAMES_AT_ONCE", 1)
    node.create("other", 1)
    jobs = node.loads
    for group in "gh":
        beat(node, "m0", 0, "o.*", group)
    names = len(node.image.topics_by_name)
    for _ in range(names - 1):
        jobs.pop(0)()
        assert len(jobs) == 1
        assert not looked_at(node)
    jobs.pop(0)()
    assert looked_at(node)["o.*"].topics == {"orders", "other"}
    assert not looked_at(node, "h")
    work_off(jobs)
    assert looked_at(node, "h")["o.*"].topics == {"orders", "other"}


def test_who_is_to_be_loaded_waits_no_longer_for_a_long_expression() -> None:
    """One of 32 KB may take 10 ms for a name: ten seconds for as many as of a short one."""
    names = [f"topic-{i}" for i in range(1_000)]
    breaks = {
        size: sum(one is None for one in regexes.resolved(["|".join("a" * size)], names))
        for size in (1, 500, 5_000, 16_000)
    }
    assert breaks == {1: 0, 500: 0, 5_000: 9, 16_000: 31}


def test_a_group_that_is_looked_at_is_not_looked_at_besides(node: Node) -> None:
    jobs = node.loads
    beat(node, "m0", 0, "orders")
    assert len(jobs) == 1
    node.pass_time(WAIT_MS)
    beat(node, "m0", 1)
    assert len(jobs) == 1, "it takes long"
    work_off(jobs)
    assert looked_at(node)["orders"].topics == {"orders"}
    node.create("other", 1)
    node.pass_time(WAIT_MS)
    beat(node, "m0", 1)
    assert len(jobs) == 1


def test_a_clock_that_was_ahead_holds_up_no_look(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(node, "m0", 0, "orders.*")
    work_off(node.loads)
    monkeypatch.setattr("testkit.clock.WALL_MS", WALL_MS - 3_600_000)
    node.create("orders-2", 1)
    node.pass_time(WAIT_MS)
    beat(node, "m0", 1)
    work_off(node.loads)
    assert looked_at(node)["orders.*"].topics == {"orders", "orders-2"}


def test_what_an_expression_needs_while_it_matches_is_needed_for_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Expression:
        def fullmatch(self, name: str) -> bool:
            return name == "a"

    alive: weakref.WeakSet[Expression] = weakref.WeakSet()

    def compiled(_: str) -> Expression:
        gc.collect()
        assert len(alive) <= 1
        expression = Expression()
        alive.add(expression)
        return expression

    monkeypatch.setattr(regexes, "compiled", compiled)
    found = all_of(regexes.resolved([f"r{i}" for i in range(5)], ["a", "b"]))
    assert found == dict.fromkeys(found, frozenset("a"))
    assert len(found) == 5


def test_who_may_be_told_of_a_topic_is_asked_once() -> None:
    asked: list[str] = []

    def sees(name: str) -> bool:
        asked.append(name)
        return name != "b"

    found = all_of(regexes.resolved(["a|b", "b|c", "("], ["a", "b", "c"], sees))
    assert found == {"a|b": {"a"}, "b|c": {"c"}, "(": set()}
    assert asked == ["a", "b", "c"]


def test_nothing_is_kept_of_expressions_that_were_looked_at() -> None:
    import re2

    assert all_of(regexes.resolved(["a.", "b."], ["ab"])) == {"a.": {"ab"}, "b.": frozenset()}
    assert re2._Regexp._make.cache_info().currsize == 0
