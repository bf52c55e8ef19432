"""Frames out of a byte stream, and the headers of requests and responses."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wire.errors import MalformedFrame
from wire.frame import (
    READ_BYTES_MAX,
    FrameReader,
    RequestHeader,
    decode_response_header,
    encode_request,
    encode_response,
    request_header_version,
    response_header_version,
)
from wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.data import FetchResponse, ProduceRequest, ProduceResponse
from wire.messages.groups import HeartbeatRequest, HeartbeatResponse
from wire.messages.security import SaslHandshakeRequest

LIMIT = 1 << 24


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def some_frames() -> list[bytes]:
    """Frames on both sides of every size at which the reader does something else."""
    rng = random.Random(5)
    sizes = [4, 5, 7, 100, 2_043, 2_044, 2_045, 16_384, 65_531, 65_532, 65_533, 131_072, 400_000, 7]
    return [rng.randbytes(size) for size in sizes]


def cut(reader: FrameReader, data: bytes) -> list[bytes]:
    """The frames that are complete after these bytes, without their size."""
    reader.feed(data)
    frames = [frame[4:] for frame in reader.frames]
    for frame in reader.frames:
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    reader.frames.clear()
    return frames


# --- reading frames -----------------------------------------------------------------------------


def test_many_frames_in_one_read_all_come_out_in_order() -> None:
    frames = [bytes([number]) * 10 for number in range(200)]
    assert cut(FrameReader(LIMIT), framed(*frames)) == frames


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000, 16_384, 65_536, 65_537, 10**9])
def test_frames_come_out_whole_however_the_stream_is_cut(step: int) -> None:
    frames = some_frames()
    if step < 6:
        frames = [frame for frame in frames if len(frame) < 20_000]
    stream = framed(*frames)
    reader = FrameReader(LIMIT)
    out = [f for at in range(0, len(stream), step) for f in cut(reader, stream[at : at + step])]
    assert out == frames
    assert reader.frame_bytes_arrived == 0


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(4, 70_000), max_size=8),
    cuts=st.lists(st.integers(1, 90_000), min_size=1, max_size=30),
)
def test_frames_come_out_whole_for_any_sizes_and_cuts(sizes: list[int], cuts: list[int]) -> None:
    frames = [bytes([number]) * size for number, size in enumerate(sizes)]
    stream = framed(*frames)
    reader = FrameReader(LIMIT)
    out = []
    at = turn = 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        out += cut(reader, stream[at : at + step])
        at += step
        turn += 1
    assert out == frames
    assert reader.frame_bytes_arrived == 0


def test_the_tail_of_a_read_waits_for_the_rest() -> None:
    reader = FrameReader(LIMIT)
    assert cut(reader, framed(b"first", b"second")[:-2]) == [b"first"]
    assert reader.frame_bytes_arrived == 4 + 4
    assert cut(reader, b"nd") == [b"second"]
    assert reader.frame_bytes_arrived == 0


def test_a_frame_that_arrives_alone_is_not_copied() -> None:
    reader = FrameReader(LIMIT)
    data = framed(b"x" * 10)
    reader.feed(data)
    assert reader.frames.popleft() is data


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 3, LIMIT + 1, 2**31 - 1])
def test_a_size_that_cannot_be_is_a_violation_for_good(size: int) -> None:
    reader = FrameReader(LIMIT)
    assert cut(reader, size.to_bytes(4, "big", signed=True)) == []
    assert str(size) in (reader.violation or "")
    assert cut(reader, framed(b"a good one")) == []
    assert reader.frame_bytes_arrived == 0


@pytest.mark.parametrize(
    ("begin", "what"),
    [
        (b"\x16\x03\x01\x02\x00", "TLS"),
        (b"\x15\x03\x03\x00\x02", "TLS"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"POST / HTTP/1.1\r\n", "HTTP"),
        (b"\x15\x04\x03\x00\x02", None),
    ],
)
def test_who_speaks_something_else_is_told_by_how_it_begins(begin: bytes, what: str | None) -> None:
    """A client that encrypts where nobody does asks for a frame of 369,295,616 bytes."""
    reader = FrameReader(100_000_000)
    assert cut(reader, begin) == []
    size = int.from_bytes(begin[:4], "big")
    guess = "" if what is None else f": it begins as {what} does"
    assert reader.violation == f"frame size {size} is not within 4..100000000{guess}"


def test_a_hostile_size_that_arrives_byte_by_byte_is_noticed() -> None:
    reader = FrameReader(LIMIT)
    assert [cut(reader, b"\x7f"), cut(reader, b"\xff"), cut(reader, b"\xff")] == [[], [], []]
    assert reader.violation is None
    assert cut(reader, b"\xff") == []
    assert reader.violation is not None


def test_frames_before_a_hostile_size_are_not_lost() -> None:
    reader = FrameReader(100)
    stream = framed(b"good", b"also good") + b"\xff\xff\xff\xff"
    assert cut(reader, stream) == [b"good", b"also good"]
    assert reader.violation is not None


def test_a_frame_of_exactly_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    assert cut(FrameReader(1000), framed(bytes(1000))) == [bytes(1000)]
    reader = FrameReader(999)
    assert cut(reader, framed(bytes(1000))) == []
    assert reader.violation is not None


def test_a_claimed_size_allocates_nothing_before_its_bytes_arrive() -> None:
    """A thousand connections that claim 100 MiB each and send a little cost only that little."""
    readers = [FrameReader(100 << 20) for _ in range(1000)]
    opening = (100 << 20).to_bytes(4, "big") + b"x" * 6
    tracemalloc.start()
    try:
        for reader in readers:
            reader.feed(opening)
            assert reader.read_bytes() <= READ_BYTES_MAX
        assert tracemalloc.get_traced_memory()[1] < 1000 * 1000
        assert sum(reader.frame_bytes_arrived for reader in readers) == 1000 * 10
    finally:
        tracemalloc.stop()


def test_an_idle_reader_holds_nothing() -> None:
    reader = FrameReader(LIMIT)
    for frame in some_frames():
        cut(reader, framed(frame))
        assert reader.frame_bytes_arrived == 0


# --- request headers ----------------------------------------------------------------------------


def header_bytes(key: int, version: int, client_id: str | None, correlation: int = 7) -> bytes:
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    start = b"".join(
        number.to_bytes(size, "big", signed=True)
        for number, size in [(key, 2), (version, 2), (correlation, 4), (length, 2)]
    )
    return start + name + (b"\0" if request_header_version(key, version) == 2 else b"")


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "größe-€", "x" * 32_000])
@pytest.mark.parametrize(("key", "version"), [(0, 8), (0, 9), (18, 0), (18, 3), (17, 1), (47, 0)])
def test_a_request_header_is_read_up_to_its_body(
    key: int, version: int, client_id: str | None
) -> None:
    data = header_bytes(key, version, client_id)
    header = RequestHeader.decode(data + b"body")
    assert (header.api_key, header.api_version) == (key, version)
    assert (header.correlation_id, header.client_id) == (7, client_id)
    assert header.body_pos == len(data)


def test_headers_as_kafka_writes_them(kafka: dict[str, Any]) -> None:
    """The vectors of RequestHeader: v1 as of Produce v3, v2 as of Produce v9."""
    with gzip.open(Path(__file__).parent / "data" / "vectors.txt.gz", "rt") as file:
        rows = [line.split() for line in file if line.startswith("RequestHeader ")]
    assert len(rows) == 6
    for _, version, filling, text in rows:
        api = {"1": b"\0\0\0\3", "2": b"\0\0\0\x09"}[version]
        data = api + bytes.fromhex(text)[4:]
        header = RequestHeader.decode(data)
        assert header.body_pos == len(data), (version, filling)
        assert (header.client_id is None) == (filling == "null")


def test_tagged_fields_of_a_header_are_skipped() -> None:
    data = header_bytes(0, 9, "c")[:-1] + b"\x02\x00\x03abc\x07\x00" + b"body"
    assert RequestHeader.decode(data).body_pos == len(data) - 4


def test_every_truncated_header_is_malformed() -> None:
    data = header_bytes(0, 9, "client")
    for end in range(len(data)):
        with pytest.raises(MalformedFrame):
            RequestHeader.decode(data[:end])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\0\0\0\x09\0\0\0\1\xff\xfe\0", id="client id of length -2"),
        pytest.param(b"\0\0\0\x09\0\0\0\1\0\2\xff\xfe\0", id="client id not UTF-8"),
        pytest.param(b"\0\0\0\x09\0\0\0\1\xff\xff\x02\x01\0\x01\0", id="tag twice"),
        pytest.param(b"\0\0\0\x09\0\0\0\1\xff\xff\xff\xff\xff\xff\xff", id="endless tag count"),
    ],
)
def test_a_wrong_header_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        RequestHeader.decode(data)


@settings(max_examples=500, deadline=None)
@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_header_or_malformed(data: bytes) -> None:
    for start in (b"", b"\0\0\0\x09", b"\0\x12\0\x03"):
        try:
            header = RequestHeader.decode(start + data)
        except MalformedFrame:
            continue
        assert 10 <= header.body_pos <= len(start + data)


def test_the_header_of_an_unknown_api_or_version_can_still_be_read() -> None:
    """The answer to it (UNSUPPORTED_VERSION) needs its correlation id."""
    assert RequestHeader.decode(header_bytes(9999, 5, "new")).correlation_id == 7
    future = RequestHeader.decode(header_bytes(18, 99, "new"))
    assert (future.api_version, future.client_id) == (99, "new")


# --- responses and requests as frames -----------------------------------------------------------


class InFile:
    """Stands for a storage.FileSlice."""

    def __len__(self) -> int:
        return 70_000


def test_a_response_frame_has_size_correlation_id_and_body() -> None:
    response = ProduceResponse(responses=[], throttle_time_ms=5)
    (old,) = encode_response(response_header_version(0, 8), 8, 0x01020304, response)
    assert bytes(old) == b"\0\0\0\x0c\1\2\3\4" + response.encode_bytes(8)  # type: ignore[arg-type]
    (new,) = encode_response(response_header_version(0, 9), 9, 0x01020304, response)
    assert bytes(new) == b"\0\0\0\x0b\1\2\3\4\0" + response.encode_bytes(9)  # type: ignore[arg-type]


def test_the_size_of_a_response_counts_what_lies_in_files() -> None:
    slice_ = InFile()
    partition = FetchResponse.Topic.Partition(
        partition_index=0, error_code=0, high_watermark=1, aborted_transactions=[], records=slice_
    )
    topic = FetchResponse.Topic(topic="t", partitions=[partition])
    header_version = response_header_version(1, 12)
    parts = encode_response(header_version, 12, 9, FetchResponse(responses=[topic]))
    assert parts[1] is slice_
    size = int.from_bytes(parts[0][:4], "big")  # type: ignore[index]
    assert size == sum(map(len, parts)) - 4


def test_api_versions_is_always_answered_with_the_oldest_header() -> None:
    """KIP-511: a client must be able to read it before it knows what the broker speaks."""
    response = ApiVersionsResponse(error_code=0, api_keys=[])
    for version in range(5):
        (frame,) = encode_response(response_header_version(18, version), version, 3, response)
        body = bytes(frame)[8:]  # type: ignore[arg-type]
        assert ApiVersionsResponse.decode(body, version) == response


@pytest.mark.parametrize("client_id", [None, "peer"])
def test_a_request_we_send_is_one_we_can_read(client_id: str | None) -> None:
    requests = [
        (ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3),
        (HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4),
        (HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 0),
        (SaslHandshakeRequest(mechanism="PLAIN"), 1),
        (ProduceRequest(acks=-1, timeout_ms=100, topic_data=[]), 9),
    ]
    for request, version in requests:
        stream = b"".join(encode_request(version, 12, client_id, request))  # type: ignore[arg-type]
        (frame,) = cut(FrameReader(LIMIT), stream)
        header = RequestHeader.decode(frame)
        assert (header.api_key, header.api_version) == (request.api_key, version)
        assert (header.correlation_id, header.client_id) == (12, client_id)
        decoded = type(request).decode(frame, version, header.body_pos)
        assert decoded == request


def test_a_response_we_send_is_one_our_peers_can_read() -> None:
    response = HeartbeatResponse(error_code=27, throttle_time_ms=0)
    for version in range(5):
        (part,) = encode_response(response_header_version(12, version), version, 77, response)
        (frame,) = cut(FrameReader(LIMIT), bytes(part))  # type: ignore[arg-type]
        correlation_id, pos = decode_response_header(12, version, frame)
        assert correlation_id == 77
        assert HeartbeatResponse.decode(frame, version, pos) == response


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\x01\x05"])
def test_a_truncated_response_header_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_response_header(12, 4, frame)
