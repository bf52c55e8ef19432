"""Bytes that Apache Kafka wrote, read and rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wire.errors import MalformedFrame
from wire.schema import Message, Request, Struct

if TYPE_CHECKING:
    from tests.wire.conftest import Vector


def test_every_vector_decodes_and_encodes_to_the_same_bytes(
    vectors: list[Vector], classes: dict[str, type[Message]]
) -> None:
    assert len(vectors) == 2160
    for name, version, filling, data in vectors:
        message = classes[name].decode(data, version)
        assert message.encode_bytes(version) == data, (name, version, filling)


def test_vectors_cover_every_version_of_every_declared_message(
    vectors: list[Vector], classes: dict[str, type[Message]]
) -> None:
    covered = {(v.name, v.version) for v in vectors}
    expected = {
        (name, version)
        for name, cls in classes.items()
        for version in range(cls.versions[0], cls.versions[1] + 1)
    }
    assert covered == expected


def test_a_blank_object_encodes_as_kafkas_fresh_object(
    vectors: list[Vector], classes: dict[str, type[Message]]
) -> None:
    for name, version, filling, data in vectors:
        if filling == "default":
            assert classes[name].blank().encode_bytes(version) == data, (name, version)


def test_decoding_leaves_no_slot_unassigned(
    vectors: list[Vector], classes: dict[str, type[Message]]
) -> None:
    for name, version, filling, data in vectors:
        message = classes[name].decode(data, version)
        assert holes(message) == [], (name, version, filling)


def holes(struct: Struct) -> list[str]:
    """Names of the slots, at any depth, that hold nothing."""
    found = []
    for field in type(struct).schema:
        if not hasattr(struct, field.name):
            found.append(f"{type(struct).__qualname__}.{field.name}")
            continue
        value = getattr(struct, field.name)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Struct):
                found += holes(inner)
    return found


def test_a_full_object_encodes_in_every_older_version(
    vectors: list[Vector], classes: dict[str, type[Message]]
) -> None:
    """Fields that an old version lacks are left out; nothing else is needed to answer it."""
    newest = {
        v.name: v
        for v in vectors
        if v.filling == "full" and v.version == classes[v.name].versions[1]
    }
    assert len(newest) == len(classes)
    for name, version, _, data in newest.values():
        cls = classes[name]
        message = cls.decode(data, version)
        for older in range(cls.versions[0], version + 1):
            encoded = message.encode_bytes(older)
            assert cls.decode(encoded, older).encode_bytes(older) == encoded, (name, older)


def test_every_truncation_of_every_full_vector_is_malformed(
    vectors: list[Vector], classes: dict[str, type[Message]]
) -> None:
    for name, version, filling, data in vectors:
        if filling != "full":
            continue
        cls = classes[name]
        for end in range(len(data)):
            try:
                cls.decode(data[:end], version)
            except MalformedFrame:
                continue
            pytest.fail(f"{name} v{version} accepts {end} of {len(data)} bytes")


def test_bytes_behind_a_request_are_ignored_and_behind_other_messages_malformed(
    vectors: list[Vector], classes: dict[str, type[Message]]
) -> None:
    for name, version, _, data in vectors:
        cls = classes[name]
        if issubclass(cls, Request):  # librdkafka leaves some; Apache Kafka does not mind
            assert cls.decode(data + b"\0\0\0", version).encode_bytes(version) == data
            continue
        with pytest.raises(MalformedFrame):
            cls.decode(data + b"\0", version)


def test_decoding_starts_at_the_position_given(
    vectors: list[Vector], classes: dict[str, type[Message]]
) -> None:
    for name, version, filling, data in vectors:
        if filling == "full":
            behind_header = classes[name].decode(b"\xff" * 17 + data, version, 17)
            assert behind_header == classes[name].decode(data, version), (name, version)
