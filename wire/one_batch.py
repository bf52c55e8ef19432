"""Produce as most clients send it, read in place: one batch, for one partition.

Why: a producer that does not linger sends a request for each batch, and objects for a list of one
topic with a list of one partition cost more than appending the batch. What is read here is what the
declared message (`wire.messages.data.ProduceRequest`) says, and the answer has the bytes of the
declared response; tests compare both. Whatever has another form, wrong requests included, is None
here and is read as declared.

    transactional id | acks, timeout | one topic | one partition | its records | no tagged fields
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import NamedTuple

from wire.errors import MalformedFrame
from wire.messages.data import TOPIC_ID_VERSION
from wire.primitives import read_uvarint

VERSION_MIN = 9
"""The first flexible version of Produce; its fields have the same form ever since."""
_TOPIC_ID_BYTES = 16
_ONE = 2
"""The length of a compact array with one element."""
_NONE = 1
"""The length of a compact array with no element."""
_NO_TAGS = bytes(3)  # of the partition, the topic, the request

_START = Struct(">hibB")  # acks, timeout_ms, topics, length of the first one's name
_PARTITION = Struct(">bi")  # partitions, index of the first one
_HEAD = Struct(">iixb")  # size, correlation id, no tags; topics
_TAIL = Struct(">bihqqqbb7x")
"""partitions, index, error code, base offset, log append time, log start offset, record errors, no
message; no tags of partition and topic, throttle time 0, no tags."""
_SIZE_AROUND_TOPIC = _HEAD.size - 4 + _TAIL.size


class OneBatch(NamedTuple):
    """A Produce request with one batch."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic: bytes
    """As on the wire: the name with its length before it (one byte), or the topic id."""
    partition: int
    records: memoryview


def read_one_batch(frame: bytes, pos: int, version: int) -> OneBatch | None:
    """The request whose body begins at `pos`; None if it is of another form. Budget: 1.2 µs."""
    try:
        transactional_id = None
        length = frame[pos]
        pos += 1
        if length:
            end = pos + length - 1
            transactional_id = frame[pos:end].decode()
            pos = end
        acks, timeout_ms, topics, name_length = _START.unpack_from(frame, pos)
        pos += 7
        end = pos + (name_length if version < TOPIC_ID_VERSION else _TOPIC_ID_BYTES)
        partitions, partition = _PARTITION.unpack_from(frame, end)
        size, at = read_uvarint(frame, end + 5)
    except (IndexError, UnicodeDecodeError, MalformedFrame, struct.error):
        return None
    if (
        length > 0x7F
        or topics != _ONE
        or partitions != _ONE
        or (version < TOPIC_ID_VERSION and not 1 < name_length <= 0x7F)
        or not size
        or frame[at + size - 1 :] != _NO_TAGS
    ):
        return None
    records = memoryview(frame)[at : at + size - 1]
    return OneBatch(transactional_id, acks, timeout_ms, frame[pos:end], partition, records)


def answer_one_batch(
    correlation_id: int,
    topic: bytes,
    partition: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
) -> bytearray:
    """The frame that says where the batch was written. Budget: 0.5 µs."""
    out = bytearray(_HEAD.pack(_SIZE_AROUND_TOPIC + len(topic), correlation_id, _ONE))
    out += topic
    out += _TAIL.pack(
        _ONE, partition, 0, base_offset, log_append_time_ms, log_start_offset, _NONE, 0
    )
    return out
