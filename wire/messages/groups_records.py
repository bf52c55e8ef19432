"""What the group coordinator writes to __consumer_offsets.

A key is its type_id (int16) and the key's fields; a value is its version (int16) and
the value's fields.
"""

from __future__ import annotations

from wire.primitives import ZERO_UUID
from wire.schema import (
    Array,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Nested,
    Record,
    String,
    Struct,
    Uint16,
    Uuid,
)


class LegacyOffsetCommitKey(Record, type_id=0, versions=(0, 0)):
    """Key of: position committed before Kafka 0.9, as a group's log may still hold it."""

    group: str = String()
    topic: str = String()
    partition: int = Int32()


class LegacyOffsetCommitValue(Record, type_id=0, versions=(0, 0)):
    """Value: position committed before Kafka 0.9, as a group's log may still hold it."""

    offset: int = Int64()
    metadata: str = String()
    commit_timestamp: int = Int64()


class OffsetCommitKey(Record, type_id=1, versions=(0, 0)):
    """Key of: a group's position in one partition."""

    group: str = String()
    topic: str = String()
    partition: int = Int32()


class OffsetCommitValue(Record, type_id=1, versions=(0, 4), flexible=4):
    """Value: a group's position in one partition."""

    offset: int = Int64()
    leader_epoch: int = Int32(since=3, default=-1)
    metadata: str = String()
    commit_timestamp: int = Int64()
    expire_timestamp: int = Int64(since=1, until=1, default=-1)
    topic_id: bytes = Uuid(since=4, tag=0, default=ZERO_UUID)


class GroupMetadataKey(Record, type_id=2, versions=(0, 0)):
    """Key of: a classic group: generation, protocol and members."""

    group: str = String()


class GroupMetadataValue(Record, type_id=2, versions=(0, 4), flexible=4):
    """Value: a classic group: generation, protocol and members."""

    protocol_type: str = String()
    generation: int = Int32()
    protocol: str | None = String(nullable=0)
    leader: str | None = String(nullable=0)
    current_state_timestamp: int = Int64(since=2, default=-1)

    class Member(Struct):
        member_id: str = String()
        group_instance_id: str | None = String(since=3, nullable=3, default=None)
        client_id: str = String()
        client_host: str = String()
        rebalance_timeout: int = Int32(since=1, default=-1)
        session_timeout: int = Int32()
        subscription: bytes = Bytes()
        assignment: bytes = Bytes()

    members: list[Member] = Array(Member)


class ConsumerGroupMetadataKey(Record, type_id=3, versions=(0, 0)):
    """Key of: a consumer group's epoch."""

    group_id: str = String()


class ConsumerGroupMetadataValue(Record, type_id=3, versions=(0, 0), flexible=0):
    """Value: a consumer group's epoch."""

    epoch: int = Int32()
    metadata_hash: int = Int64(tag=0, default=0)


class ConsumerGroupPartitionMetadataKey(Record, type_id=4, versions=(0, 0)):
    """Key of: topics a consumer group is subscribed to, as last seen (no longer written by 4.x)."""

    group_id: str = String()


class ConsumerGroupPartitionMetadataValue(Record, type_id=4, versions=(0, 0), flexible=0):
    """Value: topics a consumer group is subscribed to, as last seen (no longer written by 4.x)."""

    class Topic(Struct):
        topic_id: bytes = Uuid()
        topic_name: str = String()
        num_partitions: int = Int32()

        class Partition(Struct):
            partition: int = Int32()
            racks: list[str] = Array(String)

        partition_metadata: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class ConsumerGroupMemberMetadataKey(Record, type_id=5, versions=(0, 0)):
    """Key of: what a consumer group's member subscribed to, and where it runs."""

    group_id: str = String()
    member_id: str = String()


class ConsumerGroupMemberMetadataValue(Record, type_id=5, versions=(0, 0), flexible=0):
    """Value: what a consumer group's member subscribed to, and where it runs."""

    instance_id: str | None = String(nullable=0)
    rack_id: str | None = String(nullable=0)
    client_id: str = String()
    client_host: str = String()
    subscribed_topic_names: list[str] = Array(String)
    subscribed_topic_regex: str | None = String(nullable=0)
    rebalance_timeout_ms: int = Int32(default=-1)
    server_assignor: str | None = String(nullable=0)

    class ClassicMemberMetadata(Struct):
        session_timeout_ms: int = Int32()

        class Protocol(Struct):
            name: str = String()
            metadata: bytes = Bytes()

        supported_protocols: list[Protocol] = Array(Protocol)

    classic_member_metadata: ClassicMemberMetadata | None = Nested(
        ClassicMemberMetadata, nullable=0, tag=0
    )


class ConsumerGroupTargetAssignmentMetadataKey(Record, type_id=6, versions=(0, 0)):
    """Key of: epoch of a consumer group's target assignment."""

    group_id: str = String()


class ConsumerGroupTargetAssignmentMetadataValue(Record, type_id=6, versions=(0, 0), flexible=0):
    """Value: epoch of a consumer group's target assignment."""

    assignment_epoch: int = Int32()
    assignment_timestamp: int = Int64(tag=0, default=0)


class ConsumerGroupTargetAssignmentMemberKey(Record, type_id=7, versions=(0, 0)):
    """Key of: partitions one member is to have."""

    group_id: str = String()
    member_id: str = String()


class ConsumerGroupTargetAssignmentMemberValue(Record, type_id=7, versions=(0, 0), flexible=0):
    """Value: partitions one member is to have."""

    class Topic(Struct):
        topic_id: bytes = Uuid()
        partitions: list[int] = Array(Int32)

    topic_partitions: list[Topic] = Array(Topic)


class ConsumerGroupCurrentMemberAssignmentKey(Record, type_id=8, versions=(0, 0)):
    """Key of: partitions one member has, and those it must give back."""

    group_id: str = String()
    member_id: str = String()


class ConsumerGroupCurrentMemberAssignmentValue(Record, type_id=8, versions=(0, 0), flexible=0):
    """Value: partitions one member has, and those it must give back."""

    member_epoch: int = Int32()
    previous_member_epoch: int = Int32()
    state: int = Int8()

    class Topic(Struct):
        topic_id: bytes = Uuid()
        partitions: list[int] = Array(Int32)
        assignment_epochs: list[int] | None = Array(Int32, nullable=0, tag=0, default=())

    assigned_partitions: list[Topic] = Array(Topic)
    partitions_pending_revocation: list[Topic] = Array(Topic)


class ShareGroupMemberMetadataKey(Record, type_id=10, versions=(0, 0)):
    """Key of: what a share group's member subscribed to, and where it runs."""

    group_id: str = String()
    member_id: str = String()


class ShareGroupMemberMetadataValue(Record, type_id=10, versions=(0, 0), flexible=0):
    """Value: what a share group's member subscribed to, and where it runs."""

    rack_id: str | None = String(nullable=0)
    client_id: str = String()
    client_host: str = String()
    subscribed_topic_names: list[str] = Array(String)


class ShareGroupMetadataKey(Record, type_id=11, versions=(0, 0)):
    """Key of: a share group's epoch."""

    group_id: str = String()


class ShareGroupMetadataValue(Record, type_id=11, versions=(0, 0), flexible=0):
    """Value: a share group's epoch."""

    epoch: int = Int32()
    metadata_hash: int = Int64()


class ShareGroupTargetAssignmentMetadataKey(Record, type_id=12, versions=(0, 0)):
    """Key of: epoch of a share group's target assignment."""

    group_id: str = String()


class ShareGroupTargetAssignmentMetadataValue(Record, type_id=12, versions=(0, 0), flexible=0):
    """Value: epoch of a share group's target assignment."""

    assignment_epoch: int = Int32()
    assignment_timestamp: int = Int64(tag=0, default=0)


class ShareGroupTargetAssignmentMemberKey(Record, type_id=13, versions=(0, 0)):
    """Key of: partitions one share group member is to have."""

    group_id: str = String()
    member_id: str = String()


class ShareGroupTargetAssignmentMemberValue(Record, type_id=13, versions=(0, 0), flexible=0):
    """Value: partitions one share group member is to have."""

    class Topic(Struct):
        topic_id: bytes = Uuid()
        partitions: list[int] = Array(Int32)

    topic_partitions: list[Topic] = Array(Topic)


class ShareGroupCurrentMemberAssignmentKey(Record, type_id=14, versions=(0, 0)):
    """Key of: partitions one share group member has."""

    group_id: str = String()
    member_id: str = String()


class ShareGroupCurrentMemberAssignmentValue(Record, type_id=14, versions=(0, 0), flexible=0):
    """Value: partitions one share group member has."""

    member_epoch: int = Int32()
    previous_member_epoch: int = Int32()
    state: int = Int8()

    class Topic(Struct):
        topic_id: bytes = Uuid()
        partitions: list[int] = Array(Int32)

    assigned_partitions: list[Topic] = Array(Topic)


class ShareGroupStatePartitionMetadataKey(Record, type_id=15, versions=(0, 0)):
    """Key of: which topics' share state is being initialised, initialised, or being deleted."""

    group_id: str = String()


class ShareGroupStatePartitionMetadataValue(Record, type_id=15, versions=(0, 0), flexible=0):
    """Value: which topics' share state is being initialised, initialised, or being deleted."""

    class Topic(Struct):
        topic_id: bytes = Uuid()
        topic_name: str = String()
        partitions: list[int] = Array(Int32)

    initializing_topics: list[Topic] = Array(Topic)
    initialized_topics: list[Topic] = Array(Topic)

    class DeletingTopic(Struct):
        topic_id: bytes = Uuid()
        topic_name: str = String()

    deleting_topics: list[DeletingTopic] = Array(DeletingTopic)


class ConsumerGroupRegularExpressionKey(Record, type_id=16, versions=(0, 0)):
    """Key of: topics a subscribed regular expression was resolved to."""

    group_id: str = String()
    regular_expression: str = String()


class ConsumerGroupRegularExpressionValue(Record, type_id=16, versions=(0, 0), flexible=0):
    """Value: topics a subscribed regular expression was resolved to."""

    topics: list[str] = Array(String)
    version: int = Int64()
    timestamp: int = Int64()


class StreamsGroupMetadataKey(Record, type_id=17, versions=(0, 0)):
    """Key of: a streams group's epoch and topology validation."""

    group_id: str = String()


class StreamsGroupMetadataValue(Record, type_id=17, versions=(0, 0), flexible=0):
    """Value: a streams group's epoch and topology validation."""

    epoch: int = Int32()
    metadata_hash: int = Int64()
    validated_topology_epoch: int = Int32(tag=0, default=-1)

    class AssignmentConfig(Struct):
        key: str = String()
        value: str = String()

    last_assignment_configs: list[AssignmentConfig] | None = Array(
        AssignmentConfig, nullable=0, tag=1, default=()
    )


class StreamsGroupMemberMetadataKey(Record, type_id=19, versions=(0, 0)):
    """Key of: a streams group's member: topology, process and endpoint."""

    group_id: str = String()
    member_id: str = String()


class StreamsGroupMemberMetadataValue(Record, type_id=19, versions=(0, 0), flexible=0):
    """Value: a streams group's member: topology, process and endpoint."""

    instance_id: str | None = String(nullable=0)
    rack_id: str | None = String(nullable=0)
    client_id: str = String()
    client_host: str = String()
    rebalance_timeout_ms: int = Int32(default=-1)
    topology_epoch: int = Int32()
    process_id: str = String()

    class Endpoint(Struct):
        host: str = String()
        port: int = Uint16()

    user_endpoint: Endpoint | None = Nested(Endpoint, nullable=0, default=None)

    class ClientTag(Struct):
        key: str = String()
        value: str = String()

    client_tags: list[ClientTag] = Array(ClientTag)


class StreamsGroupTargetAssignmentMetadataKey(Record, type_id=20, versions=(0, 0)):
    """Key of: epoch of a streams group's target assignment."""

    group_id: str = String()


class StreamsGroupTargetAssignmentMetadataValue(Record, type_id=20, versions=(0, 0), flexible=0):
    """Value: epoch of a streams group's target assignment."""

    assignment_epoch: int = Int32()
    assignment_timestamp: int = Int64(tag=0, default=0)


class StreamsGroupTargetAssignmentMemberKey(Record, type_id=21, versions=(0, 0)):
    """Key of: tasks one member is to run."""

    group_id: str = String()
    member_id: str = String()


class StreamsGroupTargetAssignmentMemberValue(Record, type_id=21, versions=(0, 0), flexible=0):
    """Value: tasks one member is to run."""

    class Task(Struct):
        subtopology_id: str = String()
        partitions: list[int] = Array(Int32)

    active_tasks: list[Task] = Array(Task)
    standby_tasks: list[Task] = Array(Task)
    warmup_tasks: list[Task] = Array(Task)


class StreamsGroupCurrentMemberAssignmentKey(Record, type_id=22, versions=(0, 0)):
    """Key of: tasks one member runs, and those it must give back."""

    group_id: str = String()
    member_id: str = String()


class StreamsGroupCurrentMemberAssignmentValue(Record, type_id=22, versions=(0, 0), flexible=0):
    """Value: tasks one member runs, and those it must give back."""

    member_epoch: int = Int32()
    previous_member_epoch: int = Int32()
    state: int = Int8()

    class Task(Struct):
        subtopology_id: str = String()
        partitions: list[int] = Array(Int32)
        assignment_epochs: list[int] | None = Array(Int32, nullable=0, tag=0, default=())

    active_tasks: list[Task] = Array(Task)
    standby_tasks: list[Task] = Array(Task)
    warmup_tasks: list[Task] = Array(Task)
    active_tasks_pending_revocation: list[Task] = Array(Task)
    standby_tasks_pending_revocation: list[Task] = Array(Task)
    warmup_tasks_pending_revocation: list[Task] = Array(Task)


class StreamsGroupTopologyKey(Record, type_id=23, versions=(0, 0)):
    """Key of: topology a streams group runs."""

    group_id: str = String()


class StreamsGroupTopologyValue(Record, type_id=23, versions=(0, 0), flexible=0):
    """Value: topology a streams group runs."""

    epoch: int = Int32()

    class Subtopology(Struct):
        subtopology_id: str = String()
        source_topics: list[str] = Array(String)
        source_topic_regex: list[str] = Array(String)

        class TopicInfo(Struct):
            name: str = String()
            partitions: int = Int32()
            replication_factor: int = Int16()

            class Config(Struct):
                key: str = String()
                value: str = String()

            topic_configs: list[Config] = Array(Config)

        state_changelog_topics: list[TopicInfo] = Array(TopicInfo)
        repartition_sink_topics: list[str] = Array(String)
        repartition_source_topics: list[TopicInfo] = Array(TopicInfo)

        class CopartitionGroup(Struct):
            source_topics: list[int] = Array(Int16)
            source_topic_regex: list[int] = Array(Int16)
            repartition_source_topics: list[int] = Array(Int16)

        copartition_groups: list[CopartitionGroup] = Array(CopartitionGroup)

    subtopologies: list[Subtopology] = Array(Subtopology)
