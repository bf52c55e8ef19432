"""The records of `__transaction_state`, as values and as bytes (PURE).

Key: int16 0, the transactional id. Value: int16 version, then the fields; a null value forgets the
id. Version 1, which is flexible, is written from transaction.version 1 on. Version 0 has no room
for who the producer was before, is next, and which version its client speaks.

Kafka: TransactionLog (4.3.1).
"""

from __future__ import annotations

from typing import NamedTuple

from server.coordinator.transactions.state import TransactionMetadata, TransactionState
from wire.errors import MalformedFrame
from wire.messages.transactions_records import TransactionLogKey, TransactionLogValue
from wire.primitives import TopicPartition

_KEY_VERSION = 0
_KEY_PREFIX = _KEY_VERSION.to_bytes(2, "big")
_VALUE_VERSIONS = range(2)
_VALUE_PREFIX = tuple(version.to_bytes(2, "big") for version in _VALUE_VERSIONS)
_FLEXIBLE = 1


class TransactionRecord(NamedTuple):
    """What an id came to; `metadata` None forgets it."""

    transactional_id: str
    metadata: TransactionMetadata | None
    value_version: int = 0
    """In which the value is written."""


def encode_transaction(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value as they stand in the log."""
    transactional_id, metadata, version = record
    key = _KEY_PREFIX + TransactionLogKey(transactional_id=transactional_id).encode_bytes(0)
    if metadata is None:
        return key, None
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=_by_topic(metadata),
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
    )
    if version >= _FLEXIBLE:
        value.previous_producer_id = metadata.previous_producer_id
        value.next_producer_id = metadata.next_producer_id
        value.client_transaction_version = metadata.client_version
    return key, _VALUE_PREFIX[version] + value.encode_bytes(version)


def _by_topic(metadata: TransactionMetadata) -> list[TransactionLogValue.Topic] | None:
    if metadata.state is TransactionState.EMPTY:
        return None
    topics: dict[str, list[int]] = {}
    for name, index in sorted(metadata.partitions):
        topics.setdefault(name, []).append(index)
    return [
        TransactionLogValue.Topic(topic=name, partition_ids=indexes)
        for name, indexes in topics.items()
    ]


def decode_transaction(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """The record of these bytes; None for a version of key or value that we do not know, which an
    upgrade that was taken back may have left (as in Kafka).

    MalformedFrame when the bytes are not what their version says.
    """
    if _int16(key) != _KEY_VERSION:
        return None
    transactional_id = TransactionLogKey.decode(key, 0, 2).transactional_id
    if value is None:
        return TransactionRecord(transactional_id, None)
    version = _int16(value)
    if version not in _VALUE_VERSIONS:
        return None
    log_value = TransactionLogValue.decode(value, version, 2)
    return TransactionRecord(transactional_id, _metadata(log_value), version)


def _metadata(value: TransactionLogValue) -> TransactionMetadata:
    try:
        state = TransactionState(value.transaction_status)
    except ValueError:
        raise MalformedFrame(f"unknown state {value.transaction_status}") from None
    topics = () if state is TransactionState.EMPTY else value.transaction_partitions or ()
    return TransactionMetadata(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            TopicPartition(topic.topic, index) for topic in topics for index in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )


def _int16(data: bytes) -> int:
    if len(data) < 2:
        raise MalformedFrame("a transaction record's key and value begin with their version")
    return int.from_bytes(data[:2], "big", signed=True)
