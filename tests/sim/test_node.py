"""What a process was asked while it stood still, it does first and in order."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.sim.cluster import Options, SimCluster
from tests.sim.node import SimNode


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimNode:
    """Up, with nothing of a broker in it."""
    cluster = SimCluster(1, Options(), tmp_path)
    monkeypatch.setattr(SimNode, "_look_after", lambda self: None)
    monkeypatch.setattr(cluster.check, "check", lambda: None)
    node = cluster.nodes[1]
    node.is_up = True
    return node


def test_a_thread_that_stands_still_holds_up_nobody(node: SimNode) -> None:
    world, done = node.world, list[str]()

    def stand_still() -> None:
        node.stand_still(node.incarnation, 5)
        done.append("checkpoint")

    node.pause(100)
    node.do(stand_still, node.incarnation)
    node.do(partial(done.append, "first commit"), node.incarnation)
    world.after(102, lambda: node.do(partial(done.append, "second commit"), node.incarnation))
    world.run_until(world.ms + 200)
    assert done == ["first commit", "second commit", "checkpoint"]


def test_what_comes_as_it_goes_on_is_no_earlier_than_what_waits(node: SimNode) -> None:
    world, done = node.world, list[str]()
    world.after(100, lambda: node.do(partial(done.append, "second commit"), node.incarnation))
    node.pause(100)
    node.do(partial(done.append, "first commit"), node.incarnation)
    assert done == []
    world.run_until(world.ms + 200)
    assert done == ["first commit", "second commit"]


def test_a_new_process_knows_nothing_of_what_the_last_was_asked(node: SimNode) -> None:
    done: list[str] = []
    node.pause(100)
    node.do(partial(done.append, "first commit"), node.incarnation)
    node.incarnation += 1
    node.world.run_until(node.world.ms + 200)
    assert done == []
