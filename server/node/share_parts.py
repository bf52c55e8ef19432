"""What a broker needs for share groups, put together: who keeps the state of share partitions, who
leads them, and the APIs of their groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from server.coordinator.share.coordinator import ShareCoordinator
from server.coordinator.share_groups.service import ShareGroupService
from server.coordinator.share_groups.settings import settings_of
from server.node import settings
from server.peers.end_offsets import EndOffsets
from server.peers.share_persister import SharePersister
from server.share.manager import ShareBroker, ShareManager
from wire.messages.share import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)

if TYPE_CHECKING:
    from replication.metadata.image import MetadataDelta, MetadataImage
    from server.config.kafka_config import KafkaConfig
    from server.coordinator.group_config import ShareConfig
    from server.coordinator.runtime import Surroundings
    from server.peers.broker_requests import BrokerRequests
    from server.share.leading import Settings


class ShareParts:
    """See the module. Made before the group coordinator, which gives `groups` its shards."""

    def __init__(
        self,
        config: KafkaConfig,
        requests: BrokerRequests,
        around: Surroundings,
        config_of: Callable[[str], ShareConfig],
    ) -> None:
        """`config_of`: what holds for a group."""
        self._config_of = config_of
        self._wall_ms = around.clock.wall_ms
        timeout_ms = config.get_int("request.timeout.ms")
        self.coordinator = coordinator = ShareCoordinator(
            settings.share_coordinator(config), around
        )
        requests.serve_own(InitializeShareGroupStateRequest, coordinator.initialize)
        requests.serve_own(ReadShareGroupStateRequest, coordinator.read)
        requests.serve_own(WriteShareGroupStateRequest, coordinator.write)
        requests.serve_own(DeleteShareGroupStateRequest, coordinator.delete)
        requests.serve_own(ReadShareGroupStateSummaryRequest, coordinator.read_summary)
        persister = SharePersister(
            around.node_id, coordinator, requests, around.timer.add, timeout_ms
        )
        end_offsets = EndOffsets(
            around.node_id, around.metadata, around.replica_manager, requests, timeout_ms
        )
        self.groups = ShareGroupService(
            persister, end_offsets.ask, around.metadata, around.clock.wall_ms
        )
        self.manager = ShareManager(
            ShareBroker(
                around.node_id,
                around.metadata,
                around.replica_manager,
                persister,
                self._settings,
                around.clock.now_ms,
                around.timer.add,
            ),
            settings.share_groups(config).group_share_max_share_sessions,
        )

    def _settings(self, group_id: str) -> Settings:
        return settings_of(self._config_of(group_id), self._wall_ms)

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """State of topics that are no more is dropped, and what is in memory when share.version was
        lowered."""
        if delta.features_changed and not image.feature("share.version"):
            self.manager.clear()
        if delta.deleted_topics:
            self.coordinator.topics_deleted(frozenset(delta.deleted_topics.values()))
