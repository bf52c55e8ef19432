"""The producer that replays records on Spark's executors: with timestamps, partitions and order.

Why not Spark's Kafka sink: up to 4.1 it has no column for the timestamp, so a restored topic
would begin today. Why not a client library: nothing need be installed on executors; this module
travels in the job by value and imports only NumPy and PyArrow. It speaks the three requests that
it needs, in versions that all brokers from 2.1 to 4.3 serve:

    Metadata v4        who leads which partition
    InitProducerId v1  an idempotent producer: a batch sent twice is stored once
    Produce v7         acks=all, one batch per request and connection in flight

A broker that dies is waited for (reconnect, new metadata, the same batch with the same sequence)
until RETRY_FOR_S has passed. Record encoding: see wire.record_body; here without its types,
because a replay encodes millions.

Gaps: PLAINTEXT listeners only; batches are not compressed (the topic's compression.type is applied
by the broker).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from .crc import checksum_function

BATCH_BYTES = 256 * 1024
BATCH_RECORDS = 4000
RETRY_FOR_S = 120.0
_TIMEOUT_S = 40.0
_SMALL = 8192
_RETRIABLE = {3, 5, 6, 7, 13, 14, 15, 16, 19, 20, 51, 56, 74, 75, 76}
_DUPLICATE_SEQUENCE = 46
_NAMES = {
    10: "MESSAGE_TOO_LARGE: raise max.message.bytes of the topic",
    17: "INVALID_TOPIC_EXCEPTION: the topic may not be written",
    29: "TOPIC_AUTHORIZATION_FAILED: this client may not write the topic",
    32: "INVALID_TIMESTAMP: the topic refuses such old or future timestamps"
    " (message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
    87: "INVALID_RECORD: the topic is compacted and a record has no key",
}
STATS_SCHEMA = "records long, bytes long, retries long"


class ProducerError(Exception):
    """The broker refuses the records, or is gone for too long; the text says what to do."""


class Target(NamedTuple):
    """Where and how to replay; travels to each task."""

    bootstrap: str
    partition_counts: dict[str, int]
    """Partitions of each target topic."""
    keep_partitions: bool
    records_per_s: float | None
    """Limit of one task; None is as fast as it goes."""


class Pending(NamedTuple):
    """A batch that was sent and not yet answered."""

    key: tuple[str, int]
    request: bytes
    records: int


def replay_rows(target: Target) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: sends rows (topic, partition, key, value, headers, timestamp_ms) in their
    order, and yields one row of statistics."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        producer = Producer(target)
        try:
            for batch in batches:
                producer.add_rows(batch)
            producer.flush()
        finally:
            producer.close()
        yield pa.RecordBatch.from_pydict(
            {
                "records": pa.array([producer.records], pa.int64()),
                "bytes": pa.array([producer.bytes], pa.int64()),
                "retries": pa.array([producer.retries], pa.int64()),
            }
        )

    return run


class Producer:
    """One idempotent producer; one batch in flight at a time. Raises ProducerError."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._client = Client(target.bootstrap)
        self._encoder = Encoder()
        self._producer = self._client.init_producer()
        self._sequences: dict[tuple[str, int], int] = {}
        self._buffers: dict[tuple[str, int], list[tuple[int, Any, Any, Any]]] = {}
        self._sizes: dict[tuple[str, int], int] = {}
        self._pending: Pending | None = None
        self._started = time.monotonic()
        self.records = self.bytes = self.retries = 0
        rate = target.records_per_s
        self._batch_records = (
            BATCH_RECORDS if rate is None else max(1, min(BATCH_RECORDS, int(rate / 4)))
        )

    def add_rows(self, batch: pa.RecordBatch) -> None:
        """Buffer rows; send what makes a batch."""
        columns = [
            batch.column(name).to_pylist()
            for name in ("topic", "partition", "key", "value", "headers", "timestamp_ms")
        ]
        buffers, sizes, limit = self._buffers, self._sizes, self._batch_records
        for topic, partition, key, value, headers, timestamp in zip(*columns, strict=True):
            if not self._target.keep_partitions:
                partition = self._choose(topic, partition, key)
            where = (topic, partition)
            rows = buffers.get(where)
            if rows is None:
                rows = buffers[where] = []
            size = sizes.get(where, 0) + len(key or b"") + len(value or b"") + 20
            rows.append((timestamp, key, value, headers))
            if size >= BATCH_BYTES or len(rows) >= limit:
                self._send(where)
                size = 0
            sizes[where] = size

    def flush(self) -> None:
        """Send all that is buffered and wait for the last answer."""
        for where in list(self._buffers):
            self._send(where)
        self._settle()

    def close(self) -> None:
        self._client.close()

    def _choose(self, topic: str, partition: int, key: bytes | None) -> int:
        """As Kafka's own producers do for keys; records without one keep to their old
        neighbours."""
        count = self._target.partition_counts[topic]
        return partition % count if key is None else (murmur2(key) & 0x7FFFFFFF) % count

    def _send(self, where: tuple[str, int]) -> None:
        rows = self._buffers.pop(where, [])
        if not rows:
            return
        sequence = self._sequences.get(where, 0)
        records = self._encoder.batch(rows, self._producer, sequence)
        self._sequences[where] = (sequence + len(rows)) & 0x7FFFFFFF
        request = produce_request(where, records)
        self._settle()
        self._pending = Pending(where, request, len(rows))
        try:
            self._client.send(self._client.leader(where), 0, 7, request)
        except OSError:
            self._client.forget()
        self.bytes += len(records)
        self._hold_rate()

    def _settle(self) -> None:
        """Wait for the answer to the batch in flight; send it again as often as it takes."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        deadline = time.monotonic() + RETRY_FOR_S
        is_first = True
        while True:
            try:
                if not is_first:
                    self._client.send(self._client.leader(pending.key), 0, 7, pending.request)
                code = produce_error(self._client.receive(self._client.leader(pending.key)))
            except OSError as error:
                code, reason = 13, str(error)
            else:
                reason = f"error {code}"
            if code in (0, _DUPLICATE_SEQUENCE):
                self.records += pending.records
                return
            topic, partition = pending.key
            if code not in _RETRIABLE:
                raise ProducerError(
                    f"the broker refuses records for {topic}-{partition}: "
                    f"{_NAMES.get(code, f'error code {code}')}"
                )
            if time.monotonic() > deadline:
                raise ProducerError(
                    f"the broker took no records for {topic}-{partition} in"
                    f" {RETRY_FOR_S:.0f} s ({reason}); check that it runs"
                )
            is_first = False
            self.retries += 1
            self._client.forget()
            time.sleep(0.2)

    def _hold_rate(self) -> None:
        rate = self._target.records_per_s
        if rate is not None:
            sent = self.records + (self._pending.records if self._pending else 0)
            time.sleep(max(0.0, self._started + sent / rate - time.monotonic()))


class Encoder:
    """Rows -> record batch v2."""

    def __init__(self) -> None:
        self._crc32c = checksum_function()
        self._small = [_varint_slow(number) for number in range(_SMALL)]

    def batch(
        self, rows: list[tuple[int, Any, Any, Any]], producer: tuple[int, int], sequence: int
    ) -> bytes:
        """One batch of (timestamp_ms, key, value, headers) rows; CreateTime, uncompressed."""
        small, varint = self._small, self._varint
        base = rows[0][0]
        newest = max(row[0] for row in rows)
        out: list[bytes] = []
        for index, (timestamp, key, value, headers) in enumerate(rows):
            record = b"".join(
                (
                    b"\x00",
                    varint(timestamp - base),
                    small[index] if index < _SMALL else varint(index),
                    b"\x01" if key is None else varint(len(key)) + key,
                    b"\x01" if value is None else varint(len(value)) + value,
                    self._headers(headers) if headers else b"\x00",
                )
            )
            out.append(varint(len(record)))
            out.append(record)
        body = b"".join(out)
        last = len(rows) - 1
        tail = struct.pack(">hiqqqhii", 0, last, base, newest, *producer, sequence, last + 1) + body
        return struct.pack(">qiibI", 0, 9 + len(tail), -1, 2, self._crc32c(tail)) + tail

    def _headers(self, headers: list[dict[str, Any]]) -> bytes:
        parts = [self._varint(len(headers))]
        for header in headers:
            name = header["key"].encode()
            value = header["value"]
            parts += (self._varint(len(name)), name)
            parts.append(b"\x01" if value is None else self._varint(len(value)) + value)
        return b"".join(parts)

    def _varint(self, value: int) -> bytes:
        return self._small[value] if 0 <= value < _SMALL else _varint_slow(value)


def _varint_slow(value: int) -> bytes:
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def murmur2(data: bytes) -> int:
    """The hash of Kafka's default partitioner (Java: Utils.murmur2), unsigned."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    state = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        word = word * multiplier & mask
        word = (word ^ (word >> 24)) * multiplier & mask
        state = (state * multiplier & mask) ^ word
    rest = data[whole:]
    if rest:
        state = ((state ^ int.from_bytes(rest, "little")) * multiplier) & mask
    state = (state ^ (state >> 13)) * multiplier & mask
    return state ^ (state >> 15)


# ---- the protocol


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def produce_request(where: tuple[str, int], records: bytes) -> bytes:
    """Produce v7 of one batch: no transaction, acks=all."""
    return b"".join(
        (
            struct.pack(">hhii", -1, -1, 30_000, 1),
            _string(where[0]),
            struct.pack(">iii", 1, where[1], len(records)),
            records,
        )
    )


def produce_error(answer: bytes) -> int:
    """The error code of the only partition of a Produce v7 answer."""
    (size,) = struct.unpack_from(">h", answer, 4)
    _, _, code = struct.unpack_from(">iih", answer, 6 + size)
    return int(code)


class Client:
    """Connections by broker address. OSError means: forget() and try again."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = [_address(one) for one in bootstrap.split(",")]
        self._sockets: dict[tuple[str, int], socket.socket] = {}
        self._leaders: dict[tuple[str, int], tuple[str, int]] = {}
        self._correlation = 0

    def leader(self, where: tuple[str, int]) -> tuple[str, int]:
        """Address of the leader of (topic, partition). Raises OSError while there is none."""
        if where not in self._leaders:
            self._leaders.update(parse_leaders(self._ask_any(3, 4, _metadata_request(where[0]))))
        if where not in self._leaders:
            raise OSError(f"{where[0]}-{where[1]} has no leader")
        return self._leaders[where]

    def init_producer(self) -> tuple[int, int]:
        """A producer id and epoch. Raises ProducerError."""
        deadline = time.monotonic() + RETRY_FOR_S
        while True:
            try:
                answer = self._ask_any(22, 1, struct.pack(">hi", -1, 60_000))
                _, code, producer_id, epoch = struct.unpack_from(">ihqh", answer)
                reason = f"error code {code}"
                if code == 0:
                    return producer_id, epoch
            except OSError as error:
                reason = str(error)
            if time.monotonic() > deadline:
                raise ProducerError(f"the broker gives no producer id ({reason})")
            self.forget()
            time.sleep(0.2)

    def send(self, address: tuple[str, int], key: int, version: int, body: bytes) -> None:
        sock = self._sockets.get(address)
        if sock is None:
            sock = self._sockets[address] = socket.create_connection(address, _TIMEOUT_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation += 1
        head = struct.pack(">hhi", key, version, self._correlation) + _string("barnabas-replay")
        sock.sendall(struct.pack(">i", len(head) + len(body)) + head + body)

    def receive(self, address: tuple[str, int]) -> bytes:
        """The body of the next answer. Raises OSError when the connection is gone."""
        sock = self._sockets.get(address)
        if sock is None:
            raise OSError("the connection was lost")
        (size,) = struct.unpack(">i", _read(sock, 4))
        return _read(sock, size)[4:]

    def forget(self) -> None:
        """Drop connections and what is known of leaders."""
        self.close()
        self._leaders.clear()

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()

    def _ask_any(self, key: int, version: int, body: bytes) -> bytes:
        """Ask the first bootstrap server that answers, on a connection of its own."""
        problem = OSError("no bootstrap server")
        for address in self._bootstrap:
            one = Client("")
            try:
                one.send(address, key, version, body)
                return one.receive(address)
            except OSError as error:
                problem = error
            finally:
                one.close()
        raise problem


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.strip().rpartition(":")
    return host.strip("[]"), int(port or 0)


def _read(sock: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = sock.recv(size)
        if not part:
            raise OSError("the broker closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _metadata_request(topic: str) -> bytes:
    return struct.pack(">i", 1) + _string(topic) + b"\x00"  # no auto-creation


def parse_leaders(answer: bytes) -> dict[tuple[str, int], tuple[str, int]]:
    """Address of each partition's leader from a Metadata v4 answer; leaderless ones left out."""
    reader = _Reader(answer, 4)
    brokers: dict[int, tuple[str, int]] = {}
    for _ in range(reader.int32()):
        node, host, port = reader.int32(), reader.string(), reader.int32()
        reader.string()
        brokers[node] = (host, port)
    reader.string()
    reader.int32()
    leaders: dict[tuple[str, int], tuple[str, int]] = {}
    for _ in range(reader.int32()):
        reader.skip(2)
        topic = reader.string()
        reader.skip(1)
        for _ in range(reader.int32()):
            reader.skip(2)
            index, leader = reader.int32(), reader.int32()
            reader.skip(4 * reader.int32())
            reader.skip(4 * reader.int32())
            if leader in brokers:
                leaders[topic, index] = brokers[leader]
    return leaders


class _Reader:
    """Fixed-width fields and strings, in order."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def int32(self) -> int:
        (value,) = struct.unpack_from(">i", self._data, self._at)
        self._at += 4
        return int(value)

    def string(self) -> str:
        (size,) = struct.unpack_from(">h", self._data, self._at)
        start = self._at + 2
        self._at = start + max(size, 0)
        return self._data[start : self._at].decode()

    def skip(self, count: int) -> None:
        self._at += count
