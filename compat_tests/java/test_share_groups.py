"""Apache Kafka's own share consumer and tools with share groups (KIP-932).

Members join in heartbeats, five seconds apart by default; the broker of these tests asks for more.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testkit.brokers.nodes import RunningBroker
from testkit.clients.java_tools import Finished
from testkit.clients.share_consumers import Received, ShareClientError, ShareConsumers, ShareMember
from testkit.wait import eventually

pytestmark = pytest.mark.java

LOCK_MS = 2_000
CONFIG = {
    "group.share.heartbeat.interval.ms": 300,
    "group.share.min.heartbeat.interval.ms": 300,
    "group.share.assignment.interval.ms": 0,
    "group.share.record.lock.duration.ms": LOCK_MS,
    "group.share.min.record.lock.duration.ms": LOCK_MS,
}
EXPLICIT = {"share.acknowledgement.mode": "explicit"}


@pytest.fixture(scope="module")
def broker(
    make_broker: Callable[..., RunningBroker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    """In place of the shared one."""
    running = make_broker(tmp_path_factory.mktemp("share-broker"), CONFIG)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def consumers(broker: RunningBroker) -> Iterator[ShareConsumers]:
    with ShareConsumers(broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def groups(tool: Any) -> Callable[..., Finished]:
    def run(*args: str) -> Any:
        return tool("ShareGroupCommand", *args)

    return run


@pytest.fixture
def from_earliest(tool: Any, group_name: str) -> str:
    """A group that begins where its topics do."""
    set_config(tool, group_name, "share.auto.offset.reset=earliest")
    return group_name


def set_config(tool: Any, group: str, configs: str) -> None:
    tool("ConfigCommand", "--entity-type", "groups", "--entity-name", group, "--alter",
         "--add-config", configs).ok()  # fmt: skip


def poll_until(member: ShareMember, count: int, timeout_s: float = 30.0) -> list[Received]:
    """So many records, of one poll or several."""
    found: list[Received] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"{count} records were awaited: {found}"
        found += member.poll()
    return found


def told(records: list[Received]) -> list[tuple[int, int]]:
    """Offset and delivery count of each."""
    return [(record.offset, record.delivery_count) for record in records]


def row_of(text: str, topic: str) -> list[str]:
    (row,) = [line.split() for line in text.splitlines() if re.search(rf"\S+ +{topic} +\d", line)]
    return row


def offsets_of(groups: Any, group: str, topic: str) -> list[str]:
    """Start offset and lag of the topic's one partition."""
    return row_of(groups("--describe", "--group", group).ok(), topic)[3:]


# ---- acknowledgement


def test_records_are_accepted_by_the_next_poll(
    consumers: ShareConsumers, produce: Any, groups: Any, topic_name: str, from_earliest: str
) -> None:
    produce(topic_name, "a", "b", "c")
    member = consumers.member(topic_name, from_earliest)
    got = poll_until(member, 3)
    assert [record.value for record in got] == ["a", "b", "c"]
    assert told(got) == [(0, 1), (1, 1), (2, 1)]
    assert member.poll(0.5) == []
    eventually(
        lambda: offsets_of(groups, from_earliest, topic_name)[-1] == "0", what="nothing is left"
    )
    member.close()


def test_what_is_said_of_each_record_holds(
    consumers: ShareConsumers, produce: Any, topic_name: str, from_earliest: str
) -> None:
    produce(topic_name, *"abcd")
    member = consumers.member(topic_name, from_earliest, **EXPLICIT)
    got = poll_until(member, 4)
    for record, kind in zip(got, ("ACCEPT", "RELEASE", "REJECT", "RELEASE"), strict=True):
        member.ack(record, kind)
    assert member.commit() == {0: "ok"}
    again = poll_until(member, 2)
    assert told(again) == [(1, 2), (3, 2)]
    for record in again:
        member.ack(record)
    assert member.commit() == {0: "ok"}
    assert member.poll(0.5) == []
    member.close()


def test_a_record_that_is_always_released_is_given_up(
    consumers: ShareConsumers, produce: Any, topic_name: str, from_earliest: str
) -> None:
    produce(topic_name, "poison")
    member = consumers.member(topic_name, from_earliest, **EXPLICIT)
    for count in range(1, 6):
        (record,) = poll_until(member, 1)
        assert record.delivery_count == count
        member.ack(record, "RELEASE")
        assert member.commit() == {0: "ok"}
    assert member.poll(1.0) == []
    produce(topic_name, "next")
    (record,) = poll_until(member, 1)
    assert (record.offset, record.delivery_count) == (1, 1)
    member.ack(record)
    member.close()


def test_a_lock_that_runs_out_gives_the_record_to_another_member(
    consumers: ShareConsumers, produce: Any, topic_name: str, from_earliest: str
) -> None:
    produce(topic_name, "a")
    slow = consumers.member(topic_name, from_earliest, **EXPLICIT)
    (record,) = poll_until(slow, 1)
    other = consumers.member(topic_name, from_earliest, **EXPLICIT)
    (again,) = poll_until(other, 1)
    assert told([again]) == [(0, 2)]
    slow.ack(record)
    assert slow.commit() == {0: "InvalidRecordStateException"}
    other.ack(again)
    assert other.commit() == {0: "ok"}
    slow.close()
    other.close()


def test_a_renewed_lock_holds(
    consumers: ShareConsumers, produce: Any, topic_name: str, from_earliest: str
) -> None:
    produce(topic_name, "a")
    member = consumers.member(topic_name, from_earliest, **EXPLICIT)
    other = consumers.member(topic_name, from_earliest, **EXPLICIT)
    (record,) = poll_until(member, 1)
    end = time.monotonic() + 2 * LOCK_MS / 1_000
    while time.monotonic() < end:
        member.ack(record, "RENEW")
        assert member.commit() == {0: "ok"}
        assert other.poll(LOCK_MS / 4_000) == []
        member.poll(0.1)
    member.ack(record)
    assert member.commit() == {0: "ok"}
    assert other.poll(LOCK_MS / 1_000) == []
    member.close()
    other.close()


def test_who_leaves_gives_its_records_back(
    consumers: ShareConsumers, produce: Any, topic_name: str, from_earliest: str
) -> None:
    produce(topic_name, "a", "b")
    member = consumers.member(topic_name, from_earliest, **EXPLICIT)
    first, _ = poll_until(member, 2)
    member.ack(first)
    member.close()
    after = consumers.member(topic_name, from_earliest, **EXPLICIT)
    assert told(poll_until(after, 1)) == [(1, 2)]
    after.close()


def test_the_records_of_a_killed_client_come_at_once(
    broker: RunningBroker, consumers: ShareConsumers, produce: Any, topic_name: str, tool: Any,
    from_earliest: str,
) -> None:  # fmt: skip
    """Its lock would last for a minute."""
    set_config(tool, from_earliest, "share.record.lock.duration.ms=60000")
    produce(topic_name, "a")
    with ShareConsumers(broker.bootstrap_servers) as others:
        victim = others.member(topic_name, from_earliest, **EXPLICIT)
        assert told(poll_until(victim, 1)) == [(0, 1)]
    heir = consumers.member(topic_name, from_earliest)
    assert told(poll_until(heir, 1)) == [(0, 2)]
    heir.close()


# ---- members


def test_members_share_a_partition(
    consumers: ShareConsumers, produce: Any, groups: Any, tool: Any, topic_name: str,
    from_earliest: str,
) -> None:  # fmt: skip
    """Three members, one partition: each record is one member's."""
    tool("TopicCommand", "--create", "--topic", topic_name, "--partitions", "1").ok()
    members = [
        consumers.member(topic_name, from_earliest, **{"max.poll.records": 10}) for _ in range(3)
    ]
    for member in members:
        member.poll(0.1)
    eventually(
        lambda: len(re.findall(rf"1 +{topic_name}:0", _members(groups, from_earliest))) == 3,
        what="all have the partition",
    )
    seen: list[list[Received]] = [[], [], []]
    for number in range(10):
        produce(topic_name, *(f"{number}-{i}" for i in range(20)))
        for member, got in zip(members, seen, strict=True):
            got += member.poll(0.2)
    deadline = time.monotonic() + 30
    while sum(map(len, seen)) < 200:
        assert time.monotonic() < deadline, "200 records were awaited"
        for member, got in zip(members, seen, strict=True):
            got += member.poll(0.2)
    assert sorted(record.offset for got in seen for record in got) == list(range(200))
    assert min(map(len, seen)) > 0
    for member in members:
        member.close()


def _members(groups: Any, group: str) -> str:
    return str(groups("--describe", "--group", group, "--members").ok())


def test_committed_readers_wait_for_the_end_of_transactions(
    consumers: ShareConsumers, produce: Any, topic_name: str, tool: Any, from_earliest: str,
    bootstrap: str,
) -> None:  # fmt: skip
    from confluent_kafka import Producer

    set_config(tool, from_earliest, "share.isolation.level=read_committed")
    produce(topic_name, "before")
    member = consumers.member(topic_name, from_earliest)
    assert [r.value for r in poll_until(member, 1)] == ["before"]
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic_name})
    producer.init_transactions(30)
    for outcome in ("aborted", "committed"):
        producer.begin_transaction()
        producer.produce(topic_name, outcome.encode())
        assert producer.flush(30) == 0
        assert member.poll(0.5) == []
        if outcome == "aborted":
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    assert [r.value for r in poll_until(member, 1)] == ["committed"]
    member.close()


# ---- tools


def test_the_console_consumer_accepts_rejects_and_releases(
    tool: Any, produce: Any, groups: Any, topic_name: str, from_earliest: str
) -> None:
    produce(topic_name, *"abc")

    def consume(count: int, *args: str) -> list[str]:
        where = ("--topic", topic_name, "--group", from_earliest)
        how = ("--timeout-ms", "20000", "--formatter-property", "print.delivery=true")
        done = tool("ConsoleShareConsumer", *where, *how, "--max-messages", str(count), *args)
        return list(done.ok().splitlines())

    assert consume(3, "--release") == [f"Delivery:1\t{value}" for value in "abc"]
    assert consume(1, "--reject") == ["Delivery:2\ta"]
    eventually(
        lambda: offsets_of(groups, from_earliest, topic_name)[-1] == "2", what="two are left"
    )
    counts = {line.split("\t")[1]: line.split("\t")[0] for line in consume(2)}
    assert sorted(counts) == ["b", "c"]
    eventually(
        lambda: offsets_of(groups, from_earliest, topic_name)[-1] == "0", what="nothing is left"
    )


@pytest.mark.parametrize("mode", ["auto", "sync", "async"])
def test_the_verifiable_consumer_acknowledges_everything(
    tool: Any, produce: Any, groups: Any, topic_name: str, group_name: str, mode: str
) -> None:
    produce(topic_name, *(str(i) for i in range(100)))
    done = tool("VerifiableShareConsumer", "--topic", topic_name, "--group-id", group_name,
                "--max-messages", "100", "--acknowledgement-mode", mode,
                "--offset-reset-strategy", "earliest")  # fmt: skip
    events = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    counts = {"records_consumed": 0, "offsets_acknowledged": 0}
    for event in events:
        if event["name"] in counts:
            counts[event["name"]] += event["count"]
            assert event.get("success", True), event
    assert counts == {"records_consumed": 100, "offsets_acknowledged": 100}
    eventually(lambda: offsets_of(groups, group_name, topic_name)[-1] == "0", what="nothing left")


def test_groups_are_listed_described_and_deleted(
    tool: Any, groups: Any, produce: Any, consumers: ShareConsumers, topic_name: str,
    from_earliest: str,
) -> None:  # fmt: skip
    group = from_earliest
    produce(topic_name, *"abc")
    member = consumers.member(topic_name, group, **EXPLICIT)
    poll_until(member, 3)
    assert re.search(rf"{group} +Stable", groups("--list", "--state").ok())
    assert group in groups("--list", "--state", "stable").ok()
    assert group not in groups("--list", "--state", "empty").ok()
    assert re.search(rf"{group} +Share +share", tool("GroupsCommand", "--list").ok())
    assert group in tool("GroupsCommand", "--list", "--share").ok()
    state = groups("--describe", "--group", group, "--state", "--verbose").ok()
    assert re.search(rf"{group} +\S+ +\(\d+\) +Stable +\d+ +\d+ +1", state)
    described = groups("--describe", "--group", group, "--members", "--verbose").ok()
    assert re.search(
        rf"{group} +\S+ +/127\.0\.0\.1 +{member.name} +1 +\d+ +{topic_name}:0", described
    )
    assert "is not EMPTY" in groups("--delete", "--group", group).text
    reset = ("--reset-offsets", "--group", group, "--topic", topic_name, "--to-earliest")
    assert "is not empty" in groups(*reset, "--execute").text
    assert (
        "Successful" not in groups("--delete-offsets", "--group", group, "--topic", topic_name).text
    )
    member.close()
    assert re.search(rf"{group} +Empty", groups("--list", "--state").ok())
    assert "has no active members" in groups("--describe", "--group", group, "--members").text
    assert group in groups("--describe", "--all-groups").ok()
    done = groups("--delete", "--group", group).ok()
    assert f"Deletion of requested share groups ('{group}') was successful." in done
    assert group not in groups("--list").ok()
    assert "not found" in groups("--describe", "--group", group).text


def test_offsets_are_reset_and_deleted(
    tool: Any, groups: Any, produce: Any, consumers: ShareConsumers, topic_name: str,
    from_earliest: str,
) -> None:  # fmt: skip
    group = from_earliest
    produce(topic_name, *"abc")
    member = consumers.member(topic_name, group)
    poll_until(member, 3)
    assert member.poll(0.5) == []
    member.close()
    assert offsets_of(groups, group, topic_name)[-1] == "0"
    reset = ("--reset-offsets", "--group", group, "--topic", topic_name)
    assert row_of(groups(*reset, "--to-earliest", "--dry-run").ok(), topic_name)[-1] == "0"
    assert offsets_of(groups, group, topic_name)[-1] == "0"
    for scenario, start, lag in (
        (("--to-earliest",), "0", "3"),
        (("--to-latest",), "3", "0"),
        (("--to-datetime", "2020-01-01T00:00:00.000"), "0", "3"),
    ):
        done = groups(*reset, *scenario, "--execute").ok()
        assert row_of(done, topic_name)[-1] == start
        assert offsets_of(groups, group, topic_name) == [start, lag]
    again = consumers.member(topic_name, group)
    assert told(poll_until(again, 3)) == [(0, 1), (1, 1), (2, 1)]
    again.close()
    out = groups("--delete-offsets", "--group", group, "--topic", topic_name).ok()
    assert re.search(rf"{topic_name} +Successful", out)
    assert topic_name not in groups("--describe", "--group", group).text
    new = f"{group}-new"
    assert row_of(groups(*reset[:2], new, *reset[3:], "--to-latest", "--execute").ok(), topic_name)
    assert offsets_of(groups, new, topic_name) == ["3", "0"]


def test_a_group_of_another_kind_is_refused(
    consumers: ShareConsumers, produce: Any, consume: Any, topic_name: str, group_name: str
) -> None:
    produce(topic_name, "a")
    assert consume(topic_name, 1, "--group", group_name) == ["a"]
    member = consumers.member(topic_name, group_name)
    with pytest.raises(ShareClientError, match="GroupIdNotFoundException"):
        poll_until(member, 1)
    member.close()
