"""`barnabas topic`: list, describe, create, alter and delete topics."""

from __future__ import annotations

import argparse
import re
from typing import Any
from uuid import UUID

from barnabas.client_commands.connection import (
    TOPIC_LIST,
    admin_client,
    count,
    finish,
    key_values,
    refuse,
)
from barnabas.client_commands.output import print_table
from server.commands.outcomes import EXIT_OK, EXIT_USAGE, UserError, print_json
from wire.primitives import uuid_to_text

_UNKNOWN_TOPIC = 3
_TOPIC_EXISTS = 36
_REFUSED = re.compile(r"\[Error (\d+)\] \w+(?:: (.*))?", re.DOTALL)
"""An answer to AlterConfigs in kafka-python's text: the error, its class, the broker's words."""


def add_commands(commands: Any) -> None:
    """Add `topic` to the parser."""
    topic = commands.add_parser("topic", help="list, describe, create, alter and delete topics")
    actions = topic.add_subparsers(metavar="ACTION", required=True)
    found = actions.add_parser("list", help="the topics of a cluster")
    found.add_argument("--internal", action="store_true", help="internal topics too")
    finish(found, _list)

    described = actions.add_parser("describe", help="partitions, replicas, and changed configs")
    described.add_argument("topics", metavar="TOPIC", nargs="+")
    finish(described, _describe)

    created = actions.add_parser("create", help="create a topic")
    created.add_argument("topics", metavar="TOPIC", nargs="+")
    created.add_argument("--partitions", metavar="N", type=count, help="(the broker's default)")
    created.add_argument(
        "--replication-factor", metavar="N", type=count, help="(the broker's default)"
    )
    _add_config(created)
    created.add_argument("--if-not-exists", action="store_true", help="an existing one is fine")
    finish(created, _create)

    altered = actions.add_parser("alter", help="more partitions, other configs")
    altered.add_argument("topic", metavar="TOPIC")
    altered.add_argument("--partitions", metavar="N", type=count, help="how many in all")
    _add_config(altered)
    altered.add_argument(
        "--delete-config",
        metavar="KEY",
        action="append",
        default=[],
        help="back to the default; may be given again",
    )
    finish(altered, _alter)

    deleted = actions.add_parser("delete", help="delete topics and all their records")
    deleted.add_argument("topics", metavar="TOPIC", nargs="+")
    deleted.add_argument("--if-exists", action="store_true", help="a missing one is fine")
    finish(deleted, _delete)


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a config of the topic; may be given again",
    )


def _list(arguments: argparse.Namespace) -> int:
    with admin_client(arguments) as admin:
        found = admin.describe_topics()
    topics = [
        {
            "name": topic["name"],
            "partitions": len(topic["partitions"]),
            "replicas": max((len(p["replica_nodes"]) for p in topic["partitions"]), default=0),
            "internal": topic["is_internal"],
        }
        for topic in sorted(found, key=lambda topic: str(topic["name"]))
        if arguments.internal or not topic["is_internal"]
    ]
    if arguments.json:
        print_json(topics)
    else:
        rows = [[topic["name"], topic["partitions"], topic["replicas"]] for topic in topics]
        print_table(["TOPIC", "PARTITIONS", "REPLICAS"], rows)
    return EXIT_OK


def _describe(arguments: argparse.Namespace) -> int:
    from kafka.admin import ConfigResource

    with admin_client(arguments) as admin:
        found = admin.describe_topics(arguments.topics)
        for topic in found:
            refuse(topic["error_code"], None, f"topic {topic['name']!r}", TOPIC_LIST)
        resources = [ConfigResource("TOPIC", name) for name in arguments.topics]
        configs = admin.describe_configs(resources)["topic"]
    topics = [_topic(topic, configs[topic["name"]]) for topic in found]
    if arguments.json:
        print_json(topics)
        return EXIT_OK
    for topic in topics:
        changed = " ".join(f"{key}={value}" for key, value in topic["configs"].items())
        print(f"topic {topic['name']}  id {topic['id']}  configs {changed or '-'}")
        rows = [
            [p["partition"], p["leader"], p["leader_epoch"], p["replicas"], p["isr"], p["offline"]]
            for p in topic["partitions"]
        ]
        names = ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC", "OFFLINE"]
        print_table(names, rows)
    return EXIT_OK


def _topic(topic: dict[str, Any], configs: dict[str, Any]) -> dict[str, Any]:
    partitions = sorted(topic["partitions"], key=lambda p: int(p["partition_index"]))
    return {
        "name": topic["name"],
        "id": uuid_to_text(UUID(str(topic["topic_id"])).bytes),  # Kafka's way
        "internal": topic["is_internal"],
        "configs": {key: configs[key]["value"] for key in sorted(configs)},
        "partitions": [
            {
                "partition": p["partition_index"],
                "leader": p["leader_id"] if p["leader_id"] >= 0 else None,
                "leader_epoch": p["leader_epoch"],
                "replicas": p["replica_nodes"],
                "isr": p["isr_nodes"],
                "offline": p["offline_replicas"],
            }
            for p in partitions
        ],
    }


def _create(arguments: argparse.Namespace) -> int:
    wanted = {
        "num_partitions": arguments.partitions or -1,
        "replication_factor": arguments.replication_factor or -1,
        "configs": key_values(arguments.config, "--config"),
    }
    with admin_client(arguments) as admin:
        answer = admin.create_topics(dict.fromkeys(arguments.topics, wanted), raise_errors=False)
        done = [topic["name"] for topic in answer["topics"] if topic["error_code"] == 0]
        admin.wait_for_topics(done, int(arguments.timeout * 1000))
    _say(arguments, "created", done)
    for topic in answer["topics"]:
        exists = topic["error_code"] == _TOPIC_EXISTS
        if not (exists and arguments.if_not_exists):
            hint = "--if-not-exists takes it as it is" if exists else ""
            refuse(topic["error_code"], topic["error_message"], f"topic {topic['name']!r}", hint)
    return EXIT_OK


def _alter(arguments: argparse.Namespace) -> int:
    configs: dict[str, Any] = dict(key_values(arguments.config, "--config"))
    configs |= dict.fromkeys(arguments.delete_config, ("DELETE", None))
    if not configs and arguments.partitions is None:
        raise UserError("nothing to alter: --partitions, --config or --delete-config", EXIT_USAGE)
    name = arguments.topic
    with admin_client(arguments) as admin:
        for topic in admin.describe_topics([name]):
            refuse(topic["error_code"], None, f"topic {name!r}", TOPIC_LIST)
        if configs:
            alter_configs(admin, "TOPIC", name, configs)
        if arguments.partitions is not None:
            answer = admin.create_partitions({name: arguments.partitions}, raise_errors=False)
            for result in answer.results:
                refuse(result.error_code, result.error_message, f"topic {name!r}")
    return _say(arguments, "altered", [name])


def alter_configs(admin: Any, kind: str, name: str, configs: dict[str, Any]) -> None:
    """Set configs of a topic or a broker, or with ("DELETE", None) take them away.

    Raises UserError.
    """
    from kafka.admin import ConfigResource

    resource = ConfigResource(kind, name, configs)
    answer = admin.alter_configs([resource], raise_on_unknown=False)
    for results in answer.values():
        for result in results.values():
            if result != "OK":
                told = _REFUSED.fullmatch(result)
                assert told is not None, result
                refuse(int(told[1]), told[2], f"{kind.lower()} {name!r}")


def _delete(arguments: argparse.Namespace) -> int:
    with admin_client(arguments) as admin:
        answer = admin.delete_topics(arguments.topics, raise_errors=False)
    done = [topic["name"] for topic in answer["topics"] if topic["error_code"] == 0]
    _say(arguments, "deleted", done)
    for topic in answer["topics"]:
        if not (topic["error_code"] == _UNKNOWN_TOPIC and arguments.if_exists):
            detail = topic.get("error_message")
            refuse(topic["error_code"], detail, f"topic {topic['name']!r}", TOPIC_LIST)
    return EXIT_OK


def _say(arguments: argparse.Namespace, done: str, topics: list[str]) -> int:
    if arguments.json:
        print_json({done: topics})
    else:
        for name in topics:
            print(f"{done} topic {name}")
    return EXIT_OK
