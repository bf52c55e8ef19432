"""`barnabas health`: does a broker answer? For a container's health check, and for people.

A TCP connect proves that a port is open, not that a broker lives behind it: this asks for the API
versions and the metadata, as every client does first, and fails unless the broker lists itself in
time.
"""

from __future__ import annotations

import time

from server.config import KafkaConfig
from server.listeners import read_listeners
from server.peer_client import BlockingPeer
from wire.errors import ErrorCode
from wire.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)

_CLIENT_ID = "barnabas-health"


class Unhealthy(Exception):
    """The broker did not answer as a broker does; says where and why."""


def local_address(config: KafkaConfig) -> tuple[str, int]:
    """Where a process on the broker's own host reaches it. Raises ConfigError."""
    listener = read_listeners(config).broker[0]
    loopback = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
    return loopback.get(listener.host, listener.host), listener.port


def check(host: str, port: int, timeout_s: float) -> str:
    """Ask the broker; returns one line about it. Raises Unhealthy."""
    began = time.monotonic()
    try:
        answer = _ask(host, port, timeout_s)
    except OSError as error:
        raise Unhealthy(f"no healthy broker at {host}:{port}: {_reason(error)}") from None
    took_ms = (time.monotonic() - began) * 1000
    brokers = len(answer.brokers)
    if not brokers:
        raise Unhealthy(f"no healthy broker at {host}:{port}: it answers, but lists no broker")
    return (
        f"healthy: {host}:{port} (cluster {answer.cluster_id}, {brokers} broker"
        f"{'s' if brokers > 1 else ''}, {took_ms:.0f} ms)"
    )


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error)


def _ask(host: str, port: int, timeout_s: float) -> MetadataResponse:
    connection = BlockingPeer(host, port, _CLIENT_ID, timeout_s)
    try:
        # Version 0 is answered by every broker; the other versions are known from the answer.
        versions = connection.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)
        if versions.error_code != ErrorCode.NONE:
            raise ConnectionError(f"ApiVersions: {ErrorCode(versions.error_code).name}")
        # An empty array of topics asks for none of them: the check costs the same with any number.
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        return connection.exchange(request, _metadata_version(versions), MetadataResponse)
    finally:
        connection.close()


def _metadata_version(versions: ApiVersionsResponse) -> int:
    low, high = MetadataRequest.versions
    for api in versions.api_keys:
        if api.api_key == MetadataRequest.api_key:
            return max(low, min(high, api.max_version))
    raise ConnectionError("it serves no Metadata")
