"""Bare sockets and hand-made frames: for what no well-behaved client would send.

Only what the hostile tests need, written from the protocol's description, so that these tests share
no encoder with the broker.
"""

from __future__ import annotations

import socket
import struct

API_VERSIONS, METADATA, PRODUCE, FETCH = 18, 3, 0, 1


def connect(bootstrap: str, timeout_s: float = 10.0) -> socket.socket:
    host, port = bootstrap.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=timeout_s)


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def header(key: int, version: int, correlation: int = 7, client: str = "raw") -> bytes:
    """Request header v1 (key, version, correlation id, nullable client id)."""
    name = client.encode()
    return struct.pack(">hhih", key, version, correlation, len(name)) + name


def request(key: int, version: int, body: bytes = b"", correlation: int = 7) -> bytes:
    """A whole frame with header v1 (non-flexible versions)."""
    return frame(header(key, version, correlation) + body)


def read_frame(sock: socket.socket) -> bytes:
    """One response without its size. Raises EOFError when the peer closed, TimeoutError if late."""
    return read_exactly(sock, struct.unpack(">i", read_exactly(sock, 4))[0])


def read_exactly(sock: socket.socket, count: int) -> bytes:
    """The next `count` bytes. Raises as `read_frame`."""
    data = bytearray()
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise EOFError(f"closed after {len(data)} of {count} bytes")
        data += more
    return bytes(data)


def closed_within(sock: socket.socket, seconds: float) -> bool:
    """Whether the peer closes (or resets) in time; what it sends before is read and dropped."""
    sock.settimeout(seconds)
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def metadata_v1(topic: str | None = None) -> bytes:
    """Body of Metadata v1: all topics (null array) or one."""
    if topic is None:
        return struct.pack(">i", -1)
    return struct.pack(">i", 1) + string(topic)


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def fetch_v4(topic: str, partition: int = 0, offset: int = 0, max_wait_ms: int = 0) -> bytes:
    """Body of Fetch v4: one partition, up to 50 MiB."""
    limit = 50 << 20
    return (
        struct.pack(">iiiib", -1, max_wait_ms, 1, limit, 0)
        + struct.pack(">i", 1) + string(topic)
        + struct.pack(">iiqi", 1, partition, offset, limit)
    )  # fmt: skip


def produce_v3(topic: str, records: bytes, acks: int = 1, partition: int = 0) -> bytes:
    """Body of Produce v3: one partition with the given record bytes."""
    return (
        struct.pack(">hhi", -1, acks, 10_000)
        + struct.pack(">i", 1) + string(topic)
        + struct.pack(">iii", 1, partition, len(records)) + records
    )  # fmt: skip


def produce_error(response: bytes) -> int:
    """The partition's error code in a Produce v3 response of one topic and one partition."""
    at = 4 + 4  # correlation id, topics
    (length,) = struct.unpack_from(">h", response, at)
    at += 2 + length + 4 + 4  # name, partitions, partition index
    return int(struct.unpack_from(">h", response, at)[0])


def produce_offset(response: bytes) -> int:
    """The base offset in the same response."""
    at = 4 + 4
    (length,) = struct.unpack_from(">h", response, at)
    return int(struct.unpack_from(">q", response, at + 2 + length + 4 + 4 + 2)[0])


def metadata_v1_topic_error(response: bytes) -> int:
    """Topic or first partition error in a Metadata v1 response about one topic."""
    at = 4
    (brokers,) = struct.unpack_from(">i", response, at)
    at += 4
    for _ in range(brokers):
        at += 4
        at += 2 + struct.unpack_from(">h", response, at)[0] + 4
        at += 2 + max(struct.unpack_from(">h", response, at)[0], 0)
    at += 4 + 4  # controller id, topics
    (error,) = struct.unpack_from(">h", response, at)
    at += 2
    at += 2 + struct.unpack_from(">h", response, at)[0] + 1
    (partitions,) = struct.unpack_from(">i", response, at)
    if error == 0 and partitions:
        (error,) = struct.unpack_from(">h", response, at + 4)
    return int(error)
