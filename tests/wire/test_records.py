"""Record batches against kafka-python's own record classes, and against hostile bytes."""

from __future__ import annotations

import os
import random
import struct
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress

import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.clock import WALL_MS
from wire.compression import CODECS, LZ4, compress
from wire.crc import crc32c
from wire.errors import ErrorCode, KafkaError, MalformedFrame
from wire.records import (
    BATCH_OVERHEAD,
    LOG_APPEND_TIME,
    ControlRecordType,
    EndTxnMarker,
    Record,
    build_batch,
    build_control_batch,
    check_crc,
    control_record_key,
    control_record_type,
    end_txn_marker_batch,
    iterate_headers,
    needs_timestamp_check,
    parse_end_txn_marker,
    patch_for_log,
    read_header,
    read_records,
    validate_producer_batch,
    validate_records,
    with_log_append_time,
)

with warnings.catch_warnings():
    # Importing kafka-python warns about its own use of importlib.
    warnings.simplefilter("ignore")
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

HOUR_MS = 3_600_000
EXPECTED = (
    None,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
)


def some_records(count: int = 3) -> list[Record]:
    return [
        Record(-1, WALL_MS + index, b"key-%d" % index, b"value-%d" % index, [("h", b"x")])
        for index in range(count)
    ]


def numbered(records: Sequence[Record], base_offset: int = 0) -> list[Record]:
    """What reading must give back: absolute offsets, headers as a list."""
    return [
        record._replace(offset=base_offset + index, headers=list(record.headers))
        for index, record in enumerate(records)
    ]


def with_field(batch: bytes, position: int, fmt: str, value: int, fix_crc: bool = True) -> bytes:
    """The batch with one header field changed, under a CRC that fits."""
    data = bytearray(batch)
    struct.pack_into(fmt, data, position, value)
    if fix_crc:
        struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def with_body(batch: bytes, body: bytes, count: int | None = None) -> bytes:
    """The batch's header over other records, length and CRC right."""
    data = bytearray(batch[:BATCH_OVERHEAD] + body)
    struct.pack_into(">i", data, 8, len(data) - 12)
    if count is not None:
        struct.pack_into(">i", data, 23, count - 1)
        struct.pack_into(">i", data, 57, count)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def code_of(function: Callable[[], object]) -> ErrorCode | None:
    """The code it is refused with; None when it is not."""
    try:
        function()
    except KafkaError as error:
        return error.code
    return None


def refusal(batch: bytes, **options: int) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        validate_producer_batch(memoryview(batch), **options)
    return error.value.code


headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3)
record_lists = st.lists(
    st.builds(
        Record,
        offset=st.just(-1),
        timestamp=st.integers(0, 2**45),
        key=st.none() | st.binary(max_size=200),
        value=st.none() | st.binary(max_size=300),
        headers=headers,
    ),
    min_size=1,
    max_size=30,
)


# --- building and reading ----------------------------------------------------------------------


@given(record_lists, st.sampled_from(range(5)), st.integers(0, 2**60))
@settings(max_examples=150, deadline=None)
def test_what_was_built_is_read_back(records: list[Record], codec: int, base_offset: int) -> None:
    batch = build_batch(records, base_offset=base_offset, codec=codec)
    header = read_header(batch)
    assert check_crc(batch, 0, header)
    assert header.size == len(batch)
    assert header.last_offset == base_offset + len(records) - 1
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert list(read_records(batch)) == numbered(records, base_offset)


@given(record_lists, st.sampled_from(range(5)))
@settings(max_examples=60, deadline=None)
def test_kafka_python_reads_what_we_build(records: list[Record], codec: int) -> None:
    batch = build_batch(
        records, base_offset=7, codec=codec, producer_id=5, producer_epoch=2, base_sequence=9
    )
    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (5, 2, 9)
    assert [
        (record.offset, record.timestamp, record.key, record.value, list(record.headers))
        for record in theirs
    ] == [tuple(record) for record in numbered(records, 7)]


@given(record_lists, st.sampled_from(range(5)))
@settings(max_examples=60, deadline=None)
def test_we_accept_and_read_what_kafka_python_builds(records: list[Record], codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for index, record in enumerate(records):
        assert builder.append(
            index, record.timestamp, record.key, record.value, list(record.headers)
        )
    batch = bytes(builder.build())
    header = validate_producer_batch(memoryview(batch))
    # kafka-python leaves a batch uncompressed when that is smaller.
    assert header.codec in (0, codec)
    assert list(read_records(batch)) == numbered(records)
    info = validate_records(header, batch, wall_ms=WALL_MS)
    assert info.max_timestamp == header.max_timestamp


def test_offsets_with_gaps_survive_as_compaction_leaves_them() -> None:
    kept = [Record(12, 5, b"k", b"v", []), Record(19, 6, b"l", None, [])]
    batch = build_batch(kept, base_offset=10, last_offset_delta=14, delete_horizon_ms=99)
    header = read_header(batch)
    assert header.last_offset == 24
    assert header.next_offset == 25
    assert header.has_delete_horizon
    assert header.base_timestamp == 99
    assert list(read_records(batch)) == kept


def test_a_batch_emptied_by_compaction_has_no_records_and_keeps_its_last_offset() -> None:
    batch = build_batch(
        [], base_offset=10, last_offset_delta=3, producer_id=4, producer_epoch=0, base_sequence=6
    )
    header = read_header(batch)
    assert (header.last_offset, header.last_sequence) == (13, 9)
    assert list(read_records(batch)) == []
    with pytest.raises(ValueError, match="last_offset_delta"):
        build_batch([])


def test_offsets_that_do_not_ascend_are_not_built() -> None:
    with pytest.raises(ValueError, match="does not follow"):
        build_batch([Record(5), Record(5)], base_offset=5)


def test_sequences_wrap_after_the_largest_int32() -> None:
    batch = build_batch(some_records(4), producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert read_header(batch).last_sequence == 1
    assert read_header(build_batch(some_records())).last_sequence == -1


# --- what a leader changes ---------------------------------------------------------------------


def test_a_leader_stamps_offset_and_epoch_without_touching_the_crc() -> None:
    batch = build_batch(some_records())
    stored = patch_for_log(batch, 1000, 7) + batch[16:]
    header = read_header(stored)
    assert (header.base_offset, header.leader_epoch) == (1000, 7)
    assert check_crc(stored, 0, header)
    assert [record.offset for record in read_records(stored)] == [1000, 1001, 1002]


def test_log_append_time_is_every_records_time() -> None:
    batch = build_batch(some_records(), codec=1)
    stamped = with_log_append_time(batch, WALL_MS + 500)
    header = read_header(stamped)
    assert check_crc(stamped, 0, header)
    assert header.timestamp_type == LOG_APPEND_TIME
    assert {record.timestamp for record in read_records(stamped)} == {WALL_MS + 500}
    assert DefaultRecordBatch(stamped).validate_crc()
    # The producer's own deltas stay, as in Kafka.
    assert stamped[BATCH_OVERHEAD:] == batch[BATCH_OVERHEAD:]


# --- headers of hostile bytes ------------------------------------------------------------------


def test_a_header_needs_61_bytes_and_magic_2() -> None:
    batch = build_batch(some_records())
    for size in range(BATCH_OVERHEAD):
        with pytest.raises(MalformedFrame):
            read_header(batch[:size])
    with pytest.raises(MalformedFrame):
        read_header(with_field(batch, 16, ">b", 1))
    for length in (-1, 0, 48, -(2**31)):
        with pytest.raises(MalformedFrame):
            read_header(with_field(batch, 8, ">i", length))


def test_iteration_ends_before_a_partial_batch() -> None:
    first, second = build_batch(some_records(1)), build_batch(some_records(5), base_offset=1)
    data = first + second
    assert [pos for pos, _ in iterate_headers(data)] == [0, len(first)]
    for cut in range(len(first), len(data)):
        assert [pos for pos, _ in iterate_headers(data[:cut])] == [0]
    assert [pos for pos, _ in iterate_headers(data, end=len(data) - 1)] == [0]
    with pytest.raises(MalformedFrame):
        list(iterate_headers(first + bytes(100)))


def test_every_flipped_bit_outside_offset_and_epoch_fails_the_crc() -> None:
    batch = build_batch(some_records(2))
    header = read_header(batch)
    for position in range(17, len(batch)):
        for bit in range(8):
            data = bytearray(batch)
            data[position] ^= 1 << bit
            assert not check_crc(data, 0, header._replace(crc=int.from_bytes(data[17:21], "big")))
    assert not check_crc(batch[:-1], 0, header)


# --- what a client may send --------------------------------------------------------------------


def test_a_plain_idempotent_or_transactional_batch_is_accepted() -> None:
    for options in (
        {},
        {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0},
        {"producer_id": 1, "producer_epoch": 0, "base_sequence": 5, "is_transactional": True},
    ):
        for codec in range(5):
            batch = build_batch(some_records(20), codec=codec, **options)
            assert validate_producer_batch(memoryview(batch)) == read_header(batch)


def test_each_wrong_header_field_has_kafkas_error_code() -> None:
    good = build_batch(some_records())
    idempotent = build_batch(some_records(), producer_id=1, producer_epoch=0, base_sequence=0)
    code = ErrorCode
    cases: list[tuple[bytes, ErrorCode]] = [
        (b"", code.INVALID_RECORD),
        (good[:60], code.INVALID_RECORD),
        (good[:-1], code.INVALID_RECORD),
        (good + good, code.INVALID_RECORD),
        (good + b"\0", code.INVALID_RECORD),
        (with_field(good, 0, ">q", 1), code.INVALID_RECORD),
        (with_field(good, 8, ">i", 20), code.CORRUPT_MESSAGE),
        (with_field(good, 16, ">b", 1), code.INVALID_RECORD),
        (with_field(good, 16, ">b", 3), code.CORRUPT_MESSAGE),
        (with_field(good, 16, ">b", -1), code.CORRUPT_MESSAGE),
        (with_field(good, 8, ">i", 13), code.CORRUPT_MESSAGE),
        (with_field(good, 40, ">b", 1, fix_crc=False), code.CORRUPT_MESSAGE),
        (with_field(good, 21, ">h", 0x08), code.INVALID_TIMESTAMP),
        (with_field(good, 21, ">h", 0x20), code.INVALID_RECORD),
        (with_field(good, 21, ">h", 0x40), code.INVALID_RECORD),
        (with_field(good, 21, ">h", 0x80), code.INVALID_RECORD),
        (with_field(good, 21, ">h", 5), code.UNSUPPORTED_COMPRESSION_TYPE),
        (with_field(good, 21, ">h", 1), code.INVALID_RECORD),  # says gzip, is not
        (with_field(good, 23, ">i", 3), code.INVALID_RECORD),
        (with_field(good, 23, ">i", -1), code.INVALID_RECORD),
        (with_field(good, 57, ">i", 2), code.INVALID_RECORD),
        (with_field(with_field(good, 57, ">i", 0), 23, ">i", -1), code.INVALID_RECORD),
        (with_field(with_field(good, 57, ">i", 9), 23, ">i", 8), code.INVALID_RECORD),
        (with_field(idempotent, 53, ">i", -1), code.INVALID_RECORD),
    ]
    for batch, expected in cases:
        assert refusal(batch) == expected, batch[:BATCH_OVERHEAD].hex()


def test_of_a_producer_only_the_sequence_is_judged_without_the_log() -> None:
    """Kafka's LogValidator: an id below 0 is none, and the epoch is held against the state."""
    good = build_batch(some_records())
    idempotent = build_batch(some_records(), producer_id=1, producer_epoch=0, base_sequence=0)
    for batch in (
        with_field(good, 21, ">h", 0x10),
        with_field(good, 43, ">q", -2),
        with_field(good, 51, ">h", 4),
        with_field(good, 53, ">i", 4),
        with_field(idempotent, 51, ">h", -1),
    ):
        validate_producer_batch(batch)


def header_batch(headers: list[bytes], records: int = 1) -> bytes:
    """Records of which the last has these encoded headers."""
    good = build_batch([Record(-1, WALL_MS, b"k", b"v")] * records)
    body = bytearray(good[BATCH_OVERHEAD:])
    last = len(body) - (body[0] // 2 + 1)
    fields = bytes(body[last + 1 : -1]) + bytes([2 * len(headers)]) + b"".join(headers)
    body[last:] = bytes([2 * len(fields)]) + fields
    size = struct.pack(">i", len(body) + BATCH_OVERHEAD - 12)
    return with_field(good[:8] + size + good[12:BATCH_OVERHEAD] + bytes(body), 16, ">b", 2)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize(
    ("count", "is_compressed"), [(1_000, True), pytest.param(17_000, False, id="beyond any codec")]
)
def test_what_was_built_of_records_that_are_all_alike_is_read_back(
    count: int, is_compressed: bool, codec: int
) -> None:
    """However small a codec makes them: a log that its own broker has written must be readable."""
    records = [Record(-1, WALL_MS, b"%d" % index, b"a" * 4_096) for index in range(count)]

    batch = build_batch(records, codec=codec)

    assert bool(read_header(batch).codec) == (is_compressed and codec > 0)
    assert sum(1 for _ in read_records(batch)) == count


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("records", [1, 2, 16])
def test_a_header_without_a_key_is_refused(records: int, codec: int) -> None:
    """P1: it was stored, and Java's consumers fail on it."""
    fine, null_key, null_value = b"\x02h\x02x", b"\x01\x02x", b"\x02h\x01"
    cases = {(fine, null_value): True, (null_key,): False, (fine, null_key): False}
    for headers, is_fine in cases.items():
        batch = header_batch(list(headers), records)
        if codec:
            packed = compress(batch[BATCH_OVERHEAD:], codec)
            size = struct.pack(">i", len(packed) + BATCH_OVERHEAD - 12)
            head = batch[:8] + size + batch[12:BATCH_OVERHEAD]
            batch = with_field(head + packed, 21, ">h", codec)
        if is_fine:
            validate_producer_batch(batch, open_compressed=True)
            assert [r.headers[-1] for r in read_records(batch) if r.headers] == [("h", None)]
        else:
            assert refusal(batch, open_compressed=True) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("opened", [False, True])
def test_lz4_blocks_that_depend_on_each_other_are_refused_as_no_java_client_reads_them(
    opened: bool,
) -> None:
    plain = build_batch([Record(-1, WALL_MS, None, os.urandom(100))] * 2000)
    for is_linked in (False, True):
        packed = lz4.frame.compress(plain[BATCH_OVERHEAD:], block_linked=is_linked)
        size = struct.pack(">i", len(packed) + BATCH_OVERHEAD - 12)
        head = plain[:8] + size + plain[12:BATCH_OVERHEAD]
        batch = with_field(head + packed, 21, ">h", LZ4)
        if is_linked:
            assert refusal(batch, open_compressed=opened) == ErrorCode.INVALID_RECORD
        else:
            validate_producer_batch(batch, open_compressed=opened)
    cut = with_field(batch[:8] + struct.pack(">i", 53) + batch[12:65], 21, ">h", LZ4)
    assert refusal(cut) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", range(1, 5))
@pytest.mark.parametrize("count", [3, 2000])
def test_a_batch_that_cannot_be_decompressed_is_refused(codec: int, count: int) -> None:
    """P2: under a right CRC it was stored, and failed every consumer."""
    good = build_batch([Record(-1, WALL_MS, None, os.urandom(300))] * count, codec=codec)
    validate_producer_batch(good, open_compressed=True)
    body = good[BATCH_OVERHEAD:]

    def with_body(changed: bytes) -> bytes:
        size = struct.pack(">i", len(changed) + BATCH_OVERHEAD - 12)
        return with_field(good[:8] + size + good[12:BATCH_OVERHEAD] + changed, 16, ">b", 2)

    cut = with_body(body[: len(body) // 2])
    garbage = with_body(body[:12] + os.urandom(len(body) - 12))
    other = with_body(compress(b"no records at all" * 20 * count, codec))
    more = with_field(with_field(good, 57, ">i", 90_000_000), 23, ">i", 89_999_999)
    for bad in (cut, garbage, other, more):
        assert refusal(bad, open_compressed=True) == ErrorCode.INVALID_RECORD
    validate_producer_batch(cut)  # where it is not to be opened


def test_a_varlong_that_is_too_long_for_java_is_refused() -> None:
    good = build_batch([Record(-1, WALL_MS, b"k", b"v")])
    body = good[BATCH_OVERHEAD:]
    fields = body[1:2] + b"\xff" * 10 + b"\x00" + body[3:]
    changed = bytes([2 * len(fields)]) + fields
    size = struct.pack(">i", len(changed) + BATCH_OVERHEAD - 12)
    batch = with_field(good[:8] + size + good[12:BATCH_OVERHEAD] + changed, 16, ">b", 2)
    assert refusal(batch) == ErrorCode.INVALID_RECORD


def test_zstd_needs_produce_version_7() -> None:
    zstd = build_batch(some_records(), codec=4)
    assert refusal(zstd, request_version=6) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    validate_producer_batch(zstd, request_version=7)
    validate_producer_batch(build_batch(some_records(), codec=1), request_version=3)


def test_a_batch_above_max_message_bytes_is_too_large() -> None:
    batch = build_batch(some_records())
    validate_producer_batch(batch, max_message_bytes=len(batch))
    assert refusal(batch, max_message_bytes=len(batch) - 1) == ErrorCode.MESSAGE_TOO_LARGE


def test_records_that_do_not_fill_a_small_batch_are_refused() -> None:
    good = build_batch(some_records(12))
    body = good[BATCH_OVERHEAD:]
    last = len(body) - (body[0] // 2 + 1)
    first, second = slice(body[0] // 2 + 1), slice(body[0] // 2 + 1, body[0] + 2)
    cases = [
        body[first] + body[second][:3] + b"\x04" + body[second][4:] + body[second.stop :],
        body[:-1],  # the last one cut short
        body + b"\0",  # something behind it
        body[last:] + body[:last],  # offset deltas in another order
        bytes([body[0] + 2]) + body[1:],  # a length that is one too large
        body[:3] + bytes([2]) + body[4:],  # the first delta not 0
    ]
    for changed in cases:
        assert refusal(with_body(good, changed)) == ErrorCode.INVALID_RECORD
    assert refusal(with_body(good, body, count=11)) == ErrorCode.INVALID_RECORD
    assert refusal(with_body(good, body, count=13)) == ErrorCode.INVALID_RECORD


@given(st.integers(1, 40), st.data())
@settings(max_examples=300, deadline=None)
def test_random_changes_in_a_body_are_refused_or_harmless(count: int, data: st.DataObject) -> None:
    """The quick checks never raise anything else, and never refuse what reads back in order."""
    good = build_batch(some_records(count))
    body = bytearray(good[BATCH_OVERHEAD:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    batch = with_body(good, bytes(body))
    offsets: list[int] = []
    reading = code_of(lambda: offsets.extend(record.offset for record in read_records(batch)))
    checking = code_of(lambda: validate_producer_batch(memoryview(batch)))
    assert reading in (None, ErrorCode.INVALID_RECORD)
    assert checking in (None, ErrorCode.INVALID_RECORD)
    is_in_order = reading is None and offsets == list(range(count))
    if is_in_order:
        assert checking is None
    else:
        header = read_header(batch)
        assert code_of(lambda: validate_records(header, batch, wall_ms=WALL_MS)) is not None


def test_random_bytes_never_raise_anything_but_the_two_errors() -> None:
    rng = random.Random(4)
    batch = build_batch(some_records(5), codec=0)
    for _ in range(3000):
        data = bytearray(batch)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        raw = bytes(data)
        assert code_of(lambda: validate_producer_batch(raw)) in EXPECTED  # noqa: B023
        with suppress(MalformedFrame):
            assert code_of(lambda: list(read_records(raw))) in EXPECTED  # noqa: B023


def test_a_record_whose_fields_do_not_fill_it_is_refused() -> None:
    """Two spare bytes in a record that is long enough for them."""
    batch = build_batch([Record(-1, WALL_MS, b"k", b"v", [])])
    body = batch[BATCH_OVERHEAD:]
    padded = with_body(batch, bytes([body[0] + 4]) + body[1:] + b"\0\0")
    assert refusal(padded) == ErrorCode.INVALID_RECORD
    with pytest.raises(KafkaError, match="fields end elsewhere"):
        list(read_records(padded))
    # A value that reaches into the next record.
    greedy = with_body(batch, body[:6] + b"\x08" + body[7:] + body, count=2)
    assert refusal(greedy) == ErrorCode.INVALID_RECORD
    with pytest.raises(KafkaError, match="key or value of 4 bytes"):
        list(read_records(greedy))


def test_a_count_that_cannot_fit_allocates_nothing() -> None:
    batch = with_field(build_batch(some_records()), 57, ">i", 2**31 - 1)
    with pytest.raises(KafkaError, match="cannot fit"):
        list(read_records(batch))


# --- the slow path -----------------------------------------------------------------------------


def test_records_without_key_are_listed_one_by_one() -> None:
    records = [Record(-1, WALL_MS, key, b"v", []) for key in (b"a", None, b"c", None)]
    for codec in range(5):
        batch = build_batch(records, codec=codec)
        with pytest.raises(KafkaError) as error:
            validate_records(read_header(batch), batch, wall_ms=WALL_MS, require_key=True)
        assert error.value.code == ErrorCode.INVALID_RECORD
        assert [index for index, _ in error.value.record_errors] == [1, 3]


def test_timestamps_out_of_bounds_are_listed_one_by_one() -> None:
    times = [WALL_MS, WALL_MS + HOUR_MS + 1, WALL_MS + HOUR_MS, -1, WALL_MS - 2 * HOUR_MS]
    batch = build_batch([Record(-1, time, b"k", b"v", []) for time in times])
    header = read_header(batch)
    with pytest.raises(KafkaError) as error:
        validate_records(header, batch, wall_ms=WALL_MS, after_max_ms=HOUR_MS)
    assert error.value.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.value.record_errors] == [1]
    with pytest.raises(KafkaError) as error:
        validate_records(
            header, batch, wall_ms=WALL_MS, before_max_ms=HOUR_MS, after_max_ms=HOUR_MS
        )
    assert [index for index, _ in error.value.record_errors] == [1, 4]
    # Under LogAppendTime the producer's times mean nothing.
    validate_records(
        header, batch, wall_ms=WALL_MS, timestamp_type=LOG_APPEND_TIME, after_max_ms=HOUR_MS
    )


def test_records_are_opened_for_their_times_only_when_the_header_cannot_tell() -> None:
    header = read_header(build_batch(some_records()))
    unlimited = 2**63 - 1
    assert not needs_timestamp_check(header, WALL_MS, unlimited, HOUR_MS)
    assert needs_timestamp_check(header, WALL_MS - HOUR_MS, unlimited, HOUR_MS)
    assert needs_timestamp_check(header, WALL_MS, 7 * 24 * HOUR_MS, HOUR_MS)


def test_the_true_max_timestamp_is_found_when_the_header_lies() -> None:
    batch = with_field(build_batch(some_records()), 35, ">q", 5)
    assert validate_records(read_header(batch), batch, wall_ms=WALL_MS).max_timestamp == WALL_MS + 2


def test_gaps_in_a_clients_offsets_are_refused() -> None:
    records = [Record(0, WALL_MS, b"k", b"v"), Record(2, WALL_MS, b"k", b"v")]
    for codec in (0, 1):
        batch = with_field(build_batch(records, codec=codec), 23, ">i", 1)
        with pytest.raises(KafkaError, match="offset delta"):
            validate_records(read_header(batch), batch, wall_ms=WALL_MS)


def test_no_compressed_batch_may_grow_beyond_the_callers_limit() -> None:
    records = [Record(-1, WALL_MS, None, bytes(1000), []) for _ in range(1000)]
    for codec in CODECS[1:]:
        batch = build_batch(records, codec=codec.id)
        assert len(list(read_records(batch))) == 1000
        with pytest.raises(KafkaError, match=r"exceed|claim"):
            list(read_records(batch, max_bytes=999_999))


# --- control records ---------------------------------------------------------------------------


def test_a_marker_batch_is_what_kafka_writes() -> None:
    marker = EndTxnMarker(ControlRecordType.ABORT, 9)
    batch = end_txn_marker_batch(marker, producer_id=7, producer_epoch=3, timestamp=WALL_MS)
    header = read_header(batch)
    assert header.attributes == 0x30
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    assert header.is_control
    assert header.is_transactional
    (record,) = read_records(batch)
    assert record.key == bytes.fromhex("00000000")
    assert record.value == bytes.fromhex("000000000009")
    assert parse_end_txn_marker(record) == marker
    theirs = DefaultRecordBatch(batch)
    assert theirs.is_control_batch
    (control,) = theirs
    assert control.abort


def test_control_record_types_of_the_future_are_unknown_not_errors() -> None:
    for type in list(ControlRecordType)[1:]:
        assert control_record_type(control_record_key(type)) is type
    assert control_record_type(b"\0\0\0\x63") is ControlRecordType.UNKNOWN
    for key in (None, b"", b"\0\0\0", b"\xff\xff\0\0"):
        with pytest.raises(KafkaError):
            control_record_type(key)
    with pytest.raises(ValueError, match="reading"):
        control_record_key(ControlRecordType.UNKNOWN)


def test_only_whole_transaction_markers_are_markers() -> None:
    commit = control_record_key(ControlRecordType.COMMIT)
    assert parse_end_txn_marker(Record(key=commit, value=b"\0\0\0\0\0\x05")).coordinator_epoch == 5
    for key, value in (
        (control_record_key(ControlRecordType.LEADER_CHANGE), b"\0" * 6),
        (commit, b"\0" * 5),
        (commit, None),
        (commit, b"\xff\xff\0\0\0\0"),
    ):
        with pytest.raises(KafkaError):
            parse_end_txn_marker(Record(key=key, value=value))


def test_quorum_control_batches_are_not_transactional() -> None:
    batch = build_control_batch(
        [(ControlRecordType.LEADER_CHANGE, b"x"), (ControlRecordType.KRAFT_VERSION, b"y")],
        timestamp=WALL_MS,
        base_offset=3,
        leader_epoch=2,
    )
    header = read_header(batch)
    assert (header.attributes, header.base_offset, header.leader_epoch) == (0x20, 3, 2)
    assert [control_record_type(record.key) for record in read_records(batch)] == [2, 5]
