"""Tasks of a topology, by what is done with them (PURE).

A task is a subtopology and a partition of its input. Whoever has it active runs it; a standby keeps
a copy of its state; a warm-up makes one, to take it over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

Partitions = Mapping[str, frozenset[int]]
"""Subtopology id to partitions; no subtopology without one."""
Epochs = Mapping[str, Mapping[int, int]]
"""Subtopology id to partition to the epoch in which the member got it; none without one."""


class Tasks(NamedTuple):
    """Those of a target, or those that a member says it has."""

    active: Partitions = {}
    standby: Partitions = {}
    warmup: Partitions = {}

    def has_any(self, held: HeldTasks) -> bool:
        """Whether any of these is among them, as what it is here."""
        return any(
            not ours.isdisjoint(theirs.get(subtopology, ()))
            for mine, theirs in zip(self, held.without_epochs(), strict=True)
            for subtopology, ours in mine.items()
        )

    def is_within(self, held: HeldTasks) -> bool:
        """Whether all of these are among them."""
        return all(
            ours <= theirs.get(subtopology, frozenset())
            for mine, theirs in zip(self, held.without_epochs(), strict=True)
            for subtopology, ours in mine.items()
        )

    def __bool__(self) -> bool:
        return any(self[:])


class HeldTasks(NamedTuple):
    """Those that a member has, or is giving back."""

    active: Epochs = {}
    standby: Partitions = {}
    warmup: Partitions = {}

    def without_epochs(self) -> Tasks:
        """Which they are."""
        active = {subtopology: frozenset(of) for subtopology, of in self.active.items()}
        return Tasks(active, self.standby, self.warmup)

    def __bool__(self) -> bool:
        return any(self[:])


NO_TASKS = Tasks()
NOTHING_HELD = HeldTasks()


def pairs(partitions: Mapping[str, Iterable[int]]) -> list[tuple[str, int]]:
    """Task by task."""
    return [(subtopology, p) for subtopology, of in partitions.items() for p in of]


def grouped(tasks: Iterable[tuple[str, int]]) -> dict[str, frozenset[int]]:
    """By subtopology."""
    found: dict[str, set[int]] = {}
    for subtopology, partition in tasks:
        found.setdefault(subtopology, set()).add(partition)
    return {subtopology: frozenset(of) for subtopology, of in found.items()}
