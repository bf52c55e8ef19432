"""Simulated transactional producers: what they ask, and what they may believe of the answers.

A `TransactionalId` is an application with one transactional id and one group, whose producers
come one after the other, and now and then before the one before has ended (a zombie). Each writes
transactions to some partitions of the topic "ledger", often with an offset of its group, and
commits or aborts them; some it leaves open for longer than their timeout, or for ever. Requests are
asked again as the clients of Kafka do, until an answer says how it goes on.

A producer speaks one of both generations: AddPartitionsToTxn first and an epoch that stays
(version 1), or Produce 12, TxnOffsetCommit 5 and EndTxn 5 with an epoch for each transaction
(version 2, KIP-890). In version 1 nothing tells a late request from one of the next transaction:
who was frozen does not serve what its client has given up.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from server.coordinator.transactions.state import EPOCH_MAX, TransactionMetadata
from testkit.clock import WALL_MS
from tests.sim.clients import coordinator_of
from tests.sim.network import Reply, encoded, serve_api
from tests.sim.world import InvariantBroken
from wire.errors import ErrorCode
from wire.messages import response_class
from wire.messages.data import ProduceRequest
from wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from wire.primitives import TopicPartition
from wire.records import Record, build_batch

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.node import SimNode

LEDGER = "ledger"
LEDGER_PARTITIONS = 3
SOURCE = TopicPartition("orders", 0)
"""Whose offsets are committed; nobody reads it for that."""
_TIMEOUT_MS = 600
_TXN_TIMEOUT_MS = 2_000
_KILLED_LAST = 0.4
"""Of producers that have a transaction open when all ends: none comes after them to end it, so that
its timeout must."""
_NONE = 0
FIRST_EPOCHS = (0, 0, EPOCH_MAX - 5)
_AGAIN = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )
)
_FATAL = frozenset(
    (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    )
)
_ABORTABLE_IN_PRODUCE = frozenset(
    (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    )
)


@contextmanager
def epochs_from(first: int) -> Iterator[None]:
    """A new transactional id begins with this epoch, so that its epochs are soon used up."""
    real: Any = TransactionMetadata.fresh

    def fresh(*given: Any) -> TransactionMetadata:
        metadata: TransactionMetadata = real(*given)
        return metadata._replace(producer_epoch=first)

    with patch.object(TransactionMetadata, "fresh", fresh):
        yield


class Fatal(Exception):
    """This producer is at its end; its application begins with a new one."""


class Abort(Exception):
    """This transaction can only be aborted."""


class Pause(NamedTuple):
    """Nothing happens for a while."""

    ms: int


class Ask(NamedTuple):
    """One request; the answer is its response, or None."""

    node_id: int
    request: Any
    version: int
    timeout_ms: int


Life = Generator[Pause | Ask, Any, Any]


class Transaction:
    """One transaction, and what is known of its end."""

    def __init__(self, producer: TxnProducer, number: int) -> None:
        self.producer = producer
        self.number = number
        """Of its transactional id; what is committed as offset."""
        self.values: dict[int, list[bytes]] = {}
        """By partition of the ledger."""
        self.has_offset = False
        self.was_to_commit = False
        """Its commit was asked for, by who was not replaced then."""
        self.told: bool | None = None
        """Committed, aborted, or not told."""

    def __repr__(self) -> str:
        return (
            f"{self.producer} #{self.number} values={self.values} offset={self.has_offset} "
            f"to commit={self.was_to_commit} told={self.told}"
        )


class TransactionalId:
    """See the module."""

    def __init__(self, cluster: SimCluster, name: str, version: int) -> None:
        self.cluster = cluster
        self.name = name
        self.group = f"group of {name}"
        self.version = version
        self.transactions: list[Transaction] = []
        self.newest: TxnProducer | None = None
        self.producers: list[TxnProducer] = []
        self.ended = {True: 0, False: 0}
        """How many were committed, and how many were aborted, as was told."""
        self.begin_producer(cluster.world.between(1, 500))

    @property
    def is_over(self) -> bool:
        return not self.cluster.is_loaded

    def initialised(self, producer: TxnProducer) -> None:
        """Whoever has the newest id and epoch is the one; answers may come in any order."""
        newest, age = self.newest, self._age
        if newest is None or age(newest) <= age(producer):
            self.newest = producer
        if newest is not None and newest is not producer:
            min(newest, producer, key=age).is_replaced = True

    def _age(self, producer: TxnProducer) -> tuple[int, int]:
        return self.cluster.check.transactions.ages[producer.producer_id], producer.epoch

    def begin_producer(self, delay_ms: int) -> None:
        """A new one; who was before is not asked."""
        if not self.is_over:
            producer = TxnProducer(self, len(self.producers) + 1)
            self.producers.append(producer)
            self.cluster.world.after(delay_ms, producer.live)

    @property
    def is_done(self) -> bool:
        """Nobody asks for anything any more."""
        return self.is_over and all(producer.is_at_its_end for producer in self.producers)

    def __repr__(self) -> str:
        return f"{self.name} v{self.version} {self.ended} newest={self.newest}"


class TxnProducer:
    """One producer process, which lives through one transaction after the other."""

    def __init__(self, owner: TransactionalId, incarnation: int) -> None:
        self.owner = owner
        self.incarnation = incarnation
        self.cluster = owner.cluster
        self.world = owner.cluster.world
        self.producer_id = self.epoch = -1
        self.is_replaced = False
        self.is_at_its_end = False
        self._sequences: dict[int, int] = {}
        self._is_sure = True
        """Of every batch it is known whether it is in the log."""
        self._life = self._all()

    def __repr__(self) -> str:
        return f"{self.owner.name}/{self.incarnation} ({self.producer_id}, {self.epoch})"

    # ---- turning

    def live(self) -> None:
        """Begin."""
        self._go_on(None)

    def _go_on(self, answer: Any) -> None:
        try:
            step = self._life.send(answer)
        except StopIteration:
            self.is_at_its_end = True
            return
        if isinstance(step, Pause):
            self.world.after(step.ms, lambda: self._go_on(None))
        else:
            self._ask(step)

    def _ask(self, ask: Ask) -> None:
        kind, version = type(ask.request), ask.version
        data = encoded(ask.request, version)
        given_up_ms = self.world.ms + ask.timeout_ms

        def serve(node: SimNode, reply: Reply) -> None:
            if self.owner.version > 1 or self.world.ms < given_up_ms:
                serve_api(node, kind, data, version, reply)

        def answered(answer: bytes | None) -> None:
            response = response_class(kind.api_key)
            self._go_on(None if answer is None else response.decode(answer, version))

        self.cluster.network.call(
            None, ask.node_id, serve, answered, ask.timeout_ms, needs_broker=True
        )

    def _until_answered(
        self,
        where: Callable[[], int | None],
        request: Any,
        version: int,
        code_of: Callable[[Any], int],
        patience: int = 1 << 30,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> Life:
        """Ask until the answer is not one to ask again; the answer, and its code. Abort if it was
        asked too often."""
        for _ in range(patience):
            node_id = where()
            if node_id is None:
                yield Pause(self.world.between(50, 200))
                continue
            answer = yield Ask(node_id, request, version, timeout_ms)
            code = None if answer is None else code_of(answer)
            if code is not None and code not in _AGAIN:
                return answer, code
            yield Pause(self.world.between(10, 60))
        raise Abort

    def _coordinator(self) -> int | None:
        return coordinator_of(self.cluster, self.owner.name, "transactions")

    def _group_coordinator(self) -> int | None:
        return coordinator_of(self.cluster, self.owner.group)

    def _unexpected(self, request: str, code: int) -> InvariantBroken:
        return InvariantBroken(f"NoUnexpectedError: {request} of {self}: {ErrorCode(code).name}")

    # ---- a life

    def _all(self) -> Life:
        try:
            yield from self._init()
            while not self.owner.is_over:
                yield from self._transaction()
                yield Pause(self.world.between(1, 100))
        except Fatal:
            if self.owner.newest is self:
                self.owner.begin_producer(self.world.between(10, 300))

    def _init(self) -> Life:
        """InitProducerId; with who it is, if it goes on (KIP-360)."""
        request = InitProducerIdRequest(
            transactional_id=self.owner.name,
            transaction_timeout_ms=_TXN_TIMEOUT_MS,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
        )
        answer, code = yield from self._until_answered(
            self._coordinator, request, 5, lambda answer: answer.error_code
        )
        if code in _FATAL and self.producer_id >= 0:
            raise Fatal
        if code:
            raise self._unexpected("InitProducerId", code)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences = {}
        self._is_sure = True
        self.owner.initialised(self)

    def _transaction(self) -> Life:
        owner, world = self.owner, self.world
        transaction = Transaction(self, len(owner.transactions) + 1)
        owner.transactions.append(transaction)
        if world.chance(0.05):
            owner.begin_producer(world.between(1, 400))
        try:
            yield from self._work(transaction)
            is_commit = world.chance(0.75)
        except Abort:
            is_commit = False
        if world.chance(0.05):
            yield Pause(_TXN_TIMEOUT_MS + 1_000)
        elif world.chance(_KILLED_LAST if owner.is_over else 0.03):
            raise Fatal  # as if it were killed
        yield from self._end(transaction, is_commit)
        if owner.version == 1 and not self._is_sure:
            yield from self._init()

    def _work(self, transaction: Transaction) -> Life:
        world = self.world
        indexes = world.random.sample(range(LEDGER_PARTITIONS), world.between(1, 3))
        if self.owner.version == 1:
            yield from self._add_partitions(indexes)
        for _ in range(world.between(1, 2)):
            for index in indexes:
                yield from self._produce(transaction, index)
            if world.chance(0.2):
                yield Pause(world.between(1, 500))
        if world.chance(0.6):
            yield from self._commit_offset(transaction)

    def _check(self, request: str, code: int, *abortable: int) -> None:
        if code in abortable or code == ErrorCode.TRANSACTION_ABORTABLE:
            raise Abort
        if code in _FATAL:
            raise Fatal
        if code:
            raise self._unexpected(request, code)

    def _add_partitions(self, indexes: list[int]) -> Life:
        topic = AddPartitionsToTxnRequest.LegacyTopic(name=LEDGER, partitions=indexes)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.owner.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )
        _, code = yield from self._until_answered(
            self._coordinator,
            request,
            3,
            lambda answer: (
                answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            ),
        )
        self._check("AddPartitionsToTxn", code)

    def _leader(self, index: int) -> int | None:
        registration = self.cluster.some_image().partition(LEDGER, index)
        return None if registration is None or registration.leader < 0 else registration.leader

    def _produce(self, transaction: Transaction, index: int) -> Life:
        world, owner = self.world, self.owner
        sequence = self._sequences.get(index, 0)
        values = [
            b"%s-%d-%d-%d" % (owner.name.encode(), transaction.number, index, sequence + n)
            for n in range(world.between(1, 3))
        ]
        self._sequences[index] = sequence + len(values)
        transaction.values.setdefault(index, []).extend(values)
        records = build_batch(
            [Record(-1, WALL_MS, None, value) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        partition = ProduceRequest.Topic.Partition(index=index, records=memoryview(records))
        request = ProduceRequest(
            transactional_id=owner.name,
            acks=-1,
            timeout_ms=_TIMEOUT_MS - 200,
            topic_data=[ProduceRequest.Topic(name=LEDGER, partition_data=[partition])],
        )
        self._is_sure = False
        # Who gives up at once may abort before the broker has begun to append.
        is_hasty = world.chance(0.2)
        _, code = yield from self._until_answered(
            lambda: self._leader(index),
            request,
            12 if owner.version > 1 else 11,
            lambda answer: answer.responses[0].partition_responses[0].error_code,
            *((1, world.between(30, 200)) if is_hasty else (world.between(3, 40), _TIMEOUT_MS)),
        )
        self._is_sure = code in (_NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        if not self._is_sure:
            self._check("Produce", code, *_ABORTABLE_IN_PRODUCE)

    def _commit_offset(self, transaction: Transaction) -> Life:
        owner = self.owner
        if owner.version == 1:
            request = AddOffsetsToTxnRequest(
                transactional_id=owner.name,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=owner.group,
            )
            _, code = yield from self._until_answered(
                self._coordinator, request, 4, lambda answer: answer.error_code
            )
            self._check("AddOffsetsToTxn", code)
        partition = TxnOffsetCommitRequest.Topic.Partition(
            partition_index=SOURCE[1], committed_offset=transaction.number, committed_metadata=""
        )
        _, code = yield from self._until_answered(
            self._group_coordinator,
            TxnOffsetCommitRequest(
                transactional_id=owner.name,
                group_id=owner.group,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                topics=[TxnOffsetCommitRequest.Topic(name=SOURCE[0], partitions=[partition])],
            ),
            5 if owner.version > 1 else 4,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )
        self._check("TxnOffsetCommit", code)
        transaction.has_offset = True

    def _end(self, transaction: Transaction, is_commit: bool) -> Life:
        owner = self.owner
        was_replaced = self.is_replaced
        transaction.was_to_commit = is_commit and not was_replaced
        request = EndTxnRequest(
            transactional_id=owner.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=is_commit,
        )
        answer, code = yield from self._until_answered(
            self._coordinator,
            request,
            5 if owner.version > 1 else 4,
            lambda answer: answer.error_code,
        )
        self._check("EndTxn", code)
        if was_replaced:
            raise InvariantBroken(f"Fencing: {self} was replaced and ended {transaction}")
        transaction.told = is_commit
        owner.ended[is_commit] += 1
        if owner.version > 1:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self._sequences = {}
