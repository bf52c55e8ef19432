"""Rules of what is about topics and their records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from server.handlers.access.guard import DENIED, Access, Finish, Verdict, With
from server.handlers.access.shapes import finished, items, merged, refusal, without
from server.handlers.fetch import replica_of
from server.handlers.produce import is_transactional
from server.network.api import Operation, Resource
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import CreateTopicsResponse, DeleteTopicsResponse
from wire.messages.cluster import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataResponse,
)
from wire.messages.data import TOPIC_ID_VERSION
from wire.primitives import UNKNOWN_OPERATIONS, ZERO_UUID

TOPIC, CLUSTER = Resource.TOPIC, Resource.CLUSTER
_REFUSED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def topic_name(access: Access, topic_id: bytes) -> str | None:
    """None: nobody has this id, which may be told to anybody (LK-4)."""
    topic = access.ctx.broker.metadata.topics_by_id.get(topic_id)
    return None if topic is None else topic.name


def refused_topics(
    access: Access, operation: Operation, topics: Iterable[Any], by_id: bool
) -> tuple[list[Any], bool]:
    """Those of a request that may not be used, and whether all are settled: who is none now may be
    somebody when the handler looks."""
    refused, is_settled = [], True
    for topic in topics:
        name = topic_name(access, topic.topic_id) if by_id else topic.name
        if name is None:
            is_settled = False
        elif not access.may(operation, TOPIC, name):
            refused.append(topic)
    return refused, is_settled


def asking(access: Access, operation: Operation, finish: Finish | None) -> With:
    """The handler asks about topics that it finds, which were none when the rule looked."""
    return With(partial(access.may, operation, TOPIC), finish)


# ---- records


def produce(access: Access, request: Any) -> Verdict:
    """Transactional batches: the id first, for all. Then each topic; ids nobody has go on, and
    the handler asks about one that came to be known meanwhile."""
    if _is_transactional(request):
        transactional_id = request.transactional_id
        if transactional_id is None:
            raise KafkaError(*DENIED[Resource.TRANSACTIONAL_ID])
        access.must(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)
    by_id = access.ctx.api_version >= TOPIC_ID_VERSION
    denied, is_settled = refused_topics(access, Operation.WRITE, request.topic_data, by_id)
    if denied and request.acks == 0 and len(denied) == len(request.topic_data):
        raise KafkaError(*DENIED[TOPIC])  # closes
    finish: Any = None
    if denied:
        finish = without(access, request, "topic_data", "responses", denied, TOPIC)
    return finish if is_settled else asking(access, Operation.WRITE, finish)


def _is_transactional(request: Any) -> bool:
    return any(
        partition.records and is_transactional(partition.records)
        for topic in request.topic_data
        for partition in topic.partition_data
    )


def fetch(access: Access, request: Any) -> Verdict:
    """A session goes on with topics that are not named again: the handler asks about each."""
    if access.ctx.broker.role == "controller":
        access.must(Operation.CLUSTER_ACTION, CLUSTER)
        return None
    replica_id, _ = replica_of(request, access.ctx.api_version)
    if replica_id < 0:
        return With(lambda name: access.may(Operation.READ, TOPIC, name))
    if access.may(Operation.CLUSTER_ACTION, CLUSTER):
        return None
    refused: Any = refusal(access, request, "topics", request.topics, TOPIC)
    refused.error_code = refused.session_id = 0
    return refused


def offset_for_leader_epoch(access: Access, request: Any) -> Verdict:
    """Brokers about any topic; others about those they may describe."""
    if access.sees(Operation.CLUSTER_ACTION, CLUSTER):
        return None
    return _of_leader_epochs(access, request)


_of_leader_epochs = items(Operation.DESCRIBE, TOPIC, "topics", "topics", lambda topic: topic.topic)


# ---- metadata


def metadata(access: Access, request: Any) -> Verdict:
    """What may not be described is as if it were not there; so is what may not be created."""
    version, topics = access.ctx.api_version, request.topics
    if topics is None or (version == 0 and not topics):
        return partial(_shown_metadata, access, request, refused=(), is_emptied=False)
    if version < 12 and any(t.name is None or t.topic_id != ZERO_UUID for t in topics):
        return None  # refused by the handler, whoever asks
    uses_ids = any(topic.topic_id != ZERO_UUID for topic in topics)
    kept, refused, is_settled = [], [], True
    for topic in topics:
        name = topic_name(access, topic.topic_id) if uses_ids else topic.name or ""
        if name is None:
            is_settled = False  # it may be known by the time the handler looks
            kept.append(topic)
        elif access.may(Operation.DESCRIBE, TOPIC, name) and (
            uses_ids or _may_be_created(access, request, name)
        ):
            kept.append(topic)
        elif uses_ids:
            refused.append(_unnamed(topic.topic_id))
        else:
            refused.append(_denied_topic(name))
    asks_operations = (
        request.include_topic_authorized_operations or request.include_cluster_authorized_operations
    )
    finish: Finish | None = None
    if refused or asks_operations or not is_settled:
        request.topics = kept
        is_emptied = version == 0 and not kept
        finish = partial(_shown_metadata, access, request, refused=refused, is_emptied=is_emptied)
    # One that is there may be gone when the handler looks: it asks before it makes it again.
    return With(partial(_may_create, access), finish)


def _may_be_created(access: Access, request: Any, name: str) -> bool:
    """Whether it need not be created, or may be."""
    broker = access.ctx.broker
    if (
        name in broker.metadata.topics_by_name
        or not request.allow_auto_topic_creation
        or not broker.config.get("auto.create.topics.enable")
    ):
        return True
    return _may_create(access, name)


def _may_create(access: Access, name: str) -> bool:
    return access.sees(Operation.CREATE, CLUSTER) or access.may(Operation.CREATE, TOPIC, name)


def _denied_topic(name: str) -> MetadataResponse.Topic:
    return MetadataResponse.Topic(
        error_code=_REFUSED, name=name, topic_id=ZERO_UUID, is_internal=False, partitions=[]
    )


def _unnamed(topic_id: bytes) -> MetadataResponse.Topic:
    return MetadataResponse.Topic(
        error_code=_REFUSED, name=None, topic_id=topic_id, is_internal=False, partitions=[]
    )


def _shown_metadata(
    access: Access, request: Any, response: Any, *, refused: Sequence[Any], is_emptied: bool
) -> Any:
    """`is_emptied`: nothing was left to be asked for, which version 0 has no way to say."""
    response.topics = [
        topic
        for topic in (() if is_emptied else response.topics)
        if topic.name is None or access.sees(Operation.DESCRIBE, TOPIC, topic.name)
    ]
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            if topic.name is not None:
                topic.topic_authorized_operations = access.operations(TOPIC, topic.name)
    response.topics += refused
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = _cluster_operations(access)
    return response


def _cluster_operations(access: Access) -> int:
    return access.operations(CLUSTER) if access.may(Operation.DESCRIBE, CLUSTER) else 0


def describe_cluster(access: Access, request: Any) -> Verdict:
    """Brokers are shown to everybody, controllers to who may alter the cluster."""
    if access.ctx.broker.role == "controller":
        access.must(Operation.ALTER, CLUSTER)
    if not request.include_cluster_authorized_operations:
        return None

    def finish(response: Any) -> Any:
        if not response.error_code:
            response.cluster_authorized_operations = _cluster_operations(access)
        return response

    return finish


def describe_topic_partitions(access: Access, request: Any) -> Verdict:
    """As Metadata. All topics become those that may be described, so that no page ends at one that
    may not."""
    cursor = request.cursor
    if not request.topics:
        shown = access.ctx.broker.metadata.topics_by_name
        names = [name for name in sorted(shown) if access.sees(Operation.DESCRIBE, TOPIC, name)]
        if cursor is not None:
            names = [name for name in names if name >= cursor.topic_name]
            if cursor.topic_name not in names:
                request.cursor = None
        if not names:
            return DescribeTopicPartitionsResponse(topics=[], next_cursor=None)
        request.topics = [DescribeTopicPartitionsRequest.Topic(name=name) for name in names]
        return lambda response: _with_operations(access, response)
    asked = dict.fromkeys(topic.name for topic in request.topics)
    denied = {name for name in asked if not access.may(Operation.DESCRIBE, TOPIC, name)}
    request.topics = [topic for topic in request.topics if topic.name not in denied]
    names = sorted(denied)
    if cursor is not None:
        if cursor.topic_name in denied:
            request.cursor = None
            request.topics = [t for t in request.topics if t.name >= cursor.topic_name]
        names = [name for name in names if name >= cursor.topic_name]
    refused = [
        DescribeTopicPartitionsResponse.Topic(
            error_code=_REFUSED,
            name=name,
            topic_id=ZERO_UUID,
            is_internal=False,
            partitions=[],
            topic_authorized_operations=UNKNOWN_OPERATIONS,
        )
        for name in names
    ]
    if not request.topics:
        return DescribeTopicPartitionsResponse(topics=refused, next_cursor=None)

    def finish(response: Any) -> Any:
        _with_operations(access, response).topics.extend(refused)
        return response

    return finish


def _with_operations(access: Access, response: Any) -> Any:
    for topic in response.topics:
        topic.topic_authorized_operations = access.operations(TOPIC, topic.name)
    return response


# ---- topics made and unmade


def create_topics(access: Access, request: Any) -> Verdict:
    """Create on the cluster or on the topic; configs are told to who may describe them."""
    verdict = None
    if not access.sees(Operation.CREATE, CLUSTER):
        verdict = _created_topics(access, request)
    return finished(verdict, lambda response: _shown_configs(access, response))


_created_topics = items(Operation.CREATE, TOPIC, "topics", "topics", text="Authorization failed.")


def _shown_configs(access: Access, response: CreateTopicsResponse) -> CreateTopicsResponse:
    for topic in response.topics:
        if not topic.error_code and not access.sees(Operation.DESCRIBE_CONFIGS, TOPIC, topic.name):
            topic.configs = None
            topic.num_partitions = topic.replication_factor = -1
            topic.topic_config_error_code = _REFUSED
    return response


def delete_topics(access: Access, request: Any) -> Verdict:
    """Delete on the cluster or on the topic. Who may not even describe it is not told its name.

    About topics that this node does not know yet the controller asks, which may know them.
    """
    if access.sees(Operation.DELETE, CLUSTER):
        return None
    image = access.ctx.broker.metadata
    refused = []
    deletable = set()

    def may_delete(name: str) -> bool:
        return name in deletable or access.may(Operation.DELETE, TOPIC, name)

    def is_refused(name: str | None, topic_id: bytes) -> bool:
        if name is None:
            name = topic_name(access, topic_id)
            if name is None:
                return False
            exists = True
        else:
            topic_id, exists = ZERO_UUID, name in image.topics_by_name
        is_seen = access.sees(Operation.DESCRIBE, TOPIC, name)
        if is_seen and not exists:
            return False
        if access.may(Operation.DELETE, TOPIC, name) and (is_seen or topic_id != ZERO_UUID):
            deletable.add(name)
            return False
        is_named = is_seen or topic_id == ZERO_UUID
        refused.append(
            DeleteTopicsResponse.Topic(
                name=name if is_named else None,
                topic_id=topic_id,
                error_code=_REFUSED,
                error_message=DENIED[TOPIC][1],
            )
        )
        return True

    by_name = [name for name in request.topic_names or () if not is_refused(name, ZERO_UUID)]
    topics = [t for t in request.topics or () if not is_refused(t.name, t.topic_id)]
    if not refused:
        return With(may_delete)
    order = [*(request.topic_names or ()), *(t.name or t.topic_id for t in request.topics or ())]
    request.topic_names, request.topics = by_name, topics
    if not by_name and not topics:
        return DeleteTopicsResponse(responses=refused)
    return With(may_delete, merged("responses", refused, order))
