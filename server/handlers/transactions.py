"""InitProducerId, what clients ask of transactions, and what tools want to see of them.

What an older client does not know is told to it in the words of its time: PRODUCER_FENCED came
late, and was INVALID_PRODUCER_EPOCH before. AddPartitionsToTxn has two sorts of callers: clients up
to version 3, one transaction at a time, and brokers from version 4 on, for many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from replication.metadata.topic_names import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    absent_topic_error,
)
from server.coordinator.gather import Gather
from wire.errors import ErrorCode, KafkaError
from wire.messages.transactions import (
    BATCHED_ADD_VERSION,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from wire.primitives import TopicPartition

if TYPE_CHECKING:
    from server.handlers.edges import TransactionsBroker
    from server.network.request_context import RequestContext

_INIT_KNOWS_FENCED = 4
_OTHERS_KNOW_FENCED = 2
_NOT_ATTEMPTED = int(ErrorCode.OPERATION_NOT_ATTEMPTED)


def _known_code(code: int, version: int, knows_fenced_from: int) -> int:
    """The code as a client of this version knows it."""
    if code == ErrorCode.PRODUCER_FENCED and version < knows_fenced_from:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return code


def _answer(
    ctx: RequestContext[TransactionsBroker], request: Any, knows_fenced_from: int, result: object
) -> None:
    """A response, or an error with the response's other fields at their defaults."""
    if isinstance(result, KafkaError):
        code = _known_code(result.code, ctx.api_version, knows_fenced_from)
        ctx.respond_error(request, code, result.detail or None)
    else:
        ctx.respond(cast("Any", result))


# ---- producers


def init_producer_id(
    ctx: RequestContext[TransactionsBroker], request: InitProducerIdRequest
) -> None:
    """Give a producer its id and epoch.

    Behaviour: with a transactional id, at its coordinator: fences who had the id, aborts what it
               left open (CONCURRENT_TRANSACTIONS until that is done). Without, any broker serves
               it; a producer that tells its id gets a new one, not another epoch: the broker keeps
               nothing to bump (Kafka does the same, TransactionCoordinator.handleInitProducerId).
    Versions:  3 tells the current id and epoch, for recovery. 4 knows PRODUCER_FENCED.
    Gaps:      -
    """
    answer = partial(_answer, ctx, request, _INIT_KNOWS_FENCED)
    ctx.broker.transaction_coordinator.init_producer_id(request, answer)


# ---- partitions and offsets of a transaction


def add_partitions_to_txn(
    ctx: RequestContext[TransactionsBroker], request: AddPartitionsToTxnRequest
) -> None:
    """Make partitions part of transactions, or say whether they are.

    Behaviour: a partition that does not exist, or an internal topic a client names, and nothing is
               added: the others are OPERATION_NOT_ATTEMPTED. Waits a moment for the end of the
               transaction before, where no other transaction's answer waits with it.
    Versions:  0-3 from clients. 2 knows PRODUCER_FENCED. 4 from brokers, many transactions, verify
               only; says that the producer has an epoch for each transaction. 5 the same.
    Gaps:      -
    """
    coordinator = ctx.broker.transaction_coordinator
    if ctx.api_version >= BATCHED_ADD_VERSION:
        transactions = list(request.transactions)
        wait_ms = coordinator.peer_wait_ms if len(transactions) == 1 else 0
    else:
        transactions, wait_ms = [_only_transaction(request)], coordinator.wait_ms

    def answer(results: list[AddPartitionsToTxnResponse.Transaction]) -> None:
        if ctx.api_version >= BATCHED_ADD_VERSION:
            ctx.respond(AddPartitionsToTxnResponse(results_by_transaction=results))
        else:
            topics = cast("Any", results[0].topic_results)
            ctx.respond(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics))

    gather = Gather(len(transactions), answer)
    for i, transaction in enumerate(transactions):
        put = partial(_put_results, gather, i, transaction.transactional_id)
        _add(ctx, transaction, wait_ms, put)


def _only_transaction(
    request: AddPartitionsToTxnRequest,
) -> AddPartitionsToTxnRequest.Transaction:
    return AddPartitionsToTxnRequest.Transaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        verify_only=False,
        topics=cast("Any", request.v3_and_below_topics),
    )


def _add(
    ctx: RequestContext[TransactionsBroker],
    transaction: AddPartitionsToTxnRequest.Transaction,
    wait_ms: int,
    on_complete: Callable[[Mapping[TopicPartition, int]], None],
) -> None:
    """Add or verify one transaction's partitions; an error code for each."""
    partitions = [
        TopicPartition(topic.name, index)
        for topic in transaction.topics
        for index in topic.partitions
    ]
    refused = _refused(ctx, partitions)
    if refused:
        on_complete({partition: refused.get(partition, _NOT_ATTEMPTED) for partition in partitions})
        return
    coordinator, version = ctx.broker.transaction_coordinator, ctx.api_version
    who = transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
    if transaction.verify_only:
        coordinator.verify_partitions(*who, partitions, on_complete)
        return

    def added(code: int) -> None:
        known = _known_code(code, version, _OTHERS_KNOW_FENCED)
        on_complete(dict.fromkeys(partitions, known))

    coordinator.add_partitions(*who, partitions, version, added, wait_ms)


def _refused(
    ctx: RequestContext[TransactionsBroker], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Partitions that cannot be in a transaction, and why."""
    is_client = ctx.api_version < BATCHED_ADD_VERSION
    image = ctx.broker.metadata
    refused: dict[TopicPartition, int] = {}
    for partition in partitions:
        if is_client and partition.topic in INTERNAL_TOPICS:
            refused[partition] = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif image.partition(*partition) is None:
            refused[partition] = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return refused


def _put_results(
    gather: Gather[AddPartitionsToTxnResponse.Transaction],
    i: int,
    transactional_id: str,
    codes: Mapping[TopicPartition, int],
) -> None:
    make = AddPartitionsToTxnResponse.Transaction
    topics: dict[str, list[AddPartitionsToTxnResponse.Transaction.Topic.Partition]] = {}
    for (name, index), code in codes.items():
        result = make.Topic.Partition(partition_index=index, partition_error_code=code)
        topics.setdefault(name, []).append(result)
    gather.put(
        i,
        make(
            transactional_id=transactional_id,
            topic_results=[
                make.Topic(name=name, results_by_partition=results)
                for name, results in topics.items()
            ],
        ),
    )


def add_offsets_to_txn(
    ctx: RequestContext[TransactionsBroker], request: AddOffsetsToTxnRequest
) -> None:
    """Make a group's offsets part of a transaction.

    Behaviour: adds the partition of __consumer_offsets that keeps the group. Where this broker does
               not know of that topic, it is made, or heard of, first (COORDINATOR_NOT_AVAILABLE):
               a marker for a partition that is nowhere is dropped, and so it would be if the
               transaction ended before this broker has heard of the topic. Kafka adds it all the
               same.
    Versions:  2 knows PRODUCER_FENCED. No version speaks of an epoch for each transaction: such
               producers leave this to TxnOffsetCommit.
    Gaps:      -
    """
    broker, version = ctx.broker, ctx.api_version

    def answer(code: int) -> None:
        known = _known_code(code, version, _OTHERS_KNOW_FENCED)
        ctx.respond(AddOffsetsToTxnResponse(error_code=known))

    if GROUP_METADATA_TOPIC not in broker.metadata.topics_by_name:
        unknown = ErrorCode.COORDINATOR_NOT_AVAILABLE
        broker.group_coordinator.find(request.group_id, lambda _: answer(unknown))
        return
    index = broker.group_coordinator.partition_for(request.group_id)
    broker.transaction_coordinator.add_partitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [TopicPartition(GROUP_METADATA_TOPIC, index)],
        BATCHED_ADD_VERSION - 1,
        answer,
        broker.transaction_coordinator.wait_ms,
    )


# ---- the end of a transaction


def end_txn(ctx: RequestContext[TransactionsBroker], request: EndTxnRequest) -> None:
    """Commit or abort.

    Behaviour: answered when the outcome is decided for good; the markers follow.
    Versions:  2 knows PRODUCER_FENCED. 5 gives each transaction its epoch, and answers with the
               producer id and epoch of the next one.
    Gaps:      -
    """
    answer = partial(_answer, ctx, request, _OTHERS_KNOW_FENCED)
    ctx.broker.transaction_coordinator.end_txn(request, ctx.api_version, answer)


# ---- what tools ask


def describe_transactions(
    ctx: RequestContext[TransactionsBroker], request: DescribeTransactionsRequest
) -> None:
    """Show transactions by their id; ids fail alone.

    Behaviour: an id nobody has: TRANSACTIONAL_ID_NOT_FOUND.
    Versions:  one.
    Gaps:      while markers are under way, partitions that have theirs are still listed.
    """

    def answer(found: list[DescribeTransactionsResponse.Transaction]) -> None:
        ctx.respond(DescribeTransactionsResponse(transaction_states=found))

    ctx.broker.transaction_coordinator.describe(request.transactional_ids, answer)


def list_transactions(
    ctx: RequestContext[TransactionsBroker], request: ListTransactionsRequest
) -> None:
    """Show the ids this broker coordinates.

    Behaviour: see coordinator.transactions.filters.
    Versions:  1 filters by duration. 2 by a pattern of the id.
    Gaps:      -
    """
    answer = partial(_answer, ctx, request, _OTHERS_KNOW_FENCED)
    ctx.broker.transaction_coordinator.list_transactions(request, answer)


def describe_producers(
    ctx: RequestContext[TransactionsBroker], request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Show the producers that partitions remember.

    Behaviour: partitions fail alone.
    Versions:  all alike.
    Gaps:      -
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
