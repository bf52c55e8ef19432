"""What the broker part and the controller part of a node have in common.

Both are what handlers find as `ctx.broker`, each on its own listeners.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.config.schema import TOPIC
from server.network.listeners import read_listeners

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replication.metadata.image import MetadataImage
    from replication.metadata.loader import MetadataLoader
    from replication.raft.driver import RaftDriver
    from server.network.api import Api
    from server.node.shared_server import SharedServer
    from server.peers.peer_client import PeerClient
    from storage.config import LogConfig


class NodePart:
    """The shared server's things, under the names that handlers ask for."""

    def __init__(self, shared: SharedServer) -> None:
        """Raises ConfigError for listeners that cannot be."""
        self.shared = shared
        self.config = shared.config
        self.node_id = shared.node_id
        self.clock = shared.clock
        self.timer = shared.timer
        self.scheduler = shared.scheduler
        self.incarnation_id = shared.incarnation_id
        self.is_alone = shared.is_alone
        self.listeners = read_listeners(shared.config)
        self.authorizer = shared.authorizer

    def _guarded(self, apis: Mapping[int, Api]) -> Mapping[int, Api]:
        """The dispatch table of this part's listeners: with the authorizer before it, if there is
        one."""
        if self.authorizer is None:
            return apis
        from server.handlers.access.rules import guarded

        return guarded(apis, self.authorizer)

    @property
    def cluster_id(self) -> str:
        return self.shared.cluster_id

    @property
    def metadata(self) -> MetadataImage:
        """The current image of the cluster."""
        return self.shared.loader.image

    @property
    def raft(self) -> RaftDriver:
        return self.shared.raft

    @property
    def loader(self) -> MetadataLoader:
        return self.shared.loader

    @property
    def peers(self) -> PeerClient | None:
        """How this node speaks to others; None on a node alone."""
        return self.shared.peers

    @property
    def directory_id(self) -> bytes:
        """The id of the directory that holds the metadata log."""
        return self.shared.directory_id

    def topic_config(self, topic: str) -> LogConfig:
        """A topic's effective configuration."""
        return self.config.topic_config(self.metadata.config(TOPIC, topic))
