"""Writing away what expired, a batch at a time (PURE).

Many may expire at once, and what a decision writes is one batch, which has a size limit. So a sweep
takes as much as goes into one, pauses, and comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from server.coordinator.machine import R

SWEEP_RECORDS_MAX = 1_000
"""Tombstones of one step."""

SWEEP_SIZE_MAX = 100_000
"""Of them together, in bytes or characters: names may be long."""

SWEEP_STEP_MS = 50
"""Pause between two steps, so that others get their turn."""


def one_step(tombstones: Iterator[R], size_of: Callable[[R], int]) -> tuple[list[R], bool]:
    """As many as go into one batch, and whether these are all."""
    records: list[R] = []
    size = 0
    for record in tombstones:
        size += size_of(record)
        records.append(record)
        if len(records) == SWEEP_RECORDS_MAX or size > SWEEP_SIZE_MAX:
            return records, False
    return records, True
