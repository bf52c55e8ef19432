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
where `flush.messages` asks (`replication.partition.group_commit`); `on_progress` then tells the
replica manager to look at its purgatories.

The ISR (states in `replication.partition.isr`): a follower that has caught up is proposed to join
it, one that lags is proposed to leave it; the controller decides and answers through `alter_isr`
(H-7). Until then the larger of both sets counts for the high watermark (H-3).

What a follower's fetcher writes comes with the leader epoch it belongs to and is refused under any
other, so that nothing is written once an election has begun (E-7).

Lock: `lock` guards role, epochs, ISR and follower states, and is held across an append so that the
batch gets the epoch it was checked under. Order: partition, then log. It is never held across an
fsync, a wait or a callback. Reads take no partition lock: see
`replication.partition.partition_reads`; what a follower's fetcher writes goes through
`replication.partition.partition_following`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from replication.partition import isr as isr_rules
from replication.partition.group_commit import FlushAsync, GroupCommit
from replication.partition.isr import IsrState, IsrUpdate, ReplicaState
from replication.partition.partition_following import PartitionFollowing
from replication.partition.requests import UNKNOWN_EPOCH, AlteredIsr, FetchPartition, IsrChange
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage, PartitionRegistration
    from storage.config import Clock
    from storage.log.partition_log import AppendOrigin, LogAppendInfo, PartitionLog
    from wire.primitives import TopicPartition

logger = logging.getLogger(__name__)

_NOT_DONE = (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA)
"""The controller did not change the ISR, and will not: back to the committed one."""
_METADATA_WILL_TELL = (
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.NEW_LEADER_ELECTED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
)
"""It knows more than we do: the change stays pending until the record arrives."""


class Partition(PartitionFollowing):
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
        alter_isr: Callable[[IsrChange], object] | None = None,
        lag_ms_max: int = 30_000,
    ) -> None:
        """`alter_isr` hands a change to the controller; called with no lock held."""
        super().__init__(topic_partition, topic_id, metadata)
        self.registration: PartitionRegistration | None = None
        """The metadata this was last brought to."""
        self.leader_since_epoch = -1
        """First leader epoch of this unbroken leadership: offsets appended under an older one may
        have been truncated since."""
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.adding_replicas: tuple[int, ...] = ()
        self.removing_replicas: tuple[int, ...] = ()

        # Plain counters, read by server.metrics. Written under the lock.
        self.messages_in = 0
        self.bytes_in = 0
        self.isr_expands = 0
        self.isr_shrinks = 0
        self.failed_isr_updates = 0

        self._node_id = node_id
        self._clock = clock
        self._on_progress = on_progress
        self._alter_isr = alter_isr
        self._lag_ms_max = lag_ms_max
        self._min_isr = 1
        self._has_min_isr = False
        self._waits_for_followers = False  # some follower is in the maximal ISR
        self._all_in_sync = True  # every follower is in the maximal ISR
        self._group_commit = GroupCommit(flush_async, self._log_flushed)

    # ------------------------------------------------------------------ what it is

    @property
    def is_leader(self) -> bool:
        return self.leader_log is not None

    @property
    def isr(self) -> frozenset[int]:
        """The committed ISR."""
        return self.isr_state.isr

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
            self._refresh_isr()
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
            self._refresh_isr()
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
            self._refresh_isr()
            log = self.leader_log
            if log is not None:
                self._advance_high_watermark(log)

    def _is_stale(self, registration: PartitionRegistration) -> bool:
        stopped = self.not_serving is not ErrorCode.NOT_LEADER_OR_FOLLOWER
        return stopped or registration.partition_epoch < self.partition_epoch

    def _assign(self, registration: PartitionRegistration) -> None:
        self.registration = registration
        self.replicas = tuple(registration.replicas)
        self.adding_replicas = tuple(registration.adding_replicas)
        self.removing_replicas = tuple(registration.removing_replicas)
        if registration.partition_epoch > self.partition_epoch:
            # The same epoch again must not undo what is pending: its members count already (H-3).
            self.isr_state = self.isr_state.commit(registration.isr)
            self.partition_epoch = registration.partition_epoch
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
        # Several elections may come with one image, and another replica may have led between them:
        # what followers had in our epoch they may have cut off in that one (H-2).
        is_unbroken = not is_new_leader and registration.leader_epoch == self.leader_epoch + 1
        for replica_id, follower in self.followers.items():
            follower.reset(
                now_ms,
                start_offset,
                is_new_leader=not is_unbroken,
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

    def _refresh_isr(self) -> None:
        """Work out what appends and fetches ask about the ISR each time."""
        minimum = 1 if self.log is None else self.log.config.min_insync_replicas
        self._min_isr = isr_rules.effective_min_isr(minimum, len(self.replicas))
        self._has_min_isr = len(self.isr_state.isr) >= self._min_isr
        maximal_isr = self.isr_state.maximal_isr
        self._waits_for_followers = not maximal_isr.isdisjoint(self.followers)
        self._all_in_sync = maximal_isr.issuperset(self.followers)

    # ------------------------------------------------------------------ append and high watermark

    def append_records_to_leader(
        self,
        records: memoryview | bytes,
        acks: int,
        wall_ms: int,
        origin: AppendOrigin,
        request_version: int | None,
        leader_epoch: int | None = None,
    ) -> tuple[LogAppendInfo, bool]:
        """Append one client's batch; returns what was appended and whether the HW advanced.

        Raises KafkaError: NOT_ENOUGH_REPLICAS (19) before anything is written when acks is -1 and
        the ISR is too small (H-11); the leadership errors, also when we lead under another epoch
        than the `leader_epoch` the caller counts on; whatever the log refuses.
        Duties of the caller: complete delayed operations, `request_flush` if `must_flush`.
        Budget: 1 µs on top of `append_as_leader`.
        """
        with self.lock:
            log = self.leader_log
            if log is None or self._is_electing:
                raise self._not_serving_error()
            if leader_epoch is not None and leader_epoch != self.leader_epoch:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another leader epoch began")
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
            # While a follower is in the ISR, an append alone commits nothing: the next fetch does.
            return info, not self._waits_for_followers and self._advance_high_watermark(log)

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
                () if self._all_in_sync else self._eligible_followers(),
                self._min_isr,
                self._clock.now_ms(),
                self._lag_ms_max,
            )
        return offset > current and log.update_high_watermark(offset)

    def _eligible_followers(self) -> set[int]:
        return {replica_id for replica_id in self.followers if self._is_eligible(replica_id)}

    def _is_eligible(self, replica_id: int) -> bool:
        broker = self._metadata().brokers.get(replica_id)
        return broker is not None and isr_rules.is_isr_eligible(
            self.followers[replica_id],
            is_active=broker.active,
            registered_epoch=broker.broker_epoch,
        )

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
            follower.quiet_request = fetch if fetch.fetch_offset == leader_end_offset else None
            follower.update_fetch_state(
                fetch.fetch_offset,
                fetch.log_start_offset,
                self._clock.now_ms(),
                leader_end_offset,
                replica_epoch,
            )
            change = None
            if not self._all_in_sync and replica_id not in self.isr_state.isr:
                change = self._expansion(replica_id, follower, log)
            advanced = start_offset_before != follower.log_start_offset
            if end_offset_before != follower.log_end_offset:
                advanced |= self._advance_high_watermark(log)
        if change is not None:
            self._ask_for(change)
        return advanced

    # ------------------------------------------------------------------ changes of the ISR

    def _expansion(
        self, replica_id: int, follower: ReplicaState, log: PartitionLog
    ) -> IsrChange | None:
        """H-6: the replica joins the maximal ISR now, the committed one when the controller says.

        The caller holds the lock, and gives the change to `_ask_for` when it does not any more.
        """
        state = self.isr_state
        if (
            self._alter_isr is None
            or state.is_inflight
            or not self._is_eligible(replica_id)
            or not isr_rules.may_join_isr(
                replica_id,
                follower,
                state,
                (replica_id,),
                log.high_watermark,
                self.leader_epoch_start_offset,
            )
        ):
            return None
        return self._propose(state.expand(replica_id))

    def maybe_shrink_isr(self) -> None:
        """H-5: propose to remove who was not caught up for `lag_ms_max`; every half of that."""
        with self.lock:
            log = self.leader_log
            if log is None or self._alter_isr is None or len(self.isr_state.isr) <= 1:
                return
            gone = isr_rules.out_of_sync_replicas(
                self._node_id,
                log.log_end_offset,
                self.isr_state,
                self.followers,
                self._clock.now_ms(),
                self._lag_ms_max,
            )
            if not gone:
                return
            change = self._propose(self.isr_state.shrink(gone))
        logger.info(
            "shrinking the ISR partition=%s-%s isr=%s out_of_sync=%s",
            *self.topic_partition, sorted(self.isr), sorted(gone),
        )  # fmt: skip
        self._ask_for(change)

    def _propose(self, state: IsrState) -> IsrChange:
        """Make `state` the pending one; under the lock."""
        self.isr_state = state
        self._refresh_isr()
        return self._change_to(state)

    def _change_to(self, state: IsrState) -> IsrChange:
        members = []
        for replica_id in sorted(state.proposed):
            follower = self.followers.get(replica_id)
            epoch = None if follower is None else follower.broker_epoch
            members.append((replica_id, -1 if epoch is None else epoch))
        return IsrChange(
            self.topic_partition,
            self.topic_id,
            self.leader_epoch,
            self.partition_epoch,
            tuple(members),
            partial(self._isr_answered, state),
        )

    def _ask_for(self, change: IsrChange) -> None:
        if self._alter_isr is not None:
            self._alter_isr(change)

    def _isr_answered(self, proposed: IsrState, answer: AlteredIsr | ErrorCode) -> None:
        """H-7: what the controller said about the change that is pending, if it still is."""
        retry = None
        with self.lock:
            log = self.leader_log
            if self.isr_state is not proposed or log is None:
                return  # metadata was faster
            if isinstance(answer, AlteredIsr):
                if (
                    answer.leader_epoch != self.leader_epoch
                    or answer.partition_epoch < self.partition_epoch
                ):
                    return
                self._count_isr_update(proposed)
                self.isr_state = proposed.commit(answer.isr)
                self.partition_epoch = answer.partition_epoch
            elif answer in _NOT_DONE:
                self.failed_isr_updates += 1
                self.isr_state = proposed.roll_back()
            elif answer in _METADATA_WILL_TELL:
                self.failed_isr_updates += 1
                return
            else:
                retry = self._change_to(proposed)
            self._refresh_isr()
            self._advance_high_watermark(log)
        logger.info(
            "ISR partition=%s-%s isr=%s partition_epoch=%s answer=%s",
            *self.topic_partition, sorted(self.isr), self.partition_epoch,
            answer.name if isinstance(answer, ErrorCode) else "NONE",
        )  # fmt: skip
        if retry is not None:
            self._ask_for(retry)
        else:
            self._on_progress(self)

    def _count_isr_update(self, proposed: IsrState) -> None:
        if proposed.update is IsrUpdate.EXPAND:
            self.isr_expands += 1
        else:
            self.isr_shrinks += 1
