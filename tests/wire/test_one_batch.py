"""Produce of one batch: what is read in place is what the declared message says, or nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.server.wire_client import request_bytes
from wire.errors import MalformedFrame
from wire.frame import RequestHeader, encode_response
from wire.messages.data import ProduceRequest, ProduceResponse
from wire.one_batch import VERSION_MIN, OneBatch, answer_one_batch, read_one_batch

VERSIONS = range(VERSION_MIN, ProduceRequest.versions[1] + 1)
TOPIC_ID = bytes(range(1, 17))


def one(version: int, **fields: Any) -> ProduceRequest:
    """A request for one batch; `fields` replace some of it."""
    partition = ProduceRequest.Topic.Partition(
        index=fields.pop("index", 3), records=fields.pop("records", b"a batch")
    )
    if version >= 13:
        topic = ProduceRequest.Topic(topic_id=TOPIC_ID, partition_data=[partition])
    else:
        topic = ProduceRequest.Topic(name=fields.pop("name", "orders"), partition_data=[partition])
    given = {"transactional_id": None, "acks": -1, "timeout_ms": 1_500, "topic_data": [topic]}
    return ProduceRequest(**(given | fields))


def read(frame: bytes, version: int) -> OneBatch | None:
    return read_one_batch(frame, RequestHeader.decode(frame[4:]).body_pos + 4, version)


def same(found: OneBatch, declared: ProduceRequest, version: int) -> bool:
    """Whether both say the same of a request."""
    (topic,) = declared.topic_data
    (partition,) = topic.partition_data
    name = topic.topic_id if version >= 13 else found.topic[:1] + topic.name.encode()
    return (
        found.transactional_id == declared.transactional_id
        and (found.acks, found.timeout_ms) == (declared.acks, declared.timeout_ms)
        and (found.topic, found.partition) == (name, partition.index)
        and found.records == partition.records
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 126, 127, 128, 16_382, 16_383, 16_384, 300_000])
def test_one_batch_of_any_size_is_read(version: int, size: int) -> None:
    for fields in (
        {},
        {"transactional_id": "t"},
        {"transactional_id": ""},
        {"acks": 0, "index": 7},
    ):
        request = one(version, records=bytes(size), **fields)
        found = read(request_bytes(request, version, 1), version)
        assert found is not None
        assert same(found, request, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_another_form_is_not_read(version: int) -> None:
    request = one(version)
    twice = one(version)
    twice.topic_data = twice.topic_data * 2
    two = one(version)
    two.topic_data[0].partition_data = two.topic_data[0].partition_data * 2
    others = [
        twice,
        two,
        one(version, topic_data=[]),
        one(version, records=None),
        one(version, transactional_id="i" * 127),
    ]
    if version < 13:
        others += [one(version, name="n" * 127), one(version, name="")]
    for other in others:
        assert read(request_bytes(other, version, 1), version) is None
    frame = request_bytes(request, version, 1)
    assert read(frame + b"\0", version) is None, "bytes behind it"
    tagged = frame[:-1] + b"\1\7\0"
    assert read(tagged, version) is None, "a tagged field"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_damaged_request_is_read_as_declared_or_not_at_all(version: int) -> None:
    """Cut short anywhere, and 4,000 times with a byte or two changed."""
    rng = random.Random(version)
    whole = request_bytes(one(version, records=bytes(200), transactional_id="tx"), version, 1)
    body = RequestHeader.decode(whole[4:]).body_pos + 4
    damaged = [whole[:end] for end in range(body, len(whole))]
    for _ in range(4_000):
        frame = bytearray(whole)
        for _ in range(rng.choice((1, 2))):
            frame[rng.randrange(body, min(len(frame), body + 50))] = rng.randrange(256)
        damaged.append(bytes(frame))
    read_ones = 0
    for frame in damaged:
        found = read_one_batch(frame, body, version)
        if found is None:
            continue
        read_ones += 1
        try:
            declared = ProduceRequest.decode(frame, version, body)
        except MalformedFrame:
            assert version < 13
            with pytest.raises(UnicodeDecodeError):
                found.topic.decode()
        else:
            assert same(found, declared, version)
    assert read_ones > 100


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_has_the_bytes_of_the_declared_one(version: int) -> None:
    topic = TOPIC_ID if version >= 13 else b"\x07orders"
    partition = ProduceResponse.Topic.Partition(
        index=3, error_code=0, base_offset=2**40, log_append_time_ms=-1, log_start_offset=17
    )
    declared = ProduceResponse.Topic(name="orders", partition_responses=[partition])
    if version >= 13:
        declared = ProduceResponse.Topic(topic_id=TOPIC_ID, partition_responses=[partition])
    parts = encode_response(1, version, 77, ProduceResponse(responses=[declared]))
    assert answer_one_batch(77, topic, 3, 2**40, -1, 17) == b"".join(map(bytes, parts))
