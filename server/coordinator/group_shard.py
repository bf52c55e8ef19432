"""Everything one partition of `__consumer_offsets` knows: its groups and their offsets (PURE).

This is the state machine the runtime drives (`machine.Machine`): requests come in as method calls,
and deadlines call back; both return a Decision and change nothing. `replay` makes records true,
live and at load; `outbox` holds answers to parked requests. Between them `classic_protocol`,
`consumer`, `share_groups` and `streams_groups` decide about members and `offsets` about offsets;
this module joins them, and does what concerns all: describing, listing, deleting and expiring
groups.

An id is of a group of one kind at a time. A group that only ever committed offsets is Empty and has
no protocol type (a "simple" group, of the classic kind); it exists because its offsets do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from server.coordinator.classic_group import ClassicGroup, GroupState
from server.coordinator.classic_protocol import ClassicGroups
from server.coordinator.consumer.classic_members import ClassicMembers
from server.coordinator.consumer.describe import described
from server.coordinator.consumer.group import ConsumerGroup
from server.coordinator.consumer.member import ConsumerMember
from server.coordinator.consumer.migration import Migration
from server.coordinator.consumer.protocol import (
    ConsumerGroups,
    Conversion,
    OtherKinds,
    Outside,
)
from server.coordinator.deadlines import Deadlines, Moment
from server.coordinator.group import (
    Committer,
    Group,
    GroupDecision,
    GroupKind,
    PartitionCheck,
    not_of_kind,
)
from server.coordinator.group_config import GroupConfig
from server.coordinator.group_messages import Client, LeavingMember
from server.coordinator.machine import Decision, Machine, Reply, Transaction
from server.coordinator.offsets import Offsets, check_commit_without_group
from server.coordinator.records import CoordinatorRecord, Records, encode_record
from server.coordinator.share_groups.protocol import SHARE_KEYS, ShareGroups, ShareOutside
from server.coordinator.streams_groups.describe import described as described_streams
from server.coordinator.streams_groups.protocol import (
    STREAMS_KEYS,
    StreamsGroups,
    StreamsOutside,
)
from server.coordinator.sweeps import SWEEP_STEP_MS, one_step
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
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
from wire.messages.streams import StreamsGroupDescribeResponse
from wire.messages.transactions import TxnOffsetCommitRequest
from wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from replication.replicas.replica_manager import Verification

T = TypeVar("T")

_MINUTE_MS = 60_000
_DESCRIBE_NOT_FOUND_VERSION = 6
_SWEEP = "sweep"
_LOOKS_PER_RECORD = 20
"""At groups and offsets that stay: as long as it takes to write one that goes."""


class GroupShard(Machine[CoordinatorRecord]):
    """Groups and offsets of one partition. Owner: its runtime shard, one call at a time.

    `moment` is set by the owner before each call.
    """

    def __init__(
        self,
        config: GroupConfig,
        moment: Moment,
        outside: Outside,
        share: ShareOutside,
        streams: StreamsOutside,
    ) -> None:
        self.moment = moment
        self.deadlines = Deadlines()
        self.classic = ClassicGroups(config, self.deadlines, moment, outside.new_uuid)
        others = OtherKinds(self._is_known, self._upgraded, self._downgraded)
        self.consumer = ConsumerGroups(outside, self.deadlines, moment, others)
        self.share = ShareGroups(
            share,
            self.deadlines,
            moment,
            self.consumer.hashes,
            self.consumer.effects,
            self._is_known,
        )
        self.streams = StreamsGroups(
            streams,
            self.deadlines,
            moment,
            self.consumer.hashes,
            self._is_known,
            self._empty_classic,
        )
        self._kinds: tuple[GroupKind, ...] = (
            self.classic,
            self.consumer,
            self.share,
            self.streams,
        )
        self._replays = {
            **dict.fromkeys(SHARE_KEYS, self.share.replay),
            **dict.fromkeys(STREAMS_KEYS, self.streams.replay),
        }
        self._migration = Migration(self.classic, outside, self.consumer.hashes)
        self._classic_members = ClassicMembers(self.consumer, self._migration)
        self._outside = outside
        self.offsets = Offsets(
            config.offset_metadata_max_bytes, config.offsets_retention_minutes * _MINUTE_MS
        )
        self.outbox = self.classic.outbox
        self.effects = self.consumer.effects
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
        elif isinstance(key, GroupMetadataKey):
            assert value is None or isinstance(value, GroupMetadataValue)
            self.classic.replay(key, value)
        else:
            founded = self._replays.get(type(key), self.consumer.replay)(key, value)
            if founded is not None:
                self.classic.groups.pop(founded, None)  # a simple one: it has offsets alone

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
        if self._kind_of(group_id) is None:
            self.classic.groups[group_id] = ClassicGroup(group_id, None)

    def replay_marker(self, producer_id: int, is_commit: bool) -> None:
        """The offsets of the producer's transaction are valid, or void."""
        self.offsets.replay_marker(producer_id, is_commit)

    def on_loaded(self) -> None:
        """The whole log was replayed: sessions and the expiry sweep start now."""
        for kind in self._kinds:
            kind.on_loaded()
        self._schedule_sweep()

    def on_unloaded(self, error: KafkaError) -> None:
        """The shard is not ours any more: everything parked is answered with `error`."""
        for kind in self._kinds:
            kind.on_unloaded(error)
        self.deadlines.clear()

    # -- kinds -------------------------------------------------------------------------------

    def _kind_of(self, group_id: str) -> GroupKind | None:
        """The kind of the group of this id; None: there is no such group."""
        return next((kind for kind in self._kinds if group_id in kind.groups), None)

    def awaits_target(self, group_id: str) -> bool:
        """Whether the next heartbeat of a consumer or share group may make a target. From any
        thread."""
        return self.consumer.awaits_target(group_id) or self.share.awaits_target(group_id)

    def _group(self, group_id: str) -> Group | None:
        kind = self._kind_of(group_id)
        return None if kind is None else kind.groups[group_id]

    def _is_known(self, group_id: str) -> bool:
        return self._kind_of(group_id) is not None

    def _empty_classic(self, group_id: str) -> Records | None:
        """What ends the classic group of this id; None if there is none, or not an empty one."""
        group = self.classic.groups.get(group_id)
        return None if group is None or not group.is_empty else self.classic.tombstones(group_id)

    def _upgraded(self, group_id: str) -> Conversion:
        if group_id not in self.classic.groups:
            raise not_of_kind(group_id, self.consumer.name)
        return self._migration.upgrade(group_id)

    def _downgraded(
        self, group: ConsumerGroup, leaving: Collection[ConsumerMember]
    ) -> Conversion | None:
        return self._migration.downgrade(group, leaving)

    # -- members -----------------------------------------------------------------------------

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client
    ) -> GroupDecision:
        """See ConsumerGroups.heartbeat."""
        return self.consumer.heartbeat(request, client)

    def join(self, request: JoinGroupRequest, client: Client, reply: Reply) -> GroupDecision:
        """See ClassicGroups.join; in a consumer group that has members ClassicMembers.join. A
        consumer or streams group that has none is a classic group from now on. KafkaError
        INCONSISTENT_GROUP_PROTOCOL for any other."""
        self.classic.validate_join(request)
        kind = self._kind_of(request.group_id)
        if kind is None or kind is self.classic:
            return self.classic.join(request, client, reply)
        if kind is self.share or not kind.groups[request.group_id].is_empty:
            if kind is not self.consumer:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return self._classic_members.join(request, client)
        decision = self.classic.join(request, client, reply)
        if not decision.records:
            return decision
        records = [*kind.tombstones(request.group_id), *decision.records]
        return decision._replace(records=records)

    def sync(self, request: SyncGroupRequest, reply: Reply) -> GroupDecision:
        """See ClassicGroups.sync, ClassicMembers.sync."""
        if request.group_id in self.consumer.groups:
            return self._classic_members.sync(request)
        return self.classic.sync(request, reply)

    def heartbeat(self, request: HeartbeatRequest) -> GroupDecision:
        """See ClassicGroups.heartbeat, ClassicMembers.heartbeat."""
        if request.group_id in self.consumer.groups:
            return self._classic_members.heartbeat(request)
        return self.classic.heartbeat(request)

    def leave(self, group_id: str, members: list[LeavingMember]) -> GroupDecision:
        """See ClassicGroups.leave, ClassicMembers.leave."""
        if group_id in self.consumer.groups:
            return self._classic_members.leave(group_id, members)
        return self.classic.leave(group_id, members)

    # -- offsets -----------------------------------------------------------------------------

    def commit_offsets(self, request: OffsetCommitRequest, api_version: int) -> GroupDecision:
        """Store offsets if the committer may (see `offsets`); keeps its session alive."""
        group_id, member_id = request.group_id, request.member_id
        committer = Committer(
            member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            api_version,
            is_transactional=False,
        )
        kind = self._kind_of(group_id)
        if kind is None:
            check_commit_without_group(group_id, committer)
            return Decision(*self.offsets.commit(request, self.moment.wall_ms))
        check = kind.groups[group_id].check_commit(committer)
        records, response = self.offsets.commit(request, self.moment.wall_ms, check)
        return Decision(records, response, kind.renewal(group_id, member_id))

    def commit_transactional_offsets(
        self, request: TxnOffsetCommitRequest, verification: Verification | None
    ) -> GroupDecision:
        """Store offsets until the transaction's end if the committer may."""
        group = self._group(request.group_id)
        committer = Committer(
            request.member_id, request.group_instance_id, request.generation_id, 0,
            is_transactional=True,
        )  # fmt: skip
        if group is None:
            check_commit_without_group(request.group_id, committer)
            check = None
        else:
            check = group.check_commit(committer)
        if check is not None:
            self._check_transactional(request, check)
        records, response = self.offsets.commit_transactional(request, self.moment.wall_ms)
        transaction = Transaction(request.producer_id, request.producer_epoch, verification)
        return Decision(records, response, transaction=transaction)

    def _check_transactional(self, request: TxnOffsetCommitRequest, check: PartitionCheck) -> None:
        topics = self._outside.image().topics_by_name
        for topic in request.topics:
            known = topics.get(topic.name)
            for partition in topic.partitions:
                topic_id = ZERO_UUID if known is None else known.topic_id
                check(topic.name, topic_id, partition.partition_index)

    def fetch_offsets(
        self, request: OffsetFetchRequest.Group, require_stable: bool
    ) -> OffsetFetchResponse.Group:
        """See Offsets.fetch; KafkaErrors of Group.check_fetch."""
        group = self._group(request.group_id)
        if group is not None:
            group.check_fetch(request.member_id, request.member_epoch)
        return self.offsets.fetch(request, require_stable)

    def delete_offsets(self, request: OffsetDeleteRequest) -> GroupDecision:
        """See Offsets.delete; KafkaError GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self._group(request.group_id)
        if group is None:
            detail = f"Group {request.group_id} not found."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, detail)
        group.check_offset_delete()
        return Decision(*self.offsets.delete(group, request))

    def on_topics_deleted(self, deleted: Mapping[str, bytes]) -> GroupDecision:
        """Drop all offsets in topics that are no more, by name and id; those that there are now."""
        gone, committed = frozenset(deleted.items()), self.offsets.in_topics(deleted)
        return self._drop_topics(gone, committed, self.offsets.tombstone_of)

    def on_shared_topics_deleted(self, topic_ids: frozenset[bytes]) -> GroupDecision:
        """Share groups keep nothing of topics that are no more."""
        group_ids = self.share.with_topics(topic_ids)
        return self._drop_topics(topic_ids, group_ids, partial(self.share.without, topic_ids))

    def _drop_topics(
        self,
        gone: frozenset[Hashable],
        left: Sequence[T],
        record_of: Callable[[T], CoordinatorRecord | None],
    ) -> GroupDecision:
        """What is to be written of what is `left`; a long list goes in several steps, each of which
        goes on where the one before has ended."""
        looked_at, is_whole = one_step(map(record_of, left), _size)
        records = [record for record in looked_at if record is not None]
        if is_whole:
            return Decision(records)
        again = partial(self._drop_topics, gone, left[len(looked_at) :], record_of)
        return Decision(
            records, change=partial(self._later, ("topics deleted", gone), SWEEP_STEP_MS, again)
        )

    def _later(self, key: Hashable, delay_ms: int, decide: Callable[[], GroupDecision]) -> None:
        self.deadlines.set(key, self.moment.now_ms + delay_ms, decide)

    # -- groups ------------------------------------------------------------------------------

    def delete_group(self, group_id: str) -> GroupDecision:
        """Tombstones for a group that has no member, and for its offsets."""
        kind = self._kind_of(group_id)
        if kind is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if not kind.groups[group_id].is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        records = [*self.offsets.tombstones_of_group(group_id), *kind.tombstones(group_id)]
        return Decision(records, DeleteGroupsResponse.Group(group_id=group_id, error_code=0))

    def describe_group(self, group_id: str, api_version: int) -> DescribeGroupsResponse.Group:
        """State and members, with the assignment each was last given; metadata only of a Stable
        group (ClassicGroupMember.describeNoMetadata).
        """
        group = self.classic.groups.get(group_id)
        if group is None:
            not_found = api_version >= _DESCRIBE_NOT_FOUND_VERSION
            is_other = self._kind_of(group_id) is not None
            why = "is not a classic group" if is_other else "not found"
            return DescribeGroupsResponse.Group(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND if not_found else 0,
                error_message=f"Group {group_id} {why}." if not_found else None,
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

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescribeResponse.Group:
        """State, members and what they have; KafkaError GROUP_ID_NOT_FOUND."""
        group = self.consumer.of_id(group_id)
        assignors = self._outside.config(group_id).group_consumer_assignors
        return described(group, assignors, self._outside.image())

    def describe_streams_group(self, group_id: str) -> StreamsGroupDescribeResponse.Group:
        """State, topology, members and their tasks; KafkaError GROUP_ID_NOT_FOUND."""
        group = self.streams.of_id(group_id)
        return described_streams(group, self.streams.configured_of(group_id))

    def list_groups(
        self, states: Collection[str], types: Collection[str]
    ) -> list[ListGroupsResponse.Group]:
        """The groups in one of these states and of one of these types; empty = any. Case does not
        matter, unknown names match nothing (KIP-518, KIP-848).
        """
        wanted_types = {name.strip().lower() for name in types}
        wanted = {name.strip().lower() for name in states}
        return [
            ListGroupsResponse.Group(
                group_id=group.group_id,
                protocol_type=group.listed_protocol_type,
                group_state=group.state_name,
                group_type=kind.name,
            )
            for kind in self._kinds
            if not wanted_types or kind.name in wanted_types
            for group in kind.groups.values()
            if not wanted or group.state_name.lower() in wanted
        ]

    # -- expiry ------------------------------------------------------------------------------

    def _schedule_sweep(self) -> None:
        self._later(_SWEEP, self._sweep_interval_ms, self.sweep)

    def sweep(self) -> GroupDecision:
        """Tombstones for expired offsets and for empty groups without offsets; a long list goes
        in several steps.
        """
        ids = set(self.offsets.group_ids()).union(*(kind.groups for kind in self._kinds))
        return self._sweep(list(ids))

    def _sweep(self, ids: Sequence[str]) -> GroupDecision:
        """Of these groups. The next step goes on with the group that this one has come to."""
        parts, is_whole = one_step(self._expired(ids), lambda part: sum(map(_size, part[1])))
        change = self._schedule_sweep
        if not is_whole:
            again = partial(self._sweep, ids[parts[-1][0] :])
            change = partial(self._later, _SWEEP, SWEEP_STEP_MS, again)
        return Decision([record for _, part in parts for record in part], change=change)

    def _expired(self, ids: Sequence[str]) -> Iterator[tuple[int, Records]]:
        """From which group on there is more, by its place. What goes may go in several steps, but a
        group at once: somebody may join it between. To look takes time, too."""
        looked = 0
        for at, group_id in enumerate(ids):
            kind = self._kind_of(group_id)
            group = None if kind is None else kind.groups[group_id]
            expired = self.offsets.expired(group_id, group, self.moment.wall_ms)
            count = 0
            for record in expired:
                count += 1
                yield at, [record]
            is_unused = kind is not None and kind.groups[group_id].is_unused
            looked += 1 + len(self.offsets.of_group(group_id))
            if kind is not None and is_unused and self.offsets.has_only(group_id, count):
                yield at, kind.tombstones(group_id)
            while looked >= _LOOKS_PER_RECORD:
                looked -= _LOOKS_PER_RECORD
                yield at + 1, []

    # -- for tests and diagnosis -------------------------------------------------------------

    def digest(self) -> tuple[object, ...]:
        """What a reload must bring back: settled groups, all offsets and what is pending, in one
        order."""
        groups = [
            told
            for kind in self._kinds
            for _, group in sorted(kind.groups.items())
            if (told := group.digest()) is not None
        ]
        offsets = [
            (group_id, key, value.offset, value.leader_epoch, value.metadata, value.topic_id)
            for group_id in sorted(self.offsets.group_ids())
            for key, value in sorted(self.offsets.of_group(group_id).items())
        ]
        return tuple(groups), tuple(offsets), self.offsets.pending_digest()


def _size(record: CoordinatorRecord | None) -> int:
    """Bytes of its key and value: the names of groups and members may be long."""
    if record is None:
        return 0
    key, value = encode_record(record)
    return len(key) + len(value or b"")
