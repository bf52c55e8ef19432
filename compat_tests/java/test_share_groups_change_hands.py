"""A share group in a data directory that changes hands between the two kinds of node.

What became of its records, and how often each was given out, must be to the one what it was to the
other. Each node is killed; the members of the next are new.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from testkit.brokers.nodes import RunningBroker
from testkit.clients.java_tools import JavaTools
from testkit.clients.share_consumers import Received, ShareConsumers
from testkit.wait import eventually

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC, GROUP = "travels", "travellers"
CONFIG = {
    "node.id": 1, "group.share.heartbeat.interval.ms": 300,
    "group.share.min.heartbeat.interval.ms": 300, "group.share.assignment.interval.ms": 0,
}  # fmt: skip


def take(broker: RunningBroker, kinds: list[str]) -> list[tuple[int, int]]:
    """Offset and delivery count of all that a new member gets; what it says of each."""
    got: list[Received] = []
    with ShareConsumers(broker.bootstrap_servers) as consumers:
        member = consumers.member(TOPIC, GROUP, **{"share.acknowledgement.mode": "explicit"})

        def poll() -> bool:
            got.extend(member.poll(1.0))
            return len(got) >= len(kinds)

        eventually(poll, timeout_s=60, what=f"{len(kinds)} records")
        for record, kind in zip(got, kinds, strict=True):
            member.ack(record, kind)
        assert member.commit() == {0: "ok"}
        member.close()
    return [(record.offset, record.delivery_count) for record in got]


@pytest.mark.parametrize("first", ["kafka", "barnabas"])
def test_a_group_goes_on_where_it_was(
    hands_of: Callable[..., dict[str, Any]], java_tools: JavaTools, first: str
) -> None:
    hands = hands_of(CONFIG)
    one = hands.pop(first)
    (other,) = hands.values()
    if other.kind == "kafka":  # which formats the directory at its first start
        other.start()
        other.stop()
    one.start()
    where = ("--bootstrap-server", one.bootstrap_servers)
    java_tools.run("TopicCommand", *where, "--create", "--topic", TOPIC).ok()
    java_tools.run("ConfigCommand", *where, "--entity-type", "groups", "--entity-name", GROUP,
                   "--alter", "--add-config", "share.auto.offset.reset=earliest").ok()  # fmt: skip
    producer = Producer({"bootstrap.servers": one.bootstrap_servers, "log_level": 0})
    for number in range(6):
        producer.produce(TOPIC, str(number).encode())
        assert producer.flush(30) == 0
    said = ["ACCEPT", "RELEASE", "REJECT", "RELEASE", "ACCEPT", "RELEASE"]
    assert take(one, said) == [(offset, 1) for offset in range(6)]
    one.kill()
    other.start()
    assert take(other, ["RELEASE", "ACCEPT", "RELEASE"]) == [(1, 2), (3, 2), (5, 2)]
    other.kill()
    one.start()
    assert take(one, ["ACCEPT", "ACCEPT"]) == [(1, 3), (5, 3)]
