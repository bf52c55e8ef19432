"""`Broker(security=...)` and `Cluster(security=...)`: users do what their rules allow, no more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

import barnabas
from testkit.wait import eventually

pytestmark = pytest.mark.slow
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USERS = {"alice": 'al"i\\ce, s=é', "bob": "bob-secret", "root": "root-secret"}
ACLS = [
    barnabas.Acl("alice", "write", topic="orders"),
    barnabas.Acl("bob", "read", topic="ord", prefixed=True),
    barnabas.Acl("bob", "read", group="*"),
]
CONFIG = {"super.users": "User:root"}


def check(secured: barnabas.Broker | barnabas.Cluster, replicas: int) -> None:
    def of(user: str, mechanism: str) -> dict[str, object]:
        return secured.client_config(user, library="confluent-kafka", mechanism=mechanism)

    admin = AdminClient(of("root", "SCRAM-SHA-512"))
    for future in admin.create_topics([NewTopic("orders", 1, replicas)]).values():
        future.result(60)
    assert written(Producer(of("alice", "PLAIN"))) == [None]
    consumer = Consumer(
        {**of("bob", "SCRAM-SHA-256"), "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    found: list[bytes] = []

    def look() -> bool:
        message = consumer.poll(1)
        if message is not None and not message.error():
            found.append(message.value())
        return bool(found)

    eventually(look, timeout_s=60)
    consumer.close()
    assert found == [b"one"]
    assert written(Producer(of("bob", "PLAIN"))) == [KafkaError.TOPIC_AUTHORIZATION_FAILED]


def written(producer: Producer) -> list[object]:
    told: list[object] = []
    producer.produce(
        "orders", b"one", on_delivery=lambda error, _m: told.append(error and error.code())
    )
    assert producer.flush(60) == 0
    return told


def test_a_broker_and_its_secrets() -> None:
    with barnabas.Broker(security="sasl_ssl", users=USERS, acls=ACLS, config=CONFIG) as broker:
        check(broker, 1)
        broker.restart()
        assert written(Producer(broker.client_config("alice", library="confluent-kafka"))) == [None]
        line = Path(f"/proc/{broker.pid}/cmdline").read_bytes()
        for secret in USERS.values():
            assert secret not in broker.log_text
            assert secret.encode() not in line


def test_each_library_connects_as_it_is_told() -> None:
    """librdkafka's is above, Spark's and Java's in compat_tests/pipeline/test_secured.py."""
    with barnabas.Broker(security="sasl_ssl", users=USERS) as broker:
        for mechanism in MECHANISMS:
            given = broker.client_config("alice", library="kafka-python", mechanism=mechanism)
            producer = KafkaProducer(**given)
            producer.send("t", b"one").get(60)
            producer.close()
            given = broker.client_config("alice", library="aiokafka", mechanism=mechanism)
            asyncio.run(one_more(given))
        ours = broker.client_config("alice", library="confluent-kafka")
        assert Consumer({**ours, "group.id": "g"}).get_watermark_offsets(
            TopicPartition("t", 0), timeout=60
        ) == (0, 2 * len(MECHANISMS))


async def one_more(given: dict[str, Any]) -> None:
    async with AIOKafkaProducer(**given) as producer:
        await producer.send_and_wait("t", b"one")


def test_a_directory_with_users_of_its_own_is_refused(tmp_path: Path) -> None:
    with barnabas.Broker(data_dir=tmp_path):
        pass
    with pytest.raises(barnabas.BrokerError, match="needs an empty directory"):
        barnabas.Broker(data_dir=tmp_path, security="sasl_ssl", users=USERS).start()


def test_a_cluster() -> None:
    with barnabas.Cluster(3, security="sasl_ssl", users=USERS, acls=ACLS, config=CONFIG) as three:
        check(three, 3)
        with pytest.raises(barnabas.BrokerError, match="is encrypted"):
            three.partition(1, 2)
