"""Client quotas kept to: what requests use is counted, and who used too much is made to wait.

What: `ClientQuotas` finds, for a user and a client id, the quotas that count for them (first
defined: user and client, user and default client, user, default user and client, default of both,
default user, client, default client; each key for itself) and the `Meter` that all share for whom
the same level counts. `MeteredContext` is the context of a request while there are any quotas: when
the answer leaves it counts

    Produce       producer_byte_rate     the size of the request, of failed ones too
    Fetch and     consumer_byte_rate     the size of the answer, unless a replica asked
    ShareFetch
    all           request_percentage     what it took of its thread, until it was answered or left
                                         to wait; 100 is one thread. Not: what brokers do for the
                                         cluster (ClusterAction), where it is not refused

and says in it how long the connection is muted after it (KIP-219): the longer of the times. The
answer leaves at once and whole; without acks there is none, and the connection is muted all the
same. Kafka sends a Fetch that is over its quota empty; here its answer goes out and the mute is as
long, so that there is progress whatever a batch's size. What one Fetch reads is bounded by what the
bucket holds.

A quota is a bucket that fills at its rate and holds little of it (`token_bucket.BURST_S`).

Without quotas none of this is used: the request channel makes plain contexts.
Budget: all three together, none reached, 2 us a request (benchmarks/micro/guards.py).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from heapq import nlargest
from math import ceil
from struct import Struct
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from replication.metadata.quota_entities import (
    NAME_KEPT_MAX,
    Entity,
    entity_of,
    levels,
    names_of,
    shared_by,
)
from replication.metadata.token_bucket import BURST_S, owed_ms
from server.network.addresses import canonical_address
from server.network.api import Operation
from server.network.channel import read_small_slices
from server.network.request_context import RequestContext
from wire.frame import encode_response

if TYPE_CHECKING:
    from server.network.api import Api
    from server.network.channel import Channel
    from wire.primitives import Part
    from wire.schema import Response

logger = logging.getLogger(__name__)

_PRODUCE, _FETCH, _SHARE_FETCH = 0, 1, 78
_PRODUCER, _CONSUMER, _REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
_CONNECTIONS = "connection_creation_rate"
_KEYS = frozenset({_PRODUCER, _CONSUMER, _REQUEST})
_CLUSTER_ACTION = Operation.CLUSTER_ACTION
_METERS_MAX = 10_000
_MS = 1_000
_NS_PER_PERCENT_OF_S = 10_000_000
_INT = Struct(">i")
_FRAME_HEAD = 8  # size and correlation id
_FLEXIBLE_PRODUCE = 9


_Meters = tuple["Meter | None", "Meter | None", "Meter | None"]
"""What counts the request's bytes, the answer's, the time it takes."""
_NOTHING: _Meters = (None, None, None)


class Meter:
    """What is used of one quota: a bucket that fills at `bound` a second. Any thread."""

    __slots__ = ("_at_ms", "_left", "_lock", "bound")

    def __init__(self, bound: float) -> None:
        self.bound = bound
        self._left = bound * BURST_S
        self._at_ms = 0
        self._lock = threading.Lock()

    def record(self, amount: float, now_ms: int) -> int:
        """Count; returns for how many ms whoever did it must wait."""
        with self._lock:
            if now_ms > self._at_ms:
                bound = self.bound
                gained = (now_ms - self._at_ms) * bound / _MS
                self._left = min(self._left + gained, bound * BURST_S)
                self._at_ms = now_ms
            self._left = left = self._left - amount
        return 0 if left >= 0 else ceil(owed_ms(-left, self.bound))

    @property
    def full_ms(self) -> float:
        """When it will be as if nothing had been used."""
        return self._at_ms + (BURST_S - self._left / self.bound) * _MS


class ClientQuotas:
    """The quotas of a broker. `update` on the loader's thread, `context` on any."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Entity, float]] = {}
        self._meters: dict[tuple[str, str | None, str | None], Meter] = {}
        self._found: dict[tuple[str, str, int], _Meters | None] = {}
        self._lock = threading.Lock()

    @property
    def any(self) -> bool:
        """Is there anything to measure."""
        return bool(self._values)

    def update(self, records: Iterable[Any]) -> None:
        """Take all quotas there are (ClientQuotaRecord)."""
        values: dict[str, dict[Entity, float]] = {}
        for record in records:
            if record.key in _KEYS:
                values.setdefault(record.key, {})[entity_of(record.entity)] = record.value
        with self._lock:
            self._values = values
            self._found = {}

    def context(
        self,
        api: Api,
        api_version: int,
        correlation_id: int,
        client_id: str,
        connection: Channel,
        broker: Any,
        frame_bytes: int,
    ) -> RequestContext[Any]:
        """For one request; a plain one if nothing of it is counted."""
        who = (connection.principal, client_id, api.api_key)
        found = self._found
        meters = found[who] if who in found else self._find(who, api)
        if meters is None:
            return RequestContext(api, api_version, correlation_id, client_id, connection, broker)
        # Not in an __init__ of its own, which would call another: 0.2 us a request.
        context = MeteredContext(api, api_version, correlation_id, client_id, connection, broker)
        context.meters = context.own_meters = meters
        if api.operation is _CLUSTER_ACTION:
            context.meters = _NOTHING
        context.frame_bytes = frame_bytes
        if meters[2] is not None:
            context.begin()
        return context

    def _find(self, who: tuple[str, str, int], api: Api) -> _Meters | None:
        principal, client, api_key = who
        user = principal.partition(":")[2]
        with self._lock:
            found = self._found
            if len(self._meters) >= _METERS_MAX:
                self._forget_the_idle()
                found = self._found = {}
            elif len(found) >= _METERS_MAX:
                found = self._found = {}  # not cleared: others are looking
            meters = (
                self._meter(_PRODUCER, user, client) if api_key == _PRODUCE else None,
                self._meter(_CONSUMER, user, client) if api_key in (_FETCH, _SHARE_FETCH) else None,
                self._meter(_REQUEST, user, client),
            )
            known = None if meters == _NOTHING else meters
            if len(client) <= NAME_KEPT_MAX:
                found[who] = known
            return known

    def _forget_the_idle(self) -> None:
        """Names are the clients' choice: of too many meters those stay that are full again last, so
        that nobody loses what others owe, or his own debts, by making names up."""
        kept = nlargest(_METERS_MAX // 2, self._meters.items(), key=lambda one: one[1].full_ms)
        self._meters = dict(kept)

    def _meter(self, key: str, user: str, client: str) -> Meter | None:
        values = self._values.get(key)
        if not values:
            return None
        for level in levels(user, client):
            if level in values:
                shared = key, *shared_by(level, user, client)
                meter = self._meters.get(shared)
                if meter is None:
                    meter = Meter(values[level])
                    self._meters[shared] = meter
                meter.bound = values[level]
                return meter
        return None


def connection_rates(records: Iterable[Any]) -> dict[str | None, float]:
    """connection_creation_rate by address, as a peer's is written; None: of the others. Of an
    address that has several, for ::ffff:a.b.c.d is a.b.c.d, the least counts. Host names, which
    Apache Kafka's controllers take, are told in the log: nobody here resolves them."""
    rates: dict[str | None, float] = {}
    for record in records:
        if record.key == _CONNECTIONS:
            (name,) = names_of(entity_of(record.entity)).values()
            try:
                host = None if name is None else canonical_address(name)
            except ValueError:
                logger.warning("quota of a host name is not kept to ip=%r", name)
                continue
            rates[host] = min(record.value, rates.get(host, record.value))
    return rates


class MeteredContext(RequestContext[Any]):
    """One request of which something is counted."""

    __slots__ = ("began_ns", "ended_ns", "frame_bytes", "meters", "own_meters")

    meters: _Meters
    own_meters: _Meters
    """What would count if it were not done for the cluster."""
    frame_bytes: int
    began_ns: int
    """Since when a thread works on it."""
    ended_ns: int
    """Until when, if it is not answered yet; 0: it does still."""

    def begin(self) -> None:
        self.began_ns, self.ended_ns = perf_counter_ns(), 0

    def wait(self) -> None:
        self.ended_ns = perf_counter_ns()

    def exempt(self, *, is_allowed: bool = True) -> None:
        self.meters = _NOTHING if is_allowed else self.own_meters

    @property
    def fetch_bytes_max(self) -> int:  # type: ignore[override]  # a class attribute, as a default
        of_answer = self.meters[1]
        if of_answer is None:
            return RequestContext.fetch_bytes_max
        return max(1, int(of_answer.bound * BURST_S))

    def send(self, response: Response) -> None:
        throttle_ms = self._count()
        if throttle_ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = throttle_ms
        is_flexible = self.api_version >= self.api.response_flexible
        parts = encode_response(is_flexible, self.api_version, self.correlation_id, response)
        of_answer = self.meters[1]
        if of_answer is not None:
            size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
            for_bytes_ms = of_answer.record(size, self.connection.processor.now_ms)
            if for_bytes_ms > throttle_ms:
                self.throttle_ms = for_bytes_ms
                _patch(parts, _FRAME_HEAD + is_flexible, for_bytes_ms)
        if len(parts) > 1:
            read_small_slices(parts)
        RequestContext.send_parts(self, parts)

    def send_parts(self, parts: list[Part]) -> None:
        """Produce's ordinary form: its answer ends with the throttle time."""
        throttle_ms = self._count()
        if throttle_ms:
            is_flexible = self.api_version >= _FLEXIBLE_PRODUCE
            _patch(parts, -_INT.size - is_flexible, throttle_ms)
        RequestContext.send_parts(self, parts)

    def no_response(self) -> None:
        of_request = self.meters[0]
        if of_request is not None:
            now_ms = self.connection.processor.now_ms
            self.throttle_ms = of_request.record(self.frame_bytes, now_ms)
        super().no_response()

    def _count(self) -> int:
        """Count what is known before the answer is encoded; for how many ms it mutes."""
        of_request, _, of_time = self.meters
        throttle_ms = self.throttle_ms
        if of_request is not None:
            now_ms = self.connection.processor.now_ms
            throttle_ms = max(throttle_ms, of_request.record(self.frame_bytes, now_ms))
        if of_time is not None:
            ended_ns = self.ended_ns or perf_counter_ns()
            used = (ended_ns - self.began_ns) / _NS_PER_PERCENT_OF_S
            for_time_ms = of_time.record(used, self.connection.processor.now_ms)
            if for_time_ms > throttle_ms:
                throttle_ms = max(throttle_ms, min(for_time_ms, _MS))
        self.throttle_ms = throttle_ms
        return throttle_ms


def _patch(parts: list[Part], at: int, throttle_ms: int) -> None:
    """Write the throttle time into an answer that is encoded already."""
    first = bytearray(parts[0])  # type: ignore[arg-type]  # bytes, before what stands in a file
    _INT.pack_into(first, at if at >= 0 else len(first) + at, throttle_ms)
    parts[0] = bytes(first)
