"""What one replica of the quorum knows, and its moves from role to role. PURE.

What: epoch, vote and leader (`ElectionState`), the role it has in that epoch (`roles`), where its
log ends and what of it is committed, the voters; and all moves from role to role.
Why apart from `core`: what answers, asks and moves needs this, and no step of its own.
Kafka: QuorumState, which knows the legal moves, with what KafkaRaftClient keeps beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from replication.raft.leader_state import LeaderState
from replication.raft.own_events import (
    NO_LEADER,
    ElectionState,
    LeaderChange,
    LogPosition,
    Peer,
    RaftConfig,
    Ready,
    Start,
)
from replication.raft.roles import (
    TRANSITIONS,
    Candidate,
    EpochState,
    Follower,
    Leader,
    Nominee,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from replication.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet

if TYPE_CHECKING:
    from replication.raft.events import Outgoing
    from replication.raft.own_events import LogView
    from replication.raft.voter_changes import VoterChanges


class Random(Protocol):
    """What is asked of `random.Random`; the caller seeds it."""

    def randrange(self, stop: int, /) -> int: ...


class QuorumState:
    """Owner: the raft driver's thread.

    Invariants: `state.epoch` never falls; in one epoch at most one vote and one leader are known;
    `high_watermark` never falls and never exceeds this replica's log end.
    """

    __slots__ = (
        "_random",
        "bootstrap",
        "can_vote",
        "cluster_id",
        "config",
        "current",
        "endpoints",
        "high_watermark",
        "history",
        "is_started",
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
        self.current: EpochState = Unattached(self)
        self.state = ElectionState()
        self.log = LogPosition(0, 0)
        self.high_watermark = -1
        self.is_started = False
        self.is_stopping = False
        self.led_until_stop = False
        self.leader_endpoints: tuple[Endpoint, ...] = ()
        """As the leader told them, when it is another."""
        self._random = random

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
    def may_stand(self) -> bool:
        """Do we vote, or did we before changes that are not committed, as far as we know.

        Nobody else need have the record that removes us, and then nobody else can be elected
        (Ongaro's thesis on Raft, 4.2.2). In Kafka such a replica does not stand.
        """
        committed = max(self.high_watermark, self.log_view.start_offset)
        sets = self.history.since(committed - 1)
        return self.can_vote and any(voters.is_voter(self.key) for voters in sets)

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
    def changes(self) -> VoterChanges:
        """Changes of the voter set under this leadership."""
        assert isinstance(self.current, Leader), "only a leader changes voters"
        return self.current.changes

    @property
    def changes_begun(self) -> VoterChanges | None:
        """Those of this leadership, if there were any."""
        return self.current.changes_begun if isinstance(self.current, Leader) else None

    def random_below(self, stop: int) -> int:
        """From 0 on; 0 where there is nothing to choose from, as in a part of a short time."""
        return self._random.randrange(max(stop, 1))

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

    def initialize(self, event: Start, ready: Ready, now_ms: int) -> None:
        """Resume in the stored epoch; never as its leader: a restart proves nothing was lost.

        A voter that led the stored epoch may not lead it again (it may have told others of records
        it never flushed), so it starts as RESIGNED and goes to a new epoch. The first timeouts are
        short: nobody was fetched from yet, and a pre-vote disturbs no leader that lives.
        """
        assert not self.is_started, "a replica starts once"
        self.is_started = True
        stored = event.state
        self.log = event.log
        if event.log.epoch > stored.epoch:
            # The vote file is older than the log (lost or restored): the log's epoch was seen.
            stored = ElectionState(epoch=event.log.epoch)
            ready.persist = stored
        self.state = stored
        if self.is_only_voter:
            self.become_prospective(ready, now_ms)
            return
        short_ms = self.config.election_timeout_ms // 4
        if stored.leader_id == self.node_id:
            self.current = Resigned(self)
            self.current.wait_until(self.round_timeout(now_ms))
        elif self.leader_peer() is not None:
            self.current = Follower(self)
            self.wait(now_ms, short_ms + self.random_below(short_ms))
        else:
            self.wait(now_ms, 1 + self.random_below(short_ms))

    # --- the log --------------------------------------------------------------------------------

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
            self.commit(ready)

    def commit(self, ready: Ready) -> None:
        """K-3: what a majority holds, once it includes a record of our own epoch."""
        leader = self.leader
        assert leader is not None, "only a leader commits"
        reached = leader.committed()
        if reached > leader.epoch_start_offset and reached > self.high_watermark:
            self.high_watermark = ready.high_watermark = reached
            if self.changes_begun is not None:
                self.changes_begun.committed(reached, ready)

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
        self.current.wait_until(now_ms + timeout_ms if self.may_stand else None)

    def wait_for_leader(self, now_ms: int) -> None:
        """Stand after the fetch timeout and a bit: parked fetches are answered all at once, and
        followers that stood all at once would split the votes.
        """
        jitter_ms = self.random_below(self.config.election_timeout_ms // 4)
        self.wait(now_ms, self.config.fetch_timeout_ms + jitter_ms)

    def wait_for_election(self, now_ms: int) -> None:
        """Stand after a round's time, as whoever gave its vote away or knows no leader."""
        self.current.wait_until(self.round_timeout(now_ms) if self.may_stand else None)

    def round_timeout(self, now_ms: int) -> int:
        """Between one and two election timeouts, so that two candidates rarely collide twice."""
        base = self.config.election_timeout_ms
        return now_ms + base + self.random_below(base)

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
            self.leader_is_at(endpoints)
            if self.role is Role.UNATTACHED and self.leader_peer() is not None:
                self.follow(ready, now_ms)
            return
        voted = self.state.voted_id, self.state.voted_directory_id
        state = ElectionState(epoch, leader_id, *(voted if epoch == self.epoch else ()))
        self.save(state, ready, endpoints)
        self.follow(ready, now_ms)

    def follow(self, ready: Ready, now_ms: int) -> None:
        """Fetch from the leader we know; ask around where it is if nobody said that."""
        known = self.leader_peer() is not None
        self.become(Follower(self) if known else Unattached(self), ready)
        self.wait_for_leader(now_ms)

    def become_unattached(self, epoch: int, ready: Ready, now_ms: int) -> None:
        """A higher epoch, whose leader is not known. What was left of a timeout goes on, so that
        a voter that cannot win does not keep those that can from standing.
        """
        left_ms = self.current.timeout_ms
        self.become(Unattached(self), ready)
        self.save(ElectionState(epoch), ready)
        self.wait_for_election(now_ms)
        if left_ms is not None and self.current.timeout_ms is not None:
            self.current.wait_until(left_ms)

    def vote_for(self, candidate: ReplicaKey, ready: Ready, now_ms: int) -> None:
        """Give our vote of this epoch."""
        unattached = Unattached(self)
        unattached.fetcher.nobody_leads(now_ms)
        self.become(unattached)
        self.save(ElectionState(self.epoch, NO_LEADER, *candidate), ready)
        self.wait_for_election(now_ms)

    def become_prospective(self, ready: Ready, now_ms: int) -> None:
        """Ask who would vote for us; the only voter need not, whatever it was before: others may
        have been removed while it followed one of them.
        """
        lost = self.current.election.lost if isinstance(self.current, Candidate) else 0
        prospective = Prospective(self, lost)
        self.become(prospective)
        if self.is_only_voter:
            self.become_candidate(ready, now_ms)
        else:
            self._ask_for_votes(prospective, True, ready, now_ms)

    def become_candidate(self, ready: Ready, now_ms: int) -> None:
        """Of a new epoch, with our own vote; the only voter needs no other."""
        lost = self.current.election.lost if isinstance(self.current, Prospective) else 0
        candidate = Candidate(self, lost)
        self.become(candidate)
        self.save(ElectionState(self.epoch + 1, NO_LEADER, *self.key), ready)
        if self.is_only_voter:
            self.become_leader(self.voters.keys, ready, now_ms)
        else:
            self._ask_for_votes(candidate, False, ready, now_ms)

    def _ask_for_votes(self, nominee: Nominee, pre_vote: bool, ready: Ready, now_ms: int) -> None:
        from replication.raft.events import Vote

        key, epoch, log, cluster_id = self.key, self.epoch, self.log, self.cluster_id

        def ask(voter: Voter) -> Outgoing:
            return Vote(key, epoch, log, pre_vote, voter.key, cluster_id)

        nominee.election.begin(ask, ready)
        nominee.wait_until(self.round_timeout(now_ms))

    def election_lost(self, nominee: Nominee, ready: Ready, now_ms: int) -> None:
        """A majority refuses, or the time is up: a candidate waits and asks again, a prospective
        one was told that it is not needed.
        """
        if isinstance(nominee, Candidate):
            nominee.wait_until(nominee.election.back_off(now_ms))
        elif self.leader_peer() is not None:
            self.follow(ready, now_ms)
        else:
            self.become(Unattached(self))
            self.wait_for_election(now_ms)

    def become_leader(self, granting: tuple[ReplicaKey, ...], ready: Ready, now_ms: int) -> None:
        """`granting`: the voters whose votes made us leader."""
        voters, timeout_ms = self.voters, self.config.fetch_timeout_ms
        leader = LeaderState(self.key, self.epoch, self.log.end_offset, voters, timeout_ms, now_ms)
        self.become(Leader(self, leader))
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

    def become(self, role: EpochState, ready: Ready | None = None) -> None:
        """The one place where roles change. `ready`: for moves that a leader may make; whoever
        waits for a change of voters is then told that it leads no longer.
        """
        before = self.current
        assert role.role in TRANSITIONS[before.role], f"illegal move {before.role} -> {role.role}"
        if isinstance(before, Leader) and before.changes_begun is not None:
            assert ready is not None, "who waits for a leader must be told that it is none"
            before.changes_begun.abandon(ready)
        self.current = role

    def save(
        self, state: ElectionState, ready: Ready, leader_endpoints: tuple[Endpoint, ...] = ()
    ) -> None:
        """Another epoch, vote or leader; `leader_endpoints`: as that leader told them."""
        assert state.epoch >= self.state.epoch, "an epoch never falls"
        # In this order: another thread that finds a leader here, and then asks where it is, must
        # not be told where the last one was. That one may be frozen, and nobody would look again.
        self.leader_endpoints = leader_endpoints
        self.state = state
        ready.persist = state

    def leader_is_at(self, endpoints: tuple[Endpoint, ...]) -> None:
        """The leader that we know said where it is."""
        self.leader_endpoints = endpoints or self.leader_endpoints
