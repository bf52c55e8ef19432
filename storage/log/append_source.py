"""Who appends to a log, and so how much of a batch is checked (PURE)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from wire.record_batch import BatchHeader


class AppendOrigin(Enum):
    """Who appends, which decides how much is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"
    RAFT = "raft"


class Verification:
    """That the coordinator is being asked whether a transaction includes this partition (KIP-890).

    The object itself is the guard: one that was replaced proves nothing.
    """

    __slots__ = ("lowest_sequence", "producer_epoch", "started_ms", "supports_epoch_bump")

    def __init__(self, sequence: int, epoch: int, started_ms: int, bump: bool) -> None:
        self.lowest_sequence = sequence
        self.producer_epoch = epoch
        self.started_ms = started_ms
        self.supports_epoch_bump = bump

    def note(self, sequence: int, epoch: int) -> None:
        """Another request of the same producer is being verified."""
        if epoch > self.producer_epoch:
            self.producer_epoch = epoch
            self.lowest_sequence = sequence
        elif epoch == self.producer_epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence

    def is_for_the_next_after(self, marker: BatchHeader) -> bool:
        """Whether what is asked for is the transaction after the one that `marker` ends: where each
        has an epoch of its own, the next one's is the marker's (TX-58)."""
        return self.supports_epoch_bump and marker.producer_epoch == self.producer_epoch


class AppendSource(NamedTuple):
    """Who sent a batch, and so how much of it is checked."""

    origin: AppendOrigin = AppendOrigin.CLIENT
    request_version: int = 99
    """Of the Produce request: before 7 there is no zstd (KIP-110)."""
    opens_compressed: bool = False
    """Whether a compressed batch is decompressed to see that consumers can (as Kafka does)."""
    transaction_version: int = 0
    """Of a transaction's marker: how strictly its epoch is checked (KIP-890)."""
    verification: Verification | None = None
    """The guard under which the coordinator was asked about a transactional batch (KIP-890)."""


FROM_CLIENT = AppendSource()
FROM_COORDINATOR = AppendSource(AppendOrigin.COORDINATOR)
FROM_RAFT = AppendSource(AppendOrigin.RAFT)
