"""`barnabas cluster kill|stop|restart N`: one node of the cluster that runs in another terminal;
`stop` without N: all of it.

There is no conversation with `barnabas cluster start`. Who runs a node is known by the lock that
every broker holds on its data directory (`storage.checkpoint.lock_holder`), so a node that was
started by hand is found as well; `cluster start` looks in the same way, and stops such a node with
the rest. A restarted node is no child of `cluster start`, but reads from a FIFO that only that one
writes to: the node stops when `cluster start` ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from barnabas.process import BrokerError, NodeProcess
from storage.checkpoint import lock_holder

LIFELINE = ".running"

STOP_TIMEOUT_S = 60.0

_LOOK_S = 0.05
_KILL_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 60.0


def act(action: str, cluster_dir: Path, number: int) -> int:
    """Do `kill`, `stop` or `restart` with a node and say what came of it; the exit code."""
    try:
        node = Node(cluster_dir, number)
        if action == "kill":
            outcome = f"killed (pid {node.end(signal.SIGKILL, _KILL_TIMEOUT_S)})"
        elif action == "stop":
            outcome = f"stopped (pid {node.end(signal.SIGTERM, STOP_TIMEOUT_S)})"
        else:
            if node.pid is not None:
                node.end(signal.SIGTERM, STOP_TIMEOUT_S)
            address, pid = node.start()
            outcome = f"ready at {address} (pid {pid})"
    except BrokerError as error:
        print(f"barnabas: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # another user's node; or the cluster is starting, or stopping
        print(f"barnabas: cannot {action} node {number}: {error}", file=sys.stderr)
        return 1
    print(f"{node.name} {outcome}")
    return 0


def stop_all(cluster_dir: Path) -> int:
    """Have `cluster start` end, and all nodes with it, as its Ctrl-C does; the exit code."""
    try:
        pid = _runner(cluster_dir)
        end_process(pid, signal.SIGTERM)
        _await(
            lambda: lock_holder(cluster_dir) != pid, f"{cluster_dir} (pid {pid})", STOP_TIMEOUT_S
        )
    except (BrokerError, OSError) as error:
        print(f"barnabas: cannot stop the cluster: {error}", file=sys.stderr)
        return 1
    print(f"cluster stopped (pid {pid})")
    return 0


def _runner(cluster_dir: Path) -> int:
    """The process of `cluster start`. Raises BrokerError."""
    pid = lock_holder(cluster_dir)
    if pid is None:
        raise BrokerError(
            f"no `barnabas cluster start` runs in {cluster_dir}: start it, or name its"
            " directory (--data-dir)"
        )
    return pid


@contextlib.contextmanager
def lifeline(cluster_dir: Path) -> Iterator[None]:
    """What nodes that others restart live by: a FIFO, open for writing as long as this lasts."""
    path = cluster_dir / LIFELINE
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    os.mkfifo(path, 0o600)
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield
    finally:
        os.close(descriptor)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


class Node:
    """One node in the directory of a cluster that `cluster start` runs."""

    def __init__(self, cluster_dir: Path, number: int) -> None:
        """Raises BrokerError if there is no such cluster, or no such node in it."""
        self.directory = cluster_dir / f"node-{number}"
        self.name = f"node {number}"
        self._number = number
        self._lifeline = cluster_dir / LIFELINE
        _runner(cluster_dir)
        if not self.directory.is_dir():
            there = sorted(int(path.name[5:]) for path in cluster_dir.glob("node-*"))
            raise BrokerError(f"there is no node {number} in {cluster_dir}, only {there}")

    @property
    def pid(self) -> int | None:
        """The process that runs it, whoever started that; None if none does."""
        return node_pid(self.directory)

    def end(self, number: signal.Signals, timeout_s: float) -> int:
        """Send its process a signal and wait until it is gone; returns the process id it had.

        Raises BrokerError if it does not run, or still does after `timeout_s`.
        """
        pid = self.pid
        if pid is None:
            back = f"bring it back with `barnabas cluster restart {self._number}`"
            raise BrokerError(f"{self.name} does not run; {back}")
        end_process(pid, number)
        await_end(self.directory, pid, timeout_s)
        return pid

    def start(self) -> tuple[str, int | None]:
        """Start it and wait until it is ready: its address and process id. Raises BrokerError."""
        process = NodeProcess(self.name, self.directory / "node.log")
        descriptor = os.open(self._lifeline, os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.set_blocking(descriptor, True)
            config = str(self.directory / "server.properties")
            process.spawn(["start", "--config", config], stdin=descriptor)
        finally:
            os.close(descriptor)
        return process.await_ready(_START_TIMEOUT_S), process.pid


def end_process(pid: int, number: signal.Signals) -> None:
    """Signal a process, paused ones too; nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        os.kill(pid, signal.SIGCONT)


def node_pid(node_dir: Path) -> int | None:
    """The process that runs the node of this directory, whoever started it; None if none does."""
    return lock_holder(node_dir / "data")


def await_end(node_dir: Path, pid: int, timeout_s: float) -> None:
    """Wait until that process uses the node's directory no more. Raises BrokerError."""
    _await(lambda: node_pid(node_dir) != pid, f"{node_dir.name} (pid {pid})", timeout_s)


def _await(is_over: Callable[[], bool], who: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_over():
        if time.monotonic() > deadline:
            raise BrokerError(f"{who} runs after {timeout_s:g} s still")
        time.sleep(_LOOK_S)
