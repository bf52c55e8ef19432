"""Metadata on its way to the replicas of this broker, from the moment it speaks of this process.

Why: a broker that starts reads metadata in which it is still what it was before: leader of some
partitions, under leader epochs whose records it may have lost with its page cache. Would it lead
again before the controller knows its new incarnation, it could write other records under the same
leader epoch, at offsets where its followers have those that are lost; no comparison of epochs would
ever find that. So nothing is led or followed before the metadata holds this incarnation's
registration, which is behind whatever the controller decided about the old one (B-3). Kafka:
BrokerServer installs its publishers after the registration is read (initialCatchUpFuture).

How: `publish` drops images until then, and hands on the first good one as a whole. `image` is what
the replicas have been brought to: heartbeats report its offset, so the controller unfences nobody
who has only received what he should have acted on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replication.metadata.image import EMPTY_IMAGE

if TYPE_CHECKING:
    from replication.metadata.image import MetadataDelta, MetadataImage
    from replication.replicas.replica_manager import ReplicaManager


class ReplicaPublisher:
    """Owner: the loader's thread; `image` and `is_open` may be read by any."""

    def __init__(
        self, replica_manager: ReplicaManager, node_id: int, incarnation_id: bytes
    ) -> None:
        self.is_open = False
        """Has this incarnation's registration been read."""
        self.image = EMPTY_IMAGE
        self._replica_manager = replica_manager
        self._node_id = node_id
        self._incarnation_id = incarnation_id

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """A MetadataPublisher."""
        if not self.is_open:
            own = image.brokers.get(self._node_id)
            if own is not None and own.incarnation_id == self._incarnation_id:
                from replication.metadata.image import delta_between

                self.is_open = True
                delta = delta_between(EMPTY_IMAGE, image)
        if self.is_open:
            self._replica_manager.apply_delta(delta, image)
        self.image = image
