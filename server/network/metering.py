"""Client quotas kept to: what requests use is counted, and who used too much is made to wait.

What: `ClientQuotas` finds, for a user and a client id, the quotas that count for them (first
defined: user and client, user and default client, user, default user and client, default of both,
default user, client, default client; each key for itself) and the `Meter` that all share for whom
the same level counts. `MeteredContext` is the context of a request while there are any quotas: when
the answer leaves it counts

    Produce       producer_byte_rate     the size of the request, of failed ones too
    Fetch         consumer_byte_rate     the size of the answer, unless a replica asked
    all           request_percentage     what it took of its thread; 100 is one thread. Not: what
                                         brokers do for the cluster (ClusterAction)

and says in it how long the connection is muted after it (KIP-219): the longer of the times. The
answer leaves at once and whole; without acks there is none, and the connection is muted all the
same. Kafka sends a Fetch that is over its quota empty; here its answer goes out and the mute is as
long, so that there is progress whatever a batch's size. What one Fetch reads is bounded by what the
bucket holds.

A quota is a bucket that fills at its rate and holds 0.4 s of it: whatever the sizes of requests,
ten seconds never have more than four per cent too much, besides one request. (Kafka's rate over
eleven samples lets ten seconds' worth through at once, and again eleven seconds later; so
quota.window.num and .size.seconds mean nothing here.)

Without quotas none of this is used: the request channel makes plain contexts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from math import ceil
from struct import Struct
from typing import TYPE_CHECKING, Any

from replication.metadata.quota_entities import CLIENT_ID, USER, entity_of, names_of
from server.network.api import Operation
from server.network.channel import read_small_slices
from server.network.request_channel import RequestContext
from wire.frame import encode_response

if TYPE_CHECKING:
    from server.network.api import Api
    from server.network.channel import Channel
    from wire.primitives import Part
    from wire.schema import Response

_PRODUCE, _FETCH = 0, 1
_PRODUCER, _CONSUMER, _REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
_KEYS = (_PRODUCER, _CONSUMER, _REQUEST)
_CLUSTER_ACTION = Operation.CLUSTER_ACTION
_METERS_MAX = 100_000
_MS = 1_000
_BURST_S = 0.4
_NS_PER_PERCENT_OF_S = 10_000_000
_INT = Struct(">i")
_FRAME_HEAD = 8  # size and correlation id
_FLEXIBLE_PRODUCE = 9

_Level = tuple[str | None, str | None, bool, bool]
"""User, client id (None: not part of it), is the user, the client id, the default one."""


class Meter:
    """What is used of one quota: a bucket that fills at `bound` a second. Any thread."""

    __slots__ = ("_at_ms", "_left", "_lock", "bound")

    def __init__(self, bound: float) -> None:
        self.bound = bound
        self._left = bound * _BURST_S
        self._at_ms = 0
        self._lock = threading.Lock()

    def record(self, amount: float, now_ms: int) -> int:
        """Count; returns for how many ms whoever did it must wait."""
        with self._lock:
            bound = self.bound
            if now_ms > self._at_ms:
                gained = (now_ms - self._at_ms) * bound / _MS
                self._left = min(self._left + gained, bound * _BURST_S)
                self._at_ms = now_ms
            self._left -= amount
            return 0 if self._left >= 0 else ceil(-self._left / bound * _MS)


class ClientQuotas:
    """The quotas of a broker. `update` on the loader's thread, `of` on any."""

    def __init__(self) -> None:
        self._values: dict[str, dict[_Level, float]] = {}
        self._meters: dict[tuple[str, str | None, str | None], Meter] = {}
        self._found: dict[tuple[str, str], tuple[Meter | None, Meter | None, Meter | None]] = {}
        self._lock = threading.Lock()

    @property
    def any(self) -> bool:
        """Is there anything to measure."""
        return bool(self._values)

    def update(self, records: Iterable[Any]) -> None:
        """Take all quotas there are (ClientQuotaRecord)."""
        values: dict[str, dict[_Level, float]] = {}
        for record in records:
            names = names_of(entity_of(record.entity))
            if record.key in _KEYS and names.keys() <= {USER, CLIENT_ID}:
                level = (
                    names.get(USER),
                    names.get(CLIENT_ID),
                    USER in names and names[USER] is None,
                    CLIENT_ID in names and names[CLIENT_ID] is None,
                )
                values.setdefault(record.key, {})[level] = record.value
        with self._lock:
            self._values = values
            self._found = {}

    def of(self, principal: str, client_id: str) -> tuple[Meter | None, Meter | None, Meter | None]:
        """What counts for them, in the order producer, consumer, request."""
        who = (principal, client_id)
        return self._found.get(who) or self._find(who)

    def _find(self, who: tuple[str, str]) -> tuple[Meter | None, Meter | None, Meter | None]:
        user = who[0].partition(":")[2]
        with self._lock:
            found = self._found
            if len(found) >= _METERS_MAX:
                found.clear()
            if len(self._meters) >= _METERS_MAX:
                self._meters.clear()
                found.clear()
            producer, consumer, request = (self._meter(key, user, who[1]) for key in _KEYS)
            found[who] = producer, consumer, request
            return found[who]

    def _meter(self, key: str, user: str, client: str) -> Meter | None:
        values = self._values.get(key)
        if not values:
            return None
        for level in _levels(user, client):
            if level in values:
                has_user = level[0] is not None or level[2]
                has_client = level[1] is not None or level[3]
                shared = key, user if has_user else None, client if has_client else None
                meter = self._meters.get(shared)
                if meter is None:
                    meter = Meter(values[level])
                    self._meters[shared] = meter
                meter.bound = values[level]
                return meter
        return None


def _levels(user: str, client: str) -> Iterable[_Level]:
    """The first that has a quota counts."""
    return (
        (user, client, False, False),
        (user, None, False, True),
        (user, None, False, False),
        (None, client, True, False),
        (None, None, True, True),
        (None, None, True, False),
        (None, client, False, False),
        (None, None, False, True),
    )


class MeteredContext(RequestContext[Any]):
    """One request while there are quotas."""

    __slots__ = ("_began_ns", "_frame_bytes", "_is_exempt", "_meters", "_thread")

    def __init__(
        self,
        quotas: ClientQuotas,
        api: Api,
        api_version: int,
        correlation_id: int,
        client_id: str,
        connection: Channel,
        broker: Any,
        frame_bytes: int,
    ) -> None:
        super().__init__(api, api_version, correlation_id, client_id, connection, broker)
        self._meters = quotas.of(connection.principal, client_id)
        self._frame_bytes = frame_bytes
        self._is_exempt = api.operation is _CLUSTER_ACTION
        if self._meters[2] is not None:
            self.begin()

    def begin(self) -> None:
        """A thread works on it from now on."""
        if self._meters[2] is not None:
            self._thread = threading.get_ident()
            self._began_ns = time.perf_counter_ns()

    def exempt(self) -> None:
        self._is_exempt = True

    @property
    def fetch_bytes_max(self) -> int:  # type: ignore[override]  # a class attribute, as a default
        consumer = self._meters[1]
        if consumer is None or self._is_exempt:
            return RequestContext.fetch_bytes_max
        return max(1, int(consumer.bound * _BURST_S))

    def send(self, response: Response) -> None:
        throttle_ms = self._count()
        if throttle_ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = throttle_ms
        is_flexible = self.api_version >= self.api.response_flexible
        parts = encode_response(is_flexible, self.api_version, self.correlation_id, response)
        consumer = self._meters[1]
        if consumer is not None and self.api.api_key == _FETCH and not self._is_exempt:
            size = sum(map(len, parts))
            for_bytes_ms = consumer.record(size, self.connection.processor.now_ms)
            if for_bytes_ms > throttle_ms:
                throttle_ms = for_bytes_ms
                _patch(parts, _FRAME_HEAD + is_flexible, throttle_ms)
        self.throttle_ms = throttle_ms
        if len(parts) > 1:
            read_small_slices(parts)
        super().send_parts(parts)

    def send_parts(self, parts: list[Part]) -> None:
        """Produce's ordinary form: its answer ends with the throttle time."""
        self.throttle_ms = throttle_ms = self._count()
        if throttle_ms:
            is_flexible = self.api_version >= _FLEXIBLE_PRODUCE
            _patch(parts, -_INT.size - is_flexible, throttle_ms)
        super().send_parts(parts)

    def no_response(self) -> None:
        producer = self._meters[0]
        if producer is not None:
            self.throttle_ms = producer.record(self._frame_bytes, self.connection.processor.now_ms)
        super().no_response()

    def _count(self) -> int:
        """Count what is known before the answer is encoded; for how many ms it mutes."""
        producer, _, request = self._meters
        throttle_ms = 0
        if producer is not None and self.api.api_key == _PRODUCE:
            throttle_ms = producer.record(self._frame_bytes, self.connection.processor.now_ms)
        if request is not None and not self._is_exempt:
            used_ns = 0
            if threading.get_ident() == self._thread:
                used_ns = time.perf_counter_ns() - self._began_ns
            now_ms = self.connection.processor.now_ms
            for_time_ms = request.record(used_ns / _NS_PER_PERCENT_OF_S, now_ms)
            throttle_ms = max(throttle_ms, min(for_time_ms, _MS))
        return throttle_ms


def _patch(parts: list[Part], at: int, throttle_ms: int) -> None:
    """Write the throttle time into an answer that is encoded already."""
    first = bytearray(parts[0])  # type: ignore[arg-type]  # bytes, before what stands in a file
    _INT.pack_into(first, at if at >= 0 else len(first) + at, throttle_ms)
    parts[0] = bytes(first)
