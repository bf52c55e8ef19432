"""Replication quotas: how fast moved replicas may be copied (KIP-73).

`leader.replication.throttled.rate` and `follower.replication.throttled.rate` bound what the
replicas named in a topic's `{leader,follower}.replication.throttled.replicas` take, in bytes per
second. Only replicas that are behind are held back: one in sync must not leave the ISR for it.

The rate is that of the last `replication.quota.window.num` windows of one second (Kafka:
ReplicationQuotaManager), the running one included. Nothing is delayed: who asks while the quota is
exceeded goes without, and asks again.

Lock: `_lock` guards the samples. The fetchers of all leaders share the follower's quota, all
network threads the leader's.
"""

from __future__ import annotations

import threading
from collections import deque

from storage.config import LONG_MAX, Clock

_WINDOW_MS = 1000
ALL = "*"


class ReplicationQuota:
    """One direction's quota. `rate_limit` is in bytes per second; LONG_MAX is none."""

    __slots__ = ("_clock", "_lock", "_samples", "_window_count", "rate_limit")

    def __init__(self, clock: Clock, rate_limit: int = LONG_MAX, window_count: int = 11) -> None:
        self.rate_limit = rate_limit
        self._clock = clock
        self._window_count = window_count
        self._samples: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()

    @property
    def is_set(self) -> bool:
        """Is there a limit at all? If not, nothing need be asked or recorded."""
        return self.rate_limit != LONG_MAX

    def record(self, size: int) -> None:
        """`size` bytes of throttled replicas were copied."""
        window = self._clock.now_ms() // _WINDOW_MS
        samples = self._samples
        with self._lock:
            if samples and samples[-1][0] == window:
                samples[-1] = (window, samples[-1][1] + size)
            else:
                samples.append((window, size))

    def is_exceeded(self) -> bool:
        """Was more copied than the limit allows, over the windows that count?"""
        if not self.is_set:
            return False
        now_ms = self._clock.now_ms()
        oldest = now_ms // _WINDOW_MS - self._window_count + 1
        samples = self._samples
        with self._lock:
            while samples and samples[0][0] < oldest:
                samples.popleft()
            if not samples:
                return False
            first = samples[0][0]
            total = sum(size for _, size in samples)
        # As long as one whole window, so that a first burst is not judged by a few milliseconds.
        elapsed_ms = max(now_ms - first * _WINDOW_MS, _WINDOW_MS)
        return total * 1000 > self.rate_limit * elapsed_ms


def is_throttled(throttled_replicas: frozenset[str], partition_index: int, broker_id: int) -> bool:
    """Do a topic's `partition:broker` pairs (or `*`) name this replica?"""
    if not throttled_replicas:
        return False
    return ALL in throttled_replicas or f"{partition_index}:{broker_id}" in throttled_replicas
