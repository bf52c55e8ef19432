"""A broker of one with everything that share groups stand on, asked by frames.

The APIs are not in the registry yet, so the table is made here.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from replication.metadata.topic_names import SHARE_GROUP_STATE_TOPIC
from replication.replicas.replica_manager import FROM_CLIENT, FROM_COORDINATOR, AppendRequest
from server.coordinator.runtime import Surroundings
from server.coordinator.share.config import ShareCoordinatorConfig
from server.coordinator.share.coordinator import ShareCoordinator
from server.coordinator.transaction_markers import TxnMarker
from server.handlers.access.rules import guarded
from server.network.api import Api
from server.network.request_channel import RequestChannel
from server.peers.broker_requests import BrokerRequests
from server.peers.share_persister import SharePersister
from server.share.leading import Settings
from server.share.manager import ShareBroker, ShareManager
from server.share.sessions import SharedPartition
from server.share.share_partition import Limits
from tests.server.coordinator.group_node import Node
from tests.server.coordinator.group_support import Answer
from tests.server.handler_support import Asked, FakeBroker
from wire.messages.share import (
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    WriteShareGroupStateRequest,
)
from wire.records import Record, build_batch

TOPIC_ID = b"t".ljust(16)
EARLIEST = -2
_APIS = (
    (78, "ShareFetch", (1, 2)),
    (79, "ShareAcknowledge", (1, 2)),
    (83, "InitializeShareGroupState", (0, 0)),
    (84, "ReadShareGroupState", (0, 0)),
    (85, "WriteShareGroupState", (0, 1)),
    (86, "DeleteShareGroupState", (0, 0)),
    (87, "ReadShareGroupStateSummary", (0, 1)),
)


class ShareNode:
    """The broker; `t` has three partitions, and group g is initialized in all of them."""

    def __init__(self, root: Path, *, max_sessions: int = 100) -> None:
        self.node = node = Node(root)
        self.settings = Settings(Limits(), 0, EARLIEST)
        self.shares = ShareCoordinator(
            ShareCoordinatorConfig(),
            Surroundings(
                1, lambda: node.image, node.replica_manager, node.controller, node.timer,
                node.clock, lambda _, job: job(),
            ),
        )  # fmt: skip
        brokers = BrokerRequests(1, lambda: node.image, "PLAINTEXT", None)
        brokers.serve_own(ReadShareGroupStateRequest, self._read)
        brokers.serve_own(WriteShareGroupStateRequest, self._write)
        self.reads = 0
        self.held_writes: list[Any] | None = None
        persister = SharePersister(1, self.shares, brokers, node.timer.add, 30_000)
        self.manager = ShareManager(
            ShareBroker(
                1,
                lambda: node.image,
                node.replica_manager,
                persister,
                lambda _: self.settings,
                node.clock.now_ms,
                node.timer.add,
            ),
            max_sessions,
        )
        node.create("t", 3)
        node.create(SHARE_GROUP_STATE_TOPIC, 3)
        self.initialize()

    def _read(self, request: Any, on_complete: Any) -> None:
        self.reads += 1
        self.shares.read(request, on_complete)

    def _write(self, request: Any, on_complete: Any) -> None:
        if self.held_writes is None:
            self.shares.write(request, on_complete)
        else:
            self.held_writes.append((request, on_complete))

    def let_write(self) -> None:
        """Persist what was held."""
        held, self.held_writes = self.held_writes or [], None
        for request, on_complete in held:
            self.shares.write(request, on_complete)

    def initialize(self, state_epoch: int = 1, start_offset: int = -1) -> None:
        """As the group's coordinator has it: when the group begins, or its offsets are reset."""
        request = InitializeShareGroupStateRequest
        partitions = [
            request.Topic.Partition(
                partition=index, state_epoch=state_epoch, start_offset=start_offset
            )
            for index in range(3)
        ]
        topic = request.Topic(topic_id=TOPIC_ID, partitions=partitions)
        self.shares.initialize(request(group_id="g", topics=[topic]), Answer())

    def append(self, count: int, index: int = 0, **how: Any) -> None:
        """One batch of so many records."""
        records = [Record(-1, 1_000, None, b"value", ()) for _ in range(count)]
        done: list[Any] = []
        batch = build_batch(records, **how)
        source = FROM_CLIENT
        if how.get("is_transactional"):
            log = self.node.replica_manager.partition(("t", index)).open_log()
            guard = log.start_verification(how["producer_id"], 0, 0, supports_epoch_bump=False)
            source = source._replace(verification=guard)
        self.node.replica_manager.append_records(
            AppendRequest(-1, 1_000, [(("t", index), batch)], done.append, source=source)
        )
        assert done[0][0].error_code == 0

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        """The marker of an open transaction on t-0."""
        done: list[Any] = []
        batch = TxnMarker(producer_id, 0, is_commit, 0, 2).batch(1_000)
        self.node.replica_manager.append_records(
            AppendRequest(-1, 1_000, [(("t", 0), batch)], done.append, source=FROM_COORDINATOR)
        )
        assert done[0][0].error_code == 0

    def client(self, authorizer: Any = None) -> Client:
        """A connection of its own; with an authorizer, alice's."""
        broker: Any = FakeBroker(self.node.image)
        broker.share_manager, broker.share_coordinator = self.manager, self.shares
        broker.timer = self.node.timer
        broker.group_coordinator = SimpleNamespace(serves=lambda _kind: True)
        return Client(broker, authorizer)

    def close(self) -> None:
        self.shares.shutdown()
        self.node.close()


class Client(Asked):
    """One member's connection; it keeps the session's epoch."""

    def __init__(self, broker: Any, authorizer: Any = None) -> None:
        super().__init__(broker)
        apis = {
            key: Api(key, name, "server.handlers.share", versions) for key, name, versions in _APIS
        }
        if authorizer is not None:
            self.channel.principal = "User:alice"
            apis |= guarded({key: apis[key] for key in (78, 79)}, authorizer)
        self.requests = RequestChannel(apis, broker, 1, 500)
        self.epoch = 0

    def fetch(
        self,
        *partitions: int,
        acks: dict[int, list[tuple[int, int, list[int]]]] | None = None,
        version: int = 2,
        epoch: int | None = None,
        **how: Any,
    ) -> Any:
        """The answer, or None while it waits; see `acquired`."""
        self.asked = fetch_request(
            partitions, acks or {}, self.epoch if epoch is None else epoch, **how
        )
        self.epoch += 1
        return self.ask(self.asked, version)

    @property
    def answer(self) -> Any:
        """That of a fetch that waited; None if it still does."""
        return self.received(self.asked, 2)

    def disconnect(self) -> None:
        """As the processor does it."""
        self.channel.on_closed(self.channel)

    def acknowledge(
        self,
        index: int,
        *acks: tuple[int, int, list[int]],
        epoch: int | None = None,
        version: int = 2,
        member: str = "m1",
        is_renewal: bool = False,
    ) -> Any:
        request = ShareAcknowledgeRequest
        struct = request.Topic.Partition
        partition = struct(partition_index=index, acknowledgement_batches=_batches(struct, acks))
        topic = request.Topic(topic_id=TOPIC_ID, partitions=[partition])
        asked = request(
            group_id="g",
            member_id=member,
            share_session_epoch=self.epoch if epoch is None else epoch,
            is_renew_ack=is_renewal,
            topics=[topic],
        )
        self.epoch += 1
        self.asked = asked
        return self.ask(asked, version)


def _batches(struct: Any, acks: Any) -> list[Any]:
    return [
        struct.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
        for first, last, types in acks
    ]


def fetch_request(
    partitions: Any,
    acks: dict[int, list[tuple[int, int, list[int]]]],
    epoch: int,
    *,
    member: str | None = "m1",
    group: str | None = "g",
    topic_id: bytes = TOPIC_ID,
    **how: Any,
) -> ShareFetchRequest:
    struct = ShareFetchRequest.Topic.Partition
    named = [
        struct(partition_index=i, acknowledgement_batches=_batches(struct, acks.get(i, ())))
        for i in dict.fromkeys((*partitions, *acks))
    ]
    limits = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 500,
        "batch_size": 500,
    }
    return ShareFetchRequest(
        group_id=group,
        member_id=member,
        share_session_epoch=epoch,
        topics=[ShareFetchRequest.Topic(topic_id=topic_id, partitions=named)] if named else [],
        forgotten_topics_data=[],
        **{**limits, **how},
    )


def acquired(response: Any, index: int = 0) -> list[tuple[int, int, int]]:
    """What a partition's answer hands out."""
    found = [p for t in response.responses for p in t.partitions if p.partition_index == index]
    return [
        (one.first_offset, one.last_offset, one.delivery_count)
        for partition in found
        for one in partition.acquired_records
    ]


def codes(response: Any) -> list[int]:
    """The partitions' codes."""
    return [p.error_code for t in response.responses for p in t.partitions]


T0 = SharedPartition(TOPIC_ID, 0)
