"""Offsets of groups: commit, in a transaction or not, fetch, delete.

Handlers here know versions, topic ids and error shapes; who may commit and what is stored is
`server.coordinator.offsets`'. None waits: what must be committed first is answered later, on the
thread that made it so.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from server.coordinator.gather import Gather
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import (
    FETCH_GROUPS_VERSION,
    FETCH_TOP_LEVEL_ERROR_VERSION,
    OFFSETS_TOPIC_ID_VERSION,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from wire.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable

    from replication.metadata.image import MetadataImage, TopicImage
    from server.handlers.edges import GroupsBroker
    from server.network.request_context import RequestContext

_TXN_LOADING_VERSION = 2
_UNKNOWN_TOPIC = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_UNKNOWN_TOPIC_ID = int(ErrorCode.UNKNOWN_TOPIC_ID)


# ---- OffsetCommit


def offset_commit(
    ctx: RequestContext[GroupsBroker],
    request: OffsetCommitRequest,
    may: Callable[[str], bool] | None = None,
) -> None:
    """Store a group's offsets; answered when they are committed. `may`: what an authorizer says.

    Behaviour: partitions that do not exist fail alone; all others share the group's fate.
    Versions:  2 to 4 may bring their own retention. 7 static members. 10 topics by id.
    Gaps:      -
    """
    by_id = ctx.api_version >= OFFSETS_TOPIC_ID_VERSION
    unknown = _resolve_commit(ctx.broker.metadata, request, by_id, may)

    def answer(result: object) -> None:
        response = _commit_failed(request, result) if isinstance(result, KafkaError) else result
        assert isinstance(response, OffsetCommitResponse)
        if unknown:
            _merge_unknown(response, unknown)
        ctx.respond(response)

    if unknown and not request.topics:
        answer(OffsetCommitResponse(topics=[]))
        return
    ctx.broker.group_coordinator.commit_offsets(request, ctx.api_version, answer)


def _resolve_commit(
    image: MetadataImage,
    request: OffsetCommitRequest,
    by_id: bool,
    may: Callable[[str], bool] | None,
) -> list[OffsetCommitResponse.Topic]:
    """Fill in names and ids; take what does not exist out of the request and return its answers."""
    unknown: list[OffsetCommitResponse.Topic] = []
    for topic in request.topics:
        known: TopicImage | None
        if by_id:
            known = image.topics_by_id.get(topic.topic_id)
        else:
            known = image.topics_by_name.get(topic.name)
        if known is not None and may is not None and not may(known.name):
            known = None  # it came a moment after the request
        if known is None:
            code = _UNKNOWN_TOPIC_ID if by_id else _UNKNOWN_TOPIC
            refused, topic.partitions = topic.partitions, []
        else:
            topic.name, topic.topic_id, code = known.name, known.topic_id, _UNKNOWN_TOPIC
            partitions = known.partitions
            refused = [p for p in topic.partitions if p.partition_index not in partitions]
            if refused:
                topic.partitions = [p for p in topic.partitions if p.partition_index in partitions]
        if refused:
            unknown.append(
                OffsetCommitResponse.Topic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[_committed(p.partition_index, code) for p in refused],
                )
            )
    if unknown:
        request.topics = [topic for topic in request.topics if topic.partitions]
    return unknown


def _committed(index: int, code: int) -> OffsetCommitResponse.Topic.Partition:
    return OffsetCommitResponse.Topic.Partition(partition_index=index, error_code=code)


def _commit_failed(request: OffsetCommitRequest, error: KafkaError) -> OffsetCommitResponse:
    code = int(error.code)
    topics = [
        OffsetCommitResponse.Topic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[_committed(p.partition_index, code) for p in topic.partitions],
        )
        for topic in request.topics
    ]
    return OffsetCommitResponse(topics=topics)


def _merge_unknown(
    response: OffsetCommitResponse, unknown: list[OffsetCommitResponse.Topic]
) -> None:
    """One entry per topic: clients do not expect a topic twice."""
    known = {(topic.name, topic.topic_id): topic for topic in response.topics}
    for topic in unknown:
        answered = known.get((topic.name, topic.topic_id))
        if answered is None:
            response.topics.append(topic)
        else:
            answered.partitions += topic.partitions


# ---- OffsetFetch


def offset_fetch(ctx: RequestContext[GroupsBroker], request: OffsetFetchRequest) -> None:
    """Read stored offsets: of some partitions, or all of a group (null topics).

    Behaviour: what is not there is -1 without an error, unknown groups included.
    Versions:  2 null topics, top-level error. 7 require_stable. 8 many groups. 9 member id and
               epoch, which must be right in a consumer group. 10 topics by id.
    Gaps:      -
    """
    version = ctx.api_version
    image: MetadataImage = ctx.broker.metadata
    groups = request.groups if version >= FETCH_GROUPS_VERSION else [_as_group(request)]

    def answer(results: list[OffsetFetchResponse.Group]) -> None:
        if version >= FETCH_GROUPS_VERSION:
            ctx.respond(OffsetFetchResponse(groups=results))
        else:
            ctx.respond(_as_single(request, results[0], version))

    gather = Gather(len(groups), answer)
    for i, group in enumerate(groups):
        by_id = version >= OFFSETS_TOPIC_ID_VERSION
        wants_all = group.topics is None
        unknown = _resolve_fetch(image, group, by_id)
        put = partial(_put_fetched, gather, i, image, group, unknown, by_id and wants_all)
        ctx.broker.group_coordinator.fetch_offsets(group, request.require_stable, put)


def offset_fetch_is_costly(ctx: RequestContext[GroupsBroker], request: OffsetFetchRequest) -> bool:
    """Whether it asks for all that groups have committed, which may be much."""
    if ctx.api_version < FETCH_GROUPS_VERSION:
        return request.topics is None
    return any(group.topics is None for group in request.groups)


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequest.Group:
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequest.Group.Topic(
                name=topic.name, partition_indexes=topic.partition_indexes
            )
            for topic in request.topics
        ]
    return OffsetFetchRequest.Group(group_id=request.group_id, topics=topics)


def _resolve_fetch(
    image: MetadataImage, group: OffsetFetchRequest.Group, by_id: bool
) -> list[OffsetFetchResponse.Group.Topic]:
    """Fill in names and ids; take unknown ids out of the request and return their answers."""
    unknown: list[OffsetFetchResponse.Group.Topic] = []
    if group.topics is None:
        return unknown
    for topic in group.topics:
        if not by_id:
            known = image.topics_by_name.get(topic.name)
            topic.topic_id = ZERO_UUID if known is None else known.topic_id
            continue
        known = image.topics_by_id.get(topic.topic_id)
        if known is not None:
            topic.name = known.name
            continue
        unknown.append(
            OffsetFetchResponse.Group.Topic(
                topic_id=topic.topic_id,
                partitions=[_no_offset(i, _UNKNOWN_TOPIC_ID) for i in topic.partition_indexes],
            )
        )
    if unknown:
        group.topics = [topic for topic in group.topics if topic.name]
    return unknown


def _no_offset(index: int, code: int) -> OffsetFetchResponse.Group.Topic.Partition:
    return OffsetFetchResponse.Group.Topic.Partition(
        partition_index=index,
        committed_offset=-1,
        committed_leader_epoch=-1,
        metadata="",
        error_code=code,
    )


def _put_fetched(
    gather: Gather[OffsetFetchResponse.Group],
    i: int,
    image: MetadataImage,
    group: OffsetFetchRequest.Group,
    unknown: list[OffsetFetchResponse.Group.Topic],
    all_by_id: bool,
    result: object,
) -> None:
    if isinstance(result, KafkaError):
        code = result.code
        if code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            # Consumers before 3.9 do not expect that one here, and would not come back.
            code = ErrorCode.NOT_COORDINATOR
        result = OffsetFetchResponse.Group(group_id=group.group_id, topics=[], error_code=int(code))
    fetched = cast("OffsetFetchResponse.Group", result)
    if all_by_id:
        # Offsets of topics that are gone cannot be named in this version.
        for topic in fetched.topics:
            known = image.topics_by_name.get(topic.name)
            topic.topic_id = ZERO_UUID if known is None else known.topic_id
        fetched.topics = [topic for topic in fetched.topics if topic.topic_id != ZERO_UUID]
    if unknown and not fetched.error_code:
        fetched.topics = [*fetched.topics, *unknown]
    gather.put(i, fetched)


def _as_single(
    request: OffsetFetchRequest, group: OffsetFetchResponse.Group, version: int
) -> OffsetFetchResponse:
    """Below version 8: one group at the top; in version 1 its error is each partition's."""
    if group.error_code and version < FETCH_TOP_LEVEL_ERROR_VERSION:
        group.topics = [
            OffsetFetchResponse.Group.Topic(
                name=topic.name,
                partitions=[_no_offset(i, group.error_code) for i in topic.partition_indexes],
            )
            for topic in request.topics or ()
        ]
    topics = [
        OffsetFetchResponse.Topic(
            name=topic.name,
            partitions=[
                OffsetFetchResponse.Topic.Partition(
                    partition_index=p.partition_index,
                    committed_offset=p.committed_offset,
                    committed_leader_epoch=p.committed_leader_epoch,
                    metadata=p.metadata,
                    error_code=p.error_code,
                )
                for p in topic.partitions
            ],
        )
        for topic in group.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=group.error_code)


# ---- OffsetDelete


def offset_delete(ctx: RequestContext[GroupsBroker], request: OffsetDeleteRequest) -> None:
    """Delete a group's offsets of some partitions (KIP-496).

    Behaviour: topics that a member subscribes to: GROUP_SUBSCRIBED_TO_TOPIC.
    Versions:  only 0, which is not flexible.
    Gaps:      -
    """
    unknown = _take_unknown(ctx.broker.metadata, request.topics)
    request.topics = [topic for topic in request.topics if topic.partitions]

    def answer(result: object) -> None:
        if isinstance(result, KafkaError):
            ctx.respond(OffsetDeleteResponse(error_code=int(result.code), topics=[]))
            return
        response = cast("OffsetDeleteResponse", result)
        _tell_unknown(response.topics, unknown, OffsetDeleteResponse.Topic)
        ctx.respond(response)

    if not request.group_id:
        answer(KafkaError(ErrorCode.INVALID_GROUP_ID))
        return
    ctx.broker.group_coordinator.delete_offsets(request, answer)


# ---- TxnOffsetCommit


def txn_offset_commit(ctx: RequestContext[GroupsBroker], request: TxnOffsetCommitRequest) -> None:
    """Store a group's offsets as part of a transaction; answered when that is committed.

    Behaviour: the offsets count once the transaction is committed. Partitions that do not exist
               fail alone; all others share the fate of group and transaction.
    Versions:  2 leader epochs; below it a loading coordinator is one that is not available, as
               older clients crash. 3 member id, generation, instance id. 4 may be answered
               TRANSACTION_ABORTABLE. 5 adds the group to the transaction (KIP-890).
    Gaps:      -
    """
    version = ctx.api_version
    unknown = _take_unknown(ctx.broker.metadata, request.topics)
    request.topics = [topic for topic in request.topics if topic.partitions]

    def answer(result: object) -> None:
        response = (
            _txn_failed(request, result, version) if isinstance(result, KafkaError) else result
        )
        assert isinstance(response, TxnOffsetCommitResponse)
        _tell_unknown(response.topics, unknown, TxnOffsetCommitResponse.Topic)
        ctx.respond(response)

    if not request.topics:  # and so no transaction begins
        answer(TxnOffsetCommitResponse(topics=[]))
    elif not request.group_id:
        answer(KafkaError(ErrorCode.INVALID_GROUP_ID))
    else:
        broker = ctx.broker
        broker.group_coordinator.commit_transactional_offsets(
            request, version, broker.transaction_verification, answer
        )


def _txn_failed(
    request: TxnOffsetCommitRequest, error: KafkaError, version: int
) -> TxnOffsetCommitResponse:
    code = error.code
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < _TXN_LOADING_VERSION:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    make = TxnOffsetCommitResponse.Topic
    return TxnOffsetCommitResponse(
        topics=[
            make(
                name=topic.name,
                partitions=[
                    make.Partition(partition_index=p.partition_index, error_code=int(code))
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


# ---- topics by name


def _take_unknown(image: MetadataImage, topics: Iterable[Any]) -> dict[str, list[int]]:
    """Take partitions that do not exist out of a request, and say which they were."""
    unknown: dict[str, list[int]] = {}
    for topic in topics:
        known = image.topics_by_name.get(topic.name)
        partitions = {} if known is None else known.partitions
        refused = [
            p.partition_index for p in topic.partitions if p.partition_index not in partitions
        ]
        if refused:
            unknown.setdefault(topic.name, []).extend(refused)
            topic.partitions = [p for p in topic.partitions if p.partition_index in partitions]
    return unknown


def _tell_unknown(answered: list[Any], unknown: dict[str, list[int]], make: Any) -> None:
    """Add them to an answer, one entry for each topic: clients do not expect one twice."""
    by_name = {topic.name: topic for topic in answered}
    for name, indexes in unknown.items():
        partitions = [
            make.Partition(partition_index=index, error_code=_UNKNOWN_TOPIC) for index in indexes
        ]
        if name in by_name:
            by_name[name].partitions += partitions
        else:
            answered.append(make(name=name, partitions=partitions))
