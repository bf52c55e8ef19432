"""Java's orders of topic ids and names, and its heap (PURE).

Where balance and stickiness leave a choice, Apache Kafka's assignors take what a HashSet or HashMap
tells first, what compares lowest, or what a PriorityQueue has in front. Taking the same makes the
results equal on any input.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

_CAPACITY_MIN = 16
_LOAD_FACTOR = 0.75
_MASK = 0xFFFFFFFF


def hash_set_order(topic_ids: Collection[bytes]) -> list[bytes]:
    """As `new HashSet<>(topic_ids)` iterates: by bucket, and in one bucket as they came."""
    capacity = max(_CAPACITY_MIN, int(len(topic_ids) / _LOAD_FACTOR) + 1)
    return _by_bucket(topic_ids, _uuid_hash, capacity)


def hash_map_order(names: Collection[str], capacity: int = _CAPACITY_MIN) -> list[str]:
    """As a HashMap that was made for `capacity` iterates when these were put."""
    return _by_bucket(names, _string_hash, capacity)


def _by_bucket(items: Collection[T], hash_of: Callable[[T], int], capacity: int) -> list[T]:
    buckets = 1
    while buckets < capacity or buckets * _LOAD_FACTOR < len(items):
        buckets *= 2

    def bucket(item: T) -> int:
        code = hash_of(item)
        return (code ^ (code >> 16)) & (buckets - 1)

    return sorted(items, key=bucket)


def _uuid_hash(topic_id: bytes) -> int:
    """Uuid.hashCode."""
    folded = int.from_bytes(topic_id[:8], "big") ^ int.from_bytes(topic_id[8:], "big")
    return (folded >> 32) ^ (folded & _MASK)


def _string_hash(text: str) -> int:
    """String.hashCode."""
    code = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (code * 31 + units[at] + (units[at + 1] << 8)) & _MASK
    return code


def uuid_order(topic_id: bytes) -> tuple[int, int]:
    """What Uuid.compareTo compares: two signed halves."""
    return (
        int.from_bytes(topic_id[:8], "big", signed=True),
        int.from_bytes(topic_id[8:], "big", signed=True),
    )


def string_order(text: str) -> bytes:
    """What String.compareTo compares: UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


class JavaHeap(Generic[T]):
    """java.util.PriorityQueue: of those that are least it gives the one that Java gives."""

    def __init__(self, key: Callable[[T], float], items: Iterable[T] = ()) -> None:
        self._key = key
        self._items: list[T] = []
        for item in items:
            self.add(item)

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, item: T) -> None:
        """Let it rise to its place."""
        items, key = self._items, self._key(item)
        items.append(item)
        at = len(items) - 1
        while at > 0:
            parent = (at - 1) // 2
            if key >= self._key(items[parent]):
                break
            items[at] = items[parent]
            at = parent
        items[at] = item

    def poll(self) -> T:
        """Take the least. Raises IndexError if there is none."""
        items = self._items
        least, last = items[0], items.pop()
        if items:
            self._sink(last)
        return least

    def _sink(self, item: T) -> None:
        items, key = self._items, self._key(item)
        at, count = 0, len(self._items)
        while at < count // 2:
            child = 2 * at + 1
            if child + 1 < count and self._key(items[child]) > self._key(items[child + 1]):
                child += 1
            if key <= self._key(items[child]):
                break
            items[at] = items[child]
            at = child
        items[at] = item
