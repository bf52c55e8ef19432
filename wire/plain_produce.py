"""Produce as clients send it, read in place: batches for partitions, and nothing unusual.

Why: a producer that does not linger sends a request for each batch, and objects for a list of
topics with lists of partitions cost more than appending the batches. What is read here is what the
declared message (`wire.messages.data.ProduceRequest`) says, and the answer has the bytes of the
declared response; tests compare both. Whatever has another form, wrong requests included, and
whatever has more than 126 batches, is None here and is read as declared.

    transactional id | acks, timeout | topics: name or id, partitions: index, records
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple, Protocol

from wire.errors import MalformedFrame
from wire.messages.data import TOPIC_ID_VERSION
from wire.primitives import read_uvarint

VERSION_MIN = 9
"""The first flexible version of Produce; its fields have the same form ever since."""
_TOPIC_ID_BYTES = 16
_SHORT = 0x7F
"""The greatest length of an array or a text that is one byte. (Lengths count one more.)"""
_NO_TAGS = b"\0"

_START = Struct(">hiB")  # acks, timeout_ms, topics
_INDEX = Struct(">i")
_HEAD = Struct(">iixB")  # size, correlation id, no tags; topics
_RESULT = Struct(">ihqqqbbx")
"""index, error code, base offset, log append time, log start offset; no record errors, no message;
no tags."""
_NO_ERRORS = 1
_END = bytes(5)  # throttle time 0; no tags


class PlainProduce(NamedTuple):
    """A Produce request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[bytes, list[int]]]
    """A topic as on the wire, which is its name with its length before it (one byte) or its id, and
    its partitions."""
    records: list[memoryview]
    """What is for each of these partitions, in their order."""


def read_plain_produce(frame: bytes, pos: int, version: int) -> PlainProduce | None:
    """The request whose body begins at `pos`; None if it is of another form.

    Budget: 1.5 µs for one batch, 0.6 for each more.
    """
    try:
        transactional_id = None
        length = frame[pos]
        pos += 1
        if length:
            end = pos + length - 1
            transactional_id = frame[pos:end].decode()
            pos = end
        acks, timeout_ms, topic_count = _START.unpack_from(frame, pos)
        if length > _SHORT or not 1 < topic_count <= _SHORT:
            return None
        pos += 7
        topics: list[tuple[bytes, list[int]]] = []
        records: list[memoryview] = []
        view = memoryview(frame)
        last = len(frame) - 1
        while topic_count > 1:
            topic_count -= 1
            size = _TOPIC_ID_BYTES if version >= TOPIC_ID_VERSION else frame[pos]
            end = pos + size
            count = frame[end]
            if not (1 < size <= _SHORT and 1 < count <= _SHORT - len(records)):
                return None
            topic = frame[pos:end]
            indexes: list[int] = []
            pos = end + 1
            while count > 1:
                count -= 1
                indexes += _INDEX.unpack_from(frame, pos)
                size, pos = read_uvarint(frame, pos + 4)
                end = pos + size - 1
                if not size or frame[end]:
                    return None
                records.append(view[pos:end])
                pos = end + 1
            topics.append((topic, indexes))
            if frame[pos]:
                return None
            pos += 1
        if pos != last or frame[pos]:
            return None
    except (IndexError, UnicodeDecodeError, MalformedFrame, struct.error):
        return None
    return PlainProduce(transactional_id, acks, timeout_ms, topics, records)


class Appended(Protocol):
    """Where a batch was written."""

    base_offset: int
    log_append_time_ms: int
    """-1 if the producer's time stays."""
    log_start_offset: int


def answer_plain_produce(
    correlation_id: int, topics: Iterable[tuple[bytes, list[int]]], results: Iterable[Appended]
) -> bytearray:
    """The frame that says where all batches were written, in the order of the partitions.

    Budget: 1 µs for one batch, 0.4 for each more.
    """
    out = bytearray(_HEAD.size)
    count = 1
    answered = iter(results)
    for topic, indexes in topics:
        count += 1
        out += topic
        out.append(len(indexes) + 1)
        for index in indexes:
            result = next(answered)
            out += _RESULT.pack(
                index, 0, result.base_offset, result.log_append_time_ms, result.log_start_offset,
                _NO_ERRORS, 0,
            )  # fmt: skip
        out += _NO_TAGS
    out += _END
    _HEAD.pack_into(out, 0, len(out) - 4, correlation_id, count)
    return out
