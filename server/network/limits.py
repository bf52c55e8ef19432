"""What connections may take from the broker: how many of them, how fast, how much memory.

Both classes are shared by the acceptor and all processors; each has one lock, held for a few
operations and never while anything else is called.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_RATE_WINDOW_MS = 1_000


class ConnectionQuotas:
    """Counts connections, in all and by address (Kafka's class of this name; N-10).

    max.connections, max.connections.per.ip with its overrides, max.connection.creation.rate: over
    a limit the connection is accepted and closed at once, and counted in `rejected`. (Kafka holds
    the acceptor instead when the total or the rate is exceeded, which lets one address starve the
    others in the backlog.)
    """

    def __init__(
        self,
        connections_max: int,
        connections_per_ip_max: int,
        per_ip_overrides: Mapping[str, int],
        creations_per_second_max: int,
    ) -> None:
        self._max = connections_max
        self._per_ip_max = connections_per_ip_max
        self._overrides = per_ip_overrides
        self._rate_max = creations_per_second_max
        self._lock = threading.Lock()
        self._by_ip: dict[str, int] = {}
        self._window_start_ms = 0
        self._window_count = 0
        self.count = 0
        self.accepted = 0
        self.rejected = 0

    def set_limits(
        self,
        connections_max: int,
        connections_per_ip_max: int,
        per_ip_overrides: Mapping[str, int],
        creations_per_second_max: int,
    ) -> None:
        """Obey other limits from now on; connections that are there stay."""
        with self._lock:
            self._max = connections_max
            self._per_ip_max = connections_per_ip_max
            self._overrides = per_ip_overrides
            self._rate_max = creations_per_second_max

    def admit(self, host: str, now_ms: int, is_reserved: bool = False) -> str | None:
        """Count a new connection in; or return which limit refuses it.

        `is_reserved`: it came to the brokers' own listener, and only the limit by address holds.
        """
        with self._lock:
            refusal = self._refusal(host, now_ms, is_reserved)
            if refusal is None:
                self._window_count += 1
                self.count += 1
                self.accepted += 1
                self._by_ip[host] = self._by_ip.get(host, 0) + 1
            else:
                self.rejected += 1
            return refusal

    def _refusal(self, host: str, now_ms: int, is_reserved: bool) -> str | None:
        if now_ms - self._window_start_ms >= _RATE_WINDOW_MS:
            self._window_start_ms = now_ms
            self._window_count = 0
        if self.count >= self._max and not is_reserved:
            return "max.connections"
        if self._by_ip.get(host, 0) >= self._overrides.get(host, self._per_ip_max):
            return "max.connections.per.ip"
        if self._window_count >= self._rate_max and not is_reserved:
            return "max.connection.creation.rate"
        return None

    def release(self, host: str) -> None:
        """A connection that was admitted has ended."""
        with self._lock:
            self.count -= 1
            left = self._by_ip[host] - 1
            if left:
                self._by_ip[host] = left
            else:
                del self._by_ip[host]


class MemoryPool:
    """What large requests may hold from arrival to answer (queued.max.request.bytes, N-9).

    As Kafka's SimpleMemoryPool: a request is let in while anything at all is left, whatever its own
    size, so the sum may exceed the pool by one request per processor but none can be stuck.
    `size` -1 means no bound.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self.available = size

    def reserve(self, count: int, when_room: Callable[[], None]) -> bool:
        """Take `count` bytes; if nothing is left, False, and `when_room` is called once later."""
        if self._size < 0:
            return True
        with self._lock:
            if self.available > 0:
                self.available -= count
                return True
            self._waiting.append(when_room)
            return False

    def release(self, count: int) -> None:
        """Give back what `reserve` took; wakes those who wait, who must try again."""
        if self._size < 0:
            return
        with self._lock:
            self.available += count
            woken = list(self._waiting) if self.available > 0 else []
            if woken:
                self._waiting.clear()
        for when_room in woken:
            when_room()
