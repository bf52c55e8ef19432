"""Everything one partition of `__transaction_state` knows: its transactional ids (PURE).

This is the state machine the runtime drives (`machine.Machine`). What a request leads to depends on
the id's state and on who asks; every step is in `state`, and each changes one id and is
one record.

    request              settled            Ongoing                Prepare*
    InitProducerId       next epoch         fence and abort: 51    51
    AddPartitions        Ongoing            Ongoing                waits, or 51
    verify               120                0, or 120              51
    EndTxn below v5      0 if it repeats    Prepare*               51
    EndTxn v5            0 if it repeats,   Prepare*, next epoch   51
                         or an empty abort

    settled: Empty, CompleteCommit, CompleteAbort; 51 CONCURRENT_TRANSACTIONS: ask again,
    120 TRANSACTION_ABORTABLE

An id in Prepare* is answered 51 before anything else is looked at, because a producer that was told
its next producer id may ask with it already. Kafka does so by a pending state that it enters when
the Prepare record is committed; here Prepare* is that state. Nothing else is ever pending: requests
are decided on what was appended, and answered when it is committed.

A producer's next transaction is at the door as soon as it was told how the last one ended, while
the markers are still on their way. Told 51 it would sleep 20 ms or 100, for something that takes
one or two. So AddPartitions may wait: it is told `ENDED` when the Complete record is committed, and
51 only when that takes too long.

Effects: a committed Prepare record sends markers, again after a load; the sender's word makes the
Complete record, by a deadline that comes again until it could be written.

Kafka: TransactionCoordinator, TransactionStateManager (4.3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from server.coordinator.deadlines import Deadlines, Moment
from server.coordinator.machine import Answer, Decision, Effect, Machine, Reply
from server.coordinator.sweeps import SWEEP_STEP_MS, one_step
from server.coordinator.transaction_markers import TxnMarkers
from server.coordinator.transactions.config import TransactionConfig
from server.coordinator.transactions.records import TransactionRecord
from server.coordinator.transactions.state import (
    BUMPS_EPOCHS,
    EPOCH_MAX,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages.transactions import (
    DescribeTransactionsResponse,
    EndTxnResponse,
    InitProducerIdResponse,
    ListTransactionsResponse,
)
from wire.primitives import NO_PRODUCER_ID, TopicPartition

TransactionDecision: TypeAlias = Decision[TransactionRecord]
TransactionDescription: TypeAlias = DescribeTransactionsResponse.Transaction
ListedTransaction: TypeAlias = ListTransactionsResponse.Transaction

_FLEXIBLE_RECORDS = 1
"""The first transaction.version that writes version 1 of the records."""

_COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
_TIMEOUTS, _EXPIRY = "timeouts", "expiry"
_OK = 0

ENDED: Final = object()
"""What is told to who waited for a transaction to end: it did, ask again."""


class Outside(NamedTuple):
    """What the machine asks of its broker. None of it waits."""

    transaction_version: Callable[[], int]
    """The finalised level of the feature transaction.version."""
    next_producer_id: Callable[[], int]
    """A producer id that nobody ever had. KafkaError: there is none at the moment."""
    send_markers: Callable[[TxnMarkers, Callable[[TransactionShard], TransactionDecision]], None]
    """Have markers written, then put the decision to the shard that keeps the id."""
    forget_markers: Callable[[int, int], None]
    """MarkerSender.forget."""


class TransactionShard(Machine[TransactionRecord]):
    """The ids of one partition. Owner: its runtime shard, one call at a time.

    `partition` and `leader_epoch` are what it is made for; `moment` is set before each call.
    """

    def __init__(
        self,
        config: TransactionConfig,
        outside: Outside,
        partition: int,
        leader_epoch: int,
        moment: Moment,
    ) -> None:
        self.moment = moment
        self.deadlines = Deadlines()
        self.outbox: list[Answer] = []
        self.effects: list[Effect] = []
        self.transactions: dict[str, TransactionMetadata] = {}
        self._ongoing: dict[str, None] = {}
        """Ids in Ongoing, the oldest first; what the sweep for timeouts looks through."""
        self._waiting: dict[str, list[Reply]] = {}
        """By id in Prepare*: who waits for its end."""
        self._config = config
        self._outside = outside
        self._partition = partition
        self._leader_epoch = leader_epoch

    # -- the log -----------------------------------------------------------------------------

    def replay(self, record: TransactionRecord) -> None:
        """Make one record true."""
        transactional_id, metadata, _ = record
        if metadata is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = metadata
        if metadata is not None and metadata.state is TransactionState.ONGOING:
            self._ongoing[transactional_id] = None
        else:
            self._ongoing.pop(transactional_id, None)
        if self._waiting and (metadata is None or not metadata.is_prepared):
            for reply in self._waiting.pop(transactional_id, ()):
                self.deadlines.cancel(("wait", reply))
                self.outbox.append((reply, ENDED))

    def on_loaded(self) -> None:
        """The whole log was replayed: finish what was decided, watch what is open."""
        for transactional_id, metadata in self.transactions.items():
            if metadata.is_prepared:
                self._send_markers(transactional_id, metadata)
        if self._ongoing:
            self._watch_timeouts()
        self._watch_expiry()

    def on_unloaded(self, error: KafkaError) -> None:
        """The shard is not ours any more, and neither are its markers."""
        for replies in self._waiting.values():
            self.outbox += [(reply, error) for reply in replies]
        self.deadlines.clear()
        self._outside.forget_markers(self._partition, self._leader_epoch)

    def _logged(
        self,
        transactional_id: str,
        metadata: TransactionMetadata,
        response: object,
        change: Callable[[], object] | None = None,
    ) -> TransactionDecision:
        version = min(self._outside.transaction_version(), _FLEXIBLE_RECORDS)
        return Decision([TransactionRecord(transactional_id, metadata, version)], response, change)

    def _prepared(
        self, transactional_id: str, metadata: TransactionMetadata, response: object
    ) -> TransactionDecision:
        change = partial(self._send_markers, transactional_id, metadata)
        return self._logged(transactional_id, metadata, response, change)

    # -- InitProducerId ----------------------------------------------------------------------

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, given: ProducerIdAndEpoch | None
    ) -> TransactionDecision:
        """Who the id's producer is from now on (TX-23..27).

        KafkaError PRODUCER_FENCED: `given` is somebody else by now. CONCURRENT_TRANSACTIONS: a
        transaction is being ended, also by this request.
        """
        now_ms = self.moment.wall_ms
        metadata = self.transactions.get(transactional_id)
        if metadata is None:
            fresh = TransactionMetadata.fresh(self._outside.next_producer_id(), timeout_ms, now_ms)
            return self._initialised(transactional_id, fresh)
        if metadata.is_prepared:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if given is not None and not metadata.may_initialise(given):
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        if metadata.state is TransactionState.ONGOING:
            # Nobody is told this epoch: whoever asks again once it is aborted gets the next one.
            error = KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
            return self._prepared(transactional_id, self._fenced(metadata), error)
        if metadata.is_exhausted and (given is None or given.epoch == metadata.producer_epoch):
            return self._initialised(
                transactional_id,
                metadata.with_producer_id(
                    self._outside.next_producer_id(), timeout_ms, given is not None, now_ms
                ),
            )
        given_epoch = None if given is None else given.epoch
        initialised = metadata.with_next_epoch(timeout_ms, given_epoch, now_ms)
        if initialised is None:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        return self._initialised(transactional_id, initialised)

    def _initialised(
        self, transactional_id: str, metadata: TransactionMetadata
    ) -> TransactionDecision:
        response = InitProducerIdResponse(
            error_code=_OK,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
        )
        return self._logged(transactional_id, metadata, response)

    def _fenced(self, metadata: TransactionMetadata) -> TransactionMetadata:
        version = self._outside.transaction_version()
        next_producer_id = self._successor(metadata, version)
        return metadata.fenced(version, next_producer_id, self.moment.wall_ms)

    def _successor(self, metadata: TransactionMetadata, version: int) -> int:
        """The producer id to go on with, if ending the transaction uses this one's epochs up."""
        if version >= BUMPS_EPOCHS and metadata.is_exhausted:
            return self._outside.next_producer_id()
        return NO_PRODUCER_ID

    # -- partitions --------------------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        client_version: int,
    ) -> TransactionDecision:
        """Answers 0 (TX-33). KafkaError INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
        CONCURRENT_TRANSACTIONS, and UNSUPPORTED_VERSION if no record can say it yet.
        """
        metadata = self._known(transactional_id)
        if metadata.is_prepared:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        _check_producer(metadata, producer)
        if metadata.state is TransactionState.ONGOING and partitions <= metadata.partitions:
            return Decision(response=_OK)
        self._check_writable(client_version)
        added = metadata.with_partitions(partitions, client_version, self.moment.wall_ms)
        return self._logged(transactional_id, added, _OK, self._watch_timeouts)

    def wait_for_end(
        self, transactional_id: str, wait_ms: int, reply: Reply
    ) -> TransactionDecision | None:
        """Have `reply` told ENDED when the id's transaction, which is being ended, is complete, or
        CONCURRENT_TRANSACTIONS after `wait_ms`. None: nothing is being ended."""
        metadata = self.transactions.get(transactional_id)
        if metadata is None or not metadata.is_prepared:
            return None
        key = ("wait", reply)  # of this request; an id may have several

        def wait() -> None:
            self._waiting.setdefault(transactional_id, []).append(reply)
            self.deadlines.set(key, self.moment.now_ms + wait_ms, lambda: Decision(change=give_up))

        def give_up() -> None:
            self._waiting[transactional_id].remove(reply)
            self.outbox.append((reply, KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)))

        return Decision(change=wait)

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, int]:
        """Whether each partition is part of the transaction: 0 or TRANSACTION_ABORTABLE (TX-34)."""
        metadata = self._known(transactional_id)
        _check_producer(metadata, producer)
        if metadata.is_prepared:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        known, missing = metadata.partitions, int(ErrorCode.TRANSACTION_ABORTABLE)
        return {partition: _OK if partition in known else missing for partition in partitions}

    def _known(self, transactional_id: str) -> TransactionMetadata:
        metadata = self.transactions.get(transactional_id)
        if metadata is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return metadata

    def _check_writable(self, client_version: int) -> None:
        """TX-79: records of version 0 cannot say what a version 2 producer did."""
        if client_version and self._outside.transaction_version() < _FLEXIBLE_RECORDS:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    # -- EndTxn ------------------------------------------------------------------------------

    def end_txn(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        is_commit: bool,
        client_version: int,
    ) -> TransactionDecision:
        """Decide the transaction, or tell again how it was decided (TX-43, TX-44).

        KafkaError INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
        INVALID_TXN_STATE, and UNSUPPORTED_VERSION if no record can say it yet.
        """
        metadata = self._known(transactional_id)
        if client_version >= BUMPS_EPOCHS:
            is_done = _is_done_by_epoch(metadata, producer, is_commit)
        else:
            is_done = _is_done(metadata, producer, is_commit)
        if is_done:
            return Decision(response=_ended(metadata, client_version))
        self._check_writable(client_version)
        next_producer_id = self._successor(metadata, client_version)
        now_ms = self.moment.wall_ms
        prepared = metadata.prepared(is_commit, client_version, next_producer_id, now_ms)
        response = _ended(prepared.completed(now_ms), client_version)
        return self._prepared(transactional_id, prepared, response)

    # -- markers -----------------------------------------------------------------------------

    def _send_markers(self, transactional_id: str, prepared: TransactionMetadata) -> None:
        """An effect: only once the Prepare record is committed (TX-3b)."""
        markers = TxnMarkers(
            transactional_id,
            self._partition,
            self._leader_epoch,
            prepared.producer_id,
            prepared.producer_epoch,
            prepared.state is TransactionState.PREPARE_COMMIT,
            prepared.client_version,
            prepared.partitions,
        )

        def markers_written(shard: TransactionShard) -> TransactionDecision:
            return shard.markers_written(transactional_id, prepared)

        self.effects.append(partial(self._outside.send_markers, markers, markers_written))

    def markers_written(
        self, transactional_id: str, prepared: TransactionMetadata
    ) -> TransactionDecision:
        """Every partition knows how this transaction ended."""
        complete = partial(self._complete, transactional_id, prepared)
        key = ("complete", transactional_id)
        return Decision(change=lambda: self.deadlines.set(key, self.moment.now_ms, complete))

    def _complete(
        self, transactional_id: str, prepared: TransactionMetadata
    ) -> TransactionDecision | None:
        if self.transactions.get(transactional_id) != prepared:
            return None  # somebody said so before
        return self._logged(transactional_id, prepared.completed(self.moment.wall_ms), None)

    # -- time --------------------------------------------------------------------------------

    def _watch_timeouts(self) -> None:
        """While something is open, look every now and then whether it takes too long (TX-70)."""
        if _TIMEOUTS not in self.deadlines:
            interval_ms = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms
            self.deadlines.set(_TIMEOUTS, self.moment.now_ms + interval_ms, self._sweep_timeouts)

    def _sweep_timeouts(self) -> TransactionDecision:
        late = [id_ for id_ in self._ongoing if self._timed_out(id_) is not None]

        def plan() -> None:
            for transactional_id in late:
                abort = partial(self._abort_timed_out, transactional_id)
                self.deadlines.set(("abort", transactional_id), self.moment.now_ms, abort)
            if self._ongoing:
                self._watch_timeouts()

        return Decision(change=plan)

    def _abort_timed_out(self, transactional_id: str) -> TransactionDecision | None:
        metadata = self._timed_out(transactional_id)
        if metadata is None:
            return None
        return self._prepared(transactional_id, self._fenced(metadata), None)

    def _timed_out(self, transactional_id: str) -> TransactionMetadata | None:
        metadata = self.transactions.get(transactional_id)
        if metadata is not None and metadata.is_timed_out(self.moment.wall_ms):
            return metadata
        return None

    def _watch_expiry(self) -> None:
        interval_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._plan_expiry(interval_ms, lambda: self._sweep_expired(list(self.transactions)))

    def _plan_expiry(self, delay_ms: int, sweep: Callable[[], TransactionDecision]) -> None:
        self.deadlines.set(_EXPIRY, self.moment.now_ms + delay_ms, sweep)

    def _sweep_expired(self, ids: Sequence[str]) -> TransactionDecision:
        """Forget those of these ids that nobody used for long (TX-72). A long list is looked at in
        several steps, each of which goes on where the one before has ended."""
        looked_at, is_whole = one_step(map(self._expired, ids), _characters)
        tombstones = [record for record in looked_at if record is not None]
        if is_whole:
            return Decision(tombstones, change=self._watch_expiry)
        again = partial(self._sweep_expired, ids[len(looked_at) :])
        return Decision(tombstones, change=partial(self._plan_expiry, SWEEP_STEP_MS, again))

    def _expired(self, transactional_id: str) -> TransactionRecord | None:
        before_ms = self.moment.wall_ms - self._config.transactional_id_expiration_ms
        metadata = self.transactions.get(transactional_id)
        if metadata is None or not metadata.is_settled or metadata.last_update_ms > before_ms:
            return None
        return TransactionRecord(transactional_id, None)

    # -- looking -----------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionDescription:
        """TX-48. KafkaError TRANSACTIONAL_ID_NOT_FOUND."""
        metadata = self.transactions.get(transactional_id)
        if metadata is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        topics: dict[str, list[int]] = {}
        for name, index in sorted(metadata.partitions):
            topics.setdefault(name, []).append(index)
        return TransactionDescription(
            error_code=_OK,
            transactional_id=transactional_id,
            transaction_state=metadata.state.wire_name,
            transaction_timeout_ms=metadata.timeout_ms,
            transaction_start_time_ms=metadata.start_ms,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            topics=[
                TransactionDescription.Topic(topic=name, partitions=indexes)
                for name, indexes in topics.items()
            ],
        )

    def list_transactions(
        self, is_wanted: Callable[[str, TransactionMetadata, int], bool]
    ) -> list[ListedTransaction]:
        """TX-49; `is_wanted` is told an id, what is known of it, and the wall clock."""
        now_ms = self.moment.wall_ms
        return [
            ListedTransaction(
                transactional_id=transactional_id,
                producer_id=metadata.producer_id,
                transaction_state=metadata.state.wire_name,
            )
            for transactional_id, metadata in self.transactions.items()
            if is_wanted(transactional_id, metadata, now_ms)
        ]


def _characters(record: TransactionRecord | None) -> int:
    return 0 if record is None else len(record.transactional_id)


def _check_producer(metadata: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
    if metadata.producer_id != producer.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if metadata.producer_epoch != producer.epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)


def _is_done(metadata: TransactionMetadata, producer: ProducerIdAndEpoch, is_commit: bool) -> bool:
    """EndTxn of a producer below version 2: whether it repeats what was done, False if there is a
    transaction to end. The epoch stays, so only the state tells.
    """
    _check_producer(metadata, producer)
    if metadata.is_prepared:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if metadata.state is TransactionState.ONGOING:
        return False
    if metadata.state is not _outcome(is_commit):
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    return True


def _is_done_by_epoch(
    metadata: TransactionMetadata, producer: ProducerIdAndEpoch, is_commit: bool
) -> bool:
    """EndTxn of a version 2 producer: whether it repeats what was done, False if there is something
    to end, which for an abort may be nothing. Each end has its epoch, so the epoch tells.
    """
    if metadata.is_prepared:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if _has_ended(metadata, producer):
        if metadata.state is not _outcome(is_commit):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        return True
    _check_producer(metadata, producer)
    if is_commit and metadata.is_settled:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    return False


def _has_ended(metadata: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether the last transaction is over and this producer ended it, or we did so for it: one
    epoch ago, or with the last epoch of the producer id before this one.

    Only an end of version 2 moves the epoch. After another one, who is an epoch behind was taken
    over from; Kafka 4.3.1 does not look, and tells it who its successor is.
    """
    if metadata.state not in _COMPLETE or metadata.client_version < BUMPS_EPOCHS:
        return False
    if metadata.producer_id == producer.producer_id:
        return metadata.producer_epoch == producer.epoch + 1
    return producer == ProducerIdAndEpoch(metadata.previous_producer_id, EPOCH_MAX - 1)


def _outcome(is_commit: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT


def _ended(metadata: TransactionMetadata, client_version: int) -> EndTxnResponse:
    """What the producer calls itself from now on, which only version 2 tells."""
    if client_version < BUMPS_EPOCHS:
        return EndTxnResponse(error_code=_OK)
    return EndTxnResponse(
        error_code=_OK, producer_id=metadata.producer_id, producer_epoch=metadata.producer_epoch
    )
