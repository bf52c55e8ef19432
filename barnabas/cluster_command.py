"""`barnabas cluster start`: a cluster in one terminal, for a laptop; `barnabas cluster status`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from barnabas.cluster import Cluster

_LOOK_S = 0.2


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
        default=9092,
        help="clients reach node 1 here, node 2 at the next port, and so on (9092)",
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
        description="Ask any broker of a cluster who is there and what is missing. Exit code 0 if"
        " nothing is, else 1.",
    )
    status.add_argument("--bootstrap", metavar="HOST:PORT", default="127.0.0.1:9092")
    status.add_argument("--timeout", metavar="SECONDS", type=float, default=5.0)
    status.set_defaults(run=_status)


def _count(text: str) -> int:
    return _number(text, 99)


def _port(text: str) -> int:
    return _number(text, 65_000)


def _number(text: str, largest: int) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= largest):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 to {largest}")
    return int(text)


def _start(arguments: argparse.Namespace) -> int:
    from barnabas.cluster import Cluster
    from barnabas.process import BrokerError

    config = {}
    for pair in arguments.set:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            print(f"barnabas: --set {pair!r}: expected KEY=VALUE", file=sys.stderr)
            return 2
        config[key.strip()] = value
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: _on_signal(number, stopping))
    try:
        cluster = Cluster(
            arguments.nodes,
            arguments.data_dir,
            config,
            proxied=False,
            base_port=arguments.base_port,
        )
        try:
            _run(cluster, stopping)
        finally:
            print("stopping", file=sys.stderr)
            cluster.stop()
    except (BrokerError, OSError) as error:
        print(f"barnabas: {error}", file=sys.stderr)
        return 1
    return 0


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
    from server.cluster_status import ask
    from server.health import Unhealthy

    host, colon, port = arguments.bootstrap.rpartition(":")
    if not (colon and port.isascii() and port.isdigit()):
        print(f"barnabas: --bootstrap {arguments.bootstrap!r}: expected HOST:PORT", file=sys.stderr)
        return 2
    try:
        status = ask(host.strip("[]"), int(port), arguments.timeout)
    except Unhealthy as error:
        print(f"barnabas: {error}", file=sys.stderr)
        return 1
    print("\n".join(status.lines))
    return 0 if status.is_whole else 1
