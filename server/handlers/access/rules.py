"""What each API asks: from the registry, and a table of those that ask for more.

An API on the cluster as a whole asks what its row in the registry says. An API that names what it
is about, or that shows some of many things, stands in `_RULES` under its name; `_FREE` are for
everybody. An API that is in none of them has no rule, and no node with an authorizer starts with
it. (security.md 4.3; Kafka: KafkaApis, ControllerApis, AuthHelper)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from server.config import schema
from server.handlers.access import groups, share, streams, tokens, topics
from server.handlers.access.guard import DENIED, Access, GuardedApi, Rule, Verdict
from server.handlers.access.shapes import items, itself, whole, whole_at_top
from server.network.api import Api, Operation, Resource
from server.network.error_responses import error_response
from wire.messages.admin import DescribeClientQuotasResponse

if TYPE_CHECKING:
    from server.security.authorizer import Authorizer

TOPIC, GROUP, CLUSTER = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER


def nothing(_access: Access, _request: Any) -> None:
    """For everybody."""


def rule_of(api: Api) -> Rule:
    """Raises LookupError."""
    if api.name in _FREE:
        return nothing
    rule = _RULES.get(api.name)
    if rule is not None:
        return rule
    if api.operation is None or api.resource is not CLUSTER:
        raise LookupError(f"nobody knows who may ask for {api.name}")
    return whole(api.operation, CLUSTER)


def describe_client_quotas(access: Access, _request: Any) -> Verdict:
    """All or nothing; nothing is null."""
    if access.may(Operation.DESCRIBE_CONFIGS, CLUSTER):
        return None
    code = int(DENIED[CLUSTER][0])
    return DescribeClientQuotasResponse(error_code=code, error_message=None, entries=None)


def alter_user_scram_credentials(access: Access, request: Any) -> Verdict:
    """All or nothing; each user is answered once."""
    if access.may(Operation.ALTER, CLUSTER):
        return None
    refused: Any = error_response(request, access.ctx.api_version, *DENIED[CLUSTER])
    refused.results = list({one.user: one for one in refused.results}.values())
    return refused


# ---- configs


def _config_resource(resource_type: int) -> Resource | None:
    """Whose operations stand for the configs of this type; None: no such type."""
    if resource_type == schema.TOPIC:
        return TOPIC
    if resource_type == schema.GROUP:
        return GROUP
    if resource_type in (schema.BROKER, schema.BROKER_LOGGER, schema.CLIENT_METRICS):
        return CLUSTER
    return None


def _configs(operation: Operation, answered: str) -> Rule:
    """Each resource as what it is; what is none is refused by the handler."""

    def rule(access: Access, request: Any) -> Verdict:
        refused: dict[int, Any] = {}
        for position, asked in enumerate(request.resources):
            resource = _config_resource(asked.resource_type)
            if resource is not None and not _may_configure(access, operation, resource, asked):
                refused[position] = resource
        if not refused:
            return None
        return _without_resources(access, request, answered, refused)

    return rule


def _may_configure(access: Access, operation: Operation, resource: Resource, asked: Any) -> bool:
    if resource is not CLUSTER:
        return access.may(operation, resource, asked.resource_name)
    if (
        asked.resource_type == schema.BROKER_LOGGER
        and operation is Operation.ALTER_CONFIGS
        and access.ctx.broker.role == "controller"
    ):
        operation = Operation.CLUSTER_ACTION
    return access.may(operation, CLUSTER)


def _without_resources(
    access: Access, request: Any, answered: str, refused: Mapping[int, Resource]
) -> Verdict:
    """Each refused with the code of its own kind, in its place."""
    everything = request.resources
    answers: dict[int, Any] = {}
    for position, resource in refused.items():
        request.resources = [everything[position]]
        code, text = DENIED[resource]
        answer: Any = error_response(request, access.ctx.api_version, code, text)
        answers[position] = getattr(answer, answered)[0]
    request.resources = [one for at, one in enumerate(everything) if at not in refused]

    def finish(response: Any) -> Any:
        rest = iter(getattr(response, answered))
        whole_answer = [
            answers[at] if at in answers else next(rest) for at in range(len(everything))
        ]
        setattr(response, answered, whole_answer)
        return response

    if not request.resources:
        setattr(answer, answered, [])
        return finish(answer)
    return finish


_FREE = frozenset({
    "ApiVersions",
    "SaslHandshake",
    "SaslAuthenticate",
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "GetTelemetrySubscriptions",
    "PushTelemetry",
})  # fmt: skip

_RULES: Mapping[str, Rule] = {
    "Produce": topics.produce,
    "Fetch": topics.fetch,
    "ListOffsets": items(Operation.DESCRIBE, TOPIC, "topics", "topics"),
    "Metadata": topics.metadata,
    "OffsetCommit": groups.offset_commit,
    "OffsetFetch": groups.offset_fetch,
    "FindCoordinator": groups.find_coordinator,
    "JoinGroup": groups.join_group,
    "Heartbeat": whole(Operation.READ, GROUP, "group_id"),
    "LeaveGroup": whole_at_top(Operation.READ, GROUP, "group_id"),
    "SyncGroup": whole(Operation.READ, GROUP, "group_id"),
    "DescribeClientQuotas": describe_client_quotas,
    "DescribeGroups": groups.describe_groups,
    "ListGroups": groups.list_groups,
    "CreateTopics": topics.create_topics,
    "DeleteTopics": topics.delete_topics,
    "DeleteRecords": items(Operation.DELETE, TOPIC, "topics", "topics"),
    "InitProducerId": groups.init_producer_id,
    "OffsetForLeaderEpoch": topics.offset_for_leader_epoch,
    "AddPartitionsToTxn": groups.add_partitions_to_txn,
    "AddOffsetsToTxn": groups.add_offsets_to_txn,
    "EndTxn": whole(Operation.WRITE, Resource.TRANSACTIONAL_ID, "transactional_id"),
    "WriteTxnMarkers": groups.write_txn_markers,
    "TxnOffsetCommit": groups.txn_offset_commit,
    "DescribeConfigs": _configs(Operation.DESCRIBE_CONFIGS, "results"),
    "AlterConfigs": _configs(Operation.ALTER_CONFIGS, "responses"),
    "IncrementalAlterConfigs": _configs(Operation.ALTER_CONFIGS, "responses"),
    "AlterUserScramCredentials": alter_user_scram_credentials,
    "CreatePartitions": items(Operation.ALTER, TOPIC, "topics", "results"),
    "CreateDelegationToken": tokens.create_delegation_token,
    "DescribeDelegationToken": tokens.describe_delegation_token,
    "DeleteGroups": items(Operation.DELETE, GROUP, "groups_names", "results", itself),
    "OffsetDelete": groups.offset_delete,
    "DescribeCluster": topics.describe_cluster,
    "DescribeLogDirs": whole_at_top(Operation.DESCRIBE, CLUSTER),
    "DescribeProducers": items(Operation.READ, TOPIC, "topics", "topics", text=DENIED[TOPIC][1]),
    "DescribeQuorum": whole_at_top(Operation.DESCRIBE, CLUSTER),
    "DescribeTransactions": groups.describe_transactions,
    "ListTransactions": groups.list_transactions,
    "ConsumerGroupHeartbeat": groups.consumer_group_heartbeat,
    "ConsumerGroupDescribe": groups.modern_group_describe,
    "DescribeTopicPartitions": topics.describe_topic_partitions,
    "ShareGroupHeartbeat": groups.share_group_heartbeat,
    "ShareGroupDescribe": groups.modern_group_describe,
    "StreamsGroupHeartbeat": streams.streams_group_heartbeat,
    "StreamsGroupDescribe": streams.streams_group_describe,
    "ShareFetch": share.share_session,
    "ShareAcknowledge": share.share_session,
    "DescribeShareGroupOffsets": share.describe_share_group_offsets,
    "AlterShareGroupOffsets": share.alter_share_group_offsets,
    "DeleteShareGroupOffsets": share.delete_share_group_offsets,
}


def guarded(apis: Mapping[int, Api], authorizer: Authorizer) -> dict[int, Api]:
    """A dispatch table with the authorizer before each API. Raises LookupError for an API that has
    no rule."""
    return {key: GuardedApi(api, rule_of(api), authorizer) for key, api in apis.items()}
