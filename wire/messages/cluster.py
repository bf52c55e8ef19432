"""ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions: how clients find their way."""

from __future__ import annotations

from wire.primitives import ZERO_UUID
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
    Uuid,
)


class ApiVersionsRequest(Request, key=18, versions=(0, 4), flexible=3):
    """Ask what the broker can do; the first request of most clients."""

    client_software_name: str = String(since=3, default="")
    client_software_version: str = String(since=3, default="")


class ApiVersionsResponse(Response, to=ApiVersionsRequest):
    """API version ranges and feature levels."""

    error_code: int = Int16()

    class ApiKey(Struct):
        api_key: int = Int16()
        min_version: int = Int16()
        max_version: int = Int16()

    api_keys: list[ApiKey] = Array(ApiKey)
    throttle_time_ms: int = Int32(since=1, default=0)

    class SupportedFeature(Struct):
        name: str = String()
        min_version: int = Int16()
        max_version: int = Int16()

    supported_features: list[SupportedFeature] = Array(SupportedFeature, since=3, tag=0, default=())
    finalized_features_epoch: int = Int64(since=3, tag=1, default=-1)

    class FinalizedFeature(Struct):
        name: str = String()
        max_version_level: int = Int16()
        min_version_level: int = Int16()

    finalized_features: list[FinalizedFeature] = Array(FinalizedFeature, since=3, tag=2, default=())
    zk_migration_ready: bool = Bool(since=3, tag=3, default=False)


class MetadataRequest(Request, key=3, versions=(0, 13), flexible=9):
    """Ask which brokers lead which partitions."""

    class Topic(Struct):
        topic_id: bytes = Uuid(since=10, default=ZERO_UUID)
        name: str | None = String(nullable=10)

    topics: list[Topic] | None = Array(Topic, nullable=1)
    allow_auto_topic_creation: bool = Bool(since=4, default=True)
    include_cluster_authorized_operations: bool = Bool(since=8, until=10, default=False)
    include_topic_authorized_operations: bool = Bool(since=8, default=False)


class MetadataResponse(Response, to=MetadataRequest):
    """Brokers, controller, topics and their partitions."""

    throttle_time_ms: int = Int32(since=3, default=0)

    class Broker(Struct):
        node_id: int = Int32()
        host: str = String()
        port: int = Int32()
        rack: str | None = String(since=1, nullable=1, default=None)

    brokers: list[Broker] = Array(Broker)
    cluster_id: str | None = String(since=2, nullable=2, default=None)
    controller_id: int = Int32(since=1, default=-1)

    class Topic(Struct):
        error_code: int = Int16()
        name: str | None = String(nullable=12)
        topic_id: bytes = Uuid(since=10, default=ZERO_UUID)
        is_internal: bool = Bool(since=1, default=False)

        class Partition(Struct):
            error_code: int = Int16()
            partition_index: int = Int32()
            leader_id: int = Int32()
            leader_epoch: int = Int32(since=7, default=-1)
            replica_nodes: list[int] = Array(Int32)
            isr_nodes: list[int] = Array(Int32)
            offline_replicas: list[int] = Array(Int32, since=5, default=())

        partitions: list[Partition] = Array(Partition)
        topic_authorized_operations: int = Int32(since=8, default=-2147483648)

    topics: list[Topic] = Array(Topic)
    cluster_authorized_operations: int = Int32(since=8, until=10, default=-2147483648)
    error_code: int = Int16(since=13, default=0)


class DescribeClusterRequest(Request, key=60, versions=(0, 2), flexible=0):
    """Ask for cluster id, controller and brokers."""

    include_cluster_authorized_operations: bool = Bool()
    endpoint_type: int = Int8(since=1, default=1)
    include_fenced_brokers: bool = Bool(since=2, default=False)


class DescribeClusterResponse(Response, to=DescribeClusterRequest):
    """The brokers, or controllers, and where they listen."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=0, default=None)
    endpoint_type: int = Int8(since=1, default=1)
    cluster_id: str = String()
    controller_id: int = Int32(default=-1)

    class Broker(Struct):
        broker_id: int = Int32()
        host: str = String()
        port: int = Int32()
        rack: str | None = String(nullable=0, default=None)
        is_fenced: bool = Bool(since=2, default=False)

    brokers: list[Broker] = Array(Broker)
    cluster_authorized_operations: int = Int32(default=-2147483648)


class DescribeTopicPartitionsRequest(Request, key=75, versions=(0, 0), flexible=0):
    """Page through topics and their partitions, with ELR (KIP-966)."""

    class Topic(Struct):
        name: str = String()

    topics: list[Topic] = Array(Topic)
    response_partition_limit: int = Int32(default=2000)

    class Cursor(Struct):
        topic_name: str = String()
        partition_index: int = Int32()

    cursor: Cursor | None = Nested(Cursor, nullable=0, default=None)


class DescribeTopicPartitionsResponse(Response, to=DescribeTopicPartitionsRequest):
    """One page of topics, and where the next one starts."""

    throttle_time_ms: int = Int32(default=0)

    class Topic(Struct):
        error_code: int = Int16()
        name: str | None = String(nullable=0)
        topic_id: bytes = Uuid()
        is_internal: bool = Bool()

        class Partition(Struct):
            error_code: int = Int16()
            partition_index: int = Int32()
            leader_id: int = Int32()
            leader_epoch: int = Int32(default=-1)
            replica_nodes: list[int] = Array(Int32)
            isr_nodes: list[int] = Array(Int32)
            eligible_leader_replicas: list[int] | None = Array(Int32, nullable=0, default=None)
            last_known_elr: list[int] | None = Array(Int32, nullable=0, default=None)
            offline_replicas: list[int] = Array(Int32)

        partitions: list[Partition] = Array(Partition)
        topic_authorized_operations: int = Int32(default=-2147483648)

    topics: list[Topic] = Array(Topic)

    class Cursor(Struct):
        topic_name: str = String()
        partition_index: int = Int32()

    next_cursor: Cursor | None = Nested(Cursor, nullable=0, default=None)
