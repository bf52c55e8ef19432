"""The replicas of this node, and the only door from handlers and coordinators to storage.

    local_replicas        which partitions are here and in which role, from metadata
    replica_writes        Produce, DeleteRecords
    replica_reads         Fetch, ListOffsets, OffsetForLeaderEpoch
    parked_requests       what of these waits, and what lets it go on
    cluster_replication   what only a cluster has; see below
    log_dir_moves         replicas that move between directories of this node

`ReplicaManager` puts them together; what handlers call are the parts' own methods under its name.

Threads: any thread may call anything here. Callbacks run on the thread whose action completed them:
the caller's (inline), another request's, the reaper's, or the flusher's; never under a lock of this
package. Duty of the caller: do not hold a lock that a callback of *any* request may take, unless it
is re-entrant.

With other brokers (`ClusterLinks`), what concerns them lives in `cluster_replication`: fetching as
a follower, ISR changes, reports of directories. It is made when the first partition with more than
one replica comes here, so that a node alone neither loads nor runs it.

The moves are made for the first of them.

Gaps: no tiered storage.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from replication.partition.requests import (
    CONSUMER_REPLICA_ID,
    DEBUGGING_REPLICA_ID,
    DELETE_TO_HIGH_WATERMARK,
    LIST_OFFSETS_MIN_VERSION,
    AppendRequest,
    AppendResult,
    FetchPartition,
    FetchResult,
    IsolationLevel,
    LogDirInfo,
    ReplicaLogInfo,
)
from replication.replicas.config import ClusterLinks, ReplicaManagerConfig
from replication.replicas.local_replicas import Key, LocalReplicas
from replication.replicas.parked_requests import ParkedRequests
from replication.replicas.replica_reads import ReplicaReads
from replication.replicas.replica_writes import ReplicaWrites
from storage.config import LONG_MAX
from storage.directories.log_dirs import FUTURE_SUFFIX, NAME_MAX
from storage.log.append_source import FROM_CLIENT, FROM_COORDINATOR, AppendSource, Verification
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from pathlib import Path

    from replication.metadata.image import MetadataDelta, MetadataImage
    from replication.partition.partition import Partition
    from replication.partition.requests import AlteredIsr, IsrChange
    from replication.replicas.assignments import AssignmentsManager
    from replication.replicas.cluster_replication import ClusterReplication
    from replication.replicas.log_dir_moves import LogDirMoves
    from replication.replicas.timer import Timer
    from storage.config import Clock, LogConfig
    from storage.directories.log_manager import LogManager

logger = logging.getLogger(__name__)

__all__ = [
    "FROM_CLIENT",
    "FROM_COORDINATOR",
    "AppendSource",
    "CONSUMER_REPLICA_ID",
    "DEBUGGING_REPLICA_ID",
    "DELETE_TO_HIGH_WATERMARK",
    "LIST_OFFSETS_MIN_VERSION",
    "AppendRequest",
    "AppendResult",
    "ClusterLinks",
    "FetchPartition",
    "FetchResult",
    "IsolationLevel",
    "LogDirInfo",
    "ReplicaLogInfo",
    "Verification",
    "ReplicaManager",
    "ReplicaManagerConfig",
]

_UNIQUE_LENGTH = 32  # of a future log's directory name: a uuid in hex


def _at_once(job: Callable[[], None]) -> None:
    job()


class ReplicaManager:
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
        run_aside: Callable[[Callable[[], None]], object] = _at_once,
    ) -> None:
        """`links` is asked once, when a partition first has more than one replica; `own_links`, on
        a node alone, when the controller is first to be told where a replica is, or one moves.
        `run_aside` runs a job that may take long on a thread that nobody waits for."""
        self.config = config
        self.run_aside = run_aside
        self.parked = ParkedRequests(timer)
        self.local = LocalReplicas(
            log_manager,
            metadata,
            clock,
            node_id,
            topic_config=topic_config,
            lag_ms_max=config.replica_lag_time_max_ms,
            on_change=self.parked.partition_changed,
            alter_isr=None if links is None else self._alter_isr,
            cluster=None if links is None else self.cluster,
            report_directory=self._report_directory if own_links or links else None,
            moves=self._log_dir_moves,
        )
        self.reads = ReplicaReads(
            self.local, self.parked, metadata, clock.now_ms, node_id, config, run_aside
        )
        self.writes = ReplicaWrites(self.local, self.parked, clock.wall_ms)
        self.on_partition_leadership = self.local.on_partition_leadership
        self.add_high_watermark_listener = self.parked.add_high_watermark_listener
        self.remove_high_watermark_listener = self.parked.remove_high_watermark_listener
        self.append_records = self.writes.append_records
        self.must_open_records = self.writes.must_open_records
        self.delete_records = self.writes.delete_records
        self.fetch = self.reads.fetch
        self.follow = self.reads.follow
        self.follower_session = self.reads.follower_session
        self.list_offset = self.reads.list_offset
        self.offset_for_leader_epoch = self.reads.offset_for_leader_epoch
        self._partitions = self.local.partitions
        self._metadata = metadata
        self._node_id = node_id
        self._clock = clock
        self._timer = timer
        self._links = links
        self._cluster: ClusterReplication | None = None
        self._cluster_lock = threading.Lock()
        self._own_links = own_links or links
        self._own_assignments: AssignmentsManager | None = None
        self._moves: LogDirMoves | None = None
        self._throttled_rates = LONG_MAX, LONG_MAX
        self._alter_log_dirs_rate = LONG_MAX

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
        return self.local.hosted()

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
                        self.local.hosted,
                        self._metadata,
                        self._node_id,
                        self._clock,
                        self._timer,
                        on_progress=self.parked.partition_changed,
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
            self.reads.leader_quota = cluster.leader_quota if cluster.leader_quota.is_set else None

    # ------------------------------------------------------------------ between own directories

    def alter_replica_log_dir(self, tp: Key, path: str) -> None:
        """Have the replica in this log directory of ours; it is moved while it serves (KIP-113).

        Raises KafkaError: LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR (that directory or the replica's
        is offline), INVALID_REPLICA_ASSIGNMENT (that directory is cordoned),
        INVALID_TOPIC_EXCEPTION (the name leaves no room for a future log's). If it is not on this
        node, REPLICA_NOT_AVAILABLE, or UNKNOWN_TOPIC_OR_PARTITION if there is no such partition;
        should it come while there is that topic, it comes there.
        """
        if len(f"{tp[0]}-{tp[1]}.") + _UNIQUE_LENGTH + len(FUTURE_SUFFIX) > NAME_MAX:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic name is too long")
        manager = self.local.log_manager
        directory = next((d for d in manager.log_dirs if str(d.absolute()) == path), None)
        if directory is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is no log directory here")
        manager.online_dir(directory)
        if directory in manager.cordoned_dirs:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{path} is cordoned")
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
            moves = self._make_moves(self._own_links())
            with self._cluster_lock:  # another thread may have had the same need
                self._moves = self._moves or moves
        return self._moves

    def _make_moves(self, links: ClusterLinks) -> LogDirMoves:
        from replication.following.replication_quota import ReplicationQuota
        from replication.replicas.log_dir_moves import LogDirMoves

        schedule = (links.mover or links.scheduler).schedule_once
        return LogDirMoves(
            self.local.log_manager,
            self._node_id,
            self._assignments().report,
            lambda delay_ms, job: schedule("alter-log-dirs", delay_ms, job),
            ReplicationQuota(self._clock, self._alter_log_dirs_rate),
            self._replica_moved,
        )

    def _assignments(self) -> AssignmentsManager:
        """What tells the controller where replicas are."""
        from replication.replicas.assignments import AssignmentsManager

        cluster = self.cluster()
        if cluster is not None:
            return cluster.assignments
        with self._cluster_lock:
            if self._own_assignments is None:
                assert self._own_links is not None, "somebody is to be told"
                links = self._own_links()
                self._own_assignments = AssignmentsManager(
                    links.submit, links.broker_epoch, self._node_id, self._timer
                )
        return self._own_assignments

    def _report_directory(self, topic_id: bytes, index: int, directory_id: bytes) -> None:
        self._assignments().report(topic_id, index, directory_id)

    def _replica_moved(self, partition: Partition) -> None:
        """It has another log now: fetch into that, and look at what waits for an fsync."""
        log = partition.log
        if log is not None and log.is_offline:  # its disk failed before it was there to be told
            self.local.log_dir_failed(log.directory.parent, OSError("its disk failed meanwhile"))
        if self._cluster is not None:
            self._cluster.partitions_changed([partition])
        partition.request_flush()
        self.parked.partition_changed(partition)

    def _alter_isr(self, change: IsrChange) -> None:
        """Who brings the answer carries the heartbeats and the quorum's requests, too, or is the
        controller: it must not wait for the partition's lock while an append is held up by a disk.
        (Kafka's channel for these requests has a thread of its own.)
        """
        cluster = self.cluster()
        assert cluster is not None, "only a partition of a cluster asks for another ISR"

        def on_answer(answer: AlteredIsr | ErrorCode) -> None:
            self.run_aside(partial(change.on_answer, answer))

        cluster.alter_partition.submit(change._replace(on_answer=on_answer))

    def shutdown(self) -> None:
        """End the fetchers, drop every parked request: their connections are closed."""
        if self._moves is not None:
            self._moves.shutdown()
        if self._cluster is not None:
            self._cluster.shutdown()
        if self._own_assignments is not None:
            self._own_assignments.shutdown()
        self.parked.shutdown()
        logger.info("replica manager stopped partitions=%s", len(self._partitions))

    # ------------------------------------------------------------------ describing

    def describe_log_dirs(self, wanted: Callable[[str, int], bool]) -> list[LogDirInfo]:
        """What DescribeLogDirs tells, for the partitions `wanted(topic, index)`."""
        return self.local.describe_log_dirs(wanted)

    @property
    def offline_replicas(self) -> int:
        return self.local.offline_count
