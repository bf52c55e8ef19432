"""Which segments of a log may go: too old, too many bytes, or below the log start (S-15).

Only a run of segments from the oldest on is ever chosen, and none that reaches the high watermark:
what is not replicated yet is nobody's to delete. An empty active segment stays; a full one that
has expired goes too, and its place is taken by a fresh one.

A record time in the future would keep a segment for ever; for such a segment the file's own time
counts (S-12).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import TYPE_CHECKING

from storage.segments.segment import LogSegment

if TYPE_CHECKING:
    from storage.log.partition_log import PartitionLog

ShouldDelete = Callable[[LogSegment, LogSegment | None], bool]


def deletable_segments(log: PartitionLog, wall_ms: int) -> list[LogSegment]:
    """The segments retention gives up now, oldest first. Opens time indexes: may raise OSError."""
    rules: list[ShouldDelete] = [lambda _, following: _is_below_start(log, following)]
    config = log.config
    if config.deletes_by_retention:
        if config.retention_ms >= 0:
            rules.append(lambda segment, _: _has_expired(segment, config.retention_ms, wall_ms))
        if config.retention_bytes >= 0:
            rules.append(_over_size(log.size - config.retention_bytes))
    return max((_run_of(log, rule) for rule in rules), key=len)


def _run_of(log: PartitionLog, should_delete: ShouldDelete) -> list[LogSegment]:
    segments = log.segments.items
    found: list[LogSegment] = []
    for segment, following in zip_longest(segments, segments[1:]):
        end_offset = log.log_end_offset if following is None else following.base_offset
        if following is None and segment.size == 0:
            break
        if end_offset > log.high_watermark or not should_delete(segment, following):
            break
        found.append(segment)
    return found


def _is_below_start(log: PartitionLog, following: LogSegment | None) -> bool:
    return following is not None and following.base_offset <= log.log_start_offset


def _has_expired(segment: LogSegment, retention_ms: int, wall_ms: int) -> bool:
    timestamp = segment.largest_timestamp()
    if timestamp > wall_ms:
        timestamp = segment.last_modified_ms()
    return wall_ms - timestamp > retention_ms


def _over_size(excess: int) -> ShouldDelete:
    left = excess

    def should_delete(segment: LogSegment, _: LogSegment | None) -> bool:
        nonlocal left
        if left < segment.size:
            return False
        left -= segment.size
        return True

    return should_delete
