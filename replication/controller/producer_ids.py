"""Handing out blocks of producer ids. PURE.

A broker takes a block of 1,000 ids and deals them out itself; the ProducerIdsRecord says where the
next block starts, so an id is never given twice, whatever crashes (Kafka:
ProducerIdControlManager).
"""

from __future__ import annotations

from replication.controller.context import ControllerResult
from replication.metadata.image import MetadataImage
from wire.errors import ErrorCode, KafkaError
from wire.messages.metadata_records import ProducerIdsRecord
from wire.messages.quorum import AllocateProducerIdsRequest, AllocateProducerIdsResponse

PRODUCER_ID_BLOCK_SIZE = 1000
_PRODUCER_ID_MAX = 2**63 - 1


def allocate_producer_ids(
    image: MetadataImage, request: AllocateProducerIdsRequest
) -> ControllerResult:
    """Serve AllocateProducerIds.

    Raises KafkaError STALE_BROKER_EPOCH or BROKER_ID_NOT_REGISTERED; UNKNOWN_SERVER_ERROR when all
    2^63 ids are gone.
    """
    check_broker_epoch(image, request.broker_id, request.broker_epoch)
    start = max(image.next_producer_id, 0)
    if start > _PRODUCER_ID_MAX - PRODUCER_ID_BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "Exhausted all producerIds.")
    record = ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=start + PRODUCER_ID_BLOCK_SIZE,
    )
    response = AllocateProducerIdsResponse(
        error_code=0, producer_id_start=start, producer_id_len=PRODUCER_ID_BLOCK_SIZE
    )
    return ControllerResult([record], response)


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> None:
    """Refuse who is not the registered incarnation (rule B-1)."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}"
        )
    if broker.broker_epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Expected broker epoch {broker.broker_epoch}, but got broker epoch {broker_epoch}",
        )
