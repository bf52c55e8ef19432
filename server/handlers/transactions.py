"""InitProducerId and DescribeProducers; the transaction APIs themselves come later.

An idempotent producer needs an id that no other producer ever had. Ids come from the controller in
blocks of 1,000 (AllocateProducerIds), whose ends are in the metadata log, so none is given twice,
not even after a crash: what is left of a block is forgotten.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from replication.controller.context import ControllerContext
from replication.metadata.topic_names import absent_topic_error
from wire.errors import ErrorCode, KafkaError
from wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.handlers.edges import TransactionsBroker
    from server.network.request_channel import RequestContext

_NO_ID = -1
_PREFETCH_LEFT = 100
"""The next block is asked for when so many ids are left (Kafka: 10% of a block)."""


# ---- InitProducerId


def init_producer_id(
    ctx: RequestContext[TransactionsBroker], request: InitProducerIdRequest
) -> None:
    """Give an idempotent producer its id.

    Behaviour: any broker serves it. A producer that tells its id gets a new one, not another
               epoch: without a transactional id the broker keeps nothing to bump (Kafka does the
               same, TransactionCoordinator.handleInitProducerId).
    Versions:  3 tells the current id and epoch, for recovery. 4 knows PRODUCER_FENCED.
    Gaps:      a transactional id is refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, the only
               code that every client takes as final (FindCoordinator does the same).
    """
    if request.transactional_id is not None:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "this broker does not serve transactions yet",
        )
    if (request.producer_id == _NO_ID) != (request.producer_epoch == _NO_ID):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "producer id and epoch belong together")

    def answer(producer_id: int | KafkaError) -> None:
        if isinstance(producer_id, KafkaError):
            ctx.respond_error(request, producer_id.code)
        else:
            ctx.respond(
                InitProducerIdResponse(error_code=0, producer_id=producer_id, producer_epoch=0)
            )

    _producer_ids(ctx.broker).take(answer)


_creating = threading.Lock()


def _producer_ids(broker: TransactionsBroker) -> ProducerIds:
    """The broker's producer ids; made when the first producer asks."""
    ids: ProducerIds | None = getattr(broker, "producer_ids", None)
    if ids is None:
        with _creating:
            ids = getattr(broker, "producer_ids", None)
            if ids is None:
                ids = broker.producer_ids = ProducerIds(broker)
    return ids


class ProducerIds:
    """Deals out producer ids from blocks of the controller's (Kafka's RPCProducerIdManager).

    `take` answers at once while a block lasts; the next one is asked for before it is needed.
    A failed allocation answers COORDINATOR_LOAD_IN_PROGRESS, which every client retries.
    Lock: `_lock` around the block and who waits; held while nothing is called.
    """

    def __init__(self, broker: TransactionsBroker) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._next = 0
        self._left = 0
        self._blocks: deque[tuple[int, int]] = deque()
        self._is_asking = False
        self._waiting: deque[Callable[[int | KafkaError], None]] = deque()

    def take(self, answer: Callable[[int | KafkaError], None]) -> None:
        """Call `answer` with a fresh id: now, or when the controller gave a block."""
        with self._lock:
            producer_id = self._take_one()
            if producer_id is None:
                self._waiting.append(answer)
            ask = not self._is_asking and self._left <= _PREFETCH_LEFT and not self._blocks
            self._is_asking |= ask
        if producer_id is not None:
            answer(producer_id)
        if ask:
            self._ask()

    def _take_one(self) -> int | None:
        if not self._left:
            if not self._blocks:
                return None
            self._next, self._left = self._blocks.popleft()
        producer_id = self._next
        self._next += 1
        self._left -= 1
        return producer_id

    def _ask(self) -> None:
        from wire.messages.quorum import AllocateProducerIdsRequest

        broker = self._broker
        registration = broker.metadata.brokers.get(broker.node_id)
        broker.controller.submit(
            AllocateProducerIdsRequest(
                broker_id=broker.node_id,
                broker_epoch=-1 if registration is None else registration.broker_epoch,
            ),
            self._given,
            context=ControllerContext(),
        )

    def _given(self, response: Any) -> None:
        """The controller answered: serve who waits, or tell them to try again."""
        answers: list[tuple[Callable[[int | KafkaError], None], int | KafkaError]] = []
        with self._lock:
            self._is_asking = False
            failed = isinstance(response, KafkaError) or response.error_code
            if not failed:
                self._blocks.append((response.producer_id_start, response.producer_id_len))
            while self._waiting:
                producer_id = self._take_one()
                if producer_id is None and not failed:
                    break
                waiting = self._waiting.popleft()
                refusal = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                answers.append((waiting, refusal if producer_id is None else producer_id))
            ask_again = bool(self._waiting)
            self._is_asking |= ask_again
        for answer, value in answers:
            answer(value)
        if ask_again:
            self._ask()


# ---- DescribeProducers


def describe_producers(
    ctx: RequestContext[TransactionsBroker], request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Show the idempotent producers that partitions remember.

    Behaviour: partitions fail alone.
    Versions:  all alike.
    Gaps:      no transactions, so coordinator epoch and start offset are those of old logs.
    """
    topics = []
    for topic in request.topics:
        partitions = [_described(ctx, topic.name, index) for index in topic.partition_indexes]
        topics.append(DescribeProducersResponse.Topic(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


def _described(
    ctx: RequestContext[TransactionsBroker], name: str, index: int
) -> DescribeProducersResponse.Topic.Partition:
    make = DescribeProducersResponse.Topic.Partition
    try:
        producers = ctx.broker.replica_manager.active_producers((name, index))
    except KafkaError as failed:
        is_there = failed.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        error = failed if is_there else absent_topic_error(name)
        return make(
            partition_index=index,
            error_code=error.code,
            error_message=error.detail or None,
            active_producers=[],
        )
    return make(
        partition_index=index,
        error_code=0,
        active_producers=[
            make.Producer(
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.current_txn_first_offset,
            )
            for entry in producers
        ],
    )
