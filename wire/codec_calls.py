"""What generated code (wire.codec) calls for the uncommon cases; the common ones are in line."""

from __future__ import annotations

from wire.errors import MalformedFrame, TooManyElements
from wire.primitives import read_uvarint, uvarint

STRING_BYTES_MAX = 32_767


def more(data: bytes, pos: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint whose first byte, 128 or more, was read already."""
    return read_uvarint(data, pos - 1)


def long_length(data: bytes, pos: int, first: int) -> tuple[int, int]:
    """A compact length that may not be null and whose first byte is 0 or above 127."""
    if first:
        first, pos = read_uvarint(data, pos - 1)
    if first == 0:
        raise MalformedFrame("null where the protocol allows none")
    return first, pos


def more_text(data: bytes, pos: int, first: int) -> tuple[int, int]:
    """As `more`, for a string: Kafka's generated readers refuse more than an int16 could tell."""
    length, pos = read_uvarint(data, pos - 1)
    if length > STRING_BYTES_MAX + 1:
        raise MalformedFrame(
            f"a string of {length - 1} bytes, at most {STRING_BYTES_MAX} are allowed"
        )
    return length, pos


def long_text_length(data: bytes, pos: int, first: int) -> tuple[int, int]:
    """As `long_length`, for a string."""
    return more_text(data, pos, first) if first else long_length(data, pos, first)


def refuse_length(length: int) -> None:
    raise MalformedFrame(f"length {length} where the protocol allows none")


def refuse_count(count: int, size: int, left: int) -> None:
    if left < 0:
        raise TooManyElements(f"{-left} elements more than are allowed, in {size} bytes")
    raise MalformedFrame(f"{count} elements cannot be in the {size} bytes left")


def refuse_tag(tag: int) -> None:
    raise MalformedFrame(f"tagged field {tag} has another size than it claims")


def append_tags(out: bytearray, tags: list[tuple[int, bytearray]]) -> None:
    """Write a tag section that is not empty."""
    out += uvarint(len(tags))
    for tag, content in tags:
        out += uvarint(tag)
        out += uvarint(len(content))
        out += content
