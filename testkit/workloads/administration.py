"""An administrator who never rests: topics created anew, records deleted, configs, moves.

    with Administrator(cluster, prefix, chance) as administrator:
        cluster.kill(2)                       # and the administration goes on
        ...
    administrator.prove()                     # after everything is well again

Why: names outlive things. What a topic left behind (checkpoints, producers' state, fetch sessions,
follower offsets) must never be taken for its successor's, and a crash between two steps of a change
is when it would be. How: topics of its own, each with a life (an incarnation) after another under
the same name. Every record says of which life it is and where it was acknowledged, so the end of
the story can be checked: each acknowledged record of the last life is at its offset, nothing of an
earlier life is there, and the log begins where records were deleted up to.

An operation under faults may fail without having failed; every step here is repeated until its
outcome is known (a topic is deleted when all nodes say so), or counted as unknown.
"""

from __future__ import annotations

import random
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka import TopicPartition as Place
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from testkit.brokers.clusters import ClusterOfNodes
from testkit.wait import eventually

PARTITIONS = 2
_PATIENCE_S = 120.0
_CONFIGS = {
    "segment.bytes": ("1048576", "2097152"),
    "max.message.bytes": ("1000000", "2000000"),
    "retention.ms": ("86400000", "-1"),
    "index.interval.bytes": ("512", "4096"),
}


@dataclass(slots=True)
class Life:
    """One incarnation of a topic: what was acknowledged, and what was asked to be deleted."""

    number: int
    acked: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """(partition, offset) -> value."""
    sent: set[bytes] = field(default_factory=set)
    deleted: dict[int, int] = field(default_factory=dict)
    """partition -> low watermark that DeleteRecords was acknowledged with."""
    asked: dict[int, int] = field(default_factory=dict)
    """partition -> the highest offset that any DeleteRecords asked for, acknowledged or not."""


class Administrator:
    """A thread that changes its own topics until the block ends. `done` counts what it did."""

    def __init__(
        self, cluster: ClusterOfNodes, prefix: str, chance: random.Random, topics: int = 3
    ) -> None:
        self._cluster, self._chance = cluster, chance
        self.lives = {f"{prefix}.{index}": Life(0) for index in range(topics)}
        self.done: Counter[str] = Counter()
        self._stop = threading.Event()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="administrator", daemon=True)

    def __enter__(self) -> Administrator:
        for topic in self.lives:
            self._recreate(topic)
            self._write(topic)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        where: TracebackType | None,
    ) -> None:  # fmt: skip
        self._stop.set()
        self._thread.join(_PATIENCE_S + 60)
        if kind is None:
            assert not self._thread.is_alive(), "the administrator hangs"
            assert self._failure is None, self._failure

    def await_more(self, operations: int) -> None:
        """Until so many more operations than now have ended."""
        wanted = self.done.total() + operations

        def reached() -> bool:
            assert self._thread.is_alive() or self._failure is None, self._failure
            return self.done.total() >= wanted or self._failure is not None

        eventually(reached, timeout_s=_PATIENCE_S, what=f"{operations} more operations")
        assert self._failure is None, self._failure

    # ---- what it does

    def _run(self) -> None:
        steps: list[tuple[Callable[[str], None], int]] = [
            (self._write, 4), (self._recreate, 3), (self._delete_records, 3),
            (self._alter_configs, 2), (self._reassign, 2),
        ]  # fmt: skip
        try:
            while not self._stop.is_set():
                (step,) = self._chance.choices(
                    [step for step, _ in steps], [weight for _, weight in steps]
                )
                step(self._chance.choice(sorted(self.lives)))
        except BaseException:
            self._failure = traceback.format_exc()

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._cluster.bootstrap_servers, "log_level": 0})

    def _recreate(self, topic: str) -> None:
        """The topic ends, and begins again under its name with nothing in it.

        Nodes are asked for all topics: who asks for one by its name creates it.
        """
        admin = self._admin()

        def gone() -> bool:
            self._settle(lambda: admin.delete_topics([topic], operation_timeout=5)[topic])
            return all(
                not self._cluster.view(node).topics.get(topic) for node in self._cluster.running()
            )

        def there() -> bool:
            new = NewTopic(topic, PARTITIONS, 3, config={"min.insync.replicas": "2"})
            self._settle(lambda: admin.create_topics([new], operation_timeout=5)[topic])
            parts = [
                self._cluster.view(node).topics.get(topic, []) for node in self._cluster.running()
            ]
            return all(
                len(each) == PARTITIONS and all(p.leader > 0 for p in each) for each in parts
            )

        eventually(gone, timeout_s=_PATIENCE_S, every_s=0.2, what=f"{topic} is gone")
        eventually(there, timeout_s=_PATIENCE_S, every_s=0.2, what=f"{topic} is there again")
        self.lives[topic] = Life(self.lives[topic].number + 1)
        self.done["recreate"] += 1

    @staticmethod
    def _settle(ask: Callable[[], Any]) -> None:
        """Ask, and leave the verdict to what the nodes say afterwards."""
        with suppress(KafkaException, TimeoutError):
            ask().result(15)

    def _write(self, topic: str) -> None:
        """Some hundred records, acknowledged by all in sync; a new client, as after a deploy."""
        life = self.lives[topic]
        producer = Producer(
            {
                "bootstrap.servers": self._cluster.bootstrap_servers, "log_level": 0,
                "enable.idempotence": True, "delivery.timeout.ms": 20_000, "linger.ms": 2,
                "batch.num.messages": 20,
            }
        )  # fmt: skip

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                life.acked[message.partition(), message.offset()] = message.value()

        for _ in range(self._chance.randrange(20, 300)):
            value = f"{topic}/{life.number}/{len(life.sent)}/".encode().ljust(200, b".")
            life.sent.add(value)
            producer.produce(
                topic, value, partition=self._chance.randrange(PARTITIONS), on_delivery=delivered
            )
        producer.flush(30)
        self.done["write"] += 1

    def _delete_records(self, topic: str) -> None:
        life, partition = self.lives[topic], self._chance.randrange(PARTITIONS)
        offsets = [offset for (at, offset) in life.acked if at == partition]
        if not offsets:
            return
        before = self._chance.choice(sorted(offsets)[-50:]) + self._chance.randrange(2)
        life.asked[partition] = max(before, life.asked.get(partition, 0))
        asked = TopicPartition(topic, partition, before)
        admin = self._admin()  # must outlive its answer
        try:
            answer = admin.delete_records([asked], operation_timeout=5)[asked].result(15)
        except (KafkaException, TimeoutError) as unknown:
            self.done[f"delete_records: {unknown}"] += 1
            return
        life.deleted[partition] = max(answer.low_watermark, life.deleted.get(partition, 0))
        self.done["delete_records"] += 1

    def _alter_configs(self, topic: str) -> None:
        key = self._chance.choice(sorted(_CONFIGS))
        value = self._chance.choice([*_CONFIGS[key], None])
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(key, value or "", incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = self._admin()
        self._settle(lambda: admin.incremental_alter_configs([resource])[resource])
        self.done["alter_configs"] += 1

    def _reassign(self, topic: str) -> None:
        """Another order of replicas, or one replica less for a while."""
        nodes = sorted(self._cluster.nodes)
        replicas = self._chance.sample(nodes, self._chance.choice([3, 3, 2]))
        admin = KafkaAdminClient(
            bootstrap_servers=self._cluster.bootstrap_servers.split(","), request_timeout_ms=10_000
        )
        try:
            place = Place(topic, self._chance.randrange(PARTITIONS))
            admin.alter_partition_reassignments({place: replicas})
        except KafkaError as unknown:
            self.done[f"reassign: {unknown}"] += 1
        else:
            self.done["reassign"] += 1
        finally:
            admin.close()

    # ---- what must be true in the end

    def prove(self) -> None:
        """Compare each topic's last life with what is read; all nodes must be well by now."""
        self._cluster.await_full_isr(*self.lives, timeout_s=120)
        for topic, life in self.lives.items():
            for partition in range(PARTITIONS):
                self._prove(topic, partition, life)
        acked = sum(len(life.acked) for life in self.lives.values())
        print(f"administration: {dict(self.done)}; {acked} acknowledged records of the last lives")

    def _prove(self, topic: str, partition: int, life: Life) -> None:
        start, found = read_all(self._cluster.bootstrap_servers, topic, partition)
        where = f"{topic}-{partition}, life {life.number}, begins at {start}"
        assert start >= life.deleted.get(partition, 0), (where, life.deleted)
        assert start <= max(life.asked.get(partition, 0), 0), (where, life.asked)
        strangers = {value for value in found.values() if value not in life.sent}
        assert not strangers, (where, sorted(strangers)[:3])
        missing = {
            offset: value
            for (at, offset), value in life.acked.items()
            if at == partition and offset >= start and found.get(offset) != value
        }
        assert not missing, f"{where}: {len(missing)} acknowledged are missing: {min(missing)}..."


def read_all(bootstrap: str, topic: str, partition: int) -> tuple[int, dict[int, bytes]]:
    """The first offset of a partition, and every record between it and the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "administrator", "log_level": 0,
            "enable.auto.commit": False, "enable.partition.eof": False,
        }
    )  # fmt: skip
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)
        found: dict[int, bytes] = {}
        consumer.assign([TopicPartition(topic, partition, low)])

        def at_end() -> bool:
            for message in consumer.consume(500, 0.5):
                assert message.error() is None, message.error()
                found[message.offset()] = message.value()
            (position,) = consumer.position([TopicPartition(topic, partition)])
            return bool(high == low or position.offset >= high)

        eventually(at_end, timeout_s=60, what=f"{topic}-{partition} read up to {high}")
        return low, found
    finally:
        consumer.close()
