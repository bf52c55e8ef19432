"""Rows of Arrow batches: what no client may be given."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.sink.registers import SinkError
from pipeline.sink.rows import rows_of


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
