"""Rows of Arrow batches, as a register sends them: the columns are those of `format("kafka")`.

Travels to executors by value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .registers import Row, SinkError

TYPES = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""What each column may be, as Spark names types."""


def rows_of(
    batches: Iterable[pa.RecordBatch], columns: Mapping[str, int], topic: str | None
) -> Iterator[Row]:
    """Rows of Arrow batches whose columns are at these places. Raises SinkError for a row without
    a topic, with a header without a key, or with a partition below 0 (to librdkafka -1 is none)."""
    for batch in batches:
        count = batch.num_rows
        lists: dict[str, list[Any]] = {name: [None] * count for name in TYPES}
        for name, place in columns.items():
            lists[name] = _values(name, batch.column(place))
        if topic is not None:
            lists["topic"] = [topic] * count
        elif None in lists["topic"]:
            raise SinkError("a row has no topic; fill the column topic, or give the option topic")
        yield from zip(
            lists["topic"], lists["partition"], lists["key"], lists["value"],
            lists["headers"], lists["timestamp"], strict=True,
        )  # fmt: skip


def _values(name: str, column: pa.Array) -> list[Any]:
    if name in ("key", "value"):
        return list(column.cast(pa.binary()).to_pylist())
    if name == "timestamp":
        column = column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    if name == "partition" and (lowest := pc.min(column).as_py() or 0) < 0:
        raise SinkError(f"a row has partition {lowest}; correct the column partition (null: any)")
    if column.null_count == len(column):
        return [None] * len(column)
    if name == "headers":
        if pc.struct_field(column.flatten(), "key").null_count:
            raise SinkError(
                "a row has a header without a key, which Kafka does not know; correct the column"
                " headers"
            )
        return [
            None if headers is None else [(one["key"], one["value"]) for one in headers]
            for headers in column.to_pylist()
        ]
    return list(column.to_pylist())
