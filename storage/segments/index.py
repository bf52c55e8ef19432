"""Offset and time index of one segment: small sorted files beside the `.log`.

Why: a fetch must find the batch with an offset without reading the segment from its start.
Indexes are hints (S-10): who uses one verifies the batch it points at, and recovery rebuilds any
of them from the log.

How. Entries live in two `array`s, searched by `bisect` in C: a lookup takes well under a
microsecond and no system call. They are read from the file on first use and dropped by `close`;
no file descriptor stays open, ever, so thousands of cold segments cost nothing (S-17). There is
no mmap (S-18). Appended entries are written 64 at a time, and by `flush`, `trim_to_valid_size`
and `close`: after a crash everything above the recovery point is scanned anyway, and the recovery
point moves only after `flush`. The file is created by the first write. Kafka preallocates 10 MiB
for the active segment; we do not, and drop the zeros of a file that Kafka left untrimmed.

That the file is closed before it is synced may lose the news of a failed write (S-4): an entry that
is not what was written names no such batch, and the index is made anew.

Byte layout, big-endian (Kafka: OffsetIndex, TimeIndex):

    .index      8 bytes: int32 offset - base, int32 position. The offset is the last one of the
    batch that starts at the position. .timeindex  12 bytes: int64 timestamp, int32 offset - base.
    No record up to the offset is younger.

Duties of the caller: appends and truncations come from one thread at a time (the log's lock);
lookups and `flush` may come from any thread at the same time. OSError from any method is the
disk's.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress
from operator import ge, gt
from pathlib import Path
from threading import Lock
from typing import ClassVar

from storage import files
from wire.primitives import NO_TIMESTAMP

_WRITE_BATCH = 64
_INT32_MAX = 2**31 - 1
_LITTLE_ENDIAN = sys.byteorder == "little"


class CorruptIndexError(Exception):
    """An index file cannot be what was written: rebuild it from the log."""


class _Entries:
    """The two columns of an index: `keys` is what lookups bisect, `values` what they find."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: array[int], values: array[int]) -> None:
        self.keys = keys
        self.values = values


class _IndexFile:
    """What both indexes share: entries in memory, a file that is at most 64 entries behind."""

    ENTRY_BYTES: ClassVar[int]

    __slots__ = ("_entries", "_lock", "_written", "base_offset", "max_entries", "path")

    def __init__(self, path: Path, base_offset: int, max_bytes: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.ENTRY_BYTES
        self._entries: _Entries | None = None
        self._written = 0
        # Orders writers of the file: the owner's appends against a flush from another thread.
        self._lock = Lock()

    @property
    def entries(self) -> int:
        """How many entries there are."""
        return len(self._loaded().values)

    @property
    def size(self) -> int:
        """Bytes the file has once everything is written."""
        return self.entries * self.ENTRY_BYTES

    def flush(self) -> None:
        """Write and fsync; creates the file if there was nothing to write yet."""
        with self._lock:
            self._write(sync=True)

    def trim_to_valid_size(self) -> None:
        """Write what is pending and cut the file to its entries (Kafka leaves spare zeros)."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """Write what is pending and free the memory; the next use reads the file again."""
        with self._lock:
            if self._entries is not None:
                self._write()
                self._entries = None

    def delete(self) -> None:
        """Remove the file, if there is one."""
        with self._lock:
            self._entries = _Entries(*self._empty())
            self._written = 0
            with suppress(FileNotFoundError):
                files.unlink(self.path)

    def start_empty(self) -> None:
        """Begin without a file, which nothing has made yet: there is nothing to read."""
        with self._lock:
            self._entries = _Entries(*self._empty())
            self._written = -1

    def rename(self, path: Path) -> None:
        """Move the file; one that was never written moves in name only."""
        with self._lock:
            with suppress(FileNotFoundError):
                files.replace(self.path, path)
            self.path = path

    def truncate(self) -> None:
        """Drop all entries."""
        self._truncate_to_entries(0)

    def relative(self, offset: int) -> int:
        """`offset` as the file has it. Raises ValueError when it cannot be: the log must roll."""
        relative = offset - self.base_offset
        if not 0 <= relative <= _INT32_MAX:
            raise ValueError(f"offset {offset} does not fit in {self.path}")
        return relative

    def _loaded(self) -> _Entries:
        entries = self._entries
        if entries is None:
            with self._lock:
                entries = self._load()
        return entries

    def _load(self) -> _Entries:
        if self._entries is None:
            exists, data = self._read_file()
            count = len(data) // self.ENTRY_BYTES
            keys, values = self._columns(data[: count * self.ENTRY_BYTES])
            if values and keys[-1] == 0 and values[-1] == 0:
                # Preallocated by Kafka and never used: no entry has position 0, and a lost hint to
                # a record of 1970-01-01 costs nothing.
                keys, values = _without_zeros(keys, values)
            self._entries = _Entries(keys, values)
            is_exact = exists and len(data) == len(values) * self.ENTRY_BYTES
            self._written = len(values) if is_exact else -1
        return self._entries

    def _read_file(self) -> tuple[bool, bytes]:
        try:
            return True, files.read_file(self.path)
        except FileNotFoundError:
            return False, b""

    def _append(self, key: int, value: int) -> None:
        with self._lock:
            entries = self._entries or self._load()
            # The value first: a lookup that sees the key must find its value.
            entries.values.append(value)
            entries.keys.append(key)
            if len(entries.keys) - self._written >= _WRITE_BATCH:
                self._write()

    def _truncate_to_entries(self, count: int) -> None:
        with self._lock:
            entries = self._load()
            if count < len(entries.keys):
                # New arrays: a lookup in another thread keeps the old ones.
                self._entries = _Entries(entries.keys[:count], entries.values[:count])
            if self._written > count or self._written < 0:
                self._written = -1
                self._write()

    def _write(self, sync: bool = False) -> None:
        """Bring the file up to date. `_written` is -1 when it is missing or has bytes too many."""
        entries = self._load()
        count = len(entries.keys)
        if self._written == count and not sync:
            return
        start = max(self._written, 0)
        fd = files.open_or_relieve(self.path, files.CREATE)
        try:
            if self._written < 0:
                files.ftruncate(fd, 0)
            if count > start:
                data = self._bytes(entries.keys[start:count], entries.values[start:count])
                files.write_fully(fd, [data], len(data), start * self.ENTRY_BYTES)
            self._written = count
            if sync:
                files.fsync(fd)
        finally:
            files.close(fd)

    def _check_size(self) -> None:
        size = len(self._read_file()[1])
        if size % self.ENTRY_BYTES:
            raise CorruptIndexError(f"{self.path} has {size} bytes, not a multiple of its entries")

    def _check_ascending(self, column: array[int]) -> None:
        if any(map(ge, column, column[1:])):
            raise CorruptIndexError(f"{self.path} has entries that do not ascend")

    # What differs: the file's byte order and widths.

    @staticmethod
    def _empty() -> tuple[array[int], array[int]]:
        raise NotImplementedError

    def _columns(self, data: bytes) -> tuple[array[int], array[int]]:
        raise NotImplementedError

    def _bytes(self, keys: array[int], values: array[int]) -> bytes:
        raise NotImplementedError


def _without_zeros(keys: array[int], values: array[int]) -> tuple[array[int], array[int]]:
    """Drop the zero entries at the end, halving: Kafka preallocates over a million of them."""
    count = len(values)
    step = count
    while step:
        zeros = array(values.typecode, bytes(step * values.itemsize))
        if count >= step and values[count - step : count] == zeros:
            more = array(keys.typecode, bytes(step * keys.itemsize))
            if keys[count - step : count] == more:
                count -= step
                continue
        step //= 2
    return keys[:count], values[:count]


def _native(data: bytes) -> array[int]:
    """The bytes as int32 in this machine's order."""
    words = array("i")
    words.frombytes(data)
    if _LITTLE_ENDIAN:
        words.byteswap()
    return words


def _big_endian(words: array[int]) -> bytes:
    if _LITTLE_ENDIAN:
        words.byteswap()
    return words.tobytes()


class OffsetIndex(_IndexFile):
    """Offset to file position; relative offsets are the keys."""

    ENTRY_BYTES = 8

    __slots__ = ()

    @property
    def is_full(self) -> bool:
        """Whether the segment must roll before the next entry."""
        return len((self._entries or self._loaded()).keys) >= self.max_entries

    @property
    def last_offset(self) -> int:
        """Offset of the last entry; the base offset when there is none."""
        keys = self._loaded().keys
        return self.base_offset + keys[-1] if keys else self.base_offset

    def append(self, offset: int, position: int) -> None:
        """Note that the batch ending at `offset` starts at `position`.

        Raises ValueError when the index is full, the offset is not above the last one, or either
        number does not fit.
        """
        keys = (self._entries or self._loaded()).keys
        relative = offset - self.base_offset
        if (
            not (keys[-1] if keys else -1) < relative <= _INT32_MAX
            or not 0 <= position <= _INT32_MAX
            or len(keys) >= self.max_entries
        ):
            self._refuse(offset, position, keys)
        self._append(relative, position)

    def _refuse(self, offset: int, position: int, keys: array[int]) -> None:
        relative = self.relative(offset)
        if len(keys) >= self.max_entries:
            raise ValueError(f"{self.path} is full with {len(keys)} entries")
        if keys and relative <= keys[-1]:
            raise ValueError(f"offset {offset} is not above the last one of {self.path}")
        raise ValueError(f"position {position} does not fit in {self.path}")

    def lookup(self, offset: int) -> tuple[int, int]:
        """(offset, position) of the largest entry not above `offset`, else (base offset, 0).

        Start reading at the position. Budget: 1 µs (benchmarks/micro/records.py).
        """
        entries = self._loaded()
        slot = bisect_right(entries.keys, offset - self.base_offset)
        if slot == 0:
            return self.base_offset, 0
        return self.base_offset + entries.keys[slot - 1], entries.values[slot - 1]

    def entry(self, slot: int) -> tuple[int, int]:
        """(offset, position) of one entry, for tools and checks."""
        entries = self._loaded()
        return self.base_offset + entries.keys[slot], entries.values[slot]

    def upper_bound_offset(self, position: int) -> int | None:
        """The offset of the first entry at or behind `position`: no batch that starts before has a
        larger one. None when there is no such entry, so the segment's end is the bound."""
        entries = self._loaded()
        slot = bisect_left(entries.values, position)
        return self.base_offset + entries.keys[slot] if slot < len(entries.keys) else None

    def truncate_to(self, offset: int) -> None:
        """Drop entries at or above `offset`."""
        slot = bisect_left(self._loaded().keys, offset - self.base_offset)
        # Garbage is not sorted; what must be empty afterwards is emptied without searching.
        self._truncate_to_entries(slot if offset > self.base_offset else 0)

    def sanity_check(self) -> None:
        """Raise CorruptIndexError unless size and order are right. Reads the whole index."""
        self._check_size()
        entries = self._loaded()
        if entries.keys and (entries.keys[0] < 0 or entries.values[0] < 0):
            raise CorruptIndexError(f"{self.path} has a negative entry")
        self._check_ascending(entries.keys)
        self._check_ascending(entries.values)

    @staticmethod
    def _empty() -> tuple[array[int], array[int]]:
        return array("i"), array("i")

    def _columns(self, data: bytes) -> tuple[array[int], array[int]]:
        words = _native(data)
        return words[0::2], words[1::2]

    def _bytes(self, keys: array[int], values: array[int]) -> bytes:
        words = array("i", bytes(8 * len(keys)))
        words[0::2] = keys
        words[1::2] = values
        return _big_endian(words)


class TimeIndex(_IndexFile):
    """Timestamp to offset: up to which offset nothing is younger; timestamps are the keys."""

    ENTRY_BYTES = 12

    __slots__ = ()

    @property
    def is_full(self) -> bool:
        """Whether the segment must roll; one slot is kept for the entry that rolling adds."""
        return len((self._entries or self._loaded()).keys) >= self.max_entries - 1

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) when there is none."""
        entries = self._loaded()
        if not entries.keys:
            return NO_TIMESTAMP, self.base_offset
        return entries.keys[-1], self.base_offset + entries.values[-1]

    def maybe_append(self, timestamp: int, offset: int, skip_full_check: bool = False) -> None:
        """Note that nothing up to `offset` is younger than `timestamp`, if that is news.

        `skip_full_check` is for the last entry, at roll or close, which always has room: a segment
        may be closed more than once, or be full by a limit that was lowered since. An entry not
        above the last timestamp is left out (S-12). Raises ValueError when full, or when offset or
        timestamp is below the last entry's: the running maximum never goes back.
        """
        entries = self._entries or self._loaded()
        if self.is_full and not skip_full_check:
            raise ValueError(f"{self.path} is full with {len(entries.keys)} entries")
        last_timestamp = NO_TIMESTAMP
        if entries.keys:
            last_timestamp = entries.keys[-1]
            last_offset = self.base_offset + entries.values[-1]
            if offset < last_offset or timestamp < last_timestamp:
                raise ValueError(
                    f"{timestamp} at {offset} is below {last_timestamp} at {last_offset}"
                    f" in {self.path}"
                )
        if timestamp > last_timestamp:
            self._append(timestamp, self.relative(offset))

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """(timestamp, offset) of the largest entry not above `timestamp`, else (-1, base offset).

        The first record at or after `timestamp` is at or behind the batch that ends at the offset.
        """
        entries = self._loaded()
        slot = bisect_right(entries.keys, timestamp)
        if slot == 0:
            return NO_TIMESTAMP, self.base_offset
        return entries.keys[slot - 1], self.base_offset + entries.values[slot - 1]

    def entry(self, slot: int) -> tuple[int, int]:
        """(timestamp, offset) of one entry, for tools and checks."""
        entries = self._loaded()
        return entries.keys[slot], self.base_offset + entries.values[slot]

    def truncate_to(self, offset: int) -> None:
        """Drop entries at or above `offset`."""
        slot = bisect_left(self._loaded().values, offset - self.base_offset)
        self._truncate_to_entries(slot if offset > self.base_offset else 0)

    def sanity_check(self) -> None:
        """Raise CorruptIndexError unless size and order are right. Reads the whole index."""
        self._check_size()
        entries = self._loaded()
        if entries.keys and (entries.keys[0] < 0 or entries.values[0] < 0):
            raise CorruptIndexError(f"{self.path} has a negative entry")
        self._check_ascending(entries.keys)
        # Two entries may share an offset: the last one of a batch and the one made at the roll.
        if any(map(gt, entries.values, entries.values[1:])):
            raise CorruptIndexError(f"{self.path} has offsets that go back")

    @staticmethod
    def _empty() -> tuple[array[int], array[int]]:
        return array("q"), array("i")

    def _columns(self, data: bytes) -> tuple[array[int], array[int]]:
        words = _native(data)
        high, low = (words[0::3], words[1::3]) if _LITTLE_ENDIAN else (words[1::3], words[0::3])
        halves = array("i", bytes(8 * len(high)))
        halves[0::2] = low
        halves[1::2] = high
        timestamps = array("q")
        timestamps.frombytes(halves.tobytes())
        return timestamps, words[2::3]

    def _bytes(self, keys: array[int], values: array[int]) -> bytes:
        halves = array("i")
        halves.frombytes(keys.tobytes())
        low, high = halves[0::2], halves[1::2]
        words = array("i", bytes(12 * len(keys)))
        words[0::3], words[1::3] = (high, low) if _LITTLE_ENDIAN else (low, high)
        words[2::3] = values
        return _big_endian(words)
