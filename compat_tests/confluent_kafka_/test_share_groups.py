"""librdkafka's share consumer (a preview in 2.16): what it acknowledges, and how, is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer
from confluent_kafka.admin import AdminClient, ResourceType

from testkit.clients.rdkafka import set_configs

QUICK = {
    "group.share.heartbeat.interval.ms": 200, "group.share.min.heartbeat.interval.ms": 200,
    "group.share.assignment.interval.ms": 0,
    "share.coordinator.state.topic.num.partitions": 1,
}  # fmt: skip
"""A new member knows its partitions after a heartbeat or two: 5 s each by default."""

Delivery = tuple[int, int]
"""A record's number, and for the how many-th time it came."""
Decide = Callable[[int, int], AcknowledgeType]


@pytest.fixture(scope="module")
def broker(make_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """In place of the broker that all share."""
    running = make_broker(tmp_path_factory.mktemp("share-groups"), QUICK)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def configure(admin: AdminClient, group_name: str) -> Callable[..., None]:
    return partial(set_configs, admin, ResourceType.GROUP, group_name)


@pytest.fixture
def new_member(
    bootstrap: str, closing: ExitStack, group_name: str, configure: Callable[..., None]
) -> Callable[..., ShareConsumer]:
    configure({"share.auto.offset.reset": "earliest"})

    def make(topic: str, mode: str = "explicit", **config: Any) -> ShareConsumer:
        member = ShareConsumer(
            {
                "bootstrap.servers": bootstrap, "group.id": group_name, "log_level": 0,
                "share.acknowledgement.mode": mode, **config,
            }
        )  # fmt: skip
        closing.callback(member.close)
        member.subscribe([topic])
        return member

    return make


@pytest.fixture
def fill(new_producer: Any) -> Callable[..., None]:
    """`fill(topic, 10)`: the numbers from 0 on, in turn to the partitions."""

    def send(topic: str, count: int, partitions: int = 1, first: int = 0) -> None:
        producer = new_producer()
        for number in range(first, first + count):
            producer.produce(topic, b"%d" % number, partition=number % partitions)
        assert producer.flush(30) == 0

    return send


def received(members: list[Any], count: int, decide: Decide | None = None) -> list[Delivery]:
    """At least so many deliveries, polled in turns. What is decided of each is acknowledged and
    committed; without `decide` polling on accepts."""
    got: list[Delivery] = []
    deadline = time.monotonic() + 60
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count} came: {got}"
        for member in members:
            messages = list(member.poll(0.1))
            for message in messages:
                assert message.error() is None
                got.append((int(message.value()), message.delivery_count()))
                if decide is not None:
                    member.acknowledge(message, decide(*got[-1]))
            if messages and decide is not None:
                assert set(member.commit_sync(30).values()) == {None}
    return sorted(got)


def once(numbers: range) -> list[Delivery]:
    return [(number, 1) for number in numbers]


def accept(_number: int, _count: int) -> AcknowledgeType:
    return AcknowledgeType.ACCEPT


def release(_number: int, _count: int) -> AcknowledgeType:
    return AcknowledgeType.RELEASE


def test_members_of_one_partition_get_each_record_once(
    make_topic: Any, fill: Any, new_member: Any
) -> None:
    topic = make_topic()
    members = [new_member(topic, "implicit") for _ in range(3)]
    for first in (0, 100, 200):
        fill(topic, 100, first=first)
        assert received(members, 100) == once(range(first, first + 100))
    for member in members:
        member.commit_sync(30)
        member.close()
    fill(topic, 1, first=300)
    assert received([new_member(topic)], 1, accept) == [(300, 1)]


def test_what_is_released_comes_again_and_what_is_rejected_does_not(
    make_topic: Any, fill: Any, new_member: Any
) -> None:
    topic = make_topic(2)
    fill(topic, 10, 2)

    def decide(number: int, count: int) -> AcknowledgeType:
        if number == 5:
            return AcknowledgeType.REJECT
        return AcknowledgeType.RELEASE if number % 3 == 0 and count == 1 else AcknowledgeType.ACCEPT

    again = [(0, 2), (3, 2), (6, 2), (9, 2)]
    assert received([new_member(topic)], 14, decide) == sorted(once(range(10)) + again)
    fill(topic, 1, 2, first=10)
    assert received([new_member(topic)], 1, accept) == [(10, 1)]


def test_what_a_member_has_when_it_leaves_is_another_ones(
    make_topic: Any, fill: Any, new_member: Any
) -> None:
    topic = make_topic()
    fill(topic, 5)
    leaving = new_member(topic)
    deadline = time.monotonic() + 60
    while not (messages := list(leaving.poll(0.5))):
        assert time.monotonic() < deadline
    leaving.acknowledge(messages[0])
    assert set(leaving.commit_sync(30).values()) == {None}
    leaving.close()
    got = received([new_member(topic)], 4, accept)
    assert [number for number, _ in got] == [1, 2, 3, 4]
    assert {count for _, count in got[: len(messages) - 1]} <= {2}


def test_a_record_is_given_up_after_the_groups_limit(
    make_topic: Any, fill: Any, new_member: Any, configure: Any
) -> None:
    configure({"share.delivery.count.limit": 2})
    topic = make_topic()
    fill(topic, 1)
    member = new_member(topic)
    assert received([member], 2, release) == [(0, 1), (0, 2)]
    fill(topic, 1, first=1)
    assert received([member], 1, accept) == [(1, 1)]


def test_a_member_goes_on_after_the_broker_was_killed(
    make_topic: Any, fill: Any, new_member: Any, broker: Any
) -> None:
    topic = make_topic()
    fill(topic, 4)
    member = new_member(topic, **{"reconnect.backoff.max.ms": 200})

    def decide(number: int, count: int) -> AcknowledgeType:
        return release(number, count) if (number, count) == (2, 1) else accept(number, count)

    assert received([member], 5, decide) == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 1)]
    broker.kill()
    broker.start()
    fill(topic, 2, first=4)
    assert received([member], 2, accept) == [(4, 1), (5, 1)]
