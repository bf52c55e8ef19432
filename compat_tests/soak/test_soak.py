"""Churn for minutes or an hour: what clients leave behind, the broker must not keep.

    make soak                     # three minutes, as CI runs it
    make soak SOAK_MINUTES=60     # an hour, with the strict limit

Each turn opens and drops connections (closed, reset, in the middle of a frame), creates topics,
writes to them as a new idempotent producer, reads them in a new group with two members, commits,
and lets topics and groups go: some are deleted, some are forgotten and must expire. Descriptors and
threads of the broker's process must be what they were; its resident memory may grow by 2 MiB an
hour after warm-up. Minutes cannot show that through the noise of an allocator: the short form has
the least limit that it can tell from noise.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import struct
import time
from collections.abc import Callable
from itertools import combinations
from multiprocessing.sharedctypes import Synchronized
from typing import NamedTuple

import psutil
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from testkit.brokers.nodes import RunningBroker
from testkit.clients import raw
from testkit.clients.rdkafka import read, send_all
from testkit.wait import eventually
from testkit.workloads.workload import wait

MINUTES = float(os.environ.get("SOAK_MINUTES", "3"))
IS_LONG = MINUTES >= 30
CLIENTS = 6
LAST_TURN_S = 120
SAMPLES_TOLD = 240
WARM_UP_SHARE = 0.2 if IS_LONG else 0.45
MIB_PER_HOUR = 2.0 if IS_LONG else 30.0
FORGET_QUICKLY = {
    "log.segment.delete.delay.ms": 1000,
    "offsets.retention.minutes": 1,
    "offsets.retention.check.interval.ms": 5000,
    "producer.id.expiration.ms": 20_000,
    "producer.id.expiration.check.interval.ms": 5000,
    "log.retention.check.interval.ms": 5000,
    "max.incremental.fetch.session.cache.slots": 100,
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(MINUTES * 60 + 300)]


class Sample(NamedTuple):
    """The broker's process at one moment; `rss` in bytes, `at` in seconds."""

    at: float
    rss: int
    descriptors: int
    threads: int


def test_churn_leaves_no_memory_descriptors_or_threads_behind(
    fresh_broker: Callable[..., RunningBroker],
) -> None:
    broker = fresh_broker(FORGET_QUICKLY)
    process = psutil.Process(broker.pid)
    started = time.monotonic()
    end = started + MINUTES * 60
    samples: list[Sample] = []
    # A process each: librdkafka can lose the answer to an assign() while a consumer closes and then
    # waits for ever, with the interpreter's lock in its hand; that must be one client's end only.
    spawn = multiprocessing.get_context("spawn")
    turns: list[Synchronized[int]] = [spawn.Value("i", 0) for _ in range(CLIENTS)]
    clients = [
        spawn.Process(
            target=churn_until,
            args=(end, broker.bootstrap_servers, f"soak-{number}", turns[number]),
        )
        for number in range(CLIENTS)
    ]
    try:
        for client in clients:
            client.start()
        while time.monotonic() < end and all(client.exitcode is None for client in clients):
            at = time.monotonic() - started
            rss, threads = process.memory_info().rss, process.num_threads()
            samples.append(Sample(at, rss, process.num_fds(), threads))
            if IS_LONG and len(samples) % SAMPLES_TOLD == 0:
                done = sum(count.value for count in turns)
                print(f"{at:.0f} s, {done} turns, RSS {rss / (1 << 20):.1f} MiB", flush=True)
            wait(0.5)
        for client in clients:
            client.join(max(0.0, end + LAST_TURN_S - time.monotonic()))
    finally:
        ends = [client.exitcode for client in clients]
        for client in clients:
            client.kill()
            client.join()
    assert ends == [0] * CLIENTS, f"exit codes of the clients, None for one that hung: {ends}"
    warm = [sample for sample in samples if sample.at > MINUTES * 60 * WARM_UP_SHARE]
    print(f"{sum(count.value for count in turns)} turns; {figures(warm)}")
    growth = slope_per_hour(warm) / (1 << 20)
    assert growth <= MIB_PER_HOUR, f"{growth:.2f} MiB an hour: {figures(warm)}"
    assert max(sample.threads for sample in warm) <= samples[0].threads + 2, figures(samples)
    # Topics live on for a second after their deletion, and each open log holds a few files.
    quiet = min(sample.descriptors for sample in warm[: len(warm) // 4])
    eventually(lambda: process.num_fds() <= quiet, timeout_s=60, what="descriptors closed again")


def churn_until(end: float, bootstrap: str, name: str, turns: Synchronized[int]) -> None:
    """Turn after turn, counted in `turns`."""
    while time.monotonic() < end:
        churn(bootstrap, name, turns.value)
        turns.value += 1


def churn(bootstrap: str, name: str, turn: int) -> None:
    """One turn: connections, topics, producers, groups."""
    drop_connections(bootstrap)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = [f"{name}-{turn % 3}", f"{name}-once-{turn}"]  # one comes back, one never does
    for future in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        future.result(20)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0, "linger.ms": 1}
    )
    for topic in topics:
        send_all(producer, topic, [b"x" * 500] * 100)
    for group in (f"{name}-deleted-{turn}", f"{name}-forgotten-{turn}"):
        read_in_group(bootstrap, group, topics, 200)
    admin.delete_consumer_groups([f"{name}-deleted-{turn}"])[f"{name}-deleted-{turn}"].result(20)
    forgotten = ConsumerGroupTopicPartitions(f"{name}-forgotten-{turn}")
    (offsets,) = admin.list_consumer_group_offsets([forgotten]).values()
    assert offsets.result(20).topic_partitions
    for future in admin.delete_topics(topics).values():
        future.result(20)


def drop_connections(bootstrap: str) -> None:
    """Clients that come and go: closed, reset, silent, in the middle of a frame."""
    question = raw.request(raw.API_VERSIONS, 0)
    for kind in range(24):
        sock = raw.connect(bootstrap)
        if kind % 4 == 0:
            sock.sendall(question)
            raw.read_frame(sock)
        elif kind % 4 == 1:
            sock.sendall(question[: len(question) // 2])
        elif kind % 4 == 2:
            sock.sendall(question)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()


def read_in_group(bootstrap: str, group: str, topics: list[str], count: int) -> None:
    """Two members read everything and commit; the second comes while the first is at work."""
    settings = {
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "log_level": 0,
    }  # fmt: skip
    first, second = Consumer(settings), Consumer(settings)
    try:
        first.subscribe(topics)
        read(first, count)
        first.commit(asynchronous=False)
        second.subscribe(topics)
        second.poll(0.05)
    finally:
        # Before the second is asked: it may be waiting for the first to join, which it never would.
        first.close()

    def assigned() -> list[TopicPartition]:
        second.poll(0.05)
        return second.assignment()

    # A member that closes while its assignment is on the way is what librdkafka hangs on.
    eventually(assigned, what="the second member's share")
    second.close()


def slope_per_hour(samples: list[Sample]) -> float:
    """Bytes an hour by the median of all slopes (Theil-Sen): single steps do not bend it."""
    thin = samples[:: max(1, len(samples) // 150)]
    slopes = [(b.rss - a.rss) / (b.at - a.at) for a, b in combinations(thin, 2)]
    return statistics.median(slopes) * 3600


def figures(samples: list[Sample]) -> str:
    first, last = samples[0], samples[-1]
    return (
        f"from {first.at:.0f} s to {last.at:.0f} s: RSS {first.rss / (1 << 20):.1f} to "
        f"{last.rss / (1 << 20):.1f} MiB ({slope_per_hour(samples) / (1 << 20):+.2f} MiB an hour), "
        f"descriptors {first.descriptors} to {last.descriptors}, "
        f"threads {first.threads} to {last.threads}"
    )
