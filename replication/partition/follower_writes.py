"""What a follower does to its log, as the leader of an epoch tells it: appends, and cuts off.

All of it is of one leader epoch, and is refused once another has begun. What is cut off is cut off
the future log, too, of a replica that moves to another directory: it never has what the current
log, from which it is filled, has not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replication.partition.roles import Following
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from replication.partition.partition import Partition
    from storage.log.partition_log import LogAppendInfo, PartitionLog


def append_records_to_follower(
    partition: Partition,
    records: memoryview | bytes | None,
    leader_epoch: int,
    high_watermark: int,
    log_start_offset: int,
) -> tuple[LogAppendInfo | None, bool]:
    """Write what the leader of `leader_epoch` sent, then follow its offsets (H-9).

    Returns what was appended, None without records, and whether our high watermark moved: to the
    leader's, but not beyond our own end. Our log starts where the leader's does, once that is
    committed here. Raises FENCED_LEADER_EPOCH if another epoch began, and what
    `append_as_follower` raises.
    """
    info = None
    with partition.lock:
        log = _followed_log(partition, leader_epoch)
        if records:
            info = log.append_as_follower(records, leader_epoch, log_start_offset)
        view = log.view
        offset = high_watermark if high_watermark < view.end_offset else view.end_offset
        is_advanced = offset > view.high_watermark and log.update_high_watermark(offset)
    if log.log_start_offset < log_start_offset <= log.high_watermark:
        log.increment_log_start_offset(log_start_offset)
    return info, is_advanced


def truncate_follower_to(partition: Partition, offset: int, leader_epoch: int) -> None:
    """Cut off what the leader of `leader_epoch` does not have. Raises as the append does."""
    with partition.lock:
        for log in _followed_logs(partition, leader_epoch):
            log.truncate_to(offset)


def truncate_follower_fully(partition: Partition, offset: int, leader_epoch: int) -> None:
    """Start over, empty, at the leader's log start (E-10). Raises as the append does."""
    with partition.lock:
        for log in _followed_logs(partition, leader_epoch):
            log.truncate_fully_and_start_at(offset)


def _followed_logs(partition: Partition, leader_epoch: int) -> list[PartitionLog]:
    """To be cut, the future log first: once ours is cut the leader asks for no cut again. One whose
    disk failed never becomes ours."""
    log, future = _followed_log(partition, leader_epoch), partition.future_log
    return [log] if future is None or future.is_offline else [future, log]


def _followed_log(partition: Partition, leader_epoch: int) -> PartitionLog:
    role, log = partition.role, partition.log
    if (
        log is None
        or type(role) is not Following
        or partition.is_electing
        or leader_epoch != role.leader_epoch
    ):
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"leader epoch {leader_epoch} is over, it is {role.leader_epoch}",
        )
    return log
