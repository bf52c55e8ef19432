"""The wire format of schema registries: a zero byte, four bytes of schema id, then the value.

Protobuf has the place of the message in its file between the two: a count and that many indexes,
as zigzag varints; a single zero is short for the first message.

Source: Confluent's documentation of the wire format. Travels to executors by value.
"""

from __future__ import annotations

HEADER_BYTES = 5


class Undecodable(Exception):
    """Why one value does not decode: what its problem column says."""


def schema_id(data: bytes) -> int:
    """The id of the schema that a value was written with. Raises Undecodable."""
    if len(data) < HEADER_BYTES:
        raise Undecodable(f"{len(data)} bytes are too short for a schema id")
    if data[0] != 0:
        raise Undecodable(f"begins with byte 0x{data[0]:02x}, and not with 0 and a schema id")
    return int.from_bytes(data[1:HEADER_BYTES], "big")


def message_path(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Indexes of a protobuf message, and where it begins. Raises Undecodable."""
    count, at = _varint(data, at)
    if count == 0:
        return (0,), at
    if not 0 < count <= len(data):
        raise Undecodable(f"has {count} message indexes")
    path = []
    for _ in range(count):
        index, at = _varint(data, at)
        path.append(index)
    return tuple(path), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        if at >= len(data):
            raise Undecodable("ends within its message indexes")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise Undecodable("has a message index of more than 64 bits")
