"""One record inside a batch v2: encode and parse, and the varints it is made of.

Why apart from `wire.records`: a batch is handled by its header, thousands of times a second;
records are opened only by coordinators, the cleaner, compaction and tools. Nothing here knows of
batches.

Record (Kafka: DefaultRecord): varint length of the rest, int8 attributes (0), varlong timestamp
delta, varint offset delta, varint-prefixed key and value (-1 is null), varint header count, then
per header a varint-prefixed key (never null) and value. Varints are zig-zag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from wire.errors import ErrorCode, KafkaError

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

NO_TIMESTAMP = -1
RECORD_SIZE_MIN = 7
"""Length, attributes, two deltas, key and value lengths, header count: one byte each."""


class Record(NamedTuple):
    """One record. `offset` -1 lets `build_batch` number it; `timestamp` -1 is "no timestamp"."""

    offset: int = -1
    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


ParsedRecord: TypeAlias = tuple[
    int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]
]


def parse_record(body: bytes, pos: int) -> ParsedRecord:
    """(end, timestamp_delta, offset_delta, key, value, headers) of the record at `pos`.

    Raises KafkaError INVALID_RECORD. Slices past the end do not raise in Python, so every length is
    held against the record's own end before use.
    """
    try:
        length, pos = read_varint(body, pos)
        end = pos + length
        if length < RECORD_SIZE_MIN - 1 or end > len(body):
            raise invalid_record(f"record of {length} bytes with {len(body) - pos} left")
        timestamp_delta, pos = read_varint(body, pos + 1, 63)
        offset_delta, pos = read_varint(body, pos)
        key, pos = _read_bytes(body, pos, end)
        value, pos = _read_bytes(body, pos, end)
        count, pos = read_varint(body, pos)
        headers = _read_record_headers(body, pos, end, count) if count else ([], pos)
    except IndexError:
        raise invalid_record("record runs past the end of its batch") from None
    if headers[1] != end:
        raise invalid_record(f"record says {length} bytes but its fields end elsewhere")
    return end, timestamp_delta, offset_delta, key, value, headers[0]


def check_fields(buf: bytes | memoryview, pos: int) -> int:
    """The end of a batch's first record (offset delta 0), whose fields fill exactly its length.

    Raises KafkaError INVALID_RECORD when they do not, IndexError past the end of the buffer. Copies
    nothing; headers are counted but not opened.
    """
    length, pos = read_varint(buf, pos)
    end = pos + length
    pos += 1
    while buf[pos] > 0x7F:
        pos += 1
    if buf[pos + 1] != 0:
        raise invalid_record("the first record's offset delta is not 0")
    pos += 2
    for _ in (0, 1):  # key, value
        size, pos = read_varint(buf, pos)
        if size > 0:
            pos += size
        elif size < -1:
            raise invalid_record(f"key or value of {size} bytes")
        if pos >= end:
            raise invalid_record("key or value runs past the end of its record")
    count, pos = read_varint(buf, pos)
    if count < 0 or (pos != end if count == 0 else pos + 2 * count > end):
        raise invalid_record(f"{count} headers in {end - pos} bytes")
    return end


def _read_bytes(body: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    size, pos = read_varint(body, pos)
    if size < 0:
        if size < -1:
            raise invalid_record(f"key or value of {size} bytes")
        return None, pos
    stop = pos + size
    if stop > end:
        raise invalid_record(f"key or value of {size} bytes in a record with {end - pos} left")
    return body[pos:stop], stop


def _read_record_headers(
    body: bytes, pos: int, end: int, count: int
) -> tuple[list[tuple[str, bytes | None]], int]:
    if not 0 < count <= end - pos:
        raise invalid_record(f"{count} headers in a record with {end - pos} bytes left")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, pos = _read_bytes(body, pos, end)
        if key is None:
            raise invalid_record("header without a key")
        value, pos = _read_bytes(body, pos, end)
        # Kafka never checks the encoding of a header key: what is not UTF-8 must survive the
        # reading.
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return headers, pos


def read_varint(buf: bytes | memoryview, pos: int, bits: int = 31) -> tuple[int, int]:
    """(value, next position) of a zig-zag varint (`bits` 31) or varlong (63).

    Raises IndexError at the end of the buffer and KafkaError INVALID_RECORD when it is too long.
    """
    byte = buf[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    value = byte & 0x7F
    shift = 7
    while True:
        pos += 1
        byte = buf[pos]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > bits:
            raise invalid_record("varint is too long")
    if value >> (bits + 1):
        raise invalid_record("varint is out of range")
    return (value >> 1) ^ -(value & 1), pos + 1


def invalid_record(detail: str) -> KafkaError:
    """The error of a body that is not what its header says."""
    return KafkaError(ErrorCode.INVALID_RECORD, detail)


def encode_records(
    rows: list[Record], base_offset: int, base_timestamp: int
) -> tuple[bytearray, int]:
    out = bytearray()
    previous = -1
    for index, (offset, timestamp, key, value, headers) in enumerate(rows):
        delta = index if offset < 0 else offset - base_offset
        if delta <= previous:
            raise ValueError(f"offset {offset} does not follow {base_offset + previous}")
        previous = delta
        record = bytearray(1)
        write_varint(record, timestamp - base_timestamp)
        write_varint(record, delta)
        _write_bytes(record, key)
        _write_bytes(record, value)
        write_varint(record, len(headers))
        for name, data in headers:
            _write_bytes(record, name.encode("utf-8", "surrogateescape"))
            _write_bytes(record, data)
        write_varint(out, len(record))
        out += record
    return out, max(previous, 0)


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # zig-zag -1
    else:
        write_varint(out, len(data))
        out += data


def write_varint(out: bytearray, value: int) -> None:
    """Append `value` as a zig-zag varint (or varlong: the encoding is the same)."""
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)
