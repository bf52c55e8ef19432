"""Share groups: membership, fetching, acknowledging and their persisted state."""

from __future__ import annotations

from wire.primitives import Part
from wire.schema import (
    Array,
    Bool,
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


class ShareGroupHeartbeatRequest(Request, key=76, versions=(1, 1), flexible=1):
    """Join, stay in or leave a share group."""

    group_id: str = String()
    member_id: str = String()
    member_epoch: int = Int32()
    rack_id: str | None = String(nullable=1, default=None)
    subscribed_topic_names: list[str] | None = Array(String, nullable=1, default=None)


class ShareGroupHeartbeatResponse(Response, to=ShareGroupHeartbeatRequest):
    """Member epoch, and the assignment when it changed."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=1, default=None)
    member_id: str | None = String(nullable=1, default=None)
    member_epoch: int = Int32()
    heartbeat_interval_ms: int = Int32()

    class Assignment(Struct):
        class Topic(Struct):
            topic_id: bytes = Uuid()
            partitions: list[int] = Array(Int32)

        topic_partitions: list[Topic] = Array(Topic)

    assignment: Assignment | None = Nested(Assignment, nullable=1, default=None)


class ShareGroupDescribeRequest(Request, key=77, versions=(1, 1), flexible=1):
    """Show share groups."""

    group_ids: list[str] = Array(String)
    include_authorized_operations: bool = Bool()


class ShareGroupDescribeResponse(Response, to=ShareGroupDescribeRequest):
    """Epochs, members and assignments of each group."""

    throttle_time_ms: int = Int32(default=0)

    class Group(Struct):
        error_code: int = Int16()
        error_message: str | None = String(nullable=1, default=None)
        group_id: str = String()
        group_state: str = String()
        group_epoch: int = Int32()
        assignment_epoch: int = Int32()
        assignor_name: str = String()

        class Member(Struct):
            member_id: str = String()
            rack_id: str | None = String(nullable=1, default=None)
            member_epoch: int = Int32()
            client_id: str = String()
            client_host: str = String()
            subscribed_topic_names: list[str] = Array(String)

            class Assignment(Struct):
                class Topic(Struct):
                    topic_id: bytes = Uuid()
                    topic_name: str = String()
                    partitions: list[int] = Array(Int32)

                topic_partitions: list[Topic] = Array(Topic)

            assignment: Assignment = Nested(Assignment)

        members: list[Member] = Array(Member)
        authorized_operations: int = Int32(default=-2147483648)

    groups: list[Group] = Array(Group)


class ShareFetchRequest(Request, key=78, versions=(1, 2), flexible=1):
    """Acquire records of share partitions, and acknowledge earlier ones."""

    group_id: str | None = String(nullable=1, default=None)
    member_id: str | None = String(nullable=1)
    share_session_epoch: int = Int32()
    max_wait_ms: int = Int32()
    min_bytes: int = Int32()
    max_bytes: int = Int32(default=2147483647)
    max_records: int = Int32()
    batch_size: int = Int32()
    share_acquire_mode: int = Int8(since=2, default=0)
    is_renew_ack: bool = Bool(since=2, default=False)

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition_index: int = Int32()

            class AcknowledgementBatch(Struct):
                first_offset: int = Int64()
                last_offset: int = Int64()
                acknowledge_types: list[int] = Array(Int8)

            acknowledgement_batches: list[AcknowledgementBatch] = Array(AcknowledgementBatch)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)

    class ForgottenTopic(Struct):
        topic_id: bytes = Uuid()
        partitions: list[int] = Array(Int32)

    forgotten_topics_data: list[ForgottenTopic] = Array(ForgottenTopic)


class ShareFetchResponse(Response, to=ShareFetchRequest):
    """Record batches and which of their records were acquired."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=1, default=None)
    acquisition_lock_timeout_ms: int = Int32()

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()
            error_message: str | None = String(nullable=1, default=None)
            acknowledge_error_code: int = Int16()
            acknowledge_error_message: str | None = String(nullable=1, default=None)

            class LeaderIdAndEpoch(Struct):
                leader_id: int = Int32()
                leader_epoch: int = Int32()

            current_leader: LeaderIdAndEpoch = Nested(LeaderIdAndEpoch)
            records: Part | None = Records(default=None)

            class AcquiredBatch(Struct):
                first_offset: int = Int64()
                last_offset: int = Int64()
                delivery_count: int = Int16()

            acquired_records: list[AcquiredBatch] = Array(AcquiredBatch)

        partitions: list[Partition] = Array(Partition)

    responses: list[Topic] = Array(Topic)

    class NodeEndpoint(Struct):
        node_id: int = Int32()
        host: str = String()
        port: int = Int32()
        rack: str | None = String(nullable=1, default=None)

    node_endpoints: list[NodeEndpoint] = Array(NodeEndpoint)


class ShareAcknowledgeRequest(Request, key=79, versions=(1, 2), flexible=1):
    """Acknowledge acquired records."""

    group_id: str | None = String(nullable=1, default=None)
    member_id: str | None = String(nullable=1)
    share_session_epoch: int = Int32()
    is_renew_ack: bool = Bool(since=2, default=False)

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition_index: int = Int32()

            class AcknowledgementBatch(Struct):
                first_offset: int = Int64()
                last_offset: int = Int64()
                acknowledge_types: list[int] = Array(Int8)

            acknowledgement_batches: list[AcknowledgementBatch] = Array(AcknowledgementBatch)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class ShareAcknowledgeResponse(Response, to=ShareAcknowledgeRequest):
    """Whether each partition took the acknowledgements."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=1, default=None)
    acquisition_lock_timeout_ms: int = Int32(since=2, default=0)

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()
            error_message: str | None = String(nullable=1, default=None)

            class LeaderIdAndEpoch(Struct):
                leader_id: int = Int32()
                leader_epoch: int = Int32()

            current_leader: LeaderIdAndEpoch = Nested(LeaderIdAndEpoch)

        partitions: list[Partition] = Array(Partition)

    responses: list[Topic] = Array(Topic)

    class NodeEndpoint(Struct):
        node_id: int = Int32()
        host: str = String()
        port: int = Int32()
        rack: str | None = String(nullable=1, default=None)

    node_endpoints: list[NodeEndpoint] = Array(NodeEndpoint)


class InitializeShareGroupStateRequest(Request, key=83, versions=(0, 0), flexible=0):
    """Start the persisted state of share partitions."""

    group_id: str = String()

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition: int = Int32()
            state_epoch: int = Int32()
            start_offset: int = Int64()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class InitializeShareGroupStateResponse(Response, to=InitializeShareGroupStateRequest):
    """Whether each partition was initialised."""

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition: int = Int32()
            error_code: int = Int16()
            error_message: str | None = String(nullable=0, default=None)

        partitions: list[Partition] = Array(Partition)

    results: list[Topic] = Array(Topic)


class ReadShareGroupStateRequest(Request, key=84, versions=(0, 0), flexible=0):
    """Read the persisted state of share partitions."""

    group_id: str = String()

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition: int = Int32()
            leader_epoch: int = Int32()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class ReadShareGroupStateResponse(Response, to=ReadShareGroupStateRequest):
    """State batches by partition."""

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition: int = Int32()
            error_code: int = Int16()
            error_message: str | None = String(nullable=0, default=None)
            state_epoch: int = Int32()
            start_offset: int = Int64()

            class StateBatch(Struct):
                first_offset: int = Int64()
                last_offset: int = Int64()
                delivery_state: int = Int8()
                delivery_count: int = Int16()

            state_batches: list[StateBatch] = Array(StateBatch)

        partitions: list[Partition] = Array(Partition)

    results: list[Topic] = Array(Topic)


class WriteShareGroupStateRequest(Request, key=85, versions=(0, 1), flexible=0):
    """Write the persisted state of share partitions."""

    group_id: str = String()

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition: int = Int32()
            state_epoch: int = Int32()
            leader_epoch: int = Int32()
            start_offset: int = Int64()
            delivery_complete_count: int = Int32(since=1, default=-1)

            class StateBatch(Struct):
                first_offset: int = Int64()
                last_offset: int = Int64()
                delivery_state: int = Int8()
                delivery_count: int = Int16()

            state_batches: list[StateBatch] = Array(StateBatch)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class WriteShareGroupStateResponse(Response, to=WriteShareGroupStateRequest):
    """Whether each partition was written."""

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition: int = Int32()
            error_code: int = Int16()
            error_message: str | None = String(nullable=0, default=None)

        partitions: list[Partition] = Array(Partition)

    results: list[Topic] = Array(Topic)


class DeleteShareGroupStateRequest(Request, key=86, versions=(0, 0), flexible=0):
    """Delete the persisted state of share partitions."""

    group_id: str = String()

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition: int = Int32()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class DeleteShareGroupStateResponse(Response, to=DeleteShareGroupStateRequest):
    """Whether each partition was deleted."""

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition: int = Int32()
            error_code: int = Int16()
            error_message: str | None = String(nullable=0, default=None)

        partitions: list[Partition] = Array(Partition)

    results: list[Topic] = Array(Topic)


class ReadShareGroupStateSummaryRequest(Request, key=87, versions=(0, 1), flexible=0):
    """Read start offsets and epochs of share partitions."""

    group_id: str = String()

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition: int = Int32()
            leader_epoch: int = Int32()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class ReadShareGroupStateSummaryResponse(Response, to=ReadShareGroupStateSummaryRequest):
    """Start offset and epochs by partition."""

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition: int = Int32()
            error_code: int = Int16()
            error_message: str | None = String(nullable=0, default=None)
            state_epoch: int = Int32()
            leader_epoch: int = Int32()
            start_offset: int = Int64()
            delivery_complete_count: int = Int32(since=1, default=-1)

        partitions: list[Partition] = Array(Partition)

    results: list[Topic] = Array(Topic)


class DescribeShareGroupOffsetsRequest(Request, key=90, versions=(0, 1), flexible=0):
    """Read the start offsets of share groups."""

    class Group(Struct):
        group_id: str = String()

        class Topic(Struct):
            topic_name: str = String()
            partitions: list[int] = Array(Int32)

        topics: list[Topic] | None = Array(Topic, nullable=0)

    groups: list[Group] = Array(Group)


class DescribeShareGroupOffsetsResponse(Response, to=DescribeShareGroupOffsetsRequest):
    """Start offset and lag by partition."""

    throttle_time_ms: int = Int32(default=0)

    class Group(Struct):
        group_id: str = String()

        class Topic(Struct):
            topic_name: str = String()
            topic_id: bytes = Uuid()

            class Partition(Struct):
                partition_index: int = Int32()
                start_offset: int = Int64()
                leader_epoch: int = Int32()
                lag: int = Int64(since=1, default=-1)
                error_code: int = Int16()
                error_message: str | None = String(nullable=0, default=None)

            partitions: list[Partition] = Array(Partition)

        topics: list[Topic] = Array(Topic)
        error_code: int = Int16()
        error_message: str | None = String(nullable=0, default=None)

    groups: list[Group] = Array(Group)


class AlterShareGroupOffsetsRequest(Request, key=91, versions=(0, 0), flexible=0):
    """Set the start offsets of an empty share group."""

    group_id: str = String()

    class Topic(Struct):
        topic_name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            start_offset: int = Int64()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class AlterShareGroupOffsetsResponse(Response, to=AlterShareGroupOffsetsRequest):
    """Whether each partition was changed."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=0, default=None)

    class Topic(Struct):
        topic_name: str = String()
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()
            error_message: str | None = String(nullable=0, default=None)

        partitions: list[Partition] = Array(Partition)

    responses: list[Topic] = Array(Topic)


class DeleteShareGroupOffsetsRequest(Request, key=92, versions=(0, 0), flexible=0):
    """Delete a share group's offsets of topics."""

    group_id: str = String()

    class Topic(Struct):
        topic_name: str = String()

    topics: list[Topic] = Array(Topic)


class DeleteShareGroupOffsetsResponse(Response, to=DeleteShareGroupOffsetsRequest):
    """Whether each topic was deleted."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=0, default=None)

    class Topic(Struct):
        topic_name: str = String()
        topic_id: bytes = Uuid()
        error_code: int = Int16()
        error_message: str | None = String(nullable=0, default=None)

    responses: list[Topic] = Array(Topic)
