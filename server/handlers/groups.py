"""Group APIs: find the coordinator, join, sync, heartbeat, leave, describe, list, delete.

Handlers here know versions and error shapes; what groups do is `server.coordinator`'s. None of them
waits: what cannot be answered yet is parked in the coordinator, which answers later through a
callback, on whatever thread makes it possible.

What the sender may do was asked before (server.handlers.access), which also puts right what is said
here of a group's authorized operations: all there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from server.coordinator.gather import Gather
from server.coordinator.group_messages import Client, LeavingMember, SeesTopic
from server.network.api import Resource
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import (
    BATCHED_KEYS_VERSION,
    NULLABLE_PROTOCOL_VERSION,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from replication.metadata.image import BrokerRegistration
    from server.coordinator.group_coordinator import GroupCoordinator
    from server.handlers.edges import GroupsBroker
    from server.network.request_context import RequestContext

R = TypeVar("R")

_GROUP_KEY = 0
_TRANSACTION_KEY = 1
_SHARE_KEY = 2
_SHARE_KEYS_VERSION = 6
_MANDATORY_PROTOCOL_VERSION = 5
_LEAVE_MEMBERS_VERSION = 3
_AUTHORIZED_OPERATIONS_VERSION = 3

_ALL_GROUP_OPERATIONS = Resource.GROUP.all_operations


# ---- FindCoordinator


def find_coordinator(ctx: RequestContext[GroupsBroker], request: FindCoordinatorRequest) -> None:
    """Say which broker coordinates each key.

    Behaviour: makes the coordinator's topic when it is first asked for, and answers when it is
               there. Unknown key types, and share keys that name no partition: INVALID_REQUEST.
    Versions:  1 adds key types. 4 takes many keys. 6 adds share keys.
    Gaps:      -
    """
    batched = ctx.api_version >= BATCHED_KEYS_VERSION
    keys = list(request.coordinator_keys) if batched else [request.key]

    def answer(found: list[FindCoordinatorResponse.Coordinator]) -> None:
        if batched:
            ctx.respond(FindCoordinatorResponse(coordinators=found))
            return
        only = found[0]
        ctx.respond(
            FindCoordinatorResponse(
                error_code=only.error_code,
                error_message=only.error_message or None,
                node_id=only.node_id,
                host=only.host,
                port=only.port,
            )
        )

    gather = Gather(len(keys), answer)
    for i, key in enumerate(keys):
        put = cast(
            "Callable[[BrokerRegistration | KafkaError], None]",
            partial(_put_coordinator, gather, i, ctx, key),
        )
        if request.key_type == _GROUP_KEY:
            _coordinator(ctx).find(key, put)
        elif request.key_type == _TRANSACTION_KEY:
            ctx.broker.transaction_coordinator.find(key, put)
        elif request.key_type == _SHARE_KEY and ctx.api_version >= _SHARE_KEYS_VERSION:
            ctx.broker.share_coordinator.find_key(key, put)
        else:
            detail = f"no coordinator for keys of type {request.key_type}"
            put(KafkaError(ErrorCode.INVALID_REQUEST, detail))


def _put_coordinator(
    gather: Gather[FindCoordinatorResponse.Coordinator],
    i: int,
    ctx: RequestContext[GroupsBroker],
    key: str,
    found: BrokerRegistration | KafkaError,
) -> None:
    at = None if isinstance(found, KafkaError) else ctx.broker.endpoint_for(ctx, found)
    node_id, (host, port), code, message = -1, at or ("", -1), 0, ""
    if isinstance(found, KafkaError):
        code, message = int(found.code), found.detail
    elif at is None:
        code = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        message = "The coordinator is not on this listener."
    else:
        node_id = found.broker_id
    coordinator = FindCoordinatorResponse.Coordinator(
        key=key, node_id=node_id, host=host, port=port, error_code=code, error_message=message
    )
    gather.put(i, coordinator)


# ---- members


def join_group(
    ctx: RequestContext[GroupsBroker],
    request: JoinGroupRequest,
    sees_topic: SeesTopic | None = None,
) -> None:
    """Take part in the next generation; answered when it starts.

    Behaviour: see coordinator.classic_protocol. `sees_topic` as for ConsumerGroupHeartbeat: such
               members may be in the same group.
    Versions:  1 rebalance timeout. 4 asks new members to come back with their id (KIP-394).
               5 static members. 7 protocol type. 9 skip_assignment.
    Gaps:      -
    """
    version = ctx.api_version

    def answer(result: object) -> None:
        response = _join_failed(request, result) if isinstance(result, KafkaError) else result
        assert isinstance(response, JoinGroupResponse)
        if version < NULLABLE_PROTOCOL_VERSION and response.protocol_name is None:
            response.protocol_name = ""
        ctx.respond(response)

    client = Client(ctx.client_id or "", "/" + ctx.peer_host, version, sees_topic)
    _coordinator(ctx).join_group(request, client, answer)


def join_group_is_costly(ctx: RequestContext[GroupsBroker], request: JoinGroupRequest) -> bool:
    """Whether it may make a target: in a consumer group the broker assigns, whatever the protocol
    of the member."""
    return _coordinator(ctx).is_assigned_here(request.group_id)


def _join_failed(request: JoinGroupRequest, error: KafkaError) -> JoinGroupResponse:
    is_full = error.code == ErrorCode.GROUP_MAX_SIZE_REACHED
    return JoinGroupResponse(
        error_code=int(error.code),
        protocol_name=None,
        leader="",
        member_id="" if is_full else request.member_id,
        members=[],
    )


def sync_group(ctx: RequestContext[GroupsBroker], request: SyncGroupRequest) -> None:
    """Hand in or wait for the assignment; answered when it is committed.

    Behaviour: see coordinator.classic_protocol.
    Versions:  3 static members. 5 protocol type and name, which must be there then.
    Gaps:      -
    """

    def answer(result: object) -> None:
        if isinstance(result, KafkaError):
            result = SyncGroupResponse(error_code=int(result.code), assignment=b"")
        ctx.respond(cast("SyncGroupResponse", result))

    if ctx.api_version >= _MANDATORY_PROTOCOL_VERSION and (
        request.protocol_type is None or request.protocol_name is None
    ):
        answer(KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return
    _coordinator(ctx).sync_group(request, answer)


def heartbeat(ctx: RequestContext[GroupsBroker], request: HeartbeatRequest) -> None:
    """Keep a member alive; tells it when to join again.

    Behaviour: while the group is still loading every heartbeat is fine, as in Kafka.
    Versions:  3 static members.
    Gaps:      -
    """

    def answer(result: object) -> None:
        if isinstance(result, KafkaError):
            is_loading = result.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            result = HeartbeatResponse(error_code=0 if is_loading else int(result.code))
        ctx.respond(cast("HeartbeatResponse", result))

    _coordinator(ctx).heartbeat(request, answer)


def leave_group(ctx: RequestContext[GroupsBroker], request: LeaveGroupRequest) -> None:
    """Remove members at once.

    Behaviour: members fail alone; an empty member id with an instance id is an administrator's.
    Versions:  3 takes many members, below there is one and its error is the response's.
    Gaps:      -
    """
    is_batched = ctx.api_version >= _LEAVE_MEMBERS_VERSION

    def answer(result: object) -> None:
        if isinstance(result, KafkaError):
            result = LeaveGroupResponse(error_code=int(result.code))
        response = cast("LeaveGroupResponse", result)
        if not is_batched and response.members:
            response.error_code = response.members[0].error_code
        ctx.respond(response)

    members = [LeavingMember(request.member_id, None)]
    if is_batched:
        members = [LeavingMember(m.member_id, m.group_instance_id) for m in request.members]
    _coordinator(ctx).leave_group(request.group_id, members, answer)


# ---- many groups


def describe_groups(ctx: RequestContext[GroupsBroker], request: DescribeGroupsRequest) -> None:
    """State, protocol and members of classic groups.

    Behaviour: groups fail alone. One that does not exist, or is of another kind, is Dead.
    Versions:  3 authorized operations. 6 says GROUP_ID_NOT_FOUND, with a text, for unknown groups.
    Gaps:      -
    """
    version = ctx.api_version
    wants_operations = (
        version >= _AUTHORIZED_OPERATIONS_VERSION and request.include_authorized_operations
    )

    def answer(groups: list[DescribeGroupsResponse.Group]) -> None:
        if wants_operations:
            for group in groups:
                if not group.error_code:
                    group.authorized_operations = _ALL_GROUP_OPERATIONS
        ctx.respond(DescribeGroupsResponse(groups=groups))

    _coordinator(ctx).describe_groups(request.groups, version, answer)


def list_groups(ctx: RequestContext[GroupsBroker], request: ListGroupsRequest) -> None:
    """The groups this broker coordinates.

    Behaviour: filters ignore case; unknown states and types match nothing.
    Versions:  4 filters by state. 5 filters by type.
    Gaps:      -
    """

    def answer(result: object) -> None:
        if isinstance(result, KafkaError):
            ctx.respond(ListGroupsResponse(error_code=int(result.code), groups=[]))
            return
        groups = cast("list[ListGroupsResponse.Group]", result)
        ctx.respond(ListGroupsResponse(error_code=0, groups=groups))

    _coordinator(ctx).list_groups(request.states_filter, request.types_filter, answer)


def delete_groups(ctx: RequestContext[GroupsBroker], request: DeleteGroupsRequest) -> None:
    """Delete groups without members, and their offsets.

    Behaviour: groups fail alone: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND.
    Versions:  all alike.
    Gaps:      -
    """

    def answer(results: list[DeleteGroupsResponse.Group]) -> None:
        ctx.respond(DeleteGroupsResponse(results=results))

    _coordinator(ctx).delete_groups(list(dict.fromkeys(request.groups_names)), answer)


def _coordinator(ctx: RequestContext[GroupsBroker]) -> GroupCoordinator:
    return ctx.broker.group_coordinator
