"""A core's dealings with other replicas: what their answers teach it, what time makes it ask. PURE.

What: handlers of the events and polls of the roles that only a quorum of several replicas knows.
Why apart from the core: a single voter never loads this.
How: a reply teaches who leads which epoch first; then it is used by whoever asked: the role's
election for votes and farewells, its fetcher for records and snapshots, its changes of voters for a
newcomer's versions.
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
from replication.raft.quorum_state import QuorumState
from replication.raft.roles import (
    Candidate,
    Fetching,
    Follower,
    Nominee,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from replication.raft.voter_set import ReplicaKey, Voter
from wire.errors import ErrorCode

# --- what came from the leader is on disk -------------------------------------------------------


def on_truncated(quorum: QuorumState, event: Truncated, _ready: Ready, now_ms: int) -> None:
    was_voter = quorum.is_voter
    if isinstance(quorum.current, Fetching):
        quorum.current.fetcher.taken(now_ms, event.log != quorum.log)
    quorum.log_ends(event.log)
    quorum.history.truncate_to(event.log.end_offset)
    quorum.voter_or_observer(was_voter, now_ms)


def on_fetched(quorum: QuorumState, event: Fetched, ready: Ready, now_ms: int) -> None:
    was_voter = quorum.is_voter
    if isinstance(quorum.current, Fetching):
        quorum.current.fetcher.taken(now_ms, event.log != quorum.log)
    quorum.log_ends(event.log)
    for offset, voters in event.voters:
        quorum.history.add(offset, voters)
    quorum.voter_or_observer(was_voter, now_ms)
    quorum.follow_high_watermark(event.high_watermark, ready)


def on_snapshot_part(quorum: QuorumState, event: SnapshotPart, _ready: Ready, now_ms: int) -> None:
    if isinstance(quorum.current, Fetching):
        quorum.current.fetcher.snapshot_grew(event.position, now_ms)


def on_snapshot_loaded(
    quorum: QuorumState, event: SnapshotLoaded, ready: Ready, now_ms: int
) -> None:
    was_voter = quorum.is_voter
    if isinstance(quorum.current, Fetching):
        quorum.current.fetcher.snapshot_loaded(now_ms)
    quorum.log_ends(event.log)
    quorum.history.restart(event.log.end_offset, event.voters)
    quorum.voter_or_observer(was_voter, now_ms)
    quorum.follow_high_watermark(event.log.end_offset, ready)


# --- answers ------------------------------------------------------------------------------------


def on_answered(quorum: QuorumState, event: Answered, ready: Ready, now_ms: int) -> None:
    request, reply = event.request, event.reply
    if isinstance(request, ProbeVersions):
        if quorum.leader is not None:
            versions = reply if isinstance(reply, VersionsReply) else None
            quorum.changes.probed(event.peer, versions, ready, now_ms)
        return
    useful = reply is not None and learn(quorum, reply, ready, now_ms)
    if isinstance(request, Vote):
        vote_answered(quorum, event.peer.node_id, request, reply, useful, ready, now_ms)
    elif isinstance(request, EndQuorumEpoch):
        if isinstance(quorum.current, Resigned) and request.epoch == quorum.epoch:
            said = None if reply is None else True
            quorum.current.farewell.answered(event.peer.node_id, said, now_ms)
    elif isinstance(request, UpdateVoter):
        heard = useful or (reply and reply.error is ErrorCode.UNSUPPORTED_VERSION)
        if heard and isinstance(quorum.current, Follower) and request.epoch == quorum.epoch:
            quorum.current.was_heard()
    elif isinstance(request, (Fetch, FetchSnapshot)) and isinstance(quorum.current, Fetching):
        quorum.current.fetcher.answered(event.peer, request, reply, useful, ready, now_ms)


def learn(quorum: QuorumState, reply: Reply, ready: Ready, now_ms: int) -> bool:
    """Take from a reply who leads which epoch; True when the reply itself is of use."""
    if isinstance(reply, VersionsReply) or reply.epoch < quorum.epoch:
        return False
    is_newer = reply.epoch > quorum.epoch
    if reply.leader_id not in (NO_LEADER, quorum.node_id):
        quorum.leader_is(reply.leader_id, reply.epoch, reply.leader_endpoints, ready, now_ms)
    elif is_newer:
        quorum.become_unattached(reply.epoch, ready, now_ms)
    return not is_newer and reply.error is ErrorCode.NONE


def vote_answered(
    quorum: QuorumState,
    node_id: int,
    request: Vote,
    reply: Reply | None,
    useful: bool,
    ready: Ready,
    now_ms: int,
) -> None:
    nominee = quorum.current
    asking = Prospective if request.pre_vote else Candidate
    if not isinstance(nominee, asking) or request.epoch != quorum.epoch:
        return
    election = nominee.election
    said = useful and reply.granted if isinstance(reply, VoteReply) else None
    election.answered(node_id, said, now_ms)
    if election.is_won and not quorum.is_stopping:
        if request.pre_vote:
            quorum.become_candidate(ready, now_ms)
        else:
            granting = tuple(v.key for v in quorum.voters if v.node_id in election.granted)
            quorum.become_leader(granting, ready, now_ms)
    elif election.is_lost and not election.is_backing_off:
        quorum.election_lost(nominee, ready, now_ms)


# --- what each role does as time passes ---------------------------------------------------------


def announce(quorum: QuorumState, leader: LeaderState, ready: Ready, now_ms: int) -> None:
    """Tell the voters that do not fetch who leads."""
    for voter in leader.to_announce(now_ms):
        request = BeginQuorumEpoch(
            quorum.node_id, quorum.epoch, quorum.endpoints, voter.key, quorum.cluster_id
        )
        ready.send.append(Send(quorum.peer_of(voter), request))


def say_farewell(
    quorum: QuorumState, resigned: Resigned, successors: tuple[ReplicaKey, ...], ready: Ready
) -> None:
    """We resigned: tell all voters, until they answer."""
    end = EndQuorumEpoch(
        quorum.node_id, quorum.epoch, successors, quorum.endpoints, quorum.cluster_id
    )
    resigned.farewell.begin(lambda _voter: end, ready)


def poll_nominee(quorum: QuorumState, nominee: Nominee, ready: Ready, now_ms: int) -> None:
    election = nominee.election
    if not nominee.is_over(now_ms):
        election.poll(ready, now_ms)
    elif quorum.is_stopping:
        nominee.wait_until(None)
    elif election.is_backing_off:
        quorum.become_prospective(ready, now_ms)
    else:
        quorum.election_lost(nominee, ready, now_ms)


def poll_follower(quorum: QuorumState, follower: Follower, ready: Ready, now_ms: int) -> None:
    leader = quorum.leader_peer()
    if leader is not None and not follower.is_over(now_ms) and follower.may_tell(now_ms):
        tell_leader_of_us(quorum, follower, leader, ready, now_ms)
    _fetch_or_stand(quorum, follower, leader, ready, now_ms)


def poll_unattached(quorum: QuorumState, unattached: Unattached, ready: Ready, now_ms: int) -> None:
    _fetch_or_stand(quorum, unattached, None, ready, now_ms)


def _fetch_or_stand(
    quorum: QuorumState, waiting: Fetching, leader: Peer | None, ready: Ready, now_ms: int
) -> None:
    """Until its patience ends."""
    if not waiting.is_over(now_ms):
        waiting.fetcher.poll(leader, ready, now_ms)
        return
    waiting.wait_until(None)
    if quorum.may_stand and not quorum.is_stopping:
        quorum.become_prospective(ready, now_ms)


def tell_leader_of_us(
    quorum: QuorumState, following: Follower, leader: Peer, ready: Ready, now_ms: int
) -> None:
    """KIP-853: our endpoints changed while we were down, or nothing of us is in the log (static
    voters); KIP-1186: we would like to vote.
    """
    voters = quorum.voters
    is_static = voters.kraft_version < 1
    if not quorum.endpoints or not quorum.can_vote:
        return
    if is_static and (following.leader_high_watermark < 0 or following.has_told):
        return  # the leader does not listen yet, or listened
    following.tells(now_ms + quorum.config.fetch_timeout_ms)
    me = Voter(*quorum.key, quorum.endpoints)
    known = voters.get(quorum.node_id)
    request: Outgoing | None = None
    if is_static:
        request = UpdateVoter(me, quorum.epoch, quorum.cluster_id) if quorum.is_voter else None
    elif known is not None and known.key == quorum.key:
        if set(known.endpoints) != set(quorum.endpoints):  # Kafka's are in no order
            request = UpdateVoter(me, quorum.epoch, quorum.cluster_id)
    elif quorum.config.auto_join and known is not None:
        request = RemoveVoter(known.key, quorum.cluster_id)
    elif quorum.config.auto_join:
        timeout_ms = quorum.config.request_timeout_ms
        request = AddVoter(me, timeout_ms, False, quorum.cluster_id)
    if request is not None:
        ready.send.append(Send(leader, request))


def poll_resigned(quorum: QuorumState, resigned: Resigned, ready: Ready, now_ms: int) -> None:
    if resigned.is_over(now_ms):
        resigned.wait_until(None)
        if quorum.is_only_voter and not quorum.is_stopping:
            quorum.become_prospective(ready, now_ms)
        else:
            # In the epoch that we led we may neither lead nor vote.
            quorum.become_unattached(quorum.epoch + 1, ready, now_ms)
            if not quorum.may_stand:  # removed: no patience will end that would wake it to ask
                POLLS[quorum.role](quorum, quorum.current, ready, now_ms)
        return
    resigned.farewell.poll(ready, now_ms)
    if not quorum.is_only_voter:
        resigned.fetcher.poll(None, ready, now_ms)  # who leads now?


HANDLERS: Mapping[type, Callable[[QuorumState, Any, Ready, int], None]] = {
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
POLLS: Mapping[Role, Callable[[QuorumState, Any, Ready, int], None]] = {
    Role.UNATTACHED: poll_unattached,
    Role.PROSPECTIVE: poll_nominee,
    Role.CANDIDATE: poll_nominee,
    Role.FOLLOWER: poll_follower,
    Role.RESIGNED: poll_resigned,
}
