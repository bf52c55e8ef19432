"""Growth is told as it was measured: the exponent, the table, the picture, and nothing twice."""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from benchmarks import plots
from benchmarks.growth import __main__ as program
from benchmarks.growth import table
from benchmarks.growth.axes import AXES
from benchmarks.growth.log_size import Later
from benchmarks.loads import frames
from wire.record_batch import check_crc, read_header

AXIS = next(axis for axis in AXES if axis.name == "partitions")


def result(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, Any]:
    return {
        "machine": {"cpu": "a CPU", "cores": 2, "commit": "abc"},
        "axes": {
            "partitions": {
                kind: {x: {"cpu_us": cost, "p50_us": 2 * cost} for x, cost in costs.items()}
                for kind, costs in (("barnabas", ours), ("kafka", theirs))
            }
        },
        "failures": {},
    }


@pytest.mark.parametrize(("power", "expected"), [(0, 0.0), (1, 1.0), (2, 2.0)])
def test_the_exponent_is_that_of_the_cost(power: int, expected: float) -> None:
    slope = table.exponent([(x, 3.0 * x**power) for x in (1.0, 10.0, 100.0)])
    assert slope == pytest.approx(expected)


def test_one_point_has_no_exponent() -> None:
    assert table.exponent([(1.0, 5.0)]) is None
    assert table.exponent([(1.0, 5.0), (1.0, 6.0)]) is None


def test_the_table_sets_points_of_both_side_by_side_in_order() -> None:
    found = result({"1": 10.0, "100": 10.0, "10": 10.0}, {"1": 20.0, "10": 40.0})
    lines = table.table(found, AXES).splitlines()
    shown = [line.split(" | ")[2:] for line in lines if "broker CPU" in line]
    assert shown == [
        ["1", "10", "20", "**0.5** |"],
        ["10", "10", "40", "**0.25** |"],
        ["100", "10", "-", "- |"],
        ["", "0.00", "0.30", " |"],
    ]


def test_the_picture_has_a_line_for_each_figure_of_both() -> None:
    found = result({"1": 10.0, "10": 12.0}, {"1": 20.0, "10": 40.0})
    drawn = plots.growth(AXIS.title, AXIS.unit, AXIS.lines, found, AXIS.name)
    assert drawn is not None
    words = [node.text or "" for node in ElementTree.fromstring(drawn).iter() if node.text]
    assert "Barnabas: broker CPU" in words
    assert "Apache Kafka 4.3.1: wait, p50" in words
    assert plots.growth("x", "us", AXIS.lines, found, "groups") is None


def test_what_was_measured_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def make(kind: str, *_: object) -> Any:
        begun.append(kind)
        raise RuntimeError("a broker is started")

    monkeypatch.setattr(program, "make", make)
    arguments = argparse.Namespace(broker=None, dir=None, tiny=False, warm_up=0)
    found = result({"1": 10.0, "10": 10.0}, {"1": 10.0, "10": 10.0})
    program._measure(AXIS, [1, 10], found, arguments)
    assert begun == []
    with pytest.raises(RuntimeError):
        program._measure(AXIS, [1, 10, 100], found, arguments)
    assert begun == ["barnabas"]


def test_batches_of_a_long_log_are_whole_and_each_is_later() -> None:
    batch, _ = frames.batch_of(100, 1000, 1)
    later = Later("t", batch, 1_700_000_000_000, 3)
    headers = []
    for request in later:
        at = request.index(batch[61:]) - 61
        header = read_header(request, at)
        assert check_crc(request, at, header)
        headers.append((header.base_timestamp, header.max_timestamp))
    assert headers == [(1_700_000_000_000 + n,) * 2 for n in range(3)]
    assert len(later[0]) == len(frames.produce_frame("t", 0, batch))
