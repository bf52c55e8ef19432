"""What connections may take from the broker: how many of them, how fast, how much memory.

The classes are shared by the acceptor and all processors; each has one lock, held for a few
operations and never while anything else is called.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from heapq import heapify, heappop, heappush
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from replication.metadata.token_bucket import BURST_S, TokenBucket, TokenBuckets, owed_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

T = TypeVar("T")

NO_LIMIT = 2_147_483_647
_WAIT_MS_MAX = 1_000
_ADDRESSES_MAX = 10_000


class ListenerLimits(NamedTuple):
    """What one listener's connections are held to beside the broker's limits."""

    connections_max: int = NO_LIMIT
    creations_per_second_max: int = NO_LIMIT


class Admission(NamedTuple):
    """What becomes of a new connection."""

    refused_by: str | None = None
    """The config or quota that refuses it."""
    wait_ms: int = 0
    """If none does: after how long it may be served."""


class ConnectionQuotas:
    """Counts connections, in all, by listener and by address (Kafka's class of this name; N-10).

    max.connections, of the broker and of a listener, max.connections.per.ip with its overrides:
    over these the connection is accepted and closed at once, and counted in `rejected`.

    max.connection.creation.rate, of the broker and of a listener, connection_creation_rate (the
    quota of an address): over these a connection takes its turn in advance and waits for it, for a
    second at most; who would wait longer is refused and uses up nothing. (Kafka holds the acceptor
    when the total or the broker's rate is exceeded, which lets one address starve the others in the
    backlog, and refuses whoever is over the rate of his address.)
    """

    def __init__(
        self,
        connections_max: int,
        connections_per_ip_max: int,
        per_ip_overrides: Mapping[str, int],
        creations_per_second_max: int,
        listeners: Mapping[str, ListenerLimits] | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._by_ip: dict[str, int] = {}
        self._by_listener: dict[str, int] = {}
        self._rates: dict[str | None, TokenBucket] = {}
        self._ip_rates: Mapping[str | None, float] = {}
        self._ip_buckets = TokenBuckets(BURST_S, _ADDRESSES_MAX)
        self.count = 0
        self.accepted = 0
        self.rejected = 0
        self.set_limits(
            connections_max,
            connections_per_ip_max,
            per_ip_overrides,
            creations_per_second_max,
            listeners,
        )

    def set_limits(
        self,
        connections_max: int,
        connections_per_ip_max: int,
        per_ip_overrides: Mapping[str, int],
        creations_per_second_max: int,
        listeners: Mapping[str, ListenerLimits] | None = None,
    ) -> None:
        """Obey other limits from now on; connections that are there stay."""
        with self._lock:
            self._max = connections_max
            self._per_ip_max = connections_per_ip_max
            self._overrides = per_ip_overrides
            self._listeners = listeners or {}
            rates: dict[str | None, int] = {None: creations_per_second_max}
            rates.update(
                (name, one.creations_per_second_max) for name, one in self._listeners.items()
            )
            known, self._rates = self._rates, {}
            for name, rate in rates.items():
                if rate != NO_LIMIT:
                    bucket = self._rates[name] = known.get(name) or TokenBucket(rate, BURST_S)
                    bucket.rate = rate

    def set_ip_rates(self, rates: Mapping[str | None, float]) -> None:
        """connection_creation_rate by address, None for those that have none of their own."""
        with self._lock:
            self._ip_rates = rates
            if not rates:
                self._ip_buckets = TokenBuckets(BURST_S, _ADDRESSES_MAX)

    def admit(
        self, host: str, now_ms: int, listener: str = "", is_reserved: bool = False
    ) -> Admission:
        """Count a new connection in, or refuse it.

        `is_reserved`: it came to the brokers' own listener, and only that one's limits and those by
        address hold.
        """
        with self._lock:
            refused_by = self._refusal_by_count(host, listener, is_reserved)
            admission = (
                self._by_rate(host, now_ms, listener, is_reserved)
                if refused_by is None
                else Admission(refused_by)
            )
            if admission.refused_by is None:
                self.count += 1
                self.accepted += 1
                self._by_ip[host] = self._by_ip.get(host, 0) + 1
                self._by_listener[listener] = self._by_listener.get(listener, 0) + 1
            else:
                self.rejected += 1
            return admission

    def _refusal_by_count(self, host: str, listener: str, is_reserved: bool) -> str | None:
        if self.count >= self._max and not is_reserved:
            return "max.connections"
        limits = self._listeners.get(listener)
        if limits is not None and self._by_listener.get(listener, 0) >= limits.connections_max:
            return f"listener.name.{listener.lower()}.max.connections"
        if self._by_ip.get(host, 0) >= self._overrides.get(host, self._per_ip_max):
            return "max.connections.per.ip"
        return None

    def _by_rate(self, host: str, now_ms: int, listener: str, is_reserved: bool) -> Admission:
        rates = {
            "connection_creation_rate": self._ip_bucket(host),
            f"listener.name.{listener.lower()}.max.connection.creation.rate": self._rates.get(
                listener
            ),
            "max.connection.creation.rate": None if is_reserved else self._rates.get(None),
        }
        buckets = {key: bucket for key, bucket in rates.items() if bucket is not None}
        wait_ms = 0
        for key, bucket in buckets.items():
            # One, or all that a slow one holds.
            missing = min(1, bucket.rate * BURST_S) - bucket.left(now_ms)
            if missing > 0:
                wait_ms = max(wait_ms, ceil(owed_ms(missing, bucket.rate)))
                if wait_ms > _WAIT_MS_MAX:
                    return Admission(key)
        for bucket in buckets.values():
            bucket.take(1)
        return Admission(wait_ms=wait_ms)

    def _ip_bucket(self, host: str) -> TokenBucket | None:
        rate = self._ip_rates.get(host, self._ip_rates.get(None))
        if rate is None:
            return None
        return self._ip_buckets.of(host, rate)

    def release(self, host: str, listener: str = "") -> None:
        """A connection that was admitted has ended."""
        with self._lock:
            self.count -= 1
            self._by_listener[listener] -= 1
            left = self._by_ip[host] - 1
            if left:
                self._by_ip[host] = left
            else:
                del self._by_ip[host]


class Unread(NamedTuple, Generic[T]):
    """What waits for one reader."""

    address: str
    bytes: int
    age_ms: int
    """Since its first byte was not taken; at least 1."""
    holder: T


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
        self.size = size
        self._lock = threading.Lock()
        self._overdrawn: object | None = None
        self._waiting: dict[object, Callable[[], None]] = {}
        self.available = size

    @property
    def is_exhausted(self) -> bool:
        return self.size >= 0 and self.available <= 0

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
        if self.size < 0:
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


class UnreadAnswers(Generic[T]):
    """What answers hold in memory that wait for their readers, of all network threads (N-8).

    `size` bytes at most, -1 for no bound; over it readers are given up: of the address that has had
    most for longest the one who has, until the rest is below it. Memory is lent by size and time.
    Those who read on give back soon what they had, however many come from one address; who only
    asks grows dearer with each second, from however many he comes.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._held: dict[int, Sequence[Unread[T]]] = {}

    def too_much(self, thread: int, held: Sequence[Unread[T]]) -> list[T]:
        """Note what the connections of one thread hold; which of them must go. Of the others that
        must their own threads are told."""
        with self._lock:
            self._held[thread] = held
            dearest = set(self._dearest(list(chain.from_iterable(self._held.values()))))
            self._held[thread] = [one for one in held if one.holder not in dearest]
        return [one.holder for one in held if one.holder in dearest]

    def _dearest(self, held: Sequence[Unread[T]]) -> list[T]:
        excess = sum(one.bytes for one in held) - self._size if self._size >= 0 else 0
        if excess <= 0:
            return []
        by_address: dict[str, list[Unread[T]]] = defaultdict(list)
        for one in sorted(held, key=_price):
            by_address[one.address].append(one)
        # The least is at hand in a heap, so prices are negative there.
        prices = [(-sum(map(_price, own)), address) for address, own in by_address.items()]
        heapify(prices)
        gone = []
        while excess > 0:
            price, address = heappop(prices)
            one = by_address[address].pop()
            gone.append(one.holder)
            excess -= one.bytes
            if by_address[address]:
                heappush(prices, (price + _price(one), address))
        return gone


def _price(unread: Unread[Any]) -> int:
    return unread.bytes * unread.age_ms


def half_sent_fill(memory: MemoryPool, channels: Iterable[Any]) -> bool:
    """Whether nothing is left of the pool, and of what these hold of it more is for frames that are
    not complete than for requests that are."""
    if not memory.is_exhausted:
        return False
    held = [one for one in channels if one.charged_bytes and one.memory is memory]
    half_sent = sum(one.charged_bytes for one in held if one.holds_half_sent)
    return bool(half_sent * 2 > sum(one.charged_bytes for one in held))
