"""Starting, stopping and crashing: each load here runs brokers of its own.

Apache Kafka must be formatted before its first start. That is timed apart: `start_s` and what
follows count from the start of the broker's process, `format_s` is the step before it.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.loads.base import (
    Figures,
    LoadFailed,
    Place,
    await_leaders,
    create_topic,
    end_offsets,
    percentiles,
)
from benchmarks.loads.pacing import send_paced
from benchmarks.loads.rdkafka import producer_of
from benchmarks.measure import MIB, disk_bytes, usage
from benchmarks.targets import Target, make
from testkit.brokers.nodes import ApacheKafka, await_answer

_IDLE_S = 3.0
_HEAD = struct.Struct(">iq")


def start(broker: Target) -> tuple[float, float]:
    """Start until ApiVersions is answered: when the process started (monotonic), seconds before."""
    asked = time.perf_counter()
    if isinstance(broker, ApacheKafka):
        broker.launch()  # formats first, returns as soon as the process exists
        began = time.perf_counter()
        broker.await_ready()
    else:
        began = asked
        broker.start()
        await_answer("127.0.0.1", broker.port)
    return began, began - asked


def cold_start(place: Place) -> Figures:
    """W0: from nothing to the first record of a new group, then idle memory and disk."""
    broker = make(place.kind, Path(place.scratch, "node"))
    began, format_s = start(broker)
    figures = {"format_s": format_s, "start_s": time.perf_counter() - began}
    try:
        bootstrap = broker.bootstrap_servers
        _produce_one(bootstrap, place.topic)
        figures["first_produce_s"] = time.perf_counter() - began
        _consume_one(bootstrap, place.topic)
        figures["first_record_s"] = time.perf_counter() - began
        time.sleep(_IDLE_S)
        figures["idle_mib"] = usage(broker.pid).rss_bytes / MIB
        figures["disk_mib"] = disk_bytes(broker.data_dir) / MIB
    finally:
        broker.kill()
    return figures


def _produce_one(bootstrap: str, topic: str) -> None:
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    producer.produce(topic, b"first", on_delivery=lambda error, _: failed.append(error))
    if producer.flush(60) or failed != [None]:
        raise LoadFailed(f"the first record was not taken: {failed}")


def _consume_one(bootstrap: str, topic: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": "new", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and not message.error():
            consumer.close()
            return
    raise LoadFailed("the group did not get its first record in 60 s")


def many_partitions(place: Place, partitions: int, rate: int, seconds: float) -> Figures:
    """W11: create them, idle, a fixed rate over all, a clean restart, one after kill -9."""
    broker = make(place.kind, Path(place.scratch, "node"))
    start(broker)
    try:
        there = place._replace(bootstrap=broker.bootstrap_servers)
        began = time.perf_counter()
        create_topic(there.bootstrap, place.topic, partitions)
        figures = {"create_s": time.perf_counter() - began}
        time.sleep(1)
        before = usage(broker.pid).cpu_s
        time.sleep(_IDLE_S)
        after = usage(broker.pid)
        figures["idle_cpu_pct"] = (after.cpu_s - before) / _IDLE_S * 100
        figures["idle_mib"] = after.rss_bytes / MIB
        count = int(rate * seconds)
        due, acked = send_paced(there, rate, 1000, count, partitions)
        # The first half is the warm-up: this broker has just started.
        late = [acked[n] - due - n / rate for n in range(count // 2, count)]
        figures.update(percentiles(late, "ms", 1e3))
        figures["loaded_mib"] = usage(broker.pid).rss_bytes / MIB
        began = time.perf_counter()
        broker.stop()
        figures["stop_s"] = time.perf_counter() - began
        for name, end in (("restart_s", broker.stop), ("crash_restart_s", broker.kill)):
            figures[name] = ready_again(broker, end, place.topic, partitions)
        held = sum(end_offsets(there.bootstrap, place.topic, range(partitions)).values())
        if held != count:
            raise LoadFailed(f"{count} records were acked, {held} are left after the restarts")
    finally:
        broker.kill()
    return figures


def ready_again(broker: Target, end: Callable[[], None], topic: str, partitions: int) -> float:
    """Seconds from starting the process until the last partition answers."""
    end()
    began, _ = start(broker)
    await_leaders(broker.bootstrap_servers, topic, partitions)
    return time.perf_counter() - began


def crash_recovery(place: Place, mib: int, partitions: int) -> Figures:
    """W17: kill -9 in mid-write, restart; every acked record must be where it was acked."""
    broker = make(place.kind, Path(place.scratch, "node"))
    start(broker)
    try:
        bootstrap = broker.bootstrap_servers
        create_topic(bootstrap, place.topic, partitions)
        acked = _write_until_killed(broker, place.topic, mib * MIB, partitions)
        recovery_s = ready_again(broker, lambda: None, place.topic, partitions)
        read = _verify(bootstrap, place.topic, acked)
    finally:
        broker.kill()
    return {"recovery_s": recovery_s, "verified_records": read, "acked_records": sum(acked)}


def _write_until_killed(broker: Target, topic: str, size: int, partitions: int) -> list[int]:
    """How many records each partition has acked when the broker is killed."""
    settings = {"enable.idempotence": True, "acks": "all", "batch.size": 131_072}
    producer = producer_of(broker.bootstrap_servers, **settings)
    acked = [0] * partitions
    done = 0

    def note(error: Any, message: Any) -> None:
        nonlocal done
        if error is None:
            partition = message.partition()
            acked[partition] = max(acked[partition], message.offset() + 1)
            done += 1

    sent, fill = 0, bytes(1024 - _HEAD.size)
    deadline = time.monotonic() + 240
    while done * 1024 < size:
        if time.monotonic() > deadline:
            raise LoadFailed(f"only {done} records were acked in 240 s")
        partition, number = sent % partitions, sent // partitions
        value = _HEAD.pack(partition, number) + fill
        try:
            producer.produce(topic, value, partition=partition, on_delivery=note)
            sent += 1
        except BufferError:
            producer.poll(0.01)
        if sent % 100 == 0:
            producer.poll(0)
    broker.kill()
    producer.purge()
    producer.flush(5)
    return acked


def _verify(bootstrap: str, topic: str, acked: list[int]) -> int:
    """Read everything: number n of a partition is at offset n, and no acked record is missing."""
    ends = end_offsets(bootstrap, topic, range(len(acked)))
    lost = {index: (ends[index], count) for index, count in enumerate(acked) if ends[index] < count}
    if lost:
        raise LoadFailed(f"acked records are gone, partition: (end, acked) = {lost}")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "verify"})
    consumer.assign([TopicPartition(topic, index, 0) for index in ends])
    position = array("q", bytes(8 * len(acked)))
    total = sum(ends.values())
    for _ in range(total):
        message = consumer.poll(30)
        if message is None or message.error():
            raise LoadFailed(f"{sum(position)} of {total} records could be read: {message}")
        partition, value = message.partition() or 0, message.value() or b""
        expected = (partition, position[partition])
        if message.offset() != expected[1] or _HEAD.unpack_from(value) != expected:
            raise LoadFailed(f"partition {partition}: not the record sent at {message.offset()}")
        position[partition] += 1
    consumer.close()
    return total
