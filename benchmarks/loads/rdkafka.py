"""Loads of librdkafka (C): producers through confluent-kafka, in batches so that Python costs
little per record; consumers through kcat: through a Python client the client would be the limit."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.loads.base import (
    Figures,
    LoadFailed,
    Place,
    commands,
    create_topic,
    expect_records,
    percentiles,
)

_BATCH = 1000
_FAST = {"socket.nagle.disable": True}


def producer_of(bootstrap: str, **settings: Any) -> Producer:
    """A producer for throughput; the settings that matter go into the list of commands."""
    chosen = {
        "linger.ms": 5,
        "batch.size": 1_000_000,
        "batch.num.messages": 100_000,
        "queue.buffering.max.messages": 200_000,
        "queue.buffering.max.kbytes": 400_000,
        "message.timeout.ms": 60_000,
        **settings,
    }
    commands.append(f"confluent_kafka.Producer({chosen})")
    return Producer({"bootstrap.servers": bootstrap, **chosen})


def produce(place: Place, size: int, count: int, partitions: int = 1, **settings: Any) -> Figures:
    """Send `count` records of `size` bytes as fast as they are taken; until all are acked.

    One record goes ahead, not timed: it pays for the connection and for the producer id, which
    librdkafka asks for again only after half a second when it asked before it was connected.
    """
    create_topic(place.bootstrap, place.topic, partitions)
    producer = producer_of(place.bootstrap, **settings)
    batch = [{"value": os.urandom(size)}] * _BATCH
    producer.produce(place.topic, b"first", partition=0)
    producer.flush(30)
    began = time.perf_counter()
    sent = 0
    while sent < count:
        partition = (sent // _BATCH) % partitions
        queued = 0
        while queued < _BATCH:
            with contextlib.suppress(BufferError):
                queued += producer.produce_batch(place.topic, batch[queued:], partition=partition)
            if queued < _BATCH:
                producer.poll(0.01)
        sent += _BATCH
    producer.flush(120)
    seconds = time.perf_counter() - began
    expect_records(place.bootstrap, place.topic, partitions, 1 + sent)
    return {"seconds": seconds, "records_s": sent / seconds, "mb_s": sent * size / seconds / 1e6}


def one_record_requests(place: Place, size: int, count: int) -> Figures:
    """Pipelined Produce requests of one record each (no lingering, no batching), acks=1."""
    alone = {"linger.ms": 0, "batch.num.messages": 1}
    figures = produce(place, size, count, acks=1, **alone)
    return {"seconds": figures["seconds"], "requests_s": figures["records_s"]}


def consume(place: Place, size: int, count: int, cold: bool = False, **settings: object) -> Figures:
    """Read `count` records of partition 0 from the start, with kcat and librdkafka's `settings`.

    `cold` first asks the kernel to forget the pages of the topic's files.
    """
    if cold:
        _forget_pages(place)
    command = ["kcat", "-C", "-q", "-b", place.bootstrap, "-t", place.topic, "-p", "0"]
    command += ["-o", "beginning", "-c", str(count), "-f", "", "-e"]
    command += ["-X", "max.partition.fetch.bytes=4194304"]
    command += ["-X", "queued.max.messages.kbytes=262144", "-X", "queued.min.messages=1000000"]
    for name, value in settings.items():
        command += ["-X", f"{name}={str(value).lower()}"]
    commands.append(" ".join(command))
    began = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode != 0 or "Reached end" in done.stderr:
        raise LoadFailed(f"kcat did not get {count} records: {done.stderr}")
    return {"seconds": seconds, "records_s": count / seconds, "mb_s": count * size / seconds / 1e6}


def _forget_pages(place: Place) -> None:
    for path in Path(place.data_dir).glob(f"{place.topic}-*/*.log"):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def ping_pong(place: Place, size: int, count: int, acks: str = "1") -> Figures:
    """One record at a time: from produce() until a waiting consumer has it; in µs."""
    create_topic(place.bootstrap, place.topic)
    producer = producer_of(place.bootstrap, acks=acks, **{"linger.ms": 0, **_FAST})
    consumer = Consumer(
        {
            "bootstrap.servers": place.bootstrap,
            "group.id": f"bench-{place.topic}",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
            **_FAST,
        }
    )
    consumer.assign([TopicPartition(place.topic, 0, 0)])
    payload = os.urandom(size)
    warm_up = count // 10
    times: list[float] = []
    for number in range(warm_up + count):
        began = time.perf_counter()
        producer.produce(place.topic, payload)
        producer.poll(0)
        message = consumer.poll(10)
        took = time.perf_counter() - began
        if message is None or message.error() or message.offset() != number:
            raise LoadFailed(f"record {number} did not come back: {message}")
        times.append(took)
    return percentiles(times[warm_up:], "us", 1e6)
