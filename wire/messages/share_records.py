"""What the share coordinator writes to __share_group_state.

A key is its type_id (int16) and the key's fields; a value is its version (int16) and
the value's fields.
"""

from __future__ import annotations

from wire.schema import Array, Int8, Int16, Int32, Int64, Record, String, Struct, Uuid


class ShareSnapshotKey(Record, type_id=0, versions=(0, 0)):
    """Key of: whole state of one share partition."""

    group_id: str = String()
    topic_id: bytes = Uuid()
    partition: int = Int32()


class ShareSnapshotValue(Record, type_id=0, versions=(0, 0), flexible=0):
    """Value: whole state of one share partition."""

    snapshot_epoch: int = Int32()
    state_epoch: int = Int32()
    leader_epoch: int = Int32()
    start_offset: int = Int64()
    create_timestamp: int = Int64()
    write_timestamp: int = Int64()

    class StateBatch(Struct):
        first_offset: int = Int64()
        last_offset: int = Int64()
        delivery_state: int = Int8()
        delivery_count: int = Int16()

    state_batches: list[StateBatch] = Array(StateBatch)
    delivery_complete_count: int = Int32(tag=0, default=-1)


class ShareUpdateKey(Record, type_id=1, versions=(0, 0)):
    """Key of: change of one share partition's state since its snapshot."""

    group_id: str = String()
    topic_id: bytes = Uuid()
    partition: int = Int32()


class ShareUpdateValue(Record, type_id=1, versions=(0, 0), flexible=0):
    """Value: change of one share partition's state since its snapshot."""

    snapshot_epoch: int = Int32()
    leader_epoch: int = Int32()
    start_offset: int = Int64()

    class StateBatch(Struct):
        first_offset: int = Int64()
        last_offset: int = Int64()
        delivery_state: int = Int8()
        delivery_count: int = Int16()

    state_batches: list[StateBatch] = Array(StateBatch)
    delivery_complete_count: int = Int32(tag=0, default=-1)
