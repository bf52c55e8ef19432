"""Producer ids and transactions."""

from __future__ import annotations

from wire.schema import Array, Bool, Int8, Int16, Int32, Int64, Request, Response, String, Struct

BATCHED_ADD_VERSION = 4
"""AddPartitionsToTxn from here on is from brokers, and of many transactions."""


class InitProducerIdRequest(Request, key=22, versions=(0, 6), flexible=2, unstable=True):
    """Get a producer id and epoch; fence older producers of a transactional id."""

    transactional_id: str | None = String(nullable=0)
    transaction_timeout_ms: int = Int32()
    producer_id: int = Int64(since=3, default=-1)
    producer_epoch: int = Int16(since=3, default=-1)
    enable2_pc: bool = Bool(since=6, default=False)
    keep_prepared_txn: bool = Bool(since=6, default=False)


class InitProducerIdResponse(Response, to=InitProducerIdRequest):
    """The producer id and epoch to use from now on."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    producer_id: int = Int64(default=-1)
    producer_epoch: int = Int16()
    ongoing_txn_producer_id: int = Int64(since=6, default=-1)
    ongoing_txn_producer_epoch: int = Int16(since=6, default=-1)


class AddPartitionsToTxnRequest(Request, key=24, versions=(0, 5), flexible=3):
    """Add partitions to a transaction, or verify that they are part of it."""

    class Transaction(Struct):
        transactional_id: str = String()
        producer_id: int = Int64()
        producer_epoch: int = Int16()
        verify_only: bool = Bool()

        class Topic(Struct):
            name: str = String()
            partitions: list[int] = Array(Int32)

        topics: list[Topic] = Array(Topic)

    transactions: list[Transaction] = Array(Transaction, since=4, default=())
    v3_and_below_transactional_id: str = String(until=3, default="")
    v3_and_below_producer_id: int = Int64(until=3, default=0)
    v3_and_below_producer_epoch: int = Int16(until=3, default=0)

    class LegacyTopic(Struct):
        name: str = String()
        partitions: list[int] = Array(Int32)

    v3_and_below_topics: list[LegacyTopic] = Array(LegacyTopic, until=3, default=())


class AddPartitionsToTxnResponse(Response, to=AddPartitionsToTxnRequest):
    """Whether each partition belongs to the transaction."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16(since=4, default=0)

    class Transaction(Struct):
        transactional_id: str = String()

        class Topic(Struct):
            name: str = String()

            class Partition(Struct):
                partition_index: int = Int32()
                partition_error_code: int = Int16()

            results_by_partition: list[Partition] = Array(Partition)

        topic_results: list[Topic] = Array(Topic)

    results_by_transaction: list[Transaction] = Array(Transaction, since=4, default=())

    class LegacyTopic(Struct):
        name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            partition_error_code: int = Int16()

        results_by_partition: list[Partition] = Array(Partition)

    results_by_topic_v3_and_below: list[LegacyTopic] = Array(LegacyTopic, until=3, default=())


class AddOffsetsToTxnRequest(Request, key=25, versions=(0, 4), flexible=3):
    """Add a group's offsets partition to a transaction."""

    transactional_id: str = String()
    producer_id: int = Int64()
    producer_epoch: int = Int16()
    group_id: str = String()


class AddOffsetsToTxnResponse(Response, to=AddOffsetsToTxnRequest):
    """Whether it was added."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()


class TxnOffsetCommitRequest(Request, key=28, versions=(0, 5), flexible=3):
    """Store a group's positions as part of a transaction."""

    transactional_id: str = String()
    group_id: str = String()
    producer_id: int = Int64()
    producer_epoch: int = Int16()
    generation_id: int = Int32(since=3, default=-1)
    member_id: str = String(since=3, default="")
    group_instance_id: str | None = String(since=3, nullable=3, default=None)

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            committed_offset: int = Int64()
            committed_leader_epoch: int = Int32(since=2, default=-1)
            committed_metadata: str | None = String(nullable=0)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class TxnOffsetCommitResponse(Response, to=TxnOffsetCommitRequest):
    """Whether each position was stored."""

    throttle_time_ms: int = Int32(default=0)

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class EndTxnRequest(Request, key=26, versions=(0, 5), flexible=3):
    """Commit or abort a transaction."""

    transactional_id: str = String()
    producer_id: int = Int64()
    producer_epoch: int = Int16()
    committed: bool = Bool()


class EndTxnResponse(Response, to=EndTxnRequest):
    """The outcome; since version 5 also the producer epoch of the next transaction."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    producer_id: int = Int64(since=5, default=-1)
    producer_epoch: int = Int16(since=5, default=-1)


class WriteTxnMarkersRequest(Request, key=27, versions=(1, 2), flexible=1):
    """Write commit or abort markers into partitions; sent by transaction coordinators."""

    class Marker(Struct):
        producer_id: int = Int64()
        producer_epoch: int = Int16()
        transaction_result: bool = Bool()

        class Topic(Struct):
            name: str = String()
            partition_indexes: list[int] = Array(Int32)

        topics: list[Topic] = Array(Topic)
        coordinator_epoch: int = Int32()
        transaction_version: int = Int8(since=2, default=0)

    markers: list[Marker] = Array(Marker)


class WriteTxnMarkersResponse(Response, to=WriteTxnMarkersRequest):
    """Whether each marker was written."""

    class Marker(Struct):
        producer_id: int = Int64()

        class Topic(Struct):
            name: str = String()

            class Partition(Struct):
                partition_index: int = Int32()
                error_code: int = Int16()

            partitions: list[Partition] = Array(Partition)

        topics: list[Topic] = Array(Topic)

    markers: list[Marker] = Array(Marker)


class DescribeTransactionsRequest(Request, key=65, versions=(0, 0), flexible=0):
    """Show transactions by transactional id."""

    transactional_ids: list[str] = Array(String)


class DescribeTransactionsResponse(Response, to=DescribeTransactionsRequest):
    """State, producer and partitions of each transaction."""

    throttle_time_ms: int = Int32(default=0)

    class Transaction(Struct):
        error_code: int = Int16()
        transactional_id: str = String()
        transaction_state: str = String()
        transaction_timeout_ms: int = Int32()
        transaction_start_time_ms: int = Int64()
        producer_id: int = Int64()
        producer_epoch: int = Int16()

        class Topic(Struct):
            topic: str = String()
            partitions: list[int] = Array(Int32)

        topics: list[Topic] = Array(Topic)

    transaction_states: list[Transaction] = Array(Transaction)


class ListTransactionsRequest(Request, key=66, versions=(0, 2), flexible=0):
    """List the transactions this broker coordinates."""

    state_filters: list[str] = Array(String)
    producer_id_filters: list[int] = Array(Int64)
    duration_filter: int = Int64(since=1, default=-1)
    transactional_id_pattern: str | None = String(since=2, nullable=2, default=None)


class ListTransactionsResponse(Response, to=ListTransactionsRequest):
    """Transactional id, producer id and state of each transaction."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    unknown_state_filters: list[str] = Array(String)

    class Transaction(Struct):
        transactional_id: str = String()
        producer_id: int = Int64()
        transaction_state: str = String()

    transaction_states: list[Transaction] = Array(Transaction)


class DescribeProducersRequest(Request, key=61, versions=(0, 0), flexible=0):
    """List the producers that are active on partitions."""

    class Topic(Struct):
        name: str = String()
        partition_indexes: list[int] = Array(Int32)

    topics: list[Topic] = Array(Topic)


class DescribeProducersResponse(Response, to=DescribeProducersRequest):
    """Producer ids, epochs and sequences by partition."""

    throttle_time_ms: int = Int32(default=0)

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()
            error_message: str | None = String(nullable=0, default=None)

            class Producer(Struct):
                producer_id: int = Int64()
                producer_epoch: int = Int32()
                last_sequence: int = Int32(default=-1)
                last_timestamp: int = Int64(default=-1)
                coordinator_epoch: int = Int32()
                current_txn_start_offset: int = Int64(default=-1)

            active_producers: list[Producer] = Array(Producer)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)
