"""kafka-consumer-groups: every action and every way to reset offsets."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import pytest

from testkit.clients.java_tools import row_of
from testkit.wait import eventually

pytestmark = pytest.mark.java


def test_groups_are_listed_with_state_and_type(groups: Any, consumed: tuple[str, str]) -> None:
    _, group = consumed
    assert group in groups("--list").ok().splitlines()
    assert re.search(rf"{group} +Empty", groups("--list", "--state").ok())
    assert group in groups("--list", "--state", "empty").ok()
    assert group not in groups("--list", "--state", "stable").ok()
    assert re.search(rf"{group} +Classic", groups("--list", "--type").ok())
    assert group not in groups("--list", "--type", "consumer").ok()


def test_an_empty_group_is_described(groups: Any, consumed: tuple[str, str]) -> None:
    topic, group = consumed
    finished = groups("--describe", "--group", group)
    assert row_of(finished.ok(), topic)[1:6] == [topic, "0", "10", "10", "0"]
    assert f"Consumer group '{group}' has no active members." in finished.err
    state = groups("--describe", "--group", group, "--state").ok()
    assert re.search(rf"{group} +\S+ +\(\d+\) +- +Empty +0", state)
    assert topic in groups("--describe", "--all-groups").ok()


def test_a_group_that_works_shows_its_member(
    groups: Any, produce: Any, staying: Any, topic_name: str, group_name: str
) -> None:
    produce(topic_name, "a")
    with staying(group_name, "--topic", topic_name):
        state = eventually(
            lambda: re.search(
                rf"{group_name} +\S+ +\(\d+\) +range +Stable +1",
                groups("--describe", "--group", group_name, "--state").ok(),
            ),
            what="one member in a stable group",
        )
        assert state
        members = groups("--describe", "--group", group_name, "--members", "--verbose").ok()
        assert re.search(
            rf"{group_name} +console-consumer-\S+ +/127\.0\.0\.1 +console-consumer +1 ", members
        )
        assert f"{topic_name}(0)" in members or f"{topic_name}:0" in members
        refused = groups("--delete", "--group", group_name)
        assert "GroupNotEmptyException" in refused.text
        subscribed = groups("--delete-offsets", "--group", group_name, "--topic", topic_name)
        assert "Successful" not in subscribed.text
        reset = groups("--reset-offsets", "--group", group_name, "--topic", topic_name,
                       "--to-earliest", "--execute")  # fmt: skip
        assert "Stable" in reset.text
        produce(topic_name, "the end")


def test_a_group_is_deleted(groups: Any, consumed: tuple[str, str]) -> None:
    _, group = consumed
    out = groups("--delete", "--group", group).ok()
    assert f"Deletion of requested consumer groups ('{group}') was successful." in out
    assert group not in groups("--list").ok().splitlines()
    assert "not found" in groups("--describe", "--group", group).text
    assert "GroupIdNotFoundException" in groups("--delete", "--group", group).text


def test_offsets_of_one_topic_are_deleted(groups: Any, consumed: tuple[str, str]) -> None:
    topic, group = consumed
    out = groups("--delete-offsets", "--group", group, "--topic", topic).ok()
    assert re.search(rf"{topic} +0 +Successful", out)
    gone = groups("--describe", "--group", group)
    assert f" {topic} " not in gone.out


@pytest.mark.parametrize(
    ("scenario", "start", "expected"),
    [
        (("--to-earliest",), None, 0),
        (("--to-latest",), "--to-earliest", 10),
        (("--to-offset", "4"), None, 4),
        (("--to-offset", "99"), None, 10),
        (("--shift-by", "-3"), None, 7),
        (("--shift-by", "2"), "--to-earliest", 2),
        (("--to-current",), None, 10),
        (("--by-duration", "PT1H"), None, 0),
        (("--to-datetime", "2020-01-01T00:00:00.000"), None, 0),
        (("--to-datetime", "FUTURE"), "--to-earliest", 10),
    ],
)
def test_offsets_are_reset(
    scenario: tuple[str, ...],
    start: str | None,
    expected: int,
    groups: Any,
    consumed: tuple[str, str],
) -> None:
    topic, group = consumed
    tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    scenario = tuple(
        tomorrow.strftime("%Y-%m-%dT%H:%M:%S.000") if word == "FUTURE" else word
        for word in scenario
    )
    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    before = 10
    if start:
        groups(*reset, start, "--execute").ok()
        before = 0
    dry = groups(*reset, *scenario, "--dry-run").ok()
    assert row_of(dry, topic)[1:] == [topic, "0", str(expected)]
    assert row_of(groups("--describe", "--group", group).ok(), topic)[3] == str(before)
    done = groups(*reset, *scenario, "--execute").ok()
    assert row_of(done, topic)[1:] == [topic, "0", str(expected)]
    assert row_of(groups("--describe", "--group", group).ok(), topic)[3] == str(expected)


def test_offsets_are_exported_and_reset_from_the_file(
    groups: Any, consumed: tuple[str, str], tmp_path: Path
) -> None:
    topic, group = consumed
    reset = ("--reset-offsets", "--group", group)
    exported = groups(*reset, "--topic", topic, "--to-offset", "6", "--export", "--dry-run").ok()
    assert exported.strip().replace('"', "") == f"{topic},0,6"
    plan = tmp_path / "offsets.csv"
    plan.write_text(exported)
    groups(*reset, "--from-file", str(plan), "--execute").ok()
    assert row_of(groups("--describe", "--group", group).ok(), topic)[3] == "6"
    all_topics = groups(*reset, "--all-topics", "--to-earliest", "--execute").ok()
    assert row_of(all_topics, topic)[3] == "0"


def test_one_partition_of_a_new_group_is_reset(
    groups: Any, tool: Any, topic_name: str, group_name: str
) -> None:
    tool("TopicCommand", "--create", "--topic", topic_name, "--partitions", "2").ok()
    groups("--reset-offsets", "--group", group_name, "--topic", f"{topic_name}:1",
           "--to-earliest", "--execute").ok()  # fmt: skip
    described = groups("--describe", "--group", group_name).ok()
    assert row_of(described, topic_name)[1:4] == [topic_name, "1", "0"]


def test_groups_of_every_kind_are_listed(tool: Any, consumed: tuple[str, str]) -> None:
    _, group = consumed
    assert re.search(rf"{group} +Classic +consumer", tool("GroupsCommand", "--list").ok())
