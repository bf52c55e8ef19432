"""The numbers inside records: zigzag-coded varints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testkit.clock import WALL_MS
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import BATCH_OVERHEAD
from wire.record_body import Record, are_alike, check_fields, read_varint, write_varint
from wire.records import build_batch


def encoded(value: int) -> bytes:
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "00"), (-1, "01"), (1, "02"), (-2, "03"), (63, "7e"), (-64, "7f"), (64, "8001")],
)
def test_they_are_zigzag_coded(value: int, text: str) -> None:
    assert encoded(value).hex() == text
    for bits in (31, 63):
        assert read_varint(bytes.fromhex(text) + b"\xff", 0, bits) == (value, len(text) // 2)


@given(value=st.integers(-(2**31), 2**31 - 1))
def test_any_varint_comes_back(value: int) -> None:
    assert read_varint(b"?" + encoded(value), 1) == (value, 1 + len(encoded(value)))


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_any_varlong_comes_back(value: int) -> None:
    assert read_varint(encoded(value), 0, 63) == (value, len(encoded(value)))


@pytest.mark.parametrize(
    ("data", "bits"),
    [
        (b"\xff" * 5, 31),
        (b"\x80" * 5 + b"\x01", 31),
        (b"\xff\xff\xff\xff\x1f", 31),
        (b"\xff" * 10, 63),
        (b"\x80" * 10 + b"\x01", 63),
        (b"\xff" * 9 + b"\x02", 63),
    ],
)
def test_one_that_java_cannot_hold_is_refused(data: bytes, bits: int) -> None:
    with pytest.raises(KafkaError) as error:
        read_varint(data, 0, bits)
    assert error.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("bits", [31, 63])
def test_one_that_is_cut_off_is_an_index_error_for_the_caller_to_turn(bits: int) -> None:
    with pytest.raises(IndexError):
        read_varint(b"\x80\x80", 0, bits)


def body_of(key: bytes | None, value: bytes | None, count: int = 3) -> bytes:
    rows = [Record(-1, WALL_MS + number, key, value) for number in range(count)]
    return build_batch(rows)[BATCH_OVERHEAD:]


def are_right(body: bytes, count: int) -> bool:
    pos = 0
    try:
        for number in range(count):
            pos = check_fields(body, pos, number)
    except (KafkaError, IndexError):
        return False
    return pos == len(body)


@pytest.mark.parametrize("key", [None, b"", b"key", b"k" * 63])
@pytest.mark.parametrize("value", [None, b"", b"v" * 30, b"v" * 100, b"v" * 5000])
def test_records_of_one_shape_are_seen_at_once(key: bytes | None, value: bytes | None) -> None:
    assert all(are_alike(body_of(key, value, count), 0, count) for count in (2, 16))


@pytest.mark.parametrize(("key", "value"), [(None, b"v"), (b"k", None), (b"k", b"v" * 60)])
def test_no_change_of_a_byte_makes_records_alike_that_are_not_right(
    key: bytes | None, value: bytes | None
) -> None:
    """Every byte of the first two records, and of their neighbours' ends, to every value."""
    body = bytearray(body_of(key, value))
    right = alike = 0
    for at, before in enumerate(body):
        for byte in range(256):
            body[at] = byte
            if are_alike(bytes(body), 0, 3):
                alike += 1
                assert are_right(bytes(body), 3), (at, byte)
            right += are_right(bytes(body), 3)
        body[at] = before
    assert 0 < alike <= right


def test_records_with_headers_or_of_several_sizes_are_for_the_other_check() -> None:
    with_headers = build_batch([Record(-1, 0, b"k", b"v", (("h", b""),))] * 3)[BATCH_OVERHEAD:]
    assert not are_alike(with_headers, 0, 3)
    assert not are_alike(body_of(b"k", b"v") + body_of(b"kk", b"v", 1), 0, 4)
    assert not are_alike(body_of(b"k", b"v")[:-1], 0, 3)
