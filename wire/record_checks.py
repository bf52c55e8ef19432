"""What a broker checks of a batch that a client sent (protocol.md 7.2; Kafka: LogValidator).

Two paths. `validate_producer_batch` judges by header and checksum and is run for each batch;
`validate_records` opens the batch and is run only where a topic's rules need the records. Callers
import both from `wire.records`.

The first checks the body for plausibility, which is less than Kafka does: it reads every record of
every batch. Here the records of a batch of at most 16 must have the offset deltas 0, 1, 2, ...,
well-formed fields, header keys, and fill the batch; of a larger batch the first two are looked at.
So bodies of large batches that are malformed further in, under a right CRC, are stored as sent and
fail in the consumer. The max timestamp is the header's word too (Kafka recomputes it). The second
checks everything.

A compressed batch must start as its codec's readers want it. With `open_compressed` it is
decompressed to its end as well (in C, a piece at a time), so that no consumer meets data that
cannot be, and what comes out is held to what an uncompressed batch is.

Two strictnesses Kafka lacks: there, a CreateTime topic accepts a batch that claims LogAppendTime
(and clears the bit) while its records' times are in bounds; and attribute bits 6 to 15, which no
producer sets, are ignored.
"""

from __future__ import annotations

from typing import NamedTuple

from wire.compression import (
    CODECS,
    DECOMPRESSED_BYTES_MAX,
    ZSTD,
    decompress,
    decompressed_chunks,
    starts_as,
)
from wire.crc import crc32c
from wire.errors import ErrorCode, KafkaError
from wire.primitives import NO_TIMESTAMP
from wire.record_batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CRC_START,
    CREATE_TIME,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_MASK,
    BatchHeader,
    Buffer,
    check_crc,
    new_header,
    unpack_header,
)
from wire.record_body import (
    RECORD_SIZE_MIN,
    are_alike,
    check_records,
    invalid_record,
    parse_record,
)

_CLIENT_ATTRIBUTES = frozenset(
    codec.id | transactional for codec in CODECS for transactional in (0, TRANSACTIONAL_MASK)
)
_SMALL_BATCH_RECORDS = 16
_SMALL_BATCH_BYTES = 65_536
_SAMPLED_RECORDS = 2
_ZSTD_PRODUCE_VERSION = 7
_NO_LIMIT = 2**63 - 1
_LEGACY_SIZE_MIN = 12 + 14
"""What Kafka's reader takes for the least a batch of any magic can have."""


def validate_producer_batch(
    records: memoryview | bytes,
    *,
    request_version: int = 99,
    max_message_bytes: int = _NO_LIMIT,
    open_compressed: bool = False,
) -> BatchHeader:
    """Check what a producer sent for one partition by its header and CRC; return the header.

    Raises KafkaError with Kafka's code, in Kafka's order (ProduceRequest.validateRecords,
    UnifiedLog.analyzeAndValidateRecords, LogValidator.validateBatch): INVALID_RECORD unless it is
    exactly one batch, v2, with base offset 0, as many records as offsets, no control bit, no
    unknown attribute, sequences where there is a producer id, or when it is cut short (Kafka's
    iterator finds no batch then); MESSAGE_TOO_LARGE; CORRUPT_MESSAGE when the CRC differs;
    UNSUPPORTED_COMPRESSION_TYPE for an unknown codec, or for zstd before Produce v7 (KIP-110);
    INVALID_TIMESTAMP when the producer claims LogAppendTime. Then a look at the body: see the
    module.

    Budget beside the CRC: 3 µs for one record, 4 µs for a large batch, 10 µs for 16 records, 4 µs
    if these are of one shape, 20 µs if each has a header.
    Decompression (`open_compressed`): 10 to 60 µs for 16 KB of records, by codec.
    """
    size = len(records)
    if size < BATCH_OVERHEAD:
        raise _too_short(size)
    base, length, epoch, magic, crc, attrs, delta, first, last, pid, pepoch, seq, count = (
        unpack_header(records, 0)
    )
    header = new_header(
        BatchHeader,
        (base, length + 12, epoch, magic, crc, attrs, delta, first, last, pid, pepoch, seq, count),
    )
    if (
        length + LOG_OVERHEAD != size
        or base != 0
        or magic != MAGIC
        or delta + 1 != count
        or count <= 0
        or attrs not in _CLIENT_ATTRIBUTES
        or size > max_message_bytes
        or (request_version < _ZSTD_PRODUCE_VERSION and attrs & CODEC_MASK == ZSTD)
    ):
        _explain(records, header, request_version, max_message_bytes)
    view = memoryview(records)
    if crc32c(view[CRC_START:]) != crc:
        raise _corrupt(header)
    if pid >= 0 and seq < 0:
        raise _no_sequence(header)
    codec = attrs & CODEC_MASK
    if codec:
        _check_compressed(view[BATCH_OVERHEAD:], codec, count, open_compressed)
    else:
        _check_plausible(view, BATCH_OVERHEAD, size, count)
    return header


def _too_short(size: int) -> KafkaError:
    if size == 0:
        return invalid_record("a produce request must carry exactly one record batch, found none")
    return invalid_record(f"record batch of {size} bytes, its header needs 61")


def _corrupt(header: BatchHeader) -> KafkaError:
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE,
        f"the record batch's CRC-32C is not the stored {header.crc:#010x}",
    )


def _explain(
    records: memoryview | bytes, header: BatchHeader, request_version: int, max_message_bytes: int
) -> None:
    """Raise what is wrong with a batch that is not plainly right; return when nothing is."""
    size = len(records)
    if header.size < _LEGACY_SIZE_MIN or not 0 <= header.magic <= MAGIC:
        detail = f"record batch of magic {header.magic} says that it has {header.size} bytes"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, detail)
    if header.size > size:
        raise invalid_record(f"record batch says {header.size} bytes, {size} arrived")
    if header.magic != MAGIC:
        raise invalid_record(f"record batches must have magic 2, found {header.magic}")
    if header.size < BATCH_OVERHEAD:
        detail = f"record batch says {header.size} bytes, its header needs 61"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, detail)
    if header.size < size:
        raise invalid_record(
            f"a produce request must carry exactly one record batch, "
            f"{size - header.size} bytes follow the first"
        )
    _check_codec(header.codec, request_version)
    if header.base_offset != 0:
        raise invalid_record(
            f"base offset of a produced batch must be 0, found {header.base_offset}"
        )
    if size > max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"record batch of {size} bytes, max.message.bytes is {max_message_bytes}",
        )
    if not check_crc(records, 0, header):
        raise _corrupt(header)
    _check_counts(header)


def _check_codec(codec: int, request_version: int) -> None:
    if codec >= len(CODECS) or (codec == ZSTD and request_version < _ZSTD_PRODUCE_VERSION):
        name = CODECS[codec].name if codec < len(CODECS) else f"codec {codec}"
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{name} in Produce version {request_version}"
        )


def _check_counts(header: BatchHeader) -> None:
    count, delta = header.records_count, header.last_offset_delta
    if count <= 0 or delta + 1 != count:
        raise invalid_record(f"record batch of {count} records has last offset delta {delta}")
    if header.is_control:
        raise invalid_record("clients may not write control records")
    if header.timestamp_type == LOG_APPEND_TIME:
        detail = "producers may not set the timestamp type LogAppendTime"
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, detail)
    if header.attributes not in _CLIENT_ATTRIBUTES:
        raise invalid_record(f"unknown record batch attributes {header.attributes:#x}")


def _no_sequence(header: BatchHeader) -> KafkaError:
    """Kafka asks no more of the three here: an epoch is judged against what the log knows."""
    return invalid_record(
        f"producer {header.producer_id} sent base sequence {header.base_sequence}"
    )


def _check_plausible(view: memoryview, pos: int, size: int, count: int) -> None:
    """See `validate_producer_batch`: the first records of a body that lies in `view` from `pos` on
    and ends at `size`, which may be behind what is in the view of a large one."""
    if size - pos < count * RECORD_SIZE_MIN:
        raise invalid_record(f"{count} records cannot fit in {size - pos} bytes")
    walked = count if count <= _SMALL_BATCH_RECORDS else _SAMPLED_RECORDS
    body: bytes | memoryview = view
    try:
        if walked > 1 and size <= _SMALL_BATCH_BYTES:
            # Indexing bytes takes half the time of indexing a view; a small batch is soon copied.
            body = bytes(view)
            if walked == count and len(body) == size and are_alike(body, pos, count):
                return
        pos = check_records(body, pos, walked)
    except IndexError:
        if len(view) == size:
            raise invalid_record("a record runs past the end of its batch") from None
        return
    if pos != size and (walked == count or pos > size):
        raise invalid_record(f"{count} records do not end where their batch ends")


def _check_compressed(packed: memoryview, codec: int, count: int, open_it: bool) -> None:
    """The codec's start; with `open_it` all of the data, and then the records as above."""
    if not starts_as(packed, codec):
        raise invalid_record(f"records are not {CODECS[codec].name} data")
    if not open_it:
        return
    first, size = b"", 0
    for chunk in decompressed_chunks(packed, codec):
        if not size or (count <= _SMALL_BATCH_RECORDS and size == len(first)):
            first += chunk
        size += len(chunk)
    _check_plausible(memoryview(first), 0, size, count)


def records_body(
    buf: Buffer, pos: int, header: BatchHeader, *, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """The uncompressed records of the batch as bytes (KafkaError INVALID_RECORD, see above)."""
    end = pos + header.size
    if end > len(buf):
        raise invalid_record(f"batch of {header.size} bytes is cut short at {len(buf) - pos}")
    body = memoryview(buf)[pos + BATCH_OVERHEAD : end]
    codec = header.attributes & CODEC_MASK
    plain = decompress(body, codec, max_bytes) if codec else bytes(body)
    if header.records_count < 0 or header.records_count * RECORD_SIZE_MIN > len(plain):
        raise invalid_record(f"{header.records_count} records cannot fit in {len(plain)} bytes")
    return plain


class RecordsInfo(NamedTuple):
    """What reading a batch's records proved."""

    max_timestamp: int
    """Largest of the records' own times; unlike the header's, not the producer's word."""
    records_bytes: int
    """Uncompressed size."""


def validate_records(
    header: BatchHeader,
    buf: Buffer,
    *,
    wall_ms: int,
    timestamp_type: int = CREATE_TIME,
    require_key: bool = False,
    before_max_ms: int = _NO_LIMIT,
    after_max_ms: int = _NO_LIMIT,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
    pos: int = 0,
) -> RecordsInfo:
    """Read every record of a client's batch and check what Kafka's LogValidator checks of each.

    The slow path, 2 µs per record and decompression: for compacted topics (`require_key`) and
    when `needs_timestamp_check`. Raises KafkaError INVALID_RECORD for a malformed body, a wrong
    count, or offset deltas other than 0, 1, 2, ... (Kafka rebuilds such a compressed batch; no
    client sends one). Records without key, or under CreateTime with a time outside wall_ms -
    before_max_ms .. wall_ms + after_max_ms, fail one by one: the error is INVALID_TIMESTAMP if
    there is one bad time, else INVALID_RECORD, and its `record_errors` is a list of (batch_index,
    message). Time -1 is "no timestamp" and always passes.
    """
    oldest, newest = wall_ms - before_max_ms, wall_ms + after_max_ms
    check_time = timestamp_type == CREATE_TIME
    errors: list[tuple[int, str | None]] = []
    code = ErrorCode.INVALID_RECORD
    max_timestamp = NO_TIMESTAMP
    body = records_body(buf, pos, header, max_bytes=max_bytes)
    at = 0
    for index in range(header.records_count):
        at, timestamp_delta, offset_delta, key, _, _ = parse_record(body, at)
        if offset_delta != index:
            raise invalid_record(f"record {index} has offset delta {offset_delta}")
        timestamp = header.base_timestamp + timestamp_delta
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        if require_key and key is None:
            errors.append((index, "Compacted topic cannot accept message without key"))
        elif check_time and timestamp != NO_TIMESTAMP and not oldest <= timestamp <= newest:
            code = ErrorCode.INVALID_TIMESTAMP
            errors.append((index, f"Timestamp {timestamp} is not within [{oldest}, {newest}]"))
    if at != len(body):
        raise invalid_record(f"{len(body) - at} bytes follow the last of the announced records")
    if errors:
        raise _refused(code, errors)
    return RecordsInfo(max_timestamp, len(body))


def needs_timestamp_check(
    header: BatchHeader, wall_ms: int, before_max_ms: int, after_max_ms: int
) -> bool:
    """Whether `message.timestamp.{before,after}.max.ms` demand reading a CreateTime batch.

    With Kafka's defaults (no limit before, 1 h after) only a batch whose max timestamp is in the
    future needs it. A limit before needs it always: the header does not know the smallest time.
    """
    return header.max_timestamp > wall_ms + after_max_ms or wall_ms - before_max_ms > 0


def _refused(code: ErrorCode, errors: list[tuple[int, str | None]]) -> KafkaError:
    first = "; ".join(f"record {index}: {message}" for index, message in errors[:3])
    return KafkaError(code, f"{len(errors)} records refused: {first}", tuple(errors))
