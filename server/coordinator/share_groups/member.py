"""One member of a share group, as the log keeps it (PURE).

A member takes its target at once: others may have the same partitions, so nothing must be given
back first (SG-3).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from server.coordinator.consumer.member import JOIN_EPOCH, LEAVE_EPOCH, Partitions


@dataclass(frozen=True, slots=True)
class ShareMember:
    """See the module."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_names: frozenset[str] = frozenset()
    epoch: int = JOIN_EPOCH
    previous_epoch: int = LEAVE_EPOCH
    assigned: Partitions = field(default_factory=dict)
