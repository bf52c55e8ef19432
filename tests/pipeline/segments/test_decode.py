"""Bytes of a segment as Arrow columns, against the broker's own codec."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.segments.crc import NumpyCrc32c
from pipeline.segments.decode import SegmentError, read_part
from pipeline.segments.layout import HEADER_BYTES
from pipeline.segments.plan import Wanted, plan
from tests.pipeline.segments.logs import offsets, read, simple, txn, write_segment
from wire.primitives import uvarint
from wire.records import Record, build_batch, read_records

byte_strings = st.none() | st.binary(max_size=300)
header_lists = st.lists(st.tuples(st.text(max_size=8), byte_strings), max_size=4)
rows = st.lists(
    st.tuples(st.integers(0, 2**45), byte_strings, byte_strings, header_lists),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(rows, min_size=1, max_size=4), codec=st.integers(0, 4))
def test_decoding_in_columns_gives_what_the_brokers_codec_reads(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Any]], codec: int
) -> None:
    log_dir = tmp_path_factory.mktemp("log")
    (log_dir / "meta.properties").touch()
    built: list[bytes] = []
    expected: list[tuple[Any, ...]] = []
    offset = 0
    for batch in batches:
        records = [Record(-1, ms, key, value, headers) for ms, key, value, headers in batch]
        built.append(build_batch(records, base_offset=offset, codec=codec))
        expected += [
            (one.offset, one.timestamp, one.key, one.value, one.headers)
            for one in read_records(built[-1])
        ]
        offset += len(batch)
    write_segment(log_dir, built, high_watermark=offset)
    found = [
        (number, ms, key, value, [(h["key"], h["value"]) for h in headers or []])
        for number, ms, key, value, headers in read(log_dir)
    ]
    assert found == expected


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 130, 4097, 70_001])
def test_the_checksum_without_a_c_library_is_the_same(size: int) -> None:
    data = os.urandom(size)
    assert NumpyCrc32c()(data) == crc32c(data)


def test_a_torn_end_of_the_active_segment_is_no_error_but_of_a_closed_one_it_is(
    log_dir: Path,
) -> None:
    write_segment(log_dir, [simple(0), simple(3)[:-1]])
    assert offsets(read(log_dir, log_end=True)) == [0, 1, 2]
    write_segment(log_dir, [simple(6)], base=6)
    with pytest.raises(SegmentError, match="ends within the batch at offset 3"):
        read(log_dir, log_end=True)


def test_a_closed_segment_may_not_end_within_a_batchs_header_either(log_dir: Path) -> None:
    write_segment(log_dir, [simple(0), simple(3)[:40]])
    assert offsets(read(log_dir, log_end=True)) == [0, 1, 2]
    write_segment(log_dir, [simple(6)], base=6)
    with pytest.raises(SegmentError, match="ends within the batch at offset 3"):
        read(log_dir, log_end=True)
    write_segment(log_dir, [simple(0), simple(3), bytes(40)])  # of a file that was preallocated
    assert offsets(read(log_dir, log_end=True)) == list(range(9))


@pytest.mark.parametrize("end", [simple(3)[:-1], simple(3)[:40], b"", bytes(200)])
def test_a_log_that_ends_below_its_high_watermark_has_lost_records(
    log_dir: Path, end: bytes
) -> None:
    """The file that says so was on disk when the power failed, and they were not."""
    write_segment(log_dir, [simple(0), end], high_watermark=6)
    with pytest.raises(
        SegmentError, match=r"ends before offset 6.* --log-end .* reads what is left"
    ):
        read(log_dir)
    assert offsets(read(log_dir, log_end=True)) == [0, 1, 2]
    assert offsets(read(log_dir, to_offsets={0: 3})) == [0, 1, 2]
    write_segment(log_dir, [simple(0), simple(3), end], high_watermark=6)
    assert offsets(read(log_dir)) == list(range(6))


class Counted(int):
    """An offset that counts how often it is compared."""

    times = 0

    def __le__(self, other: int) -> bool:
        Counted.times += 1
        return int(self) <= other

    def __gt__(self, other: int) -> bool:
        Counted.times += 1
        return int(self) > other


def test_a_batch_is_not_compared_with_every_aborted_transaction(log_dir: Path) -> None:
    """A producer that aborts often has thousands of them in a segment."""
    write_segment(log_dir, [txn(3 * n, 1) for n in range(400)], high_watermark=1200)
    (part,) = plan([str(log_dir)], Wanted("t", committed_only=False))[0].parts
    aborted = tuple((1, Counted(3 * n), 3 * n + 2) for n in range(0, 400, 2))
    read_back = list(read_part(part._replace(aborted=aborted), False))
    assert sum(batch.num_rows for batch in read_back) == 600
    assert Counted.times < 400 * 20


def test_a_time_that_no_timestamp_of_spark_holds_is_its_latest_or_earliest(log_dir: Path) -> None:
    nanoseconds = 1_764_000_000_000_000_000
    latest = 9_223_372_036_854_775
    records = [Record(-1, ms, b"k", b"v") for ms in (5, latest, nanoseconds, -nanoseconds)]
    write_segment(log_dir, [build_batch(records, base_offset=0)], high_watermark=4)
    (part,) = plan([str(log_dir)], Wanted("t"))[0].parts
    (batch,) = read_part(part, False)
    micros = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert micros == [5000, latest * 1000, latest * 1000, -latest * 1000]


def test_a_segment_deleted_after_planning_is_still_read_under_its_other_name(
    log_dir: Path,
) -> None:
    path = write_segment(log_dir, [simple(0)], high_watermark=3)
    (part,) = plan([str(log_dir)], Wanted("t"))[0].parts
    path.rename(path.with_name(path.name + ".deleted"))
    assert sum(batch.num_rows for batch in read_part(part, False)) == 3
    path.with_name(path.name + ".deleted").unlink()
    with pytest.raises(SegmentError, match="is gone"):
        list(read_part(part, False))


damage = st.lists(st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=10)), max_size=4)


@settings(max_examples=300, deadline=None)
@given(batch=rows, damage=damage, count=st.integers(-2, 3))
def test_records_that_no_producer_should_write_are_an_error_and_no_crash(
    tmp_path_factory: pytest.TempPathFactory,
    batch: list[Any],
    damage: list[tuple[int, bytes]],
    count: int,
) -> None:
    """With a checksum that is right: damage there would be told before."""
    log_dir = tmp_path_factory.mktemp("log")
    (log_dir / "meta.properties").touch()
    records = [Record(-1, ms, key, value, headers) for ms, key, value, headers in batch]
    data = bytearray(build_batch(records, base_offset=0))
    for at, bytes_ in damage:
        begin = HEADER_BYTES + at % (len(data) - HEADER_BYTES)
        data[begin : begin + len(bytes_)] = bytes_[: len(data) - begin]
    data[57:61] = struct.pack(">i", len(records) + count)
    data[17:21] = struct.pack(">I", crc32c(bytes(data[21:])))
    write_segment(log_dir, [bytes(data)], high_watermark=1)
    (one,) = plan([str(log_dir)], Wanted("t", log_end=True))
    with suppress(SegmentError):
        for part in one.parts:
            for read_back in read_part(part, True):
                read_back.validate(full=True)


def varint(value: int) -> bytes:
    """Zig-zag, of 64 bits."""
    return uvarint((value << 1) ^ (value >> 63))


@pytest.mark.parametrize("number", [3, 5, 64, 300, 2**31, 2**62, 2**63 - 1, -2, -(2**62)])
@pytest.mark.parametrize("field", ["key", "value", "count", "header key", "header value"])
def test_a_size_may_be_any_number(log_dir: Path, field: str, number: int) -> None:
    sizes = {"key": -1, "value": -1, "count": 1, "header key": 0, "header value": 0}
    body = b"\0\0\0" + b"".join(varint(one) for one in (sizes | {field: number}).values())
    data = bytearray(build_batch([Record(-1, 0, None, None)], base_offset=0)[:HEADER_BYTES])
    data += varint(len(body)) + body
    data[8:12] = struct.pack(">i", len(data) - 12)
    data[17:21] = struct.pack(">I", crc32c(bytes(data[21:])))
    write_segment(log_dir, [bytes(data)], high_watermark=1)
    if field in ("key", "value") and number < 0:
        assert read(log_dir)[0][2:4] == (None, None), "as Kafka's clients take it"
    elif field == "header value" and number < 0:
        assert read(log_dir)[0][4] == [{"key": "", "value": None}]
    else:
        with pytest.raises(SegmentError, match="damaged"):
            read(log_dir)
