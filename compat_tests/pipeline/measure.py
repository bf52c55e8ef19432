"""`python -m compat_tests.pipeline.measure [ROWS] [VALUE_BYTES]`: segments beside format("kafka").

One Barnabas node, one topic of two partitions, one Spark session; both read every key and value, in
turn, three times after a warm-up. Prints rows a second of each and the ratio: absolute figures say
more about the machine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from confluent_kafka import Producer

import barnabas
from compat_tests.pipeline.records import create
from pipeline.spark.session import open_session
from testkit.brokers.nodes import Barnabas
from testkit.wait import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAIRS = 3


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    with tempfile.TemporaryDirectory() as folder, Barnabas(Path(folder)) as broker:
        fill(broker.bootstrap_servers, count, size)
        with open_session("measure", master="local[2]") as job:
            barnabas.register_source(job.spark)
            kafka = (
                job.spark.read.format("kafka")
                .option("kafka.bootstrap.servers", broker.bootstrap_servers)
                .option("subscribe", "measured")
                .load()
            )
            segments = job.spark.read.format("barnabas").option("topic", "measured")
            directory = str(broker.data_dir)
            eventually(lambda: segments.load(directory).count() == count, timeout_s=60, every_s=1)
            readers = {"kafka": lambda: kafka, "segments": lambda: segments.load(directory)}
            report(readers, count)


def fill(bootstrap: str, count: int, size: int) -> None:
    create(bootstrap, "measured", 2)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    value = bytes(size)
    for number in range(count):
        producer.produce("measured", value, key=b"%d" % number, partition=number % 2)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def report(readers: dict[str, Callable[[], DataFrame]], count: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(PAIRS + 1):
        for name, frame in readers.items():
            started = time.monotonic()
            row = frame().selectExpr("count(key)", "sum(length(value))").first()
            seconds = time.monotonic() - started
            assert row is not None
            assert row[0] == count
            if turn:
                rates[name].append(count / seconds)
    for name, values in rates.items():
        low, high = min(values), max(values)
        print(f"{name:9} {median(values):12,.0f} rows/s  ({low:,.0f} to {high:,.0f})")
    print(f"segments / kafka: {median(rates['segments']) / median(rates['kafka']):.2f}")


if __name__ == "__main__":
    main()
