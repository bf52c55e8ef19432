"""One partition of a coordinator's topic, as its shard writes and reads it (`shard.ShardLog`).

Why: the shard knows records, the replica manager knows batches of bytes. Writing makes one batch
per decision, so that the decision is in the log whole or not at all. Reading goes from the log's
start to its end, in pieces of at most `load_buffer_size` bytes.

Transactional batches (offsets committed in a transaction, which Apache Kafka may have written) are
kept back until their marker: a commit yields them, an abort drops them, and so does the log's end.

Gaps: transactional batches yielded at their marker may overwrite a plain commit of the same
partition that came in between; Kafka compares record offsets there.

Budget: 12 µs for a batch of one record, on top of `ReplicaManager.append_records`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple

from replication.partition.requests import ACKS_ALL
from replication.replicas.replica_manager import FROM_COORDINATOR, AppendRequest
from server.coordinator.machine import R
from server.coordinator.shard import AppendOutcome
from wire.control_records import ControlRecordType, parse_end_txn_marker
from wire.errors import ErrorCode, KafkaError
from wire.records import Record, build_batch, check_crc, iterate_headers, read_records

if TYPE_CHECKING:
    from replication.partition.partition import Partition
    from replication.replicas.replica_manager import AppendResult, ReplicaManager


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

    def encode(self, records: Sequence[R], wall_ms: int) -> bytes:
        """One batch. KafkaError UNKNOWN_SERVER_ERROR: a client's name is longer than a record can
        hold, as in Kafka.
        """
        encode = self._serde.encode
        try:
            encoded = [Record(-1, wall_ms, *encode(record), ()) for record in records]
        except struct.error as error:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no such record: {error}") from None
        return build_batch(encoded, codec=self._config.codec)

    def append(
        self, batch: bytes, leader_epoch: int, on_complete: Callable[[AppendOutcome], None]
    ) -> None:
        """Append one batch with acks=all; refused if another leader epoch has begun: what the
        shard decided it decided on what the log said in its own. MESSAGE_TOO_LARGE above the
        topic's `max.message.bytes`.
        """
        self._replica_manager.append_records(
            AppendRequest(
                ACKS_ALL,
                self._config.append_timeout_ms,
                [(self._topic_partition, batch)],
                partial(_completed, on_complete),
                source=FROM_COORDINATOR,
                leader_epoch=leader_epoch,
            )
        )

    def end_offset(self) -> int:
        """The log end offset; 0 if the log is gone."""
        partition = self._partition()
        log = None if partition is None else partition.log
        return 0 if log is None else log.log_end_offset

    def high_watermark(self) -> int:
        """The high watermark; -1 if the log is gone."""
        partition = self._partition()
        return -1 if partition is None else partition.high_watermark

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

    def read(self) -> Iterator[R]:
        """All records from the log's start to its end; see the module for transactions.

        Raises KafkaError: what the replica manager says if the partition is not served here,
        CORRUPT_MESSAGE for a batch whose checksum is wrong. MalformedFrame for a record that is
        not what its key says.
        """
        decode = self._serde.decode
        uncommitted: dict[int, list[R]] = {}
        for header_is_control, producer_id, records in self._batches():
            if header_is_control:
                kept = uncommitted.pop(producer_id, [])
                if _is_commit(records):
                    yield from kept
                continue
            decoded = [
                record
                for raw in records
                if raw.key is not None and (record := decode(raw.key, raw.value)) is not None
            ]
            if producer_id == _PLAIN:
                yield from decoded
            else:
                uncommitted.setdefault(producer_id, []).extend(decoded)

    def _batches(self) -> Iterator[tuple[bool, int, Iterator[Record]]]:
        """(is control, producer id of a transactional batch or _PLAIN, records), in order."""
        log = self._replica_manager.partition(self._topic_partition).open_log()
        offset, end_offset = log.log_start_offset, log.log_end_offset
        while offset < end_offset:
            found = log.read(offset, self._config.load_buffer_size, True, end_offset)
            if found.records is None:
                return
            data = found.records.read()
            found.records.close()
            next_offset = offset
            for position, header in iterate_headers(data):
                if not check_crc(data, position, header):
                    raise KafkaError(
                        ErrorCode.CORRUPT_MESSAGE, f"bad checksum at offset {header.base_offset}"
                    )
                next_offset = header.next_offset
                if next_offset > offset:
                    producer_id = header.producer_id if header.is_transactional else _PLAIN
                    yield header.is_control, producer_id, read_records(data, position, header)
            if next_offset <= offset:
                return
            offset = next_offset

    def _partition(self) -> Partition | None:
        return self._replica_manager.get_partition_or_none(self._topic_partition)


_PLAIN = -1


def _is_commit(records: Iterator[Record]) -> bool:
    return any(parse_end_txn_marker(record).type is ControlRecordType.COMMIT for record in records)


def _completed(on_complete: Callable[[AppendOutcome], None], results: list[AppendResult]) -> None:
    result = results[0]
    on_complete(AppendOutcome(result.error_code, result.base_offset >= 0))
