"""What the least program reaches with the work of a row; see `benchmarks.limits`.

The figures have the names of the row's own, so that one is a share of the other.
"""

from __future__ import annotations

import math
import struct
import time
from pathlib import Path

from benchmarks import limits
from benchmarks.loads import frames
from benchmarks.loads.base import Figures, LoadFailed, Place, commands, percentiles
from benchmarks.measure import usage

_ANSWER_BYTES = 56
"""An answer to Produce of one partition."""
_PART = 4 << 20
_ASK = struct.Struct(">iqi")


def receive(place: Place, size: int, count: int, batch_bytes: int, window: int = 5) -> Figures:
    """Receive batches, take their crc32c, write them, answer: the limit of producing."""
    batch, held = frames.batch_of(size, batch_bytes, 1)
    request = frames.produce_frame(place.topic, 0, batch)
    sent = max(2, math.ceil(count / held))
    file = str(Path(place.scratch, "log"))
    commands.append(f"limits/server.c write: {sent} frames of {len(request)} B, {window} in flight")
    with limits.running("c", "write", str(_ANSWER_BYTES), file) as (address, pid):
        before = usage(pid).cpu_s
        with frames.connect(address) as sock:
            seconds = frames.pipelined(sock, [request], sent, window)
        cpu_s = usage(pid).cpu_s - before
    done = (sent - 1) * held
    return {
        "seconds": seconds,
        "records_s": done / seconds,
        "mb_s": done * size / seconds / 1e6,
        "requests_s": (sent - 1) / seconds,
        "cpu_s": cpu_s,
    }


def answer(place: Place, size: int, count: int, program: str, window: int = 1000) -> Figures:
    """Requests of one record that are answered and no more: the limit of small requests. One at a
    time (`window` 1) it is that of ping-pong, where the answer is the record on its way out.
    """
    batch, _ = frames.batch_of(size, 0, 1)
    request = frames.produce_frame(place.topic, 0, batch)
    commands.append(f"limits, {program}: {count} frames of {len(request)} B, {window} in flight")
    with limits.running(program, *_answering(program)) as (address, pid):
        before = usage(pid).cpu_s
        with frames.connect(address) as sock:
            if window == 1:
                figures = percentiles(frames.one_by_one([sock], [request], count), "us", 1e6)
            else:
                seconds = frames.pipelined(sock, [request], count, window)
                figures = {"seconds": seconds, "requests_s": (count - 1) / seconds}
        figures["cpu_s"] = usage(pid).cpu_s - before
    return figures


def _answering(program: str) -> list[str]:
    return [*(["answer"] if program == "c" else []), str(_ANSWER_BYTES)]


def send(place: Place, size: int, count: int) -> Figures:
    """sendfile of the segment that readers read, as many bytes as they need; to one who throws them
    away: the limit of reading.
    """
    (path,) = sorted(Path(place.data_dir).glob(f"{place.topic}-0/*.log"))[:1]
    stored = path.stat().st_size
    if stored < count * size:
        raise LoadFailed(f"{path.name} has {stored} bytes, not {count} records of {size}")
    buffer = bytearray(_PART)
    commands.append(f"limits/server.c send: {stored} bytes, {_PART} at a time")
    with limits.running("c", "send", str(path)) as (address, pid):
        before = usage(pid).cpu_s
        with frames.connect(address) as sock:
            began = time.perf_counter()
            for start in range(0, stored, _PART):
                part = min(_PART, stored - start)
                sock.sendall(_ASK.pack(12, start, part))
                left = 4 + part
                while left:
                    got = sock.recv_into(buffer, min(left, _PART))
                    if not got:
                        raise EOFError(f"closed at {start}")
                    left -= got
            seconds = time.perf_counter() - began
        cpu_s = usage(pid).cpu_s - before
    # More is stored than the records' values: the rate counts those, as the rows do.
    return {
        "seconds": seconds,
        "records_s": count / seconds,
        "mb_s": count * size / seconds / 1e6,
        "cpu_s": cpu_s,
    }
