"""One member of a consumer group, as the log keeps it (PURE).

A member is a value: a heartbeat makes the next one, and what differs from the one before is what is
written. Its epoch is that of the target assignment that it has reached; each partition keeps the
epoch in which this member got it, so that a commit which left the client before a rebalance is
still good for what stayed (CG-21, CG-50).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from wire.errors import ErrorCode

Partitions = Mapping[bytes, frozenset[int]]
"""Topic id to partitions; no topic without one."""

Held = Mapping[bytes, Mapping[int, int]]
"""Topic id to partition to the member epoch in which the member got it; no topic without one."""

LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""A static member that is about to come back: its partitions wait for it."""
JOIN_EPOCH = 0
NOT_SET = -1
"""A timeout that a heartbeat leaves as it is."""


class MemberState(enum.IntEnum):
    """How far a member is; the value is what the log says."""

    STABLE = 0
    """It has all of the target that it gets in this epoch."""
    UNREVOKED_PARTITIONS = 1
    """It was told to give partitions back, and has not said that it did."""
    UNRELEASED_PARTITIONS = 2
    """Some of what the target gives it others have not given back."""
    UNKNOWN = 127
    """A later version of the coordinator wrote it."""

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        return cls.UNKNOWN


class ClassicPart(NamedTuple):
    """What a member that speaks the classic protocol said when it joined."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata) in its order of preference; all metadata say the same."""


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """See the module. `subscribed_regex` is "" for none; `server_assignor` None: no preference."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = NOT_SET
    subscribed_names: frozenset[str] = frozenset()
    subscribed_regex: str = ""
    server_assignor: str | None = None
    epoch: int = JOIN_EPOCH
    previous_epoch: int = LEAVE_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Held = field(default_factory=dict)
    revoking: Held = field(default_factory=dict)
    """What it must give back before its epoch moves on."""
    classic: ClassicPart | None = None
    """None: it speaks the protocol of KIP-848."""

    def moved(
        self, epoch: int, state: MemberState, assigned: Held, revoking: Held
    ) -> ConsumerMember:
        """The member with another assignment; what its epoch was is its previous one now, also if
        that is the same (CG-22)."""
        return replace(
            self,
            epoch=epoch,
            previous_epoch=self.epoch,
            state=state,
            assigned=assigned,
            revoking=revoking,
        )

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Whether it has all that the target of this epoch gives it."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def stale_code(self, *, is_transactional: bool) -> ErrorCode:
        """What is told of a wrong epoch."""
        if is_transactional or self.classic is not None:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.STALE_MEMBER_EPOCH

    @property
    def held(self) -> Partitions:
        """What it has, or is giving back."""
        held = {topic_id: frozenset(epochs) for topic_id, epochs in self.assigned.items()}
        for topic_id, epochs in self.revoking.items():
            held[topic_id] = held.get(topic_id, frozenset()).union(epochs)
        return held

    def epoch_of(self, topic_id: bytes, partition: int) -> int | None:
        """Since when it has the partition, or is giving it back; None if neither (CG-50)."""
        for held in (self.assigned, self.revoking):
            epoch = held.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None
