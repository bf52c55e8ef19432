"""`format("barnabas")` as a sink: columns, batches, streams, and what a person reads."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

import barnabas
from compat_tests.pipeline.conftest import environment, needs_spark
from compat_tests.pipeline.records import create, held, read_all
from compat_tests.pipeline.sink_job import PADDING, slowly
from testkit.brokers.nodes import RunningBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(400)]

NOW = datetime.datetime(2024, 2, 29, 12, 30, 15, 250_000, tzinfo=datetime.UTC)
NOW_MS = int(NOW.timestamp() * 1000)
CLIENTS = ["confluent", "kafka-python"]
NULL: dict[str, bytes | None] = {"confluent": None, "kafka-python": b"nothing"}
"""The value of a header: kafka-python can write no null there."""
Make = Callable[..., str]


@pytest.fixture
def kafka(sink_broker: RunningBroker, spark: SparkSession) -> str:
    barnabas.register_source(spark)
    return sink_broker.bootstrap_servers


@pytest.fixture
def topic(kafka: str) -> str:
    name = f"sink-{uuid.uuid4().hex[:8]}"
    create(kafka, name, 3)
    return name


def to(frame: DataFrame, bootstrap: str, slots: int = 2, **options: Any) -> DataFrameWriter:
    writer = frame.write.format("barnabas").mode("append").option("slots", slots)
    return writer.option("kafka.bootstrap.servers", bootstrap).options(**options)


def numbers(spark: SparkSession, count: int, slots: int = 2) -> DataFrame:
    frame = spark.range(count).selectExpr("cast(id as string) key", "concat('v', id) value")
    return frame.repartition(slots, "key")


def values(bootstrap: str, topic: str) -> list[bytes]:
    return sorted(row[1] for rows in read_all(bootstrap, topic, 3).values() for row in rows)


def expected(count: int) -> list[bytes]:
    return sorted(b"v%d" % number for number in range(count))


@pytest.mark.parametrize("client", CLIENTS)
def test_every_column_becomes_what_it_is_called(
    spark: SparkSession, kafka: str, topic: str, client: str
) -> None:
    other = f"{topic}-other"
    create(kafka, other, 3)
    header = [("a", b"1"), ("\u00e9t\u00e9", NULL[client]), ("a", b"")]
    rows = [
        (topic, 0, b"k", b"v", header, NOW, "left out"),
        (topic, 2, None, b"", [], NOW + datetime.timedelta(seconds=1), None),
        (other, 1, b"", None, None, NOW, None),
        (other, 1, None, None, None, NOW, None),
    ]
    frame = spark.createDataFrame(
        rows,
        "topic string, partition int, key binary, value binary,"
        " headers array<struct<key: string, value: binary>>, timestamp timestamp, note string",
    )
    to(frame.coalesce(1), kafka, 1, client=client).save()
    first, second = read_all(kafka, topic, 3), read_all(kafka, other, 3)
    assert first == {
        0: [(b"k", b"v", header, NOW_MS)],
        1: [],
        2: [(None, b"", None, NOW_MS + 1000)],
    }
    assert second == {0: [], 1: [(b"", None, None, NOW_MS), (None, None, None, NOW_MS)], 2: []}


def test_what_kafka_python_cannot_write_is_told(
    spark: SparkSession, kafka: str, topic: str
) -> None:
    columns = "value string, headers array<struct<key:string,value:binary>>"
    frame = spark.createDataFrame([("v", [("a", None)])], columns).coalesce(1)
    with pytest.raises(Exception, match=r"kafka-python cannot write .*confluent-kafka on the"):
        to(frame, kafka, 1, topic=topic, client="kafka-python").save()


@pytest.mark.parametrize("client", CLIENTS)
def test_keys_go_where_kafkas_own_producers_put_them(
    spark: SparkSession, kafka: str, topic: str, client: str
) -> None:
    """Strings serve, and the option topic wins over the column, as in format("kafka")."""
    frame = numbers(spark, 300).selectExpr("key", "value", "'nowhere' as topic")
    to(frame, kafka, topic=topic, client=client).save()
    by_spark = f"{topic}-spark"
    create(kafka, by_spark, 3)
    columns = frame.select("key", "value").write.format("kafka")
    columns.option("kafka.bootstrap.servers", kafka).option("topic", by_spark).save()
    ours, theirs = read_all(kafka, topic, 3), read_all(kafka, by_spark, 3)
    for partition in range(3):
        assert {row[:2] for row in ours[partition]} == {row[:2] for row in theirs[partition]}


@pytest.mark.parametrize("client", CLIENTS)
def test_the_same_write_tried_again_is_written_once(
    spark: SparkSession, kafka: str, topic: str, client: str
) -> None:
    name = f"write-{uuid.uuid4().hex}"
    to(numbers(spark, 50), kafka, topic=topic, writeId=name, client=client).save()
    to(numbers(spark, 50), kafka, topic=topic, writeId=name, client=client).save()
    assert values(kafka, topic) == expected(50)
    with pytest.raises(Exception, match="has other rows now"):
        to(numbers(spark, 51), kafka, topic=topic, writeId=name, client=client).save()
    with pytest.raises(Exception, match=r"was begun with slots=2, now it is 3"):
        to(numbers(spark, 50, 3), kafka, 3, topic=topic, writeId=name, client=client).save()
    to(numbers(spark, 50), kafka, topic=topic, client=client).save()
    assert len(values(kafka, topic)) == 100, "without a writeId each write is another one"


def test_a_task_that_fails_is_tried_again_and_its_rows_are_there_once(
    spark: SparkSession, kafka: str, topic: str, tmp_path: Path
) -> None:
    """Each slot fails half way, after rows have left; local Spark tries a task once only, so the
    person tries the write again."""
    from pyspark.sql.functions import udf

    @udf("string")
    def fails_once(value: str, slot: int) -> str:
        been_here = tmp_path / f"failed-{slot}"
        if value == "v777" and not been_here.exists():
            been_here.touch()
            raise RuntimeError("lightning struck")
        return value

    frame = spark.range(1000).selectExpr("cast(id as string) key", "concat('v', id) value")
    frame = frame.repartition(2, "key").selectExpr("*", "spark_partition_id() slot")
    frame = frame.withColumn("value", fails_once("value", "slot"))
    name = f"write-{uuid.uuid4().hex}"
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        with pytest.raises(Exception, match="lightning struck"):
            to(frame, kafka, topic=topic, writeId=name).save()
        assert len(values(kafka, topic)) < 1000
        to(frame, kafka, topic=topic, writeId=name).save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert values(kafka, topic) == expected(1000)


def stream(spark: SparkSession, bootstrap: str, folder: Path, **options: Any) -> Any:
    """Starts a query over the files in `folder`/in, one a batch."""
    rows = (
        spark.readStream.schema("number long")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder / "in"))
        .selectExpr("cast(number as string) key", "concat('v', number) value")
        .repartition(2, "key")
    )
    writer = rows.writeStream.format("barnabas").option("slots", 2).trigger(availableNow=True)
    writer = writer.queryName(f"copies {folder.name}")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return writer.option("kafka.bootstrap.servers", bootstrap).options(**options).start()


def add_file(folder: Path, name: str, count: int, start: int = 0) -> None:
    (folder / "in").mkdir(exist_ok=True)
    lines = [json.dumps({"number": number}) for number in range(start, start + count)]
    (folder / "in" / f".{name}").write_text("\n".join(lines))
    (folder / "in" / f".{name}").rename(folder / "in" / f"{name}.json")


def test_a_stream_goes_on_from_its_checkpoint_and_a_batch_done_over_is_written_once(
    spark: SparkSession, kafka: str, topic: str, tmp_path: Path
) -> None:
    add_file(tmp_path, "a", 100)
    add_file(tmp_path, "b", 100, start=100)
    stream(spark, kafka, tmp_path, topic=topic).awaitTermination()
    assert values(kafka, topic) == expected(200)
    # As after a kill between the sink's commit and Spark's own.
    for remains in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        remains.unlink()
    add_file(tmp_path, "c", 100, start=200)
    stream(spark, kafka, tmp_path, topic=topic).awaitTermination()
    assert values(kafka, topic) == expected(300)


def test_what_is_wrong_with_a_checkpoint_is_told_and_nothing_is_written(
    spark: SparkSession, kafka: str, topic: str, tmp_path: Path
) -> None:
    add_file(tmp_path, "a", 10)
    add_file(tmp_path, "b", 10, start=10)
    stream(spark, kafka, tmp_path, topic=topic).awaitTermination()
    backup = tmp_path / "backup"
    shutil.copytree(tmp_path / "checkpoint", backup)
    add_file(tmp_path, "c", 10, start=20)
    stream(spark, kafka, tmp_path, topic=topic).awaitTermination()
    for kind in ("offsets", "commits"):
        for remains in (backup / kind).glob("*1*"):
            remains.unlink()
    stale = stream(spark, kafka, tmp_path, topic=topic, checkpointLocation=str(backup))
    with pytest.raises(Exception, match=r"batch 1 of .* is over: batch 2 was begun"):
        stale.awaitTermination()
    forget_marks(kafka, json.loads((backup / "metadata").read_text())["id"])
    add_file(tmp_path, "d", 10, start=30)
    with pytest.raises(Exception, match="nothing is known of the batches before 3"):
        stream(spark, kafka, tmp_path, topic=topic).awaitTermination()
    assert values(kafka, topic) == expected(30)
    stream(spark, kafka, tmp_path, topic=topic, lostMarks="goOn").awaitTermination()
    assert values(kafka, topic) == expected(40)


def forget_marks(bootstrap: str, query: str) -> None:
    """As the broker does after offsets.retention.minutes."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(30).valid
    ours = [one.group_id for one in found if one.group_id.startswith(f"barnabas-{query}-")]
    assert f"barnabas-{query}-head" in ours
    for deleted in admin.delete_consumer_groups(ours).values():
        deleted.result(30)


Wrong = list[tuple[str, dict[str, Any], str]]  # columns with semicolons, options, what is told
WRONG: Wrong = [
    ("value", {"topic": None}, "which topic"),
    ("key", {}, "there is no column value, but key"),
    ("named_struct('a', 1) value", {}, r"column value is struct<a:int>; cast it to binary or str"),
    ("value; now() key", {}, "column key is timestamp; cast it"),
    ("value", {"slots": None}, r"how many slots\? Put .repartition"),
    ("value", {"slots": "many"}, "option slots is 'many'"),
    ("value", {"slot": "2"}, "unknown option 'slot'"),
    ("value", {"kafka.bootstrap.servers": None}, "needs the option .kafka.bootstrap.servers"),
    ("value", {"kafka.acks": "1"}, "the sink sets acks itself"),
    ("value", {"kafka.sasl.jaas.config": "x"}, "sasl.jaas.config has no username"),
    ("value", {"writeId": "a b"}, "option writeId is 'a b'"),
    ("value", {"slots": "1"}, "partition 1, but slots is 1"),
    ("value; cast(null as string) topic", {"topic": None}, "a row has no topic"),
]
WRONG_FOR_A_CLIENT: Wrong = [
    ("value", {"kafka.no.such": "1"}, r"a kafka. option is not right: .*no[._]such"),
    ("value", {"topic": "no-such-topic"}, "topic no-such-topic does not exist; create it"),
    ("value; 7 partition", {}, "partition 7 of topic .* does not exist"),
    ("repeat('x', 3000000) value", {}, "too large; raise its max.message.bytes"),
    ("value", {"kafka.transaction.timeout.ms": "999999999"}, "allows no such .*time-out; lower"),
]


@pytest.mark.parametrize(
    ("client", "columns", "changes", "told"),
    [
        *(("auto", *one) for one in WRONG),
        *((client, *one) for one in WRONG_FOR_A_CLIENT for client in CLIENTS),
    ],
)
def test_what_is_wrong_is_told_with_the_next_step(
    spark: SparkSession,
    kafka: str,
    topic: str,
    client: str,
    columns: str,
    changes: dict[str, Any],
    told: str,
) -> None:
    options = {"kafka.bootstrap.servers": kafka, "slots": 2, "topic": topic, "client": client}
    options |= changes
    writer = numbers(spark, 20).selectExpr(*columns.split("; ")).write.format("barnabas")
    given = {key: value for key, value in options.items() if value is not None}
    with pytest.raises(Exception, match=told):
        writer.mode("append").options(**given).save()


def test_topics_are_not_overwritten(spark: SparkSession, kafka: str, topic: str) -> None:
    with pytest.raises(Exception, match="cannot be overwritten"):
        to(numbers(spark, 1), kafka, topic=topic).mode("overwrite").save()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_transaction_that_takes_too_long_is_told(
    spark: SparkSession, kafka: str, topic: str, client: str
) -> None:
    frame = slowly(numbers(spark, 100, 1).selectExpr(f"{PADDING} value"), 0.1)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    options = {"kafka.transaction.timeout.ms": 1500, "topic": topic, "client": client}
    try:
        with pytest.raises(Exception, match=r"wrote for longer than 2 s.*raise the option"):
            to(frame, kafka, 1, **options).save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert values(kafka, topic) == []


@pytest.mark.parametrize("client", CLIENTS)
def test_who_is_shut_out_in_mid_write_finds_the_others_rows(
    spark: SparkSession, kafka: str, topic: str, client: str
) -> None:
    """Two writes with one id at a time, as a speculative copy is: both succeed, rows are once."""
    from concurrent.futures import ThreadPoolExecutor

    name = f"write-{uuid.uuid4().hex}"

    def write(_: int) -> None:
        spark.createDataFrame([(1,)], "a int")  # Spark forgets its session in other threads
        to(numbers(spark, 20_000, 1), kafka, 1, topic=topic, writeId=name, client=client).save()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, range(2)))
    assert values(kafka, topic) == expected(20_000)


def test_what_another_program_left_open_is_ended_by_the_claim(
    spark: SparkSession, kafka: str, topic: str
) -> None:
    """As after a kill: the next attempt does not wait for a time-out, nor do readers."""
    from confluent_kafka import Producer

    name = f"write-{uuid.uuid4().hex}"
    dead = Producer(
        {"bootstrap.servers": kafka, "transactional.id": f"barnabas-{name}-0",
         "transaction.timeout.ms": 600_000}
    )  # fmt: skip
    dead.init_transactions(30)
    dead.begin_transaction()
    dead.produce(topic, b"v0", partition=0)
    dead.flush(30)
    to(numbers(spark, 30, 1), kafka, 1, topic=topic, writeId=name).save()
    assert values(kafka, topic) == expected(30)
    assert held(kafka, topic, 3) == held(kafka, topic, 3, "read_uncommitted")


NO_CLIENTS = """
import importlib.abc, importlib.machinery, sys

class NoClients(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("confluent_kafka", "pipeline", "barnabas"):
            raise ImportError(name)
        if name == "kafka":
            archives = [one for one in sys.path if one.endswith("barnabas-kafka-python.zip")]
            found = importlib.machinery.PathFinder.find_spec(name, archives) if archives else None
            if found is None:
                raise ImportError(name)
            return found

sys.meta_path.insert(0, NoClients())
"""


def test_executors_without_any_client_get_one_with_the_job(
    kafka: str, topic: str, tmp_path: Path
) -> None:
    """Their Python finds neither a client nor us, but in what came with the job."""
    needs_spark()
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(NO_CLIENTS)
    python = tmp_path / "python" / "bare"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{tmp_path}/python:$PYTHONPATH" exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    script = tmp_path / "job.py"
    script.write_text(
        "import barnabas\n"
        "from pipeline.spark.session import open_session\n"
        "with open_session('bare', master='local-cluster[1,1,500]', needs_kafka=False,\n"
        "        conf={'spark.executor.memory': '500m'}) as job:\n"
        "    barnabas.register_source(job.spark)\n"
        "    frame = job.spark.range(40).selectExpr(\"concat('v', id) value\").coalesce(1)\n"
        "    (frame.write.format('barnabas').mode('append').option('slots', 1)\n"
        f"        .option('kafka.bootstrap.servers', {kafka!r}).option('topic', {topic!r}).save())"
    )
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=environment(PYTHONPATH=root, PYSPARK_PYTHON=str(python),
                        PYSPARK_DRIVER_PYTHON=sys.executable), timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert values(kafka, topic) == expected(40)


def test_a_broker_that_is_not_there_is_named(
    spark: SparkSession, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.sink.clients import ConfluentRegister, PythonRegister
    from pipeline.sink.settings import settings_of

    monkeypatch.setattr("pipeline.sink.clients.WAIT_S", 1.0)
    settings = settings_of({"bootstrap.servers": "127.0.0.1:9"}, "auto")
    for kind in (ConfluentRegister, PythonRegister):
        with pytest.raises(Exception, match="no broker answers"):
            kind(settings, "barnabas-x-0").look()
