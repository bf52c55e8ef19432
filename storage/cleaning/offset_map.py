"""Where the newest record of each key is: what the cleaner knows while it rewrites a log.

Why bounded: the dirty part of a log may hold any number of keys. The map takes as many as its
share of `log.cleaner.dedupe.buffer.size` allows; when it is full the cleaning ends at that offset
and the next one goes on from there (Kafka: SkimpyOffsetMap).

How: a dict from key to offset. Keys of 16 bytes and more are represented by a 128-bit BLAKE2
digest, so that long keys cost no more than short ones; shorter keys are themselves, and the two can
never meet because their lengths differ. An entry costs at most ENTRY_BYTES, the dict's growth
included, where Kafka's table of digests takes 24: the same buffer holds fewer keys here, and no
memory is taken before there are keys.
"""

from __future__ import annotations

ENTRY_BYTES = 200
"""Upper bound of the memory per key, measured with tracemalloc at the dict's worst size."""

_DIGEST_BYTES = 16


class OffsetMap:
    """Key to the highest offset put for it. One thread."""

    __slots__ = ("_digest", "_offsets", "latest_offset", "max_entries")

    def __init__(self, buffer_bytes: int, load_factor: float) -> None:
        from hashlib import blake2b  # a broker that cleans nothing need not import it

        self.max_entries = max(int(buffer_bytes * load_factor) // ENTRY_BYTES, 1)
        self.latest_offset = -1
        """The map knows of every record up to here, from the offset it was begun at."""
        self._offsets: dict[bytes, int] = {}
        self._digest = blake2b

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self.max_entries

    @property
    def utilization(self) -> float:
        """Part of the entries in use, 0 to 1."""
        return len(self._offsets) / self.max_entries

    def put(self, key: bytes, offset: int) -> None:
        """Note that `offset` holds the newest record of `key`; offsets come in ascending order."""
        self._offsets[self._id(key)] = offset
        self.latest_offset = offset

    def get(self, key: bytes) -> int:
        """Offset of the newest record of `key`, -1 if none was put."""
        return self._offsets.get(self._id(key), -1)

    def advance(self, offset: int) -> None:
        """Everything up to `offset` was looked at."""
        if offset > self.latest_offset:
            self.latest_offset = offset

    def _id(self, key: bytes) -> bytes:
        if len(key) < _DIGEST_BYTES:
            return key
        return self._digest(key, digest_size=_DIGEST_BYTES).digest()
