"""Spark's source and sink and our commands with OAUTHBEARER: a signed token that stands in a file,
over SASL_SSL, and unsecured ones that each client makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import barnabas
from barnabas.process import properties_text, write_private
from compat_tests.pipeline.conftest import Pipeline
from compat_tests.security.token_broker import TokenBroker, java_properties, token_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]
COUNT = 100
EXPECTED = {f"v{number}" for number in range(COUNT)}
CLIENTS = ("confluent", "kafka-python")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenBroker]:
    with token_broker(tmp_path_factory.mktemp("tokens")) as made:
        yield made


@pytest.mark.parametrize("is_signed", [True, False], ids=["signed", "unsecured"])
def test_all_ways_in_and_out(
    spark: SparkSession, tokens: TokenBroker, pipeline: Pipeline, tmp_path: Path, is_signed: bool
) -> None:
    barnabas.register_source(spark)
    told = java_properties(tokens, tmp_path, is_signed=is_signed)
    bootstrap = tokens.signed if is_signed else tokens.open
    made = {"kafka.bootstrap.servers": bootstrap, **{f"kafka.{k}": v for k, v in told.items()}}
    kind = "signed" if is_signed else "unsecured"
    rows = spark.range(COUNT).selectExpr("concat('v', id) value", "concat('k', id) key")
    rows = rows.repartition(2, "key")

    def values(topic: str) -> list[str]:
        read = spark.read.format("kafka").options(**made).option("subscribe", topic).load()
        return [row.value for row in read.selectExpr("cast(value as string) value").collect()]

    admin = AdminClient({"bootstrap.servers": tokens.broker.bootstrap_servers})
    topics = [f"{kind}-spark"]
    rows.write.format("kafka").options(**made, topic=topics[0]).save()
    for client in CLIENTS:
        topics.append(f"{kind}-{client}")
        admin.create_topics([NewTopic(topics[-1], 2, 1)])[topics[-1]].result(60)
        options = {**made, "topic": topics[-1], "slots": "2", "client": client}
        rows.write.format("barnabas").options(**options).mode("append").save()

    file = tmp_path / "client.properties"
    write_private(file, properties_text(told))
    where = ("--bootstrap", bootstrap, "--client-config", file)
    lake = tmp_path / "lake"
    done = [pipeline("archive", *where, "--topics", topics[0], "--to", lake)]
    for client in CLIENTS:
        prefix = f"again-{client}-"
        topics.append(prefix + topics[0])
        done.append(
            pipeline("replay", "--from", lake, *where, "--topic-prefix", prefix, "--client", client)
        )
    done.append(pipeline("profile", *where, "--topic", topics[0]))
    for one in done:
        assert one.returncode == 0, one.stdout + one.stderr
        assert "eyJ" not in one.stdout + one.stderr
    for topic in topics:
        found = values(topic)
        assert len(found) == COUNT, topic
        assert set(found) == EXPECTED, topic


def test_what_cannot_be_is_told_before_anything_is_written(
    spark: SparkSession, tokens: TokenBroker, tmp_path: Path
) -> None:
    barnabas.register_source(spark)
    told = java_properties(tokens, tmp_path, is_signed=True)
    url = "sasl.oauthbearer.token.endpoint.url"
    for at, why in (
        ("https://id.example/token", "expected file:///"),
        ("file:///no.jwt", "no token in /no.jwt"),
    ):
        told |= {url: at, "bootstrap.servers": tokens.signed}
        made = {f"kafka.{key}": value for key, value in told.items()}
        with pytest.raises(Exception, match=why):
            spark.range(1).coalesce(1).selectExpr("'v' value").write.format("barnabas").options(
                **made, topic="t", slots="1"
            ).mode("append").save()
