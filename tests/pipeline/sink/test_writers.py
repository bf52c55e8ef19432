"""What the options and the columns of a sink say, and of which task its tasks are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyspark
import pytest
from pyspark.sql import types

from pipeline.sink import writers
from pipeline.sink.exactly_once import Task
from pipeline.sink.registers import SinkError
from pipeline.sink.writers import BatchWriter, Sink, StreamWriter

SCHEMA = "key string, other int, value binary, partition int"
OPTIONS = {"kafka.bootstrap.servers": "b:1", "topic": "t", "slots": "4"}


TYPES = {
    "string": types.StringType(), "binary": types.BinaryType(), "int": types.IntegerType(),
    "bigint": types.LongType(),
}  # fmt: skip


def sink(schema: str = SCHEMA, **more: str | None) -> Sink:
    columns = (column.split() for column in schema.split(", "))
    fields = [types.StructField(name, TYPES[kind]) for name, kind in columns]
    options = {key: value for key, value in (OPTIONS | more).items() if value is not None}
    return Sink(types.StructType(fields), options)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"subscribe": "t"}, "unknown option 'subscribe' .* topic, slots, writeId, client"),
        ({"slots": None}, r"how many slots\? Put .repartition"),
        ({"slots": "0"}, "option slots is '0'; expected a number, 1 or more"),
        ({"slots": "-1"}, "option slots is '-1'"),
        ({"slots": "x"}, "option slots is 'x'"),
        ({"topic": None}, r"which topic\? Give the option topic, or a column topic"),
        ({"lostMarks": "no"}, "option lostMarks is 'no'; expected refuse or goOn"),
        ({"writeId": ""}, "option writeId is ''; expected letters, digits"),
        ({"writeId": "a b"}, "option writeId is 'a b'"),
        ({"writeId": "a" * 201}, "option writeId is"),
    ],
)
def test_an_option_that_is_not_right_is_named(more: dict[str, str | None], words: str) -> None:
    with pytest.raises(SinkError, match=words):
        sink(**more)


def test_options_are_spark_s_whatever_their_case() -> None:
    made = sink(SLOTS="7", slots=None, writeID="a.b_c-9", LostMarks="GOON", queryName="q")
    assert (made.slots, made.write_id, made.goes_on) == (7, "a.b_c-9", True)
    made = sink(writeId="a" * 200)
    assert (made.slots, made.write_id, made.goes_on) == (4, "a" * 200, False)
    assert sink(slots="1").slots == 1


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("key string, id int", r"there is no column value, but key, id; name one so"),
        ("value int", "column value is int; cast it to binary or string"),
        ("value string, partition bigint", "column partition is bigint; cast it to int"),
        ("value string, timestamp string", "column timestamp is string; cast it to timestamp"),
        ("value string, headers string", "column headers is string; cast it to array<struct<"),
    ],
)
def test_a_column_that_cannot_be_written_is_named(schema: str, words: str) -> None:
    with pytest.raises(SinkError, match=words):
        sink(schema)


def test_a_column_topic_stands_for_the_option() -> None:
    assert sink("value string, topic string", topic=None)._columns == {"value": 0, "topic": 1}
    assert sink()._columns == {"key": 0, "value": 2, "partition": 3}


class Context:
    """Of a task of Spark."""

    def __init__(self, **properties: str) -> None:
        self._properties = properties

    def partitionId(self) -> int:  # noqa: N802 - PySpark's
        return 3

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - PySpark's
        return self._properties.get(name.rpartition(".")[2])


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Of whom rows were written."""
    found: list[Task] = []

    def write_once(task: Task, rows: Any, connect: Any, pause: Any) -> None:
        assert (list(rows), connect) == ([], "of the client")
        found.append(task)

    monkeypatch.setattr(writers, "write_once", write_once)
    monkeypatch.setattr(writers, "connector", lambda settings: "of the client")
    return found


@pytest.fixture
def runs_as(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def run(**properties: str) -> None:
        context = type("", (), {"get": staticmethod(lambda: Context(**properties))})
        monkeypatch.setattr(pyspark, "TaskContext", context)

    return run


def test_a_task_of_a_stream_knows_its_query_and_batch(
    tasks: list[Task], runs_as: Callable[..., None]
) -> None:
    for batch, options in (("0", {}), ("7", {}), ("7", {"lostMarks": "goOn"})):
        runs_as(queryId="q", batchId=batch)
        StreamWriter(sink(**options)).write(iter([]))
    assert tasks == [Task("q", 0, 3, 4, True), Task("q", 7, 3, 4, False), Task("q", 7, 3, 4, True)]
    for known in ({"queryId": "q"}, {"batchId": "0"}):
        runs_as(**known)
        with pytest.raises(SinkError, match="does not tell a task its query and batch"):
            StreamWriter(sink()).write(iter([]))
    with pytest.raises(SinkError, match="writeId is for batches"):
        StreamWriter(sink(writeId="a"))


def test_all_tasks_of_a_batch_are_of_one_write(
    tasks: list[Task], runs_as: Callable[..., None]
) -> None:
    runs_as()
    writer = BatchWriter(sink(), overwrite=False)
    writer.write(iter([]))
    writer.write(iter([]))
    assert tasks[0] == tasks[1] == Task(tasks[0].write_id, 0, 3, 4, True)
    BatchWriter(sink(), overwrite=False).write(iter([]))
    BatchWriter(sink(writeId="mine"), overwrite=False).write(iter([]))
    assert tasks[2].write_id not in (tasks[0].write_id, "")
    assert tasks[3].write_id == "mine"
    with pytest.raises(SinkError, match=r"topics cannot be overwritten; use .mode\("):
        BatchWriter(sink(), overwrite=True)


def test_a_pause_is_longer_each_time_up_to_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(writers.time, "sleep", slept.append)
    for bound, wanted in ((0.5, [0.025, 0.05, 0.25]), (1.0, [0.05, 0.1, 0.5])):
        monkeypatch.setattr(
            writers.random, "uniform", lambda low, high, bound=bound: min(max(low, bound), high)
        )
        slept.clear()
        for number in (0, 1, 50):
            writers._pause(number)
        assert slept == pytest.approx(wanted)
