"""ApiVersions and DescribeCluster: what is spoken here, and who is there.

Both are served on controller listeners too, where they speak of controllers (KIP-919). They take
the metadata image once: it never changes, but the broker may be given another at any time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from replication.controller.bootstrap import SUPPORTED_FEATURES
from replication.metadata.image import CONTROLLER_REGISTRATION_SINCE, METADATA_VERSION
from server.network.api import Resource
from wire.errors import ErrorCode, KafkaError
from wire.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from wire.primitives import UNKNOWN_OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from replication.metadata.image import MetadataImage
    from server.handlers.edges import ClusterNode
    from server.network.request_context import RequestContext

ALL_CLUSTER_OPERATIONS = Resource.CLUSTER.all_operations

_NONE = int(ErrorCode.NONE)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]{0,254}[a-zA-Z0-9])?")
_BROKER_ENDPOINTS = 1
_CONTROLLER_ENDPOINTS = 2


# ---- ApiVersions


def api_versions(
    ctx: RequestContext[ClusterNode], request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """List what this listener serves, and the feature levels of the cluster.

    Behaviour: derived from the listener's dispatch table; Produce is listed from 0 (KAFKA-18659).
               Those of telemetry are listed while anybody has asked for metrics of clients; Apache
               Kafka lists them where a plugin takes the metrics.
               Newer versions than ours are answered by the request channel (KIP-511).
    Versions:  3 brings the client's software name and the features; below 4 features with minimum
               level 0 are left out, because old Java clients fail on them (KAFKA-17011).
    Gaps:      -
    """
    version = ctx.api_version
    if version >= 3:
        name, software_version = request.client_software_name, request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(software_version)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        ctx.connection.client_software = (name, software_version)
    image: MetadataImage = ctx.broker.metadata
    return ApiVersionsResponse(
        error_code=_NONE,
        api_keys=_api_keys(ctx.broker.role, ctx.broker.unlisted_apis),
        supported_features=[
            ApiVersionsResponse.SupportedFeature(
                name=feature, min_version=levels.minimum, max_version=levels.maximum
            )
            for feature, levels in sorted(SUPPORTED_FEATURES.items())
            if levels.minimum > 0 or version >= 4
        ],
        finalized_features_epoch=max(image.offset, 0),
        finalized_features=[
            ApiVersionsResponse.FinalizedFeature(
                name=feature, max_version_level=level, min_version_level=level
            )
            for feature, level in sorted(_finalized(ctx, image).items())
            if level > 0
        ],
    )


def _finalized(ctx: RequestContext[ClusterNode], image: MetadataImage) -> dict[str, int]:
    """The cluster's feature levels; that of the quorum stands in its own records."""
    kraft_version: int = ctx.broker.raft.voters.kraft_version
    return {**image.features, "kraft.version": kraft_version}


def _api_keys(role: str, unlisted: frozenset[int]) -> list[ApiVersionsResponse.ApiKey]:
    from server.handlers import apis_of

    return [
        ApiVersionsResponse.ApiKey(
            api_key=key,
            min_version=api.advertised_from,
            max_version=api.max_version,
        )
        for key, api in sorted(apis_of(role).items())
        if key not in unlisted
    ]


# ---- DescribeCluster


def describe_cluster(
    ctx: RequestContext[ClusterNode], request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Name the cluster and its brokers; on a controller listener, its controllers (KIP-919).

    Behaviour: on a controller listener the controller is the active one, on a broker's it is some
               alive broker. Asking a listener for the other kind: MISMATCHED_ENDPOINT_TYPE. No
               controller answers below the metadata.version at which they register (3.7).
    Versions:  1 endpoint type. 2 fenced brokers, when they are asked for.
    Gaps:      -
    """
    served = _CONTROLLER_ENDPOINTS if ctx.broker.role == "controller" else _BROKER_ENDPOINTS
    image: MetadataImage = ctx.broker.metadata
    if (
        served == _CONTROLLER_ENDPOINTS
        and image.feature(METADATA_VERSION) < CONTROLLER_REGISTRATION_SINCE
    ):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "controllers do not speak to clients at the current metadata.version",
        )
    if request.endpoint_type != served:
        return _wrong_endpoint(ctx.api_version, request.endpoint_type, served)
    if served == _CONTROLLER_ENDPOINTS:
        nodes = _controllers(ctx, image)
        controller_id = ctx.broker.raft.leader_id
        if all(node.broker_id != controller_id for node in nodes):
            controller_id = -1  # it leads, but has not said yet where it is
    else:
        nodes = _brokers(ctx, image, request.include_fenced_brokers)
        controller_id = controller_of(ctx, image)
    operations = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        error_code=_NONE,
        endpoint_type=served,
        cluster_id=ctx.broker.cluster_id,
        controller_id=controller_id,
        brokers=nodes,
        cluster_authorized_operations=(
            ALL_CLUSTER_OPERATIONS if operations else UNKNOWN_OPERATIONS
        ),
    )


def _brokers(
    ctx: RequestContext[ClusterNode], image: MetadataImage, with_fenced: bool
) -> list[DescribeClusterResponse.Broker]:
    brokers = [broker for _, broker in sorted(image.brokers.items())]
    return [
        DescribeClusterResponse.Broker(
            broker_id=b.broker_id, host=at[0], port=at[1], rack=b.rack, is_fenced=b.fenced
        )
        for b in brokers
        if (at := ctx.broker.endpoint_for(ctx, b)) is not None and (with_fenced or not b.fenced)
    ]


def _controllers(
    ctx: RequestContext[ClusterNode], image: MetadataImage
) -> list[DescribeClusterResponse.Broker]:
    """The registered controllers that have the listener that was asked."""
    return [
        DescribeClusterResponse.Broker(
            broker_id=controller_id, host=endpoint.host, port=endpoint.port, rack=None
        )
        for controller_id, controller in sorted(image.controllers.items())
        if (endpoint := controller.endpoints.get(ctx.listener_name)) is not None
    ]


def _wrong_endpoint(api_version: int, endpoint_type: int, served: int) -> DescribeClusterResponse:
    names = {_BROKER_ENDPOINTS: "brokers", _CONTROLLER_ENDPOINTS: "controllers"}
    if endpoint_type in names:
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        message = f"this listener knows {names[served]}, and not {names[endpoint_type]}"
    else:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        message = f"unsupported endpoint type {endpoint_type}"
    if api_version == 0:
        code = ErrorCode.INVALID_REQUEST  # version 0 knows neither code
    return DescribeClusterResponse(
        error_code=code, error_message=message, cluster_id="", brokers=[]
    )


def controller_of(ctx: RequestContext[ClusterNode], image: MetadataImage) -> int:
    """Some alive broker: any of them takes controller requests in KRaft mode (protocol.md 5.3)."""
    node_id: int = ctx.broker.node_id
    if image.is_active(node_id):
        return node_id
    alive = image.alive_brokers()
    return alive[0].broker_id if alive else -1


# ---- Who leads a partition that was refused, and where: spares a Metadata (KIP-951)


LEADER_ERRORS = frozenset(
    {int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.FENCED_LEADER_EPOCH)}
)
"""With them Produce and Fetch name the new leader (KIP-951)."""


def topic_name(ctx: Any, topic_id: bytes) -> str:
    """The name of a topic id; "" if there is no such topic."""
    topic = ctx.broker.metadata.topics_by_id.get(topic_id)
    return "" if topic is None else topic.name


def current_leader(ctx: Any, name: str, index: int, make: Callable[..., Any]) -> Any:
    registration = ctx.broker.metadata.partition(name, index)
    if registration is None:
        return None
    return make(leader_id=registration.leader, leader_epoch=registration.leader_epoch)


def endpoints(
    ctx: Any, partitions: Iterable[tuple[str, int]], make: Callable[..., Any]
) -> list[Any]:
    """Where the leaders of these partitions are reached (KIP-951)."""
    image: MetadataImage = ctx.broker.metadata
    leaders = {
        registration.leader
        for registration in (image.partition(*key) for key in partitions)
        if registration is not None
    }
    brokers = [image.brokers[leader] for leader in sorted(leaders & image.brokers.keys())]
    return [
        make(node_id=b.broker_id, host=at[0], port=at[1], rack=b.rack)
        for b in brokers
        if (at := ctx.broker.endpoint_for(ctx, b)) is not None and not b.fenced
    ]
