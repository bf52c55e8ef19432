"""One group of the classic rebalance protocol: who is in it, and what they agreed on (PURE).

A group is what the members of one `group.id` share: a generation, a protocol every member can
speak, a leader who computes the assignment, and each member's part of it. This module keeps that
state and its invariants; `classic_protocol` decides what requests and time do to it. What
assignments mean is the clients' business: metadata and assignments are opaque bytes here, which is
why the cooperative protocol (KIP-429) needs nothing special. The one exception is the subscription
of the `consumer` protocol type, which is read to know which topics' offsets are in use.

States (Kafka's ClassicGroupState; `transition_to` refuses everything else):

    state                 may become                      when
    Empty                 PreparingRebalance              the first member joins
                          Dead                            deleted, expired or unloaded
    PreparingRebalance    CompletingRebalance             all members joined, or time is up
                          Empty                           all members left or did not come back
                          Dead                            unloaded
    CompletingRebalance   Stable                          the leader's assignment is in the log
                          PreparingRebalance              a member joins, changes, leaves or fails
                          Dead                            unloaded
    Stable                PreparingRebalance              a member joins, changes, leaves or fails
                          Dead                            unloaded
    Dead                  Dead                            nothing brings it back

Invariants:
- `static_members` maps each instance id to exactly one member (KIP-345).
- `awaiting_join_count` is the number of members whose JoinGroup is parked.
- `supported_protocols[name]` counts the members that listed `name`; a protocol can be chosen when
  that equals the number of members.
- the leader, if any, is a member.
- an assignment is that of the last Stable generation, until a leader's next one: a member may have
  it still, whatever it joins (KIP-429). Kafka forgets it with a generation that is given up.

An Empty group that nobody is about to join owns no container: thousands of groups that only keep
offsets cost what their fields cost. Whoever forgets to `_open` one gets an exception.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from types import MappingProxyType
from typing import Any, cast

from server.coordinator.deadlines import Deadline
from server.coordinator.group import CONSUMER_PROTOCOL_TYPE, Committer, Expiry
from server.coordinator.machine import Reply
from wire.errors import ErrorCode, KafkaError

Protocols = Sequence[tuple[str, bytes]]
"""A member's protocols in its order of preference: (name, metadata)."""


class GroupState(enum.Enum):
    """Where a group is in its rebalance; the value is Kafka's name for it."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_VALID_PREVIOUS = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {
        GroupState.STABLE,
        GroupState.COMPLETING_REBALANCE,
        GroupState.EMPTY,
    },
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}


class ClassicMember:
    """One member: what it told us, what it was assigned, and the requests of it that wait.

    `is_new` is true until its first JoinGroup is answered: such a member does not know its id, so
    it cannot heartbeat and a parked JoinGroup does not keep it alive.
    """

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "member_id",
        "protocol_type",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        self.awaiting_join: Reply | None = None
        self.awaiting_sync: Reply | None = None
        self.session: Deadline | None = None

    def metadata(self, protocol_name: str) -> bytes:
        """What the member said under this protocol; empty when it never listed it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def vote(self, candidates: Collection[str]) -> str:
        """The first of the member's protocols that every member speaks."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise AssertionError("a member must support a candidate protocol")

    def satisfies_heartbeat(self) -> bool:
        """Whether waiting for an answer of ours stands in for a heartbeat."""
        if self.is_new:
            return False
        return self.awaiting_join is not None or self.awaiting_sync is not None


_NOBODY: dict[str, Any] = cast("dict[str, Any]", MappingProxyType({}))
_NO_TOPICS: frozenset[str] = frozenset()
_NOBODYS_IDS: set[str] = cast("set[str]", frozenset())
TOPICS_READ_MAX = 100_000
"""Names that are read of a generation. No record of a group holds as many, but a stranger's
JoinGroup may; in memory they are many times as large, and the shard's thread reads them."""
_KINDS_MAX = 8
"""Subscriptions that are remembered, for members that say the same."""
_VERSION_BYTES, _COUNT_BYTES, _LENGTH_BYTES = 2, 4, 2


class ClassicGroup:
    """One classic group. Owner: the shard it belongs to; no lock of its own.

    `state_timestamp_ms` is the wall clock of the last transition (None in records older than
    Kafka 2.1): an Empty group's offsets expire counting from it (KIP-211).
    """

    __slots__ = (
        "_subscribed_topics",
        "awaiting_join_count",
        "generation_id",
        "group_id",
        "leader_id",
        "members",
        "new_member_added",
        "pending_join",
        "pending_sync",
        "previous_state",
        "protocol_name",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "supported_protocols",
    )

    def __init__(
        self,
        group_id: str,
        state_timestamp_ms: int | None,
        state: GroupState = GroupState.EMPTY,
        generation_id: int = 0,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        leader_id: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.state = state
        self.previous_state = GroupState.DEAD
        self.state_timestamp_ms = state_timestamp_ms
        self.generation_id = generation_id
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name
        self.leader_id = leader_id
        self.members: dict[str, ClassicMember] = _NOBODY
        self.static_members: dict[str, str] = _NOBODY
        self.pending_join: set[str] = _NOBODYS_IDS
        self.pending_sync: set[str] = _NOBODYS_IDS
        self.supported_protocols: dict[str, int] = _NOBODY
        self.awaiting_join_count = 0
        self.new_member_added = False
        self._subscribed_topics: frozenset[str] | None = None

    # -- membership --------------------------------------------------------------------------

    def _open(self) -> None:
        """Have containers of its own: somebody is coming."""
        if self.members is _NOBODY:
            self.members, self.static_members, self.supported_protocols = {}, {}, {}
            self.pending_join, self.pending_sync = set(), set()

    def rest(self) -> None:
        """Give the containers up if they are empty."""
        if not self.members and not self.pending_join:
            self.members = self.static_members = self.supported_protocols = _NOBODY
            self.pending_join = self.pending_sync = _NOBODYS_IDS

    def promise(self, member_id: str) -> None:
        """Expect the JoinGroup of a member that was just told its id (KIP-394)."""
        self._open()
        self.pending_join.add(member_id)

    def add(self, member: ClassicMember, reply: Reply | None = None) -> None:
        """Take in a member, with its parked JoinGroup if it has one; the first is the leader."""
        self._open()
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        assert self.protocol_type == member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        self.pending_join.discard(member.member_id)
        if reply is not None:
            self.park_join(member, reply)

    def remove(self, member_id: str) -> ClassicMember | None:
        """Drop a member or pending member; another member becomes leader if it was the leader."""
        self._open()
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, -1)
            if member.awaiting_join is not None:
                self.awaiting_join_count -= 1
            if member.group_instance_id is not None:
                del self.static_members[member.group_instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_join.discard(member_id)
        self.pending_sync.discard(member_id)
        return member

    def replace_static_member(self, old: ClassicMember, new: ClassicMember) -> None:
        """Give a static member's place to its next incarnation (KIP-345).

        The caller has already answered what the old one had parked.
        """
        assert old.group_instance_id is not None
        assert old.awaiting_join is None
        self._count_protocols(old, -1)
        del self.members[old.member_id]
        self.members[new.member_id] = new
        self._count_protocols(new, 1)
        self.static_members[old.group_instance_id] = new.member_id
        if old.member_id in self.pending_sync:
            self.pending_sync.remove(old.member_id)
            self.pending_sync.add(new.member_id)
        if self.leader_id == old.member_id:
            self.leader_id = new.member_id

    def become_empty(self, generation_id: int, wall_ms: int) -> None:
        """Everybody has left or did not come back; who was promised a place may still come."""
        self._open()
        self.members.clear()
        self.static_members.clear()
        self.supported_protocols.clear()
        self.pending_sync.clear()
        self.awaiting_join_count = 0
        self.leader_id = self.protocol_name = None
        self.generation_id = generation_id
        self.transition_to(GroupState.EMPTY, wall_ms)
        self.read_subscriptions()
        self.rest()

    def update(
        self,
        member: ClassicMember,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """Take over what a rejoining member says now."""
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def park_join(self, member: ClassicMember, reply: Reply) -> Reply | None:
        """Keep a JoinGroup until the generation starts; returns the one it supersedes."""
        superseded = member.awaiting_join
        if superseded is None:
            self.awaiting_join_count += 1
        member.awaiting_join = reply
        return superseded

    def take_join(self, member: ClassicMember) -> Reply | None:
        """The member's parked JoinGroup, which is the caller's to answer now."""
        reply = member.awaiting_join
        if reply is not None:
            member.awaiting_join = None
            self.awaiting_join_count -= 1
        return reply

    # -- questions ---------------------------------------------------------------------------

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether members are consumers, whose subscriptions can be read."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def is_gathering(self) -> bool:
        """An Empty group's first members wait for more of them to come (KIP-134)."""
        return (
            self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY
        )

    def is_leader(self, member_id: str) -> bool:
        """Whether this member computes the assignment."""
        return self.leader_id == member_id

    def has_all_members_joined(self) -> bool:
        """Whether every member has a parked JoinGroup and no promised one is outstanding."""
        return len(self.members) == self.awaiting_join_count and not self.pending_join

    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits: the most patient member's wish, ms."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def validate_member(self, member_id: str, group_instance_id: str | None) -> ClassicMember:
        """The member of this id, if it is who it says it is.

        KafkaError FENCED_INSTANCE_ID when another member id owns the instance id now,
        UNKNOWN_MEMBER_ID when the member or the instance id is not in the group.
        """
        if group_instance_id is not None:
            owner = self.static_members.get(group_instance_id)
            if owner is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if owner != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def supports_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols could be in the group with those it has."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        if self.protocol_type != protocol_type:
            return False
        size = len(self.members)
        return any(self.supported_protocols.get(name, 0) == size for name in names)

    # -- as any group (server.coordinator.group) -----------------------------------------------

    @property
    def state_name(self) -> str:
        """See Group."""
        return self.state.value

    @property
    def listed_protocol_type(self) -> str:
        """See Group."""
        return self.protocol_type or ""

    @property
    def is_empty(self) -> bool:
        """See Group."""
        return self.state is GroupState.EMPTY

    @property
    def is_unused(self) -> bool:
        """See Group."""
        return self.state is GroupState.EMPTY and not self.pending_join

    def check_commit(self, committer: Committer) -> None:
        """KafkaError as the table of `offsets` says."""
        if committer.epoch < 0 and self.state is GroupState.EMPTY:
            return
        if committer.is_nobody:
            if committer.is_transactional:
                return
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        self.validate_member(committer.member_id, committer.instance_id)
        if committer.epoch != self.generation_id:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if not committer.is_transactional and self.state is GroupState.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Anybody may read the offsets of a classic group."""

    def check_offset_delete(self) -> None:
        """KafkaError NON_EMPTY_GROUP unless it is empty or of consumers, topic by topic then."""
        if self.state is not GroupState.EMPTY and not self.uses_consumer_protocol:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member consumes this topic; assumed when subscriptions cannot be read."""
        if self._subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self._subscribed_topics

    def expiry(self) -> Expiry | None:
        """As the second table of `offsets` says."""
        if self.protocol_type is None:
            return Expiry(None)
        if self.state is GroupState.EMPTY:
            return Expiry(self.state_timestamp_ms)
        is_known = self.uses_consumer_protocol and self._subscribed_topics is not None
        return Expiry(None) if is_known and self.state is GroupState.STABLE else None

    def digest(self) -> tuple[object, ...] | None:
        """See Group; settled are Stable and Empty ones."""
        if self.state not in (GroupState.STABLE, GroupState.EMPTY):
            return None
        name = self.protocol_name or ""
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
            for _, member in sorted(self.members.items())
        ]
        return (
            self.group_id,
            self.state.value,
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self.leader_id,
            tuple(members),
        )

    # -- transitions -------------------------------------------------------------------------

    def can_rebalance(self) -> bool:
        """Whether a new rebalance may start from the present state."""
        return self.state in _VALID_PREVIOUS[GroupState.PREPARING_REBALANCE]

    def transition_to(self, state: GroupState, wall_ms: int) -> None:
        """Move on; an impossible transition is a bug of ours."""
        assert self.state in _VALID_PREVIOUS[state], (self.group_id, self.state, state)
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = wall_ms

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is a member that has joined; False when nobody has."""
        if self.leader_id is not None and self.members[self.leader_id].awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def start_next_generation(self, wall_ms: int) -> None:
        """Fix the members and the protocol of the next generation; there must be members."""
        self.protocol_name = select_protocol(self.members.values())
        self.generation_id += 1
        self.transition_to(GroupState.COMPLETING_REBALANCE, wall_ms)
        self.read_subscriptions()

    def read_subscriptions(self) -> None:
        """Learn the subscribed topics from the members' metadata, if they are consumers."""
        self._subscribed_topics = None
        if not self.uses_consumer_protocol:
            return
        if not self.members:
            self._subscribed_topics = _NO_TOPICS
        elif self.protocol_name is not None:
            name = self.protocol_name
            self._subscribed_topics = _topics_of(m.metadata(name) for m in self.members.values())

    def _count_protocols(self, member: ClassicMember, step: int) -> None:
        counts = self.supported_protocols
        for name in {name for name, _ in member.protocols}:  # a client may list one twice
            count = counts.get(name, 0) + step
            if count:
                counts[name] = count
            else:
                counts.pop(name, None)


def select_protocol(members: Collection[ClassicMember]) -> str:
    """The protocol with the most votes among those every member speaks; the earliest voted one on
    a draw.
    """
    spoken = [{name for name, _ in member.protocols} for member in members]
    candidates = set.intersection(*spoken)
    votes: dict[str, int] = {}
    for member in members:
        name = member.vote(candidates)
        votes[name] = votes.get(name, 0) + 1
    return max(votes, key=votes.__getitem__)


def _topics_of(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """What all name together; None if one cannot be read, or they are too many. Members name the
    same topics, as a rule: those once."""
    found: set[str] = set()
    seen, left = deque[bytes](maxlen=_KINDS_MAX), TOPICS_READ_MAX
    for metadata in subscriptions:
        if any(metadata.startswith(topics, _VERSION_BYTES) for topics in seen):
            continue
        names = subscribed_topics(metadata, left)
        if names is None:
            return None
        found.update(names)
        left -= len(names)
        size = _COUNT_BYTES + sum(_LENGTH_BYTES + len(name.encode()) for name in names)
        seen.append(metadata[_VERSION_BYTES : _VERSION_BYTES + size])
    return frozenset(found)


def subscribed_topics(metadata: bytes, at_most: int) -> list[str] | None:
    """The topics of a ConsumerProtocolSubscription of any version; None if it is not one, or names
    more.

    Layout: version int16, topics array of string, then what later versions add. Version 0 is a
    prefix of all versions, so nothing more is read (ClassicGroup.computeSubscribedTopics).
    """
    size = len(metadata)
    if size < 6 or metadata[0] >= 0x80:
        return None
    count = int.from_bytes(metadata[2:6], "big", signed=True)
    position = 6
    if not 0 <= count <= min(at_most, (size - position) // 2):
        return None
    topics = []
    for _ in range(count):
        if position + 2 > size:
            return None
        length = int.from_bytes(metadata[position : position + 2], "big", signed=True)
        position += 2
        if length < 0 or position + length > size:
            return None
        try:
            topics.append(metadata[position : position + length].decode())
        except UnicodeDecodeError:
            return None
        position += length
    return topics
