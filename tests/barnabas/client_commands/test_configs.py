"""`barnabas config`, with a cluster that is played here."""

from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any

import pytest

from barnabas.client_commands import configs
from server.commands.outcomes import EXIT_USAGE, UserError


class Admin:
    """kafka-python's client of a cluster of two brokers, with the topic t."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.refusal = "OK"

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"error_code": 0 if name == "t" else 3} for name in names]

    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"broker_id": 1}, {"broker_id": 2}]}

    def describe_configs(self, resources: list[Any], config_filter: str) -> dict[str, Any]:
        (one,) = resources
        self.asked.append((one.resource_type.name, one.name, one.configs, config_filter))
        found = {
            "b.c": {"value": "2", "config_source": "DYNAMIC_TOPIC_CONFIG"},
            "a.b": {"value": "1", "config_source": "DEFAULT_CONFIG"},
        }
        return {one.resource_type.name.lower(): {one.name: found}}

    def alter_configs(self, resources: list[Any], raise_on_unknown: bool) -> dict[str, Any]:
        (one,) = resources
        self.asked.append((one.resource_type.name, one.name, one.configs))
        assert not raise_on_unknown
        return {"kind": {one.name: self.refusal}}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    played = Admin()
    monkeypatch.setattr(configs, "admin_client", lambda _told: contextlib.nullcontext(played))
    return played


def run(line: str) -> int:
    parser = argparse.ArgumentParser()
    configs.add_commands(parser.add_subparsers())
    arguments = parser.parse_args(["config", *line.split()])
    return int(arguments.run(arguments))


def keys(asked: Any) -> list[str]:
    return list(asked or ())


@pytest.mark.parametrize(
    ("line", "kind", "name", "wanted", "which"),
    [
        ("get topic t", "TOPIC", "t", [], "modified"),
        ("get broker 2 --all", "BROKER", "2", [], "all"),
        ("get group later b.c a.b", "GROUP", "later", ["b.c", "a.b"], "all"),
    ],
)
def test_what_was_changed_is_shown_and_all_if_it_is_asked_for(
    admin: Admin, capsys: pytest.CaptureFixture[str],
    line: str, kind: str, name: str, wanted: list[str], which: str,
) -> None:  # fmt: skip
    assert run(line) == 0
    assert capsys.readouterr().out == "a.b\t1\tdefault_config\nb.c\t2\tdynamic_topic_config\n"
    ((*asked, given, config_filter),) = admin.asked
    assert (asked, keys(given), config_filter) == ([kind, name], wanted, which)
    assert run(f"{line} --json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "type": kind.lower(),
        "name": name,
        "configs": [
            {"key": "a.b", "value": "1", "source": "default_config"},
            {"key": "b.c", "value": "2", "source": "dynamic_topic_config"},
        ],
    }


def test_configs_are_set_and_taken_back_together(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "set topic t b=2 a=1 --delete c --delete d"
    assert run(line) == 0
    assert capsys.readouterr().out == "set a, b, c, d of topic t\n"
    gone = ("DELETE", None)
    assert admin.asked == [("TOPIC", "t", {"b": "2", "a": "1", "c": gone, "d": gone})]
    assert run(f"{line} --json") == 0
    told = {"type": "topic", "name": "t", "set": ["a", "b", "c", "d"]}
    assert json.loads(capsys.readouterr().out) == told


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("get topic none", "topic 'none': UNKNOWN_TOPIC_OR_PARTITION: .*; `barnabas topic list`"),
        ("set topic none a=1", "topic 'none': UNKNOWN_TOPIC_OR_PARTITION"),
        ("get broker 3", "no broker '3': the brokers are 1, 2"),
        ("set broker 3 a=1", "no broker '3': the brokers are 1, 2"),
        ("get topic t a.b x.y", "topic 't' has no config 'x.y'"),
        ("set group g", "nothing to set: give KEY=VALUE, or --delete KEY"),
        ("set group g a", "config set 'a': expected KEY=VALUE"),
    ],
)
def test_what_is_not_there_is_told_and_nothing_is_set(admin: Admin, line: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        run(line)
    assert (error.value.exit_code == EXIT_USAGE) == line.startswith("set group")
    assert not line.startswith("set") or admin.asked == []


def test_what_the_broker_refuses_is_told_in_its_words(admin: Admin) -> None:
    admin.refusal = "[Error 40] InvalidConfigurationError: Invalid value x."
    with pytest.raises(UserError, match=r"^broker '1': INVALID_CONFIG: Invalid value x$"):
        run("set broker 1 a=x")


@pytest.mark.parametrize("line", ["", "get", "get topic", "set user u a=1"])
def test_a_line_without_an_action_a_kind_or_a_name_is_refused(line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(line)
    assert ended.value.code == EXIT_USAGE
