"""Requests against the partitions of this node: append, fetch, offsets, deletes.

The only door from handlers and coordinators to storage. `LocalReplicas` decides which partitions
are here and in which role (from metadata); this module serves requests on them, and parks what must
wait in three purgatories keyed by (topic, partition_index).

The path of a produce: `append_records` -> `Partition.append_records_to_leader` -> the log; then
delayed operations on that partition are completed, and the answer is given inline unless it must
wait for the high watermark or an fsync. The path of a fetch: read; answer inline if there is
enough, else park; an append on one of its partitions reads again and answers.

Threads: any thread may call anything here. Callbacks run on the thread whose action completed them:
the caller's (inline), another request's, the reaper's, or the flusher's; never under a lock of this
package. Duty of the caller: do not hold a lock that a callback of *any* request may take, unless it
is re-entrant.

With other brokers (`ClusterLinks`), what concerns them lives in `cluster_replication`: fetching as
a follower, ISR changes, reports of directories. It is made when the first partition with more than
one replica comes here, so that a node alone neither loads nor runs it.

Counters are plain ints that `server.node.metrics` reads.

Replicas that move between directories of this node: `log_dir_moves`, made for the first of them.

Gaps: no tiered storage; transactional appends are not verified with their coordinator here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from replication.metadata.topic_names import INTERNAL_TOPICS
from replication.partition.requests import (
    CONSUMER_REPLICA_ID,
    DEBUGGING_REPLICA_ID,
    DELETE_TO_HIGH_WATERMARK,
    LIST_OFFSETS_MIN_VERSION,
    UNKNOWN_EPOCH,
    AppendResult,
    FetchPartition,
    FetchResult,
    IsolationLevel,
    LogDirInfo,
    ReplicaLogInfo,
)
from replication.replicas.delayed import (
    DelayedDeleteRecords,
    DelayedProduce,
    DeleteStatus,
    ProduceStatus,
)
from replication.replicas.local_replicas import Key, LocalReplicas
from replication.replicas.purgatory import DelayedOperation, Purgatory
from replication.replicas.replica_reads import ReplicaReads
from storage.config import LONG_MAX
from storage.directories.log_dirs import FUTURE_SUFFIX, NAME_MAX
from storage.log.append import (
    FROM_CLIENT,
    FROM_COORDINATOR,
    AppendSource,
    needs_records_opened,
)
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from pathlib import Path

    from replication.following.fetcher_manager import RunFetcher
    from replication.metadata.image import MetadataDelta, MetadataImage
    from replication.partition.partition import Partition
    from replication.partition.requests import IsrChange
    from replication.replicas.cluster_replication import ClusterReplication
    from replication.replicas.log_dir_moves import LogDirMoves
    from replication.replicas.timer import Timer
    from storage.config import Clock, LogConfig, Scheduler
    from storage.directories.log_manager import LogManager
    from storage.log.partition_log import LogAppendInfo

logger = logging.getLogger(__name__)

__all__ = [
    "FROM_CLIENT",
    "FROM_COORDINATOR",
    "AppendSource",
    "CONSUMER_REPLICA_ID",
    "DEBUGGING_REPLICA_ID",
    "DELETE_TO_HIGH_WATERMARK",
    "LIST_OFFSETS_MIN_VERSION",
    "AppendResult",
    "ClusterLinks",
    "FetchPartition",
    "FetchResult",
    "IsolationLevel",
    "LogDirInfo",
    "ReplicaLogInfo",
    "ReplicaManager",
    "ReplicaManagerConfig",
]

_UNIQUE_LENGTH = 32  # of a future log's directory name: a uuid in hex


@dataclass(frozen=True, slots=True)
class ReplicaManagerConfig:
    """Broker configs this package obeys, with Kafka's names and defaults."""

    replica_lag_time_max_ms: int = 30_000
    """A follower that was not caught up for so long leaves the ISR."""
    fetch_max_bytes: int = 57_671_680
    """Most bytes of records in one Fetch response (`fetch.max.bytes`)."""
    replica_fetch_max_bytes: int = 1_048_576
    replica_fetch_response_max_bytes: int = 10_485_760
    replica_fetch_min_bytes: int = 1
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_backoff_ms: int = 1_000
    num_replica_fetchers: int = 1
    """Threads that fetch from each leader."""
    replica_selector_class: str | None = None
    """Which replica serves a consumer: the leader, or by rack (Kafka's class of that name)."""
    replication_quota_window_num: int = 11


class ClusterLinks(NamedTuple):
    """What a replica manager needs of the rest of a cluster."""

    submit: Callable[[Any, Callable[[Any], None]], object]
    """A request to the controller; the response or a KafkaError comes back, on any thread."""
    broker_epoch: Callable[[], int]
    """This broker's, as registered; -1 before."""
    run_fetcher: RunFetcher
    """Make a fetcher fetch from its leader: with a thread and a socket, or in a simulator."""
    listener_name: str
    """`inter.broker.listener.name`: where other brokers are reached."""
    scheduler: Scheduler
    """For what waits for no disk (ISR expiry)."""
    mover: Scheduler | None = None
    """Copies replicas between the directories of this node; `scheduler` if there is none."""


class ReplicaManager(ReplicaReads):
    """See the module. `local` is the set of partitions here; its dict is read on each request."""

    def __init__(
        self,
        config: ReplicaManagerConfig,
        log_manager: LogManager,
        metadata: Callable[[], MetadataImage],
        timer: Timer,
        clock: Clock,
        node_id: int,
        *,
        topic_config: Callable[[str], LogConfig],
        links: Callable[[], ClusterLinks] | None = None,
        own_links: Callable[[], ClusterLinks] | None = None,
    ) -> None:
        """`links` is asked once, when a partition first has more than one replica; `own_links`, on
        a node alone, when a replica first moves between directories."""
        self.produce_purgatory = Purgatory("Produce", timer)
        self.delete_records_purgatory = Purgatory("DeleteRecords", timer)
        local = LocalReplicas(
            log_manager,
            metadata,
            clock,
            node_id,
            topic_config=topic_config,
            lag_ms_max=config.replica_lag_time_max_ms,
            on_change=self._partition_changed,
            alter_isr=None if links is None else self._alter_isr,
            cluster=None if links is None else self.cluster,
            moves=self._log_dir_moves,
        )
        super().__init__(local, Purgatory("Fetch", timer), metadata, clock.now_ms, node_id, config)
        self.on_partition_leadership = local.on_partition_leadership
        self._clock = clock
        self._wall_ms = clock.wall_ms
        self._timer = timer
        self._links = links
        self._cluster: ClusterReplication | None = None
        self._cluster_lock = threading.Lock()
        self._own_links = own_links or links
        self._moves: LogDirMoves | None = None
        self._throttled_rates = LONG_MAX, LONG_MAX
        self._alter_log_dirs_rate = LONG_MAX
        self._high_watermark_listeners: dict[Key, list[Callable[[], object]]] = {}

        self.produce_requests = 0
        self.failed_produce_requests = 0
        """Partitions of Produce requests that were refused."""
        self.failed_fetch_requests = 0
        self.expired_produce_requests = 0

    # ------------------------------------------------------------------ produce

    def append_records(
        self,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[Key, memoryview | bytes]],
        on_complete: Callable[[list[AppendResult]], None],
        *,
        source: AppendSource = FROM_CLIENT,
        leader_epoch: int | None = None,
    ) -> DelayedOperation | None:
        """Append one batch to each partition; partitions succeed and fail alone.

        With `leader_epoch`, a partition that is not led under exactly that epoch refuses with
        NOT_LEADER_OR_FOLLOWER (coordinators: what they know is from that leadership).

        `on_complete` gets one result per entry, in order, exactly once: before this returns unless
        acks=-1 waits for the HW or `flush.messages` for the disk. A parked operation is returned
        so that the end of its connection can cancel it (the records stay appended).
        Budget: 6 µs for one entry on top of `PartitionLog.append_as_leader` when nothing waits.
        """
        self.produce_requests += 1
        if acks not in (-1, 0, 1):
            on_complete([_refused(key, *_INVALID_ACKS) for key, _ in entries])
            return None
        wall_ms = self._wall_ms()
        results: list[AppendResult] = []
        appended: list[tuple[Key, bool]] = []
        pending: list[ProduceStatus] = []
        for key, records in entries:
            partition = self._partitions.get(key)
            try:
                if partition is None:
                    raise self.local.absent(key)
                info, is_advanced = partition.append_records_to_leader(
                    records, acks, wall_ms, source, leader_epoch
                )
            except KafkaError as error:
                results.append(self._append_failed(key, partition, error))
                continue
            next_offset = info.last_offset + 1
            result = _appended_result(key, info)
            results.append(result)
            if not info.duplicate:
                appended.append((key, is_advanced))
            if info.must_flush:
                partition.request_flush()
            epoch = info.leader_epoch
            if acks and partition.must_wait(next_offset, acks, epoch):
                pending.append(ProduceStatus(result, partition, next_offset, epoch, acks))
        if not pending:
            try:
                on_complete(results)
            finally:
                self._appended(appended)
            return None
        operation = DelayedProduce(timeout_ms, results, pending, on_complete, self._produce_expired)
        self._appended(appended)
        keys = [status.result.topic_partition for status in pending]
        if self.produce_purgatory.try_complete_else_watch(operation, keys):
            return None
        return operation

    def must_open_records(
        self, key: Key, records: memoryview | bytes, opens_compressed: bool
    ) -> bool:
        """Whether this batch costs more than a thread that serves sockets should spend."""
        partition = self._partitions.get(key)
        log = None if partition is None else partition.leader_log
        return log is not None and needs_records_opened(
            records, log.config, self._wall_ms(), opens_compressed
        )

    def _append_failed(
        self, key: Key, partition: Partition | None, error: KafkaError
    ) -> AppendResult:
        self.failed_produce_requests += 1
        result = _refused(key, error.code, error.detail or error.code.name)
        result.record_errors = getattr(error, "record_errors", ())
        if partition is not None and partition.log is not None:
            result.log_start_offset = partition.log.log_start_offset
        return result

    def _appended(self, appended: list[tuple[Key, bool]]) -> None:
        """Complete what these appends made possible. `is_advanced`: the HW moved, too."""
        fetches = self.fetch_purgatory.watchers
        for key, is_advanced in appended:
            if key in fetches:
                self.fetch_purgatory.check_and_complete(key)
            if is_advanced:
                self.produce_purgatory.check_and_complete(key)
                self.delete_records_purgatory.check_and_complete(key)
                if key in self._high_watermark_listeners:
                    self._tell_listeners(key)

    def _partition_changed(self, partition: Partition) -> None:
        """Role, epoch, HW or flushed offset changed: look at everything parked on it."""
        key = partition.topic_partition
        self.produce_purgatory.check_and_complete(key)
        self.fetch_purgatory.check_and_complete(key)
        self.delete_records_purgatory.check_and_complete(key)
        if key in self._high_watermark_listeners:
            self._tell_listeners(key)

    def add_high_watermark_listener(self, key: Key, listener: Callable[[], object]) -> None:
        """Call `listener` after the partition's high watermark may have moved.

        With no lock held, on whatever thread moved it; also when nothing came of it. It must take
        note and return.
        """
        with self._cluster_lock:
            listeners = self._high_watermark_listeners.get(key, [])
            self._high_watermark_listeners[key] = [*listeners, listener]

    def remove_high_watermark_listener(self, key: Key, listener: Callable[[], object]) -> None:
        """Call it no more; an unknown one is ignored."""
        with self._cluster_lock:
            listeners = self._high_watermark_listeners.pop(key, [])
            rest = [one for one in listeners if one != listener]
            if rest:
                self._high_watermark_listeners[key] = rest

    def _tell_listeners(self, key: Key) -> None:
        for listener in self._high_watermark_listeners.get(key, ()):
            try:
                listener()
            except Exception:
                logger.exception("high watermark listener failed partition=%s-%s", *key)

    def _produce_expired(self, partition_count: int) -> None:
        self.expired_produce_requests += partition_count

    # ------------------------------------------------------------------ offsets

    def list_offset(
        self,
        tp: Key,
        timestamp: int,
        isolation_level: int,
        current_leader_epoch: int = UNKNOWN_EPOCH,
        replica_id: int = CONSUMER_REPLICA_ID,
    ) -> tuple[int, int, int, int]:
        """(error_code, timestamp, offset, leader_epoch); see `offset_lookup` for the timestamps.

        Only clients see by isolation level; a debugging replica (-2) may ask a follower. The
        handler checks versions against LIST_OFFSETS_MIN_VERSION.
        """
        isolation = IsolationLevel(isolation_level) if replica_id == CONSUMER_REPLICA_ID else None
        try:
            found = self.partition(tp).fetch_offset_for_timestamp(
                timestamp,
                isolation,
                current_leader_epoch,
                leader_only=replica_id != DEBUGGING_REPLICA_ID,
            )
        except KafkaError as error:
            return int(error.code), -1, -1, UNKNOWN_EPOCH
        return (0, *found)

    def offset_for_leader_epoch(
        self, tp: Key, current_leader_epoch: int, leader_epoch: int
    ) -> tuple[int, int, int]:
        """(error_code, leader_epoch, end_offset); epoch and offset are -1 if unknown (E-4)."""
        try:
            found = self.partition(tp).end_offset_for_epoch(current_leader_epoch, leader_epoch)
        except KafkaError as error:
            return int(error.code), UNKNOWN_EPOCH, -1
        return (0, *found)

    def delete_records(
        self,
        offsets: dict[Any, int],
        timeout_ms: int,
        on_complete: Callable[[dict[Any, tuple[int, int]]], None],
    ) -> DelayedOperation | None:
        """Raise log start offsets (-1: to the HW); answers (error_code, low_watermark) for each.

        Internal topics are refused. With followers it waits until all living ones have followed.
        """
        done: dict[Any, tuple[int, int]] = {}
        pending: dict[Any, DeleteStatus] = {}
        for key, offset in offsets.items():
            try:
                if key[0] in INTERNAL_TOPICS:
                    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{key[0]} is internal")
                partition = self.partition(key)
                requested_offset, low_watermark = partition.delete_records(offset)
            except KafkaError as error:
                done[key] = (int(error.code), -1)
                continue
            self.fetch_purgatory.check_and_complete(key)  # followers are to hear of it
            if low_watermark >= requested_offset:
                done[key] = (0, low_watermark)
            else:
                pending[key] = DeleteStatus(partition, requested_offset)
        if not pending:
            on_complete(done)
            return None
        operation = DelayedDeleteRecords(timeout_ms, done, pending, on_complete)
        if self.delete_records_purgatory.try_complete_else_watch(operation, list(pending)):
            return None
        return operation

    def active_producers(self, tp: Key) -> list[Any]:
        """DescribeProducers of one partition; raises KafkaError as `partition`."""
        return list(self.partition(tp).open_log().active_producers())

    # ------------------------------------------------------------------ partitions

    def partition(self, tp: Key) -> Partition:
        """The partition; raises UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER (it is not on
        this node) or KAFKA_STORAGE_ERROR (its directory is offline)."""
        return self.local.get(tp)

    def get_partition_or_none(self, tp: Key) -> Partition | None:
        return self._partitions.get(tp)

    def partitions(self) -> list[Partition]:
        """All partitions hosted here, in whatever role."""
        return list(self._partitions.values())

    def apply_delta(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Bring the local partitions to what `image` says; see `LocalReplicas.apply_delta`."""
        self.local.apply_delta(delta, image)

    def reload_topic_configs(self, topics: Iterable[str] | None = None) -> None:
        """Topic configs changed other than by metadata of the topic (a broker default did)."""
        self.local.reload_topic_configs(topics)

    def log_dir_failed(self, directory: Path, error: OSError) -> None:
        """Stop serving what is in `directory`; called without any lock (storage's scheduler)."""
        self.local.log_dir_failed(directory, error)

    # ------------------------------------------------------------------ the cluster

    def cluster(self) -> ClusterReplication | None:
        """What works with other brokers, made now if it was not; None on a node alone."""
        if self._cluster is None and self._links is not None:
            from replication.replicas.cluster_replication import ClusterReplication

            with self._cluster_lock:
                if self._cluster is None:
                    self._cluster = ClusterReplication(
                        self._links(),
                        self.config,
                        self.local,
                        self._metadata,
                        self._node_id,
                        self._clock,
                        self._timer,
                        on_progress=self._partition_changed,
                    )
                    self.set_throttled_rates(*self._throttled_rates, self._alter_log_dirs_rate)
        return self._cluster

    def set_throttled_rates(
        self, leader: int, follower: int, alter_log_dirs: int = LONG_MAX
    ) -> None:
        """Bytes per second for throttled replicas ({leader,follower}.replication.throttled.rate)
        and moves between directories (replica.alter.log.dirs.io.max.bytes.per.second);
        `storage.config.LONG_MAX` is no limit."""
        self._throttled_rates = leader, follower
        self._alter_log_dirs_rate = alter_log_dirs
        if self._moves is not None:
            self._moves.quota.rate_limit = alter_log_dirs
        cluster = self._cluster
        if cluster is not None:
            cluster.leader_quota.rate_limit = leader
            cluster.follower_quota.rate_limit = follower
            self.leader_quota = cluster.leader_quota if cluster.leader_quota.is_set else None

    # ------------------------------------------------------------------ between own directories

    def alter_replica_log_dir(self, tp: Key, path: str) -> None:
        """Have the replica in this log directory of ours; it is moved while it serves (KIP-113).

        Raises KafkaError: LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR (that directory or the replica's
        is offline), INVALID_TOPIC_EXCEPTION (the name leaves no room for a future log's). If it is
        not on this node, REPLICA_NOT_AVAILABLE, or UNKNOWN_TOPIC_OR_PARTITION if there is no such
        partition; should it come while there is that topic, it comes there.
        """
        if len(f"{tp[0]}-{tp[1]}.") + _UNIQUE_LENGTH + len(FUTURE_SUFFIX) > NAME_MAX:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic name is too long")
        manager = self.local.log_manager
        directory = next((d for d in manager.log_dirs if str(d.absolute()) == path), None)
        if directory is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is no log directory here")
        manager.online_dir(directory)
        partition = self._partitions.get(tp)
        if partition is None:
            error = self.local.absent(tp)
            topic = self._metadata().topics_by_name.get(tp[0])
            if topic is not None and error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                self.local.preferred_dirs[topic.topic_id, tp[1]] = directory
            if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, error.detail)
            raise error
        moves = self._log_dir_moves(True)
        if moves is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "this node cannot move replicas")
        moves.alter(partition, directory)

    def _log_dir_moves(self, is_needed: bool) -> LogDirMoves | None:
        """The moves; made now if they are needed and were not."""
        if self._moves is None and is_needed and self._own_links is not None:
            self._moves = self._make_moves(self._own_links())
        return self._moves

    def _make_moves(self, links: ClusterLinks) -> LogDirMoves:
        from replication.following.replication_quota import ReplicationQuota
        from replication.replicas.assignments import AssignmentsManager
        from replication.replicas.log_dir_moves import LogDirMoves

        cluster = self.cluster()
        assignments = (
            AssignmentsManager(links.submit, links.broker_epoch, self._node_id, self._timer)
            if cluster is None
            else cluster.assignments
        )
        schedule = (links.mover or links.scheduler).schedule_once
        return LogDirMoves(
            self.local,
            self.local.log_manager,
            self._node_id,
            assignments.report,
            lambda delay_ms, job: schedule("alter-log-dirs", delay_ms, job),
            ReplicationQuota(self._clock, self._alter_log_dirs_rate),
            self._replica_moved,
        )

    def _replica_moved(self, partition: Partition) -> None:
        """It has another log now: fetch into that, and look at what waits for an fsync."""
        if self._cluster is not None:
            self._cluster.partitions_changed([partition])
        partition.request_flush()
        self._partition_changed(partition)

    def _alter_isr(self, change: IsrChange) -> None:
        cluster = self.cluster()
        assert cluster is not None, "only a partition of a cluster asks for another ISR"
        cluster.alter_partition.submit(change)

    def maybe_shrink_isrs(self) -> None:
        """Propose to remove followers that lag from the ISRs led here (each half of the lag)."""
        for partition in self.partitions():
            partition.maybe_shrink_isr()

    def shutdown(self) -> None:
        """End the fetchers, drop every parked request: their connections are closed."""
        if self._moves is not None:
            self._moves.shutdown()
        if self._cluster is not None:
            self._cluster.shutdown()
        for purgatory in (
            self.produce_purgatory,
            self.fetch_purgatory,
            self.delete_records_purgatory,
        ):
            purgatory.shutdown()
        logger.info("replica manager stopped partitions=%s", len(self._partitions))

    # ------------------------------------------------------------------ describing

    def describe_log_dirs(self, wanted: Callable[[str, int], bool]) -> list[LogDirInfo]:
        """What DescribeLogDirs tells, for the partitions `wanted(topic, index)`."""
        return self.local.describe_log_dirs(wanted)

    @property
    def messages_in(self) -> int:
        """Records appended by leaders here since the start."""
        return self.local.retired_messages_in + sum(p.messages_in for p in self.partitions())

    @property
    def bytes_in(self) -> int:
        return self.local.retired_bytes_in + sum(p.bytes_in for p in self.partitions())

    @property
    def bytes_out(self) -> int:
        return self.local.retired_bytes_out + sum(p.bytes_out for p in self.partitions())

    @property
    def leader_count(self) -> int:
        return sum(p.is_leader for p in self.partitions())

    @property
    def under_replicated_partitions(self) -> int:
        return sum(p.role.is_under_replicated for p in self.partitions())

    @property
    def under_min_isr_partitions(self) -> int:
        return sum(p.role.is_under_min_isr for p in self.partitions())

    @property
    def offline_replicas(self) -> int:
        return self.local.offline_count

    def replication_counters(self) -> dict[str, int]:
        """How following and ISRs go, by Kafka's names; of the partitions that are here now."""
        partitions = self.partitions()
        cluster = self._cluster
        fetchers = [] if cluster is None else cluster.fetchers.fetchers
        return {
            "ReplicaManager.IsrExpands": sum(p.isr_changes.expands for p in partitions),
            "ReplicaManager.IsrShrinks": sum(p.isr_changes.shrinks for p in partitions),
            "ReplicaManager.FailedIsrUpdates": sum(p.isr_changes.failed for p in partitions),
            "ReplicaFetcherManager.MaxLag": max((f.max_lag for f in fetchers), default=0),
            "ReplicaFetcherManager.FailedPartitionsCount": sum(f.failed_count for f in fetchers),
            "ReplicaFetcherManager.UncleanTruncations": sum(
                f.unclean_truncations for f in fetchers
            ),
            "BrokerTopicMetrics.ReplicationBytesIn": sum(f.byte_count for f in fetchers),
        }


_INVALID_ACKS = (ErrorCode.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1")


def _appended_result(key: Key, info: LogAppendInfo) -> AppendResult:
    return AppendResult(
        key,
        0,
        info.first_offset,
        info.log_append_time_ms,
        info.log_start_offset,
        None,
        (),
        info.last_offset,
    )


def _refused(key: Key, code: ErrorCode, message: str) -> AppendResult:
    return AppendResult(key, int(code), error_message=message)
