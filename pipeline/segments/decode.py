"""Bytes of a segment -> Arrow record batches, with no Python code per field.

Runs on Spark's executors and travels there by value: imports only NumPy and PyArrow (whose codecs
decompress). Why not `wire.records`: that opens one record at a time, 3 µs each, right for a
broker that hardly ever opens one. Here every record is opened, so it is done in columns: one
short Python loop per record finds where it begins (its length is the only thing that must be read
in order); then NumPy reads the varints of thousands of records at a time, and Arrow gathers keys,
values and headers straight out of the decompressed bytes.

Columns, types and order are those of Spark's Kafka source, nulls included: a record without headers
has null headers, as there.

Every batch's checksum is verified (pipeline.segments.crc).
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from .crc import checksum_function
from .layout import (
    BEFORE_LENGTH,
    CODEC,
    CODEC_NAMES,
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
    XERIAL_HEADER_BYTES,
    XERIAL_MAGIC,
)
from .plan import SegmentPart

_READ_BYTES = 8 * 1024 * 1024
_GROUP_BYTES = 4 * 1024 * 1024
_GROUP_RECORDS = 50_000
_PADDING = bytes(16)
_LATEST_MS = (2**63 - 1) // 1000
"""Of Spark's timestamps, which count microseconds: the year 294247. Later ones are this."""
_DAMAGED = (
    "the file is damaged; `barnabas pipeline rescue --skip-damaged` (of a broker that does not run)"
    " leaves such places out"
)
_HEADER_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])

Ints = np.ndarray[Any, np.dtype[np.int64]]


class SegmentError(Exception):
    """The bytes of a segment are not what a broker wrote; the text names file and offset."""


class Batch(NamedTuple):
    """One record batch whose records are wanted: header fields and the decompressed body."""

    base_offset: int
    base_timestamp: int
    append_time: int | None
    records: int
    body: bytes


def read_part(part: SegmentPart, include_headers: bool) -> Iterator[pa.RecordBatch]:
    """All wanted records of one part. Raises SegmentError."""
    group: list[Batch] = []
    size = records = 0
    for batch in _wanted_batches(part):
        group.append(batch)
        size += len(batch.body)
        records += batch.records
        if size >= _GROUP_BYTES or records >= _GROUP_RECORDS:
            yield decode(group, part, include_headers)
            group, size, records = [], 0, 0
    if group:
        yield decode(group, part, include_headers)


# ---- batches


class _Aborted:
    """Transactions to leave out. Those of one producer follow each other."""

    def __init__(self, spans: Iterable[tuple[int, int, int]]) -> None:
        self._firsts: dict[int, list[int]] = {}
        self._lasts: dict[int, list[int]] = {}
        for producer, first, last in sorted(spans):
            self._firsts.setdefault(producer, []).append(first)
            self._lasts.setdefault(producer, []).append(last)

    def has(self, producer: int, offset: int) -> bool:
        at = bisect_right(self._firsts.get(producer, ()), offset) - 1
        return at >= 0 and offset <= self._lasts[producer][at]


def _wanted_batches(part: SegmentPart) -> Iterator[Batch]:
    crc32c = checksum_function()
    aborted = _Aborted(part.aborted)
    for head, data in _batches(part):
        base, _, _, _, crc, attributes, delta, first_time, last_time, producer, _, _, count = head
        if base + delta < part.from_offset or not count or attributes & CONTROL:
            continue
        if part.since_ms is not None and last_time < part.since_ms:
            continue
        if attributes & TRANSACTIONAL and aborted.has(producer, base):
            continue
        if crc32c(data[CRC_START:]) != crc:
            raise SegmentError(
                f"{part.path}: the batch at offset {base} has a wrong checksum; {_DAMAGED}"
            )
        append_time = last_time if attributes & TIMESTAMP_TYPE else None
        body = _decompress(part, base, attributes & CODEC, data[HEADER_BYTES:])
        yield Batch(base, first_time, append_time, count, body)


def _batches(part: SegmentPart) -> Iterator[tuple[tuple[int, ...], memoryview]]:
    """(header fields, bytes) of each whole batch below the part's end."""
    fd = _open(part.path)
    try:
        position = part.position
        for begin, end in part.left_out:
            if position < begin:
                yield from _batches_between(part, fd, position, begin)
            position = max(position, end)
        yield from _batches_between(part, fd, position, None)
    finally:
        os.close(fd)


def _batches_between(
    part: SegmentPart, fd: int, position: int, end: int | None
) -> Iterator[tuple[tuple[int, ...], memoryview]]:
    """Those of a piece of the file; its end, if it is not the file's, is the end of a batch."""
    at, buffer = 0, b""
    while position != end:
        if len(buffer) - at < HEADER_BYTES:
            buffer, at = os.pread(fd, _READ_BYTES, position), 0
            if len(buffer) < HEADER_BYTES:
                break
        head = struct.unpack_from(HEADER, buffer, at)
        base, length, magic = head[0], head[1], head[3]
        if base >= part.to_offset:
            return
        if length == 0 and part.is_last:  # zeros: a preallocated file's free space
            buffer = b""
            break
        if magic != MAGIC or length < HEADER_BYTES - BEFORE_LENGTH:
            raise SegmentError(_not_a_batch(part, position, length, magic))
        size = BEFORE_LENGTH + length
        if len(buffer) - at < size:
            buffer, at = os.pread(fd, max(_READ_BYTES, size), position), 0
            if len(buffer) < size:
                break
        yield head, memoryview(buffer)[at : at + size]
        if base + head[6] + 1 >= part.to_offset:
            return  # what follows may be the remains of a crash
        position += size
        at += size
    else:
        return
    _check_end(part, buffer)


def _check_end(part: SegmentPart, rest: bytes) -> None:
    """Raise SegmentError for a file that ends where it cannot. `rest`: behind its last batch; the
    active one's may be half a batch, being written or cut off by a crash."""
    if part.is_whole:
        raise SegmentError(
            f"{part.path} ends before offset {part.to_offset}, up to which its broker knew it to"
            " be replicated: records are lost, as by a power failure; --log-end (readTo logEnd)"
            " reads what is left"
        )
    if rest.strip(b"\0") and not part.is_last:
        raise SegmentError(
            f"{part.path} ends within the batch at offset {int.from_bytes(rest[:8], 'big')};"
            f" {_DAMAGED}"
        )


def _not_a_batch(part: SegmentPart, position: int, length: int, magic: int) -> str:
    if magic in (0, 1) and length:
        return (
            f"{part.path}: message format {magic} of before Kafka 0.11; let a Kafka 3 broker"
            " compact or mirror the topic into the present format first"
        )
    return f"{part.path}: no record batch at byte {position}; {_DAMAGED}"


def _open(path: str) -> int:
    """A broker renames a segment to .deleted a minute before it removes it, and one that it has
    compacted from .swap."""
    for name in (path, path + ".deleted", path.removesuffix(".swap")):
        try:
            return os.open(name, os.O_RDONLY)
        except FileNotFoundError:
            continue
    raise SegmentError(
        f"{path} is gone: the broker deleted the segment (retention or compaction) after the read"
        " was planned, or this executor does not see the directory; run the read again"
    )


# ---- compression


def _decompress(part: SegmentPart, offset: int, codec: int, data: memoryview) -> bytes:
    if codec == 0:
        return bytes(data)
    try:
        if codec == 2:
            return _unsnappy(bytes(data))
        with pa.CompressedInputStream(pa.BufferReader(data), CODEC_NAMES[codec]) as stream:
            unpacked: bytes = stream.read()
            return unpacked
    except (KeyError, OSError, ValueError, IndexError) as error:
        raise SegmentError(
            f"{part.path}: cannot decompress the batch at offset {offset} (codec {codec}): {error}"
        ) from None


def _unsnappy(data: bytes) -> bytes:
    """Java's framing (xerial): blocks of int32 length and raw snappy; or one raw block."""
    if not data.startswith(XERIAL_MAGIC):
        return _unsnappy_block(data)
    parts: list[bytes] = []
    at = XERIAL_HEADER_BYTES
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        parts.append(_unsnappy_block(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return b"".join(parts)


def _unsnappy_block(block: bytes) -> bytes:
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    unpacked: bytes = pa.decompress(block, decompressed_size=size, codec="snappy", asbytes=True)
    return unpacked


# ---- records


def decode(group: list[Batch], part: SegmentPart, include_headers: bool) -> pa.RecordBatch:
    """The records of these batches that lie in the part's offsets and times, as Arrow columns."""
    data = b"".join([*(batch.body for batch in group), _PADDING])
    starts, ends = _record_bounds(data, group, part)
    bytes_ = np.frombuffer(data, np.uint8)
    last = len(data) - 1
    counts = [batch.records for batch in group]
    at = starts + 1  # the attributes byte
    time_delta, at = _varints(bytes_, at)
    offset_delta, at = _varints(bytes_, at)
    key_size, at = _varints(bytes_, at)
    key_at, at = at, _behind(at, key_size, last)
    value_size, at = _varints(bytes_, at)
    value_at, at = at, _behind(at, value_size, last)
    header_count, at = _varints(bytes_, at)
    if np.any((at > ends) | (header_count < 0) | ((header_count == 0) & (at != ends))):
        raise SegmentError(f"{part.path}: a record does not fill its length; the file is damaged")
    offsets = offset_delta + np.repeat(_column(group, "base_offset"), counts)
    times, time_types = _times(group, counts, time_delta)
    keep = _keep(part, offsets, times)
    columns = [
        _binary(data, key_at, key_size, keep),
        _binary(data, value_at, value_size, keep),
        pa.repeat(pa.scalar(part.topic, pa.string()), len(keep)),
        pa.repeat(pa.scalar(part.partition, pa.int32()), len(keep)),
        pa.array(offsets[keep], pa.int64()),
        pa.array(np.clip(times[keep], -_LATEST_MS, _LATEST_MS) * 1000, pa.int64()).cast(
            pa.timestamp("us", "UTC")
        ),
        pa.array(time_types[keep], pa.int32()),
    ]
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    if include_headers:
        columns.append(_headers(data, bytes_, at[keep], header_count[keep], ends[keep], part))
        names.append("headers")
    return pa.RecordBatch.from_arrays(columns, names)


def _column(group: list[Batch], name: str) -> Ints:
    return np.array([getattr(batch, name) for batch in group], np.int64)


def _times(group: list[Batch], counts: list[int], deltas: Ints) -> tuple[Ints, Ints]:
    """Milliseconds and timestamp type (0 create, 1 append) of each record."""
    is_append = np.array([batch.append_time is not None for batch in group])
    append = np.array([batch.append_time or 0 for batch in group], np.int64)
    created = deltas + np.repeat(_column(group, "base_timestamp"), counts)
    types = np.repeat(is_append.astype(np.int64), counts)
    return np.where(types == 1, np.repeat(append, counts), created), types


def _keep(part: SegmentPart, offsets: Ints, times: Ints) -> Ints:
    wanted = (offsets >= part.from_offset) & (offsets < part.to_offset)
    if part.since_ms is not None:
        wanted &= times >= part.since_ms
    if part.until_ms is not None:
        wanted &= times < part.until_ms
    kept: Ints = np.flatnonzero(wanted)
    return kept


def _record_bounds(data: bytes, group: list[Batch], part: SegmentPart) -> tuple[Ints, Ints]:
    """Where each record's fields begin and end. The one loop per record: about 0.2 µs each."""
    starts: list[int] = []
    ends: list[int] = []
    add_start, add_end = starts.append, ends.append
    begin = 0
    for batch in group:
        pos = begin
        stop = begin + len(batch.body)
        for _ in range(batch.records):
            byte = data[pos]
            pos += 1
            size = byte & 0x7F
            shift = 7
            while byte > 0x7F:
                byte = data[pos]
                pos += 1
                size |= (byte & 0x7F) << shift
                shift += 7
            add_start(pos)
            pos += size >> 1  # lengths are never negative: un-zigzag is a shift
            if pos > stop:
                raise SegmentError(
                    f"{part.path}: a record runs past its batch at offset {batch.base_offset}"
                )
            add_end(pos)
        if pos != stop:
            raise SegmentError(
                f"{part.path}: bytes are left after the records of offset {batch.base_offset}"
            )
        begin = stop
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _varints(data: np.ndarray[Any, np.dtype[np.uint8]], at: Ints) -> tuple[Ints, Ints]:
    """The zig-zag varints at these positions, and the positions after them."""
    first = data[at].astype(np.uint64)
    value = first & np.uint64(0x7F)
    after = at + 1
    rest = np.flatnonzero(first > 0x7F)
    shift = 7
    while len(rest) and shift < 70:
        byte = data[np.minimum(after[rest], len(data) - 1)].astype(np.uint64)
        value[rest] |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        after[rest] += 1
        rest = rest[byte > 0x7F]
        shift += 7
    decoded = (value >> np.uint64(1)).astype(np.int64) ^ -((value & np.uint64(1)).astype(np.int64))
    return decoded, after


def _behind(at: Ints, sizes: Ints, last: int) -> Ints:
    """Where what begins there ends, but never behind the data: a size may be any number."""
    return np.minimum(at + np.clip(sizes, 0, last), last)


def _binary(data: bytes, at: Ints, sizes: Ints, keep: Ints) -> pa.Array:
    """The byte strings at these ascending positions; size -1 is null.

    `data` becomes one Arrow array whose even elements are the wanted strings and whose odd ones are
    what lies between, without a copy; `take` then gathers the even ones in C.
    """
    if not len(at):
        return pa.array([], pa.binary())
    bounds = np.empty(2 * len(at), np.int32)
    bounds[0::2] = at
    bounds[1::2] = at + np.maximum(sizes, 0)
    if np.any(bounds[1:] < bounds[:-1]) or int(bounds[-1]) > len(data):
        raise SegmentError("a key, value or header runs past its record; the file is damaged")
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)
    return pieces.take(pa.array(keep * 2, mask=sizes[keep] < 0))


def _headers(
    data: bytes,
    bytes_: np.ndarray[Any, np.dtype[np.uint8]],
    at: Ints,
    counts: Ints,
    ends: Ints,
    part: SegmentPart,
) -> pa.Array:
    """Lists of (key, value); null where a record has no headers. One round per header number."""
    fields: list[tuple[Ints, Ints, Ints, Ints]] = []
    at = at.copy()
    last = len(data) - 1
    for number in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > number)
        key_size, key_at = _varints(bytes_, np.minimum(at[rows], last))
        value_size, value_at = _varints(bytes_, _behind(key_at, key_size, last))
        at[rows] = _behind(value_at, value_size, last)
        if np.any((key_size < 0) | (at[rows] > ends[rows])):
            raise SegmentError(f"{part.path}: a header runs past its record; the file is damaged")
        fields.append((key_at, key_size, value_at, value_size))
    if np.any((counts > 0) & (at != ends)):
        raise SegmentError(f"{part.path}: headers do not fill their record; the file is damaged")
    bounds = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    mask = np.append(counts == 0, False)
    if not fields:
        values = pa.array([], _HEADER_TYPE)
    else:
        key_at, key_size, value_at, value_size = (
            np.concatenate(column) for column in zip(*fields, strict=True)
        )
        order = np.argsort(key_at, kind="stable")  # by record, then by number
        everything = np.arange(len(order))
        keys = _strings(_binary(data, key_at[order], key_size[order], everything))
        texts = _binary(data, value_at[order], value_size[order], everything)
        values = pa.StructArray.from_arrays([keys, texts], fields=list(_HEADER_TYPE))
    return pa.ListArray.from_arrays(pa.array(bounds, mask=mask), values)


def _strings(keys: pa.Array) -> pa.Array:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8: as Java's client shows it
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
