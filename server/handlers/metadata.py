"""Metadata and DescribeTopicPartitions: which topics there are, and who leads their partitions.

Both take the metadata image once: it never changes, but the broker may be given another at any
time. Only Metadata may ask the controller for something, a topic to be created. What may not be
seen, and the authorized operations of a resource, are for `server.handlers.access`; without it they
are all there are.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from replication.controller.context import ControllerContext
from replication.metadata.topic_names import INTERNAL_TOPICS, absent_topic_error
from replication.raft.own_events import NO_LEADER
from server.handlers.cluster import ALL_CLUSTER_OPERATIONS, controller_of
from server.network.api import Resource
from server.network.request_channel import INLINE_ELEMENTS
from wire.errors import ErrorCode, KafkaError
from wire.messages.cluster import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from wire.primitives import UNKNOWN_OPERATIONS, ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from replication.metadata.image import MetadataImage, PartitionRegistration, TopicImage
    from server.handlers.edges import ClusterNode
    from server.network.request_context import RequestContext
    from wire.messages.admin import CreateTopicsResponse

ALL_TOPIC_OPERATIONS = Resource.TOPIC.all_operations

AUTO_CREATION_WAIT_MS = 5_000
"""How long Metadata waits for a topic it has created."""

_NONE = int(ErrorCode.NONE)


# ---- Metadata


def metadata(
    ctx: RequestContext[ClusterNode],
    request: MetadataRequest,
    may_create: Callable[[str], bool] | None = None,
) -> MetadataResponse | None:
    """Name the brokers, and the partitions of topics with their leaders.

    Behaviour: null topics means all (v0: empty means all). Unknown topics are created if request,
               auto.create.topics.enable and `may_create`, an authorizer's word on each, allow it.
               The answer says UNKNOWN_TOPIC_OR_PARTITION, as Kafka's: a client that looks whether
               the topic it deleted is gone (kafka-go) brings it back, but is told the truth.
               Unlike Kafka's it waits for the creation, so that the client that repeats finds
               leaders. Brokers are named by the address the client dialled, unless the listener
               has a name.
    Versions:  0 leaves out replicas that cannot be reached: REPLICA_NOT_AVAILABLE. 4 auto-creation
               is the client's choice. 7 leader epoch. 10 topic ids. 12 ask by id. 13 error code.
    Gaps:      internal topics are made by their coordinators, not by asking for their metadata.
    """
    topics = request.topics
    version = ctx.api_version
    image: MetadataImage = ctx.broker.metadata
    if topics is None or (version == 0 and not topics):
        return _metadata_response(ctx, image, request, sorted(image.topics_by_name))
    if version < 12 and any(t.name is None or t.topic_id != ZERO_UUID for t in topics):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"topic ids are not supported in version {version}"
        )
    ids = list(dict.fromkeys(t.topic_id for t in topics if t.topic_id != ZERO_UUID))
    if ids:
        return _metadata_by_id(ctx, image, request, ids)
    names = list(dict.fromkeys(t.name or "" for t in topics))
    if request.allow_auto_topic_creation and ctx.broker.config.get("auto.create.topics.enable"):
        creatable = [
            name
            for name in names
            if name not in image.topics_by_name
            and name not in INTERNAL_TOPICS
            and absent_topic_error(name).code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            and (may_create is None or may_create(name))
        ]
        if creatable:
            _create_then_answer(ctx, creatable, _metadata_response(ctx, image, request, names))
            return None
    return _metadata_response(ctx, image, request, names)


def metadata_is_costly(ctx: RequestContext[ClusterNode], request: MetadataRequest) -> bool:
    """Whether the answer names many partitions, however little the request says."""
    image: MetadataImage = ctx.broker.metadata
    asked = request.topics
    topics: Iterable[TopicImage | None]
    if asked is None or (ctx.api_version == 0 and not asked):
        if len(image.topics_by_name) > INLINE_ELEMENTS:
            return True
        topics = image.topics_by_name.values()
    else:
        by_name, by_id = image.topics_by_name.get, image.topics_by_id.get
        topics = (by_name(t.name) if t.name is not None else by_id(t.topic_id) for t in asked)
    return sum(len(t.partitions) for t in topics if t is not None) > INLINE_ELEMENTS


def _create_then_answer(
    ctx: RequestContext[ClusterNode], names: list[str], response: MetadataResponse
) -> None:
    """Have the controller create topics; answer when it did (or could not), or when time is up.

    The answer was true when it was asked for. It waits so that who asks again finds a leader.
    """
    from wire.messages.admin import CreateTopicsRequest

    config = ctx.broker.config

    def given(key: str) -> int:
        """What this broker was told; what it was not is the controller's to say."""
        return config.get_int(key) if config.is_set(key) else -1

    partitions, factor = given("num.partitions"), given("default.replication.factor")

    def answer(_created: CreateTopicsResponse | KafkaError | None) -> None:
        timeout.cancel()
        ctx.respond(response)

    # A second answer, should both come, finds its request gone and does nothing.
    timeout = ctx.broker.timer.add(AUTO_CREATION_WAIT_MS, lambda: answer(None))
    ctx.on_disconnect(timeout.cancel)
    # Passed on as a request of the client's, which did not say in which version.
    version = CreateTopicsRequest.versions[1]
    ctx.broker.controller.submit(
        CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.Topic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=factor,
                    assignments=[],
                    configs=[],
                )
                for name in names
            ],
            timeout_ms=AUTO_CREATION_WAIT_MS,
            validate_only=False,
        ),
        answer,
        context=ControllerContext(ctx.principal, version, ctx.client_id, ctx.peer_host),
    )


def _metadata_by_id(
    ctx: RequestContext[ClusterNode],
    image: MetadataImage,
    request: MetadataRequest,
    ids: list[bytes],
) -> MetadataResponse:
    found = [image.topics_by_id.get(topic_id) for topic_id in ids]
    names = [topic.name for topic in found if topic is not None]
    response = _metadata_response(ctx, image, request, names)
    response.topics += [
        MetadataResponse.Topic(
            error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id, partitions=[]
        )
        for topic_id, topic in zip(ids, found, strict=True)
        if topic is None
    ]
    return response


def _metadata_response(
    ctx: RequestContext[ClusterNode],
    image: MetadataImage,
    request: MetadataRequest,
    names: Iterable[str],
) -> MetadataResponse:
    asks_operations = request.include_topic_authorized_operations
    operations = ALL_TOPIC_OPERATIONS if asks_operations else UNKNOWN_OPERATIONS
    reachable = _reachable_brokers(ctx, image)
    topics = []
    for name in names:
        topic = image.topics_by_name.get(name)
        if topic is None:
            topics.append(_absent_topic(name, operations))
        else:
            topics.append(_metadata_topic(ctx, image, topic, reachable, operations))
    cluster_operations = request.include_cluster_authorized_operations
    return MetadataResponse(
        brokers=[
            MetadataResponse.Broker(
                node_id=broker_id, host=host, port=port, rack=image.brokers[broker_id].rack
            )
            for broker_id, (host, port) in reachable.items()
        ],
        cluster_id=ctx.broker.cluster_id,
        controller_id=controller_of(ctx, image),
        topics=topics,
        cluster_authorized_operations=(
            ALL_CLUSTER_OPERATIONS if cluster_operations else UNKNOWN_OPERATIONS
        ),
    )


def _reachable_brokers(
    ctx: RequestContext[ClusterNode], image: MetadataImage
) -> dict[int, tuple[str, int]]:
    """The alive brokers that have this client's listener, and where."""
    endpoints = ((b.broker_id, ctx.broker.endpoint_for(ctx, b)) for b in image.alive_brokers())
    return {broker_id: at for broker_id, at in endpoints if at is not None}


def _absent_topic(name: str, operations: int) -> MetadataResponse.Topic:
    return MetadataResponse.Topic(
        error_code=absent_topic_error(name).code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[],
        topic_authorized_operations=operations,
    )


def _metadata_topic(
    ctx: RequestContext[ClusterNode],
    image: MetadataImage,
    topic: TopicImage,
    reachable: Mapping[int, tuple[str, int]],
    operations: int,
) -> MetadataResponse.Topic:
    # Old clients take LEADER_NOT_AVAILABLE for "ask again", and LISTENER_NOT_FOUND for a failure.
    unreachable = (
        ErrorCode.LISTENER_NOT_FOUND if ctx.api_version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
    )
    make = MetadataResponse.Topic.Partition
    # Those of version 0 look every replica up among the brokers that are named.
    hides, absent = ctx.api_version == 0, ErrorCode.REPLICA_NOT_AVAILABLE
    return MetadataResponse.Topic(
        error_code=_NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            make(
                error_code=_partition_error(image, partition.leader, reachable, unreachable)
                or (absent if hides and not reachable.keys() >= {*partition.replicas} else _NONE),
                partition_index=index,
                leader_id=partition.leader if partition.leader in reachable else NO_LEADER,
                leader_epoch=partition.leader_epoch,
                replica_nodes=[b for b in partition.replicas if b in reachable or not hides],
                isr_nodes=[b for b in partition.isr if b in reachable or not hides],
                offline_replicas=_offline_replicas(image, partition, reachable),
            )
            for index, partition in sorted(topic.partitions.items())
        ],
        topic_authorized_operations=operations,
    )


def _partition_error(
    image: MetadataImage,
    leader: int,
    reachable: Mapping[int, tuple[str, int]],
    unreachable: int = ErrorCode.LISTENER_NOT_FOUND,
) -> int:
    """NONE; or that there is no leader; or that it has no listener for this client."""
    if leader in reachable:
        return _NONE
    return int(unreachable if image.is_active(leader) else ErrorCode.LEADER_NOT_AVAILABLE)


def _offline_replicas(
    image: MetadataImage, partition: PartitionRegistration, reachable: Mapping[int, tuple[str, int]]
) -> list[int]:
    """Replicas on brokers that cannot be reached, or in a log directory that failed (KIP-858)."""
    return [
        replica
        for replica, directory in zip(partition.replicas, partition.directories, strict=True)
        if replica not in reachable or not image.brokers[replica].has_online_directory(directory)
    ]


# ---- DescribeTopicPartitions


def describe_topic_partitions(
    ctx: RequestContext[ClusterNode], request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Page through topics and partitions, by name and index (KIP-966).

    Behaviour: no names means all topics. A page ends after response_partition_limit partitions, or
               max.request.partition.size.limit; `next_cursor` says where the next begins.
    Versions:  all alike.
    Gaps:      -
    """
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the cursor's partition index is negative")
    image: MetadataImage = ctx.broker.metadata
    asked = {topic.name for topic in request.topics}
    if cursor is not None and asked and cursor.topic_name not in asked:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"the cursor's topic {cursor.topic_name!r} is none of those asked for",
        )
    names = sorted(asked or image.topics_by_name)
    if cursor is not None:
        names = names[bisect_left(names, cursor.topic_name) :]
    limit = min(
        ctx.broker.config.get_int("max.request.partition.size.limit"),
        request.response_partition_limit,
    )
    page = _Page(image, _reachable_brokers(ctx, image), max(1, limit))
    for name in names:
        first = cursor.partition_index if cursor and cursor.topic_name == name else 0
        if not page.add(name, first):
            break
    return DescribeTopicPartitionsResponse(topics=page.topics, next_cursor=page.next_cursor)


class _Page:
    """One answer of DescribeTopicPartitions being filled."""

    def __init__(
        self, image: MetadataImage, reachable: Mapping[int, tuple[str, int]], limit: int
    ) -> None:
        self._image = image
        self._reachable = reachable
        self._left = limit
        self.topics: list[DescribeTopicPartitionsResponse.Topic] = []
        self.next_cursor: DescribeTopicPartitionsResponse.Cursor | None = None

    def add(self, name: str, first: int) -> bool:
        """Add a topic's partitions from index `first`; False when the page is full."""
        topic = self._image.topics_by_name.get(name)
        if topic is None:
            self.topics.append(self._topic(name, absent_topic_error(name).code, None, ()))
            return True
        indexes = [index for index in sorted(topic.partitions) if index >= first]
        if not self._left and indexes:
            self._stop_at(name, indexes[0])
            return False
        taken = indexes[: self._left]
        self._left -= len(taken)
        self.topics.append(self._topic(name, _NONE, topic, taken))
        if len(taken) < len(indexes):
            self._stop_at(name, indexes[len(taken)])
            return False
        return True

    def _stop_at(self, name: str, index: int) -> None:
        self.next_cursor = DescribeTopicPartitionsResponse.Cursor(
            topic_name=name, partition_index=index
        )

    def _topic(
        self, name: str, code: int, topic: TopicImage | None, indexes: Sequence[int]
    ) -> DescribeTopicPartitionsResponse.Topic:
        return DescribeTopicPartitionsResponse.Topic(
            error_code=code,
            name=name,
            topic_id=ZERO_UUID if topic is None else topic.topic_id,
            is_internal=name in INTERNAL_TOPICS,
            partitions=[
                self._partition(index, topic.partitions[index]) for index in indexes if topic
            ],
            topic_authorized_operations=ALL_TOPIC_OPERATIONS,
        )

    def _partition(self, index: int, partition: PartitionRegistration) -> Any:
        return DescribeTopicPartitionsResponse.Topic.Partition(
            error_code=_partition_error(self._image, partition.leader, self._reachable),
            partition_index=index,
            leader_id=partition.leader if partition.leader in self._reachable else NO_LEADER,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            eligible_leader_replicas=list(partition.elr),
            last_known_elr=list(partition.last_known_elr),
            offline_replicas=_offline_replicas(self._image, partition, self._reachable),
        )
