"""Fixed rates: what a record waits when records come whether or not the broker is ready for them.

Latency counts from the moment a record was meant to be sent (start + n / rate), not from when the
client got round to it: a broker that stalls for a second delays every record of that second, and
all of them are counted (no coordinated omission).

The sender paces in this process, a thread of it takes the acknowledgements, and a second process
receives; both read CLOCK_MONOTONIC, which is one clock for all processes of a machine. Records go
in turn to `partitions` partitions; the receiver runs only when there is one, where the offset tells
which record it is.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from array import array
from functools import partial
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.loads.base import Figures, LoadFailed, Place, create_topic, percentiles
from benchmarks.loads.rdkafka import producer_of

# The OpenMessaging Benchmark's Kafka driver settings.
_SETTINGS: dict[str, Any] = {"acks": "all", "linger.ms": 1, "batch.size": 131_072}
_FETCH = {"max.partition.fetch.bytes": 10_485_760}
_PAYLOADS = 256


def fixed_rate(place: Place, rate: int, size: int, seconds: float, warm_up_s: float = 2) -> Figures:
    """One producer, one partition, one consumer: publish and end-to-end latency in ms."""
    create_topic(place.bootstrap, place.topic)
    return lateness(place, "benchmarks.loads.pacing", rate, size, seconds, warm_up_s)


def lateness(
    place: Place, receiving: str, rate: int, size: int, seconds: float, warm_up_s: float, *more: int
) -> Figures:
    """Of a topic of one partition. `receiving` is a module that is run with the bootstrap, the
    topic, the number of records and `more`; it says "ready", then when each offset arrived."""
    count = int(rate * (warm_up_s + seconds))
    command = [sys.executable, "-m", receiving, place.bootstrap, place.topic]
    receiver = subprocess.Popen([*command, *map(str, (count, *more))], stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    if receiver.stdout.readline() != b"ready\n":
        raise LoadFailed("the receiver did not start")
    start, acked = send_paced(place, rate, size, count)
    received = array("d", receiver.stdout.read())
    if receiver.wait(60) != 0 or len(received) != count:
        raise LoadFailed(f"{count} records were sent, {len(received)} received")
    first = int(rate * warm_up_s)
    figures: Figures = {"achieved_s": count / (max(acked) - start)}
    for name, times in (("publish", acked), ("e2e", received)):
        late = [times[n] - start - n / rate for n in range(first, count)]
        found = percentiles(late, "ms", 1e3)
        figures.update({f"{name}_{figure}": value for figure, value in found.items()})
    return figures


def send_paced(
    place: Place, rate: int, size: int, count: int, partitions: int = 1
) -> tuple[float, array[float]]:
    """Send `count` records at `rate` a second; when the first was due, when each was acked."""
    producer = producer_of(place.bootstrap, **_SETTINGS)
    producer.list_topics(place.topic, timeout=30)
    acked = array("d", bytes(8 * count))
    failed: list[str] = []

    def note(number: int, error: Any, _message: Any) -> None:
        acked[number] = time.perf_counter()
        if error is not None:
            failed.append(str(error))

    done = threading.Event()
    poller = threading.Thread(target=_poll, args=(producer, done))
    poller.start()
    payloads = _half_random(size)
    start = time.perf_counter() + 0.1
    for number in range(count):
        wait = start + number / rate - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        producer.produce(
            place.topic,
            payloads[number % _PAYLOADS],
            partition=number % partitions,
            on_delivery=partial(note, number),
        )
    left = producer.flush(60)
    done.set()
    poller.join()
    if left or failed:
        raise LoadFailed(f"{left} records were never acked, {len(failed)} failed: {failed[:1]}")
    return start, acked


def _poll(producer: Producer, done: threading.Event) -> None:
    while not done.is_set():
        producer.poll(0.05)


def _half_random(size: int) -> list[bytes]:
    """Payloads of which half the bytes are random (OMB's randomBytesRatio 0.5)."""
    source = random.Random(4)
    return [source.randbytes(size // 2) + bytes(size - size // 2) for _ in range(_PAYLOADS)]


def tell_ready() -> None:
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()


def tell_arrivals(arrived: array[float]) -> None:
    sys.stdout.buffer.write(arrived.tobytes())
    sys.stdout.buffer.flush()


def _receive(bootstrap: str, topic: str, count: int) -> None:
    """The receiving process: "ready", then the time of arrival of each offset as doubles."""
    settings = {"bootstrap.servers": bootstrap, "group.id": f"bench-{topic}", **_FETCH}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(1)
    tell_ready()
    arrived = array("d")
    while len(arrived) < count:
        message = consumer.poll(30)
        now = time.perf_counter()
        if message is None or message.error() or message.offset() != len(arrived):
            print(f"record {len(arrived)} did not arrive: {message}", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
        arrived.append(now)
    tell_arrivals(arrived)


if __name__ == "__main__":
    _receive(sys.argv[1], sys.argv[2], int(sys.argv[3]))
