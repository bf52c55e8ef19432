"""One transactional id: its state as a value, and every step it can take (PURE).

    Empty ----> Ongoing ----> PrepareCommit ----> CompleteCommit
                   |                                (and back to Empty or Ongoing)
                   '--------> PrepareAbort -----> CompleteAbort

A producer owns (producer id, epoch); whoever has another pair is fenced. An epoch is bumped when a
producer is initialised and when somebody else ends its transaction. With transactions of version 2
(KIP-890) it is bumped whenever a transaction ends, so that nothing late of it can get into the
next one; the epoch used up by that is the partitions' business, see `prepared`.

Epochs end at 32,767, which no producer is ever given: it is the room to fence the last one. After
32,766 an id gets a new producer id and starts at epoch 0.

Times are wall clock, in ms since 1970. Kafka: TransactionMetadata, TransactionState (4.3.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from wire.primitives import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TopicPartition,
)

EPOCH_MAX = 2**15 - 1
NEVER_MS = 2**31 - 1
"""The timeout of a transaction that has none (two-phase commit)."""

BUMPS_EPOCHS = 2
"""The first transaction.version that gives each transaction its epoch (TransactionVersion)."""


class TransactionState(IntEnum):
    """The number is the record's; Dead and PrepareEpochFence are never written."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def wire_name(self) -> str:
        """As DescribeTransactions and ListTransactions write it."""
        return self.name.title().replace("_", "")


STATES_BY_WIRE_NAME = {state.wire_name: state for state in TransactionState}

_S = TransactionState
_SETTLED = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})

LEGAL_PREVIOUS = {
    _S.EMPTY: _SETTLED,
    _S.ONGOING: _SETTLED | {_S.ONGOING},
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    # From a settled state only with version 2: a producer whose sends all failed may abort.
    _S.PREPARE_ABORT: _SETTLED | {_S.ONGOING},
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
}


class IllegalTransition(Exception):
    """A step that the table does not have: a fault of ours."""


class ProducerIdAndEpoch(NamedTuple):
    """What a producer calls itself."""

    producer_id: int
    epoch: int


class TransactionMetadata(NamedTuple):
    """What is known of one transactional id."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    start_ms: int
    """When the first partition was added; NO_TIMESTAMP in Empty."""
    last_update_ms: int
    previous_producer_id: int
    """The producer id before the last step; differs from `producer_id` right after a change."""
    next_producer_id: int = NO_PRODUCER_ID
    """From Prepare to Complete of a transaction that used the last epoch up."""
    client_version: int = 0
    """2 if the last step was a version 2 producer's (or the server's, working so), else 0."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch the producer had before its last bump, for telling a repeated request from a
    fenced one. In no record: after a failover a repetition is fenced (TX-12).
    """

    @classmethod
    def fresh(cls, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
        """An id that was never seen, or is forgotten."""
        return cls(
            producer_id, 0, timeout_ms, TransactionState.EMPTY, frozenset(), NO_TIMESTAMP, now_ms,
            producer_id,
        )  # fmt: skip

    # -- what it is like ---------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """No transaction is open or being ended."""
        return self.state in _SETTLED

    @property
    def is_prepared(self) -> bool:
        """The outcome is decided, markers are under way."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_exhausted(self) -> bool:
        """The producer id has no epoch left to hand out."""
        return is_exhausted(self.producer_epoch)

    def is_timed_out(self, now_ms: int) -> bool:
        """Open for longer than its producer wanted."""
        return (
            self.state is TransactionState.ONGOING
            and self.timeout_ms != NEVER_MS
            and self.start_ms + self.timeout_ms < now_ms
        )

    def may_initialise(self, given: ProducerIdAndEpoch) -> bool:
        """Whether a producer that calls itself so may be this id's: as its producer id is, or was
        until its epochs were used up (it may have missed the answer that told it). Its epoch is
        looked at by `with_next_epoch`.
        """
        return given.producer_id == self.producer_id or (
            given.producer_id == self.previous_producer_id and is_exhausted(given.epoch)
        )

    # -- steps -------------------------------------------------------------------------------

    def _step(self, state: TransactionState, now_ms: int) -> TransactionMetadata:
        if self.state not in LEGAL_PREVIOUS[state]:
            raise IllegalTransition(f"{self.state.wire_name} to {state.wire_name}")
        return self._replace(
            state=state, previous_producer_id=self.producer_id, last_update_ms=now_ms
        )

    def with_next_epoch(
        self, timeout_ms: int, given_epoch: int | None, now_ms: int
    ) -> TransactionMetadata | None:
        """Empty with the next epoch; with the same one if the producer repeats itself. None: the
        given epoch is neither the current nor the last one, the producer is fenced.
        """
        epoch, last_epoch = self.producer_epoch + 1, self.producer_epoch
        if given_epoch is None:
            last_epoch = NO_PRODUCER_EPOCH
        elif given_epoch != self.producer_epoch:
            if given_epoch != self.last_producer_epoch:
                return None
            epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        return self._emptied(timeout_ms, now_ms)._replace(
            producer_epoch=epoch, last_producer_epoch=last_epoch
        )

    def with_producer_id(
        self, producer_id: int, timeout_ms: int, is_same_producer: bool, now_ms: int
    ) -> TransactionMetadata:
        """Empty with a new producer id at epoch 0."""
        return self._emptied(timeout_ms, now_ms)._replace(
            producer_id=producer_id,
            producer_epoch=0,
            last_producer_epoch=self.producer_epoch if is_same_producer else NO_PRODUCER_EPOCH,
        )

    def _emptied(self, timeout_ms: int, now_ms: int) -> TransactionMetadata:
        return self._step(TransactionState.EMPTY, now_ms)._replace(
            timeout_ms=timeout_ms, partitions=frozenset(), start_ms=NO_TIMESTAMP
        )

    def with_partitions(
        self, partitions: Iterable[TopicPartition], client_version: int, now_ms: int
    ) -> TransactionMetadata:
        """Ongoing with these partitions too."""
        return self._step(TransactionState.ONGOING, now_ms)._replace(
            partitions=self.partitions.union(partitions),
            start_ms=now_ms if self.is_settled else self.start_ms,
            client_version=client_version,
        )

    def prepared(
        self, is_commit: bool, client_version: int, next_producer_id: int, now_ms: int
    ) -> TransactionMetadata:
        """Decided. With version 2 this and the markers have the next epoch, so that partitions
        refuse what comes late; an id at its last one gets `next_producer_id` once complete.
        """
        state = TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
        step = self._step(state, now_ms)
        if client_version >= BUMPS_EPOCHS:
            step = step._replace(
                producer_epoch=min(self.producer_epoch + 1, EPOCH_MAX),
                last_producer_epoch=self.producer_epoch,
                start_ms=now_ms if self.is_settled else self.start_ms,
            )
        elif self.is_settled:
            raise IllegalTransition(f"{self.state.wire_name} to {state.wire_name} below version 2")
        return step._replace(next_producer_id=next_producer_id, client_version=client_version)

    def fenced(
        self, server_version: int, next_producer_id: int, now_ms: int
    ) -> TransactionMetadata:
        """PrepareAbort by us, not by the producer: its epoch is fenced, whatever the version."""
        if server_version >= BUMPS_EPOCHS:
            return self.prepared(False, BUMPS_EPOCHS, next_producer_id, now_ms)
        return self.prepared(False, 0, NO_PRODUCER_ID, now_ms)._replace(
            producer_epoch=min(self.producer_epoch + 1, EPOCH_MAX),
            last_producer_epoch=NO_PRODUCER_EPOCH,
        )

    def completed(self, now_ms: int) -> TransactionMetadata:
        """All markers are written."""
        is_commit = self.state is TransactionState.PREPARE_COMMIT
        state = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
        step = self._step(state, now_ms)._replace(partitions=frozenset())
        if self.next_producer_id == NO_PRODUCER_ID:
            return step
        return step._replace(
            producer_id=self.next_producer_id, producer_epoch=0, next_producer_id=NO_PRODUCER_ID
        )


def is_exhausted(epoch: int) -> bool:
    """Whether no later epoch may be handed out."""
    return epoch >= EPOCH_MAX - 1
