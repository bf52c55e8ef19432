"""Varints, uuids, and the hash that places groups."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import MalformedFrame
from wire.primitives import (
    METADATA_TOPIC_ID,
    ZERO_UUID,
    TopicPartition,
    java_string_hash,
    next_tag,
    partition_for,
    read_uvarint,
    skip_tags,
    uuid_from_text,
    uuid_to_text,
    uvarint,
)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_unsigned_varints_carry_seven_bits_a_byte_lowest_first(value: int, encoded: str) -> None:
    assert uvarint(value).hex() == encoded
    assert read_uvarint(bytes.fromhex(encoded) + b"\xff", 0) == (value, len(encoded) // 2)


@given(value=st.integers(0, 2**32 - 1))
def test_any_unsigned_varint_comes_back(value: int) -> None:
    assert read_uvarint(b"??" + uvarint(value), 2) == (value, 2 + len(uvarint(value)))


@pytest.mark.parametrize("data", [b"\xff" * 5, b"\x80" * 5 + b"\x01", b"\xff\xff\xff\xff\x1f"])
def test_a_varint_above_32_bits_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        read_uvarint(data, 0)


def test_a_negative_number_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="cannot"):
        uvarint(-1)


def test_a_varint_that_is_cut_off_is_an_index_error_for_the_caller_to_turn() -> None:
    with pytest.raises(IndexError):
        read_uvarint(b"\x80\x80", 0)


def test_tags_are_stepped_over() -> None:
    data = b"\x02" + b"\x00\x03abc" + b"\xac\x02\x01z" + b"rest"
    assert skip_tags(data, 0) == len(data) - 4
    assert skip_tags(b"\x00rest", 0) == 1
    assert next_tag(data, 1, -1) == (0, 6, 3)
    with pytest.raises(MalformedFrame):
        next_tag(data, 1, 0)


# 22 characters as Kafka prints them.
UUIDS = [
    (ZERO_UUID, "AAAAAAAAAAAAAAAAAAAAAA"),
    (METADATA_TOPIC_ID, "AAAAAAAAAAAAAAAAAAAAAQ"),
    (b"\xff" * 16, "_____________________w"),
    (uuid.UUID("123e4567-e89b-12d3-a456-426614174000").bytes, "Ej5FZ-ibEtOkVkJmFBdAAA"),
]


@pytest.mark.parametrize(("raw", "text"), UUIDS)
def test_uuids_are_printed_as_kafka_prints_them(raw: bytes, text: str) -> None:
    assert uuid_to_text(raw) == text
    assert uuid_from_text(text) == raw


@given(raw=st.binary(min_size=16, max_size=16))
def test_any_uuid_comes_back(raw: bytes) -> None:
    text = uuid_to_text(raw)
    assert len(text) == 22
    assert uuid_from_text(text) == raw


def test_a_cluster_id_whose_spare_bits_are_set_is_taken_as_java_takes_it() -> None:
    assert uuid_from_text("MkU3OEVBNTcwNTJENDM2Qk") == uuid_from_text("MkU3OEVBNTcwNTJENDM2Qg")


@pytest.mark.parametrize(
    "text", ["", "short", "A" * 21, "A" * 23, "A" * 21 + "+", "/" + "A" * 21, "é" * 22, "=" * 22,
             "A" * 20 + "==", "A A" + "A" * 19]
)  # fmt: skip
def test_what_is_not_a_uuid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a uuid"):
        uuid_from_text(text)


def test_a_uuid_of_another_length_is_not_printed() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        uuid_to_text(b"short")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("Aa", 2112),
        ("BB", 2112),
        ("hello", 99_162_322),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_the_hash_is_javas(text: str, expected: int) -> None:
    """Values any Java gives."""
    assert java_string_hash(text) == expected


@given(text=st.text(max_size=40))
def test_the_hash_is_over_utf_16_units_modulo_2_to_the_32(text: str) -> None:
    """Java's definition, with sums of powers instead of steps; some characters are two units."""
    raw = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]
    total = sum(unit * 31 ** (len(units) - 1 - at) for at, unit in enumerate(units))
    assert (java_string_hash(text) - total) % 2**32 == 0
    assert -(2**31) <= java_string_hash(text) < 2**31


def test_coordinator_partitions_are_kafkas() -> None:
    """Known places: the hash of 'hello' is 99162322; the most negative hash counts as 0."""
    assert partition_for("hello", 50) == 22
    assert partition_for("polygenelubricants", 50) == 0
    assert all(0 <= partition_for(f"group-{n}", 50) < 50 for n in range(1000))


def test_a_topic_partition_is_the_tuple_of_its_parts() -> None:
    where = {TopicPartition("orders", 3): "here"}
    assert where["orders", 3] == "here"  # type: ignore[index]
    assert str(TopicPartition("orders", 3)) == "orders-3"
