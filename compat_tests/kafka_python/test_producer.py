"""kafka-python's producer: what it sent is what a consumer reads, with the metadata it was told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource
from kafka.errors import (
    InvalidTimestampError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)
from kafka.partitioner.abc import Partitioner

from testkit.clients.kpy import CODECS, read


def now_ms() -> int:
    return int(time.time() * 1000)


def test_a_synchronous_send_answers_topic_partition_offset_and_timestamp(
    make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic()
    producer = new_producer()
    sent = [producer.send(topic, b"value-%d" % i).get(timeout=10) for i in range(5)]
    assert [meta.offset for meta in sent] == [0, 1, 2, 3, 4]
    assert {(meta.topic, meta.partition) for meta in sent} == {(topic, 0)}
    records = read(new_consumer(topic), 5)
    assert [record.value for record in records] == [b"value-%d" % i for i in range(5)]
    assert [record.timestamp for record in records] == [meta.timestamp for meta in sent]


def test_asynchronous_sends_keep_their_order_and_call_back(
    make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic()
    producer = new_producer(linger_ms=5, batch_size=4096)
    offsets: list[int] = []
    failures: list[BaseException] = []
    for i in range(2000):
        future = producer.send(topic, b"%06d" % i)
        future.add_callback(lambda meta: offsets.append(meta.offset))
        future.add_errback(failures.append)
    producer.flush(timeout=30)
    assert not failures
    assert sorted(offsets) == list(range(2000))
    records = read(new_consumer(topic), 2000)
    assert [record.value for record in records] == [b"%06d" % i for i in range(2000)]
    assert [record.offset for record in records] == list(range(2000))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_every_codec_round_trips(
    codec: str | None, idempotent: bool, make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic()
    producer = new_producer(compression_type=codec, enable_idempotence=idempotent, linger_ms=20)
    values = [b"%04d " % i + b"squeeze me " * 50 for i in range(300)]
    for value in values:
        producer.send(topic, value, key=value[:4], headers=[("n", value[:4])])
    producer.flush(timeout=30)
    records = read(new_consumer(topic), 300)
    assert [record.value for record in records] == values
    assert [record.key for record in records] == [value[:4] for value in values]
    assert [record.headers for record in records] == [[("n", value[:4])] for value in values]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_setting_delivers(
    acks: int | str, make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic()
    producer = new_producer(acks=acks, enable_idempotence=acks == "all")
    metas = [producer.send(topic, b"%d" % i).get(timeout=10) for i in range(20)]
    if acks != 0:  # without an acknowledgement nobody knows the offset
        assert [meta.offset for meta in metas] == list(range(20))
    records = read(new_consumer(topic), 20)
    assert [record.value for record in records] == [b"%d" % i for i in range(20)]


def test_null_and_empty_keys_values_and_headers_stay_apart(
    make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic()
    producer = new_producer()
    cases: list[tuple[bytes | None, bytes | None, list[Any]]] = [
        (None, b"no key", []),
        (b"no value", None, []),
        (b"", b"", [("", b"")]),
        (b"k", b"v", [("same", b"1"), ("same", b"2")]),
        (b"unicode", b"v", [("h\u00e9\u4e16", "w\u00f6rld".encode())]),
    ]
    for key, value, headers in cases:
        producer.send(topic, value, key=key, headers=headers).get(timeout=10)
    records = read(new_consumer(topic), len(cases))
    assert [(r.key, r.value, list(r.headers)) for r in records] == cases


def test_a_large_record_and_an_empty_batch_of_bytes(
    make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic()
    producer = new_producer()
    big = bytes(range(256)) * 3900  # 998,400 bytes: just under max.message.bytes
    producer.send(topic, big).get(timeout=20)
    assert read(new_consumer(topic), 1)[0].value == big


def test_timestamps_of_the_application_are_kept_under_create_time(
    make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic()
    producer = new_producer()
    stamps = [now_ms() - 100_000, now_ms() - 200_000, 0, now_ms()]
    for stamp in stamps:
        assert producer.send(topic, b"x", timestamp_ms=stamp).get(timeout=10).timestamp == stamp
    records = read(new_consumer(topic), len(stamps))
    assert [record.timestamp for record in records] == stamps
    assert {record.timestamp_type for record in records} == {0}


def test_the_broker_stamps_records_under_log_append_time(
    make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic(**{"message.timestamp.type": "LogAppendTime"})
    before = now_ms()
    meta = new_producer().send(topic, b"x", timestamp_ms=1000).get(timeout=10)
    record = read(new_consumer(topic), 1)[0]
    assert before - 1000 <= record.timestamp <= now_ms() + 1000
    assert record.timestamp_type == 1
    assert meta.timestamp == record.timestamp


def test_a_custom_partitioner_chooses_and_the_default_hashes_keys(
    make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic(4)

    class LastDigit(Partitioner):  # type: ignore[misc]
        def partition(
            self, topic: str, key: Any, raw_key: bytes, value: Any, raw_value: bytes, cluster: Any
        ) -> int:
            return int(raw_key) % len(cluster.partitions_for_topic(topic))

    chosen = new_producer(partitioner=LastDigit())
    for i in range(40):
        assert chosen.send(topic, b"v", key=b"%d" % i).get(timeout=10).partition == i % 4
    hashed = new_producer()
    places = {
        hashed.send(topic, b"v", key=b"same").get(timeout=10).partition for _ in range(5)
    }  # fmt: skip
    assert len(places) == 1
    assert hashed.send(topic, b"v", partition=3).get(timeout=10).partition == 3
    assert sorted(new_producer().partitions_for(topic)) == [0, 1, 2, 3]
    assert len(read(new_consumer(topic), 46)) == 46


def test_a_topic_comes_into_being_with_its_first_record(
    topic_name: str, new_producer: Any, new_consumer: Any
) -> None:
    assert new_producer().send(topic_name, b"first").get(timeout=20).offset == 0
    assert read(new_consumer(topic_name), 1)[0].value == b"first"


def test_idempotent_producers_are_told_apart(
    make_topic: Any, new_producer: Callable[..., Any], admin: KafkaAdminClient
) -> None:
    topic = make_topic()
    for _ in range(3):
        producer = new_producer(enable_idempotence=True)
        for i in range(10):
            producer.send(topic, b"%d" % i)
        producer.flush(timeout=20)
    states = admin.describe_producers([TopicPartition(topic, 0)])
    active = states[TopicPartition(topic, 0)].active_producers
    assert len({state.producer_id for state in active}) == 3
    assert {state.last_sequence for state in active} == {9}


def test_a_record_too_large_for_the_topic_is_refused(make_topic: Any, new_producer: Any) -> None:
    topic = make_topic(**{"max.message.bytes": "1000"})
    producer = new_producer()
    producer.send(topic, b"fits").get(timeout=10)
    with pytest.raises((MessageSizeTooLargeError, RecordListTooLargeError)):
        producer.send(topic, b"x" * 5000).get(timeout=10)
    assert new_producer().send(topic, b"next").get(timeout=10).offset == 1


def test_a_larger_limit_holds_at_once(
    make_topic: Any, new_producer: Any, admin: KafkaAdminClient
) -> None:
    topic = make_topic(**{"max.message.bytes": "1000"})
    admin.alter_configs([ConfigResource("TOPIC", topic, {"max.message.bytes": "100000"})])
    assert new_producer().send(topic, b"x" * 5000).get(timeout=10).offset == 0


def test_a_timestamp_out_of_the_topics_bounds_is_refused(
    make_topic: Any, new_producer: Any
) -> None:
    topic = make_topic(**{"message.timestamp.before.max.ms": "60000"})
    producer = new_producer(retries=0, enable_idempotence=False)
    with pytest.raises(InvalidTimestampError):
        producer.send(topic, b"x", timestamp_ms=now_ms() - 3_600_000).get(timeout=10)
    assert producer.send(topic, b"x", timestamp_ms=now_ms()).get(timeout=10).offset == 0


def test_an_illegal_topic_name_is_refused_at_once(new_producer: Any, bootstrap: str) -> None:
    with pytest.raises((InvalidTopicError, ValueError)):
        new_producer(max_block_ms=5000).send("bad name!", b"x").get(timeout=10)
