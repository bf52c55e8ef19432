"""What the broker and the controller of one process share (Kafka: SharedServer).

The log directories with their locks, the node's replica of the metadata log (a voter, or an
observer where this node is not in the voter set), the loader that makes images of it, the clock,
the timer and the threads for background work.

Threads by urgency: what may not wait for a disk (ISR expiry, small work of coordinators) runs on
`scheduler`; what works on a disk runs on a `worker` of that directory; the report that a directory
failed has a thread of its own (`run_urgently`), since there is one at most for each.

Failures that make the shared state untrustworthy (a failed metadata log, a record that cannot be
replayed) end the process at once: better stopped than wrong.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replication.metadata.image import MetadataImage
from replication.metadata.loader import MetadataLoader, MetadataPublisher
from replication.metadata.record_serde import MetadataRecordSerde
from replication.raft.driver import RaftDriver
from replication.raft.faults import FaultHandler
from replication.raft.log import METADATA_DIRECTORY, RaftLog
from replication.replicas.timer import BackgroundScheduler, Timer
from server.config.kafka_config import ConfigError, KafkaConfig
from server.node import settings
from server.node.node_security import NodeSecurity
from server.node.quorum_config import QuorumConfig
from server.node.stop_sequence import StopSequence
from storage.config import SystemClock
from storage.directories.log_dirs import FormattedDirs, LogDirError, is_formatted, prepare_log_dirs

if TYPE_CHECKING:
    from replication.controller.controller import Controller
    from server.network.listeners import Listener
    from server.peers.controller_channel import ControllerChannel
    from server.peers.peer_client import PeerClient
    from server.security.delegation_tokens import DelegationTokens
    from server.security.sasl.scram import ScramCredential, TokenCredential

logger = logging.getLogger(__name__)


def new_uuid() -> bytes:
    """A random id as Kafka makes them: its text never starts with a dash, as a flag does."""
    while True:
        value = uuid.uuid4().bytes
        if value[0] >> 2 != 62:  # 62 is "-" in base64url
            return value


class SharedServer:
    """One per process. `prepare` before the other parts are made, `start_raft` after."""

    raft: RaftDriver
    loader: MetadataLoader
    dirs: FormattedDirs

    def __init__(
        self,
        config: KafkaConfig,
        quorum: QuorumConfig,
        stop: StopSequence,
        cluster_id: str | None,
    ) -> None:
        """`cluster_id`: what fresh log directories are formatted with."""
        self.config = config
        self.quorum = quorum
        self.stop = stop
        self.node_id = quorum.node_id
        self.cluster_id = ""
        self.clock = SystemClock()
        self.timer = Timer(self.clock)
        self.scheduler = BackgroundScheduler(self.clock)
        self.serde = MetadataRecordSerde()
        self.faults = FaultHandler(self.fatal)
        self.incarnation_id = new_uuid()
        self.metadata_dir = Path(config.get_str("metadata.log.dir") or config.log_dirs()[0])
        self.peers: PeerClient | None = None
        """How this node speaks to others; None on a node alone."""
        self.controller_channel: ControllerChannel | None = None
        """The way to the active controller; None on a node alone, which has it."""
        self.nobody_stays = False
        """All nodes of the cluster stop together; see Node.shutdown."""
        self.security = NodeSecurity(
            config,
            quorum,
            self.scram_credential,
            self.token_credential,
            lambda: self.loader.image.scram_credentials,
        )
        self._tokens = self._delegation_tokens()
        self._wanted_cluster_id = cluster_id
        self.authorizer = settings.authorizer(config, self._is_caught_up)
        """Who decides what clients and nodes may do; None: nobody does."""

    def _is_caught_up(self) -> bool:
        """Is everything published that the quorum had committed when this node came."""
        return self.raft.wait_until_caught_up(0) and not self.loader.has_work

    @property
    def is_alone(self) -> bool:
        """Nobody else can ever be in this cluster."""
        return self.quorum.is_alone

    @property
    def metadata(self) -> MetadataImage:
        """The current image of the cluster."""
        return self.loader.image

    def scram_credential(self, mechanism: str, user: str) -> ScramCredential | None:
        """What the metadata log keeps of a user's password, as this node knows it now."""
        from server.security.sasl.scram import TYPES, ScramCredential

        found = self.loader.image.scram_credentials.get((user, TYPES[mechanism]))
        if found is None:
            return None
        return ScramCredential(
            bytes(found.salt), bytes(found.stored_key), bytes(found.server_key), found.iterations
        )

    def _delegation_tokens(self) -> DelegationTokens | None:
        secret_key = self.config.get("delegation.token.secret.key")
        if not secret_key or self.security.is_open:
            return None
        from server.security.delegation_tokens import DelegationTokens

        return DelegationTokens(
            str(secret_key), lambda: self.metadata.delegation_tokens, self.clock.wall_ms
        )

    def token_credential(self, mechanism: str, token_id: str) -> TokenCredential | None:
        """What logs in by a delegation token; None where there are none."""
        return None if self._tokens is None else self._tokens.credential(mechanism, token_id)

    @property
    def directory_id(self) -> bytes:
        """The id of the directory that holds the metadata log (KIP-853)."""
        return self.dirs.directory_ids[self.metadata_dir]

    def prepare(self, controller_endpoints: list[Listener]) -> None:
        """Check, lock and format the directories; make the quorum's parts, start none of them.

        `controller_endpoints`: where other nodes reach the controller of this one. Raises
        ConfigError, LogDirError, OSError, KafkaError, CorruptSnapshot, CorruptQuorumState.
        """
        self._check_metadata_dir()
        # The metadata log's first: should this be cut short, the next start can go on.
        dirs = list(dict.fromkeys((self.metadata_dir, *self.config.log_dirs())))
        self.dirs = prepare_log_dirs(dirs, self.node_id, self._wanted_cluster_id, new_uuid)
        self.stop.then("directory locks", self.dirs.release)
        self.cluster_id = self.dirs.cluster_id
        if self.metadata_dir not in self.dirs.directory_ids:
            raise ConfigError(
                "metadata.log.dir",
                str(self.metadata_dir),
                "expected a directory that can be used",
            )
        for part in (self.timer, self.scheduler):
            self.stop.then(type(part).__name__, part.shutdown)
            part.start()
        if not self.security.is_open:
            self.security.watch(self.worker("certificates"))
        self._make_quorum(controller_endpoints)

    def _check_metadata_dir(self) -> None:
        """The metadata log must be where it was, and a node that others know must not make up a
        cluster of its own. A node that began anew would know of no topic and set the logs of all
        aside, and a voter would forget whom it voted for (Kafka:
        KafkaRaftServer.initializeLogDirs)."""
        metadata_dir, own = self.metadata_dir, self.config.log_dirs()
        for path in own:
            log = path / METADATA_DIRECTORY
            if path != metadata_dir and os.path.exists(log):
                raise LogDirError(
                    f"{log} is there, and the metadata log is expected in {metadata_dir}"
                    " (metadata.log.dir, or else the first of log.dirs): name the directory it is"
                    " in, or remove it if it is not this node's any more"
                )
        if is_formatted(metadata_dir):
            return
        known = next(filter(is_formatted, own), None)
        is_told = self._wanted_cluster_id and self.quorum.voters
        may_begin = is_told or self.quorum.may_format_itself
        if may_begin and known is not None:
            raise LogDirError(
                f"{metadata_dir} is not formatted, and {known} is: the metadata log was somewhere"
                " else (metadata.log.dir, or else the first of log.dirs), or its disk is missing;"
                " if that is a new one, `barnabas format --ignore-formatted` comes first"
            )
        if not may_begin:
            raise LogDirError(
                f"{metadata_dir} is not formatted, and this node is one of a cluster: run"
                " `barnabas format --cluster-id ID --config FILE` on each of its nodes, with one id"
                " that `barnabas random-uuid` makes"
            )

    def _make_quorum(self, controller_endpoints: list[Listener]) -> None:
        log = RaftLog.open(
            self.metadata_dir,
            self.clock,
            segment_bytes=self.config.get_int("metadata.log.segment.bytes"),
        )
        others: dict[str, Any] = {}
        if not self.is_alone:
            others = self._with_others(controller_endpoints)
        self.raft = RaftDriver(
            self.node_id,
            log,
            self.clock,
            self.serde,
            directory_id=self.directory_id,
            faults=self.faults,
            **others,
        )
        self.stop.then("raft driver", lambda: self.raft.shutdown(0 if self.nobody_stays else None))
        if self.is_alone and not self.raft.is_only_voter:
            raise LogDirError(
                f"{self.metadata_dir}: its metadata log is of a quorum whose voters are"
                f" {', '.join(map(str, self.raft.voters.ids))}, and this configuration says that"
                " the node is alone: set controller.listener.names, a listener of it, and"
                " controller.quorum.bootstrap.servers"
            )
        self.loader = MetadataLoader(
            self.raft,
            self.clock,
            snapshot_config=settings.snapshots(self.config),
            faults=self.faults,
        )
        self.raft.add_listener(self.loader)
        self.stop.then("metadata loader", self.loader.shutdown)

    def _with_others(self, controller_endpoints: list[Listener]) -> dict[str, Any]:
        """What the driver needs in a quorum of several; imported only here."""
        from replication.raft.voter_set import Endpoint, Voter, VoterSet
        from server.peers.peer_client import PeerClient
        from server.peers.raft_transport import RaftTransport

        quorum = self.quorum
        listener = quorum.controller_listener_names[0]
        self.peers = PeerClient(
            self.clock.now_ms, f"node-{self.node_id}", self.security.towards_controllers
        )
        self.stop.then("peer client", self.peers.shutdown)
        self.peers.start()
        endpoints = tuple(Endpoint(e.name, e.host, e.port) for e in controller_endpoints)
        voters = [
            Voter(voter.node_id, endpoints=(Endpoint(listener, voter.host, voter.port),))
            for voter in quorum.voters
        ]
        if not voters and quorum.may_format_itself:
            voters = [Voter(self.node_id, endpoints=endpoints)]
        return {
            "voters": VoterSet(voters) if voters else None,
            "cluster_id": self.cluster_id,
            "config": settings.raft(self.config),
            "transport": RaftTransport(self.peers, self.node_id, listener),
            "endpoints": endpoints,
            "listener_name": listener,
            "bootstrap_servers": quorum.bootstrap_servers,
            "can_vote": quorum.is_controller,
        }

    def start_loader(self, publishers: Sequence[MetadataPublisher]) -> None:
        """Publish the metadata from now on: to the authorizer before anybody who would answer."""
        publish = getattr(self.authorizer, "publish", None)
        self.loader.start([publish, *publishers] if publish is not None else publishers)

    def worker(self, name: str) -> BackgroundScheduler:
        """A thread for what may wait for a disk, stopped with the node."""
        worker = BackgroundScheduler(self.clock, name)
        self.stop.then(name, worker.shutdown)
        worker.start()
        return worker

    @staticmethod
    def run_urgently(name: str, job: Callable[[], None]) -> None:
        """Run `job` on a thread of its own, now."""
        threading.Thread(target=job, name=name, daemon=True).start()

    def connect(self, local: Controller | None) -> None:
        """Open the way to the active controller, wherever it is; `local` is the one here."""
        if self.peers is None:
            return
        from server.peers.controller_channel import ControllerChannel

        self.controller_channel = ControllerChannel(
            self.node_id,
            local,
            self.raft,
            self.peers,
            self.timer,
            self.clock.now_ms,
            "broker" if self.quorum.is_broker else "controller",
            self.config.get_int("socket.request.max.bytes"),
        )
        self.stop.then("controller channel", self.controller_channel.shutdown)

    def fatal(self, error: BaseException) -> None:
        """End the process now, whatever else does not work any more."""
        try:
            logger.critical("the node cannot go on and stops now error=%s", error, exc_info=error)
            logging.shutdown()
        finally:
            os._exit(1)
