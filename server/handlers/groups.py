"""Group APIs: find the coordinator, join, sync, heartbeat, leave, offsets, describe, list, delete.

Handlers here know versions and error shapes; what groups do is `server.coordinator`'s. All of them
are inline: none waits. What cannot be answered yet is parked in the coordinator, which answers
later through a callback, on whatever thread makes it possible.

Authorize, resolve (topic names, ids), do, answer. There is no authorizer yet: everything is allowed
and the authorized operations of a group are all there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from server.coordinator.group_coordinator import Gather
from server.coordinator.group_messages import Client, LeavingMember
from server.network.api import Resource
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import (
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
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from replication.metadata.image import BrokerRegistration, MetadataImage, TopicImage
    from server.coordinator.group_coordinator import GroupCoordinator
    from server.handlers.edges import GroupsBroker
    from server.network.request_channel import RequestContext

R = TypeVar("R")

_GROUP_KEY = 0
_TRANSACTION_KEY = 1
_BATCHED_KEYS_VERSION = 4
_NULLABLE_PROTOCOL_VERSION = 7
_MANDATORY_PROTOCOL_VERSION = 5
_LEAVE_MEMBERS_VERSION = 3
_TOPIC_ID_VERSION = 10
_FETCH_GROUPS_VERSION = 8
_FETCH_TOP_LEVEL_ERROR_VERSION = 2
_AUTHORIZED_OPERATIONS_VERSION = 3
_UNKNOWN_TOPIC = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_UNKNOWN_TOPIC_ID = int(ErrorCode.UNKNOWN_TOPIC_ID)

_ALL_GROUP_OPERATIONS = Resource.GROUP.all_operations


# ---- FindCoordinator


def find_coordinator(ctx: RequestContext[GroupsBroker], request: FindCoordinatorRequest) -> None:
    """Say which broker coordinates each key.

    Behaviour: makes __consumer_offsets when it is first asked for, and answers when it is there.
               Unknown key types, and share keys, which need share groups: INVALID_REQUEST.
    Versions:  1 adds key types. 4 takes many keys. 6 adds share keys.
    Gaps:      transactional ids are refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, the only
               code that every client takes as final.
    """
    batched = ctx.api_version >= _BATCHED_KEYS_VERSION
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
        refusal = _refuse_key(request.key_type)
        if refusal is not None:
            put(refusal)
        else:
            _coordinator(ctx).find(key, put)


def _refuse_key(key_type: int) -> KafkaError | None:
    if key_type == _GROUP_KEY:
        return None
    if key_type == _TRANSACTION_KEY:
        return KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "this broker does not serve transactions yet",
        )
    return KafkaError(ErrorCode.INVALID_REQUEST, f"no coordinator for keys of type {key_type}")


def _put_coordinator(
    gather: Gather[FindCoordinatorResponse.Coordinator],
    i: int,
    ctx: RequestContext[GroupsBroker],
    key: str,
    found: BrokerRegistration | KafkaError,
) -> None:
    if isinstance(found, KafkaError):
        node_id, (host, port), code, message = -1, ("", -1), int(found.code), found.detail
    else:
        node_id, (host, port) = found.broker_id, ctx.broker.endpoint_for(ctx, found)
        code, message = 0, ""
    coordinator = FindCoordinatorResponse.Coordinator(
        key=key, node_id=node_id, host=host, port=port, error_code=code, error_message=message
    )
    gather.put(i, coordinator)


# ---- members


def join_group(ctx: RequestContext[GroupsBroker], request: JoinGroupRequest) -> None:
    """Take part in the next generation; answered when it starts.

    Behaviour: see coordinator.classic_protocol.
    Versions:  1 rebalance timeout. 4 asks new members to come back with their id (KIP-394).
               5 static members. 7 protocol type. 9 skip_assignment.
    Gaps:      -
    """
    version = ctx.api_version

    def answer(result: object) -> None:
        response = _join_failed(request, result) if isinstance(result, KafkaError) else result
        assert isinstance(response, JoinGroupResponse)
        if version < _NULLABLE_PROTOCOL_VERSION and response.protocol_name is None:
            response.protocol_name = ""
        ctx.respond(response)

    client = Client(ctx.client_id or "", "/" + ctx.peer_host, version)
    _coordinator(ctx).join_group(request, client, answer)


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


# ---- offsets


def offset_commit(ctx: RequestContext[GroupsBroker], request: OffsetCommitRequest) -> None:
    """Store a group's offsets; answered when they are committed.

    Behaviour: partitions that do not exist fail alone; all others share the group's fate.
    Versions:  2 to 4 may bring their own retention. 7 static members. 10 topics by id.
    Gaps:      -
    """
    by_id = ctx.api_version >= _TOPIC_ID_VERSION
    unknown = _resolve_commit(ctx.broker.metadata, request, by_id)

    def answer(result: object) -> None:
        response = _commit_failed(request, result) if isinstance(result, KafkaError) else result
        assert isinstance(response, OffsetCommitResponse)
        if unknown:
            _merge_unknown(response, unknown)
        ctx.respond(response)

    if unknown and not request.topics:
        answer(OffsetCommitResponse(topics=[]))
        return
    _coordinator(ctx).commit_offsets(request, ctx.api_version, answer)


def _resolve_commit(
    image: MetadataImage, request: OffsetCommitRequest, by_id: bool
) -> list[OffsetCommitResponse.Topic]:
    """Fill in names and ids; take what does not exist out of the request and return its answers."""
    unknown: list[OffsetCommitResponse.Topic] = []
    for topic in request.topics:
        known: TopicImage | None
        if by_id:
            known = image.topics_by_id.get(topic.topic_id)
        else:
            known = image.topics_by_name.get(topic.name)
        if known is None:
            code = _UNKNOWN_TOPIC_ID if by_id else _UNKNOWN_TOPIC
            refused, topic.partitions = topic.partitions, []
        else:
            topic.name, topic.topic_id, code = known.name, known.topic_id, _UNKNOWN_TOPIC
            partitions = known.partitions
            refused = [p for p in topic.partitions if p.partition_index not in partitions]
            if refused:
                topic.partitions = [p for p in topic.partitions if p.partition_index in partitions]
        if refused:
            unknown.append(
                OffsetCommitResponse.Topic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[_committed(p.partition_index, code) for p in refused],
                )
            )
    if unknown:
        request.topics = [topic for topic in request.topics if topic.partitions]
    return unknown


def _committed(index: int, code: int) -> OffsetCommitResponse.Topic.Partition:
    return OffsetCommitResponse.Topic.Partition(partition_index=index, error_code=code)


def _commit_failed(request: OffsetCommitRequest, error: KafkaError) -> OffsetCommitResponse:
    code = int(error.code)
    topics = [
        OffsetCommitResponse.Topic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[_committed(p.partition_index, code) for p in topic.partitions],
        )
        for topic in request.topics
    ]
    return OffsetCommitResponse(topics=topics)


def _merge_unknown(
    response: OffsetCommitResponse, unknown: list[OffsetCommitResponse.Topic]
) -> None:
    """One entry per topic: clients do not expect a topic twice."""
    known = {(topic.name, topic.topic_id): topic for topic in response.topics}
    for topic in unknown:
        answered = known.get((topic.name, topic.topic_id))
        if answered is None:
            response.topics.append(topic)
        else:
            answered.partitions += topic.partitions


def offset_fetch(ctx: RequestContext[GroupsBroker], request: OffsetFetchRequest) -> None:
    """Read stored offsets: of some partitions, or all of a group (null topics).

    Behaviour: what is not there is -1 without an error, unknown groups included.
    Versions:  2 null topics, top-level error. 7 require_stable. 8 many groups. 10 topics by id.
    Gaps:      the member id and epoch of version 9 are not looked at (KIP-848 is not served).
    """
    version = ctx.api_version
    image: MetadataImage = ctx.broker.metadata
    groups = request.groups if version >= _FETCH_GROUPS_VERSION else [_as_group(request)]

    def answer(results: list[OffsetFetchResponse.Group]) -> None:
        if version >= _FETCH_GROUPS_VERSION:
            ctx.respond(OffsetFetchResponse(groups=results))
        else:
            ctx.respond(_as_single(request, results[0], version))

    gather = Gather(len(groups), answer)
    for i, group in enumerate(groups):
        by_id = version >= _TOPIC_ID_VERSION
        wants_all = group.topics is None
        unknown = _resolve_fetch(image, group, by_id)
        put = partial(_put_fetched, gather, i, image, group, unknown, by_id and wants_all)
        _coordinator(ctx).fetch_offsets(group, put)


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequest.Group:
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequest.Group.Topic(
                name=topic.name, partition_indexes=topic.partition_indexes
            )
            for topic in request.topics
        ]
    return OffsetFetchRequest.Group(group_id=request.group_id, topics=topics)


def _resolve_fetch(
    image: MetadataImage, group: OffsetFetchRequest.Group, by_id: bool
) -> list[OffsetFetchResponse.Group.Topic]:
    """Fill in names and ids; take unknown ids out of the request and return their answers."""
    unknown: list[OffsetFetchResponse.Group.Topic] = []
    if group.topics is None:
        return unknown
    for topic in group.topics:
        if not by_id:
            known = image.topics_by_name.get(topic.name)
            topic.topic_id = ZERO_UUID if known is None else known.topic_id
            continue
        known = image.topics_by_id.get(topic.topic_id)
        if known is not None:
            topic.name = known.name
            continue
        unknown.append(
            OffsetFetchResponse.Group.Topic(
                topic_id=topic.topic_id,
                partitions=[_no_offset(i, _UNKNOWN_TOPIC_ID) for i in topic.partition_indexes],
            )
        )
    if unknown:
        group.topics = [topic for topic in group.topics if topic.name]
    return unknown


def _no_offset(index: int, code: int) -> OffsetFetchResponse.Group.Topic.Partition:
    return OffsetFetchResponse.Group.Topic.Partition(
        partition_index=index,
        committed_offset=-1,
        committed_leader_epoch=-1,
        metadata="",
        error_code=code,
    )


def _put_fetched(
    gather: Gather[OffsetFetchResponse.Group],
    i: int,
    image: MetadataImage,
    group: OffsetFetchRequest.Group,
    unknown: list[OffsetFetchResponse.Group.Topic],
    all_by_id: bool,
    result: object,
) -> None:
    if isinstance(result, KafkaError):
        code = result.code
        if code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            # Consumers before 3.9 do not expect that one here, and would not come back.
            code = ErrorCode.NOT_COORDINATOR
        result = OffsetFetchResponse.Group(group_id=group.group_id, topics=[], error_code=int(code))
    fetched = cast("OffsetFetchResponse.Group", result)
    if all_by_id:
        # Offsets of topics that are gone cannot be named in this version.
        for topic in fetched.topics:
            known = image.topics_by_name.get(topic.name)
            topic.topic_id = ZERO_UUID if known is None else known.topic_id
        fetched.topics = [topic for topic in fetched.topics if topic.topic_id != ZERO_UUID]
    if unknown and not fetched.error_code:
        fetched.topics = [*fetched.topics, *unknown]
    gather.put(i, fetched)


def _as_single(
    request: OffsetFetchRequest, group: OffsetFetchResponse.Group, version: int
) -> OffsetFetchResponse:
    """Below version 8: one group at the top; in version 1 its error is each partition's."""
    if group.error_code and version < _FETCH_TOP_LEVEL_ERROR_VERSION:
        group.topics = [
            OffsetFetchResponse.Group.Topic(
                name=topic.name,
                partitions=[_no_offset(i, group.error_code) for i in topic.partition_indexes],
            )
            for topic in request.topics or ()
        ]
    topics = [
        OffsetFetchResponse.Topic(
            name=topic.name,
            partitions=[
                OffsetFetchResponse.Topic.Partition(
                    partition_index=p.partition_index,
                    committed_offset=p.committed_offset,
                    committed_leader_epoch=p.committed_leader_epoch,
                    metadata=p.metadata,
                    error_code=p.error_code,
                )
                for p in topic.partitions
            ],
        )
        for topic in group.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=group.error_code)


def offset_delete(ctx: RequestContext[GroupsBroker], request: OffsetDeleteRequest) -> None:
    """Delete a group's offsets of some partitions (KIP-496).

    Behaviour: topics that a member subscribes to: GROUP_SUBSCRIBED_TO_TOPIC.
    Versions:  only 0, which is not flexible.
    Gaps:      -
    """
    image: MetadataImage = ctx.broker.metadata
    unknown: list[OffsetDeleteResponse.Topic] = []
    for topic in request.topics:
        known = image.topics_by_name.get(topic.name)
        partitions = {} if known is None else known.partitions
        refused = [p for p in topic.partitions if p.partition_index not in partitions]
        if refused:
            topic.partitions = [p for p in topic.partitions if p.partition_index in partitions]
            unknown.append(
                OffsetDeleteResponse.Topic(
                    name=topic.name,
                    partitions=[
                        OffsetDeleteResponse.Topic.Partition(
                            partition_index=p.partition_index, error_code=_UNKNOWN_TOPIC
                        )
                        for p in refused
                    ],
                )
            )
    request.topics = [topic for topic in request.topics if topic.partitions]

    def answer(result: object) -> None:
        if isinstance(result, KafkaError):
            ctx.respond(OffsetDeleteResponse(error_code=int(result.code), topics=[]))
            return
        response = cast("OffsetDeleteResponse", result)
        answered = {topic.name: topic for topic in response.topics}
        for topic in unknown:
            if topic.name in answered:
                answered[topic.name].partitions += topic.partitions
            else:
                response.topics.append(topic)
        ctx.respond(response)

    if not request.group_id:
        answer(KafkaError(ErrorCode.INVALID_GROUP_ID))
        return
    _coordinator(ctx).delete_offsets(request, answer)


# ---- many groups


def describe_groups(ctx: RequestContext[GroupsBroker], request: DescribeGroupsRequest) -> None:
    """State, protocol and members of classic groups.

    Behaviour: groups fail alone. One that does not exist is Dead.
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
    Gaps:      only classic groups exist.
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
