"""The load generators, each run in a process of its own: `python -m benchmarks.loads NAME JSON`.

The client is librdkafka (C): producers through confluent-kafka, in batches so that Python costs
little per record; consumers through kcat. A load prints one JSON line of figures. Every load checks
that what it sent arrived: a fast wrong answer is no figure.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

_BATCH = 1000


def _producer(bootstrap: str, **settings: Any) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 400_000,
            "message.timeout.ms": 60_000,
            **settings,
        }
    )


def create_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """Create the topic and wait until a producer can use it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def _end_offsets(bootstrap: str, topic: str, partitions: int) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-offsets"})
    ends = (
        consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=30)
        for index in range(partitions)
    )
    total = sum(high for _low, high in ends)
    consumer.close()
    return total


def produce(
    bootstrap: str, topic: str, size: int, count: int, partitions: int = 1, **settings: Any
) -> dict[str, float]:
    """Send `count` records of `size` bytes as fast as they are taken; until all are acked."""
    create_topic(bootstrap, topic, partitions)
    producer = _producer(bootstrap, **settings)
    payload = os.urandom(size)
    batch = [{"value": payload}] * _BATCH
    per_partition = [{"partition": index} for index in range(partitions)]
    producer.list_topics(topic, timeout=30)
    began = time.perf_counter()
    sent = 0
    while sent < count:
        where = per_partition[(sent // _BATCH) % partitions]
        queued = 0
        while queued < _BATCH:
            with contextlib.suppress(BufferError):
                queued += producer.produce_batch(topic, batch[queued:], **where)
            if queued < _BATCH:
                producer.poll(0.01)
        sent += _BATCH
    producer.flush(120)
    seconds = time.perf_counter() - began
    arrived = _end_offsets(bootstrap, topic, partitions)
    if arrived != sent:
        raise SystemExit(f"sent {sent} records, the broker holds {arrived}")
    return {"seconds": seconds, "records_s": sent / seconds, "mb_s": sent * size / seconds / 1e6}


def one_record_requests(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Pipelined Produce requests of one record each (no lingering, no batching), acks=1."""
    figures = produce(
        bootstrap,
        topic,
        size,
        count,
        acks=1,
        **{"linger.ms": 0, "batch.num.messages": 1},
    )
    return {"seconds": figures["seconds"], "requests_s": figures["records_s"]}


def consume(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Read `count` records from the start of a topic that a `produce` load has filled.

    With kcat: through a Python client the client is the limit, at a third of a broker's rate.
    """
    settings = {
        "max.partition.fetch.bytes": 4 << 20,
        "queued.max.messages.kbytes": 262_144,
        "queued.min.messages": 1_000_000,
    }
    command = ["kcat", "-C", "-q", "-b", bootstrap, "-t", topic, "-p", "0", "-o", "beginning"]
    command += ["-c", str(count), "-f", "", "-e"]
    for key, value in settings.items():
        command += ["-X", f"{key}={value}"]
    began = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode != 0 or "Reached end" in done.stderr:
        raise SystemExit(f"kcat did not get {count} records: {done.stderr}")
    return {"seconds": seconds, "records_s": count / seconds, "mb_s": count * size / seconds / 1e6}


def ping_pong(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """One record at a time, acks=1: from produce() until a waiting consumer has it; in µs."""
    create_topic(bootstrap, topic)
    fast = {"socket.nagle.disable": True}
    producer = _producer(bootstrap, acks=1, **{"linger.ms": 0, **fast})
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"bench-{topic}",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
            **fast,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    payload = os.urandom(size)
    times: list[float] = []
    for number in range(count + count // 10):
        began = time.perf_counter()
        producer.produce(topic, payload)
        producer.poll(0)
        message = consumer.poll(10)
        took = time.perf_counter() - began
        if message is None or message.error() or message.offset() != number:
            raise SystemExit(f"record {number} did not come back: {message}")
        if number >= count // 10:
            times.append(took * 1e6)
    producer.flush(10)
    consumer.close()
    times.sort()
    return {
        "p50_us": times[len(times) // 2],
        "p99_us": times[int(len(times) * 0.99)],
        "p999_us": times[int(len(times) * 0.999)],
    }


LOADS: dict[str, Callable[..., dict[str, float]]] = {
    "produce": produce,
    "one_record_requests": one_record_requests,
    "consume": consume,
    "ping_pong": ping_pong,
}


def main() -> None:
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    try:
        figures = LOADS[name](**arguments)
    except (KafkaException, KafkaError) as error:
        raise SystemExit(f"{name}: {error}") from error
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
