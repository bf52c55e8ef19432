"""Kill -9 while producers work: what was acknowledged is there, in order, and only once.

The producers live through all rounds: they reconnect, retry what was in flight, and the broker must
know their sequence numbers again from its log.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaProducer

from testkit.clients.rdkafka import read
from testkit.wait import eventually

ROUNDS = {"barnabas": 30, "kafka": 6}  # Apache Kafka takes ten times as long to come back
UNLIMITED_S = 600


class Sender(threading.Thread):
    """Sends 0, 1, 2 ... until told to stop; remembers which were acknowledged."""

    def __init__(self, topic: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.sent = 0
        self.acked: list[int] = []
        self.failed: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            if self.sent - len(self.acked) - len(self.failed) < 200:
                self.send(self.sent)
                self.sent += 1
            self.breathe()
        self.finish()

    def send(self, number: int) -> None:
        raise NotImplementedError

    def breathe(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError


class RdKafkaSender(Sender):
    """confluent-kafka; idempotent or not."""

    def __init__(self, bootstrap: str, topic: str, *, idempotent: bool) -> None:
        super().__init__(topic)
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap, "enable.idempotence": idempotent, "acks": "all",
                "linger.ms": 2, "retries": 2147483647, "delivery.timeout.ms": UNLIMITED_S * 1000,
                "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20, "log_level": 0,
            }
        )  # fmt: skip

    def send(self, number: int) -> None:
        def done(error: Any, _: Any) -> None:
            if error:
                self.failed.append(str(error))
            else:
                self.acked.append(number)

        self.producer.produce(self.topic, b"%08d" % number, on_delivery=done)

    def breathe(self) -> None:
        self.producer.poll(0.002)

    def finish(self) -> None:
        self.producer.flush(60)


class KafkaPythonSender(Sender):
    """kafka-python, idempotent by default."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(topic)
        self.producer = KafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=2,
            retries=2147483647, delivery_timeout_ms=UNLIMITED_S * 1000, reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=100, retry_backoff_ms=20, max_block_ms=UNLIMITED_S * 1000,
        )  # fmt: skip

    def send(self, number: int) -> None:
        future = self.producer.send(self.topic, b"%08d" % number)
        future.add_callback(lambda _: self.acked.append(number))
        future.add_errback(lambda error: self.failed.append(repr(error)))

    def breathe(self) -> None:
        time.sleep(0.001)

    def finish(self) -> None:
        self.producer.flush(timeout=60)
        self.producer.close(timeout=10)


def read_whole(bootstrap: str, topic: str) -> list[int]:
    """All values of partition 0; asserts that offsets have no gap."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "verify", "enable.auto.commit": False}
    )
    try:
        place = TopicPartition(topic, 0, 0)
        low, high = consumer.get_watermark_offsets(place, timeout=20)
        assert low == 0
        consumer.assign([place])
        messages = read(consumer, high, timeout_s=60)
    finally:
        consumer.close()
    assert [message.offset() for message in messages] == list(range(high))
    return [int(message.value()) for message in messages]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_thirty_kills_lose_nothing_and_repeat_nothing(
    fresh_broker: Any, topic_name: str, broker_kind: str
) -> None:
    own = fresh_broker()
    where = own.bootstrap_servers
    exactly = [
        RdKafkaSender(where, topic_name + "-rd", idempotent=True),
        KafkaPythonSender(where, topic_name + "-kpy"),
    ]
    at_least = RdKafkaSender(where, topic_name + "-plain", idempotent=False)
    senders: list[Sender] = [*exactly, at_least]
    chance = random.Random(20260101)
    for sender in senders:
        sender.start()
    try:
        for round_ in range(ROUNDS[broker_kind]):
            before = [len(sender.acked) for sender in senders]
            eventually(
                lambda before=before: all(
                    len(s.acked) > b + 20 for s, b in zip(senders, before, strict=True)
                ),
                timeout_s=60, what=f"acknowledgements in round {round_}",
            )  # fmt: skip
            time.sleep(chance.random() * 0.3)  # not a wait: the kill must hit any moment
            own.kill()
            own.start()
            assert own.bootstrap_servers == where
    finally:
        for sender in senders:
            sender.stopping.set()
        for sender in senders:
            sender.join(90)
    for sender in senders:
        assert not sender.is_alive()
        assert not sender.failed, (type(sender).__name__, sender.failed[:3])
        assert len(sender.acked) == sender.sent
    for sender in exactly:
        assert read_whole(where, sender.topic) == list(range(sender.sent)), type(sender).__name__
    stored = read_whole(where, at_least.topic)
    assert set(stored) == set(range(at_least.sent))


def test_topics_configs_groups_and_offsets_survive_a_kill(
    fresh_broker: Any, topic_name: str, group_name: str
) -> None:
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

    own = fresh_broker()
    where = {"bootstrap.servers": own.bootstrap_servers, "log_level": 0}
    admin = AdminClient(where)
    new = NewTopic(topic_name, 3, 1, config={"retention.ms": "98765432"})
    admin.create_topics([new])[topic_name].result(20)
    producer = Producer(where)
    for partition in range(3):
        producer.produce(topic_name, b"v", partition=partition)
    assert producer.flush(20) == 0
    group = {**where, "group.id": group_name, "auto.offset.reset": "earliest"}
    consumer = Consumer({**group, "enable.auto.commit": False})
    consumer.subscribe([topic_name])
    read(consumer, 3)
    consumer.commit(asynchronous=False)
    consumer.close()
    before = admin.list_topics(timeout=10)
    cluster, topic_id = before.cluster_id, _topic_id(admin, topic_name)
    for end in (own.kill, own.stop, own.kill):
        end()
        own.start()
        admin = AdminClient(where)
        after = eventually(lambda admin=admin: admin.list_topics(timeout=5), what="metadata")
        assert after.cluster_id == cluster
        assert len(after.topics[topic_name].partitions) == 3
        assert _topic_id(admin, topic_name) == topic_id
        resource = ConfigResource(ResourceType.TOPIC, topic_name)
        configs = admin.describe_configs([resource])[resource].result(20)
        assert configs["retention.ms"].value == "98765432"
        again = Consumer(group)
        try:
            places = [TopicPartition(topic_name, p) for p in range(3)]
            assert [tp.offset for tp in again.committed(places, timeout=20)] == [1, 1, 1]
        finally:
            again.close()


def _topic_id(admin: Any, topic: str) -> str:
    from confluent_kafka import TopicCollection

    return str(admin.describe_topics(TopicCollection([topic]))[topic].result(10).topic_id)


def test_a_consumer_group_goes_on_after_a_kill(
    fresh_broker: Any, topic_name: str, group_name: str
) -> None:
    own = fresh_broker()
    where = {"bootstrap.servers": own.bootstrap_servers, "log_level": 0}
    quick = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
    producer = Producer({**where, **quick})
    consumer = Consumer(
        {**where, **quick, "group.id": group_name, "auto.offset.reset": "earliest",
         "session.timeout.ms": 6000, "heartbeat.interval.ms": 200}
    )  # fmt: skip
    try:
        producer.produce(topic_name, b"before")
        assert producer.flush(20) == 0
        consumer.subscribe([topic_name])
        assert read(consumer, 1)[0].value() == b"before"
        own.kill()
        own.start()
        producer.produce(topic_name, b"after")
        assert producer.flush(30) == 0
        got: list[bytes] = []

        def arrived() -> bool:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                got.append(message.value())
            return b"after" in got

        eventually(arrived, timeout_s=40, what="the record written after the kill")
    finally:
        consumer.close()
