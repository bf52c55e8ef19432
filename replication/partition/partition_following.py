"""What is written to a partition's log other than by clients: by its fetcher, by a move.

The half of `partition.Partition` for a replica that follows. Whatever comes from a leader names the
leader epoch it belongs to and is refused under any other, so that nothing is written once an
election has begun (E-7, H-9).

A replica that moves to another directory has a future log as well. What the fetcher appends goes
to the current log only, for the future one is filled from it; what it cuts off is cut off both, so
that the future log never has what the current one has not. `replace_log` is the move's end.

Lock: `lock`, see `replication.partition.partition`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from replication.partition.partition_reads import PartitionReads
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage
    from storage.log.partition_log import LogAppendInfo, PartitionLog
    from wire.primitives import TopicPartition


class PartitionFollowing(PartitionReads):
    """See the module."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes,
        metadata: Callable[[], MetadataImage],
    ) -> None:
        super().__init__(topic_partition, topic_id, metadata)
        self.lock = threading.Lock()
        self.future_log: PartitionLog | None = None
        """The same replica's log in the directory it moves to, while it moves."""
        self._is_electing = False  # a leader epoch is being recorded: no appends

    def append_records_to_follower(
        self,
        records: memoryview | bytes | None,
        leader_epoch: int,
        high_watermark: int,
        log_start_offset: int,
    ) -> tuple[LogAppendInfo | None, bool]:
        """Write what the leader of `leader_epoch` sent, then follow its offsets (H-9).

        Returns what was appended, None without records, and whether our high watermark moved: to
        the leader's, but not beyond our own end. Our log starts where the leader's does, once that
        is committed here. Raises FENCED_LEADER_EPOCH if another epoch began, and what
        `append_as_follower` raises.
        """
        info = None
        with self.lock:
            log = self._followed_log(leader_epoch)
            if records:
                info = log.append_as_follower(records, leader_epoch)
            end_offset = log.log_end_offset
            offset = high_watermark if high_watermark < end_offset else end_offset
            is_advanced = offset > log.high_watermark and log.update_high_watermark(offset)
        if log.log_start_offset < log_start_offset <= log.high_watermark:
            log.increment_log_start_offset(log_start_offset)
        return info, is_advanced

    def truncate_follower_to(self, offset: int, leader_epoch: int) -> None:
        """Cut off what the leader of `leader_epoch` does not have. Raises as the append does."""
        with self.lock:
            self._followed_log(leader_epoch).truncate_to(offset)
            if self.future_log is not None:
                self.future_log.truncate_to(offset)

    def truncate_follower_fully(self, offset: int, leader_epoch: int) -> None:
        """Start over, empty, at the leader's log start (E-10). Raises as the append does."""
        with self.lock:
            self._followed_log(leader_epoch).truncate_fully_and_start_at(offset)
            if self.future_log is not None:
                self.future_log.truncate_fully_and_start_at(offset)

    def replace_log(self, log: PartitionLog) -> None:
        """A copy of our log, in another directory, is our log from now on; under the lock."""
        self.future_log = None
        if self.leader_log is not None:
            self.leader_log = log
        self.log = log

    def _followed_log(self, leader_epoch: int) -> PartitionLog:
        log = self.log
        if (
            log is None
            or self.leader_log is not None
            or self._is_electing
            or leader_epoch != self.leader_epoch
        ):
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"leader epoch {leader_epoch} is over, it is {self.leader_epoch}",
            )
        return log
