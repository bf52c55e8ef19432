"""What idempotent producers have in flight behind a batch that was refused.

A producer sends on before it is answered. When its batch is refused, because this broker does not
lead yet, has not heard of the topic or has too few replicas in sync, and that has changed by the
time the next one is served, that one is out of sequence by no fault of its producer; or it is
taken, if nothing of the producer is in the log, and the first one never will be. Apache Kafka says
OUT_OF_ORDER_SEQUENCE_NUMBER of the one or the other. librdkafka begins an epoch then and sends all
again that is not acknowledged, also what is in the log (rd_kafka_handle_idempotent_Produce_error,
"skipped sequence numbers"), or ends with a fatal error. So what follows a refused batch is refused,
too: nothing is written, send again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from replication.metadata.topic_names import TOPIC_NAME_LENGTH_MAX
from wire.errors import ErrorCode, KafkaError, MalformedFrame
from wire.record_batch import BatchHeader, read_header

if TYPE_CHECKING:
    from replication.partition.partition import Partition
    from replication.partition.requests import Named

_REMEMBERED = 1_000
"""Of more producers and partitions those that were refused first are forgotten."""
_REMEMBERED_MS = 30_000
"""request.timeout.ms of Kafka's producer, which gives its connection up then: nothing that it sent
before the refusal was told is still to come."""
_NOT_WRITTEN = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
_Key = tuple[str | bytes, int, int]
"""A partition as its requests name it, and the producer's id."""


class _Refused(NamedTuple):
    producer_epoch: int
    next_sequence: int
    wall_ms: int


class RefusedBatches:
    """The last refused batch of each producer in each partition. Any thread may call.

    Mostly there is none, and nothing need be asked of any batch then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refused: OrderedDict[_Key, _Refused] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refused)

    def check(
        self, named: Named, partition: Partition, records: memoryview | bytes, wall_ms: int
    ) -> None:
        """Raises NOT_ENOUGH_REPLICAS, Produce's word for "send again", if the batch before this one
        was refused and neither is in the log.

        Once: if this one comes again before that, it is out of sequence indeed.
        """
        header, log = _idempotent(records), partition.leader_log
        with self._lock:
            self._forget(wall_ms)
            if header is None or log is None:
                return
            before = self._refused.get(_key(named, header))
        if (
            before is not None
            and before[:2] == (header.producer_epoch, header.base_sequence)
            and log.leaves_a_gap(header)
        ):
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "the batch before it was refused")

    def note(
        self, named: Named, records: memoryview | bytes, wall_ms: int, code: ErrorCode
    ) -> None:
        """A batch was refused with `code`."""
        if code not in _NOT_WRITTEN or len(named[0]) > TOPIC_NAME_LENGTH_MAX:
            return  # it was something else, or no topic will ever have the name
        header = _idempotent(records)
        if header is None:
            return
        key = _key(named, header)
        refused = _Refused(header.producer_epoch, header.next_sequence, wall_ms)
        with self._lock:
            self._refused[key] = refused
            self._refused.move_to_end(key)
            self._forget(wall_ms)

    def _forget(self, wall_ms: int) -> None:
        refused = self._refused
        while refused:
            oldest = next(iter(refused))
            is_recent = wall_ms - refused[oldest].wall_ms <= _REMEMBERED_MS
            if is_recent and len(refused) <= _REMEMBERED:
                return
            del refused[oldest]


def _idempotent(records: memoryview | bytes) -> BatchHeader | None:
    """The header of a batch with sequence numbers; others are not looked after here."""
    try:
        header = read_header(records)
    except MalformedFrame:
        return None
    return header if header.base_sequence >= 0 else None


def _key(named: Named, header: BatchHeader) -> _Key:
    return *named, header.producer_id
