"""Kafka Streams groups (KIP-1071)."""

from __future__ import annotations

from wire.schema import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Nested,
    Request,
    Response,
    String,
    Struct,
    Uint16,
)


class StreamsGroupHeartbeatRequest(Request, key=88, versions=(0, 0), flexible=0):
    """Join, stay in or leave a Kafka Streams group (KIP-1071)."""

    group_id: str = String()
    member_id: str = String()
    member_epoch: int = Int32()
    endpoint_information_epoch: int = Int32()
    instance_id: str | None = String(nullable=0, default=None)
    rack_id: str | None = String(nullable=0, default=None)
    rebalance_timeout_ms: int = Int32(default=-1)

    class Topology(Struct):
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

    topology: Topology | None = Nested(Topology, nullable=0, default=None)

    class Task(Struct):
        subtopology_id: str = String()
        partitions: list[int] = Array(Int32)

    active_tasks: list[Task] | None = Array(Task, nullable=0, default=None)
    standby_tasks: list[Task] | None = Array(Task, nullable=0, default=None)
    warmup_tasks: list[Task] | None = Array(Task, nullable=0, default=None)
    process_id: str | None = String(nullable=0, default=None)

    class Endpoint(Struct):
        host: str = String()
        port: int = Uint16()

    user_endpoint: Endpoint | None = Nested(Endpoint, nullable=0, default=None)

    class ClientTag(Struct):
        key: str = String()
        value: str = String()

    client_tags: list[ClientTag] | None = Array(ClientTag, nullable=0, default=None)

    class TaskOffset(Struct):
        subtopology_id: str = String()
        partition: int = Int32()
        offset: int = Int64()

    task_offsets: list[TaskOffset] | None = Array(TaskOffset, nullable=0, default=None)
    task_end_offsets: list[TaskOffset] | None = Array(TaskOffset, nullable=0, default=None)
    shutdown_application: bool = Bool()


class StreamsGroupHeartbeatResponse(Response, to=StreamsGroupHeartbeatRequest):
    """Member epoch, tasks to run, and the partitions behind each endpoint."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=0, default=None)
    member_id: str = String()
    member_epoch: int = Int32()
    heartbeat_interval_ms: int = Int32()
    acceptable_recovery_lag: int = Int32()
    task_offset_interval_ms: int = Int32()

    class Status(Struct):
        status_code: int = Int8()
        status_detail: str = String()

    status: list[Status] | None = Array(Status, nullable=0)

    class Task(Struct):
        subtopology_id: str = String()
        partitions: list[int] = Array(Int32)

    active_tasks: list[Task] | None = Array(Task, nullable=0, default=None)
    standby_tasks: list[Task] | None = Array(Task, nullable=0, default=None)
    warmup_tasks: list[Task] | None = Array(Task, nullable=0, default=None)
    endpoint_information_epoch: int = Int32()

    class EndpointPartitions(Struct):
        class Endpoint(Struct):
            host: str = String()
            port: int = Uint16()

        user_endpoint: Endpoint = Nested(Endpoint)

        class Topic(Struct):
            topic: str = String()
            partitions: list[int] = Array(Int32)

        active_partitions: list[Topic] = Array(Topic)
        standby_partitions: list[Topic] = Array(Topic)

    partitions_by_user_endpoint: list[EndpointPartitions] | None = Array(
        EndpointPartitions, nullable=0, default=None
    )


class StreamsGroupDescribeRequest(Request, key=89, versions=(0, 0), flexible=0):
    """Show Kafka Streams groups."""

    group_ids: list[str] = Array(String)
    include_authorized_operations: bool = Bool()


class StreamsGroupDescribeResponse(Response, to=StreamsGroupDescribeRequest):
    """Topology, members and tasks of each group."""

    throttle_time_ms: int = Int32(default=0)

    class Group(Struct):
        error_code: int = Int16()
        error_message: str | None = String(nullable=0, default=None)
        group_id: str = String()
        group_state: str = String()
        group_epoch: int = Int32()
        assignment_epoch: int = Int32()

        class Topology(Struct):
            epoch: int = Int32()

            class Subtopology(Struct):
                subtopology_id: str = String()
                source_topics: list[str] = Array(String)
                repartition_sink_topics: list[str] = Array(String)

                class TopicInfo(Struct):
                    name: str = String()
                    partitions: int = Int32()
                    replication_factor: int = Int16()

                    class Config(Struct):
                        key: str = String()
                        value: str = String()

                    topic_configs: list[Config] = Array(Config)

                state_changelog_topics: list[TopicInfo] = Array(TopicInfo)
                repartition_source_topics: list[TopicInfo] = Array(TopicInfo)

            subtopologies: list[Subtopology] | None = Array(Subtopology, nullable=0, default=None)

        topology: Topology | None = Nested(Topology, nullable=0, default=None)

        class Member(Struct):
            member_id: str = String()
            member_epoch: int = Int32()
            instance_id: str | None = String(nullable=0, default=None)
            rack_id: str | None = String(nullable=0, default=None)
            client_id: str = String()
            client_host: str = String()
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

            class TaskOffset(Struct):
                subtopology_id: str = String()
                partition: int = Int32()
                offset: int = Int64()

            task_offsets: list[TaskOffset] = Array(TaskOffset)
            task_end_offsets: list[TaskOffset] = Array(TaskOffset)

            class Assignment(Struct):
                class Task(Struct):
                    subtopology_id: str = String()
                    partitions: list[int] = Array(Int32)

                active_tasks: list[Task] = Array(Task)
                standby_tasks: list[Task] = Array(Task)
                warmup_tasks: list[Task] = Array(Task)

            assignment: Assignment = Nested(Assignment)
            target_assignment: Assignment = Nested(Assignment)
            is_classic: bool = Bool()

        members: list[Member] = Array(Member)
        authorized_operations: int = Int32(default=-2147483648)

    groups: list[Group] = Array(Group)
