"""Moves of a replica that others take part in: it follows, votes, stands, gives up. PURE.

The moves that a single voter makes too (to candidate, leader, resigned) are the core's own, and so
is the table of what is legal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replication.raft.events import (
    NO_LEADER,
    ElectionState,
    LogPosition,
    Outgoing,
    Ready,
    Vote,
)
from replication.raft.roles import Follower, Prospective, Role, Unattached

if TYPE_CHECKING:
    from replication.raft.core import RaftCore
    from replication.raft.voter_set import Endpoint, ReplicaKey, Voter


def leader_is(
    core: RaftCore,
    leader_id: int,
    epoch: int,
    endpoints: tuple[Endpoint, ...],
    ready: Ready,
    now_ms: int,
) -> None:
    """Somebody says that `leader_id`, another node, leads `epoch`, which is not below ours."""
    if epoch == core.epoch and core.leader_id != NO_LEADER:
        assert leader_id == core.leader_id, (
            f"two leaders in epoch {epoch}: {core.leader_id}, {leader_id}"
        )
        core.leader_is_at(endpoints)
        if core.role is Role.UNATTACHED and core.leader_peer() is not None:
            follow(core, ready, now_ms)
        return
    voted = core.state.voted_id, core.state.voted_directory_id
    state = ElectionState(epoch, leader_id, *(voted if epoch == core.epoch else ()))
    core.save(state, ready, endpoints)
    core.election.decided()
    follow(core, ready, now_ms)


def follow(core: RaftCore, ready: Ready, now_ms: int) -> None:
    """Fetch from the leader we know; ask around where it is if nobody said that."""
    known = core.leader_peer() is not None
    core.become(Follower() if known else Unattached(), ready)
    core.election.end()
    core.fetcher.restart(now_ms)
    core.wait_for_leader(now_ms)


def leader_left(core: RaftCore, wait_ms: int, now_ms: int) -> None:
    """The leader we follow resigns; we stand after `wait_ms`."""
    if core.role is Role.FOLLOWER:
        core.fetcher.leader_left(now_ms)
        core.wait(now_ms, wait_ms)


def become_unattached(core: RaftCore, epoch: int, ready: Ready, now_ms: int) -> None:
    """A higher epoch, whose leader is not known. What was left of a timeout goes on, so that
    a voter that cannot win does not keep those that can from standing.
    """
    left_ms = core.current.timeout_ms
    core.become(Unattached(), ready)
    core.save(ElectionState(epoch), ready)
    core.election.end()
    core.fetcher.restart(now_ms)
    core.wait_for_election(now_ms)
    if left_ms is not None and core.current.timeout_ms is not None:
        core.current.wait_until(left_ms)


def would_grant(core: RaftCore, log: LogPosition) -> bool:
    """K-5: would a candidate whose log ends like this get our vote, were there an election."""
    refuses = core.is_leader or (core.role is Role.FOLLOWER and core.fetcher.has_fetched)
    return not refuses and log >= core.log


def vote_for(core: RaftCore, candidate: ReplicaKey, ready: Ready, now_ms: int) -> None:
    """Give our vote of this epoch."""
    core.become(Unattached())
    core.election.end()
    core.save(ElectionState(core.epoch, NO_LEADER, *candidate), ready)
    core.wait_for_election(now_ms)


def become_prospective(core: RaftCore, ready: Ready, now_ms: int) -> None:
    if core.is_only_voter:
        core.become_candidate(ready, now_ms)
        return
    core.become(Prospective())
    core.fetcher.restart(now_ms)
    ask_for_votes(core, True, ready, now_ms)


def ask_for_votes(core: RaftCore, pre_vote: bool, ready: Ready, now_ms: int) -> None:
    """Begin a round of pre-votes or votes."""
    key, epoch, log, cluster_id = core.key, core.epoch, core.log, core.cluster_id

    def ask(voter: Voter) -> Outgoing:
        return Vote(key, epoch, log, pre_vote, voter.key, cluster_id)

    core.election.begin(ask, ready)
    core.current.wait_until(core.round_timeout(now_ms))


def election_lost(core: RaftCore, ready: Ready, now_ms: int) -> None:
    """A majority refuses, or the time is up: a candidate waits and asks again, a prospective
    one was told that it is not needed.
    """
    if core.role is Role.CANDIDATE:
        core.current.wait_until(core.election.back_off(now_ms))
    elif core.leader_peer() is not None:
        follow(core, ready, now_ms)
    else:
        core.become(Unattached())
        core.election.end()
        core.wait_for_election(now_ms)
