"""One replica of one partition on this node: its role, its ISR, its high watermark.

A `Partition` stands between the replica manager and a `PartitionLog`. It knows whether this node
leads, under which leader epoch, how far each follower is (`isr.ReplicaState`), and from that how
far the log is committed. A node alone is a cluster of one: the same code with no followers and an
ISR of one.

Transitions (driven by metadata records, through `LocalReplicas`):

    absent   --make_leader--> leader      epoch start recorded, then serving (E-3)
    absent   --make_follower--> follower
    leader   --make_leader--> leader      idempotent; a new leader epoch resets follower states
    leader   --make_follower--> follower  appends and reads answer NOT_LEADER_OR_FOLLOWER
    any      --stop--> stopped            deleted or in an offline directory; final

What the leader counts for itself is its log end offset in page-cache mode, and what is flushed
where `flush.messages` asks (`replication.group_commit`); `on_progress` then tells the replica
manager to look at its purgatories.

Lock: `lock` guards role, epochs, ISR and follower states, and is held across an append so that the
batch gets the epoch it was checked under. Order: partition, then log. It is never held across an
fsync, a wait or a callback. Reads take no partition lock: they see one leader's log below its high
watermark, which stays true even if leadership moves meanwhile (V-6).

Gaps: followers do not fetch yet and the ISR changes only by metadata (AlterPartition is not sent);
consumers are served by the leader only (KIP-392).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from replication import isr as isr_rules
from replication.group_commit import FlushAsync, GroupCommit
from replication.isr import IsrState, ReplicaState
from replication.offset_lookup import list_offset
from replication.requests import UNKNOWN_EPOCH, FetchPartition, FetchResult, IsolationLevel
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from replication.metadata import MetadataImage, PartitionRegistration
    from storage.config import Clock
    from storage.log import AppendOrigin, LogAppendInfo, PartitionLog
    from wire.primitives import TopicPartition

logger = logging.getLogger(__name__)

_OFFSET_OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)
_NO_LEADER = -1


class Partition:
    """See the module for roles, lock and transitions.

    Invariants: `leader_log` is set exactly while this node serves as leader; high watermark <= log
    end offset; `leader_epoch` and `partition_epoch` never go back.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes,
        node_id: int,
        clock: Clock,
        *,
        metadata: Callable[[], MetadataImage],
        flush_async: FlushAsync,
        on_progress: Callable[[Partition], object],
        lag_ms_max: int = 30_000,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.lock = threading.Lock()
        self.log: PartitionLog | None = None
        self.leader_log: PartitionLog | None = None
        self.not_serving = ErrorCode.NOT_LEADER_OR_FOLLOWER
        """What requests get while `leader_log` is None."""
        self.leader_id = _NO_LEADER
        self.leader_epoch = -1
        self.leader_epoch_start_offset = -1
        self.leader_since_epoch = -1
        """First leader epoch of this unbroken leadership: offsets appended under an older one may
        have been truncated since."""
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.adding_replicas: tuple[int, ...] = ()
        self.removing_replicas: tuple[int, ...] = ()
        self.isr_state = IsrState(frozenset())
        self.followers: dict[int, ReplicaState] = {}

        # Plain counters, read by server.metrics. Written under the lock (in) or racily (out).
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0

        self._node_id = node_id
        self._clock = clock
        self._metadata = metadata
        self._on_progress = on_progress
        self._lag_ms_max = lag_ms_max
        self._min_isr = 1
        self._has_min_isr = False
        self._is_electing = False  # a leader epoch is being recorded: no appends
        self._group_commit = GroupCommit(flush_async, self._log_flushed)

    def __repr__(self) -> str:
        topic, index = self.topic_partition
        return f"Partition({topic}-{index}, leader={self.leader_id}, epoch={self.leader_epoch})"

    # ------------------------------------------------------------------ what it is

    @property
    def is_leader(self) -> bool:
        return self.leader_log is not None

    @property
    def isr(self) -> frozenset[int]:
        """The committed ISR."""
        return self.isr_state.isr

    @property
    def high_watermark(self) -> int:
        return -1 if self.log is None else self.log.high_watermark

    @property
    def is_under_min_isr(self) -> bool:
        return self.is_leader and not self._has_min_isr

    @property
    def is_under_replicated(self) -> bool:
        """Some assigned replica is not in the ISR; replicas being added do not count (B-6)."""
        return self.is_leader and len(self.isr) < len(self.replicas) - len(self.adding_replicas)

    def has_enough_in_sync(self) -> bool:
        """Does the maximal ISR satisfy min.insync.replicas (checked when acks=all completes)?"""
        return len(self.isr_state.maximal_isr) >= self._min_isr

    # ------------------------------------------------------------------ role changes

    def make_leader(self, registration: PartitionRegistration, log: PartitionLog) -> bool:
        """Lead, as the metadata says; True if a new leader epoch began.

        Idempotent: metadata older than what is known is ignored, the same again changes nothing.
        The epoch's start is on disk before the first append can be stamped with it (E-3); during
        that moment new appends are answered NOT_LEADER_OR_FOLLOWER, which clients retry.

        The caller serialises role changes, and calls `on_progress`'s work itself afterwards.
        """
        with self.lock:
            if self._is_stale(registration):
                return False
            is_new_leader = self.leader_log is None
            is_new_epoch = registration.leader_epoch > self.leader_epoch or is_new_leader
            self._is_electing = is_new_epoch
        start_offset = log.log_end_offset
        if is_new_epoch:
            log.assign_epoch_start(registration.leader_epoch, start_offset)
        with self.lock:
            self._is_electing = False
            if self._is_stale(registration):  # stopped meanwhile
                return False
            self.log = log
            self._assign(registration)
            if is_new_epoch:
                self._begin_leader_epoch(registration, start_offset, is_new_leader=is_new_leader)
            self.leader_log = log
            self._refresh_min_isr()
            if is_new_leader:
                self._group_commit.begin_leadership(log)
            self._advance_high_watermark(log)
        if is_new_epoch:
            self.request_flush()
        return is_new_epoch

    def make_follower(self, registration: PartitionRegistration, log: PartitionLog) -> bool:
        """Stop leading (the leader is another node, or none); True if the leader epoch is new.

        The caller completes delayed operations afterwards.
        """
        with self.lock:
            if self._is_stale(registration):
                return False
            is_new_epoch = registration.leader_epoch > self.leader_epoch
            self.leader_log = None
            self.not_serving = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self.log = log
            self.leader_id = registration.leader
            self.leader_epoch = registration.leader_epoch
            self.leader_epoch_start_offset = -1
            self._assign(registration)
            self.followers = {}
            self._refresh_min_isr()
        if is_new_epoch:
            logger.info(
                "became follower partition=%s-%s leader=%s leader_epoch=%s log_end_offset=%s",
                *self.topic_partition, self.leader_id, self.leader_epoch, log.log_end_offset,
            )  # fmt: skip
        return is_new_epoch

    def stop(self, error: ErrorCode) -> None:
        """Serve nothing any more: every request, waiting ones included, gets `error`.

        The caller completes delayed operations afterwards.
        """
        with self.lock:
            self.not_serving = error
            self.leader_log = None
            self.log = None
            self.followers = {}
            self.isr_state = IsrState(frozenset())
            self._has_min_isr = False

    def config_changed(self) -> None:
        """The log got a new LogConfig: min.insync.replicas may let the high watermark move."""
        with self.lock:
            self._refresh_min_isr()
            log = self.leader_log
            if log is not None:
                self._advance_high_watermark(log)

    def _is_stale(self, registration: PartitionRegistration) -> bool:
        stopped = self.not_serving is not ErrorCode.NOT_LEADER_OR_FOLLOWER
        return stopped or registration.partition_epoch < self.partition_epoch

    def _assign(self, registration: PartitionRegistration) -> None:
        self.partition_epoch = registration.partition_epoch
        self.replicas = tuple(registration.replicas)
        self.adding_replicas = tuple(registration.adding_replicas)
        self.removing_replicas = tuple(registration.removing_replicas)
        self.isr_state = self.isr_state.commit(registration.isr)
        known = self.followers
        # A new dict: fetches look into the old one without the lock.
        self.followers = {
            replica_id: known.get(replica_id) or ReplicaState()
            for replica_id in self.replicas
            if replica_id != self._node_id
        }

    def _begin_leader_epoch(
        self, registration: PartitionRegistration, start_offset: int, *, is_new_leader: bool
    ) -> None:
        now_ms = self._clock.now_ms()
        for replica_id, follower in self.followers.items():
            follower.reset(
                now_ms,
                start_offset,
                is_new_leader=is_new_leader,
                is_in_isr=replica_id in self.isr,
            )
        self.leader_id = self._node_id
        self.leader_epoch = registration.leader_epoch
        self.leader_epoch_start_offset = start_offset
        if is_new_leader:
            self.leader_since_epoch = registration.leader_epoch
        logger.info(
            "became leader partition=%s-%s leader_epoch=%s partition_epoch=%s isr=%s "
            "log_end_offset=%s",
            *self.topic_partition, self.leader_epoch, self.partition_epoch,
            ",".join(map(str, sorted(self.isr))), start_offset,
        )  # fmt: skip

    def _refresh_min_isr(self) -> None:
        minimum = 1 if self.log is None else self.log.config.min_insync_replicas
        self._min_isr = isr_rules.effective_min_isr(minimum, len(self.replicas))
        self._has_min_isr = len(self.isr_state.isr) >= self._min_isr

    # ------------------------------------------------------------------ append and high watermark

    def append_records_to_leader(
        self,
        records: memoryview | bytes,
        acks: int,
        wall_ms: int,
        origin: AppendOrigin,
        request_version: int | None,
    ) -> tuple[LogAppendInfo, bool]:
        """Append one client's batch; returns what was appended and whether the HW advanced.

        Raises KafkaError: NOT_ENOUGH_REPLICAS (19) before anything is written when acks is -1 and
        the ISR is too small (H-11); the leadership errors; whatever the log refuses.
        Duties of the caller: complete delayed operations, `request_flush` if `must_flush`.
        Budget: 1 µs on top of `append_as_leader`.
        """
        with self.lock:
            log = self.leader_log
            if log is None or self._is_electing:
                raise self._not_serving_error()
            if acks == -1 and not self._has_min_isr:
                raise KafkaError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"the ISR {sorted(self.isr)} is smaller than min.insync.replicas"
                    f" {self._min_isr}",
                )
            info = log.append_as_leader(
                records, self.leader_epoch, wall_ms, origin, request_version
            )
            next_offset = info.last_offset + 1
            if not info.duplicate:
                self.messages_in += next_offset - info.first_offset
                self.bytes_in += len(records)
            if info.must_flush and next_offset > self._group_commit.target:
                self._group_commit.target = next_offset
            return info, self._advance_high_watermark(log)

    def _advance_high_watermark(self, log: PartitionLog) -> bool:
        """H-1; the caller holds the lock. True if it moved."""
        if not self._has_min_isr:
            return False
        offset = self._group_commit.counted_end_offset(log)
        current = log.high_watermark
        if self.followers:
            offset = isr_rules.high_watermark(
                current,
                offset,
                self.isr_state,
                self.followers,
                self._eligible_followers(),
                self._min_isr,
                self._clock.now_ms(),
                self._lag_ms_max,
            )
        return offset > current and log.update_high_watermark(offset)

    def _eligible_followers(self) -> set[int]:
        brokers = self._metadata().brokers
        eligible = set()
        for replica_id, follower in self.followers.items():
            broker = brokers.get(replica_id)
            if broker is not None and isr_rules.is_isr_eligible(
                follower,
                is_active=broker.active,
                registered_epoch=broker.broker_epoch,
            ):
                eligible.add(replica_id)
        return eligible

    def waits_for_flush(self, next_offset: int) -> bool:
        """Must records below `next_offset` still be fsynced before they may be acknowledged?"""
        log = self.leader_log
        if log is None:
            return False
        flushed_offset = log.flushed_offset
        return flushed_offset < next_offset and flushed_offset < self._group_commit.target

    def must_wait(self, next_offset: int, acks: int) -> bool:
        """Must the acknowledgement of what was appended below `next_offset` wait?"""
        if acks != -1:
            return self.waits_for_flush(next_offset)
        log = self.leader_log
        return log is None or log.high_watermark < next_offset

    def request_flush(self) -> None:
        """Have the log fsynced if acknowledgements wait for it; call it without any lock."""
        log = self.leader_log
        if log is not None:
            self._group_commit.request(log)

    def _log_flushed(self) -> None:
        with self.lock:
            log = self.leader_log
            if log is not None:
                self._advance_high_watermark(log)
        self._on_progress(self)

    # ------------------------------------------------------------------ reads

    def read_records(
        self, fetch: FetchPartition, max_bytes: int, min_one: bool, isolation: int | None
    ) -> FetchResult:
        """Read from the leader's log what `isolation` may see (None: a replica, all of it).

        Never raises KafkaError: the result carries the code. V-1: an offset between the bound and
        the log end gives no records, beyond the end or below the start OFFSET_OUT_OF_RANGE.
        `min_one` lets the first batch exceed `max_bytes` (KIP-74).
        Budget: 3 µs on top of the log's read.
        """
        log = self.leader_log
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
            and self._diverges(log, fetch, FetchResult())
        )

    def check_follower(self, replica_id: int, current_leader_epoch: int) -> ErrorCode:
        """E-2: an unassigned replica is told to retry (75), or 6 if it sent no epoch."""
        if replica_id in self.followers:
            return ErrorCode.NONE
        if current_leader_epoch != UNKNOWN_EPOCH:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def update_follower_fetch_state(
        self, replica_id: int, replica_epoch: int, fetch: FetchPartition, leader_end_offset: int
    ) -> bool:
        """A follower fetched; True if that moved the high watermark or the low watermark.

        `leader_end_offset` was read before the fetch was served. Raises NOT_LEADER_OR_FOLLOWER for
        a fetch by an earlier incarnation of the follower's broker (KIP-903).
        """
        broker = self._metadata().brokers.get(replica_id)
        if replica_epoch != -1 and broker is not None and broker.broker_epoch > replica_epoch:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"stale broker epoch {replica_epoch} of replica {replica_id}",
            )
        with self.lock:
            log = self.leader_log
            follower = self.followers.get(replica_id)
            if log is None or follower is None:
                return False
            end_offset_before = follower.log_end_offset
            start_offset_before = follower.log_start_offset
            follower.update_fetch_state(
                fetch.fetch_offset,
                fetch.log_start_offset,
                self._clock.now_ms(),
                leader_end_offset,
                replica_epoch,
            )
            advanced = start_offset_before != follower.log_start_offset
            if end_offset_before != follower.log_end_offset:
                advanced |= self._advance_high_watermark(log)
            return advanced

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
