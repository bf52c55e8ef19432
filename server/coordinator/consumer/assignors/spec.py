"""What an assignor is given (PURE)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from server.coordinator.consumer.member import Partitions


class MemberSpec(NamedTuple):
    """A member: topics that it subscribes to and that exist, and its target so far."""

    instance_id: str | None
    topics: frozenset[bytes]
    target: Partitions


class GroupSpec(NamedTuple):
    """A group: its members, in the order that decides where nothing else does."""

    members: Mapping[str, MemberSpec]
    counts: Mapping[bytes, int]
    """Topic id to its number of partitions, of every topic that a member subscribes to."""
    is_homogeneous: bool
    """Whether all members subscribe alike (CG-24): the group knows how they said so."""
