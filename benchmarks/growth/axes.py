"""The axes: how each makes more of something, and what it measures at each point.

One request at a time, so that what is measured is the broker's CPU for a request and how long its
client waits, not a queue. Requests are made beforehand (`benchmarks.loads.frames`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.growth.log_size import log_of
from benchmarks.loads import frames
from benchmarks.loads.base import Figures, create_topic, delete_topic, percentiles
from benchmarks.loads.members import Member, await_coordinator
from benchmarks.measure import usage
from benchmarks.targets import Target


@dataclass
class Session:
    """A broker that an axis has for itself, warm, and how many requests a point is made of."""

    broker: Target
    requests: int

    @property
    def address(self) -> str:
        return self.broker.bootstrap_servers

    def cost(
        self, socks: Sequence[frames.Socket], asked: Sequence[bytes], at_most: int | None = None
    ) -> Figures:
        """µs of the broker's CPU for a request, and of waiting for its answer. Each of `asked` and
        each connection has had its turn before.
        """
        count = min(self.requests, at_most or self.requests)
        frames.one_by_one(socks, asked, max(count // 5, len(asked), len(socks)))
        before = usage(self.broker.pid).cpu_s
        times = frames.one_by_one(socks, asked, count)
        spent = usage(self.broker.pid).cpu_s - before
        frames.check_accepted(socks[-1], asked)
        return {"cpu_us": spent / count * 1e6, **percentiles(times, "us", 1e6)}


def one_record(topic: str, partition: int = 0, size: int = 100) -> bytes:
    """Produce of one record."""
    batch, _ = frames.batch_of(size, 0, int(time.time() * 1000))
    return frames.produce_frame(topic, partition, batch)


def partitions(session: Session, count: int) -> Figures:
    """One-record requests to every partition in turn."""
    topic = f"partitions-{count}"
    create_topic(session.address, topic, count)
    asked = [one_record(topic, number) for number in range(count)]
    with frames.connect(session.address) as sock:
        return session.cost([sock], asked, max(count, session.requests))


def connections(session: Session, count: int) -> Figures:
    """One-record requests over every connection in turn."""
    topic = f"connections-{count}"
    create_topic(session.address, topic)
    socks = [frames.connect(session.address) for _ in range(count)]
    try:
        return session.cost(socks, [one_record(topic)])
    finally:
        for sock in socks:
            sock.close()


def batch_size(session: Session, size: int) -> Figures:
    """Requests of one batch that is one record of this size, 500 MB at most."""
    topic = f"batches-{size}"
    create_topic(session.address, topic)
    with frames.connect(session.address) as sock:
        figures = session.cost([sock], [one_record(topic, size=size)], 500_000_000 // size)
    delete_topic(session.address, topic)
    return figures


def groups(session: Session, count: int) -> Figures:
    """Heartbeats, then commits of one partition, of the one member of each group in turn."""
    topic = f"groups-{count}"
    create_topic(session.address, topic)
    with frames.connect(session.address) as sock:
        await_coordinator(sock)
        members = [Member(sock, f"{topic}-{number}") for number in range(count)]
        heartbeats = session.cost([sock], [member.heartbeat() for member in members])
        commits = session.cost([sock], [member.commit(topic, 0) for member in members])
    return {**heartbeats, **{f"commit_{name}": value for name, value in commits.items()}}


class Axis(NamedTuple):
    """What grows. `points` by default, with `--big` those of `big` too; `tiny` to see it work.

    lines     the figures that are drawn, with their names; all of one unit.
    """

    name: str
    title: str
    points: tuple[float, ...]
    big: tuple[float, ...]
    tiny: tuple[float, ...]
    measure: Callable[[Session, Any], Figures]
    lines: dict[str, str]
    unit: str = "us"


_COST = {"cpu_us": "broker CPU", "p50_us": "wait, p50"}

AXES = (
    Axis("partitions", "partitions, one-record requests to each in turn",
         (1, 10, 100, 1000), (10_000,), (1, 3), partitions, _COST),
    Axis("connections", "connections, one-record requests over each in turn",
         (10, 100, 1000, 5000), (), (2, 5), connections, _COST),
    Axis("batch", "bytes of a batch, one a request",
         (100, 1000, 10_000, 100_000, 1_000_000), (), (100, 1000), batch_size, _COST),
    Axis("groups", "groups, requests of the member of each in turn",
         (1, 10, 100, 500), (), (1, 3), groups,
         {"cpu_us": "heartbeat, broker CPU", "commit_cpu_us": "commit, broker CPU",
          "commit_p50_us": "commit, wait p50"}),
    Axis("log", "GB of log in one partition", (0.25, 0.5, 1, 2), (10, 50), (0.01, 0.02), log_of,
         {"restart_ms": "start", "crash_ms": "start after kill -9", "lookup_ms": "by time, p50"},
         "ms"),
)  # fmt: skip
