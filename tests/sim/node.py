"""One node of the simulated cluster: everything a broker process is made of, but threads, sockets
and clocks.

Composed as `server.node.shared_server`, `controller_server` and `broker_server` do it, of the same
classes: RaftLog and RaftDriver, MetadataLoader, Controller, ControllerChannel, LogManager,
ReplicaManager with its fetchers and AlterPartition, BrokerLifecycle, GroupCoordinator,
TransactionCoordinator with its marker channel, and who asks it. Handlers find the node as
`ctx.broker`.

Life: `start` (raft, controller; the broker's part as soon as the metadata is caught up, then
registration), `crash` (kill -9, or with `power` the machine's power), `stop` (controlled shutdown).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replication.controller.bootstrap import SUPPORTED_FEATURES
from replication.controller.controller import Controller
from replication.metadata.image import (
    ControllerRegistration,
    Endpoint,
    MetadataDelta,
    MetadataImage,
)
from replication.metadata.loader import MetadataLoader, SnapshotConfig
from replication.metadata.record_serde import MetadataRecordSerde
from replication.raft.driver import RaftDriver
from replication.raft.faults import FaultHandler
from replication.raft.log import RaftLog
from replication.raft.voter_set import Endpoint as RaftEndpoint
from replication.raft.voter_set import Voter, VoterSet
from replication.replicas.replica_manager import ClusterLinks, ReplicaManager
from replication.replicas.timer import BackgroundScheduler
from replication.replicas.transaction_verification import TransactionVerification
from server.config.kafka_config import KafkaConfig
from server.config.schema import TOPIC, ConfigSchema
from server.coordinator.group_coordinator import GroupCoordinator
from server.coordinator.runtime import Surroundings
from server.coordinator.transactions.coordinator import TransactionCoordinator
from server.handlers.fetch_session import FetchSessionCache
from server.handlers.transaction_markers import write_markers
from server.network.listeners import PLAINTEXT, PROTOCOLS, Listener
from server.node import settings
from server.node.broker_lifecycle import BrokerLifecycle, BrokerState
from server.node.controller_registration import ControllerRegistrationManager
from server.node.replica_publisher import ReplicaPublisher
from server.node.share_parts import ShareParts
from server.peers.add_partitions_to_txn import AddPartitionsToTxnManager
from server.peers.broker_requests import BrokerRequests
from server.peers.controller_channel import ControllerChannel
from server.peers.transaction_markers import TransactionMarkerChannel
from storage.config import LogConfig
from storage.directories.log_manager import LogManager
from storage.log.partition_log import PartitionLog
from tests.sim.disk_threads import DirWorker, SimCleaner, SimFlusher, stall_while_noting
from tests.sim.network import Network, SimBrokers, SimPeers, SimRaftTransport, SimRunner
from tests.sim.world import Actor, Gone, InvariantBroken, Killed, NodeClock, SimTimer
from wire.errors import KafkaError
from wire.messages.transactions import WriteTxnMarkersRequest
from wire.primitives import TopicPartition

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

STUCK_MS = (100, 600)
"""For longer than some client waits for an answer."""
CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"


class SimNode:
    """See the module."""

    role = "broker"

    raft: RaftDriver
    loader: MetadataLoader
    log_manager: LogManager
    replica_manager: ReplicaManager
    group_coordinator: GroupCoordinator
    transaction_coordinator: TransactionCoordinator
    transaction_verification: TransactionVerification

    def __init__(self, cluster: SimCluster, node_id: int, root: Path) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.network: Network = cluster.network
        self.options = cluster.options
        self.node_id = node_id
        self.root = root
        self.is_voter = node_id <= cluster.options.voters
        self.directories = {
            root.with_name(f"{root.name}-dir-{n}" if n else root.name): bytes([7 + n, node_id]) * 8
            for n in range(cluster.options.directories)
        }
        """With their ids; the first is the metadata log's too."""
        self.clock = NodeClock(cluster.world, disagrees=cluster.options.clocks_disagree)
        self.cluster_id = CLUSTER_ID
        self.incarnation = 0
        self._has_broker = False
        self.is_up = False
        self.is_serving = False
        self.is_stopping = False
        self.paused_until_ms = 0
        self.lost_power_in: bytes | None = None
        """The incarnation that lost its page cache: what this node holds is not counted on until
        the controller knows a later one. (It may hear of this one only after its end.)"""
        self.dead_logs: dict[TopicPartition, PartitionLog] = {}
        """The logs of the last incarnation, while no other has opened them."""
        self._backlog: deque[tuple[Callable[[], object], int]] = deque()
        self._config = KafkaConfig(
            {
                "node.id": str(node_id),
                "process.roles": "broker,controller" if self.is_voter else "broker",
                "log.dirs": ",".join(map(str, self.directories)),
                "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"
                if self.is_voter
                else "PLAINTEXT://:9092",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": ",".join(
                    f"{n}@node{n}:{n}" for n in range(1, cluster.options.voters + 1)
                ),
                **cluster.options.config,
            }
        )
        self._schema = ConfigSchema(self._config)
        for directory in self.directories:
            directory.mkdir(parents=True)

    # ---- code that runs here

    def do(self, what: Callable[[], object], incarnation: int) -> None:
        """Run a piece of this node's code, unless the process it belongs to is gone.

        All that came while the process stood still comes first, in the order it came, even if a
        thread that works it off stands still itself: else a commit would come after one that its
        client asked for later, when it had given the first up.
        """
        self._backlog.append((what, incarnation))
        self._work_off()

    def _work_off(self) -> None:
        while self._backlog and self.world.ms >= self.paused_until_ms:
            self._run(*self._backlog.popleft())

    def _run(self, what: Callable[[], object], incarnation: int) -> None:
        if incarnation != self.incarnation or not self.is_up:
            return
        world = self.world
        world.node = self.node_id
        ran = self.cluster.check.ran
        ran(self)  # it may stand still in the middle, and be looked at
        try:
            what()
            self._look_after()
        except Gone:
            pass
        except Killed:
            self.crash("dies in the middle of a write", power=self.cluster.power_loss_is_fair(self))
        except (OSError, KafkaError) as error:
            self.fatal(error)
        finally:
            ran(self)
            world.node = 0

    def _look_after(self) -> None:
        """Wake what waits for what other threads did."""
        if not self.is_up:
            return
        if self.raft.has_work():
            self._raft_actor.wake()
        if self.loader.has_work:
            self._loader_actor.wake()
        is_read = self.raft.wait_until_caught_up(0) and not self.loader.has_work
        if not self._has_broker and is_read:
            self._has_broker = True
            self._start_broker()
        lifecycle = self.lifecycle
        if lifecycle is not None and lifecycle.state is not self._seen_state:
            self._seen_state = lifecycle.state
            self._state_changed(lifecycle.state)

    def lag_ms(self) -> int:
        """How late a thread begins to turn: mostly at once."""
        world = self.world
        if world.chance(self.options.lag):
            return world.between(1, self.options.lag_ms)
        return 0

    def _go_on_later(self, job: Callable[[], None], incarnation: int) -> None:
        """A thread that was told about a transaction, which may end before it goes on."""
        is_stuck = self.world.chance(self.options.stuck_threads)
        delay_ms = self.world.between(*STUCK_MS) if is_stuck else self.lag_ms()
        self.world.after(delay_ms, lambda: self.do(job, incarnation))

    def pause(self, ms: int) -> None:
        """SIGSTOP, and SIGCONT in a while."""
        world = self.world
        if not self.is_up or world.ms < self.paused_until_ms:
            return
        world.tell(f"{self.node_id} stands still for {ms} ms")
        self.paused_until_ms = world.ms + ms
        world.at(self.paused_until_ms, self._work_off)

    def stand_still(self, incarnation: int, limit_ms: int) -> None:
        """A thread of this process is not scheduled for a while; it ends here with the process."""

        def is_gone() -> bool:
            return not self.is_up or self.incarnation != incarnation

        self.cluster.check.check()  # what was done before, others may see from now on
        self.world.stand_still(is_gone, self.world.between(5, limit_ms))
        if is_gone():
            raise Gone

    def fatal(self, error: BaseException) -> None:
        """The process ends itself; only a disk may be the reason."""
        if self.node_id not in self.cluster.disks.failed:
            raise InvariantBroken(f"NoUnexpectedError: {self.node_id} ends itself: {error!r}")
        self.crash(f"ends itself: {error}", power=True)

    # ---- what handlers ask

    opens_compressed_records: frozenset[str] = frozenset()

    @property
    def config(self) -> KafkaConfig:
        return self._config

    @property
    def metadata(self) -> MetadataImage:
        return self.loader.image

    def endpoint_for(self, ctx: Any, broker: Any) -> tuple[str, int]:
        endpoint = broker.endpoints["PLAINTEXT"]
        return endpoint.host, endpoint.port

    def topic_config(self, topic: str) -> LogConfig:
        config = self._config.topic_config(self.metadata.config(TOPIC, topic))
        # Smaller than a topic may ask for, so that a short run has many segments.
        return replace(config, segment_bytes=self.options.segment_bytes)

    # ---- start

    def start(self) -> None:
        """A new process on the same directory."""
        self.incarnation += 1
        incarnation = self.incarnation
        self.world.tell(f"{self.node_id} starts")
        self.is_up, self.is_serving, self.is_stopping = True, False, False
        self.paused_until_ms = 0
        self._backlog.clear()
        self._has_broker = False
        self.lifecycle: BrokerLifecycle | None = None
        self._seen_state = BrokerState.NOT_RUNNING
        self.incarnation_id = bytes([self.node_id]) + incarnation.to_bytes(15, "big")
        self.timer = SimTimer(self, incarnation)
        self.scheduler = BackgroundScheduler(self.clock)
        self.scheduler._timer = SimTimer(self, incarnation)
        self.controller: Controller | None = None
        self.do(self._start_quorum, incarnation)

    def _start_quorum(self) -> None:
        world, options, incarnation = self.world, self.options, self.incarnation
        serde = MetadataRecordSerde()
        name = "CONTROLLER"
        voters = VoterSet(
            Voter(n, endpoints=(RaftEndpoint(name, f"node{n}", n),))
            for n in range(1, options.voters + 1)
        )
        self.raft = RaftDriver(
            self.node_id,
            RaftLog.open(self.root, self.clock, segment_bytes=options.metadata_segment_bytes),
            self.clock,
            serde,
            voters=voters,
            directory_id=self.directories[self.root],
            cluster_id=CLUSTER_ID,
            config=replace(settings.raft(self._config), fetch_max_wait_ms=150),
            transport=SimRaftTransport(self.network, self),
            endpoints=(RaftEndpoint(name, f"node{self.node_id}", self.node_id),)
            if self.is_voter
            else (),
            listener_name=name,
            bootstrap_servers=[],
            can_vote=self.is_voter,
            random=world.random,
            faults=FaultHandler(self.fatal),
        )
        self._raft_actor = Actor(self, incarnation, self.raft.turn, lambda: self.raft.deadline_ms)
        self.loader = MetadataLoader(
            self.raft,
            self.clock,
            snapshot_config=SnapshotConfig(options.snapshot_bytes, 3_600_000),
            faults=FaultHandler(self.fatal),
            run_in_background=lambda job: self.scheduler.schedule_once("snapshot", 1, job),
        )
        self._loader_actor = Actor(self, incarnation, self._turn_loader, lambda: None)
        self.raft.add_listener(self.loader)
        self.raft.add_listener(self.cluster.check.metadata_listener(self))
        publishers: list[Any] = []
        if self.is_voter:
            self._make_controller(serde)
        self.channel = ControllerChannel(
            self.node_id,
            self.controller,
            self.raft,
            SimPeers(self.network, self),
            self.timer,
            self.clock.now_ms,
        )
        self.channel._pending = _Ordered()  # type: ignore[assignment]
        self.raft.begin()
        if self.is_voter:
            publishers = [
                ControllerRegistrationManager(self._registration, self.channel, self.timer).publish
            ]
        self.loader.begin(publishers)
        self._raft_actor.plan(world.ms)

    def _make_controller(self, serde: MetadataRecordSerde) -> None:
        self._registration = ControllerRegistration(
            self.node_id,
            self.incarnation_id,
            {"CONTROLLER": Endpoint(f"node{self.node_id}", self.node_id, PROTOCOLS[PLAINTEXT])},
            dict(SUPPORTED_FEATURES),
        )
        random = self.world.random
        controller = self.controller = Controller(
            settings.controller(self._config, self.node_id, CLUSTER_ID),
            self.raft,
            self.loader,
            serde,
            self.clock,
            self._schema,
            new_id=lambda: b"\x01" + random.randbytes(15),
            registration=self._registration,
            faults=FaultHandler(self.fatal),
        )
        self._controller_actor = Actor(
            self, self.incarnation, self._turn_controller, controller.next_due_ms
        )
        controller.on_wake = self._controller_actor.wake

    def _turn_loader(self) -> None:
        with self.cluster.disks.syncing_no_records():
            self.loader.turn()
        if self.controller is not None:
            self._controller_actor.wake()

    def _turn_controller(self) -> None:
        assert self.controller is not None
        if self.controller.turn():
            self._controller_actor.wake()

    # ---- the broker's part

    def _start_broker(self) -> None:
        # A directory that cannot be opened at start is offline until the next one, as in Kafka.
        self.cluster.disks.spare_directories(self.directories)
        self.fetch_sessions = FetchSessionCache(100)
        self.log_manager = LogManager(
            self.directories,
            self._config.topic_config({}),
            self.clock,
            self.scheduler,
            lambda directory, error: self.fatal(error),
            settings.log_manager(self._config),
            cleaner_config=settings.cleaner(self._config),
            workers=self._workers(),
        )
        SimCleaner(self, self.log_manager.cleaner)
        self.replica_manager = ReplicaManager(
            settings.replica_manager(self._config),
            self.log_manager,
            lambda: self.metadata,
            self.timer,
            self.clock,
            self.node_id,
            topic_config=self.topic_config,
            links=self._links,
        )
        for log_dir in self.log_manager._dirs.values():
            log_dir.flusher = SimFlusher(self, log_dir.path)  # type: ignore[assignment]
            stall_while_noting(self, log_dir.checkpoints)
        self.log_manager.startup(self.topic_config)
        self.cluster.check.logs_opened(self)
        self.dead_logs = {}
        around = Surroundings(
            node_id=self.node_id,
            metadata=lambda: self.metadata,
            replica_manager=self.replica_manager,
            controller=self.channel,
            timer=self.timer,
            clock=self.clock,
            run_on_loader=lambda name, job: self.scheduler.schedule_once(
                name, self._load_ms(), job
            ),
        )
        brokers = BrokerRequests(
            self.node_id, lambda: self.metadata, "PLAINTEXT", SimBrokers(self.network, self)
        )
        self._start_groups(around, brokers)
        self._start_transactions(around, brokers)
        installed = _Installed(self._register)
        self._replica_publisher = ReplicaPublisher(
            self.replica_manager, self.node_id, self.incarnation_id
        )
        publishers = [
            self._replica_publisher.publish,
            self.group_coordinator.on_metadata,
            self._publish_markers,
            self.shares.on_metadata,
        ]
        self.loader._installing.append((publishers, installed))  # type: ignore[arg-type]
        self._loader_actor.wake()

    def _start_groups(self, around: Surroundings, brokers: BrokerRequests) -> None:
        """Share groups begin at the first record: all of them are to be delivered."""
        self.replica_manager.delete_records = self._note_deletion(  # type: ignore[method-assign]
            self.replica_manager.delete_records
        )
        self.shares = ShareParts(
            self._config,
            brokers,
            around,
            lambda group_id: self.group_coordinator.share_config_of(group_id),
        )
        self.share_manager, self.share_coordinator = self.shares.manager, self.shares.coordinator
        self.group_coordinator = GroupCoordinator(
            settings.groups(self._config),
            around,
            lambda: f"{self.world.random.getrandbits(64)}",
            settings.consumer_groups(self._config),
            self.shares.groups,
            replace(settings.share_groups(self._config), auto_offset_reset="earliest"),
            settings.streams_groups(self._config),
        )

    def _note_deletion(self, real: Callable[..., None]) -> Callable[..., None]:
        """What the share coordinator needs no more it deletes itself."""

        check = self.cluster.check

        def delete_records(offsets: dict[Any, int], *given: Any, **named: Any) -> None:
            for key, before in offsets.items():
                log = self.log(TopicPartition(*key))
                if log is not None:
                    check.check()  # what is deleted in this event can be read no more after it
                    check.deletion_asked_for(TopicPartition(*key), log, before)
            real(offsets, *given, **named)

        return delete_records

    def _start_transactions(self, around: Surroundings, brokers: BrokerRequests) -> None:
        incarnation = self.incarnation
        brokers.serve_own(WriteTxnMarkersRequest, self._write_own_markers)
        timeout_ms = self.options.fetch_timeout_ms
        self.transaction_markers = TransactionMarkerChannel(
            brokers, lambda: self.metadata, self.timer, timeout_ms
        )
        self.transaction_coordinator = TransactionCoordinator(
            settings.transactions(self._config), around, self.transaction_markers
        )
        self.transaction_verification = TransactionVerification(
            self.replica_manager,
            AddPartitionsToTxnManager(
                self.node_id,
                lambda: self.metadata,
                self.transaction_coordinator,
                brokers,
                timeout_ms,
            ),
            self.timer,
            self.clock.now_ms,
            is_enabled=lambda: True,
            resume=lambda job: self._go_on_later(job, incarnation),
            config=settings.verification(self._config),
        )

    def _write_own_markers(
        self, request: WriteTxnMarkersRequest, on_complete: Callable[[Any], None]
    ) -> None:
        self.cluster.check.transactions.markers_asked_for(request)
        write_markers(self, request, on_complete)

    def _workers(self) -> dict[Path, BackgroundScheduler]:
        """One for each directory; of a single one the scheduler is the worker."""
        if len(self.directories) == 1:
            return {self.root: self.scheduler}
        workers = {}
        for path in self.directories:
            workers[path] = BackgroundScheduler(self.clock)
            workers[path]._timer = DirWorker(self, path)
        return workers

    def _load_ms(self) -> int:
        return self.world.between(0, 100)

    def _links(self) -> ClusterLinks:
        return ClusterLinks(
            self.channel.submit,
            lambda: -1 if self.lifecycle is None else self.lifecycle.broker_epoch,
            lambda fetcher, leader: SimRunner(self.network, self, fetcher),
            "PLAINTEXT",
            self.scheduler,
        )

    def _publish_markers(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        if delta.changed_partitions or delta.deleted_topics:
            self.transaction_markers.leaders_changed()

    def _register(self) -> None:
        config = settings.lifecycle(self._config)

        def submit(request: Any, on_complete: Callable[[Any], None]) -> None:
            timeout_ms = config.broker_session_timeout_ms // 2
            self.channel.submit(request, on_complete, timeout_ms=timeout_ms)

        self.lifecycle = BrokerLifecycle(
            self.node_id,
            CLUSTER_ID,
            self.incarnation_id,
            submit,
            lambda: self._replica_publisher.image,
            self.timer,
            self.clock,
            config,
            is_alone=False,
            on_fatal=self.fatal,
        )
        self.lifecycle.start(
            [Listener("PLAINTEXT", f"node{self.node_id}", self.node_id)],
            {name: (r.minimum, r.maximum) for name, r in SUPPORTED_FEATURES.items()},
            None,
            list(self.directories.values()),
            self.log_manager.previous_broker_epoch,
        )

    def _state_changed(self, state: BrokerState) -> None:
        if state is BrokerState.RUNNING:
            self.log_manager.start_background()
            self.is_serving = True
            self.world.tell(f"{self.node_id} serves")
        elif state is BrokerState.SHUTTING_DOWN:
            if self.is_stopping:
                self._shutdown()
            else:
                self.crash("was refused by the controller")

    # ---- end

    def stop(self) -> None:
        """Controlled shutdown; given up for a kill when nobody answers."""
        if self.lifecycle is None or self.lifecycle.state is not BrokerState.RUNNING:
            self.crash("is killed")
            return
        self.world.tell(f"{self.node_id} is asked to stop")
        self.is_stopping = True
        incarnation = self.incarnation
        self.do(self.lifecycle.begin_controlled_shutdown, incarnation)
        self.world.after(4_000, lambda: self.do(self._give_up_stopping, incarnation))

    def _give_up_stopping(self) -> None:
        if self.is_stopping:
            self._shutdown()

    def _shutdown(self) -> None:
        """As the node's stop sequence."""
        assert self.lifecycle is not None
        self.lifecycle.shutdown()
        self.is_serving = False
        self.group_coordinator.shutdown()
        self.transaction_coordinator.shutdown()
        self.share_coordinator.shutdown()
        self.replica_manager.shutdown()
        logs = {log.topic_partition: log for log in self.log_manager.all_logs()}
        self.log_manager.shutdown(self.lifecycle.broker_epoch)
        if self.controller is not None:
            self.controller.shutdown()
        self.channel.shutdown()
        self.raft.shutdown(0)
        self.loader.shutdown()
        self.world.tell(f"{self.node_id} has stopped")
        self._gone(logs)

    def crash(self, why: str, *, power: bool = False) -> None:
        """The process ends between two instructions; with `power` its machine does."""
        if not self.is_up:
            return
        self.world.node = 0  # what is looked at from here on is nobody's doing
        self.world.tell(f"{self.node_id} {why}" + (" and its page cache is lost" if power else ""))
        logs = self.dead_logs
        if self._has_broker:
            logs = {log.topic_partition: log for log in self.log_manager.all_logs()}
        self.cluster.check.settle()
        self._gone(logs)
        if power:
            self.world.forgetful.add(self.node_id)
        disks = self.cluster.disks
        disks.spare(self.node_id)
        if power or self.node_id in disks.failed:
            self.lost_power_in = self.incarnation_id
            disks.failed.discard(self.node_id)
            if not self.options.flushes:  # nobody else may end uncleanly while this one is missed
                for other in self.cluster.nodes:
                    disks.spare(other)
            for directory in self.directories:
                disks.strike(directory)

    def _gone(self, logs: dict[TopicPartition, PartitionLog]) -> None:
        self.is_up = self.is_serving = False
        self.dead_logs = logs
        self.cluster.check.node_gone(self)
        self.cluster.node_died(self)

    # ---- what checks look at

    @property
    def is_broker_started(self) -> bool:
        return self.is_up and self._has_broker

    def log(self, key: TopicPartition) -> PartitionLog | None:
        """The replica's log; that of a dead process is as it left it."""
        if self.is_up and self._has_broker:
            return self.log_manager.get(key) or self.dead_logs.get(key)
        return self.dead_logs.get(key)


class _Ordered(dict[Any, None]):
    """A set in order of entry: objects in a set stand in the order of their addresses, which no
    seed decides."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)


class _Installed:
    """What the loader sets when publishers have heard the image."""

    def __init__(self, done: Callable[[], None]) -> None:
        self.set = done
