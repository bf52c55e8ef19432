"""A node as a whole: which parts it has, started in order, stopped in reverse.

`process.roles` says which (Kafka: KafkaRaftServer): a SharedServer always, a ControllerServer for
`controller`, a BrokerServer for `broker`.

Start: take the ports (so that an occupied one costs nothing) -> check, lock and format the log
directories -> the metadata quorum -> open the logs -> publish the metadata image to the parts of
the broker -> register with the controller and be unfenced -> serve. Stop: controlled shutdown -> no
more requests -> coordinators, replica manager, logs with their clean-shutdown markers ->
controller, quorum -> unlock.
"""

from __future__ import annotations

import logging

from server import settings
from server.broker_server import BrokerServer
from server.config import KafkaConfig
from server.controller_server import ControllerServer
from server.quorum_config import check
from server.shared_server import SharedServer
from server.socket_server import freeze_collector, keep_freed_memory
from server.stop_sequence import StopSequence

logger = logging.getLogger(__name__)


class Node:
    """One process of a cluster. `start` once, `shutdown` once (after a failed start too)."""

    def __init__(self, config: KafkaConfig, cluster_id: str | None = None) -> None:
        """Check what can be checked without touching the disk. Raises ConfigError.

        `cluster_id` is what the log directories are formatted with, or must belong to already.
        """
        self.quorum = check(config)
        self.config = config
        self._stop = StopSequence()
        self.shared = SharedServer(config, self._stop, cluster_id)
        self.broker_server = BrokerServer(self.shared)
        self.controller_server = ControllerServer(self.shared)

    @property
    def node_id(self) -> int:
        return self.shared.node_id

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty before the start."""
        return self.shared.cluster_id

    @property
    def host(self) -> str:
        """The host clients find this node on."""
        return self.broker_server.host

    @property
    def port(self) -> int:
        """The port clients find this node on."""
        return self.broker_server.port

    @property
    def data_dir(self) -> str:
        """The log directories, for people."""
        return ",".join(str(path.absolute()) for path in self.config.log_dirs())

    def start(self) -> None:
        """Start everything; answers requests when it returns.

        Raises ConfigError, BindError, LogDirError, OSError or KafkaError; call `shutdown` then.
        """
        shared, broker, controller = self.shared, self.broker_server, self.controller_server
        began_ms = shared.clock.now_ms()
        for note in settings.notes(self.config):
            logger.warning("%s", note)
        broker.bind()
        shared.prepare()
        controller.prepare()
        broker.local_controller = controller.controller
        shared.raft.start()
        publishers = broker.prepare()
        shared.loader.start(publishers)
        controller.start()
        broker.register()
        keep_freed_memory()
        broker.serve()
        freeze_collector()
        logger.info(
            "broker started node_id=%s cluster_id=%s listener=%s:%s ms=%s",
            self.node_id,
            self.cluster_id,
            self.host,
            self.port,
            shared.clock.now_ms() - began_ms,
        )

    def shutdown(self) -> None:
        """Stop all that was started, in reverse; a part that fails does not keep the rest."""
        was_started = self.broker_server.lifecycle is not None
        self.broker_server.begin_shutdown()
        self._stop.run()
        if was_started:
            logger.info("broker stopped node_id=%s", self.node_id)
