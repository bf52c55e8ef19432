"""How long a fault kept a partition from taking records, from a history. PURE."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from testkit.checking.history import OK, Event, Send, Sent


def recovery_times(history: Iterable[Event], faults: Mapping[int, list[int]]) -> dict[int, float]:
    """For each fault (its time: the partitions it concerns), seconds until all of them work again:
    until a record that was sent after the fault is acknowledged on the last of them."""
    sends: dict[tuple[str, int], tuple[int, int]] = {}
    acks: list[tuple[int, int, int]] = []  # sent at, acknowledged at, partition
    for event in history:
        if isinstance(event, Send):
            sends[event.who, event.number] = (event.t, event.partition)
        elif isinstance(event, Sent) and event.outcome == OK:
            sent_at, partition = sends.pop((event.who, event.number))
            acks.append((sent_at, event.t, partition))
    found = {}
    for at, partitions in faults.items():
        first = {
            partition: min(acked for sent, acked, p in acks if p == partition and sent > at)
            for partition in partitions
        }
        found[at] = (max(first.values()) - at) / 1e9
    return found


def longest_gaps(history: Iterable[Event]) -> dict[int, float]:
    """The longest time without an acknowledgement, in seconds, by partition."""
    partition_of: dict[tuple[str, int], int] = {}
    times: dict[int, list[int]] = {}
    for event in history:
        if isinstance(event, Send):
            partition_of[event.who, event.number] = event.partition
        elif isinstance(event, Sent) and event.outcome == OK:
            times.setdefault(partition_of[event.who, event.number], []).append(event.t)
    return {
        partition: max((b - a for a, b in itertools.pairwise(s)), default=0) / 1e9
        for partition, s in ((p, sorted(t)) for p, t in times.items())
    }
