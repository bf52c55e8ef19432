"""Copying records exactly once over three brokers, while these are killed and paused.

Two copiers share a group: each reads a few records, writes them to another topic and commits its
positions in the same transaction; some they abort on purpose. What was copied in the end is what
was there, each record once: a position that counted without its records would lose some, records
without their position would double some.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.support.clusters import ClusterOfNodes
from compat_tests.support.rounds import TIMEOUT_S
from compat_tests.support.wait import eventually
from compat_tests.support.workload import wait

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

PARTITIONS = 3
OFFSETS_TOPIC = "__consumer_offsets"
STATE_TOPIC = "__transaction_state"
SESSION_S = 3.0
PAUSE_S = 5.0


class Copier:
    """Copies from `source` to `target` on a thread until it is stopped."""

    def __init__(self, cluster: ClusterOfNodes, name: str, source: str, target: str) -> None:
        self.committed = 0
        """Records whose transaction the copier knows to be committed."""
        self._bootstrap = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2}
        self._name, self._source, self._target = name, source, target
        self._chance = random.Random(name)
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Copier:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "a transaction did not end"
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                # A failure costs a life: the next one begins where the group's offsets say.
                with suppress(KafkaException):
                    self._live()
        except BaseException as failure:
            self._failure = failure

    def _live(self) -> None:
        producer = Producer(
            {
                **self._bootstrap,
                "transactional.id": self._name,
                "transaction.timeout.ms": 10_000,
            }
        )
        _until_done(lambda: producer.init_transactions(10))
        consumer = Consumer(
            {
                **self._bootstrap,
                "group.id": f"copiers of {self._source}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
            }
        )
        try:
            consumer.subscribe([self._source])
            while not self._is_over.is_set():
                if not self._copy_some(producer, consumer):
                    return
        finally:
            consumer.close()

    def _copy_some(self, producer: Producer, consumer: Consumer) -> bool:
        """One transaction; False if it was aborted, and the consumer is too far on."""
        messages = [m for m in consumer.consume(40, timeout=0.2) if m.error() is None]
        if not messages:
            return True
        producer.begin_transaction()
        for message in messages:
            producer.produce(self._target, message.value(), partition=message.partition())
        ends = {m.partition(): m.offset() + 1 for m in messages}
        positions = [TopicPartition(self._source, at, end) for at, end in ends.items()]
        try:
            _until_done(
                lambda: producer.send_offsets_to_transaction(
                    positions, consumer.consumer_group_metadata(), 10
                )
            )
            if self._chance.random() < 0.2:
                _until_done(lambda: producer.abort_transaction(10))
                return False
            _until_done(lambda: producer.commit_transaction(10))
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
            _until_done(lambda: producer.abort_transaction(10))
            return False
        self.committed += len(messages)
        return True


def _until_done(call: Callable[[], object]) -> None:
    """Repeat what may be repeated, as librdkafka's users are told to."""
    deadline = time.monotonic() + 90
    while True:
        try:
            call()
            return
        except KafkaException as failed:
            if not failed.args[0].retriable() or time.monotonic() > deadline:
                raise


class Source:
    """Fills a topic with numbers while the copiers are at it, as many as it is told to."""

    def __init__(self, cluster: ClusterOfNodes, topic: str) -> None:
        self.count = 0
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "log_level": 2,
            }
        )

    def add(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(
                self._topic, str(self.count).encode(), partition=self.count % PARTITIONS
            )
            self.count += 1
        assert self._producer.flush(60) == 0


def create(cluster: ClusterOfNodes, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    new = [NewTopic(topic, num_partitions=PARTITIONS, replication_factor=3) for topic in topics]
    for created in admin.create_topics(new).values():
        created.result(30)


def copied(cluster: ClusterOfNodes, topic: str) -> list[list[int]]:
    """What a read_committed consumer finds in each partition, once nothing is open any more."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "readers",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    parts = [TopicPartition(topic, index, 0) for index in range(PARTITIONS)]
    consumer.assign(parts)
    ends = [consumer.get_watermark_offsets(part, timeout=30)[1] for part in parts]

    def is_read() -> bool:
        for message in consumer.consume(500, timeout=0.5):
            assert message.error() is None, message.error()
            found[message.partition()].append(int(message.value()))
        return all(at.offset >= end for at, end in zip(consumer.position(parts), ends, strict=True))

    try:
        eventually(is_read, timeout_s=60, what="every transaction has its markers")
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_copy_is_exact_whoever_dies_or_hangs(
    make_cluster: Callable[..., ClusterOfNodes],
    topic_name: str,
    rounds: Callable[[int], int],
    fault: str,
) -> None:
    cluster = make_cluster(
        {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
    )
    target = topic_name + "-copy"
    create(cluster, topic_name, target)
    source = Source(cluster, topic_name)
    source.add(600)
    chance = random.Random(11)

    def await_copied(copiers: list[Copier], count: int) -> None:
        eventually(
            lambda: sum(copier.committed for copier in copiers) >= count,
            timeout_s=120, what="the copy goes on",
        )  # fmt: skip

    with Copier(cluster, "one", topic_name, target) as one, \
            Copier(cluster, "two", topic_name, target) as two:  # fmt: skip
        copiers = [one, two]
        await_copied(copiers, 100)
        for _ in range(rounds(2)):
            for topic in (OFFSETS_TOPIC, STATE_TOPIC, target):
                partition = chance.randrange(PARTITIONS) if topic == target else 0
                victim = cluster.leader(topic, partition)
                before = one.committed + two.committed
                # Back before progress is asked for: librdkafka knows a group's coordinator for
                # minutes, and waits for one that is dead, be there another or not.
                if fault == "kill":
                    cluster.kill(victim)
                    wait(SESSION_S + chance.random())
                    cluster.restart(victim)
                else:
                    cluster.pause(victim)
                    wait(PAUSE_S)
                    cluster.resume(victim)
                source.add(300)
                await_copied(copiers, before + 100)
                cluster.await_full_isr(topic_name, target, OFFSETS_TOPIC, STATE_TOPIC)
        eventually(
            lambda: sum(map(len, copied(cluster, target))) >= source.count,
            timeout_s=180, what="everything is copied",
        )  # fmt: skip
    found = copied(cluster, target)
    for index, numbers in enumerate(found):
        assert sorted(numbers) == list(range(index, source.count, PARTITIONS)), "lost or doubled"
