"""`barnabas format` and `barnabas random-uuid`: what a cluster's nodes need before they start.

Flags are those of `kafka-storage format`, short ones too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from server.commands.outcomes import EXIT_OK, EXIT_USAGE, UserError


def add_commands(commands: Any) -> None:
    """Add both commands to the parser."""
    format_ = commands.add_parser(
        "format",
        help="prepare a node's directories before its first start in a cluster",
        description="Prepare the log directories of one node, as kafka-storage format does. Needed"
        " on each node of a cluster, with the same cluster id; a node alone prepares its own.",
        epilog="Three nodes with controller.quorum.voters: run `barnabas random-uuid` once, then"
        " `barnabas format --cluster-id ID --config server.properties` on each.",
    )
    format_.add_argument(
        "--config", "-c", metavar="FILE", type=Path, required=True, help="the server.properties"
    )
    format_.add_argument(
        "--cluster-id",
        "-t",
        metavar="ID",
        required=True,
        help="the cluster's id, the same on every node (`barnabas random-uuid` makes one)",
    )
    first = format_.add_mutually_exclusive_group()
    first.add_argument(
        "--standalone",
        "-s",
        action="store_true",
        help="this controller is the first and only voter; others are added later",
    )
    first.add_argument(
        "--initial-controllers",
        "-I",
        metavar="ID@HOST:PORT:DIRECTORY-ID,...",
        help="the first voters, the same on every node",
    )
    first.add_argument(
        "--no-initial-controllers",
        "-N",
        action="store_true",
        help="this node joins a quorum that exists",
    )
    _add_contents(format_)
    # For Broker and Cluster (barnabas.process), as --then-remove of `start`.
    format_.add_argument("--starter", metavar="PID", type=int, help=argparse.SUPPRESS)
    format_.add_argument("--then-remove", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    format_.set_defaults(run=_format)

    uuid = commands.add_parser("random-uuid", help="print a fresh id, for a cluster or a directory")
    uuid.set_defaults(run=_random_uuid)


def _add_contents(format_: argparse.ArgumentParser) -> None:
    """The flags that say what is written, beside who votes."""
    format_.add_argument(
        "--ignore-formatted",
        "-g",
        action="store_true",
        help="pass over directories that are formatted already",
    )
    format_.add_argument(
        "--release-version", "-r", metavar="VERSION", help="metadata.version to start with, as 4.3"
    )
    format_.add_argument(
        "--feature",
        "-f",
        metavar="NAME=LEVEL",
        action="append",
        default=[],
        help="the level of one feature to start with; may be given again",
    )
    format_.add_argument(
        "--add-scram",
        "-S",
        metavar="MECHANISM=[name=...,password=...]",
        action="append",
        default=[],
        help="a user that may log in from the first start on; may be given again. Anybody who can"
        " list processes sees it: `-` reads such lines from standard input",
    )
    format_.add_argument(
        "--add-acl",
        metavar="JSON",
        action="append",
        default=[],
        help="an access rule to start with, such as"
        ' {"principal": "User:alice", "operation": "READ", "resource_type": "TOPIC",'
        ' "resource_name": "orders"}; may be given again',
    )


def _format(arguments: argparse.Namespace) -> int:
    try:
        return _format_node(arguments)
    finally:
        if arguments.then_remove is not None and os.getppid() != arguments.starter:
            # Who started us is gone, and can remove its temporary directory no more.
            shutil.rmtree(arguments.then_remove, ignore_errors=True)


def _format_node(arguments: argparse.Namespace) -> int:
    from server.config.kafka_config import KafkaConfig, load_properties
    from server.node.format import FormatError, FormatOptions, format_node
    from server.node.shared_server import new_uuid
    from storage.directories.log_dirs import LogDirError

    if not re.fullmatch(r"[A-Za-z0-9_=+/.-]{1,64}", arguments.cluster_id):
        raise UserError(
            f"--cluster-id {arguments.cluster_id!r}: expected such as 5L6g3nShT-eMCtK--X86sw",
            EXIT_USAGE,
        )
    options = FormatOptions(
        arguments.cluster_id,
        standalone=arguments.standalone,
        initial_controllers=arguments.initial_controllers,
        no_initial_controllers=arguments.no_initial_controllers,
        ignore_formatted=arguments.ignore_formatted,
        release_version=arguments.release_version,
        features=arguments.feature,
        add_scram=_scram_arguments(arguments.add_scram),
        add_acl=arguments.add_acl,
    )
    config = KafkaConfig(load_properties(arguments.config))
    try:
        lines = format_node(config, options, new_uuid, time.time_ns() // 1_000_000)
    except (FormatError, LogDirError) as error:
        raise UserError(str(error)) from None
    except OSError as error:
        where = error.filename or ", ".join(map(str, config.log_dirs()))  # a full disk names none
        raise UserError(f"cannot format {where}: {error.strerror}") from None
    print("\n".join(lines))
    return EXIT_OK


def _scram_arguments(given: list[str]) -> list[str]:
    """The arguments; for `-` the lines of standard input."""
    found: list[str] = []
    for argument in given:
        found += [line for line in sys.stdin if line.strip()] if argument == "-" else [argument]
    return found


def _random_uuid(_arguments: argparse.Namespace) -> int:
    from server.node.shared_server import new_uuid
    from wire.primitives import uuid_to_text

    print(uuid_to_text(new_uuid()))
    return 0
