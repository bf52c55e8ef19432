"""What one node says about the cluster: asked with hand-made frames, so that it is this node.

A client asks any broker it likes, and remembers; after a fault the question is what each node
itself believes. Metadata v1 and DescribeQuorum v0, which both brokers serve.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from testkit.clients import raw
from testkit.clients.secured import Connect

_DESCRIBE_QUORUM = 55
_METADATA_LOG = b"__cluster_metadata"


class PartitionView(NamedTuple):
    """One partition in a node's metadata. `leader` is -1 when there is none."""

    partition: int
    error: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class ClusterView(NamedTuple):
    """Brokers by id, and topics with their partitions in order. An unknown topic has none."""

    brokers: dict[int, str]
    topics: dict[str, list[PartitionView]]


class QuorumView(NamedTuple):
    """The metadata quorum as its leader describes it. `voters` by id: their log end offsets."""

    leader: int
    epoch: int
    high_watermark: int
    voters: dict[int, int]
    observers: dict[int, int]


def cluster(
    address: str,
    topic: str | None = None,
    timeout_s: float = 5.0,
    *,
    connect: Connect = raw.connect,
) -> ClusterView:
    """This node's metadata of all topics, or of one. OSError or EOFError when it is silent."""
    with connect(address, timeout_s) as sock:
        sock.sendall(raw.request(raw.METADATA, 1, raw.metadata_v1(topic)))
        answer = _Cursor(raw.read_frame(sock))
    answer.int32()  # correlation id
    brokers = {}
    for _ in range(answer.int32()):
        node, host, port = answer.int32(), answer.string(), answer.int32()
        answer.string()  # rack
        brokers[node] = f"{host}:{port}"
    answer.int32()  # controller id: in KRaft any broker
    topics = {}
    for _ in range(answer.int32()):
        answer.int16()
        name = answer.string()
        answer.int8()
        partitions = [
            PartitionView(
                error=answer.int16(), partition=answer.int32(), leader=answer.int32(),
                replicas=answer.int32s(), isr=answer.int32s(),
            )
            for _ in range(answer.int32())
        ]  # fmt: skip
        topics[name] = sorted(partitions)
    return ClusterView(brokers, topics)


def quorum(address: str, timeout_s: float = 5.0, *, connect: Connect = raw.connect) -> QuorumView:
    """The quorum as the node's controller channel finds it; ValueError when there is no leader."""
    name = bytes([len(_METADATA_LOG) + 1]) + _METADATA_LOG
    body = b"\2" + name + b"\2" + struct.pack(">i", 0) + b"\0" + b"\0" + b"\0"
    header = raw.header(_DESCRIBE_QUORUM, 0) + b"\0"  # request header v2: no tagged fields
    with connect(address, timeout_s) as sock:
        sock.sendall(raw.frame(header + body))
        answer = _Cursor(raw.read_frame(sock))
    answer.int32(), answer.int8()  # correlation id, no tagged fields
    if error := answer.int16():
        raise ValueError(f"DescribeQuorum: error {error}")
    answer.varint(), answer.take(answer.varint() - 1), answer.varint()
    answer.int32()
    if error := answer.int16():
        raise ValueError(f"DescribeQuorum: error {error}")
    leader, epoch, high_watermark = answer.int32(), answer.int32(), answer.int64()
    return QuorumView(leader, epoch, high_watermark, _replicas(answer), _replicas(answer))


def _replicas(answer: _Cursor) -> dict[int, int]:
    found = {}
    for _ in range(answer.varint() - 1):
        node = answer.int32()
        found[node] = answer.int64()
        answer.int8()  # no tagged fields
    return found


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if len(piece) < count:
            raise ValueError("the answer is too short")
        self._at += count
        return piece

    def _int(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big", signed=True)

    def int8(self) -> int:
        return self._int(1)

    def int16(self) -> int:
        return self._int(2)

    def int32(self) -> int:
        return self._int(4)

    def int64(self) -> int:
        return self._int(8)

    def int32s(self) -> tuple[int, ...]:
        return tuple(self.int32() for _ in range(self.int32()))

    def string(self) -> str:
        return self.take(max(self.int16(), 0)).decode()

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
