"""The way of transaction markers to their partitions (Kafka: TransactionMarkerChannelManager).

Why: a transaction touches partitions of many brokers, and many transactions end at once. So
markers are gathered by the broker that leads their partition, and each broker has one
WriteTxnMarkers under way, with what waited for it, up to `PARTITIONS_MAX`: one request for a
thousand transactions as for one. Brokers have nothing to do with each other: one that is slow, or
dead, holds up its own.

A partition that has no marker yet is in one of three places:

    waiting      in its leader's queue, behind the request under way
    under way    in that request
    later        on a timer: no leader, no answer, or an answer to be tried again (TX-66, TX-67)

and leaves them when its leader has the marker (or never can have it: 35, 43), when the metadata
knows it no more, or when its transaction is given up: forgotten, sent anew, or fenced (47, 52).
Where a partition's leader is, is looked up each time it is to be sent, and when leaders change: a
frozen broker keeps its request until it times out, its partitions go on without it. A broker that
does not answer may have written the marker: written again it changes nothing (TX-60).

Kept in memory only: who loads the coordinator's log next finds the Prepare records and sends again.

Threads: none of its own; any thread may call. `_lock` guards everything and is never held while
something is called, but the metadata for who leads now.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from server.peers.broker_requests import PARTITIONS_MAX
from server.peers.call import PeerError
from wire.errors import ErrorCode
from wire.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from wire.primitives import TopicPartition

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage
    from server.coordinator.transaction_markers import TxnMarkers
    from server.peers.broker_requests import BrokerRequests

logger = logging.getLogger(__name__)

CHANNEL = "txn-markers"
"""The connection's name, which goes on the wire as client id."""
AGAIN_MS = 50
AGAIN_MAX_MS = 1_000
"""A partition that cannot have its marker yet is tried again after the first, then ever later."""

_NO_BROKER = -1
_DONE = frozenset(
    (0, int(ErrorCode.UNSUPPORTED_VERSION), int(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT))
)
_FENCED = frozenset(
    (int(ErrorCode.INVALID_PRODUCER_EPOCH), int(ErrorCode.TRANSACTION_COORDINATOR_FENCED))
)
_EXPECTED = frozenset(
    int(code)
    for code in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
_Marker = WriteTxnMarkersRequest.Marker


class Timer(Protocol):
    """Runs small callbacks after a delay in ms (replication.replicas.timer.Timer)."""

    def add(self, delay_ms: int, fn: Callable[[], None], /) -> Any: ...


class _Transaction:
    """One transaction whose markers are on their way."""

    __slots__ = ("failures", "markers", "missing", "on_done")

    def __init__(self, markers: TxnMarkers, on_done: Callable[[], None]) -> None:
        self.markers = markers
        self.on_done = on_done
        self.missing = set(markers.partitions)
        """Partitions that do not have their marker."""
        self.failures = 0


class _Part(NamedTuple):
    """What of a transaction one broker is to write."""

    transaction: _Transaction
    partitions: set[TopicPartition]


_Batch = dict[int, _Part]
"""By producer id, which is how the answer tells its parts."""


class _Destination:
    """One broker: what waits for it, and what is under way to it."""

    __slots__ = ("is_busy", "under_way", "waiting")

    def __init__(self) -> None:
        self.waiting: _Batch = {}
        self.under_way: _Batch | None = None
        self.is_busy = False
        """Somebody sends to it, and looks again before leaving."""


class TransactionMarkerChannel:
    """A `server.coordinator.transaction_markers.MarkerSender`; one per broker. See the module."""

    def __init__(
        self,
        brokers: BrokerRequests,
        metadata: Callable[[], MetadataImage],
        timer: Timer,
        request_timeout_ms: int,
    ) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self._timer = timer
        self._request_timeout_ms = request_timeout_ms
        self._lock = threading.Lock()
        self._transactions: dict[int, _Transaction] = {}
        """By producer id: no two transactional ids share one."""
        self._destinations: defaultdict[int, _Destination] = defaultdict(_Destination)

    # -- MarkerSender

    def send(self, markers: TxnMarkers, on_done: Callable[[], None]) -> None:
        """See MarkerSender."""
        transaction = _Transaction(markers, on_done)
        with self._lock:
            known = self._transactions.get(markers.producer_id)
            if known is not None and known.markers.coordinator_epoch > markers.coordinator_epoch:
                return  # the word of a coordinator before this one, on a thread that was slow
            self._transactions[markers.producer_id] = transaction
        self._place(transaction, markers.partitions)

    def forget(self, coordinator_partition: int, coordinator_epoch: int) -> None:
        """See MarkerSender. What waits goes with the next look at it, what is under way arrives."""
        with self._lock:
            self._transactions = {
                producer_id: transaction
                for producer_id, transaction in self._transactions.items()
                if transaction.markers.coordinator_partition != coordinator_partition
                or transaction.markers.coordinator_epoch > coordinator_epoch
            }

    def leaders_changed(self) -> None:
        """The metadata names other leaders, or partitions are gone: take from each broker's queue,
        and from the request under way, what another broker is to write now."""
        moved = []
        with self._lock:
            for broker_id, destination in self._destinations.items():
                for batch in (destination.waiting, destination.under_way or {}):
                    for producer_id, part in batch.items():
                        by_broker, _gone = self._by_leader(part.partitions)
                        stays = by_broker.get(broker_id, set())
                        if stays != part.partitions:
                            moved.append(_Part(part.transaction, part.partitions - stays))
                            batch[producer_id] = _Part(part.transaction, stays)
        for transaction, partitions in moved:
            self._place(transaction, partitions)

    @property
    def transaction_count(self) -> int:
        """Transactions with markers on their way."""
        return len(self._transactions)

    # -- where to

    def _place(self, transaction: _Transaction, partitions: Collection[TopicPartition]) -> None:
        """Queue markers for the leaders as they are now; send what can be sent."""
        with self._lock:
            if not self._is_current(transaction):
                return
            # With the lock: what is queued by the metadata of before, `leaders_changed` finds.
            by_broker, gone = self._by_leader(partitions)
            leaderless = by_broker.pop(_NO_BROKER, set())
            for broker_id, part in by_broker.items():
                self._queue(broker_id, transaction, part)
        if gone:
            logger.info(
                "markers of deleted partitions are dropped transactional.id=%s partitions=%s",
                transaction.markers.transactional_id, sorted(gone),
            )  # fmt: skip
        if leaderless:
            self._place_later(transaction, leaderless)
        if gone or not partitions:
            self._written(transaction, gone)
        for broker_id in by_broker:
            self._pump(broker_id)

    def _by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[int, set[TopicPartition]], set[TopicPartition]]:
        """Partitions by the broker that leads them, _NO_BROKER for none; and which are gone."""
        image = self._metadata()
        found: defaultdict[int, set[TopicPartition]] = defaultdict(set)
        gone = set()
        for topic_partition in partitions:
            registration = image.partition(*topic_partition)
            if registration is None:
                gone.add(topic_partition)
            elif registration.leader in image.brokers:
                found[registration.leader].add(topic_partition)
            else:
                found[_NO_BROKER].add(topic_partition)
        return found, gone

    def _queue(
        self, broker_id: int, transaction: _Transaction, partitions: set[TopicPartition]
    ) -> None:
        waiting = self._destinations[broker_id].waiting
        producer_id = transaction.markers.producer_id
        part = waiting.get(producer_id)
        if part is not None and part.transaction is transaction:
            part.partitions.update(partitions)
        else:
            waiting[producer_id] = _Part(transaction, partitions)

    def _place_later(self, transaction: _Transaction, partitions: set[TopicPartition]) -> None:
        delay_ms = min(AGAIN_MS << min(transaction.failures, 16), AGAIN_MAX_MS)
        transaction.failures += 1
        self._timer.add(delay_ms, partial(self._place, transaction, partitions))

    def _is_current(self, transaction: _Transaction) -> bool:
        return self._transactions.get(transaction.markers.producer_id) is transaction

    # -- sending

    def _pump(self, broker_id: int) -> None:
        """Send what waits for a broker, unless a request is under way; whoever answers it, on
        whatever thread, comes here again. An answer may come before `_send` returns, so this is
        a loop and not a call from the answer."""
        destination = self._destinations[broker_id]
        with self._lock:
            if destination.is_busy:
                return
            destination.is_busy = True
        while (batch := self._next_batch(destination)) is not None:
            self._send(broker_id, batch)

    def _next_batch(self, destination: _Destination) -> _Batch | None:
        """What has waited longest, now under way; None (and nobody is busy) if nothing waits, or a
        request is under way."""
        with self._lock:
            if destination.under_way is None:
                batch = self._take(destination.waiting)
                if batch:
                    destination.under_way = batch
                    return batch
            destination.is_busy = False
            return None

    def _take(self, waiting: _Batch) -> _Batch:
        """As much as goes into one request; a transaction may go in several. The lock is held."""
        batch: _Batch = {}
        room = PARTITIONS_MAX
        for producer_id, part in list(waiting.items()):
            if not room:
                break
            del waiting[producer_id]
            if not part.partitions or not self._is_current(part.transaction):
                continue
            taken = set(islice(part.partitions, room))
            room -= len(taken)
            batch[producer_id] = _Part(part.transaction, taken)
            if left := part.partitions - taken:
                waiting[producer_id] = _Part(part.transaction, left)
        return batch

    def _send(self, broker_id: int, batch: _Batch) -> None:
        self._brokers.send(
            broker_id,
            WriteTxnMarkersRequest(markers=[_marker(part) for part in batch.values()]),
            partial(self._answered, broker_id, batch),
            timeout_ms=self._request_timeout_ms,
            channel=CHANNEL,
        )

    # -- answers

    def _answered(
        self, broker_id: int, batch: _Batch, answer: WriteTxnMarkersResponse | PeerError
    ) -> None:
        destination = self._destinations[broker_id]
        with self._lock:
            if destination.under_way is not batch:
                return  # answered already
            destination.under_way = None
        codes: Mapping[int, Mapping[TopicPartition, int]] = {}
        if isinstance(answer, WriteTxnMarkersResponse):
            codes = _codes(answer)
        else:
            logger.info(
                "markers were not answered broker=%s transactions=%s reason=%s",
                broker_id, len(batch), answer,
            )  # fmt: skip
        for producer_id, part in batch.items():
            self._part_answered(part, codes.get(producer_id, {}))
        self._pump(broker_id)

    def _part_answered(self, part: _Part, codes: Mapping[TopicPartition, int]) -> None:
        """One transaction's part of an answer; partitions that are not in it are sent again."""
        transaction = part.transaction
        told = {tp: codes[tp] for tp in part.partitions if tp in codes}
        if not _FENCED.isdisjoint(told.values()):
            self._give_up(transaction, told)
            return
        written = {tp for tp, code in told.items() if code in _DONE}
        again = part.partitions - written
        for topic_partition, code in told.items():
            if code not in _DONE and code not in _EXPECTED:
                logger.error(
                    "marker was refused, it is sent again partition=%s-%s transactional.id=%s"
                    " error=%s",
                    *topic_partition, transaction.markers.transactional_id, ErrorCode(code).name,
                )  # fmt: skip
        if written:
            self._written(transaction, written)
        if again:
            self._place_later(transaction, again)

    def _written(self, transaction: _Transaction, partitions: Collection[TopicPartition]) -> None:
        """These partitions have their marker, or need none; the transaction may be complete."""
        with self._lock:
            transaction.missing.difference_update(partitions)
            if transaction.missing or not self._is_current(transaction):
                return
            del self._transactions[transaction.markers.producer_id]
        try:
            transaction.on_done()
        except Exception:  # what else was answered is not to suffer from it
            logger.exception(
                "completing a transaction failed transactional.id=%s",
                transaction.markers.transactional_id,
            )

    def _give_up(self, transaction: _Transaction, codes: Mapping[TopicPartition, int]) -> None:
        with self._lock:
            if not self._is_current(transaction):
                return
            del self._transactions[transaction.markers.producer_id]
        logger.warning(
            "markers are given up: fenced transactional.id=%s codes=%s",
            transaction.markers.transactional_id, codes,
        )  # fmt: skip


def _marker(part: _Part) -> _Marker:
    markers = part.transaction.markers
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(part.partitions):
        by_topic[topic].append(index)
    return _Marker(
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        transaction_result=markers.is_commit,
        topics=[
            _Marker.Topic(name=name, partition_indexes=part) for name, part in by_topic.items()
        ],
        coordinator_epoch=markers.coordinator_epoch,
        transaction_version=markers.transaction_version,
    )


def _codes(response: WriteTxnMarkersResponse) -> dict[int, dict[TopicPartition, int]]:
    """Producer id -> partition -> error code."""
    codes: defaultdict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for marker in response.markers:
        for topic in marker.topics:
            for partition in topic.partitions:
                where = TopicPartition(topic.name, partition.partition_index)
                codes[marker.producer_id][where] = partition.error_code
    return codes
