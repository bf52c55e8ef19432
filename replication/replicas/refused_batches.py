"""What idempotent producers have in flight behind a batch that was refused.

A producer sends on before it is answered. When its batch is refused, because this broker does not
lead yet or has too few replicas in sync, and that has changed by the time the next one is served,
that one is out of sequence, by no fault of its producer. Apache Kafka says
OUT_OF_ORDER_SEQUENCE_NUMBER then. Java's producer sends both again; librdkafka takes the sequence
for broken, begins an epoch and sends all again that is not acknowledged, also what is in the log:
such records were there twice (rd_kafka_handle_idempotent_Produce_error, "skipped sequence
numbers"). So what follows a refused batch is refused like it: nothing is written, send again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from wire.errors import ErrorCode, KafkaError, MalformedFrame
from wire.record_batch import SEQUENCE_MAX, read_header

_REMEMBERED = 1_000
"""Of more producers and partitions those that were refused first are forgotten."""
_NOT_WRITTEN = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class RefusedBatches:
    """The last refused batch of each producer in each partition. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: OrderedDict[tuple[bytes, int, int], tuple[int, int, ErrorCode]] = OrderedDict()
        """Topic id, partition and producer id -> its epoch, the sequence that follows, and why."""

    def told(
        self, topic_id: bytes, index: int, records: memoryview | bytes, error: KafkaError
    ) -> KafkaError:
        """What is said to the sender of a batch that was refused with `error`.

        A batch that follows a refused one is told the same once: sent again, it is where it
        belongs, or out of sequence indeed.
        """
        if error.code not in _NOT_WRITTEN and error.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return error
        try:
            header = read_header(records)
        except MalformedFrame:
            return error
        if header.base_sequence < 0:
            return error
        key = topic_id, index, header.producer_id
        with self._lock:
            before = self._next.pop(key, None)
            if error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                if before is None or before[:2] != (header.producer_epoch, header.base_sequence):
                    return error
                error = KafkaError(before[2], f"the batch before it was refused: {error.detail}")
            following = (header.last_sequence + 1) & SEQUENCE_MAX
            self._next[key] = header.producer_epoch, following, error.code
            if len(self._next) > _REMEMBERED:
                self._next.popitem(last=False)
        return error
