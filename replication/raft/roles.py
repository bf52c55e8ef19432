"""What a replica is in its epoch, as values; each owns what ends with it (Kafka: EpochState). PURE.

Moves between them (a move not listed is our bug and raises):
    UNATTACHED  -> UNATTACHED, PROSPECTIVE, FOLLOWER          knows the epoch, no leader
    PROSPECTIVE -> UNATTACHED, CANDIDATE, FOLLOWER            asks if it would get votes
    CANDIDATE   -> UNATTACHED, PROSPECTIVE, LEADER, FOLLOWER  asks for votes in a new epoch
    LEADER      -> UNATTACHED, FOLLOWER, RESIGNED             appends and commits
    FOLLOWER    -> UNATTACHED, PROSPECTIVE, FOLLOWER          fetches from the leader
    RESIGNED    -> UNATTACHED, PROSPECTIVE, FOLLOWER          led this epoch, will not again
UNATTACHED -> UNATTACHED: a vote given, or a higher epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from replication.raft.election import Election

if TYPE_CHECKING:
    from replication.raft.fetcher import Fetcher
    from replication.raft.leader_state import LeaderState
    from replication.raft.own_events import Replica
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
    Role.UNATTACHED: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER}),
    Role.PROSPECTIVE: frozenset({Role.UNATTACHED, Role.CANDIDATE, Role.FOLLOWER}),
    Role.CANDIDATE: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.LEADER, Role.FOLLOWER}),
    Role.LEADER: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.RESIGNED}),
    Role.FOLLOWER: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER}),
    Role.RESIGNED: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER}),
}


def _soonest(*times_ms: int | None) -> int | None:
    return min((ms for ms in times_ms if ms is not None), default=None)


class EpochState:
    """One role, from the move that took it to the move that leaves it. Owner: the raft core."""

    __slots__ = ("timeout_ms",)
    role: ClassVar[Role]

    def __init__(self) -> None:
        self.timeout_ms: int | None = None
        """When its patience ends (monotonic ms); None: never."""

    @property
    def deadline_ms(self) -> int | None:
        """When it wants to look at the time again; None: only when something happens."""
        return self.timeout_ms

    def wait_until(self, timeout_ms: int | None) -> None:
        self.timeout_ms = timeout_ms

    def is_over(self, now_ms: int) -> bool:
        """Has its patience ended."""
        return self.timeout_ms is not None and now_ms >= self.timeout_ms


class Nominee(EpochState):
    """It asks for votes (Kafka: NomineeState). `lost`: elections in a row, up to this one."""

    __slots__ = ("election",)

    def __init__(self, replica: Replica, lost: int = 0) -> None:
        super().__init__()
        self.election = Election(replica, lost)

    @property
    def deadline_ms(self) -> int | None:
        return _soonest(self.timeout_ms, self.election.retry_ms)


class Prospective(Nominee):
    __slots__ = ()
    role = Role.PROSPECTIVE


class Candidate(Nominee):
    __slots__ = ()
    role = Role.CANDIDATE


class Fetching(EpochState):
    """It fetches: from its leader, or from anybody, to hear who leads."""

    __slots__ = ("_fetcher", "_replica")

    def __init__(self, replica: Replica) -> None:
        super().__init__()
        self._replica = replica
        self._fetcher: Fetcher | None = None

    @property
    def fetcher(self) -> Fetcher:
        """Made when there is somebody to fetch from: a single voter never loads it."""
        if self._fetcher is None:
            from replication.raft.fetcher import Fetcher

            self._fetcher = Fetcher(self._replica)
        return self._fetcher

    @property
    def deadline_ms(self) -> int | None:
        fetching_ms = self._fetcher.deadline_ms if self._fetcher is not None else None
        return _soonest(self.timeout_ms, fetching_ms)


class Unattached(Fetching):
    __slots__ = ()
    role = Role.UNATTACHED


class Follower(Fetching):
    """Of one leader."""

    __slots__ = ("_tell_ms", "has_told", "leader_high_watermark")
    role = Role.FOLLOWER

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
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


class Resigned(Fetching):
    """It says farewell to the other voters, and fetches to hear who leads now."""

    __slots__ = ("farewell",)
    role = Role.RESIGNED

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self.farewell = Election(replica)

    @property
    def deadline_ms(self) -> int | None:
        return _soonest(super().deadline_ms, self.farewell.retry_ms)


class Leader(EpochState):
    """One leadership: what it knows of its replicas, and the changes of voters under way."""

    __slots__ = ("_replica", "changes_begun", "state")
    role = Role.LEADER

    def __init__(self, replica: Replica, state: LeaderState) -> None:
        super().__init__()
        self.state = state
        self.changes_begun: VoterChanges | None = None
        self._replica = replica

    @property
    def changes(self) -> VoterChanges:
        """Made when there is one: most leaders never load it."""
        if self.changes_begun is None:
            from replication.raft.voter_changes import VoterChanges

            self.changes_begun = VoterChanges(self._replica)
        return self.changes_begun

    @property
    def deadline_ms(self) -> int | None:
        changes, state = self.changes_begun, self.state
        changes_ms = changes.deadline_ms if changes is not None else None
        return _soonest(state.quorum_deadline_ms, state.announce_ms, changes_ms)
