"""What a shard asks of a replicated state machine, and what the machine decides (PURE).

A request or a deadline is a function from the machine to a `Decision`, and changes nothing itself:
what is wrong with it is found out before anything was written, and costs nobody else anything. The
shard appends the decision's records; then `change` is made, then each record is replayed. So the
machine's state moves in two places only:

    replay(record)   what the log tells, live and at load alike
    change()         what is in no record (who waits for an answer, when a session ends); a failover
                     loses it

Both run after the records are in the log, and must not fail.

What the log holds is batches (`Batch`): plain ones; those of a producer's transaction, which count
once its marker is there; and the markers themselves. The shard alone writes all three, so a machine
is told of them in the log's order, live and at load alike.

Answers wait until the high watermark covers the records, and so do effects: what a record makes
others do (a transaction coordinator's markers). An answer is told an error if leadership is lost
before; an effect is dropped then, and whoever loads the log next makes it anew in `on_loaded`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from server.coordinator.deadlines import Deadlines, Moment
from server.coordinator.transaction_markers import TxnMarker
from wire.errors import KafkaError

if TYPE_CHECKING:
    from replication.replicas.replica_manager import Verification

R = TypeVar("R")
"""The machine's own type of record; only the machine and its codec look into one."""

R_contra = TypeVar("R_contra", contravariant=True)

Reply = Callable[[object], None]
"""Takes a response or a KafkaError, once."""


def ignore(_: object) -> None:
    """The Reply of a request whose answer nobody waits for."""


def nothing() -> None:
    """The change of a decision that its records say all of."""


Answer = tuple[Reply, object]

Effect = Callable[[], None]
"""Done once what led to it is committed; must not raise and must not wait."""


class Transaction(NamedTuple):
    """A producer's open transaction that records are written in."""

    producer_id: int
    producer_epoch: int
    verification: Verification | None = None
    """What proves to the log that the transaction's coordinator knows of it (KIP-890)."""


class Decision(NamedTuple, Generic[R]):
    """What one request or deadline leads to."""

    records: Sequence[R] = ()
    """Appended as one batch: all of them are in the log, or none."""
    response: object | None = None
    """A response or a KafkaError; None if `change` parks the request, or nobody asked."""
    change: Callable[[], object] | None = None
    transaction: Transaction | TxnMarker | None = None
    """Which transaction the records are part of, or what ends one: a marker has no records."""

    @property
    def is_written(self) -> bool:
        """Whether the log is to hold anything of it."""
        return bool(self.records) or isinstance(self.transaction, TxnMarker)

    def batch(self) -> Batch[R]:
        """What the log tells of it."""
        transaction = self.transaction
        if transaction is None:
            return Batch(self.records)
        is_commit = transaction.is_commit if isinstance(transaction, TxnMarker) else None
        return Batch(self.records, transaction.producer_id, is_commit)


class Batch(NamedTuple, Generic[R]):
    """What one batch of the log tells a machine."""

    records: Sequence[R]
    producer_id: int | None = None
    """Whose transaction the records are part of, or whose a marker ends; None: plain records."""
    is_commit: bool | None = None
    """What a marker says; None: no marker."""
    base_offset: int = -1
    """Where it is in the log, for a machine that `needs_offsets`."""


class Machine(Protocol[R_contra]):
    """A coordinator's pure state over one partition.

    `moment` is set before every call. `outbox` collects answers to requests that were parked,
    `effects` what is to be done, both from `change`, `replay` and `on_loaded`. Callbacks in
    `deadlines` return a Decision, or None for nothing.
    """

    moment: Moment
    deadlines: Deadlines
    outbox: list[Answer]
    effects: list[Effect]
    needs_offsets: bool = False
    """Whether it is to be told where each batch is (`begin_batch`)."""

    def begin_batch(self, base_offset: int, /) -> None:
        """The records that are replayed next are from here on in the log."""
        return

    def replay(self, record: R_contra, /) -> None: ...

    def replay_pending(self, record: R_contra, producer_id: int, /) -> None:
        """A record that counts once the producer's transaction is committed. Who writes no such
        records inherits this."""
        return

    def replay_marker(self, producer_id: int, is_commit: bool, /) -> None:
        """The end of the producer's transaction. There may be nothing pending, and a marker that
        was told before may come again."""
        return

    def on_loaded(self) -> None: ...

    def on_unloaded(self, error: KafkaError, /) -> None: ...


def replay_batch(machine: Machine[R], batch: Batch[R]) -> None:
    """Make a batch true."""
    records, producer_id, is_commit, base_offset = batch
    if base_offset >= 0:
        machine.begin_batch(base_offset)
    if producer_id is None:
        for record in records:
            machine.replay(record)
    elif is_commit is None:
        for record in records:
            machine.replay_pending(record, producer_id)
    else:
        machine.replay_marker(producer_id, is_commit)


M = TypeVar("M", bound=Machine[Any])
