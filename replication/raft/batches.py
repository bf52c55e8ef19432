"""Batches of the quorum's log as a leader makes them, and as listeners get them.

A batch of records is built on the caller's thread, and is told afterwards which offsets it will
have: the log puts them into the bytes. Control batches (LeaderChange, voter sets) are the driver's.
`CommittedBatch` is what a state machine sees of either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from replication.raft.own_events import AppendVoters, LeaderChange
from replication.raft.voter_records import ControlRecord, voter_controls
from replication.raft.voter_set import VoterSet
from wire.control_records import ControlRecordType
from wire.errors import ErrorCode, KafkaError
from wire.record_body import Record
from wire.records import build_batch, build_control_batch

BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Largest batch (Kafka: KafkaRaftClient.MAX_BATCH_SIZE_BYTES)."""
BATCH_RECORDS_MAX = 10_000
"""More records than this in one append are split; up to it an append is all or nothing."""


class CommittedBatch(NamedTuple):
    """Committed records with consecutive offsets; a control batch has none."""

    base_offset: int
    last_offset: int
    epoch: int
    timestamp: int
    size: int
    records: Sequence[Any]


@dataclass(slots=True)
class PendingBatch:
    """A batch that has its offsets and waits to be written or committed."""

    committed: CommittedBatch
    data: bytes
    voters: VoterSet | None = None
    """The voter set that its last record names."""

    def behind(self, end_offset: int) -> PendingBatch:
        """With its offsets, which began at 0, from there on."""
        made = self.committed
        base, last = end_offset + made.base_offset, end_offset + made.last_offset
        return replace(self, committed=made._replace(base_offset=base, last_offset=last))


def record_batches(
    records: Sequence[Any], values: Sequence[bytes], epoch: int, wall_ms: int
) -> list[PendingBatch]:
    """`records`, encoded as `values`, from offset 0 on. Raises KafkaError RECORD_LIST_TOO_LARGE."""
    batches = []
    for first in range(0, len(values), BATCH_RECORDS_MAX):
        chunk = values[first : first + BATCH_RECORDS_MAX]
        data = build_batch([Record(-1, wall_ms, None, value, ()) for value in chunk])
        if len(data) > BATCH_BYTES_MAX:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{len(chunk)} metadata records take {len(data)} bytes",
            )
        last = first + len(chunk) - 1
        kept = records[first : first + BATCH_RECORDS_MAX]
        batches.append(
            PendingBatch(CommittedBatch(first, last, epoch, wall_ms, len(data), kept), data)
        )
    return batches


def control_batch(change: LeaderChange | AppendVoters, offset: int, wall_ms: int) -> PendingBatch:
    """The control batch a leader writes: first in its epoch, or with another voter set."""
    if isinstance(change, AppendVoters):
        controls, voters = voter_controls(change.voters), change.voters
    else:
        controls = [_leader_change(change)]
        voters = change.voter_set  # type: ignore[assignment]
        if voters is not None:
            controls += voter_controls(voters)
    data = build_control_batch(
        controls, timestamp=wall_ms, base_offset=offset, leader_epoch=change.epoch
    )
    last = offset + len(controls) - 1
    committed = CommittedBatch(offset, last, change.epoch, wall_ms, len(data), ())
    return PendingBatch(committed, data, voters)


def _leader_change(change: LeaderChange) -> ControlRecord:
    """In version 0, without directory ids: Apache Kafka 4.3 reads no other, it would end there."""
    from wire.messages.raft_records import LeaderChangeMessage

    version = 0
    voter = LeaderChangeMessage.Voter
    message = LeaderChangeMessage(
        version=version,
        leader_id=change.leader_id,
        voters=[voter(voter_id=i, voter_directory_id=d) for i, d in change.voters],
        granting_voters=[
            voter(voter_id=i, voter_directory_id=d) for i, d in change.granting_voters
        ],
    )
    return ControlRecord(ControlRecordType.LEADER_CHANGE, message.encode_bytes(version))
