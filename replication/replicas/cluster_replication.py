"""A broker's side of replication with other brokers: follow leaders, look after ISRs, say where.

What: one object holds what a node alone does not have: the fetchers, the requests for other ISRs,
the reports of directories, the replication quotas, and the timer that looks for followers that lag
(H-5, each half of replica.lag.time.max.ms). `LocalReplicas` tells it what metadata changed.

A partition is followed while metadata names another broker as its leader and says where that broker
is reached; when the leader's address becomes known or changes later, following starts then.

Lock: none of its own. Calls come from metadata's thread one after another, and from the storage
scheduler when a directory fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from replication.following.fetcher import FetcherConfig
from replication.following.fetcher_manager import ReplicaFetcherManager
from replication.following.replication_quota import ReplicationQuota
from replication.replicas.alter_partition import AlterPartitionManager
from replication.replicas.assignments import AssignmentsManager

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage
    from replication.partition.partition import Partition
    from replication.replicas.local_replicas import LocalReplicas
    from replication.replicas.replica_manager import ClusterLinks, ReplicaManagerConfig
    from replication.replicas.timer import Timer
    from storage.config import Clock
    from wire.primitives import TopicPartition

logger = logging.getLogger(__name__)


class ClusterReplication:
    """See the module."""

    def __init__(
        self,
        links: ClusterLinks,
        config: ReplicaManagerConfig,
        local: LocalReplicas,
        node_id: int,
        clock: Clock,
        timer: Timer,
        *,
        on_progress: Callable[[Partition], object],
    ) -> None:
        windows = config.replication_quota_window_num
        self.leader_quota = ReplicationQuota(clock, window_count=windows)
        self.follower_quota = ReplicationQuota(clock, window_count=windows)
        self.alter_partition = AlterPartitionManager(
            links.submit, links.broker_epoch, node_id, timer
        )
        self.assignments = AssignmentsManager(links.submit, links.broker_epoch, node_id, timer)
        self.fetchers = ReplicaFetcherManager(
            FetcherConfig(
                max_bytes=config.replica_fetch_max_bytes,
                response_max_bytes=config.replica_fetch_response_max_bytes,
                min_bytes=config.replica_fetch_min_bytes,
                wait_max_ms=config.replica_fetch_wait_max_ms,
                backoff_ms=config.replica_fetch_backoff_ms,
            ),
            config.num_replica_fetchers,
            node_id,
            links.broker_epoch,
            clock,
            links.run_fetcher,
            quota=self.follower_quota,
            on_progress=on_progress,
        )
        self._listener_name = links.listener_name
        self._local = local
        self._isr_expiration = links.scheduler.schedule(
            "isr-expiration", max(config.replica_lag_time_max_ms // 2, 1), self._shrink_isrs
        )

    def roles_changed(
        self,
        image: MetadataImage,
        followed: Iterable[Partition],
        not_followed: Iterable[TopicPartition],
        moved_brokers: Iterable[int],
    ) -> None:
        """Metadata changed: follow these, follow those no more, look where these brokers are."""
        self.fetchers.unfollow(not_followed)
        again = [p for p in self._local.partitions.values() if p.leader_id in set(moved_brokers)]
        for partition in {id(p): p for p in (*followed, *again)}.values():
            self._follow(partition, image)
        self.fetchers.wake()

    def _follow(self, partition: Partition, image: MetadataImage) -> None:
        leader_id, leader_epoch = partition.leader_id, partition.leader_epoch
        if leader_id < 0 or partition.is_leader or partition.log is None:
            return
        leader = image.brokers.get(leader_id)
        address = None if leader is None else leader.endpoints.get(self._listener_name)
        if address is None:
            logger.warning(
                "leader has no address yet partition=%s-%s leader=%s listener=%s",
                *partition.topic_partition, leader_id, self._listener_name,
            )  # fmt: skip
            self.fetchers.unfollow([partition.topic_partition])
            return
        self.fetchers.follow(partition, leader_id, address, leader_epoch)

    def log_replaced(self, partition: Partition, image: MetadataImage) -> None:
        """A partition's log is another one now: its fetcher must look at that."""
        self._follow(partition, image)
        self.fetchers.wake()

    def _shrink_isrs(self) -> None:
        for partition in list(self._local.partitions.values()):
            partition.maybe_shrink_isr()

    def shutdown(self) -> None:
        """End all fetchers and ask nothing more of the controller."""
        self._isr_expiration.cancel()
        self.alter_partition.shutdown()
        self.assignments.shutdown()
        self.fetchers.shutdown()
