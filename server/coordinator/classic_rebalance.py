"""The phases of a classic rebalance: what happens to a group once it may happen, and what the
passing of time decides (PURE).

Two kinds of functions. Those that return a `Decision` look and change nothing: the deadlines'. All
others are changes: they are called from a decision's `change`, when its records are in the log, or
from `replay`. What they touch (who waits, sessions, who has joined) is in no record: losing it in a
failover costs the members one more rebalance.

A group becomes Empty by a record only, so that it is Empty in the log, too: `emptied`.

Deadlines (keys in `Deadlines`):
    ("session", group, member)   the member is silent for its session timeout: it is removed.
                                 Also for a promised member id that never came, and for 5 minutes
                                 after a first JoinGroup, whose sender cannot heartbeat yet
    ("join", group)              initial delay over, or rebalance timeout: go on with who came
    ("sync", group)              rebalance timeout after the answers: members that never sent
                                 SyncGroup are removed

Source of the rules: Kafka's GroupMetadataManager (classic part), KIP-134 (initial delay).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from server.coordinator.classic_group import ClassicGroup, ClassicMember, GroupState
from server.coordinator.deadlines import Deadline, Deadlines, Moment
from server.coordinator.group_config import NEW_MEMBER_JOIN_TIMEOUT_MS
from server.coordinator.group_messages import (
    emptied_group_record,
    generation_response,
    sync_response,
)
from server.coordinator.machine import Answer, Decision, Reply
from server.coordinator.records import CoordinatorRecord, Records
from wire.errors import ErrorCode, KafkaError

_WITH_GENERATION = (GroupState.STABLE, GroupState.COMPLETING_REBALANCE)
_NOBODY_CAME_MS = 1_000
"""After how long, at least, absent static members are looked for again."""


class Rebalances:
    """The rebalances of one shard's groups. Owner: the shard; takes no lock, owns no clock."""

    def __init__(self, deadlines: Deadlines, moment: Moment, initial_delay_ms: int) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self.outbox: list[Answer] = []
        self._deadlines = deadlines
        self._moment = moment
        self._initial_delay_ms = initial_delay_ms

    # -- members come ------------------------------------------------------------------------

    def promise(self, group: ClassicGroup, member_id: str, session_timeout_ms: int) -> None:
        """A new member was told its id, and has so long to come back with it (KIP-394)."""
        group.promise(member_id)
        self._renew_session(group, member_id, session_timeout_ms)

    def add_member(self, group: ClassicGroup, member: ClassicMember, reply: Reply) -> None:
        """Take in a new member whose JoinGroup waits."""
        member.is_new = True
        if group.is_gathering:
            group.new_member_added = True
        group.add(member, reply)
        # It does not know its id yet, so it cannot heartbeat; and if its connection went away we
        # do not notice while the request is parked. So a first JoinGroup has its own time limit.
        member.session = self._renew_session(group, member.member_id, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self.rebalance_or_complete(group)

    def park_join(self, group: ClassicGroup, member: ClassicMember, reply: Reply) -> None:
        """Keep a member's JoinGroup until the generation starts."""
        superseded = group.park_join(member, reply)
        if superseded is not None:
            self._answer(superseded, KafkaError(ErrorCode.REBALANCE_IN_PROGRESS))

    def replace_static(self, group: ClassicGroup, old: ClassicMember, new: ClassicMember) -> None:
        """A restarted static member takes its old place."""
        self._answer_parked(group, old, ErrorCode.FENCED_INSTANCE_ID)
        self._deadlines.cancel(("session", group.group_id, old.member_id))
        group.replace_static_member(old, new)
        self.renew(group, new)

    # -- members go --------------------------------------------------------------------------

    def remove(self, group: ClassicGroup, member_ids: Collection[str]) -> None:
        """Take members and promised ones out. What they have parked tells them to join anew if
        they still live.
        """
        for member_id in member_ids:
            member = group.members.get(member_id)
            if member is not None:
                self._answer_parked(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
            self._deadlines.cancel(("session", group.group_id, member_id))
            group.remove(member_id)
        if group.state is GroupState.EMPTY:
            group.rest()

    def leave(self, group: ClassicGroup, member_ids: Collection[str]) -> None:
        """They are gone; the others rebalance."""
        self.remove(group, member_ids)
        if group.state in _WITH_GENERATION:
            self.prepare_rebalance(group)
        else:
            self.maybe_complete_join(group)

    def emptied(self, group: ClassicGroup, gone: Collection[str]) -> Records:
        """The record to write if nobody is left without these; the group is Empty by it."""
        stays = any(member_id not in gone for member_id in group.members) or any(
            member_id not in gone for member_id in group.pending_join
        )
        if stays or group.state not in (*_WITH_GENERATION, GroupState.PREPARING_REBALANCE):
            return []
        return [emptied_group_record(group, self._moment.wall_ms)]

    def become_empty(self, group: ClassicGroup, generation_id: int) -> None:
        """The record is in the log."""
        for member in group.members.values():
            self._answer_parked(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
            self._deadlines.cancel(("session", group.group_id, member.member_id))
        self._cancel_phase(group)
        group.become_empty(generation_id, self._moment.wall_ms)

    # -- the join phase ----------------------------------------------------------------------

    def rebalance_or_complete(self, group: ClassicGroup) -> None:
        """Begin a rebalance, or end its first phase if this was the last one to wait for."""
        if group.can_rebalance():
            self.prepare_rebalance(group)
        else:
            self.maybe_complete_join(group)

    def prepare_rebalance(self, group: ClassicGroup) -> None:
        """Ask everybody to join again. An empty group first waits for more members (KIP-134)."""
        group_id = group.group_id
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                if self._answer_sync(member, KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)):
                    self.renew(group, member)  # as in `become_stable`
        group.pending_sync.clear()
        self._deadlines.cancel(("sync", group_id))
        is_initial = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE, self._moment.wall_ms)
        if is_initial:
            delay_ms = self._initial_delay_ms
            remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
            self._prolong(group, delay_ms, remaining_ms)
        elif group.members and group.has_all_members_joined():
            self.complete_join(group)
        else:
            self._schedule_join(group)

    def maybe_complete_join(self, group: ClassicGroup) -> None:
        """End the join phase if everybody has come; an initial one lasts its time."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and not group.is_gathering
            and group.members
            and group.has_all_members_joined()
        ):
            self.complete_join(group)

    def complete_join(self, group: ClassicGroup) -> None:
        """Start the next generation with who has joined, and static members that have not."""
        self._deadlines.cancel(("join", group.group_id))
        self.remove(
            group,
            [
                member.member_id
                for member in group.members.values()
                if member.awaiting_join is None and member.group_instance_id is None
            ],
        )
        if not group.elect_joined_leader():
            # Only static members are left and none came: wait until their sessions end. Their
            # rebalance timeout may be 0, and what is due at once is worked off at once: for ever.
            self._schedule_join(group, _NOBODY_CAME_MS)
            return
        group.start_next_generation(self._moment.wall_ms)
        for member in group.members.values():
            reply = group.take_join(member)
            if reply is not None:
                leads = group.is_leader(member.member_id)
                self._answer(reply, generation_response(group, member, leads))
            self.renew(group, member)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        self._deadlines.set(
            ("sync", group.group_id),
            self._moment.now_ms + group.rebalance_timeout_ms(),
            partial(self._sync_elapsed, group.group_id, group.generation_id),
        )

    def _prolong(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        group.new_member_added = False
        self._deadlines.set(
            ("join", group.group_id),
            self._moment.now_ms + delay_ms,
            partial(self._initial_delay_elapsed, group.group_id, delay_ms, remaining_ms),
        )

    def _initial_delay_elapsed(
        self, group_id: str, delay_ms: int, remaining_ms: int
    ) -> Decision[CoordinatorRecord] | None:
        group = self.groups.get(group_id)
        if group is None or not group.new_member_added or not remaining_ms:
            return self._join_elapsed(group_id)
        next_delay_ms = min(self._initial_delay_ms, remaining_ms)
        left_ms = max(remaining_ms - delay_ms, 0)
        return Decision(change=partial(self._prolong, group, next_delay_ms, left_ms))

    def _schedule_join(self, group: ClassicGroup, at_least_ms: int = 0) -> None:
        self._deadlines.set(
            ("join", group.group_id),
            self._moment.now_ms + max(group.rebalance_timeout_ms(), at_least_ms),
            partial(self._join_elapsed, group.group_id),
        )

    def _join_elapsed(self, group_id: str) -> Decision[CoordinatorRecord] | None:
        group = self.groups.get(group_id)
        if group is None or group.state is not GroupState.PREPARING_REBALANCE:
            return None
        if any(
            member.awaiting_join is not None or member.group_instance_id is not None
            for member in group.members.values()
        ):
            return Decision(change=partial(self.complete_join, group))
        return Decision([emptied_group_record(group, self._moment.wall_ms)])

    # -- the sync phase ----------------------------------------------------------------------

    def park_sync(self, group: ClassicGroup, member: ClassicMember, reply: Reply) -> None:
        """Keep a member's SyncGroup until the assignment is there."""
        self.has_synced(group, member)
        self._answer_sync(member, KafkaError(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = reply

    def has_synced(self, group: ClassicGroup, member: ClassicMember) -> None:
        """The member asked for its part: it has heard of the generation."""
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self._deadlines.cancel(("sync", group.group_id))

    def become_stable(self, group: ClassicGroup) -> None:
        """The assignment is in the log."""
        group.transition_to(GroupState.STABLE, self._moment.wall_ms)
        for member in group.members.values():
            if self._answer_sync(member, sync_response(group, member)):
                # Its session may have ended unnoticed while it was waiting for us.
                self.renew(group, member)

    def _sync_elapsed(
        self, group_id: str, generation_id: int
    ) -> Decision[CoordinatorRecord] | None:
        """Members that were told of the generation and never asked for their part are gone."""
        group = self.groups.get(group_id)
        if group is None or group.generation_id != generation_id or not group.pending_sync:
            return None
        if group.state not in _WITH_GENERATION:
            return None
        gone = list(group.pending_sync)
        return Decision(self.emptied(group, gone), change=partial(self.leave, group, gone))

    # -- sessions ----------------------------------------------------------------------------

    def renew(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Start the member's session timeout anew. Budget: 1 µs."""
        deadline = member.session
        at_ms = self._moment.now_ms + member.session_timeout_ms
        if deadline is not None and deadline.fn is not None and at_ms >= deadline.heap_ms:
            deadline.at_ms = at_ms
        else:
            member.session = self._renew_session(group, member.member_id, member.session_timeout_ms)

    def _renew_session(self, group: ClassicGroup, member_id: str, timeout_ms: int) -> Deadline:
        return self._deadlines.set(
            ("session", group.group_id, member_id),
            self._moment.now_ms + timeout_ms,
            partial(self._session_elapsed, group.group_id, member_id),
        )

    def _session_elapsed(self, group_id: str, member_id: str) -> Decision[CoordinatorRecord] | None:
        group = self.groups.get(group_id)
        if group is None:
            return None
        member = group.members.get(member_id)
        if member is None and member_id not in group.pending_join:
            return None
        if member is not None and member.satisfies_heartbeat():
            return None
        return Decision(
            self.emptied(group, (member_id,)), change=partial(self._expire, group, member_id)
        )

    def _expire(self, group: ClassicGroup, member_id: str) -> None:
        was_member = member_id in group.members
        self.remove(group, (member_id,))
        if group.state in _WITH_GENERATION:
            if was_member:
                self.prepare_rebalance(group)
        elif group.members and group.has_all_members_joined():
            self.complete_join(group)

    # -- from the log, from and to other kinds of groups -----------------------------------------

    def begin(self, group: ClassicGroup, *, rebalances: bool = False) -> None:
        """The group was another coordinator's, or of another kind, until now. One that nobody leads
        has members that must join again: it was never through a rebalance (`Migration`)."""
        for member in group.members.values():
            self.renew(group, member)
        must = rebalances or (bool(group.members) and group.leader_id is None)
        if must and group.can_rebalance():
            self.prepare_rebalance(group)

    def answer_all(self, group: ClassicGroup, code: ErrorCode) -> None:
        """Answer what is parked."""
        for member in group.members.values():
            self._answer_parked(group, member, code)

    # -- the end -----------------------------------------------------------------------------

    def forget(self, group: ClassicGroup, error: KafkaError) -> None:
        """Answer what the group has parked and cancel its deadlines; it is Dead then."""
        for member in group.members.values():
            self._answer_parked(group, member, error.code)
            self._deadlines.cancel(("session", group.group_id, member.member_id))
        for member_id in group.pending_join:
            self._deadlines.cancel(("session", group.group_id, member_id))
        self._cancel_phase(group)
        group.transition_to(GroupState.DEAD, self._moment.wall_ms)

    def unload(self, error: KafkaError) -> None:
        """Answer everything that is parked, and forget all groups."""
        for group in self.groups.values():
            for member in group.members.values():
                self._answer_parked(group, member, error.code)
        self.groups.clear()

    def _cancel_phase(self, group: ClassicGroup) -> None:
        self._deadlines.cancel(("join", group.group_id))
        self._deadlines.cancel(("sync", group.group_id))

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
