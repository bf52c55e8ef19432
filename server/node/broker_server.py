"""The broker part of a node (Kafka: BrokerServer): logs, replicas, coordinators, listeners.

The attributes are what handlers find as `ctx.broker`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replication.controller.bootstrap import SUPPORTED_FEATURES
from replication.controller.controller import Controller
from replication.metadata.image import BrokerRegistration, MetadataDelta, MetadataImage
from replication.metadata.loader import MetadataPublisher
from replication.replicas.replica_manager import ClusterLinks, ReplicaManager
from replication.replicas.timer import BackgroundScheduler
from replication.replicas.transaction_verification import TransactionVerification
from server.config.client_metrics import TELEMETRY_APIS, ClientMetrics
from server.config.kafka_config import catalogue
from server.config.schema import BROKER, CLIENT_METRICS
from server.coordinator.group_coordinator import GroupCoordinator
from server.coordinator.runtime import Surroundings
from server.coordinator.transactions.coordinator import TransactionCoordinator
from server.handlers import BROKER_APIS
from server.handlers.fetch_session import FetchSessionCache
from server.handlers.transaction_markers import write_own_markers
from server.network.listeners import own_host_name
from server.network.metering import ClientQuotas, connection_rates
from server.network.socket_server import SocketServer
from server.node import config_check, settings
from server.node.broker_lifecycle import BrokerLifecycle
from server.node.node_part import NodePart
from server.node.share_parts import ShareParts
from server.node.shared_server import SharedServer
from server.peers.add_partitions_to_txn import AddPartitionsToTxnManager
from server.peers.broker_requests import BrokerRequests
from server.peers.transaction_markers import TransactionMarkerChannel
from storage.directories.log_dirs import LogDirError
from storage.directories.log_manager import LogManager
from wire.messages.transactions import WriteTxnMarkersRequest

if TYPE_CHECKING:
    from server.coordinator.share.coordinator import ShareCoordinator
    from server.handlers.edges import (
        ClusterNode,
        DataBroker,
        GroupsBroker,
        MarkersBroker,
        ShareBroker,
        TelemetryBroker,
        TransactionsBroker,
    )
    from server.network.request_context import RequestContext
    from server.node.replica_publisher import ReplicaPublisher
    from server.peers.controller_channel import ControllerChannel
    from server.peers.peer_client import PeerClient
    from server.share.manager import ShareManager

_CONTROLLED_SHUTDOWN_S = 30.0
# Where all nodes stop: the controller answers in a few milliseconds, or never. It may be waiting
# for the session of a broker that was killed.
_FAREWELL_S = 0.2


class BrokerServer(NodePart):
    """The broker of this node. `bind`, `connect`, `prepare`, `register`, `serve`, in this order."""

    role = "broker"

    log_manager: LogManager
    replica_manager: ReplicaManager
    group_coordinator: GroupCoordinator
    transaction_coordinator: TransactionCoordinator
    transaction_verification: TransactionVerification

    def __init__(self, shared: SharedServer) -> None:
        """Check what can be checked without touching the disk. Raises ConfigError."""
        super().__init__(shared)
        self.apis = self._guarded(BROKER_APIS)
        self.socket_server = SocketServer(
            settings.socket_server(self.config),
            self.listeners.broker,
            self,
            self.apis,
            inter_broker_name=self.listeners.inter_broker_name,
            security=shared.security.of(self.listeners.broker),
        )
        self.inter_broker_security = shared.security.towards_brokers
        self.opens_compressed_records = settings.opens_compressed_records(
            self.config, self.listeners.broker
        )
        """Names of the listeners on which compressed batches are decompressed to be checked."""
        self.client_quotas = ClientQuotas()
        self.fetch_sessions = FetchSessionCache(
            self.config.get_int("max.incremental.fetch.session.cache.slots")
        )
        self.client_metrics = ClientMetrics(self.config.get_int("telemetry.max.bytes"))
        self.unlisted_apis: frozenset[int] = TELEMETRY_APIS
        """Served, and not told of: clients would ask for subscriptions again and again."""
        self.local_controller: Controller | None = None
        self._channel: ControllerChannel | None = None
        self.lifecycle: BrokerLifecycle | None = None
        self._has_cordoned = False
        self._replica_publisher: ReplicaPublisher | None = None

    # ---- what handlers ask

    @property
    def controller(self) -> ControllerChannel | Controller:
        """Who decides about the cluster: takes requests with `submit`."""
        controller = self._channel or self.local_controller
        assert controller is not None, "connect comes first"
        return controller

    @property
    def host(self) -> str:
        """The host of the first listener."""
        return self.listeners.broker[0].host or "0.0.0.0"

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self.socket_server.port

    def endpoint_for(
        self, ctx: RequestContext[Any], registration: BrokerRegistration
    ) -> tuple[str, int] | None:
        """Where the client of `ctx` reaches a broker; None if not on this listener.

        The only broker of its cluster, if it was told no name, is where the client dialled it.
        """
        is_alone = len(self.metadata.brokers) == 1
        if is_alone and self.listeners.tells_dialled_address(ctx.listener_name):
            return ctx.local_host, ctx.local_port
        endpoint = registration.endpoints.get(ctx.listener_name)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    # ---- life

    def bind(self) -> None:
        """Take the addresses, so that an occupied one costs nothing. Raises BindError."""
        self.shared.stop.then("socket server", self.socket_server.shutdown)
        self.socket_server.bind()

    def connect(self, local_controller: Controller | None) -> None:
        """Find the controller: in this process, or wherever the active one is."""
        self.local_controller = local_controller
        self._channel = self.shared.controller_channel

    def prepare(self) -> list[MetadataPublisher]:
        """Open the logs, make the coordinators. Returns who must be told of each image."""
        self._start_storage()
        self._start_coordinators()
        return [
            self._publish_quotas,
            self._publish_configs,
            self._publish_subscriptions,
            self._publish_partitions(),
            self.group_coordinator.on_metadata,
            self.shares.on_metadata,
            self._publish_markers,
            self._publish_registration,
        ]

    def _start_storage(self) -> None:
        dirs, own = self.shared.dirs, self.config.log_dirs()
        usable = {path: id_ for path, id_ in dirs.directory_ids.items() if path in own}
        if not usable:  # the metadata log's own directory is, or the start had ended before
            raise LogDirError(f"no directory of log.dirs can be used: {dirs.failed}")
        workers = {path: self.shared.worker(f"log-dir-{n}") for n, path in enumerate(usable)}
        # With one directory nothing moves: no thread waits for it.
        self.mover = self.shared.worker("alter-log-dirs") if len(usable) > 1 else self.scheduler
        self.log_manager = LogManager(
            usable,
            self.config.topic_config({}),
            self.clock,
            None,
            self._log_dir_failed,
            settings.log_manager(self.config),
            failed=dirs.failed,
            cleaner_config=settings.cleaner(self.config),
            workers=workers,
            run_urgently=self.shared.run_urgently,
        )
        self.replica_manager = ReplicaManager(
            settings.replica_manager(self.config),
            self.log_manager,
            lambda: self.metadata,
            self.timer,
            self.clock,
            self.node_id,
            topic_config=self.topic_config,
            links=None if self.is_alone else self._links,
            own_links=self._links,
            run_aside=self.socket_server.request_channel.resume,
        )
        self.config.checks += [config_check.check, self.shared.security.check_reload]
        self._apply_dynamic_configs()
        self.log_manager.startup(self.topic_config)
        self.shared.stop.then("logs", self._shutdown_logs)
        self.shared.stop.then("replica manager", self.replica_manager.shutdown)

    def _links(self) -> ClusterLinks:
        """What replicas need of the other nodes; asked for when there are some."""
        from server.peers.replica_transport import cluster_links

        return cluster_links(self)

    def _shutdown_logs(self) -> None:
        self.log_manager.shutdown(self.lifecycle.broker_epoch if self.lifecycle else -1)

    def _start_coordinators(self) -> None:
        # A thread of its own: a big partition takes seconds to load, and nobody waits for it.
        loader = BackgroundScheduler(self.clock, "coordinator-loader")
        self.shared.stop.then("coordinator loader", loader.shutdown)
        loader.start()
        around = Surroundings(
            node_id=self.node_id,
            metadata=lambda: self.metadata,
            replica_manager=self.replica_manager,
            controller=self.controller,
            timer=self.timer,
            clock=self.clock,
            run_on_loader=lambda name, job: loader.schedule_once(name, 0, job),
        )
        self.broker_requests = BrokerRequests(
            self.node_id,
            lambda: self.metadata,
            self.listeners.inter_broker_name,
            self._coordinators_peers(),
        )
        self.shares = ShareParts(
            self.config,
            self.broker_requests,
            around,
            lambda group_id: self.group_coordinator.share_config_of(group_id),
        )
        self.shared.stop.then("share coordinator", self.share_coordinator.shutdown)
        self.group_coordinator = GroupCoordinator(
            settings.groups(self.config),
            around,
            lambda: str(uuid.uuid4()),
            settings.consumer_groups(self.config),
            self.shares.groups,
            settings.share_groups(self.config),
            settings.streams_groups(self.config),
        )
        self.shared.stop.then("group coordinator", self.group_coordinator.shutdown)
        self._start_transactions(around)

    @property
    def share_coordinator(self) -> ShareCoordinator:
        """Keeps the state of share partitions."""
        return self.shares.coordinator

    @property
    def share_manager(self) -> ShareManager:
        """Leads share partitions."""
        return self.shares.manager

    def _start_transactions(self, around: Surroundings) -> None:
        on_handler = self.socket_server.request_channel.resume
        after_answers = self.socket_server.after_answers
        self.broker_requests.serve_own(
            WriteTxnMarkersRequest, partial(write_own_markers, self, on_handler, after_answers)
        )
        request_timeout_ms = self.config.get_int("request.timeout.ms")
        self.transaction_markers = TransactionMarkerChannel(
            self.broker_requests, lambda: self.metadata, self.timer, request_timeout_ms
        )
        self.transaction_coordinator = TransactionCoordinator(
            settings.transactions(self.config), around, self.transaction_markers
        )
        self.shared.stop.then("transaction coordinator", self.transaction_coordinator.shutdown)
        add_partitions = AddPartitionsToTxnManager(
            self.node_id,
            lambda: self.metadata,
            self.transaction_coordinator,
            self.broker_requests,
            request_timeout_ms,
        )
        self.transaction_verification = TransactionVerification(
            self.replica_manager,
            add_partitions,
            self.timer,
            self.clock.now_ms,
            is_enabled=lambda: self.log_manager.producers.requires_verification,
            resume=on_handler,
            config=settings.verification(self.config),
        )

    def _coordinators_peers(self) -> PeerClient | None:
        """How coordinators speak to other brokers. On a thread of its own: what follows from an
        answer is written to logs, and votes must not wait for a disk."""
        if self.is_alone:
            return None
        from server.peers.peer_client import PeerClient

        peers = PeerClient(
            self.clock.now_ms, f"node-{self.node_id}-coordinators", self.inter_broker_security
        )
        self.shared.stop.then("coordinators' peer client", peers.shutdown)
        peers.start()
        return peers

    def register(self, is_stopping: Callable[[], bool]) -> bool:
        """Register with the controller and be unfenced; False if `is_stopping` came first.

        Raises KafkaError when the controller refuses, or none answers in time.
        """
        config = settings.lifecycle(self.config)
        submit: Callable[..., None] = self.controller.submit
        if self._channel is not None:
            # What a heartbeat says grows old; a newer one says it better.
            submit = partial(submit, timeout_ms=config.broker_session_timeout_ms // 2)
        self.lifecycle = BrokerLifecycle(
            self.node_id,
            self.cluster_id,
            self.incarnation_id,
            submit,
            self._image_of_replicas,
            self.timer,
            self.clock,
            config,
            is_alone=self.is_alone,
            on_fatal=self.shared.fatal,
            cordoned_log_dirs=self._cordoned_log_dirs,
        )
        own_host = "localhost" if self.is_alone else own_host_name()
        ports = self.socket_server.ports
        self.lifecycle.start(
            self.listeners.advertise(self.listeners.broker, ports, own_host),
            {name: (r.minimum, r.maximum) for name, r in SUPPORTED_FEATURES.items()},
            self.config.get_str("broker.rack") or None,
            [self.log_manager.directory_id(path) for path in self._online_dirs()],
            self.log_manager.previous_broker_epoch,
        )
        if not self.lifecycle.await_running(is_stopping):
            return False
        self.log_manager.start_background()
        return True

    def serve(self) -> None:
        """Answer clients from now on."""
        self.socket_server.start()

    def begin_shutdown(self) -> None:
        """Give leadership away, then answer what is in flight while the parts below still work."""
        lifecycle = self.lifecycle
        if lifecycle is None:
            return
        attempt = self.shared.stop.attempt
        hopeless = self._quorum_is_lost()
        wait_s = _FAREWELL_S if self.shared.nobody_stays else _CONTROLLED_SHUTDOWN_S
        attempt("lifecycle", lambda: lifecycle.await_controlled_shutdown(wait_s, hopeless))
        lifecycle.shutdown()
        attempt("socket server", self.socket_server.shutdown)

    def _quorum_is_lost(self) -> Callable[[], bool]:
        """Tells, asked again and again, when nothing was committed for longer than it takes to
        elect a leader, although a leader commits something each metadata.max.idle.interval.ms:
        others are being stopped too.
        """
        idle_ms = self.config.get_int("metadata.max.idle.interval.ms")
        if not idle_ms:
            return lambda: False
        limit_ms = 4 * idle_ms + 3 * self.config.get_int("controller.quorum.election.timeout.ms")
        committed, since_ms = self.raft.high_watermark, self.clock.now_ms()

        def ask() -> bool:
            nonlocal committed, since_ms
            now_ms = self.clock.now_ms()
            if self.raft.high_watermark != committed:
                committed, since_ms = self.raft.high_watermark, now_ms
            return now_ms - since_ms > limit_ms

        return ask

    # ---- directories

    def _online_dirs(self) -> list[Path]:
        offline = self.log_manager.offline_dirs
        return [path for path in self.log_manager.log_dirs if path not in offline]

    def _cordoned_log_dirs(self) -> list[bytes] | None:
        """Those the controller is told of. None before this node has read its registration and with
        it its configs, where no record could hold them, and while there never were any."""
        image = self._image_of_replicas()
        own = image.brokers.get(self.node_id)
        is_known = own is not None and own.incarnation_id == self.incarnation_id
        if not is_known or not image.knows_cordoned_directories:
            return None
        manager = self.log_manager
        cordoned = [path for path in self._online_dirs() if path in manager.cordoned_dirs]
        self._has_cordoned |= bool(cordoned)
        return [manager.directory_id(path) for path in cordoned] if self._has_cordoned else None

    def _log_dir_failed(self, directory: Path, error: OSError) -> None:
        """A directory's disk failed: go on without it, unless nothing would be left (B-7)."""
        if directory == self.shared.metadata_dir or not self._online_dirs():
            self.shared.fatal(error)
        # The controller first: here locks may have to be waited for that the same disk holds up.
        if self.lifecycle is not None:
            self.lifecycle.log_dir_failed(self.log_manager.directory_id(directory))
        self.replica_manager.log_dir_failed(directory, error)

    # ---- publishers of the metadata image, in this order

    def _publish_configs(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        if any(kind == BROKER for kind, _name in delta.changed_configs):
            changed = self._apply_dynamic_configs()
            topic_keys = {key for d in catalogue().topic.values() for key in d.synonyms}
            if changed & topic_keys:
                self.replica_manager.reload_topic_configs()
            settings.apply_connection_limits(self.config, self.socket_server.quotas)
            if "cordoned.log.dirs" in changed and self.lifecycle is not None:
                self.lifecycle.cordoned_log_dirs_changed()
            if (BROKER, str(self.node_id)) in delta.changed_configs:
                self.shared.security.reload()
            self.log_manager.cleaner.reconfigure(settings.cleaner(self.config))
            self.group_coordinator.consumer = settings.consumer_groups(self.config)
            self.group_coordinator.share_config = settings.share_groups(self.config)
            self.group_coordinator.streams = settings.streams_groups(self.config)

    def _publish_subscriptions(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if any(kind == CLIENT_METRICS for kind, _name in delta.changed_configs):
            configs = {n: v for (kind, n), v in image.configs.items() if kind == CLIENT_METRICS}
            self.client_metrics.update(configs)
            self.unlisted_apis = frozenset() if configs else TELEMETRY_APIS

    def _apply_dynamic_configs(self) -> set[str]:
        image = self.metadata
        own: Mapping[str, str] = image.config(BROKER, str(self.node_id))
        changed = settings.apply_dynamic(self.config, own, image.config(BROKER, ""))
        self.log_manager.cordoned_dirs = frozenset(self.config.cordoned_log_dirs())
        producers = self.log_manager.producers
        producers.expiration_ms = self.config.get_int("producer.id.expiration.ms")
        verification = self.config.get("transaction.partition.verification.enable")
        producers.requires_verification = verification is True
        self.replica_manager.set_throttled_rates(
            self.config.get_int("leader.replication.throttled.rate"),
            self.config.get_int("follower.replication.throttled.rate"),
            self.config.get_int("replica.alter.log.dirs.io.max.bytes.per.second"),
        )
        return changed

    def _publish_quotas(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.changed["client_quotas"]:
            quotas = self.client_quotas
            quotas.update(image.client_quotas.values())
            self.socket_server.request_channel.measure(quotas.context if quotas.any else None)
            self.socket_server.quotas.set_ip_rates(connection_rates(image.client_quotas.values()))

    def _publish_partitions(self) -> MetadataPublisher:
        """A node alone may lead by what it was before: nobody else has anything to compare."""
        if self.is_alone:
            return self.replica_manager.apply_delta
        from server.node.replica_publisher import ReplicaPublisher

        self._replica_publisher = ReplicaPublisher(
            self.replica_manager, self.node_id, self.incarnation_id
        )
        return self._replica_publisher.publish

    def _image_of_replicas(self) -> MetadataImage:
        """What the partitions here have been brought to."""
        publisher = self._replica_publisher
        return self.metadata if publisher is None else publisher.image

    def _publish_markers(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        if delta.changed_partitions or delta.deleted_topics:
            self.transaction_markers.leaders_changed()

    def _publish_registration(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self.lifecycle is not None:
            self.lifecycle.on_metadata(delta, image)


if TYPE_CHECKING:

    def _has_what_handlers_ask(
        broker: BrokerServer,
    ) -> tuple[
        ClusterNode,
        DataBroker,
        GroupsBroker,
        MarkersBroker,
        ShareBroker,
        TelemetryBroker,
        TransactionsBroker,
    ]:
        return broker, broker, broker, broker, broker, broker, broker
