"""Java's orders of topic ids and names (PURE).

Where balance and stickiness leave a choice, Apache Kafka's assignors take what a HashSet tells
first, or what compares lowest. Taking the same makes the results equal on any input.
"""

from __future__ import annotations

from collections.abc import Collection

_CAPACITY_MIN = 16
_LOAD_FACTOR = 0.75


def hash_set_order(topic_ids: Collection[bytes]) -> list[bytes]:
    """As `new HashSet<>(topic_ids)` iterates: by bucket, and in one bucket as they came."""
    buckets = _CAPACITY_MIN
    while buckets < int(len(topic_ids) / _LOAD_FACTOR) + 1:
        buckets *= 2
    return sorted(topic_ids, key=lambda topic_id: _spread_hash(topic_id) & (buckets - 1))


def _spread_hash(topic_id: bytes) -> int:
    """Uuid.hashCode, with its upper half folded in as HashMap does."""
    folded = int.from_bytes(topic_id[:8], "big") ^ int.from_bytes(topic_id[8:], "big")
    code = (folded >> 32) ^ (folded & 0xFFFFFFFF)
    return code ^ (code >> 16)


def uuid_order(topic_id: bytes) -> tuple[int, int]:
    """What Uuid.compareTo compares: two signed halves."""
    return (
        int.from_bytes(topic_id[:8], "big", signed=True),
        int.from_bytes(topic_id[8:], "big", signed=True),
    )


def string_order(text: str) -> bytes:
    """What String.compareTo compares: UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")
