"""Fetch.

Handlers here know versions, topic ids, sessions and error shapes; what happens to records is the
replica manager's. A request that must wait (fetch.min.bytes) is parked there; its answer is written
by whoever completes it, through the callback that is given with it, which must keep nothing of the
request alive but names and numbers.

What their senders may do is asked before (server.handlers.access), but for the topics of a fetch
session, which only the handler knows. Without an authorizer, too, who names a replica id must be a
registered broker other than this one: a client that poses as a follower would move the high
watermark (Z-4). Where that is not enough, followers fetch with their broker's epoch, which a client
cannot know by chance, and brokers may have a listener of their own.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from replication.partition.requests import CONSUMER_REPLICA_ID, FetchPartition, FetchResult
from replication.replicas.whole_batches import answer_whole_batches
from server.handlers.cluster import LEADER_ERRORS, current_leader, endpoints, topic_name
from wire.errors import ErrorCode, KafkaError
from wire.messages.data import REPLICA_STATE_FETCH_VERSION, FetchRequest, FetchResponse
from wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from server.handlers.edges import DataContext
    from server.handlers.fetch_session import FetchContext

_FOLLOWER_READ_FETCH_VERSION = 11
_LEADER_HINT_FETCH_VERSION = 16
_STORAGE_ERROR_FETCH_VERSION = 6
_READ_UNCOMMITTED = 0
_READ_COMMITTED = 1

_FetchedPartition = FetchResponse.Topic.Partition


def fetch(
    ctx: DataContext, request: FetchRequest, may_read: Callable[[str], bool] | None = None
) -> FetchResponse | None:
    """Read record batches; wait for min_bytes, at most max_wait_ms.

    Behaviour: batches are sent whole and as they are stored, at least one if there is any (KIP-74).
               Sessions are complete (KIP-227, server.handlers.fetch_session). Followers fetch up
               to the log's end, and what they ask for says what they have. Topics and partitions
               that do not exist are told with the rest and hurry nothing; so are topics that
               `may_read`, an authorizer's word on each of a session at each fetch, refuses.
    Versions:  5 log start offset. 7 sessions. 9 leader epoch. 11 rack: consumers may read
               from followers (KIP-392). 12 diverging epoch. 13 topic ids. 15 broker epoch of a
               follower (KIP-903). 16 names the new leader (KIP-951).
    Gaps:      -
    Budget:    one partition in a session, besides `ReplicaManager.fetch`: 10 µs.
    """
    version, broker = ctx.api_version, ctx.broker
    replica_id, replica_epoch = replica_of(request, version)
    follow = None
    if replica_id >= 0:
        check_replica(ctx, replica_id)
        ctx.exempt()
        follow = broker.replica_manager.follower_session
    else:
        replica_id = CONSUMER_REPLICA_ID
    check_isolation_level(request.isolation_level)
    resolve = partial(topic_name, ctx)
    try:
        context = broker.fetch_sessions.context(request, version, ctx.received_ms, resolve, follow)
    except KafkaError as error:
        return FetchResponse(error_code=error.code, responses=[])
    if context.follower is not None:
        if follow is None:  # a replica's session is for replicas
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[])
        on_followed = partial(_answer_follower, ctx, context)
        replica = replica_id, replica_epoch
        ctx.park(broker.replica_manager.follow(replica, request, context.follower, on_followed))
        return None
    partitions, on_complete = context.requests, partial(_answer_fetch, ctx, context)
    if may_read is not None:
        partitions, on_complete = _readable(partitions, on_complete, may_read)
        if context.requests and not partitions:
            on_complete([])
            return None
    max_bytes = min(request.max_bytes, ctx.fetch_bytes_max)
    if max_bytes < request.max_bytes:
        on_complete = partial(answer_whole_batches, max_bytes, on_complete)
    ctx.park(
        broker.replica_manager.fetch(
            replica_id,
            request.max_wait_ms,
            request.min_bytes,
            max_bytes,
            request.isolation_level,
            partitions,
            on_complete,
            rack=request.rack_id if version >= _FOLLOWER_READ_FETCH_VERSION else None,
            replica_epoch=replica_epoch,
        )
    )
    return None


def fetch_is_costly(ctx: DataContext, request: FetchRequest) -> bool:
    """Whether the session names much more than the request does."""
    return ctx.broker.fetch_sessions.is_large(request.session_id)


def replica_of(request: FetchRequest, version: int) -> tuple[int, int]:
    """Which replica asks, and its broker's epoch (-1: not told); negative ids are consumers."""
    if version >= REPLICA_STATE_FETCH_VERSION and request.replica_state is not None:
        return request.replica_state.replica_id, request.replica_state.replica_epoch
    return request.replica_id, -1


def _readable(
    partitions: list[FetchPartition], on_complete: Any, may_read: Callable[[str], bool]
) -> tuple[list[FetchPartition], Any]:
    """The partitions that may be read, and how to answer those, and the others, in their places."""
    names = {one.topic for one in partitions}
    denied = {name for name in names if name and not may_read(name)}
    if not denied:
        return partitions, on_complete
    code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def complete(results: list[FetchResult]) -> None:
        rest = iter(results)
        on_complete(
            [FetchResult(code) if one.topic in denied else next(rest) for one in partitions]
        )

    return [one for one in partitions if one.topic not in denied], complete


def check_replica(ctx: DataContext, replica_id: int) -> None:
    """Raises CLUSTER_AUTHORIZATION_FAILED: only other brokers of this cluster ask as replicas."""
    broker = ctx.broker
    if replica_id == broker.node_id or replica_id not in broker.metadata.brokers:
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers of this cluster ask as replicas"
        )


def check_isolation_level(level: int) -> None:
    """Raises INVALID_REQUEST for a number that is no isolation level."""
    if level not in (_READ_UNCOMMITTED, _READ_COMMITTED):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"isolation level {level}")


def _answer_fetch(ctx: DataContext, context: FetchContext, results: list[FetchResult]) -> None:
    _respond_fetch(ctx, context, results, partial(context.select, results, ctx.received_ms))


def _answer_follower(
    ctx: DataContext,
    context: FetchContext,
    looked: Sequence[Any],
    results: list[FetchResult],
) -> None:
    _respond_fetch(ctx, context, results, partial(context.select_for_follower, looked, results))


def _respond_fetch(
    ctx: DataContext,
    context: FetchContext,
    results: list[FetchResult],
    select: Callable[[], list[tuple[FetchPartition, FetchResult]]],
) -> None:
    try:
        selected = select()
    except KafkaError as error:
        for result in results:
            if result.records is not None:
                result.records.close()
        ctx.respond(FetchResponse(error_code=error.code, responses=[]))
        return
    moved: list[tuple[str, int]] = []
    topics: list[FetchResponse.Topic] = []
    partitions: list[Any] = []
    last: tuple[str, bytes | None] | None = None
    for one, result in selected:
        name, topic_id = one.topic, one.topic_id
        if (name, topic_id) != last:
            last = (name, topic_id)
            partitions = []
            topics.append(
                FetchResponse.Topic(
                    topic=name, topic_id=topic_id or ZERO_UUID, partitions=partitions
                )
            )
        if result.error_code or result.diverging_epoch is not None:
            partitions.append(_unusual_partition(ctx, one, result, moved))
        else:
            aborted = result.aborted
            partitions.append(
                _FetchedPartition(
                    partition_index=one.partition_index,
                    error_code=0,
                    high_watermark=result.high_watermark,
                    last_stable_offset=result.last_stable_offset,
                    log_start_offset=result.log_start_offset,
                    aborted_transactions=None if aborted is None else _aborted(aborted),
                    preferred_read_replica=result.preferred_read_replica,
                    records=b"" if result.records is None else result.records,
                )
            )
    response = FetchResponse(session_id=context.session_id, responses=topics)
    if moved:
        response.node_endpoints = endpoints(ctx, moved, FetchResponse.NodeEndpoint)
    ctx.respond(response)


def _aborted(aborted: Sequence[Any]) -> list[Any]:
    return [
        _FetchedPartition.AbortedTransaction(
            producer_id=one.producer_id, first_offset=one.first_offset
        )
        for one in aborted
    ]


def _unusual_partition(
    ctx: DataContext,
    one: FetchPartition,
    result: FetchResult,
    moved: list[tuple[str, int]],
) -> Any:
    """A partition's answer with an error or a diverging epoch."""
    code = result.error_code
    if code == ErrorCode.KAFKA_STORAGE_ERROR and ctx.api_version < _STORAGE_ERROR_FETCH_VERSION:
        code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # clients of that age do not know 56
    partition = _FetchedPartition(
        partition_index=one.partition_index,
        error_code=code,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=None if result.aborted is None else _aborted(result.aborted),
        records=b"" if result.records is None else result.records,
    )
    if result.diverging_epoch is not None:
        epoch, end_offset = result.diverging_epoch
        partition.diverging_epoch = _FetchedPartition.EpochEndOffset(
            epoch=epoch, end_offset=end_offset
        )
    if code in LEADER_ERRORS and ctx.api_version >= _LEADER_HINT_FETCH_VERSION:
        partition.current_leader = current_leader(
            ctx, one.topic, one.partition_index, _FetchedPartition.LeaderIdAndEpoch
        )
        moved.append((one.topic, one.partition_index))
    return partition
