"""The controller part of a node (Kafka: ControllerServer).

Every node with the role `controller` runs one; the leader of the metadata quorum is the active
one, the others keep its state warm. The attributes are what handlers of the controller listeners
find as `ctx.broker`. A node alone opens no such listener.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from replication.controller.bootstrap import BOOTSTRAP_CHECKPOINT, SUPPORTED_FEATURES
from replication.controller.controller import Controller
from replication.metadata.image import ControllerRegistration, Endpoint
from replication.metadata.loader import MetadataPublisher
from replication.metadata.record_serde import MetadataRecordSerde
from replication.raft.snapshots import read_snapshot
from server.config.schema import ConfigSchema
from server.network.listeners import Listener, own_host_name
from server.network.socket_server import SocketServer
from server.node import settings
from server.node.node_part import NodePart
from server.node.shared_server import SharedServer, new_uuid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replication.raft.log import RaftLog
    from server.handlers.edges import QuorumNode
    from server.network.api import Api


def bootstrap_records(metadata_dir: Path, log: RaftLog, serde: MetadataRecordSerde) -> list[object]:
    """What formatting left for the first start of a cluster; a node alone has none.

    `kafka-storage format` writes a file of its own, or (with initial controllers, since 4.3) puts
    the records beside the voters in the log's first checkpoint.
    """
    values = log.bootstrap_values()
    path = metadata_dir / BOOTSTRAP_CHECKPOINT
    if not values and path.exists():
        values = read_snapshot(path).values
    return [serde.decode(value) for value in values]


class ControllerServer(NodePart):
    """The controller of this node. `bind`, `prepare` before raft starts, then `start`."""

    role = "controller"

    apis: Mapping[int, Api]
    """What the controller listeners serve, if there are any."""
    controller: Controller

    def __init__(self, shared: SharedServer) -> None:
        """Check what can be checked without touching the disk. Raises ConfigError."""
        super().__init__(shared)
        self.socket_server: SocketServer | None = None
        if self.listeners.controller:
            from server.handlers import CONTROLLER_APIS

            self.apis = self._guarded(CONTROLLER_APIS)
            self.socket_server = SocketServer(
                settings.socket_server(self.config),
                self.listeners.controller,
                self,
                self.apis,
                security=shared.security.of(self.listeners.controller),
            )

    # ---- what handlers ask

    unlisted_apis: frozenset[int] = frozenset()
    """See BrokerServer: all are listed."""

    @property
    def local_controller(self) -> Controller:
        return self.controller

    @property
    def host(self) -> str:
        """The host of the first listener."""
        return self.listeners.controller[0].host or "0.0.0.0"

    @property
    def port(self) -> int:
        """The port of the first listener."""
        assert self.socket_server is not None
        return self.socket_server.port

    # ---- life

    def bind(self) -> list[Listener]:
        """Take the addresses; returns where others reach them. Raises BindError."""
        if self.socket_server is None:
            return []
        self.shared.stop.then("controller listener", self.socket_server.shutdown)
        self.socket_server.bind()
        return self.listeners.advertise(
            self.listeners.controller, self.socket_server.ports, own_host_name()
        )

    def prepare(self, endpoints: list[Listener]) -> None:
        """Make the controller and let it listen to the quorum."""
        shared = self.shared
        self.registration = ControllerRegistration(
            shared.node_id,
            shared.incarnation_id,
            {e.name: Endpoint(e.host, e.port, e.protocol_id) for e in endpoints},
            dict(SUPPORTED_FEATURES),
        )
        self.controller = Controller(
            settings.controller(shared.config, shared.node_id, shared.cluster_id),
            shared.raft,
            shared.loader,
            shared.serde,
            shared.clock,
            ConfigSchema(shared.config),
            new_id=new_uuid,
            registration=self.registration,
            bootstrap_records=bootstrap_records(shared.metadata_dir, shared.raft.log, shared.serde),
            faults=shared.faults,
        )
        shared.stop.then("controller", self.controller.shutdown)

    def serve(self) -> None:
        """Answer other nodes from now on: votes, fetches, requests for the active controller."""
        if self.socket_server is not None:
            self.socket_server.start()

    def start(self) -> None:
        """Decide, when this node leads the quorum."""
        self.controller.start()

    def publishers(self) -> list[MetadataPublisher]:
        """Who must be told of each image."""
        channel = self.shared.controller_channel
        if channel is None:
            return []
        from server.node.controller_registration import ControllerRegistrationManager

        return [ControllerRegistrationManager(self.registration, channel, self.timer).publish]


if TYPE_CHECKING:

    def _has_what_handlers_ask(node: ControllerServer) -> QuorumNode:
        return node
