"""What is kept about transactions and producers: __transaction_state, markers, producer snapshots.

A key is its type_id (int16) and the key's fields; a value is its version (int16) and the value's
fields. EndTxnMarker and ProducerSnapshot too follow an int16 version.
"""

from __future__ import annotations

from wire.schema import Array, Int8, Int16, Int32, Int64, Record, String, Struct, Uint32


class TransactionLogKey(Record, type_id=0, versions=(0, 0)):
    """Key of: a transaction's state."""

    transactional_id: str = String()


class TransactionLogValue(Record, type_id=0, versions=(0, 1), flexible=1):
    """Value: a transaction's state."""

    producer_id: int = Int64()
    producer_epoch: int = Int16()
    transaction_timeout_ms: int = Int32()
    transaction_status: int = Int8()

    class Topic(Struct):
        topic: str = String()
        partition_ids: list[int] = Array(Int32)

    transaction_partitions: list[Topic] | None = Array(Topic, nullable=0)
    transaction_last_update_timestamp_ms: int = Int64()
    transaction_start_timestamp_ms: int = Int64()
    previous_producer_id: int = Int64(since=1, tag=0, default=-1)
    next_producer_id: int = Int64(since=1, tag=1, default=-1)
    client_transaction_version: int = Int16(since=1, tag=2, default=0)
    next_producer_epoch: int = Int16(since=1, tag=3, default=-1)


class EndTxnMarker(Record, versions=(0, 0)):
    """Value of a commit or abort marker."""

    coordinator_epoch: int = Int32()


class ProducerSnapshot(Record, versions=(1, 1)):
    """The .snapshot file of a partition: its producers' epochs and sequences."""

    crc: int = Uint32()

    class ProducerEntry(Struct):
        producer_id: int = Int64()
        epoch: int = Int16()
        last_sequence: int = Int32()
        last_offset: int = Int64()
        offset_delta: int = Int32()
        timestamp: int = Int64()
        coordinator_epoch: int = Int32()
        current_txn_first_offset: int = Int64()

    producer_entries: list[ProducerEntry] = Array(ProducerEntry)
