"""Partitions' data: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

from wire.primitives import ZERO_UUID, Part
from wire.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Nested,
    Records,
    Request,
    Response,
    String,
    Struct,
    Uuid,
)

TOPIC_ID_VERSION = 13
"""Produce and Fetch name topics by id from here on."""


REPLICA_STATE_FETCH_VERSION = 15
"""Fetch from here on says in a structure of its own which replica asks (KIP-903)."""


class ProduceRequest(Request, key=0, versions=(3, 13), flexible=9):
    """Append record batches to partitions."""

    transactional_id: str | None = String(nullable=3, default=None)
    acks: int = Int16()
    timeout_ms: int = Int32()

    class Topic(Struct):
        name: str = String(until=12, default="")
        topic_id: bytes = Uuid(since=13, default=ZERO_UUID)

        class Partition(Struct):
            index: int = Int32()
            records: memoryview | None = Records(nullable=3, default=None)

        partition_data: list[Partition] = Array(Partition)

    topic_data: list[Topic] = Array(Topic)


class ProduceResponse(Response, to=ProduceRequest):
    """Where each batch was written, or why it was not."""

    class Topic(Struct):
        name: str = String(until=12, default="")
        topic_id: bytes = Uuid(since=13, default=ZERO_UUID)

        class Partition(Struct):
            index: int = Int32()
            error_code: int = Int16()
            base_offset: int = Int64()
            log_append_time_ms: int = Int64(default=-1)
            log_start_offset: int = Int64(since=5, default=-1)

            class RecordError(Struct):
                batch_index: int = Int32()
                batch_index_error_message: str | None = String(nullable=8, default=None)

            record_errors: list[RecordError] = Array(RecordError, since=8, default=())
            error_message: str | None = String(since=8, nullable=8, default=None)

            class LeaderIdAndEpoch(Struct):
                leader_id: int = Int32(default=-1)
                leader_epoch: int = Int32(default=-1)

            current_leader: LeaderIdAndEpoch | None = Nested(
                LeaderIdAndEpoch, since=10, tag=0, default=None
            )

        partition_responses: list[Partition] = Array(Partition)

    responses: list[Topic] = Array(Topic)
    throttle_time_ms: int = Int32(default=0)

    class NodeEndpoint(Struct):
        node_id: int = Int32()
        host: str = String()
        port: int = Int32()
        rack: str | None = String(nullable=10, default=None)

    node_endpoints: list[NodeEndpoint] = Array(NodeEndpoint, since=10, tag=0, default=())


class FetchRequest(Request, key=1, versions=(4, 18), flexible=12):
    """Read record batches from partitions; used by consumers, followers and the quorum."""

    replica_id: int = Int32(until=14, default=-1)
    max_wait_ms: int = Int32()
    min_bytes: int = Int32()
    max_bytes: int = Int32(default=2147483647)
    isolation_level: int = Int8()
    session_id: int = Int32(since=7, default=0)
    session_epoch: int = Int32(since=7, default=-1)

    class Topic(Struct):
        topic: str = String(until=12, default="")
        topic_id: bytes = Uuid(since=13, default=ZERO_UUID)

        class Partition(Struct):
            partition: int = Int32()
            current_leader_epoch: int = Int32(since=9, default=-1)
            fetch_offset: int = Int64()
            last_fetched_epoch: int = Int32(since=12, default=-1)
            log_start_offset: int = Int64(since=5, default=-1)
            partition_max_bytes: int = Int32()
            replica_directory_id: bytes = Uuid(since=17, tag=0, default=ZERO_UUID)
            high_watermark: int = Int64(since=18, tag=1, default=9223372036854775807)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)

    class ForgottenTopic(Struct):
        topic: str = String(until=12, default="")
        topic_id: bytes = Uuid(since=13, default=ZERO_UUID)
        partitions: list[int] = Array(Int32)

    forgotten_topics_data: list[ForgottenTopic] = Array(ForgottenTopic, since=7, default=())
    rack_id: str = String(since=11, default="")
    cluster_id: str | None = String(since=12, nullable=12, tag=0, default=None)

    class ReplicaState(Struct):
        replica_id: int = Int32(default=-1)
        replica_epoch: int = Int64(default=-1)

    replica_state: ReplicaState | None = Nested(ReplicaState, since=15, tag=1, default=None)


class FetchResponse(Response, to=FetchRequest):
    """Record batches and the leader's offsets, partition by partition."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16(since=7, default=0)
    session_id: int = Int32(since=7, default=0)

    class Topic(Struct):
        topic: str = String(until=12, default="")
        topic_id: bytes = Uuid(since=13, default=ZERO_UUID)

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()
            high_watermark: int = Int64()
            last_stable_offset: int = Int64(default=-1)
            log_start_offset: int = Int64(since=5, default=-1)

            class AbortedTransaction(Struct):
                producer_id: int = Int64()
                first_offset: int = Int64()

            aborted_transactions: list[AbortedTransaction] | None = Array(
                AbortedTransaction, nullable=4
            )
            preferred_read_replica: int = Int32(since=11, default=-1)
            records: Part | None = Records(nullable=4, default=None)

            class EpochEndOffset(Struct):
                epoch: int = Int32(default=-1)
                end_offset: int = Int64(default=-1)

            diverging_epoch: EpochEndOffset | None = Nested(
                EpochEndOffset, since=12, tag=0, default=None
            )

            class LeaderIdAndEpoch(Struct):
                leader_id: int = Int32(default=-1)
                leader_epoch: int = Int32(default=-1)

            current_leader: LeaderIdAndEpoch | None = Nested(
                LeaderIdAndEpoch, since=12, tag=1, default=None
            )

            class SnapshotId(Struct):
                end_offset: int = Int64(default=-1)
                epoch: int = Int32(default=-1)

            snapshot_id: SnapshotId | None = Nested(SnapshotId, since=12, tag=2, default=None)

        partitions: list[Partition] = Array(Partition)

    responses: list[Topic] = Array(Topic)

    class NodeEndpoint(Struct):
        node_id: int = Int32()
        host: str = String()
        port: int = Int32()
        rack: str | None = String(nullable=16, default=None)

    node_endpoints: list[NodeEndpoint] = Array(NodeEndpoint, since=16, tag=0, default=())


class ListOffsetsRequest(Request, key=2, versions=(1, 11), flexible=6):
    """Look up the offset for a timestamp, or an end of the log."""

    replica_id: int = Int32()
    isolation_level: int = Int8(since=2, default=0)

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            current_leader_epoch: int = Int32(since=4, default=-1)
            timestamp: int = Int64()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)
    timeout_ms: int = Int32(since=10, default=0)


class ListOffsetsResponse(Response, to=ListOffsetsRequest):
    """One offset for each partition asked."""

    throttle_time_ms: int = Int32(since=2, default=0)

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()
            timestamp: int = Int64(default=-1)
            offset: int = Int64(default=-1)
            leader_epoch: int = Int32(since=4, default=-1)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class OffsetForLeaderEpochRequest(Request, key=23, versions=(2, 4), flexible=4):
    """Ask where a leader epoch ends, to find a common point of two logs."""

    replica_id: int = Int32(since=3, default=-2)

    class Topic(Struct):
        topic: str = String()

        class Partition(Struct):
            partition: int = Int32()
            current_leader_epoch: int = Int32(default=-1)
            leader_epoch: int = Int32()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class OffsetForLeaderEpochResponse(Response, to=OffsetForLeaderEpochRequest):
    """The end offset of the epoch asked, or of the closest below it."""

    throttle_time_ms: int = Int32(default=0)

    class Topic(Struct):
        topic: str = String()

        class Partition(Struct):
            error_code: int = Int16()
            partition: int = Int32()
            leader_epoch: int = Int32(default=-1)
            end_offset: int = Int64(default=-1)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class DeleteRecordsRequest(Request, key=21, versions=(0, 2), flexible=2):
    """Move the start of partitions' logs forward."""

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            offset: int = Int64()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)
    timeout_ms: int = Int32()


class DeleteRecordsResponse(Response, to=DeleteRecordsRequest):
    """The new low watermark of each partition."""

    throttle_time_ms: int = Int32(default=0)

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            low_watermark: int = Int64()
            error_code: int = Int16()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)
