"""The persisted state of a share partition's records, as ranges (PURE).

Two writes may tell of the same records. The one that knows of more deliveries is right, and of the
same delivery the one whose state is further (Kafka: PersisterStateBatchCombiner).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

UNINITIALIZED = -1
"""A start offset, or count of complete records, that nobody has told yet."""


class ShareKey(NamedTuple):
    """A partition, as one group reads it (Kafka: SharePartitionKey)."""

    group_id: str
    topic_id: bytes
    partition: int


class StateBatch(NamedTuple):
    """Records of one state, both ends included; `state` is a `RecordState`'s number."""

    first: int
    last: int
    state: int
    delivery_count: int


def combine(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """What holds of each record from the start on, sorted, without overlaps, neighbours joined."""
    waiting = sorted(batch for batch in batches if batch.last >= start_offset)
    waiting.reverse()
    combined: list[StateBatch] = []
    rivals: list[tuple[int, int, int]] = []
    offset = start_offset
    while waiting or rivals:
        if not rivals:
            offset = max(offset, waiting[-1].first)
        while waiting and waiting[-1].first <= offset:
            batch = waiting.pop()
            heapq.heappush(rivals, (-batch.delivery_count, -batch.state, batch.last))
        count, state, last = rivals[0]
        if last < offset:
            heapq.heappop(rivals)
            continue
        if waiting:
            last = min(last, waiting[-1].first - 1)
        _append(combined, StateBatch(offset, last, -state, -count))
        offset = last + 1
    return combined


def _append(combined: list[StateBatch], batch: StateBatch) -> None:
    if combined:
        first, last, *what = combined[-1]
        if last + 1 == batch.first and what == [batch.state, batch.delivery_count]:
            combined[-1] = batch._replace(first=first)
            return
    combined.append(batch)
