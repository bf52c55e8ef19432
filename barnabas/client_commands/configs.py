"""`barnabas config`: read and change configs of topics, brokers and groups."""

from __future__ import annotations

import argparse
from typing import Any

from barnabas.client_commands.connection import (
    TOPIC_LIST,
    add_flags,
    admin_client,
    key_values,
    refuse,
)
from barnabas.client_commands.output import print_table
from barnabas.client_commands.topics import alter_configs
from server.commands.outcomes import EXIT_OK, EXIT_USAGE, UserError, print_json


def add_commands(commands: Any) -> None:
    """Add `config` to the parser."""
    config = commands.add_parser(
        "config", help="read and change configs of topics, brokers and groups"
    )
    actions = config.add_subparsers(metavar="ACTION", required=True)
    get = actions.add_parser("get", help="what was changed; --all for every config")
    _add_resource(get)
    get.add_argument(
        "keys", metavar="KEY", nargs="*", default=[], help="only these, changed or not"
    )
    get.add_argument("--all", action="store_true", help="defaults too")
    add_flags(get)
    get.set_defaults(run=_get)

    change = actions.add_parser("set", help="change configs while the cluster runs")
    _add_resource(change)
    change.add_argument("pairs", metavar="KEY=VALUE", nargs="*", default=[])
    change.add_argument(
        "--delete",
        metavar="KEY",
        action="append",
        default=[],
        help="back to the default; may be given again",
    )
    add_flags(change)
    change.set_defaults(run=_set)


def _add_resource(command: argparse.ArgumentParser) -> None:
    command.add_argument("kind", choices=["topic", "broker", "group"])
    command.add_argument(
        "name", metavar="NAME", help="a topic's name, a broker's node.id, or a group's id"
    )


def _check(arguments: argparse.Namespace, admin: Any) -> None:
    """Raise UserError unless the topic or the broker is there. A group may come later."""
    if arguments.kind == "group":
        return
    if arguments.kind == "topic":
        for topic in admin.describe_topics([arguments.name]):
            refuse(topic["error_code"], None, f"topic {arguments.name!r}", TOPIC_LIST)
        return
    brokers = [str(broker["broker_id"]) for broker in admin.describe_cluster()["brokers"]]
    if arguments.name not in brokers:
        raise UserError(f"no broker {arguments.name!r}: the brokers are {', '.join(brokers)}")


def _get(arguments: argparse.Namespace) -> int:
    from kafka.admin import ConfigResource

    kind, name = arguments.kind, arguments.name
    with admin_client(arguments) as admin:
        _check(arguments, admin)
        resource = ConfigResource(kind.upper(), name, arguments.keys or None)
        every = arguments.all or bool(arguments.keys)
        answer = admin.describe_configs([resource], config_filter="all" if every else "modified")
    found = answer[kind][name]
    if unknown := [key for key in arguments.keys if key not in found]:
        raise UserError(f"{kind} {name!r} has no config {unknown[0]!r}")
    configs = [
        {"key": key, "value": found[key]["value"], "source": found[key]["config_source"].lower()}
        for key in sorted(found)
    ]
    if arguments.json:
        print_json({"type": kind, "name": name, "configs": configs})
    else:
        print_table(["KEY", "VALUE", "SOURCE"], [list(config.values()) for config in configs])
    return EXIT_OK


def _set(arguments: argparse.Namespace) -> int:
    configs: dict[str, Any] = dict(key_values(arguments.pairs, "config set"))
    configs |= dict.fromkeys(arguments.delete, ("DELETE", None))
    if not configs:
        raise UserError("nothing to set: give KEY=VALUE, or --delete KEY", EXIT_USAGE)
    kind, name = arguments.kind, arguments.name
    with admin_client(arguments) as admin:
        _check(arguments, admin)
        alter_configs(admin, kind.upper(), name, configs)
    if arguments.json:
        print_json({"type": kind, "name": name, "set": sorted(configs)})
    else:
        print(f"set {', '.join(sorted(configs))} of {kind} {name}")
    return EXIT_OK
