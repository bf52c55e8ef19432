"""kafka-python's consumer without a group: assignment, positions, offsets by time, flow control."""

from __future__ import annotations

import time
from contextlib import ExitStack
from contextlib import closing as closing_of
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource
from kafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata

from testkit.clients.kpy import read
from testkit.wait import eventually

BASE_MS = int(time.time() * 1000) - 3_600_000


@pytest.fixture
def filled(make_topic: Any, new_producer: Any) -> str:
    """A topic of two partitions with 100 records each, one second apart, values b"p-n"."""
    topic = make_topic(2)
    producer = new_producer()
    for i in range(100):
        for partition in (0, 1):
            producer.send(
                topic,
                b"%d-%d" % (partition, i),
                partition=partition,
                timestamp_ms=BASE_MS + i * 1000,
            )
    producer.flush(timeout=30)
    return str(topic)


def assigned(new_consumer: Any, topic: str, *partitions: int, **config: Any) -> Any:
    consumer = new_consumer(**config)
    consumer.assign([TopicPartition(topic, partition) for partition in partitions])
    return consumer


def test_assign_reads_only_what_was_assigned(filled: str, new_consumer: Any) -> None:
    consumer = assigned(new_consumer, filled, 1)
    records = read(consumer, 100)
    assert [record.value for record in records] == [b"1-%d" % i for i in range(100)]
    assert consumer.poll(timeout_ms=300) == {}
    assert consumer.position(TopicPartition(filled, 1)) == 100


def test_seek_reads_from_exactly_there(filled: str, new_consumer: Any) -> None:
    one = TopicPartition(filled, 0)
    consumer = assigned(new_consumer, filled, 0, max_poll_records=5)
    consumer.seek(one, 42)
    assert read(consumer, 1)[0].offset == 42
    consumer.seek_to_end(one)
    assert consumer.position(one) == 100
    consumer.seek_to_beginning(one)
    assert consumer.position(one) == 0
    assert read(consumer, 1)[0].value == b"0-0"


def test_beginning_and_end_offsets(filled: str, new_consumer: Any) -> None:
    both = [TopicPartition(filled, 0), TopicPartition(filled, 1)]
    consumer = new_consumer()
    assert consumer.beginning_offsets(both) == dict.fromkeys(both, 0)
    assert consumer.end_offsets(both) == dict.fromkeys(both, 100)


def test_offsets_for_times_find_the_first_record_not_older(filled: str, new_consumer: Any) -> None:
    one, two = TopicPartition(filled, 0), TopicPartition(filled, 1)
    consumer = new_consumer()
    found = consumer.offsets_for_times({one: BASE_MS + 10_000, two: BASE_MS + 10_001})
    assert (found[one].offset, found[one].timestamp) == (10, BASE_MS + 10_000)
    assert (found[two].offset, found[two].timestamp) == (11, BASE_MS + 11_000)
    assert consumer.offsets_for_times({one: 0})[one].offset == 0
    assert consumer.offsets_for_times({one: BASE_MS + 10**9})[one] is None


def test_a_paused_partition_waits_and_loses_nothing(filled: str, new_consumer: Any) -> None:
    one, two = TopicPartition(filled, 0), TopicPartition(filled, 1)
    consumer = assigned(new_consumer, filled, 0, 1)
    consumer.pause(one)
    assert consumer.paused() == {one}
    records = read(consumer, 100)
    assert {record.partition for record in records} == {1}
    assert consumer.poll(timeout_ms=300) == {}
    consumer.resume(one)
    records = read(consumer, 100)
    assert [record.value for record in records] == [b"0-%d" % i for i in range(100)]
    assert consumer.position(two) == 100


def test_latest_sees_only_what_comes_after(
    filled: str, new_consumer: Any, new_producer: Any
) -> None:
    consumer = assigned(new_consumer, filled, 0, auto_offset_reset="latest")
    assert consumer.position(TopicPartition(filled, 0)) == 100
    new_producer().send(filled, b"new", partition=0).get(timeout=10)
    assert [record.value for record in read(consumer, 1)] == [b"new"]


def test_without_a_reset_policy_a_missing_offset_is_an_error(
    filled: str, new_consumer: Any
) -> None:
    consumer = assigned(new_consumer, filled, 0, auto_offset_reset="none", group_id=None)
    with pytest.raises((NoOffsetForPartitionError, OffsetOutOfRangeError)):
        read(consumer, 1, timeout_s=5)


def test_an_offset_out_of_range_is_reset_by_the_policy(filled: str, new_consumer: Any) -> None:
    consumer = assigned(new_consumer, filled, 0)
    consumer.seek(TopicPartition(filled, 0), 5000)
    assert read(consumer, 1)[0].offset == 0


def test_deleted_records_are_skipped(
    filled: str, new_consumer: Any, admin: KafkaAdminClient
) -> None:
    one = TopicPartition(filled, 0)
    answer = admin.delete_records({one: 60})
    assert answer[one]["low_watermark"] == 60
    consumer = assigned(new_consumer, filled, 0)
    assert read(consumer, 40)[0].offset == 60
    assert consumer.beginning_offsets([one]) == {one: 60}


def test_a_long_poll_waits_for_data_and_ends_when_it_comes(
    make_topic: Any, new_consumer: Any, new_producer: Any
) -> None:
    topic = make_topic()
    consumer = assigned(new_consumer, topic, 0, fetch_max_wait_ms=20_000)
    consumer.poll(timeout_ms=300)
    producer = new_producer()
    started = time.monotonic()
    producer.send(topic, b"here").get(timeout=10)
    assert read(consumer, 1)[0].value == b"here"
    assert time.monotonic() - started < 5


def test_fetch_min_bytes_holds_the_answer_back_until_the_wait_is_over(
    make_topic: Any, new_consumer: Any, new_producer: Any
) -> None:
    topic = make_topic()
    new_producer().send(topic, b"small").get(timeout=10)
    consumer = assigned(new_consumer, topic, 0, fetch_min_bytes=100_000, fetch_max_wait_ms=1500)
    started = time.monotonic()
    assert read(consumer, 1)[0].value == b"small"
    assert time.monotonic() - started >= 1.3


def test_small_fetch_sizes_still_deliver_large_records(
    make_topic: Any, new_consumer: Any, new_producer: Any
) -> None:
    topic = make_topic()
    producer = new_producer()
    values = [bytes([65 + i]) * 50_000 for i in range(10)]
    for value in values:
        producer.send(topic, value)
    producer.flush(timeout=20)
    consumer = assigned(
        new_consumer, topic, 0, max_partition_fetch_bytes=1000, fetch_max_bytes=1000
    )
    assert [record.value for record in read(consumer, 10)] == values


def test_commit_without_a_subscription_and_read_it_back(
    filled: str, new_consumer: Any, group_name: str
) -> None:
    one, two = TopicPartition(filled, 0), TopicPartition(filled, 1)
    consumer = assigned(new_consumer, filled, 0, 1, group_id=group_name, enable_auto_commit=False)
    assert consumer.committed(one) is None
    consumer.commit({one: OffsetAndMetadata(33, "a note", -1)})
    assert consumer.committed(one) == 33
    assert consumer.committed(one, metadata=True).metadata == "a note"
    assert consumer.committed(two) is None
    again = assigned(new_consumer, filled, 0, group_id=group_name, enable_auto_commit=False)
    assert read(again, 67)[0].offset == 33


def test_topics_and_partitions_are_visible(filled: str, new_consumer: Any) -> None:
    consumer = new_consumer()
    assert filled in consumer.topics()
    assert consumer.partitions_for_topic(filled) == {0, 1}


def test_a_compacted_topic_is_read_like_any_other(
    make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic(**{"cleanup.policy": "compact"})
    producer = new_producer()
    for i in range(10):
        producer.send(topic, b"v%d" % i, key=b"k%d" % (i % 2))
    producer.send(topic, None, key=b"k0")
    producer.flush(timeout=20)
    records = read(new_consumer(topic), 11)
    assert records[-1].key == b"k0"
    assert records[-1].value is None


def test_a_topic_deleted_and_created_again_starts_at_zero(
    make_topic: Any, new_producer: Any, new_consumer: Any, admin: KafkaAdminClient
) -> None:
    topic = make_topic()
    new_producer().send(topic, b"old").get(timeout=10)
    old_id = admin.describe_topics([topic])[0]["topic_id"]
    admin.delete_topics([topic])
    eventually(lambda: topic not in admin.list_topics(), what="the topic is gone")
    make_topic()
    assert admin.describe_topics([topic])[0]["topic_id"] != old_id
    assert new_producer().send(topic, b"new").get(timeout=10).offset == 0
    assert [record.value for record in read(new_consumer(topic), 1)] == [b"new"]


@pytest.mark.slow
def test_retention_by_size_takes_whole_old_segments(
    fresh_broker: Any, topic_name: str, closing: ExitStack
) -> None:
    own = fresh_broker({"log.retention.check.interval.ms": 1000, "log.initial.task.delay.ms": 500})
    where = {"bootstrap_servers": own.bootstrap_servers}
    admin = closing.enter_context(closing_of(KafkaAdminClient(**where)))
    configs = {"segment.bytes": "1048576", "file.delete.delay.ms": "100"}
    admin.create_topics({topic_name: {"num_partitions": 1, "configs": configs}})
    producer = closing.enter_context(closing_of(KafkaProducer(**where)))
    for _ in range(60):
        producer.send(topic_name, b"x" * 60_000).get(timeout=20)
    consumer = closing.enter_context(closing_of(KafkaConsumer(**where)))
    one = TopicPartition(topic_name, 0)
    assert consumer.beginning_offsets([one]) == {one: 0}
    admin.alter_configs([ConfigResource("TOPIC", topic_name, {"retention.bytes": "1048576"})])
    begin = eventually(lambda: consumer.beginning_offsets([one])[one], what="old segments go")
    assert begin % 17 == 0  # 17 records of 60 kB fill a segment of 1 MiB: whole segments only
    consumer.assign([one])
    consumer.seek_to_beginning(one)
    assert [record.offset for record in read(consumer, 60 - begin)] == list(range(begin, 60))
