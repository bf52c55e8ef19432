"""What a task of `replay` does: Arrow batches, slot after slot, into transactions in pieces.

Why not Spark's Kafka sink: up to 4.1 it has no column for the timestamp, so a restored topic would
begin today; and it writes rows again after a failure. What is done with a slot, and why each record
is there once: sink.pieces. With which client: sink.clients.

Travels to executors by value; imports NumPy, PyArrow and its sisters of the sink.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..sink.clients import connector
from ..sink.pieces import Chunk, Names, Pace, Place, write_in_pieces
from ..sink.registers import Row
from ..sink.rows import rows_of
from ..sink.settings import Settings

COLUMNS = (
    "topic", "source", "generation", "offset", "hash", "partition", "key", "value", "headers",
    "timestamp",
)  # fmt: skip
"""Of the frame, in this order: the slot (target topic, archived partition), the place in it, the
record's hash; and the record, `partition` being that of the target, or null."""
STATS_SCHEMA = "records long, bytes long, passed long"
_PLACES = {name: COLUMNS.index(name) for name in COLUMNS[5:]}


class Target(NamedTuple):
    """Where and how to replay; travels to each task."""

    settings: dict[str, Settings]
    """By target topic, as `names`."""
    names: dict[str, Names]
    records_per_s: float | None
    """Limit of one task; None is as fast as it goes."""


def replay_rows(target: Target) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: sends rows in the COLUMNS, sorted by slot and place, and yields one row of
    statistics. Raises SinkError."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pace = Pace(target.records_per_s, time.monotonic, time.sleep)
        records = passed = size = 0

        for (topic, source), chunks in groupby(chunks_of(batches), lambda chunk: chunk.slot):
            names, connect = target.names[topic], connector(target.settings[topic])
            registers = partial(
                connect, f"{names.transactional_id}-{source}", f"{names.group}-{source}"
            )
            sent = write_in_pieces(f"partition {source} of {topic}", chunks, registers, pace)
            records += sent.rows
            passed += sent.passed
            size += sent.bytes
        yield pa.RecordBatch.from_pydict(
            {
                "records": pa.array([records], pa.int64()),
                "bytes": pa.array([size], pa.int64()),
                "passed": pa.array([passed], pa.int64()),
            }
        )

    return run


class ArrowChunk(Chunk):
    """Rows of one slot in an Arrow batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._generations = _numbers(batch, "generation")
        self._offsets = _numbers(batch, "offset")
        self._hashes = _numbers(batch, "hash").view(np.uint64)

    @property
    def slot(self) -> tuple[str, int]:
        return self._batch.column(0)[0].as_py(), self._batch.column(1)[0].as_py()

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def up_to(self, place: Place) -> int:
        earlier = self._generations < place.generation
        same = self._generations == place.generation
        return int(np.count_nonzero(earlier | (same & (self._offsets < place.offset))))

    def place(self, before: Place, start: int, end: int) -> Place:
        total = int(self._hashes[start:end].sum(dtype=np.uint64))
        return Place(
            int(self._generations[end - 1]),
            int(self._offsets[end - 1]) + 1,
            before.rows + end - start,
            (before.checksum + total) % 2**64,
        )

    def rows(self, start: int, end: int) -> Iterator[Row]:
        return rows_of([self._batch.slice(start, end - start)], _PLACES, self.slot[0])

    def size(self, start: int, end: int) -> int:
        part = self._batch.slice(start, end - start)
        lengths = (pc.binary_length(part.column(_PLACES[name])) for name in ("key", "value"))
        return sum(pc.sum(one).as_py() or 0 for one in lengths)


def chunks_of(batches: Iterator[pa.RecordBatch]) -> Iterator[ArrowChunk]:
    """The batches, cut where a slot ends."""
    for batch in batches:
        if not batch.num_rows:
            continue
        changes = _changes(batch.column(0)) | _changes(batch.column(1))
        bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
        for start, end in pairwise(bounds):
            yield ArrowChunk(batch.slice(start, end - start))


def _changes(column: Any) -> Any:
    """Where a row differs from the one before, as NumPy's bool; one shorter than the column."""
    return pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)


def _numbers(batch: pa.RecordBatch, name: str) -> Any:
    column = batch.column(COLUMNS.index(name)).cast(pa.int64())
    return column.to_numpy(zero_copy_only=False)
