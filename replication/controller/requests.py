"""Which decision answers which request of the controller. PURE.

`ActiveState` is all a decision is made on; the controller fills it and asks `decide`. The modules
of this package are imported on first use: a broker that is never asked to reassign loads nothing
for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from replication.controller import cluster
from replication.controller.context import (
    ConfigSchema,
    ControllerConfig,
    ControllerContext,
    ControllerResult,
    UpgradeKRaftVersion,
)
from replication.controller.mutation_quotas import MutationQuota, MutationQuotas
from replication.controller.sessions import BrokerSessions
from replication.metadata.image import EMPTY_IMAGE, MetadataImage
from replication.raft.voter_set import VoterSet
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from replication.controller.delegation_tokens import Secrets


@dataclass(slots=True)
class ActiveState:
    """What the active controller knows."""

    config: ControllerConfig
    schema: ConfigSchema
    new_id: Callable[[], bytes]
    sessions: BrokerSessions
    image: MetadataImage = field(default_factory=lambda: EMPTY_IMAGE)
    next_offset: int = -1
    """Where the records of the decision will start; set before each, as are the next three."""
    now_ms: int = 0
    wall_ms: int = 0
    voters: VoterSet = field(default_factory=VoterSet)
    upgrade_kraft_version: UpgradeKRaftVersion | None = None
    token_secrets: Secrets | None = None
    """Made for the first delegation token that is shown."""
    mutation_quotas: MutationQuotas = field(init=False)

    def __post_init__(self) -> None:
        config = self.config
        self.mutation_quotas = MutationQuotas(
            config.controller_quota_window_num * config.controller_quota_window_size_seconds
        )


Decision = Callable[[ActiveState, Any, ControllerContext], ControllerResult]


def decide(state: ActiveState, request: Any, context: ControllerContext) -> ControllerResult:
    """Raises KafkaError to answer the whole request with one code; UNSUPPORTED_VERSION for a
    request nobody here serves.
    """
    decision = _DECISIONS.get(type(request).__name__)
    if decision is None:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"the controller does not serve {type(request).__name__}",
        )
    return decision(state, request, context)


# --- topics -------------------------------------------------------------------------------------


_STRICT_CREATE_TOPICS, _STRICT_DELETE_TOPICS, _STRICT_CREATE_PARTITIONS = 6, 5, 3
"""The versions whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def _quota(state: ActiveState, context: ControllerContext, strict_since: int) -> MutationQuota:
    return state.mutation_quotas.of(state.image, context, strict_since, state.now_ms)


def _create_topics(
    state: ActiveState, request: Any, context: ControllerContext
) -> ControllerResult:
    from replication.controller import topics

    quota = _quota(state, context, _STRICT_CREATE_TOPICS)
    result = topics.create_topics(
        state.image, request, state.config, state.schema, context, state.new_id, quota.charge
    )
    result.response.throttle_time_ms = quota.throttle_ms
    return result


def _delete_topics(
    state: ActiveState, request: Any, context: ControllerContext
) -> ControllerResult:
    from replication.controller import topics

    quota = _quota(state, context, _STRICT_DELETE_TOPICS)
    result = topics.delete_topics(state.image, request, state.config, context, quota.charge)
    result.response.throttle_time_ms = quota.throttle_ms
    return result


def _create_partitions(
    state: ActiveState, request: Any, context: ControllerContext
) -> ControllerResult:
    from replication.controller import topics

    quota = _quota(state, context, _STRICT_CREATE_PARTITIONS)
    result = topics.create_partitions(state.image, request, quota.charge)
    result.response.throttle_time_ms = quota.throttle_ms
    return result


# --- configs, features --------------------------------------------------------------------------


def _incremental_alter_configs(
    state: ActiveState, request: Any, _: ControllerContext
) -> ControllerResult:
    from replication.controller import configs

    return configs.incremental_alter_configs(state.image, request, state.schema)


def _alter_configs(state: ActiveState, request: Any, _: ControllerContext) -> ControllerResult:
    from replication.controller import configs

    return configs.alter_configs(state.image, request, state.schema)


def _update_features(
    state: ActiveState, request: Any, context: ControllerContext
) -> ControllerResult:
    from replication.controller import features

    assert state.upgrade_kraft_version is not None, "the controller sets it"
    return features.update_features(
        state.image,
        state.config,
        request,
        context,
        state.voters,
        state.upgrade_kraft_version,
    )


# --- access rules, quotas -----------------------------------------------------------------------


def _create_acls(state: ActiveState, request: Any, _: ControllerContext) -> ControllerResult:
    from replication.controller import acls

    return acls.create_acls(state.image, request, state.new_id)


def _delete_acls(state: ActiveState, request: Any, _: ControllerContext) -> ControllerResult:
    from replication.controller import acls

    return acls.delete_acls(state.image, request)


def _alter_user_scram_credentials(
    state: ActiveState, request: Any, _: ControllerContext
) -> ControllerResult:
    from replication.controller import scram

    return scram.alter_user_scram_credentials(state.image, request)


def _alter_client_quotas(
    state: ActiveState, request: Any, _: ControllerContext
) -> ControllerResult:
    from replication.controller import quotas

    return quotas.alter_client_quotas(state.image, request)


# --- delegation tokens --------------------------------------------------------------------------


def _create_delegation_token(
    state: ActiveState, request: Any, context: ControllerContext
) -> ControllerResult:
    from replication.controller import delegation_tokens

    return delegation_tokens.create_delegation_token(
        state.image, state.config, request, context, state.new_id, state.wall_ms
    )


def _secrets(state: ActiveState) -> Secrets:
    from replication.controller.delegation_tokens import Secrets

    if state.token_secrets is None:
        state.token_secrets = Secrets(state.config.delegation_token_secret_key or "")
    return state.token_secrets


def _renew_delegation_token(
    state: ActiveState, request: Any, context: ControllerContext
) -> ControllerResult:
    from replication.controller import delegation_tokens

    return delegation_tokens.renew_delegation_token(
        state.image, state.config, _secrets(state), request, context, state.wall_ms
    )


def _expire_delegation_token(
    state: ActiveState, request: Any, context: ControllerContext
) -> ControllerResult:
    from replication.controller import delegation_tokens

    return delegation_tokens.expire_delegation_token(
        state.image, state.config, _secrets(state), request, context, state.wall_ms
    )


# --- partitions ---------------------------------------------------------------------------------


def _elect_leaders(state: ActiveState, request: Any, _: ControllerContext) -> ControllerResult:
    from replication.controller import elections

    return elections.elect_leaders(state.image, state.config, request)


def _alter_partition(state: ActiveState, request: Any, _: ControllerContext) -> ControllerResult:
    from replication.controller import alter_partition

    return alter_partition.alter_partition(state.image, state.config, request)


def _alter_partition_reassignments(
    state: ActiveState, request: Any, _: ControllerContext
) -> ControllerResult:
    from replication.controller import reassignments

    return reassignments.alter_partition_reassignments(state.image, state.config, request)


def _list_partition_reassignments(
    state: ActiveState, request: Any, _: ControllerContext
) -> ControllerResult:
    from replication.controller import reassignments

    return ControllerResult([], reassignments.list_partition_reassignments(state.image, request))


def _assign_replicas_to_dirs(
    state: ActiveState, request: Any, _: ControllerContext
) -> ControllerResult:
    from replication.controller import directories

    return directories.assign_replicas_to_dirs(state.image, state.config, request)


# --- brokers, controllers -----------------------------------------------------------------------


def _allocate_producer_ids(
    state: ActiveState, request: Any, _: ControllerContext
) -> ControllerResult:
    from replication.controller import producer_ids

    return producer_ids.allocate_producer_ids(state.image, request)


def _register_broker(
    state: ActiveState, request: Any, context: ControllerContext
) -> ControllerResult:
    return cluster.register_broker(
        state.image,
        state.sessions,
        state.config,
        request,
        state.next_offset,
        state.now_ms,
        in_process=context.api_version < 0,
    )


def _broker_heartbeat(state: ActiveState, request: Any, _: ControllerContext) -> ControllerResult:
    return cluster.broker_heartbeat(
        state.image, state.sessions, state.config, request, state.next_offset, state.now_ms
    )


def _unregister_broker(state: ActiveState, request: Any, _: ControllerContext) -> ControllerResult:
    from wire.messages.admin import UnregisterBrokerResponse

    records = cluster.unregister_broker(state.image, state.config, request.broker_id)
    state.sessions.remove(request.broker_id)
    return ControllerResult(records, UnregisterBrokerResponse(error_code=0, error_message=None))


def _register_controller(
    state: ActiveState, request: Any, _: ControllerContext
) -> ControllerResult:
    return cluster.register_controller(state.image, request)


_DECISIONS: dict[str, Decision] = {
    "AllocateProducerIdsRequest": _allocate_producer_ids,
    "AlterClientQuotasRequest": _alter_client_quotas,
    "AlterConfigsRequest": _alter_configs,
    "AlterPartitionReassignmentsRequest": _alter_partition_reassignments,
    "AlterPartitionRequest": _alter_partition,
    "AlterUserScramCredentialsRequest": _alter_user_scram_credentials,
    "AssignReplicasToDirsRequest": _assign_replicas_to_dirs,
    "BrokerHeartbeatRequest": _broker_heartbeat,
    "BrokerRegistrationRequest": _register_broker,
    "ControllerRegistrationRequest": _register_controller,
    "CreateAclsRequest": _create_acls,
    "CreateDelegationTokenRequest": _create_delegation_token,
    "CreatePartitionsRequest": _create_partitions,
    "CreateTopicsRequest": _create_topics,
    "DeleteAclsRequest": _delete_acls,
    "DeleteTopicsRequest": _delete_topics,
    "ElectLeadersRequest": _elect_leaders,
    "ExpireDelegationTokenRequest": _expire_delegation_token,
    "IncrementalAlterConfigsRequest": _incremental_alter_configs,
    "ListPartitionReassignmentsRequest": _list_partition_reassignments,
    "RenewDelegationTokenRequest": _renew_delegation_token,
    "UnregisterBrokerRequest": _unregister_broker,
    "UpdateFeaturesRequest": _update_features,
}
