"""What one partition answers without its lock: reads, offsets, epochs, and why it refuses.

The half of `partition.Partition` that changes nothing but log starts (DeleteRecords). A read sees
one log below its high watermark, which stays true even if leadership moves meanwhile (V-6).

Who may read what (V-1, V-5, KIP-392):

    replica              the leader's log, up to its end
    consumer             the leader's log, up to the high watermark or the last stable offset
    consumer, v11+       a follower's log too, up to the follower's own high watermark; an offset
                         beyond the follower's end is waited for, unless the consumer's epoch says
                         that it means this very history: then it is out of range, and the consumer
                         asks the leader
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from replication.partition import isr as isr_rules
from replication.partition.isr import IsrState, ReplicaState
from replication.partition.offset_lookup import list_offset
from replication.partition.requests import (
    UNKNOWN_EPOCH,
    FetchPartition,
    FetchResult,
    IsolationLevel,
    QuietAnswer,
)
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage
    from storage.log.partition_log import PartitionLog
    from wire.primitives import TopicPartition

_OFFSET_OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)
NO_LEADER = -1


class PartitionReads:
    """State that reads look at; `Partition` writes it under its lock.

    `leader_log` is set exactly while this node serves as leader.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes,
        metadata: Callable[[], MetadataImage],
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log: PartitionLog | None = None
        self.leader_log: PartitionLog | None = None
        self.not_serving = ErrorCode.NOT_LEADER_OR_FOLLOWER
        """What requests get while `leader_log` is None."""
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self.leader_epoch_start_offset = -1
        self.followers: dict[int, ReplicaState] = {}
        """While leading: what is known of each other replica."""
        self.isr_state = IsrState(frozenset())
        self.bytes_out = 0
        self._metadata = metadata

    def __repr__(self) -> str:
        topic, index = self.topic_partition
        return f"Partition({topic}-{index}, leader={self.leader_id}, epoch={self.leader_epoch})"

    @property
    def high_watermark(self) -> int:
        return -1 if self.log is None else self.log.high_watermark

    # ------------------------------------------------------------------ reads

    def readable_log(self, leader_only: bool) -> PartitionLog | None:
        """The log a fetch may read now; a follower's too unless `leader_only`."""
        log = self.leader_log
        return self.log if log is None and not leader_only else log

    def read_records(
        self,
        fetch: FetchPartition,
        max_bytes: int,
        min_one: bool,
        isolation: int | None,
        leader_only: bool = True,
    ) -> FetchResult:
        """Read from the log what `isolation` may see (None: a replica, all of it).

        Never raises KafkaError: the result carries the code. V-1: an offset between the bound and
        the log end gives no records, beyond the end or below the start OFFSET_OUT_OF_RANGE.
        `min_one` lets the first batch exceed `max_bytes` (KIP-74).
        Budget: 3 µs on top of the log's read.
        """
        log = self.leader_log
        if log is None and not leader_only:
            log = self.log
        epoch = fetch.current_leader_epoch
        if log is None or (epoch != UNKNOWN_EPOCH and epoch != self.leader_epoch):
            return FetchResult(int(self._refusal(epoch).code))
        # The order of these reads keeps LSO <= HW <= LEO while appends go on.
        high_watermark = log.high_watermark
        log_end_offset = log.log_end_offset
        last_stable_offset = log.last_stable_offset
        if last_stable_offset > high_watermark:
            last_stable_offset = high_watermark
        offset = fetch.fetch_offset
        result = FetchResult(0, high_watermark, last_stable_offset, log.log_start_offset)
        if fetch.last_fetched_epoch != UNKNOWN_EPOCH and self._diverges(log, fetch, result):
            return result
        if not result.log_start_offset <= offset <= log_end_offset:
            if offset > log_end_offset and epoch == UNKNOWN_EPOCH and log is not self.leader_log:
                return result  # the follower is behind its leader: wait (V-5)
            return FetchResult(_OFFSET_OUT_OF_RANGE)
        upper_offset = log_end_offset
        if isolation == 0:
            upper_offset = high_watermark
        elif isolation is not None:
            upper_offset = last_stable_offset
            result.aborted = ()
        if offset < upper_offset and (max_bytes > 0 or min_one):
            self._read_log(result, log, offset, max_bytes, min_one, upper_offset)
        return result

    def quiet_answer(
        self, replica_id: int, replica_epoch: int, request: FetchPartition, now_ms: int | None
    ) -> QuietAnswer | None:
        """The answer to a follower in sync that asks from our end what it asked there before.

        None: read, and look at what it tells. In a session most partitions are of this kind at any
        time, and all that such a fetch says is that the follower is still there: at `now_ms`, or
        nothing if that is None (a parked fetch is answered).
        Budget: 0.5 µs, no lock: what is written is only when the follower was caught up.
        """
        follower = self.followers.get(replica_id)
        log = self.leader_log
        if (
            follower is None
            or log is None
            or follower.quiet_request is not request
            or follower.broker_epoch != replica_epoch
            or log.log_end_offset != request.fetch_offset
            or replica_id not in self.isr_state.isr
        ):
            return None
        if now_ms is not None:
            follower.last_fetch_ms = follower.last_caught_up_ms = now_ms
        answer = follower.quiet_answer
        if (
            type(answer) is not QuietAnswer
            or answer.high_watermark != log.high_watermark
            or answer.log_start_offset != log.log_start_offset
        ):
            high_watermark = log.high_watermark
            answer = QuietAnswer(0, high_watermark, high_watermark, log.log_start_offset)
            follower.quiet_answer = answer
        return answer

    def _read_log(
        self,
        result: FetchResult,
        log: PartitionLog,
        offset: int,
        max_bytes: int,
        min_one: bool,
        upper_offset: int,
    ) -> None:
        wants_aborted = result.aborted is not None
        try:
            read = log.read(offset, max_bytes, min_one, upper_offset, include_aborted=wants_aborted)
        except KafkaError as error:  # deleted by retention just now, or a storage error
            result.error_code = int(error.code)
            return
        if read.records is not None:
            result.records = read.records
            self.bytes_out += read.records.size
            if wants_aborted:
                result.aborted = read.aborted

    def _diverges(self, log: PartitionLog, fetch: FetchPartition, result: FetchResult) -> bool:
        """E-5: the fetcher's last epoch must end where ours does; True if `result` says otherwise.

        An epoch we cannot place, and an offset below the log start, are OFFSET_OUT_OF_RANGE.
        """
        if (
            fetch.last_fetched_epoch == log.leader_epochs.latest_epoch
            and result.log_start_offset <= fetch.fetch_offset <= log.log_end_offset
        ):
            return False  # the latest epoch ends where the log does: nearly always
        epoch, end_offset = log.end_offset_for_epoch(fetch.last_fetched_epoch)
        if epoch < 0 or end_offset < 0 or fetch.fetch_offset < result.log_start_offset:
            result.error_code = _OFFSET_OUT_OF_RANGE
            result.high_watermark = result.last_stable_offset = result.log_start_offset = -1
            return True
        if epoch < fetch.last_fetched_epoch or end_offset < fetch.fetch_offset:
            result.diverging_epoch = (epoch, end_offset)
            return True
        return False

    def diverges(self, fetch: FetchPartition) -> bool:
        """Would a read now report divergence (a parked fetch asks)?"""
        log = self.leader_log
        return (
            log is not None
            and fetch.last_fetched_epoch != UNKNOWN_EPOCH
            and self._diverges(log, fetch, FetchResult(log_start_offset=log.log_start_offset))
        )

    # ------------------------------------------------------------------ offsets

    def fetch_offset_for_timestamp(
        self,
        timestamp: int,
        isolation: IsolationLevel | None,
        current_leader_epoch: int = UNKNOWN_EPOCH,
        *,
        leader_only: bool = True,
    ) -> tuple[int, int, int]:
        """ListOffsets: (timestamp, offset, leader_epoch), all -1 where nothing is to be found.

        `isolation` None (replicas, debugging consumers) sees up to the log end. Raises as
        `offset_lookup.list_offset`, and the leadership errors.
        """
        log = self._log_with_epoch(current_leader_epoch, leader_only)
        return list_offset(
            log, timestamp, isolation, self.leader_epoch, self.leader_epoch_start_offset
        )

    def end_offset_for_epoch(
        self, current_leader_epoch: int, leader_epoch: int, *, leader_only: bool = True
    ) -> tuple[int, int]:
        """OffsetForLeaderEpoch: (epoch, exclusive end offset), (-1, -1) if unknown (E-4)."""
        log = self._log_with_epoch(current_leader_epoch, leader_only)
        epoch, end_offset = log.end_offset_for_epoch(leader_epoch)
        return epoch, end_offset

    def delete_records(self, offset: int) -> tuple[int, int]:
        """Move the log start up to `offset` (-1: the HW); returns (that offset, low watermark).

        Raises OFFSET_OUT_OF_RANGE above the high watermark, POLICY_VIOLATION on a log that is only
        compacted.
        """
        log = self._log_with_epoch(UNKNOWN_EPOCH, True)
        policy = log.config.cleanup_policy
        if "compact" in policy and "delete" not in policy:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                "records of a compacted topic cannot be deleted: cleanup.policy has no delete",
            )
        if offset == -1:
            offset = log.high_watermark
        if not 0 <= offset <= log.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete to offset {offset}: the high watermark is {log.high_watermark}",
            )
        log.increment_log_start_offset(offset)
        return offset, self.low_watermark()

    def low_watermark(self) -> int:
        """The smallest log start offset of all living replicas; raises if not the leader."""
        log = self._log_with_epoch(UNKNOWN_EPOCH, True)
        if not self.followers:
            return log.log_start_offset
        alive = {
            broker_id for broker_id, broker in self._metadata().brokers.items() if not broker.fenced
        }
        return isr_rules.low_watermark(log.log_start_offset, self.followers, alive)

    def open_log(self) -> PartitionLog:
        """The log in whatever role; raises KafkaError if the partition was stopped."""
        log = self.log
        if log is None:
            raise self._not_serving_error()
        return log

    def active_producers(self) -> list[Any]:
        """DescribeProducers; served by followers too."""
        return list(self.open_log().active_producers())

    # ------------------------------------------------------------------ helpers

    def _log_with_epoch(self, current_leader_epoch: int, leader_only: bool) -> PartitionLog:
        log = self.leader_log if leader_only else self.log
        if log is None or (
            current_leader_epoch != UNKNOWN_EPOCH and current_leader_epoch != self.leader_epoch
        ):
            raise self._refusal(current_leader_epoch)
        return log

    def _refusal(self, current_leader_epoch: int) -> KafkaError:
        """Why a request is not served: stopped, another leader epoch (E-2), or not the leader."""
        if self.not_serving is ErrorCode.NOT_LEADER_OR_FOLLOWER and (
            current_leader_epoch != UNKNOWN_EPOCH and current_leader_epoch != self.leader_epoch
        ):
            code = (
                ErrorCode.FENCED_LEADER_EPOCH
                if current_leader_epoch < self.leader_epoch
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
            return KafkaError(
                code, f"leader epoch {current_leader_epoch} is not the current {self.leader_epoch}"
            )
        return self._not_serving_error()

    def _not_serving_error(self) -> KafkaError:
        topic, index = self.topic_partition
        return KafkaError(self.not_serving, f"{topic}-{index} is not served by this broker")
