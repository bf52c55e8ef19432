"""GetTelemetrySubscriptions, PushTelemetry: metrics that clients send of themselves (KIP-714).

Who is asked for what is `server.config.client_metrics`. What is pushed is bounded, acknowledged
and let go: nobody here receives it yet.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from wire.primitives import ZERO_UUID, uuid_to_text

if TYPE_CHECKING:
    from server.handlers.edges import TelemetryBroker
    from server.network.request_context import RequestContext

_ONE_UUID = bytes(15) + b"\1"
_ZSTD, _LZ4, _GZIP, _SNAPPY = 4, 3, 1, 2


def get_telemetry_subscriptions(
    ctx: RequestContext[TelemetryBroker], request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Tell a client which metrics to push, and how often.

    Behaviour: gives it an id if it has none. No metrics where no subscription fits it. Asked again
               before the interval is over: THROTTLING_QUOTA_EXCEEDED.
    Versions:  one.
    Gaps:      -
    """
    instance_id = request.client_instance_id
    if instance_id == ZERO_UUID:
        instance_id = uuid.uuid4().bytes
    metrics = ctx.broker.client_metrics
    instance = metrics.get(
        instance_id,
        ctx.connection.connection_id,
        _attributes(ctx, instance_id),
        ctx.connection.processor.now_ms,
    )
    return GetTelemetrySubscriptionsResponse(
        error_code=0,
        client_instance_id=instance_id,
        subscription_id=instance.subscription_id,
        accepted_compression_types=[_ZSTD, _LZ4, _GZIP, _SNAPPY],
        push_interval_ms=instance.interval_ms,
        telemetry_max_bytes=metrics.telemetry_bytes_max,
        delta_temporality=True,
        requested_metrics=instance.metrics,
    )


def push_telemetry(
    ctx: RequestContext[TelemetryBroker], request: PushTelemetryRequest
) -> PushTelemetryResponse:
    """Take a client's metrics.

    Behaviour: UNKNOWN_SUBSCRIPTION_ID makes it ask again; TELEMETRY_TOO_LARGE above
               telemetry.max.bytes; THROTTLING_QUOTA_EXCEEDED before its time, unless it ends.
    Versions:  one.
    Gaps:      what is taken goes nowhere yet.
    """
    instance_id = request.client_instance_id
    if instance_id in (ZERO_UUID, _ONE_UUID):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    ctx.broker.client_metrics.push(
        instance_id,
        ctx.connection.connection_id,
        _attributes(ctx, instance_id),
        ctx.connection.processor.now_ms,
        subscription_id=request.subscription_id,
        is_terminating=request.terminating,
        codec=request.compression_type,
        size=len(request.metrics),
    )
    return PushTelemetryResponse(error_code=0)


def _attributes(ctx: RequestContext[TelemetryBroker], instance_id: bytes) -> dict[str, str]:
    """What the `match` of a subscription is held against."""
    name, version = ctx.connection.client_software
    return {
        "client_instance_id": uuid_to_text(instance_id),
        "client_id": ctx.client_id,
        "client_software_name": name,
        "client_software_version": version,
        "client_source_address": ctx.peer_host,
        "client_source_port": str(ctx.connection.peer_port),
    }
