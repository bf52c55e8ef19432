"""`frame.writeStream.format("barnabas")` and `frame.write.format("barnabas")`: what runs a task.

Options and columns: docs/pipeline.md, "sink: every row once". Spark calls `writer`, `streamWriter`
on the driver, for each batch, and `write` in each task with the Arrow batches of one partition of
the frame, which is one slot. What a task is of, it learns from its context: Spark sets the local
properties `sql.streaming.queryId` and `streaming.sql.batchId` on every job of a stream (seen in
PySpark 4.0.0; they are how Spark's own sources know them).

Travels to executors by value.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from .clients import connector
from .exactly_once import Task, write_once
from .registers import SinkError
from .rows import TYPES, rows_of
from .settings import Settings, settings_of

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
_OPTIONS = (
    "topic", "slots", "writeid", "client", "lostmarks",
    "checkpointlocation", "queryname",  # Spark's own
)  # fmt: skip


class Sink:
    """What the options and the columns say. Raises SinkError for wrong ones."""

    def __init__(self, schema: StructType, given: Mapping[str, str]) -> None:
        options, properties = _split(given)
        self.write_id = _checked_id(options.get("writeid"))
        self.goes_on = _goes_on(options.get("lostmarks", "refuse"))
        self._topic = options.get("topic")
        self._columns = _columns(schema, self._topic)
        self.slots = _slots(options.get("slots"))
        self._settings: Settings = settings_of(properties, options.get("client", "auto"))

    def write(self, task: Task, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one slot. Raises SinkError."""
        rows = rows_of(batches, self._columns, self._topic)
        write_once(task, rows, connector(self._settings), _pause)
        return WriterCommitMessage()


class BatchWriter(DataSourceArrowWriter):
    """`frame.write`: the number of its batch is 0."""

    def __init__(self, sink: Sink, overwrite: bool) -> None:
        if overwrite:
            raise SinkError('topics cannot be overwritten; use .mode("append")')
        self._sink = sink
        self._write_id = sink.write_id or uuid.uuid4().hex  # one for all tasks of this write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        slot = _context().partitionId()
        task = Task(self._write_id, 0, slot, self._sink.slots, may_begin=True)
        return self._sink.write(task, iterator)


class StreamWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[misc]
    """`frame.writeStream`. Of both kinds: PySpark hands Arrow batches to any DataSourceArrowWriter,
    and calls `commit` and `abort` of a stream with the batch."""

    def __init__(self, sink: Sink) -> None:
        if sink.write_id is not None:
            raise SinkError("writeId is for batches; a stream's id is its checkpoint's: drop it")
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise SinkError("this Spark does not tell a task its query and batch; use PySpark 4")
        may_begin = self._sink.goes_on or int(batch) == 0
        task = Task(query, int(batch), context.partitionId(), self._sink.slots, may_begin)
        return self._sink.write(task, iterator)


def _split(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Our options, and the client's. Raises SinkError for one that is neither."""
    lowered = {key.lower(): value for key, value in given.items()}
    properties = {key[6:]: value for key, value in lowered.items() if key.startswith("kafka.")}
    options = {key: value for key, value in lowered.items() if not key.startswith("kafka.")}
    for key in options:
        if key not in _OPTIONS:
            raise SinkError(
                f"unknown option {key!r} of format barnabas; to write there are topic, slots,"
                " writeId, client, lostMarks and kafka.*"
            )
    return options, properties


def _columns(schema: StructType, topic: str | None) -> dict[str, int]:
    """Where each column is that goes into a record. Raises SinkError."""
    found: dict[str, int] = {}
    for place, field in enumerate(schema.fields):
        if field.name not in TYPES:
            continue
        kind = field.dataType.simpleString()
        if kind not in TYPES[field.name]:
            raise SinkError(
                f"column {field.name} is {kind}; cast it to {' or '.join(TYPES[field.name])}"
            )
        found[field.name] = place
    if "value" not in found:
        raise SinkError(
            f"there is no column value, but {', '.join(schema.fieldNames())}; name one so, as in"
            ' .selectExpr("id as key", "to_json(struct(*)) as value")'
        )
    if "topic" not in found and not topic:
        raise SinkError("which topic? Give the option topic, or a column topic")
    return found


def _slots(text: str | None) -> int:
    if text is None:
        raise SinkError(
            "how many slots? Put .repartition(4, <columns>) before the sink and give the option"
            " slots=4: rows are written once if a batch that is computed again has the same rows"
            " in the same partitions"
        )
    if not text.isdecimal() or not int(text):
        raise SinkError(f"option slots is {text!r}; expected a number, 1 or more")
    return int(text)


def _goes_on(text: str) -> bool:
    if text.lower() not in ("refuse", "goon"):
        raise SinkError(f"option lostMarks is {text!r}; expected refuse or goOn")
    return text.lower() == "goon"


def _checked_id(text: str | None) -> str | None:
    if text is None:
        return None
    if not text or len(text) > 200 or not all(one.isalnum() or one in "._-" for one in text):
        raise SinkError(f"option writeId is {text!r}; expected letters, digits and . _ - (200)")
    return text


def _context() -> Any:
    from pyspark import TaskContext

    return TaskContext.get()


def _pause(number: int) -> None:
    """Up to half a second, and never in step with another task."""
    time.sleep(min(0.5, 0.05 * (number + 1)) * random.uniform(0.5, 1.0))
