"""A node as a whole: which parts it has, started in order, stopped in reverse.

`process.roles` says which (Kafka: KafkaRaftServer): a SharedServer always, a ControllerServer for
`controller`, a BrokerServer for `broker`.

Start: take the ports (so that an occupied one costs nothing) -> check, lock and format the log
directories -> the metadata quorum -> serve the controllers' listener -> (a broker) wait until the
metadata is as new as the quorum's leader has it -> open the logs -> publish the metadata image to
the parts of the broker -> register with the controller and be unfenced -> serve.

Stop: controlled shutdown -> no more requests of clients -> coordinators, replica manager, logs with
their clean-shutdown markers -> controller -> the quorum, whose leader says farewell -> controllers'
listener -> unlock.

A node alone does all that too, with a quorum of itself; it needs no threads or connections for
others and imports nothing that only they need.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from server.config.kafka_config import KafkaConfig
from server.network.socket_server import freeze_collector, keep_freed_memory
from server.node import settings
from server.node.broker_server import BrokerServer
from server.node.config_check import check
from server.node.controller_server import ControllerServer
from server.node.shared_server import SharedServer
from server.node.stop_sequence import StopSequence

logger = logging.getLogger(__name__)

_LOOK_S = 0.2
_SAY_AFTER_MS = 10_000


class StartInterrupted(Exception):
    """Somebody asked the node to stop while it was starting."""


class Node:
    """One process of a cluster. `start` once, `shutdown` once (after a failed start too)."""

    def __init__(self, config: KafkaConfig, cluster_id: str | None = None) -> None:
        """Check what can be checked without touching the disk. Raises ConfigError.

        `cluster_id` is what the log directories are formatted with, or must belong to already.
        """
        quorum = check(config)
        self.config = config
        self._stop = StopSequence()
        self.shared = SharedServer(config, quorum, self._stop, cluster_id)
        self.broker_server = BrokerServer(self.shared) if quorum.is_broker else None
        self.controller_server = ControllerServer(self.shared) if quorum.is_controller else None
        self._was_started = False

    @property
    def node_id(self) -> int:
        return self.shared.node_id

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty before the start."""
        return self.shared.cluster_id

    @property
    def host(self) -> str:
        """The host of the first listener, for clients where there is one."""
        return self._first_server.host

    @property
    def port(self) -> int:
        """The port of the first listener, for clients where there is one."""
        return self._first_server.port

    @property
    def _first_server(self) -> BrokerServer | ControllerServer:
        server = self.broker_server or self.controller_server
        assert server is not None, "a node has a role"
        return server

    @property
    def data_dir(self) -> str:
        """The log directories, for people."""
        return ",".join(str(path.absolute()) for path in self.config.log_dirs())

    def last_requests(self) -> list[str]:
        """What clients and other brokers (of a controller: nodes) asked last, a line each."""
        server = self._first_server.socket_server
        return [] if server is None else server.last_requests(self.shared.clock.wall_ms())

    def start(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Start everything; answers requests when it returns.

        In a cluster it waits as long as it takes for the others, unless `is_stopping` says that
        nobody wants that any more. Raises ConfigError, BindError, LogDirError, OSError, KafkaError
        or StartInterrupted; call `shutdown` then.
        """
        shared, broker, controller = self.shared, self.broker_server, self.controller_server
        began_ms = shared.clock.now_ms()
        has_peers = not shared.quorum.may_format_itself
        for note in settings.notes(self.config, has_peers=has_peers):
            logger.warning("%s", note)
        endpoints = controller.bind() if controller is not None else []
        if broker is not None:
            broker.bind()
        shared.prepare(endpoints)
        if controller is not None:
            controller.prepare(endpoints)
        shared.connect(controller.controller if controller is not None else None)
        shared.raft.start()
        if controller is not None and not shared.is_alone:
            # Now, for others need it: the logs of this node's broker may take long to open.
            controller.serve()
            shared.start_loader(controller.publishers())
            controller.start()
        if broker is not None:
            self._start_broker(broker, is_stopping)
        keep_freed_memory()
        if broker is not None:
            broker.serve()
        freeze_collector()
        self._was_started = True
        logger.info(
            "%s started node_id=%s cluster_id=%s listener=%s:%s ms=%s",
            "broker" if broker is not None else "controller",
            self.node_id,
            self.cluster_id,
            self.host,
            self.port,
            shared.clock.now_ms() - began_ms,
        )

    def _start_broker(self, broker: BrokerServer, is_stopping: Callable[[], bool]) -> None:
        """Open the logs, publish the image to the broker's parts, register."""
        shared, controller = self.shared, self.controller_server
        self._await_metadata(is_stopping)
        broker.connect(controller.controller if controller is not None else None)
        publishers = broker.prepare()
        if controller is None:
            shared.start_loader(publishers)
        elif shared.is_alone:
            shared.start_loader(publishers)
            controller.start()
        else:
            shared.loader.install(publishers)
        self._was_started = True
        if not broker.register(is_stopping):
            raise StartInterrupted("stopped while registering")

    def _await_metadata(self, is_stopping: Callable[[], bool]) -> None:
        """Wait for a leader of the quorum, and for all that it has committed."""
        shared = self.shared
        if shared.is_alone:
            return
        began_ms = said_ms = shared.clock.now_ms()
        while not shared.loader.wait_until_caught_up(_LOOK_S):
            if is_stopping():
                raise StartInterrupted("stopped while waiting for the metadata quorum")
            now_ms = shared.clock.now_ms()
            if now_ms - said_ms >= _SAY_AFTER_MS:
                said_ms = now_ms
                logger.warning(
                    "waiting for the metadata quorum leader_id=%s epoch=%s voters=%s ms=%s",
                    shared.raft.leader_id,
                    shared.raft.leader_epoch,
                    ",".join(map(str, shared.raft.voters.ids)),
                    now_ms - began_ms,
                )
        shared.loader.caught_up_image()

    def shutdown(self, *, nobody_stays: bool = False) -> None:
        """Stop all that was started, in reverse; a part that fails does not keep the rest.

        `nobody_stays`: all nodes of the cluster stop now. Leadership is offered to others all the
        same, but who does not take it at once is not waited for.
        """
        self.shared.nobody_stays = nobody_stays
        if self.broker_server is not None:
            self.broker_server.begin_shutdown()
        self._stop.run()
        if self._was_started:
            what = "broker" if self.broker_server is not None else "controller"
            logger.info("%s stopped node_id=%s", what, self.node_id)
