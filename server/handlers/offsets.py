"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: where partitions' logs begin and end.

Handlers here know versions and error shapes; what the offsets are is the replica manager's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replication.partition.requests import LIST_OFFSETS_MIN_VERSION
from server.handlers.fetch import check_isolation_level
from wire.errors import ErrorCode
from wire.messages.data import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from wire.primitives import MAX_TIMESTAMP

if TYPE_CHECKING:
    from server.handlers.edges import DataContext

# ---- ListOffsets

_OFFSET_NOT_AVAILABLE_SINCE = 5
"""Older clients ask again after LEADER_NOT_AVAILABLE, and do not know the other (KIP-207)."""


def list_offsets(ctx: DataContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Find offsets: the log's ends, or the first record at or after a time.

    Behaviour: no record at or after the time: offset -1, timestamp -1, no error. A partition that
               is named twice: INVALID_REQUEST. Whoever names another replica id than a
               consumer's (-1) is told of the log's end, and nobody asks whether it is a broker, as
               in Kafka: kafka-python's consumer says 0.
    Versions:  2 isolation level. 4 leader epoch. 5 OFFSET_NOT_AVAILABLE. 7 max timestamp. 8 and 9
               local and tiered ends. 11 earliest offset waiting for upload. Special timestamps are
               refused below theirs.
    Gaps:      there is no tiered storage: its ends are those of a log that was never tiered.
    """
    check_isolation_level(request.isolation_level)
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in request.topics:
        for p in topic.partitions:
            key = (topic.name, p.partition_index)
            (twice if key in seen else seen).add(key)
    topics = []
    for topic in request.topics:
        partitions = [
            _list_offset(ctx, request, topic.name, p, (topic.name, p.partition_index) in twice)
            for p in topic.partitions
        ]
        topics.append(ListOffsetsResponse.Topic(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(topics=topics)


def list_offsets_is_costly(ctx: DataContext, request: ListOffsetsRequest) -> bool:
    """Whether records must be opened: who is looked for by time may be the last of millions that a
    small compressed batch holds."""
    return any(
        p.timestamp >= 0 or p.timestamp == MAX_TIMESTAMP
        for topic in request.topics
        for p in topic.partitions
    )


def _list_offset(
    ctx: DataContext,
    request: ListOffsetsRequest,
    name: str,
    p: ListOffsetsRequest.Topic.Partition,
    is_duplicate: bool,
) -> ListOffsetsResponse.Topic.Partition:
    timestamp = p.timestamp
    code, found_timestamp, offset, leader_epoch = int(ErrorCode.NONE), -1, -1, -1
    if is_duplicate:
        code = int(ErrorCode.INVALID_REQUEST)
    elif timestamp < 0 and LIST_OFFSETS_MIN_VERSION.get(timestamp, 1 << 15) > ctx.api_version:
        code = int(ErrorCode.UNSUPPORTED_VERSION)
    else:
        code, found_timestamp, offset, leader_epoch = ctx.broker.replica_manager.list_offset(
            (name, p.partition_index),
            timestamp,
            request.isolation_level,
            p.current_leader_epoch,
            request.replica_id,
        )
        if code == ErrorCode.OFFSET_NOT_AVAILABLE and ctx.api_version < _OFFSET_NOT_AVAILABLE_SINCE:
            code = int(ErrorCode.LEADER_NOT_AVAILABLE)
    return ListOffsetsResponse.Topic.Partition(
        partition_index=p.partition_index,
        error_code=code,
        timestamp=found_timestamp,
        offset=offset,
        leader_epoch=leader_epoch,
    )


# ---- OffsetForLeaderEpoch


def offset_for_leader_epoch(
    ctx: DataContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Say where epochs end, so that a consumer sees a truncation (KIP-320).

    Behaviour: an unknown epoch: epoch -1, offset -1, no error.
    Versions:  3 replica id, which changes nothing here.
    Gaps:      -
    """
    topics = []
    for topic in request.topics:
        partitions = []
        for p in topic.partitions:
            code, epoch, end_offset = ctx.broker.replica_manager.offset_for_leader_epoch(
                (topic.topic, p.partition), p.current_leader_epoch, p.leader_epoch
            )
            partitions.append(
                OffsetForLeaderEpochResponse.Topic.Partition(
                    error_code=code,
                    partition=p.partition,
                    leader_epoch=epoch,
                    end_offset=end_offset,
                )
            )
        topics.append(OffsetForLeaderEpochResponse.Topic(topic=topic.topic, partitions=partitions))
    return OffsetForLeaderEpochResponse(topics=topics)


# ---- DeleteRecords


def delete_records(ctx: DataContext, request: DeleteRecordsRequest) -> None:
    """Move log start offsets up; the records below are gone for readers at once.

    Behaviour: offset -1 means the high watermark. Internal topics: INVALID_TOPIC_EXCEPTION.
    Versions:  all alike.
    Gaps:      -
    """
    layout = [
        (topic.name, [p.partition_index for p in topic.partitions]) for topic in request.topics
    ]
    offsets = {
        (topic.name, p.partition_index): p.offset
        for topic in request.topics
        for p in topic.partitions
    }

    def answer(done: dict[Any, tuple[int, int]]) -> None:
        topics = []
        for name, indexes in layout:
            partitions = []
            for index in indexes:
                code, low_watermark = done[name, index]
                partitions.append(
                    DeleteRecordsResponse.Topic.Partition(
                        partition_index=index, low_watermark=low_watermark, error_code=code
                    )
                )
            topics.append(DeleteRecordsResponse.Topic(name=name, partitions=partitions))
        ctx.respond(DeleteRecordsResponse(topics=topics))

    ctx.park(ctx.broker.replica_manager.delete_records(offsets, request.timeout_ms, answer))
