"""What hurts a cluster hurts just that, and how a node's process ended is told."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from barnabas.cluster import Cluster
from barnabas.process import BrokerError, NodeProcess
from testkit.wait import eventually

READY = "print('barnabas ready: 127.0.0.1:1 (node 1)', flush=True)\n"


class Links:
    """Stands for the link proxy, and remembers what it was told."""

    def __init__(self) -> None:
        self.cuts: set[tuple[str, str]] = set()
        self.delays: dict[tuple[str, str], float] = {}

    def cut(self, links: Iterable[tuple[str, str]]) -> None:
        self.cuts |= set(links)

    def delay(self, sender: str, receiver: str, seconds: float) -> None:
        self.delays[sender, receiver] = seconds


@pytest.mark.parametrize(
    ("hurt", "cuts"),
    [
        (lambda c: c.partition(1, 3), {("1", "3"), ("3", "1")}),
        (lambda c: c.partition(1, 3, one_way=True), {("1", "3")}),
        (lambda c: c.isolate(2), {("1", "2"), ("2", "1"), ("3", "2"), ("2", "3")}),
    ],
)
def test_only_the_links_that_are_named_are_cut(hurt: Any, cuts: set[tuple[str, str]]) -> None:
    cluster, links = Cluster(), Links()
    cluster._proxy = links  # type: ignore[assignment]
    hurt(cluster)
    assert links.cuts == cuts


def test_a_link_is_slow_both_ways_unless_one_is_asked_for() -> None:
    cluster, links = Cluster(), Links()
    cluster._proxy = links  # type: ignore[assignment]
    cluster.slow(1, 2, 50)
    cluster.slow(3, 1, 7, one_way=True)
    assert links.delays == {("1", "2"): 0.05, ("2", "1"): 0.05, ("3", "1"): 0.007}


def started(tmp_path: Path, program: str) -> NodeProcess:
    process = NodeProcess("node 1", tmp_path / "node.log")
    process.run([sys.executable, "-c", program])
    assert process.await_ready(60) == "127.0.0.1:1"
    return process


ON_SIGTERM = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))\n"


@pytest.mark.parametrize("code", [1, 3, 143])
def test_a_node_that_ends_with_another_code_than_0_when_it_is_stopped_is_an_error(
    tmp_path: Path, code: int
) -> None:
    process = started(tmp_path, ON_SIGTERM.format(code=code) + READY + "signal.pause()\n")
    with pytest.raises(BrokerError, match=f"node 1 stopped with exit code {code}"):
        process.terminate(60)
    process.terminate(60)  # told once


def test_a_node_that_stops_as_it_is_asked_is_none(tmp_path: Path) -> None:
    process = started(tmp_path, ON_SIGTERM.format(code=0) + READY + "signal.pause()\n")
    process.terminate(60)
    assert process.pid is None


@pytest.mark.parametrize("code", [1, -signal.SIGSEGV, 0, -signal.SIGKILL])
def test_a_node_that_failed_while_nobody_asked_it_to_stop_is_told_once(
    tmp_path: Path, code: int
) -> None:
    ends = f"os.kill(os.getpid(), {-code})" if code < 0 else f"sys.exit({code})"
    process = started(tmp_path, f"import os, sys\n{READY}{ends}\n")
    eventually(lambda: process.pid is None)
    failure = process.end_by_itself()
    if code in (0, -signal.SIGKILL):
        assert failure is None
    else:
        assert f"node 1 ended by itself with exit code {code}" in str(failure)
    assert process.end_by_itself() is None
    process.terminate(60)


def test_a_cluster_that_stops_tells_of_nodes_that_failed_before(tmp_path: Path) -> None:
    cluster = Cluster(nodes=1, data_dir=tmp_path)
    node = started(tmp_path, f"import sys\n{READY}sys.exit(1)\n")
    cluster._processes[1] = node
    eventually(lambda: node.pid is None)
    with pytest.raises(BrokerError, match="node 1 ended by itself with exit code 1"):
        cluster.stop()
    cluster.stop()


@pytest.mark.parametrize(("code", "is_error"), [(0, False), (4, True)])
def test_a_node_is_told_on_its_standard_input_that_all_stop(
    tmp_path: Path, code: int, is_error: bool
) -> None:
    listens = f"import sys\n{READY}assert sys.stdin.readline() == 'stop\\n'\nsys.exit({code})\n"
    process = started(tmp_path, listens)
    process.begin_end_of_all()
    if is_error:
        with pytest.raises(BrokerError, match=f"exit code {code}"):
            process.await_end(60)
    else:
        process.await_end(60)
    assert process.pid is None


def test_last_requests_are_read_to_their_end_and_a_node_that_is_gone_tells_none(
    tmp_path: Path,
) -> None:
    tells = "sys.stdin.readline(); print('Produce', 'Fetch', '', sep='\\n', flush=True)\n"
    process = started(tmp_path, "import sys\n" + READY + tells + "sys.stdin.read()\n")
    assert process.last_requests() == "Produce\nFetch"
    process.kill()
    assert process.last_requests() == ""
