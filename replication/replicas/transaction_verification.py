"""Transactional batches are appended only if their coordinator knows of them (KIP-890).

Why: a transactional batch that reaches a partition after its transaction ended would stay open for
ever, and hold up every read_committed reader. So before the first batch of a transaction on a
partition the leader asks the transaction's coordinator, and remembers that it asked: what is
written to the partition meanwhile, a marker above all, takes the guard away, and a late "yes" then
proves nothing. Once the transaction is open on the partition nobody is asked again: its own marker
is the only end.

What is asked follows from the request's version: whether the partition was added (by the client),
or to add it now (Produce 12, TxnOffsetCommit 5). The broker trusts the version, whatever the
cluster's transaction.version says.

A Produce that must ask is parked as a `VerifiedAppend`, which no thread waits for:

    asking ──answered──> appending ──> (DelayedProduce: waits for followers) ──> answered
      │  ^
      │  '--pause-- the transaction before it is still being ended; only when adding
      '──connection ended──> dropped: nothing was appended

An answer that comes while the asking call is still on the stack (the coordinator is here) is told
at once; one that comes later is handed to `resume`, for it comes on a thread that must not write
records.

Kafka: ReplicaManager.handleProduceAppend, maybeSendPartitionsToTransactionCoordinator;
UnifiedLog.maybeStartTransactionVerification.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from replication.partition.requests import AppendRequest, AppendResult
from wire.errors import ErrorCode, KafkaError, MalformedFrame
from wire.record_batch import read_header

if TYPE_CHECKING:
    from replication.replicas.purgatory import DelayedOperation
    from replication.replicas.replica_manager import ReplicaManager
    from replication.replicas.timer import Timer
    from storage.log.append_source import Verification
    from storage.log.partition_log import PartitionLog

_Key = tuple[str, int]

_CONCURRENT = int(ErrorCode.CONCURRENT_TRANSACTIONS)
_NETWORK_EXCEPTION = int(ErrorCode.NETWORK_EXCEPTION)
_NOT_VERIFIED = frozenset(
    (
        _NETWORK_EXCEPTION,
        int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
        int(ErrorCode.NOT_COORDINATOR),
        # Another partition of the request is one that the coordinator does not know yet.
        int(ErrorCode.OPERATION_NOT_ATTEMPTED),
    )
)


class TransactionOperation(Enum):
    """What a client's request asks of the coordinator, and which errors its client understands.

    Kafka: AddPartitionsToTxnManager.TransactionSupportedOperation.
    """

    VERIFY_OLD = "verify; TRANSACTION_ABORTABLE is not known to the client"
    VERIFY = "verify"
    ADD = "add"

    @classmethod
    def of_produce(cls, version: int) -> TransactionOperation:
        """By the version of a Produce request."""
        return cls.ADD if version >= 12 else cls.VERIFY if version == 11 else cls.VERIFY_OLD

    @classmethod
    def of_txn_offset_commit(cls, version: int) -> TransactionOperation:
        """By the version of a TxnOffsetCommit request."""
        return cls.ADD if version >= 5 else cls.VERIFY if version == 4 else cls.VERIFY_OLD


class TransactionalProducer(NamedTuple):
    """Who writes to a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Verifier(Protocol):
    """Whoever asks the coordinator of a transaction, wherever it is."""

    def verify(
        self,
        producer: TransactionalProducer,
        partitions: Collection[_Key],
        operation: TransactionOperation,
        on_complete: Callable[[dict[_Key, int]], None],
    ) -> None:
        """Whether these partitions are part of the transaction, or add them.

        `on_complete` gets the error codes of the partitions that are not, once, on any thread, or
        before this returns. PRODUCER_FENCED comes as INVALID_PRODUCER_EPOCH, and to VERIFY_OLD
        TRANSACTION_ABORTABLE as INVALID_TXN_STATE: that is what those clients take.
        """


class Verdict(NamedTuple):
    """What became of a verification."""

    errors: dict[_Key, int]
    """Codes of the partitions that must not be written to."""
    guards: dict[_Key, Verification]
    """What the append must bring; nothing for a partition where the transaction is open."""


@dataclass(frozen=True, slots=True)
class VerificationConfig:
    """How a Produce that adds its partitions waits for the transaction before it to end, in ms;
    Kafka's keys with `_` for `.`."""

    add_partitions_to_txn_retry_backoff_ms: int = 20
    add_partitions_to_txn_retry_backoff_max_ms: int = 100
    request_timeout_ms: int = 30_000

    @property
    def wait_ms_max(self) -> int:
        """After that the client is told, and asks again."""
        return min(self.add_partitions_to_txn_retry_backoff_max_ms, self.request_timeout_ms)


class TransactionVerification:
    """See the module; any thread may call."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        coordinator: Verifier,
        timer: Timer,
        now_ms: Callable[[], int],
        *,
        is_enabled: Callable[[], bool],
        resume: Callable[[Callable[[], None]], None],
        config: VerificationConfig | None = None,
    ) -> None:
        """`is_enabled`: transaction.partition.verification.enable; adding is not asked for it.
        `resume` runs a job on a thread that may write records."""
        self.resume = resume
        self.now_ms = now_ms
        self.timer = timer
        self.config = config or VerificationConfig()
        self.append = replica_manager.append_records
        self.note_refused = replica_manager.writes.note_refused
        self._partition = replica_manager.partition
        self._coordinator = coordinator
        self._is_enabled = is_enabled

    def start(
        self,
        producer: TransactionalProducer,
        sequences: Mapping[_Key, int],
        operation: TransactionOperation,
        on_complete: Callable[[Verdict], None],
    ) -> None:
        """Verify, or add, the partitions that are about to be written to.

        `sequences` tells the base sequence of each partition's batch; -1 if it has none (a
        coordinator's). `on_complete` runs once, before this returns or later as `resume` runs it,
        and may write records.
        """
        if operation is not TransactionOperation.ADD and not self._is_enabled():
            on_complete(Verdict({}, {}))
            return
        errors: dict[_Key, int] = {}
        guards: dict[_Key, Verification] = {}
        for key, sequence in sequences.items():
            try:
                guard = self._leader_log(key).start_verification(
                    producer.producer_id,
                    producer.producer_epoch,
                    sequence,
                    operation is TransactionOperation.ADD,
                )
            except KafkaError as error:
                errors[key] = int(error.code)
                continue
            if guard is not None:
                guards[key] = guard
        if not guards:
            on_complete(Verdict(errors, guards))
            return

        asking_thread: int | None = threading.get_ident()

        def answered(refused: dict[_Key, int]) -> None:
            verdict = Verdict(errors | refused, guards)
            if asking_thread == threading.get_ident():
                on_complete(verdict)
            else:
                self.resume(partial(on_complete, verdict))

        self._coordinator.verify(producer, tuple(guards), operation, answered)
        asking_thread = None  # it does something else from now on

    def _leader_log(self, key: _Key) -> PartitionLog:
        partition = self._partition(key)
        log = partition.leader_log
        if log is None:
            raise KafkaError(partition.role.not_serving)
        return log

    def append_records(
        self, request: AppendRequest, transactional_id: str, operation: TransactionOperation
    ) -> VerifiedAppend:
        """`ReplicaManager.append_records` for a request with transactional batches.

        Raises KafkaError INVALID_PRODUCER_ID_MAPPING, with nothing done, if they are not all of
        one producer. Partitions that are not part of the transaction fail alone.
        """
        producers = set()
        sequences = {}
        for key, records in request.entries:
            try:
                header = read_header(records)
            except MalformedFrame:
                continue  # the append will tell
            if header.is_transactional and header.producer_id >= 0:
                producers.add((header.producer_id, header.producer_epoch))
                sequences[key] = header.base_sequence
        if len(producers) > 1:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "transactional batches of several producers"
            )
        append = VerifiedAppend(self, request, operation)
        if producers:
            producer = TransactionalProducer(transactional_id, *producers.pop())
            append.ask(producer, sequences)
        else:
            append.go_on(Verdict({}, {}))
        return append


class VerifiedAppend:
    """A Produce with transactional batches, on its way; see the module for its states.

    To its connection it is what a `DelayedOperation` is. It keeps the records until they are
    appended.
    """

    __slots__ = (
        "_appending", "_is_dropped", "_lock", "_operation", "_request", "_started_ms",
        "_verification", "is_completed",
    )  # fmt: skip

    def __init__(
        self,
        verification: TransactionVerification,
        request: AppendRequest,
        operation: TransactionOperation,
    ) -> None:
        self.is_completed = False
        self._verification = verification
        self._operation = operation
        self._request: AppendRequest | None = request
        """None once somebody took it, to append or to drop it: only one does."""
        self._appending: DelayedOperation | None = None
        self._is_dropped = False
        self._started_ms = verification.now_ms()
        self._lock = threading.Lock()

    def ask(self, producer: TransactionalProducer, sequences: Mapping[_Key, int]) -> None:
        """Go on when the coordinator has answered."""
        if self._request is None:
            return  # the connection ended in a pause

        def answered(verdict: Verdict) -> None:
            if self._must_ask_again(verdict):
                again = partial(self.ask, producer, sequences)
                backoff_ms = self._verification.config.add_partitions_to_txn_retry_backoff_ms
                self._verification.timer.add(backoff_ms, lambda: self._verification.resume(again))
            else:
                self.go_on(verdict)

        self._verification.start(producer, sequences, self._operation, answered)

    def _must_ask_again(self, verdict: Verdict) -> bool:
        """The transaction before this one is still being ended, which takes no time as a rule:
        sooner waited for here than by the client (TX-56)."""
        return (
            self._operation is TransactionOperation.ADD
            and _CONCURRENT in verdict.errors.values()
            and self._verification.now_ms() - self._started_ms
            < self._verification.config.wait_ms_max
        )

    def go_on(self, verdict: Verdict) -> None:
        """Append what may be appended, and answer, unless the connection ended."""
        request = self._take()
        if request is None:
            return
        is_add = self._operation is TransactionOperation.ADD
        refused = [_refusal(key, verdict.errors, is_add) for key, _ in request.entries]
        entries = []
        for (key, records), why in zip(request.entries, refused, strict=True):
            if why is None:
                entries.append((key, records))
            else:
                code = ErrorCode(why.error_code)
                self._verification.note_refused(request.named(key), records, code)
        on_done = request.on_done

        def done(results: list[AppendResult]) -> None:
            self.is_completed = True
            appended = iter(results)
            on_done([next(appended) if why is None else why for why in refused])

        if not entries:
            done([])
            return
        request = request._replace(entries=entries, on_done=done, verifications=verdict.guards)
        appending = self._verification.append(request)
        with self._lock:
            self._appending = appending
            is_dropped = self._is_dropped
        if is_dropped and appending is not None:
            appending.cancel()

    def _take(self) -> AppendRequest | None:
        with self._lock:
            request, self._request = self._request, None
            return request

    def cancel(self) -> bool:
        """The connection ended: append nothing more, and answer nobody."""
        request = self._take()
        with self._lock:
            self._is_dropped = self.is_completed = True
            appending = self._appending
        return request is not None or (appending is not None and appending.cancel())

    def force_complete(self) -> bool:
        """The broker stops: answer now."""
        request = self._request
        if request is not None:
            self.go_on(Verdict({key: _NETWORK_EXCEPTION for key, _ in request.entries}, {}))
            return True
        appending = self._appending
        return appending is not None and appending.force_complete()


def _refusal(key: _Key, errors: Mapping[_Key, int], is_add: bool) -> AppendResult | None:
    """What a producer is told that understands Produce's error codes only (TX-55).

    OPERATION_NOT_ATTEMPTED is none of them, and no fault of this partition: Kafka passes it on, and
    Java's producer gives the batch up, and so the transaction.
    """
    code = errors.get(key)
    if code is None:
        return None
    if code in _NOT_VERIFIED or (code == _CONCURRENT and not is_add):
        return AppendResult(
            key,
            int(ErrorCode.NOT_ENOUGH_REPLICAS),
            error_message="the transaction could not be verified: " + ErrorCode(code).name,
        )
    message = ErrorCode(code).name
    if code == ErrorCode.INVALID_TXN_STATE:
        message = "the partition was not added to the transaction"
    return AppendResult(key, code, error_message=message)
