"""W12: a share group of many consumers on a broker of its own: records a second, and at a fixed
rate what a record waits.

Members hear of their partitions in their heartbeats, so these come five times a second here: what
is measured is the records, not the joining. What KafkaShareConsumer is given of a partition that is
no longer its own it lets lie until the lock runs out. With the default of 30 s one such answer
while members join would be most of the measure, so a lock is of a second.
"""

from __future__ import annotations

import sys
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import ShareConsumer
from confluent_kafka.admin import AdminClient, ResourceType

from benchmarks.loads import pacing, rdkafka
from benchmarks.loads.base import Figures, Place, commands, create_topic
from benchmarks.loads.java import share_consumer_performance
from benchmarks.loads.lifetime import start
from benchmarks.measure import usage
from benchmarks.targets import Target, make
from testkit.clients.rdkafka import set_configs

_CONFIG = {
    "group.share.heartbeat.interval.ms": 200,
    "group.share.min.heartbeat.interval.ms": 200,
    "group.share.assignment.interval.ms": 0,
    "group.share.record.lock.duration.ms": 1000,
    "group.share.min.record.lock.duration.ms": 1000,
}
_SETTLED_S = 3.0
_PATIENCE_S = 60.0


@contextmanager
def _broker(place: Place) -> Iterator[tuple[Target, Place]]:
    broker = make(place.kind, Path(place.scratch, "node"), _CONFIG)
    start(broker)
    try:
        there = place._replace(bootstrap=broker.bootstrap_servers, data_dir=str(broker.data_dir))
        yield broker, there
    finally:
        broker.kill()


def throughput(place: Place, size: int, count: int, partitions: int, consumers: int) -> Figures:
    """Two groups, one after the other, take all records of a topic; the second counts."""
    with _broker(place) as (broker, there):
        rdkafka.produce(there, size, count, partitions)
        for group in ("warm", "counted"):
            _from_the_start(there.bootstrap, group)
            before = usage(broker.pid).cpu_s
            figures = share_consumer_performance(there, group, consumers, count, size)
            figures["broker_cpu_s"] = usage(broker.pid).cpu_s - before
    return figures


def fixed_rate(
    place: Place, rate: int, size: int, seconds: float, warm_up_s: float, consumers: int
) -> Figures:
    """One producer, one partition, a group of librdkafka's share consumers."""
    with _broker(place) as (broker, there):
        create_topic(there.bootstrap, there.topic)
        _from_the_start(there.bootstrap, there.topic)
        commands.append(f"{consumers} x confluent_kafka.ShareConsumer")
        figures = pacing.lateness(there, __name__, rate, size, seconds, warm_up_s, consumers)
        figures["broker_cpu_s"] = usage(broker.pid).cpu_s
    return figures


def _from_the_start(bootstrap: str, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    set_configs(admin, ResourceType.GROUP, group, {"share.auto.offset.reset": "earliest"})


def _receive(bootstrap: str, topic: str, count: int, consumers: int) -> None:
    """The receiving process: all members know their partition, then what `pacing.lateness` reads.
    A record that comes twice arrived when it came first."""
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "log_level": 0}
    arrived = array("d", bytes(8 * count))
    is_over = threading.Event()

    def work() -> None:
        member = ShareConsumer(settings)
        member.subscribe([topic])
        while not is_over.is_set():
            messages = member.poll(0.5)
            now = time.perf_counter()
            for message in messages:
                if message.error() is None and not arrived[message.offset()]:
                    arrived[message.offset()] = now

    threads = [threading.Thread(target=work, daemon=True) for _ in range(consumers)]
    for thread in threads:
        thread.start()
    time.sleep(_SETTLED_S)
    pacing.tell_ready()
    last, held = time.monotonic(), -1
    while (missing := arrived.count(0.0)) and time.monotonic() < last + _PATIENCE_S:
        if missing != held:
            last, held = time.monotonic(), missing
        time.sleep(0.2)
    is_over.set()
    pacing.tell_arrivals(array("d", filter(None, arrived)))


if __name__ == "__main__":
    _receive(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
