"""The socket server over real sockets on 127.0.0.1:0, with handlers made for the tests."""

from __future__ import annotations

import errno
import gc
import os
import random
import select
import socket
import struct
import threading
import time
from collections import deque
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest

from server.network.api import Api, Cost
from server.network.channel import Channel
from server.network.connection import ConnectionLimits
from server.network.last_requests import RECENT
from server.network.listeners import Listener
from server.network.poller import WRITE
from server.network.socket_server import BindError, SocketServer, SocketServerConfig
from server.network.transport import PlaintextTransport
from testkit.clock import ManualClock
from testkit.wait import HANGS_S
from tests.server.network.network_support import Full, turn, wait_until
from tests.server.wire_client import WireClient, request_bytes
from wire.errors import ErrorCode, KafkaError
from wire.frame import encode_response
from wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.data import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from wire.messages.groups import HeartbeatRequest, HeartbeatResponse
from wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

NEVER_S = 3600
"""What is waited out so long, pytest's timeout ends."""
LOOPBACK = [Listener("PLAINTEXT", "127.0.0.1", 0)]
PRODUCE, FETCH, LIST_OFFSETS, HEARTBEAT, API_VERSIONS, INIT = 0, 1, 2, 12, 18, 22


class Parked:
    """Stands for a DelayedOperation: a request that waits until somebody completes it."""

    def __init__(self, answer):
        self._answer = answer
        self.is_completed = False
        self.cancelled = threading.Event()

    def force_complete(self):
        if self.is_completed:
            return False
        self.is_completed = True
        self._answer()
        return True

    def cancel(self):
        self.is_completed = True
        self.cancelled.set()
        return True


class Handlers:
    """Heartbeat answers at once, ListOffsets on a handler thread, Fetch when it is told to."""

    def __init__(self):
        self.parked = deque()
        self.parked_one = threading.Event()
        self.produced = []
        self.listed = []
        self.broker = object()
        self.heartbeat_gate = None
        self.list_offsets_gate = None

    def apis(self):
        table = {
            PRODUCE: ("Produce", "data", 3, 13, True, self.produce, ProduceRequest),
            FETCH: ("Fetch", "data", 4, 18, True, self.fetch, FetchRequest),
            LIST_OFFSETS: (
                "ListOffsets", "data", 1, 11, False, self.list_offsets, ListOffsetsRequest,
            ),
            HEARTBEAT: ("Heartbeat", "groups", 0, 4, True, self.heartbeat, HeartbeatRequest),
            API_VERSIONS: (
                "ApiVersions", "cluster", 0, 4, True, self.api_versions, ApiVersionsRequest,
            ),
            INIT: (
                "InitProducerId", "transactions", 0, 5, False, self.init, InitProducerIdRequest,
            ),
        }  # fmt: skip
        apis = {}
        for key, (name, area, lowest, highest, inline, handle, request) in table.items():
            api = Api(
                key, name, area, (lowest, highest), cost=Cost.SMALL if inline else Cost.BLOCKS
            )
            api.handle, api.request_class = handle, request
            apis[key] = api
        return apis

    def produce(self, ctx, request):
        self.produced.append(
            (request.timeout_ms, bytes(request.topic_data[0].partition_data[0].records))
        )
        if request.acks == 0:
            ctx.no_response()
            return None
        return ProduceResponse(responses=[])

    def fetch(self, ctx, request):
        answer = FetchResponse(responses=[], session_id=request.max_bytes)
        if request.max_wait_ms == 0:
            return answer
        operation = Parked(lambda: ctx.respond(answer))
        ctx.park(operation)
        self.parked.append(operation)
        self.parked_one.set()
        return None

    def list_offsets(self, ctx, request):
        if self.list_offsets_gate is not None:
            self.list_offsets_gate.wait(HANGS_S)
        self.listed.append(request.replica_id)
        return ListOffsetsResponse(topics=[], throttle_time_ms=request.replica_id)

    def heartbeat(self, ctx, request):
        if request.group_id == "kafka error":
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "no")
        if request.group_id == "bug":
            raise ZeroDivisionError
        if request.group_id == "throttled":
            ctx.throttle_ms = 50
        if request.group_id == "throttled for long":
            ctx.throttle_ms = 3_600_000
        return HeartbeatResponse(error_code=request.generation_id)

    def api_versions(self, ctx, request):
        return ApiVersionsResponse(error_code=0, api_keys=[])

    def init(self, ctx, request):
        return InitProducerIdResponse(error_code=0, producer_epoch=request.transaction_timeout_ms)


@contextmanager
def running(handlers=None, listeners=LOOPBACK, inter_broker_name="", **config):
    handlers = handlers or Handlers()
    server = SocketServer(
        SocketServerConfig(**config),
        listeners,
        handlers.broker,
        handlers.apis(),
        inter_broker_name=inter_broker_name,
    )
    server.start()
    try:
        yield server, handlers
    finally:
        server.shutdown(2.0)


@pytest.fixture
def served():
    with running() as both:
        yield both


def heartbeat(number, group="g"):
    return HeartbeatRequest(group_id=group, generation_id=number, member_id="m")


def produce(body=b"records", acks=1, number=0):
    partition = ProduceRequest.Topic.Partition(index=0, records=body)
    return ProduceRequest(
        acks=acks,
        timeout_ms=number,
        topic_data=[ProduceRequest.Topic(name="t", partition_data=[partition])],
    )


def fetch(number=0, max_wait_ms=10_000):
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=number, isolation_level=0, topics=[]
    )


def test_a_request_is_answered_with_its_correlation_id(served):
    server, _ = served
    with WireClient(server.port) as client:
        for version in range(5):
            assert client.ask(heartbeat(7 + version), version).error_code == 7 + version


def test_an_answer_from_a_handler_thread_arrives(served):
    server, _ = served
    request = ListOffsetsRequest(replica_id=-1, topics=[])
    with WireClient(server.port) as client:
        assert client.ask(request, 11).throttle_time_ms == -1
    assert server.request_channel.handed_over == 1


def test_pipelined_requests_of_many_connections_are_answered_in_order(served):
    """N-7: inline, handed-over and parked requests mixed."""
    server, handlers = served
    connections, requests = 20, 200
    stop = threading.Event()

    def complete_parked():
        while not stop.is_set():
            assert handlers.parked_one.wait(60)
            handlers.parked_one.clear()
            while handlers.parked:
                handlers.parked.popleft().force_complete()

    def converse(seed):
        rng = random.Random(seed)
        kinds = rng.choices(("beat", "offsets", "poll", "init"), (60, 15, 10, 15), k=requests)
        with WireClient(server.port) as client:
            stream = bytearray()
            for number, kind in enumerate(kinds):
                stream += {
                    "beat": lambda n: request_bytes(heartbeat(n), 3, n),
                    "offsets": lambda n: request_bytes(
                        ListOffsetsRequest(replica_id=n, topics=[]), 5, n
                    ),
                    "poll": lambda n: request_bytes(fetch(n), 12, n),
                    "init": lambda n: request_bytes(
                        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=n), 4, n
                    ),
                }[kind](number)
            sender = threading.Thread(target=client.sock.sendall, args=(bytes(stream),))
            sender.start()
            for number, kind in enumerate(kinds):
                key, version, field = {
                    "beat": (HEARTBEAT, 3, "error_code"),
                    "offsets": (LIST_OFFSETS, 5, "throttle_time_ms"),
                    "poll": (FETCH, 12, "session_id"),
                    "init": (INIT, 4, "producer_epoch"),
                }[kind]
                got, response = client.read(key, version)
                if (got, getattr(response, field)) != (number, number):
                    wrong.append((seed, number, kind, got))
                    break
            sender.join()
            done.append(seed)

    wrong, done = [], []
    completer = threading.Thread(target=complete_parked)
    completer.start()
    threads = [threading.Thread(target=converse, args=(i,)) for i in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    stop.set()
    handlers.parked_one.set()
    completer.join()
    assert wrong == []
    assert len(done) == connections


def test_a_client_that_sends_one_byte_at_a_time_is_served(served):
    server, _ = served
    with WireClient(server.port) as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request_bytes(heartbeat(3), 4, 55):
            client.sock.send(bytes([byte]))
        assert client.read(HEARTBEAT, 4)[0] == 55


def test_large_requests_arrive_whole(served):
    server, handlers = served
    body = os.urandom(3_000_000)
    with WireClient(server.port) as client:
        client.ask(produce(body), 9)
        client.ask(produce(body[::-1]), 9)
    assert [records for _, records in handlers.produced] == [body, body[::-1]]


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 1, 1_000_001, 2**31 - 1])
def test_hostile_sizes_close_only_their_connection(size):
    with (
        running(socket_request_max_bytes=1_000_000) as (server, _),
        WireClient(server.port) as good,
        WireClient(server.port) as bad,
    ):
        bad.sock.sendall(struct.pack(">i", size) + b"x" * 20)
        assert bad.is_closed()
        assert good.ask(heartbeat(1), 0).error_code == 1


@pytest.mark.parametrize("hello", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01"])
def test_http_and_tls_clients_are_closed_at_once(served, hello):
    server, _ = served
    with WireClient(server.port) as client:
        client.sock.sendall(hello)
        assert client.is_closed()


@pytest.mark.parametrize(
    ("key", "version"), [(0, 2), (0, 14), (3, 0), (17, 0), (52, 0), (-1, 0), (32767, 0), (12, -1)]
)
def test_unknown_apis_and_versions_close_the_connection(served, key, version):
    server, _ = served
    with WireClient(server.port) as client:
        client.sock.sendall(struct.pack(">ihhih", 10, key, version, 1, -1))
        assert client.is_closed()


def test_too_new_api_versions_is_answered_in_version_0(served):
    server, _ = served
    with WireClient(server.port) as client:
        client.sock.sendall(struct.pack(">ihhih4s", 14, 18, 9, 77, -1, b"\0\0\0\0"))
        correlation_id, response = client.read(API_VERSIONS, 0)
        assert correlation_id == 77
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(k.api_key, k.min_version, k.max_version) for k in response.api_keys] == [
            (18, 0, 4)
        ]
        assert (
            client.ask(
                ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4
            ).error_code
            == 0
        )


def test_who_asked_is_told_of_the_end_of_a_connection(served):
    server, handlers = served
    ended = threading.Event()
    client = WireClient(server.port)
    client.send(fetch(), 12)
    assert handlers.parked_one.wait(60)
    (channel,) = [c for p in server.processors for c in list(p.channels.values())]
    channel.in_flight.on_connection_end(lambda connection: connection is channel and ended.set())
    client.close()
    assert ended.wait(60)


def test_a_malformed_body_closes_only_its_connection(served):
    server, _ = served
    with WireClient(server.port) as good, WireClient(server.port) as bad:
        frame = bytearray(request_bytes(heartbeat(1), 4, 1))[:-3]
        struct.pack_into(">i", frame, 0, len(frame) - 4)
        bad.sock.sendall(frame)
        assert bad.is_closed()
        assert good.ask(heartbeat(2), 4).error_code == 2
    assert server.request_channel.malformed == 1


def test_what_came_before_a_malformed_request_is_still_answered(served):
    server, _ = served
    with WireClient(server.port) as client:
        client.sock.sendall(request_bytes(heartbeat(5), 4, 9) + struct.pack(">i", -5))
        assert client.read(HEARTBEAT, 4)[1].error_code == 5
        assert client.is_closed()


def test_refusals_and_faults_are_answered_in_the_apis_shape(served, caplog):
    server, _ = served
    with WireClient(server.port) as client:
        answer = client.ask(heartbeat(0, "kafka error"), 4)
        assert answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        answer = client.ask(heartbeat(0, "bug"), 4)
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert client.ask(heartbeat(4), 4).error_code == 4
    assert "ZeroDivisionError" in caplog.text


def test_a_fault_in_produce_is_answered_with_a_retriable_code(caplog):
    class Faulty(Handlers):
        def produce(self, ctx, request):
            raise ZeroDivisionError

    with running(Faulty()) as (server, _), WireClient(server.port) as client:
        answer = client.ask(produce(), 9)
        assert answer.responses[0].name == "t"
        (partition,) = answer.responses[0].partition_responses
        assert (partition.index, partition.base_offset) == (0, -1)
        assert partition.error_code == ErrorCode.REQUEST_TIMED_OUT


def test_acks_0_is_not_answered_and_the_next_answers_line_up(served):
    server, handlers = served
    with WireClient(server.port) as client:
        client.send(produce(acks=0, number=1), 9)
        client.send(produce(acks=0, number=2), 9)
        assert client.ask(heartbeat(8), 4).error_code == 8
    assert [number for number, _ in handlers.produced] == [1, 2]


def test_acks_0_batches_sent_just_before_the_client_left_are_kept(served):
    server, handlers = served
    client = WireClient(server.port)
    client.sock.sendall(
        b"".join(request_bytes(produce(acks=0, number=n), 9, n) for n in range(100))
    )
    client.close()
    wait_until(server, lambda: len(handlers.produced) == 100)
    assert [number for number, _ in handlers.produced] == list(range(100))
    wait_until(server, lambda: server.quotas.count == 0)


def test_acks_0_batches_behind_a_parked_request_are_kept_when_the_client_leaves(served):
    server, handlers = served
    client = WireClient(server.port)
    client.send(fetch(), 12)
    assert handlers.parked_one.wait(60)
    client.sock.sendall(
        b"".join(request_bytes(produce(b"x" * 2000, 0, n), 9, n) for n in range(50))
    )
    client.close()
    wait_until(server, lambda: len(handlers.produced) == 50)
    assert [number for number, _ in handlers.produced] == list(range(50))
    wait_until(server, lambda: server.quotas.count == 0)


def test_what_follows_from_a_request_does_not_hold_up_its_answer(served):
    """TX-43: an EndTxn is answered before this node writes its own markers."""
    server, handlers = served
    is_answered, done = threading.Event(), threading.Event()
    answered_in_time = []

    def follow() -> None:
        answered_in_time.append(is_answered.wait(60))
        done.set()

    handlers.heartbeat = lambda ctx, request: (
        server.after_answers(follow) or HeartbeatResponse(error_code=request.generation_id)
    )
    for key, api in handlers.apis().items():
        server.request_channel._apis[key] = api
    with WireClient(server.port) as client:
        assert client.ask(heartbeat(7), 4).error_code == 7
        is_answered.set()
        assert done.wait(60)
    assert answered_in_time == [True]


def test_off_the_network_threads_it_follows_at_once(served):
    server, _ = served
    threads = []
    server.after_answers(lambda: threads.append(threading.get_ident()))
    assert threads == [threading.get_ident()]


def test_a_parked_request_is_answered_when_it_is_completed_by_another_thread(served):
    server, handlers = served
    with WireClient(server.port) as client:
        sent = client.send(fetch(number=5), 12)
        assert handlers.parked_one.wait(60)
        handlers.parked.popleft().force_complete()
        received, response = client.read(FETCH, 12)
        assert (received, response.session_id) == (sent, 5)


@pytest.mark.parametrize("from_elsewhere", [False, True])
def test_answers_of_what_is_served_together_keep_their_order(from_elsewhere):
    """The first from any thread, the last from the one that owns the socket."""

    class Together(Handlers):
        def heartbeat(self, ctx, request):
            def send_first():
                for number in (0, 1):
                    response = HeartbeatResponse(error_code=number)
                    ctx.send_early(encode_response(True, 4, number, response))

            if from_elsewhere:
                thread = threading.Thread(target=send_first)
                thread.start()
                thread.join()
            else:
                send_first()
            return HeartbeatResponse(error_code=2)

    with running(Together()) as (server, _), WireClient(server.port) as client:
        last = client.send(heartbeat(0), 4)
        behind = client.send(heartbeat(0), 4)
        for correlation_id in (last, behind):
            answers = [client.read(HEARTBEAT, 4) for _ in range(3)]
            assert [number for number, _ in answers] == [0, 1, correlation_id]
            assert [answer.error_code for _, answer in answers] == [0, 1, 2]


def test_the_first_answers_leave_while_the_others_wait():
    class Together(Handlers):
        def heartbeat(self, ctx, request):
            first = HeartbeatResponse(error_code=1)
            ctx.send_early(encode_response(True, 4, ctx.correlation_id, first))
            operation = Parked(lambda: ctx.respond(HeartbeatResponse(error_code=2)))
            ctx.park(operation)
            self.parked.append(operation)

    with running(Together()) as (server, handlers):
        with WireClient(server.port) as client:
            assert client.ask(heartbeat(0), 4).error_code == 1
            handlers.parked[0].force_complete()
            assert client.read(HEARTBEAT, 4)[1].error_code == 2
            assert client.ask(heartbeat(0), 4).error_code == 1
        assert handlers.parked[1].cancelled.wait(60), "its client left"


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_parked_request_is_cancelled_when_its_client_leaves(served, pipelined):
    server, handlers = served
    client = WireClient(server.port)
    client.send(fetch(), 12)
    assert handlers.parked_one.wait(60)
    if pipelined:
        client.send(heartbeat(1), 4)
    client.close()
    assert handlers.parked.popleft().cancelled.wait(60)
    wait_until(server, lambda: server.quotas.count == 0)


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_request_that_begins_to_wait_when_its_client_has_left_is_cancelled(pipelined):
    """It may have stood in the queue, or been worked on; a Fetch could wait for 24 days."""

    class Slow(Handlers):
        begun, may_go_on = threading.Event(), threading.Event()

        def apis(self):
            apis = super().apis()
            apis[FETCH].inline = False
            return apis

        def fetch(self, ctx, request):
            self.begun.set()
            assert self.may_go_on.wait(60)
            return super().fetch(ctx, request)

    with running(Slow()) as (server, handlers):
        client = WireClient(server.port)
        client.send(fetch(), 12)
        assert handlers.begun.wait(60)
        (channel,) = list(server.processors[0].channels.values())
        if pipelined:
            client.send(heartbeat(1), 4)
            wait_until(server, lambda: not channel.reading)
        client.close()
        wait_until(server, lambda: channel.interest == 0)
        handlers.may_go_on.set()
        assert handlers.parked_one.wait(60)
        assert handlers.parked.popleft().cancelled.wait(10)
        wait_until(server, lambda: server.quotas.count == 0)


def test_an_end_that_was_reported_before_an_answer_left_is_noticed_after_it():
    """Both are seen in one turn: what was said of a muted connection is not of one that reads."""

    class Completing(Handlers):
        def heartbeat(self, ctx, request):
            if request.generation_id == 1:
                self.parked.popleft().force_complete()
            return super().heartbeat(ctx, request)

    with (
        running(Completing()) as (server, handlers),
        WireClient(server.port) as waiting,
        WireClient(server.port) as other,
    ):
        (processor,) = server.processors
        waiting.send(fetch(number=4), 12)
        assert handlers.parked_one.wait(60)
        waiting.sock.sendall(b"\0\0\0\x30\0")
        wait_until(
            server, lambda: any(not one.reading for one in list(processor.channels.values()))
        )
        # A turn later epoll has forgotten that `waiting` was ready: `other` is before it in line.
        assert other.ask(heartbeat(0), 4).error_code == 0
        gate = threading.Event()
        processor._command(gate.wait)
        other.send(heartbeat(1), 4)
        waiting.sock.shutdown(socket.SHUT_WR)
        gate.set()
        assert waiting.read(FETCH, 12)[1].session_id == 4
        assert waiting.is_closed()


def test_requests_behind_a_parked_one_do_not_keep_the_processor_busy(served):
    server, handlers = served
    with WireClient(server.port) as client, WireClient(server.port) as other:
        two = request_bytes(fetch(number=1), 12, 1) + request_bytes(heartbeat(2), 4, 2)
        client.sock.sendall(two)  # one read: the second waits as a frame
        assert handlers.parked_one.wait(60)
        client.send(heartbeat(3), 4, 3)  # and this one in the kernel
        for number in range(3):  # meanwhile the processor looks at both sockets
            assert other.ask(heartbeat(number), 4).error_code == number
        waiting = [c for p in server.processors for c in list(p.channels.values()) if c.in_flight]
        assert len(waiting) == 1
        assert not waiting[0].interest & select.POLLIN  # level-triggered: each poll would return
        handlers.parked.popleft().force_complete()
        assert client.read(FETCH, 12)[0] == 1
        assert [client.read(HEARTBEAT, 4)[0] for _ in range(2)] == [2, 3]


def test_a_reset_connection_frees_its_parked_request(served):
    server, handlers = served
    client = WireClient(server.port)
    client.send(fetch(), 12)
    assert handlers.parked_one.wait(60)
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert handlers.parked.popleft().cancelled.wait(60)
    wait_until(server, lambda: server.quotas.count == 0)


def test_a_thousand_long_polls_leave_nothing_behind(served):
    """N-14, N-11."""
    server, handlers = served
    with ExitStack() as open_until_end:
        for _ in range(300):
            open_until_end.enter_context(WireClient(server.port)).send(fetch(), 12)
        wait_until(server, lambda: len(handlers.parked) == 300)
    wait_until(server, lambda: server.quotas.count == 0)
    assert all(operation.cancelled.is_set() for operation in handlers.parked)
    assert not server.processors[0].channels


class FakeSlice:
    """Stands for storage's FileSlice, over bytes; never sends more than the socket takes."""

    def __init__(self, data):
        self._data = memoryview(data)
        self.closed = False

    def __len__(self):
        return len(self._data)

    def send_to(self, fd, offset, count):
        return os.write(fd, self._data[offset : offset + count])

    def read(self, offset=0, size=None):
        return bytes(self._data[offset:])

    def close(self):
        self.closed = True


def fetch_of_slices(slices):
    class Serving(Handlers):
        def fetch(self, ctx, request):
            make = FetchResponse.Topic.Partition
            partitions = [
                make(
                    partition_index=i,
                    error_code=0,
                    high_watermark=1,
                    aborted_transactions=None,
                    records=piece,
                )
                for i, piece in enumerate(slices)
            ]
            return FetchResponse(responses=[FetchResponse.Topic(topic="t", partitions=partitions)])

    return Serving()


def test_file_slices_of_all_sizes_arrive_between_their_headers():
    bodies = [os.urandom(n) for n in (0, 1, 100, 4_096, 4_097, 300_000, 5_000_000, 10)]
    slices = [FakeSlice(body) for body in bodies]
    with running(fetch_of_slices(slices)) as (server, _), WireClient(server.port) as client:
        answer = client.ask(fetch(max_wait_ms=0), 11)
        got = [bytes(p.records) for p in answer.responses[0].partitions]
        assert got == bodies
        wait_until(server, lambda: all(piece.closed for piece in slices[1:]))
        assert client.ask(heartbeat(1), 4).error_code == 1


@pytest.mark.parametrize("sizes", [[500] * 10_000, [1_000_000] * 50])
def test_one_reader_of_many_partitions_does_not_keep_the_others_waiting(sizes):
    """Who reads as fast as it is sent is given a part of his answer in each turn, too."""

    class Taking:
        wants = unsent_bytes = 0
        fd, local_address = -1, ("", 0)
        pieces = taken = 0

        def send_parts(self, parts, is_more):
            return sum(map(len, parts))

        def send_file(self, part, offset, count):
            self.pieces += 1
            self.taken += count
            return count

    transport = Taking()
    owner = SimpleNamespace(now_ms=0, bytes_out=0)
    channel = Channel(
        transport, owner, ConnectionLimits(), listener_name="", connection_id=1, peer_host=""
    )
    channel.outbox += [part for size in sizes for part in (b"head", FakeSlice(bytes(size)))]
    is_done = False
    while not is_done:
        transport.pieces, transport.taken = 0, 0
        is_done = channel.send()
        assert transport.pieces <= 128
        assert transport.taken <= 5_000_000
    assert channel.outbox == []
    assert owner.bytes_out == sum(sizes) + 4 * len(sizes)


def test_a_reader_that_stops_holds_no_memory_and_starts_nothing_more():
    """N-8: one answer is held, its data in a file; nobody else notices."""
    slices = [FakeSlice(bytes(50_000_000))]
    with (
        running(fetch_of_slices(slices)) as (server, _),
        WireClient(server.port) as stopped,
        WireClient(server.port) as other,
    ):
        assert stopped.ask(heartbeat(0), 4).error_code == 0
        stopped.send(fetch(max_wait_ms=0), 11)
        stopped.sock.sendall(request_bytes(heartbeat(1), 4, 1))
        (channel,) = [
            c for c in list(server.processors[0].channels.values())
            if c.transport.sock.getpeername() == stopped.sock.getsockname()
        ]  # fmt: skip
        wait_until(server, lambda: channel.send_stalled_ms >= 0)
        before = server.processors[0].requests
        for number in range(50):
            assert other.ask(heartbeat(number), 4).error_code == number
        assert server.processors[0].requests == before + 50
        assert channel.unsent_bytes() < 100
        assert len(stopped.read_frame()) > 50_000_000  # it goes on: nothing was lost
        assert stopped.read(HEARTBEAT, 4)[0] == 1


def test_a_reader_that_stops_for_good_is_closed():
    slices = [FakeSlice(bytes(50_000_000))]
    clock = ManualClock(1_000)
    handlers = fetch_of_slices(slices)
    server = SocketServer(
        SocketServerConfig(connections_max_idle_ms=60_000),
        LOOPBACK,
        handlers.broker,
        handlers.apis(),
        clock_ms=clock,
    )
    server.start()
    try:
        with WireClient(server.port) as stopped:
            stopped.send(fetch(max_wait_ms=0), 11)
            wait_until(server, lambda: server.processors[0].bytes_out > 0)
            clock.ms += 70_000
            server.processors[0].resume()
            wait_until(server, lambda: server.quotas.count == 0)
            assert slices[0].closed
    finally:
        server.shutdown(1.0)


class Telling(Handlers):
    """Heartbeats of group "long" get a megabyte and more, however short the question."""

    def heartbeat(self, ctx, request):
        if request.group_id == "long":
            ctx.send_parts([(1_500_000).to_bytes(4, "big") + bytes(1_500_000)])
            return None
        return super().heartbeat(ctx, request)


@pytest.mark.parametrize("threads", [1, 2])
def test_answers_that_nobody_reads_do_not_fill_the_memory(threads):
    """N-8: questions are short, answers long; who only asks is closed, others are not."""
    clock = ManualClock(1_000)
    handlers = Telling()
    server = SocketServer(
        SocketServerConfig(queued_max_request_bytes=8_000_000, num_network_threads=threads),
        [Listener("PLAINTEXT", "127.0.0.1", 0)],
        handlers.broker,
        handlers.apis(),
        clock_ms=clock,
    )
    server.start()
    try:
        with ExitStack() as open_until_end:
            for source in ["127.0.0.2"] + ["127.0.0.1"] * 40:
                client = open_until_end.enter_context(WireClient(server.port, source=source))
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                client.send(heartbeat(0, "long"), 4)

            def channels():
                return [one for each in server.processors for one in [*each.channels.values()]]

            wait_until(server, lambda: sum(one.send_stalled_ms >= 0 for one in channels()) == 41)
            for _ in range(3):  # the first to look does not know yet what the others hold
                clock.ms += 2_000
                turn(server)
                turn(server)  # they have closed all that they would
            held = sum(one.unsent_bytes() for one in channels())
            assert held <= 8_000_000
            assert held > 6_000_000, "no more are closed than must be"
            hosts = {one.peer_host for one in channels()}
            assert "127.0.0.2" in hosts, "who is somewhere else reads on"
    finally:
        server.shutdown(1.0)


def stalled_fetch(server, client, behind=b""):
    """Have the client ask for 50 MB that it does not read yet, `behind` in the same segment."""
    client.sock.sendall(request_bytes(fetch(max_wait_ms=0), 11, 1) + behind)
    (processor,) = server.processors
    wait_until(server, lambda: processor.channels)
    (channel,) = list(processor.channels.values())
    wait_until(server, lambda: channel.send_stalled_ms >= 0)
    return channel


def test_who_has_said_all_still_gets_the_answer_he_reads_slowly():
    """A half-closed connection is written to as long as there is something to write."""
    with (
        running(fetch_of_slices([FakeSlice(bytes(50_000_000))])) as (server, _),
        WireClient(server.port) as client,
    ):
        stalled_fetch(server, client)
        client.sock.shutdown(socket.SHUT_WR)
        turn(server)
        turn(server)
        assert len(client.read_frame()) > 50_000_000
        assert client.is_closed()
        wait_until(server, lambda: server.quotas.count == 0)


def test_what_is_not_read_while_an_answer_is_stuck_is_not_late():
    """N-15 counts the time in which we read."""
    clock = ManualClock(1_000)
    handlers = fetch_of_slices([FakeSlice(bytes(50_000_000))])
    server = SocketServer(
        SocketServerConfig(), LOOPBACK, handlers.broker, handlers.apis(), clock_ms=clock
    )
    server.start()
    try:
        with WireClient(server.port) as client:
            next_one = request_bytes(heartbeat(7), 4, 2)
            stalled_fetch(server, client, behind=next_one[:9])
            clock.ms += 40_000
            turn(server)
            turn(server)
            assert len(client.read_frame()) > 50_000_000
            turn(server)
            client.sock.sendall(next_one[9:])
            assert client.read(HEARTBEAT, 4)[1].error_code == 7
    finally:
        server.shutdown(1.0)


def test_a_reader_who_goes_on_has_time_for_a_long_answer():
    """N-8: what must make progress is the sending, in whatever pieces."""
    clock = ManualClock(1_000)
    handlers = Telling()
    server = SocketServer(
        SocketServerConfig(socket_send_buffer_bytes=65_536),
        LOOPBACK, handlers.broker, handlers.apis(), clock_ms=clock,
    )  # fmt: skip
    server.start()
    try:
        with WireClient(server.port) as client:
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            client.send(heartbeat(0, "long"), 4)
            (processor,) = server.processors
            wait_until(server, lambda: processor.channels)
            (channel,) = list(processor.channels.values())
            wait_until(server, lambda: channel.send_stalled_ms >= 0)
            for _ in range(3):
                clock.ms += 40_000
                before = processor.bytes_out
                while processor.bytes_out == before:
                    assert client.sock.recv(65_536)
                    turn(server)
                assert channel.unsent_bytes() > 500_000
            turn(server)
            assert processor.connections_expired == 0
            clock.ms += 61_000
            turn(server)
            wait_until(server, lambda: processor.connections_expired == 1)
    finally:
        server.shutdown(1.0)


def test_what_closed_connections_were_throttled_for_is_not_held():
    clock = ManualClock(1_000)
    handlers = Handlers()
    server = SocketServer(
        SocketServerConfig(), LOOPBACK, handlers.broker, handlers.apis(), clock_ms=clock
    )
    server.start()
    try:
        for _ in range(20):
            with WireClient(server.port) as client:
                client.ask(heartbeat(0, "throttled for long"), 4)
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(server, lambda: server.quotas.count == 0)
        clock.ms += 2_000
        server.processors[0].resume()
        wait_until(server, lambda: not server.processors[0]._throttled)
    finally:
        server.shutdown(1.0)


def test_idle_and_dawdling_connections_are_closed():
    """N-11, N-15."""
    clock = ManualClock(1_000)
    handlers = Handlers()
    server = SocketServer(
        SocketServerConfig(connections_max_idle_ms=60_000, frame_complete_ms=5_000),
        LOOPBACK,
        handlers.broker,
        handlers.apis(),
        clock_ms=clock,
    )
    server.start()
    try:
        with WireClient(server.port) as idle, WireClient(server.port) as slow:
            slow.sock.sendall(b"\0\0\0\x30\0")
            wait_until(server, lambda: server.processors[0].bytes_in == 5)
            clock.ms += 6_000
            server.processors[0].resume()
            assert slow.is_closed()
            assert idle.ask(heartbeat(1), 4).error_code == 1
            clock.ms += 61_000
            server.processors[0].resume()
            assert idle.is_closed()
        assert server.processors[0].connections_expired == 2
    finally:
        server.shutdown(1.0)


def test_what_was_asked_last_is_told_and_what_has_no_answer_yet(served):
    server, handlers = served
    with WireClient(server.port) as client, WireClient(server.port) as waiting:
        for _ in range(RECENT + 1):
            client.ask(heartbeat(1), 4)
        waiting.send(fetch(max_wait_ms=60_000), 11)
        assert handlers.parked_one.wait(60)
        last, waits = server.last_requests(time.time_ns() // 1_000_000)
    assert " Heartbeat v4 client=" in last
    assert last.endswith(f"the last of {RECENT}"), "no more are kept"
    assert waits.startswith("not answered yet: Fetch v11 client=")


def test_a_full_queue_stops_reading_and_loses_nothing():
    handlers = Handlers()
    handlers.list_offsets_gate = threading.Event()
    with (
        running(handlers, queued_max_requests=3, num_io_threads=1) as (server, _),
        ExitStack() as open_until_end,
    ):
        channel = server.request_channel
        clients = [open_until_end.enter_context(WireClient(server.port)) for _ in range(12)]
        for number, client in enumerate(clients):
            client.send(ListOffsetsRequest(replica_id=number, topics=[]), 5, correlation_id=number)
        # One is being handled; until its thread has taken it, three fill the queue.
        wait_until(server, lambda: (channel.handed_over, channel.queue_size) == (4, 3))
        turn(server)
        assert (channel.handed_over, channel.queue_size) == (4, 3)
        handlers.list_offsets_gate.set()
        for number, client in enumerate(clients):
            assert client.read(LIST_OFFSETS, 5)[0] == number


def test_who_always_has_one_more_request_does_not_keep_others_from_the_queue():
    handlers = Handlers()
    handlers.list_offsets_gate = threading.Event()
    with (
        running(handlers, queued_max_requests=1, num_io_threads=1) as (server, _),
        ExitStack() as open_until_end,
    ):
        greedy = [open_until_end.enter_context(WireClient(server.port)) for _ in range(4)]
        for client in greedy:
            for _ in range(50):
                client.send(ListOffsetsRequest(replica_id=0, topics=[]), 5)
        wait_until(server, lambda: server.request_channel.queue_size == 1)
        late = open_until_end.enter_context(WireClient(server.port))
        late.send(ListOffsetsRequest(replica_id=1, topics=[]), 5)
        wait_until(server, lambda: len(server.processors[0].channels) == 5)
        turn(server)
        handlers.list_offsets_gate.set()
        late.read(LIST_OFFSETS, 5)
        for client in greedy:
            for _ in range(50):
                client.read(LIST_OFFSETS, 5)
    assert handlers.listed.index(1) < 12, "it is not served last of all"


def test_inline_requests_overtake_slow_ones_of_other_connections_but_not_of_their_own():
    handlers = Handlers()
    handlers.list_offsets_gate = threading.Event()
    with (
        running(handlers, num_io_threads=1) as (server, _),
        WireClient(server.port) as client,
        WireClient(server.port) as other,
    ):
        client.send(ListOffsetsRequest(replica_id=1, topics=[]), 5)
        client.send(heartbeat(2), 4)
        wait_until(server, lambda: server.request_channel.handed_over == 1)
        for number in range(20):
            assert other.ask(heartbeat(number), 4).error_code == number
        handlers.list_offsets_gate.set()
        assert client.read(LIST_OFFSETS, 5)[1].throttle_time_ms == 1
        assert client.read(HEARTBEAT, 4)[1].error_code == 2


def test_a_throttled_client_is_answered_at_once_and_then_waits(served):
    """KIP-219."""
    server, _ = served
    with WireClient(server.port) as client:
        started = time.monotonic()
        client.send(heartbeat(1, "throttled"), 4)
        client.send(heartbeat(2), 4)
        client.read(HEARTBEAT, 4)
        client.read(HEARTBEAT, 4)
        assert time.monotonic() - started >= 0.045


def test_connections_over_the_limits_are_accepted_and_closed():
    with running(max_connections=3) as (server, _), ExitStack() as open_until_end:
        clients = [open_until_end.enter_context(WireClient(server.port)) for _ in range(3)]
        assert all(client.ask(heartbeat(1), 4).error_code == 1 for client in clients)
        with WireClient(server.port) as refused:
            assert refused.is_closed()
        assert server.quotas.rejected == 1
        clients.pop().close()
        wait_until(server, lambda: server.quotas.count == 2)
        with WireClient(server.port) as admitted:
            assert admitted.ask(heartbeat(1), 4).error_code == 1


def refusals(quotas, hosts, now_ms=0, *listener, **rights):
    return [quotas.admit(host, now_ms, *listener, **rights).refused_by for host in hosts]


def test_limits_count_by_address():
    from server.network.limits import ConnectionQuotas

    quotas = ConnectionQuotas(10, 2, {"10.0.0.9": 1}, 10**9)
    assert refusals(quotas, ["10.0.0.1"] * 3) == [None, None, "max.connections.per.ip"]
    assert refusals(quotas, ["10.0.0.9"] * 2) == [None, "max.connections.per.ip"]
    quotas.release("10.0.0.9")
    assert refusals(quotas, ["10.0.0.9"]) == [None]


def test_who_is_over_a_rate_waits_for_his_turn_and_for_no_longer_than_a_second():
    from server.network.limits import Admission, ConnectionQuotas

    quotas = ConnectionQuotas(10**9, 10**9, {}, 10)
    at_once, over = [Admission()] * 2, Admission("max.connection.creation.rate")
    turns = [Admission(wait_ms=100 * number) for number in range(1, 11)]
    assert [quotas.admit("10.0.0.1", 0) for _ in range(14)] == [*at_once, *turns, over, over]
    assert (quotas.count, quotas.rejected) == (12, 2)
    assert quotas.admit("10.0.0.2", 99) == over
    assert [quotas.admit("10.0.0.2", 100) for _ in range(2)] == [Admission(wait_ms=1_000), over]
    assert quotas.admit("10.0.0.2", 3_000) == Admission(), "silence pays what is owed"


@pytest.mark.parametrize("rate", [1, 2, 7, 20, 1_000])
def test_ten_seconds_let_in_ten_seconds_worth_at_any_time(rate):
    from server.network.limits import ConnectionQuotas

    quotas = ConnectionQuotas(10**9, 10**9, {}, 10**9)
    quotas.set_ip_rates({None: rate})
    served = []
    for now_ms in range(0, 40_000, 1 if rate == 1_000 else 10):
        if not 12_000 < now_ms < 17_000:
            admission = quotas.admit("10.0.0.1", now_ms)
            if admission.refused_by is None:
                served.append(now_ms + admission.wait_ms)
    for begin_ms in (0, 5_000, 17_000, 25_000):
        here = sum(begin_ms <= at_ms < begin_ms + 10_000 for at_ms in served)
        if begin_ms != 5_000:
            assert here >= rate * 10
        assert here <= max(rate * 10 * 1.03, rate * 10 + 1)


def test_each_listener_has_limits_of_its_own():
    from server.network.limits import ConnectionQuotas, ListenerLimits

    quotas = ConnectionQuotas(
        6, 9, {}, 90, {"EXT": ListenerLimits(connections_max=2), "OWN": ListenerLimits(9, 1)}
    )
    ip = "10.0.0.1"
    assert refusals(quotas, [ip] * 3, 0, "EXT") == [
        None, None, "listener.name.ext.max.connections",
    ]  # fmt: skip
    assert refusals(quotas, [ip] * 3, 0, "OWN", is_reserved=True) == [
        None, None, "listener.name.own.max.connection.creation.rate",
    ]  # fmt: skip
    quotas.release(ip, "EXT")
    assert refusals(quotas, [ip], 0, "EXT") == [None]
    quotas.set_limits(9, 9, {}, 90, {"EXT": ListenerLimits(connections_max=3)})
    assert refusals(quotas, [ip] * 2, 0, "OWN") == [None, None]
    assert refusals(quotas, [ip] * 2, 0, "EXT") == [
        None, "listener.name.ext.max.connections",
    ]  # fmt: skip


def test_addresses_have_rates_and_what_is_refused_uses_up_none():
    from server.network.limits import ConnectionQuotas

    quotas = ConnectionQuotas(10**9, 10**9, {}, 12)
    quotas.set_ip_rates({None: 2, "10.0.0.9": 5})
    # Each has one at once, and a second's worth of turns.
    ips = ["10.0.0.1"] * 10 + ["10.0.0.9"] * 10
    assert refusals(quotas, ips).count(None) == (1 + 2) + (1 + 5)
    # Of the broker's 2 and 12 the refused ones left these.
    assert (
        refusals(quotas, ["10.0.0.2", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.4"]) == [None] * 5
    )
    assert refusals(quotas, ["10.0.0.5"]) == ["max.connection.creation.rate"]
    assert refusals(quotas, ["10.0.0.1"] * 2, 500) == [None, "connection_creation_rate"]
    quotas.set_ip_rates({})
    assert refusals(quotas, ["10.0.0.1"], 500) == [None]


def test_who_waits_for_his_turn_holds_up_nobody_and_is_served_then():
    with running() as (server, _), ExitStack() as open_until_end:
        server.quotas.set_ip_rates({"127.0.0.1": 4})
        began = time.monotonic()
        clients = [open_until_end.enter_context(WireClient(server.port)) for _ in range(6)]
        refused, waiting = clients[5], clients[1:5]
        assert clients[0].ask(heartbeat(1), 4).error_code == 1
        assert time.monotonic() - began < 0.2, "his own turn is now"
        assert refused.is_closed()
        assert [one.ask(heartbeat(2), 4).error_code for one in waiting] == [2] * 4
        assert time.monotonic() - began >= 0.99
        assert server.quotas.count == 5


def test_who_waits_while_the_server_stops_is_let_go():
    with running() as (server, _), ExitStack() as open_until_end:
        server.quotas.set_ip_rates({"127.0.0.1": 1})
        clients = [open_until_end.enter_context(WireClient(server.port)) for _ in range(2)]
        wait_until(server, lambda: server.quotas.count == 2)
        server.stop_accepting()
        assert clients[1].is_closed()
        assert server.quotas.count == 1
        assert clients[0].ask(heartbeat(1), 4).error_code == 1


def test_a_million_addresses_take_a_bounded_memory():
    from server.network.limits import ConnectionQuotas

    quotas = ConnectionQuotas(10**9, 10**9, {}, 10**9)
    quotas.set_ip_rates({None: 1})
    for number in range(30_000):
        quotas.admit(f"10.1.{number}", number)
        quotas.release(f"10.1.{number}")
    assert len(quotas._ip_buckets) == 10_000


def test_2000_connections_come_and_go_and_the_broker_stays_up(served):
    """N-10."""
    server, _ = served
    with WireClient(server.port) as steady:
        for number in range(1, 21):
            with ExitStack() as batch:
                for _ in range(100):
                    batch.enter_context(WireClient(server.port))
                assert steady.ask(heartbeat(1), 4).error_code == 1
            # What the acceptor has not taken stands in the backlog, which holds 512.
            wait_until(server, lambda: server.quotas.accepted == number * 100 + 1)  # noqa: B023
        wait_until(server, lambda: server.quotas.count == 1)


def test_a_process_without_descriptors_pauses_and_goes_on(served, monkeypatch):
    """S-17: no spin, no end; the connection waits in the backlog."""
    server, _ = served
    acceptor = server._acceptors[0]
    real = acceptor._listener

    class Exhausted:
        left = 3

        def accept(self):
            if self.left:
                self.left -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return real.accept()

        def __getattr__(self, name):
            return getattr(real, name)

    monkeypatch.setattr(acceptor, "_listener", Exhausted())
    started = time.monotonic()
    with WireClient(server.port) as client:
        assert client.ask(heartbeat(1), 4).error_code == 1
    assert acceptor.exhausted == 3
    assert time.monotonic() - started >= 0.3


def test_a_connection_for_which_the_selector_has_no_place_is_closed(served, monkeypatch):
    server, _ = served
    (processor,) = server.processors
    monkeypatch.setattr(processor, "_poller", Full(processor._poller))
    with WireClient(server.port) as client:
        assert client.is_closed()
    wait_until(server, lambda: server.quotas.count == 0)
    with WireClient(server.port) as client:
        assert client.ask(heartbeat(1), 4).error_code == 1


def test_an_occupied_port_is_one_clear_error():
    with running() as (server, _):
        taken = Listener("PLAINTEXT", "127.0.0.1", server.port)
        with pytest.raises(BindError, match=rf"127\.0\.0\.1:{server.port} is in use"):
            SocketServer(SocketServerConfig(), [taken], None, {}).bind()


@pytest.mark.parametrize("host", ["203.0.113.7", "a" * 64])
def test_an_unknown_host_is_one_clear_error(host):
    with pytest.raises(BindError, match=f"cannot listen on {host}:0"):
        SocketServer(SocketServerConfig(), [Listener("PLAINTEXT", host, 0)], None, {}).bind()


def test_sockets_are_told_to_send_at_once_and_to_find_vanished_peers(served):
    server, _ = served
    with WireClient(server.port) as client:
        client.ask(heartbeat(1), 4)
        (channel,) = list(server.processors[0].channels.values())
        assert channel.transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert channel.transport.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert channel.transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


def test_stopping_answers_what_is_in_flight_and_wakes_long_polls():
    handlers = Handlers()
    handlers.list_offsets_gate = threading.Event()
    server = SocketServer(SocketServerConfig(), LOOPBACK, None, handlers.apis())
    server.start()
    with (
        WireClient(server.port) as idle,
        WireClient(server.port) as polling,
        WireClient(server.port) as working,
    ):
        polling.send(fetch(number=3), 12)
        working.send(ListOffsetsRequest(replica_id=9, topics=[]), 5)
        wait_until(server, lambda: handlers.parked and server.request_channel.handed_over == 1)
        stopper = threading.Thread(target=server.shutdown, args=(NEVER_S,))
        stopper.start()
        assert polling.read(FETCH, 12)[1].session_id == 3
        assert polling.is_closed()
        assert idle.is_closed()
        handlers.list_offsets_gate.set()
        assert working.read(LIST_OFFSETS, 5)[1].throttle_time_ms == 9
        assert working.is_closed()
        stopper.join()
        with pytest.raises(OSError):
            WireClient(server.port, timeout=1)


def test_stopping_answers_the_others_when_one_answer_fails(caplog):
    """A disk may fail just then."""

    class Failing(Handlers):
        def fetch(self, ctx, request):
            if request.max_bytes:
                return super().fetch(ctx, request)
            operation = Parked(lambda: 1 / 0)
            ctx.park(operation)
            self.parked.append(operation)
            return None

    handlers = Failing()
    server = SocketServer(SocketServerConfig(), LOOPBACK, None, handlers.apis())
    server.start()
    with WireClient(server.port) as failing, WireClient(server.port) as other:
        failing.send(fetch(number=0), 12)
        wait_until(server, lambda: len(handlers.parked) == 1)
        other.send(fetch(number=3), 12)
        wait_until(server, lambda: len(handlers.parked) == 2)
        server.shutdown(NEVER_S)
        assert other.read(FETCH, 12)[1].session_id == 3
        assert failing.is_closed()
    assert "ZeroDivisionError" in caplog.text


def test_stopping_does_not_wait_long_for_what_only_waits():
    class Joining(Handlers):
        def fetch(self, ctx, request):
            self.parked_one.set()  # like a JoinGroup: answered when others come, if they do

    handlers = Joining()
    server = SocketServer(SocketServerConfig(), LOOPBACK, None, handlers.apis())
    server.start()
    with WireClient(server.port) as client:
        client.send(fetch(), 12)
        assert handlers.parked_one.wait(60)
        started = time.monotonic()
        server.shutdown(NEVER_S)
        assert time.monotonic() - started >= 1.0
        assert client.is_closed()


def test_the_dialled_address_is_known_to_handlers():
    class Asking(Handlers):
        def heartbeat(self, ctx, request):
            seen.append(
                (ctx.local_host, ctx.local_port, ctx.peer_host, ctx.principal, ctx.client_id)
            )
            return HeartbeatResponse(error_code=0)

    seen = []
    with (
        running(Asking(), [Listener("PLAINTEXT", "", 0)]) as (server, _),
        WireClient(server.port) as client,
    ):
        client.ask(heartbeat(1), 4)
    assert seen == [("127.0.0.1", server.port, "127.0.0.1", "User:ANONYMOUS", "test")]


TWO = [Listener("PLAINTEXT", "127.0.0.1", 0), Listener("INTERNAL", "127.0.0.1", 0)]


def test_each_listener_has_its_port_and_connections_know_theirs():
    class Asking(Handlers):
        def heartbeat(self, ctx, request):
            seen.append((ctx.listener_name, ctx.local_port, ctx.connection.connection_id))
            return HeartbeatResponse(error_code=0)

    seen = []
    with running(Asking(), TWO) as (server, _):
        ports = server.ports
        with WireClient(ports["PLAINTEXT"]) as one:
            one.ask(heartbeat(1), 4)  # each listener accepts on its own thread: one after the other
            with WireClient(ports["INTERNAL"]) as other:
                other.ask(heartbeat(1), 4)
    assert server.port == ports["PLAINTEXT"] != ports["INTERNAL"]
    assert sorted(seen) == [
        ("INTERNAL", ports["INTERNAL"], 1),
        ("PLAINTEXT", ports["PLAINTEXT"], 0),
    ]


def test_no_listener_is_kept_when_one_cannot_be_had():
    with running() as (taken, _):
        free = Listener("FREE", "127.0.0.1", 0)
        occupied = Listener("OCCUPIED", "127.0.0.1", taken.port)
        server = SocketServer(SocketServerConfig(), [free, occupied], None, {})
        with pytest.raises(BindError, match="in use"):
            server.bind()
        port = server.ports["FREE"]
    with pytest.raises(ConnectionRefusedError):
        WireClient(port)


def test_clients_cannot_take_the_connections_of_brokers():
    with running(None, TWO, "INTERNAL", max_connections=1) as (server, _):
        ports = server.ports
        with WireClient(ports["PLAINTEXT"]) as first:
            first.ask(heartbeat(1), 4)
            with WireClient(ports["PLAINTEXT"]) as second:
                assert second.is_closed()
            with WireClient(ports["INTERNAL"]) as broker:
                assert broker.ask(heartbeat(2), 4).error_code == 2


def test_a_request_leaves_no_reference_cycle_behind(served):
    """What the collector does not have to look for, it need not run for."""
    server, handlers = served
    with WireClient(server.port) as client:

        def converse():
            client.ask(heartbeat(1), 4)
            client.ask(produce(), 9)
            client.ask(fetch(max_wait_ms=0), 12)
            client.ask(ListOffsetsRequest(replica_id=1, topics=[]), 5)
            handlers.parked_one.clear()
            client.send(fetch(), 12)
            assert handlers.parked_one.wait(60)
            handlers.parked.popleft().force_complete()
            client.read(FETCH, 12)

        converse()
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(20):
                converse()
            gc.collect()
            garbage = [
                o for o in gc.garbage
                if type(o).__module__.startswith(("server.", "wire.")) or callable(o)
            ]  # fmt: skip
        finally:
            gc.set_debug(0)
            gc.enable()
            gc.garbage.clear()
        assert garbage == []


def test_the_platforms_without_epoll_are_served_too(monkeypatch):
    from server.network import poller, processor

    with monkeypatch.context() as patched:
        patched.setattr(processor, "new_poller", poller._SelectorPoller)
        with running() as (server, handlers), WireClient(server.port) as client:
            assert client.ask(heartbeat(1), 4).error_code == 1
            client.send(fetch(number=4), 12)
            assert handlers.parked_one.wait(60)
            client.send(heartbeat(2), 4)
            handlers.parked.popleft().force_complete()
            assert client.read(FETCH, 12)[1].session_id == 4
            assert client.read(HEARTBEAT, 4)[1].error_code == 2
    assert hasattr(select, "epoll")


class Reluctant(PlaintextTransport):
    """As TLS may: it reads only after the socket could be written, and says so."""

    __slots__ = ("recv",)

    def __init__(self, sock):
        super().__init__(sock)
        plain = self.recv

        def recv(count):
            self.wants ^= WRITE
            if self.wants:
                raise BlockingIOError
            return plain(count)

        self.recv = recv


class Reluctantly:
    def new_channel(self, sock, processor, limits, requests, connection_id, peer_host):
        return Channel(
            Reluctant(sock), processor, limits,
            listener_name=LOOPBACK[0].name, connection_id=connection_id, peer_host=peer_host,
        )  # fmt: skip


def test_a_transport_may_want_to_write_before_it_can_read():
    handlers = Handlers()
    server = SocketServer(
        SocketServerConfig(), LOOPBACK, handlers.broker, handlers.apis(),
        security={LOOPBACK[0].name: Reluctantly()},
    )  # fmt: skip
    server.start()
    try:
        with WireClient(server.port) as client:
            for number in range(3):
                assert client.ask(heartbeat(number), 4).error_code == number
    finally:
        server.shutdown(2.0)
