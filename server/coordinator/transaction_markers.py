"""Transaction markers: what the coordinator asks of whoever writes them, and one as bytes (PURE).

Once a Prepare record is committed, every partition of the transaction gets a COMMIT or an ABORT
marker from its leader; once all have it, the transaction is complete. The shard decides and
remembers, the sender carries; neither knows how the other works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from wire.control_records import ControlRecordType, EndTxnMarker, encode_end_txn_marker
from wire.primitives import TopicPartition
from wire.records import build_control_batch


class TxnMarkers(NamedTuple):
    """The markers of one transaction (Kafka: TxnMarkerEntry with its PendingCompleteTxn)."""

    transactional_id: str
    coordinator_partition: int
    """The partition of __transaction_state that keeps the id."""
    coordinator_epoch: int
    """That partition's leader epoch: a partition refuses the markers of a deposed coordinator."""
    producer_id: int
    producer_epoch: int
    """The epoch the Prepare record carries; in transactions of version 2 one above the data's."""
    is_commit: bool
    transaction_version: int
    """Which rule for epochs the partitions apply (TX-60): 2, or below it."""
    partitions: frozenset[TopicPartition]
    """Never empty."""


class TxnMarker(NamedTuple):
    """One marker, as the partition it is written to is told (Kafka: TxnMarkerEntry)."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int

    @property
    def type(self) -> ControlRecordType:
        return ControlRecordType.COMMIT if self.is_commit else ControlRecordType.ABORT

    def batch(self, wall_ms: int) -> bytes:
        """The control batch that says it, to be stamped by the log it is appended to."""
        value = encode_end_txn_marker(EndTxnMarker(self.type, self.coordinator_epoch))
        return build_control_batch(
            [(self.type, value)],
            timestamp=wall_ms,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            is_transactional=True,
        )


class MarkerSender(Protocol):
    """Carries markers to partition leaders until all have them (server.peers)."""

    def send(self, markers: TxnMarkers, on_done: Callable[[], None], /) -> None:
        """Begin to send; does not wait and does not raise.

        `on_done` is called once, on any thread, when every partition has its marker or is gone.
        Not called after `forget`, nor when a partition said that this coordinator was deposed.
        Called again for the same transaction (the shard was loaded anew), the later call counts.
        """

    def forget(self, coordinator_partition: int, coordinator_epoch: int, /) -> None:
        """Drop what a partition queued in this leader epoch or an older one: it is led anew, here
        or elsewhere. Called from under a lock: does not wait, and calls nothing back.
        """
