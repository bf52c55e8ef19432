"""The header of a record batch v2: read, check, iterate, patch. All that a produce or fetch needs.

Why it exists: the broker checks, stamps and serves batches without opening them. One `Struct` reads
the 61 bytes, checksums run in C over memoryview slices, and only the few bytes that a leader may
change are ever written anew. Callers import these names from `wire.records`.

Byte layout, big-endian (Kafka: DefaultRecordBatch):

    0  int64 base_offset             rewritten by the leader, not in the CRC
    8  int32 batch_length            bytes after this field; `BatchHeader.size` is this + 12
   12  int32 partition_leader_epoch  stamped by the leader, not in the CRC
   16  int8  magic                   2
   17  uint32 crc                    CRC-32C of bytes 21 to the end
   21  int16 attributes              0-2 codec, 3 timestamp type, 4 transactional, 5 control,
                                     6 delete horizon (base_timestamp then holds it)
   23  int32 last_offset_delta       survives compaction, so last_offset never changes
   27  int64 base_timestamp          35 int64 max_timestamp
   43  int64 producer_id             51 int16 producer_epoch   53 int32 base_sequence
   57  int32 records_count           61 records, compressed as one block when codec is not 0; one
                                     record's layout: wire.record_body
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple, TypeAlias

from wire import layout
from wire.crc import crc32c
from wire.errors import MalformedFrame

Buffer: TypeAlias = bytes | bytearray | memoryview

LOG_OVERHEAD = layout.LOG_OVERHEAD
BATCH_OVERHEAD = layout.BATCH_OVERHEAD
MAGIC = layout.MAGIC
CRC_START = layout.CRC_START
SEQUENCE_MAX = 2**31 - 1

CODEC_MASK = layout.CODEC_MASK
TIMESTAMP_TYPE_MASK = layout.TIMESTAMP_TYPE_MASK
TRANSACTIONAL_MASK = layout.TRANSACTIONAL_MASK
CONTROL_MASK = layout.CONTROL_MASK
DELETE_HORIZON_MASK = layout.DELETE_HORIZON_MASK
_CODEC_BYTE = 22
"""The lower byte of the attributes."""

CREATE_TIME = 0
LOG_APPEND_TIME = 1

_HEADER = Struct(layout.BATCH_HEADER)
_PREFIX = Struct(">qii")  # base_offset, batch_length, leader_epoch: all that lies outside the CRC
_LENGTH = Struct(">i")


class BatchHeader(NamedTuple):
    """What the first 61 bytes of a batch say. A tuple: one is made per batch on every path."""

    base_offset: int
    size: int
    """All bytes of the batch, the 12 of base_offset and batch_length included."""
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record, inclusive; right for compacted batches too."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after this batch: what a reader asks for next."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 when the batch has none; 2**31-1 is followed by 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX

    @property
    def next_sequence(self) -> int:
        """What its producer's next batch begins with; 0 after one without sequences."""
        return (self.last_sequence + 1) & SEQUENCE_MAX

    @property
    def codec(self) -> int:
        """Compression id, a key of `wire.compression.CODECS` (5 to 7 are undefined)."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """CREATE_TIME (0) or LOG_APPEND_TIME (1)."""
        return LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_MASK else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction (a marker batch is transactional too)."""
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        """Whether the records are control records, which applications never see."""
        return bool(self.attributes & CONTROL_MASK)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether `base_timestamp` is the time when tombstones and markers may go (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON_MASK)


new_header = tuple.__new__
unpack_header = _HEADER.unpack_from


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header of the batch that starts at `pos`.

    Raises MalformedFrame when fewer than 61 bytes are left, the batch claims to be smaller than its
    header, or magic is not 2. Budget: 0.5 µs (benchmarks/micro/records.py).
    """
    try:
        base, length, epoch, magic, crc, attrs, delta, first, last, pid, pepoch, seq, count = (
            unpack_header(buf, pos)
        )
    except struct.error:
        raise MalformedFrame(
            f"record batch header cut short at byte {len(buf) - pos} of 61"
        ) from None
    if magic != MAGIC or length < BATCH_OVERHEAD - LOG_OVERHEAD:
        raise MalformedFrame(f"not a record batch v2: magic={magic} batch_length={length}")
    return new_header(
        BatchHeader,
        (base, length + 12, epoch, magic, crc, attrs, delta, first, last, pid, pepoch, seq, count),
    )


def is_compressed(buf: Buffer) -> bool:
    """Whether the batch that `buf` begins with says so; False for what is shorter than a header."""
    return len(buf) >= BATCH_OVERHEAD and bool(buf[_CODEC_BYTE] & CODEC_MASK)


def iterate_headers(
    buf: Buffer, pos: int = 0, end: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch that lies wholly in `buf[pos:end]`, in order.

    A partial batch at the end is left out: fetches may cut there. Raises MalformedFrame as
    `read_header` does, so garbage is never skipped.
    """
    limit = len(buf) if end is None else end
    while limit - pos >= BATCH_OVERHEAD:
        header = read_header(buf, pos)
        if pos + header.size > limit:
            return
        yield pos, header
        pos += header.size


def check_crc(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    """Whether the stored CRC-32C is that of the bytes; False too when not all of them are there."""
    end = pos + header.size
    if end > len(buf):
        return False
    return crc32c(memoryview(buf)[pos + CRC_START : end]) == header.crc


def patch_for_log(buf: Buffer, base_offset: int, leader_epoch: int, pos: int = 0) -> bytes:
    """The first 16 bytes as the leader stores them: neither field is in the CRC, so the log writes
    `[patch, buf[pos + 16 : pos + size]]` and copies no record."""
    (length,) = _LENGTH.unpack_from(buf, pos + 8)
    return _PREFIX.pack(base_offset, length, leader_epoch)


def patch_timestamps(
    buf: Buffer, header: BatchHeader, timestamp_type: int, max_timestamp: int, pos: int = 0
) -> bytes:
    """The 61 header bytes with another timestamp type and max timestamp and the CRC that fits.

    For topics with `message.timestamp.type=LogAppendTime`, and for a batch whose max timestamp
    proved wrong (Kafka: DefaultRecordBatch.setMaxTimestamp). The records themselves stay as they
    are and are not copied; the cost is one more CRC pass over them.
    """
    attributes = header.attributes & ~TIMESTAMP_TYPE_MASK
    if timestamp_type == LOG_APPEND_TIME:
        attributes |= TIMESTAMP_TYPE_MASK
    patched = header._replace(attributes=attributes, max_timestamp=max_timestamp)
    head = pack_header(patched)
    end = pos + header.size
    crc = crc32c(memoryview(buf)[pos + BATCH_OVERHEAD : end], crc32c(head[CRC_START:]))
    return pack_header(patched._replace(crc=crc))


def with_log_append_time(buf: Buffer, wall_ms: int, pos: int = 0) -> bytes:
    """A copy of the batch with the broker's time: attribute bit 3, max timestamp, new CRC."""
    header = read_header(buf, pos)
    head = patch_timestamps(buf, header, LOG_APPEND_TIME, wall_ms, pos)
    return head + bytes(memoryview(buf)[pos + BATCH_OVERHEAD : pos + header.size])


def pack_header(header: BatchHeader) -> bytes:
    return _HEADER.pack(header.base_offset, header.size - LOG_OVERHEAD, *header[2:])
