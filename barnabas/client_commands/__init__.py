"""Commands that are clients of a cluster: topic, produce, consume, group, config, acl, user,
doctor; and completion, which knows them all.

They speak to any Kafka-compatible cluster, through kafka-python; nothing here knows the protocol.
kafka-python is imported when a command runs, never by `barnabas start` or `--help`.
"""

from __future__ import annotations

from typing import Any

from barnabas.client_commands import (
    acls,
    completion,
    configs,
    consume,
    doctor,
    groups,
    produce,
    topics,
    users,
)


def add_commands(commands: Any) -> None:
    """Add all of them to the parser."""
    for command in (topics, produce, consume, groups, configs, acls, users, doctor, completion):
        command.add_commands(commands)
