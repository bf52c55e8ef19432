"""What changes of metadata mean for those that are followed."""

from __future__ import annotations

import threading
from typing import Any

from replication.replicas.cluster_replication import ClusterReplication
from replication.replicas.local_replicas import LocalReplicas


class Fetchers:
    def update(self, partitions: Any) -> None: ...


def test_a_directory_that_fails_meanwhile_does_not_disturb_who_looks_for_moved_brokers() -> None:
    """The loader's thread looks at all partitions; the failed directory's are taken away by another
    thread, which holds the lock of roles.
    """
    local = LocalReplicas.__new__(LocalReplicas)
    local.partitions = {}
    local._map_lock = threading.Lock()

    class Partition:
        @property
        def leader_id(self) -> int:
            with local._map_lock:  # the other thread comes in between, as it may at any time
                local.partitions.pop(("t", 2), None)
            return 9

    local.partitions.update({("t", index): Partition() for index in range(3)})  # type: ignore[misc]
    cluster = ClusterReplication.__new__(ClusterReplication)
    cluster._hosted, cluster.fetchers = local.hosted, Fetchers()  # type: ignore[assignment]
    cluster.partitions_changed([], [9])
    assert list(local.partitions) == [("t", 0), ("t", 1)]
