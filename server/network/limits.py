"""What connections may take from the broker: how many of them, how fast, how much memory.

Both classes are shared by the acceptor and all processors; each has one lock, held for a few
operations and never while anything else is called.
"""

from __future__ import annotations

import threading
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
    """What large requests hold from the arrival of their bytes to the answer (N-9).

    `size` is queued.max.request.bytes, -1 for no bound. Only what arrived is charged: Kafka's
    SimpleMemoryPool charges what a frame claims to be, and a few idle sockets that claimed much
    keep everybody else out.

    While anything is left, whoever has bytes to read may read on. When nothing is left one frame
    may go on all the same, to its end and until it is answered; the others are read when there is
    room again or when it is their turn to be that one, first come first. So the sum exceeds the
    pool by one frame and one read of each processor, and nobody is stuck for ever: the processor
    ends the one that goes on if it falls silent while others wait (`blocker`), and half-sent frames
    that take long while they use up the pool (`Connection.expired`).

    A holder is a connection; it has one large frame at a time.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._overdrawn: object | None = None
        self._waiting: dict[object, Callable[[], None]] = {}
        self.available = size

    @property
    def is_exhausted(self) -> bool:
        return self._size >= 0 and self.available <= 0

    @property
    def blocker(self) -> object | None:
        """The one that goes on although nothing is left, if others wait for it."""
        return self._overdrawn if self._waiting else None

    def charge(self, count: int) -> None:
        """`count` bytes of a large frame arrived."""
        with self._lock:
            self.available -= count

    def may_read(self, holder: object, when_room: Callable[[], None]) -> bool:
        """Whether `holder` may read more; if not, `when_room` is called once, to ask again."""
        if self._size < 0:
            return True
        with self._lock:
            if self.available <= 0 and self._overdrawn is not holder:
                if self._overdrawn is not None:
                    self._waiting[holder] = when_room
                    return False
                self._overdrawn = holder
            return True

    def release(self, holder: object, count: int) -> None:
        """The frame of `holder` was answered, or given up: give back what was charged for it."""
        with self._lock:
            self.available += count
            self._waiting.pop(holder, None)
            if self._overdrawn is holder:
                self._overdrawn = None
            woken = []
            if self.available > 0:
                woken = list(self._waiting.values())
                self._waiting.clear()
            elif self._overdrawn is None and self._waiting:
                self._overdrawn = next(iter(self._waiting))
                woken = [self._waiting.pop(self._overdrawn)]
        for when_room in woken:
            when_room()
