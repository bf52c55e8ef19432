"""Group membership and offsets: the classic protocol and KIP-848."""

from __future__ import annotations

from wire.primitives import ZERO_UUID
from wire.schema import (
    Array,
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Nested,
    Request,
    Response,
    String,
    Struct,
    Uuid,
)

OFFSETS_TOPIC_ID_VERSION = 10
"""OffsetCommit and OffsetFetch from here on name topics by id."""
FETCH_GROUPS_VERSION = 8
"""OffsetFetch from here on is of many groups."""
FETCH_TOP_LEVEL_ERROR_VERSION = 2
"""OffsetFetch from here on has an error of the group, and null for all its topics."""
BATCHED_KEYS_VERSION = 4
"""FindCoordinator from here on has many keys."""
NULLABLE_PROTOCOL_VERSION = 7
"""JoinGroup from here on may name no protocol."""


class FindCoordinatorRequest(Request, key=10, versions=(0, 6), flexible=3):
    """Ask which broker coordinates a group, a transactional id or a share partition."""

    key: str = String(until=3, default="")
    key_type: int = Int8(since=1, default=0)
    coordinator_keys: list[str] = Array(String, since=4, default=())


class FindCoordinatorResponse(Response, to=FindCoordinatorRequest):
    """The coordinator's address, for each key asked."""

    throttle_time_ms: int = Int32(since=1, default=0)
    error_code: int = Int16(until=3, default=0)
    error_message: str | None = String(since=1, until=3, nullable=1, default="")
    node_id: int = Int32(until=3, default=0)
    host: str = String(until=3, default="")
    port: int = Int32(until=3, default=0)

    class Coordinator(Struct):
        key: str = String()
        node_id: int = Int32()
        host: str = String()
        port: int = Int32()
        error_code: int = Int16()
        error_message: str | None = String(nullable=4)

    coordinators: list[Coordinator] = Array(Coordinator, since=4, default=())


class JoinGroupRequest(Request, key=11, versions=(0, 9), flexible=6):
    """Enter a rebalance of a classic group."""

    group_id: str = String()
    session_timeout_ms: int = Int32()
    rebalance_timeout_ms: int = Int32(since=1, default=-1)
    member_id: str = String()
    group_instance_id: str | None = String(since=5, nullable=5, default=None)
    protocol_type: str = String()

    class Protocol(Struct):
        name: str = String()
        metadata: bytes = Bytes()

    protocols: list[Protocol] = Array(Protocol)
    reason: str | None = String(since=8, nullable=8, default=None)


class JoinGroupResponse(Response, to=JoinGroupRequest):
    """The generation, and for its leader every member's subscription."""

    throttle_time_ms: int = Int32(since=2, default=0)
    error_code: int = Int16()
    generation_id: int = Int32(default=-1)
    protocol_type: str | None = String(since=7, nullable=7, default=None)
    protocol_name: str | None = String(nullable=7)
    leader: str = String()
    skip_assignment: bool = Bool(since=9, default=False)
    member_id: str = String()

    class Member(Struct):
        member_id: str = String()
        group_instance_id: str | None = String(since=5, nullable=5, default=None)
        metadata: bytes = Bytes()

    members: list[Member] = Array(Member)


class SyncGroupRequest(Request, key=14, versions=(0, 5), flexible=4):
    """Hand in (leader) and wait for (all) the assignment of a generation."""

    group_id: str = String()
    generation_id: int = Int32()
    member_id: str = String()
    group_instance_id: str | None = String(since=3, nullable=3, default=None)
    protocol_type: str | None = String(since=5, nullable=5, default=None)
    protocol_name: str | None = String(since=5, nullable=5, default=None)

    class Assignment(Struct):
        member_id: str = String()
        assignment: bytes = Bytes()

    assignments: list[Assignment] = Array(Assignment)


class SyncGroupResponse(Response, to=SyncGroupRequest):
    """The member's own assignment."""

    throttle_time_ms: int = Int32(since=1, default=0)
    error_code: int = Int16()
    protocol_type: str | None = String(since=5, nullable=5, default=None)
    protocol_name: str | None = String(since=5, nullable=5, default=None)
    assignment: bytes = Bytes()


class HeartbeatRequest(Request, key=12, versions=(0, 4), flexible=4):
    """Keep a member of a classic group alive."""

    group_id: str = String()
    generation_id: int = Int32()
    member_id: str = String()
    group_instance_id: str | None = String(since=3, nullable=3, default=None)


class HeartbeatResponse(Response, to=HeartbeatRequest):
    """Whether the member must rejoin."""

    throttle_time_ms: int = Int32(since=1, default=0)
    error_code: int = Int16()


class LeaveGroupRequest(Request, key=13, versions=(0, 5), flexible=4):
    """Take members out of a classic group."""

    group_id: str = String()
    member_id: str = String(until=2, default="")

    class Member(Struct):
        member_id: str = String()
        group_instance_id: str | None = String(nullable=3, default=None)
        reason: str | None = String(since=5, nullable=5, default=None)

    members: list[Member] = Array(Member, since=3, default=())


class LeaveGroupResponse(Response, to=LeaveGroupRequest):
    """Whether each member was removed."""

    throttle_time_ms: int = Int32(since=1, default=0)
    error_code: int = Int16()

    class Member(Struct):
        member_id: str = String()
        group_instance_id: str | None = String(nullable=3)
        error_code: int = Int16()

    members: list[Member] = Array(Member, since=3, default=())


class OffsetCommitRequest(Request, key=8, versions=(2, 10), flexible=8):
    """Store a group's positions."""

    group_id: str = String()
    generation_id_or_member_epoch: int = Int32(default=-1)
    member_id: str = String()
    group_instance_id: str | None = String(since=7, nullable=7, default=None)
    retention_time_ms: int = Int64(until=4, default=-1)

    class Topic(Struct):
        name: str = String(until=9, default="")
        topic_id: bytes = Uuid(since=10, default=ZERO_UUID)

        class Partition(Struct):
            partition_index: int = Int32()
            committed_offset: int = Int64()
            committed_leader_epoch: int = Int32(since=6, default=-1)
            committed_metadata: str | None = String(nullable=2)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class OffsetCommitResponse(Response, to=OffsetCommitRequest):
    """Whether each position was stored."""

    throttle_time_ms: int = Int32(since=3, default=0)

    class Topic(Struct):
        name: str = String(until=9, default="")
        topic_id: bytes = Uuid(since=10, default=ZERO_UUID)

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class OffsetFetchRequest(Request, key=9, versions=(1, 10), flexible=6):
    """Read a group's stored positions."""

    group_id: str = String(until=7, default="")

    class Topic(Struct):
        name: str = String()
        partition_indexes: list[int] = Array(Int32)

    topics: list[Topic] | None = Array(Topic, until=7, nullable=2, default=())

    class Group(Struct):
        group_id: str = String()
        member_id: str | None = String(since=9, nullable=9, default=None)
        member_epoch: int = Int32(since=9, default=-1)

        class Topic(Struct):
            name: str = String(until=9, default="")
            topic_id: bytes = Uuid(since=10, default=ZERO_UUID)
            partition_indexes: list[int] = Array(Int32)

        topics: list[Topic] | None = Array(Topic, nullable=8)

    groups: list[Group] = Array(Group, since=8, default=())
    require_stable: bool = Bool(since=7, default=False)


class OffsetFetchResponse(Response, to=OffsetFetchRequest):
    """The stored positions; offset -1 where there is none."""

    throttle_time_ms: int = Int32(since=3, default=0)

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            committed_offset: int = Int64()
            committed_leader_epoch: int = Int32(since=5, default=-1)
            metadata: str | None = String(nullable=1)
            error_code: int = Int16()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic, until=7, default=())
    error_code: int = Int16(since=2, until=7, default=0)

    class Group(Struct):
        group_id: str = String()

        class Topic(Struct):
            name: str = String(until=9, default="")
            topic_id: bytes = Uuid(since=10, default=ZERO_UUID)

            class Partition(Struct):
                partition_index: int = Int32()
                committed_offset: int = Int64()
                committed_leader_epoch: int = Int32(default=-1)
                metadata: str | None = String(nullable=8)
                error_code: int = Int16()

            partitions: list[Partition] = Array(Partition)

        topics: list[Topic] = Array(Topic)
        error_code: int = Int16()

    groups: list[Group] = Array(Group, since=8, default=())


class OffsetDeleteRequest(Request, key=47, versions=(0, 0)):
    """Delete a group's positions."""

    group_id: str = String()

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class OffsetDeleteResponse(Response, to=OffsetDeleteRequest):
    """Whether each position was deleted."""

    error_code: int = Int16()
    throttle_time_ms: int = Int32(default=0)

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class DescribeGroupsRequest(Request, key=15, versions=(0, 6), flexible=5):
    """Show classic groups with their members."""

    groups: list[str] = Array(String)
    include_authorized_operations: bool = Bool(since=3, default=False)


class DescribeGroupsResponse(Response, to=DescribeGroupsRequest):
    """State, protocol and members of each classic group."""

    throttle_time_ms: int = Int32(since=1, default=0)

    class Group(Struct):
        error_code: int = Int16()
        error_message: str | None = String(since=6, nullable=6, default=None)
        group_id: str = String()
        group_state: str = String()
        protocol_type: str = String()
        protocol_data: str = String()

        class Member(Struct):
            member_id: str = String()
            group_instance_id: str | None = String(since=4, nullable=4, default=None)
            client_id: str = String()
            client_host: str = String()
            member_metadata: bytes = Bytes()
            member_assignment: bytes = Bytes()

        members: list[Member] = Array(Member)
        authorized_operations: int = Int32(since=3, default=-2147483648)

    groups: list[Group] = Array(Group)


class ListGroupsRequest(Request, key=16, versions=(0, 5), flexible=3):
    """List the groups this broker coordinates."""

    states_filter: list[str] = Array(String, since=4, default=())
    types_filter: list[str] = Array(String, since=5, default=())


class ListGroupsResponse(Response, to=ListGroupsRequest):
    """Id, protocol type, state and type of each group."""

    throttle_time_ms: int = Int32(since=1, default=0)
    error_code: int = Int16()

    class Group(Struct):
        group_id: str = String()
        protocol_type: str = String()
        group_state: str = String(since=4, default="")
        group_type: str = String(since=5, default="")

    groups: list[Group] = Array(Group)


class DeleteGroupsRequest(Request, key=42, versions=(0, 2), flexible=2):
    """Delete empty groups."""

    groups_names: list[str] = Array(String)


class DeleteGroupsResponse(Response, to=DeleteGroupsRequest):
    """Whether each group was deleted."""

    throttle_time_ms: int = Int32(default=0)

    class Group(Struct):
        group_id: str = String()
        error_code: int = Int16()

    results: list[Group] = Array(Group)


class ConsumerGroupHeartbeatRequest(Request, key=68, versions=(0, 1), flexible=0):
    """Join, stay in or leave a consumer group of KIP-848."""

    group_id: str = String()
    member_id: str = String()
    member_epoch: int = Int32()
    instance_id: str | None = String(nullable=0, default=None)
    rack_id: str | None = String(nullable=0, default=None)
    rebalance_timeout_ms: int = Int32(default=-1)
    subscribed_topic_names: list[str] | None = Array(String, nullable=0, default=None)
    subscribed_topic_regex: str | None = String(since=1, nullable=1, default=None)
    server_assignor: str | None = String(nullable=0, default=None)

    class Topic(Struct):
        topic_id: bytes = Uuid()
        partitions: list[int] = Array(Int32)

    topic_partitions: list[Topic] | None = Array(Topic, nullable=0, default=None)


class ConsumerGroupHeartbeatResponse(Response, to=ConsumerGroupHeartbeatRequest):
    """Member epoch, and the target assignment when it changed."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=0, default=None)
    member_id: str | None = String(nullable=0, default=None)
    member_epoch: int = Int32()
    heartbeat_interval_ms: int = Int32()

    class Assignment(Struct):
        class Topic(Struct):
            topic_id: bytes = Uuid()
            partitions: list[int] = Array(Int32)

        topic_partitions: list[Topic] = Array(Topic)

    assignment: Assignment | None = Nested(Assignment, nullable=0, default=None)


class ConsumerGroupDescribeRequest(Request, key=69, versions=(0, 1), flexible=0):
    """Show consumer groups of KIP-848."""

    group_ids: list[str] = Array(String)
    include_authorized_operations: bool = Bool()


class ConsumerGroupDescribeResponse(Response, to=ConsumerGroupDescribeRequest):
    """Epochs, members and assignments of each group."""

    throttle_time_ms: int = Int32(default=0)

    class Group(Struct):
        error_code: int = Int16()
        error_message: str | None = String(nullable=0, default=None)
        group_id: str = String()
        group_state: str = String()
        group_epoch: int = Int32()
        assignment_epoch: int = Int32()
        assignor_name: str = String()

        class Member(Struct):
            member_id: str = String()
            instance_id: str | None = String(nullable=0, default=None)
            rack_id: str | None = String(nullable=0, default=None)
            member_epoch: int = Int32()
            client_id: str = String()
            client_host: str = String()
            subscribed_topic_names: list[str] = Array(String)
            subscribed_topic_regex: str | None = String(nullable=0, default=None)

            class Assignment(Struct):
                class Topic(Struct):
                    topic_id: bytes = Uuid()
                    topic_name: str = String()
                    partitions: list[int] = Array(Int32)

                topic_partitions: list[Topic] = Array(Topic)

            assignment: Assignment = Nested(Assignment)
            target_assignment: Assignment = Nested(Assignment)
            member_type: int = Int8(since=1, default=-1)

        members: list[Member] = Array(Member)
        authorized_operations: int = Int32(default=-2147483648)

    groups: list[Group] = Array(Group)
