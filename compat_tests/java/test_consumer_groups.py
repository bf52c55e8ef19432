"""Apache Kafka's own clients and tools with the protocol of KIP-848.

The console consumer joins, reads and commits; kafka-consumer-groups and kafka-groups show, reset
and delete what is kept of it.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from testkit.clients.java_tools import row_of
from testkit.wait import eventually

pytestmark = pytest.mark.java


@pytest.fixture
def group_protocol() -> tuple[str, ...]:
    return ("--command-property", "group.protocol=consumer")


def test_groups_are_listed_described_and_deleted(
    tool: Any, groups: Any, consumed: tuple[str, str]
) -> None:
    topic, group = consumed
    assert re.search(rf"{group} +Empty", groups("--list", "--state").ok())
    assert re.search(rf"{group} +Consumer", groups("--list", "--type").ok())
    assert group in groups("--list", "--type", "consumer").ok()
    assert group not in groups("--list", "--type", "classic").ok()
    assert re.search(rf"{group} +Consumer +consumer", tool("GroupsCommand", "--list").ok())
    assert group in tool("GroupsCommand", "--list", "--consumer").ok()
    described = groups("--describe", "--group", group)
    assert row_of(described.ok(), topic)[1:6] == [topic, "0", "10", "10", "0"]
    assert f"Consumer group '{group}' has no active members." in described.err
    state = groups("--describe", "--group", group, "--state").ok()
    assert re.search(rf"{group} +\S+ +\(\d+\) +uniform +Empty +0", state)
    assert group in groups("--describe", "--all-groups").ok()
    done = groups("--delete", "--group", group).ok()
    assert f"Deletion of requested consumer groups ('{group}') was successful." in done
    assert "not found" in groups("--describe", "--group", group).text


def test_a_group_that_works_shows_its_member(
    groups: Any, produce: Any, staying: Any, topic_name: str, group_name: str
) -> None:
    produce(topic_name, "a")
    with staying(group_name, "--topic", topic_name):
        eventually(
            lambda: re.search(
                rf"{group_name} +\S+ +\(\d+\) +uniform +Stable +1",
                groups("--describe", "--group", group_name, "--state").ok(),
            ),
            what="one member in a stable group",
        )
        members = groups("--describe", "--group", group_name, "--members", "--verbose").ok()
        assert re.search(
            rf"{group_name} +\S+ +/127\.0\.0\.1 +console-consumer +1 .*{topic_name}", members
        )
        assert "GroupNotEmptyException" in groups("--delete", "--group", group_name).text
        kept = groups("--delete-offsets", "--group", group_name, "--topic", topic_name)
        assert "Successful" not in kept.text
        reset = groups("--reset-offsets", "--group", group_name, "--topic", topic_name,
                       "--to-earliest", "--execute")  # fmt: skip
        assert "Stable" in reset.text
        produce(topic_name, "the end")


def test_offsets_are_reset_and_deleted(groups: Any, consumed: tuple[str, str]) -> None:
    topic, group = consumed
    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    for scenario, expected in (
        (("--to-earliest",), "0"), (("--to-offset", "4"), "4"), (("--shift-by", "3"), "7"),
        (("--to-latest",), "10"), (("--by-duration", "PT1H"), "0"), (("--to-current",), "0"),
    ):  # fmt: skip
        done = groups(*reset, *scenario, "--execute").ok()
        assert row_of(done, topic)[1:] == [topic, "0", expected]
        assert row_of(groups("--describe", "--group", group).ok(), topic)[3] == expected
    out = groups("--delete-offsets", "--group", group, "--topic", topic).ok()
    assert re.search(rf"{topic} +0 +Successful", out)


def test_a_pattern_is_matched_and_an_assignor_chosen(
    groups: Any, produce: Any, staying: Any, topic_name: str, group_name: str
) -> None:
    produce(topic_name, "a")
    own = ("--include", f"{topic_name[:-1]}.", "--command-property", "group.remote.assignor=range")
    with staying(group_name, *own):
        eventually(
            lambda: re.search(
                rf"{group_name} +\S+ +\(\d+\) +range +Stable +1",
                groups("--describe", "--group", group_name, "--state").ok(),
            ),
            what="a member that has the topic",
        )
        produce(topic_name, "the end")


def test_a_group_has_its_own_times(tool: Any, group_name: str) -> None:
    where = ("--entity-type", "groups", "--entity-name", group_name)
    tool("ConfigCommand", *where, "--alter", "--add-config",
         "consumer.heartbeat.interval.ms=6000,consumer.session.timeout.ms=50000").ok()  # fmt: skip
    shown = tool("ConfigCommand", *where, "--describe").ok()
    assert "consumer.heartbeat.interval.ms=6000" in shown
    refused = tool("ConfigCommand", *where, "--alter", "--add-config",
                   "consumer.session.timeout.ms=1")  # fmt: skip
    assert "InvalidConfigurationException" in refused.text
