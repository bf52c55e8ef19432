"""Produce read in place: it says what the declared message says, or nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.server.wire_client import request_bytes
from wire.errors import MalformedFrame
from wire.frame import RequestHeader, encode_response
from wire.messages.data import ProduceRequest, ProduceResponse
from wire.plain_produce import (
    VERSION_MIN,
    PlainProduce,
    answer_plain_produce,
    read_plain_produce,
)

VERSIONS = range(VERSION_MIN, ProduceRequest.versions[1] + 1)
TOPIC_ID = bytes(range(1, 17))


Topic = ProduceRequest.Topic


def batches(version: int, *sizes: int, name: str = "orders", topic_id: bytes = TOPIC_ID) -> Topic:
    """A topic with a batch of each size; one below zero is none."""
    partitions = [
        Topic.Partition(index=7 * at, records=None if size < 0 else bytes(size))
        for at, size in enumerate(sizes)
    ]
    if version >= 13:
        return Topic(topic_id=topic_id, partition_data=partitions)
    return Topic(name=name, partition_data=partitions)


def produce(*topics: Topic, **fields: Any) -> ProduceRequest:
    given = {"transactional_id": None, "acks": -1, "timeout_ms": 1_500}
    return ProduceRequest(topic_data=list(topics), **(given | fields))


def read(frame: bytes, version: int) -> PlainProduce | None:
    return read_plain_produce(frame, RequestHeader.decode(frame[4:]).body_pos + 4, version)


def same(found: PlainProduce, declared: ProduceRequest, version: int) -> bool:
    """Whether both say the same of a request."""
    topics = []
    for topic, indexes in found.topics:
        if version < 13:
            assert topic[0] == len(topic)
            topic = topic[1:].decode()
        topics.append((topic, indexes))
    records = [p.records for topic in declared.topic_data for p in topic.partition_data]
    return (
        found.transactional_id == declared.transactional_id
        and (found.acks, found.timeout_ms) == (declared.acks, declared.timeout_ms)
        and found.records == records
        and topics
        == [
            (
                topic.topic_id if version >= 13 else topic.name,
                [p.index for p in topic.partition_data],
            )
            for topic in declared.topic_data
        ]
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 300_000])
def test_batches_of_any_size_are_read(version: int, size: int) -> None:
    one, two = batches(version, size), batches(version, 5, size, name="o", topic_id=bytes(16))
    many = [batches(version, *[size % 1_000] * count) for count in (125, 1)]
    for request in (
        produce(one),
        produce(one, transactional_id="t"),
        produce(one, transactional_id=""),
        produce(one, acks=0, timeout_ms=0),
        produce(two, one, two),
        produce(*many),
        produce(*[many[1]] * 126),
    ):
        found = read(request_bytes(request, version, 1), version)
        assert found is not None
        assert same(found, request, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_another_form_is_not_read(version: int) -> None:
    one = batches(version, 9)
    others = [
        produce(),
        produce(batches(version)),
        produce(one, batches(version, 9, -1)),
        produce(batches(version, *[1] * 127)),
        produce(batches(version, *[1] * 125), batches(version, 1, 1)),
        produce(*[one] * 127),
        produce(one, transactional_id="i" * 127),
    ]
    if version < 13:
        others += [produce(one, batches(version, 1, name=name)) for name in ("n" * 127, "")]
    for other in others:
        assert read(request_bytes(other, version, 1), version) is None
    frame = request_bytes(produce(one), version, 1)
    assert read(frame + b"\0", version) is None, "bytes behind it"
    for end in range(3):
        tagged = frame[: len(frame) - 1 - end] + b"\1\7\0" + bytes(end)
        assert read(tagged, version) is None, "a tagged field"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_damaged_request_is_read_as_declared_or_not_at_all(version: int) -> None:
    """Cut short anywhere, and 8,000 times with a byte or two changed."""
    rng = random.Random(version)
    request = produce(
        batches(version, 60, 0), batches(version, 70, name="o"), transactional_id="tx"
    )
    whole = request_bytes(request, version, 1)
    body = RequestHeader.decode(whole[4:]).body_pos + 4
    damaged = [whole[:end] for end in range(body, len(whole))]
    for _ in range(8_000):
        frame = bytearray(whole)
        for _ in range(rng.choice((1, 2))):
            frame[rng.randrange(body, len(frame))] = rng.randrange(256)
        damaged.append(bytes(frame))
    read_ones = 0
    for frame in damaged:
        found = read_plain_produce(frame, body, version)
        if found is None:
            continue
        read_ones += 1
        try:
            declared = ProduceRequest.decode(frame, version, body)
        except MalformedFrame:
            assert version < 13
            with pytest.raises(UnicodeDecodeError):
                b"".join(topic[1:] for topic, _ in found.topics).decode()
        else:
            assert same(found, declared, version)
    assert read_ones > 100


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_has_the_bytes_of_the_declared_one(version: int) -> None:
    answered = ProduceResponse.Topic
    rng = random.Random(version)
    for shape in ([1], [2, 1], [126, 3], [1] * 126):
        declared, topics, results = [], [], []
        for at, count in enumerate(shape):
            name, topic_id = f"orders{at}", at.to_bytes(16, "big")
            partitions = [
                answered.Partition(
                    index=index,
                    error_code=0,
                    base_offset=rng.randrange(2**50),
                    log_append_time_ms=rng.choice((-1, 2**40)),
                    log_start_offset=rng.randrange(100),
                )
                for index in range(count)
            ]
            key = {"topic_id": topic_id} if version >= 13 else {"name": name}
            declared.append(answered(partition_responses=partitions, **key))
            raw = topic_id if version >= 13 else bytes([len(name) + 1]) + name.encode()
            topics.append((raw, list(range(count))))
            results += partitions
        parts = encode_response(1, version, 77, ProduceResponse(responses=declared))
        assert answer_plain_produce(77, topics, results) == b"".join(map(bytes, parts))
