"""What compaction keeps of one record batch, and the batch it becomes.

The rules (Kafka: Cleaner, CleanedTransactionMetadata, MemoryRecords.filterTo; KIP-280, KIP-534):

1. Of each key the record with the highest offset stays; what the offset map has not seen stays.
2. A tombstone (null value) stays until its batch's delete horizon: the first cleaning that meets it
   sets the horizon, `delete.retention.ms` from then, so that readers that lag can see the deletion.
3. Records of aborted transactions go. A marker goes after all records of its transaction did, and
   like a tombstone after its horizon. The transaction index keeps the aborted transactions of which
   data was still met.
4. The last batch of a live producer stays, empty if need be, since replay takes sequence and epoch
   from its header (P-4); so does the last batch of each new segment, so that the next segment
   begins where this one ends, and a gap between segments stays what recovery takes it for: a loss.
5. Records without a key cannot be kept in a compacted log.

Offsets never change: base offset and last offset delta of a batch stay, whatever is dropped.

A batch of which everything stays is written as it was. Of one that loses records the remaining
ones' bytes are copied, not encoded anew: base offset and base timestamp, which their deltas refer
to, stay. (Kafka moves the base timestamp to the first remaining record's; readers see the same
times.) Only setting a delete horizon, which lives in the base timestamp, encodes records again. The
max timestamp becomes that of the remaining records, the codec stays, the CRC is new.

Layout of an emptied batch: the header with no codec, no delete horizon, base timestamp -1, count 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from storage.cleaning.offset_map import OffsetMap
from storage.segments.transaction_index import AbortedTxn, TransactionIndex
from wire.compression import compress
from wire.control_records import ControlRecordType, control_record_type
from wire.crc import crc32c
from wire.primitives import NO_TIMESTAMP
from wire.record_batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CRC_START,
    DELETE_HORIZON_MASK,
    LOG_APPEND_TIME,
    BatchHeader,
    Buffer,
    pack_header,
    read_header,
)
from wire.record_body import RECORD_SIZE_MIN, invalid_record, read_varint
from wire.record_checks import records_body
from wire.records import build_batch, read_records

_INT64_MAX = 2**63 - 1


class RecordSpan(NamedTuple):
    """One record in a batch's uncompressed body: where its bytes are and what cleaning asks."""

    start: int
    end: int
    timestamp_delta: int
    offset: int
    key: bytes | None
    is_tombstone: bool


class LastRecord(NamedTuple):
    """The last a live producer wrote; `data_offset` -1 if that was a marker."""

    data_offset: int
    producer_epoch: int


class FilterResult(NamedTuple):
    """What is left of a batch. `data` is the batch's own buffer when nothing was dropped."""

    header: BatchHeader
    data: Buffer
    records_kept: int


def scan_records(body: bytes, header: BatchHeader) -> list[RecordSpan]:
    """The records of an uncompressed body; values and headers stay where they are.

    Raises KafkaError INVALID_RECORD if the lengths do not fill the body exactly.
    """
    spans: list[RecordSpan] = []
    base_offset = header.base_offset
    new_span = tuple.__new__  # half the price of a NamedTuple's own
    at = 0
    try:
        for _ in range(header.records_count):
            start = at
            length, at = read_varint(body, at)
            end = at + length
            if length < RECORD_SIZE_MIN - 1 or end > len(body):
                raise invalid_record(f"record of {length} bytes with {len(body) - at} left")
            timestamp_delta, at = read_varint(body, at + 1, 63)
            offset_delta, at = read_varint(body, at)
            key_size, at = read_varint(body, at)
            key = None
            if key_size >= 0:
                key = body[at : at + key_size]
                at += key_size
            value_size, at = read_varint(body, at)
            if at + max(value_size, 0) >= end:
                raise invalid_record(f"key and value do not fit in {length} bytes")
            fields = (start, end, timestamp_delta, base_offset + offset_delta, key, value_size < 0)
            spans.append(new_span(RecordSpan, fields))
            at = end
    except IndexError:
        raise invalid_record("record runs past the end of its batch") from None
    if at != len(body):
        raise invalid_record(f"{len(body) - at} bytes follow the last of the announced records")
    return spans


class CleanedTransactions:
    """Which batches belong to aborted transactions, told while a log is read in order.

    Duties of the caller: `add_aborted` with what the transaction index says before the batches it
    speaks of; then every batch, once, in order. `index` receives the aborted transactions that
    still matter.
    """

    def __init__(self) -> None:
        self.index: TransactionIndex | None = None
        self._upcoming: list[tuple[int, AbortedTxn]] = []
        self._aborted: dict[int, AbortedTxn] = {}
        self._seen: set[int] = set()
        """Producers of ongoing aborted transactions of which a batch was met."""
        self._committed: set[int] = set()
        """Producers of ongoing transactions, not aborted, of which a batch was met."""

    def add_aborted(self, transactions: Iterable[AbortedTxn]) -> None:
        """Transactions that overlap what is read next; repeating one does no harm."""
        for txn in transactions:
            heappush(self._upcoming, (txn.first_offset, txn))

    def on_batch(self, header: BatchHeader) -> bool:
        """True if this data batch belongs to an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._seen.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def on_control_batch(self, header: BatchHeader, key: bytes | None) -> bool:
        """True if nothing is left of the transaction this marker ended, so that it may go.

        `key` is the control record's, None in a batch emptied before.
        """
        self._begin_up_to(header.last_offset)
        if key is None:
            return True
        kind = control_record_type(key)
        producer_id = header.producer_id
        if kind is ControlRecordType.ABORT:
            txn = self._aborted.pop(producer_id, None)
            if txn is None or producer_id not in self._seen:
                return True
            self._seen.discard(producer_id)
            if self.index is not None:
                self.index.append(txn)
            return False
        if kind is ControlRecordType.COMMIT:
            had_records = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_records
        return False

    def _begin_up_to(self, offset: int) -> None:
        upcoming = self._upcoming
        while upcoming and upcoming[0][0] <= offset:
            txn = heappop(upcoming)[1]
            self._aborted.setdefault(txn.producer_id, txn)


class BatchFilter:
    """Applies the rules to batches in log order; one per cleaning."""

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        producers: Mapping[int, LastRecord],
        wall_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._producers = producers
        self._wall_ms = wall_ms
        self._horizon_ms = min(wall_ms + delete_retention_ms, _INT64_MAX)
        self.invalid_records = 0

    def filter(self, batch: Buffer, header: BatchHeader, is_last: bool) -> FilterResult | None:
        """What stays of a batch, None if nothing; `is_last`: it ends the new segment (rule 4).

        Raises KafkaError INVALID_RECORD for a body that cannot be read. Budget: 2 us a record.
        """
        body = records_body(batch, 0, header) if header.records_count > 0 else b""
        records = scan_records(body, header)
        is_expired = header.has_delete_horizon and header.base_timestamp <= self._wall_ms
        can_discard = False
        if header.is_control:
            key = records[0].key if records else None
            can_discard = self._transactions.on_control_batch(header, key)
            kept = [] if can_discard and is_expired else records
        elif self._transactions.on_batch(header):
            kept = []
        else:
            kept = self._newest(records, is_expired)
        if not kept:
            if is_last or self._is_last_of_producer(header):
                return _emptied(header)
            return None
        if not header.has_delete_horizon and (
            can_discard or any(record.is_tombstone for record in kept)
        ):
            return self._with_horizon(batch, header, kept)
        if len(kept) == len(records):
            return FilterResult(header, batch, len(kept))
        return _shortened(body, header, kept)

    def _newest(self, records: list[RecordSpan], is_expired: bool) -> list[RecordSpan]:
        """Rules 1, 2 and 5."""
        get, latest = self._offsets.get, self._offsets.latest_offset
        kept: list[RecordSpan] = []
        for record in records:
            if record.offset > latest:
                kept.append(record)
            elif record.key is None:
                self.invalid_records += 1
            elif record.offset >= get(record.key) and not (record.is_tombstone and is_expired):
                kept.append(record)
        return kept

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._producers.get(header.producer_id)
        if last is None:
            return False
        if last.data_offset >= 0:
            return header.last_offset == last.data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch

    def _with_horizon(
        self, batch: Buffer, header: BatchHeader, kept: list[RecordSpan]
    ) -> FilterResult:
        """The batch with the remaining records and the time when its tombstones may go."""
        offsets = {record.offset for record in kept}
        is_append_time = header.timestamp_type == LOG_APPEND_TIME
        data = build_batch(
            [record for record in read_records(batch, 0, header) if record.offset in offsets],
            base_offset=header.base_offset,
            codec=header.codec,
            timestamp_type=header.timestamp_type,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            leader_epoch=header.leader_epoch,
            is_transactional=header.is_transactional,
            is_control=header.is_control,
            last_offset_delta=header.last_offset_delta,
            max_timestamp=header.max_timestamp if is_append_time else None,
            delete_horizon_ms=self._horizon_ms,
        )
        return FilterResult(read_header(data), data, len(kept))


def _emptied(header: BatchHeader) -> FilterResult:
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_MASK)
    empty = header._replace(
        size=BATCH_OVERHEAD,
        attributes=attributes,
        base_timestamp=NO_TIMESTAMP,
        records_count=0,
    )
    return _seal(empty, b"")


def _shortened(body: bytes, header: BatchHeader, kept: list[RecordSpan]) -> FilterResult:
    """The batch with some of its records, their bytes as they were."""
    plain = b"".join([body[record.start : record.end] for record in kept])
    data = compress(plain, header.codec) if header.codec else plain
    max_timestamp = header.max_timestamp
    if header.timestamp_type != LOG_APPEND_TIME:
        newest = max(record.timestamp_delta for record in kept)
        max_timestamp = header.base_timestamp + newest
    return _seal(
        header._replace(
            size=BATCH_OVERHEAD + len(data), max_timestamp=max_timestamp, records_count=len(kept)
        ),
        data,
    )


def _seal(header: BatchHeader, data: bytes) -> FilterResult:
    crc = crc32c(data, crc32c(pack_header(header)[CRC_START:]))
    header = header._replace(crc=crc)
    return FilterResult(header, pack_header(header) + data, header.records_count)
