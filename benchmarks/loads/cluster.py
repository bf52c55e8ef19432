"""W13: three nodes, replication factor 3, min.insync.replicas 2, acks=all, side by side.

Each load here starts three broker-and-controller processes of its own, the same server.properties
for both brokers, with the shorter timeouts of the chaos tests (session 3 s, heartbeat 0.3 s,
election 0.5 s): failover is compared at equal timeouts. CPU and memory are of all three together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.loads import pacing, rdkafka
from benchmarks.loads.base import Figures, LoadFailed, Place, create_topic
from benchmarks.measure import MIB, usage
from benchmarks.targets import CONFIG, JVM_OPTIONS
from testkit.brokers.clusters import ApacheKafkaCluster, BarnabasCluster, ClusterOfNodes

_IDEMPOTENT = {"acks": "all", "enable.idempotence": True}
_PROBE_S = 0.005


def _cluster(place: Place) -> ClusterOfNodes:
    home = Path(place.scratch, "cluster")
    if place.kind == "barnabas":
        return BarnabasCluster(home, CONFIG)
    return ApacheKafkaCluster(home, CONFIG, java_options=JVM_OPTIONS)


def measured(place: Place, load: Callable[[ClusterOfNodes, Place], Figures]) -> Figures:
    """Run a load on a new cluster; adds the CPU seconds of the load and the memory at its end."""
    cluster = _cluster(place)
    try:
        began = time.perf_counter()
        cluster.start()
        ready_s = time.perf_counter() - began
        there = place._replace(bootstrap=cluster.bootstrap_servers)
        before = _cpu_s(cluster)
        figures = load(cluster, there)
        figures["broker_cpu_s"] = _cpu_s(cluster) - before
        figures["rss_mib"] = sum(usage(n.pid).rss_bytes for n in cluster.nodes.values()) / MIB
        figures["ready_s"] = ready_s
        return figures
    finally:
        cluster.close()


def _cpu_s(cluster: ClusterOfNodes) -> float:
    return sum(usage(node.pid).cpu_s for node in cluster.nodes.values())


def produce(
    place: Place, size: int, count: int, partitions: int, batch_bytes: int = 1_000_000
) -> Figures:
    """Throughput of one idempotent producer; every acknowledged byte is on three nodes."""
    settings = {**_IDEMPOTENT, "batch.size": batch_bytes}

    def load(cluster: ClusterOfNodes, there: Place) -> Figures:
        warm_up = there._replace(topic=f"{there.topic}-warm-up")
        rdkafka.produce(warm_up, size, count, partitions, **settings)  # a JVM compiles
        return rdkafka.produce(there, size, count, partitions, **settings)

    return measured(place, load)


def fixed_rate(place: Place, rate: int, size: int, seconds: float, warm_up_s: float) -> Figures:
    """Latency of acknowledgements and of reading, at a rate both can bear."""
    return measured(
        place, lambda cluster, there: pacing.fixed_rate(there, rate, size, seconds, warm_up_s)
    )


def ping_pong(place: Place, size: int, count: int) -> Figures:
    """One record at a time, from produce() to the consumer that waits for it."""
    return measured(place, lambda cluster, there: rdkafka.ping_pong(there, size, count, "all"))


def failover(place: Place, kills: int) -> Figures:
    """kill -9 of the leader of the one partition: how long nothing can be written."""

    def load(cluster: ClusterOfNodes, there: Place) -> Figures:
        create_topic(there.bootstrap, there.topic)
        probe = _Probe(there)
        probe.start()
        away, whole = [], []
        try:
            for _ in range(kills):
                probe.await_ack_of_later_record()
                leader = cluster.leader(there.topic)
                killed = time.perf_counter()
                cluster.kill(leader)
                away.append(probe.await_ack_of_later_record() - killed)
                restarted = time.perf_counter()
                cluster.restart(leader)
                cluster.await_full_isr(there.topic)
                whole.append(time.perf_counter() - restarted)
        finally:
            probe.end()
        return {
            "unavailable_s": sorted(away)[len(away) // 2],
            "unavailable_max_s": max(away),
            "in_sync_again_s": sorted(whole)[len(whole) // 2],
        }

    return measured(place, load)


class _Probe(threading.Thread):
    """One idempotent producer, a record every five milliseconds, and when the last ack came."""

    def __init__(self, place: Place) -> None:
        super().__init__(daemon=True)
        self._producer = rdkafka.producer_of(
            place.bootstrap, **_IDEMPOTENT, **{"linger.ms": 0, "reconnect.backoff.max.ms": 500}
        )
        self._topic = place.topic
        self._ending = threading.Event()
        self._acks: list[tuple[float, float]] = []  # sent, acknowledged
        self._failed: list[str] = []

    def run(self) -> None:
        while not self._ending.wait(_PROBE_S):
            sent = time.perf_counter()

            def note(error: object, _message: object, sent: float = sent) -> None:
                if error is not None:
                    self._failed.append(str(error))
                self._acks.append((sent, time.perf_counter()))

            self._producer.produce(self._topic, b"probe", partition=0, on_delivery=note)
            self._producer.poll(0)

    def await_ack_of_later_record(self) -> float:
        """When a record was acknowledged that was sent after this call."""
        called = time.perf_counter()
        seen = len(self._acks)
        while time.perf_counter() < called + 60:
            for sent, acked in self._acks[seen:]:
                if sent > called:
                    return acked
            time.sleep(0.002)
        raise LoadFailed("nothing could be written for 60 s")

    def end(self) -> None:
        self._ending.set()
        self.join(10)
        left = self._producer.flush(60)
        if left or self._failed:
            raise LoadFailed(f"{left} records not acknowledged, failed: {self._failed[:1]}")
