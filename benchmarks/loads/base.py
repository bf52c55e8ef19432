"""What all loads share: the place of the broker, topics, and commands that are written down."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

Figures = dict[str, float]

commands: list[str] = []
"""The command lines this process ran, as a person would type them; they go into the result."""

_PARTITIONS_AT_ONCE = 5_000


class LoadFailed(Exception):
    """The load did not do what it claims to measure; the text says what went wrong."""


class Place(NamedTuple):
    """Where a load finds its broker.

    `scratch` is a directory of this run. A load that starts brokers of its own uses `kind` and
    `scratch` only; for all others `bootstrap` answers and `data_dir` is what that broker writes.
    """

    kind: str
    topic: str
    scratch: str
    bootstrap: str = ""
    data_dir: str = ""


def run_command(
    command: Sequence[str], *, hide: Iterable[tuple[str, str]] = (), timeout_s: float = 280
) -> str:
    """Standard output of a command that must succeed. `hide` replaces paths in what is noted."""
    shown = shlex.join(command)
    for path, name in hide:
        shown = shown.replace(path, name)
    commands.append(shown)
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise LoadFailed(f"{shown}: exit {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 5})


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, config: dict[str, str] | None = None
) -> None:
    """Create the topic and wait until every partition has a leader.

    It has as many replicas as the broker's default: one for a node alone, three in a cluster.
    """
    admin = _admin(bootstrap)
    # A controller of either kind takes no more than 10,000 records in one request.
    first, *more = [*range(_PARTITIONS_AT_ONCE, partitions, _PARTITIONS_AT_ONCE), partitions]
    new = NewTopic(topic, first, -1, config=config or {})
    admin.create_topics([new])[topic].result(60)
    for count in more:
        admin.create_partitions([NewPartitions(topic, count)])[topic].result(60)
    await_leaders(bootstrap, topic, partitions)


def await_leaders(bootstrap: str, topic: str, partitions: int, timeout_s: float = 120) -> None:
    """Until metadata names a leader for every partition and the last one tells its end offset."""
    admin = _admin(bootstrap)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            found = admin.list_topics(topic, timeout=5).topics[topic].partitions
            if len(found) == partitions and all(part.leader >= 0 for part in found.values()):
                end_offsets(bootstrap, topic, [partitions - 1])
                return
        except KafkaException:
            pass
        time.sleep(0.01)
    raise LoadFailed(f"{topic} had no leader for each of {partitions} partitions in {timeout_s} s")


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = _admin(bootstrap)  # must outlive the call
    admin.delete_topics([topic])[topic].result(60)


def end_offsets(bootstrap: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Each partition's end offset; a broker that has just started gets 30 s to lead it."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-offsets"})
    deadline = time.monotonic() + 30

    def end_offset(index: int) -> int:
        while True:
            try:
                place = TopicPartition(topic, index)
                end: int = consumer.get_watermark_offsets(place, timeout=30)[1]
                return end
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    try:
        return {index: end_offset(index) for index in partitions}
    finally:
        consumer.close()


def expect_records(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    """Raise LoadFailed unless the topic holds exactly `count` records."""
    held = sum(end_offsets(bootstrap, topic, range(partitions)).values())
    if held != count:
        raise LoadFailed(f"{count} records were sent, the broker holds {held}")


def stored_bytes(data_dir: str, topic: str) -> int:
    """Bytes in the topic's segment files, read from the broker's directory."""
    return sum(path.stat().st_size for path in Path(data_dir).glob(f"{topic}-*/*.log"))


def percentiles(times: list[float], unit: str, factor: float) -> Figures:
    """p50, p99 and p99.9 of times in seconds, multiplied by `factor`, named with `unit`."""
    times = sorted(times)
    last = len(times) - 1
    shares = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    return {f"{name}_{unit}": times[round(last * share)] * factor for name, share in shares}
