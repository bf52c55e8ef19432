"""Produce, Fetch: what touches partitions' data.

Handlers here know versions, topic ids, sessions and error shapes; what happens to records is the
replica manager's. A request that must wait (acks=all, fetch.min.bytes) is parked there; its answer
is written by whoever completes it, through the callback that is given with it, which must keep
nothing of the request alive but names and numbers.

What their senders may do is asked before (server.handlers.access), but for two things that only
the handler knows: the topics of Produce's ordinary form, and those of a fetch session. Without an
authorizer, too, who names a replica id must be a registered broker other than this one: a client
that poses as a follower would move the high watermark (Z-4). Where that is not enough, followers
fetch with their broker's epoch, which a client cannot know by chance, and brokers may have a
listener of their own.
"""

from __future__ import annotations

from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from replication.metadata.topic_names import INTERNAL_TOPICS
from replication.partition.requests import (
    CONSUMER_REPLICA_ID,
    AppendRequest,
    AppendResult,
    FetchPartition,
    FetchResult,
)
from replication.replicas.replica_manager import FROM_CLIENT, AppendSource
from replication.replicas.transaction_verification import TransactionOperation
from server.handlers.cluster import current_leader, endpoints
from server.network.api import Operation, Resource
from wire.errors import ErrorCode, KafkaError
from wire.messages.data import (
    REPLICA_STATE_FETCH_VERSION,
    TOPIC_ID_VERSION,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)
from wire.plain_produce import VERSION_MIN as PLAIN_VERSION_MIN
from wire.plain_produce import answer_plain_produce, read_plain_produce
from wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from server.handlers.edges import DataContext
    from server.handlers.fetch_session import FetchContext

ADMIN_CLIENT_ID = "__admin_client"
"""The one client id that may write internal topics (Kafka's AdminUtils)."""
_FOLLOWER_READ_FETCH_VERSION = 11
_LEADER_HINT_PRODUCE_VERSION = 10
_LEADER_HINT_FETCH_VERSION = 16
_STORAGE_ERROR_FETCH_VERSION = 6
_READ_UNCOMMITTED = 0
_READ_COMMITTED = 1
_TRANSACTIONAL = 0x10  # in the low byte of a batch's attributes
_ATTRIBUTES_LOW_BYTE = 22

_NONE = int(ErrorCode.NONE)
_LEADER_ERRORS = frozenset(
    {int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.FENCED_LEADER_EPOCH)}
)
_ProducedPartition = ProduceResponse.Topic.Partition
_FetchedPartition = FetchResponse.Topic.Partition


# ---- Produce


class _ProducedTopic(NamedTuple):
    """A topic of a Produce request, as the answer needs it: none of the records."""

    name: str
    topic_id: bytes
    indexes: list[int]
    refused: dict[int, AppendResult]
    """Position in `indexes` -> why that partition was not even tried."""


def produce(ctx: DataContext, request: ProduceRequest) -> None:
    """Append each partition's batch; answer when `acks` is met.

    Behaviour: partitions fail alone. acks=0 is not answered, and on error the connection is closed.
               A partition that is named twice is appended to twice and answered twice. Internal
               topics take records of `__admin_client` only.
               A transactional batch without a transactional id in the request is refused; with
               one, its coordinator is asked first (KIP-890).
    Versions:  7 allows zstd. 8 record errors. 10 names the new leader (KIP-951). 11
               TRANSACTION_ABORTABLE. 12 adds its partitions to the transaction. 13 topic ids.
    Gaps:      -
    Budget:    one partition, besides `append_records`: 8 µs.
    """
    transactional = False
    topics: list[_ProducedTopic] = []
    entries: list[tuple[tuple[str, int], Any]] = []
    topic_ids: dict[str, bytes] | None = {} if ctx.api_version >= TOPIC_ID_VERSION else None
    for topic in request.topic_data:
        name = topic.name if topic_ids is None else _topic_named(ctx, topic.topic_id, topic_ids)
        refusal = None
        if not name or name in INTERNAL_TOPICS:
            refusal = _produce_refusal(ctx, name)
        indexes: list[int] = []
        refused: dict[int, AppendResult] = {}
        topics.append(_ProducedTopic(name, topic.topic_id, indexes, refused))
        for p in topic.partition_data:
            records = p.records
            if refusal is not None or not records:
                refused[len(indexes)] = _refused_append(name, p.index, refusal or _NO_RECORDS)
            else:
                transactional |= is_transactional(records)
                entries.append(((name, p.index), records))
            indexes.append(p.index)
    on_complete = partial(_answer_produce, ctx, topics, request.acks)
    if not entries:
        on_complete([])
        return
    append = AppendRequest(
        request.acks,
        request.timeout_ms,
        entries,
        on_complete,
        source=_source(ctx.api_version, _opens_compressed(ctx)),
        topic_ids=topic_ids,
    )
    if transactional:
        ctx.park(_append_verified(ctx, append, request.transactional_id))
    else:
        ctx.park(ctx.broker.replica_manager.append_records(append))


def is_transactional(records: Any) -> bool:
    """Does a partition's batch say that it is part of a transaction."""
    return len(records) > _ATTRIBUTES_LOW_BYTE and bool(
        records[_ATTRIBUTES_LOW_BYTE] & _TRANSACTIONAL
    )


def _append_verified(ctx: DataContext, append: AppendRequest, transactional_id: str | None) -> Any:
    if transactional_id is None:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "a transactional batch needs a transactional id",
        )
    return ctx.broker.transaction_verification.append_records(
        append, transactional_id, TransactionOperation.of_produce(ctx.api_version)
    )


def produce_ordinary(
    ctx: DataContext, frame: bytes, pos: int, sees: Callable[..., bool] | None = None
) -> bool:
    """`produce` of what clients send: batches that no rule opens, for topics of theirs.

    False, with nothing done, for anything else. What is different is only how the request is read
    and how a success is answered: see `wire.plain_produce`. `sees`: what an authorizer says.
    Budget: 4 µs for one batch, besides `append_records`.
    """
    version = ctx.api_version
    plain = read_plain_produce(frame, pos, version) if version >= PLAIN_VERSION_MIN else None
    if plain is None:
        return False
    transactional = 0
    batches = iter(plain.records)
    entries: list[tuple[tuple[str, int], memoryview]] = []
    topic_ids: dict[str, bytes] | None = {} if version >= TOPIC_ID_VERSION else None
    for topic, indexes in plain.topics:
        name = _name_of(topic) if topic_ids is None else _topic_named(ctx, topic, topic_ids)
        if not name or name in INTERNAL_TOPICS:
            return False
        for index in indexes:
            records = next(batches)
            if len(records) <= _ATTRIBUTES_LOW_BYTE:
                return False
            transactional |= records[_ATTRIBUTES_LOW_BYTE] & _TRANSACTIONAL
            entries.append(((name, index), records))
    if transactional and plain.transactional_id is None:
        return False
    if sees is not None and not _may_produce(
        sees, entries, plain.transactional_id if transactional else None
    ):
        return False
    opens_compressed = _opens_compressed(ctx)
    if ctx.broker.replica_manager.must_open_records(entries, opens_compressed):
        return False
    append = AppendRequest(
        plain.acks,
        plain.timeout_ms,
        entries,
        partial(_answer_ordinary, ctx, plain.topics, plain.acks),
        source=_source(version, opens_compressed),
        topic_ids=topic_ids,
    )
    if transactional:
        ctx.park(_append_verified(ctx, append, plain.transactional_id))
    else:
        ctx.park(ctx.broker.replica_manager.append_records(append))
    return True


def _may_produce(
    sees: Callable[..., bool],
    entries: Iterable[tuple[tuple[str, int], Any]],
    transactional_id: str | None,
) -> bool:
    if transactional_id is not None and not sees(
        Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id
    ):
        return False
    return all(sees(Operation.WRITE, Resource.TOPIC, name) for (name, _), _ in entries)


@lru_cache(maxsize=1_024)
def _name_of(topic: bytes) -> str:
    """A topic's name as it stands on the wire, one byte for its length before it; "" for bytes that
    are no text."""
    try:
        return topic[1:].decode()
    except UnicodeDecodeError:
        return ""


def _answer_ordinary(
    ctx: DataContext,
    topics: list[tuple[bytes, list[int]]],
    acks: int,
    results: list[AppendResult],
) -> None:
    for result in results:
        if result.error_code:
            break
    else:
        if acks:
            ctx.send_parts([answer_plain_produce(ctx.correlation_id, topics, results)])
            return
    names = (result.topic_partition[0] for result in results)
    produced = []
    for topic, indexes in topics:
        name, *_ = [next(names) for _ in indexes]
        topic_id = topic if ctx.api_version >= TOPIC_ID_VERSION else ZERO_UUID
        produced.append(_ProducedTopic(name, topic_id, indexes, {}))
    _answer_produce(ctx, produced, acks, results)


def produce_is_costly(ctx: DataContext, request: ProduceRequest) -> bool:
    """Whether records must be opened: by the topic's rules, or to see that they can be."""
    uses_topic_ids = ctx.api_version >= TOPIC_ID_VERSION
    return ctx.broker.replica_manager.must_open_records(
        (
            ((_topic_name(ctx, topic.topic_id) if uses_topic_ids else topic.name, p.index), records)
            for topic in request.topic_data
            for p in topic.partition_data
            if (records := p.records)
        ),
        _opens_compressed(ctx),
    )


def _opens_compressed(ctx: DataContext) -> bool:
    return ctx.listener_name in ctx.broker.opens_compressed_records


@cache
def _source(request_version: int, opens_compressed: bool) -> AppendSource:
    return FROM_CLIENT._replace(request_version=request_version, opens_compressed=opens_compressed)


_NO_RECORDS = KafkaError(
    ErrorCode.INVALID_RECORD, "a produce request must have exactly one record batch per partition"
)
_UNKNOWN_ID = KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)


def _topic_name(ctx: DataContext, topic_id: bytes) -> str:
    """The name of a topic id; "" if there is no such topic."""
    topic = ctx.broker.metadata.topics_by_id.get(topic_id)
    return "" if topic is None else topic.name


def _topic_named(ctx: DataContext, topic_id: bytes, topic_ids: dict[str, bytes]) -> str:
    """The same, noted for the append; "" if metadata that came meanwhile has two of that name."""
    name = _topic_name(ctx, topic_id)
    return name if topic_ids.setdefault(name, topic_id) == topic_id else ""


def _produce_refusal(ctx: DataContext, name: str) -> KafkaError | None:
    """Why nothing may be appended to the topic."""
    if name in INTERNAL_TOPICS:
        if ctx.client_id == ADMIN_CLIENT_ID:
            return None
        return KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"cannot append to internal topic {name}"
        )
    if ctx.api_version >= TOPIC_ID_VERSION:
        return _UNKNOWN_ID
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _refused_append(name: str, index: int, error: KafkaError) -> AppendResult:
    return AppendResult(
        (name, index), int(error.code), error_message=error.detail or error.code.name
    )


def _answer_produce(
    ctx: DataContext,
    topics: list[_ProducedTopic],
    acks: int,
    results: list[AppendResult],
) -> None:
    if acks == 0:
        failed = any(topic.refused for topic in topics) or any(r.error_code for r in results)
        if failed:
            ctx.close()
        else:
            ctx.no_response()
        return
    moved: list[tuple[str, int]] = []
    answered = iter(results)
    responses = []
    for name, topic_id, indexes, refused in topics:
        partitions = []
        for position, index in enumerate(indexes):
            result = refused[position] if position in refused else next(answered)
            if result.error_code:
                partitions.append(_failed_partition(ctx, name, index, result, moved))
            else:
                partitions.append(
                    _ProducedPartition(
                        index=index,
                        error_code=0,
                        base_offset=result.base_offset,
                        log_append_time_ms=result.log_append_time_ms,
                        log_start_offset=result.log_start_offset,
                    )
                )
        responses.append(
            ProduceResponse.Topic(name=name, topic_id=topic_id, partition_responses=partitions)
        )
    response = ProduceResponse(responses=responses)
    if moved:
        response.node_endpoints = endpoints(ctx, moved, ProduceResponse.NodeEndpoint)
    ctx.respond(response)


def _failed_partition(
    ctx: DataContext,
    name: str,
    index: int,
    result: AppendResult,
    moved: list[tuple[str, int]],
) -> ProduceResponse.Topic.Partition:
    partition = _ProducedPartition(
        index=index,
        error_code=result.error_code,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
        record_errors=[
            _ProducedPartition.RecordError(batch_index=at, batch_index_error_message=message)
            for at, message in result.record_errors
        ],
        error_message=result.error_message,
    )
    if result.error_code in _LEADER_ERRORS and ctx.api_version >= _LEADER_HINT_PRODUCE_VERSION:
        partition.current_leader = current_leader(
            ctx, name, index, _ProducedPartition.LeaderIdAndEpoch
        )
        moved.append((name, index))
    return partition


# ---- Fetch


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
    resolve = partial(_topic_name, ctx)
    try:
        context = broker.fetch_sessions.context(request, version, ctx.received_ms, resolve, follow)
    except KafkaError as error:
        return FetchResponse(error_code=error.code, responses=[])
    if context.follower is not None:
        if follow is None:  # a replica's session is for replicas
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[])
        on_followed = partial(_answer_follower, ctx, context)
        ctx.park(
            broker.replica_manager.follow(
                (replica_id, replica_epoch), request, context.follower, on_followed
            )
        )
        return None
    partitions, on_complete = context.requests, partial(_answer_fetch, ctx, context)
    if may_read is not None:
        partitions, on_complete = _readable(partitions, on_complete, may_read)
        if context.requests and not partitions:
            on_complete([])
            return None
    ctx.park(
        broker.replica_manager.fetch(
            replica_id,
            request.max_wait_ms,
            request.min_bytes,
            min(request.max_bytes, ctx.fetch_bytes_max),
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
    if code in _LEADER_ERRORS and ctx.api_version >= _LEADER_HINT_FETCH_VERSION:
        partition.current_leader = current_leader(
            ctx, one.topic, one.partition_index, _FetchedPartition.LeaderIdAndEpoch
        )
        moved.append((one.topic, one.partition_index))
    return partition
