"""Between a group of the classic protocol and the wire: requests, responses, record (PURE).

The record (GroupMetadataValue) holds, for each member, the metadata of the chosen protocol only: a
loaded member knows one protocol until it joins again, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from server.coordinator.classic_group import ClassicGroup, ClassicMember, GroupState, Protocols
from server.coordinator.records import CoordinatorRecord
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import (
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from wire.messages.groups_records import GroupMetadataKey, GroupMetadataValue
from wire.primitives import NO_TIMESTAMP

NO_LEADER = ""
MEMBER_ID_REQUIRED_VERSION = 4
"""From here on JoinGroup asks new members to come back with their id (KIP-394)."""
_NO_GENERATION = -1


SeesTopic = Callable[[str], bool]
"""Whether somebody may be told of a topic of this name."""


class Client(NamedTuple):
    """Who sends a request: `host` as Kafka shows it, with a leading slash."""

    client_id: str
    host: str
    api_version: int
    sees_topic: SeesTopic | None = None
    """None: all topics, for nobody is asked."""


class LeavingMember(NamedTuple):
    """One member of a LeaveGroup; an empty member id with an instance id is an administrator's."""

    member_id: str
    group_instance_id: str | None


def protocols_of(request: JoinGroupRequest) -> Protocols:
    """The protocols a JoinGroup offers, in its order of preference."""
    return [(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols]


def rebalance_timeout_of(request: JoinGroupRequest) -> int:
    """How long this member's rebalances may take, ms; version 0 has only a session timeout."""
    timeout_ms = request.rebalance_timeout_ms
    return request.session_timeout_ms if timeout_ms < 0 else timeout_ms


def member_id_required_response(member_id: str) -> JoinGroupResponse:
    """Tell a new member its id; it joins again with it (KIP-394)."""
    return JoinGroupResponse(
        error_code=ErrorCode.MEMBER_ID_REQUIRED,
        generation_id=_NO_GENERATION,
        protocol_name=None,
        leader=NO_LEADER,
        member_id=member_id,
        members=[],
    )


def described_members(
    group: ClassicGroup, members: Collection[ClassicMember]
) -> list[JoinGroupResponse.Member]:
    """What a leader is told of the members it assigns to."""
    name = group.protocol_name or ""
    return [
        JoinGroupResponse.Member(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata(name),
        )
        for member in members
    ]


def generation_response(
    group: ClassicGroup, member: ClassicMember, with_members: bool
) -> JoinGroupResponse:
    """Tell a member about the present generation; the leader gets everybody's metadata."""
    return JoinGroupResponse(
        error_code=0,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or NO_LEADER,
        skip_assignment=False,
        member_id=member.member_id,
        members=described_members(group, group.members.values()) if with_members else [],
    )


def sync_response(group: ClassicGroup, member: ClassicMember) -> SyncGroupResponse:
    """Hand a member its part of the assignment."""
    return SyncGroupResponse(
        error_code=0,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def leave_response(
    leaving: Iterable[LeavingMember], leave: Callable[[LeavingMember], object]
) -> LeaveGroupResponse:
    """Each member fails alone, with the KafkaError that `leave` raises for it."""
    members = []
    for one in leaving:
        code = 0
        try:
            leave(one)
        except KafkaError as error:
            code = int(error.code)
        members.append(
            LeaveGroupResponse.Member(
                member_id=one.member_id,
                group_instance_id=one.group_instance_id,
                error_code=code,
            )
        )
    return LeaveGroupResponse(error_code=0, members=members)


def group_record(
    group: ClassicGroup,
    members: Collection[ClassicMember],
    leader_id: str | None,
    assignments: Mapping[str, bytes],
) -> CoordinatorRecord:
    """The group as it will be with these members and assignments; a member without one gets an
    empty one.
    """
    name = group.protocol_name
    told = [
        GroupMetadataValue.Member(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(name or ""),
            assignment=assignments.get(member.member_id, b""),
        )
        for member in members
    ]
    timestamp = group.state_timestamp_ms
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=name,
        leader=leader_id,
        current_state_timestamp=NO_TIMESTAMP if timestamp is None else timestamp,
        members=told,
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def emptied_group_record(group: ClassicGroup, wall_ms: int) -> CoordinatorRecord:
    """The generation after this one, in which nobody is left."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id + 1,
        protocol=None,
        leader=None,
        current_state_timestamp=wall_ms,
        members=[],
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def empty_group_record(group: ClassicGroup) -> CoordinatorRecord:
    """A group that was just made: no member has been through a rebalance yet."""
    timestamp = group.state_timestamp_ms
    value = GroupMetadataValue(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=NO_TIMESTAMP if timestamp is None else timestamp,
        members=[],
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def group_from_record(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    """The group a record tells of: Stable with its members, or Empty. Who leads it is one of them;
    if the record says so, nobody."""
    timestamp = value.current_state_timestamp
    group = ClassicGroup(
        group_id,
        None if timestamp == NO_TIMESTAMP else timestamp,
        GroupState.STABLE if value.members else GroupState.EMPTY,
        value.generation,
        value.protocol_type or None,
        value.protocol,
    )
    for told in value.members:
        timeout_ms = told.rebalance_timeout
        group.add(
            ClassicMember(
                told.member_id,
                told.group_instance_id,
                told.client_id,
                told.client_host,
                told.session_timeout if timeout_ms == -1 else timeout_ms,
                told.session_timeout,
                value.protocol_type,
                [(value.protocol or "", bytes(told.subscription))],
                bytes(told.assignment),
            )
        )
    if value.leader is None or value.leader in group.members:
        group.leader_id = value.leader
    group.read_subscriptions()
    return group
