"""The broker as a whole: builds every part, starts them in order, stops them in reverse.

Start: take the port (so that an occupied one costs nothing) -> check, lock and format the log
directories -> the quorum of one elects itself and delivers the metadata log -> open the logs ->
publish the metadata image to the parts of the broker -> register with the controller and be
unfenced -> serve. Stop: controlled shutdown -> no more requests -> coordinators, replica manager,
logs with their clean-shutdown markers -> controller, quorum -> unlock.

The attributes are what handlers find as `ctx.broker`. Failures that make state untrustworthy (a
failed metadata log, a failed metadata publication, the last log directory) end the process at once:
better stopped than wrong.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from replication.controller.bootstrap import SUPPORTED_FEATURES
from replication.controller.controller import Controller
from replication.metadata import (
    BrokerRegistration,
    ControllerRegistration,
    MetadataDelta,
    MetadataImage,
)
from replication.metadata_loader import MetadataLoader
from replication.raft.driver import RaftDriver
from replication.raft.log import RaftLog
from replication.raft.snapshots import read_snapshot
from replication.record_serde import MetadataRecordSerde
from replication.replica_manager import ReplicaManager
from replication.timer import BackgroundScheduler, Timer
from server import settings
from server.broker_lifecycle import BrokerLifecycle
from server.config import ConfigError, KafkaConfig, catalogue
from server.config_schema import BROKER, TOPIC, ConfigSchema
from server.coordinator.group_coordinator import GroupCoordinator
from server.coordinator.runtime import Surroundings
from server.fetch_session import FetchSessionCache
from server.handlers import APIS
from server.listeners import advertised_listener, client_listener
from server.socket_server import SocketServer, freeze_collector, keep_freed_memory
from storage.config import LogConfig, SystemClock
from storage.log_dirs import FormattedDirs, prepare_log_dirs
from storage.log_manager import LogManager

if TYPE_CHECKING:
    from server.request_channel import RequestContext

logger = logging.getLogger(__name__)

BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
_CONTROLLED_SHUTDOWN_S = 30.0


def new_uuid() -> bytes:
    """A random id as Kafka makes them: its text never starts with a dash, as a flag does."""
    while True:
        value = uuid.uuid4().bytes
        if value[0] >> 2 != 62:  # 62 is "-" in base64url
            return value


def _bootstrap_records(metadata_dir: Path, serde: MetadataRecordSerde) -> list[object]:
    """What `kafka-storage format` left for the first start of a cluster; none in our own dirs."""
    path = metadata_dir / BOOTSTRAP_CHECKPOINT
    if not path.exists():
        return []
    return [serde.decode(value) for value in read_snapshot(path).values]


class Broker:
    """One node, broker and controller. `start` once, `shutdown` once (after a failed start too)."""

    def __init__(self, config: KafkaConfig, cluster_id: str | None = None) -> None:
        """Check what can be checked without touching the disk. Raises ConfigError.

        `cluster_id` is what the log directories are formatted with, or must belong to already.
        """
        settings.check_single_node(config)
        self.config = config
        self.node_id = settings.node_id(config)
        self.cluster_id = ""
        self._wanted_cluster_id = cluster_id
        self.clock = SystemClock()
        self._listener = client_listener(config)
        self._advertised = advertised_listener(config, self._listener)
        self.socket_server = SocketServer(
            settings.socket_server(config, self._listener), self, APIS
        )
        self.timer = Timer(self.clock)
        self.scheduler = BackgroundScheduler(self.clock)
        self.fetch_sessions = FetchSessionCache(
            config.get_int("max.incremental.fetch.session.cache.slots")
        )
        self._undo: list[tuple[str, Callable[[], object]]] = []
        self.lifecycle: BrokerLifecycle | None = None

    # ---- what handlers ask

    @property
    def metadata(self) -> MetadataImage:
        """The current image of the cluster."""
        return self.loader.image

    @property
    def host(self) -> str:
        """The host this broker listens on."""
        return self._listener.host or "0.0.0.0"

    @property
    def port(self) -> int:
        """The port this broker listens on."""
        return self.socket_server.port

    @property
    def data_dir(self) -> str:
        """The log directories, for people."""
        return ",".join(str(path.absolute()) for path in self.config.log_dirs())

    def endpoint_for(
        self, ctx: RequestContext, registration: BrokerRegistration
    ) -> tuple[str, int]:
        """Where the client of `ctx` reaches a broker: this one at the address that was dialled."""
        if registration.broker_id == self.node_id and self._advertised is None:
            return ctx.local_host, ctx.local_port
        endpoint = registration.endpoints.get(ctx.listener_name)
        if endpoint is None:
            return "", -1
        return endpoint.host, endpoint.port

    def topic_config(self, topic: str) -> LogConfig:
        """A topic's effective configuration."""
        return self.config.topic_config(self.loader.image.config(TOPIC, topic))

    # ---- life

    def start(self) -> None:
        """Start everything; answers requests when it returns.

        Raises ConfigError, BindError, LogDirError, OSError or KafkaError; call `shutdown` then.
        """
        began_ms = self.clock.now_ms()
        for note in settings.notes(self.config):
            logger.warning("%s", note)
        self._then("socket server", self.socket_server.shutdown)
        self.socket_server.bind()
        dirs = prepare_log_dirs(
            self.config.log_dirs(), self.node_id, self._wanted_cluster_id, new_uuid
        )
        self._then("directory locks", dirs.release)
        self.cluster_id = dirs.cluster_id
        for part in (self.timer, self.scheduler):
            self._then(type(part).__name__, part.shutdown)
            part.start()
        incarnation_id = new_uuid()
        self._start_quorum(dirs, incarnation_id)
        self._start_storage(dirs)
        self._start_coordinators()
        self.loader.start([self._publish_configs, self._publish_partitions, self._publish_groups])
        self.controller.start()
        self._register(incarnation_id)
        self.log_manager.start_background()
        keep_freed_memory()
        self.socket_server.start()
        freeze_collector()
        logger.info(
            "broker started node_id=%s cluster_id=%s listener=%s:%s ms=%s",
            self.node_id,
            self.cluster_id,
            self.host,
            self.port,
            self.clock.now_ms() - began_ms,
        )

    def shutdown(self) -> None:
        """Stop all that was started, in reverse; a part that fails does not keep the rest."""
        lifecycle = self.lifecycle
        was_started = lifecycle is not None
        if lifecycle is not None:
            timeout_s = _CONTROLLED_SHUTDOWN_S
            self._attempt("lifecycle", lambda: lifecycle.controlled_shutdown(timeout_s))
            # What is in flight is answered while the parts below it still work.
            self._attempt("socket server", self.socket_server.shutdown)
        while self._undo:
            self._attempt(*self._undo.pop())
        if was_started:
            logger.info("broker stopped node_id=%s", self.node_id)

    def _then(self, name: str, undo: Callable[[], object]) -> None:
        self._undo.append((name, undo))

    def _attempt(self, name: str, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception:
            logger.exception("stopping failed part=%s", name)

    def _fatal(self, error: BaseException) -> None:
        logger.critical("the broker cannot go on and stops now error=%s", error, exc_info=error)
        logging.shutdown()
        os._exit(1)

    # ---- the parts

    def _start_quorum(self, dirs: FormattedDirs, incarnation_id: bytes) -> None:
        config = self.config
        metadata_dir = Path(config.get_str("metadata.log.dir") or config.log_dirs()[0])
        if metadata_dir not in dirs.directory_ids:
            raise ConfigError(
                "metadata.log.dir", str(metadata_dir), "expected one of log.dirs that can be used"
            )
        self._metadata_dir = metadata_dir
        log = RaftLog.open(
            metadata_dir, self.clock, segment_bytes=config.get_int("metadata.log.segment.bytes")
        )
        serde = MetadataRecordSerde()
        self.raft = RaftDriver(
            self.node_id,
            log,
            self.clock,
            serde,
            directory_id=dirs.directory_ids[metadata_dir],
            on_fatal=self._fatal,
        )
        self._then("raft driver", self.raft.shutdown)
        self.loader = MetadataLoader(
            self.raft,
            self.clock,
            snapshot_config=settings.snapshots(config),
            on_fatal=self._fatal,
        )
        self.raft.add_listener(self.loader)
        self._then("metadata loader", self.loader.shutdown)
        self.controller = Controller(
            settings.controller(config, self.node_id, self.cluster_id),
            self.raft,
            self.loader,
            serde,
            self.clock,
            ConfigSchema(config),
            new_id=new_uuid,
            registration=ControllerRegistration(
                self.node_id, incarnation_id, {}, dict(SUPPORTED_FEATURES)
            ),
            bootstrap_records=_bootstrap_records(metadata_dir, serde),
        )
        self._then("controller", self.controller.shutdown)
        self.raft.start()

    def _start_storage(self, dirs: FormattedDirs) -> None:
        self.log_manager = LogManager(
            dirs.directory_ids,
            self.config.topic_config({}),
            self.clock,
            self.scheduler,
            self._log_dir_failed,
            settings.log_manager(self.config),
            failed=dirs.failed,
            cleaner_config=settings.cleaner(self.config),
        )
        self.replica_manager = ReplicaManager(
            settings.replica_manager(self.config),
            self.log_manager,
            lambda: self.loader.image,
            self.timer,
            self.clock,
            self.node_id,
            topic_config=self.topic_config,
        )
        self._apply_dynamic_configs()
        self.log_manager.startup(self.topic_config)
        self._then("logs", self._shutdown_logs)
        self._then("replica manager", self.replica_manager.shutdown)

    def _shutdown_logs(self) -> None:
        self.log_manager.shutdown(self.lifecycle.broker_epoch if self.lifecycle else -1)

    def _start_coordinators(self) -> None:
        around = Surroundings(
            node_id=self.node_id,
            metadata=lambda: self.loader.image,
            replica_manager=self.replica_manager,
            controller=self.controller,
            timer=self.timer,
            clock=self.clock,
            run_in_background=self._run_in_background,
        )
        self.group_coordinator = GroupCoordinator(
            settings.groups(self.config), around, lambda: str(uuid.uuid4())
        )
        self._then("group coordinator", self.group_coordinator.shutdown)

    def _run_in_background(self, name: str, job: Callable[[], None]) -> None:
        self.scheduler.schedule_once(name, 0, job)

    def _register(self, incarnation_id: bytes) -> None:
        self.lifecycle = BrokerLifecycle(
            self.node_id, self.cluster_id, incarnation_id, self.controller, lambda: self.metadata
        )
        advertised = self._advertised or self._listener
        port = advertised.port if self._advertised else self.port
        self.lifecycle.register(
            advertised._replace(port=port),
            {name: (r.minimum, r.maximum) for name, r in SUPPORTED_FEATURES.items()},
            self.config.get_str("broker.rack") or None,
            [self.log_manager.directory_id(path) for path in self._online_dirs()],
            self.log_manager.previous_broker_epoch,
        )

    def _online_dirs(self) -> list[Path]:
        offline = self.log_manager.offline_dirs
        return [path for path in self.log_manager.log_dirs if path not in offline]

    def _log_dir_failed(self, directory: Path, error: OSError) -> None:
        """A directory's disk failed: go on without it, unless nothing would be left (B-7)."""
        if directory == self._metadata_dir or not self._online_dirs():
            self._fatal(error)
        self.replica_manager.log_dir_failed(directory, error)
        if self.lifecycle is not None:
            self.lifecycle.log_dir_failed(self.log_manager.directory_id(directory))

    # ---- publishers of the metadata image, in this order

    def _publish_configs(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        if any(kind == BROKER for kind, _name in delta.changed_configs):
            changed = self._apply_dynamic_configs()
            topic_keys = {key for d in catalogue().topic.values() for key in d.synonyms}
            if changed & topic_keys:
                self.replica_manager.reload_topic_configs()
            settings.apply_connection_limits(self.config, changed, self.socket_server.quotas)
            self.log_manager.cleaner.reconfigure(settings.cleaner(self.config))

    def _apply_dynamic_configs(self) -> set[str]:
        image = self.loader.image
        own: Mapping[str, str] = image.config(BROKER, str(self.node_id))
        changed = self.config.update_dynamic(own, image.config(BROKER, ""))
        if changed:
            logger.info("configs changed keys=%s", ",".join(sorted(changed)))
        return changed

    def _publish_partitions(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.replica_manager.apply_delta(delta, image)

    def _publish_groups(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        if delta.deleted_topics:
            self.group_coordinator.on_topics_deleted(list(delta.deleted_topics))
