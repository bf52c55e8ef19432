"""W12: a group of many members on a broker of its own: time until it is stable, and rolling some.

`protocol` is "classic" or "consumer" (KIP-848). Stable means that every partition has exactly one
owner and every member owns one at least.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from benchmarks.loads.base import Figures, LoadFailed, Place, commands, create_topic
from benchmarks.loads.lifetime import start
from benchmarks.measure import MIB, usage
from benchmarks.targets import make

_TIMEOUT_S = 90.0


class _Member:
    """One consumer and the partitions it owns now, as its callbacks tell."""

    def __init__(self, settings: dict[str, Any], topic: str) -> None:
        self.owned: set[int] = set()
        self.rebalances = 0
        self.consumer = Consumer(settings)
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned.update(part.partition for part in partitions)
        self.rebalances += 1

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned.difference_update(part.partition for part in partitions)


def many_members(
    place: Place, members: int, partitions: int, rolled: int, protocol: str
) -> Figures:
    """All members join at once; then `rolled` of them are replaced, one after the other."""
    broker = make(place.kind, Path(place.scratch, "node"))
    start(broker)
    try:
        create_topic(broker.bootstrap_servers, place.topic, partitions)
        settings: dict[str, Any] = {"group.id": "many", "group.protocol": protocol}
        if protocol == "classic":
            settings["session.timeout.ms"] = 45_000
        commands.append(f"{members} x confluent_kafka.Consumer({settings})")
        settings.update({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        before = usage(broker.pid).cpu_s
        began = time.perf_counter()
        group = [_Member(settings, place.topic) for _ in range(members)]
        _until_stable(group, partitions)
        figures: Figures = {"stable_s": time.perf_counter() - began}
        began = time.perf_counter()
        for _ in range(rolled):
            threading.Thread(target=group.pop(0).consumer.close, daemon=True).start()
            group.append(_Member(settings, place.topic))
            _until_stable(group, partitions)
        figures["roll_s"] = time.perf_counter() - began
        figures["rebalances"] = sum(member.rebalances for member in group) / len(group)
        spent = usage(broker.pid)
        figures["broker_cpu_s"] = spent.cpu_s - before
        figures["group_mib"] = spent.rss_bytes / MIB
    finally:
        broker.kill()
    return figures


def _until_stable(group: list[_Member], partitions: int) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        for member in group:
            message = member.consumer.poll(0)
            error = message.error() if message is not None else None
            if error is not None and error.fatal():
                raise LoadFailed(f"a member failed: {error}")
        owners = [partition for member in group for partition in member.owned]
        if len(owners) == len(set(owners)) == partitions and all(m.owned for m in group):
            return
        time.sleep(0.002)
    owning = sum(1 for member in group if member.owned)
    raise LoadFailed(f"not stable in {_TIMEOUT_S:.0f} s: {owning} of {len(group)} members own one")
