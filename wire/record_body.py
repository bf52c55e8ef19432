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
from wire.primitives import NO_TIMESTAMP

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

RECORD_SIZE_MIN = 7
"""Length, attributes, two deltas, key and value lengths, header count: one byte each."""
_TWO_BYTES_MAX = 0x3FFF
_NULL = 1
"""A length of -1 in one byte."""
_DOUBLED_DELTAS = bytes(range(0, 128, 2))


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


def check_fields(buf: bytes | memoryview, pos: int, offset_delta: int) -> int:
    """The end of the record at `pos`, which must have this offset delta, fields that fill exactly
    its length, and no header without a key. Copies nothing.

    Raises KafkaError INVALID_RECORD when it is not so, IndexError past the end of the buffer.
    """
    length, pos = read_varint(buf, pos)
    end = pos + length
    _, pos = read_varint(buf, pos + 1, 63)
    delta, pos = read_varint(buf, pos)
    if delta != offset_delta:
        raise invalid_record(f"record {offset_delta} has offset delta {delta}")
    pos = _skip_bytes(buf, pos, end)
    pos = _skip_bytes(buf, pos, end)
    if _skip_headers(buf, pos, end) != end:
        raise invalid_record(f"record {offset_delta} says {length} bytes, its fields end elsewhere")
    return end


def check_records(buf: bytes | memoryview, pos: int, count: int) -> int:
    """`check_fields` of `count` records in a row, at most 64; the end of the last one.

    Most records are shorter than 8 KiB, with keys below 64 bytes: those are read in place, in a
    third of the time. What is not as expected, right or wrong, is judged by `check_fields`. Zig-zag
    makes a number that is not negative its double: so the offset delta is compared doubled, and an
    even length needs a shift. Raises as `check_fields`.
    """
    for doubled_delta in range(0, 2 * count, 2):
        size, at = buf[pos], pos + 2  # `at`: over the attributes
        if size > 0x7F:
            size, at = size + (buf[pos + 1] << 7) - 0x80, pos + 3
        end = at - 1 + (size >> 1)
        if buf[at] > 0x7F:  # over the timestamp delta
            at += 1
            if buf[at] > 0x7F:
                at += 1
        if size <= _TWO_BYTES_MAX and buf[at] <= 0x7F and buf[at + 1] == doubled_delta:
            key = buf[at + 2]
            if not key & 0x81 or key == _NULL:
                at += 3 + (key >> 1)
                value = buf[at]
                if value > 0x7F:
                    at += 1
                    value += (buf[at] << 7) - 0x80  # with a third byte it exceeds the record
                at += 1 + (value >> 1)
                if (
                    (not value & 1 or value == _NULL)
                    and not size & 1
                    and at < end
                    and ((at + 1 == end and not buf[at]) or _skip_headers(buf, at, end) == end)
                ):
                    pos = end
                    continue
        pos = check_fields(buf, pos, doubled_delta >> 1)
    return pos


def are_alike(body: bytes, pos: int, count: int) -> bool:
    """True if what `body` has from `pos` on is `count` records, at most 64, that `check_fields`
    finds right and that have the same size, the same sizes of key and value, and no headers.

    Many producers send such, and a slice with the record's size for its step has one byte of each
    of them: so all are compared at once, in C. False says nothing. Budget: 2 µs, 0.2 µs if False.
    """
    size, rest = divmod(len(body) - pos, count)
    if rest or size < RECORD_SIZE_MIN:
        return False
    length, start = body[pos], pos + 1
    if length > 0x7F:
        length, start = length + (body[start] << 7) - 0x80, pos + 2
    key = body[start + 3]  # behind the attributes and two deltas of one byte each
    at = start + 4 + (key >> 1)
    end = pos + size
    if at >= end or (key & 0x81 and key != _NULL):
        return False
    same = [pos, start - 1, start + 3, at]
    value = body[at]
    if value > 0x7F:
        at += 1
        value += (body[at] << 7) - 0x80
        same.append(at)
    return (
        not length & 1
        and length <= _TWO_BYTES_MAX
        and start + (length >> 1) == end
        and (not value & 1 or value == _NULL)
        and at + 1 + (value >> 1) == end - 1
        and all(body[column::size].count(body[column]) == count for column in same)
        and body[start + 1 :: size].isascii()
        and body[start + 2 :: size] == _DOUBLED_DELTAS[:count]
        and not any(body[end - 1 :: size])
    )


def _skip_bytes(buf: bytes | memoryview, pos: int, end: int) -> int:
    size, pos = read_varint(buf, pos)
    if size > 0:
        pos += size
    elif size < -1:
        raise invalid_record(f"key or value of {size} bytes")
    if pos >= end:
        raise invalid_record("key or value runs past the end of its record")
    return pos


def _skip_headers(buf: bytes | memoryview, pos: int, end: int) -> int:
    count, pos = read_varint(buf, pos)
    if count < 0 or pos + 2 * count > end:
        raise invalid_record(f"{count} headers in {end - pos} bytes")
    for _ in range(count):
        size, pos = read_varint(buf, pos)
        if size < 0:
            raise invalid_record("header without a key")
        value_size, pos = read_varint(buf, pos + size)
        if value_size < -1:
            raise invalid_record(f"header value of {value_size} bytes")
        pos += max(value_size, 0)
    return pos


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
