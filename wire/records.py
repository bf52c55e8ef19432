"""Record batches v2: the unit that producers send, the log stores and consumers fetch, unchanged.

This is the name by which everyone imports them. Behind it: `record_batch` (the 61-byte header: all
that the hot paths touch), `record_checks` (what a client's batch must satisfy), `record_body` (one
record), `control_records`; here are the two functions that join them, `read_records` and
`build_batch`, for those who must look inside: coordinators, the cleaner, the quorum, tools, tests.

Duties of the caller:
1. A `BatchHeader` says what the bytes claim. Nothing is believed until `check_crc` was true.
2. `read_header` checks only what keeps later reads inside the buffer (size, magic); whether the
   whole batch is present is `pos + header.size <= len(buf)`, which `iterate_headers` does.
3. `read_records` and `validate_records` decompress: never on a thread that serves sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wire.compression import DECOMPRESSED_BYTES_MAX, NONE, compress_within_bounds
from wire.control_records import (
    ControlRecordType,
    EndTxnMarker,
    control_record_key,
    control_record_type,
    encode_end_txn_marker,
    parse_end_txn_marker,
)
from wire.crc import crc32c
from wire.primitives import NO_TIMESTAMP
from wire.record_batch import (
    BATCH_OVERHEAD,
    CONTROL_MASK,
    CRC_START,
    CREATE_TIME,
    DELETE_HORIZON_MASK,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    SEQUENCE_MAX,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    Buffer,
    check_crc,
    iterate_headers,
    pack_header,
    patch_for_log,
    patch_timestamps,
    read_header,
    with_log_append_time,
)
from wire.record_body import (
    Record,
    encode_records,
    invalid_record,
    parse_record,
)
from wire.record_checks import (
    RecordsInfo,
    needs_timestamp_check,
    records_body,
    validate_producer_batch,
    validate_records,
)

__all__ = [
    "BATCH_OVERHEAD",
    "CREATE_TIME",
    "LOG_APPEND_TIME",
    "LOG_OVERHEAD",
    "MAGIC",
    "NO_TIMESTAMP",
    "SEQUENCE_MAX",
    "BatchHeader",
    "Record",
    "RecordsInfo",
    "ControlRecordType",
    "EndTxnMarker",
    "read_header",
    "iterate_headers",
    "check_crc",
    "patch_for_log",
    "patch_timestamps",
    "with_log_append_time",
    "validate_producer_batch",
    "validate_records",
    "needs_timestamp_check",
    "read_records",
    "build_batch",
    "build_control_batch",
    "end_txn_marker_batch",
    "control_record_key",
    "control_record_type",
    "encode_end_txn_marker",
    "parse_end_txn_marker",
]


def read_records(
    buf: Buffer,
    pos: int = 0,
    header: BatchHeader | None = None,
    *,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[Record]:
    """Yield the records of the batch at `pos`, decompressed whole, never beyond `max_bytes`.

    Offsets and timestamps are absolute; under LogAppendTime every record has the batch's time.
    Trusts no length: raises MalformedFrame for the header and KafkaError INVALID_RECORD for the
    body (too short, left over, null header key, not as many records as announced, bad
    compression). The CRC is the caller's business.
    """
    if header is None:
        header = read_header(buf, pos)
    body = records_body(buf, pos, header, max_bytes=max_bytes)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_MASK else None
    at = 0
    for _ in range(header.records_count):
        at, timestamp_delta, offset_delta, key, value, headers = parse_record(body, at)
        timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
        yield Record(base_offset + offset_delta, timestamp, key, value, headers)
    if at != len(body):
        raise invalid_record(f"{len(body) - at} bytes follow the last of the announced records")


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: int = 0,
    level: int | None = None,
    timestamp_type: int = CREATE_TIME,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    last_offset_delta: int | None = None,
    max_timestamp: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """One batch of these records, with its CRC.

    A record with offset -1 is numbered from `base_offset` on; the others keep theirs, which is what
    compaction needs, together with `last_offset_delta` (the original one) and `delete_horizon_ms`.
    `read_records` reads it: records that `codec` makes smaller than that allows are in another one.
    Under LogAppendTime pass `max_timestamp`: it is every record's time. An empty batch needs
    `last_offset_delta`. Raises ValueError for offsets that do not ascend from `base_offset`.
    """
    rows = list(records)
    if not rows and last_offset_delta is None:
        raise ValueError("an empty batch needs last_offset_delta")
    base_timestamp, newest = _timestamp_range(rows, delete_horizon_ms)
    body, delta = encode_records(rows, base_offset, base_timestamp)
    data, codec = compress_within_bounds(body, codec if rows else NONE, level)
    attributes = codec | (timestamp_type << 3)
    attributes |= TRANSACTIONAL_MASK if is_transactional else 0
    attributes |= CONTROL_MASK if is_control else 0
    attributes |= DELETE_HORIZON_MASK if delete_horizon_ms is not None else 0
    header = BatchHeader(
        base_offset,
        BATCH_OVERHEAD + len(data),
        leader_epoch,
        MAGIC,
        0,
        attributes,
        delta if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        newest if max_timestamp is None else max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(rows),
    )
    crc = crc32c(data, crc32c(pack_header(header)[CRC_START:]))
    return pack_header(header._replace(crc=crc)) + data


def _timestamp_range(rows: list[Record], delete_horizon_ms: int | None) -> tuple[int, int]:
    if not rows:
        return NO_TIMESTAMP if delete_horizon_ms is None else delete_horizon_ms, NO_TIMESTAMP
    first = rows[0].timestamp if delete_horizon_ms is None else delete_horizon_ms
    return first, max(record.timestamp for record in rows)


def end_txn_marker_batch(
    marker: EndTxnMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The batch that ends a producer's transaction on a partition: attributes 0x30, one record."""
    return build_control_batch(
        [(marker.type, encode_end_txn_marker(marker))],
        timestamp=timestamp,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
    )


def build_control_batch(
    entries: Iterable[tuple[ControlRecordType, bytes]],
    *,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    is_transactional: bool = False,
) -> bytes:
    """A control batch of (type, encoded value) records, all at `timestamp`; never compressed."""
    return build_batch(
        [Record(-1, timestamp, control_record_key(type), value) for type, value in entries],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=is_transactional,
        is_control=True,
    )
