"""The segments of one log, in offset order (Kafka: LogSegments).

Writers replace the tuple as a whole under the log's lock; readers take `items` once and work with
what they got, so they need no lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path

from storage.config import LogConfig
from storage.environment import LogEnvironment
from storage.segments.segment import LogSegment


def make_segment(
    directory: Path, base_offset: int, config: LogConfig, environment: LogEnvironment
) -> LogSegment:
    """A segment object for a log of this config; no file is touched."""
    segment = LogSegment(
        directory,
        base_offset,
        index_interval_bytes=config.index_interval_bytes,
        index_size_max=config.segment_index_bytes,
        created_ms=environment.clock.wall_ms(),
        open_files=environment.open_files,
    )
    if config.segment_jitter_ms:
        import random

        segment.jitter_ms = random.randrange(min(config.segment_jitter_ms, config.segment_ms))
    return segment


class LogSegments:
    """An ordered set of segments by base offset; never empty once a log is open."""

    __slots__ = ("_state",)

    def __init__(self, segments: Iterable[LogSegment] = ()) -> None:
        self._state: tuple[tuple[int, ...], tuple[LogSegment, ...]] = ((), ())
        self._set(segments)

    def _set(self, segments: Iterable[LogSegment]) -> None:
        items = tuple(segments)
        self._state = (tuple(segment.base_offset for segment in items), items)

    @property
    def items(self) -> tuple[LogSegment, ...]:
        """All segments as of now."""
        return self._state[1]

    @property
    def active(self) -> LogSegment:
        """The last segment, the one appended to."""
        return self._state[1][-1]

    @property
    def size(self) -> int:
        """Bytes in all log files together."""
        return sum(segment.size for segment in self._state[1])

    def __len__(self) -> int:
        return len(self._state[1])

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._state[1])

    def floor(self, offset: int) -> LogSegment | None:
        """The segment that holds `offset` if any does: the last with a base at or below it."""
        bases, items = self._state
        index = bisect_right(bases, offset) - 1
        return items[index] if index >= 0 else None

    def higher(self, base_offset: int) -> LogSegment | None:
        """The segment after the one with this base offset."""
        bases, items = self._state
        index = bisect_right(bases, base_offset)
        return items[index] if index < len(items) else None

    def from_floor(self, offset: int) -> tuple[LogSegment, ...]:
        """The segment that holds `offset` and all after it."""
        bases, items = self._state
        return items[max(bisect_right(bases, offset) - 1, 0) :]

    def add(self, segment: LogSegment) -> None:
        """Add a segment in its place; one with the same base offset must not be there."""
        bases, items = self._state
        index = bisect_left(bases, segment.base_offset)
        assert index == len(bases) or bases[index] != segment.base_offset, "segment exists"
        self._set((*items[:index], segment, *items[index:]))

    def replace(self, old: Iterable[LogSegment], new: LogSegment) -> None:
        """Put one segment in the place of others, in one step for readers (compaction)."""
        ids = {id(segment) for segment in old}
        kept = [segment for segment in self._state[1] if id(segment) not in ids]
        kept.append(new)
        kept.sort(key=lambda segment: segment.base_offset)
        self._set(kept)

    def reset(self, segments: Iterable[LogSegment]) -> None:
        """Put other segments in the place of all."""
        self._set(segments)

    def remove(self, gone: Iterable[LogSegment]) -> None:
        """Take segments out; their files are the caller's business."""
        ids = {id(segment) for segment in gone}
        self._set(segment for segment in self._state[1] if id(segment) not in ids)
