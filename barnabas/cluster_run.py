"""`barnabas cluster start`: all nodes of a cluster, looked after from one terminal."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from barnabas.cluster import Cluster
from barnabas.cluster_nodes import STOP_TIMEOUT_S, await_end, end_process, lifeline, node_pid
from barnabas.process import BrokerError, properties_text, write_private
from storage.checkpoint import DirectoryLock

_LOOK_S = 0.2
_BASE_PORT = 9092


def run(
    data_dir: Path, nodes: int, base_port: int | None, config: dict[str, str], secure: bool
) -> int:
    """Start all nodes and run until a signal asks to stop; the exit code."""
    from server.commands.main import on_stop_signals

    stopping: list[int] = []
    on_stop_signals(lambda number, _frame: _on_signal(number, stopping))
    try:
        with _locked(data_dir), lifeline(data_dir):
            _start_cluster(_cluster(data_dir, nodes, base_port, config, secure), stopping)
    except (BrokerError, ValueError) as error:  # a ValueError: what --set says is wrong
        print(f"barnabas: {error}", file=sys.stderr)
        return 1 if isinstance(error, BrokerError) else 2
    except OSError as error:
        print(
            f"barnabas: {error.filename or data_dir} cannot be used: {error.strerror}"
            " (--data-dir chooses the directory)",
            file=sys.stderr,
        )
        return 1
    return 0


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep out a second command, which would write the first one's files anew."""
    Cluster.check_place(directory)  # which may be running, and have the lock
    directory.mkdir(parents=True, exist_ok=True)
    lock = DirectoryLock(directory)
    if not lock.try_acquire():
        raise BrokerError(
            f"{directory} is in use by another `barnabas cluster start`: stop that one, or use"
            " another directory (--data-dir)"
        )
    try:
        yield
    finally:
        lock.release()


def _cluster(
    data_dir: Path, nodes: int, base_port: int | None, config: dict[str, str], secure: bool
) -> Cluster:
    """What the directory holds, or shall. A cluster that was made secure stays so."""
    if base_port is None and not Cluster.is_in(data_dir):
        base_port = _BASE_PORT
    users = Cluster.users_in(data_dir)
    if users is None and secure:
        from barnabas.secure_start import new_users

        users = new_users()
    return Cluster(
        nodes,
        data_dir,
        config,
        proxied=False,
        base_port=base_port,
        security=None if users is None else "sasl_ssl",
        users=users,
    )


def _start_cluster(cluster: Cluster, stopping: list[int]) -> None:
    brought_back: dict[int, int] = {}
    try:
        _run_nodes(cluster, stopping)
        brought_back = _by_hand(cluster)
    except BrokerError:
        with contextlib.suppress(BrokerError):  # the first says why
            cluster.stop()
        raise
    finally:
        if brought_back or any(cluster.pid(node) for node in cluster.nodes):
            print("stopping", file=sys.stderr)
        for pid in brought_back.values():
            end_process(pid, signal.SIGTERM)
        cluster.stop()
        for node, pid in brought_back.items():
            await_end(cluster.node_dir(node), pid, STOP_TIMEOUT_S)


def _by_hand(cluster: Cluster) -> dict[int, int]:
    """Nodes that run though we do not run them (any more), and their process ids."""
    found = {}
    for node in cluster.nodes:
        if cluster.pid(node) is None:
            pid = node_pid(cluster.node_dir(node))
            if pid is not None:
                found[node] = pid
    return found


def _on_signal(number: int, stopping: list[int]) -> None:
    if stopping and number == signal.SIGINT:
        os._exit(128 + number)  # the nodes stop when their standard input ends
    stopping.append(number)


def _run_nodes(cluster: Cluster, stopping: list[int]) -> None:
    """Start all, then look after them until somebody asks to stop."""
    began = time.monotonic()
    for node in cluster.begin_start():
        if stopping:
            return
        address = cluster.await_ready(node)
        took_s = time.monotonic() - began
        log = cluster.node_dir(node) / "node.log"
        print(
            f"node {node}   {address}   pid {cluster.pid(node)}   ready after {took_s:.1f} s"
            f"   log {log}",
            file=sys.stderr,
        )
    print(
        f"barnabas cluster ready: {cluster.bootstrap_servers}"
        f" (cluster {cluster.cluster_id}, {len(cluster.nodes)} nodes, data {cluster.data_dir})",
        flush=True,
    )
    users = Cluster.users_in(cluster.data_dir)
    if users is not None:
        file = shlex.quote(str(_client_file(cluster, next(iter(users)))))
        print(
            f"only who logs in is let in: barnabas topic list --bootstrap"
            f" {cluster.bootstrap_servers} --client-config {file}",
            file=sys.stderr,
        )
    if sys.stderr.isatty():
        print(
            "Ctrl-C stops all nodes; the data stays. In another terminal:"
            " barnabas cluster kill 2, barnabas cluster restart 2",
            file=sys.stderr,
        )
    _look_after(cluster, stopping)


def _client_file(cluster: Cluster, user: str) -> Path:
    """How to connect, for `--client-config` of our commands and `--command-config` of Kafka's."""
    path = cluster.data_dir / "client.properties"
    config = cluster.client_config(user, library="java")
    del config["bootstrap.servers"]  # each command names it
    write_private(path, properties_text(config))
    return path


def _look_after(cluster: Cluster, stopping: list[int]) -> None:
    """Tell who ends and who is back, until somebody asks to stop."""
    running = set(cluster.nodes)
    while not stopping:
        time.sleep(_LOOK_S)
        by_hand = _by_hand(cluster)
        now_running = {node for node in cluster.nodes if cluster.pid(node)} | by_hand.keys()
        for node in sorted(running - now_running):
            print(
                f"node {node} has ended; bring it back with `barnabas cluster restart {node}`",
                file=sys.stderr,
            )
        for node in sorted(now_running - running):
            print(f"node {node} is back   pid {by_hand.get(node)}", file=sys.stderr)
        running = now_running
