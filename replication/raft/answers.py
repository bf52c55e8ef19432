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
from replication.raft.moves import (
    become_unattached,
    leader_is,
    leader_left,
    vote_for,
    would_grant,
)
from replication.raft.voter_changes import VoterChange, change_reply
from replication.raft.voter_set import ReplicaKey
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from replication.raft.core import RaftCore
    from replication.raft.own_events import LogView


_EPOCH_LEAP_MAX = 1 << 24
"""No honest sender is that many elections ahead; one frame must not use up all epochs there are."""


# --- checks that requests share -----------------------------------------------------------------


def _wrong_cluster(core: RaftCore, cluster_id: str | None) -> bool:
    """K-11; a request that names none is let through, as Kafka does."""
    return None not in (cluster_id, core.cluster_id) and cluster_id != core.cluster_id


def _is_meant(core: RaftCore, voter: ReplicaKey) -> bool:
    """Was a request sent to this replica, and not to one on a disk that is gone."""
    return voter.node_id < 0 or voter.accepts(core.key)


def _voters_only(core: RaftCore, sender: int, epoch: int, cluster_id: str | None) -> ErrorCode:
    if _wrong_cluster(core, cluster_id):
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if epoch < core.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    is_sane = sender >= 0 and epoch - core.epoch <= _EPOCH_LEAP_MAX
    return ErrorCode.NONE if is_sane else ErrorCode.INVALID_REQUEST


def _from_leader(core: RaftCore, event: BeginQuorumEpoch | EndQuorumEpoch) -> ErrorCode:
    """Who says that it leads may have another node's id, or lie: it is refused, not believed."""
    error = _voters_only(core, event.leader_id, event.epoch, event.cluster_id)
    known = core.leader_id if event.epoch == core.epoch else NO_LEADER
    is_other = known not in (NO_LEADER, event.leader_id) or event.leader_id == core.node_id
    return ErrorCode.INVALID_REQUEST if is_other and error is ErrorCode.NONE else error


def _leader_only(core: RaftCore, epoch: int, cluster_id: str | None) -> ErrorCode:
    if _wrong_cluster(core, cluster_id):
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if epoch < core.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > core.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if core.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER


# --- votes --------------------------------------------------------------------------------------


def answer_vote(core: RaftCore, event: Vote, ready: Ready, now_ms: int) -> None:
    """K-2, and K-5 for a pre-vote. A higher epoch is adopted even when the vote is refused."""
    error = _voters_only(core, event.candidate.node_id, event.epoch, event.cluster_id)
    newest_epoch = event.epoch if event.pre_vote else event.epoch - 1
    if error is ErrorCode.NONE and (min(event.log) < 0 or event.log.epoch > newest_epoch):
        error = ErrorCode.INVALID_REQUEST
    granted = False
    if error is ErrorCode.NONE:
        if event.epoch > core.epoch:
            become_unattached(core, event.epoch, ready, now_ms)
        if not _is_meant(core, event.voter):
            error = ErrorCode.INVALID_VOTER_KEY
        elif event.pre_vote:
            granted = would_grant(core, event.log)
        else:
            granted = _grant(core, event, ready, now_ms)
    ready.reply = VoteReply(error, core.epoch, core.leader_id, granted, core.endpoints_of_leader())


def _grant(core: RaftCore, event: Vote, ready: Ready, now_ms: int) -> bool:
    """Vote for the candidate if no other vote was given and no leader is known (K-2)."""
    state = core.state
    if state.leader_id != NO_LEADER:
        return False
    if state.voted_id != NO_VOTE:
        return ReplicaKey(state.voted_id, state.voted_directory_id).accepts(event.candidate)
    if event.log < core.log:
        return False
    vote_for(core, event.candidate, ready, now_ms)
    return True


# --- a leader comes, a leader goes --------------------------------------------------------------


def answer_begin_quorum_epoch(
    core: RaftCore, event: BeginQuorumEpoch, ready: Ready, now_ms: int
) -> None:
    error = _from_leader(core, event)
    if error is ErrorCode.NONE:
        leader_is(core, event.leader_id, event.epoch, event.leader_endpoints, ready, now_ms)
        if not _is_meant(core, event.voter):
            error = ErrorCode.INVALID_VOTER_KEY
    ready.reply = BeginQuorumEpochReply(
        error, core.epoch, core.leader_id, core.endpoints_of_leader()
    )


def answer_end_quorum_epoch(
    core: RaftCore, event: EndQuorumEpoch, ready: Ready, now_ms: int
) -> None:
    """Our leader leaves: its first successor stands at once, the others later and later."""
    error = _from_leader(core, event)
    if error is ErrorCode.NONE:
        leader_is(core, event.leader_id, event.epoch, event.leader_endpoints, ready, now_ms)
        leader_left(core, _succession_ms(core, event.preferred), now_ms)
    ready.reply = EndQuorumEpochReply(error, core.epoch, core.leader_id, core.endpoints_of_leader())


def _succession_ms(core: RaftCore, preferred: tuple[ReplicaKey, ...]) -> int:
    """0 for the first of `preferred`, then doubling up to the longest backoff."""
    longest = core.config.election_backoff_max_ms
    place = next((n for n, key in enumerate(preferred) if key.accepts(core.key)), -1)
    if place == 0:
        return 0
    if place < 0:
        return longest
    return min(longest, (longest >> (len(preferred) - 1)) << (place - 1))


# --- fetches ------------------------------------------------------------------------------------


def answer_fetch(core: RaftCore, event: Fetch, ready: Ready, now_ms: int) -> None:
    error = _leader_only(core, event.epoch, event.cluster_id)
    if error is not ErrorCode.INCONSISTENT_CLUSTER_ID and (
        min(event.offset, event.last_epoch, event.max_wait_ms) < 0 or event.last_epoch > event.epoch
    ):
        error = ErrorCode.INVALID_REQUEST
    if error is not ErrorCode.NONE:
        ready.reply = fetch_reply(core, error)
        return
    snapshot_id, diverging = _validate(core.log_view, event.offset, event.last_epoch)
    if snapshot_id is not None or diverging is not None:
        ready.reply = fetch_reply(core, diverging=diverging, snapshot_id=snapshot_id)
        return
    if event.replica.node_id >= 0 and event.replica != core.key:
        core.replica_fetched(event.replica, event.offset, ready, now_ms)
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
    core: RaftCore,
    error: ErrorCode = ErrorCode.NONE,
    *,
    diverging: LogPosition | None = None,
    snapshot_id: SnapshotId | None = None,
    records: bytes = b"",
) -> FetchReply:
    """An answer to a fetch as things are now."""
    return FetchReply(
        error,
        core.epoch,
        core.leader_id,
        core.endpoints_of_leader(),
        core.told_high_watermark,
        core.log_view.start_offset,
        diverging,
        snapshot_id,
        records,
    )


def answer_fetch_snapshot(core: RaftCore, event: FetchSnapshot, ready: Ready, now_ms: int) -> None:
    error = _leader_only(core, event.epoch, event.cluster_id)
    if error is not ErrorCode.NONE:
        ready.reply = snapshot_reply(core, event.snapshot_id, error)
        return
    assert core.leader is not None
    core.leader.heard_from(event.replica, now_ms)
    ready.serve_snapshot = event


def snapshot_reply(
    core: RaftCore,
    snapshot_id: SnapshotId,
    error: ErrorCode = ErrorCode.NONE,
    *,
    size: int = 0,
    position: int = 0,
    data: bytes = b"",
) -> FetchSnapshotReply:
    """An answer to a FetchSnapshot as things are now."""
    endpoints = core.endpoints_of_leader()
    return FetchSnapshotReply(
        error, core.epoch, snapshot_id, core.leader_id, endpoints, size, position, data
    )


# --- voters -------------------------------------------------------------------------------------


def answer_voter_change(core: RaftCore, event: VoterChange, ready: Ready, now_ms: int) -> None:
    epoch = event.epoch if isinstance(event, UpdateVoter) else core.epoch
    error = _leader_only(core, epoch, event.cluster_id)
    if error is not ErrorCode.NONE:
        ready.reply = change_reply(core, error)
        return
    ready.reply = core.changes.begin(event, ready, now_ms)


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
