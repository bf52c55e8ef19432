"""More nodes on one machine: `barnabas cluster start --nodes N`, partitions spread over them.

A node is one interpreter and fills one core; who has more cores runs more nodes. Every partition
has one replica here, so nodes share the work and none does it twice. For each node there is one
sending process, with batches made beforehand (`benchmarks.loads.frames`), so that clients cost
little; what counts on a machine of few cores is the CPU of a request, which should not depend on
how many nodes there are. Barnabas runs as `barnabas cluster start` runs it, by `barnabas.Cluster`.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from barnabas import Cluster
from benchmarks.loads import frames
from benchmarks.loads.base import Figures, Place, commands, create_topic, expect_records
from benchmarks.measure import MIB, usage
from benchmarks.targets import CONFIG, JVM_OPTIONS
from testkit.brokers.clusters import ApacheKafkaCluster

_ONE_REPLICA = {
    **CONFIG,
    "default.replication.factor": 1,
    "min.insync.replicas": 1,
    "offsets.topic.replication.factor": 1,
}

Task = tuple[str, list[bytes], int, int]
"""Address, frames, how many to send, how many in flight."""


@contextmanager
def _running(place: Place, nodes: int) -> Iterator[tuple[str, list[int]]]:
    """The cluster's bootstrap servers and its processes."""
    home = Path(place.scratch, "cluster")
    if place.kind == "barnabas":
        commands.append(f"barnabas cluster start --nodes {nodes}")
        with Cluster(nodes, home, _ONE_REPLICA, proxied=False) as ours:
            yield ours.bootstrap_servers, [ours.pid(node) or 0 for node in ours.nodes]
        return
    theirs = ApacheKafkaCluster(home, _ONE_REPLICA, nodes=nodes, java_options=JVM_OPTIONS)
    try:
        theirs.start()
        yield theirs.bootstrap_servers, [node.pid for node in theirs.nodes.values()]
    finally:
        theirs.close()


def produce(
    place: Place, nodes: int, size: int, count: int, batch_bytes: int, partitions: int, window: int
) -> Figures:
    """`count` records in all, once to warm up and once that counts."""
    batch, held = frames.batch_of(size, batch_bytes, int(time.time() * 1000))
    with _running(place, nodes) as (bootstrap, pids):
        create_topic(bootstrap, place.topic, partitions)
        tasks = _tasks(bootstrap, place.topic, batch, math.ceil(count / held), window)
        with multiprocessing.get_context("spawn").Pool(len(tasks)) as senders:
            senders.map(_send, tasks, chunksize=1)
            before = [usage(pid).cpu_s for pid in pids]
            spans = senders.map(_send, tasks, chunksize=1)
        spent = sum(usage(pid).cpu_s - was for pid, was in zip(pids, before, strict=True))
        rss_mib = sum(usage(pid).rss_bytes for pid in pids) / MIB
        sent = sum(task[2] for task in tasks)
        expect_records(bootstrap, place.topic, partitions, 2 * sent * held)
    seconds = max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)
    return {
        "leaders": len(tasks),
        "mb_s": sent * held * size / seconds / 1e6,
        "requests_s": sent / seconds,
        "broker_cpu_us": spent / sent * 1e6,
        "client_cpu_us": sum(cpu for _, _, cpu in spans) / sent * 1e6,
        "rss_mib": rss_mib,
    }


def _tasks(bootstrap: str, topic: str, batch: bytes, sent: int, window: int) -> list[Task]:
    """One for each node that leads partitions of the topic, each with its share of the requests."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    metadata = admin.list_topics(topic, timeout=30)
    led: dict[str, list[bytes]] = {}
    for number, partition in sorted(metadata.topics[topic].partitions.items()):
        leader = metadata.brokers[partition.leader]
        request = frames.produce_frame(topic, number, batch)
        led.setdefault(f"{leader.host}:{leader.port}", []).append(request)
    total = sum(map(len, led.values()))
    return [
        (address, requests, max(2, sent * len(requests) // total), window)
        for address, requests in led.items()
    ]


def _send(task: Task) -> tuple[float, float, float]:
    """When it began and ended (one clock for all processes), and the CPU seconds it took."""
    address, requests, count, window = task
    with frames.connect(address) as sock:
        cpu = time.process_time()
        seconds = frames.pipelined(sock, requests, count, window)
        end = time.perf_counter()
    return end - seconds, end, time.process_time() - cpu
