"""`python -m benchmarks.micro.records`: what the broker spends per batch, in µs, best of five.

The budgets in the docstrings of `wire.record_batch`, `wire.record_checks`, `storage.segments.index`
and `storage.log.producer_state` are these figures on a two-core virtual machine. Absolute figures
drift with the machine; the CRC of 1 MiB, printed first, says how fast it is at the moment.
"""

from __future__ import annotations

import os
import tempfile
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from storage.log.append_source import FROM_CLIENT
from storage.log.producer_state import ProducerStateManager
from storage.segments.index import OffsetIndex
from testkit.clock import WALL_MS
from wire.crc import crc32c
from wire.primitives import TopicPartition
from wire.records import (
    Record,
    build_batch,
    check_crc,
    patch_for_log,
    read_header,
    read_records,
    validate_producer_batch,
    validate_records,
)


def microseconds(function: Callable[[], object]) -> float:
    """Best time of one call."""
    timer = timeit.Timer(function)
    number, _ = timer.autorange()
    return min(timer.repeat(5, max(number // 5, 1))) / max(number // 5, 1) * 1e6


def batch(count: int, size: int, **options: Any) -> memoryview:
    records = [Record(-1, WALL_MS + n, None, os.urandom(size), []) for n in range(count)]
    return memoryview(build_batch(records, **options))


def report(name: str, function: Callable[[], object]) -> None:
    print(f"{name:<58} {microseconds(function):>10.2f} us")


def main() -> None:
    mebibyte = os.urandom(1 << 20)
    report("crc32c, 1 MiB", lambda: crc32c(mebibyte))
    one, sixteen, many = batch(1, 100), batch(16, 100), batch(10_000, 95)
    header = read_header(one)
    report("read_header", lambda: read_header(one))
    report("patch_for_log", lambda: patch_for_log(one, 12345, 3))
    for name, data in (("1 record", one), ("16 records", sixteen), ("10,000 records, 1 MiB", many)):
        read = read_header(data)
        report(f"check_crc, {name}", partial(check_crc, data, 0, read))
        report(f"validate_producer_batch, {name}", partial(validate_producer_batch, data))
    report(
        "validate_records, 10,000 records",
        lambda: validate_records(read_header(many), many, wall_ms=WALL_MS),
    )
    report("read_records, 10,000 records", lambda: list(read_records(many)))
    with tempfile.TemporaryDirectory() as directory:
        measure_storage(Path(directory))
    assert header.records_count == 1


def measure_storage(directory: Path) -> None:
    index = OffsetIndex(directory / "a.index", 0, 10 << 20)
    for number in range(1, 262_144):
        index.append(number * 40, number * 4200)
    report("OffsetIndex.lookup, 1 GiB segment", lambda: index.lookup(5_000_000))
    index.flush()

    def reload() -> None:
        index.close()
        index.lookup(5)

    report("OffsetIndex reopened, 1 GiB segment", reload)
    state = ProducerStateManager(TopicPartition("t", 0), directory)
    idempotent = {"producer_id": 7, "producer_epoch": 0}
    for sequence in range(6):
        header = read_header(batch(1, 10, base_sequence=sequence, **idempotent))
        state.update(header, sequence, sequence, WALL_MS)
    following = read_header(batch(1, 10, base_sequence=6, **idempotent))
    report("ProducerStateManager.check", lambda: state.check(following, FROM_CLIENT))
    report("ProducerStateManager.update", lambda: state.update(following, 6, 6, WALL_MS))


if __name__ == "__main__":
    main()
