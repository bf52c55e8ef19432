"""The classic rebalance protocol: what JoinGroup, SyncGroup, Heartbeat, LeaveGroup and time do to
the groups of one shard (PURE).

How a rebalance goes: members send JoinGroup and wait; when all have come, or the rebalance timeout
has passed, the group gets its next generation and everybody is answered, the leader with the
members' metadata. The leader computes the assignment and sends it in SyncGroup; the SyncGroup of
the others waits. The assignment is a record: once it is replayed the group is Stable and every
SyncGroup is answered with its member's part.

Two kinds of state. What is in the log (generation, protocol, leader, members, assignments) becomes
true in `replay`. What is only about requests in flight (who has joined, who waits, sessions) is in
no record. Requests are decided here without changing either (`machine.Decision`); what is then done
to the group is in `classic_rebalance`, with what the passing of time does.

How requests are answered: by the decision's response, or by a `Reply` that is parked in the group
and put into `outbox` with its answer. KafkaError raised = nothing changes, answer with that error.
Every reply is answered exactly once.

Source of the rules: Kafka's GroupMetadataManager (classic part), KIP-62, KIP-345 (static members),
KIP-394 (member id required), KIP-559 (protocol in SyncGroup), KIP-814 (skip_assignment).
Differences, on purpose: a JoinGroup or SyncGroup that is superseded by the same member's next one
is answered with REBALANCE_IN_PROGRESS, where Kafka never answers it; so is a parked SyncGroup whose
member is removed (UNKNOWN_MEMBER_ID); a refused first JoinGroup leaves no empty group behind; a
protocol that a member lists twice is one protocol, where Kafka's group never gets a generation; an
assignment that could not be written fails its leader's SyncGroup, and the others go on waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from server.coordinator.classic_group import (
    ClassicGroup,
    ClassicMember,
    GroupState,
    select_protocol,
)
from server.coordinator.classic_rebalance import Rebalances
from server.coordinator.deadlines import Deadlines, Moment
from server.coordinator.group import UNKNOWN_MEMBER_ID, GroupDecision
from server.coordinator.group_config import GroupConfig
from server.coordinator.group_messages import (
    MEMBER_ID_REQUIRED_VERSION,
    Client,
    LeavingMember,
    described_members,
    empty_group_record,
    generation_response,
    group_from_record,
    group_record,
    leave_response,
    member_id_required_response,
    protocols_of,
    rebalance_timeout_of,
    sync_response,
)
from server.coordinator.machine import Answer, Decision, Reply
from server.coordinator.records import CoordinatorRecord, Records
from wire.codec_calls import STRING_BYTES_MAX
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
)
from wire.messages.groups_records import GroupMetadataKey, GroupMetadataValue

_SKIP_ASSIGNMENT_VERSION = 9


class ClassicGroups:
    """The classic groups of one shard. Owner: the shard; takes no lock, owns no clock.

    `moment` is set by the owner before each call. `new_uuid` makes member ids unique.
    """

    name = "classic"

    def __init__(
        self,
        config: GroupConfig,
        deadlines: Deadlines,
        moment: Moment,
        new_uuid: Callable[[], str],
    ) -> None:
        self._rebalances = Rebalances(deadlines, moment, config.group_initial_rebalance_delay_ms)
        self.groups = self._rebalances.groups
        self.outbox: list[Answer] = self._rebalances.outbox
        self._is_loading = True
        self._deadlines = deadlines
        self.config = config
        self._moment = moment
        self._new_uuid = new_uuid

    # -- JoinGroup ---------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, client: Client, reply: Reply) -> GroupDecision:
        """Take part in the group's next generation; the reply is parked until it starts. The
        request is a valid one (`validate_join`)."""
        group_id, member_id = request.group_id, request.member_id
        known = self.groups.get(group_id)
        if known is None and member_id != UNKNOWN_MEMBER_ID:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        group = known or ClassicGroup(group_id, self._moment.wall_ms)
        if not self._accepts(group, member_id):
            refusal = KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
            return Decision((), refusal, partial(self._turn_away, group, member_id))
        if not group.supports_protocols(
            request.protocol_type, [protocol.name for protocol in request.protocols]
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if member_id == UNKNOWN_MEMBER_ID:
            decision = self._join_new_member(group, request, client, reply)
        else:
            decision = self._join_known_member(group, request, client, reply)
        if known is not None:
            return decision
        found = partial(self._found, group, decision.change)
        return Decision([empty_group_record(group)], decision.response, found)

    def _found(self, group: ClassicGroup, change: Callable[[], object] | None) -> None:
        self.groups[group.group_id] = group
        if change is not None:
            change()

    def validate_join(self, request: JoinGroupRequest) -> None:
        """Whatever the kind of group. KafkaError INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT."""
        config = self.config
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        if not (
            config.group_min_session_timeout_ms
            <= request.session_timeout_ms
            <= config.group_max_session_timeout_ms
        ):
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether the group has room. While members gather, those that have come count, so that
        the last to rejoin are the ones left out when group.max.size was lowered.
        """
        max_size = self.config.group_max_size
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            if member is not None and member.awaiting_join is not None:
                return True
            return group.awaiting_join_count < max_size
        if group.state is GroupState.EMPTY:
            return True
        return member is not None or len(group.members) < max_size

    def _turn_away(self, group: ClassicGroup, member_id: str) -> None:
        """There is no room for this one, and the others need not wait for it."""
        self._rebalances.remove(group, (member_id,))
        self._rebalances.maybe_complete_join(group)

    def _join_new_member(
        self, group: ClassicGroup, request: JoinGroupRequest, client: Client, reply: Reply
    ) -> GroupDecision:
        instance_id = request.group_instance_id
        prefix = client.client_id if instance_id is None else instance_id
        member_id = f"{prefix}-{self._new_uuid()}"
        if len(member_id.encode()) > STRING_BYTES_MAX:  # no answer and no record could hold it
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the name is too long for a member's id")
        if instance_id is not None:
            old_member_id = group.static_members.get(instance_id)
            if old_member_id is not None:
                old = group.members[old_member_id]
                return self._replace_static(group, request, client, old, member_id, reply)
        elif client.api_version >= MEMBER_ID_REQUIRED_VERSION:
            timeout_ms = request.session_timeout_ms
            return Decision(
                (),
                member_id_required_response(member_id),
                partial(self._rebalances.promise, group, member_id, timeout_ms),
            )
        member = _new_member(request, client, member_id)
        return Decision(change=partial(self._rebalances.add_member, group, member, reply))

    def _join_known_member(
        self, group: ClassicGroup, request: JoinGroupRequest, client: Client, reply: Reply
    ) -> GroupDecision:
        member_id = request.member_id
        if member_id in group.pending_join:
            if request.group_instance_id is not None:
                # Only a dynamic member is told its id first. Kafka answers this one, too.
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the member id is not a static's")
            member = _new_member(request, client, member_id)
            return Decision(change=partial(self._rebalances.add_member, group, member, reply))
        member = group.validate_member(member_id, request.group_instance_id)
        if group.state is not GroupState.PREPARING_REBALANCE:
            assert group.state is not GroupState.EMPTY  # an empty group has no member to validate
            is_stable = group.state is GroupState.STABLE
            unchanged = member.protocols == protocols_of(request)
            if unchanged and not (is_stable and group.is_leader(member_id)):
                # It may not have got our answer, or it only asks: tell it where the group is. A
                # leader that joins a stable group wants a rebalance (its topics may have changed).
                with_members = not is_stable and group.is_leader(member_id)
                return Decision((), generation_response(group, member, with_members))
        return Decision(change=partial(self._rejoin, group, member, request, reply))

    def _rejoin(
        self, group: ClassicGroup, member: ClassicMember, request: JoinGroupRequest, reply: Reply
    ) -> None:
        group.update(
            member, protocols_of(request), rebalance_timeout_of(request), request.session_timeout_ms
        )
        self._rebalances.park_join(group, member, reply)
        self._rebalances.rebalance_or_complete(group)

    def _replace_static(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        client: Client,
        old: ClassicMember,
        member_id: str,
        reply: Reply,
    ) -> GroupDecision:
        """A restarted static member takes its old place: without a rebalance if the group is
        Stable and its protocols change nothing (KIP-345).
        """
        new = _next_incarnation(old, request, member_id)
        members = [new if member is old else member for member in group.members.values()]
        if group.state is not GroupState.STABLE or group.protocol_name != select_protocol(members):
            return Decision(change=partial(self._replace_and_rebalance, group, old, new, reply))
        was_leader = group.is_leader(old.member_id)
        leader_id = member_id if was_leader else group.leader_id
        assignments = {member.member_id: member.assignment for member in members}
        return Decision(
            [group_record(group, members, leader_id, assignments)],
            _replaced_response(group, new, client, members if was_leader else []),
            partial(self._rebalances.replace_static, group, old, new),
        )

    def _replace_and_rebalance(
        self, group: ClassicGroup, old: ClassicMember, new: ClassicMember, reply: Reply
    ) -> None:
        self._rebalances.replace_static(group, old, new)
        self._rebalances.park_join(group, new, reply)
        # While it completes, the leader may be assigning to the old member id already.
        self._rebalances.rebalance_or_complete(group)

    # -- SyncGroup ---------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, reply: Reply) -> GroupDecision:
        """Wait for the leader's assignment; the leader brings it."""
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(request.group_id)
        if group is None or group.state is GroupState.EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.validate_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation_id:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if _differs(request.protocol_type, group.protocol_type) or _differs(
            request.protocol_name, group.protocol_name
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        if group.state is GroupState.STABLE:
            synced = partial(self._rebalances.has_synced, group, member)
            return Decision((), sync_response(group, member), synced)
        records: Records = []
        if group.is_leader(member.member_id):
            given = {part.member_id: bytes(part.assignment) for part in request.assignments}
            records = [group_record(group, group.members.values(), group.leader_id, given)]
        return Decision(records, None, partial(self._rebalances.park_sync, group, member, reply))

    # -- Heartbeat, LeaveGroup ---------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest) -> GroupDecision:
        """Keep the session alive, and tell the member whether it must join again."""
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.validate_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation_id:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        is_over = group.state is GroupState.PREPARING_REBALANCE
        response = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS if is_over else 0)
        return Decision((), response, partial(self._rebalances.renew, group, member))

    def renewal(self, group_id: str, member_id: str) -> Callable[[], object] | None:
        """The change that starts the member's session timeout anew; None: there is no such."""
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return None
        return partial(self._rebalances.renew, group, member)

    def leave(self, group_id: str, members: list[LeavingMember]) -> GroupDecision:
        """Remove the members now instead of when their sessions end; each fails alone."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(group_id)
        gone: dict[str, None] = {}

        def leave(leaving: LeavingMember) -> None:
            gone[_leaving_id(group, leaving, gone)] = None

        response = leave_response(members, leave)
        if group is None or not gone:
            return Decision((), response)
        records = [] if group.is_gathering else self._rebalances.emptied(group, gone)
        return Decision(records, response, partial(self._rebalances.leave, group, list(gone)))

    # -- other kinds of groups -----------------------------------------------------------------

    @property
    def wall_ms(self) -> int:
        """The time of the event being handled."""
        return self._moment.wall_ms

    def tombstones(self, group_id: str) -> Records:
        """See GroupKind."""
        return [CoordinatorRecord(GroupMetadataKey(group=group_id), None)]

    def tell_to_join_again(self, group: ClassicGroup) -> None:
        """The group is about to be of another kind: who waits is to ask that one."""
        self._rebalances.answer_all(group, ErrorCode.REBALANCE_IN_PROGRESS)

    def expect_converted(self, group_id: str) -> None:
        """A record that is about to be replayed makes a group of another kind a classic one: once
        it has, it begins as one that was loaded."""
        begin = partial(self._begin, group_id)
        self._deadlines.set(("converted", group_id), self._moment.now_ms, begin)

    def _begin(self, group_id: str) -> GroupDecision | None:
        group = self.groups.get(group_id)
        if group is None:
            return None
        return Decision(change=partial(self._rebalances.begin, group))

    # -- the log -----------------------------------------------------------------------------

    def replay(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        """Make a group metadata record true: at load it is the group; live it is the leader's
        assignment, the end of the last generation with members, or the confirmation of what the
        group already is.
        """
        group = self.groups.get(key.group)
        if value is None:
            if group is not None:
                self._rebalances.forget(group, KafkaError(ErrorCode.UNKNOWN_MEMBER_ID))
                del self.groups[key.group]
        elif self._is_loading or group is None:
            group_id = key.group if group is None else group.group_id  # one string of it is enough
            self.groups[group_id] = group_from_record(group_id, value)
        elif value.members:
            self._replay_assignments(group, value)
        elif value.generation > group.generation_id:
            self._rebalances.become_empty(group, value.generation)

    def _replay_assignments(self, group: ClassicGroup, value: GroupMetadataValue) -> None:
        for told in value.members:
            member = group.members.get(told.member_id)
            if member is not None:
                member.assignment = bytes(told.assignment)
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._rebalances.become_stable(group)

    def on_loaded(self) -> None:
        """Every loaded member gets a fresh session, so a failover evicts nobody (G-5)."""
        self._is_loading = False
        for group in self.groups.values():
            is_too_large = len(group.members) > self.config.group_max_size
            self._rebalances.begin(group, rebalances=is_too_large)

    def on_unloaded(self, error: KafkaError) -> None:
        """Answer everything parked; the groups are gone."""
        self._rebalances.unload(error)


def _new_member(request: JoinGroupRequest, client: Client, member_id: str) -> ClassicMember:
    return ClassicMember(
        member_id,
        request.group_instance_id,
        client.client_id,
        client.host,
        rebalance_timeout_of(request),
        request.session_timeout_ms,
        request.protocol_type,
        protocols_of(request),
    )


def _next_incarnation(
    old: ClassicMember, request: JoinGroupRequest, member_id: str
) -> ClassicMember:
    """The static member after its restart: what it says now, and what it was assigned."""
    return ClassicMember(
        member_id,
        old.group_instance_id,
        old.client_id,
        old.client_host,
        rebalance_timeout_of(request),
        request.session_timeout_ms,
        old.protocol_type,
        protocols_of(request),
        old.assignment,
    )


def _replaced_response(
    group: ClassicGroup, new: ClassicMember, client: Client, led: list[ClassicMember]
) -> JoinGroupResponse:
    """Tell a restarted member of the generation it is in; `led` are those it leads."""
    response = generation_response(group, new, False)
    if led and client.api_version >= _SKIP_ASSIGNMENT_VERSION:
        response.skip_assignment = True
        response.leader = new.member_id
        response.members = described_members(group, led)
    # Below version 9 a leader that is told it leads would assign: it is told its old id.
    return response


def _leaving_id(group: ClassicGroup | None, leaving: LeavingMember, gone: dict[str, None]) -> str:
    """Whom it means; KafkaError if there is no such member, or not any more."""
    if group is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    member_id, instance_id = leaving
    if member_id == UNKNOWN_MEMBER_ID and instance_id is not None:
        member_id = group.static_members.get(instance_id, member_id)
    if member_id not in group.pending_join:
        group.validate_member(member_id, instance_id)
    if member_id in gone:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member_id


def _differs(told: str | None, known: str | None) -> bool:
    return told is not None and known is not None and told != known
