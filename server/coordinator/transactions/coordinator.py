"""The transaction coordinator: transaction APIs on top of `__transaction_state`.

Why: handlers know the wire's versions, `TransactionShard` knows transactions; this module sends
each request to the shard that owns its id, joins the answers of requests that concern many, and
carries the shards' markers to the sender and its word back.

Every method answers through `on_complete`, once, and never waits. Error codes are those of the
newest version of each API; what an older client understands is its handler's matter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from replication.metadata.topic_names import TRANSACTION_STATE_TOPIC
from server.coordinator.gather import Gather
from server.coordinator.machine import Reply, ignore
from server.coordinator.runtime import CoordinatorRuntime, InternalTopic, Surroundings
from server.coordinator.shard_log import RecordSerde, ShardLogConfig
from server.coordinator.transaction_markers import MarkerSender, TxnMarkers
from server.coordinator.transactions.config import TransactionConfig
from server.coordinator.transactions.filters import wanted_transactions
from server.coordinator.transactions.producer_ids import NoProducerId, ProducerIds
from server.coordinator.transactions.records import (
    TransactionRecord,
    decode_transaction,
    encode_transaction,
)
from server.coordinator.transactions.shard import (
    ENDED,
    ListedTransaction,
    Outside,
    TransactionDecision,
    TransactionDescription,
    TransactionShard,
)
from server.coordinator.transactions.state import (
    BUMPS_EPOCHS,
    NEVER_MS,
    ProducerIdAndEpoch,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages.transactions import (
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from wire.primitives import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

if TYPE_CHECKING:
    from replication.metadata.image import BrokerRegistration

logger = logging.getLogger(__name__)

TRANSACTION_VERSION = "transaction.version"
"""The feature that says which version of transactions clients may use (KIP-890)."""

_UNCOMPRESSED = 0
_ADD_PARTITIONS_BUMPS_FROM = 4
_END_TXN_BUMPS_FROM = 5
"""From these request versions on a producer has an epoch for each transaction."""


class TransactionCoordinator:
    """One per broker. `producer_ids` serve producers without a transactional id too."""

    def __init__(
        self, config: TransactionConfig, around: Surroundings, markers: MarkerSender
    ) -> None:
        self.producer_ids = ProducerIds(around)
        self.wait_ms = config.add_partitions_to_txn_retry_backoff_max_ms
        """How long adding partitions may wait for the end of the transaction before it."""
        self.peer_wait_ms = config.add_partitions_to_txn_retry_backoff_ms
        """The same for another broker, whose next question waits behind the answer."""
        self._config = config
        self._metadata = around.metadata
        self._markers = markers
        topic = InternalTopic(
            TRANSACTION_STATE_TOPIC,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )
        log_config = ShardLogConfig(
            config.request_timeout_ms, config.transaction_state_log_load_buffer_size, _UNCOMPRESSED
        )
        outside = Outside(
            self._transaction_version, self.producer_ids.next, self._send_markers, markers.forget
        )
        self.runtime: CoordinatorRuntime[TransactionShard, TransactionRecord] = CoordinatorRuntime(
            topic,
            around,
            RecordSerde(encode_transaction, _decode),
            log_config,
            partial(TransactionShard, config, outside),
        )

    def partition_for(self, transactional_id: str) -> int:
        """The partition of __transaction_state that keeps the id."""
        return self.runtime.partition_for(transactional_id)

    def find(
        self, transactional_id: str, on_complete: Callable[[BrokerRegistration | KafkaError], None]
    ) -> None:
        """The broker that coordinates the id; makes the topic on first use."""
        self.runtime.find(transactional_id, on_complete)

    def shutdown(self) -> None:
        """Give everything up; requests that wait are answered NOT_COORDINATOR."""
        self.runtime.shutdown()

    # -- what the shards ask -----------------------------------------------------------------

    def _transaction_version(self) -> int:
        return self._metadata().features.get(TRANSACTION_VERSION, 0)

    def _send_markers(
        self, markers: TxnMarkers, decide: Callable[[TransactionShard], TransactionDecision]
    ) -> None:
        # Where the word comes too late (led elsewhere, or loading), the loader sends them again.
        written = partial(self.runtime.write, markers.transactional_id, decide, ignore)
        if markers.partitions:
            self._markers.send(markers, written)
        else:
            written()

    # -- producers ---------------------------------------------------------------------------

    def init_producer_id(self, request: InitProducerIdRequest, on_complete: Reply) -> None:
        """An InitProducerIdResponse or a KafkaError. Without a transactional id: a fresh id."""
        transactional_id = request.transactional_id
        try:
            given = _given_producer(request)
            if transactional_id is None:
                self.producer_ids.take(partial(_fresh_producer, on_complete))
                return
            timeout_ms = self._checked_timeout(transactional_id, request)
        except KafkaError as error:
            on_complete(error)
            return
        self._write(
            transactional_id,
            lambda shard: shard.init_producer_id(transactional_id, timeout_ms, given),
            on_complete,
        )

    def _checked_timeout(self, transactional_id: str, request: InitProducerIdRequest) -> int:
        """The transaction's timeout, ms; TX-22 in its order."""
        _check_id(transactional_id)
        config = self._config
        if request.enable2_pc and not config.transaction_two_phase_commit_enable:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if request.keep_prepared_txn:  # as far as KIP-939 goes in 4.3
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        if request.enable2_pc:
            return NEVER_MS
        if not 0 < request.transaction_timeout_ms <= config.transaction_max_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        return request.transaction_timeout_ms

    def _write(
        self,
        transactional_id: str,
        decide: Callable[[TransactionShard], TransactionDecision],
        on_complete: Reply,
    ) -> None:
        """Write to the id's shard; if that takes a producer id and there is none, once there is."""

        def ask_again(producer_id: int | KafkaError) -> None:
            if isinstance(producer_id, KafkaError):
                on_complete(producer_id)
            else:
                self.producer_ids.put_back(producer_id)
                self.runtime.write(transactional_id, decide, on_complete)

        def answered(result: object) -> None:
            if isinstance(result, NoProducerId):
                self.producer_ids.take(ask_again)
            else:
                on_complete(result)

        self.runtime.write(transactional_id, decide, answered)

    # -- one transaction ---------------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        request_version: int,
        on_complete: Callable[[int], None],
        wait_ms: int = 0,
    ) -> None:
        """Make the partitions part of the id's transaction; begins one if none is open.

        `request_version` is AddPartitionsToTxn's: from 4 on the producer speaks transactions of
        version 2. `wait_ms`: how long it waits if the transaction before is still being ended.
        One error code for all partitions: 0, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
        CONCURRENT_TRANSACTIONS, or one of finding the coordinator.
        """
        if not transactional_id:
            on_complete(ErrorCode.INVALID_REQUEST)
            return
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        added = frozenset(TopicPartition(*partition) for partition in partitions)
        version = BUMPS_EPOCHS if request_version >= _ADD_PARTITIONS_BUMPS_FROM else 0

        def decide(shard: TransactionShard) -> TransactionDecision:
            return shard.add_partitions(transactional_id, producer, added, version)

        def decide_or_wait(shard: TransactionShard) -> TransactionDecision:
            return shard.wait_for_end(transactional_id, wait_ms, answered) or decide(shard)

        def answered(result: object) -> None:
            if result is ENDED:
                self.runtime.write(transactional_id, decide, answered)
            else:
                on_complete(_code(result))

        self.runtime.write(transactional_id, decide_or_wait if wait_ms else decide, answered)

    def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        on_complete: Callable[[Mapping[TopicPartition, int]], None],
    ) -> None:
        """Whether the partitions are part of the transaction: 0 or TRANSACTION_ABORTABLE for each,
        or one error for all.
        """

        def answered(result: object) -> None:
            if isinstance(result, KafkaError):
                on_complete(dict.fromkeys(partitions, int(result.code)))
            else:
                on_complete(cast("Mapping[TopicPartition, int]", result))

        if not transactional_id:
            answered(KafkaError(ErrorCode.INVALID_REQUEST))
            return
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        self.runtime.read(
            transactional_id,
            lambda shard: shard.verify_partitions(transactional_id, producer, partitions),
            answered,
        )

    def end_txn(self, request: EndTxnRequest, request_version: int, on_complete: Reply) -> None:
        """Commit or abort: an EndTxnResponse once that is decided for good, or a KafkaError."""
        transactional_id = request.transactional_id
        if not transactional_id:
            on_complete(KafkaError(ErrorCode.INVALID_REQUEST))
            return
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        version = BUMPS_EPOCHS if request_version >= _END_TXN_BUMPS_FROM else 0
        self._write(
            transactional_id,
            lambda shard: shard.end_txn(transactional_id, producer, request.committed, version),
            on_complete,
        )

    # -- many transactions -------------------------------------------------------------------

    def describe(
        self,
        transactional_ids: Sequence[str],
        on_complete: Callable[[list[TransactionDescription]], None],
    ) -> None:
        """Each id in the order asked; one that cannot be answered carries its error."""
        gather = Gather(len(transactional_ids), on_complete)
        for i, transactional_id in enumerate(transactional_ids):
            put = partial(gather.put_or, i, partial(_describe_failed, transactional_id))
            if transactional_id:
                look = partial(TransactionShard.describe, transactional_id=transactional_id)
                self.runtime.read(transactional_id, look, put)
            else:
                put(KafkaError(ErrorCode.INVALID_REQUEST))

    def list_transactions(self, request: ListTransactionsRequest, on_complete: Reply) -> None:
        """A ListTransactionsResponse of all partitions we lead; KafkaErrors of
        CoordinatorRuntime.read_all, or INVALID_REGULAR_EXPRESSION."""
        try:
            is_wanted, unknown_states = wanted_transactions(request)
        except KafkaError as error:
            on_complete(error)
            return

        def answer(found: list[ListedTransaction] | KafkaError) -> None:
            if isinstance(found, KafkaError):
                on_complete(found)
                return
            on_complete(
                ListTransactionsResponse(
                    error_code=0,
                    unknown_state_filters=unknown_states,
                    transaction_states=found,
                )
            )

        self.runtime.read_all(lambda machine: machine.list_transactions(is_wanted), answer)


def _decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    record = decode_transaction(key, value)
    if record is None:
        logger.warning(
            "unknown version of a transaction's record, it is skipped key=%s", key[:2].hex()
        )
    return record


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a transactional id cannot be empty")


def _given_producer(request: InitProducerIdRequest) -> ProducerIdAndEpoch | None:
    """Who the producer says it is (TX-21)."""
    has_id = request.producer_id != NO_PRODUCER_ID
    if has_id != (request.producer_epoch != NO_PRODUCER_EPOCH):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "producer id and epoch belong together")
    return ProducerIdAndEpoch(request.producer_id, request.producer_epoch) if has_id else None


def _fresh_producer(on_complete: Reply, producer_id: int | KafkaError) -> None:
    if isinstance(producer_id, KafkaError):
        on_complete(producer_id)
    else:
        on_complete(InitProducerIdResponse(error_code=0, producer_id=producer_id, producer_epoch=0))


def _code(result: object) -> int:
    return int(result.code) if isinstance(result, KafkaError) else cast("int", result)


def _describe_failed(transactional_id: str, error: KafkaError) -> TransactionDescription:
    return TransactionDescription(
        error_code=error.code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )
