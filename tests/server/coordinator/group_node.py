"""A broker of one with its coordinators on real logs; metadata, markers and time by hand."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from replication.metadata.image import (
    EMPTY_IMAGE,
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from replication.replicas.replica_manager import ReplicaManager, ReplicaManagerConfig
from replication.replicas.timer import Timer
from replication.replicas.transaction_verification import (
    TransactionalProducer,
    TransactionOperation,
    TransactionVerification,
)
from server.coordinator.group_coordinator import GroupCoordinator
from server.coordinator.runtime import Surroundings
from server.coordinator.transaction_markers import TxnMarker, TxnMarkers
from server.coordinator.transactions.config import TransactionConfig
from server.coordinator.transactions.coordinator import TransactionCoordinator
from storage.config import LogConfig
from storage.directories.log_manager import LogManager
from testkit.clock import ManualClock
from tests.server.coordinator.group_support import Answer, config
from wire.errors import KafkaError
from wire.messages.admin import CreateTopicsRequest, CreateTopicsResponse
from wire.messages.groups import OffsetCommitRequest, OffsetFetchRequest
from wire.messages.quorum import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from wire.messages.transactions import TxnOffsetCommitRequest


class Markers:
    """Keeps the markers of transactions until the test says that they are written."""

    def __init__(self) -> None:
        self.sent: list[tuple[TxnMarkers, Callable[[], None]]] = []

    def send(self, markers: TxnMarkers, on_done: Callable[[], None]) -> None:
        self.sent.append((markers, on_done))

    def forget(self, coordinator_partition: int, coordinator_epoch: int) -> None:
        self.sent = [
            (markers, on_done)
            for markers, on_done in self.sent
            if markers.coordinator_partition != coordinator_partition
            or markers.coordinator_epoch > coordinator_epoch
        ]

    def written(self) -> TxnMarkers:
        """The oldest are in all partitions."""
        markers, on_done = self.sent.pop(0)
        on_done()
        return markers


class Controller:
    """Creates topics when the test lets it, and gives producer ids."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.requests: list[tuple[CreateTopicsRequest, Callable[[object], None]]] = []
        self.is_slow = False
        self.error = 0
        self.next_producer_id = 1_000
        self.is_giving = True
        self.asked_for_ids: list[Callable[[object], None]] = []

    def submit(
        self, request: Any, on_complete: Callable[[object], None], *, context: object
    ) -> None:
        if isinstance(request, AllocateProducerIdsRequest):
            self.asked_for_ids.append(on_complete)
            if self.is_giving:
                self.give()
            return
        self.requests.append((request, on_complete))
        if not self.is_slow:
            self.run()

    def run(self) -> None:
        request, on_complete = self.requests[-1]
        (topic,) = request.topics
        if not self.error:
            self.node.create(topic.name, topic.num_partitions)
        answer = CreateTopicsResponse.Topic(
            name=topic.name, error_code=self.error, error_message=None
        )
        on_complete(CreateTopicsResponse(topics=[answer]))

    def give(self, error: KafkaError | None = None) -> None:
        """Answer who asked for producer ids."""
        start, self.next_producer_id = self.next_producer_id, self.next_producer_id + 1_000
        block = AllocateProducerIdsResponse(
            error_code=0, producer_id_start=start, producer_id_len=1_000
        )
        self.asked_for_ids.pop(0)(error or block)


class Verifier:
    """The coordinators of transactions: they know of everything, until the test says otherwise."""

    def __init__(self) -> None:
        self.asked: list[tuple[TransactionalProducer, TransactionOperation]] = []
        self.error = 0
        self.is_slow = False
        self.answers: list[Callable[[], None]] = []

    def verify(
        self,
        producer: TransactionalProducer,
        partitions: Collection[tuple[str, int]],
        operation: TransactionOperation,
        on_complete: Callable[[dict[tuple[str, int], int]], None],
    ) -> None:
        self.asked.append((producer, operation))
        errors = dict.fromkeys(partitions, self.error) if self.error else {}
        if self.is_slow:
            self.answers.append(lambda: on_complete(errors))
        else:
            on_complete(errors)


class Node:
    """A broker of one: real logs, real replica manager, metadata by hand."""

    def __init__(self, root: Path, **changes: int) -> None:
        self.root = root
        self.clock = ManualClock(1_000)
        self.timer = Timer(self.clock)
        broker = BrokerRegistration(1, 70, bytes(16), {}, fenced=False)
        self.image: MetadataImage = replace(
            EMPTY_IMAGE, offset=0, brokers={1: broker}, features={"transaction.version": 2}
        )
        self.controller = Controller(self)
        self.loads_slowly = False
        self.loads: list[Callable[[], None]] = []
        self.verifier = Verifier()
        self.resumed: list[Callable[[], None]] = []
        self.config = config(
            **{
                "offsets_topic_num_partitions": 3,
                "offsets_topic_replication_factor": 1,
                **changes,
            }
        )
        self.transaction_config = TransactionConfig(transaction_state_log_num_partitions=3)
        self.markers = Markers()
        self.start()

    def start(self) -> None:
        self.logs = LogManager(
            {self.root: b"d" * 16},
            LogConfig(),
            self.clock,
            None,
            lambda directory, error: self.replica_manager.log_dir_failed(directory, error),
        )
        self.logs.startup(lambda _: LogConfig())
        self.replica_manager = ReplicaManager(
            ReplicaManagerConfig(),
            self.logs,
            lambda: self.image,
            self.timer,
            self.clock,
            1,
            topic_config=lambda _: LogConfig(),
        )
        around = Surroundings(
            1,
            lambda: self.image,
            self.replica_manager,
            self.controller,
            self.timer,
            self.clock,
            self._run_on_loader,
        )
        self.verification = TransactionVerification(
            self.replica_manager,
            self.verifier,
            self.timer,
            self.clock.now_ms,
            is_enabled=lambda: True,
            resume=self.resumed.append,
        )
        ids = iter(range(10_000))
        self.groups = GroupCoordinator(self.config, around, lambda: f"id{next(ids)}")
        self.transactions = TransactionCoordinator(self.transaction_config, around, self.markers)
        for name in self.image.topics_by_name:
            self._publish(name, self.image)

    def _run_on_loader(self, _: str, job: Callable[[], None]) -> None:
        if self.loads_slowly:
            self.loads.append(job)
        else:
            job()

    def restart(self) -> None:
        self.groups.shutdown()
        self.transactions.shutdown()
        self.replica_manager.shutdown()
        self.logs.shutdown(70)
        self.start()

    def create(self, name: str, count: int, **changes: Any) -> None:
        """A topic, or what else is now said of all its partitions (`isr`, `partition_epoch`)."""
        registration = replace(PartitionRegistration((1,), (b"d" * 16,), (1,), 1), **changes)
        topic = TopicImage(
            name, name.encode().ljust(16)[:16], dict.fromkeys(range(count), registration)
        )
        before = self.image
        self.image = replace(
            self.image,
            offset=self.image.offset + 1,
            topics_by_name={**self.image.topics_by_name, name: topic},
            topics_by_id={**self.image.topics_by_id, topic.topic_id: topic},
        )
        self._publish(name, before)

    def finalise(self, feature: str, level: int) -> None:
        self.image = replace(self.image, features={**self.image.features, feature: level})

    def _publish(self, name: str, before: MetadataImage) -> None:
        delta = MetadataDelta(before)
        delta.changed_topics.add(name)
        self.replica_manager.apply_delta(delta, self.image)
        self.groups.on_metadata(delta, self.image)

    def pass_time(self, ms: int) -> None:
        self.clock.ms += ms
        self.timer.run_due()

    def find(self, group: str = "g") -> Answer:
        answer = Answer()
        self.groups.find(group, answer)
        return answer

    def commit(self, group: str, offset: int) -> Answer:
        answer = Answer()
        request = OffsetCommitRequest(
            group_id=group,
            member_id="",
            topics=[
                OffsetCommitRequest.Topic(
                    name="t",
                    partitions=[
                        OffsetCommitRequest.Topic.Partition(
                            partition_index=0, committed_offset=offset, committed_metadata=None
                        )
                    ],
                )
            ],
        )
        self.groups.commit_offsets(request, 9, answer)
        return answer

    def commit_in(
        self, producer_id: int, offset: int, *, epoch: int = 0, group: str = "g", version: int = 4
    ) -> Answer:
        """Commit in a transaction; the one partition's answer is its response's."""
        request = TxnOffsetCommitRequest(
            transactional_id=f"tx-{producer_id}",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[
                TxnOffsetCommitRequest.Topic(
                    name="t",
                    partitions=[
                        TxnOffsetCommitRequest.Topic.Partition(
                            partition_index=0, committed_offset=offset, committed_metadata=None
                        )
                    ],
                )
            ],
        )
        answer = Answer()
        self.groups.commit_transactional_offsets(request, version, self.verification, answer)
        return answer

    def end(
        self, producer_id: int, is_commit: bool = True, *, epoch: int = 1, coordinator: int = 0
    ) -> Answer:
        """The marker of the producer's transaction, for group g."""
        answer = Answer()
        marker = TxnMarker(producer_id, epoch, is_commit, coordinator, 2)
        self.groups.complete_transaction(self.groups.partition_for("g"), marker, answer)
        return answer

    def fetch(self, group: str, topic: str = "t", *, stable: bool = False) -> int:
        """An offset; with `stable` the error code as a negative number, if any."""
        answer = Answer()
        topics = [OffsetFetchRequest.Group.Topic(name=topic, partition_indexes=[0])]
        request = OffsetFetchRequest.Group(group_id=group, topics=topics)
        self.groups.fetch_offsets(request, require_stable=stable, on_complete=answer)
        found = answer.response.topics[0].partitions[0]
        return -int(found.error_code) if found.error_code else int(found.committed_offset)

    def close(self) -> None:
        self.replica_manager.shutdown()
        self.logs.shutdown(70)
