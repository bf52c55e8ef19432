"""The records of `__consumer_offsets`, as objects and as bytes (PURE).

Framing (GroupCoordinatorRecordSerde): a key is its record type as int16, then the key's fields; a
value is its version as int16, then the value's fields; a null value deletes the key (tombstone).
`_RECORDS` names the types that are served, and in which version they are written. An offset commit
that carries its own expiry is written in version 1, the last that can say so.

Type 0 is an offset commit of Kafka 0.8 and reads like 1. Other types are skipped when loading: a
later Kafka wrote them.

Budget: encode of one offset commit <= 6 µs.
"""

from __future__ import annotations

from typing import NamedTuple

from wire.errors import MalformedFrame
from wire.messages import groups_records as messages
from wire.messages.groups_records import OffsetCommitKey, OffsetCommitValue
from wire.schema import Record


class _Kind(NamedTuple):
    key: type[Record]
    value: type[Record]
    prefix: bytes
    """The type as a key begins with it."""
    written: int
    """The version of the values that are written."""
    newest: int
    """The last version of values that is read."""


_KINDS: list[tuple[type[Record], type[Record], int]] = [
    (messages.OffsetCommitKey, messages.OffsetCommitValue, 4),
    (messages.GroupMetadataKey, messages.GroupMetadataValue, 3),
    (messages.ConsumerGroupMetadataKey, messages.ConsumerGroupMetadataValue, 0),
    (messages.ConsumerGroupPartitionMetadataKey, messages.ConsumerGroupPartitionMetadataValue, 0),
    (messages.ConsumerGroupMemberMetadataKey, messages.ConsumerGroupMemberMetadataValue, 0),
    (
        messages.ConsumerGroupTargetAssignmentMetadataKey,
        messages.ConsumerGroupTargetAssignmentMetadataValue,
        0,
    ),
    (
        messages.ConsumerGroupTargetAssignmentMemberKey,
        messages.ConsumerGroupTargetAssignmentMemberValue,
        0,
    ),
    (
        messages.ConsumerGroupCurrentMemberAssignmentKey,
        messages.ConsumerGroupCurrentMemberAssignmentValue,
        0,
    ),
    (messages.ConsumerGroupRegularExpressionKey, messages.ConsumerGroupRegularExpressionValue, 0),
    (messages.ShareGroupMemberMetadataKey, messages.ShareGroupMemberMetadataValue, 0),
    (messages.ShareGroupMetadataKey, messages.ShareGroupMetadataValue, 0),
    (
        messages.ShareGroupTargetAssignmentMetadataKey,
        messages.ShareGroupTargetAssignmentMetadataValue,
        0,
    ),
    (
        messages.ShareGroupTargetAssignmentMemberKey,
        messages.ShareGroupTargetAssignmentMemberValue,
        0,
    ),
    (
        messages.ShareGroupCurrentMemberAssignmentKey,
        messages.ShareGroupCurrentMemberAssignmentValue,
        0,
    ),
    (
        messages.ShareGroupStatePartitionMetadataKey,
        messages.ShareGroupStatePartitionMetadataValue,
        0,
    ),
    (messages.StreamsGroupMetadataKey, messages.StreamsGroupMetadataValue, 0),
    (messages.StreamsGroupMemberMetadataKey, messages.StreamsGroupMemberMetadataValue, 0),
    (
        messages.StreamsGroupTargetAssignmentMetadataKey,
        messages.StreamsGroupTargetAssignmentMetadataValue,
        0,
    ),
    (
        messages.StreamsGroupTargetAssignmentMemberKey,
        messages.StreamsGroupTargetAssignmentMemberValue,
        0,
    ),
    (
        messages.StreamsGroupCurrentMemberAssignmentKey,
        messages.StreamsGroupCurrentMemberAssignmentValue,
        0,
    ),
    (messages.StreamsGroupTopologyKey, messages.StreamsGroupTopologyValue, 0),
]
_OLD_OFFSET_COMMIT = 0
_OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
_VERSION_PREFIX = tuple(version.to_bytes(2, "big") for version in range(5))

NO_EXPIRY = -1


def _kinds() -> dict[int, _Kind]:
    kinds = {}
    for key, value, written in _KINDS:
        assert key.type_id is not None, "each record of this log has a type"
        prefix = key.type_id.to_bytes(2, "big")
        kinds[key.type_id] = _Kind(key, value, prefix, written, value.versions[1])
    return kinds


_BY_TYPE = _kinds()
_BY_KEY: dict[type[Record], _Kind] = {kind.key: kind for kind in _BY_TYPE.values()}
_BY_TYPE[_OLD_OFFSET_COMMIT] = _BY_KEY[OffsetCommitKey]


class CoordinatorRecord(NamedTuple):
    """One change of a shard's state; `value` None is a tombstone."""

    key: Record
    value: Record | None


Records = list[CoordinatorRecord]


def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value as they stand in the log."""
    key, value = record
    kind = _BY_KEY[type(key)]
    key_bytes = kind.prefix + key.encode_bytes(0)
    if value is None:
        return key_bytes, None
    version = kind.written
    if isinstance(value, OffsetCommitValue) and value.expire_timestamp != NO_EXPIRY:
        version = _OFFSET_VALUE_VERSION_WITH_EXPIRY
    return key_bytes, _VERSION_PREFIX[version] + value.encode_bytes(version)


def decode_record(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """The record of these bytes; None for a record type that we do not know.

    MalformedFrame when the bytes are not what their type says, or the value is of a later version.
    """
    if len(key) < 2:
        raise MalformedFrame("a coordinator record's key is at least 2 bytes")
    kind = _BY_TYPE.get(int.from_bytes(key[:2], "big", signed=True))
    if kind is None:
        return None
    decoded = kind.key.decode(key, 0, 2)
    if value is None:
        return CoordinatorRecord(decoded, None)
    version = int.from_bytes(value[:2], "big", signed=True)
    if len(value) < 2 or not 0 <= version <= kind.newest:
        raise MalformedFrame(f"unknown version {version} of a coordinator record's value")
    return CoordinatorRecord(decoded, kind.value.decode(value, version, 2))
