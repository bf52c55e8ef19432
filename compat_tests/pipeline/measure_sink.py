"""`python -m compat_tests.pipeline.measure_sink [ROWS] [VALUE_BYTES]`: a task of the sink.

One Apache Kafka node, one topic of two partitions, one thread, no Spark: the same Arrow batches
through a slot of the sink with each client, in turn. Prints rows a second and CPU microseconds a
row of each, and ratios to the first. (Those of `replay`: measure_replay.)
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pyarrow as pa

from compat_tests.pipeline.records import create
from pipeline.sink.clients import connector
from pipeline.sink.exactly_once import Task, write_once
from pipeline.sink.rows import rows_of
from pipeline.sink.settings import settings_of
from testkit.brokers.nodes import ApacheKafka

TURNS = 3
BATCH = 10_000


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    with tempfile.TemporaryDirectory() as folder, ApacheKafka(Path(folder)) as broker:
        bootstrap = broker.bootstrap_servers
        create(bootstrap, "measured", 2)
        ways = {
            "confluent": lambda: by_sink(bootstrap, count, size, "confluent"),
            "kafka-python": lambda: by_sink(bootstrap, count, size, "kafka-python"),
        }
        report(ways, count)


def batches(count: int, size: int) -> list[pa.RecordBatch]:
    made: list[pa.RecordBatch] = []
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        made.append(
            pa.RecordBatch.from_pydict(
                {
                    "topic": ["measured"] * len(numbers),
                    "partition": pa.array([number % 2 for number in numbers], pa.int32()),
                    "key": [b"%d" % number for number in numbers],
                    "value": [bytes(size)] * len(numbers),
                    "headers": pa.nulls(len(numbers)),
                    "timestamp_ms": pa.array([1_700_000_000_000] * len(numbers), pa.int64()),
                }
            )
        )
    return made


def by_sink(bootstrap: str, count: int, size: int, client: str) -> None:
    columns = {"partition": 1, "key": 2, "value": 3}
    rows = rows_of(batches(count, size), columns, "measured")
    connect = connector(settings_of({"bootstrap.servers": bootstrap}, client))
    write_once(Task(uuid.uuid4().hex, 0, 0, 1, True), rows, connect, lambda _: time.sleep(0.05))


def report(ways: dict[str, Callable[[], None]], count: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, write in ways.items():
            started, worked = time.monotonic(), time.process_time()
            write()
            if turn:
                rates[name].append(count / (time.monotonic() - started))
                cpu[name].append((time.process_time() - worked) / count * 1e6)
    first = next(iter(ways))
    for name in ways:
        rate, work = median(rates[name]), median(cpu[name])
        ratio = rate / median(rates[first])
        print(f"{name:18} {rate:10,.0f} rows/s  {ratio:5.2f}  {work:5.1f} us CPU a row")


if __name__ == "__main__":
    main()
