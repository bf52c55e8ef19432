"""The state of the quorum as DescribeQuorum tells it."""

from __future__ import annotations

from typing import NamedTuple

from replication.raft.leader_state import ReplicaProgress
from replication.raft.quorum_state import QuorumState
from replication.raft.voter_set import Voter


class ReplicaState(NamedTuple):
    """One row of DescribeQuorum. Timestamps are wall ms, -1 when unknown."""

    replica_id: int
    directory_id: bytes
    log_end_offset: int
    last_fetch_timestamp: int
    last_caught_up_timestamp: int


class QuorumInfo(NamedTuple):
    """What DescribeQuorum reports; complete only on the leader. `nodes`: where the voters are."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: list[ReplicaState]
    observers: list[ReplicaState]
    nodes: list[Voter]


def describe(core: QuorumState, end_offset: int, now_ms: int, wall_ms: int) -> QuorumInfo:
    """What `core` knows; `end_offset`: of our own log."""

    def timestamp(ms: int | None) -> int:
        return -1 if ms is None else wall_ms - (now_ms - ms)

    def row(progress: ReplicaProgress) -> ReplicaState:
        return ReplicaState(
            *progress.key,
            progress.end_offset,
            timestamp(progress.last_fetch_ms),
            timestamp(progress.last_caught_up_ms),
        )

    leader = core.leader
    now = wall_ms if leader else -1
    voters = []
    for voter in core.voters:
        if voter.accepts(core.key):
            voters.append(ReplicaState(*core.key, end_offset, now, now))
        elif leader is not None:
            voters.append(row(leader.replicas[voter.node_id]))
        else:
            voters.append(row(ReplicaProgress(voter.key)))
    observers = leader.active_observers(now_ms) if leader else []
    return QuorumInfo(
        core.leader_id,
        core.epoch,
        core.high_watermark,
        voters,
        [row(progress) for progress in observers],
        list(core.voters),
    )
