"""ShareFetch and ShareAcknowledge: the records of a share group, and what became of them (KIP-932);
and the state that the brokers keep of it with each other.

An acknowledgement is answered when it is persisted. ShareFetch may carry some: they are taken
first, and told of beside what was fetched, with a code of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from server.coordinator.gather import Gather
from server.handlers.cluster import endpoints
from server.share.acquisition import AcquireMode, Span
from server.share.fetching import Delivery, ShareFetchParams
from server.share.sessions import Member, SharedPartition
from server.share.share_partition import REJECT, RENEW, Acknowledgement
from wire.errors import ErrorCode, KafkaError
from wire.messages.share import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    WriteShareGroupStateRequest,
)
from wire.primitives import FINAL_EPOCH, INITIAL_EPOCH

if TYPE_CHECKING:
    from server.handlers.edges import ShareBroker
    from server.network.request_context import RequestContext

    ShareContext = RequestContext[ShareBroker]

MEMBER_ID_MAX = 36
_RENEW_VERSION = 2
_NONE = int(ErrorCode.NONE)
_NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)

_Codes = list[tuple[SharedPartition, ErrorCode]]
_Refused = dict[SharedPartition, ErrorCode]
_FetchedPartition = ShareFetchResponse.Topic.Partition


# ---- ShareFetch


def share_fetch(
    ctx: ShareContext,
    request: ShareFetchRequest,
    may_read: Callable[[str], bool] | None = None,
) -> None:
    """Acquire records, wait for min_bytes, at most max_wait_ms; acknowledge earlier ones.

    Behaviour: see server.share.sessions, server.share.fetching. Where nothing was acquired a
               partition is left out, unless something is wrong or was acknowledged. A session that
               finds no room is told after max_wait_ms, so that its client does not hurry.
               `may_read`, an authorizer's word on each topic of a session at each fetch, refuses.
    Versions:  2 acquires records one by one, and renews locks (KIP-1206, KIP-1222).
    Gaps:      -
    """
    _must_be_served(ctx)
    member = _member(request)
    if request.share_acquire_mode not in tuple(AcquireMode):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an unknown acquire mode")
    if request.is_renew_ack:
        _check_renewal(request)
    manager = ctx.broker.share_manager
    named = _named(request)
    forgotten = [
        SharedPartition(topic.topic_id, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    try:
        partitions = manager.sessions.fetch(
            member,
            request.share_session_epoch,
            [partition for partition, _ in named],
            forgotten,
            ctx.connection,
            acknowledges=any(batches for _, batches in named),
        )
    except KafkaError as error:
        _refuse_fetch(ctx, request, error)
        return
    if request.share_session_epoch == INITIAL_EPOCH:
        ctx.on_connection_end(manager.connection_closed)
    acknowledged = [(partition, batches) for partition, batches in named if batches]
    refused: _Refused = {}
    if may_read is not None:
        refused = _refused({*partitions, *(one for one, _ in acknowledged)}, ctx, may_read)
    _Answer(ctx, request, member, refused).begin(
        [] if request.is_renew_ack else [one for one in partitions if one not in refused],
        acknowledged,
    )


def share_fetch_is_costly(ctx: ShareContext, request: ShareFetchRequest) -> bool:
    """Whether much must be looked at: a session names what it has named before no more."""
    return _is_large(ctx, request) or _acknowledges_much(ctx, request)


def _refused(
    partitions: set[SharedPartition], ctx: ShareContext, may_read: Callable[[str], bool]
) -> _Refused:
    """What nobody has the id of now stays unknown, though it may be known a moment later: it was
    not asked about."""
    topics = ctx.broker.metadata.topics_by_id
    codes: dict[bytes, ErrorCode] = {}
    for topic_id in {one.topic_id for one in partitions}:
        topic = topics.get(topic_id)
        if topic is None:
            codes[topic_id] = ErrorCode.UNKNOWN_TOPIC_ID
        elif not may_read(topic.name):
            codes[topic_id] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = sorted(one for one in partitions if one.topic_id in codes)
    return {one: codes[one.topic_id] for one in refused}


def _must_be_served(ctx: ShareContext) -> None:
    if not ctx.broker.group_coordinator.serves("share"):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def _refuse_fetch(ctx: ShareContext, request: ShareFetchRequest, error: KafkaError) -> None:
    def answer() -> None:
        ctx.respond_error(request, int(error.code), error.detail or None)

    if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED and request.max_wait_ms > 0:
        alarm = ctx.broker.timer.add(request.max_wait_ms, answer)
        ctx.on_stop(answer)
        ctx.on_disconnect(alarm.cancel)
    else:
        answer()


def _check_renewal(request: ShareFetchRequest) -> None:
    limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
    if any(limits):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "who renews locks fetches nothing")


class _Answer:
    """One ShareFetch: what was fetched and what was acknowledged, answered together."""

    def __init__(
        self,
        ctx: ShareContext,
        request: ShareFetchRequest,
        member: Member,
        refused: _Refused,
    ) -> None:
        self._refused = refused
        self._ctx = ctx
        self._request = request
        self._member = member
        self._manager = ctx.broker.share_manager
        self._gather: Gather[Any] = Gather(2, self._respond)

    def begin(
        self,
        partitions: Sequence[SharedPartition],
        acknowledged: Sequence[tuple[SharedPartition, Sequence[Any]]],
    ) -> None:
        """Take the acknowledgements that may be made, then fetch."""
        request, refused = self._request, self._refused
        _acknowledge(
            self._ctx,
            self._member,
            [one for one in acknowledged if one[0] not in refused],
            request.is_renew_ack,
            lambda codes: self._gather.put(
                0, [*codes, *((one, refused[one]) for one, _ in acknowledged if one in refused)]
            ),
        )
        max_bytes = min(request.max_bytes, self._ctx.fetch_bytes_max)
        params = ShareFetchParams(
            self._member.member_id,
            request.max_wait_ms,
            min(request.min_bytes, max_bytes),
            max_bytes,
            request.max_records,
            request.batch_size,
            AcquireMode(request.share_acquire_mode),
        )
        self._ctx.park(
            self._manager.fetch(
                self._member.group_id,
                partitions,
                params,
                lambda deliveries, errors: self._gather.put(1, (deliveries, errors)),
            )
        )

    def _respond(self, parts: list[Any]) -> None:
        codes, (deliveries, errors) = parts
        told = self._fetched(deliveries, {**errors, **self._refused})
        for partition, code in codes:
            one = told.get(partition)
            if one is None:
                one = told[partition] = _partition(partition.partition, _NONE)
            one.acknowledge_error_code = int(code)
        if self._request.share_session_epoch == FINAL_EPOCH:
            self._manager.close_session(self._member)
        limits = self._manager.settings(self._member.group_id).limits
        response = ShareFetchResponse(
            error_code=_NONE,
            acquisition_lock_timeout_ms=limits.lock_duration_ms,
            node_endpoints=_name_leaders(self._ctx, told, ShareFetchResponse),
            responses=_by_topic(told, ShareFetchResponse.Topic),
        )
        self._ctx.respond(response)

    @staticmethod
    def _fetched(
        deliveries: Sequence[Delivery], errors: dict[SharedPartition, ErrorCode]
    ) -> dict[SharedPartition, Any]:
        told = {
            partition: _partition(partition.partition, int(code))
            for partition, code in errors.items()
        }
        for leader, code, records, acquired in deliveries:
            if not code and not acquired:
                continue
            partition = SharedPartition(leader.key.topic_id, leader.key.partition)
            one = told[partition] = _partition(partition.partition, code)
            one.records = records
            one.acquired_records = [
                _FetchedPartition.AcquiredBatch(
                    first_offset=first, last_offset=last, delivery_count=count
                )
                for first, last, count in acquired
            ]
        return told


def _partition(index: int, code: int) -> Any:
    return _FetchedPartition(
        partition_index=index,
        error_code=code,
        acknowledge_error_code=_NONE,
        current_leader=_FetchedPartition.LeaderIdAndEpoch(leader_id=0, leader_epoch=0),
        records=b"",
        acquired_records=[],
    )


# ---- ShareAcknowledge


def share_acknowledge(
    ctx: ShareContext,
    request: ShareAcknowledgeRequest,
    may_read: Callable[[str], bool] | None = None,
) -> None:
    """Say what became of records; answered when it is persisted.

    Behaviour: see server.share.share_partition. All that is said of a partition is taken, or none.
               `may_read`, an authorizer's word on each topic, refuses.
    Versions:  2 renews locks (KIP-1222).
    Gaps:      -
    """
    _must_be_served(ctx)
    member = _member(request)
    manager = ctx.broker.share_manager
    manager.sessions.acknowledge(member, request.share_session_epoch)

    def answer(codes: _Codes) -> None:
        if request.share_session_epoch == FINAL_EPOCH:
            manager.close_session(member)
        struct = ShareAcknowledgeResponse.Topic.Partition
        told = {
            partition: struct(
                partition_index=partition.partition,
                error_code=int(code),
                current_leader=struct.LeaderIdAndEpoch(leader_id=0, leader_epoch=0),
            )
            for partition, code in codes
        }
        response = ShareAcknowledgeResponse(
            error_code=_NONE,
            node_endpoints=_name_leaders(ctx, told, ShareAcknowledgeResponse),
            responses=_by_topic(told, ShareAcknowledgeResponse.Topic),
        )
        if ctx.api_version >= _RENEW_VERSION:
            limits = manager.settings(member.group_id).limits
            response.acquisition_lock_timeout_ms = limits.lock_duration_ms
        ctx.respond(response)

    acknowledged = _named(request)
    refused: _Refused = {}
    if may_read is not None:
        refused = _refused({one for one, _ in acknowledged}, ctx, may_read)
    _acknowledge(
        ctx,
        member,
        [one for one in acknowledged if one[0] not in refused],
        request.is_renew_ack,
        lambda codes: answer([*codes, *refused.items()]),
    )


def share_acknowledge_is_costly(ctx: ShareContext, request: ShareAcknowledgeRequest) -> bool:
    """Whether it ends a session of many partitions, all of which are released, or says something of
    much."""
    is_end = request.share_session_epoch == FINAL_EPOCH
    return (is_end and _is_large(ctx, request)) or _acknowledges_much(ctx, request)


def _acknowledge(
    ctx: ShareContext,
    member: Member,
    acknowledged: Sequence[tuple[SharedPartition, Sequence[Any]]],
    is_renewal: bool,
    on_complete: Callable[[_Codes], None],
) -> None:
    """Take what is said of each partition; each is told its own code."""
    manager = ctx.broker.share_manager
    gather: Gather[tuple[SharedPartition, ErrorCode]] = Gather(len(acknowledged), on_complete)
    for i, (partition, batches) in enumerate(acknowledged):

        def put(code: ErrorCode, i: int = i, partition: SharedPartition = partition) -> None:
            gather.put(i, (partition, code))

        try:
            manager.check_leads(partition)
            acks = _acknowledgements(batches, ctx.api_version, is_renewal)
        except KafkaError as error:
            put(error.code)
            continue
        if acks:
            manager.acknowledge(member, partition, acks, put)
        else:
            put(ErrorCode.NONE)


def _acknowledgements(
    batches: Sequence[Any], version: int, is_renewal: bool
) -> list[Acknowledgement]:
    """What is said of a partition. KafkaError INVALID_REQUEST if it makes no sense."""
    kind_max = RENEW if version >= _RENEW_VERSION and is_renewal else REJECT
    acks = []
    last = -1
    for batch in batches:
        ack = Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
        count = ack.last - ack.first + 1
        if not last <= ack.first <= ack.last or len(ack.types) not in (1, count):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "offsets that are none")
        if not all(0 <= kind <= kind_max for kind in ack.types):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "an unknown type")
        acks.append(ack)
        last = ack.last
    return acks


# ---- what both share


def _member(request: ShareFetchRequest | ShareAcknowledgeRequest) -> Member:
    """Who asks. KafkaError INVALID_REQUEST if nobody can be."""
    group_id, member_id = request.group_id, request.member_id
    if group_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    if not member_id or len(member_id) > MEMBER_ID_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return Member(group_id, member_id)


def _is_large(ctx: ShareContext, request: ShareFetchRequest | ShareAcknowledgeRequest) -> bool:
    """Whether the session of who asks, if there is one, has many partitions."""
    asked_by = Member(request.group_id or "", request.member_id or "")
    return ctx.broker.share_manager.sessions.is_large(asked_by)


def _named(
    request: ShareFetchRequest | ShareAcknowledgeRequest,
) -> list[tuple[SharedPartition, Sequence[Any]]]:
    """The partitions of a request, each with what is acknowledged of it."""
    return [
        (SharedPartition(topic.topic_id, one.partition_index), one.acknowledgement_batches)
        for topic in request.topics
        for one in topic.partitions
    ]


def _acknowledges_much(
    ctx: ShareContext, request: ShareFetchRequest | ShareAcknowledgeRequest
) -> bool:
    """Whether many changes follow, however few ranges are said: it takes seven microseconds for
    each run, and what is persisted of it as long again."""
    acknowledged = (
        (partition, Span(batch.first_offset, batch.last_offset))
        for partition, batches in _named(request)
        for batch in batches
    )
    return ctx.broker.share_manager.is_much(request.group_id or "", acknowledged)


def _by_topic(told: dict[SharedPartition, Any], make: Callable[..., Any]) -> list[Any]:
    topics: dict[bytes, list[Any]] = {}
    for partition, one in told.items():
        topics.setdefault(partition.topic_id, []).append(one)
    return [make(topic_id=topic_id, partitions=of) for topic_id, of in topics.items()]


def _name_leaders(ctx: ShareContext, told: dict[SharedPartition, Any], kind: Any) -> list[Any]:
    """Say where partitions have moved to; how those brokers are reached."""
    image = ctx.broker.metadata
    moved = []
    for partition, one in told.items():
        topic = image.topics_by_id.get(partition.topic_id)
        registration = None if topic is None else topic.partitions.get(partition.partition)
        if one.error_code != _NOT_LEADER or topic is None or registration is None:
            continue
        one.current_leader = kind.Topic.Partition.LeaderIdAndEpoch(
            leader_id=registration.leader, leader_epoch=registration.leader_epoch
        )
        moved.append((topic.name, partition.partition))
    return endpoints(ctx, moved, kind.NodeEndpoint) if moved else []


# ---- between brokers


def initialize_share_group_state(
    ctx: ShareContext, request: InitializeShareGroupStateRequest
) -> None:
    """Begin the state of share partitions, for their group's coordinator.

    Gaps:      -
    """
    ctx.broker.share_coordinator.initialize(request, partial(_told, ctx))


def read_share_group_state(ctx: ShareContext, request: ReadShareGroupStateRequest) -> None:
    """The state of share partitions, for their leader.

    Gaps:      -
    """
    ctx.broker.share_coordinator.read(request, partial(_told, ctx))


def write_share_group_state(ctx: ShareContext, request: WriteShareGroupStateRequest) -> None:
    """What became of records, from their leader.

    Versions:  1 tells how many records need no delivery any more.
    Gaps:      -
    """
    ctx.broker.share_coordinator.write(request, partial(_told, ctx))


def delete_share_group_state(ctx: ShareContext, request: DeleteShareGroupStateRequest) -> None:
    """Forget the state of share partitions.

    Gaps:      -
    """
    ctx.broker.share_coordinator.delete(request, partial(_told, ctx))


def read_share_group_state_summary(
    ctx: ShareContext, request: ReadShareGroupStateSummaryRequest
) -> None:
    """Where share partitions are.

    Versions:  1 tells how many records need no delivery any more.
    Gaps:      -
    """
    ctx.broker.share_coordinator.read_summary(request, partial(_told, ctx))


def _told(ctx: ShareContext, response: Any) -> None:
    ctx.respond(response)
