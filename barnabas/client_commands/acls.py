"""`barnabas acl`: list, add and remove access rules.

The words are those of kafka-acls. A rule in JSON is what `barnabas format --add-acl` takes.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from barnabas.client_commands.connection import admin_client, finish
from barnabas.client_commands.output import print_table
from replication.metadata.acl_filter import CLUSTER_NAME
from server.commands.outcomes import EXIT_OK, EXIT_USAGE, UserError, print_json
from server.network.api import Operation, Resource

_SUPPORTED = {
    kind.name: tuple(one.name for one in kind.operations if one is not Operation.TWO_PHASE_COMMIT)
    for kind in Resource
}
"""Operations by resource type, but for ALL, and that one, which kafka-python lacks."""
_ROLES = {
    "producer": {
        "TOPIC": ("WRITE", "DESCRIBE", "CREATE"),
        "TRANSACTIONAL_ID": ("WRITE", "DESCRIBE"),
    },
    "consumer": {"TOPIC": ("READ", "DESCRIBE"), "GROUP": ("READ",)},
}
_PRINCIPAL = "a user's name, or TYPE:NAME; '*' is everybody"


class _Operations(tuple[str, ...]):
    """Choices of as many words as one likes; before Python 3.12 argparse asks for none, too."""

    def __contains__(self, words: object) -> bool:
        return words == [] or super().__contains__(words)


_OPERATIONS = _Operations(
    ["all", *dict.fromkeys(one.lower() for known in _SUPPORTED.values() for one in known)]
)


class Rule(NamedTuple):
    """One access rule; as a filter, None is any."""

    principal: str | None
    permission_type: str | None
    operation: str | None
    resource_type: str | None
    resource_name: str | None
    pattern_type: str | None
    host: str | None

    def __str__(self) -> str:
        prefixed = " (prefixed)" if self.pattern_type == "PREFIXED" else ""
        host = "" if self.host == "*" else f" from {self.host}"
        return (
            f"{self.permission_type} {self.principal} {self.operation} on {self.resource_type}"
            f" {self.resource_name}{prefixed}{host}"
        )


def add_commands(commands: Any) -> None:
    """Add `acl` to the parser."""
    acl = commands.add_parser("acl", help="access rules: who may do what")
    actions = acl.add_subparsers(metavar="ACTION", required=True)
    found = actions.add_parser("list", help="the access rules, or those that are asked for")
    _add_filter(found).add_argument(
        "--match",  # with `remove` it would take away more than what is named
        dest="pattern",
        action="store_const",
        const="MATCH",
        help="all rules that a resource of this name is under, those of '*' and prefixes too",
    )
    finish(found, _list)

    added = actions.add_parser(
        "add",
        help="let somebody do something, or forbid it",
        description="Add access rules: the principal may do these operations on these resources.",
    )
    added.add_argument("principal", metavar="PRINCIPAL", type=principal, help=_PRINCIPAL)
    _add_words(added)
    added.add_argument("--prefixed", action="store_true", help="the names are how names begin")
    added.add_argument("--deny", action="store_true", help="forbid it, whatever else allows it")
    finish(added, _add)

    removed = actions.add_parser(
        "remove",
        help="remove access rules",
        description="Remove the access rules that `barnabas acl list` shows with the same words.",
    )
    _add_filter(removed)
    removed.add_argument("--dry-run", action="store_true", help="only say what would happen")
    finish(removed, _remove)


def _add_words(command: argparse.ArgumentParser) -> None:
    """What rules and filters of them share."""
    command.add_argument(
        "operations",
        metavar="OPERATION",
        nargs="*",
        type=_operation,
        choices=_OPERATIONS,
        help=", ".join(_OPERATIONS),
    )
    for role, what in (("producer", "writes to --topic"), ("consumer", "reads it in --group")):
        command.add_argument(
            f"--{role}",
            dest="roles",
            action="append_const",
            const=role,
            default=[],
            help=f"instead of OPERATION: what somebody needs who {what}",
        )
    for kind, metavar in (
        ("topic", "TOPIC"),
        ("group", "GROUP"),
        ("transactional-id", "ID"),
        ("delegation-token", "ID"),
    ):
        command.add_argument(
            f"--{kind}",
            metavar=metavar,
            action="append",
            default=[],
            help="may be given again; '*' is all" if kind == "topic" else None,
        )
    command.add_argument(
        "--user-principal",
        dest="user",
        metavar="PRINCIPAL",
        type=principal,
        action="append",
        default=[],
        help="whose delegation tokens, for create_tokens and describe_tokens",
    )
    command.add_argument("--cluster", action="store_true", help="the cluster as a whole")
    command.add_argument("--host", metavar="ADDRESS", help="of the client (from anywhere)")


def _add_filter(command: argparse.ArgumentParser) -> Any:
    """What rules are chosen by; without any of it all are. Returns the group of patterns."""
    command.add_argument(
        "principal", metavar="PRINCIPAL", nargs="?", type=principal, help=_PRINCIPAL
    )
    _add_words(command)
    for choices in (
        {"allow": "no rules that deny", "deny": "only rules that deny"},
        {"literal": "no rules of prefixes", "prefixed": "only rules of prefixes"},
    ):
        group = command.add_mutually_exclusive_group()
        for choice, what in choices.items():
            group.add_argument(
                f"--{choice}",
                dest="permission" if "allow" in choices else "pattern",
                action="store_const",
                const=choice.upper(),
                help=what,
            )
    return group


def principal(text: str) -> str:
    """The type of principals: TYPE:NAME, of which User is the type that is not written."""
    kind, colon, name = text.partition(":")
    if not colon:
        if _operation(text) in _OPERATIONS:
            raise argparse.ArgumentTypeError(
                f"{text!r} is an operation: PRINCIPAL comes before it; a user called so is"
                f" User:{text}"
            )
        kind, name = "User", text
    if not kind or not name:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a user's name, or TYPE:NAME")
    return f"{kind}:{name}"


def _operation(text: str) -> str:
    """As Kafka's tools take it (DescribeConfigs), or with dashes, or underscores."""
    plain = {one.replace("_", ""): one for one in _OPERATIONS}
    return plain.get(text.replace("_", "").replace("-", "").lower(), text)


def chosen(arguments: argparse.Namespace) -> list[tuple[str, str, str | None]]:
    """The resources that are named, each with each operation on it; None where no operation is
    named. Raises UserError for what makes no rule."""
    named = {
        kind: list(dict.fromkeys(getattr(arguments, kind.lower())))
        for kind in _SUPPORTED
        if kind != "CLUSTER"
    }
    named["CLUSTER"] = [CLUSTER_NAME] if arguments.cluster else []
    if arguments.roles and arguments.operations:
        raise UserError("--producer, --consumer: no OPERATION goes with them", EXIT_USAGE)
    if arguments.roles and not named["TOPIC"]:
        raise UserError(f"--{arguments.roles[0]}: name the topic with --topic", EXIT_USAGE)
    if "consumer" in arguments.roles and not named["GROUP"]:
        raise UserError("--consumer: name the group with --group", EXIT_USAGE)
    return [
        (kind, name, operation)
        for kind, names in named.items()
        for name in names
        for operation in _operations(arguments, kind)
    ]


def _operations(arguments: argparse.Namespace, kind: str) -> Iterable[str | None]:
    if arguments.roles:
        wanted = [one for role in arguments.roles for one in _ROLES[role].get(kind, ())]
        if not wanted:
            raise UserError(
                f"--{_flag(kind)} does not go with --{arguments.roles[0]}: name the OPERATION",
                EXIT_USAGE,
            )
        return dict.fromkeys(wanted)
    for operation in arguments.operations:
        if operation.upper() not in ("ALL", *_SUPPORTED[kind]):
            known = ", ".join(one.lower() for one in ("ALL", *_SUPPORTED[kind]))
            raise UserError(f"{operation} means nothing on --{_flag(kind)}: {known}", EXIT_USAGE)
    return dict.fromkeys(one.upper() for one in arguments.operations) or [None]


def _flag(kind: str) -> str:
    return "user-principal" if kind == "USER" else kind.lower().replace("_", "-")


def rules(arguments: argparse.Namespace) -> list[Rule]:
    """What `add` adds. Raises UserError."""
    if not arguments.operations and not arguments.roles:
        raise UserError("nothing to add: name an OPERATION, --producer or --consumer", EXIT_USAGE)
    if arguments.prefixed and arguments.cluster:
        raise UserError("--prefixed: the cluster has no name that begins so", EXIT_USAGE)
    wanted = chosen(arguments)
    if not wanted:
        raise UserError("on what? name it with --topic, --group, ..., or --cluster", EXIT_USAGE)
    permission = "DENY" if arguments.deny else "ALLOW"
    pattern = "PREFIXED" if arguments.prefixed else "LITERAL"
    host = arguments.host or "*"
    if host != "*":
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise UserError(
                f"--host {host!r}: expected an address, brokers compare rules with no names",
                EXIT_USAGE,
            ) from None
    return [
        Rule(arguments.principal, permission, operation, kind, name, pattern, host)
        for kind, name, operation in wanted
    ]


def filters(arguments: argparse.Namespace) -> list[Rule]:
    """What `list` and `remove` choose by: rules that any of these fits. Raises UserError."""
    wanted: list[tuple[str | None, str | None, str | None]] = [*chosen(arguments)]
    if not wanted:
        if arguments.pattern == "MATCH":
            raise UserError("--match: name what is to be matched, as with --topic", EXIT_USAGE)
        wanted = [(None, None, one.upper()) for one in arguments.operations or ()]
    of, permission, host = arguments.principal, arguments.permission, arguments.host
    return [
        Rule(of, permission, operation, kind, name, arguments.pattern, host)
        for kind, name, operation in wanted or [(None, None, None)]
    ]


def _list(arguments: argparse.Namespace) -> int:
    wanted = filters(arguments)
    with admin_client(arguments) as admin, explained():
        found = _found(admin, wanted)
    if arguments.json:
        print_json([rule._asdict() for rule in found])
        return EXIT_OK
    names = ["PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN", "HOST"]
    print_table(names, found)
    return EXIT_OK


def _add(arguments: argparse.Namespace) -> int:
    added = rules(arguments)
    with admin_client(arguments) as admin, explained():
        answer = admin.create_acls([_binding(rule) for rule in added])
        for error in answer["failed"]:
            raise error
    return _say(arguments, "added", added)


def _remove(arguments: argparse.Namespace) -> int:
    wanted = filters(arguments)
    if not any(one.principal or one.operation or one.resource_type for one in wanted):
        raise UserError("nothing to remove: name a PRINCIPAL, or --topic, --group, ...", EXIT_USAGE)
    with admin_client(arguments) as admin, explained():
        removed = _found(admin, wanted)
        if not removed:
            raise UserError("no such access rule: `barnabas acl list` shows what is there")
        if not arguments.dry_run:
            for _one, _gone, error in admin.delete_acls([_filter(rule) for rule in removed]):
                if error.errno:
                    raise error
    return _say(arguments, "removed", removed)


def _say(arguments: argparse.Namespace, done: str, changed: list[Rule]) -> int:
    is_dry = getattr(arguments, "dry_run", False)
    if arguments.json:
        answer: dict[str, Any] = {"dry_run": is_dry} if done == "removed" else {}
        print_json(answer | {done: [rule._asdict() for rule in changed]})
        return EXIT_OK
    for rule in changed:
        print(f"{'would be ' if is_dry else ''}{done}: {rule}")
    return EXIT_OK


def _found(admin: Any, wanted: list[Rule]) -> list[Rule]:
    """The rules that any of the filters fits, in order. Raises UserError."""
    found: set[Rule] = set()
    for one in wanted:
        try:
            answer, _error = admin.describe_acls(_filter(one))
        except ValueError as error:  # a number that its enumerations do not have
            raise UserError(
                f"there are access rules that kafka-python cannot read ({error}): name the"
                " OPERATION that you look for"
            ) from None
        found.update(map(_rule, answer))
    return sorted(found, key=lambda rule: [str(field) for field in rule])


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Say what to do when a cluster has no access rules, or may not be asked for them."""
    from kafka import errors

    try:
        yield
    except errors.SecurityDisabledError:
        raise UserError(
            "this cluster keeps no access rules: either its nodes have no authorizer.class.name"
            " (everybody may do everything), or they name an authorizer that decides by itself"
        ) from None
    except errors.ClusterAuthorizationFailedError:
        raise UserError(
            "CLUSTER_AUTHORIZATION_FAILED: this takes one of super.users, or somebody with alter"
            " and describe on --cluster: name who you are with --client-config"
        ) from None


def _rule(acl: Any) -> Rule:
    """Ours of kafka-python's."""
    resource = acl.resource_pattern
    return Rule(
        acl.principal,
        acl.permission_type.name,
        acl.operation.name,
        resource.resource_type.name,
        resource.resource_name,
        resource.pattern_type.name,
        acl.host,
    )


def _binding(rule: Rule) -> Any:
    from kafka.admin import ACL, ResourcePattern

    return _told(rule, ACL, ResourcePattern)


def _filter(rule: Rule) -> Any:
    from kafka.admin import ACLFilter, ResourcePatternFilter

    return _told(rule, ACLFilter, ResourcePatternFilter)


def _told(rule: Rule, acl: Any, pattern: Any) -> Any:
    """kafka-python's of ours."""
    from kafka.admin import (
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        ResourceType,
    )

    return acl(
        principal=rule.principal,
        host=rule.host,
        operation=ACLOperation[rule.operation or "ANY"],
        permission_type=ACLPermissionType[rule.permission_type or "ANY"],
        resource_pattern=pattern(
            ResourceType[rule.resource_type or "ANY"],
            rule.resource_name,
            ACLResourcePatternType[rule.pattern_type or "ANY"],
        ),
    )
