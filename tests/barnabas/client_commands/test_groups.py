from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any

import pytest

from barnabas.client_commands import groups
from server.commands.outcomes import EXIT_USAGE, UserError


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


class Cluster:
    """kafka-python's client of a cluster whose topic `t` has three partitions of the offsets 5 to
    10, of which record 7 and later ones, in partition 1 none, are of the time 100 or later. Group
    `g` has committed in two of them, and in a topic that is gone."""

    def __init__(self) -> None:
        from kafka import TopicPartition

        places = {TopicPartition("t", 2): 6, TopicPartition("t", 0): 12}
        self.committed = places | {TopicPartition("gone", 0): 4}
        self.moved: dict[str, dict[Any, Any]] = {}
        self.code = 0

    def list_groups(self) -> list[dict[str, Any]]:
        bare = {"group_state": "Empty", "group_type": "Classic", "protocol_type": "consumer"}
        old = {"protocol_type": "connect"}  # by a broker that tells no state and no type
        return [{"group_id": "h"} | old, {"group_id": "g"} | bare]

    def describe_groups(self, names: list[str]) -> dict[str, Any]:
        return {name: {"group_state": "Empty", "members": []} for name in names}

    def list_group_offsets(self, group: str) -> dict[str, Any]:
        from kafka import OffsetAndMetadata

        found = self.committed if group == "g" else {}
        return {group: {p: OffsetAndMetadata(at, "", None) for p, at in found.items()}}

    def describe_topics(self, names: list[str] | None = None) -> list[dict[str, Any]]:
        partitions = [{"partition_index": number} for number in range(3)]
        there = {"name": "t", "error_code": 0, "partitions": partitions}
        gone = {"name": "gone", "error_code": 3, "partitions": []}
        return [one for one in (there, gone) if names is None or one["name"] in names]

    def list_partition_offsets(self, wanted: dict[Any, Any]) -> dict[Any, Any]:
        from kafka import OffsetAndMetadata
        from kafka.admin import OffsetSpec

        assert wanted, "nobody asks for nothing"
        assert {partition.topic for partition in wanted} == {"t"}

        def at(partition: Any, spec: Any) -> int:
            if spec == 100:
                return -1 if partition.partition == 1 else 7
            return {OffsetSpec.EARLIEST: 5, OffsetSpec.LATEST: 10}[spec]

        return {p: OffsetAndMetadata(at(p, spec), "", None) for p, spec in wanted.items()}

    def alter_group_offsets(self, group: str, places: dict[Any, Any]) -> dict[Any, Any]:
        from kafka import errors

        self.moved[group] = {(p.topic, p.partition): place.offset for p, place in places.items()}
        return {partition: errors.for_code(self.code) for partition in places}

    def delete_groups(self, names: list[str]) -> dict[str, str]:
        return dict.fromkeys(names, "OK")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    played = Cluster()
    monkeypatch.setattr(groups, "admin_client", lambda _told: contextlib.nullcontext(played))
    return played


def run(line: str) -> int:
    parser = argparse.ArgumentParser()
    groups.add_commands(parser.add_subparsers())
    arguments = parser.parse_args(["group", *line.split()])
    return int(arguments.run(arguments))


def test_groups_are_listed_by_name_with_what_their_broker_tells(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("list") == 0
    assert capsys.readouterr().out == "g\tEmpty\tClassic\nh\t-\t-\n"
    assert run("list --json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"group": "g", "state": "Empty", "type": "Classic", "protocol": "consumer"},
        {"group": "h", "state": None, "type": None, "protocol": "connect"},
    ]


def test_lag_is_of_what_is_there_and_never_negative(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """A committed offset may lie behind the end: the topic was made again, or lost its end."""
    assert run("lag g") == 0
    assert capsys.readouterr().out == "t\t0\t12\t10\t0\nt\t2\t6\t10\t4\n"
    assert run("describe g --json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["group"], found["members"]) == ("g", [])
    assert found["lag"][1] == {"topic": "t", "partition": 2, "committed": 6, "end": 10, "lag": 4}
    assert run("lag h --json") == 0
    assert json.loads(capsys.readouterr().out) == {"group": "h", "lag": 0, "partitions": []}


def test_members_are_told_with_what_they_read(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assigned = {"assigned_partitions": [{"topic": "t", "partitions": [2, 0]}]}
    who = {"client_id": "c", "client_host": "/h"}
    reads = who | {"member_id": "m", "member_assignment": assigned}
    waits = who | {"member_id": "n", "member_assignment": b""}
    described = {"g": {"group_state": "Stable", "members": [reads, waits]}}
    monkeypatch.setattr(cluster, "describe_groups", lambda _names: described)
    assert run("describe g") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "group g  state Stable  members 2", "m\tc\t/h\tt:2,t:0", "n\tc\t/h\t-",
    ]  # fmt: skip
    assert run("describe g --json") == 0
    assert json.loads(capsys.readouterr().out)["members"] == [
        {"member": "m", "client": "c", "host": "/h", "partitions": ["t:2", "t:0"]},
        {"member": "n", "client": "c", "host": "/h", "partitions": []},
    ]


@pytest.mark.parametrize("command", ["describe", "lag", "delete g"])
def test_a_group_that_nobody_knows_is_told_with_the_list(cluster: Cluster, command: str) -> None:
    with pytest.raises(UserError, match=r"^no group 'x': `barnabas group list`"):
        run(f"{command} x")


@pytest.mark.parametrize(
    ("to", "after"),
    [
        ("beginning", [5, 5, 5]),
        ("end", [10, 10, 10]),
        ("8", [8, 8, 8]),
        ("-1", [9, 9, 9]),
        ("99", [10, 10, 10]),
        ("1970-01-01T00:00:00.100+00:00", [7, 10, 7]),
    ],
)
def test_a_group_goes_on_where_it_was_told_to(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], to: str, after: list[int]
) -> None:
    assert run(f"reset-offsets g --topic t --to {to}") == 0
    assert cluster.moved == {"g": {("t", number): at for number, at in enumerate(after)}}
    before = ["12", "-", "6"]
    rows = [f"t\t{n}\t{before[n]}\t{at}\n" for n, at in enumerate(after)]
    assert capsys.readouterr().out == "".join(rows)


def test_a_time_before_the_first_record_of_all_is_not_taken_for_one_behind_the_last(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kafka import OffsetAndMetadata
    from kafka.admin import OffsetSpec

    def listed(wanted: dict[Any, Any]) -> dict[Any, Any]:
        at = {p: 10 if spec == OffsetSpec.LATEST else 0 for p, spec in wanted.items()}
        return {p: OffsetAndMetadata(offset, "", None) for p, offset in at.items()}

    monkeypatch.setattr(cluster, "list_partition_offsets", listed)
    assert run("reset-offsets g --topic t:0 --to 1970-01-01T00:00:00.100+00:00") == 0
    assert cluster.moved == {"g": {("t", 0): 0}}


@pytest.mark.parametrize(
    ("topics", "moved"),
    [
        ("", [0, 2]),
        ("--topic t:1", [1]),
        ("--topic t:2,0", [0, 2]),
        ("--topic t:2 --topic t:0", [0, 2]),
    ],
)
def test_only_what_was_committed_or_named_is_moved(
    cluster: Cluster, topics: str, moved: list[int]
) -> None:
    assert run(f"reset-offsets g --to 8 {topics}") == 0
    assert cluster.moved == {"g": {("t", number): 8 for number in moved}}


def test_a_dry_run_says_what_would_be_and_moves_nothing(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("reset-offsets g --topic t:1,2 --to 8 --dry-run --json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "group": "g",
        "dry_run": True,
        "partitions": [
            {"topic": "t", "partition": 1, "before": None, "after": 8},
            {"topic": "t", "partition": 2, "before": 6, "after": 8},
        ],
    }
    assert cluster.moved == {}


@pytest.mark.parametrize("numbers", ["3", "0,3", "x", "0,", "-1"])
def test_a_partition_that_is_not_there_is_a_mistake_and_nothing_is_moved(
    cluster: Cluster, numbers: str
) -> None:
    with pytest.raises(UserError, match="'t' has the partitions 0 to 2") as error:
        run(f"reset-offsets g --to end --topic t:{numbers}")
    assert error.value.exit_code == EXIT_USAGE
    assert cluster.moved == {}


def test_what_stops_a_reset_is_told_with_the_next_step(cluster: Cluster) -> None:
    with pytest.raises(UserError, match="group 'new' committed nothing: name what to set with"):
        run("reset-offsets new --to end")
    with pytest.raises(UserError, match=r"topic 'gone': UNKNOWN_TOPIC.*; `barnabas topic list`"):
        run("reset-offsets g --to end --topic gone")
    cluster.code = 68
    with pytest.raises(UserError, match=r"group 'g': NON_EMPTY_GROUP: .*; stop its members first"):
        run("reset-offsets g --to end")


def test_groups_that_were_deleted_are_told(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("delete h g") == 0
    assert capsys.readouterr().out == "deleted group h\ndeleted group g\n"
    answers = {"g": "OK", "h": "GroupAuthorizationFailedError"}
    monkeypatch.setattr(cluster, "delete_groups", lambda _names: answers)
    with pytest.raises(UserError, match=r"^group 'h': GroupAuthorizationFailedError$"):
        run("delete g h --json")
    assert json.loads(capsys.readouterr().out) == {"deleted": ["g"]}


@pytest.mark.parametrize(
    "line", ["", "lag", "describe", "delete", "reset-offsets g", "reset-offsets --to end"]
)
def test_a_command_without_what_it_needs_is_a_mistake(line: str) -> None:
    with pytest.raises(SystemExit):
        run(line)
