"""A core's dealings with other replicas: what their answers teach it, what time makes it ask. PURE.

What: handlers of the events and polls of the roles that only a quorum of several replicas knows.
Why apart from the core: a single voter never loads this.
How: a reply teaches who leads which epoch first; then it is used by whoever asked: `election` for
votes and farewells, `fetcher` for records and snapshots, `voter_changes` for a newcomer's versions.
After each event the role's poll looks at the time: it stands, asks again, fetches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from replication.raft.answers import (
    answer_begin_quorum_epoch,
    answer_end_quorum_epoch,
    answer_fetch,
    answer_fetch_snapshot,
    answer_vote,
    answer_voter_change,
)
from replication.raft.core import RaftCore
from replication.raft.events import (
    NO_LEADER,
    AddVoter,
    Answered,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    Fetched,
    FetchSnapshot,
    Outgoing,
    Peer,
    ProbeVersions,
    Ready,
    RemoveVoter,
    Reply,
    Send,
    SnapshotLoaded,
    SnapshotPart,
    Truncated,
    UpdateVoter,
    VersionsReply,
    Vote,
    VoteReply,
)
from replication.raft.leader_state import LeaderState
from replication.raft.moves import (
    become_prospective,
    become_unattached,
    election_lost,
    leader_is,
)
from replication.raft.roles import Follower, Role
from replication.raft.voter_set import ReplicaKey, Voter
from wire.errors import ErrorCode

# --- what came from the leader is on disk -------------------------------------------------------


def on_truncated(core: RaftCore, event: Truncated, _ready: Ready, now_ms: int) -> None:
    was_voter = core.is_voter
    core.fetcher.taken(now_ms, True)
    core.log_ends(event.log)
    core.history.truncate_to(event.log.end_offset)
    core.voter_or_observer(was_voter, now_ms)


def on_fetched(core: RaftCore, event: Fetched, ready: Ready, now_ms: int) -> None:
    core.fetcher.taken(now_ms, event.log != core.log)
    core.log_ends(event.log)
    core.follow_high_watermark(event.high_watermark, ready)


def on_snapshot_part(core: RaftCore, event: SnapshotPart, _ready: Ready, now_ms: int) -> None:
    core.fetcher.snapshot_grew(event.position, now_ms)


def on_snapshot_loaded(core: RaftCore, event: SnapshotLoaded, ready: Ready, now_ms: int) -> None:
    was_voter = core.is_voter
    core.fetcher.snapshot_loaded()
    core.log_ends(event.log)
    core.history.restart(event.log.end_offset, event.voters)
    core.voter_or_observer(was_voter, now_ms)
    core.follow_high_watermark(event.log.end_offset, ready)


# --- answers ------------------------------------------------------------------------------------


def on_answered(core: RaftCore, event: Answered, ready: Ready, now_ms: int) -> None:
    request, reply = event.request, event.reply
    if isinstance(request, ProbeVersions):
        if core.leader is not None:
            versions = reply if isinstance(reply, VersionsReply) else None
            core.changes.probed(event.peer.node_id, versions, ready, now_ms)
        return
    useful = reply is not None and learn(core, reply, ready, now_ms)
    if isinstance(request, Vote):
        vote_answered(core, event.peer.node_id, request, reply, useful, ready, now_ms)
    elif isinstance(request, EndQuorumEpoch):
        if core.role is Role.RESIGNED:
            said = None if reply is None else True
            core.election.answered(event.peer.node_id, said, now_ms)
    elif isinstance(request, UpdateVoter):
        heard = useful or (reply and reply.error is ErrorCode.UNSUPPORTED_VERSION)
        if heard and isinstance(core.current, Follower) and request.epoch == core.epoch:
            core.current.was_heard()
    elif isinstance(request, (Fetch, FetchSnapshot)):
        core.fetcher.answered(event.peer, request, reply, useful, ready, now_ms)


def learn(core: RaftCore, reply: Reply, ready: Ready, now_ms: int) -> bool:
    """Take from a reply who leads which epoch; True when the reply itself is of use."""
    if isinstance(reply, VersionsReply) or reply.epoch < core.epoch:
        return False
    is_newer = reply.epoch > core.epoch
    if reply.leader_id not in (NO_LEADER, core.node_id):
        leader_is(core, reply.leader_id, reply.epoch, reply.leader_endpoints, ready, now_ms)
    elif is_newer:
        become_unattached(core, reply.epoch, ready, now_ms)
    return not is_newer and reply.error is ErrorCode.NONE


def vote_answered(
    core: RaftCore,
    node_id: int,
    request: Vote,
    reply: Reply | None,
    useful: bool,
    ready: Ready,
    now_ms: int,
) -> None:
    asking = Role.PROSPECTIVE if request.pre_vote else Role.CANDIDATE
    if core.role is not asking or request.epoch != core.epoch:
        return
    election = core.election
    said = useful and reply.granted if isinstance(reply, VoteReply) else None
    election.answered(node_id, said, now_ms)
    if election.is_won and not core.is_stopping:
        if core.role is Role.PROSPECTIVE:
            core.become_candidate(ready, now_ms)
        else:
            granting = tuple(v.key for v in core.voters if v.node_id in election.granted)
            core.become_leader(granting, ready, now_ms)
    elif election.is_lost and not election.is_backing_off:
        election_lost(core, ready, now_ms)


# --- what each role does as time passes ---------------------------------------------------------


def announce(core: RaftCore, leader: LeaderState, ready: Ready, now_ms: int) -> None:
    """Tell the voters that do not fetch who leads."""
    for voter in leader.to_announce(now_ms):
        request = BeginQuorumEpoch(
            core.node_id, core.epoch, core.endpoints, voter.key, core.cluster_id
        )
        ready.send.append(Send(core.peer_of(voter), request))


def say_farewell(core: RaftCore, successors: tuple[ReplicaKey, ...], ready: Ready) -> None:
    """We resigned: tell all voters, until they answer."""
    farewell = EndQuorumEpoch(core.node_id, core.epoch, successors, core.endpoints, core.cluster_id)
    core.election.begin(lambda _voter: farewell, ready)


def poll_electing(core: RaftCore, ready: Ready, now_ms: int) -> None:
    if core.current.is_over(now_ms):
        if core.is_stopping:
            core.current.wait_until(None)
        elif core.election.is_backing_off:
            become_prospective(core, ready, now_ms)
        else:
            election_lost(core, ready, now_ms)
    elif core.election.retry_ms is not None and now_ms >= core.election.retry_ms:
        core.election.ask(ready)


def poll_waiting(core: RaftCore, ready: Ready, now_ms: int) -> None:
    """UNATTACHED and FOLLOWER."""
    if core.current.is_over(now_ms):
        core.current.wait_until(None)
        if core.is_voter and not core.is_stopping:
            become_prospective(core, ready, now_ms)
        return
    following = core.current if isinstance(core.current, Follower) else None
    leader = core.leader_peer() if following is not None else None
    if following is not None and leader is not None and following.may_tell(now_ms):
        tell_leader_of_us(core, following, leader, ready, now_ms)
    core.fetcher.poll(leader, ready, now_ms)


def tell_leader_of_us(
    core: RaftCore, following: Follower, leader: Peer, ready: Ready, now_ms: int
) -> None:
    """KIP-853: our endpoints changed while we were down, or nothing of us is in the log (static
    voters); KIP-1186: we would like to vote.
    """
    voters = core.voters
    is_static = voters.kraft_version < 1
    if not core.endpoints or not core.can_vote:
        return
    if is_static and (following.leader_high_watermark < 0 or following.has_told):
        return  # the leader does not listen yet, or listened
    following.tells(now_ms + core.config.fetch_timeout_ms)
    me = Voter(*core.key, core.endpoints)
    known = voters.get(core.node_id)
    request: Outgoing | None = None
    if is_static:
        request = UpdateVoter(me, core.epoch, core.cluster_id) if core.is_voter else None
    elif known is not None and known.key == core.key:
        if known.endpoints != core.endpoints:
            request = UpdateVoter(me, core.epoch, core.cluster_id)
    elif core.config.auto_join and known is not None:
        request = RemoveVoter(known.key, core.cluster_id)
    elif core.config.auto_join:
        timeout_ms = core.config.request_timeout_ms
        request = AddVoter(me, timeout_ms, False, core.cluster_id)
    if request is not None:
        ready.send.append(Send(leader, request))


def poll_resigned(core: RaftCore, ready: Ready, now_ms: int) -> None:
    if core.current.is_over(now_ms):
        core.current.wait_until(None)
        if core.is_only_voter and not core.is_stopping:
            core.become_candidate(ready, now_ms)
        else:
            # In the epoch that we led we may neither lead nor vote.
            become_unattached(core, core.epoch + 1, ready, now_ms)
        return
    if core.election.retry_ms is not None and now_ms >= core.election.retry_ms:
        core.election.ask(ready)
    if not core.is_only_voter:
        core.fetcher.poll(None, ready, now_ms)  # who leads now?


HANDLERS: Mapping[type, Callable[[RaftCore, Any, Ready, int], None]] = {
    Truncated: on_truncated,
    Fetched: on_fetched,
    SnapshotPart: on_snapshot_part,
    SnapshotLoaded: on_snapshot_loaded,
    Answered: on_answered,
    Vote: answer_vote,
    BeginQuorumEpoch: answer_begin_quorum_epoch,
    EndQuorumEpoch: answer_end_quorum_epoch,
    Fetch: answer_fetch,
    FetchSnapshot: answer_fetch_snapshot,
    AddVoter: answer_voter_change,
    RemoveVoter: answer_voter_change,
    UpdateVoter: answer_voter_change,
}
POLLS: Mapping[Role, Callable[[RaftCore, Ready, int], None]] = {
    Role.UNATTACHED: poll_waiting,
    Role.PROSPECTIVE: poll_electing,
    Role.CANDIDATE: poll_electing,
    Role.FOLLOWER: poll_waiting,
    Role.RESIGNED: poll_resigned,
}
