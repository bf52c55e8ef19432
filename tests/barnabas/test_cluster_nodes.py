"""`barnabas cluster kill|stop N` from another terminal: who runs a node is known by its lock."""

from __future__ import annotations

import gc
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from barnabas import cluster_nodes
from barnabas.cluster_nodes import (
    LIFELINE,
    Node,
    act,
    await_end,
    lifeline,
    node_pid,
    stop_all,
)
from barnabas.process import BrokerError
from storage.checkpoint import LOCK
from testkit.wait import eventually

HOLD = """
import fcntl, os, signal, sys

def end(number, _frame):
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)

signal.signal(signal.SIGTERM, end)  # a broker has a handler: who is paused ends when it goes on
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""

Hold = Callable[[Path], subprocess.Popen[str]]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Starts a process that holds the lock of a directory, as a broker does."""
    holders: list[subprocess.Popen[str]] = []

    def start(directory: Path) -> subprocess.Popen[str]:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(directory / LOCK)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        return holder

    yield start
    for holder in holders:
        with holder:
            holder.kill()


@pytest.fixture
def cluster_dir(tmp_path: Path) -> Path:
    for number in (1, 2):
        (tmp_path / f"node-{number}" / "data").mkdir(parents=True)
    return tmp_path


def test_without_a_cluster_there_is_nothing_to_act_on(
    cluster_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert act("kill", cluster_dir, 1) == 1
    assert f"no `barnabas cluster start` runs in {cluster_dir}" in capsys.readouterr().err


def test_a_node_that_is_not_there_and_one_that_does_not_run_are_told(
    cluster_dir: Path, hold: Hold, capsys: pytest.CaptureFixture[str]
) -> None:
    hold(cluster_dir)
    assert act("kill", cluster_dir, 7) == 1
    assert "there is no node 7" in (said := capsys.readouterr().err)
    assert "only [1, 2]" in said
    assert act("stop", cluster_dir, 2) == 1
    assert capsys.readouterr().err == (
        "barnabas: node 2 does not run; bring it back with `barnabas cluster restart 2`\n"
    )


def test_a_cluster_that_begins_or_ends_restarts_no_node(
    cluster_dir: Path, hold: Hold, capsys: pytest.CaptureFixture[str]
) -> None:
    hold(cluster_dir)  # its command runs, and has not yet, or no more, what nodes live by
    assert act("restart", cluster_dir, 1) == 1
    said = capsys.readouterr().err
    assert said.startswith("barnabas: cannot restart node 1: ")
    assert ".running" in said
    os.mkfifo(cluster_dir / LIFELINE)  # is left of one that was killed: nobody writes to it
    assert act("restart", cluster_dir, 1) == 1
    assert capsys.readouterr().err.startswith("barnabas: node 1 did not start: ")


@pytest.mark.parametrize(
    ("action", "done", "number"),
    [("kill", "killed", signal.SIGKILL), ("stop", "stopped", signal.SIGTERM)],
)
def test_a_node_ends_whoever_started_it_also_when_it_is_paused(
    cluster_dir: Path, hold: Hold, capsys: pytest.CaptureFixture[str],
    action: str, done: str, number: signal.Signals,
) -> None:  # fmt: skip
    hold(cluster_dir)
    node, other = (hold(cluster_dir / name / "data") for name in ("node-1", "node-2"))
    os.kill(node.pid, signal.SIGSTOP)
    assert act(action, cluster_dir, 1) == 0
    assert capsys.readouterr().out == f"node 1 {done} (pid {node.pid})\n"
    assert node.wait(30) == -number
    assert other.poll() is None
    assert node_pid(cluster_dir / "node-1") is None


def test_a_node_that_does_not_end_in_time_is_an_error(cluster_dir: Path, hold: Hold) -> None:
    hold(cluster_dir)
    node = hold(cluster_dir / "node-1" / "data")
    with pytest.raises(BrokerError, match=rf"node-1 \(pid {node.pid}\) runs after 0 s still"):
        Node(cluster_dir, 1).end(signal.SIGWINCH, 0.0)  # of which it takes no notice
    with pytest.raises(BrokerError, match=rf"node-1 \(pid {node.pid}\) runs after 0 s still"):
        await_end(cluster_dir / "node-1", node.pid, 0.0)
    await_end(cluster_dir / "node-1", node.pid + 1, 0.0)  # another one runs it by now


def test_a_node_that_ends_while_it_is_waited_for_has_ended(
    cluster_dir: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = hold(cluster_dir / "node-1" / "data")

    def end(_seconds: float) -> None:
        node.kill()
        node.wait()

    monkeypatch.setattr(time, "sleep", end)
    await_end(cluster_dir / "node-1", node.pid, 60.0)
    assert node.returncode == -signal.SIGKILL


def test_what_nodes_live_by_ends_with_the_cluster_however_the_last_one_ended(
    cluster_dir: Path,
) -> None:
    path = cluster_dir / LIFELINE
    path.touch()  # is left of one that was killed
    with lifeline(cluster_dir):
        assert stat.filemode(path.stat().st_mode) == "prw-------"
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert not path.exists()


# The command ends, and leaves the node to the cluster's.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_node_that_is_restarted_runs_until_the_cluster_ends(
    cluster_dir: Path, hold: Hold, capsys: pytest.CaptureFixture[str]
) -> None:
    hold(cluster_dir)
    directory = cluster_dir / "node-1"
    before = hold(directory / "data")
    config = f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={directory / 'data'}\n"
    (directory / "server.properties").write_text(config)
    gc.collect()  # what tests before left open in cycles may go at any moment
    files = len(os.listdir("/dev/fd"))
    with lifeline(cluster_dir):
        assert act("restart", cluster_dir, 1) == 0
        assert before.wait(60) == -signal.SIGTERM
        pid = node_pid(directory)
        said = capsys.readouterr().out
        assert re.fullmatch(rf"node 1 ready at 127\.0\.0\.1:\d+ \(pid {pid}\)\n", said)
        assert act("restart", cluster_dir, 1) == 0
        again = node_pid(directory)
        assert again not in (None, pid)
    eventually(lambda: node_pid(directory) is None, timeout_s=60, what="the node's end")
    assert (directory / "node.log").read_text().count("reason=standard input ended") == 1
    eventually(nobody_is_left, timeout_s=60, what="what the command leaves to nobody")
    assert len(os.listdir("/dev/fd")) == files


def nobody_is_left() -> bool:
    gc.collect()
    subprocess._cleanup()
    return not subprocess._active


def test_the_cluster_is_stopped_by_its_own_process(
    cluster_dir: Path, hold: Hold, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stop_all(cluster_dir) == 1
    said = capsys.readouterr().err
    assert f"cannot stop the cluster: no `barnabas cluster start` runs in {cluster_dir}" in said
    runner, node = hold(cluster_dir), hold(cluster_dir / "node-1" / "data")
    assert stop_all(cluster_dir) == 0
    assert capsys.readouterr().out == f"cluster stopped (pid {runner.pid})\n"
    assert runner.wait(10) == -signal.SIGTERM
    assert node.poll() is None, "which it stops itself"


def test_a_cluster_that_does_not_end_is_told(
    cluster_dir: Path,
    hold: Hold,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = hold(cluster_dir)
    monkeypatch.setattr(cluster_nodes, "STOP_TIMEOUT_S", 0.1)
    monkeypatch.setattr(cluster_nodes, "end_process", lambda *_: None)
    assert stop_all(cluster_dir) == 1
    assert f"(pid {runner.pid}) runs after 0.1 s still" in capsys.readouterr().err
