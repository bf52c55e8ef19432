"""`barnabas cluster`: its actions and their flags. What they do is imported when one is run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from server.commands.outcomes import add_json


def add_commands(commands: Any) -> None:
    """Add `cluster` to the parser."""
    cluster = commands.add_parser(
        "cluster",
        help="run several nodes on this machine",
        description="Run a cluster on this machine, for a laptop: real nodes, each in a process of"
        " its own. For separate machines see `barnabas format` and docs/deployment.md.",
    )
    actions = cluster.add_subparsers(metavar="ACTION", required=True)
    _add_start(actions)
    _add_status(actions)
    for name, text in (
        ("kill", "end a node at once (SIGKILL), as a crash would"),
        ("stop", "stop a node cleanly: its leaderships move to the others first; without N, all"),
        ("restart", "stop a node if it runs, and start it"),
    ):
        action = actions.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}. For a cluster that `barnabas cluster start`"
            " runs on this machine.",
        )
        many = "?" if name == "stop" else None
        action.add_argument("node", metavar="N", type=_count, nargs=many, help="the node's number")
        _add_data_dir(action)
        action.set_defaults(run=_on_node, action=name)


def _add_start(actions: Any) -> None:
    start = actions.add_parser(
        "start",
        help="start all nodes and run until Ctrl-C",
        description="Start a cluster and run it until SIGTERM or Ctrl-C, which stops all nodes"
        " cleanly. The first start prepares the directory; the next one finds the same cluster in"
        " it, on the same ports. Each node's log is in DIR/node-N/node.log.",
    )
    start.add_argument("--nodes", metavar="N", type=_count, default=3, help="how many (3)")
    _add_data_dir(start)
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
    start.add_argument(
        "--secure",
        action="store_true",
        help="encrypt all of it, and let in one user only, whose password is made at the first"
        " start; DIR/client.properties is how to connect, for --client-config",
    )
    start.set_defaults(run=_start)


def _add_status(actions: Any) -> None:
    from server.commands.client_config import add_client_config

    status = actions.add_parser(
        "status",
        help="the nodes of a cluster, its quorum, and what is missing",
        description="Ask every node of a cluster, beginning with any broker, who is there and what"
        " is missing. Exit code 0 if nothing is, else 1.",
    )
    status.add_argument(
        "--bootstrap", "--bootstrap-server", metavar="HOST:PORT[,...]", default="127.0.0.1:9092"
    )
    status.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=5.0)
    add_client_config(status)
    add_json(status)
    status.set_defaults(run=_status)


def _add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        type=Path,
        default=Path("barnabas-cluster"),
        help="where the nodes live (./barnabas-cluster)",
    )


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
    from barnabas.cluster_run import run

    config = {}
    for pair in arguments.set:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            print(f"barnabas: --set {pair!r}: expected KEY=VALUE", file=sys.stderr)
            return 2
        config[key.strip()] = value
    return run(arguments.data_dir, arguments.nodes, arguments.base_port, config, arguments.secure)


def _on_node(arguments: argparse.Namespace) -> int:
    from barnabas.cluster_nodes import act, stop_all

    if arguments.node is None:
        return stop_all(arguments.data_dir)
    return act(arguments.action, arguments.data_dir, arguments.node)


def _status(arguments: argparse.Namespace) -> int:
    from server.commands.client_config import client_config
    from server.commands.cluster_status import ask
    from server.commands.health import Unhealthy
    from server.commands.main import addresses
    from server.commands.outcomes import print_json

    try:
        status = ask(addresses(arguments.bootstrap), arguments.timeout, client_config(arguments))
    except Unhealthy as error:
        print(f"barnabas: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print_json(status.document())
    else:
        print("\n".join(status.lines()))
    return 0 if status.is_whole else 1
