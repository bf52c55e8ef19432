from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any

import pytest

from barnabas.client_commands import groups
from server.commands.outcomes import UserError


class Admin:
    """kafka-python's client of a broker that has one group of each type, both stable."""

    def list_groups(self) -> list[dict[str, Any]]:
        stable = {"group_state": "Stable", "protocol_type": "consumer"}
        return [stable | {"group_id": kind, "group_type": kind} for kind in ("classic", "consumer")]

    def describe_groups(self, names: list[str]) -> dict[str, Any]:
        """DescribeGroups knows classic groups only: of others a broker says that they are dead."""
        member = {"member_id": "m", "client_id": "c", "client_host": "h"}
        classic = {"group_state": "Stable", "members": [member]}
        dead: dict[str, Any] = {"group_state": "Dead", "members": []}
        return {name: classic if name == "classic" else dead for name in names}

    def list_group_offsets(self, group: str) -> dict[str, Any]:
        return {group: {}}


# kafka-python reads its schemas in a way that Python's newest versions advise against.
@pytest.mark.parametrize(
    ("group", "count", "line"),
    [
        ("classic", 1, "group classic  state Stable  members 1\n"),
        ("consumer", None, "group consumer  state Stable  members not told of consumer groups\n"),
    ],
)
def test_a_group_of_the_new_protocol_is_not_told_to_be_dead(
    group: str, count: int | None, line: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(groups, "admin_client", lambda _arguments: contextlib.nullcontext(Admin()))
    parser = argparse.ArgumentParser()
    groups.add_commands(parser.add_subparsers())
    arguments = parser.parse_args(["group", "describe", group])
    assert arguments.run(arguments) == 0
    assert capsys.readouterr().out.startswith(line)
    arguments.json = True
    assert arguments.run(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    members = found["members"]
    assert (found["state"], None if members is None else len(members)) == ("Stable", count)


def test_a_reset_of_topics_that_are_gone_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    from kafka import OffsetAndMetadata, TopicPartition

    class Left(Admin):
        """What is left of a group are offsets of a topic that was deleted."""

        def list_group_offsets(self, group: str) -> dict[str, Any]:
            return {group: {TopicPartition("gone", 0): OffsetAndMetadata(5, "", None)}}

        def describe_topics(self) -> list[dict[str, Any]]:
            return []

        def alter_group_offsets(self, group: str, places: dict[Any, Any]) -> dict[Any, Any]:
            return {}

    monkeypatch.setattr(groups, "admin_client", lambda _arguments: contextlib.nullcontext(Left()))
    parser = argparse.ArgumentParser()
    groups.add_commands(parser.add_subparsers())
    arguments = parser.parse_args(["group", "reset-offsets", "g", "--to", "end"])
    with pytest.raises(UserError, match="the topics that group 'g' committed are not there any"):
        arguments.run(arguments)


def test_each_group_that_is_not_deleted_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refuses(Admin):
        def delete_groups(self, _names: list[str]) -> dict[str, str]:
            return {"classic": "NonEmptyGroupError", "gone": "OK", "consumer": "GroupAuthorization"}

        def list_groups(self) -> list[dict[str, Any]]:
            return [*super().list_groups(), {"group_id": "gone"}]

    monkeypatch.setattr(
        groups, "admin_client", lambda _arguments: contextlib.nullcontext(Refuses())
    )
    parser = argparse.ArgumentParser()
    groups.add_commands(parser.add_subparsers())
    arguments = parser.parse_args(["group", "delete", "classic", "gone", "consumer"])
    with pytest.raises(UserError, match=r"'classic': NonEmpty.*; group 'consumer': .*; stop its"):
        arguments.run(arguments)
    assert capsys.readouterr().out == "deleted group gone\n"


def test_a_member_that_has_committed_nothing_is_not_taken_for_one_without_lag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kafka import OffsetAndMetadata, TopicPartition

    class Behind(Admin):
        """A member has partitions 0 and 1 of `t`, of which the group committed 0 and 2."""

        def describe_groups(self, names: list[str]) -> dict[str, Any]:
            found = super().describe_groups(names)
            assigned = {"assigned_partitions": [{"topic": "t", "partitions": [0, 1]}]}
            found["classic"]["members"][0]["member_assignment"] = assigned
            return found

        def list_group_offsets(self, group: str) -> dict[str, Any]:
            at = {TopicPartition("t", number): OffsetAndMetadata(5, "", None) for number in (0, 2)}
            return {group: at}

        def describe_topics(self) -> list[dict[str, Any]]:
            return [{"name": "t", "error_code": 0}]

        def list_partition_offsets(self, wanted: dict[Any, Any]) -> dict[Any, Any]:
            return {partition: OffsetAndMetadata(8, "", None) for partition in wanted}

    monkeypatch.setattr(groups, "admin_client", lambda _arguments: contextlib.nullcontext(Behind()))
    parser = argparse.ArgumentParser()
    groups.add_commands(parser.add_subparsers())
    for command in ("lag", "describe"):
        arguments = parser.parse_args(["group", command, "classic"])
        assert arguments.run(arguments) == 0
        assert "t\t0\t5\t8\t3\nt\t1\t-\t8\t-\nt\t2\t5\t8\t3\n" in capsys.readouterr().out
    arguments = parser.parse_args(["group", "lag", "classic", "--json"])
    assert arguments.run(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["lag"], [row["lag"] for row in found["partitions"]]) == (6, [3, None, 3])
