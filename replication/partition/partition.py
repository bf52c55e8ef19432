"""One replica of one partition on this node: a lock, a log, an identity, and the role it is in.

A `Partition` stands between the replica manager and a `PartitionLog`. What this node is for the
partition is its `role`: `Leading` knows how far each follower is and from that how far the log is
committed; `Following` knows whom it follows; `Stopped` serves nothing. A node alone is a cluster of
one: the same code with no followers and an ISR of one.

Transitions (driven by metadata records, through `LocalReplicas`):

    Following --make_leader--> Leading    epoch start recorded, then serving (E-3)
    Following --make_follower--> Following
    Leading   --make_leader--> Leading    idempotent; another one for a new leader epoch
    Leading   --make_follower--> Following   appends and reads answer NOT_LEADER_OR_FOLLOWER
    any       --stop--> Stopped           deleted or in an offline directory; final

What the leader counts for itself is its log end offset, and where `flush.messages` asks for it what
is flushed (`group_commit`); `on_progress` tells the replica manager to look at its purgatories.

The ISR: a follower that has caught up is proposed to join it, one that lags is proposed to leave
it; the controller decides and answers through `alter_isr` (H-7). Until then the larger of both sets
counts for the high watermark (H-3).

A replica that moves to another directory has a future log as well, which is filled from the current
one. What a follower writes and cuts off: `follower_writes`.

Lock: `lock` guards the role and which log is ours, and is held across an append so that the batch
gets the epoch it was checked under. Order: partition, then log. It is never held across an fsync, a
wait or a callback. Reads take no lock: they look at `role` first and at `log` then. What is found
so is of one leader epoch, and is worth something later only together with it: whoever comes back
with it, to move the high watermark or to acknowledge, says the epoch.

What holds a partition alive: `LocalReplicas.partitions`, and whatever is under way. It refers to
nothing that refers back to it, so that a deleted one is freed at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from replication.partition.group_commit import FlushAsync, GroupCommit
from replication.partition.isr import IsrState
from replication.partition.isr_changes import IsrChanges
from replication.partition.leading import Leading, epoch_refusal
from replication.partition.log_reads import read_log
from replication.partition.offset_lookup import list_offset, offset_to_delete
from replication.partition.requests import (
    UNKNOWN_EPOCH,
    FetchPartition,
    FetchResult,
    IsolationLevel,
    IsrChange,
    QuietAnswer,
)
from replication.partition.roles import Following, Role, Stopped
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from replication.metadata.image import BrokerRegistration, MetadataImage, PartitionRegistration
    from storage.config import Clock
    from storage.log.append_source import AppendSource
    from storage.log.partition_log import LogAppendInfo, PartitionLog
    from wire.primitives import TopicPartition

logger = logging.getLogger(__name__)

_NOBODY: Mapping[int, BrokerRegistration] = {}


class Partition:
    """See the module for roles, lock and transitions.

    Invariants: `log` is set while the role is `Leading`; high watermark <= log end offset; the
    role's `leader_epoch` and `partition_epoch` never go back.
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
        alter_isr: Callable[[IsrChange], object] | None = None,
        lag_ms_max: int = 30_000,
    ) -> None:
        """`alter_isr` hands a change to the controller; called with no lock held."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.lock = threading.Lock()
        self.role: Role = Following()
        self.log: PartitionLog | None = None
        self.future_log: PartitionLog | None = None
        """The same replica's log in the directory it moves to, while it moves."""
        self.is_electing = False
        """A leader epoch is being recorded in the log: nothing is appended, the log stays ours."""
        self.registration: PartitionRegistration | None = None
        """The metadata this was last brought to."""
        self.isr_changes = IsrChanges(alter_isr)

        self._node_id = node_id
        self._clock = clock
        self._metadata = metadata
        self._on_progress = on_progress
        self._lag_ms_max = lag_ms_max
        self._group_commit = GroupCommit(flush_async)

    def __repr__(self) -> str:
        topic, index = self.topic_partition
        return f"Partition({topic}-{index}, leader={self.leader_id}, epoch={self.leader_epoch})"

    # ------------------------------------------------------------------ what it is

    @property
    def is_leader(self) -> bool:
        return type(self.role) is Leading

    @property
    def leader_id(self) -> int:
        return self.role.leader_id

    @property
    def leader_epoch(self) -> int:
        return self.role.leader_epoch

    @property
    def isr(self) -> frozenset[int]:
        """The committed ISR."""
        return self.role.isr_state.isr

    @property
    def leader_log(self) -> PartitionLog | None:
        """The log while this node leads."""
        return self.log if type(self.role) is Leading else None

    @property
    def high_watermark(self) -> int:
        log = self.log
        return -1 if log is None else log.view.high_watermark

    # ------------------------------------------------------------------ role changes

    def make_leader(self, registration: PartitionRegistration, log: PartitionLog) -> bool:
        """Lead, as the metadata says; True if a new leader epoch began.

        Idempotent: metadata older than what is known is ignored, the same again changes nothing.
        The epoch's start is on disk before the first append can be stamped with it (E-3); during
        that moment new appends are answered NOT_LEADER_OR_FOLLOWER, which clients retry. `log` is
        the one to have if there is none yet.

        The caller serialises role changes, and calls `on_progress`'s work itself afterwards.
        """
        with self.lock:
            if self._is_stale(registration):
                return False
            role = self.role
            log = log if self.log is None else self.log
            if type(role) is Leading and registration.leader_epoch == role.leader_epoch:
                self.registration = registration
                role.update(registration.leader_epoch, registration)
                self.advance_high_watermark(role, log)
                return False
            self.is_electing = True
        start_offset = log.log_end_offset
        log.assign_epoch_start(registration.leader_epoch, start_offset)
        with self.lock:
            self.is_electing = False
            if self._is_stale(registration):  # stopped meanwhile
                return False
            self._begin_leader_epoch(registration, log, start_offset)
        self.request_flush()
        return True

    def _begin_leader_epoch(
        self, registration: PartitionRegistration, log: PartitionLog, start_offset: int
    ) -> None:
        before = self.role
        role = Leading(
            self._node_id,
            registration,
            start_offset,
            log.config.min_insync_replicas,
            self._clock.now_ms(),
            self._lag_ms_max,
            before if type(before) is Leading else None,
        )
        self.registration = registration
        self.log = log
        self.role = role
        if role.since_epoch == role.leader_epoch:
            self._group_commit.begin_leadership(log)
        logger.info(
            "became leader partition=%s-%s leader_epoch=%s partition_epoch=%s isr=%s "
            "log_end_offset=%s",
            *self.topic_partition, role.leader_epoch, role.partition_epoch,
            sorted(role.isr_state.isr), start_offset,
        )  # fmt: skip
        self.advance_high_watermark(role, log)

    def make_follower(self, registration: PartitionRegistration, log: PartitionLog) -> bool:
        """Stop leading (the leader is another node, or none); True if the leader epoch is new.

        `log` is the one to have if there is none yet. The caller completes delayed operations
        afterwards.
        """
        with self.lock:
            if self._is_stale(registration):
                return False
            is_new_epoch = registration.leader_epoch > self.role.leader_epoch
            self.role = role = Following(
                registration.leader,
                registration.leader_epoch,
                registration.partition_epoch,
                IsrState(frozenset(registration.isr)),
            )
            self.log = log = log if self.log is None else self.log
            self.registration = registration
        if is_new_epoch:
            logger.info(
                "became follower partition=%s-%s leader=%s leader_epoch=%s log_end_offset=%s",
                *self.topic_partition, role.leader_id, role.leader_epoch, log.log_end_offset,
            )  # fmt: skip
        return is_new_epoch

    def stop(self, error: ErrorCode) -> None:
        """Serve nothing any more: every request, waiting ones included, gets `error`.

        The caller completes delayed operations afterwards.
        """
        with self.lock:
            role = self.role
            self.role = Stopped(role.leader_id, role.leader_epoch, role.partition_epoch, error)
            self.log = None

    def config_changed(self) -> None:
        """The log got a new LogConfig: min.insync.replicas may let the high watermark move."""
        with self.lock:
            role, log = self.role, self.log
            if type(role) is Leading and log is not None:
                role.change_min_isr(role.leader_epoch, log.config.min_insync_replicas)
                self.advance_high_watermark(role, log)

    def _is_stale(self, registration: PartitionRegistration) -> bool:
        role = self.role
        return (
            type(role) is Stopped
            or registration.partition_epoch < role.partition_epoch
            or registration.leader_epoch < role.leader_epoch
        )

    def replace_log(self, log: PartitionLog) -> None:
        """A copy of our log, in another directory, is our log from now on; under the lock."""
        assert self.lock.locked(), "which log is ours is guarded by the lock"
        assert not self.is_electing, "an epoch is being recorded in the other one"
        self.future_log = None
        self.log = log

    # ------------------------------------------------------------------ append and high watermark

    def append_records_to_leader(
        self,
        records: memoryview | bytes,
        acks: int,
        wall_ms: int,
        source: AppendSource,
        leader_epoch: int | None = None,
    ) -> tuple[LogAppendInfo, bool]:
        """Append one client's batch; returns what was appended and whether the HW advanced.

        Raises KafkaError: NOT_ENOUGH_REPLICAS (19), with nothing written, when acks is -1 and the
        ISR is too small (H-11); NOT_ENOUGH_REPLICAS_AFTER_APPEND if an idempotent producer's batch
        is here already (in Kafka 19, and librdkafka writes it again under its next epoch); the
        leadership errors, also if `leader_epoch` is not ours; whatever the log refuses.
        Duties of the caller: complete delayed operations, `request_flush` if `must_flush`.
        Budget: 1 µs on top of `append_as_leader`.
        """
        with self.lock:
            role, log = self._leading()
            epoch = role.leader_epoch
            if leader_epoch is not None:
                role.check_epoch(leader_epoch)
            if acks == -1 and not role.has_min_isr:
                original = log.find_duplicate(records, epoch, wall_ms, source)
                if original is None:
                    raise role.not_enough_replicas(ErrorCode.NOT_ENOUGH_REPLICAS)
                if original.last_offset >= log.high_watermark:
                    raise role.not_enough_replicas(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
                return original, False
            info = log.append_as_leader(records, epoch, wall_ms, source)
            return info, self._appended(role, log, info)

    def append_run_to_leader(
        self, batches: Sequence[memoryview | bytes], acks: int, wall_ms: int, source: AppendSource
    ) -> tuple[list[LogAppendInfo], bool] | None:
        """The same of clients' batches that came together, with one write; None, with nothing done,
        where `append_records_to_leader` has to say what becomes of each."""
        with self.lock:
            role, log = self._leading()
            if acks == -1 and not role.has_min_isr:
                return None
            infos = log.append_run_as_leader(batches, role.leader_epoch, wall_ms, source)
            return None if infos is None else (infos, self._appended(role, log, infos[-1]))

    def _leading(self) -> tuple[Leading, PartitionLog]:
        """Raises the leadership errors unless appends are served; the lock is held."""
        role, log = self.role, self.log
        if type(role) is not Leading or log is None or self.is_electing:
            raise self._not_serving_error()
        return role, log

    def _appended(self, role: Leading, log: PartitionLog, info: LogAppendInfo) -> bool:
        """Whether the high watermark moved by it; the lock is held."""
        next_offset = info.last_offset + 1
        if info.must_flush and next_offset > self._group_commit.target:
            self._group_commit.target = next_offset
        # While a follower is in the ISR, an append alone commits nothing: the next fetch does.
        return not role.waits_for_followers and self.advance_high_watermark(role, log)

    def advance_high_watermark(self, role: Leading, log: PartitionLog) -> bool:
        """H-1; the caller holds the lock. True if it moved."""
        if not role.has_min_isr:
            return False
        offset = self._group_commit.counted_end_offset(log)
        current = log.view.high_watermark
        if role.followers:
            now_ms = self._clock.now_ms()
            # Who may join is asked only where somebody may.
            brokers = _NOBODY if role.all_in_sync else self._metadata().brokers
            offset = role.high_watermark(role.leader_epoch, current, offset, now_ms, brokers)
        return offset > current and log.update_high_watermark(offset)

    def must_wait(self, next_offset: int, acks: int, leader_epoch: int) -> bool:
        """Must the acknowledgement of what was appended below `next_offset`, under `leader_epoch`,
        wait, or be refused where the role does not lead since that epoch?"""
        log = self.log
        if log is None:
            return True
        if acks == -1:
            is_reached = log.view.high_watermark >= next_offset
        else:
            is_reached = not self._group_commit.must_wait(log, next_offset)
        # Asked after the offset was read: who leads since then led when it was true.
        role = self.role
        return not (is_reached and type(role) is Leading and role.since_epoch <= leader_epoch)

    def waits_for_flush(self, next_offset: int) -> bool:
        """Must records below `next_offset` still be fsynced before they may be acknowledged?"""
        log = self.leader_log
        return log is not None and self._group_commit.must_wait(log, next_offset)

    def request_flush(self) -> None:
        """Have the log fsynced if acknowledgements wait for it; call it without any lock."""
        if (log := self.leader_log) is not None:
            self._group_commit.request(log, self._flush_tried)

    def _flush_tried(self, is_flushed: bool) -> None:
        with self.lock:
            role, log = self.role, self.log
            if type(role) is Leading and log is not None:
                self.advance_high_watermark(role, log)
        if is_flushed:
            self.request_flush()
        self._on_progress(self)

    # ------------------------------------------------------------------ followers of the leader

    def leader_end(self) -> tuple[int, int]:
        """(leader epoch, log end offset) before a follower's fetch is served.

        It goes into `update_follower_fetch_state` afterwards, which refuses it if another leader
        epoch has begun since: what was read between the two is of this one.
        """
        role, log = self.role, self.log
        return role.leader_epoch, -1 if log is None else log.view.end_offset

    def check_follower(self, replica_id: int, fetch: FetchPartition, leader_epoch: int) -> None:
        """Raises as `update_follower_fetch_state`, for a fetch that says nothing new."""
        role = self.role
        if type(role) is not Leading:
            raise self._refusal(leader_epoch)
        role.follower(leader_epoch, replica_id, fetch.current_leader_epoch)

    def update_follower_fetch_state(
        self,
        replica_id: int,
        replica_epoch: int,
        fetch: FetchPartition,
        leader_epoch: int,
        leader_end_offset: int,
    ) -> bool:
        """A follower fetched; True if that moved the high watermark or the low watermark.

        `leader_epoch` and `leader_end_offset` are `leader_end` from before the fetch was served.
        Raises KafkaError: FENCED_LEADER_EPOCH if that epoch is over, NOT_LEADER_OR_FOLLOWER if it
        is another's, or for a fetch by an earlier incarnation of the follower's broker (KIP-903),
        and what `Leading.follower` says of a broker that is no replica.
        """
        brokers = self._metadata().brokers
        broker = brokers.get(replica_id)
        if replica_epoch != -1 and broker is not None and broker.broker_epoch > replica_epoch:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"stale broker epoch {replica_epoch} of replica {replica_id}",
            )
        change = None
        with self.lock:
            role, log = self.role, self.log
            if type(role) is not Leading or log is None:
                raise self._refusal(leader_epoch)
            now_ms = self._clock.now_ms()
            is_advanced, is_end_moved = role.update_follower_fetch_state(
                leader_epoch, replica_id, replica_epoch, fetch, leader_end_offset, now_ms
            )
            if not role.all_in_sync and self.isr_changes.may_ask:
                state = role.expand_isr(leader_epoch, replica_id, brokers, log.high_watermark)
                if state is not None:
                    change = self.isr_changes.change_to(self, role, state)
            if is_end_moved:
                is_advanced |= self.advance_high_watermark(role, log)
        if change is not None:
            self.isr_changes.ask(change)
        return is_advanced

    def quiet_answer(
        self, replica_id: int, replica_epoch: int, request: FetchPartition, now_ms: int | None
    ) -> QuietAnswer | None:
        """See `Leading.quiet_answer`. Budget: 0.5 µs, no lock."""
        role, log = self.role, self.log
        if type(role) is not Leading or log is None:
            return None
        return role.quiet_answer(replica_id, replica_epoch, request, now_ms, log.view)

    def maybe_shrink_isr(self) -> None:
        """H-5: have who was not caught up for `lag_ms_max` leave, and not join; each half of it."""
        self.isr_changes.maybe_shrink(self, self._clock.now_ms())

    def made_progress(self) -> None:
        """The ISR is another one, or the high watermark moved with time; no lock is held."""
        self._on_progress(self)

    # ------------------------------------------------------------------ reads

    def readable_log(self, leader_only: bool) -> PartitionLog | None:
        """The log a fetch may read now; a follower's too unless `leader_only`."""
        return self.log if not leader_only or type(self.role) is Leading else None

    def read_records(
        self,
        fetch: FetchPartition,
        max_bytes: int,
        min_one: bool,
        isolation: int | None,
        leader_only: bool = True,
    ) -> FetchResult:
        """`log_reads.read_log`, if the role serves it and the fetch means its leader epoch; never
        raises KafkaError. Budget: 3 µs on top of the log's read."""
        role, log = self.role, self.log
        is_leader = type(role) is Leading
        epoch = fetch.current_leader_epoch
        if (
            log is None
            or (leader_only and not is_leader)
            or (epoch != UNKNOWN_EPOCH and epoch != role.leader_epoch)
        ):
            return FetchResult(int(self._refusal(epoch).code))
        return read_log(log, fetch, max_bytes, min_one, isolation, is_leader)

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
        `offset_lookup.list_offset`, and the leadership errors."""
        role, log = self._role_and_log(current_leader_epoch, leader_only)
        start_offset = role.epoch_start_offset if type(role) is Leading else -1
        return list_offset(log, timestamp, isolation, role.leader_epoch, start_offset)

    def end_offset_for_epoch(
        self, current_leader_epoch: int, leader_epoch: int, *, leader_only: bool = True
    ) -> tuple[int, int]:
        """OffsetForLeaderEpoch: (epoch, exclusive end offset), (-1, -1) if unknown (E-4)."""
        _, log = self._role_and_log(current_leader_epoch, leader_only)
        return log.end_offset_for_epoch(leader_epoch)

    def delete_records(self, offset: int) -> tuple[int, int]:
        """Move the log start up to `offset` (-1: the HW); returns (that offset, low watermark).
        Raises as `offset_lookup.offset_to_delete`, and the leadership errors."""
        with self.lock:  # or the log could be replaced, or cut off by another leader, meanwhile
            _, log = self._role_and_log(UNKNOWN_EPOCH, True)
            offset = offset_to_delete(log, offset)
            log.increment_log_start_offset(offset)
        return offset, self.low_watermark()

    def low_watermark(self) -> int:
        """The smallest log start offset of all living replicas; raises if not the leader."""
        role, log = self._role_and_log(UNKNOWN_EPOCH, True)
        assert type(role) is Leading
        return role.low_watermark(role.leader_epoch, log.log_start_offset, self._metadata().brokers)

    def open_log(self) -> PartitionLog:
        """The log in whatever role; raises KafkaError if the partition was stopped."""
        if (log := self.log) is None:
            raise self._not_serving_error()
        return log

    def _role_and_log(
        self, current_leader_epoch: int, leader_only: bool
    ) -> tuple[Leading | Following, PartitionLog]:
        role, log = self.role, self.log
        if (
            log is None
            or isinstance(role, Stopped)
            or (leader_only and type(role) is not Leading)
            or current_leader_epoch not in (UNKNOWN_EPOCH, role.leader_epoch)
        ):
            raise self._refusal(current_leader_epoch)
        return role, log

    def _refusal(self, current_leader_epoch: int) -> KafkaError:
        """Why a request is not served: stopped, another leader epoch (E-2), or not the leader."""
        role = self.role
        if type(role) is Stopped or current_leader_epoch in (UNKNOWN_EPOCH, role.leader_epoch):
            return self._not_serving_error()
        return epoch_refusal(current_leader_epoch, role.leader_epoch)

    def _not_serving_error(self) -> KafkaError:
        topic, index = self.topic_partition
        return KafkaError(self.role.not_serving, f"{topic}-{index} is not served by this broker")
