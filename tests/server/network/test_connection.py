"""The protocol state of one connection, without sockets: frames, order, limits, deadlines."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.network.connection import Connection, ConnectionLimits
from wire.frame import READ_BYTES, READ_BYTES_MAX, REQUEST_BYTES_MIN

LIMITS = ConnectionLimits(frame_bytes_max=200_000, idle_ms=10_000, frame_ms=3_000)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def connection(limits: ConnectionLimits = LIMITS) -> Connection:
    return Connection(limits, 0)


@given(
    st.lists(st.binary(min_size=REQUEST_BYTES_MIN, max_size=300), max_size=20),
    st.lists(st.integers(1, 400), max_size=60),
)
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(bodies, cuts):
    stream = b"".join(map(frame, bodies))
    subject = connection()
    pos = 0
    for cut in [*cuts, len(stream)]:
        if stream[pos : pos + cut]:
            subject.receive(stream[pos : pos + cut], 0)
        pos += cut
    assert list(subject.frames) == [frame(body) for body in bodies]
    assert subject.violation is None
    assert subject.frame_started_ms == -1


def test_a_client_that_sends_byte_by_byte_is_understood():
    subject = connection()
    for byte in frame(bytes(range(100))) + frame(b"second one"):
        subject.receive(bytes([byte]), 0)
    assert list(subject.frames) == [frame(bytes(range(100))), frame(b"second one")]


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 1, REQUEST_BYTES_MIN - 1, 200_001, 2**31 - 1])
def test_a_hostile_size_breaks_the_connection_and_holds_no_memory(size):
    subject = connection()
    subject.receive(frame(b"before it.") + struct.pack(">i", size) + b"abcdefgh", 0)
    assert list(subject.frames) == [frame(b"before it.")], "what came before it is served"
    assert subject.violation
    subject.receive(b"x" * 1000, 0)
    assert len(subject.frames) == 1
    assert subject.frame_bytes_arrived == 0


def test_a_frame_of_exactly_the_limit_is_taken():
    subject = connection()
    subject.receive(frame(bytes(200_000)), 0)
    assert len(subject.frames) == 1
    assert subject.violation is None


@pytest.mark.parametrize(
    "hello", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"]
)
def test_http_and_tls_are_not_mistaken_for_frames(hello):
    subject = Connection(ConnectionLimits(), 0)
    subject.receive(hello, 0)
    assert subject.violation


def test_a_large_frame_is_noticed_and_read_no_further_than_its_end():
    subject = connection()
    whole = frame(bytes(150_000))
    assert subject.read_bytes() == READ_BYTES
    subject.receive(whole[:1000], 0)
    assert subject.is_receiving_large
    assert subject.frame_bytes_arrived == 1000, "what was announced counts for nothing"
    assert subject.read_bytes() == len(whole) - 1000
    subject.receive(whole[1000:], 0)
    assert not subject.is_receiving_large
    assert subject.frame_bytes_arrived == 0
    assert subject.frames.popleft() == whole


def test_a_half_sent_frame_is_hurried_while_memory_is_short():
    subject = connection(ConnectionLimits(frame_ms=30_000, hurried_frame_ms=10_000))
    subject.receive(frame(bytes(5_000_000))[:2_000_000], 0)
    subject.charged_bytes, subject.charged_ms = 2_000_000, 0
    subject.mute()  # it waits for memory: that is no excuse, others wait for what it holds
    assert subject.expired(12_000, is_memory_short=True) is None
    assert subject.expired(12_001) is None
    assert "queued.max.request.bytes" in subject.expired(12_001, is_memory_short=True)


def test_a_request_that_arrived_whole_is_not_hurried():
    subject = connection()
    subject.charged_bytes = 100_000
    assert subject.expired(9_000_000, is_memory_short=True) in (None, "idle")


def test_a_large_request_in_flight_is_not_hurried_for_the_beginning_of_the_next():
    subject = connection(ConnectionLimits())
    whole = frame(bytes(200_000))
    subject.receive(whole[:1_000], 0)
    subject.charged_bytes, subject.charged_ms = len(whole), 0
    assert subject.holds_half_sent
    subject.receive(whole[1_000:], 0)
    subject.begin(subject.frames.popleft())
    subject.receive(whole[:1_000], 0)
    subject.mute()
    assert subject.expired(9_000_000, is_memory_short=True) is None
    assert not subject.is_silent(9_000_000)


def test_one_read_never_asks_for_more_than_its_bound_whatever_was_announced():
    subject = Connection(ConnectionLimits(), 0)
    subject.receive(struct.pack(">i", 100_000_000) + b"a", 0)
    assert subject.read_bytes() == READ_BYTES_MAX


def test_only_one_request_is_in_flight_and_answers_keep_its_order():
    subject = connection()
    subject.receive(frame(b"first one ") + frame(b"second one"), 0)
    assert subject.may_start(0)
    first, second = object(), object()
    subject.frames.popleft()
    subject.begin(first)
    assert not subject.may_start(0)
    with pytest.raises(RuntimeError):
        subject.begin(second)
    assert not subject.answer(second, [b"too early"])
    assert subject.answer(first, [b"1"])
    assert not subject.answer(first, [b"twice"])
    assert subject.may_start(0)
    subject.frames.popleft()
    subject.begin(second)
    assert subject.answer(second, [b"2"])
    assert subject.outbox == [b"1", b"2"]


def test_small_answers_that_stand_together_become_one_piece():
    subject = connection()
    slice_of_a_file = object()
    for parts in (
        [bytearray(b"a")],
        [bytearray(b"b")],
        [bytearray(b"c"), slice_of_a_file],
        [bytearray(b"d")],
        [],
        [bytearray(b"e")],
    ):
        subject.begin(parts)
        assert subject.answer(parts, parts)
    assert subject.outbox == [b"ab", b"c", slice_of_a_file, b"de"]


def test_nothing_starts_while_an_answer_is_unsent_or_the_client_is_throttled():
    subject = connection()
    subject.receive(frame(b"0123456789"), 0)
    subject.send_stalled_ms = 5
    assert not subject.may_start(10)
    subject.send_stalled_ms = -1
    subject.throttled_until_ms = 50
    assert not subject.may_start(49)
    assert subject.may_start(50)


def test_an_answer_after_the_end_is_dropped():
    subject = connection()
    request = object()
    subject.begin(request)
    subject.closed = True
    assert not subject.answer(request, [b"late"])
    assert subject.outbox == []


def test_a_started_frame_must_be_completed_in_time():
    subject = connection()
    subject.receive(frame(bytes(100))[:5], 1_000)
    assert subject.expired(4_000) is None
    for now in range(1_500, 4_001, 500):  # slowloris: one byte now and then does not help
        subject.receive(b"x", now)
    assert subject.expired(4_001) == "frame was not completed in time"


def test_a_large_frame_over_a_slow_line_gets_its_time():
    subject = connection(ConnectionLimits(frame_bytes_max=200_000, frame_ms=3_000))
    subject.receive(frame(bytes(200_000))[:160_000], 0)
    assert subject.expired(3_000 + 9_999) is None
    assert subject.expired(3_000 + 10_001) is not None


def test_time_in_which_we_did_not_read_is_not_the_clients_fault():
    subject = connection()
    subject.receive(frame(bytes(100))[:5], 0)
    subject.mute()
    assert subject.expired(9_000) is None
    subject.unmute(9_000)
    assert subject.expired(11_000) is None
    assert subject.expired(12_001) is not None


def test_an_idle_connection_expires_and_a_waiting_one_does_not():
    subject = connection()
    assert subject.expired(10_000) is None
    assert subject.expired(10_001) == "idle"
    subject.begin(object())
    assert subject.expired(100_000) is None


def test_a_connection_that_is_muted_for_long_is_idle_too():
    """Who left meanwhile, or opened a hundred of them, holds them no longer than others (Q-2)."""
    subject = connection()
    subject.throttled_until_ms = 3_600_000
    subject.mute()
    assert subject.expired(10_000) is None
    assert subject.expired(10_001) == "idle"


def test_a_reader_that_stops_is_closed_sooner_if_it_holds_memory():
    limits = ConnectionLimits(idle_ms=600_000, send_stall_ms=60_000, send_stall_bytes=1_000)
    subject = Connection(limits, 0)
    subject.send_stalled_ms = 0
    subject.outbox = [b"x" * 1_001]
    assert subject.expired(60_000) is None
    assert subject.expired(60_001) == "answer was not read in time"
    subject.outbox = [b"x" * 1_000]
    assert subject.expired(60_001) is None
    assert subject.expired(600_001) is not None
