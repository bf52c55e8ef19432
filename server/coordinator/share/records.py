"""The records of `__share_group_state`, as values and as bytes (PURE).

Key: int16 type, the group, topic id and partition. Value: int16 version, then the fields. Type 0 is
a snapshot, which holds whole; without a value it forgets the share partition. Type 1 is an update
of the snapshot before.

Kafka: ShareCoordinatorRecordHelpers, ShareCoordinatorRecordSerde (4.3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from server.share.state_batches import ShareKey, StateBatch
from wire.errors import MalformedFrame
from wire.messages.share_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)

_SNAPSHOT, _UPDATE = 0, 1
_VALUE_VERSION = 0
_VALUE_PREFIX = _VALUE_VERSION.to_bytes(2, "big")

T = TypeVar("T")


class Snapshot(NamedTuple):
    """All that is known of a share partition."""

    snapshot_epoch: int
    """Counts the snapshots of the share partition."""
    state_epoch: int
    """Counts how often it was initialized: at an epoch of its group."""
    leader_epoch: int
    start_offset: int
    create_ms: int
    write_ms: int
    batches: tuple[StateBatch, ...]
    complete_count: int


class Update(NamedTuple):
    """What has changed since the snapshot."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...]
    complete_count: int


class ShareRecord(NamedTuple):
    """What became of a share partition; a value of None forgets it."""

    key: ShareKey
    value: Snapshot | Update | None


def encode_share(record: ShareRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value as they stand in the log."""
    (group_id, topic_id, partition), value = record
    if isinstance(value, Update):
        update_key = ShareUpdateKey(group_id=group_id, topic_id=topic_id, partition=partition)
        update = ShareUpdateValue(
            snapshot_epoch=value.snapshot_epoch,
            leader_epoch=value.leader_epoch,
            start_offset=value.start_offset,
            state_batches=_encoded(ShareUpdateValue.StateBatch, value.batches),
            delivery_complete_count=value.complete_count,
        )
        encoded = update.encode_bytes(_VALUE_VERSION)
        return _bytes(_UPDATE, update_key.encode_bytes(0)), _value(encoded)
    key = ShareSnapshotKey(group_id=group_id, topic_id=topic_id, partition=partition)
    encoded_key = _bytes(_SNAPSHOT, key.encode_bytes(0))
    if value is None:
        return encoded_key, None
    snapshot = ShareSnapshotValue(
        snapshot_epoch=value.snapshot_epoch,
        state_epoch=value.state_epoch,
        leader_epoch=value.leader_epoch,
        start_offset=value.start_offset,
        create_timestamp=value.create_ms,
        write_timestamp=value.write_ms,
        state_batches=_encoded(ShareSnapshotValue.StateBatch, value.batches),
        delivery_complete_count=value.complete_count,
    )
    return encoded_key, _value(snapshot.encode_bytes(_VALUE_VERSION))


def _encoded(struct: Callable[..., T], batches: Sequence[StateBatch]) -> list[T]:
    return [
        struct(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
        for first, last, state, count in batches
    ]


def _bytes(record_type: int, key: bytes) -> bytes:
    return record_type.to_bytes(2, "big") + key


def _value(value: bytes) -> bytes:
    return _VALUE_PREFIX + value


def decode_share(key: bytes, value: bytes | None) -> ShareRecord | None:
    """The record of these bytes; None for a type or version that we do not know, which an upgrade
    that was taken back may have left (as in Kafka).

    MalformedFrame when the bytes are not what their version says.
    """
    record_type = _int16(key)
    if value is not None and _int16(value) != _VALUE_VERSION:
        return None
    if record_type == _SNAPSHOT:
        snapshot_key = ShareSnapshotKey.decode(key, 0, 2)
        share_key = ShareKey(snapshot_key.group_id, snapshot_key.topic_id, snapshot_key.partition)
        return ShareRecord(share_key, None if value is None else _snapshot(value))
    if record_type == _UPDATE and value is not None:
        update_key = ShareUpdateKey.decode(key, 0, 2)
        share_key = ShareKey(update_key.group_id, update_key.topic_id, update_key.partition)
        return ShareRecord(share_key, _update(value))
    return None


def _snapshot(data: bytes) -> Snapshot:
    value = ShareSnapshotValue.decode(data, _VALUE_VERSION, 2)
    return Snapshot(
        value.snapshot_epoch,
        value.state_epoch,
        value.leader_epoch,
        value.start_offset,
        value.create_timestamp,
        value.write_timestamp,
        _batches(value.state_batches),
        value.delivery_complete_count,
    )


def _update(data: bytes) -> Update:
    value = ShareUpdateValue.decode(data, _VALUE_VERSION, 2)
    return Update(
        value.snapshot_epoch,
        value.leader_epoch,
        value.start_offset,
        _batches(value.state_batches),
        value.delivery_complete_count,
    )


def _batches(
    batches: Sequence[ShareSnapshotValue.StateBatch | ShareUpdateValue.StateBatch],
) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count)
        for b in batches
    )


def _int16(data: bytes) -> int:
    if len(data) < 2:
        raise MalformedFrame("a share record's key and value begin with their type and version")
    return int.from_bytes(data[:2], "big", signed=True)
