"""The quorum's decisions: who leads, which epoch, what is committed, who may fetch what. PURE.

What: one replica's state machine of Kafka's Raft variant (KIP-595, 853, 996), voter or observer.
`step(event, now_ms)` takes one event and answers a `Ready`: what to persist, append, truncate,
send and answer, and the new high watermark. Words: `events`.
Why: no socket, clock, file or randomness of its own, so that a simulator may drive many of them.
How: replication is pull. Followers fetch from the leader, so the leader learns a voter's end offset
from its next fetch (`leader_state`). The leader counts *itself* only after `Flushed` told it that
its log is on disk (Apache Kafka counts before the flush; a single voter then exposes records a
power cut takes back). An offset is committed when a majority of voters hold it and it lies above
the leader's first record in its epoch, the LeaderChange record (Raft's rule for entries of older
epochs).
Here is what a quorum of one voter needs: state, log, commit, becoming leader. The dealings with
other replicas are `peers`, loaded when there are some: with `answers` (what we are asked),
`election` and `fetcher` (what we ask), `voter_changes`.

Roles and the moves between them are values of `roles`: what ends with a role is its own (timeout,
what the leader said, what a leader knows). Moves to the same epoch never clear a
vote; a move to a higher epoch always does. Only a sole voter goes to CANDIDATE without a pre-vote.
An observer is UNATTACHED or FOLLOWER (RESIGNED when it was removed while it led).

Pre-vote (K-5): given without any promise to whoever's log is as long as ours, unless we lead or
have fetched from a leader in this epoch: an isolated voter that returns disturbs nobody. A leader's
farewell (EndQuorumEpoch) lifts that refusal.

Duties of the caller, in this order, for each Ready:
1. `persist` is written, fsynced, renamed and its directory fsynced before anything else happens.
2. `append` goes to the log as a control batch in the leader's epoch, a voter set is stepped as
   `VotersAppended` at once, and after the fsync the caller steps `Flushed(position)`. The same
   holds for each batch of records it appends as leader.
3. `send` leaves; each ends in one `Answered`. `reply`, `serve`, `change_reply` are given.
4. `high_watermark` is told to whoever waits.
5. Before any other event: `truncate` -> `Truncated`; `accept` -> `VotersAppended` for each set in
   it, then `Fetched`; `accept_snapshot` -> `SnapshotPart` or `SnapshotLoaded`. `begin_snapshot`
   comes before `send`.
Steps must come from one thread. Call `step(Tick(), now_ms)` no later than `deadline_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from replication.raft.leader_state import LeaderState
from replication.raft.own_events import (
    NO_LEADER,
    ElectionState,
    Flushed,
    LeaderChange,
    LogPosition,
    Peer,
    RaftConfig,
    Ready,
    Resign,
    Shutdown,
    Start,
    Tick,
    VotersAppended,
)
from replication.raft.roles import (
    TRANSITIONS,
    Candidate,
    EpochState,
    Follower,
    Leader,
    Resigned,
    Role,
    Unattached,
)
from replication.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet

if TYPE_CHECKING:
    from replication.raft.election import Election
    from replication.raft.events import Event
    from replication.raft.fetcher import Fetcher
    from replication.raft.own_events import LogView
    from replication.raft.voter_changes import VoterChanges


class Random(Protocol):
    """What is asked of `random.Random`; the caller seeds it."""

    def randrange(self, stop: int, /) -> int: ...


class RaftCore:
    """One replica of the quorum's log. Owner: the raft driver's thread.

    Invariants: `state.epoch` never falls; in one epoch at most one vote and one leader are known;
    `high_watermark` never falls and never exceeds this replica's log end.
    """

    __slots__ = (
        "_election",
        "_fetcher",
        "_random",
        "bootstrap",
        "can_vote",
        "cluster_id",
        "config",
        "current",
        "deadline_ms",
        "endpoints",
        "high_watermark",
        "history",
        "is_stopping",
        "key",
        "leader_endpoints",
        "led_until_stop",
        "listener_name",
        "log",
        "log_view",
        "node_id",
        "state",
    )

    def __init__(
        self,
        key: ReplicaKey,
        history: VoterHistory,
        random: Random,
        log_view: LogView,
        *,
        config: RaftConfig | None = None,
        cluster_id: str | None = None,
        endpoints: tuple[Endpoint, ...] = (),
        listener_name: str = "CONTROLLER",
        bootstrap: Sequence[tuple[str, int]] = (),
        can_vote: bool = True,
    ) -> None:
        """`endpoints`: our own. `listener_name`: which endpoint of others is dialled. `bootstrap`:
        addresses to ask who leads, besides the voters'. `can_vote`: False for a mere broker.
        """
        self.key = key
        self.node_id = key.node_id
        self.history = history
        self.log_view = log_view
        self.config = config or RaftConfig()
        self.cluster_id = cluster_id
        self.endpoints = endpoints
        self.listener_name = listener_name
        self.bootstrap = tuple(
            Peer(-2 - index, host, port) for index, (host, port) in enumerate(bootstrap)
        )
        self.can_vote = can_vote
        self.current: EpochState = Unattached()
        self.state = ElectionState()
        self.log = LogPosition(0, 0)
        self.high_watermark = -1
        self.deadline_ms: int | None = None
        self.is_stopping = False
        self.led_until_stop = False
        self.leader_endpoints: tuple[Endpoint, ...] = ()
        """As the leader told them, when it is another."""
        self._random = random
        self._election: Election | None = None
        self._fetcher: Fetcher | None = None

    # --- what is known --------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def leader_id(self) -> int:
        return self.state.leader_id

    @property
    def role(self) -> Role:
        return self.current.role

    @property
    def leader(self) -> LeaderState | None:
        """What we know as leader; None when we do not lead."""
        current = self.current
        return current.state if isinstance(current, Leader) else None

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def voters(self) -> VoterSet:
        """The voter set that counts now: the last one in our log, committed or not."""
        return self.history.latest

    @property
    def is_voter(self) -> bool:
        return self.can_vote and self.voters.is_voter(self.key)

    @property
    def is_only_voter(self) -> bool:
        return len(self.voters) == 1 and self.is_voter

    @property
    def is_caught_up(self) -> bool:
        """Is all that the leader has committed, as far as we know, below our high watermark."""
        if self.is_leader:
            return self.has_committed_in_epoch
        current = self.current
        return (
            isinstance(current, Follower)
            and 0 <= current.leader_high_watermark <= self.high_watermark
        )

    @property
    def has_committed_in_epoch(self) -> bool:
        leader = self.leader
        return leader is not None and self.high_watermark > leader.epoch_start_offset

    @property
    def told_high_watermark(self) -> int:
        """What followers are told: nothing before we committed in our own epoch, so that who waits
        to be caught up waits for all that the leaders before us acknowledged.
        """
        return self.high_watermark if self.has_committed_in_epoch else -1

    @property
    def election(self) -> Election:
        if self._election is None:
            from replication.raft.election import Election

            self._election = Election(self)
        return self._election

    @property
    def fetcher(self) -> Fetcher:
        if self._fetcher is None:
            from replication.raft.fetcher import Fetcher

            self._fetcher = Fetcher(self)
        return self._fetcher

    @property
    def changes(self) -> VoterChanges:
        """Changes of the voter set under this leadership."""
        current = self.current
        assert isinstance(current, Leader), "only a leader changes voters"
        if current.changes is None:
            from replication.raft.voter_changes import VoterChanges

            return current.take(VoterChanges(self))
        return current.changes

    @property
    def _changes_begun(self) -> VoterChanges | None:
        """Those of this leadership, if there were any."""
        return self.current.changes if isinstance(self.current, Leader) else None

    def random_below(self, stop: int) -> int:
        return self._random.randrange(stop)

    def peer_of(self, voter: Voter) -> Peer:
        """Where that voter is dialled."""
        endpoint = voter.endpoint(self.listener_name)
        if endpoint is None:
            return Peer(voter.node_id, "", 0)
        return Peer(voter.node_id, endpoint.host, endpoint.port)

    def other_voters(self) -> list[Voter]:
        return [voter for voter in self.voters if voter.node_id != self.node_id]

    def endpoints_of_leader(self) -> tuple[Endpoint, ...]:
        """Where the leader is, as it said itself, or as the voter set says."""
        if self.leader_id == NO_LEADER:
            return ()
        if self.leader_id == self.node_id and self.endpoints:
            return self.endpoints
        if self.leader_endpoints:
            return self.leader_endpoints
        voter = self.voters.get(self.leader_id)
        return voter.endpoints if voter else ()

    def leader_peer(self) -> Peer | None:
        """The other node that leads; None when nobody is known to, or not where it is."""
        if self.leader_id in (NO_LEADER, self.node_id):
            return None
        endpoints = self.endpoints_of_leader()
        if endpoints or self.leader_id in self.voters:
            return self.peer_of(Voter(self.leader_id, endpoints=endpoints))
        return None

    # --- one step -------------------------------------------------------------------------------

    def step(self, event: Event, now_ms: int) -> Ready:
        """Take one event; return what to do. See the module docstring for the order."""
        ready = Ready()
        handler = _HANDLERS.get(type(event)) or _with_peers().HANDLERS[type(event)]
        handler(self, event, ready, now_ms)
        leader = self.leader
        if leader is not None:
            self._poll_leader(leader, ready, now_ms)
        else:
            _with_peers().POLLS[self.role](self, ready, now_ms)
        self.deadline_ms = self._next_deadline()
        return ready

    def _next_deadline(self) -> int | None:
        deadlines = [self.current.timeout_ms]
        leader, changes = self.leader, self._changes_begun
        if leader is not None:
            deadlines.append(leader.quorum_deadline_ms)
            deadlines.append(leader.announce_ms)
            if changes is not None:
                deadlines.append(changes.deadline_ms)
        else:
            deadlines.append(self.election.retry_ms)
            if self.role not in (Role.PROSPECTIVE, Role.CANDIDATE) and not self.is_only_voter:
                deadlines.append(self.fetcher.deadline_ms)
        return min((ms for ms in deadlines if ms is not None), default=None)

    def _on_start(self, event: Start, ready: Ready, now_ms: int) -> None:
        """Resume in the stored epoch; never as its leader: a restart proves nothing was lost.

        A voter that led the stored epoch may not lead it again (it may have told others of records
        it never flushed), so it starts as RESIGNED and goes to a new epoch. The first timeouts are
        short: nobody was fetched from yet, and a pre-vote disturbs no leader that lives.
        """
        stored = event.state
        self.log = event.log
        if event.log.epoch > stored.epoch:
            # The vote file is older than the log (lost or restored): the log's epoch was seen.
            stored = ElectionState(epoch=event.log.epoch)
            ready.persist = stored
        self.state = stored
        if self.is_only_voter:
            if stored.leader_id == self.node_id:
                self.current = Resigned()
            self.become_candidate(ready, now_ms)
            return
        short_ms = self.config.election_timeout_ms // 4
        if stored.leader_id == self.node_id:
            self.current = Resigned()
            self.current.wait_until(self.round_timeout(now_ms))
        elif self.leader_peer() is not None:
            self.current = Follower()
            self.wait(now_ms, short_ms + self.random_below(short_ms))
        else:
            self.wait(now_ms, 1 + self.random_below(short_ms))

    def _on_nothing(self, _event: Event, _ready: Ready, _now_ms: int) -> None:
        """Time has passed; the role's poll looks at it."""

    def _on_resign(self, _event: Resign, ready: Ready, now_ms: int) -> None:
        if self.is_leader:
            self.become_resigned(ready, now_ms)

    def _on_shutdown(self, _event: Shutdown, ready: Ready, now_ms: int) -> None:
        self.is_stopping = True
        self.led_until_stop = self.is_leader and not self.is_only_voter
        if self.led_until_stop:
            self.become_resigned(ready, now_ms)

    # --- the log --------------------------------------------------------------------------------

    def _on_flushed(self, event: Flushed, ready: Ready, _now_ms: int) -> None:
        self.log_ends(event.log)
        leader = self.leader
        if leader is not None:
            leader.flushed(event.log.end_offset)
            self._commit(ready)

    def log_ends(self, log: LogPosition) -> None:
        """Our log is durable up to there, and no longer."""
        assert log.end_offset >= self.high_watermark, (
            f"the log ends at {log.end_offset}, below the high watermark {self.high_watermark}"
        )
        self.log = log

    def replica_fetched(self, replica: ReplicaKey, offset: int, ready: Ready, now_ms: int) -> None:
        """A replica holds all below `offset`; we lead."""
        leader = self.leader
        assert leader is not None, "only a leader is fetched from"
        if leader.fetched(replica, offset, self.log.end_offset, now_ms):
            self._commit(ready)

    def _commit(self, ready: Ready) -> None:
        """K-3: what a majority holds, once it includes a record of our own epoch."""
        leader = self.leader
        assert leader is not None, "only a leader commits"
        reached = leader.committed()
        if reached > leader.epoch_start_offset and reached > self.high_watermark:
            self.high_watermark = ready.high_watermark = reached
            if self._changes_begun is not None:
                self._changes_begun.committed(reached, ready)

    def _on_voters_appended(self, event: VotersAppended, ready: Ready, now_ms: int) -> None:
        was_voter = self.is_voter
        self.history.add(event.offset, event.voters)
        leader = self.leader
        if leader is None:
            self.voter_or_observer(was_voter, now_ms)
            return
        leader.change_voters(event.voters, self.log.end_offset, now_ms)
        if self._changes_begun is not None:
            self._changes_begun.appended(event.offset, ready)

    def voter_or_observer(self, was_voter: bool, now_ms: int) -> None:
        """Our log says that we vote, or vote no longer."""
        if self.is_voter != was_voter and self.role in (Role.FOLLOWER, Role.UNATTACHED):
            self.wait_for_leader(now_ms)

    def follow_high_watermark(self, high_watermark: int, ready: Ready) -> None:
        """The leader said so; believed as far as our log goes."""
        if isinstance(self.current, Follower):
            self.current.hear_high_watermark(high_watermark)
        reached = min(high_watermark, self.log.end_offset)
        if reached > self.high_watermark:
            self.high_watermark = ready.high_watermark = reached

    # --- moves ----------------------------------------------------------------------------------

    def wait(self, now_ms: int, timeout_ms: int) -> None:
        """Stand for election after that time; observers never do."""
        self.current.wait_until(now_ms + timeout_ms if self.is_voter else None)

    def wait_for_leader(self, now_ms: int) -> None:
        """Stand after the fetch timeout and a bit: parked fetches are answered all at once, and
        followers that stood all at once would split the votes.
        """
        jitter_ms = self.random_below(max(self.config.election_timeout_ms // 4, 1))
        self.wait(now_ms, self.config.fetch_timeout_ms + jitter_ms)

    def wait_for_election(self, now_ms: int) -> None:
        """Stand after a round's time, as whoever gave its vote away or knows no leader."""
        self.current.wait_until(self.round_timeout(now_ms) if self.is_voter else None)

    def round_timeout(self, now_ms: int) -> int:
        """Between one and two election timeouts, so that two candidates rarely collide twice."""
        base = self.config.election_timeout_ms
        return now_ms + base + self.random_below(base)

    def become_candidate(self, ready: Ready, now_ms: int) -> None:
        self.become(Candidate())
        self.save(ElectionState(self.epoch + 1, NO_LEADER, *self.key), ready)
        if self.is_only_voter:
            self.become_leader(self.voters.keys, ready, now_ms)
        else:
            from replication.raft.moves import ask_for_votes

            ask_for_votes(self, False, ready, now_ms)

    def become_leader(self, granting: tuple[ReplicaKey, ...], ready: Ready, now_ms: int) -> None:
        """`granting`: the voters whose votes made us leader."""
        voters, timeout_ms = self.voters, self.config.fetch_timeout_ms
        leader = LeaderState(self.key, self.epoch, self.log.end_offset, voters, timeout_ms, now_ms)
        self.become(Leader(leader))
        self.save(ElectionState(self.epoch, self.node_id), ready)
        to_write = self._voters_to_write()
        change = LeaderChange(self.node_id, self.epoch, voters.keys, granting, to_write)
        ready.append.append(change)

    def _voters_to_write(self) -> VoterSet | None:
        """With dynamic voters, the set our log must name: it never did (only the format-time
        checkpoint, which nobody fetches), or our own endpoints are others now.
        """
        voters = self.voters
        mine = voters.get(self.node_id)
        if voters.kraft_version < 1 or mine is None:
            return None
        if self.endpoints and mine.endpoints != self.endpoints:
            return voters.plus(mine._replace(endpoints=self.endpoints))
        return voters if self.history.latest_offset < 0 else None

    def become_resigned(self, ready: Ready, now_ms: int) -> None:
        leader = self.leader
        assert leader is not None, "only a leader resigns"
        successors = leader.successors()
        self.become(Resigned(), ready)
        self.current.wait_until(self.round_timeout(now_ms))
        if successors:
            _with_peers().say_farewell(self, successors, ready)

    def become(self, role: EpochState, ready: Ready | None = None) -> None:
        """The one place where roles change. `ready`: for moves that a leader may make; whoever
        waits for a change of voters is then told that it leads no longer.
        """
        before = self.current
        assert role.role in TRANSITIONS[before.role], f"illegal move {before.role} -> {role.role}"
        if isinstance(before, Leader) and before.changes is not None:
            assert ready is not None, "who waits for a leader must be told that it is none"
            before.changes.abandon(ready)
        self.current = role

    def save(
        self, state: ElectionState, ready: Ready, leader_endpoints: tuple[Endpoint, ...] = ()
    ) -> None:
        """Another epoch, vote or leader; `leader_endpoints`: as that leader told them."""
        assert state.epoch >= self.state.epoch, "an epoch never falls"
        self.state = state
        self.leader_endpoints = leader_endpoints
        ready.persist = state

    def leader_is_at(self, endpoints: tuple[Endpoint, ...]) -> None:
        """The leader that we know said where it is."""
        self.leader_endpoints = endpoints or self.leader_endpoints

    # --- time -----------------------------------------------------------------------------------

    def _poll_leader(self, leader: LeaderState, ready: Ready, now_ms: int) -> None:
        if self._changes_begun is not None:
            self._changes_begun.expire(ready, now_ms)
        deserted = leader.quorum_deadline_ms is not None and now_ms >= leader.quorum_deadline_ms
        removed = not leader.is_voter and self.history.latest_offset < self.high_watermark
        if deserted or removed:
            self.become_resigned(ready, now_ms)
        elif leader.announce_ms is not None and now_ms >= leader.announce_ms:
            _with_peers().announce(self, leader, ready, now_ms)


_HANDLERS: Mapping[type, Callable[[RaftCore, Any, Ready, int], None]] = {
    Start: RaftCore._on_start,
    Tick: RaftCore._on_nothing,
    Resign: RaftCore._on_resign,
    Shutdown: RaftCore._on_shutdown,
    Flushed: RaftCore._on_flushed,
    VotersAppended: RaftCore._on_voters_appended,
}


def _with_peers() -> Any:
    """The dealings with other replicas; a single voter never loads them."""
    from replication.raft import peers

    return peers
