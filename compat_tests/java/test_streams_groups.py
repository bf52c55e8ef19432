"""Apache Kafka's own tools with a streams group that Kafka Streams is at work in (KIP-1071).

That its counts are right whoever dies is `test_streams.py`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testkit import jars
from testkit.brokers.nodes import RunningBroker
from testkit.clients.java_tools import Finished
from testkit.require import require
from testkit.wait import eventually
from testkit.workloads.streams import APPLICATION, INTERNAL, SHORT_SESSIONS, SOURCE, CountingWords

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

CONFIG = {
    "group.streams.heartbeat.interval.ms": 300,
    "group.streams.min.heartbeat.interval.ms": 300,
    "group.streams.assignment.interval.ms": 0,
    "group.streams.initial.rebalance.delay.ms": 100,
    **SHORT_SESSIONS,
}
WORDS = 60


@pytest.fixture(scope="module")
def broker(
    make_broker: Callable[..., RunningBroker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    """In place of the shared one."""
    running = make_broker(tmp_path_factory.mktemp("streams-broker"), CONFIG)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def groups(tool: Any) -> Callable[..., str]:
    """`groups("--list")`: what kafka-streams-groups says."""

    def run(*args: str) -> str:
        finished: Finished = tool("StreamsGroupCommand", *args)
        return finished.ok()

    return run


def test_a_group_is_listed_described_reset_and_deleted(
    broker: RunningBroker, groups: Callable[..., str], tool: Any, tmp_path: Path
) -> None:
    try:
        jars.streams_class_path()
    except jars.JarsUnavailable as missing:
        require(False, f"Kafka Streams: {missing}")
    group = ("--group", APPLICATION)
    with CountingWords(broker.bootstrap_servers, tmp_path, replicas=1, protocol="streams") as words:
        words.say(WORDS)
        words.start()
        words.await_all()
        assert APPLICATION in groups("--list").split()
        assert re.search(rf"{APPLICATION} +Stable", groups("--list", "--state"))
        assert re.search(rf"{APPLICATION} +Streams +streams", tool("GroupsCommand", "--list").ok())
        state = groups("--describe", *group, "--state", "--verbose")
        assert "Stable" in state
        members = groups("--describe", *group, "--members")
        assert "ACTIVE: 0:[0,1,2]; 1:[0,1,2];" in members
        eventually(
            lambda: re.search(rf"{SOURCE} +0 +{WORDS // 3} +0", offsets(groups)) or False,
            what="what was read is committed",
        )
        refused = tool("StreamsGroupCommand", "--delete", *group)
        assert "GroupNotEmptyException" in refused.out
        words.kill()
        eventually(
            lambda: "Empty" in groups("--describe", *group, "--state"),
            timeout_s=90, what="the session is over",
        )  # fmt: skip
        to_start = ("--to-earliest", "--input-topic", SOURCE, "--execute")
        reset = groups("--reset-offsets", *group, *to_start)
        assert re.search(rf"{APPLICATION} +{SOURCE} +0 +0", reset)
        groups("--delete", *group, "--delete-all-internal-topics")
        assert APPLICATION not in groups("--list").split()
        topics = tool("TopicCommand", "--list").ok().split()
        assert not set(INTERNAL) & set(topics)


def offsets(groups: Callable[..., str]) -> str:
    return groups("--describe", "--group", APPLICATION, "--offsets", "--verbose")


@pytest.mark.parametrize("first", ["kafka", "barnabas"])
def test_an_application_does_not_notice_who_coordinates(
    hands_of: Callable[..., dict[str, RunningBroker]], tmp_path: Path, first: str
) -> None:
    """One node is killed, and one of the other kind starts on what it left, and back."""
    hands = hands_of({**CONFIG, "node.id": 1})
    second = "barnabas" if first == "kafka" else "kafka"
    one, other = hands[first], hands[second]
    if second == "kafka":  # which formats the directory at its first start
        other.start()
        other.stop()
    one.start()
    with CountingWords(one.bootstrap_servers, tmp_path, replicas=1, protocol="streams") as words:
        words.say(WORDS)
        words.start()
        words.await_all()
        for killed, started in ((one, other), (other, one)):
            killed.kill()
            started.start()
            words.look_again()
            words.say(WORDS)
            words.await_all()
        words.prove()
