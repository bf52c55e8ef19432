"""Spark's sources and sinks and our commands over SASL_SSL, by users who may only what they must.

The broker has the StandardAuthorizer; what docs/pipeline.md says that a user needs is what these
users have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import barnabas
from barnabas import Acl
from barnabas.process import properties_text, write_private
from compat_tests.pipeline.conftest import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
COUNT = 300
USERS = {"root": "root-secret", "reader": 'rea"der\\ secret', "restorer": "restorer-secret"}
ACLS = [
    # archive: reads the topics; offsets of groups it may DESCRIBE
    Acl("reader", "read", topic="orders"),
    Acl("reader", "describe_configs", topic="orders"),
    Acl("reader", "describe", group="*"),
    # replay: makes the topics, writes them in transactions, reads them back; its own groups
    Acl("restorer", "create", topic="again-", prefixed=True),
    Acl("restorer", "write", topic="again-", prefixed=True),
    Acl("restorer", "read", topic="again-", prefixed=True),
    Acl("restorer", "describe_configs", topic="again-", prefixed=True),
    Acl("restorer", "write", transactional_id="barnabas-", prefixed=True),
    Acl("restorer", "read", group="barnabas-", prefixed=True),
    Acl("restorer", "read", topic="__consumer_offsets"),
]


@pytest.fixture(scope="module")
def secured() -> Iterator[barnabas.Broker]:
    config = {"log.retention.ms": -1, "super.users": "User:root", "num.partitions": 2}
    with barnabas.Broker(security="sasl_ssl", users=USERS, acls=ACLS, config=config) as broker:
        root = broker.client_config("root", library="confluent-kafka")
        admin = AdminClient(root)
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(60)
        producer = Producer(root)
        for number in range(COUNT):
            producer.produce("orders", b"v%d" % number, b"k%d" % number, number % 2)
        assert producer.flush(60) == 0
        yield broker
        for secret in USERS.values():
            assert secret not in broker.log_text


def client_file(directory: Path, broker: barnabas.Broker, user: str, mechanism: str) -> Path:
    path = directory / f"{user}.properties"
    config = broker.client_config(user, library="java", mechanism=mechanism)
    write_private(path, properties_text(config))
    return path


def values(spark: SparkSession, broker: barnabas.Broker, topic: str, mechanism: str) -> set[str]:
    frame = (
        spark.read.format("kafka")
        .options(**broker.client_config("root", library="spark", mechanism=mechanism))
        .option("subscribe", topic)
        .load()
    )
    found = [row.value for row in frame.selectExpr("cast(value as string) value").collect()]
    assert len(found) == len(set(found))
    return set(found)


def numbers(spark: SparkSession) -> DataFrame:
    frame = spark.range(COUNT).selectExpr("concat('v', id) value", "concat('k', id) key")
    return frame.repartition(2, "key")


EXPECTED = {f"v{number}" for number in range(COUNT)}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_sparks_own_source_and_sink(
    spark: SparkSession, secured: barnabas.Broker, mechanism: str
) -> None:
    topic = f"again-spark-{mechanism}"
    made = secured.client_config("restorer", library="spark", mechanism=mechanism)
    numbers(spark).write.format("kafka").options(
        **made, topic=topic, **{"kafka.enable.idempotence": "true"}
    ).save()
    assert values(spark, secured, topic, mechanism) == EXPECTED


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", ["confluent", "kafka-python"])
def test_the_sink_with_the_options_of_sparks_own(
    spark: SparkSession, secured: barnabas.Broker, client: str, mechanism: str
) -> None:
    barnabas.register_source(spark)
    topic = f"again-{client}-{mechanism}"
    admin = AdminClient(secured.client_config("root", library="confluent-kafka"))
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)
    made = secured.client_config("restorer", library="spark", mechanism=mechanism)
    numbers(spark).write.format("barnabas").options(
        **made, topic=topic, slots="2", client=client
    ).mode("append").save()
    assert values(spark, secured, topic, mechanism) == EXPECTED


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_archive_replay_and_profile(
    spark: SparkSession, secured: barnabas.Broker, pipeline: Pipeline, tmp_path: Path,
    mechanism: str,
) -> None:  # fmt: skip
    reader = ("--client-config", client_file(tmp_path, secured, "reader", mechanism))
    restorer = ("--client-config", client_file(tmp_path, secured, "restorer", mechanism))
    where = ("--bootstrap", secured.bootstrap_servers)
    lake = tmp_path / "lake"
    told = [pipeline("archive", *where, "--topics", "orders", "--to", lake, *reader)]
    prefix = f"again-{mechanism.lower()}-"
    for client in ("confluent", "kafka-python"):
        told.append(
            pipeline(
                "replay", "--from", lake, *where, "--topic-prefix", f"{prefix}{client}-",
                "--client", client, *restorer,
            )
        )  # fmt: skip
    told.append(pipeline("profile", *where, "--topic", "orders", *reader))
    for done in told:
        assert done.returncode == 0, done.stdout + done.stderr
        assert not [secret for secret in USERS.values() if secret in done.stdout + done.stderr]
    for client in ("confluent", "kafka-python"):
        assert values(spark, secured, f"{prefix}{client}-orders", mechanism) == EXPECTED


def test_who_is_refused_is_told_why(
    secured: barnabas.Broker, pipeline: Pipeline, tmp_path: Path
) -> None:
    where = ("--bootstrap", secured.bootstrap_servers)
    to = ("--topics", "orders", "--to", tmp_path / "lake")
    wrong = client_file(tmp_path, secured, "reader", "PLAIN")
    write_private(wrong, wrong.read_text().replace("secret", "sesame"))
    nobody = client_file(tmp_path, secured, "restorer", "PLAIN")
    for file, told in ((wrong, "check --client-config"), (nobody, "no topic orders")):
        done = pipeline("archive", *where, *to, "--client-config", file)
        assert done.returncode == 1
        assert told in done.stderr
