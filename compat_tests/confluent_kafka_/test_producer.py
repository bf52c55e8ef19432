"""librdkafka's producer through confluent-kafka."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError

from testkit.clients.rdkafka import CODECS, read, send_all


def test_each_delivery_reports_its_place(
    make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic()
    sent = send_all(new_producer(), topic, [b"%d" % i for i in range(500)])
    assert [message.offset() for message in sent] == list(range(500))
    got = read(new_consumer(topic), 500)
    assert [message.value() for message in got] == [b"%d" % i for i in range(500)]
    assert [message.timestamp() for message in got] == [message.timestamp() for message in sent]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_every_codec_round_trips(
    codec: str, idempotent: bool, make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic()
    config = {"compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 20}
    values = [b"%04d " % i + b"squeeze me " * 50 for i in range(300)]
    send_all(new_producer(**config), topic, values)
    assert [message.value() for message in read(new_consumer(topic), 300)] == values


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_setting_delivers(
    acks: str, make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic()
    send_all(new_producer(acks=acks), topic, [b"%d" % i for i in range(50)])
    got = read(new_consumer(topic), 50)
    assert [message.value() for message in got] == [b"%d" % i for i in range(50)]


def test_null_keys_values_headers_and_timestamps(
    make_topic: Any, new_producer: Any, new_consumer: Any
) -> None:
    topic = make_topic()
    producer = new_producer()
    stamp = int(time.time() * 1000) - 86_400_000
    headers = [("a", b"1"), ("a", b"2"), ("null", None), ("empty", b"")]
    producer.produce(topic, None, key=b"gone")
    producer.produce(topic, b"no key", timestamp=stamp)
    producer.produce(topic, b"", key=b"", headers=headers)
    producer.produce(topic, None, key=None)
    assert producer.flush(20) == 0
    got = read(new_consumer(topic), 4)
    assert [(m.key(), m.value()) for m in got] == [
        (b"gone", None), (None, b"no key"), (b"", b""), (None, None)
    ]  # fmt: skip
    assert got[1].timestamp() == (1, stamp)
    assert got[2].headers() == headers


def test_log_append_time_is_marked(make_topic: Any, new_producer: Any, new_consumer: Any) -> None:
    topic = make_topic(**{"message.timestamp.type": "LogAppendTime"})
    send_all(new_producer(), topic, [b"x"], timestamp=1000)
    kind, stamp = read(new_consumer(topic), 1)[0].timestamp()
    assert kind == 2
    assert abs(stamp - time.time() * 1000) < 60_000


@pytest.mark.parametrize("partitioner", ["murmur2_random", "consistent_random", "fnv1a_random"])
def test_partitioners_keep_a_key_together(
    partitioner: str, make_topic: Any, new_producer: Any
) -> None:
    topic = make_topic(6)
    producer = new_producer(partitioner=partitioner)
    places: dict[bytes, set[int]] = {}
    for round_ in range(3):
        for i in range(20):
            (message,) = send_all(producer, topic, [b"%d" % round_], key=b"key-%d" % i)
            places.setdefault(message.key(), set()).add(message.partition())
    assert all(len(where) == 1 for where in places.values())
    assert len(set().union(*places.values())) > 1
    (chosen,) = send_all(producer, topic, [b"here"], partition=5)
    assert chosen.partition() == 5


def test_auto_creation_by_the_first_record(
    topic_name: str, new_producer: Any, new_consumer: Any
) -> None:
    (message,) = send_all(new_producer(), topic_name, [b"first"])
    assert message.offset() == 0
    assert read(new_consumer(topic_name), 1)[0].value() == b"first"


def test_a_record_too_large_is_refused_by_the_broker(make_topic: Any, new_producer: Any) -> None:
    topic = make_topic(**{"max.message.bytes": "1000"})
    producer = new_producer()
    errors: list[Any] = []
    producer.produce(topic, b"x" * 5000, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    assert errors[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert send_all(new_producer(), topic, [b"fits"])[0].offset() == 0
