"""`python -m benchmarks.micro.log [DIR]`: what one partition log costs, in µs, best of five.

The budgets in the docstrings of `storage.log.partition_log`, `storage.log.log_reader` and
`storage.segments.segment` are these figures on a two-core virtual machine. Absolute figures drift
with the machine: the first lines say what its disk cache and its checksum do at the moment: no
append can be faster than that.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.config import LogConfig
from storage.environment import LogEnvironment
from storage.log.partition_log import PartitionLog
from storage.recovery import open_log
from testkit.clock import WALL_MS
from wire.crc import crc32c
from wire.primitives import TopicPartition
from wire.records import Record, build_batch

RECOVERED_BYTES = 1 << 30


def report(name: str, function: Callable[[], object], number: int) -> None:
    """Best mean of five runs of `number` calls."""
    best = min(_time(function, number) for _ in range(5))
    print(f"{name:<58} {best:>10.2f} us", flush=True)


def _time(function: Callable[[], object], number: int) -> float:
    started = time.perf_counter()
    for _ in range(number):
        function()
    return (time.perf_counter() - started) / number * 1e6


def batch(count: int, size: int, **options: Any) -> memoryview:
    records = [Record(-1, WALL_MS, None, os.urandom(size)) for _ in range(count)]
    return memoryview(build_batch(records, **options))


class Idempotent:
    """The same record with the next sequence each time, made beforehand."""

    def __init__(self, log: PartitionLog, count: int) -> None:
        self._log = log
        self._batches = iter(
            [batch(1, 100, producer_id=1, producer_epoch=0, base_sequence=n) for n in range(count)]
        )

    def append(self) -> None:
        self._log.append_as_leader(next(self._batches), 0, WALL_MS)


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        directory = Path(name)
        environment = LogEnvironment(directory)

        def new_log(topic: str, config: LogConfig | None = None) -> PartitionLog:
            key = TopicPartition(topic, 0)
            return open_log(directory / f"{topic}-0", key, config or LogConfig(), environment)

        measure_machine(directory)
        measure_appends(new_log)
        measure_reads(new_log("read"))
        measure_recovery(directory, new_log)


def measure_machine(directory: Path) -> None:
    one, many = bytes(batch(1, 100)), bytes(batch(1000, 1000))
    fd = os.open(directory / "raw", os.O_RDWR | os.O_CREAT)
    try:
        report("pwritev, 170 bytes", lambda: os.pwritev(fd, [one], 0), 20_000)
        report("pwritev, 1 MB", lambda: os.pwritev(fd, [many], 0), 100)
    finally:
        os.close(fd)
    report("crc32c, 1 MB", lambda: crc32c(many), 500)


def measure_appends(new_log: Callable[..., PartitionLog]) -> None:
    one, many = batch(1, 100), batch(1000, 1000)
    log = new_log("one", LogConfig(index_interval_bytes=1 << 30))
    report(
        "append, 1 record, no index entry", lambda: log.append_as_leader(one, 0, WALL_MS), 20_000
    )
    indexed = new_log("indexed")
    report("append, 1 record", lambda: indexed.append_as_leader(one, 0, WALL_MS), 20_000)
    idempotent = Idempotent(new_log("idempotent"), 100_000)
    report("append, 1 record, idempotent", idempotent.append, 20_000)
    large = new_log("large")
    report("append, 1,000 records, 1 MB", lambda: large.append_as_leader(many, 0, WALL_MS), 100)
    flushed = new_log("flushed")

    def durable() -> None:
        flushed.append_as_leader(one, 0, WALL_MS)
        flushed.flush()

    report("append and flush, 1 record", durable, 50)


def measure_reads(log: PartitionLog) -> None:
    small = batch(16, 1000)
    for _ in range(4000):
        log.append_as_leader(small, 0, WALL_MS)
    end = log.log_end_offset
    report("read, the last batch", lambda: log.read(end - 16, 1 << 20, True, end), 20_000)
    offsets = iter(range(0, 1 << 60, 1024))

    def sequential() -> None:
        log.read(next(offsets) % (end - 2048), 1 << 20, True, end)

    report("read, 1 MB further each time", sequential, 5000)
    report("read, nothing new", lambda: log.read(end, 1 << 20, True, end), 20_000)
    left, right = socket.socketpair()
    records = log.read(0, 1 << 16, True, end).records
    assert records is not None
    with left, right:

        def send() -> None:
            records.send_to(left.fileno(), 0, 65_536)
            right.recv(1 << 17)

        report("send 64 KiB to a local socket and receive them", send, 2000)


def measure_recovery(directory: Path, new_log: Callable[..., PartitionLog]) -> None:
    config = LogConfig(segment_bytes=RECOVERED_BYTES // 64)
    log = new_log("recovered", config)
    data = batch(16, 1000)
    while log.size < RECOVERED_BYTES:
        log.append_as_leader(data, 0, WALL_MS)
    started = time.perf_counter()
    again = open_log(log.directory, log.topic_partition, config, LogEnvironment(directory))
    seconds = time.perf_counter() - started
    assert again.log_end_offset == log.log_end_offset
    print(f"recovery of 1 GiB in {len(again.segments)} segments after a crash: {seconds:.2f} s")


if __name__ == "__main__":
    main()
