"""What a replica is besides a leader: it follows, or it has stopped (PURE).

A `Partition` has one `Role` at a time, replaced whole when its leader epoch changes; requests read
it once, without a lock, and see one leader epoch. `Leading` has a module of its own.

Each role answers: `leader_id` and `leader_epoch`, the metadata's; `partition_epoch`, the version of
the metadata; `isr_state`; `followers`, what is known of them, by replica id; `not_serving`, what a
request gets that this role does not serve; and what is never so of one that does not lead:
`has_enough_in_sync`, `leads_since`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from replication.partition.isr import IsrState, ReplicaState
from replication.partition.leading import Leading
from replication.raft.own_events import NO_LEADER
from wire.errors import ErrorCode

_NO_ISR = IsrState(frozenset())
_NO_FOLLOWERS: Mapping[int, ReplicaState] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Following:
    """Another replica leads, or none, or this one was never told: it starts so."""

    leader_id: int = NO_LEADER
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr_state: IsrState = _NO_ISR
    followers: ClassVar[Mapping[int, ReplicaState]] = _NO_FOLLOWERS
    has_enough_in_sync: ClassVar[bool] = False

    def leads_since(self, leader_epoch: int) -> bool:
        """Never: it does not lead."""
        return False

    not_serving: ClassVar[ErrorCode] = ErrorCode.NOT_LEADER_OR_FOLLOWER


@dataclass(frozen=True, slots=True)
class Stopped:
    """Deleted, or in an offline directory. Nothing follows on it."""

    leader_id: int
    leader_epoch: int
    partition_epoch: int
    not_serving: ErrorCode
    isr_state: ClassVar[IsrState] = _NO_ISR
    followers: ClassVar[Mapping[int, ReplicaState]] = _NO_FOLLOWERS
    has_enough_in_sync: ClassVar[bool] = False

    def leads_since(self, leader_epoch: int) -> bool:
        """Never: it does not lead."""
        return False


Role = Leading | Following | Stopped
