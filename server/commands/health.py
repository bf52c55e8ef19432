"""`barnabas health`: does a broker answer? For a container's health check, and for people.

A TCP connect proves that a port is open, not that a broker lives behind it: this asks for the API
versions and the metadata, as every client does first, and fails unless a broker is listed in time.
A node that is only a controller serves no metadata; it is asked for the controllers instead.

Who may not ask how the cluster is gets exit code 1 as well, and the right that is missing: nobody
knows then, and the set-up of the check is at fault from its first run on.

A cluster that cannot write is not healthy, though its brokers answer: one without a leader of the
quorum, or whose leader hears of no majority, and a broker that the quorum has fenced.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from server.config.kafka_config import KafkaConfig
from server.network.listeners import read_listeners
from server.peers.blocking_peer import BlockingPeer, PeerClosed
from wire.errors import ErrorCode
from wire.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from wire.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from server.security.peer_security import PeerSecurity

_CLIENT_ID = "barnabas-health"
_CONTROLLERS = 2  # endpoint type (KIP-919)
_FETCH_TIMEOUT_MS = 2_000
"""Kafka's default of controller.quorum.fetch.timeout.ms. A voter fetches each half second."""
_ASK_AGAIN_S = 0.05


class RightsMissing(ConnectionError):
    """It answers, and does not tell this user what was asked: that takes `operation`."""

    def __init__(self, operation: str) -> None:
        super().__init__(
            "CLUSTER_AUTHORIZATION_FAILED: it answers, but does not tell this user how the cluster"
            f" is; that takes {operation} on the cluster: `barnabas acl add USER {operation}"
            " --cluster`"
        )


class Unhealthy(Exception):
    """The broker did not answer as a broker does; says where and why."""


def local_address(config: KafkaConfig) -> tuple[str, int]:
    """Where a process on the broker's own host reaches it. Raises ConfigError."""
    listeners = read_listeners(config)
    listener = (listeners.broker or listeners.controller)[0]
    loopback = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
    return loopback.get(listener.host, listener.host), listener.port


def quorum_of(connection: BlockingPeer) -> DescribeQuorumResponse:
    """What a node knows of the metadata quorum. Raises RightsMissing when it does not tell this
    user, OSError when it knows no leader."""
    partition = DescribeQuorumRequest.Topic.Partition(partition_index=0)
    topic = DescribeQuorumRequest.Topic(topic_name="__cluster_metadata", partitions=[partition])
    answer = connection.exchange(DescribeQuorumRequest(topics=[topic]), 2, DescribeQuorumResponse)
    codes = [answer.error_code, *(p.error_code for t in answer.topics for p in t.partitions)]
    for code in codes:
        if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise RightsMissing("describe")
        if code != ErrorCode.NONE:
            raise ConnectionError(f"DescribeQuorum: {ErrorCode(code).name}")
    if not answer.topics or answer.topics[0].partitions[0].leader_id < 0:
        raise ConnectionError("it has no leader")
    return answer


class Healthy(NamedTuple):
    """What a node that is well told of itself."""

    address: str
    cluster_id: str | None
    members: int
    kind: str
    """What it listed that many of: "broker" or "controller"."""
    took_ms: int

    def line(self) -> str:
        plural = "s" if self.members > 1 else ""
        return (
            f"healthy: {self.address} (cluster {self.cluster_id},"
            f" {self.members} {self.kind}{plural}, {self.took_ms} ms)"
        )


def check(
    host: str,
    port: int,
    timeout_s: float,
    node_id: int | None = None,
    security: PeerSecurity | None = None,
) -> Healthy:
    """Ask the broker. Raises Unhealthy.

    `node_id` is the broker's, where it is known; else it is known by its advertised address.
    """
    began = time.monotonic()
    try:
        connection = BlockingPeer(host, port, _CLIENT_ID, timeout_s, security)
        answer = _ask(connection, (host, port), node_id)
    except OSError as error:
        raise Unhealthy(
            f"no healthy broker at {host}:{port}: {reason(error, is_plain=security is None)}"
        ) from None
    took_ms = round((time.monotonic() - began) * 1000)
    if not answer.members:
        raise Unhealthy(
            f"no healthy broker at {host}:{port}: it answers, but lists no {answer.kind}"
        )
    return Healthy(f"{host}:{port}", *answer, took_ms)


def check_any(
    wanted: Sequence[tuple[str, int]],
    timeout_s: float,
    node_id: int | None = None,
    security: PeerSecurity | None = None,
) -> Healthy:
    """`check` of each address in turn, until one is healthy. Raises Unhealthy, which says what is
    wrong with all of them."""
    failures = []
    for host, port in wanted:
        try:
            return check(host, port, timeout_s, node_id, security)
        except Unhealthy as error:
            failures.append(str(error))
    raise Unhealthy("; ".join(failures))


class _Answer(NamedTuple):
    cluster_id: str | None
    members: int
    kind: str


def reason(error: OSError, *, is_plain: bool = False) -> str:
    """What went wrong, for people. `is_plain`: with the first question, asked without security."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    said = getattr(error, "strerror", None) or str(error)
    if is_plain and isinstance(error, PeerClosed | ConnectionResetError):
        return f"{said} (a listener with TLS or SASL needs --client-config)"
    return said


def _ask(connection: BlockingPeer, address: tuple[str, int], node_id: int | None) -> _Answer:
    try:
        # Version 0 is answered by every broker; the other versions are known from the answer.
        versions = connection.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)
        if versions.error_code != ErrorCode.NONE:
            raise ConnectionError(f"ApiVersions: {ErrorCode(versions.error_code).name}")
        served = {api.api_key: api.max_version for api in versions.api_keys}
        if MetadataRequest.api_key in served:
            # An empty array asks for no topic: the check costs the same with any number of them.
            low, high = MetadataRequest.versions
            version = max(low, min(high, served[MetadataRequest.api_key]))
            request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
            metadata = connection.exchange(request, version, MetadataResponse)
            _check_writable(connection, served, address, node_id)
            return _Answer(metadata.cluster_id, len(metadata.brokers), "broker")
        if served.get(DescribeClusterRequest.api_key, 0) >= 1:
            controllers = connection.exchange(
                DescribeClusterRequest(
                    include_cluster_authorized_operations=False, endpoint_type=_CONTROLLERS
                ),
                1,
                DescribeClusterResponse,
            )
            if controllers.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise RightsMissing("alter")
            return _Answer(controllers.cluster_id, len(controllers.brokers), "controller")
        raise ConnectionError("it serves no Metadata")
    finally:
        connection.close()


def _check_writable(
    connection: BlockingPeer, served: dict[int, int], address: tuple[str, int], node_id: int | None
) -> None:
    """Raise ConnectionError when this broker is fenced or its cluster's quorum has no leader, or
    lost its majority."""
    if served.get(DescribeClusterRequest.api_key, 0) >= 2:
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=True
        )
        cluster = connection.exchange(request, 2, DescribeClusterResponse)
        for broker in cluster.brokers:
            is_this = broker.broker_id == node_id or (broker.host, broker.port) == address
            if broker.is_fenced and is_this:
                raise ConnectionError(
                    f"node {broker.broker_id} is fenced: the controllers do not hear from it"
                )
    if served.get(DescribeQuorumRequest.api_key, 0) >= 2:
        try:
            _await_majority(connection)
        except RightsMissing:
            raise
        except OSError as error:
            raise ConnectionError(f"quorum lost: {reason(error)}") from None


def _await_majority(connection: BlockingPeer) -> None:
    """Return once a majority of the voters has fetched from their leader since this began: one that
    has lost them leads on for seconds (Kafka: controller.quorum.fetch.timeout.ms, times 1.5).
    Raises ConnectionError."""
    began = time.monotonic()
    while True:
        quorum = quorum_of(connection).topics[0].partitions[0]
        elapsed_ms = (time.monotonic() - began) * 1000
        voters, leader = quorum.current_voters, quorum.leader_id
        # By the leader's clock, which gives its own row the time of the answer.
        now_ms = max((voter.last_fetch_timestamp for voter in voters), default=0)
        there = [
            voter
            for voter in voters
            if voter.replica_id == leader or now_ms - voter.last_fetch_timestamp <= elapsed_ms
        ]
        if 2 * len(there) > len(voters) or not voters:
            return
        if elapsed_ms >= _FETCH_TIMEOUT_MS:
            raise ConnectionError(
                f"{len(there)} of {len(voters)} voters were heard of by node {leader}, which leads"
                f" it, in {_FETCH_TIMEOUT_MS / 1000:.0f} s"
            )
        time.sleep(_ASK_AGAIN_S)
