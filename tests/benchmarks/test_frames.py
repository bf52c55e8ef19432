"""Fixed batches are the same bytes each time, whole, and what is counted is what was answered."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from pathlib import Path

import pytest

from benchmarks import limits
from benchmarks.loads import frames
from benchmarks.measure import log_digest, mean_batch_bytes
from wire.messages.groups import HeartbeatRequest
from wire.record_batch import check_crc, read_header
from wire.records import read_records


@pytest.mark.parametrize(("size", "batch_bytes", "count"), [(100, 16_384, 145), (1000, 10, 1)])
def test_a_batch_is_as_large_as_asked_and_always_the_same(
    size: int, batch_bytes: int, count: int
) -> None:
    batch, held = frames.batch_of(size, batch_bytes, 1_700_000_000_000)
    assert held == count
    assert [len(record.value or b"") for record in read_records(batch)] == [size] * count
    assert batch == frames.batch_of(size, batch_bytes, 1_700_000_000_000)[0]
    assert count == 1 or batch_bytes * 0.9 < len(batch) <= batch_bytes


def test_a_batch_moved_in_time_is_whole() -> None:
    batch = frames.at_time(frames.batch_of(100, 1000, 1)[0], 1_700_000_000_000)
    header = read_header(batch)
    assert check_crc(batch, 0, header)
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000,) * 2


def _answer(server: socket.socket, answers: list[bytes]) -> None:
    """As many answers as frames come, whatever they say."""
    sock, _ = server.accept()
    with sock:
        for answer in answers:
            size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
            sock.recv(size, socket.MSG_WAITALL)
            sock.sendall(answer)


@pytest.mark.parametrize("window", [1, 5, 100])
def test_every_frame_is_answered_once(window: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answers = threading.Thread(target=_answer, args=(server, [b"\0\0\0\4good"] * 50))
        answers.start()
        with frames.connect(f"127.0.0.1:{server.getsockname()[1]}") as sock:
            assert frames.pipelined(sock, [b"\0\0\0\1a", b"\0\0\0\2bb"], 50, window) > 0
        answers.join(30)


def test_an_answer_of_another_length_is_not_taken_for_success() -> None:
    replies = [b"\0\0\0\4good", b"\0\0\0\4good", b"\0\0\0\7refused"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        answers = threading.Thread(target=_answer, args=(server, replies))
        answers.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with frames.connect(address) as sock, pytest.raises(ValueError, match="unlike length"):
            frames.pipelined(sock, [b"\0\0\0\1a"], 3, 1)
        answers.join(30)


@pytest.mark.parametrize("error", [0, 25])
def test_a_refusal_as_long_as_a_success_is_seen(error: int) -> None:
    asked = frames.frame(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 3)
    reply = struct.pack(">iiih", 10, 1, 0, error)
    with socket.create_server(("127.0.0.1", 0)) as server:
        answers = threading.Thread(target=_answer, args=(server, [reply]))
        answers.start()
        with frames.connect(f"127.0.0.1:{server.getsockname()[1]}") as sock:
            refused = pytest.raises(ValueError, match="error_code=25")
            with refused if error else contextlib.nullcontext():
                frames.check_accepted(sock, [asked])
        answers.join(30)


def test_the_size_of_batches_and_the_digest_are_those_of_the_segments(tmp_path: Path) -> None:
    small, large = (frames.batch_of(100, size, 1)[0] for size in (500, 5000))
    for node, other in (("a", b""), ("b", b""), ("c", small)):
        for partition, log in (("t-0", small + large), ("t-1", b""), ("t-x-0", large)):
            path = tmp_path / node / partition / "00000000000000000000.log"
            path.parent.mkdir(parents=True)
            path.write_bytes(log + other)
    assert mean_batch_bytes(tmp_path / "a", "t") == (len(small) + len(large)) / 2
    assert log_digest(tmp_path / "a", "t") == log_digest(tmp_path / "b", "t")
    assert log_digest(tmp_path / "a", "t") != log_digest(tmp_path / "c", "t")


def test_the_least_program_in_c_writes_what_it_received(tmp_path: Path) -> None:
    written = tmp_path / "log"
    request = frames.produce_frame("t", 0, frames.batch_of(100, 1000, 1)[0])
    program = limits.running("c", "write", "56", str(written))
    with program as (address, _), frames.connect(address) as sock:
        frames.pipelined(sock, [request], 20, 5)
    assert written.read_bytes() == request[48:] * 20


@pytest.mark.parametrize("arguments", [("c", "answer", "56"), ("python", "56")])
def test_the_least_programs_answer_frames_one_by_one_and_many_at_once(
    arguments: tuple[str, ...],
) -> None:
    with limits.running(*arguments) as (address, _), frames.connect(address) as sock:
        assert len(frames.one_by_one([sock], [b"\0\0\0\1a", b"\0\0\0\2bb"], 10)) == 10
        assert frames.pipelined(sock, [b"\0\0\0\1a"], 500, 100) > 0
