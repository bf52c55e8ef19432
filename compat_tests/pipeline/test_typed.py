"""Keys and values as columns: what producers with Confluent's own serializers wrote, and all that
does not decode, by `archive`, `segments` and `profile`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from compat_tests.pipeline.conftest import SMALL_SPARK, Pipeline, command_line, environment
from compat_tests.pipeline.kills import wait_for_a_batch
from compat_tests.pipeline.records import FIRST_MS, create, read_all
from compat_tests.pipeline.test_kill import begun
from testkit.brokers.nodes import RunningBroker
from testkit.clients.fake_registry import FakeRegistry, fake_registry
from testkit.wait import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(400)]

FIRST = [{"name": "id", "type": "int"}, {"name": "name", "type": "string"}]
ADDED = {"name": "paid", "type": ["null", "double"], "default": None}
DEFAULT = {"name": "currency", "type": "string", "default": "EUR"}


@pytest.fixture(scope="module")
def node(
    make_broker: Callable[..., RunningBroker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    broker = make_broker(tmp_path_factory.mktemp("typed-broker"), {"log.retention.ms": -1})
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as fake:
        yield fake


def order(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": [*FIRST, *fields]}


def serialized(serializer: Any, topic: str, value: Any, *, key: bool = False) -> bytes:
    field = MessageField.KEY if key else MessageField.VALUE
    data = serializer(value, SerializationContext(topic, field))
    assert isinstance(data, bytes)
    return data


def avro_of(registry: FakeRegistry, topic: str, schema: Any) -> Callable[[Any], bytes]:
    client = SchemaRegistryClient({"url": registry.url})
    serializer = AvroSerializer(client, json.dumps(schema))
    return lambda value: serialized(serializer, topic, value)


def send(
    bootstrap: str, topic: str, values: list[bytes | None], keys: list[bytes | None] | None = None
) -> None:
    """To partition 0, in this order."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number, value in enumerate(values):
        key = keys[number] if keys else b"k%d" % number
        producer.produce(topic, value, key=key, partition=0, timestamp=FIRST_MS + number)
        producer.poll(0)
    assert producer.flush(60) == 0


def rows_of(spark: SparkSession, lake: Path) -> list[Row]:
    return archived(spark, lake).orderBy("topic", "offset").collect()


def archived(spark: SparkSession, lake: Path) -> DataFrame:
    return spark.read.option("mergeSchema", "true").parquet(str(lake))


def test_avro_by_a_registry_evolves_and_what_does_not_decode_says_why(
    spark: SparkSession,
    node: RunningBroker,
    registry: FakeRegistry,
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    bootstrap, topic, lake = node.bootstrap_servers, "typed-orders", tmp_path / "lake"
    create(bootstrap, topic, 1)
    first = avro_of(registry, topic, order())
    good = [first({"id": number, "name": f"n{number}"}) for number in range(5)]
    bad = [
        good[0][:-1], b"\1" + good[0][1:], b"\0\0\0\0\x63" + good[0][5:], None, b"\0\0",
        good[0] + b"!",
    ]  # fmt: skip
    send(bootstrap, topic, [*good, *bad], [*[b"k"] * 9, b"\xff", None])
    archive = (
        "archive", "--bootstrap", bootstrap, "--topics", topic, "--to", lake,
        "--key-format", "string", "--value-format", "avro", "--registry", registry.url,
        "--max-per-trigger", 3,
    )  # fmt: skip
    done = pipeline(*archive)
    assert done.returncode == 0, done.stderr
    found = rows_of(spark, lake)
    assert [row.value for row in found] == [*good, *bad], "raw bytes are what they were"
    assert [row.value_data for row in found[:5]] == [(n, f"n{n}") for n in range(5)]
    assert all(row.value_problem is None for row in found[:5])
    assert all(row.value_data is None for row in found[5:])
    assert [row.value_problem for row in found[5:]] == [
        "ends too early", "begins with byte 0x01, and not with 0 and a schema id",
        "the registry has no schema 99", None, "2 bytes are too short for a schema id",
        "1 bytes are left behind the value",
    ]  # fmt: skip
    assert [row.key_data for row in found] == [*["k"] * 9, None, None]
    assert found[9].key_problem.startswith("UnicodeDecodeError")
    assert found[10].key_problem is None
    assert "1 key did not decode; key_problem says why" in done.stdout
    assert "5 values did not decode; value_problem says why" in done.stdout

    second = avro_of(registry, topic, order(ADDED, DEFAULT))
    values = [{"id": 9, "name": "x", "paid": 1.5, "currency": "CHF"}]
    send(bootstrap, topic, [second(values[0]), good[1]])
    done = pipeline(*archive)
    assert done.returncode == 0, done.stderr
    late = rows_of(spark, lake)
    assert [row.value_data for row in late[11:]] == [(9, "x", 1.5, "CHF"), (1, "n1", None, "EUR")]
    assert [row.value_data for row in late[:5]] == [(n, f"n{n}", None, None) for n in range(5)]

    # Another type for a field: the column stays, and its values say that they do not fit.
    registry.subjects[f"{topic}-value"].clear()
    third = avro_of(registry, topic, order() | {"fields": [FIRST[1], FIRST[0] | {
        "type": "string"}]})  # fmt: skip
    send(bootstrap, topic, [third({"id": "seven", "name": "y"})])
    done = pipeline(*archive)
    assert done.returncode == 0, done.stderr
    assert f"subject {topic}-value: value_data.id is string and not bigint" in done.stdout
    latest = rows_of(spark, lake)[-1]
    assert latest.value_data is None
    assert latest.value_problem == "id is string, and its column bigint"

    for words in (archive[:7], (*archive[:-6], "--value-format", "json", *archive[-4:])):
        refused = pipeline(*words)
        assert refused.returncode == 1
        assert "was made with --key-format string --value-format avro" in refused.stderr

    before = rows_of(spark, lake)
    for number in range(6):  # a .compact file of Spark's log has been written by then
        send(bootstrap, topic, [second({**values[0], "id": number})])
        assert pipeline(*archive).returncode == 0
    more = rows_of(spark, lake)
    assert more[: len(before)] == before
    compacted = pipeline("archive", "--to", lake, "--compact", "--grace", "1h")
    assert compacted.returncode == 0, compacted.stderr
    assert "compacted" in compacted.stdout
    assert rows_of(spark, lake) == more, "compaction keeps decoded columns"

    back = pipeline(
        "replay", "--from", lake, "--bootstrap", bootstrap, "--topic-prefix", "back-"
    )  # fmt: skip
    assert back.returncode == 0, back.stderr
    sent = [value for _, value, _, _ in read_all(bootstrap, topic, 1)[0]]
    assert [value for _, value, _, _ in read_all(bootstrap, f"back-{topic}", 1)[0]] == sent


def test_protobuf_keys_and_json_values_by_segments_and_profile(
    spark: SparkSession,
    node: RunningBroker,
    registry: FakeRegistry,
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    bootstrap, topic, lake = node.bootstrap_servers, "typed-mixed", tmp_path / "lake"
    create(bootstrap, topic, 1)
    client = SchemaRegistryClient({"url": registry.url})
    made = message("typed.Key")
    keys_by = ProtobufSerializer(made, client, {"use.deprecated.format": False})
    schema = {
        "title": "Event", "type": "object",
        "properties": {"id": {"type": "integer"}, "at": {"type": "array", "items": {
            "type": "number"}}, "other": {}},
    }  # fmt: skip
    values_by = JSONSerializer(json.dumps(schema), client)
    keys = [serialized(keys_by, topic, made(id=number), key=True) for number in range(40)]
    values = [
        serialized(values_by, topic, {"id": number % 4, "at": [1, 2.5], "other": {"n": number}})
        for number in range(40)
    ]
    wrong = values[0][:5] + b'{"id": "text"}'
    send(bootstrap, topic, [*values, wrong, values[0][:9]], [*keys, keys[1][:-1], None])
    typed = ("--key-format", "protobuf", "--value-format", "json", "--registry", registry.url)
    segments = ("segments", node.data_dir, "--topic", topic)
    eventually(
        lambda: "read 42 rows" in pipeline(*segments).stdout, timeout_s=60, every_s=1
    )  # the broker writes its high watermarks down every five seconds
    shown = pipeline(*segments, *typed)
    assert shown.returncode == 0, shown.stderr
    assert "{'id': 0, 'at': [1.0, 2.5], 'other': '{\"n\": 0}'}" in shown.stdout
    done = pipeline(*segments, *typed, "--to", lake)
    assert done.returncode == 0, done.stderr
    found = rows_of(spark, lake)
    assert [row.key_data.id for row in found[:40]] == list(range(40))
    assert [row.value_data for row in found[:40]] == [
        (number % 4, [1.0, 2.5], json.dumps({"n": number})) for number in range(40)
    ]
    assert [row.value_data for row in found[40:]] == [None, None]
    assert found[40].value_problem == 'id is "text", and no bigint'
    assert found[41].value_problem.startswith("no JSON:")
    assert found[40].key_problem.startswith("no message typed.Key")
    assert (found[41].key, found[41].key_data, found[41].key_problem) == (None, None, None)

    page = tmp_path / "page.html"
    profile = pipeline(
        "profile", "--bootstrap", bootstrap, "--topic", topic, *typed, "--html", page
    )
    assert profile.returncode == 0, profile.stderr
    lines = fields_of(profile.stdout)
    assert ["value_data.id", "bigint", "40", "(95.2", "%)", "4", "0", "3"] in lines
    assert ["value_data.at", "array", "40", "(95.2", "%)", "1", "size", "2", "size", "2"] in lines
    assert re.search(r'^ *1  value +id is "text", and no bigint$', profile.stdout, re.MULTILINE)
    again = pipeline("profile", "--from", lake, "--topic", topic)
    assert again.returncode == 0, again.stderr
    assert fields_of(again.stdout) == fields_of(profile.stdout), "the archive's own columns"
    html = page.read_text(encoding="utf-8")
    assert "<h2>Fields</h2>" in html
    assert "<h2>Not decoded</h2>" in html


def fields_of(printed: str) -> list[list[str]]:
    """The lines of a profile about decoded fields."""
    lines = [line.split() for line in printed.splitlines()]
    return [line for line in lines if line and "_data" in line[0]]


@pytest.mark.parametrize(
    ("kind", "table"), [("json", "delta"), ("avro", "parquet"), ("protobuf", "iceberg")]
)
def test_plain_values_by_a_schema_file(
    spark: SparkSession,
    node: RunningBroker,
    pipeline: Pipeline,
    tmp_path: Path,
    kind: str,
    table: str,
) -> None:
    bootstrap, topic = node.bootstrap_servers, f"typed-plain-{kind}"
    create(bootstrap, topic, 1)
    path, good = plain(kind, tmp_path)
    send(bootstrap, topic, [good, good[:-1], None])
    lake = tmp_path / "lake"
    done = pipeline(
        "archive", "--bootstrap", bootstrap, "--topics", topic, "--to", lake,
        "--value-format", kind, "--value-schema", path, "--format", table,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = spark.read.format(table).load(str(lake)).orderBy("offset").collect()
    assert found[0].value_data.asDict() == {"id": 5, "name": "five"}
    assert [row.value_data for row in found[1:]] == [None, None]
    assert found[1].value_problem
    assert found[2].value_problem is None


def plain(kind: str, folder: Path) -> tuple[Path, bytes]:
    """A schema file and one value."""
    path = folder / "schema"
    if kind == "json":
        properties = {"id": {"type": "integer"}, "name": {"type": "string"}}
        path.write_text(json.dumps({"type": "object", "properties": properties}))
        return path, b'{"id": 5, "name": "five"}'
    if kind == "avro":
        path.write_text(json.dumps(order()))
        import io

        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(order()), {"id": 5, "name": "five"})
        return path, out.getvalue()
    made = message("typed.Plain")
    files = descriptor_pb2.FileDescriptorSet(file=[protobuf_file()])
    file = files.file[0]
    file.message_type.insert(0, file.message_type.pop(1))  # the first one is the one that is meant
    path.write_bytes(files.SerializeToString())
    return path, made(id=5, name="five").SerializeToString()


def protobuf_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="typed.proto", package="typed", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name="Key").field.add(
        name="id", number=1, type=kinds.TYPE_FIXED64, label=kinds.LABEL_OPTIONAL
    )
    plain_one = file.message_type.add(name="Plain")
    plain_one.field.add(name="id", number=1, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    plain_one.field.add(name="name", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    return file


def message(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(protobuf_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def test_a_registry_that_fails_in_mid_work_is_an_error_and_no_row_is_wrong(
    spark: SparkSession,
    node: RunningBroker,
    registry: FakeRegistry,
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    bootstrap, topic, lake = node.bootstrap_servers, "typed-fails", tmp_path / "lake"
    create(bootstrap, topic, 1)
    first, second = (avro_of(registry, topic, order(*more)) for more in ((), (DEFAULT,)))
    values = [first({"id": 1, "name": "a"}), second({"id": 2, "name": "b", "currency": "CHF"})]
    send(bootstrap, topic, list(values))
    archive = (
        "archive", "--bootstrap", bootstrap, "--topics", topic, "--to", lake,
        "--value-format", "avro", "--registry", registry.url,
    )  # fmt: skip
    registry.broken = {1}
    failed = pipeline(*archive)
    assert failed.returncode == 1
    assert f"the schema registry {registry.url} answers 500" in failed.stderr
    assert not list((lake / "_spark_metadata").glob("*"))
    registry.broken = set()
    done = pipeline(*archive)
    assert done.returncode == 0, done.stderr
    assert [row.value_data for row in rows_of(spark, lake)] == [(1, "a", "EUR"), (2, "b", "CHF")]


def test_columns_are_right_and_rows_are_there_once_though_the_driver_is_killed(
    spark: SparkSession,
    node: RunningBroker,
    registry: FakeRegistry,
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    bootstrap, topic, lake = node.bootstrap_servers, "typed-killed", tmp_path / "lake"
    create(bootstrap, topic, 1)
    first = avro_of(registry, topic, order())
    send(bootstrap, topic, [first({"id": n, "name": f"n{n}"}) for n in range(1500)])
    archive = (
        "archive", "--bootstrap", bootstrap, "--topics", topic, "--to", lake,
        "--value-format", "avro", "--registry", registry.url, "--max-per-trigger", 200,
    )  # fmt: skip
    driver = subprocess.Popen(
        command_line(*archive, *SMALL_SPARK), cwd=tmp_path,
        env=environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    wait_for_a_batch(driver, begun, lake, set())
    assert driver.poll() is None, "it ended by itself"
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    assert begun(lake), "no kill hit a batch under way: the test proved nothing"
    second = avro_of(registry, topic, order(DEFAULT))
    send(bootstrap, topic, [second({"id": 1500, "name": "n1500", "currency": "CHF"})])
    done = pipeline(*archive)
    assert done.returncode == 0, done.stderr
    found = rows_of(spark, lake)
    assert [row.offset for row in found] == list(range(1501))
    assert [(row.value_data.id, row.value_data.name) for row in found] == [
        (n, f"n{n}") for n in range(1501)
    ]
    assert {row.value_data.currency for row in found[:1500]} <= {None, "EUR"}
    assert found[-1].value_data.currency == "CHF"
