"""The transaction coordinator: transaction APIs on top of `__transaction_state`.

Why: handlers know the wire's versions, `TransactionShard` knows transactions; this module sends
each request to the shard that owns its id, joins the answers of requests that concern many, and
carries the shards' markers to the sender and its word back.

Every method answers through `on_complete`, once, and never waits. Error codes are those of the
newest version of each API; what an older client understands is its handler's matter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from server.coordinator.machine import Reply
from server.coordinator.runtime import Surroundings
from server.coordinator.transaction_config import TransactionConfig
from server.coordinator.transaction_markers import MarkerSender
from wire.messages.transactions import (
    DescribeTransactionsResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from wire.primitives import TopicPartition

if TYPE_CHECKING:
    from replication.metadata.image import BrokerRegistration
    from wire.errors import KafkaError


class TransactionCoordinator:
    """One per broker."""

    def __init__(
        self, config: TransactionConfig, around: Surroundings, markers: MarkerSender
    ) -> None:
        self.config = config
        self._around = around
        self._markers = markers

    def partition_for(self, transactional_id: str) -> int:
        """The partition of __transaction_state that keeps the id."""
        raise NotImplementedError

    def find(
        self, transactional_id: str, on_complete: Callable[[BrokerRegistration | KafkaError], None]
    ) -> None:
        """The broker that coordinates the id; makes the topic on first use."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """Give everything up; requests that wait are answered NOT_COORDINATOR."""
        raise NotImplementedError

    def init_producer_id(self, request: InitProducerIdRequest, on_complete: Reply) -> None:
        """An InitProducerIdResponse or a KafkaError. Without a transactional id: a fresh id."""
        raise NotImplementedError

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        request_version: int,
        on_complete: Callable[[int], None],
    ) -> None:
        """Make the partitions part of the id's transaction; begins one if none is open.

        `request_version` is AddPartitionsToTxn's: from 4 on the producer speaks transactions of
        version 2. One error code for all partitions: 0, INVALID_PRODUCER_ID_MAPPING,
        PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, or one of finding the coordinator.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    def end_txn(self, request: EndTxnRequest, request_version: int, on_complete: Reply) -> None:
        """Commit or abort: an EndTxnResponse once that is decided for good, or a KafkaError."""
        raise NotImplementedError

    def describe(
        self,
        transactional_ids: Sequence[str],
        on_complete: Callable[[list[DescribeTransactionsResponse.Transaction]], None],
    ) -> None:
        """Each id in the order asked; one that cannot be answered carries its error."""
        raise NotImplementedError

    def list_transactions(self, request: ListTransactionsRequest, on_complete: Reply) -> None:
        """A ListTransactionsResponse of all partitions we lead, or a KafkaError."""
        raise NotImplementedError
