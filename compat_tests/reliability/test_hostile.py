"""Hostile input: it ends its own connection at most; everybody else is served on.

Each test runs a healthy client beside (`testkit.clients.healthy`) and looks at the broker's memory.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Producer

from testkit.brokers.nodes import rss_bytes
from testkit.clients import raw
from testkit.clients.healthy import HealthyClient
from testkit.clients.kpy_records import batch, refreshed
from testkit.wait import eventually

MIB = 1 << 20
CLOSED_WITHIN_S = 1.0 if not os.environ.get("CI") else 2.0
MAX_REQUEST = 104_857_600


@pytest.fixture
def served_on(fresh_broker: Any, topic_name: str, in_kafka: bool) -> Iterator[Any]:
    """A broker of the test's own with a healthy client; afterwards memory must not have grown."""
    own = fresh_broker()
    with HealthyClient(own.bootstrap_servers, topic_name + "-healthy"):
        before = rss_bytes(own.pid)
        yield own
        grown = rss_bytes(own.pid) - before
    # A JVM grows into the heap it was given; for it this only catches the absurd.
    assert grown < (600 if in_kafka else 64) * MIB, f"grew by {grown / MIB:.0f} MiB"


TLS_HELLO = bytes.fromhex("16030102000100 01fc0303".replace(" ", "")) + bytes(range(200))


@pytest.mark.parametrize(
    "opening",
    [
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", MAX_REQUEST + 1),
        struct.pack(">i", 0),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        TLS_HELLO,
        raw.frame(b"\x00"),
        raw.frame(b"\x00\x12\x00\x00"),
        raw.request(999, 0),
        raw.request(-1, 0),
        raw.request(raw.METADATA, 99),
        raw.request(raw.METADATA, -1),
        raw.request(raw.PRODUCE, 2, b"\x00" * 20),
        raw.request(raw.METADATA, 1, struct.pack(">i", 2**31 - 1)),
        raw.request(raw.METADATA, 1, struct.pack(">ih", 1, 30000)),
        raw.request(raw.FETCH, 4, b"\xff" * 40),
        b"\xff" * 4096,
    ],
    ids=[
        "size -1", "size -2^31", "size 2^31-1", "size max+1", "size 0", "HTTP", "TLS hello",
        "one byte", "half a header", "unknown api key", "negative api key", "unknown version",
        "negative version", "a version long gone", "array too long", "string too long",
        "garbage body", "garbage",
    ],
)  # fmt: skip
def test_a_connection_that_talks_nonsense_is_closed(opening: bytes, bootstrap: str) -> None:
    with raw.connect(bootstrap) as sock:
        sock.sendall(opening)
        assert raw.closed_within(sock, CLOSED_WITHIN_S)
    with raw.connect(bootstrap) as sock:
        sock.sendall(raw.request(raw.API_VERSIONS, 0))
        assert raw.read_frame(sock)[:6] == struct.pack(">ih", 7, 0)


def test_a_version_of_api_versions_from_the_future_gets_version_0_and_error_35(
    bootstrap: str,
) -> None:
    with raw.connect(bootstrap) as sock:
        sock.sendall(raw.request(raw.API_VERSIONS, 99, b"\x00 any body"))
        answer = raw.read_frame(sock)
        correlation, error, count = struct.unpack_from(">ihi", answer)
        assert (correlation, error) == (7, 35)
        entries = [struct.unpack_from(">hhh", answer, 10 + 6 * i) for i in range(count)]
        assert len(answer) == 10 + 6 * count
        (own,) = [entry for entry in entries if entry[0] == raw.API_VERSIONS]
        assert own[1] == 0
        assert own[2] >= 4
        sock.sendall(raw.request(raw.API_VERSIONS, 0, correlation=8))  # and it may try again
        assert raw.read_frame(sock)[:6] == struct.pack(">ih", 8, 0)


def test_claims_without_data_cost_no_memory(served_on: Any, in_kafka: bool) -> None:
    # Apache Kafka allocates what is claimed: with a small heap, one claim is all it can take.
    claims = 1 if in_kafka else 50
    sockets = [raw.connect(served_on.bootstrap_servers) for _ in range(claims)]
    try:
        for sock in sockets:
            sock.sendall(struct.pack(">i", MAX_REQUEST) + b"\x00" * 1000)
        with raw.connect(served_on.bootstrap_servers) as sock:
            sock.sendall(raw.request(raw.API_VERSIONS, 0))
            raw.read_frame(sock)
    finally:
        for sock in sockets:
            sock.close()


def test_truncated_frames_and_sudden_ends(served_on: Any) -> None:
    whole = raw.request(raw.METADATA, 1, raw.metadata_v1())
    for cut in range(len(whole)):
        with raw.connect(served_on.bootstrap_servers) as sock:
            sock.sendall(whole[:cut])
            if cut % 2:  # half of them end with a reset
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_random_mutations_of_valid_frames(served_on: Any, topic_name: str) -> None:
    seed = 20260102
    chance = random.Random(seed)
    good = [
        raw.request(raw.API_VERSIONS, 0),
        raw.request(raw.METADATA, 1, raw.metadata_v1()),
        raw.request(raw.METADATA, 1, raw.metadata_v1(topic_name)),
        raw.request(raw.FETCH, 4, raw.fetch_v4(topic_name)),
        raw.request(raw.PRODUCE, 3, raw.produce_v3(topic_name, batch([b"a", b"b"]))),
    ]
    for _ in range(600):
        data = bytearray(chance.choice(good))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(4, len(data))
            match chance.randrange(4):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    data[at : at + 4] = struct.pack(">i", chance.choice([-1, -2, 2**31 - 1, 10**6]))
                case 2:
                    del data[at : at + chance.randint(1, 8)]
                case _:
                    data[at:at] = chance.randbytes(chance.randint(1, 8))
            if len(data) < 6:
                break
        data[:4] = struct.pack(">i", len(data) - 4)
        with raw.connect(served_on.bootstrap_servers) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            assert raw.closed_within(sock, 20), f"seed {seed}: no end after {bytes(data)!r}"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("nothing", 0),
        ("a byte of a record", 2),
        ("the checksum", 2),
        ("the record count", 87),
        ("the last offset delta", 87),
        ("the control bit", 87),
        ("the codec to one nobody knows", None),
        ("two batches at once", 87),
        ("magic 1", 87),
        ("cut short", 87),
    ],
)
def test_a_wrong_batch_is_refused_and_nothing_of_it_is_kept(
    change: str, error: int | None, bootstrap: str, topic_name: str
) -> None:
    with raw.connect(bootstrap) as sock:
        eventually(lambda: _has_leader(sock, topic_name), what="the topic is created")
        got = raw.produce_error(_produce(sock, topic_name, _changed(change)))
        if error is None:  # Apache Kafka 4.3.1 says UNKNOWN_SERVER_ERROR; better is allowed
            assert got in (-1, 2, 76, 87)
        else:
            assert got == error
        answer = _produce(sock, topic_name, batch([b"good"]))
        assert raw.produce_error(answer) == 0
        assert raw.produce_offset(answer) == (2 if error == 0 else 0)


def _changed(change: str) -> bytes:
    data = bytearray(batch([b"first", b"second"]))
    match change:
        case "a byte of a record":
            data[-3] ^= 0xFF
        case "the checksum":
            data[17] ^= 0xFF
        case "the record count":
            data[57:61] = struct.pack(">i", 3)
            data = refreshed(data)
        case "the last offset delta":
            data[23:27] = struct.pack(">i", 5)
            data = refreshed(data)
        case "the control bit":
            data[22] |= 0x20
            data = refreshed(data)
        case "the codec to one nobody knows":
            data[22] |= 0x07
            data = refreshed(data)
        case "two batches at once":
            data += batch([b"another"])
        case "magic 1":
            data[16] = 1
        case "cut short":
            data = data[:-4]
    return bytes(data)


def _produce(sock: socket.socket, topic: str, records: bytes) -> bytes:
    """The answer of a partition that is ready: right after creation it may still be on its way."""

    def ask() -> bytes:
        sock.sendall(raw.request(raw.PRODUCE, 3, raw.produce_v3(topic, records)))
        answer = raw.read_frame(sock)
        return b"" if raw.produce_error(answer) in (3, 6) else answer

    return eventually(ask, what="the partition takes records")


def _has_leader(sock: socket.socket, topic: str) -> bool:
    sock.sendall(raw.request(raw.METADATA, 1, raw.metadata_v1(topic)))
    return raw.metadata_v1_topic_error(raw.read_frame(sock)) == 0


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_decompression_bomb_is_survived(codec: str, served_on: Any, topic_name: str) -> None:
    bomb = batch([b"\x00" * (400 * MIB)], codec=codec)
    assert len(bomb) < MIB
    with raw.connect(served_on.bootstrap_servers, timeout_s=60) as sock:
        eventually(lambda: _has_leader(sock, topic_name), what="the topic is created")
        sock.sendall(raw.request(raw.PRODUCE, 3, raw.produce_v3(topic_name, bomb)))
        raw.produce_error(raw.read_frame(sock))  # either answer is legal; an answer there is


def test_slow_readers_cost_no_memory(served_on: Any, topic_name: str) -> None:
    producer = Producer({"bootstrap.servers": served_on.bootstrap_servers})
    for _ in range(60):
        producer.produce(topic_name, os.urandom(500_000))
    assert producer.flush(30) == 0
    sockets = []
    try:
        for _ in range(15):
            sock = raw.connect(served_on.bootstrap_servers)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for number in range(5):  # each answer is 30 MB; nobody reads them
                sock.sendall(raw.request(raw.FETCH, 4, raw.fetch_v4(topic_name), number))
            sockets.append(sock)
        with raw.connect(served_on.bootstrap_servers) as sock:
            sock.sendall(raw.request(raw.FETCH, 4, raw.fetch_v4(topic_name)))
            assert len(raw.read_frame(sock)) > 30_000_000
    finally:
        for sock in sockets:
            sock.close()


def test_two_hundred_idle_connections_stay_usable(served_on: Any) -> None:
    sockets = [raw.connect(served_on.bootstrap_servers) for _ in range(200)]
    try:
        for number, sock in enumerate(sockets):
            sock.sendall(raw.request(raw.API_VERSIONS, 0, correlation=number))
        for number, sock in enumerate(sockets):
            assert raw.read_frame(sock)[:6] == struct.pack(">ih", number, 0)
    finally:
        for sock in sockets:
            sock.close()


def test_pipelined_requests_are_answered_in_order(bootstrap: str, topic_name: str) -> None:
    kinds = [
        lambda n: raw.request(raw.API_VERSIONS, 0, correlation=n),
        lambda n: raw.request(raw.METADATA, 1, raw.metadata_v1(topic_name), n),
        lambda n: raw.request(raw.FETCH, 4, raw.fetch_v4(topic_name, max_wait_ms=5), n),
        lambda n: raw.request(raw.PRODUCE, 3, raw.produce_v3(topic_name, batch([b"x"]), -1), n),
    ]
    with raw.connect(bootstrap, timeout_s=30) as sock:
        eventually(lambda: _has_leader(sock, topic_name), what="the topic is created")
        sock.sendall(b"".join(kinds[n % 4](n) for n in range(400)))
        order = [struct.unpack_from(">i", raw.read_frame(sock))[0] for _ in range(400)]
    assert order == list(range(400))


def test_produce_without_acknowledgement_is_not_answered(bootstrap: str, topic_name: str) -> None:
    with raw.connect(bootstrap) as sock:
        eventually(lambda: _has_leader(sock, topic_name), what="the topic is created")
        silent = raw.produce_v3(topic_name, batch([b"x"]), acks=0)
        sock.sendall(raw.request(raw.PRODUCE, 3, silent, correlation=1))
        sock.sendall(raw.request(raw.API_VERSIONS, 0, correlation=2))
        assert struct.unpack_from(">i", raw.read_frame(sock))[0] == 2
        broken = bytearray(batch([b"x"]))
        broken[-1] ^= 0xFF
        sock.sendall(raw.request(raw.PRODUCE, 3, raw.produce_v3(topic_name, bytes(broken), 0), 3))
        # An error cannot be told, so the connection is closed: the client must notice somehow.
        assert raw.closed_within(sock, CLOSED_WITHIN_S * 2)


def test_a_byte_at_a_time_is_understood(bootstrap: str) -> None:
    with raw.connect(bootstrap) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in raw.request(raw.METADATA, 1, raw.metadata_v1()):
            sock.sendall(bytes([byte]))
            time.sleep(0.001)  # so that the bytes leave one by one
        assert raw.read_frame(sock)[:4] == struct.pack(">i", 7)


# ---- groups: all of these share a partition of __consumer_offsets

OFFSET_COMMIT, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT = 8, 10, 11, 12
REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED, UNKNOWN_SERVER_ERROR = 27, 79, -1


def _home(group: str) -> int:
    """Its partition of 50, by Java's hash."""
    value = 0
    for character in group:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return abs(value - 2**32 if value >= 2**31 else value) % 50


def _beside(group: str, filling: str = "") -> str:
    """Another group of that partition."""
    names = (f"{group}-vandal-{number}{filling}" for number in range(10_000))
    return next(name for name in names if _home(name) == _home(group))


def _join(
    group: str, member_id: str = "", *, instance_id: str | None = None, protocols: int = 1
) -> bytes:
    """JoinGroup: version 5 with an instance id, else 3."""
    body = raw.string(group) + struct.pack(">ii", 30_000, 30_000) + raw.string(member_id)
    if instance_id is not None:
        body += raw.string(instance_id) if instance_id else struct.pack(">h", -1)
    body += raw.string("consumer") + struct.pack(">i", protocols)
    body += (raw.string("range") + struct.pack(">i", 0)) * protocols
    return raw.request(JOIN_GROUP, 3 if instance_id is None else 5, body)


def _joined(sock: socket.socket) -> tuple[int, int, str]:
    """(error, generation, member id) of a JoinGroup response of version 2 to 6."""
    data = raw.read_frame(sock)
    error, generation = struct.unpack_from(">hi", data, 8)
    position, told = 14, []
    for _ in range(3):  # protocol, leader, member id
        length = max(struct.unpack_from(">h", data, position)[0], 0)
        told.append(data[position + 2 : position + 2 + length].decode())
        position += 2 + length
    return error, generation, told[2]


def _list_a_protocol_twice(sock: socket.socket, group: str, topic: str) -> None:
    """In Kafka such a group never gets a generation."""
    sock.sendall(_join(_beside(group), protocols=2))
    with suppress(TimeoutError):
        sock.settimeout(5)
        assert _joined(sock)[:2] == (0, 1)


def _come_with_anothers_instance_id(sock: socket.socket, group: str, topic: str) -> None:
    name = _beside(group)
    sock.sendall(_join(name, instance_id=""))
    error, _, member_id = _joined(sock)
    assert error == MEMBER_ID_REQUIRED
    sock.sendall(_join(name, member_id, instance_id="i"))
    assert _joined(sock)[0] == UNKNOWN_SERVER_ERROR


def _commit_under_a_name_of_40_000_characters(sock: socket.socket, group: str, topic: str) -> None:
    name = _beside(group, "!" * 40_000).encode()
    size = len(name) + 1
    length = bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14))
    short = topic.encode()
    body = (
        b"\x00" + length + name + struct.pack(">i", -1) + b"\x01\x00\x02"
        + bytes((len(short) + 1,)) + short + b"\x02" + struct.pack(">iqi", 0, 1, -1) + b"\x01"
        + b"\x00\x00\x00"
    )  # fmt: skip
    sock.sendall(raw.request(OFFSET_COMMIT, 8, body))
    assert raw.closed_within(sock, CLOSED_WITHIN_S)


@pytest.mark.parametrize(
    "harm",
    [
        _list_a_protocol_twice,
        _come_with_anothers_instance_id,
        _commit_under_a_name_of_40_000_characters,
    ],
)
def test_another_groups_parked_join_does_not_notice(
    harm: Callable[[socket.socket, str, str], None], bootstrap: str, topic_name: str
) -> None:
    group = topic_name
    with (
        raw.connect(bootstrap) as first,
        raw.connect(bootstrap) as second,
        raw.connect(bootstrap) as vandal,
    ):
        eventually(lambda: _has_leader(first, topic_name), what="a leader")

        def is_found() -> bool:
            first.sendall(raw.request(FIND_COORDINATOR, 0, raw.string(group)))
            return raw.read_frame(first)[4:6] == b"\x00\x00"

        eventually(is_found, what="a coordinator")
        member_id = ""

        def is_member() -> bool:
            nonlocal member_id
            first.sendall(_join(group))
            error, _, member_id = _joined(first)
            return error == 0

        eventually(is_member, what="a first generation")
        second.sendall(_join(group))

        def is_parked() -> bool:
            """It waits for the first member, which is asked to come again."""
            body = raw.string(group) + struct.pack(">i", 1) + raw.string(member_id)
            first.sendall(raw.request(HEARTBEAT, 0, body))
            return raw.read_frame(first)[4:6] == struct.pack(">h", REBALANCE_IN_PROGRESS)

        eventually(is_parked, what="a rebalance")
        harm(vandal, group, topic_name)
        first.sendall(_join(group, member_id))
        assert _joined(first)[:2] == (0, 2)
        assert _joined(second)[:2] == (0, 2)
