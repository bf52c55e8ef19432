"""Cost of the request path: `python -m benchmarks.micro.requests [NAME...]`.

    path      µs of Python per request, no sockets: header, dispatch, decode, handler, encode; the
              replica manager is a stub that answers at once, so this is the server layer's own part
    inline    a small request over one loopback socket, run on the processor's thread or handed to a
              handler thread, with one, two and three processors and eight connections
    slices    one answer of N bytes of records: read and gathered, or sendfile
    buffers   1 MB requests with the operating system's socket buffers or Kafka's 102,400 bytes

Client and server are in one process here, so compare the lines of one table, nothing else.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from replication.partition.requests import AppendResult, FetchResult
from server.network import transport
from server.network.api import Api, Cost
from server.network.listeners import Listener
from server.network.socket_server import SocketServer, SocketServerConfig, keep_freed_memory
from testkit.clock import WALL_MS
from tests.server.handler_support import Asked, FakeBroker, image_of, topic_image
from tests.server.wire_client import request_bytes
from wire.messages.data import FetchRequest, ProduceRequest
from wire.messages.groups import HeartbeatRequest, HeartbeatResponse
from wire.records import Record, build_batch

_ROUNDS = 7
LOOPBACK = [Listener("PLAINTEXT", "127.0.0.1", 0)]
_HEARTBEAT = request_bytes(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4, 1)


def _best_us(run: Callable[[], object], count: int) -> float:
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.thread_time()
        for _ in range(count):
            run()
        best = min(best, (time.thread_time() - start) / count)
    return best * 1e6


def _produce(size: int, key: str = "t") -> bytes:
    batch = bytes(build_batch([Record(-1, WALL_MS, None, bytes(size))]))
    partition = ProduceRequest.Topic.Partition(index=0, records=memoryview(batch))
    topic = ProduceRequest.Topic(name=key, partition_data=[partition])
    return request_bytes(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9, 1)


def answering(authorizer: Any = None) -> Asked:
    """A broker whose replicas answer at once, and whose answers go nowhere."""
    asked = Asked(FakeBroker(image_of(topic_image("t"))), authorizer)
    appended = [AppendResult(("t", 0), base_offset=1)]
    fetched = [FetchResult(0, high_watermark=9, records=b"records")]  # type: ignore[arg-type]
    rm = asked.broker.replica_manager
    rm.append_records = lambda request: request.on_done(appended)  # type: ignore[method-assign]
    rm.fetch = lambda *a, **k: a[6](fetched)  # type: ignore[method-assign]
    asked.processor.complete = _take  # type: ignore[method-assign]
    heartbeat = asked.requests._apis[12]
    heartbeat.load()
    heartbeat.handle = heartbeat.prepared(lambda ctx, request: HeartbeatResponse(error_code=0))
    return asked


def frames() -> dict[str, bytes]:
    """Small requests, by what they are."""
    partition = FetchRequest.Topic.Partition(partition=0, fetch_offset=5, partition_max_bytes=1000)
    fetch = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        isolation_level=0,
        topics=[FetchRequest.Topic(topic="t", partitions=[partition])],
    )
    return {
        "heartbeat": _HEARTBEAT,
        "produce, one partition": _produce(100),
        "fetch, one partition": request_bytes(fetch, 12, 1),
    }


def path() -> None:
    asked = answering()
    channel: Any = asked.channel
    for name, frame in frames().items():
        taken = _best_us(partial(asked.requests.receive, channel, frame), 5_000)
        print(f"path     {name:32} {taken:7.2f} µs")


def _take(connection: Any, request: Any, parts: Any) -> None:
    connection.in_flight = None


def _serving(inline: bool, **config: Any) -> SocketServer:
    cost = Cost.SMALL if inline else Cost.BLOCKS
    api = Api(12, "Heartbeat", "server.handlers.groups", (0, 4), cost=cost)
    api.load()
    api.handle = lambda ctx, request: HeartbeatResponse(error_code=0)
    produce = Api(0, "Produce", "server.handlers.produce", (3, 13), cost=cost)
    produce.load()
    produce.handle = lambda ctx, request: ctx.no_response()
    server = SocketServer(SocketServerConfig(**config), LOOPBACK, None, {12: api, 0: produce})
    server.start()
    return server


def _converse(port: int, count: int, taken: list[float]) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            start = time.perf_counter()
            sock.sendall(_HEARTBEAT)
            sock.recv(4096)
            taken.append(time.perf_counter() - start)


def inline() -> None:
    variants = (
        ("inline, 1 processor", True, 1),
        ("handed over, 1 processor", False, 1),
        ("inline, 2 processors", True, 2),
        ("inline, 3 processors", True, 3),
    )
    for connections in (1, 8):
        best: dict[str, tuple[float, float, float]] = {}
        for _ in range(5):  # in turn, so that all of them meet the same weather
            for title, is_inline, processors in variants:
                server = _serving(is_inline, num_network_threads=processors)
                found = _rate(server.port, connections, 4_000)
                server.shutdown()
                best[title] = max(best.get(title, found), found)
        for title, (rate, p50, p99) in best.items():
            print(
                f"inline   {title:26} {connections} connections {rate:9,.0f} /s"
                f"  p50 {p50:6.0f} µs  p99 {p99:6.0f} µs"
            )


def _rate(port: int, connections: int, count: int) -> tuple[float, float, float]:
    """(requests per second, p50, p99 in µs) of `count` requests over all connections."""
    taken: list[float] = []
    threads = [
        threading.Thread(target=_converse, args=(port, count // connections, taken))
        for _ in range(connections)
    ]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = len(taken) / (time.perf_counter() - start)
    taken.sort()
    return rate, taken[len(taken) // 2] * 1e6, taken[len(taken) * 99 // 100] * 1e6


def slices() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    sock, _ = listener.accept()
    with tempfile.TemporaryFile() as file, listener, client, sock:
        file.write(bytes(1 << 20))
        file.flush()
        room = memoryview(bytearray(1 << 20))
        header, tail = bytearray(100), bytearray(3)
        for size in (100, 4_096, 16_384, 32_768, 65_536, 262_144):

            def drain(size: int = size) -> None:
                left = size + 103
                while left:
                    left -= client.recv_into(room[:left])

            def gathered(size: int = size) -> None:
                sock.sendmsg([header, os.pread(file.fileno(), size, 0), tail])

            def sendfile(size: int = size) -> None:
                sock.send(header, transport._MSG_MORE)
                sent = 0
                while sent < size:
                    sent += os.sendfile(sock.fileno(), file.fileno(), sent, size - sent)
                sock.send(tail)

            row = []
            for send in (gathered, sendfile):
                times = []
                for _ in range(600):
                    start = time.thread_time()
                    send()
                    times.append(time.thread_time() - start)
                    drain()
                row.append(statistics.median(times) * 1e6)
            print(f"slices   {size:8,} bytes   read {row[0]:6.1f} µs   sendfile {row[1]:6.1f} µs")


def buffers() -> None:
    frame = _produce(1_000_000)
    variants = (("operating system's", -1), ("Kafka's 102,400", 102_400))
    best: dict[str, tuple[float, float]] = {}
    for _ in range(5):
        for title, size in variants:
            server = _serving(True, socket_send_buffer_bytes=size, socket_receive_buffer_bytes=size)
            processor = server.processors[0]
            clock = time.pthread_getcpuclockid(processor._thread.ident or 0)
            with socket.create_connection(("127.0.0.1", server.port)) as sock:
                start, start_cpu = time.perf_counter(), time.clock_gettime(clock)
                for _ in range(400):
                    sock.sendall(frame)
                while processor.requests < 400:
                    time.sleep(0.001)
                taken = time.perf_counter() - start
                cpu = time.clock_gettime(clock) - start_cpu
            server.shutdown()
            found = (cpu / 400 * 1e6, 400 * len(frame) / taken / 1e6)
            best[title] = min(best.get(title, found), found)
    for title, (cpu_us, rate) in best.items():
        print(f"buffers  {title:20} {rate:8,.0f} MB/s received, {cpu_us:6.0f} µs CPU per MB")


if __name__ == "__main__":
    keep_freed_memory()
    chosen = sys.argv[1:] or ["path", "inline", "slices", "buffers"]
    for chosen_name in chosen:
        globals()[chosen_name]()
