"""The classic rebalance protocol: what JoinGroup, SyncGroup, Heartbeat, LeaveGroup and time do to
the groups of one shard (PURE).

How a rebalance goes: members send JoinGroup and wait; when all have come, or the rebalance timeout
has passed, the group gets its next generation and everybody is answered, the leader with the
members' metadata. The leader computes the assignment and sends it in SyncGroup; the SyncGroup of
the others waits. The assignment is a record: once it is replayed the group is Stable and every
SyncGroup is answered with its member's part.

Two kinds of state. What is in the log (generation, protocol, leader, members, assignments) becomes
true in `replay`. What is only about requests in flight (who has joined, who waits) changes at once
and is in no record: losing it costs the members one more rebalance, so it has no undo. If a record
cannot be appended the owner throws the whole shard away and loads it again.

How requests are answered: a request's `Reply` is parked in the group, or answered by putting
(reply, response or KafkaError) into `outbox`. The owner delivers the outbox after the records were
appended and replayed, and once the high watermark covers them. KafkaError raised = nothing changed,
answer with that error. Every reply is answered exactly once.

Deadlines (keys in `Deadlines`):
    ("session", group, member)   the member is silent for its session timeout: it is removed.
                                 Also for a promised member id that never came, and for 5 minutes
                                 after a first JoinGroup, whose sender cannot heartbeat yet
    ("join", group)              initial delay over, or rebalance timeout: go on with who came
    ("sync", group)              rebalance timeout after the answers: members that never sent
                                 SyncGroup are removed

Source of the rules: Kafka's GroupMetadataManager (classic part), KIP-62, KIP-134 (initial delay),
KIP-345 (static members), KIP-394 (member id required), KIP-559 (protocol in SyncGroup), KIP-814
(skip_assignment).
Differences, on purpose: a JoinGroup or SyncGroup that is superseded by the same member's next one
is answered with REBALANCE_IN_PROGRESS, where Kafka never answers it; so is a parked SyncGroup whose
member is removed (UNKNOWN_MEMBER_ID); a refused first JoinGroup leaves no empty group behind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from server.coordinator.classic_group import (
    UNKNOWN_MEMBER_ID,
    ClassicGroup,
    ClassicMember,
    GroupState,
    Reply,
)
from server.coordinator.deadlines import Deadlines, Moment
from server.coordinator.group_config import NEW_MEMBER_JOIN_TIMEOUT_MS, GroupConfig
from server.coordinator.group_messages import (
    Client,
    LeavingMember,
    assignments_of,
    empty_group_record,
    generation_response,
    group_from_record,
    group_record,
    member_id_required_response,
    protocols_of,
    rebalance_timeout_of,
    sync_response,
)
from server.coordinator.records import Records
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
)
from wire.messages.groups_records import GroupMetadataKey, GroupMetadataValue

_MEMBER_ID_REQUIRED_VERSION = 4
_SKIP_ASSIGNMENT_VERSION = 9
_NO_LEADER = ""


class ClassicGroups:
    """The classic groups of one shard. Owner: the shard; takes no lock, owns no clock.

    `moment` is set by the owner before each call. `new_uuid` makes member ids unique.
    """

    def __init__(
        self,
        config: GroupConfig,
        deadlines: Deadlines,
        moment: Moment,
        new_uuid: Callable[[], str],
    ) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self.outbox: list[tuple[Reply, object]] = []
        self._is_loading = True
        self._config = config
        self._deadlines = deadlines
        self._moment = moment
        self._new_uuid = new_uuid

    # -- JoinGroup ---------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, client: Client, reply: Reply) -> Records:
        """Take part in the group's next generation; the reply is parked until it starts."""
        self._validate_join(request)
        group = self.groups.get(request.group_id)
        is_new_group = group is None
        member_id = request.member_id
        if group is None:
            if member_id != UNKNOWN_MEMBER_ID:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = ClassicGroup(request.group_id, self._moment.wall_ms)
        if not self._accepts(group, member_id):
            self._deadlines.cancel(("session", group.group_id, member_id))
            group.remove(member_id)
            self._answer(reply, KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED))
            return self._maybe_complete_join(group)
        if not group.supports_protocols(
            request.protocol_type, [protocol.name for protocol in request.protocols]
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self.groups[request.group_id] = group
        if member_id == UNKNOWN_MEMBER_ID:
            records = self._join_new_member(group, request, client, reply)
        else:
            records = self._join_known_member(group, request, client, reply)
        if is_new_group and not records:
            return [empty_group_record(group)]
        return records

    def _validate_join(self, request: JoinGroupRequest) -> None:
        config = self._config
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
        max_size = self._config.group_max_size
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            if member is not None and member.awaiting_join is not None:
                return True
            return group.awaiting_join_count < max_size
        if group.state is GroupState.EMPTY:
            return True
        return member is not None or len(group.members) < max_size

    def _join_new_member(
        self, group: ClassicGroup, request: JoinGroupRequest, client: Client, reply: Reply
    ) -> Records:
        instance_id = request.group_instance_id
        prefix = client.client_id if instance_id is None else instance_id
        member_id = f"{prefix}-{self._new_uuid()}"
        if instance_id is not None:
            old_member_id = group.static_members.get(instance_id)
            if old_member_id is not None:
                return self._replace_static(
                    group, request, client, group.members[old_member_id], member_id, reply
                )
        elif client.api_version >= _MEMBER_ID_REQUIRED_VERSION:
            group.pending_join.add(member_id)
            self._deadlines.set(
                ("session", group.group_id, member_id),
                self._moment.now_ms + request.session_timeout_ms,
                partial(self._session_elapsed, group.group_id, member_id),
            )
            self._answer(reply, member_id_required_response(member_id))
            return []
        return self._add_member(group, request, client, member_id, reply)

    def _join_known_member(
        self, group: ClassicGroup, request: JoinGroupRequest, client: Client, reply: Reply
    ) -> Records:
        member_id = request.member_id
        if member_id in group.pending_join:
            return self._add_member(group, request, client, member_id, reply)
        member = group.validate_member(member_id, request.group_instance_id)
        if group.state is not GroupState.PREPARING_REBALANCE:
            assert group.state is not GroupState.EMPTY  # an empty group has no member to validate
            is_stable = group.state is GroupState.STABLE
            unchanged = member.protocols == protocols_of(request)
            if unchanged and not (is_stable and group.is_leader(member_id)):
                # It may not have got our answer, or it only asks: tell it where the group is. A
                # leader that joins a stable group wants a rebalance (its topics may have changed).
                with_members = not is_stable and group.is_leader(member_id)
                self._answer(reply, generation_response(group, member, with_members))
                return []
        self._update_member(group, member, request, reply)
        return self._rebalance_or_complete(group)

    def _add_member(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        client: Client,
        member_id: str,
        reply: Reply,
    ) -> Records:
        member = ClassicMember(
            member_id,
            request.group_instance_id,
            client.client_id,
            client.host,
            rebalance_timeout_of(request),
            request.session_timeout_ms,
            request.protocol_type,
            protocols_of(request),
        )
        member.is_new = True
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is GroupState.EMPTY
        ):
            group.new_member_added = True
        group.add(member, reply)
        # It does not know its id yet, so it cannot heartbeat; and if its connection went away we
        # do not notice while the request is parked. So a first JoinGroup has its own time limit.
        self._renew_session(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        return self._rebalance_or_complete(group)

    def _update_member(
        self, group: ClassicGroup, member: ClassicMember, request: JoinGroupRequest, reply: Reply
    ) -> None:
        group.update(
            member, protocols_of(request), rebalance_timeout_of(request), request.session_timeout_ms
        )
        superseded = group.park_join(member, reply)
        if superseded is not None:
            self._answer(superseded, KafkaError(ErrorCode.REBALANCE_IN_PROGRESS))

    def _replace_static(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        client: Client,
        old: ClassicMember,
        member_id: str,
        reply: Reply,
    ) -> Records:
        """A restarted static member takes its old place: without a rebalance if the group is
        Stable and its protocols change nothing (KIP-345).
        """
        leader_before = group.leader_id
        self._answer_parked(group, old, ErrorCode.FENCED_INSTANCE_ID)
        self._deadlines.cancel(("session", group.group_id, old.member_id))
        member = group.replace_static_member(old.member_id, member_id)
        self._update_member(group, member, request, reply)
        self._renew_session(group, member, member.session_timeout_ms)
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The leader may be assigning to the old member id already.
            return self._prepare_rebalance(group)
        if group.state is not GroupState.STABLE:
            return self._maybe_complete_join(group)
        if group.protocol_name != group.select_protocol():
            return self._rebalance_or_complete(group)
        parked = group.take_join(member)
        assert parked is not None
        if client.api_version >= _SKIP_ASSIGNMENT_VERSION:
            is_leader = group.is_leader(member_id)
            response = generation_response(group, member, is_leader, skip_assignment=is_leader)
        else:
            # A leader that is told it leads would assign; below version 9 it is told its old id.
            response = generation_response(group, member, False)
            response.leader = leader_before or _NO_LEADER
        self._answer(parked, response)
        return [group_record(group, assignments_of(group))]

    # -- the join phase ----------------------------------------------------------------------

    def _rebalance_or_complete(self, group: ClassicGroup) -> Records:
        if group.can_rebalance():
            return self._prepare_rebalance(group)
        return self._maybe_complete_join(group)

    def _prepare_rebalance(self, group: ClassicGroup) -> Records:
        """Ask everybody to join again. An empty group first waits for more members (KIP-134)."""
        group_id = group.group_id
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                self._answer_sync(member, KafkaError(ErrorCode.REBALANCE_IN_PROGRESS))
        group.pending_sync.clear()
        self._deadlines.cancel(("sync", group_id))
        is_initial = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE, self._moment.wall_ms)
        if is_initial:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
            group.new_member_added = False
            self._schedule_initial_join(group_id, delay_ms, remaining_ms)
            return []
        if group.has_all_members_joined():
            return self._complete_join(group)
        self._schedule_join(group)
        return []

    def _schedule_initial_join(self, group_id: str, delay_ms: int, remaining_ms: int) -> None:
        self._deadlines.set(
            ("join", group_id),
            self._moment.now_ms + delay_ms,
            partial(self._initial_delay_elapsed, group_id, delay_ms, remaining_ms),
        )

    def _initial_delay_elapsed(self, group_id: str, delay_ms: int, remaining_ms: int) -> Records:
        group = self.groups.get(group_id)
        if group is None or group.state is not GroupState.PREPARING_REBALANCE:
            return []
        if group.new_member_added and remaining_ms:
            group.new_member_added = False
            next_delay_ms = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
            self._schedule_initial_join(group_id, next_delay_ms, max(remaining_ms - delay_ms, 0))
            return []
        return self._complete_join(group)

    def _schedule_join(self, group: ClassicGroup) -> None:
        self._deadlines.set(
            ("join", group.group_id),
            self._moment.now_ms + group.rebalance_timeout_ms(),
            partial(self._join_elapsed, group.group_id),
        )

    def _join_elapsed(self, group_id: str) -> Records:
        group = self.groups.get(group_id)
        if group is None or group.state is not GroupState.PREPARING_REBALANCE:
            return []
        return self._complete_join(group)

    def _maybe_complete_join(self, group: ClassicGroup) -> Records:
        if (
            group.state is not GroupState.PREPARING_REBALANCE
            or group.previous_state is GroupState.EMPTY
            or not group.has_all_members_joined()
        ):
            return []
        return self._complete_join(group)

    def _complete_join(self, group: ClassicGroup) -> Records:
        """Start the next generation with who has joined, and static members that have not."""
        self._deadlines.cancel(("join", group.group_id))
        for member in list(group.members.values()):
            if member.awaiting_join is None and member.group_instance_id is None:
                group.remove(member.member_id)
                self._deadlines.cancel(("session", group.group_id, member.member_id))
        if not group.elect_joined_leader() and group.members:
            # Only static members are left and none came: wait until their sessions end.
            self._schedule_join(group)
            return []
        group.start_next_generation(self._moment.wall_ms)
        if group.state is GroupState.EMPTY:
            return [group_record(group, {})]
        for member in group.members.values():
            reply = group.take_join(member)
            if reply is not None:
                leads = group.is_leader(member.member_id)
                self._answer(reply, generation_response(group, member, leads))
            self._renew_session(group, member, member.session_timeout_ms)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        self._deadlines.set(
            ("sync", group.group_id),
            self._moment.now_ms + group.rebalance_timeout_ms(),
            partial(self._sync_elapsed, group.group_id, group.generation_id),
        )
        return []

    # -- SyncGroup ---------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, reply: Reply) -> Records:
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
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self._deadlines.cancel(("sync", group.group_id))
        if group.state is GroupState.STABLE:
            self._answer(reply, sync_response(group, member))
            return []
        if member.awaiting_sync is not None:
            self._answer(member.awaiting_sync, KafkaError(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = reply
        if not group.is_leader(member.member_id):
            return []
        given = {part.member_id: bytes(part.assignment) for part in request.assignments}
        return [group_record(group, given)]

    def _sync_elapsed(self, group_id: str, generation_id: int) -> Records:
        """Members that were told of the generation and never asked for their part are gone."""
        group = self.groups.get(group_id)
        if group is None or group.generation_id != generation_id or not group.pending_sync:
            return []
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return []
        for member_id in list(group.pending_sync):
            self._remove_member(group, group.members[member_id])
        return self._prepare_rebalance(group)

    # -- Heartbeat, LeaveGroup, session expiry -----------------------------------------------

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Keep the session alive, and tell the member whether it must join again."""
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.validate_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation_id:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        self.renew(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse(error_code=0)

    def leave(
        self, group_id: str, members: list[LeavingMember]
    ) -> tuple[Records, LeaveGroupResponse]:
        """Remove the members now instead of when their sessions end; each fails alone."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(group_id)
        results = []
        any_left = False
        for leaving in members:
            error = self._leave_one(group, leaving)
            any_left = any_left or not error
            results.append(
                LeaveGroupResponse.Member(
                    member_id=leaving.member_id,
                    group_instance_id=leaving.group_instance_id,
                    error_code=error,
                )
            )
        records: Records = []
        if any_left and group is not None:
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                records = self._prepare_rebalance(group)
            else:
                records = self._maybe_complete_join(group)
        return records, LeaveGroupResponse(error_code=0, members=results)

    def _leave_one(self, group: ClassicGroup | None, leaving: LeavingMember) -> int:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id, instance_id = leaving
        if member_id == UNKNOWN_MEMBER_ID and instance_id is not None:
            member_id = group.static_members.get(instance_id, member_id)
        elif member_id in group.pending_join:
            group.remove(member_id)
            self._deadlines.cancel(("session", group.group_id, member_id))
            return 0
        try:
            member = group.validate_member(member_id, instance_id)
        except KafkaError as error:
            return error.code
        self._remove_member(group, member)
        return 0

    def renew(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Start the member's session timeout anew. Budget: 1 µs."""
        deadline = member.session
        at_ms = self._moment.now_ms + member.session_timeout_ms
        if deadline is not None and deadline.fn is not None and at_ms >= deadline.heap_ms:
            deadline.at_ms = at_ms
        else:
            self._renew_session(group, member, member.session_timeout_ms)

    def _renew_session(self, group: ClassicGroup, member: ClassicMember, timeout_ms: int) -> None:
        member.session = self._deadlines.set(
            ("session", group.group_id, member.member_id),
            self._moment.now_ms + timeout_ms,
            partial(self._session_elapsed, group.group_id, member.member_id),
        )

    def _session_elapsed(self, group_id: str, member_id: str) -> Records:
        group = self.groups.get(group_id)
        if group is None:
            return []
        if member_id in group.pending_join:
            group.remove(member_id)
        else:
            member = group.members.get(member_id)
            if member is None or member.satisfies_heartbeat():
                return []
            self._remove_member(group, member)
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                return self._prepare_rebalance(group)
        if group.state is GroupState.PREPARING_REBALANCE and group.has_all_members_joined():
            return self._complete_join(group)
        return []

    def _remove_member(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Take the member out. What it has parked tells it to join anew if it still lives."""
        self._answer_parked(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._deadlines.cancel(("session", group.group_id, member.member_id))
        group.remove(member.member_id)

    # -- the log -----------------------------------------------------------------------------

    def replay(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        """Make a group metadata record true: at load it is the group; live it is the leader's
        assignment, the end of a rebalance, or the confirmation of what the group already is.
        """
        group = self.groups.get(key.group)
        if value is None:
            if group is not None:
                self.forget(group, KafkaError(ErrorCode.UNKNOWN_MEMBER_ID))
                del self.groups[key.group]
        elif self._is_loading or group is None or group.state is GroupState.EMPTY:
            self._replay_as_new(key.group, value, group)
        elif group.generation_id == value.generation:
            self._replay_assignments(group, value)

    def _replay_as_new(
        self, group_id: str, value: GroupMetadataValue, known: ClassicGroup | None
    ) -> None:
        group = group_from_record(group_id, value)
        if known is not None:
            group.pending_join = known.pending_join
            group.previous_state = known.previous_state
        self.groups[group_id] = group

    def _replay_assignments(self, group: ClassicGroup, value: GroupMetadataValue) -> None:
        assignments = {member.member_id: bytes(member.assignment) for member in value.members}
        for member in group.members.values():
            assignment = assignments.get(member.member_id)
            if assignment is not None:
                member.assignment = assignment
        if group.state is GroupState.COMPLETING_REBALANCE and value.members:
            group.transition_to(GroupState.STABLE, self._moment.wall_ms)
            for member in group.members.values():
                if self._answer_sync(member, sync_response(group, member)):
                    # Its session may have ended unnoticed while it was waiting for us.
                    self.renew(group, member)

    def on_loaded(self) -> None:
        """Every loaded member gets a fresh session, so a failover evicts nobody (G-5)."""
        self._is_loading = False
        for group in list(self.groups.values()):
            for member in group.members.values():
                self._renew_session(group, member, member.session_timeout_ms)
            if len(group.members) > self._config.group_max_size:
                self._prepare_rebalance(group)

    def on_unloaded(self, error: KafkaError) -> None:
        """Answer everything parked; the groups are dead to whoever still holds them."""
        for group in self.groups.values():
            self.forget(group, error)
        self.groups.clear()

    def forget(self, group: ClassicGroup, error: KafkaError) -> None:
        """Answer what the group has parked and cancel its deadlines; it is Dead then."""
        for member in group.members.values():
            self._answer_parked(group, member, error.code)
            self._deadlines.cancel(("session", group.group_id, member.member_id))
        for member_id in group.pending_join:
            self._deadlines.cancel(("session", group.group_id, member_id))
        self._deadlines.cancel(("join", group.group_id))
        self._deadlines.cancel(("sync", group.group_id))
        group.transition_to(GroupState.DEAD, self._moment.wall_ms)

    # -- answers -----------------------------------------------------------------------------

    def _answer(self, reply: Reply, response: object) -> None:
        self.outbox.append((reply, response))

    def _answer_sync(self, member: ClassicMember, response: object) -> bool:
        reply = member.awaiting_sync
        if reply is None:
            return False
        member.awaiting_sync = None
        self.outbox.append((reply, response))
        return True

    def _answer_parked(self, group: ClassicGroup, member: ClassicMember, code: ErrorCode) -> None:
        reply = group.take_join(member)
        if reply is not None:
            self._answer(reply, KafkaError(code))
        self._answer_sync(member, KafkaError(code))


def _differs(told: str | None, known: str | None) -> bool:
    return told is not None and known is not None and told != known
