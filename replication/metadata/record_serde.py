"""A metadata record as it stands in `__cluster_metadata`, and back. PURE (Kafka:
MetadataRecordSerde).

Value: uvarint frame version (1), uvarint record type, uvarint record version, fields. No key. The
version written is the newest one the finalised metadata.version allows, so that a node of an older
release can read what it is sent; a BrokerRegistrationChangeRecord takes the lowest that holds its
fields, as Kafka's does.
"""

from __future__ import annotations

from typing import Any

from wire.codec_calls import STRING_BYTES_MAX
from wire.errors import ErrorCode, KafkaError, MalformedFrame
from wire.messages import metadata_records as m
from wire.primitives import read_uvarint, uvarint
from wire.schema import Record

_FRAME_VERSION = 1
LATEST_METADATA_VERSION = 30

_CLASSES: dict[int, type[Record]] = {
    int(cls.type_id or 0): cls
    for cls in vars(m).values()
    if isinstance(cls, type)
    and issubclass(cls, Record)
    and getattr(cls, "type_id", None) is not None
}

# First metadata.version that allows a record version, newest first.
_REGISTER_BROKER = ((30, 4), (17, 3), (8, 2), (7, 1))
_PARTITION = ((23, 2), (17, 1))
_VERSIONS_BY_LEVEL: dict[type, tuple[tuple[int, int], ...]] = {
    m.RegisterBrokerRecord: _REGISTER_BROKER,
    m.PartitionRecord: _PARTITION,
    m.PartitionChangeRecord: _PARTITION,
}


class MetadataRecordSerde:
    """Encodes for one metadata.version, which its owner keeps up to date; decodes all."""

    def __init__(self, metadata_version: int = LATEST_METADATA_VERSION) -> None:
        self.metadata_version = metadata_version

    def encode(self, record: Any) -> bytes:
        """Raises KafkaError INVALID_REQUEST for a record that nobody could read back: a string in
        it is too long. Once committed it would end every node, at every start."""
        version = record_version(record, self.metadata_version)
        out = bytearray(uvarint(_FRAME_VERSION) + uvarint(record.type_id) + uvarint(version))
        record.encode_into(out, version)
        value = bytes(out)
        if len(value) > STRING_BYTES_MAX:
            try:
                self.decode(value)
            except MalformedFrame as unreadable:
                raise KafkaError(ErrorCode.INVALID_REQUEST, str(unreadable)) from unreadable
        return value

    def decode(self, value: bytes) -> Any:
        """Raises MalformedFrame for bytes that are no metadata record this release knows."""
        try:
            frame_version, pos = read_uvarint(value, 0)
            record_type, pos = read_uvarint(value, pos)
            version, pos = read_uvarint(value, pos)
        except IndexError as short:
            raise MalformedFrame("metadata record is cut short") from short
        if frame_version != _FRAME_VERSION:
            raise MalformedFrame(f"metadata record with frame version {frame_version}")
        cls = _CLASSES.get(record_type)
        if cls is None:
            raise MalformedFrame(f"unknown metadata record type {record_type}")
        return cls.decode(value, version, pos)


def record_version(record: Any, metadata_version: int) -> int:
    """The version of its schema a record is written in."""
    if type(record) is m.BrokerRegistrationChangeRecord:
        return _registration_change_version(record)
    for level, version in _VERSIONS_BY_LEVEL.get(type(record), ()):
        if metadata_version >= level:
            return version
    return 0


def _registration_change_version(record: m.BrokerRegistrationChangeRecord) -> int:
    if record.cordoned_log_dirs is not None:
        return 3
    if record.log_dirs:
        return 2
    return 1 if record.in_controlled_shutdown else 0
