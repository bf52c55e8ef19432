"""One partition of a coordinator's topic, as its shard writes and reads it (`shard.ShardLog`).

Why: the shard knows records, the replica manager knows batches of bytes. Writing makes one batch
per decision, so that the decision is in the log whole or not at all. Reading goes from the log's
start to its end, in pieces of at most `load_buffer_size` bytes.

Records of a transaction are one transactional batch of its producer, a transaction's end is a
control batch (TX-39, TX-46). Sequences are not checked: each batch says 0.

Budget: 12 µs for a batch of one record, on top of `ReplicaManager.append_records`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple

from replication.partition.requests import ACKS_ALL
from replication.replicas.replica_manager import FROM_COORDINATOR, AppendRequest
from server.coordinator.machine import Batch, R, Transaction
from server.coordinator.shard import AppendOutcome
from server.coordinator.transaction_markers import TxnMarker
from wire.control_records import ControlRecordType, parse_end_txn_marker
from wire.errors import ErrorCode, KafkaError
from wire.records import Record, build_batch, check_crc, iterate_headers, read_records

if TYPE_CHECKING:
    from replication.partition.partition import Partition
    from replication.replicas.replica_manager import AppendResult, AppendSource, ReplicaManager
    from wire.record_batch import BatchHeader


class RecordSerde(NamedTuple, Generic[R]):
    """How one coordinator's records become bytes. `decode` gives None for records to skip."""

    encode: Callable[[R], tuple[bytes, bytes | None]]
    decode: Callable[[bytes, bytes | None], R | None]


class ShardLogConfig(NamedTuple):
    """What appending and loading obey."""

    append_timeout_ms: int
    load_buffer_size: int
    codec: int


class ReplicatedShardLog(Generic[R]):
    """See the module. Stateless: every call looks the partition up."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        topic_partition: tuple[str, int],
        serde: RecordSerde[R],
        config: ShardLogConfig,
    ) -> None:
        self._replica_manager = replica_manager
        self._topic_partition = topic_partition
        self._serde = serde
        self._config = config

    def encode(
        self, records: Sequence[R], wall_ms: int, transaction: Transaction | TxnMarker | None
    ) -> bytes:
        """One batch. KafkaError UNKNOWN_SERVER_ERROR: a client's name is longer than a record can
        hold, or its transaction is nobody's, which no marker could end; as in Kafka
        (MemoryRecordsBuilder).
        """
        if isinstance(transaction, TxnMarker):
            return transaction.batch(wall_ms)
        if transaction is not None and min(transaction.producer_id, transaction.producer_epoch) < 0:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "no producer id or epoch")
        encode, codec = self._serde.encode, self._config.codec
        try:
            encoded = [Record(-1, wall_ms, *encode(record), ()) for record in records]
        except struct.error as error:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no such record: {error}") from None
        if transaction is None:
            return build_batch(encoded, codec=codec)
        return build_batch(
            encoded,
            codec=codec,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            base_sequence=0,
            is_transactional=True,
        )

    def append(
        self,
        batch: bytes,
        leader_epoch: int,
        transaction: Transaction | TxnMarker | None,
        on_complete: Callable[[AppendOutcome], None],
    ) -> None:
        """Append one batch with acks=all; refused if another leader epoch has begun: what the
        shard decided it decided on what the log said in its own. MESSAGE_TOO_LARGE above the
        topic's `max.message.bytes`. What the log checks of a producer: ProducerStateManager.check.
        """
        self._replica_manager.append_records(
            AppendRequest(
                ACKS_ALL,
                self._config.append_timeout_ms,
                [(self._topic_partition, batch)],
                partial(_completed, on_complete),
                source=_source(transaction),
                leader_epoch=leader_epoch,
            )
        )

    def end_offset(self) -> int:
        """The log end offset; 0 if the log is gone."""
        partition = self._partition()
        log = None if partition is None else partition.log
        return 0 if log is None else log.log_end_offset

    def high_watermark(self, leader_epoch: int) -> int:
        """The high watermark; -1 if the log is gone, or we do not lead it since this epoch."""
        partition = self._partition()
        offset = -1 if partition is None else partition.high_watermark
        # Asked after the offset was read: who leads since then led when it was true.
        is_ours = partition is not None and partition.role.leads_since(leader_epoch)
        return offset if is_ours else -1

    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        partition = self._partition()
        log = None if partition is None else partition.log
        return log is None or log.log_start_offset == log.log_end_offset

    def watch(self, on_moved: Callable[[], None]) -> None:
        """Call `on_moved` whenever the high watermark may have moved, on any thread."""
        self._replica_manager.add_high_watermark_listener(self._topic_partition, on_moved)

    def unwatch(self, on_moved: Callable[[], None]) -> None:
        """Call it no more."""
        self._replica_manager.remove_high_watermark_listener(self._topic_partition, on_moved)

    def read(self) -> Iterator[Batch[R]]:
        """All batches from the log's start to its end.

        Raises KafkaError: what the replica manager says if the partition is not served here,
        KAFKA_STORAGE_ERROR if the disk does not give it, CORRUPT_MESSAGE for a batch whose checksum
        is wrong. MalformedFrame for a record that is not what its key says.
        """
        decode = self._serde.decode
        for header, records in self._batches():
            producer_id = header.producer_id if header.is_transactional else None
            if header.is_control:
                yield from (Batch[R]((), producer_id, _is_commit(marker)) for marker in records)
                continue
            decoded = [
                record
                for raw in records
                if raw.key is not None and (record := decode(raw.key, raw.value)) is not None
            ]
            yield Batch(decoded, producer_id, None, header.base_offset)

    def _batches(self) -> Iterator[tuple[BatchHeader, Iterator[Record]]]:
        """All batches in order, their checksums found right."""
        log = self._replica_manager.partition(self._topic_partition).open_log()
        offset, end_offset = log.log_start_offset, log.log_end_offset
        while offset < end_offset:
            data = log.read_bytes(offset, self._config.load_buffer_size, end_offset)
            next_offset = offset
            for position, header in iterate_headers(data):
                if not check_crc(data, position, header):
                    raise KafkaError(
                        ErrorCode.CORRUPT_MESSAGE, f"bad checksum at offset {header.base_offset}"
                    )
                next_offset = header.next_offset
                if next_offset > offset:
                    yield header, read_records(data, position, header)
            if next_offset <= offset:
                return
            offset = next_offset

    def _partition(self) -> Partition | None:
        return self._replica_manager.get_partition_or_none(self._topic_partition)


def _source(transaction: Transaction | TxnMarker | None) -> AppendSource:
    if transaction is None:
        return FROM_COORDINATOR
    if isinstance(transaction, TxnMarker):
        return FROM_COORDINATOR._replace(transaction_version=transaction.transaction_version)
    return FROM_COORDINATOR._replace(verification=transaction.verification)


def _is_commit(record: Record) -> bool:
    return parse_end_txn_marker(record).type is ControlRecordType.COMMIT


def _completed(on_complete: Callable[[AppendOutcome], None], results: list[AppendResult]) -> None:
    result = results[0]
    on_complete(AppendOutcome(result.error_code, result.base_offset >= 0))
