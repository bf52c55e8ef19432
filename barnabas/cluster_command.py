"""`barnabas cluster start`: a cluster in one terminal, for a laptop; `barnabas cluster status`."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from barnabas.cluster import Cluster

_LOOK_S = 0.2
_BASE_PORT = 9092


def add_commands(commands: Any) -> None:
    """Add `cluster` to the parser."""
    cluster = commands.add_parser(
        "cluster",
        help="run several nodes on this machine",
        description="Run a cluster on this machine, for a laptop: real nodes, each in a process of"
        " its own. For separate machines see `barnabas format` and docs/deployment.md.",
    )
    actions = cluster.add_subparsers(metavar="ACTION", required=True)
    start = actions.add_parser(
        "start",
        help="start all nodes and run until Ctrl-C",
        description="Start a cluster and run it until SIGTERM or Ctrl-C, which stops all nodes"
        " cleanly. The first start prepares the directory; the next one finds the same cluster in"
        " it, on the same ports. Each node's log is in DIR/node-N/node.log.",
    )
    start.add_argument("--nodes", metavar="N", type=_count, default=3, help="how many (3)")
    start.add_argument(
        "--data-dir",
        metavar="DIR",
        type=Path,
        default=Path("barnabas-cluster"),
        help="where the nodes live (./barnabas-cluster)",
    )
    start.add_argument(
        "--base-port",
        metavar="PORT",
        type=_port,
        help="clients reach node 1 here, node 2 at the next port, and so on (9092, or as before)",
    )
    start.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set one property of every node; may be given again",
    )
    start.set_defaults(run=_start)

    status = actions.add_parser(
        "status",
        help="the nodes of a cluster, its quorum, and what is missing",
        description="Ask every node of a cluster, beginning with any broker, who is there and what"
        " is missing. Exit code 0 if nothing is, else 1.",
    )
    status.add_argument("--bootstrap", metavar="HOST:PORT[,...]", default="127.0.0.1:9092")
    status.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=5.0)
    status.set_defaults(run=_status)


def _count(text: str) -> int:
    return _number(text, 99)


def _port(text: str) -> int:
    return _number(text, 65_000)


def _seconds(text: str) -> float:
    from server.commands.main import seconds

    return seconds(text)


def _number(text: str, largest: int) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= largest):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 to {largest}")
    return int(text)


def _start(arguments: argparse.Namespace) -> int:
    from barnabas.process import BrokerError
    from server.commands.main import on_stop_signals

    config = {}
    for pair in arguments.set:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            print(f"barnabas: --set {pair!r}: expected KEY=VALUE", file=sys.stderr)
            return 2
        config[key.strip()] = value
    stopping: list[int] = []
    on_stop_signals(lambda number, _frame: _on_signal(number, stopping))
    try:
        with _locked(arguments.data_dir):
            _start_cluster(arguments, config, stopping)
    except BrokerError as error:
        print(f"barnabas: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"barnabas: {error.filename or arguments.data_dir} cannot be used: {error.strerror}"
            " (--data-dir chooses the directory)",
            file=sys.stderr,
        )
        return 1
    return 0


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep out a second command, which would write the first one's files anew."""
    from barnabas.process import BrokerError

    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BrokerError(
                f"{directory} is in use by another `barnabas cluster start`: stop that one, or use"
                " another directory (--data-dir)"
            ) from None
        yield


def _start_cluster(
    arguments: argparse.Namespace, config: dict[str, str], stopping: list[int]
) -> None:
    from barnabas.cluster import Cluster

    base_port = arguments.base_port
    if base_port is None and not Cluster.is_in(arguments.data_dir):
        base_port = _BASE_PORT
    cluster = Cluster(
        arguments.nodes, arguments.data_dir, config, proxied=False, base_port=base_port
    )
    try:
        _run(cluster, stopping)
    finally:
        if any(cluster.pid(node) for node in cluster.nodes):
            print("stopping", file=sys.stderr)
        cluster.stop()


def _on_signal(number: int, stopping: list[int]) -> None:
    if stopping and number == signal.SIGINT:
        os._exit(128 + number)  # the nodes stop when their standard input ends
    stopping.append(number)


def _run(cluster: Cluster, stopping: list[int]) -> None:
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
    if sys.stderr.isatty():
        print(
            "Ctrl-C stops all nodes; the data stays. To see one die: kill -9 a pid above, then\n"
            f"  barnabas start --config {cluster.node_dir(1)}/server.properties\n"
            "with that node's number brings it back.",
            file=sys.stderr,
        )
    running = set(cluster.nodes)
    while not stopping:
        time.sleep(_LOOK_S)
        for node in sorted(running):
            if cluster.pid(node) is None:
                running.discard(node)
                print(
                    f"node {node} has ended; bring it back with"
                    f" `barnabas start --config {cluster.node_dir(node)}/server.properties`",
                    file=sys.stderr,
                )


def _status(arguments: argparse.Namespace) -> int:
    from barnabas.client_commands.connection import addresses
    from server.commands.cluster_status import ask
    from server.commands.health import Unhealthy

    try:
        status = ask(addresses(arguments.bootstrap), arguments.timeout)
    except Unhealthy as error:
        print(f"barnabas: {error}", file=sys.stderr)
        return 1
    print("\n".join(status.lines))
    return 0 if status.is_whole else 1
