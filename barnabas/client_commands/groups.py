"""`barnabas group`: list, describe, lag, reset-offsets and delete consumer groups."""

from __future__ import annotations

import argparse
from typing import Any

from barnabas.client_commands import positions
from barnabas.client_commands.connection import TOPIC_LIST, admin_client, finish, refuse
from barnabas.client_commands.output import print_table
from server.commands.outcomes import EXIT_OK, EXIT_USAGE, UserError, print_json

_LAG_NAMES = ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG"]
_HAS_MEMBERS = "stop its members first"


def add_commands(commands: Any) -> None:
    """Add `group` to the parser."""
    group = commands.add_parser("group", help="consumer groups: lag, offsets, members")
    actions = group.add_subparsers(metavar="ACTION", required=True)
    finish(actions.add_parser("list", help="the groups of a cluster"), _list)
    for name, run, what in (
        ("describe", _describe, "state, members and what they read, and lag"),
        ("lag", _lag, "how far a group is behind, partition by partition"),
    ):
        command = actions.add_parser(name, help=what)
        command.add_argument("group", metavar="GROUP")
        finish(command, run)

    reset = actions.add_parser(
        "reset-offsets",
        help="move where a group goes on",
        description="Commit other offsets for a group that has no members.",
    )
    reset.add_argument("group", metavar="GROUP")
    reset.add_argument(
        "--topic",
        metavar="TOPIC[:N,N]",
        action="append",
        help="only this topic, or these partitions of it; may be given again (all it committed)",
    )
    reset.add_argument(
        "--to", required=True, metavar="POSITION", type=positions.parse, help=positions.EXPECTED
    )
    reset.add_argument("--dry-run", action="store_true", help="only say what would happen")
    finish(reset, _reset)

    delete = actions.add_parser("delete", help="delete groups and their offsets")
    delete.add_argument("groups", metavar="GROUP", nargs="+")
    finish(delete, _delete)


def _list(arguments: argparse.Namespace) -> int:
    with admin_client(arguments) as admin:
        found = sorted(admin.list_groups(), key=lambda group: str(group["group_id"]))
    groups = [
        {
            "group": group["group_id"],
            "state": group.get("group_state"),
            "type": group.get("group_type"),
            "protocol": group["protocol_type"],
        }
        for group in found
    ]
    if arguments.json:
        print_json(groups)
    else:
        rows = [[group["group"], group["state"], group["type"]] for group in groups]
        print_table(["GROUP", "STATE", "TYPE"], rows)
    return EXIT_OK


def _describe(arguments: argparse.Namespace) -> int:
    with admin_client(arguments) as admin:
        kind, state, members = _found(admin, arguments.group)
        lag = _lag_of(admin, arguments.group, members)
    if arguments.json:
        answer = {"group": arguments.group, "state": state, "members": members, "lag": lag}
        print_json(answer)
        return EXIT_OK
    count = f"not told of {kind} groups" if members is None else len(members)
    print(f"group {arguments.group}  state {state}  members {count}")
    if members:
        print_table(
            ["MEMBER", "CLIENT", "HOST", "PARTITIONS"],
            [[m["member"], m["client"], m["host"], m["partitions"]] for m in members],
        )
    print_table(_LAG_NAMES, [list(row.values()) for row in lag])
    return EXIT_OK


def _member(described: dict[str, Any]) -> dict[str, Any]:
    return {
        "member": described["member_id"],
        "client": described["client_id"],
        "host": described["client_host"],
        "partitions": _assigned(described.get("member_assignment")),
    }


def _found(admin: Any, group: str) -> tuple[str, str | None, list[dict[str, Any]] | None]:
    """Type, state and members of a group; kafka-python tells the members of classic groups only:
    it would hear of others that they are dead. Raises UserError."""
    listed = _listed(admin, group)
    kind = str(listed.get("group_type") or "classic").lower()
    if kind != "classic":
        return kind, listed.get("group_state"), None
    found = admin.describe_groups([group])[group]
    return kind, found["group_state"], [_member(one) for one in found["members"]]


def _assigned(assignment: Any) -> list[str]:
    topics = assignment.get("assigned_partitions", []) if isinstance(assignment, dict) else []
    return [f"{one['topic']}:{number}" for one in topics for number in one["partitions"]]


def _lag(arguments: argparse.Namespace) -> int:
    with admin_client(arguments) as admin:
        _kind, _state, members = _found(admin, arguments.group)
        lag = _lag_of(admin, arguments.group, members)
    if arguments.json:
        total = sum(row["lag"] or 0 for row in lag)
        print_json({"group": arguments.group, "lag": total, "partitions": lag})
    else:
        print_table(_LAG_NAMES, [list(row.values()) for row in lag])
    return EXIT_OK


def _listed(admin: Any, group: str) -> dict[str, Any]:
    """What the list of groups says of one. Raises UserError for a group nobody knows, which Kafka
    describes as dead."""
    for found in admin.list_groups():
        if found["group_id"] == group:
            return dict(found)
    raise UserError(f"no group {group!r}: `barnabas group list` shows what is there")


def _lag_of(admin: Any, group: str, members: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """A row for each partition that has a committed offset, or a member, as in Kafka's
    ConsumerGroupCommand: where nothing was committed nobody knows how much is to be read."""
    from kafka import TopicPartition
    from kafka.admin import OffsetSpec

    committed = {p: place.offset for p, place in admin.list_group_offsets(group)[group].items()}
    assigned = (text.rpartition(":") for one in members or [] for text in one["partitions"])
    known = {*committed, *(TopicPartition(topic, int(number)) for topic, _, number in assigned)}
    ends = _offsets(admin, dict.fromkeys(known, OffsetSpec.LATEST))
    return [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "committed": committed.get(partition),
            "end": ends[partition],
            "lag": _behind(committed.get(partition), ends[partition]),
        }
        for partition in sorted(ends)
    ]


def _behind(committed: int | None, end: int) -> int | None:
    return None if committed is None else max(0, end - committed)


def _offsets(admin: Any, wanted: dict[Any, Any]) -> dict[Any, int]:
    """Offsets of those partitions whose topic is still there."""
    if not wanted:
        return {}
    topics = {topic["name"] for topic in admin.describe_topics() if topic["error_code"] == 0}
    there = {partition: spec for partition, spec in wanted.items() if partition.topic in topics}
    found = admin.list_partition_offsets(there) if there else {}
    return {partition: place.offset for partition, place in found.items()}


def _reset(arguments: argparse.Namespace) -> int:
    from kafka.structs import OffsetAndMetadata

    with admin_client(arguments) as admin:
        before = {p: o.offset for p, o in _committed(admin, arguments.group).items()}
        wanted = _wanted(admin, arguments.topic) if arguments.topic else sorted(before)
        if not wanted:
            raise UserError(
                f"group {arguments.group!r} committed nothing: name what to set with --topic"
            )
        after = _places(admin, wanted, arguments.to)
        if not after:
            raise UserError(
                f"the topics that group {arguments.group!r} committed are not there any more: name"
                " what to set with --topic"
            )
        if not arguments.dry_run:
            places = {p: OffsetAndMetadata(offset, "", None) for p, offset in after.items()}
            answer = admin.alter_group_offsets(arguments.group, places)
            for error in answer.values():
                refuse(error.errno, None, f"group {arguments.group!r}", _HAS_MEMBERS)
    rows = [
        {"topic": p.topic, "partition": p.partition, "before": before.get(p), "after": offset}
        for p, offset in sorted(after.items())
    ]
    if arguments.json:
        print_json({"group": arguments.group, "dry_run": arguments.dry_run, "partitions": rows})
    else:
        names = ["TOPIC", "PARTITION", "BEFORE", "AFTER"]
        print_table(names, [list(row.values()) for row in rows])
    return EXIT_OK


def _committed(admin: Any, group: str) -> dict[Any, Any]:
    return dict(admin.list_group_offsets(group)[group])


def _wanted(admin: Any, named: list[str]) -> list[Any]:
    """The partitions of TOPIC[:N,N]. Raises UserError."""
    from kafka import TopicPartition

    wanted = []
    for text in named:
        topic, _colon, numbers = text.partition(":")
        (found,) = admin.describe_topics([topic])
        refuse(found["error_code"], None, f"topic {topic!r}", TOPIC_LIST)
        there = {int(p["partition_index"]) for p in found["partitions"]}
        chosen = numbers.split(",") if numbers else sorted(map(str, there))
        for number in chosen:
            if not number.isdecimal() or int(number) not in there:
                raise UserError(
                    f"--topic {text!r}: {topic!r} has the partitions 0 to {max(there)}", EXIT_USAGE
                )
            wanted.append(TopicPartition(topic, int(number)))
    return wanted


def _places(admin: Any, wanted: list[Any], to: positions.Position) -> dict[Any, int]:
    from kafka.admin import OffsetSpec

    begins = _offsets(admin, dict.fromkeys(wanted, OffsetSpec.EARLIEST))
    ends = _offsets(admin, dict.fromkeys(wanted, OffsetSpec.LATEST))
    times = _offsets(admin, dict.fromkeys(wanted, to.number)) if to.kind == "time" else {}
    at_time = {p: offset if offset >= 0 else None for p, offset in times.items()}
    return {p: positions.offset(to, begins[p], ends[p], at_time.get(p)) for p in begins}


def _delete(arguments: argparse.Namespace) -> int:
    with admin_client(arguments) as admin:
        for group in arguments.groups:
            _listed(admin, group)
        answers = admin.delete_groups(arguments.groups)
    done = [group for group, answer in answers.items() if answer == "OK"]
    if arguments.json:
        print_json({"deleted": done})
    else:
        for group in done:
            print(f"deleted group {group}")
    refused = {group: answer for group, answer in answers.items() if answer != "OK"}
    if refused:
        hint = f"; {_HAS_MEMBERS}" if "NonEmptyGroupError" in refused.values() else ""
        each = "; ".join(f"group {group!r}: {answer}" for group, answer in refused.items())
        raise UserError(each + hint)
    return EXIT_OK
