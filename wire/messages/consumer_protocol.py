"""What consumers of a classic group tell each other through the coordinator.

Both begin with an int16 version that is not part of the fields declared here.
"""

from __future__ import annotations

from wire.schema import Array, Bytes, Int32, Record, String, Struct


class ConsumerProtocolAssignment(Record, versions=(0, 3)):
    """Partitions the leader of a classic group gives to one consumer."""

    class Topic(Struct):
        topic: str = String()
        partitions: list[int] = Array(Int32)

    assigned_partitions: list[Topic] = Array(Topic)
    user_data: bytes | None = Bytes(nullable=0, default=None)


class ConsumerProtocolSubscription(Record, versions=(0, 3)):
    """What one consumer of a classic group wants."""

    topics: list[str] = Array(String)
    user_data: bytes | None = Bytes(nullable=0, default=None)

    class Topic(Struct):
        topic: str = String()
        partitions: list[int] = Array(Int32)

    owned_partitions: list[Topic] = Array(Topic, since=1, default=())
    generation_id: int = Int32(since=2, default=-1)
    rack_id: str | None = String(since=3, nullable=3, default=None)
