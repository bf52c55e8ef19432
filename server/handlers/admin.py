"""Topics, partitions, configs, log directories, elections: what admin clients ask.

Changes of the cluster's metadata are the controller's to decide: those handlers pass the request on
and answer when the controller does, which is once the change is committed and this broker has
applied it. The others read the metadata image, the configuration or the log directories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replication.metadata.topic_names import absent_topic_error
from server.config import schema
from server.config.kafka_config import KafkaConfig
from server.config.schema import ConfigEntry
from server.handlers import config_admin
from server.handlers.controller import pass_on
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListPartitionReassignmentsRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.handlers.edges import ReplicasBroker
    from server.network.request_context import RequestContext

_INVENTED_MAX = 1_000


# ---- passed on to the controller


def create_topics(ctx: RequestContext[ReplicasBroker], request: CreateTopicsRequest) -> None:
    """Create topics.

    Behaviour: topics fail alone; answered when a producer can use the new topics.
    Versions:  5 returns configs and counts. 7 returns the topic id.
    Gaps:      create.topic.policy.class.name is not served.
    """
    pass_on(ctx, request)


def delete_topics(
    ctx: RequestContext[ReplicasBroker],
    request: DeleteTopicsRequest,
    may_delete: Callable[[str], bool] | None = None,
) -> None:
    """Delete topics by name, or by id. `may_delete`: what an authorizer says.

    Behaviour: topics fail alone; the files go after file.delete.delay.ms.
    Versions:  6 takes ids.
    Gaps:      -
    """
    pass_on(ctx, request, may_delete=may_delete)


def create_partitions(
    ctx: RequestContext[ReplicasBroker], request: CreatePartitionsRequest
) -> None:
    """Add partitions to topics.

    Behaviour: topics fail alone, and each is named in the answer.
    Versions:  all alike.
    Gaps:      -
    """
    pass_on(ctx, request)


def elect_leaders(ctx: RequestContext[ReplicasBroker], request: ElectLeadersRequest) -> None:
    """Elect the preferred replica, or an unclean one, as leader.

    Behaviour: partitions fail alone; without a list, only those that needed one are named. One
               that is named twice is looked at once.
    Versions:  1 adds the unclean election.
    Gaps:      -
    """
    pass_on(ctx, request)


def alter_partition_reassignments(
    ctx: RequestContext[ReplicasBroker], request: AlterPartitionReassignmentsRequest
) -> None:
    """Move replicas to other brokers, or cancel that (KIP-455).

    Behaviour: partitions fail alone. Answered when the move has begun; it is over when every new
               replica is in sync, and ListPartitionReassignments no longer names it.
    Versions:  1 can refuse to change the replication factor.
    Gaps:      -
    """
    pass_on(ctx, request)


def list_partition_reassignments(
    ctx: RequestContext[ReplicasBroker], request: ListPartitionReassignmentsRequest
) -> None:
    """List the reassignments that are under way.

    Behaviour: unknown partitions are left out.
    Versions:  one.
    Gaps:      -
    """
    pass_on(ctx, request)


def unregister_broker(
    ctx: RequestContext[ReplicasBroker], request: UnregisterBrokerRequest
) -> None:
    """Forget a broker that will not come back.

    Behaviour: it leaves every ISR; a broker that still runs registers again at its restart.
    Versions:  one.
    Gaps:      -
    """
    pass_on(ctx, request)


def update_features(ctx: RequestContext[ReplicasBroker], request: UpdateFeaturesRequest) -> None:
    """Change which feature levels the cluster uses.

    Behaviour: all updates of a request are made, or none: INVALID_UPDATE_VERSION.
    Versions:  1 brings upgrade types and validate-only. 2 has no result per feature.
    Gaps:      -
    """
    pass_on(ctx, request)


# ---- configs


def alter_configs(
    ctx: RequestContext[ReplicasBroker], request: AlterConfigsRequest
) -> config_admin.Response | None:
    """Replace all dynamic configs of resources.

    Behaviour: resources fail alone; values that can be obeyed are obeyed when this is answered. A
               broker's values are checked, as at its start, by that broker, which must be asked.
    Versions:  all alike; Java clients of 4.0 and later only send IncrementalAlterConfigs.
    Gaps:      alter.config.policy.class.name is not served.
    """
    return config_admin.alter(ctx, request)


def incremental_alter_configs(
    ctx: RequestContext[ReplicasBroker], request: IncrementalAlterConfigsRequest
) -> config_admin.Response | None:
    """Set, delete, append to or subtract from single configs.

    Behaviour: as AlterConfigs. Log levels (BROKER_LOGGER) change in this process and are not kept.
    Versions:  all alike.
    Gaps:      alter.config.policy.class.name is not served.
    """
    return config_admin.incremental_alter(ctx, request)


def describe_configs(
    ctx: RequestContext[ReplicasBroker], request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Each config of topics, brokers, groups, client metrics and loggers.

    Behaviour: resources fail alone; sensitive values are null.
               Of more than 1,000 groups and subscriptions without configs: INVALID_REQUEST.
    Versions:  3 adds type and documentation.
    Gaps:      documentation is null for most broker configs.
    """
    documentation = schema.documentation() if request.include_documentation else {}
    invented = 0
    results = []
    for resource in request.resources:
        code, message = int(ErrorCode.NONE), ""
        entries: list[ConfigEntry] = []
        try:
            if _is_invented(ctx, resource.resource_type, resource.resource_name):
                invented += 1
                if invented > _INVENTED_MAX:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "too many that have no configs")
            entries = _describe(ctx, resource.resource_type, resource.resource_name)
        except KafkaError as error:
            code, message = int(error.code), error.detail
        results.append(
            DescribeConfigsResponse.Resource(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[
                    _described(entry, request.include_synonyms, documentation.get(entry.name))
                    for entry in schema.selected(entries, resource.configuration_keys)
                ],
            )
        )
    return DescribeConfigsResponse(results=results)


def _is_invented(ctx: RequestContext[ReplicasBroker], resource_type: int, name: str) -> bool:
    """Whether nothing is known of it, and it is described all the same."""
    return resource_type in (
        schema.GROUP,
        schema.CLIENT_METRICS,
    ) and not ctx.broker.metadata.config(resource_type, name)


def _describe(
    ctx: RequestContext[ReplicasBroker], resource_type: int, name: str
) -> list[ConfigEntry]:
    config: KafkaConfig = ctx.broker.config
    image = ctx.broker.metadata
    if resource_type == schema.TOPIC:
        if image.topic(name) is None:
            raise absent_topic_error(name)
        return schema.describe_topic(config, image.config(resource_type, name))
    if resource_type == schema.BROKER:
        if not name:
            return schema.describe_cluster_default(config)
        config_admin.check_own_id(ctx, name)
        return schema.describe_broker(config)
    if resource_type == schema.BROKER_LOGGER:
        config_admin.check_own_id(ctx, name)
        return config_admin.describe_loggers()
    if resource_type not in (schema.GROUP, schema.CLIENT_METRICS):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown resource type {resource_type}")
    if not name:
        what = "group" if resource_type == schema.GROUP else "client-metrics subscription"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the name of a {what} must not be empty")
    overrides = image.config(resource_type, name)
    if resource_type == schema.GROUP:
        return schema.describe_group(config, overrides)
    return schema.describe_client_metrics(overrides)


def _described(
    entry: ConfigEntry, include_synonyms: bool, documentation: str | None
) -> DescribeConfigsResponse.Resource.Config:
    config = DescribeConfigsResponse.Resource.Config
    return config(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            config.Synonym(name=s.name, value=s.value, source=s.source) for s in entry.synonyms
        ]
        if include_synonyms
        else [],
        config_type=entry.config_type,
        documentation=documentation,
    )


def list_config_resources(
    ctx: RequestContext[ReplicasBroker], request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Name the resources that have configs.

    Behaviour: topics and brokers are listed whether or not they have dynamic configs, and no broker
               that has some and is not registered: nobody answers for it.
    Versions:  0 lists client metrics only. 1 takes resource types; none means all.
    Gaps:      -
    """
    all_types = {
        schema.TOPIC,
        schema.BROKER,
        schema.BROKER_LOGGER,
        schema.CLIENT_METRICS,
        schema.GROUP,
    }
    wanted = {schema.CLIENT_METRICS}
    if ctx.api_version >= 1:
        wanted = set(request.resource_types) or all_types
        if not wanted <= all_types:
            code = int(ErrorCode.UNSUPPORTED_VERSION)
            return ListConfigResourcesResponse(error_code=code, config_resources=[])
    image = ctx.broker.metadata
    named = {key for key in image.configs if key[0] in (schema.CLIENT_METRICS, schema.GROUP)}
    named |= {(schema.TOPIC, name) for name in image.topics_by_name}
    for broker_id in image.brokers:
        named |= {(schema.BROKER, str(broker_id)), (schema.BROKER_LOGGER, str(broker_id))}
    resource = ListConfigResourcesResponse.ConfigResource
    return ListConfigResourcesResponse(
        error_code=0,
        config_resources=[
            resource(resource_type=type_, resource_name=name)
            for type_, name in sorted(named)
            if type_ in wanted
        ],
    )


# ---- log directories


def describe_log_dirs(
    ctx: RequestContext[ReplicasBroker], request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Sizes of the log directories and of the partitions in them.

    Behaviour: a failed directory is listed with KAFKA_STORAGE_ERROR and no partitions.
    Versions:  4 adds the disk's size. 5 adds is_cordoned.
    Gaps:      -
    """
    knows_cordoned = ctx.broker.metadata.knows_cordoned_directories
    asked = request.topics
    named = {(t.topic, index) for t in asked or () for index in t.partitions}
    results = []
    for info in ctx.broker.replica_manager.describe_log_dirs(
        lambda topic, index: asked is None or (topic, index) in named
    ):
        topics: dict[str, list[DescribeLogDirsResponse.LogDir.Topic.Partition]] = {}
        for replica in info.partitions:
            topics.setdefault(replica.topic, []).append(
                DescribeLogDirsResponse.LogDir.Topic.Partition(
                    partition_index=replica.partition_index,
                    partition_size=replica.size,
                    offset_lag=replica.offset_lag,
                    is_future_key=replica.is_future,
                )
            )
        topic = DescribeLogDirsResponse.LogDir.Topic
        results.append(
            DescribeLogDirsResponse.LogDir(
                error_code=info.error_code,
                log_dir=info.path,
                topics=[topic(name=name, partitions=parts) for name, parts in topics.items()],
                total_bytes=info.total_bytes,
                usable_bytes=info.usable_bytes,
                is_cordoned=info.is_cordoned and knows_cordoned,
            )
        )
    return DescribeLogDirsResponse(results=results)


def alter_replica_log_dirs(
    ctx: RequestContext[ReplicasBroker], request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Say in which log directory of this broker a replica should be.

    Behaviour: partitions fail alone; a replica that is in that directory already stays there, and
               a move elsewhere ends. Answered when the move has begun; DescribeLogDirs tells how
               far it is. A cordoned directory: INVALID_REPLICA_ASSIGNMENT. A replica that is not
               here: REPLICA_NOT_AVAILABLE, or
               UNKNOWN_TOPIC_OR_PARTITION where there is no such partition; should it come while
               there is that topic, it comes there.
    Versions:  all alike.
    Gaps:      -
    """
    partition = AlterReplicaLogDirsResponse.Topic.Partition
    topics: dict[str, list[AlterReplicaLogDirsResponse.Topic.Partition]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                code = _alter_log_dir(ctx, topic.name, index, directory.path)
                topics.setdefault(topic.name, []).append(
                    partition(partition_index=index, error_code=code)
                )
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirsResponse.Topic(topic_name=name, partitions=partitions)
            for name, partitions in topics.items()
        ]
    )


def _alter_log_dir(ctx: RequestContext[ReplicasBroker], topic: str, index: int, path: str) -> int:
    try:
        ctx.broker.replica_manager.alter_replica_log_dir((topic, index), path)
    except KafkaError as error:
        return int(error.code)
    return int(ErrorCode.NONE)
