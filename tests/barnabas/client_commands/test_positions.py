from __future__ import annotations

import argparse

import pytest

from barnabas.client_commands.positions import Position, offset, parse


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Position("beginning")),
        ("end", Position("end")),
        ("0", Position("offset", 0)),
        ("42", Position("offset", 42)),
        ("-10", Position("before-end", 10)),
        ("1970-01-01T00:00:01Z", Position("time", 1000)),
        ("1970-01-01T01:00:00.250+01:00", Position("time", 250)),
        ("1969-12-31T23:59:59.999Z", Position("time", 0)),
    ],
)
def test_a_place_as_it_is_written(text: str, position: Position) -> None:
    assert parse(text) == position


@pytest.mark.parametrize("text", ["", "start", "1.5", "--1", "12:00", "1e3", "٣", "0001-01-01"])
def test_no_place(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected beginning, end, an offset"):
        parse(text)


@pytest.mark.parametrize(
    ("position", "at_time", "expected"),
    [
        (Position("beginning"), None, 10),
        (Position("end"), None, 20),
        (Position("offset", 15), None, 15),
        (Position("offset", 3), None, 10),
        (Position("offset", 99), None, 20),
        (Position("before-end", 2), None, 18),
        (Position("before-end", 99), None, 10),
        (Position("time", 5), 12, 12),
        (Position("time", 5), None, 20),
    ],
)
def test_a_place_in_a_partition_that_holds_10_to_20(
    position: Position, at_time: int | None, expected: int
) -> None:
    assert offset(position, 10, 20, at_time) == expected
