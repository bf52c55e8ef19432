"""Everything one partition of `__consumer_offsets` knows: its groups and their offsets (PURE).

This is the state machine the runtime drives (`machine.Machine`): requests come in as method calls,
and deadlines call back; both return a Decision and change nothing. `replay` makes records true,
live and at load; `outbox` holds answers to parked requests. Between them `classic_protocol` decides
about members and `offsets` about offsets; this module joins the two, and does what concerns both:
describing, listing, deleting and expiring groups.

A group that only ever committed offsets is Empty and has no protocol type (a "simple" group); it
exists because its offsets do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from server.coordinator.classic_group import ClassicGroup, GroupState
from server.coordinator.classic_protocol import ClassicGroups, GroupDecision
from server.coordinator.deadlines import Deadlines, Moment
from server.coordinator.group_config import GroupConfig
from server.coordinator.group_messages import Client, LeavingMember
from server.coordinator.machine import Decision, Effect, Machine, Reply, Transaction
from server.coordinator.offsets import (
    Offsets,
    validate_commit,
    validate_offset_delete,
    validate_transactional_commit,
)
from server.coordinator.records import CoordinatorRecord
from server.coordinator.sweeps import SWEEP_STEP_MS, one_step
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
)
from wire.messages.groups_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from wire.messages.transactions import TxnOffsetCommitRequest

if TYPE_CHECKING:
    from replication.replicas.replica_manager import Verification

GROUP_TYPE = "classic"
_MINUTE_MS = 60_000
_DESCRIBE_NOT_FOUND_VERSION = 6
_SWEEP = "sweep"


class GroupShard(Machine[CoordinatorRecord]):
    """Groups and offsets of one partition. Owner: its runtime shard, one call at a time.

    `moment` is set by the owner before each call.
    """

    def __init__(self, config: GroupConfig, moment: Moment, new_uuid: Callable[[], str]) -> None:
        self.moment = moment
        self.deadlines = Deadlines()
        self.classic = ClassicGroups(config, self.deadlines, moment, new_uuid)
        self.offsets = Offsets(
            config.offset_metadata_max_bytes, config.offsets_retention_minutes * _MINUTE_MS
        )
        self.outbox = self.classic.outbox
        self.effects: list[Effect] = []
        self._sweep_interval_ms = config.offsets_retention_check_interval_ms

    # -- the log -----------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord) -> None:
        """Make one record true."""
        key, value = record
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            self.offsets.replay(key, value)
            if value is not None:
                self._note_group(key.group)
        else:
            assert value is None or isinstance(value, GroupMetadataValue)
            self.classic.replay(key, value)

    def replay_pending(self, record: CoordinatorRecord, producer_id: int) -> None:
        """Keep an offset until the producer's transaction ends."""
        key, value = record
        if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue):
            self.offsets.replay_pending(key, value, producer_id)
            self._note_group(key.group)
        else:
            self.replay(record)  # nobody writes such, but Kafka would take it so

    def _note_group(self, group_id: str) -> None:
        """Whoever has offsets is a group."""
        if group_id not in self.classic.groups:
            self.classic.groups[group_id] = ClassicGroup(group_id, None)

    def replay_marker(self, producer_id: int, is_commit: bool) -> None:
        """The offsets of the producer's transaction are valid, or void."""
        self.offsets.replay_marker(producer_id, is_commit)

    def on_loaded(self) -> None:
        """The whole log was replayed: sessions and the expiry sweep start now."""
        self.classic.on_loaded()
        self._schedule_sweep(self._sweep_interval_ms)

    def on_unloaded(self, error: KafkaError) -> None:
        """The shard is not ours any more: everything parked is answered with `error`."""
        self.classic.on_unloaded(error)
        self.deadlines.clear()

    # -- members -----------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, client: Client, reply: Reply) -> GroupDecision:
        """See ClassicGroups.join."""
        return self.classic.join(request, client, reply)

    def sync(self, request: SyncGroupRequest, reply: Reply) -> GroupDecision:
        """See ClassicGroups.sync."""
        return self.classic.sync(request, reply)

    def heartbeat(self, request: HeartbeatRequest) -> GroupDecision:
        """See ClassicGroups.heartbeat."""
        return self.classic.heartbeat(request)

    def leave(self, group_id: str, members: list[LeavingMember]) -> GroupDecision:
        """See ClassicGroups.leave."""
        return self.classic.leave(group_id, members)

    # -- offsets -----------------------------------------------------------------------------

    def commit_offsets(self, request: OffsetCommitRequest, api_version: int) -> GroupDecision:
        """Store offsets if the committer may (`validate_commit`); keeps its session alive."""
        group = self.classic.groups.get(request.group_id)
        member = validate_commit(group, request, api_version)
        records, response = self.offsets.commit(request, self.moment.wall_ms)
        if member is None or group is None:
            return Decision(records, response)
        return Decision(records, response, self.classic.renewal(group, member))

    def commit_transactional_offsets(
        self, request: TxnOffsetCommitRequest, verification: Verification | None
    ) -> GroupDecision:
        """Store offsets until the transaction's end if the committer may
        (`validate_transactional_commit`).
        """
        validate_transactional_commit(self.classic.groups.get(request.group_id), request)
        records, response = self.offsets.commit_transactional(request, self.moment.wall_ms)
        transaction = Transaction(request.producer_id, request.producer_epoch, verification)
        return Decision(records, response, transaction=transaction)

    def fetch_offsets(
        self, request: OffsetFetchRequest.Group, require_stable: bool
    ) -> OffsetFetchResponse.Group:
        """See Offsets.fetch."""
        return self.offsets.fetch(request, require_stable)

    def delete_offsets(self, request: OffsetDeleteRequest) -> GroupDecision:
        """See Offsets.delete; KafkaError GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = validate_offset_delete(self.classic.groups.get(request.group_id), request.group_id)
        return Decision(*self.offsets.delete(group, request))

    def on_topics_deleted(self, names: Collection[str]) -> GroupDecision:
        """Drop all offsets in topics that are no more; a long list goes in several steps."""
        return self._drop_topics(frozenset(names))

    def _drop_topics(self, names: frozenset[str]) -> GroupDecision:
        records, is_whole = one_step(self.offsets.tombstones_of_topics(names), _characters)
        if is_whole:
            return Decision(records)
        again = partial(self._drop_topics, names)
        return Decision(
            records, change=partial(self._later, ("topics deleted", names), SWEEP_STEP_MS, again)
        )

    def _later(self, key: Hashable, delay_ms: int, decide: Callable[[], GroupDecision]) -> None:
        self.deadlines.set(key, self.moment.now_ms + delay_ms, decide)

    # -- groups ------------------------------------------------------------------------------

    def delete_group(self, group_id: str) -> GroupDecision:
        """Tombstones for a group that has no member, and for its offsets."""
        group = self.classic.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        records = [*self.offsets.tombstones_of_group(group_id), _group_tombstone(group_id)]
        return Decision(records, DeleteGroupsResponse.Group(group_id=group_id, error_code=0))

    def describe_group(self, group_id: str, api_version: int) -> DescribeGroupsResponse.Group:
        """State and members, with the assignment each was last given; metadata only of a Stable
        group (ClassicGroupMember.describeNoMetadata).
        """
        group = self.classic.groups.get(group_id)
        if group is None:
            not_found = api_version >= _DESCRIBE_NOT_FOUND_VERSION
            return DescribeGroupsResponse.Group(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND if not_found else 0,
                error_message=f"Group {group_id} not found." if not_found else None,
                group_id=group_id,
                group_state=GroupState.DEAD.value,
                protocol_type="",
                protocol_data="",
                members=[],
            )
        is_stable = group.state is GroupState.STABLE
        protocol = (group.protocol_name or "") if is_stable else ""
        members = [
            DescribeGroupsResponse.Group.Member(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol) if is_stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ]
        return DescribeGroupsResponse.Group(
            error_code=0,
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol,
            members=members,
        )

    def list_groups(
        self, states: Collection[str], types: Collection[str]
    ) -> list[ListGroupsResponse.Group]:
        """The groups in one of these states and of one of these types; empty = any. Case does not
        matter, unknown names match nothing (KIP-518, KIP-848).
        """
        if types and GROUP_TYPE not in {name.strip().lower() for name in types}:
            return []
        wanted = {name.strip().lower() for name in states}
        return [
            ListGroupsResponse.Group(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=GROUP_TYPE,
            )
            for group in self.classic.groups.values()
            if not wanted or group.state.value.lower() in wanted
        ]

    # -- expiry ------------------------------------------------------------------------------

    def _schedule_sweep(self, delay_ms: int) -> None:
        self._later(_SWEEP, delay_ms, self.sweep)

    def sweep(self) -> GroupDecision:
        """Tombstones for expired offsets and for empty groups without offsets; a long list goes
        in several steps.
        """
        records, is_whole = one_step(self._expired(), _characters)
        delay_ms = self._sweep_interval_ms if is_whole else SWEEP_STEP_MS
        return Decision(records, change=partial(self._schedule_sweep, delay_ms))

    def _expired(self) -> Iterator[CoordinatorRecord]:
        for group_id in self.classic.groups.keys() | self.offsets.group_ids():
            group = self.classic.groups.get(group_id)
            expired, none_left = self.offsets.expired(group_id, group, self.moment.wall_ms)
            yield from expired
            if none_left and group is not None and _may_go(group):
                yield _group_tombstone(group_id)

    # -- for tests and diagnosis -------------------------------------------------------------

    def digest(self) -> tuple[object, ...]:
        """What a reload must bring back: settled groups, all offsets and what is pending, in one
        order."""
        groups = [
            _group_digest(group)
            for _, group in sorted(self.classic.groups.items())
            if group.state in (GroupState.STABLE, GroupState.EMPTY)
        ]
        offsets = [
            (group_id, key, value.offset, value.leader_epoch, value.metadata, value.topic_id)
            for group_id in sorted(self.offsets.group_ids())
            for key, value in sorted(self.offsets.of_group(group_id).items())
        ]
        return tuple(groups), tuple(offsets), self.offsets.pending_digest()


def _characters(record: CoordinatorRecord) -> int:
    key = record.key
    return len(key.group) + (len(key.topic) if isinstance(key, OffsetCommitKey) else 0)


def _may_go(group: ClassicGroup) -> bool:
    """Whether an empty group without offsets may be forgotten: nobody is about to join it."""
    return group.state is GroupState.EMPTY and not group.pending_join


def _group_digest(group: ClassicGroup) -> tuple[object, ...]:
    name = group.protocol_name or ""
    members = [
        (
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.metadata(name),
            member.assignment,
        )
        for _, member in sorted(group.members.items())
    ]
    return (
        group.group_id,
        group.state.value,
        group.generation_id,
        group.protocol_type,
        group.protocol_name,
        group.leader_id,
        tuple(members),
    )


def _group_tombstone(group_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(GroupMetadataKey(group=group_id), None)
