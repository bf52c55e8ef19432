"""Asking the coordinators of transactions about partitions (Kafka: AddPartitionsToTxnManager).

Why: the leader of a partition must know, before the first batch of a transaction, that the
transaction's coordinator counts the partition in, or ask for that (KIP-890). Many producers ask at
once, and few brokers coordinate them: each of these has one AddPartitionsToTxn under way, with what
waited for it, up to `PARTITIONS_MAX`. The node itself is asked without a socket, and without a
queue.

A transactional id waits once in a queue (TX-54). Asked again meanwhile, by a newer producer: the
older one is fenced; by the same: the older question gets NETWORK_EXCEPTION, for its client has
given it up and asks again; by an older one: it is fenced itself. Epochs say who is newer of one
producer id only: with another one the older question is to be asked again, and its coordinator
tells (Kafka fences by the epoch alone, and so the owner of a fresh id, which begins at 0).

Threads: none of its own; any thread may call. `_lock` guards the queues and is never held while
something is called.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from replication.metadata.topic_names import TRANSACTION_STATE_TOPIC
from replication.replicas.transaction_verification import (
    TransactionalProducer,
    TransactionOperation,
)
from server.peers.broker_requests import PARTITIONS_MAX
from server.peers.call import PeerError
from wire.errors import ErrorCode
from wire.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage
    from wire.schema import Request

logger = logging.getLogger(__name__)

CHANNEL = "add-partitions-to-txn"
"""The connection's name, which goes on the wire as client id."""

_Key = tuple[str, int]
_OnComplete = Callable[[dict[_Key, int]], None]
_Transaction = AddPartitionsToTxnRequest.Transaction
_VERSION = AddPartitionsToTxnRequest.versions[1]


class Coordinator(Protocol):
    """The node's own (`server.coordinator.transactions.coordinator.TransactionCoordinator`)."""

    @property
    def wait_ms(self) -> int: ...

    def partition_for(self, transactional_id: str) -> int: ...

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[Any],
        request_version: int,
        on_complete: Callable[[int], None],
        wait_ms: int,
    ) -> None: ...

    def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[Any],
        on_complete: Callable[[Mapping[Any, int]], None],
    ) -> None: ...


class Brokers(Protocol):
    """Requests to other brokers by id (`server.peers.broker_requests.BrokerRequests`)."""

    def send(
        self,
        broker_id: int,
        request: Request,
        on_complete: Callable[[Any], None],
        *,
        timeout_ms: int,
        channel: str,
    ) -> None: ...


class _Question(NamedTuple):
    """One transaction that is asked about, and who wants to know."""

    producer: TransactionalProducer
    partitions: Collection[_Key]
    operation: TransactionOperation
    on_complete: _OnComplete

    def fail(self, code: ErrorCode) -> None:
        """Tell that none of the partitions may be written to."""
        self.on_complete(dict.fromkeys(self.partitions, int(code)))


_Batch = dict[str, _Question]
"""By transactional id."""


class _Node:
    """One coordinating broker: what waits for it, and whether a request is under way to it."""

    __slots__ = ("is_busy", "waiting")

    def __init__(self) -> None:
        self.waiting: _Batch = {}
        self.is_busy = False


class AddPartitionsToTxnManager:
    """A `replication.replicas.transaction_verification.Verifier`; one per broker."""

    def __init__(
        self,
        node_id: int,
        metadata: Callable[[], MetadataImage],
        own: Coordinator,
        brokers: Brokers,
        request_timeout_ms: int,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._own = own
        self._brokers = brokers
        self._request_timeout_ms = request_timeout_ms
        self._lock = threading.Lock()
        self._nodes: defaultdict[int, _Node] = defaultdict(_Node)

    def verify(
        self,
        producer: TransactionalProducer,
        partitions: Collection[_Key],
        operation: TransactionOperation,
        on_complete: _OnComplete,
    ) -> None:
        """See Verifier. COORDINATOR_NOT_AVAILABLE if nobody coordinates the id now,
        NETWORK_EXCEPTION if who does was not reached."""
        question = _Question(producer, partitions, operation, on_complete)
        coordinator = self._coordinator_of(producer.transactional_id)
        if coordinator is None:
            question.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif coordinator == self._node_id:
            self._ask_own(question)
        else:
            self._queue(coordinator, question)

    def _coordinator_of(self, transactional_id: str) -> int | None:
        """The broker that leads the id's partition of __transaction_state, if it is alive."""
        image = self._metadata()
        index = self._own.partition_for(transactional_id)
        registration = image.partition(TRANSACTION_STATE_TOPIC, index)
        if registration is None:
            return None
        broker = image.brokers.get(registration.leader)
        return None if broker is None or broker.fenced else registration.leader

    # -- the node itself

    def _ask_own(self, question: _Question) -> None:
        partitions = question.partitions
        if question.operation is TransactionOperation.ADD:
            self._own.add_partitions(
                *question.producer,
                partitions,
                _VERSION,
                lambda code: _answer(question, dict.fromkeys(partitions, code)),
                self._own.wait_ms,
            )
        else:
            self._own.verify_partitions(*question.producer, partitions, partial(_answer, question))

    # -- others

    def _queue(self, broker_id: int, question: _Question) -> None:
        transactional_id = question.producer.transactional_id
        refused: tuple[_Question, ErrorCode] | None = None
        with self._lock:
            waiting = self._nodes[broker_id].waiting
            known = waiting.get(transactional_id)
            if known is not None:
                refused = _refused_of(known, question)
            if refused is None or refused[0] is known:
                waiting[transactional_id] = question
        if refused is not None:
            refused[0].fail(refused[1])
        self._pump(broker_id)

    def _pump(self, broker_id: int) -> None:
        """Send what waits for a broker, unless a request is under way: its end comes here again."""
        with self._lock:
            node = self._nodes[broker_id]
            if node.is_busy or not node.waiting:
                return
            batch = _take(node.waiting)
            node.is_busy = True
        self._brokers.send(
            broker_id,
            AddPartitionsToTxnRequest(transactions=[_transaction(q) for q in batch.values()]),
            partial(self._answered, broker_id, batch),
            timeout_ms=self._request_timeout_ms,
            channel=CHANNEL,
        )

    def _answered(
        self, broker_id: int, batch: _Batch, answer: AddPartitionsToTxnResponse | PeerError
    ) -> None:
        with self._lock:
            self._nodes[broker_id].is_busy = False
        for question, codes in _told(broker_id, batch, answer):
            try:
                _answer(question, codes)
            except Exception:
                logger.exception("going on after a verification failed producer=%s", question[0])
        self._pump(broker_id)


def _take(waiting: _Batch) -> _Batch:
    """The questions that have waited longest, as many as go into one request; one that is too large
    for any goes alone."""
    batch: _Batch = {}
    count = 0
    for transactional_id, question in list(waiting.items()):
        count += len(question.partitions)
        if batch and count > PARTITIONS_MAX:
            break
        batch[transactional_id] = waiting.pop(transactional_id)
    return batch


def _refused_of(known: _Question, new: _Question) -> tuple[_Question, ErrorCode]:
    """Which of two questions about one transactional id is not asked, and what it is told."""
    known_epoch, new_epoch = known.producer.producer_epoch, new.producer.producer_epoch
    if known.producer.producer_id != new.producer.producer_id or new_epoch == known_epoch:
        return known, ErrorCode.NETWORK_EXCEPTION
    if new_epoch < known_epoch:
        return new, ErrorCode.INVALID_PRODUCER_EPOCH
    return known, ErrorCode.INVALID_PRODUCER_EPOCH


def _transaction(question: _Question) -> _Transaction:
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for topic, index in question.partitions:
        by_topic[topic].append(index)
    transactional_id, producer_id, producer_epoch = question.producer
    return _Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        verify_only=question.operation is not TransactionOperation.ADD,
        topics=[_Transaction.Topic(name=name, partitions=of) for name, of in by_topic.items()],
    )


def _told(
    broker_id: int, batch: _Batch, answer: AddPartitionsToTxnResponse | PeerError
) -> Iterable[tuple[_Question, Mapping[_Key, int]]]:
    """Each question with the codes of its partitions."""
    if isinstance(answer, PeerError):
        logger.warning("transactions were not verified broker=%s reason=%s", broker_id, answer)
        failure = ErrorCode.NETWORK_EXCEPTION
    elif not answer.error_code:
        codes = _codes(answer)
        unknown = int(ErrorCode.NETWORK_EXCEPTION)
        for transactional_id, question in batch.items():
            told = codes.get(transactional_id, {})
            yield question, {key: told.get(key, unknown) for key in question.partitions}
        return
    else:
        failure = ErrorCode(answer.error_code)
        logger.error("transactions were not verified broker=%s error=%s", broker_id, failure.name)
        if failure == ErrorCode.UNSUPPORTED_VERSION:  # a broker from before there was verification
            failure = ErrorCode.NONE
        elif failure == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:  # a matter between brokers
            failure = ErrorCode.INVALID_TXN_STATE
    for question in batch.values():
        yield question, dict.fromkeys(question.partitions, int(failure))


def _codes(answer: AddPartitionsToTxnResponse) -> dict[str, dict[_Key, int]]:
    return {
        transaction.transactional_id: {
            (topic.name, partition.partition_index): partition.partition_error_code
            for topic in transaction.topic_results
            for partition in topic.results_by_partition
        }
        for transaction in answer.results_by_transaction
    }


def _answer(question: _Question, codes: Mapping[_Key, int]) -> None:
    """Tell the codes that are errors, as clients of Produce and TxnOffsetCommit take them."""
    errors = {}
    for key, code in codes.items():
        if code == ErrorCode.PRODUCER_FENCED:
            errors[key] = int(ErrorCode.INVALID_PRODUCER_EPOCH)
        elif (
            code == ErrorCode.TRANSACTION_ABORTABLE
            and question.operation is TransactionOperation.VERIFY_OLD
        ):
            errors[key] = int(ErrorCode.INVALID_TXN_STATE)
        elif code:
            errors[key] = code
    question.on_complete(errors)
