"""The two brokers under measure, set up alike.

Apache Kafka runs with the heap and collector of its own start scripts. Both get the settings of a
developer's node: the first member of a group does not wait for others, one partition for each
internal topic, replication factor 1. Deleted topics leave the disk after a second, on both, so that
a run does not pay for writing back what an earlier run has left.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from testkit.brokers.nodes import ApacheKafka, Barnabas

KINDS = ("barnabas", "kafka")

# The distribution's own settings (kafka-run-class, kafka-server-start).
JVM_OPTIONS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
CONFIG = {
    "group.initial.rebalance.delay.ms": 0,
    "log.segment.delete.delay.ms": 1000,
    "offsets.topic.num.partitions": 1,
}

Target = ApacheKafka | Barnabas


def make(kind: str, home: Path, config: dict[str, Any] | None = None) -> Target:
    """A broker that is not started yet, in a directory of its own."""
    config = {**CONFIG, **(config or {})}
    return Barnabas(home, config) if kind == "barnabas" else ApacheKafka(home, config, JVM_OPTIONS)


def pin(pid: int, cores: set[int]) -> None:
    """Keep a running process on these cores (Linux counts threads one by one)."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)
