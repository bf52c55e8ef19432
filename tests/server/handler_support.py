"""A broker without sockets for handler tests: frames go in, decoded responses come out.

Requests take the real way through RequestChannel and the dispatch table, so every test also proves
decoding, dispatch and encoding in the version it asks in. What handlers work on is faked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from replication.metadata.image import (
    BrokerRegistration,
    Endpoint,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from replication.partition.requests import AppendResult, FetchResult
from server.config.client_metrics import TELEMETRY_APIS, ClientMetrics
from server.coordinator.runtime import Surroundings
from server.handlers import apis_of
from server.handlers.access.rules import guarded
from server.handlers.fetch_session import FetchSessionCache
from server.network.channel import BYTES
from server.network.connection import Connection, ConnectionLimits
from server.network.request_channel import RequestChannel
from storage.config import LogConfig
from testkit.clock import ManualClock
from testkit.wait import eventually
from tests.server.wire_client import request_bytes
from wire.errors import ErrorCode, KafkaError
from wire.frame import decode_response_header
from wire.messages.admin import CreateTopicsRequest, CreateTopicsResponse
from wire.messages.cluster import MetadataRequest
from wire.schema import RESPONSES, Request

NODE = 1
TOPIC_ID = bytes(range(16))
CLOSED = "closed"
"""What `ask` returns when the broker closed the connection instead of answering."""

UNKNOWN_OPERATIONS = -(2**31)
"""Of whom nobody asked for: what the protocol says, not what we call it."""


def connected(*topics, **more):
    """Asks a node that has these topics."""
    return Asked(FakeBroker(image_of(*topics, **more)))


def metadata_of_all():
    return MetadataRequest(topics=None, allow_auto_topic_creation=False)


def only_inside(broker_id):
    return replace(broker_registration(broker_id), endpoints={"INSIDE": Endpoint("x", 1, 0)})


def topic_image(
    name: str, partition_count: int = 1, topic_id: bytes = TOPIC_ID, leader: int = NODE
) -> TopicImage:
    return TopicImage(
        name,
        topic_id,
        {
            index: PartitionRegistration(
                replicas=(NODE,),
                directories=(bytes(16),),
                isr=(NODE,),
                leader=leader,
                leader_epoch=4,
            )
            for index in range(partition_count)
        },
    )


def broker_registration(
    broker_id: int = NODE, fenced: bool = False, rack: str | None = None
) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=broker_id,
        broker_epoch=17,
        incarnation_id=bytes(16),
        endpoints={"PLAINTEXT": Endpoint(f"host-{broker_id}", 9092, 0)},
        rack=rack,
        fenced=fenced,
    )


def image_of(*topics: TopicImage, brokers: Any = (), offset: int = 42) -> MetadataImage:
    known = {b.broker_id: b for b in (brokers or (broker_registration(),))}
    return MetadataImage(
        offset=offset,
        features={"metadata.version": 30, "eligible.leader.replicas.version": 1},
        brokers=known,
        topics_by_name={t.name: t for t in topics},
        topics_by_id={t.topic_id: t for t in topics},
    )


def create_topics() -> CreateTopicsRequest:
    topic = CreateTopicsRequest.Topic(
        name="orders", num_partitions=3, replication_factor=1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)


def created(code: int = 0, throttle_time_ms: int = 0) -> CreateTopicsResponse:
    topic = CreateTopicsResponse.Topic(name="orders", error_code=code, error_message=None)
    return CreateTopicsResponse(throttle_time_ms=throttle_time_ms, topics=[topic])


class FakeReplicaManager:
    """Answers what a test puts into it, and remembers what it was asked."""

    follower_session = None  # no test opens a replica's session here
    writes = SimpleNamespace(note_refused=lambda *_: None)

    def __init__(self) -> None:
        self.appended: list[Any] = []
        self.append_results: dict[tuple[str, int], AppendResult] = {}
        self.held_appends: list[Any] | None = None
        self.must_open: list[Any] = []
        self.are_records_opened = False
        self.appended_from: list[Any] = []
        self.fetched: list[Any] = []
        self.fetch_results: dict[tuple[str, int], FetchResult] = {}
        self.listed: list[Any] = []
        self.list_answer = (0, 1_000, 55, 4)
        self.end_offsets: dict[tuple[str, int], tuple[int, int, int]] = {}
        self.deleted: dict[Any, int] = {}
        self.producers: dict[tuple[str, int], list[Any]] = {}
        self.on_partition_leadership: list[Any] = []

    def must_open_records(self, entries, opens_compressed):
        self.must_open += [(key, bytes(records), opens_compressed) for key, records in entries]
        return self.are_records_opened

    def append_records(self, request):
        entries, on_complete = request.entries, request.on_done
        self.appended_from.append(request.source)
        self.appended.append(
            (
                request.required_acks,
                request.timeout_ms,
                [(key, bytes(r)) for key, r in entries],
                request.source.request_version,
            )
        )
        offset = 100
        results = []
        for key, _ in entries:
            given = self.append_results.get(key)
            results.append(given or AppendResult(key, base_offset=offset, log_start_offset=7))
            offset += 1
        if self.held_appends is not None:
            self.held_appends.append((on_complete, results))
        else:
            on_complete(results)

    def fetch(
        self, replica_id, max_wait_ms, min_bytes, max_bytes, isolation, partitions, on_complete, *,
        rack=None, replica_epoch=-1,
    ):  # fmt: skip
        self.fetched.append((replica_id, max_wait_ms, isolation, list(partitions)))
        self.fetched_as = replica_epoch, rack
        unknown = FetchResult(int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        unnamed = FetchResult(int(ErrorCode.UNKNOWN_TOPIC_ID))
        on_complete(
            [self.fetch_results.get(p.key, unknown) if p.topic else unnamed for p in partitions]
        )

    def list_offset(self, tp, timestamp, isolation_level, current_leader_epoch, replica_id):
        self.listed.append((tp, timestamp, isolation_level, current_leader_epoch, replica_id))
        return self.list_answer

    def offset_for_leader_epoch(self, tp, current_leader_epoch, leader_epoch):
        return self.end_offsets.get(tp, (int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), -1, -1))

    def delete_records(self, offsets, timeout_ms, on_complete):
        self.deleted = dict(offsets)
        on_complete({key: (0, offset) for key, offset in offsets.items()})

    def active_producers(self, tp):
        if tp not in self.producers:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.producers[tp]


class FakeTimer:
    def __init__(self) -> None:
        self.due: list[Any] = []

    def add(self, delay_ms, fn):
        self.due.append(fn)

        class Task:
            cancelled = False

            def cancel(self):
                self.cancelled = True

        return Task()


class FakeController:
    """Keeps requests until the test answers them."""

    def __init__(self) -> None:
        self.submitted: deque[Any] = deque()

    def submit(self, request, on_complete, *, context):
        self.submitted.append((request, on_complete, context))


class FakeConfig(dict[str, Any]):
    def get_int(self, key: str) -> int:
        return int(self[key])

    def is_set(self, key: str) -> bool:
        return key in self


class FakeVerification:
    """Asks nobody."""

    def __init__(self, replica_manager):
        self._replica_manager = replica_manager
        self.verified: list[tuple[str, str]] = []

    def append_records(self, request, transactional_id, operation):
        self.verified.append((transactional_id, operation.name))
        return self._replica_manager.append_records(request)


class FakeBroker:
    node_id = NODE
    cluster_id = "cluster-of-tests-01"
    role = "broker"
    authorizer: Any = None
    unlisted_apis = TELEMETRY_APIS

    @property
    def apis(self):
        """What its listeners serve; `Asked` has its own, which nobody else loads."""
        return self.own_apis or apis_of(self.role)

    def __init__(self, image: MetadataImage) -> None:
        self.own_apis: Any = None
        self.metadata = image
        self.replica_manager = FakeReplicaManager()
        self.controller = FakeController()
        self.raft: Any = SimpleNamespace(voters=SimpleNamespace(kraft_version=0))
        self.timer = FakeTimer()
        self.fetch_sessions = FetchSessionCache(1000)
        self.client_metrics = ClientMetrics(1_000)
        self.opens_compressed_records: frozenset[str] = frozenset()
        self.transaction_verification: Any = FakeVerification(self.replica_manager)
        self.config = FakeConfig(
            {
                "auto.create.topics.enable": True,
                "max.request.partition.size.limit": 2000,
            }
        )
        self.topic_configs: dict[str, LogConfig] = {}

    def endpoint_for(self, ctx, registration):
        if registration.broker_id == NODE:
            return ctx.local_host, ctx.local_port
        endpoint = registration.endpoints.get(ctx.listener_name)
        return (endpoint.host, endpoint.port) if endpoint else None

    def topic_config(self, topic):
        return self.topic_configs.get(topic) or LogConfig.from_values({})


def surroundings(broker: Any) -> Surroundings:
    """What a fake broker's coordinators stand on."""
    return Surroundings(
        node_id=broker.node_id,
        metadata=lambda: broker.metadata,
        replica_manager=broker.replica_manager,
        controller=broker.controller,
        timer=broker.timer,
        clock=ManualClock(1_000),
        run_on_loader=lambda _, job: job(),
    )


def _joined(parts: list[Any]) -> bytes:
    return b"".join(bytes(p) if isinstance(p, BYTES) else p.read() for p in parts)


class FakeProcessor:
    has_line = False

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.done: deque[Any] = deque()
        self.throttled_ms: list[int] = []

    def complete(self, channel, request, parts):
        self.throttled_ms.append(request.throttle_ms)
        if parts is None:
            self.done.append(CLOSED)
            channel.in_flight = None
        elif channel.answer(request, parts):
            self.done.append(_joined(parts))

    def answer_first(self, channel, request, parts):
        if channel.answer(request, parts, is_last=False):
            self.done.append(_joined(parts))


class FakeChannel(Connection):
    def __init__(self, processor: FakeProcessor) -> None:
        super().__init__(ConnectionLimits(), 0)
        self.processor = processor
        self.client_id = ""
        self.client_id_raw = b""
        self.client_software = ("unknown", "unknown")
        self.listener_name = "PLAINTEXT"
        self.local_host, self.local_port = "127.9.9.9", 4711
        self.peer_host = "127.0.0.1"
        self.peer_port = 50_000
        self.connection_id = 1
        self.principal, self.is_known = "User:ANONYMOUS", True
        self.security_protocol = "PLAINTEXT"


class Asked:
    """One connection to a fake broker."""

    def __init__(self, broker: FakeBroker, authorizer: Any = None) -> None:
        self.broker = broker
        self.processor = FakeProcessor()
        self.channel = FakeChannel(self.processor)
        apis = {}
        for key, api in apis_of(broker.role).items():
            versions = (api.min_version, api.max_version)
            may = None if api.operation is None else (api.operation, api.resource)
            apis[key] = type(api)(
                api.api_key, api.name, api.area, versions, api.listeners, may=may,
                is_forwardable=api.is_forwardable, names_once=api.names_once,
            )  # fmt: skip
        if authorizer is not None:
            apis = guarded(apis, authorizer)
        broker.own_apis, broker.authorizer = apis, authorizer
        self.requests = RequestChannel(apis, broker, 1, 500)

    def send(self, request: Request, version: int, client_id: str | None = "test") -> None:
        frame = request_bytes(request, version, 77, client_id)
        assert self.requests.receive(self.channel, frame)

    def received(self, request: Request, version: int) -> Any:
        """The answer; None if there is none (yet), CLOSED if the connection was closed."""
        if self.channel.violation is not None:
            return CLOSED
        if not self.processor.done:
            return None
        answer = self.processor.done.popleft()
        if answer in (CLOSED, b""):
            return answer or None
        assert int.from_bytes(answer[:4], "big") == len(answer) - 4
        frame = answer[4:]
        correlation_id, pos = decode_response_header(request.api_key, version, frame)
        assert correlation_id == 77
        return RESPONSES[request.api_key].decode(frame, version, pos)

    def ask(self, request: Request, version: int, client_id: str | None = "test") -> Any:
        self.send(request, version, client_id)
        eventually(lambda: not self.requests.is_busy, every_s=0.001, what="a handler thread")
        return self.received(request, version)
