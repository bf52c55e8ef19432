"""`barnabas topic`, with a cluster that is played here."""

from __future__ import annotations

import argparse
import contextlib
import json
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.client_commands import topics
from server.commands.outcomes import EXIT_USAGE, UserError

_ID = "13b36307-4476-4f98-bb8a-2ae69eb514d6"


def _partition(number: int, leader: int, replicas: list[int], isr: list[int]) -> dict[str, Any]:
    return {
        "partition_index": number,
        "leader_id": leader,
        "leader_epoch": 7,
        "replica_nodes": replicas,
        "isr_nodes": isr,
        "offline_replicas": sorted(set(replicas) - set(isr)),
    }


class Admin:
    """kafka-python's client of a cluster with the topic t, an internal one, and one that is being
    made, of which nobody knows partitions."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.codes: dict[str, int] = {}  # of what is done to a topic
        self.words: str | None = "because"

    def describe_topics(self, names: list[str] | None = None) -> list[dict[str, Any]]:
        there = {
            "t": [_partition(1, -1, [2, 3], []), _partition(0, 0, [2, 0, 3], [0, 3])],
            "__internal": [_partition(0, 1, [1], [1])],
            "new": [],
        }
        found = [
            {
                "name": name,
                "topic_id": _ID,
                "error_code": 0,
                "is_internal": name.startswith("__"),
                "partitions": partitions,
            }
            for name, partitions in there.items()
            if names is None or name in names
        ]
        unknown = [name for name in names or [] if name not in there]
        return found + [{"name": name, "error_code": 3} for name in unknown]

    def describe_configs(self, resources: list[Any]) -> dict[str, Any]:
        changed = {"b": {"value": "2"}, "a": {"value": "1"}}
        return {"topic": {one.name: changed if one.name == "t" else {} for one in resources}}

    def create_topics(self, wanted: dict[str, Any], *, raise_errors: bool) -> dict[str, Any]:
        assert not raise_errors
        self.asked.append(wanted)
        return self._answer(list(wanted))

    def wait_for_topics(self, names: list[str], timeout_ms: int) -> None:
        self.asked.append((names, timeout_ms))

    def delete_topics(self, names: list[str], *, raise_errors: bool) -> dict[str, Any]:
        assert not raise_errors
        return self._answer(names)

    def alter_configs(self, resources: list[Any], raise_on_unknown: bool) -> dict[str, Any]:
        (one,) = resources
        assert not raise_on_unknown
        self.asked.append((one.resource_type.name, one.name, one.configs))
        return {"topic": {one.name: "OK"}}

    def create_partitions(self, wanted: dict[str, int], *, raise_errors: bool) -> Any:
        assert not raise_errors
        self.asked.append(wanted)
        answers = self._answer(list(wanted))["topics"]
        return SimpleNamespace(results=[SimpleNamespace(**answer) for answer in answers])

    def _answer(self, names: list[str]) -> dict[str, Any]:
        codes = [self.codes.get(name, 0) for name in names]
        return {
            "topics": [
                {"name": name, "error_code": code, "error_message": self.words}
                for name, code in zip(names, codes, strict=True)
            ]
        }


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    played = Admin()
    monkeypatch.setattr(topics, "admin_client", lambda _told: contextlib.nullcontext(played))
    return played


def run(line: str) -> int:
    parser = argparse.ArgumentParser()
    topics.add_commands(parser.add_subparsers())
    arguments = parser.parse_args(["topic", *line.split()])
    return int(arguments.run(arguments))


def test_topics_are_listed_by_name_and_internal_ones_if_they_are_asked_for(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("list") == 0
    assert capsys.readouterr().out == "new\t0\t0\nt\t2\t3\n"
    assert run("list --internal --json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "__internal", "partitions": 1, "replicas": 1, "internal": True},
        {"name": "new", "partitions": 0, "replicas": 0, "internal": False},
        {"name": "t", "partitions": 2, "replicas": 3, "internal": False},
    ]


def test_a_topic_is_described_with_its_partitions_in_order(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    """Node 0 leads like any other; where nobody leads there is no node -1."""
    assert run("describe t new") == 0
    assert capsys.readouterr().out == (
        "topic t  id E7NjB0R2T5i7iirmnrUU1g  configs a=1 b=2\n"
        "0\t0\t7\t2,0,3\t0,3\t2\n"
        "1\t-\t7\t2,3\t-\t2,3\n"
        "topic new  id E7NjB0R2T5i7iirmnrUU1g  configs -\n"
    )
    assert run("describe t --json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["internal"]) == ("t", False)
    assert found["configs"] == {"a": "1", "b": "2"}
    assert found["partitions"][1] == {
        "partition": 1,
        "leader": None,
        "leader_epoch": 7,
        "replicas": [2, 3],
        "isr": [],
        "offline": [2, 3],
    }


@pytest.mark.parametrize("line", ["describe none", "describe t none", "alter none --config a=1"])
def test_a_topic_that_is_not_there_is_told_with_the_list(admin: Admin, line: str) -> None:
    with pytest.raises(UserError, match=r"^topic 'none': UNKNOWN_TOPIC.*; `barnabas topic list`"):
        run(line)
    assert admin.asked == []


@pytest.mark.parametrize(
    ("flags", "partitions", "replicas", "configs"),
    [
        ("", -1, -1, {}),
        ("--partitions 3 --replication-factor 2", 3, 2, {}),
        ("--config a=1 --config b=2", -1, -1, {"a": "1", "b": "2"}),
    ],
)
def test_what_is_not_said_of_a_new_topic_is_for_the_broker_to_choose(
    admin: Admin, capsys: pytest.CaptureFixture[str],
    flags: str, partitions: int, replicas: int, configs: dict[str, str],
) -> None:  # fmt: skip
    assert run(f"create one two --timeout 2.5 {flags}") == 0
    one = {"num_partitions": partitions, "replication_factor": replicas, "configs": configs}
    assert admin.asked == [{"one": one, "two": one}, (["one", "two"], 2500)]
    assert capsys.readouterr().out == "created topic one\ncreated topic two\n"


def test_of_several_topics_those_that_were_made_or_deleted_are_told_beside_one_that_was_not(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.codes["bad"] = 17
    with pytest.raises(UserError, match=r"^topic 'bad': INVALID_TOPIC: because$"):
        run("create bad good")
    assert admin.asked[1] == (["good"], 10_000)
    assert capsys.readouterr().out == "created topic good\n"
    admin.codes["bad"] = 29
    with pytest.raises(
        UserError, match=r"^topic 'bad': TOPIC_AUTHORIZATION_FAILED: because; `barn"
    ):
        run("delete bad good --json")
    assert json.loads(capsys.readouterr().out) == {"deleted": ["good"]}


def test_a_topic_that_is_there_already_is_fine_if_that_was_said(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.codes["t"] = 36
    with pytest.raises(UserError, match=r"^topic 't': TOPIC_ALREADY_EXISTS: .*; --if-not-exists"):
        run("create t")
    assert run("create t --if-not-exists --json") == 0
    assert json.loads(capsys.readouterr().out) == {"created": []}
    admin.codes["t"] = 17
    with pytest.raises(UserError, match="INVALID_TOPIC"):
        run("create t --if-not-exists")


def test_a_topic_that_is_gone_already_is_fine_if_that_was_said(admin: Admin) -> None:
    admin.codes["t"] = 3
    with pytest.raises(UserError, match=r"^topic 't': UNKNOWN_TOPIC"):
        run("delete t")
    assert run("delete t --if-exists") == 0
    admin.codes["t"] = 29
    with pytest.raises(UserError, match="TOPIC_AUTHORIZATION_FAILED"):
        run("delete t --if-exists")


@pytest.mark.parametrize(
    ("flags", "asked"),
    [
        ("--partitions 3", [{"t": 3}]),
        ("--config a=1", [("TOPIC", "t", {"a": "1"})]),
        (
            "--config a=1 --delete-config b --delete-config c --partitions 3",
            [("TOPIC", "t", {"a": "1", "b": ("DELETE", None), "c": ("DELETE", None)}), {"t": 3}],
        ),
    ],
)
def test_what_is_altered_is_what_the_flags_say(
    admin: Admin, capsys: pytest.CaptureFixture[str], flags: str, asked: list[object]
) -> None:
    assert run(f"alter t {flags}") == 0
    assert admin.asked == asked
    assert capsys.readouterr().out == "altered topic t\n"


def test_fewer_partitions_are_refused_in_the_brokers_words(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.codes["t"] = 37
    with pytest.raises(UserError, match=r"^topic 't': INVALID_PARTITIONS: because$"):
        run("alter t --partitions 1")
    assert capsys.readouterr().out == ""


def test_to_alter_nothing_is_a_mistake(admin: Admin) -> None:
    with pytest.raises(UserError, match="nothing to alter") as error:
        run("alter t")
    assert error.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("line", ["list x", "describe", "create", "delete", "", "alter"])
def test_a_command_without_its_topic_is_a_mistake(line: str) -> None:
    with pytest.raises(SystemExit):
        run(line)


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (40, ["Invalid value x.\nSee b"], "INVALID_CONFIG: Invalid value x. See b"),
        (29, [], "TOPIC_AUTHORIZATION_FAILED: "),
    ],
)
def test_a_config_that_is_refused_is_told_by_kafkas_name_of_the_error(
    code: int, words: list[str], told: str
) -> None:
    from kafka.errors import for_code

    class Refuses:
        def alter_configs(self, _resources: object, **_: object) -> dict[str, dict[str, str]]:
            return {"topic": {"t": str(for_code(code)(*words))}}

    with pytest.raises(UserError, match=f"^topic 't': {told}"):
        topics.alter_configs(Refuses(), "TOPIC", "t", {"k": "v"})
