"""Which clients are asked for which metrics, and how often (KIP-714; Kafka: ClientMetricsManager).

What: subscriptions are the client-metrics configs of the metadata image: `metrics` (prefixes of
names, `*` for all), `interval.ms`, `match` (expressions that all must fit what a client says of
itself). A client that fits several is asked for all their metrics at the shortest interval. What it
is asked for has a number, which it repeats when it pushes: the same at every broker, and another
when subscriptions change, so that it asks again.

How much: a client is remembered from its first request on a connection, at most INSTANCES_MAX of
them, the longest silent forgotten first. Who comes before its interval is over is told
THROTTLING_QUOTA_EXCEEDED; what is pushed is at most telemetry.max.bytes, and is not decompressed.

One lock; any thread.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from server import linear_regex
from server.config.kafka_config import ConfigError, catalogue, parse_value
from wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

TELEMETRY_APIS = frozenset((71, 72))
INSTANCES_MAX = 16_384
_EVERYTHING = "*"
_EXPIRY_MS = 60_000
_INTERVALS_SILENT = 3
_ATTRIBUTE_CHARS_MAX = 1_024
"""Longer ones match nothing."""
_CODECS = range(5)
_LONG_AGO = -(1 << 62)
_ASKS_AGAIN = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


class Subscription(NamedTuple):
    """What one client-metrics resource asks for."""

    metrics: frozenset[str]
    interval_ms: int
    match: Mapping[str, Any]
    """What clients say of themselves, and the expressions that must fit."""

    def fits(self, attributes: Mapping[str, str]) -> bool:
        for name, pattern in self.match.items():
            text = attributes.get(name, "")
            if len(text) > _ATTRIBUTE_CHARS_MAX or not pattern.fullmatch(text):
                return False
        return True


def subscription(values: Mapping[str, str]) -> Subscription:
    """Of a resource's configs, which the controller has checked. Raises ConfigError."""
    known = catalogue().client_metrics
    typed = {
        name: parse_value(definition, text)
        for name, definition in known.items()
        if (text := values.get(name, definition.default)) is not None
    }
    metrics, interval_ms, match = typed.get("metrics"), typed["interval.ms"], typed.get("match")
    assert isinstance(interval_ms, int)
    pairs = (one.partition("=") for one in match or [])  # type: ignore[union-attr]
    try:
        patterns = {name.strip(): linear_regex.compiled(text.strip()) for name, _, text in pairs}
    except ValueError as error:
        raise ConfigError("match", values.get("match"), f"not as RE2 has them: {error}") from None
    return Subscription(frozenset(metrics or ()), interval_ms, patterns)  # type: ignore[arg-type]


@dataclass(slots=True)
class Instance:
    """One client on one connection, and what it is asked for."""

    connection_id: int
    version: int
    metrics: list[str]
    interval_ms: int
    subscription_id: int
    got_ms: int = field(default=_LONG_AGO)
    pushed_ms: int = field(default=_LONG_AGO)
    is_terminating: bool = False
    last_error: int = ErrorCode.NONE

    def take_get(self, now_ms: int) -> None:
        """Raises KafkaError THROTTLING_QUOTA_EXCEEDED."""
        if now_ms - max(self.got_ms, self.pushed_ms) >= self.interval_ms:
            self.got_ms = now_ms
        elif self.last_error not in _ASKS_AGAIN:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self.last_error = ErrorCode.NONE

    def check_push(
        self, subscription_id: int, is_terminating: bool, codec: int, now_ms: int
    ) -> None:
        """The first push after it has asked comes whenever it likes: clients spread theirs. Raises
        KafkaError."""
        if self.is_terminating:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        is_due = self.got_ms > self.pushed_ms or now_ms - self.pushed_ms >= self.interval_ms
        if is_due:
            self.pushed_ms = now_ms
        elif not is_terminating:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if subscription_id != self.subscription_id:
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
        if codec not in _CODECS:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


class ClientMetrics:
    """See the module."""

    def __init__(self, telemetry_bytes_max: int) -> None:
        self.telemetry_bytes_max = telemetry_bytes_max
        """telemetry.max.bytes"""
        self._lock = threading.Lock()
        self._subscriptions: dict[str, Subscription] = {}
        self._version = 0
        self._instances: OrderedDict[bytes, Instance] = OrderedDict()

    def update(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Take all subscriptions there are: values by name. One that cannot be read asks nobody:
        in a directory of Apache Kafka's there may be expressions that only Java knows."""
        subscriptions = {}
        for name, values in configs.items():
            try:
                subscriptions[name] = subscription(values)
            except ConfigError as error:
                logger.error("client-metrics %r cannot be read error=%s", name, error)
        with self._lock:
            self._subscriptions = subscriptions
            self._version += 1

    def get(
        self, instance_id: bytes, connection_id: int, attributes: Mapping[str, str], now_ms: int
    ) -> Instance:
        """What the client is asked for. Raises KafkaError THROTTLING_QUOTA_EXCEEDED."""
        with self._lock:
            instance = self._instance(instance_id, connection_id, attributes, now_ms)
            instance.take_get(now_ms)
            return instance

    def push(
        self,
        instance_id: bytes,
        connection_id: int,
        attributes: Mapping[str, str],
        now_ms: int,
        *,
        subscription_id: int,
        is_terminating: bool,
        codec: int,
        size: int,
    ) -> None:
        """Raises KafkaError when nothing of it is taken."""
        with self._lock:
            instance = self._instance(instance_id, connection_id, attributes, now_ms)
            try:
                instance.check_push(subscription_id, is_terminating, codec, now_ms)
                if size > self.telemetry_bytes_max:
                    raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE)
            except KafkaError as error:
                instance.last_error = error.code
                raise
            finally:
                instance.is_terminating = is_terminating
            instance.last_error = ErrorCode.NONE

    def _instance(
        self, instance_id: bytes, connection_id: int, attributes: Mapping[str, str], now_ms: int
    ) -> Instance:
        instances = self._instances
        instance = instances.pop(instance_id, None)
        if instance is not None and self._is_over(instance, connection_id, now_ms):
            instance = None
        if instance is None:
            instance = self._new(instance_id, connection_id, attributes)
        instances[instance_id] = instance
        if len(instances) > INSTANCES_MAX:
            instances.popitem(last=False)
        return instance

    def _is_over(self, instance: Instance, connection_id: int, now_ms: int) -> bool:
        silent_ms = now_ms - max(instance.got_ms, instance.pushed_ms)
        return (
            instance.connection_id != connection_id
            or instance.version != self._version
            or silent_ms > max(_EXPIRY_MS, _INTERVALS_SILENT * instance.interval_ms)
        )

    def _new(
        self, instance_id: bytes, connection_id: int, attributes: Mapping[str, str]
    ) -> Instance:
        default = subscription({})
        fitting = [one for one in self._subscriptions.values() if one.fits(attributes)]
        names = frozenset[str]().union(*(one.metrics for one in fitting))
        metrics = [_EVERYTHING] if _EVERYTHING in names else sorted(names)
        interval_ms = min([default.interval_ms, *(one.interval_ms for one in fitting)])
        asked = zlib.crc32(f"{metrics}{interval_ms}".encode() + instance_id)
        return Instance(
            connection_id, self._version, metrics, interval_ms, asked - (1 << 32) * (asked >> 31)
        )
