"""A node that nobody looks at: 1,000 partitions, 200 groups, 500 connections, and what it costs.

Two figures. Idle: each group's member sends its heartbeat every three seconds, which is all that
Kafka asks of it; the other connections are quiet. Waiting: each member has also a fetch that waits
for half a second, again and again, and commits every five seconds, as consumers of an empty topic
do (Java's defaults).
"""

from __future__ import annotations

import heapq
import selectors
import time
from pathlib import Path
from typing import NamedTuple, cast

from benchmarks.loads import frames
from benchmarks.loads.base import Figures, Place, commands, create_topic
from benchmarks.loads.lifetime import start
from benchmarks.loads.members import Member, await_coordinator, fetch_frame
from benchmarks.measure import MIB, usage
from benchmarks.targets import make
from testkit.clients.raw import read_frame

_HEARTBEAT_S, _COMMIT_S, _FETCH_WAIT_MS = 3.0, 5.0, 500


class Regular(NamedTuple):
    """A request that is sent once in a period."""

    sock: frames.Socket
    request: bytes
    period_s: float


def many_quiet_clients(
    place: Place, partitions: int, groups: int, connections: int, seconds: float
) -> Figures:
    """CPU of a core in percent, and memory, over `seconds` of each kind of quiet."""
    broker = make(place.kind, Path(place.scratch, "node"))
    start(broker)
    try:
        address = broker.bootstrap_servers
        create_topic(address, place.topic, partitions)
        socks = [frames.connect(address) for _ in range(max(connections, 2 * groups))]
        await_coordinator(socks[0])
        coordinators, readers = socks[:groups], socks[groups : 2 * groups]
        group = [Member(sock, f"group-{n}") for n, sock in enumerate(coordinators)]
        commands.append(f"{len(socks)} sockets, {groups} with a group's member each")
        mine = list(enumerate(zip(coordinators, group, strict=True)))
        beats = [Regular(sock, each.heartbeat(), _HEARTBEAT_S) for _, (sock, each) in mine]
        commits = [
            Regular(sock, each.commit(place.topic, n % partitions), _COMMIT_S)
            for n, (sock, each) in mine
        ]
        fetches = [
            (sock, fetch_frame(place.topic, n % partitions, _FETCH_WAIT_MS))
            for n, sock in enumerate(readers)
        ]
        _live(beats, [], seconds / 2)
        before = usage(broker.pid).cpu_s
        _live(beats, [], seconds)
        between = usage(broker.pid).cpu_s
        _live([*beats, *commits], fetches, seconds)
        after = usage(broker.pid)
        for requests in ([each.request for each in beats], [each.request for each in commits]):
            frames.check_accepted(coordinators[0], requests)
        frames.check_accepted(readers[0], [request for _, request in fetches])
        return {
            "idle_cpu_pct": (between - before) / seconds * 100,
            "waiting_cpu_pct": (after.cpu_s - between) / seconds * 100,
            "idle_mib": after.rss_bytes / MIB,
        }
    finally:
        broker.kill()


def _live(
    regular: list[Regular], fetches: list[tuple[frames.Socket, bytes]], seconds: float
) -> None:
    """Send each of `regular` once in its period, all of one period evenly spread, and each fetch
    again when it is answered.
    """
    selector = selectors.DefaultSelector()
    for sock, fetch in fetches:
        selector.register(sock, selectors.EVENT_READ, fetch)
        sock.sendall(fetch)
    began = time.perf_counter()
    due = [(began + n / len(regular) * each.period_s, n) for n, each in enumerate(regular)]
    heapq.heapify(due)
    while (now := time.perf_counter()) < began + seconds:
        at, number = due[0]
        if at <= now:
            each = regular[number]
            heapq.heapreplace(due, (at + each.period_s, number))
            each.sock.sendall(each.request)
            read_frame(each.sock)
        for key, _ in selector.select(max(0.0, due[0][0] - time.perf_counter())):
            sock = cast(frames.Socket, key.fileobj)
            read_frame(sock)
            sock.sendall(key.data)
    for sock, _ in fetches:
        read_frame(sock)
    selector.close()
