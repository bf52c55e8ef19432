"""ListOffsets and DeleteRecords on one leader's log: which offset is meant.

ListOffsets: what each special timestamp means, and a search by time.

    -1 latest                  HW, or LSO for read_committed, or the log end for replicas
    -2 earliest, -4 local      log start (the same without remote storage)
    -3 max timestamp           the record with the largest timestamp (KIP-734)
    -5 latest tiered           -1: there is no remote storage (KIP-1005)
    -6 earliest pending upload -1: likewise (KIP-1023)
    >= 0                       the first record with that timestamp or a later one

Answers as Kafka 4.3's UnifiedLog.fetchOffsetByTimestamp gives for a topic without remote storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replication.partition.requests import DELETE_TO_HIGH_WATERMARK, UNKNOWN_EPOCH, IsolationLevel
from wire.errors import ErrorCode, KafkaError
from wire.primitives import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)

if TYPE_CHECKING:
    from storage.log.partition_log import PartitionLog

NOTHING = (-1, -1, UNKNOWN_EPOCH)
"""(timestamp, offset, leader epoch) when there is no such record."""


def list_offset(
    log: PartitionLog,
    timestamp: int,
    isolation: IsolationLevel | None,
    leader_epoch: int,
    leader_epoch_start_offset: int,
) -> tuple[int, int, int]:
    """(timestamp, offset, leader_epoch) for `timestamp`; only clients have an isolation level.

    Raises OFFSET_NOT_AVAILABLE to clients while the high watermark has not reached the start of
    this leader epoch, so that end offsets never go back after an election (V-4, KIP-207);
    UNSUPPORTED_VERSION for a special timestamp nobody knows.
    """
    if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        start_offset = log.log_start_offset
        return -1, start_offset, _epoch_of_start(log, start_offset)
    if timestamp in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
        return NOTHING
    is_lagging = isolation is not None and leader_epoch_start_offset > log.high_watermark
    bound = _last_fetchable_offset(log, isolation)
    if timestamp == LATEST_TIMESTAMP:
        found = None if is_lagging else (-1, bound, leader_epoch)
    else:
        found = _search(log, timestamp)
        if found is not None and found[1] >= bound:
            found = None
    if found is None and is_lagging:
        raise KafkaError(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            f"the high watermark {log.high_watermark} has not reached the start"
            f" {leader_epoch_start_offset} of leader epoch {leader_epoch}",
        )
    return found or NOTHING


def _last_fetchable_offset(log: PartitionLog, isolation: IsolationLevel | None) -> int:
    if isolation is None:
        return log.log_end_offset
    if isolation == IsolationLevel.READ_COMMITTED:
        return log.last_stable_offset
    return log.high_watermark


def _search(log: PartitionLog, timestamp: int) -> tuple[int, int, int] | None:
    if timestamp == MAX_TIMESTAMP:
        return log.max_timestamp_offset()
    if timestamp < 0:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"unknown special timestamp {timestamp}")
    return log.offset_for_timestamp(timestamp)


def _epoch_of_start(log: PartitionLog, start_offset: int) -> int:
    """The first known epoch if it covers the log start, else -1."""
    entry = log.leader_epochs.earliest_entry
    return entry[0] if entry is not None and entry[1] <= start_offset else UNKNOWN_EPOCH


def offset_to_delete(log: PartitionLog, offset: int) -> int:
    """DeleteRecords: where the log is to start, the high watermark for -1.

    Raises OFFSET_OUT_OF_RANGE above the high watermark, POLICY_VIOLATION on a log that is only
    compacted.
    """
    policy = log.config.cleanup_policy
    if "compact" in policy and "delete" not in policy:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            "records of a compacted topic cannot be deleted: cleanup.policy has no delete",
        )
    high_watermark = log.high_watermark
    if offset == DELETE_TO_HIGH_WATERMARK:
        return high_watermark
    if not 0 <= offset <= high_watermark:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"cannot delete to offset {offset}: the high watermark is {high_watermark}",
        )
    return offset
