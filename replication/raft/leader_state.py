"""What a leader knows of its replicas: how far each is, who fetched when, what is committed. PURE.

What: end offsets of voters, fetch times of voters and observers, the check of the quorum (K-6),
who must still hear of this leader, who should succeed it.
Why: all of it begins anew with each leadership, so it lives and dies as one object.
How: a replica's fetch at offset N says that it holds all below N durably. Committed is what a
majority of the *voters* holds (K-3); the leader's own log counts once flushed, and only while it is
a voter itself: one that is being removed leads on without counting (K-12). A leader that no
majority fetched from for 1.5 fetch timeouts must resign.
"""

from __future__ import annotations

from dataclasses import dataclass

from replication.raft.voter_set import ReplicaKey, Voter, VoterSet

CHECK_QUORUM_FACTOR = 1.5
OBSERVER_SESSION_MS = 300_000
"""An observer that is silent for so long is forgotten (K-13)."""
CAUGHT_UP_WITHIN_MS = 3_600_000


def committed_offset(voter_end_offsets: list[int]) -> int:
    """Largest offset that a majority of the voters reached: the (n // 2 + 1)-th largest (K-3)."""
    assert voter_end_offsets, "without voters nothing is committed"
    ordered = sorted(voter_end_offsets, reverse=True)
    return ordered[len(ordered) // 2]


@dataclass(slots=True)
class ReplicaProgress:
    """How far one replica is. Times are monotonic ms, None for never."""

    key: ReplicaKey
    end_offset: int = -1
    last_fetch_ms: int | None = None
    last_caught_up_ms: int | None = None
    leader_end_offset: int = -1
    """The leader's log end when the replica fetched last."""

    def fetched(self, offset: int, leader_end_offset: int, now_ms: int) -> None:
        """It fetched at `offset`. It was caught up at that earlier fetch whose end it reached."""
        if offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif 0 < self.leader_end_offset <= offset:
            self.last_caught_up_ms = self.last_fetch_ms
        self.leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms
        self.end_offset = offset


class LeaderState:
    """One leadership. Owner: the raft core."""

    __slots__ = (
        "_announce_interval_ms",
        "_check_quorum_ms",
        "_fetched",
        "_me",
        "announce_ms",
        "epoch",
        "epoch_start_offset",
        "observers",
        "quorum_deadline_ms",
        "replicas",
        "voters",
    )

    def __init__(
        self,
        me: ReplicaKey,
        epoch: int,
        epoch_start_offset: int,
        voters: VoterSet,
        fetch_timeout_ms: int,
        now_ms: int,
    ) -> None:
        self.epoch = epoch
        self.epoch_start_offset = epoch_start_offset
        self.voters = voters
        self.replicas: dict[int, ReplicaProgress] = {
            voter.node_id: ReplicaProgress(voter.key) for voter in voters
        }
        self.observers: dict[ReplicaKey, ReplicaProgress] = {}
        self.quorum_deadline_ms: int | None = None
        self.announce_ms: int | None = None
        self._me = me
        self._check_quorum_ms = int(fetch_timeout_ms * CHECK_QUORUM_FACTOR)
        self._announce_interval_ms = fetch_timeout_ms // 2
        self._fetched: set[int] = set()
        self._watch(now_ms)

    @property
    def is_voter(self) -> bool:
        """Is the leader itself one of the voters."""
        return self.voters.is_voter(self._me)

    @property
    def others(self) -> list[Voter]:
        """The voters it needs to talk to."""
        return [voter for voter in self.voters if not self._is_me(voter)]

    def _is_me(self, voter: Voter) -> bool:
        return self._me.node_id == voter.node_id and voter.accepts(self._me)

    def _watch(self, now_ms: int) -> None:
        """(Re)start the timers if there is anybody to watch."""
        self._fetched.clear()
        alone = not self.others
        self.quorum_deadline_ms = None if alone else now_ms + self._check_quorum_ms
        self.announce_ms = None if alone else now_ms

    # --- replicas -------------------------------------------------------------------------------

    def flushed(self, end_offset: int) -> None:
        """The leader's own log is durable up to `end_offset`."""
        if self.is_voter:
            self.replicas[self._me.node_id].end_offset = end_offset

    def fetched(self, key: ReplicaKey, offset: int, leader_end_offset: int, now_ms: int) -> bool:
        """A replica fetched at `offset`; True when it is a voter, so that more may be committed."""
        is_voter = self.voters.is_voter(key)
        if is_voter:
            progress = self.replicas[key.node_id]
        else:
            self._forget_silent(now_ms)
            progress = self.observers.setdefault(key, ReplicaProgress(key))
        progress.fetched(offset, leader_end_offset, now_ms)
        self.heard_from(key, now_ms)
        return is_voter

    def heard_from(self, key: ReplicaKey, now_ms: int) -> None:
        """A replica fetched records or a snapshot: it counts for the check of the quorum (K-6)."""
        if not self.voters.is_voter(key) or key.node_id == self._me.node_id:
            return
        self._fetched.add(key.node_id)
        needed = self.voters.majority - (1 if self.is_voter else 0)
        if len(self._fetched) >= needed:
            self._fetched.clear()
            self.quorum_deadline_ms = now_ms + self._check_quorum_ms

    def is_deserted(self, now_ms: int) -> bool:
        """Has no majority fetched for one and a half fetch timeouts (K-6)."""
        return self.quorum_deadline_ms is not None and now_ms >= self.quorum_deadline_ms

    def _forget_silent(self, now_ms: int) -> None:
        for key, progress in list(self.observers.items()):
            if progress.last_fetch_ms is not None and (
                now_ms - progress.last_fetch_ms >= OBSERVER_SESSION_MS
            ):
                del self.observers[key]

    def active_observers(self, now_ms: int) -> list[ReplicaProgress]:
        """The observers that are not silent for too long."""
        self._forget_silent(now_ms)
        return list(self.observers.values())

    def is_caught_up(self, key: ReplicaKey, now_ms: int) -> bool:
        """May this observer become a voter: was it caught up, and fetched within an hour."""
        progress = self.observers.get(key)
        return (
            progress is not None
            and progress.last_caught_up_ms is not None
            and progress.last_fetch_ms is not None
            and now_ms - progress.last_fetch_ms < CAUGHT_UP_WITHIN_MS
        )

    def committed(self) -> int:
        """What a majority of the voters holds."""
        return committed_offset([progress.end_offset for progress in self.replicas.values()])

    def change_voters(self, voters: VoterSet, own_end_offset: int, now_ms: int) -> None:
        """Another voter set counts from now on; who leaves it is an observer.

        `own_end_offset`: what of the leader's log is flushed.
        """
        known = {progress.key: progress for progress in self.replicas.values()}
        known.update(self.observers)
        self.voters = voters
        self.replicas = {}
        for voter in voters:
            # Of a static voter nobody knew the directory id.
            progress = known.pop(ReplicaKey(voter.node_id), None) or known.pop(voter.key, None)
            self.replicas[voter.node_id] = progress or ReplicaProgress(voter.key)
            self.replicas[voter.node_id].key = voter.key
        self.observers = {
            key: progress for key, progress in known.items() if key.node_id != self._me.node_id
        }
        self.flushed(own_end_offset)
        self._watch(now_ms)

    # --- announcing, and leaving ----------------------------------------------------------------

    def to_announce(self, now_ms: int) -> list[Voter]:
        """Voters that have not fetched lately and must hear (again) who leads. Restarts the timer.

        Kafka sends BeginQuorumEpoch each half fetch timeout to whoever did not fetch meanwhile.
        """
        self.announce_ms = now_ms + self._announce_interval_ms
        silent = []
        for voter in self.others:
            last_ms = self.replicas[voter.node_id].last_fetch_ms
            if last_ms is None or now_ms - last_ms >= self._announce_interval_ms:
                silent.append(voter)
        return silent

    def successors(self) -> tuple[ReplicaKey, ...]:
        """The other voters, the furthest first: the order in which they should stand."""
        ordered = sorted(
            (self.replicas[voter.node_id] for voter in self.others),
            key=lambda progress: (-progress.end_offset, progress.key),
        )
        return tuple(progress.key for progress in ordered)
