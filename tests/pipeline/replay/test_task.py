"""What a task of a replay sends: rows of Arrow batches, slot after slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from pipeline.replay import task
from pipeline.replay.task import COLUMNS, Target, chunks_of, replay_rows
from pipeline.sink.pieces import Names, Place
from pipeline.sink.registers import Mark, Register, Row

KINDS = (
    pa.string(), pa.int32(), pa.int32(), pa.int64(), pa.int64(), pa.int32(), pa.binary(),
    pa.binary(), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    pa.timestamp("us", tz="UTC"),
)  # fmt: skip


def rows(*these: tuple[Any, ...]) -> pa.RecordBatch:
    columns = zip(*these, strict=True) if these else [()] * len(KINDS)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, KINDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, list(COLUMNS))


def row(topic: str, source: int, generation: int, offset: int, total: int) -> tuple[Any, ...]:
    key = None if offset % 2 else b"k"
    return (topic, source, generation, offset, total, None, key, b"v%d" % offset,
            [{"key": "h", "value": None}] if offset == 9 else None, offset * 1000)  # fmt: skip


def test_batches_are_cut_where_a_slot_ends_and_rows_know_their_places() -> None:
    big = 2**63 - 1
    batches = [
        rows(row("a", 0, 0, 5, big), row("a", 0, 0, 9, big), row("a", 0, 1, 2, -1),
             row("a", 1, 0, 0, 7)),
        rows(row("a", 1, 0, 1, 7), row("b", 1, 0, 1, 7)),
        rows(row("b", 1, 0, 3, 7)),
    ]  # fmt: skip
    chunks = list(chunks_of(iter(batches)))
    assert [(chunk.slot, len(chunk)) for chunk in chunks] == [
        (("a", 0), 3), (("a", 1), 1), (("a", 1), 1), (("b", 1), 1), (("b", 1), 1),
    ]  # fmt: skip
    first = chunks[0]
    assert [first.up_to(Place(*to)) for to in ((0, 5), (0, 6), (0, 10), (1, 2), (1, 3))] == [
        0, 1, 2, 2, 3,
    ]  # fmt: skip
    before = Place(0, 4, 10, 2**64 - 1)
    assert first.place(before, 0, 2) == Place(0, 10, 12, (2**64 - 1 + 2 * big) % 2**64)
    assert first.place(before, 0, 3) == Place(1, 3, 13, (2**64 - 2 + 2 * big) % 2**64)
    assert list(first.rows(1, 3)) == [
        ("a", None, None, b"v9", [("h", None)], 9),
        ("a", None, b"k", b"v2", None, 2),
    ]
    assert first.size(1, 3) == 2 + 3


class Sent(Register):
    """Takes everything; some of it may be there already."""

    def __init__(self, mark: Mark | None) -> None:
        self.rows: list[Row] = []
        self.mark = mark

    def look(self) -> Mark | None:
        return self.mark

    def claim(self) -> None: ...

    def begin(self) -> None: ...

    def send(self, row: Row) -> None:
        self.rows.append(row)

    def commit(self, mark: Mark) -> None:
        self.mark = mark

    def abort(self) -> None: ...

    def close(self) -> None: ...


def test_each_slot_goes_to_its_register_with_its_topics_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registers: dict[tuple[Any, ...], Sent] = {}
    there = {"b-group-1": Place(0, 2, 1, 7).mark()}

    def connector(settings: Any) -> Callable[..., Register]:
        def connect(name: str, group: str = "") -> Register:
            made = registers[settings, name, group] = Sent(there.get(group))
            return made

        return connect

    monkeypatch.setattr(task, "connector", connector)
    names = {topic: Names(f"{topic}-id", f"{topic}-group") for topic in "ab"}
    settings: Any = {"a": "of a", "b": "of b"}
    run = replay_rows(Target(settings, names, None))

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows()
        yield rows(row("a", 0, 0, 5, 3), row("a", 1, 0, 0, 7))
        yield rows(row("a", 1, 0, 9, 7), row("b", 1, 0, 1, 7), row("b", 1, 0, 10, 7))

    (told,) = run(batches())
    assert told.to_pydict() == {"records": [4], "bytes": [2 + 3 + 2 + 4], "passed": [1]}
    assert {key: [row[3] for row in sent.rows] for key, sent in registers.items()} == {
        ("of a", "a-id-0", "a-group-0"): [b"v5"],
        ("of a", "a-id-1", "a-group-1"): [b"v0", b"v9"],
        ("of b", "b-id-1", "b-group-1"): [b"v10"],
    }


def test_a_task_without_rows_has_sent_nothing() -> None:
    (told,) = replay_rows(Target({}, {}, None))(iter([rows()]))
    assert told.to_pydict() == {"records": [0], "bytes": [0], "passed": [0]}
    assert list(chunks_of(iter([]))) == []
