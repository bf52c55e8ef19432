"""What a record of Kafka takes from the columns of a frame, wherever they stand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pipeline.sink.registers import SinkError
from pipeline.sink.rows import rows_of

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MICROSECONDS = pa.timestamp("us", tz="Europe/Berlin")


def rows(given: str | None, /, **columns: pa.Array) -> list[Any]:
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    return list(rows_of([batch, batch], {name: at for at, name in enumerate(columns)}, given))


def test_a_row_has_what_its_columns_hold_and_nothing_where_there_is_none() -> None:
    columns = {
        "timestamp": pa.array([1_999, None, 2_000], MICROSECONDS),
        "value": pa.array(["é", None, ""]),
        "headers": pa.array(
            [None, [{"key": "h", "value": b"1"}, {"key": "h", "value": None}], []], HEADERS
        ),
        "topic": pa.array(["a", "b", "a"]),
        "partition": pa.array([None, 0, 7], pa.int32()),
    }
    expected = [
        ("a", None, None, "é".encode(), None, 1),
        ("b", 0, None, None, [("h", b"1"), ("h", None)], None),
        ("a", 7, None, b"", [], 2),
    ]
    assert rows(None, **columns) == expected * 2
    assert rows("z", **columns) == [("z", *row[1:]) for row in expected] * 2
    nothing = {"headers": pa.nulls(1, HEADERS), "partition": pa.nulls(1, pa.int32())}
    for more in ({}, nothing, {"timestamp": pa.nulls(1, MICROSECONDS)}):
        sent = rows("z", key=pa.array([b"k"]), **more)
        assert sent == [("z", None, b"k", None, None, None)] * 2


@pytest.mark.parametrize(
    "columns", [{"topic": pa.array(["a", None])}, {"value": pa.array([b"x"])}], ids=str
)
def test_a_row_without_a_topic_is_refused_unless_one_is_given_for_all(
    columns: dict[str, pa.Array],
) -> None:
    with pytest.raises(SinkError, match="a row has no topic"):
        rows(None, **columns)
    assert {row[0] for row in rows("z", **columns)} == {"z"}


def partitions(*values: int | None) -> list[int | None]:
    columns = {"value": pa.array([b"v"] * len(values)), "partition": pa.array(values, pa.int32())}
    batch = pa.RecordBatch.from_pydict(columns)
    return [row[1] for row in rows_of([batch], {"value": 0, "partition": 1}, "orders")]


def test_a_partition_below_0_is_refused_and_none_is_any() -> None:
    """As Kafka's own client does; librdkafka would put a row of -1 anywhere."""
    assert partitions(1, None, 0) == [1, None, 0]
    assert partitions(None, None) == [None, None]
    assert partitions() == []
    with pytest.raises(SinkError, match="a row has partition -3; correct the column partition"):
        partitions(0, -1, None, -3)


@pytest.mark.parametrize("header", [{"key": None, "value": b"1"}, None], ids=str)
def test_a_header_without_a_key_is_refused_by_name(header: dict[str, Any] | None) -> None:
    good = [{"key": "h", "value": b"1"}]
    with pytest.raises(SinkError, match="a header without a key"):
        rows("z", headers=pa.array([None, good, [*good, header]], HEADERS))
    # What a slice leaves out is not looked at.
    left = pa.array([good, [header], None], HEADERS).slice(0, 1)
    assert rows("z", headers=left)[0][4] == [("h", b"1")]
