"""A cluster in one process and in virtual time: real logs, replica managers and fetchers.

Only three things are played: the clock, the network between the brokers (`Events` and `Links`), and
the quorum under the controller's decisions (`controller_support.Cluster`). Requests and answers
pass through their bytes in the versions brokers use, sessions and the Fetch handler included.

    cluster = SimCluster(tmp_path)           three brokers, registered and unfenced
    cluster.create("orders", [1, 2, 3])      a topic with one partition on these brokers
    cluster.run(1000)                        a second passes, event by event
    cluster.cut(1, 2) / cluster.heal()       messages are lost, both ways
    cluster.kill(1) / cluster.restart(1)     a process ends; its disk stays

Everything that happens is an event at a time; equal times keep their order of entry, so a run is
the same each time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from replication.controller.directories import assign_replicas_to_dirs
from replication.following.fetcher import ReplicaFetcher
from replication.metadata.image import (
    EMPTY_IMAGE,
    RESOURCE_TOPIC,
    MetadataDelta,
    PartitionRegistration,
    TransactionBuffer,
)
from replication.partition.partition import Partition
from replication.replicas.replica_manager import (
    AppendRequest,
    AppendResult,
    ClusterLinks,
    FetchPartition,
    FetchResult,
    ReplicaManager,
    ReplicaManagerConfig,
)
from replication.replicas.timer import BackgroundScheduler, Timer
from server.handlers import fetch as handlers
from server.handlers import offsets
from server.handlers.fetch_session import FetchSessionCache
from server.network.request_context import RequestContext
from storage.config import LogConfig
from storage.directories.log_manager import LogManager
from storage.log.partition_log import PartitionLog
from storage.open_files import FileSlice
from testkit.clock import WALL_MS, ManualTimer
from tests.replication.controller_support import Cluster, new_topic
from wire.errors import KafkaError
from wire.messages.admin import DeleteTopicsRequest
from wire.messages.data import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from wire.messages.quorum import AlterPartitionRequest, AssignReplicasToDirsRequest
from wire.primitives import ZERO_UUID, TopicPartition
from wire.records import Record, build_batch, iterate_headers, read_records

ORDERS_0 = TopicPartition("orders", 0)
_RESPONSES: dict[type, type[Any]] = {
    FetchRequest: FetchResponse,
    ListOffsetsRequest: ListOffsetsResponse,
}
_TIMEOUT_MS = 3_000


class SimRunner:
    """Makes a fetcher's turns in virtual time: request, some time on the wire, answer."""

    def __init__(self, cluster: SimCluster, node: SimNode, fetcher: ReplicaFetcher) -> None:
        self._cluster = cluster
        self._node = node
        self._fetcher = fetcher
        self._number = 0  # of the exchange that is awaited; an answer to another is late
        self._is_waiting = False
        self._is_stopped = False
        self.wake()

    def wake(self) -> None:
        self._cluster.events.add(0, self._turn)

    def shutdown(self) -> None:
        self._is_stopped = True

    def _turn(self) -> None:
        if self._is_waiting or self._is_stopped or not self._node.is_up:
            return
        request = self._fetcher.next_request()
        if request is None:
            if self._fetcher.wake_ms is not None:
                delay_ms = max(self._fetcher.wake_ms - self._cluster.events.ms, 1)
                self._cluster.events.add(delay_ms, self._turn)
            return
        self._is_waiting = True
        self._number += 1
        number = self._number
        version = type(request).versions[1]
        data = encoded(request, version)
        leader_id = self._fetcher.leader_id

        def arrive() -> None:
            leader = self._cluster.nodes[leader_id]
            if leader.is_up:
                answered_by = leader.incarnation
                leader.serve(type(request), data, version, lambda out: back(out, answered_by))

        def back(out: bytes, incarnation: int) -> None:
            if self._cluster.nodes[leader_id].incarnation == incarnation:
                self._cluster.send(
                    leader_id, self._node.node_id, lambda: self._answered(number, request, out)
                )

        self._cluster.send(self._node.node_id, leader_id, arrive)
        self._cluster.events.add(_TIMEOUT_MS, lambda: self._timed_out(number))

    def _answered(self, number: int, request: Any, out: bytes) -> None:
        if number != self._number or not self._is_waiting or self._is_stopped:
            return
        self._is_waiting = False
        kind = type(request)
        self._fetcher.handle_response(_RESPONSES[kind].decode(out, kind.versions[1]))
        self._node.check()
        self._turn()

    def _timed_out(self, number: int) -> None:
        if number == self._number and self._is_waiting and not self._is_stopped:
            self._is_waiting = False
            self._fetcher.handle_failure(TimeoutError("no answer"))
            self._turn()


class SimNode:
    """One broker: log directory, replica manager, fetch sessions. Killed and started again."""

    def __init__(self, cluster: SimCluster, node_id: int, root: Path) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.root = root
        self.directory_id = bytes([7, node_id]) * 8
        self.incarnation = 0
        self.is_up = False
        self.truncated: list[tuple[TopicPartition, int, int]] = []
        """(partition, offset, high watermark before) of every truncation."""

    def start(self) -> None:
        cluster = self.cluster
        self.incarnation += 1
        self.image = EMPTY_IMAGE
        self.timer = Timer(cluster.events)
        self.scheduler = BackgroundScheduler(cluster.events)
        self.fetch_sessions = FetchSessionCache(100)
        self.log_manager = LogManager(
            {self.root: self.directory_id},
            LogConfig(),
            cluster.events,
            self.scheduler,
            lambda directory, error: None,
        )
        self.log_manager.startup(lambda topic: LogConfig())
        self.replica_manager = ReplicaManager(
            cluster.config,
            self.log_manager,
            lambda: self.image,
            self.timer,
            cluster.events,
            self.node_id,
            topic_config=self._topic_config,
            links=self._links,
        )
        self.is_up = True
        self._tick(self.incarnation)

    def _topic_config(self, topic: str) -> LogConfig:
        return LogConfig.from_values(self.image.config(RESOURCE_TOPIC, topic))

    def _links(self) -> ClusterLinks:
        incarnation = self.incarnation

        def submit(request: Any, on_complete: Callable[[Any], None]) -> None:
            def answer(response: Any) -> None:
                if self.incarnation == incarnation and self.is_up:
                    on_complete(response)

            self.cluster.ask_controller(self.node_id, request, answer)

        return ClusterLinks(
            submit,
            lambda: self.cluster.epochs[self.node_id],
            lambda fetcher, leader: SimRunner(self.cluster, self, fetcher),
            "PLAINTEXT",
            self.scheduler,
        )

    def _tick(self, incarnation: int) -> None:
        if self.is_up and self.incarnation == incarnation:
            self.timer.run_due()
            self.scheduler.run_due()
            self.cluster.events.add(10, lambda: self._tick(incarnation))

    def kill(self, *, loses_checkpoints: bool = False) -> None:
        """The process ends: what was written stays, nothing more is (no checkpoint, no marker)."""
        if not loses_checkpoints:
            self.log_manager.upkeep.checkpoint_high_watermarks()
        self.is_up = False
        self.replica_manager.shutdown()

    def wipe(self) -> None:
        """The disk of a killed node is replaced by an empty one: a directory with another id."""
        assert not self.is_up
        for log in self.log_manager.all_logs():
            log.close()
        shutil.rmtree(self.root)
        self.root.mkdir()
        self.directory_id = bytes([8, self.node_id]) * 8

    def publish(self) -> None:
        """Take over what the controller committed since."""
        if not self.is_up:
            return
        controller = self.cluster.controller
        start = self.image.offset + 1
        values = controller.log[start:]
        if not values:
            return
        delta = MetadataDelta(self.image)
        committed = (controller.serde.decode(value) for value in values)
        delta.replay_all(TransactionBuffer().filter(committed))
        self.image = delta.apply(self.image.offset + len(values), 1, 1)
        self.replica_manager.apply_delta(delta, self.image)
        self.check()

    # ---- requests of other brokers

    @property
    def metadata(self) -> Any:
        return self.image

    def endpoint_for(self, ctx: Any, broker: Any) -> tuple[str, int]:
        endpoint = broker.endpoints["PLAINTEXT"]
        return endpoint.host, endpoint.port

    def topic_config(self, topic: str) -> LogConfig:
        return self._topic_config(topic)

    def serve(
        self, kind: type[Any], data: bytes, version: int, answer: Callable[[bytes], None]
    ) -> None:
        """One request as the dispatch would run it."""
        incarnation = self.incarnation

        def respond(response: Any) -> None:
            if self.is_up and self.incarnation == incarnation:
                answer(encoded(response, version))

        ctx = SimpleNamespace(
            broker=self,
            api_version=version,
            received_ms=self.cluster.events.ms,
            respond=respond,
            park=lambda operation: None,
            exempt=lambda: None,
            fetch_bytes_max=RequestContext.fetch_bytes_max,
        )
        handle = handlers.fetch if kind is FetchRequest else offsets.list_offsets
        try:
            response = handle(ctx, kind.decode(data, version))  # type: ignore[arg-type]
        except KafkaError as error:
            response = FetchResponse(error_code=error.code, responses=[])
        if response is not None:
            respond(response)
        self.check()

    # ---- what tests look at

    def partition(self, key: TopicPartition = ORDERS_0) -> Partition:
        return self.replica_manager.partition(key)

    def log(self, key: TopicPartition = ORDERS_0) -> PartitionLog:
        return self.partition(key).open_log()

    def check(self) -> None:
        """What holds after each event, whatever happens."""
        for partition in self.replica_manager.partitions():
            log = partition.log
            if log is None:
                continue
            assert log.log_start_offset <= log.high_watermark <= log.log_end_offset, partition
            before = self.cluster.epochs_seen.get((self.node_id, partition.topic_partition), -1)
            assert partition.leader_epoch >= before, f"E-1: epoch went back on {partition}"
            key = (self.node_id, partition.topic_partition)
            self.cluster.epochs_seen[key] = partition.leader_epoch


class SimCluster:
    """See the module."""

    def __init__(
        self,
        root: Path,
        node_count: int = 3,
        *,
        config: ReplicaManagerConfig | None = None,
        racks: Sequence[str] = (),
        **controller: Any,
    ) -> None:
        self.events = ManualTimer(1_000)
        self.config = config or ReplicaManagerConfig()
        self.controller = Cluster(**controller)
        self.controller.schema.known |= {
            "leader.replication.throttled.replicas",
            "follower.replication.throttled.replicas",
        }
        self.delay_ms = 1
        self.controller_delay_ms = 2
        self.epochs: dict[int, int] = {}
        self.epochs_seen: dict[tuple[int, TopicPartition], int] = {}
        self.nodes: dict[int, SimNode] = {}
        self.alterations: list[AlterPartitionRequest] = []
        self.is_controller_deaf = False
        self._cuts: set[frozenset[int]] = set()
        for node_id in range(1, node_count + 1):
            directory = root / f"node-{node_id}"
            directory.mkdir(parents=True)
            node = self.nodes[node_id] = SimNode(self, node_id, directory)
            rack = racks[node_id - 1] if racks else None
            self._register(node_id, rack=rack)
            node.start()
        self.publish()

    def _register(self, node_id: int, *, clean: bool = False, rack: str | None = None) -> None:
        incarnation = self.nodes[node_id].incarnation + 1
        self.epochs[node_id] = self.controller.register(
            node_id, 10 * node_id + incarnation, clean=clean, rack=rack,
            log_dirs=[self.nodes[node_id].directory_id],
        )  # fmt: skip
        assert not self.controller.heartbeat(node_id).is_fenced

    # ---- time and network

    def run(self, ms: int) -> None:
        """Let `ms` pass."""
        self.events.run_until(self.events.ms + ms)

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 60_000) -> int:
        """Let time pass until the condition holds; how many ms it took."""
        started_ms = self.events.ms
        while not condition():
            assert self.events.ms - started_ms < limit_ms, "it never happened"
            self.run(1)
        return self.events.ms - started_ms

    def send(self, source: int, target: int, deliver: Callable[[], object]) -> None:
        """A message: lost if the link is cut now."""
        if frozenset((source, target)) not in self._cuts:
            self.events.add(self.delay_ms, deliver)

    def cut(self, one: int, other: int) -> None:
        self._cuts.add(frozenset((one, other)))

    def heal(self) -> None:
        self._cuts.clear()

    # ---- the controller

    def ask_controller(
        self, node_id: int, request: Any, on_complete: Callable[[Any], None]
    ) -> None:
        def decide() -> None:
            if self.is_controller_deaf:
                self.events.add(50, decide)
                return
            if isinstance(request, AlterPartitionRequest):
                self.alterations.append(request)
                response = self.controller.ask_alter_partition(request)
            else:
                assert isinstance(request, AssignReplicasToDirsRequest)
                response = self.controller.run(
                    assign_replicas_to_dirs(self.controller.image, self.controller.config, request)
                )
            self.events.add(self.controller_delay_ms, lambda: on_complete(response))
            self.publish_later()

        self.events.add(self.controller_delay_ms, decide)

    def publish_later(self) -> None:
        for node in self.nodes.values():
            self.events.add(self.controller_delay_ms, node.publish)

    def publish(self) -> None:
        """Every living broker has what the controller decided, now."""
        for node in self.nodes.values():
            node.publish()

    def create(self, name: str, *assignments: Sequence[int], **configs: str) -> None:
        """A topic, one partition for each list of brokers."""
        values: dict[str, str | None] = {k.replace("_", "."): v for k, v in configs.items()}
        wanted = {index: list(brokers) for index, brokers in enumerate(assignments)}
        response = self.controller.create_topics(new_topic(name, -1, -1, values, wanted))
        assert response.topics[0].error_code == 0, response
        self.publish()

    def delete(self, name: str) -> None:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.Topic(name=name, topic_id=ZERO_UUID)], timeout_ms=0
        )
        response = self.controller.delete_topics(request)
        assert response.responses[0].error_code == 0, response
        self.publish()

    def registration(self, key: TopicPartition = ORDERS_0) -> PartitionRegistration:
        return self.controller.partition(*key)

    def fence(self, node_id: int) -> None:
        """The controller takes a broker for dead."""
        self.controller.heartbeat(node_id, want_fence=True)
        self.publish_later()

    def unfence(self, node_id: int) -> None:
        assert not self.controller.heartbeat(node_id).is_fenced
        self.publish_later()

    # ---- processes

    def kill(self, node_id: int, *, loses_checkpoints: bool = False) -> None:
        """The process dies and the controller notices."""
        self.nodes[node_id].kill(loses_checkpoints=loses_checkpoints)
        self.fence(node_id)

    def restart(self, node_id: int, *, clean: bool = True) -> None:
        """It comes back with its disk. `clean`: it did not lose what it had not flushed."""
        node = self.nodes[node_id]
        for log in node.log_manager.all_logs():
            log.close()
        rack = self.controller.image.brokers[node_id].rack
        self.controller.now_ms += 60_000  # its old session has ended
        self._register(node_id, clean=clean, rack=rack)
        node.start()
        node.publish()
        self.publish_later()

    def close(self) -> None:
        for node in self.nodes.values():
            if node.is_up:
                node.kill()
            for log in node.log_manager.all_logs():
                log.close()

    # ---- clients

    def produce(
        self,
        node_id: int,
        *values: bytes,
        key: TopicPartition = ORDERS_0,
        acks: int = -1,
        timeout_ms: int = 30_000,
        **batch: int,
    ) -> list[AppendResult]:
        """One batch to one broker; the list gets its result once it is answered."""
        told: list[AppendResult] = []
        manager = self.nodes[node_id].replica_manager
        manager.append_records(
            AppendRequest(
                acks, timeout_ms, [(key, records(*values, **batch))], told.extend
            )
        )  # fmt: skip
        self.nodes[node_id].check()
        return told

    def consume(
        self, node_id: int, offset: int = 0, key: TopicPartition = ORDERS_0, **options: Any
    ) -> FetchResult:
        """What a consumer of version 11 or later gets at once from one broker."""
        told: list[FetchResult] = []
        epoch = options.pop("epoch", -1)
        request = FetchPartition(key[0], None, key[1], offset, current_leader_epoch=epoch)
        self.nodes[node_id].replica_manager.fetch(
            -1, 0, 1, 1 << 20, options.pop("isolation", 0), [request], told.extend,
            rack=options.pop("rack", ""),
        )  # fmt: skip
        return told[0]

    def values(self, node_id: int, offset: int = 0, key: TopicPartition = ORDERS_0) -> list[bytes]:
        """The committed values a consumer reads from one broker."""
        result = self.consume(node_id, offset, key)
        assert result.error_code == 0, result
        if result.records is None:
            return []
        data = result.records.read()
        result.records.close()
        return list(values_of(data))

    def log_bytes(
        self, node_id: int, key: TopicPartition = ORDERS_0, upto: int | None = None
    ) -> bytes:
        """A replica's bytes from the log's start up to an offset (its end)."""
        log = self.nodes[node_id].log(key)
        end = log.log_end_offset if upto is None else upto
        read = log.read(log.log_start_offset, 1 << 30, True, end)
        return b"" if read.records is None else read.records.read()


def records(*values: bytes, **fields: int) -> bytes:
    rows = [Record(-1, WALL_MS, b"k", value) for value in values]
    return build_batch(rows, **fields)  # type: ignore[arg-type]


def values_of(data: bytes) -> Iterator[bytes]:
    for position, header in iterate_headers(data):
        if not header.is_control:
            for record in read_records(data, position, header):
                assert record.value is not None
                yield record.value


def encoded(message: Any, version: int) -> bytes:
    """A message's body, with what it sends from files read in."""
    return b"".join(
        part.read() if isinstance(part, FileSlice) else part for part in message.encode(version)
    )
