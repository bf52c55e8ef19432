"""What a replica answers to those who ask it: votes, announcements, fetches, changes of voters.
PURE.

What: one function for each request, stepped by the core; each leaves its answer in `Ready`.
Why: the checks that Kafka's requests share (cluster id, epoch, who leads) are in one place.
How: Vote, BeginQuorumEpoch and EndQuorumEpoch are for voters and teach us an epoch or a leader; the
others are for the leader of exactly the epoch the sender knows. A fetch says how the sender's log
ends: the answer is an error, the epoch at which its log and ours part (K-8), the snapshot it must
take first (K-9), or `serve`: the caller reads the log, or keeps the request until there is news.
Errors as Apache Kafka's: INCONSISTENT_CLUSTER_ID, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
NOT_LEADER_OR_FOLLOWER, INVALID_REQUEST, INVALID_VOTER_KEY.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from replication.raft.events import (
    NO_LEADER,
    NO_VOTE,
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    Fetch,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    LogPosition,
    Ready,
    Reply,
    SnapshotId,
    UpdateVoter,
    Vote,
    VoterChangeReply,
    VoteReply,
)
from replication.raft.roles import Follower
from replication.raft.voter_changes import VoterChange, change_reply
from replication.raft.voter_set import ReplicaKey
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from replication.raft.own_events import LogView
    from replication.raft.quorum_state import QuorumState


_EPOCH_LEAP_MAX = 1 << 24
"""No honest sender is that many elections ahead; one frame must not use up all epochs there are."""


# --- checks that requests share -----------------------------------------------------------------


def _wrong_cluster(quorum: QuorumState, cluster_id: str | None) -> bool:
    """K-11; a request that names none is let through, as Kafka does."""
    return None not in (cluster_id, quorum.cluster_id) and cluster_id != quorum.cluster_id


def _is_meant(quorum: QuorumState, voter: ReplicaKey) -> bool:
    """Was a request sent to this replica, and not to one on a disk that is gone."""
    return voter.node_id < 0 or voter.accepts(quorum.key)


def _voters_only(quorum: QuorumState, sender: int, epoch: int, cluster_id: str | None) -> ErrorCode:
    if _wrong_cluster(quorum, cluster_id):
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if epoch < quorum.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    is_sane = sender >= 0 and epoch - quorum.epoch <= _EPOCH_LEAP_MAX
    return ErrorCode.NONE if is_sane else ErrorCode.INVALID_REQUEST


def _from_leader(quorum: QuorumState, event: BeginQuorumEpoch | EndQuorumEpoch) -> ErrorCode:
    """Who says that it leads may have another node's id, or lie: it is refused, not believed."""
    error = _voters_only(quorum, event.leader_id, event.epoch, event.cluster_id)
    known = quorum.leader_id if event.epoch == quorum.epoch else NO_LEADER
    is_other = known not in (NO_LEADER, event.leader_id) or event.leader_id == quorum.node_id
    return ErrorCode.INVALID_REQUEST if is_other and error is ErrorCode.NONE else error


def _leader_only(quorum: QuorumState, epoch: int, cluster_id: str | None) -> ErrorCode:
    if _wrong_cluster(quorum, cluster_id):
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if epoch < quorum.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > quorum.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if quorum.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER


# --- votes --------------------------------------------------------------------------------------


def answer_vote(quorum: QuorumState, event: Vote, ready: Ready, now_ms: int) -> None:
    """K-2, and K-5 for a pre-vote. A higher epoch is adopted even when the vote is refused."""
    error = _voters_only(quorum, event.candidate.node_id, event.epoch, event.cluster_id)
    newest_epoch = event.epoch if event.pre_vote else event.epoch - 1
    if error is ErrorCode.NONE and (min(event.log) < 0 or event.log.epoch > newest_epoch):
        error = ErrorCode.INVALID_REQUEST
    granted = False
    if error is ErrorCode.NONE:
        if event.epoch > quorum.epoch:
            quorum.become_unattached(event.epoch, ready, now_ms)
        if not _is_meant(quorum, event.voter):
            error = ErrorCode.INVALID_VOTER_KEY
        elif event.pre_vote:
            granted = _would_grant(quorum, event.log)
        else:
            granted = _grant(quorum, event, ready, now_ms)
    ready.reply = VoteReply(
        error, quorum.epoch, quorum.leader_id, granted, quorum.endpoints_of_leader()
    )


def _would_grant(quorum: QuorumState, log: LogPosition) -> bool:
    """K-5: would a candidate whose log ends like this get our vote, were there an election."""
    current = quorum.current
    has_leader = isinstance(current, Follower) and current.fetcher.has_fetched
    return not quorum.is_leader and not has_leader and log >= quorum.log


def _grant(quorum: QuorumState, event: Vote, ready: Ready, now_ms: int) -> bool:
    """Vote for the candidate if no other vote was given and no leader is known (K-2)."""
    state = quorum.state
    if state.leader_id != NO_LEADER:
        return False
    if state.voted_id != NO_VOTE:
        return ReplicaKey(state.voted_id, state.voted_directory_id).accepts(event.candidate)
    if event.log < quorum.log:
        return False
    quorum.vote_for(event.candidate, ready, now_ms)
    return True


# --- a leader comes, a leader goes --------------------------------------------------------------


def answer_begin_quorum_epoch(
    quorum: QuorumState, event: BeginQuorumEpoch, ready: Ready, now_ms: int
) -> None:
    error = _from_leader(quorum, event)
    if error is ErrorCode.NONE:
        quorum.leader_is(event.leader_id, event.epoch, event.leader_endpoints, ready, now_ms)
        if not _is_meant(quorum, event.voter):
            error = ErrorCode.INVALID_VOTER_KEY
    ready.reply = BeginQuorumEpochReply(
        error, quorum.epoch, quorum.leader_id, quorum.endpoints_of_leader()
    )


def answer_end_quorum_epoch(
    quorum: QuorumState, event: EndQuorumEpoch, ready: Ready, now_ms: int
) -> None:
    """Our leader leaves: its first successor stands at once, the others later and later."""
    error = _from_leader(quorum, event)
    if error is ErrorCode.NONE:
        quorum.leader_is(event.leader_id, event.epoch, event.leader_endpoints, ready, now_ms)
        _leader_left(quorum, _succession_ms(quorum, event.preferred), now_ms)
    ready.reply = EndQuorumEpochReply(
        error, quorum.epoch, quorum.leader_id, quorum.endpoints_of_leader()
    )


def _leader_left(quorum: QuorumState, wait_ms: int, now_ms: int) -> None:
    """The leader we follow resigns; we stand after `wait_ms`."""
    if isinstance(quorum.current, Follower):
        quorum.current.fetcher.nobody_leads(now_ms)
        quorum.wait(now_ms, wait_ms)


def _succession_ms(quorum: QuorumState, preferred: tuple[ReplicaKey, ...]) -> int:
    """0 for the first of `preferred`, then doubling up to the longest backoff."""
    longest = quorum.config.election_backoff_max_ms
    place = next((n for n, key in enumerate(preferred) if key.accepts(quorum.key)), -1)
    if place == 0:
        return 0
    if place < 0:
        return longest
    return min(longest, (longest >> (len(preferred) - 1)) << (place - 1))


# --- fetches ------------------------------------------------------------------------------------


def answer_fetch(quorum: QuorumState, event: Fetch, ready: Ready, now_ms: int) -> None:
    error = _leader_only(quorum, event.epoch, event.cluster_id)
    if error is not ErrorCode.INCONSISTENT_CLUSTER_ID and (
        min(event.offset, event.last_epoch, event.max_wait_ms) < 0 or event.last_epoch > event.epoch
    ):
        error = ErrorCode.INVALID_REQUEST
    if error is not ErrorCode.NONE:
        ready.reply = fetch_reply(quorum, error)
        return
    snapshot_id, diverging = _validate(quorum.log_view, event.offset, event.last_epoch)
    if snapshot_id is not None or diverging is not None:
        ready.reply = fetch_reply(quorum, diverging=diverging, snapshot_id=snapshot_id)
        return
    if 0 <= event.replica.node_id != quorum.node_id:
        quorum.replica_fetched(event.replica, event.offset, ready, now_ms)
    ready.serve = event


def _validate(
    view: LogView, offset: int, epoch: int
) -> tuple[SnapshotId | None, LogPosition | None]:
    """Does a log that ends like this continue in ours? Else: from which snapshot on, or where it
    parts from ours (K-8, K-9). Kafka: ReplicatedLog.validateOffsetAndEpoch.
    """
    latest, earliest = view.latest_snapshot, view.earliest_snapshot
    if latest is not None and earliest is not None and latest.offset > 0:
        start = view.start_offset
        if (
            offset == 0
            or offset < start
            or epoch < earliest.epoch
            or (offset == start and epoch != earliest.epoch)
        ):
            return latest, None
    if offset == 0:
        return None, None
    ours = view.end_offset_for_epoch(epoch)
    if ours.epoch != epoch or ours.end_offset < offset:
        return None, ours
    return None, None


def fetch_reply(
    quorum: QuorumState,
    error: ErrorCode = ErrorCode.NONE,
    *,
    diverging: LogPosition | None = None,
    snapshot_id: SnapshotId | None = None,
    records: bytes = b"",
) -> FetchReply:
    """An answer to a fetch as things are now."""
    return FetchReply(
        error,
        quorum.epoch,
        quorum.leader_id,
        quorum.endpoints_of_leader(),
        quorum.told_high_watermark,
        quorum.log_view.start_offset,
        diverging,
        snapshot_id,
        records,
    )


def answer_fetch_snapshot(
    quorum: QuorumState, event: FetchSnapshot, ready: Ready, now_ms: int
) -> None:
    error = _leader_only(quorum, event.epoch, event.cluster_id)
    if error is not ErrorCode.NONE:
        ready.reply = snapshot_reply(quorum, event.snapshot_id, error)
        return
    assert quorum.leader is not None
    quorum.leader.heard_from(event.replica, now_ms)
    ready.serve_snapshot = event


def snapshot_reply(
    quorum: QuorumState,
    snapshot_id: SnapshotId,
    error: ErrorCode = ErrorCode.NONE,
    *,
    size: int = 0,
    position: int = 0,
    data: bytes = b"",
) -> FetchSnapshotReply:
    """An answer to a FetchSnapshot as things are now."""
    endpoints = quorum.endpoints_of_leader()
    return FetchSnapshotReply(
        error, quorum.epoch, snapshot_id, quorum.leader_id, endpoints, size, position, data
    )


# --- voters -------------------------------------------------------------------------------------


def answer_voter_change(quorum: QuorumState, event: VoterChange, ready: Ready, now_ms: int) -> None:
    epoch = event.epoch if isinstance(event, UpdateVoter) else quorum.epoch
    error = _leader_only(quorum, epoch, event.cluster_id)
    if error is not ErrorCode.NONE:
        ready.reply = change_reply(quorum, error)
        return
    ready.reply = quorum.changes.begin(event, ready, now_ms)


# --- nobody is there ----------------------------------------------------------------------------


def refusal(event: object, epoch: int) -> Reply:
    """What whoever asks a stopped replica is told."""
    error = ErrorCode.BROKER_NOT_AVAILABLE
    if isinstance(event, FetchSnapshot):
        return FetchSnapshotReply(error, epoch, event.snapshot_id)
    reply = _REPLIES.get(type(event))
    return reply(error, epoch) if reply else VoterChangeReply(error, epoch, "the node is stopping")


_REPLIES: dict[type, Callable[[ErrorCode, int], Reply]] = {
    Vote: VoteReply,
    BeginQuorumEpoch: BeginQuorumEpochReply,
    EndQuorumEpoch: EndQuorumEpochReply,
    Fetch: FetchReply,
}
