"""The records of `__consumer_offsets`, as objects and as bytes (PURE).

Framing (GroupCoordinatorRecordSerde): a key is its record type as int16, then the key's fields; a
value is its version as int16, then the value's fields; a null value deletes the key (tombstone).

    type  key               value               written in version
    1     OffsetCommitKey   OffsetCommitValue   4; 1 when the commit carries its own expiry
    2     GroupMetadataKey  GroupMetadataValue  3

Type 0 is an offset commit of Kafka 0.8 and reads like 1. Every other type (consumer, share and
streams groups) is skipped when loading: Kafka wrote it, we do not serve it yet.

Budget: encode of one offset commit <= 6 µs.
"""

from __future__ import annotations

from typing import NamedTuple

from wire.errors import MalformedFrame
from wire.messages.groups_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

OFFSET_COMMIT = 1
GROUP_METADATA = 2

_OFFSET_COMMIT_TYPES = (0, OFFSET_COMMIT)
_OFFSET_COMMIT_PREFIX = b"\x00\x01"
_GROUP_METADATA_PREFIX = b"\x00\x02"
_OFFSET_VALUE_VERSION = 4
_OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
_GROUP_VALUE_VERSION = 3
_VERSION_PREFIX = tuple(version.to_bytes(2, "big") for version in range(5))

NO_EXPIRY = -1


class CoordinatorRecord(NamedTuple):
    """One change of a shard's state; `value` None is a tombstone."""

    key: OffsetCommitKey | GroupMetadataKey
    value: OffsetCommitValue | GroupMetadataValue | None


Records = list[CoordinatorRecord]


def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value as they stand in the log."""
    key, value = record
    if isinstance(key, OffsetCommitKey):
        key_bytes = _OFFSET_COMMIT_PREFIX + key.encode_bytes(0)
    else:
        key_bytes = _GROUP_METADATA_PREFIX + key.encode_bytes(0)
    if value is None:
        return key_bytes, None
    if not isinstance(value, OffsetCommitValue):
        version = _GROUP_VALUE_VERSION
    elif value.expire_timestamp == NO_EXPIRY:
        version = _OFFSET_VALUE_VERSION
    else:
        version = _OFFSET_VALUE_VERSION_WITH_EXPIRY
    return key_bytes, _VERSION_PREFIX[version] + value.encode_bytes(version)


def decode_record(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """The record of these bytes; None for a record type that we do not know.

    MalformedFrame when the bytes are not what their type says, or the value is of a later version.
    """
    if len(key) < 2:
        raise MalformedFrame("a coordinator record's key is at least 2 bytes")
    record_type = int.from_bytes(key[:2], "big", signed=True)
    if record_type in _OFFSET_COMMIT_TYPES:
        offset_key = OffsetCommitKey.decode(key, 0, 2)
        if value is None:
            return CoordinatorRecord(offset_key, None)
        version = _value_version(value, 4)
        return CoordinatorRecord(offset_key, OffsetCommitValue.decode(value, version, 2))
    if record_type == GROUP_METADATA:
        group_key = GroupMetadataKey.decode(key, 0, 2)
        if value is None:
            return CoordinatorRecord(group_key, None)
        version = _value_version(value, 4)
        return CoordinatorRecord(group_key, GroupMetadataValue.decode(value, version, 2))
    return None


def _value_version(value: bytes, newest: int) -> int:
    version = int.from_bytes(value[:2], "big", signed=True)
    if len(value) < 2 or not 0 <= version <= newest:
        raise MalformedFrame(f"unknown version {version} of a coordinator record's value")
    return version
