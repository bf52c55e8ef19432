"""Topics, partitions, configs, log directories, quotas, features and telemetry."""

from __future__ import annotations

from wire.primitives import ZERO_UUID
from wire.schema import (
    Array,
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Request,
    Response,
    String,
    Struct,
    Uuid,
)


class CreateTopicsRequest(Request, key=19, versions=(2, 7), flexible=5):
    """Create topics."""

    class Topic(Struct):
        name: str = String()
        num_partitions: int = Int32()
        replication_factor: int = Int16()

        class Assignment(Struct):
            partition_index: int = Int32()
            broker_ids: list[int] = Array(Int32)

        assignments: list[Assignment] = Array(Assignment)

        class Config(Struct):
            name: str = String()
            value: str | None = String(nullable=2)

        configs: list[Config] = Array(Config)

    topics: list[Topic] = Array(Topic)
    timeout_ms: int = Int32(default=60000)
    validate_only: bool = Bool()


class CreateTopicsResponse(Response, to=CreateTopicsRequest):
    """Id and settings of each created topic, or why it was not created."""

    throttle_time_ms: int = Int32(default=0)

    class Topic(Struct):
        name: str = String()
        topic_id: bytes = Uuid(since=7, default=ZERO_UUID)
        error_code: int = Int16()
        error_message: str | None = String(nullable=2)
        num_partitions: int = Int32(since=5, default=-1)
        replication_factor: int = Int16(since=5, default=-1)

        class Config(Struct):
            name: str = String()
            value: str | None = String(nullable=5)
            read_only: bool = Bool()
            config_source: int = Int8(default=-1)
            is_sensitive: bool = Bool()

        configs: list[Config] | None = Array(Config, since=5, nullable=5, default=())
        topic_config_error_code: int = Int16(since=5, tag=0, default=0)

    topics: list[Topic] = Array(Topic)


class DeleteTopicsRequest(Request, key=20, versions=(1, 6), flexible=4):
    """Delete topics by name or id."""

    class Topic(Struct):
        name: str | None = String(nullable=6, default=None)
        topic_id: bytes = Uuid()

    topics: list[Topic] = Array(Topic, since=6, default=())
    topic_names: list[str] = Array(String, until=5, default=())
    timeout_ms: int = Int32()


class DeleteTopicsResponse(Response, to=DeleteTopicsRequest):
    """Whether each topic was deleted."""

    throttle_time_ms: int = Int32(default=0)

    class Topic(Struct):
        name: str | None = String(nullable=6)
        topic_id: bytes = Uuid(since=6, default=ZERO_UUID)
        error_code: int = Int16()
        error_message: str | None = String(since=5, nullable=5, default=None)

    responses: list[Topic] = Array(Topic)


class CreatePartitionsRequest(Request, key=37, versions=(0, 3), flexible=2):
    """Add partitions to topics."""

    class Topic(Struct):
        name: str = String()
        count: int = Int32()

        class Assignment(Struct):
            broker_ids: list[int] = Array(Int32)

        assignments: list[Assignment] | None = Array(Assignment, nullable=0)

    topics: list[Topic] = Array(Topic)
    timeout_ms: int = Int32()
    validate_only: bool = Bool()


class CreatePartitionsResponse(Response, to=CreatePartitionsRequest):
    """Whether each topic was extended."""

    throttle_time_ms: int = Int32(default=0)

    class Topic(Struct):
        name: str = String()
        error_code: int = Int16()
        error_message: str | None = String(nullable=0, default=None)

    results: list[Topic] = Array(Topic)


class DescribeConfigsRequest(Request, key=32, versions=(1, 4), flexible=4):
    """Read configs of topics, brokers, groups and client metrics."""

    class Resource(Struct):
        resource_type: int = Int8()
        resource_name: str = String()
        configuration_keys: list[str] | None = Array(String, nullable=1)

    resources: list[Resource] = Array(Resource)
    include_synonyms: bool = Bool()
    include_documentation: bool = Bool(since=3, default=False)


class DescribeConfigsResponse(Response, to=DescribeConfigsRequest):
    """Each config with its value, source and synonyms."""

    throttle_time_ms: int = Int32(default=0)

    class Resource(Struct):
        error_code: int = Int16()
        error_message: str | None = String(nullable=1)
        resource_type: int = Int8()
        resource_name: str = String()

        class Config(Struct):
            name: str = String()
            value: str | None = String(nullable=1)
            read_only: bool = Bool()
            config_source: int = Int8(default=-1)
            is_sensitive: bool = Bool()

            class Synonym(Struct):
                name: str = String()
                value: str | None = String(nullable=1)
                source: int = Int8()

            synonyms: list[Synonym] = Array(Synonym)
            config_type: int = Int8(since=3, default=0)
            documentation: str | None = String(since=3, nullable=3, default="")

        configs: list[Config] = Array(Config)

    results: list[Resource] = Array(Resource)


class AlterConfigsRequest(Request, key=33, versions=(0, 2), flexible=2):
    """Replace all dynamic configs of resources (deprecated by IncrementalAlterConfigs)."""

    class Resource(Struct):
        resource_type: int = Int8()
        resource_name: str = String()

        class Config(Struct):
            name: str = String()
            value: str | None = String(nullable=0)

        configs: list[Config] = Array(Config)

    resources: list[Resource] = Array(Resource)
    validate_only: bool = Bool()


class AlterConfigsResponse(Response, to=AlterConfigsRequest):
    """Whether each resource was changed."""

    throttle_time_ms: int = Int32(default=0)

    class Resource(Struct):
        error_code: int = Int16()
        error_message: str | None = String(nullable=0)
        resource_type: int = Int8()
        resource_name: str = String()

    responses: list[Resource] = Array(Resource)


class IncrementalAlterConfigsRequest(Request, key=44, versions=(0, 1), flexible=1):
    """Set, delete, append to or subtract from single configs."""

    class Resource(Struct):
        resource_type: int = Int8()
        resource_name: str = String()

        class Config(Struct):
            name: str = String()
            config_operation: int = Int8()
            value: str | None = String(nullable=0)

        configs: list[Config] = Array(Config)

    resources: list[Resource] = Array(Resource)
    validate_only: bool = Bool()


class IncrementalAlterConfigsResponse(Response, to=IncrementalAlterConfigsRequest):
    """Whether each resource was changed."""

    throttle_time_ms: int = Int32(default=0)

    class Resource(Struct):
        error_code: int = Int16()
        error_message: str | None = String(nullable=0)
        resource_type: int = Int8()
        resource_name: str = String()

    responses: list[Resource] = Array(Resource)


class ListConfigResourcesRequest(Request, key=74, versions=(0, 1), flexible=0):
    """List resources that have configs."""

    resource_types: list[int] = Array(Int8, since=1, default=())


class ListConfigResourcesResponse(Response, to=ListConfigResourcesRequest):
    """Type and name of each resource."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()

    class ConfigResource(Struct):
        resource_name: str = String()
        resource_type: int = Int8(since=1, default=16)

    config_resources: list[ConfigResource] = Array(ConfigResource)


class AlterReplicaLogDirsRequest(Request, key=34, versions=(1, 2), flexible=2):
    """Move replicas between log directories of one broker."""

    class Directory(Struct):
        path: str = String()

        class Topic(Struct):
            name: str = String()
            partitions: list[int] = Array(Int32)

        topics: list[Topic] = Array(Topic)

    dirs: list[Directory] = Array(Directory)


class AlterReplicaLogDirsResponse(Response, to=AlterReplicaLogDirsRequest):
    """Whether each move was started."""

    throttle_time_ms: int = Int32(default=0)

    class Topic(Struct):
        topic_name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()

        partitions: list[Partition] = Array(Partition)

    results: list[Topic] = Array(Topic)


class DescribeLogDirsRequest(Request, key=35, versions=(1, 5), flexible=2):
    """Ask what lies in a broker's log directories."""

    class Topic(Struct):
        topic: str = String()
        partitions: list[int] = Array(Int32)

    topics: list[Topic] | None = Array(Topic, nullable=1)


class DescribeLogDirsResponse(Response, to=DescribeLogDirsRequest):
    """Sizes and lag by log directory and partition."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16(since=3, default=0)

    class LogDir(Struct):
        error_code: int = Int16()
        log_dir: str = String()

        class Topic(Struct):
            name: str = String()

            class Partition(Struct):
                partition_index: int = Int32()
                partition_size: int = Int64()
                offset_lag: int = Int64()
                is_future_key: bool = Bool()

            partitions: list[Partition] = Array(Partition)

        topics: list[Topic] = Array(Topic)
        total_bytes: int = Int64(since=4, default=-1)
        usable_bytes: int = Int64(since=4, default=-1)
        is_cordoned: bool = Bool(since=5, default=False)

    results: list[LogDir] = Array(LogDir)


class ElectLeadersRequest(Request, key=43, versions=(0, 2), flexible=2):
    """Start preferred or unclean leader elections."""

    election_type: int = Int8(since=1, default=0)

    class Topic(Struct):
        topic: str = String()
        partitions: list[int] = Array(Int32)

    topic_partitions: list[Topic] | None = Array(Topic, nullable=0)
    timeout_ms: int = Int32(default=60000)


class ElectLeadersResponse(Response, to=ElectLeadersRequest):
    """The outcome for each partition."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16(since=1, default=0)

    class Topic(Struct):
        topic: str = String()

        class Partition(Struct):
            partition_id: int = Int32()
            error_code: int = Int16()
            error_message: str | None = String(nullable=0)

        partition_result: list[Partition] = Array(Partition)

    replica_election_results: list[Topic] = Array(Topic)


class AlterPartitionReassignmentsRequest(Request, key=45, versions=(0, 1), flexible=0):
    """Start or cancel moving replicas between brokers."""

    timeout_ms: int = Int32(default=60000)
    allow_replication_factor_change: bool = Bool(since=1, default=True)

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            replicas: list[int] | None = Array(Int32, nullable=0, default=None)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class AlterPartitionReassignmentsResponse(Response, to=AlterPartitionReassignmentsRequest):
    """Whether each reassignment was accepted."""

    throttle_time_ms: int = Int32(default=0)
    allow_replication_factor_change: bool = Bool(since=1, default=True)
    error_code: int = Int16()
    error_message: str | None = String(nullable=0)

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()
            error_message: str | None = String(nullable=0)

        partitions: list[Partition] = Array(Partition)

    responses: list[Topic] = Array(Topic)


class ListPartitionReassignmentsRequest(Request, key=46, versions=(0, 0), flexible=0):
    """List the reassignments that are under way."""

    timeout_ms: int = Int32(default=60000)

    class Topic(Struct):
        name: str = String()
        partition_indexes: list[int] = Array(Int32)

    topics: list[Topic] | None = Array(Topic, nullable=0, default=None)


class ListPartitionReassignmentsResponse(Response, to=ListPartitionReassignmentsRequest):
    """Current, adding and removing replicas by partition."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=0)

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            replicas: list[int] = Array(Int32)
            adding_replicas: list[int] = Array(Int32)
            removing_replicas: list[int] = Array(Int32)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class DescribeClientQuotasRequest(Request, key=48, versions=(0, 1), flexible=1):
    """List client quotas that match a filter."""

    class Component(Struct):
        entity_type: str = String()
        match_type: int = Int8()
        match: str | None = String(nullable=0)

    components: list[Component] = Array(Component)
    strict: bool = Bool()


class DescribeClientQuotasResponse(Response, to=DescribeClientQuotasRequest):
    """Quota values by entity."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=0)

    class Entry(Struct):
        class Entity(Struct):
            entity_type: str = String()
            entity_name: str | None = String(nullable=0)

        entity: list[Entity] = Array(Entity)

        class Value(Struct):
            key: str = String()
            value: float = Float64()

        values: list[Value] = Array(Value)

    entries: list[Entry] | None = Array(Entry, nullable=0)


class AlterClientQuotasRequest(Request, key=49, versions=(0, 1), flexible=1):
    """Set or remove client quotas."""

    class Entry(Struct):
        class Entity(Struct):
            entity_type: str = String()
            entity_name: str | None = String(nullable=0)

        entity: list[Entity] = Array(Entity)

        class Op(Struct):
            key: str = String()
            value: float = Float64()
            remove: bool = Bool()

        ops: list[Op] = Array(Op)

    entries: list[Entry] = Array(Entry)
    validate_only: bool = Bool()


class AlterClientQuotasResponse(Response, to=AlterClientQuotasRequest):
    """Whether each entity was changed."""

    throttle_time_ms: int = Int32(default=0)

    class Entry(Struct):
        error_code: int = Int16()
        error_message: str | None = String(nullable=0)

        class Entity(Struct):
            entity_type: str = String()
            entity_name: str | None = String(nullable=0)

        entity: list[Entity] = Array(Entity)

    entries: list[Entry] = Array(Entry)


class UpdateFeaturesRequest(Request, key=57, versions=(0, 2), flexible=0):
    """Change finalized feature levels."""

    timeout_ms: int = Int32(default=60000)

    class FeatureUpdate(Struct):
        feature: str = String()
        max_version_level: int = Int16()
        allow_downgrade: bool = Bool(until=0, default=False)
        upgrade_type: int = Int8(since=1, default=1)

    feature_updates: list[FeatureUpdate] = Array(FeatureUpdate)
    validate_only: bool = Bool(since=1, default=False)


class UpdateFeaturesResponse(Response, to=UpdateFeaturesRequest):
    """Whether the levels were changed."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=0)

    class Feature(Struct):
        feature: str = String()
        error_code: int = Int16()
        error_message: str | None = String(nullable=0)

    results: list[Feature] = Array(Feature, until=1, default=())


class UnregisterBrokerRequest(Request, key=64, versions=(0, 0), flexible=0):
    """Remove a broker's registration."""

    broker_id: int = Int32()


class UnregisterBrokerResponse(Response, to=UnregisterBrokerRequest):
    """Whether it was removed."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=0)


class GetTelemetrySubscriptionsRequest(Request, key=71, versions=(0, 0), flexible=0):
    """A client asks which metrics to push (KIP-714)."""

    client_instance_id: bytes = Uuid()


class GetTelemetrySubscriptionsResponse(Response, to=GetTelemetrySubscriptionsRequest):
    """The metrics wanted and how often."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    client_instance_id: bytes = Uuid()
    subscription_id: int = Int32()
    accepted_compression_types: list[int] = Array(Int8)
    push_interval_ms: int = Int32()
    telemetry_max_bytes: int = Int32()
    delta_temporality: bool = Bool()
    requested_metrics: list[str] = Array(String)


class PushTelemetryRequest(Request, key=72, versions=(0, 0), flexible=0):
    """A client pushes its metrics (KIP-714)."""

    client_instance_id: bytes = Uuid()
    subscription_id: int = Int32()
    terminating: bool = Bool()
    compression_type: int = Int8()
    metrics: bytes = Bytes()


class PushTelemetryResponse(Response, to=PushTelemetryRequest):
    """Whether the metrics were taken."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
