"""Control records: what brokers write into logs for each other, in batches applications never see.

Key (Kafka: ControlRecordType): int16 version 0, int16 type. Value of a transaction marker (Kafka:
EndTransactionMarker): int16 version 0, int32 coordinator epoch. The values of the quorum's control
records (leader change, snapshot header and footer, kraft version, voters) are flexible structs and
are declared in `wire.messages.raft_records`; here only their type is known. Batches of them:
`wire.records.build_control_batch`.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from wire.record_body import Record, invalid_record

_CONTROL_KEY = Struct(">hh")
_END_TXN_MARKER = Struct(">hi")


class ControlRecordType(IntEnum):
    """What a control record says (Kafka: ControlRecordType)."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTxnMarker(NamedTuple):
    """A transaction's end: `type` is COMMIT or ABORT (Kafka: EndTransactionMarker)."""

    type: ControlRecordType
    coordinator_epoch: int


def control_record_key(type: ControlRecordType) -> bytes:
    """The key of a control record: int16 version 0, int16 type."""
    if type < 0:
        raise ValueError("UNKNOWN is for reading only")
    return _CONTROL_KEY.pack(0, type)


def control_record_type(key: bytes | None) -> ControlRecordType:
    """The type in a control record's key; UNKNOWN for one of a newer Kafka.

    Raises KafkaError INVALID_RECORD for a key that is null, short or of a negative version.
    """
    if key is None or len(key) < _CONTROL_KEY.size:
        raise invalid_record("control record key is shorter than 4 bytes")
    version, number = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise invalid_record(f"control record key of version {version}")
    try:
        return ControlRecordType(number)
    except ValueError:
        return ControlRecordType.UNKNOWN


def parse_end_txn_marker(record: Record) -> EndTxnMarker:
    """The marker in a control record (KafkaError INVALID_RECORD when it is none)."""
    type = control_record_type(record.key)
    if type not in (ControlRecordType.COMMIT, ControlRecordType.ABORT):
        raise invalid_record(f"not a transaction marker: {type.name}")
    value = record.value
    if value is None or len(value) < _END_TXN_MARKER.size:
        raise invalid_record("transaction marker value is shorter than 6 bytes")
    version, coordinator_epoch = _END_TXN_MARKER.unpack_from(value)
    if version < 0:
        raise invalid_record(f"transaction marker of version {version}")
    return EndTxnMarker(type, coordinator_epoch)


def encode_end_txn_marker(marker: EndTxnMarker) -> bytes:
    """The value of a transaction marker."""
    return _END_TXN_MARKER.pack(0, marker.coordinator_epoch)
