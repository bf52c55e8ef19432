"""What a broker says of its topics and groups, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Committed(NamedTuple):
    """What a group had committed of one partition: the offset it reads next, and its note."""

    offset: int
    metadata: str


Groups = Mapping[str, Mapping[int, Committed]]
"""Committed offsets in one topic: by group, by partition."""


class Bounds(NamedTuple):
    """What a broker has of one partition: first offset, and last stable offset (exclusive)."""

    earliest: int
    end: int


@dataclass(frozen=True, slots=True)
class BrokerTopic:
    """One topic as the broker has it now; partitions in their order."""

    id: str | None
    partitions: tuple[Bounds, ...]
    configs: Mapping[str, str] = field(default_factory=dict)
    groups: Groups = field(default_factory=dict)
