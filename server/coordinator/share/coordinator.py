"""The share coordinator: the APIs of share partitions' state, on top of `__share_group_state`.

Why: handlers know the wire, `ShareShard` knows share partitions; this module takes a request apart
by share partition, asks the shard that owns each, and joins the answers. Which one owns it: the
hash of "group:topic id:partition" (Kafka: SharePartitionKey.asCoordinatorKey).

Every method answers through `on_complete`, once, and never waits. An error is told of the share
partition it is about, the others are served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from replication.metadata.topic_names import SHARE_GROUP_STATE_TOPIC
from server.coordinator.gather import Gather
from server.coordinator.machine import Reply
from server.coordinator.runtime import CoordinatorRuntime, InternalTopic, Surroundings
from server.coordinator.shard_log import RecordSerde, ShardLogConfig
from server.coordinator.share.config import ShareCoordinatorConfig
from server.coordinator.share.records import (
    ShareRecord,
    Snapshot,
    decode_share,
    encode_share,
)
from server.coordinator.share.shard import ShareDecision, ShareShard, Summary
from server.share.state_batches import ShareKey, StateBatch
from wire.errors import ErrorCode, KafkaError
from wire.messages.share import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from wire.primitives import uuid_from_text, uuid_to_text

if TYPE_CHECKING:
    from replication.metadata.image import BrokerRegistration

logger = logging.getLogger(__name__)

_Ask = Callable[[ShareKey, Any, Reply], None]
"""Ask the shard of a share partition what the request says of it."""


OnFound = Callable[["BrokerRegistration | KafkaError"], None]


class _StateRequest(Protocol):
    """What the requests have in common."""

    group_id: str
    topics: Any


def coordinator_key(key: ShareKey) -> str:
    """What a share partition is found by, also by FindCoordinator."""
    return f"{key.group_id}:{uuid_to_text(key.topic_id)}:{key.partition}"


def _is_key(text: str) -> bool:
    """Whether it reads like a `coordinator_key`; a group may have colons in its name."""
    group_id, topic_id, partition = ("", "", *text.rsplit(":", 2))[-3:]
    try:
        uuid_from_text(topic_id)
        int(partition)
    except ValueError:
        return False
    return bool(group_id.strip())


class ShareCoordinator:
    """One per broker."""

    def __init__(self, config: ShareCoordinatorConfig, around: Surroundings) -> None:
        self._metadata = around.metadata
        self._replica_manager = around.replica_manager
        self._timeout_ms = config.share_coordinator_write_timeout_ms
        topic = InternalTopic(
            SHARE_GROUP_STATE_TOPIC,
            config.share_coordinator_state_topic_num_partitions,
            config.share_coordinator_state_topic_replication_factor,
            {
                "cleanup.policy": "delete",
                "compression.type": "producer",
                "min.insync.replicas": str(config.share_coordinator_state_topic_min_isr),
                "retention.ms": "-1",
                "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
            },
        )
        self.runtime: CoordinatorRuntime[ShareShard, ShareRecord] = CoordinatorRuntime(
            topic,
            around,
            RecordSerde(encode_share, _decode),
            ShardLogConfig(
                config.share_coordinator_write_timeout_ms,
                config.share_coordinator_load_buffer_size,
                config.share_coordinator_state_topic_compression_codec,
            ),
            partial(ShareShard, config, self._partition_exists, self._prune),
        )

    def partition_for(self, key: ShareKey) -> int:
        """The partition of __share_group_state that keeps the share partition."""
        return self.runtime.partition_for(coordinator_key(key))

    def find(self, key: ShareKey, on_complete: OnFound) -> None:
        """The broker that keeps a share partition; makes the topic on first use."""
        self.runtime.find(coordinator_key(key), on_complete)

    def find_key(self, key: str, on_complete: OnFound) -> None:
        """As `find`, by what a client calls it; KafkaError INVALID_REQUEST if that is nothing."""
        if _is_key(key):
            self.runtime.find(key, on_complete)
        else:
            on_complete(KafkaError(ErrorCode.INVALID_REQUEST))

    def shutdown(self) -> None:
        """Give everything up; requests that wait are answered NOT_COORDINATOR."""
        self.runtime.shutdown()

    def topics_deleted(self, topic_ids: Collection[bytes]) -> None:
        """Forget what was about these topics, in the partitions that we lead."""
        self.runtime.write_to_all(lambda machine: machine.topics_deleted(topic_ids))

    def _partition_exists(self, topic_id: bytes, partition: int) -> bool:
        topic = self._metadata().topics_by_id.get(topic_id)
        return topic is not None and partition < len(topic.partitions)

    def _prune(self, partition: int, offset: int) -> None:
        """Delete what is before the offset; what fails is tried again with a later one."""
        topic_partition = (SHARE_GROUP_STATE_TOPIC, partition)

        def done(results: dict[Any, tuple[int, int]]) -> None:
            code = results[topic_partition][0]
            if code:
                logger.warning(
                    "state of share partitions was not pruned partition=%s offset=%s error=%s",
                    partition, offset, ErrorCode(code).name,
                )  # fmt: skip

        self._replica_manager.delete_records(
            {topic_partition: offset}, self._timeout_ms, done, may_be_internal=True
        )

    # -- requests ----------------------------------------------------------------------------

    def initialize(self, request: InitializeShareGroupStateRequest, on_complete: Reply) -> None:
        """An InitializeShareGroupStateResponse."""

        def ask(key: ShareKey, asked: Any, reply: Reply) -> None:
            self._write(
                key,
                lambda shard: shard.initialize(key, asked.state_epoch, asked.start_offset),
                reply,
            )

        self._each(request, InitializeShareGroupStateResponse, ask, _told, on_complete)

    def read(self, request: ReadShareGroupStateRequest, on_complete: Reply) -> None:
        """A ReadShareGroupStateResponse."""

        def ask(key: ShareKey, asked: Any, reply: Reply) -> None:
            self._write(key, lambda shard: shard.read(key, asked.leader_epoch), reply)

        self._each(request, ReadShareGroupStateResponse, ask, _told_state, on_complete)

    def write(self, request: WriteShareGroupStateRequest, on_complete: Reply) -> None:
        """A WriteShareGroupStateResponse."""

        def ask(key: ShareKey, asked: Any, reply: Reply) -> None:
            batches = [
                StateBatch(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count)
                for b in asked.state_batches
            ]
            self._write(
                key,
                lambda shard: shard.write(
                    key,
                    asked.state_epoch,
                    asked.leader_epoch,
                    asked.start_offset,
                    asked.delivery_complete_count,
                    batches,
                ),
                reply,
            )

        self._each(request, WriteShareGroupStateResponse, ask, _told, on_complete)

    def delete(self, request: DeleteShareGroupStateRequest, on_complete: Reply) -> None:
        """A DeleteShareGroupStateResponse."""

        def ask(key: ShareKey, _asked: Any, reply: Reply) -> None:
            self._write(key, lambda shard: shard.delete(key), reply)

        self._each(request, DeleteShareGroupStateResponse, ask, _told, on_complete)

    def read_summary(self, request: ReadShareGroupStateSummaryRequest, on_complete: Reply) -> None:
        """A ReadShareGroupStateSummaryResponse."""

        def ask(key: ShareKey, _asked: Any, reply: Reply) -> None:
            self.runtime.read(coordinator_key(key), lambda shard: shard.summary(key), reply)

        self._each(request, ReadShareGroupStateSummaryResponse, ask, _told_summary, on_complete)

    # -- how they are served -----------------------------------------------------------------

    def _write(
        self, key: ShareKey, decide: Callable[[ShareShard], ShareDecision], reply: Reply
    ) -> None:
        self.runtime.write(coordinator_key(key), decide, reply)

    def _each(
        self,
        request: _StateRequest,
        response: Any,
        ask: _Ask,
        told: Callable[[Any, object], dict[str, object]],
        on_complete: Reply,
    ) -> None:
        """Ask about every share partition; a request that names none, or no group, is told
        nothing."""
        asked = [
            (ShareKey(request.group_id, topic.topic_id, partition.partition), partition)
            for topic in request.topics
            for partition in topic.partitions
            if request.group_id
        ]

        def answer(replies: Sequence[object]) -> None:
            results: dict[bytes, list[Any]] = {}
            for (key, _), reply in zip(asked, replies, strict=True):
                fields = told(response, reply)
                result = response.Topic.Partition(partition=key.partition, **fields)
                results.setdefault(key.topic_id, []).append(result)
            on_complete(
                response(
                    results=[
                        response.Topic(topic_id=topic_id, partitions=partitions)
                        for topic_id, partitions in results.items()
                    ]
                )
            )

        gather: Gather[object] = Gather(len(asked), answer)
        for i, (key, partition) in enumerate(asked):
            ask(key, partition, partial(gather.put, i))


def _told(_response: Any, reply: object) -> dict[str, object]:
    if isinstance(reply, KafkaError):
        return {"error_code": int(reply.code), "error_message": str(reply)}
    return {"error_code": int(ErrorCode.NONE)}


def _told_state(response: Any, reply: object) -> dict[str, object]:
    if isinstance(reply, KafkaError):
        return {**_told(response, reply), "state_epoch": 0, "start_offset": 0, "state_batches": []}
    state = cast("Snapshot", reply)
    struct = response.Topic.Partition.StateBatch
    return {
        "error_code": 0,
        "state_epoch": state.state_epoch,
        "start_offset": state.start_offset,
        "state_batches": [
            struct(first_offset=first, last_offset=last, delivery_state=of, delivery_count=count)
            for first, last, of, count in state.batches
        ],
    }


def _told_summary(response: Any, reply: object) -> dict[str, object]:
    if isinstance(reply, KafkaError):
        return {**_told(response, reply), "state_epoch": 0, "leader_epoch": 0, "start_offset": 0}
    summary = cast("Summary", reply)
    return {
        "error_code": 0,
        "state_epoch": summary.state_epoch,
        "leader_epoch": summary.leader_epoch,
        "start_offset": summary.start_offset,
        "delivery_complete_count": summary.complete_count,
    }


def _decode(key: bytes, value: bytes | None) -> ShareRecord | None:
    record = decode_share(key, value)
    if record is None:
        logger.warning("unknown version of a share record, it is skipped key=%s", key[:2].hex())
    return record
