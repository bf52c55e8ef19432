"""Requests made beforehand, over bare sockets: a client whose own cost is next to nothing.

A client library decides by itself how much goes into a request, and much of what it costs is its
own. Here the frames are made before the clock starts, by the codec of this project; what is left of
a client is a send and its share of a receive. Every answer of one loop must be as long as its first
one: a refusal would differ in length or is found when the caller looks at the log's end.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from array import array
from collections.abc import Sequence
from typing import Any, Protocol

from testkit.clients.raw import read_exactly, read_frame
from wire.crc import crc32c
from wire.frame import decode_response_header, encode_request
from wire.messages.data import ProduceRequest
from wire.records import Record, build_batch
from wire.schema import RESPONSES, Request

TIMEOUT_S = 60.0
PRODUCE_VERSION = 10
_SEED_BYTE = 13
_RECEIVE_BYTES = 1 << 16
_ERROR_CODE = re.compile(r"error_code=(-?\d+)")
_BATCH_HEAD, _RECORD_HEAD = 61, 12
_CRC, _TIMES, _CHECKED = slice(17, 21), slice(27, 43), slice(21, None)

Socket = socket.socket


class Frames(Protocol):
    """A list of frames, or what makes them when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> bytes: ...


def connect(bootstrap: str) -> Socket:
    """A connection to `host:port`, without Nagle's delay."""
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def frame(request: Request, version: int) -> bytes:
    """The request as it goes over the wire, correlation id 1."""
    parts: Sequence[Any] = encode_request(version, 1, "bench", request)  # none is in a file
    return b"".join(parts)


def batch_of(size: int, batch_bytes: int, timestamp_ms: int) -> tuple[bytes, int]:
    """A batch of records of `size` bytes that fills `batch_bytes`, and how many it holds (one at
    least). The same arguments give the same bytes.
    """
    count = max(1, (batch_bytes - _BATCH_HEAD) // (size + _RECORD_HEAD))
    pattern = bytes((n * n * 31 + n * 7 + _SEED_BYTE) & 0xFF for n in range(251))
    value = (pattern * (size // len(pattern) + 1))[:size]
    return bytes(build_batch([Record(-1, timestamp_ms, None, value)] * count)), count


def at_time(batch: bytes, timestamp_ms: int) -> bytes:
    """The batch with all its records at another time."""
    moved = bytearray(batch)
    moved[_TIMES] = timestamp_ms.to_bytes(8, "big") * 2
    moved[_CRC] = crc32c(moved[_CHECKED]).to_bytes(4, "big")
    return bytes(moved)


def produce_frame(topic: str, partition: int, batch: bytes, acks: int = 1) -> bytes:
    """Produce of one batch."""
    data = ProduceRequest.Topic.Partition(index=partition, records=memoryview(batch))
    asked = ProduceRequest.Topic(name=topic, partition_data=[data])
    request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[asked])
    return frame(request, PRODUCE_VERSION)


def ask(sock: Socket, request: Request, version: int) -> object:
    """One request and its decoded answer."""
    sock.sendall(frame(request, version))
    answer = read_frame(sock)
    _, position = decode_response_header(request.api_key, version, answer)
    return RESPONSES[request.api_key].decode(answer, version, position)


def check_accepted(sock: Socket, asked: Sequence[bytes], at_most: int = 20) -> None:
    """Send some of the frames once more and raise ValueError if an answer has an error in it: a
    refusal is often as long as a success, and quicker.
    """
    for request in asked[:: max(1, len(asked) // at_most)]:
        sock.sendall(request)
        key, version = struct.unpack_from(">hh", request, 4)
        answer = read_frame(sock)
        _, position = decode_response_header(key, version, answer)
        told = repr(RESPONSES[key].decode(answer, version, position))
        if any(int(code) for code in _ERROR_CODE.findall(told)):
            raise ValueError(f"refused: {told}")


def pipelined(sock: Socket, frames: Frames, count: int, window: int) -> float:
    """Send `count` of the frames in turn, at most `window` unanswered; seconds of all but the first
    one, which is answered before the clock starts.
    """
    sock.sendall(frames[0])
    answer_bytes = 4 + len(read_frame(sock))
    began = time.perf_counter()
    sent = done = 1
    received = 0
    while done < count:
        for number in range(sent, min(done + window, count)):
            sock.sendall(frames[number % len(frames)])
            sent = number + 1
        data = len(sock.recv(_RECEIVE_BYTES))
        if not data:
            raise EOFError(f"closed after {done} of {count} answers")
        received += data
        done = 1 + received // answer_bytes
    if received != (count - 1) * answer_bytes:
        raise ValueError(f"answers of unlike length: {received} bytes, {count - 1} answers")
    return time.perf_counter() - began


def one_by_one(socks: Sequence[Socket], frames: Frames, count: int) -> list[float]:
    """Send `count` of the frames, over the connections in turn, each when the one before it has its
    answer; how many seconds each took.
    """
    times = array("d")
    clock = time.perf_counter
    for number in range(count):
        sock = socks[number % len(socks)]
        began = clock()
        sock.sendall(frames[number % len(frames)])
        answer = sock.recv(_RECEIVE_BYTES)
        missing = 4 + int.from_bytes(answer[:4], "big") - len(answer)
        if missing > 0 or not answer:
            read_exactly(sock, max(missing, 1))
        times.append(clock() - began)
    return list(times)
