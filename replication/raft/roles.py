"""What a replica is in its epoch, as values; each owns what ends with it (Kafka: EpochState). PURE.

Moves between them (a move not listed is our bug and raises):
    UNATTACHED  -> UNATTACHED, PROSPECTIVE, CANDIDATE, FOLLOWER  knows the epoch, no leader
    PROSPECTIVE -> UNATTACHED, CANDIDATE, FOLLOWER               asks if it would get votes
    CANDIDATE   -> UNATTACHED, PROSPECTIVE, LEADER, FOLLOWER     asks for votes in a new epoch
    LEADER      -> UNATTACHED, FOLLOWER, RESIGNED                appends and commits
    FOLLOWER    -> UNATTACHED, PROSPECTIVE, FOLLOWER             fetches from the leader
    RESIGNED    -> UNATTACHED, CANDIDATE, FOLLOWER               led this epoch, will not again
UNATTACHED -> UNATTACHED: a vote given, or a higher epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from replication.raft.leader_state import LeaderState

if TYPE_CHECKING:
    from replication.raft.voter_changes import VoterChanges


class Role(Enum):
    """What this replica is in its epoch."""

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


TRANSITIONS: Mapping[Role, frozenset[Role]] = {
    Role.UNATTACHED: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.CANDIDATE, Role.FOLLOWER}),
    Role.PROSPECTIVE: frozenset({Role.UNATTACHED, Role.CANDIDATE, Role.FOLLOWER}),
    Role.CANDIDATE: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.LEADER, Role.FOLLOWER}),
    Role.LEADER: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.RESIGNED}),
    Role.FOLLOWER: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER}),
    Role.RESIGNED: frozenset({Role.UNATTACHED, Role.CANDIDATE, Role.FOLLOWER}),
}


class EpochState:
    """One role, from the move that took it to the move that leaves it. Owner: the raft core."""

    __slots__ = ("timeout_ms",)
    role: ClassVar[Role]

    def __init__(self) -> None:
        self.timeout_ms: int | None = None
        """When its patience ends (monotonic ms); None: never."""

    def wait_until(self, timeout_ms: int | None) -> None:
        self.timeout_ms = timeout_ms

    def is_over(self, now_ms: int) -> bool:
        """Has its patience ended."""
        return self.timeout_ms is not None and now_ms >= self.timeout_ms


class Unattached(EpochState):
    __slots__ = ()
    role = Role.UNATTACHED


class Prospective(EpochState):
    __slots__ = ()
    role = Role.PROSPECTIVE


class Candidate(EpochState):
    __slots__ = ()
    role = Role.CANDIDATE


class Resigned(EpochState):
    __slots__ = ()
    role = Role.RESIGNED


class Follower(EpochState):
    """Of one leader."""

    __slots__ = ("_tell_ms", "has_told", "leader_high_watermark")
    role = Role.FOLLOWER

    def __init__(self) -> None:
        super().__init__()
        self.leader_high_watermark = -1
        """What the leader said last; not bounded by how far our log goes."""
        self.has_told = False
        """Does the leader know about us, a static voter (kraft.version 0)."""
        self._tell_ms = 0

    def hear_high_watermark(self, high_watermark: int) -> None:
        self.leader_high_watermark = max(high_watermark, self.leader_high_watermark)

    def may_tell(self, now_ms: int) -> bool:
        """May we tell the leader (again) that the voter set is wrong about us."""
        return now_ms >= self._tell_ms

    def tells(self, again_ms: int) -> None:
        """We may tell it now, and not before `again_ms` again."""
        self._tell_ms = again_ms

    def was_heard(self) -> None:
        self.has_told = True


class Leader(EpochState):
    """One leadership: what it knows of its replicas, and the changes of voters under way."""

    __slots__ = ("changes", "state")
    role = Role.LEADER

    def __init__(self, state: LeaderState) -> None:
        super().__init__()
        self.state = state
        self.changes: VoterChanges | None = None

    def take(self, changes: VoterChanges) -> VoterChanges:
        """The changes of voters of this leadership, made when there is one."""
        self.changes = changes
        return changes
