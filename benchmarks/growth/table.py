"""The points as a table, and how steep they are: the exponent of growth.

0 is a cost that stays, 1 one that doubles when what grows doubles: the slope of a straight line
through the logarithms. What Kafka keeps at 1 or below should not be above 1 here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.growth.axes import Axis
from benchmarks.targets import KINDS


def exponent(points: list[tuple[float, float]]) -> float | None:
    """Least squares over the logarithms; None of fewer than two points."""
    known = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len(known) < 2:
        return None
    middle_x, middle_y = (sum(side) / len(known) for side in zip(*known, strict=True))
    spread = sum((x - middle_x) ** 2 for x, _ in known)
    return sum((x - middle_x) * (y - middle_y) for x, y in known) / spread if spread else None


def points_of(
    result: dict[str, Any], axis: str, kind: str, figure: str
) -> list[tuple[float, float]]:
    """(how much, figure), in order."""
    found = result["axes"].get(axis, {}).get(kind, {})
    return sorted((float(x), figures[figure]) for x, figures in found.items() if figure in figures)


def table(result: dict[str, Any], axes: Iterable[Axis]) -> str:
    """Markdown: a row for each point and figure, and one with the exponents."""
    machine = result["machine"]
    lines = [f"{machine['cpu']}, {machine['cores']} cores, commit {machine['commit']}", ""]
    lines += ["| what grows | figure | at | Barnabas | Apache Kafka 4.3.1 | ratio |"]
    lines += ["|---|---|---|---|---|---|"]
    for axis in axes:
        if axis.name in result["axes"]:
            lines += _rows(result, axis)
    lines += [f"\nFailed: {name}: {text}" for name, text in result["failures"].items()]
    return "\n".join(lines)


def _rows(result: dict[str, Any], axis: Axis) -> Iterator[str]:
    for figure, name in axis.lines.items():
        ours, theirs = (points_of(result, axis.name, kind, figure) for kind in KINDS)
        beside = dict(theirs)
        for x, value in ours:
            other = beside.get(x)
            ratio = f"**{value / other:.3g}**" if other else "-"
            cells = [axis.title, f"{name}, {axis.unit}", f"{x:,g}", _number(value)]
            cells += [_number(other) if other is not None else "-", ratio]
            yield f"| {' | '.join(cells)} |"
        slopes = [
            "-" if slope is None else f"{slope:.2f}" for slope in map(exponent, (ours, theirs))
        ]
        cells = [axis.title, f"{name}: exponent", "", *slopes, ""]
        yield f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
