"""Transactions of librdkafka that begin and end for as long as a test lasts, and their proof.

A producer writes its transaction's number to each partition and commits, or aborts on purpose. What
a read_committed consumer finds in the end: each committed number once in every partition, no
aborted one anywhere, and one whose fate the producer never heard in all partitions or in none.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from testkit.brokers.clusters import ClusterOfNodes
from testkit.clients.rdkafka import until_done
from testkit.wait import eventually

PARTITIONS = 6
STATE_TOPIC = "__transaction_state"
COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"


class Transactions:
    """One transactional id that begins and ends transactions on a thread until it is stopped.

    Each writes to all `partitions` of the topic.
    """

    def __init__(
        self,
        cluster: ClusterOfNodes,
        transactional_id: str,
        topic: str,
        partitions: Sequence[int] = range(PARTITIONS),
    ) -> None:
        self.fates: dict[int, str] = {}
        self.topic = topic
        self.partitions = partitions
        self._config = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 10_000,
            "log_level": 2,
        }
        self._chance = random.Random(transactional_id)
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=transactional_id, daemon=True)

    @property
    def ended(self) -> int:
        return len(self.fates)

    def __repr__(self) -> str:
        fates = list(self.fates.values())
        counts = (f"{fates.count(fate)} {fate}" for fate in (COMMITTED, ABORTED, UNKNOWN))
        return f"{len(fates)} transactions: {', '.join(counts)}"

    def __enter__(self) -> Transactions:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "a transaction did not end"
        if self._failure is not None:
            raise self._failure

    def await_more(self, count: int, timeout_s: float = 60) -> None:
        wanted = self.ended + count
        eventually(lambda: self.ended >= wanted, timeout_s=timeout_s, what="transactions go on")

    def _run(self) -> None:
        try:
            producer, number = self._new_producer(), 0
            while not self._is_over.is_set():
                number += 1
                try:
                    self.fates[number] = self._transaction(producer, number)
                except KafkaException as failed:
                    # Fenced, or the client gave up: a new one begins by ending what is open.
                    if not (failed.args[0].fatal() or failed.args[0].retriable()):
                        raise
                    self.fates[number] = UNKNOWN
                    producer = self._new_producer()
        except BaseException as failure:
            self._failure = failure

    def _new_producer(self) -> Producer:
        producer = Producer(self._config)
        self._until_done(lambda: producer.init_transactions(10))
        return producer

    def _transaction(self, producer: Producer, number: int) -> str:
        producer.begin_transaction()
        for partition in self.partitions:
            producer.produce(self.topic, str(number).encode(), partition=partition)
        if self._chance.random() < 0.3:
            self._until_done(lambda: producer.abort_transaction(10))
            return ABORTED
        try:
            self._until_done(lambda: producer.commit_transaction(10))
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
            self._until_done(lambda: producer.abort_transaction(10))
            return ABORTED
        return COMMITTED

    def _until_done(self, call: Callable[[], object]) -> None:
        until_done(call, time.monotonic() + 90)

    def prove(self, read: list[list[int]]) -> None:
        """`read`: what is in each partition of the topic, in order."""
        read = [read[partition] for partition in self.partitions]
        for numbers in read:
            assert numbers == sorted(set(numbers)), "doubled or out of order"
        committed = {number for number, fate in self.fates.items() if fate == COMMITTED}
        aborted = {number for number, fate in self.fates.items() if fate == ABORTED}
        whole, any_ = set.intersection(*map(set, read)), set.union(*map(set, read))
        assert whole == any_, f"half committed: {sorted(any_ - whole)}"
        assert committed <= whole, f"lost: {sorted(committed - whole)}"
        assert not aborted & any_, f"aborted, yet read: {sorted(aborted & any_)}"


def coordinator_of(cluster: ClusterOfNodes, transactional_id: str) -> int:
    """The node that leads the id's partition of __transaction_state."""
    partitions = len(cluster.view(cluster.running()[0], STATE_TOPIC).topics[STATE_TOPIC])
    code = 0
    for character in transactional_id:  # Java's String.hashCode
        code = (31 * code + ord(character)) & 0xFFFF_FFFF
    signed = code - (1 << 32) if code >> 31 else code
    return cluster.leader(STATE_TOPIC, abs(signed) % partitions)


def create(cluster: ClusterOfNodes, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    new = NewTopic(topic, num_partitions=PARTITIONS, replication_factor=3)
    admin.create_topics([new])[topic].result(30)
    leaders = {cluster.leader(topic, partition) for partition in range(PARTITIONS)}
    assert leaders == set(cluster.nodes), "markers have to travel"


def read_committed(cluster: ClusterOfNodes, topic: str) -> list[list[int]]:
    """Everything in each partition, once nothing is open any more."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "readers",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=30)[1]
        for index in range(PARTITIONS)
    ]

    def is_read() -> bool:
        for message in consumer.consume(500, timeout=0.5):
            assert message.error() is None, message.error()
            found[message.partition()].append(int(message.value()))
        here = consumer.position([TopicPartition(topic, index) for index in range(PARTITIONS)])
        return all(not end or at.offset >= end for at, end in zip(here, ends, strict=True))

    try:
        eventually(is_read, timeout_s=60, what="every transaction has its markers")
    finally:
        consumer.close()
    return found
