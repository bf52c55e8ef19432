"""The numbers inside records: zigzag-coded varints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import ErrorCode, KafkaError
from wire.record_body import read_varint, write_varint


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
