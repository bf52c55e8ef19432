"""What is checked and changed in a batch before a log writes it.

The common case looks at the 61-byte header and the checksum only. Records are opened where a rule
needs them, off the common path: the log is compacted (every record needs a key), a timestamp bound
may be broken (the header's newest time is out of bounds, or `message.timestamp.before.max.ms` is
set, for the header does not hold the oldest time), or `compression.type` asks for another codec
than the producer's. LogAppendTime changes the header only.

Order of checks and their error codes: protocol.md 7.2 (Kafka: UnifiedLog.analyzeAndValidateRecords,
LogValidator).

Gaps: the header's max timestamp is believed where no rule opens the records; Kafka recomputes it.
"""

from __future__ import annotations

from struct import Struct

from storage.config import LogConfig
from storage.files import Buffer
from storage.log.append_source import AppendOrigin, AppendSource
from wire.control_records import EndTxnMarker, parse_end_txn_marker
from wire.errors import ErrorCode, KafkaError, MalformedFrame
from wire.record_batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CREATE_TIME,
    LOG_APPEND_TIME,
    BatchHeader,
    check_crc,
    read_header,
    with_log_append_time,
)
from wire.record_checks import needs_timestamp_check, validate_producer_batch, validate_records
from wire.records import build_batch, read_records

PreparedBatch = tuple[BatchHeader, Buffer, int]
"""Header, bytes to write (the first 16 are stamped later), log append time or -1."""

_FEW_RECORDS = 16
_FEW_COMPRESSED_BYTES = 4096
_OPENING_HEADER = Struct(">21xh4x8xq14xi")  # attributes, max timestamp, records count
_BASE_OFFSET_BYTES = 8


def prepare_batch(
    records: Buffer,
    config: LogConfig,
    wall_ms: int,
    source: AppendSource,
) -> PreparedBatch:
    """Check a batch to be appended by a leader and change what the topic's configs demand.

    Raises KafkaError; nothing was written. A batch of the broker itself (coordinators, quorum) is
    held to its frame and checksum only, a coordinator's to `max.message.bytes`, too.
    """
    origin = source.origin
    if origin is AppendOrigin.CLIENT:
        header = validate_producer_batch(
            records,  # type: ignore[arg-type]
            request_version=source.request_version,
            max_message_bytes=config.max_message_bytes,
            open_compressed=source.opens_compressed,
        )
        if (
            config.takes_batches_as_sent
            and header.max_timestamp <= wall_ms + config.message_timestamp_after_max_ms
        ):
            return header, records, -1
        return _apply_rules(header, records, config, wall_ms)
    header = _check_own_batch(records)
    if origin is AppendOrigin.COORDINATOR and header.size > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {header.size} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if origin is AppendOrigin.COORDINATOR and config.uses_log_append_time:
        records = with_log_append_time(records, wall_ms)
        return read_header(records), records, wall_ms
    return header, records, -1


def needs_records_opened(
    records: Buffer, config: LogConfig, wall_ms: int, opens_compressed: bool
) -> bool:
    """Whether appending a client's batch means work on its records that is worth another thread.

    By its header and the topic's config alone: a rule may make the log open them (see the module),
    or it has to be decompressed. `is_soon_opened` is asked first. Pure. Budget: 0.5 µs.
    """
    if len(records) < BATCH_OVERHEAD:
        return False
    attributes, max_timestamp, _count = _OPENING_HEADER.unpack_from(records)
    if attributes & CODEC_MASK and opens_compressed and len(records) > _FEW_COMPRESSED_BYTES:
        return True
    return not (
        config.takes_batches_as_sent
        and max_timestamp <= wall_ms + config.message_timestamp_after_max_ms
    )


def is_soon_opened(records: Buffer) -> bool:
    """Whether a batch has so few records, none compressed, that opening them takes less time than
    handing them to another thread, whatever the topic's config. Pure."""
    if len(records) < BATCH_OVERHEAD:
        return False
    attributes, _max_timestamp, count = _OPENING_HEADER.unpack_from(records)
    return not attributes & CODEC_MASK and 0 <= count <= _FEW_RECORDS


def opening_header(records: Buffer) -> BatchHeader:
    """Of a batch to be appended, before it is checked. Raises KafkaError if it is none."""
    try:
        return read_header(records)
    except MalformedFrame as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None


def _check_own_batch(records: Buffer) -> BatchHeader:
    header = opening_header(records)
    if header.size != len(records) or not check_crc(records, 0, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "batch size or checksum is wrong")
    return header


def _apply_rules(
    header: BatchHeader, records: Buffer, config: LogConfig, wall_ms: int
) -> PreparedBatch:
    """The slow path: open the records where a rule needs them, rewrite where a config demands."""
    before = config.message_timestamp_before_max_ms
    after = config.message_timestamp_after_max_ms
    is_append_time = config.uses_log_append_time
    check_time = not is_append_time and needs_timestamp_check(header, wall_ms, before, after)
    if config.is_compacted or check_time:
        validate_records(
            header,
            records,
            wall_ms=wall_ms,
            timestamp_type=LOG_APPEND_TIME if is_append_time else CREATE_TIME,
            require_key=config.is_compacted,
            before_max_ms=before,
            after_max_ms=after,
        )
    if config.compression_type not in ("producer", _codec_name(header.codec)):
        records = _recompress(header, records, config)
        header = read_header(records)
        if header.size > config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"batch of {header.size} bytes after recompression, max.message.bytes is "
                f"{config.max_message_bytes}",
            )
    if is_append_time:
        records = with_log_append_time(records, wall_ms)
        return read_header(records), records, wall_ms
    return header, records, -1


def _codec_name(codec: int) -> str:
    from wire.compression import CODECS

    return CODECS[codec].name if codec else "uncompressed"


def _recompress(header: BatchHeader, records: Buffer, config: LogConfig) -> bytes:
    """The same records in the codec the topic asks for; producer id and sequence stay."""
    from wire.compression import CODEC_IDS

    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    level = levels.get(config.compression_type)
    return build_batch(
        read_records(records, 0, header),
        codec=CODEC_IDS[config.compression_type],
        level=None if level == -1 else level,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
    )


def base_offset(records: Buffer) -> int:
    """Of the first batch."""
    return int.from_bytes(records[:_BASE_OFFSET_BYTES], "big")


def read_marker(header: BatchHeader, batch: Buffer) -> EndTxnMarker | None:
    """The transaction marker in a control batch of a producer; None if compaction emptied it.

    Raises KafkaError INVALID_RECORD if its record is no marker.
    """
    for record in read_records(batch, 0, header):
        return parse_end_txn_marker(record)
    return None


def start_of_batch_around(records: Buffer, offset: int) -> int:
    """Where the first batch begins, if it begins before `offset` and holds it; else `offset`."""
    try:
        header = read_header(records)
    except MalformedFrame:
        return offset
    return header.base_offset if header.base_offset < offset <= header.last_offset else offset


def check_follower_batches(
    records: Buffer, end_offset: int, leader_epoch: int
) -> list[tuple[int, BatchHeader]]:
    """The longest valid prefix of what a leader sent, as (position, header) pairs (E-9).

    Valid: offsets ascend from the log's end, the checksum is right, the epoch is not above the
    leader's, a producer's control batch is a marker. A partial batch at the end is left out. Raises
    KafkaError if the very first batch is wrong: then there is nothing to keep, and the follower
    must ask again.
    """
    valid: list[tuple[int, BatchHeader]] = []
    position = 0
    next_offset = end_offset
    while len(records) - position >= BATCH_OVERHEAD:
        try:
            header = read_header(records, position)
            if position + header.size > len(records):
                break
            _check_follower_batch(records, position, header, next_offset, leader_epoch)
        except (KafkaError, MalformedFrame) as error:
            if valid:
                break
            if isinstance(error, KafkaError):
                raise
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        valid.append((position, header))
        next_offset = header.next_offset
        position += header.size
    return valid


def _check_follower_batch(
    records: Buffer, position: int, header: BatchHeader, next_offset: int, leader_epoch: int
) -> None:
    if header.base_offset < next_offset or header.last_offset_delta < 0:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"batch starts at {header.base_offset}, the log ends at {next_offset}",
        )
    if header.leader_epoch > leader_epoch:
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"batch of epoch {header.leader_epoch} from a leader of epoch {leader_epoch}",
        )
    if not check_crc(records, position, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"checksum differs at {header.base_offset}")
    if header.is_control and header.producer_id >= 0:
        read_marker(header, memoryview(records)[position : position + header.size])
