from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any

import pytest
from kafka import errors
from kafka.admin import ACLOperation

from barnabas.client_commands import acls
from barnabas.client_commands.acls import Rule, explained, filters, rules
from server.commands.outcomes import EXIT_USAGE, UserError


class Admin:
    """kafka-python's client of a cluster that has these rules."""

    def __init__(self, *found: Rule) -> None:
        self.rules = {acls._binding(rule) for rule in found}

    def describe_acls(self, wanted: Any) -> tuple[list[Any], type[errors.KafkaError]]:
        return [acl for acl in self.rules if _fits(acl, wanted)], errors.NoError

    def create_acls(self, created: list[Any]) -> dict[str, list[Any]]:
        self.rules.update(created)
        return {"succeeded": created, "failed": []}

    def delete_acls(self, wanted: list[Any]) -> list[tuple[Any, list[Any], Any]]:
        answer = []
        for one in wanted:
            gone = [acl for acl in self.rules if _fits(acl, one)]
            self.rules.difference_update(gone)
            answer.append((one, gone, errors.NoError))
        return answer


def _fits(acl: Any, wanted: Any) -> bool:
    """Of MATCH only prefixes, the rest is the broker's to know."""
    resource, asked = acl.resource_pattern, wanted.resource_pattern
    if asked.pattern_type.name == "MATCH":
        return str(asked.resource_name).startswith(resource.resource_name)
    return (
        wanted.principal in (None, acl.principal)
        and wanted.host in (None, acl.host)
        and wanted.operation.name in ("ANY", acl.operation.name)
        and wanted.permission_type.name in ("ANY", acl.permission_type.name)
        and asked.resource_type.name in ("ANY", resource.resource_type.name)
        and asked.resource_name in (None, resource.resource_name)
        and asked.pattern_type.name in ("ANY", resource.pattern_type.name)
    )


def parsed(text: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    acls.add_commands(parser.add_subparsers())
    return parser.parse_args(["acl", *text.split()])


def added(text: str) -> list[tuple[Any, ...]]:
    """Operation, type and name of the rules."""
    return [rule[2:5] for rule in rules(parsed(f"add {text}"))]


def run(admin: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "admin_client", lambda _arguments: contextlib.nullcontext(admin))
    arguments = parsed(text)
    assert arguments.run(arguments) == 0


def test_what_is_not_said_of_a_new_rule_has_the_values_of_kafka_acls() -> None:
    (rule,) = rules(parsed("add alice read --topic orders"))
    assert rule == Rule("User:alice", "ALLOW", "READ", "TOPIC", "orders", "LITERAL", "*")
    (rule,) = rules(parsed("add User:read read --topic t"))
    assert rule.principal == "User:read"
    (rule,) = rules(parsed("add Team:a read --group g --deny --prefixed --host 10.0.0.1"))
    assert rule == Rule("Team:a", "DENY", "READ", "GROUP", "g", "PREFIXED", "10.0.0.1")
    assert str(rule) == "DENY Team:a READ on GROUP g (prefixed) from 10.0.0.1"


def test_operations_are_read_as_people_write_them() -> None:
    for text in ("DescribeConfigs", "describe-configs", "DESCRIBE_CONFIGS"):
        assert added(f"a {text} --topic t") == [("DESCRIBE_CONFIGS", "TOPIC", "t")]
    assert added("a write write read --topic t") == [
        ("WRITE", "TOPIC", "t"),
        ("READ", "TOPIC", "t"),
    ]
    assert set(acls._OPERATIONS) == {
        one.name.lower() for one in ACLOperation if one.name not in ("UNKNOWN", "ANY")
    }


def test_each_resource_gets_each_operation() -> None:
    assert added("a describe --topic t --topic u --transactional-id x --cluster") == [
        ("DESCRIBE", "TOPIC", "t"),
        ("DESCRIBE", "TOPIC", "u"),
        ("DESCRIBE", "TRANSACTIONAL_ID", "x"),
        ("DESCRIBE", "CLUSTER", "kafka-cluster"),
    ]
    assert added("a createtokens --user-principal b") == [("CREATE_TOKENS", "USER", "User:b")]
    assert added("a describe --delegation-token d") == [("DESCRIBE", "DELEGATION_TOKEN", "d")]


def test_producers_and_consumers_get_what_kafka_acls_gives_them() -> None:
    assert added("a --producer --topic t --transactional-id x") == [
        ("WRITE", "TOPIC", "t"),
        ("DESCRIBE", "TOPIC", "t"),
        ("CREATE", "TOPIC", "t"),
        ("WRITE", "TRANSACTIONAL_ID", "x"),
        ("DESCRIBE", "TRANSACTIONAL_ID", "x"),
    ]
    assert added("a --consumer --topic t --group g") == [
        ("READ", "TOPIC", "t"),
        ("DESCRIBE", "TOPIC", "t"),
        ("READ", "GROUP", "g"),
    ]
    both = added("a --producer --consumer --topic t --group g")
    assert len(both) == len(set(both)) == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("add a --topic t", "name an OPERATION"),
        ("add a read", "on what"),
        ("add a write --group g", "write means nothing on --group: all, read, describe"),
        ("add a create_tokens --user-principal b --topic t", "nothing on --topic"),
        ("add a read --producer --topic t", "no OPERATION goes with them"),
        ("add a --producer --transactional-id x", "--producer: name the topic"),
        ("add a --consumer --topic t", "--consumer: name the group"),
        ("add a --producer --topic t --group g", "--group does not go with --producer"),
        ("add a --producer --topic t --cluster", "--cluster does not go with --producer"),
        ("add a alter --cluster --prefixed", "--prefixed"),
        ("add a read --topic t --host web-1", "--host 'web-1': expected an address"),
        ("list --match", "--match: name what"),
        ("remove", "nothing to remove"),
        ("remove --deny --host 10.0.0.1", "nothing to remove"),
    ],
)
def test_mistakes_are_told_before_anybody_is_asked(text: str, words: str) -> None:
    arguments = parsed(text)
    with pytest.raises(UserError, match=words) as told:
        arguments.run(arguments)
    assert told.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    "text",
    ["", "add a raed --topic t", "add User: read", "remove a --match", "list Read --topic t"],
)
def test_words_that_are_none(text: str) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(text)
    assert ended.value.code == EXIT_USAGE


def test_what_a_filter_does_not_name_is_any() -> None:
    assert filters(parsed("list")) == [Rule(*[None] * 7)]
    assert filters(parsed("list a read --deny")) == [
        Rule("User:a", "DENY", "READ", None, None, None, None)
    ]
    assert filters(parsed("list --topic t --match --host h")) == [
        Rule(None, None, None, "TOPIC", "t", "MATCH", "h")
    ]
    assert [one[2:5] for one in filters(parsed("remove a --consumer --topic t --group g"))] == [
        ("READ", "TOPIC", "t"),
        ("DESCRIBE", "TOPIC", "t"),
        ("READ", "GROUP", "g"),
    ]


def test_a_rule_that_two_filters_fit_is_listed_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = Admin(
        *rules(parsed("add a read --topic t --prefixed")), *rules(parsed("add b all --cluster"))
    )
    run(admin, "list --topic t1 --topic t2 --match", monkeypatch)
    assert capsys.readouterr().out == "User:a\tALLOW\tREAD\tTOPIC\tt\tPREFIXED\t*\n"
    run(admin, "list a --json", monkeypatch)
    (found,) = json.loads(capsys.readouterr().out)
    assert found == {
        "principal": "User:a", "permission_type": "ALLOW", "operation": "READ",
        "resource_type": "TOPIC", "resource_name": "t", "pattern_type": "PREFIXED", "host": "*",
    }  # fmt: skip


def test_what_was_added_is_removed_by_the_same_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = Admin(*rules(parsed("add b read --topic t")))
    before = set(admin.rules)
    words = "a --consumer --topic t --group g"
    run(admin, f"add {words}", monkeypatch)
    assert len(admin.rules) == 4
    assert capsys.readouterr().out == (
        "added: ALLOW User:a READ on TOPIC t\n"
        "added: ALLOW User:a DESCRIBE on TOPIC t\n"
        "added: ALLOW User:a READ on GROUP g\n"
    )
    run(admin, f"remove {words} --dry-run", monkeypatch)
    assert len(admin.rules) == 4
    assert "would be removed: ALLOW User:a READ on GROUP g\n" in capsys.readouterr().out
    run(admin, f"remove {words}", monkeypatch)
    assert admin.rules == before
    assert "removed: ALLOW User:a READ on GROUP g\n" in capsys.readouterr().out
    with pytest.raises(UserError, match="no such access rule: `barnabas acl list`"):
        run(admin, f"remove {words}", monkeypatch)


def test_a_program_is_told_what_was_added_what_was_removed_and_what_would_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = Admin()
    words = "a read --topic t"
    changed = [rule._asdict() for rule in rules(parsed(f"add {words}"))]
    for line, told in (
        (f"add {words}", {"added": changed}),
        (f"remove {words} --dry-run", {"dry_run": True, "removed": changed}),
        (f"remove {words}", {"dry_run": False, "removed": changed}),
    ):
        run(admin, f"{line} --json", monkeypatch)
        assert json.loads(capsys.readouterr().out) == told


def test_a_rule_that_the_library_cannot_read_is_told_and_nothing_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TWO_PHASE_COMMIT, which kafka-python finds no name for when it reads the answer."""

    class Newer(Admin):
        def describe_acls(self, wanted: Any) -> Any:
            raise ValueError("15 is not a valid ACLOperation")

        def delete_acls(self, wanted: list[Any]) -> Any:
            raise AssertionError(wanted)

    with pytest.raises(UserError, match=r"kafka-python cannot read \(15 is not"):
        run(Newer(), "remove a", monkeypatch)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.SecurityDisabledError, "authorizer.class.name.* decides by itself"),
        (errors.ClusterAuthorizationFailedError, "--client-config"),
    ],
)
def test_a_refusal_says_what_to_do(error: type[errors.KafkaError], words: str) -> None:
    with pytest.raises(UserError, match=words), explained():
        raise error


def test_a_refused_rule_is_not_told_to_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Admin):
        def create_acls(self, created: list[Any]) -> dict[str, list[Any]]:
            return {"succeeded": [], "failed": [errors.ClusterAuthorizationFailedError]}

    with pytest.raises(UserError, match="CLUSTER_AUTHORIZATION_FAILED"):
        run(Refusing(), "add a read --topic t", monkeypatch)
