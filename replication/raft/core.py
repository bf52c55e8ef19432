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
epochs). What a replica asks, and when, is `fetcher`'s; changes of voters are `voter_changes`'s.

Roles and moves (a move not listed is our bug and raises):
    UNATTACHED  -> UNATTACHED, PROSPECTIVE, CANDIDATE, FOLLOWER  knows the epoch, no leader
    PROSPECTIVE -> UNATTACHED, CANDIDATE, FOLLOWER               asks if it would get votes
    CANDIDATE   -> UNATTACHED, PROSPECTIVE, LEADER, FOLLOWER     asks for votes in a new epoch
    LEADER      -> UNATTACHED, FOLLOWER, RESIGNED                appends and commits
    FOLLOWER    -> UNATTACHED, PROSPECTIVE, FOLLOWER             fetches from the leader
    RESIGNED    -> UNATTACHED, CANDIDATE, FOLLOWER               led this epoch, will not again
UNATTACHED -> UNATTACHED: a vote given, or a higher epoch. Moves to the same epoch never clear a
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
from enum import Enum
from typing import Any, Protocol

from replication.raft.answers import (
    LogView,
    answer_begin_quorum_epoch,
    answer_end_quorum_epoch,
    answer_fetch,
    answer_fetch_snapshot,
    answer_vote,
    answer_voter_change,
)
from replication.raft.election import Election
from replication.raft.events import (
    NO_LEADER,
    AddVoter,
    Answered,
    BeginQuorumEpoch,
    ElectionState,
    EndQuorumEpoch,
    Event,
    Fetch,
    Fetched,
    FetchSnapshot,
    Flushed,
    LeaderChange,
    LogPosition,
    Outgoing,
    Peer,
    ProbeVersions,
    RaftConfig,
    Ready,
    RemoveVoter,
    Reply,
    Resign,
    Send,
    Shutdown,
    SnapshotLoaded,
    SnapshotPart,
    Start,
    Tick,
    Truncated,
    UpdateVoter,
    VersionsReply,
    Vote,
    VoteReply,
    VotersAppended,
)
from replication.raft.fetcher import Fetcher
from replication.raft.leader_state import LeaderState
from replication.raft.voter_changes import VoterChanges
from replication.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet
from wire.errors import ErrorCode


class Random(Protocol):
    """What is asked of `random.Random`; the caller seeds it."""

    def randrange(self, stop: int, /) -> int: ...


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


class RaftCore:
    """One replica of the quorum's log. Owner: the raft driver's thread.

    Invariants: `state.epoch` never falls; in one epoch at most one vote and one leader are known;
    `high_watermark` never falls and never exceeds this replica's log end.
    """

    __slots__ = (
        "_random",
        "_timeout_ms",
        "_update_ms",
        "bootstrap",
        "can_vote",
        "changes",
        "cluster_id",
        "config",
        "deadline_ms",
        "election",
        "endpoints",
        "fetcher",
        "high_watermark",
        "history",
        "is_stopping",
        "key",
        "leader",
        "leader_endpoints",
        "leader_high_watermark",
        "led_until_stop",
        "listener_name",
        "log",
        "log_view",
        "node_id",
        "role",
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
        self.role = Role.UNATTACHED
        self.state = ElectionState()
        self.log = LogPosition(0, 0)
        self.high_watermark = -1
        self.deadline_ms: int | None = None
        self.leader_high_watermark = -1
        """What the present leader said last; not bounded by how far our log goes."""
        self.is_stopping = False
        self.led_until_stop = False
        self.leader: LeaderState | None = None
        """While we lead, `changes` too."""
        self.changes: VoterChanges | None = None
        self.leader_endpoints: tuple[Endpoint, ...] = ()
        """As the leader told them, when it is another."""
        self.election = Election(self)
        self.fetcher = Fetcher(self)
        self._random = random
        self._timeout_ms: int | None = None
        self._update_ms = 0

    # --- what is known --------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def leader_id(self) -> int:
        return self.state.leader_id

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
        return 0 <= self.leader_high_watermark <= self.high_watermark

    @property
    def has_committed_in_epoch(self) -> bool:
        return self.leader is not None and self.high_watermark > self.leader.epoch_start_offset

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
        _HANDLERS[type(event)](self, event, ready, now_ms)
        _POLLS[self.role](self, ready, now_ms)
        self.deadline_ms = self._next_deadline()
        return ready

    def _next_deadline(self) -> int | None:
        deadlines = [self._timeout_ms, self.election.retry_ms]
        if self.leader is not None and self.changes is not None:
            deadlines.append(self.leader.quorum_deadline_ms)
            deadlines.append(self.leader.announce_ms)
            deadlines.append(self.changes.deadline_ms)
        elif self.role in (Role.FOLLOWER, Role.UNATTACHED):
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
                self.role = Role.RESIGNED
            self._become_candidate(ready, now_ms)
            return
        short_ms = self.config.election_timeout_ms // 4
        if stored.leader_id == self.node_id:
            self.role = Role.RESIGNED
            self._timeout_ms = self.election.timeout_ms(now_ms)
        elif self.leader_peer() is not None:
            self.role = Role.FOLLOWER
            self._wait(now_ms, short_ms + self.random_below(short_ms))
        else:
            self._wait(now_ms, 1 + self.random_below(short_ms))

    def _on_nothing(self, _event: Event, _ready: Ready, _now_ms: int) -> None:
        """Time has passed; the role's poll looks at it."""

    def _on_resign(self, _event: Resign, ready: Ready, now_ms: int) -> None:
        if self.is_leader:
            self._become_resigned(ready, now_ms)

    def _on_shutdown(self, _event: Shutdown, ready: Ready, now_ms: int) -> None:
        self.is_stopping = True
        self.led_until_stop = self.is_leader and not self.is_only_voter
        if self.led_until_stop:
            self._become_resigned(ready, now_ms)

    # --- the log --------------------------------------------------------------------------------

    def _on_flushed(self, event: Flushed, ready: Ready, _now_ms: int) -> None:
        self.log = event.log
        if self.leader is not None:
            self.leader.flushed(event.log.end_offset)
            self._commit(ready)

    def replica_fetched(self, replica: ReplicaKey, offset: int, ready: Ready, now_ms: int) -> None:
        """A replica holds all below `offset`; we lead."""
        assert self.leader is not None
        if self.leader.fetched(replica, offset, self.log.end_offset, now_ms):
            self._commit(ready)

    def _commit(self, ready: Ready) -> None:
        """K-3: what a majority holds, once it includes a record of our own epoch."""
        leader, changes = self.leader, self.changes
        assert leader is not None, "only a leader commits"
        assert changes is not None
        reached = leader.committed()
        if reached > leader.epoch_start_offset and reached > self.high_watermark:
            self.high_watermark = ready.high_watermark = reached
            changes.committed(reached, ready)

    def _on_voters_appended(self, event: VotersAppended, ready: Ready, now_ms: int) -> None:
        was_voter = self.is_voter
        self.history.add(event.offset, event.voters)
        if self.leader is not None and self.changes is not None:
            self.leader.change_voters(event.voters, self.log.end_offset, now_ms)
            self.changes.appended(event.offset, ready)
        else:
            self._voter_or_observer(was_voter, now_ms)

    def _on_truncated(self, event: Truncated, _ready: Ready, now_ms: int) -> None:
        was_voter = self.is_voter
        self.fetcher.taken(now_ms, True)
        self.log = event.log
        self.history.truncate_to(event.log.end_offset)
        self._voter_or_observer(was_voter, now_ms)

    def _on_fetched(self, event: Fetched, ready: Ready, now_ms: int) -> None:
        self.fetcher.taken(now_ms, event.log != self.log)
        self.log = event.log
        self.follow_high_watermark(event.high_watermark, ready)

    def _on_snapshot_part(self, event: SnapshotPart, _ready: Ready, _now_ms: int) -> None:
        self.fetcher.snapshot_grew(event.position)

    def _on_snapshot_loaded(self, event: SnapshotLoaded, ready: Ready, now_ms: int) -> None:
        was_voter = self.is_voter
        self.fetcher.snapshot_grew(None)
        self.log = event.log
        self.history.restart(event.log.end_offset, event.voters)
        self._voter_or_observer(was_voter, now_ms)
        self.follow_high_watermark(event.log.end_offset, ready)

    def _voter_or_observer(self, was_voter: bool, now_ms: int) -> None:
        """Our log says that we vote, or vote no longer."""
        if self.is_voter != was_voter and self.role in (Role.FOLLOWER, Role.UNATTACHED):
            self._wait(now_ms, self.config.fetch_timeout_ms)

    def follow_high_watermark(self, high_watermark: int, ready: Ready) -> None:
        """The leader said so; believed as far as our log goes."""
        self.leader_high_watermark = max(high_watermark, self.leader_high_watermark)
        reached = min(high_watermark, self.log.end_offset)
        if reached > self.high_watermark:
            self.high_watermark = ready.high_watermark = reached

    # --- answers --------------------------------------------------------------------------------

    def _on_answered(self, event: Answered, ready: Ready, now_ms: int) -> None:
        request, reply = event.request, event.reply
        if isinstance(request, ProbeVersions):
            if self.changes is not None:
                versions = reply if isinstance(reply, VersionsReply) else None
                self.changes.probed(event.peer.node_id, versions, ready, now_ms)
            return
        useful = reply is not None and self._learn(reply, ready, now_ms)
        if isinstance(request, Vote):
            self._vote_answered(event.peer.node_id, request, reply, useful, ready, now_ms)
        elif isinstance(request, EndQuorumEpoch):
            if self.role is Role.RESIGNED:
                said = None if reply is None else True
                self.election.answered(event.peer.node_id, said, now_ms)
        elif isinstance(request, (Fetch, FetchSnapshot)):
            self.fetcher.answered(event.peer, request, reply, useful, ready, now_ms)

    def _learn(self, reply: Reply, ready: Ready, now_ms: int) -> bool:
        """Take from a reply who leads which epoch; True when the reply itself is of use."""
        if isinstance(reply, VersionsReply) or reply.epoch < self.epoch:
            return False
        is_newer = reply.epoch > self.epoch
        if reply.leader_id not in (NO_LEADER, self.node_id):
            self.leader_is(reply.leader_id, reply.epoch, reply.leader_endpoints, ready, now_ms)
        elif is_newer:
            self.become_unattached(reply.epoch, ready, now_ms)
        return not is_newer and reply.error is ErrorCode.NONE

    def _vote_answered(
        self,
        node_id: int,
        request: Vote,
        reply: Reply | None,
        useful: bool,
        ready: Ready,
        now_ms: int,
    ) -> None:
        asking = Role.PROSPECTIVE if request.pre_vote else Role.CANDIDATE
        if self.role is not asking or request.epoch != self.epoch:
            return
        election = self.election
        said = useful and reply.granted if isinstance(reply, VoteReply) else None
        election.answered(node_id, said, now_ms)
        if election.is_won and not self.is_stopping:
            if self.role is Role.PROSPECTIVE:
                self._become_candidate(ready, now_ms)
            else:
                self._become_leader(ready, now_ms)
        elif election.is_lost and not election.is_backing_off:
            self._election_lost(now_ms)

    # --- moves ----------------------------------------------------------------------------------

    def leader_is(
        self,
        leader_id: int,
        epoch: int,
        endpoints: tuple[Endpoint, ...],
        ready: Ready,
        now_ms: int,
    ) -> None:
        """Somebody says that `leader_id`, another node, leads `epoch`, which is not below ours."""
        if epoch == self.epoch and self.leader_id != NO_LEADER:
            assert leader_id == self.leader_id, (
                f"two leaders in epoch {epoch}: {self.leader_id}, {leader_id}"
            )
            if endpoints:
                self.leader_endpoints = endpoints
            if self.role is Role.UNATTACHED and self.leader_peer() is not None:
                self._follow(now_ms)
            return
        self.leader_endpoints = endpoints
        voted = self.state.voted_id, self.state.voted_directory_id
        self._stop_leading(ready)
        self._persist(
            ElectionState(epoch, leader_id, *(voted if epoch == self.epoch else ())), ready
        )
        self.election.rounds = 0
        self._follow(now_ms)

    def _follow(self, now_ms: int) -> None:
        """Fetch from the leader we know; ask around where it is if nobody said that."""
        known = self.leader_peer() is not None
        self._move(Role.FOLLOWER if known else Role.UNATTACHED)
        self.leader_high_watermark = -1
        self.election.end()
        self.fetcher.restart(now_ms)
        self._wait(now_ms, self.config.fetch_timeout_ms)

    def _wait(self, now_ms: int, timeout_ms: int) -> None:
        """Stand for election after that time; observers never do."""
        self._timeout_ms = now_ms + timeout_ms if self.is_voter else None

    def _wait_for_election(self, now_ms: int) -> None:
        self._timeout_ms = self.election.timeout_ms(now_ms) if self.is_voter else None

    def fetch_succeeded(self, now_ms: int) -> None:
        """The leader answered us: it lives."""
        self._wait(now_ms, self.config.fetch_timeout_ms)

    def leader_left(self, wait_ms: int, now_ms: int) -> None:
        """The leader we follow resigns; we stand after `wait_ms`."""
        if self.role is Role.FOLLOWER:
            self.fetcher.leader_left(now_ms)
            self._wait(now_ms, wait_ms)

    def become_unattached(self, epoch: int, ready: Ready, now_ms: int) -> None:
        """A higher epoch, whose leader is not known. What was left of a timeout goes on, so that
        a voter that cannot win does not keep those that can from standing.
        """
        left_ms = self._timeout_ms
        self._stop_leading(ready)
        self._move(Role.UNATTACHED)
        self._persist(ElectionState(epoch), ready)
        self.leader_endpoints = ()
        self.election.end()
        self.fetcher.restart(now_ms)
        self._wait_for_election(now_ms)
        if left_ms is not None and self._timeout_ms is not None:
            self._timeout_ms = left_ms

    def would_grant(self, log: LogPosition) -> bool:
        """K-5: would a candidate whose log ends like this get our vote, were there an election."""
        refuses = self.is_leader or (self.role is Role.FOLLOWER and self.fetcher.has_fetched)
        return not refuses and log >= self.log

    def vote_for(self, candidate: ReplicaKey, ready: Ready, now_ms: int) -> None:
        """Give our vote of this epoch."""
        self._move(Role.UNATTACHED)
        self.election.end()
        self._persist(ElectionState(self.epoch, NO_LEADER, *candidate), ready)
        self._wait_for_election(now_ms)

    def _become_prospective(self, ready: Ready, now_ms: int) -> None:
        if self.is_only_voter:
            self._become_candidate(ready, now_ms)
            return
        self._move(Role.PROSPECTIVE)
        self.fetcher.restart(now_ms)
        self._begin_election(True, ready, now_ms)

    def _become_candidate(self, ready: Ready, now_ms: int) -> None:
        self._move(Role.CANDIDATE)
        self._persist(ElectionState(self.epoch + 1, NO_LEADER, *self.key), ready)
        self.leader_endpoints = ()
        self._begin_election(False, ready, now_ms)
        if self.election.is_won:
            self._become_leader(ready, now_ms)

    def _begin_election(self, pre_vote: bool, ready: Ready, now_ms: int) -> None:
        key, epoch, log, cluster_id = self.key, self.epoch, self.log, self.cluster_id

        def ask(voter: Voter) -> Outgoing:
            return Vote(key, epoch, log, pre_vote, voter.key, cluster_id)

        self.election.begin(ask, ready)
        self._timeout_ms = self.election.timeout_ms(now_ms)

    def _election_lost(self, now_ms: int) -> None:
        """A majority refuses, or the time is up: a candidate waits and asks again, a prospective
        one was told that it is not needed.
        """
        if self.role is Role.CANDIDATE:
            self._timeout_ms = self.election.back_off(now_ms)
        elif self.leader_peer() is not None:
            self._follow(now_ms)
        else:
            self._move(Role.UNATTACHED)
            self.election.end()
            self._wait_for_election(now_ms)

    def _become_leader(self, ready: Ready, now_ms: int) -> None:
        self._move(Role.LEADER)
        self._persist(ElectionState(self.epoch, self.node_id), ready)
        self._timeout_ms = None
        voters = self.voters
        granting = tuple(v.key for v in voters if v.node_id in self.election.granted)
        self.election.end()
        self.election.rounds = 0
        self.leader = LeaderState(
            self.key, self.epoch, self.log.end_offset, voters, self.config.fetch_timeout_ms, now_ms
        )
        self.changes = VoterChanges(self)
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

    def _become_resigned(self, ready: Ready, now_ms: int) -> None:
        assert self.leader is not None
        farewell = EndQuorumEpoch(
            self.node_id, self.epoch, self.leader.successors(), self.endpoints, self.cluster_id
        )
        self._stop_leading(ready)
        self._move(Role.RESIGNED)
        self._timeout_ms = self.election.timeout_ms(now_ms)
        self.election.begin(lambda _voter: farewell, ready)

    def _stop_leading(self, ready: Ready) -> None:
        if self.changes is not None:
            self.changes.abandon(ready)
        self.leader = self.changes = None

    def _move(self, role: Role) -> None:
        assert role in TRANSITIONS[self.role], f"illegal move {self.role} -> {role}"
        self.role = role

    def _persist(self, state: ElectionState, ready: Ready) -> None:
        assert state.epoch >= self.state.epoch, "an epoch never falls"
        self.state = state
        ready.persist = state

    # --- what each role does as time passes -----------------------------------------------------

    def _is_over(self, now_ms: int) -> bool:
        return self._timeout_ms is not None and now_ms >= self._timeout_ms

    def _poll_leader(self, ready: Ready, now_ms: int) -> None:
        leader, changes = self.leader, self.changes
        assert leader is not None
        assert changes is not None
        changes.expire(ready, now_ms)
        deserted = leader.quorum_deadline_ms is not None and now_ms >= leader.quorum_deadline_ms
        removed = not leader.is_voter and self.history.latest_offset < self.high_watermark
        if deserted or removed:
            self._become_resigned(ready, now_ms)
        elif leader.announce_ms is not None and now_ms >= leader.announce_ms:
            for voter in leader.to_announce(now_ms):
                request = BeginQuorumEpoch(
                    self.node_id, self.epoch, self.endpoints, voter.key, self.cluster_id
                )
                ready.send.append(Send(self.peer_of(voter), request))

    def _poll_electing(self, ready: Ready, now_ms: int) -> None:
        if self._is_over(now_ms):
            if self.is_stopping:
                self._timeout_ms = None
            elif self.election.is_backing_off:
                self._become_prospective(ready, now_ms)
            else:
                self._election_lost(now_ms)
        elif self.election.retry_ms is not None and now_ms >= self.election.retry_ms:
            self.election.ask(ready)

    def _poll_waiting(self, ready: Ready, now_ms: int) -> None:
        """UNATTACHED and FOLLOWER."""
        if self._is_over(now_ms):
            self._timeout_ms = None
            if self.is_voter and not self.is_stopping:
                self._become_prospective(ready, now_ms)
            return
        leader = self.leader_peer() if self.role is Role.FOLLOWER else None
        if leader is not None and now_ms >= self._update_ms:
            self._tell_leader_of_us(leader, ready, now_ms)
        self.fetcher.poll(leader, ready, now_ms)

    def _tell_leader_of_us(self, leader: Peer, ready: Ready, now_ms: int) -> None:
        """KIP-853: our endpoints changed while we were down; KIP-1186: we would like to vote."""
        self._update_ms = now_ms + self.config.fetch_timeout_ms
        voters = self.voters
        if voters.kraft_version < 1 or not self.endpoints or not self.can_vote:
            return
        me = Voter(*self.key, self.endpoints)
        known = voters.get(self.node_id)
        request: Outgoing | None = None
        if known is not None and known.key == self.key:
            if known.endpoints != self.endpoints:
                request = UpdateVoter(me, self.epoch, self.cluster_id)
        elif self.config.auto_join and known is not None:
            request = RemoveVoter(known.key, self.cluster_id)
        elif self.config.auto_join:
            timeout_ms = self.config.request_timeout_ms
            request = AddVoter(me, timeout_ms, False, self.cluster_id)
        if request is not None:
            ready.send.append(Send(leader, request))

    def _poll_resigned(self, ready: Ready, now_ms: int) -> None:
        if self._is_over(now_ms):
            self._timeout_ms = None
            if self.is_only_voter and not self.is_stopping:
                self._become_candidate(ready, now_ms)
            else:
                # In the epoch that we led we may neither lead nor vote.
                self.become_unattached(self.epoch + 1, ready, now_ms)
        elif self.election.retry_ms is not None and now_ms >= self.election.retry_ms:
            self.election.ask(ready)


_HANDLERS: Mapping[type, Callable[[RaftCore, Any, Ready, int], None]] = {
    Start: RaftCore._on_start,
    Tick: RaftCore._on_nothing,
    Resign: RaftCore._on_resign,
    Shutdown: RaftCore._on_shutdown,
    Flushed: RaftCore._on_flushed,
    VotersAppended: RaftCore._on_voters_appended,
    Truncated: RaftCore._on_truncated,
    Fetched: RaftCore._on_fetched,
    SnapshotPart: RaftCore._on_snapshot_part,
    SnapshotLoaded: RaftCore._on_snapshot_loaded,
    Answered: RaftCore._on_answered,
    Vote: answer_vote,
    BeginQuorumEpoch: answer_begin_quorum_epoch,
    EndQuorumEpoch: answer_end_quorum_epoch,
    Fetch: answer_fetch,
    FetchSnapshot: answer_fetch_snapshot,
    AddVoter: answer_voter_change,
    RemoveVoter: answer_voter_change,
    UpdateVoter: answer_voter_change,
}
_POLLS: Mapping[Role, Callable[[RaftCore, Ready, int], None]] = {
    Role.UNATTACHED: RaftCore._poll_waiting,
    Role.PROSPECTIVE: RaftCore._poll_electing,
    Role.CANDIDATE: RaftCore._poll_electing,
    Role.LEADER: RaftCore._poll_leader,
    Role.FOLLOWER: RaftCore._poll_waiting,
    Role.RESIGNED: RaftCore._poll_resigned,
}
