"""Produce.

Handlers here know versions, topic ids and error shapes; what happens to records is the replica
manager's. A request that must wait (acks=all) is parked there; its answer is written by whoever
completes it, through the callback that is given with it, which must keep nothing of the request
alive but names and numbers.

Three ways lead to `ReplicaManager.append_records`, with one outcome:

    produce             any request, as it is declared
    produce_ordinary    one that has only what clients send and no rule opens, read in place
    produce_together    several of these that wait in line: what they have for one partition is
                        written with one call

What their senders may do is asked before (server.handlers.access), but for the topics of the
ordinary form, which only the handler knows.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import cache, lru_cache, partial
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from replication.metadata.topic_names import INTERNAL_TOPICS
from replication.partition.requests import AppendRequest, AppendResult
from replication.replicas.replica_manager import FROM_CLIENT, AppendSource
from replication.replicas.transaction_verification import TransactionOperation
from server.handlers.cluster import LEADER_ERRORS, current_leader, endpoints, topic_name
from server.network.api import Operation, Resource
from wire.errors import ErrorCode, KafkaError
from wire.frame import encode_response
from wire.messages.data import TOPIC_ID_VERSION, ProduceRequest, ProduceResponse
from wire.plain_produce import VERSION_MIN as PLAIN_VERSION_MIN
from wire.plain_produce import PlainProduce, answer_plain_produce, read_plain_produce
from wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from server.handlers.edges import DataContext

logger = logging.getLogger(__name__)

ADMIN_CLIENT_ID = "__admin_client"
"""The one client id that may write internal topics (Kafka's AdminUtils)."""
_LEADER_HINT_PRODUCE_VERSION = 10
_TRANSACTIONAL = 0x10  # in the low byte of a batch's attributes
_NOT_TRANSACTIONAL = 0
_NO_TRANSACTIONAL_ID = b"\0"
_ACKS_0 = b"\0\0"
_ATTRIBUTES_LOW_BYTE = 22
_CORRELATION_ID = Struct(">8xi")

_ProducedPartition = ProduceResponse.Topic.Partition
_Entries = list[tuple[tuple[str, int], Any]]
_Topics = list[tuple[bytes, list[int]]]
"""As `wire.plain_produce` has them."""


class _ProducedTopic(NamedTuple):
    """A topic of a Produce request, as the answer needs it: none of the records."""

    name: str
    topic_id: bytes
    indexes: list[int]
    refused: dict[int, AppendResult]
    """Position in `indexes` -> why that partition was not even tried."""


def produce(
    ctx: DataContext, request: ProduceRequest, may: Callable[[str], bool] | None = None
) -> None:
    """Append each partition's batch; answer when `acks` is met.

    `may`: what an authorizer says of topics whose ids nobody had when it was asked.

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
        if may is not None and name and not may(name):
            name = ""  # it came a moment after the request
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
                if refusal is _UNKNOWN_ID and records:
                    ctx.broker.replica_manager.writes.note_refused(
                        (topic.topic_id, p.index), records, refusal.code
                    )
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
    entries: _Entries = []
    topic_ids: dict[str, bytes] | None = {} if version >= TOPIC_ID_VERSION else None
    transactional = _take_ordinary(ctx, plain, entries, topic_ids, sees)
    if transactional is None:
        return False
    append = AppendRequest(
        plain.acks,
        plain.timeout_ms,
        entries,
        partial(_answer_ordinary, ctx, plain.topics, plain.acks),
        source=_source(version, _opens_compressed(ctx)),
        topic_ids=topic_ids,
    )
    if transactional:
        ctx.park(_append_verified(ctx, append, plain.transactional_id))
    else:
        ctx.park(ctx.broker.replica_manager.append_records(append))
    return True


def produce_together(
    ctx: DataContext, frames: Iterable[bytes], pos: int, sees: Callable[..., bool] | None = None
) -> int:
    """`produce_ordinary` of requests that wait in line: how many of the first were served; 0, with
    nothing done, if not even two.

    `ctx` is the first one's. What they have for one partition is written with one call, with
    acks=all they are replicated together, too, and they are answered in their order, each as soon
    as it and those before it may be. Kafka serves them one by one; a client that sends without
    waiting for answers cannot tell. What is part of a transaction comes alone, for its coordinator
    is asked; so does acks=0, where what follows an error is not served, and what meets a fault here
    before anything is written.
    Budget: 3 µs a request, besides `append_records`.
    """
    version = ctx.api_version
    if version < PLAIN_VERSION_MIN:
        return 0
    entries: _Entries = []
    topic_ids: dict[str, bytes] | None = {} if version >= TOPIC_ID_VERSION else None
    answers: _Answers | None = None
    for frame in frames:
        if answers is None and not _may_be_first(frame[pos : pos + 3]):
            break
        try:
            plain = read_plain_produce(frame, pos, version)
            if plain is None:
                break
            if answers is None:
                answers, first = _Answers(ctx), plain
            if (plain.acks, plain.timeout_ms) != (first.acks, first.timeout_ms):
                break
            if _take_ordinary(ctx, plain, entries, topic_ids, sees) != _NOT_TRANSACTIONAL:
                break
        except Exception:
            break
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        answers.expected.append((correlation_id, plain.topics, len(plain.records)))
    taken = 0 if answers is None else len(answers.expected)
    if answers is None or taken < 2:
        return 0
    del entries[sum(count for _, _, count in answers.expected) :]
    append = AppendRequest(
        first.acks,
        first.timeout_ms,
        entries,
        answers.send_all,
        source=_source(version, _opens_compressed(ctx)),
        topic_ids=topic_ids,
        on_settled=answers.send,
    )
    ctx.park(ctx.broker.replica_manager.append_records(append))
    return taken


def _may_be_first(start: bytes) -> bool:
    """Of a request: it has no transactional id, and acks is not 0. Asked before it is read."""
    return start[:1] == _NO_TRANSACTIONAL_ID and start[1:] != _ACKS_0


def _take_ordinary(
    ctx: DataContext,
    plain: PlainProduce,
    entries: _Entries,
    topic_ids: dict[str, bytes] | None,
    sees: Callable[..., bool] | None,
) -> int | None:
    """Put the batches of an ordinary request to `entries`, and its topics to `topic_ids`; whether
    some are part of a transaction, None if it is not an ordinary one."""
    batches = iter(plain.records)
    own: _Entries = []
    transactional = _NOT_TRANSACTIONAL
    for topic, indexes in plain.topics:
        name = _name_of(topic) if topic_ids is None else _topic_named(ctx, topic, topic_ids)
        if not name or name in INTERNAL_TOPICS:
            return None
        for index in indexes:
            records = next(batches)
            if len(records) <= _ATTRIBUTES_LOW_BYTE:
                return None
            transactional |= records[_ATTRIBUTES_LOW_BYTE] & _TRANSACTIONAL
            own.append(((name, index), records))
    if transactional and plain.transactional_id is None:
        return None
    transactional_id = plain.transactional_id if transactional else None
    if sees is not None and not _may_produce(sees, own, transactional_id):
        return None
    if ctx.broker.replica_manager.must_open_records(own, _opens_compressed(ctx)):
        return None
    entries += own
    return transactional


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
    ctx: DataContext, topics: _Topics, acks: int, results: list[AppendResult]
) -> None:
    if acks and not _has_errors(results):
        ctx.send_parts([answer_plain_produce(ctx.correlation_id, topics, results)])
    else:
        _answer_produce(ctx, _produced_topics(ctx, topics, results), acks, results)


class _Answers:
    """Of requests that are served together, back to back, as their results become known."""

    __slots__ = ("_begin", "_ctx", "_lock", "expected")

    def __init__(self, ctx: DataContext) -> None:
        self.expected: deque[tuple[int, _Topics, int]] = deque()
        """Correlation id, topics and how many batches they have, of each request that is not
        answered."""
        self._ctx = ctx
        self._lock = threading.Lock()  # so that they leave in their order
        self._begin = 0

    def send_all(self, results: list[AppendResult]) -> None:
        """All results are known."""
        self.send(results, len(results))

    def send(self, results: list[AppendResult], known: int) -> None:
        """So many of the first results are known. Any thread may say so; never raises."""
        with self._lock:
            try:
                self._send(results, known)
            except Exception:
                logger.exception("answer failed %r", self._ctx)
                self._ctx.close()

    def _send(self, results: list[AppendResult], known: int) -> None:
        expected = self.expected
        out = bytearray()
        while expected and (end := self._begin + expected[0][2]) <= known:
            correlation_id, topics, _ = expected.popleft()
            out += self._encoded(correlation_id, topics, results[self._begin : end])
            self._begin = end
        if out:
            (self._ctx.send_early if expected else self._ctx.send_parts)([out])

    def _encoded(
        self, correlation_id: int, topics: _Topics, results: list[AppendResult]
    ) -> bytes | bytearray:
        if not _has_errors(results):
            return answer_plain_produce(correlation_id, topics, results)
        ctx = self._ctx
        response = _produce_response(ctx, _produced_topics(ctx, topics, results), results)
        parts: Any = encode_response(True, ctx.api_version, correlation_id, response)
        return b"".join(parts)


def _has_errors(results: Iterable[AppendResult]) -> bool:
    for result in results:  # noqa: SIM110 - any() takes twice the time, of every request
        if result.error_code:
            return True
    return False


def _produced_topics(
    ctx: DataContext, topics: _Topics, results: Iterable[AppendResult]
) -> list[_ProducedTopic]:
    """The topics of an ordinary request, as other answers have them."""
    names = (result.topic_partition[0] for result in results)
    produced = []
    for topic, indexes in topics:
        name, *_ = [next(names) for _ in indexes]
        topic_id = topic if ctx.api_version >= TOPIC_ID_VERSION else ZERO_UUID
        produced.append(_ProducedTopic(name, topic_id, indexes, {}))
    return produced


def produce_is_costly(ctx: DataContext, request: ProduceRequest) -> bool:
    """Whether records must be opened: by the topic's rules, or to see that they can be."""
    uses_topic_ids = ctx.api_version >= TOPIC_ID_VERSION
    return ctx.broker.replica_manager.must_open_records(
        (
            ((topic_name(ctx, topic.topic_id) if uses_topic_ids else topic.name, p.index), records)
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


def _topic_named(ctx: DataContext, topic_id: bytes, topic_ids: dict[str, bytes]) -> str:
    """The same, noted for the append; "" if metadata that came meanwhile has two of that name."""
    name = topic_name(ctx, topic_id)
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
    if acks:
        ctx.respond(_produce_response(ctx, topics, results))
    elif _has_errors(results) or any(topic.refused for topic in topics):
        ctx.close()
    else:
        ctx.no_response()


def _produce_response(
    ctx: DataContext, topics: list[_ProducedTopic], results: Iterable[AppendResult]
) -> ProduceResponse:
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
    return response


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
    if result.error_code in LEADER_ERRORS and ctx.api_version >= _LEADER_HINT_PRODUCE_VERSION:
        partition.current_leader = current_leader(
            ctx, name, index, _ProducedPartition.LeaderIdAndEpoch
        )
        moved.append((name, index))
    return partition
