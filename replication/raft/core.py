"""The quorum's decisions: who leads, which epoch, what is committed. PURE.

What: one voter's state machine of Kafka's Raft variant (KIP-595), for a static voter set of any
size. `step(event, now_ms)` takes one event and answers a `Ready`: what to persist, to append, to
send, and the new high watermark.
Why: no socket, clock, file or randomness of its own, so that a simulator may drive many of them.
How: replication is pull. Followers fetch from the leader, so the leader learns a voter's end offset
from its next fetch. The leader counts *itself* only after `Flushed` told it that its log is on disk
(Apache Kafka counts before the flush; a single voter then exposes records a power cut takes back).
An offset is committed when a majority of voters hold it and it lies above the leader's first record
in its epoch, the LeaderChange record (Raft's rule for entries of older epochs).

Roles and moves (a move not listed is our bug and raises):
    UNATTACHED -> VOTED, CANDIDATE, FOLLOWER             epoch known, leader not
    VOTED      -> UNATTACHED, CANDIDATE, FOLLOWER        vote given in this epoch
    CANDIDATE  -> UNATTACHED, CANDIDATE, LEADER, FOLLOWER  asks for votes
    LEADER     -> UNATTACHED, FOLLOWER, RESIGNED         appends and commits
    FOLLOWER   -> UNATTACHED, CANDIDATE, FOLLOWER        fetches from the leader
    RESIGNED   -> UNATTACHED, CANDIDATE, FOLLOWER        led this epoch, will not again
UNATTACHED -> UNATTACHED is a move to a higher epoch. Moves to the same epoch never clear a vote; a
move to a higher epoch always does.

Duties of the caller, in this order, for each Ready:
1. `persist` is written, fsynced, renamed and its directory fsynced before anything else happens.
2. `append` goes to the log as a control batch in the leader's epoch; after its fsync the caller
   steps `Flushed(log_end_offset)`. The same holds for each batch of records it appends as leader.
3. `send` leaves.
4. `high_watermark` is told to whoever waits.
Steps must come from one thread. Call `step(Tick(), now_ms)` no later than `deadline_ms`.

Gaps: pre-vote (KIP-996), check-quorum (K-6), BeginQuorumEpoch retries and changes of the voter set
(KIP-853) come with the issue that adds the network; they are new events and, for pre-vote, one new
role in the table above. A single voter needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

NO_LEADER = -1
NO_VOTE = -1
ZERO_DIRECTORY_ID = bytes(16)


class Random(Protocol):
    """What is asked of `random.Random`; the caller seeds it."""

    def randrange(self, stop: int, /) -> int: ...


class Role(Enum):
    """What this voter is in its epoch."""

    UNATTACHED = "unattached"
    VOTED = "voted"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


TRANSITIONS: Mapping[Role, frozenset[Role]] = {
    Role.UNATTACHED: frozenset({Role.UNATTACHED, Role.VOTED, Role.CANDIDATE, Role.FOLLOWER}),
    Role.VOTED: frozenset({Role.UNATTACHED, Role.CANDIDATE, Role.FOLLOWER}),
    Role.CANDIDATE: frozenset({Role.UNATTACHED, Role.CANDIDATE, Role.LEADER, Role.FOLLOWER}),
    Role.LEADER: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.RESIGNED}),
    Role.FOLLOWER: frozenset({Role.UNATTACHED, Role.CANDIDATE, Role.FOLLOWER}),
    Role.RESIGNED: frozenset({Role.UNATTACHED, Role.CANDIDATE, Role.FOLLOWER}),
}


@dataclass(slots=True)
class ElectionState:
    """What must survive a crash for an election to be safe (file `quorum-state`)."""

    epoch: int = 0
    leader_id: int = NO_LEADER
    voted_id: int = NO_VOTE
    voted_directory_id: bytes = ZERO_DIRECTORY_ID


class LogPosition(NamedTuple):
    """End of a log: epoch of its last batch and its log end offset. Compares as Raft does."""

    epoch: int
    end_offset: int


# --- events -------------------------------------------------------------------------------------


class Start(NamedTuple):
    """First event: what the disk holds."""

    state: ElectionState
    log: LogPosition


class Tick(NamedTuple):
    """Time has passed; `now_ms` says how much."""


class Flushed(NamedTuple):
    """This voter's log is durable up to (excluding) `log.end_offset`."""

    log: LogPosition


class VoteRequest(NamedTuple):
    """A candidate asks for this voter's vote in `epoch`."""

    candidate_id: int
    epoch: int
    log: LogPosition


class VoteResponse(NamedTuple):
    """A voter's answer to our VoteRequest. `epoch` is the voter's, `leader_id` whom it knows."""

    voter_id: int
    epoch: int
    granted: bool
    leader_id: int = NO_LEADER


class BeginQuorumEpoch(NamedTuple):
    """A leader announces itself."""

    leader_id: int
    epoch: int


class ReplicaFetch(NamedTuple):
    """A voter fetched from us at `end_offset`: it holds everything below durably."""

    replica_id: int
    epoch: int
    end_offset: int


class FetchSucceeded(NamedTuple):
    """Our fetch was answered by the leader of `epoch`: it lives. HW is what it told."""

    epoch: int
    high_watermark: int


class Resign(NamedTuple):
    """Give up leadership of the current epoch (shutdown, failed append)."""


Event = (
    Start
    | Tick
    | Flushed
    | VoteRequest
    | VoteResponse
    | BeginQuorumEpoch
    | ReplicaFetch
    | FetchSucceeded
    | Resign
)


# --- effects ------------------------------------------------------------------------------------


class LeaderChange(NamedTuple):
    """Control batch a new leader appends first: itself, the voters, and who voted for it."""

    leader_id: int
    epoch: int
    voters: tuple[int, ...]
    granting_voters: tuple[int, ...]


class Send(NamedTuple):
    """A message for another voter."""

    to: int
    message: VoteRequest | VoteResponse | BeginQuorumEpoch


@dataclass(slots=True)
class Ready:
    """Effects of one step, to be done in the order of the module docstring."""

    persist: ElectionState | None = None
    append: list[LeaderChange] = field(default_factory=list)
    send: list[Send] = field(default_factory=list)
    high_watermark: int | None = None


def committed_offset(voter_end_offsets: list[int]) -> int:
    """Largest offset that a majority of the voters reached: the (n // 2 + 1)-th largest (K-3)."""
    ordered = sorted(voter_end_offsets, reverse=True)
    return ordered[len(ordered) // 2]


class RaftCore:
    """One voter of a static quorum. Owner: the raft driver's thread.

    Invariants: `state.epoch` never falls; in one epoch at most one vote and one leader are known;
    `high_watermark` never falls and never exceeds this voter's flushed log end.
    """

    __slots__ = (
        "_epoch_start_offset",
        "_granted",
        "_random",
        "_rejected",
        "deadline_ms",
        "election_timeout_ms",
        "fetch_timeout_ms",
        "high_watermark",
        "log",
        "node_id",
        "role",
        "state",
        "voter_end_offsets",
        "voters",
    )

    def __init__(
        self,
        node_id: int,
        voters: tuple[int, ...],
        random: Random,
        *,
        election_timeout_ms: int = 1000,
        fetch_timeout_ms: int = 2000,
    ) -> None:
        self.node_id = node_id
        self.voters = voters
        self.election_timeout_ms = election_timeout_ms
        self.fetch_timeout_ms = fetch_timeout_ms
        self.role = Role.UNATTACHED
        self.state = ElectionState()
        self.log = LogPosition(0, 0)
        self.high_watermark = -1
        self.deadline_ms: int | None = None
        self.voter_end_offsets: dict[int, int] = {}
        self._random = random
        self._granted: set[int] = set()
        self._rejected: set[int] = set()
        self._epoch_start_offset = -1

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def leader_id(self) -> int:
        return self.state.leader_id

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    def step(self, event: Event, now_ms: int) -> Ready:
        """Take one event; return what to do. See the module docstring for the order."""
        ready = Ready()
        _HANDLERS[type(event)](self, event, ready, now_ms)
        return ready

    # --- handlers, one per event ----------------------------------------------------------------

    def _on_start(self, event: Start, ready: Ready, now_ms: int) -> None:
        """Resume in the stored epoch; never as its leader: a restart proves nothing was lost.

        A voter that led the stored epoch may not lead it again (it may have told others of records
        it never flushed), so it starts as RESIGNED and goes to a new epoch.
        """
        stored = event.state
        self.log = event.log
        if event.log.epoch > stored.epoch:
            # The vote file is older than the log (lost or restored): the log's epoch was seen.
            stored = ElectionState(epoch=event.log.epoch)
            ready.persist = stored
        self.state = stored
        if stored.leader_id == self.node_id:
            self.role = Role.RESIGNED
        elif stored.leader_id != NO_LEADER:
            self.role = Role.FOLLOWER
        elif stored.voted_id != NO_VOTE:
            self.role = Role.VOTED
        if self.node_id not in self.voters:
            self.deadline_ms = None
        elif self.voters == (self.node_id,):
            self._become_candidate(ready, now_ms)
        elif self.role is Role.FOLLOWER:
            self.deadline_ms = now_ms + self.fetch_timeout_ms
        else:
            self.deadline_ms = now_ms + self._election_backoff_ms()

    def _on_tick(self, _event: Tick, ready: Ready, now_ms: int) -> None:
        if self.deadline_ms is not None and now_ms >= self.deadline_ms:
            self._become_candidate(ready, now_ms)

    def _on_flushed(self, event: Flushed, ready: Ready, _now_ms: int) -> None:
        self.log = event.log
        if self.is_leader:
            self.voter_end_offsets[self.node_id] = event.log.end_offset
            self._advance_high_watermark(ready)

    def _on_vote_request(self, event: VoteRequest, ready: Ready, now_ms: int) -> None:
        """Grant by K-2: epoch not older, no other vote or leader in it, log at least as long."""
        if event.epoch > self.epoch:
            self._become_unattached(event.epoch, ready, now_ms)
        free = self.role is Role.UNATTACHED or self.state.voted_id == event.candidate_id
        granted = (
            event.epoch == self.epoch
            and free
            and self.state.leader_id == NO_LEADER
            and event.log >= self.log
        )
        if granted and self.state.voted_id != event.candidate_id:
            self._move(Role.VOTED)
            self._persist(ElectionState(self.epoch, NO_LEADER, event.candidate_id), ready)
            self.deadline_ms = now_ms + self._election_backoff_ms()
        answer = VoteResponse(self.node_id, self.epoch, granted, self.leader_id)
        ready.send.append(Send(event.candidate_id, answer))

    def _on_vote_response(self, event: VoteResponse, ready: Ready, now_ms: int) -> None:
        if event.epoch > self.epoch:
            self._become_unattached(event.epoch, ready, now_ms)
            return
        if self.role is not Role.CANDIDATE or event.epoch < self.epoch:
            return
        if event.leader_id != NO_LEADER:
            self._become_follower(event.leader_id, event.epoch, ready, now_ms)
            return
        (self._granted if event.granted else self._rejected).add(event.voter_id)
        if len(self._granted) > len(self.voters) // 2:
            self._become_leader(ready)
        elif len(self._rejected) > (len(self.voters) - 1) // 2:
            self.deadline_ms = now_ms + self._election_backoff_ms()

    def _on_begin_quorum_epoch(self, event: BeginQuorumEpoch, ready: Ready, now_ms: int) -> None:
        known = event.epoch == self.epoch and self.state.leader_id == event.leader_id
        if event.epoch < self.epoch or known:
            return
        if event.epoch == self.epoch and self.state.leader_id != NO_LEADER:
            raise AssertionError(
                f"two leaders in epoch {event.epoch}: {self.state.leader_id}, {event.leader_id}"
            )
        self._become_follower(event.leader_id, event.epoch, ready, now_ms)

    def _on_replica_fetch(self, event: ReplicaFetch, ready: Ready, now_ms: int) -> None:
        if event.epoch > self.epoch:
            self._become_unattached(event.epoch, ready, now_ms)
        elif self.is_leader and event.epoch == self.epoch and event.replica_id in self.voters:
            self.voter_end_offsets[event.replica_id] = event.end_offset
            self._advance_high_watermark(ready)

    def _on_fetch_succeeded(self, event: FetchSucceeded, ready: Ready, now_ms: int) -> None:
        if self.role is Role.FOLLOWER and event.epoch == self.epoch:
            self.deadline_ms = now_ms + self.fetch_timeout_ms
            reached = min(event.high_watermark, self.log.end_offset)
            if reached > self.high_watermark:
                self.high_watermark = ready.high_watermark = reached

    def _on_resign(self, _event: Resign, _ready: Ready, now_ms: int) -> None:
        if self.is_leader:
            self._move(Role.RESIGNED)
            self.deadline_ms = now_ms + self._election_backoff_ms()

    # --- moves ----------------------------------------------------------------------------------

    def _become_candidate(self, ready: Ready, now_ms: int) -> None:
        self._move(Role.CANDIDATE)
        self._persist(ElectionState(self.epoch + 1, NO_LEADER, self.node_id), ready)
        self._granted = {self.node_id}
        self._rejected = set()
        self.deadline_ms = now_ms + self._election_backoff_ms()
        request = VoteRequest(self.node_id, self.epoch, self.log)
        ready.send.extend(Send(voter, request) for voter in self.voters if voter != self.node_id)
        if len(self.voters) == 1:
            self._become_leader(ready)

    def _become_leader(self, ready: Ready) -> None:
        self._move(Role.LEADER)
        self._persist(ElectionState(self.epoch, self.node_id), ready)
        self.deadline_ms = None
        self._epoch_start_offset = self.log.end_offset
        self.voter_end_offsets = dict.fromkeys(self.voters, -1)
        granting = tuple(sorted(self._granted))
        ready.append.append(LeaderChange(self.node_id, self.epoch, self.voters, granting))
        announce = BeginQuorumEpoch(self.node_id, self.epoch)
        ready.send.extend(Send(voter, announce) for voter in self.voters if voter != self.node_id)

    def _become_follower(self, leader_id: int, epoch: int, ready: Ready, now_ms: int) -> None:
        self._move(Role.FOLLOWER)
        voted = self.state.voted_id if epoch == self.epoch else NO_VOTE
        self._persist(ElectionState(epoch, leader_id, voted), ready)
        self.deadline_ms = now_ms + self.fetch_timeout_ms

    def _become_unattached(self, epoch: int, ready: Ready, now_ms: int) -> None:
        self._move(Role.UNATTACHED)
        self._persist(ElectionState(epoch), ready)
        self.deadline_ms = now_ms + self._election_backoff_ms()

    def _move(self, role: Role) -> None:
        assert role in TRANSITIONS[self.role], f"illegal move {self.role} -> {role}"
        self.role = role

    def _persist(self, state: ElectionState, ready: Ready) -> None:
        assert state.epoch >= self.state.epoch, "an epoch never falls"
        self.state = state
        ready.persist = state

    def _advance_high_watermark(self, ready: Ready) -> None:
        reached = committed_offset(list(self.voter_end_offsets.values()))
        if reached > self._epoch_start_offset and reached > self.high_watermark:
            self.high_watermark = ready.high_watermark = reached

    def _election_backoff_ms(self) -> int:
        """Between one and two election timeouts, so that two candidates rarely collide twice."""
        return self.election_timeout_ms + self._random.randrange(self.election_timeout_ms)


_HANDLERS: Mapping[type, Callable[[RaftCore, Any, Ready, int], None]] = {
    Start: RaftCore._on_start,
    Tick: RaftCore._on_tick,
    Flushed: RaftCore._on_flushed,
    VoteRequest: RaftCore._on_vote_request,
    VoteResponse: RaftCore._on_vote_response,
    BeginQuorumEpoch: RaftCore._on_begin_quorum_epoch,
    ReplicaFetch: RaftCore._on_replica_fetch,
    FetchSucceeded: RaftCore._on_fetch_succeeded,
    Resign: RaftCore._on_resign,
}
