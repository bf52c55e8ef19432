"""A topic is deleted and made again under its name, and the process dies: the new topic's records
are all there, and the old one's are not (L1)."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from testkit.clients.rdkafka import read
from testkit.wait import eventually


class Admin:
    """One broker's topics."""

    def __init__(self, bootstrap: str) -> None:
        self.where = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.client = AdminClient(self.where)

    def create(self, topic: str) -> None:
        eventually(lambda: self._is_created(topic), what=f"creation of {topic}")

    def _is_created(self, topic: str) -> bool:
        """False while its deletion is under way."""
        try:
            self.client.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
        except Exception as error:
            if "already exists" in str(error):
                return False
            raise
        return True

    def delete(self, topic: str) -> None:
        self.client.delete_topics([topic])[topic].result(20)

    def delete_records(self, topic: str, offset: int) -> None:
        place = TopicPartition(topic, 0, offset)
        assert self.client.delete_records([place])[place].result(20).low_watermark == offset

    def fill(self, topic: str, what: str, count: int) -> list[bytes]:
        """What was acknowledged."""
        acked: list[bytes] = []
        producer = Producer({**self.where, "acks": "all"})

        def done(error: Any, message: Any) -> None:
            assert error is None, error
            acked.append(message.value())

        for number in range(count):
            producer.produce(topic, f"{what} {number}".encode(), on_delivery=done)
        assert producer.flush(30) == 0
        return acked

    def contents(self, topic: str, count: int) -> tuple[tuple[int, int], list[bytes]]:
        """(beginning, end) and the values of the records, `count` of which are expected."""
        consumer = Consumer({**self.where, "group.id": topic, "auto.offset.reset": "earliest"})
        try:
            place = TopicPartition(topic, 0)
            bounds = consumer.get_watermark_offsets(place, timeout=20)
            consumer.assign([TopicPartition(topic, 0, 0)])
            return bounds, [message.value() for message in read(consumer, count)]
        finally:
            consumer.close()


@pytest.mark.parametrize("was_stopped", [False, True])
def test_a_topic_made_again_loses_nothing_when_the_process_is_killed(
    fresh_broker: Any, topic_name: str, was_stopped: bool
) -> None:
    own = fresh_broker()
    admin = Admin(own.bootstrap_servers)
    admin.create(topic_name)
    admin.fill(topic_name, "old", 1000)
    admin.delete_records(topic_name, 900)
    if was_stopped:  # the offsets of the old topic are surely on the disk then
        own.stop()
        own.start()
    admin.delete(topic_name)
    admin.create(topic_name)
    acked = admin.fill(topic_name, "new", 500)
    assert len(acked) == 500
    own.kill()
    own.start()
    bounds, found = Admin(own.bootstrap_servers).contents(topic_name, 500)
    assert bounds == (0, 500)
    assert found == acked
