"""The controller part of a node (Kafka: ControllerServer).

Every node with the role `controller` runs one; the leader of the metadata quorum is the active
one, the others keep its state warm.
"""

from __future__ import annotations

from pathlib import Path

from replication.controller.bootstrap import SUPPORTED_FEATURES
from replication.controller.controller import Controller
from replication.metadata import ControllerRegistration
from replication.raft.snapshots import read_snapshot
from replication.record_serde import MetadataRecordSerde
from server import settings
from server.config_schema import ConfigSchema
from server.shared_server import SharedServer, new_uuid

BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"


def _bootstrap_records(metadata_dir: Path, serde: MetadataRecordSerde) -> list[object]:
    """What `kafka-storage format` left for the first start of a cluster; none in our own dirs."""
    path = metadata_dir / BOOTSTRAP_CHECKPOINT
    if not path.exists():
        return []
    return [serde.decode(value) for value in read_snapshot(path).values]


class ControllerServer:
    """The controller of this node. `prepare` before the raft driver starts, `start` after."""

    controller: Controller

    def __init__(self, shared: SharedServer) -> None:
        self.shared = shared

    def prepare(self) -> None:
        """Make the controller and let it listen to the quorum."""
        shared = self.shared
        self.controller = Controller(
            settings.controller(shared.config, shared.node_id, shared.cluster_id),
            shared.raft,
            shared.loader,
            shared.serde,
            shared.clock,
            ConfigSchema(shared.config),
            new_id=new_uuid,
            registration=ControllerRegistration(
                shared.node_id, shared.incarnation_id, {}, dict(SUPPORTED_FEATURES)
            ),
            bootstrap_records=_bootstrap_records(shared.metadata_dir, shared.serde),
        )
        shared.stop.then("controller", self.controller.shutdown)

    def start(self) -> None:
        """Take requests; they are served when this node leads the quorum."""
        self.controller.start()
