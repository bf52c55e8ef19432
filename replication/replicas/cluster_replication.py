"""A broker's side of replication with other brokers: follow leaders, look after ISRs, say where.

What: one object holds what a node alone does not have: the fetchers, the requests for other ISRs,
the reports of directories, the replication quotas, and the timer that looks for followers that lag
(H-5, each half of replica.lag.time.max.ms). `LocalReplicas` tells it what metadata changed.

A partition is followed while metadata names another broker as its leader and says where that broker
is reached; when the leader's address becomes known or changes later, following starts then.

Lock: none of its own. Calls come from metadata's thread, from the disk worker of a replica that
moved, and from whoever notices that a directory failed.
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
    from replication.metadata.registrations import Endpoint
    from replication.partition.partition import Partition
    from replication.replicas.config import ClusterLinks, ReplicaManagerConfig
    from replication.replicas.timer import Timer
    from storage.config import Clock

logger = logging.getLogger(__name__)


class ClusterReplication:
    """See the module."""

    def __init__(
        self,
        links: ClusterLinks,
        config: ReplicaManagerConfig,
        hosted: Callable[[], list[Partition]],
        metadata: Callable[[], MetadataImage],
        node_id: int,
        clock: Clock,
        timer: Timer,
        *,
        on_progress: Callable[[Partition], object],
    ) -> None:
        self._listener_name = links.listener_name
        self._hosted = hosted
        self._metadata = metadata
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
            address_of=self._address_of,
            quota=self.follower_quota,
            on_progress=on_progress,
        )
        self._isr_expiration = links.scheduler.schedule(
            "isr-expiration", max(config.replica_lag_time_max_ms // 2, 1), self._shrink_isrs
        )

    def partitions_changed(
        self, partitions: Iterable[Partition], moved_brokers: Iterable[int] = ()
    ) -> None:
        """These have another role, leader or log, or none; these brokers may be elsewhere."""
        moved = frozenset(moved_brokers)
        changed = list(partitions)
        if moved:
            changed += [p for p in self._hosted() if p.leader_id in moved]
        self.fetchers.update(changed)

    def _address_of(self, broker_id: int) -> Endpoint | None:
        broker = self._metadata().brokers.get(broker_id)
        return None if broker is None else broker.endpoints.get(self._listener_name)

    def _shrink_isrs(self) -> None:
        for partition in self._hosted():
            partition.maybe_shrink_isr()

    def shutdown(self) -> None:
        """End all fetchers and ask nothing more of the controller."""
        self._isr_expiration.cancel()
        self.alter_partition.shutdown()
        self.assignments.shutdown()
        self.fetchers.shutdown()
