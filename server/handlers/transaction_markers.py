"""WriteTxnMarkers: the end of transactions, written into their partitions.

A marker is a control batch of one record, appended like any other with acks=all. One on a partition
of `__consumer_offsets` makes offsets valid or void besides, so it goes through the group
coordinator, which writes it in the order of what it writes itself (TX-46).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from replication.metadata.topic_names import GROUP_METADATA_TOPIC
from replication.partition.requests import ACKS_ALL, AppendRequest, AppendResult
from replication.replicas.replica_manager import FROM_COORDINATOR
from server.coordinator.gather import Gather
from server.coordinator.transaction_markers import TxnMarker
from server.network.request_channel import INLINE_ELEMENTS
from server.peers.call import PeerError
from wire.errors import ErrorCode, KafkaError
from wire.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from wire.primitives import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.handlers.edges import MarkersBroker
    from server.network.request_context import RequestContext

    _Codes = list[tuple[int, tuple[str, int], int]]
    """Producer id, partition, error code."""

logger = logging.getLogger(__name__)

_NOT_READY = frozenset(
    (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    )
)


def write_txn_markers(ctx: RequestContext[MarkersBroker], request: WriteTxnMarkersRequest) -> None:
    """Write markers; answer when all are committed.

    Behaviour: partitions fail alone: not here or offline is UNKNOWN_TOPIC_OR_PARTITION. An older
               producer epoch than the partition knows is INVALID_PRODUCER_EPOCH, an older
               coordinator's TRANSACTION_COORDINATOR_FENCED.
    Versions:  2 tells the transaction's version, which says how strictly the epoch is checked.
    Gaps:      -
    """
    write_markers(ctx.broker, request, ctx.respond)


def write_markers(
    broker: MarkersBroker,
    request: WriteTxnMarkersRequest,
    on_complete: Callable[[WriteTxnMarkersResponse], None],
) -> None:
    """`write_txn_markers` for whoever asks, this node itself, too. Waits for nothing."""
    if any(entry.producer_id < 0 or entry.producer_epoch < 0 for entry in request.markers):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a marker needs a producer id and epoch")
    writes = []
    for entry in request.markers:
        marker = TxnMarker(
            entry.producer_id,
            entry.producer_epoch,
            entry.transaction_result,
            entry.coordinator_epoch,
            entry.transaction_version,
        )
        keys = {
            TopicPartition(topic.name, index): None
            for topic in entry.topics
            for index in topic.partition_indexes
        }
        offsets = [key for key in keys if key[0] == GROUP_METADATA_TOPIC]
        plain = [key for key in keys if key[0] != GROUP_METADATA_TOPIC]
        if plain:
            writes.append(partial(_append, broker, marker, plain))
        writes += [partial(_complete_offsets, broker, marker, key) for key in offsets]

    def answer(parts: list[_Codes]) -> None:
        on_complete(_response([code for part in parts for code in part]))

    gather = Gather(len(writes), answer)
    for i, write in enumerate(writes):
        write(partial(gather.put, i))


def write_own_markers(
    broker: MarkersBroker,
    run_on_handler: Callable[[Callable[[], None]], None],
    run_after_answers: Callable[[Callable[[], None]], None],
    request: WriteTxnMarkersRequest,
    on_complete: Callable[[WriteTxnMarkersResponse | PeerError], None],
) -> None:
    """`write_markers` for the coordinator of this node, which may ask on a network thread: whoever
    ended the transaction is answered first (TX-43), but nothing more is read before the markers are
    written, so that its next transaction finds this one complete. As many as such a thread should
    not write are left to a handler thread.
    """

    def write() -> None:
        try:
            write_markers(broker, request, on_complete)
        except Exception as error:
            logger.exception("own markers could not be written")
            on_complete(PeerError(str(error)))

    count = sum(len(topic.partition_indexes) for entry in request.markers for topic in entry.topics)
    if count > INLINE_ELEMENTS:
        run_on_handler(write)
    else:
        run_after_answers(write)


def _append(
    broker: MarkersBroker,
    marker: TxnMarker,
    keys: list[TopicPartition],
    on_done: Callable[[_Codes], None],
) -> None:
    batch = marker.batch(broker.clock.wall_ms())

    def done(results: list[AppendResult]) -> None:
        on_done(
            [
                (marker.producer_id, result.topic_partition, _told(result.error_code))
                for result in results
            ]
        )

    broker.replica_manager.append_records(
        AppendRequest(
            ACKS_ALL,
            broker.config.get_int("request.timeout.ms"),
            [(key, batch) for key in keys],
            done,
            source=FROM_COORDINATOR._replace(transaction_version=marker.transaction_version),
        )
    )


def _told(code: int) -> int:
    """A partition in an offline directory is not here, as Kafka says it."""
    offline = code == ErrorCode.KAFKA_STORAGE_ERROR
    return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if offline else code


def _complete_offsets(
    broker: MarkersBroker,
    marker: TxnMarker,
    key: TopicPartition,
    on_done: Callable[[_Codes], None],
) -> None:
    def done(answer: object) -> None:
        code = answer.code if isinstance(answer, KafkaError) else ErrorCode.NONE
        if code in _NOT_READY:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        on_done([(marker.producer_id, key, int(code))])

    broker.group_coordinator.complete_transaction(key[1], marker, done)


def _response(codes: _Codes) -> WriteTxnMarkersResponse:
    by_producer: dict[int, dict[str, list[Any]]] = {}
    make = WriteTxnMarkersResponse.Marker
    for producer_id, (topic, index), code in codes:
        partitions = by_producer.setdefault(producer_id, {}).setdefault(topic, [])
        partitions.append(make.Topic.Partition(partition_index=index, error_code=code))
    return WriteTxnMarkersResponse(
        markers=[
            make(
                producer_id=producer_id,
                topics=[
                    make.Topic(name=name, partitions=cast("Any", partitions))
                    for name, partitions in topics.items()
                ],
            )
            for producer_id, topics in by_producer.items()
        ]
    )
