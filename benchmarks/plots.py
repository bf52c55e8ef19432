"""Pictures, as SVG written by hand: all ratios at a glance, latency over the offered rate, and one
for each axis of `benchmarks.growth`.

Plain shapes and text, no style sheet of a page needed: they show in a README, light or dark.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from benchmarks.report import Row, rows
from benchmarks.targets import KINDS

_COLOURS = {"barnabas": "#0072b2", "kafka": "#d55e00"}  # distinct for colour-blind eyes
_NAMES = {"barnabas": "Barnabas", "kafka": "Apache Kafka 4.3.1"}
_BETTER, _WORSE = "#0072b2", "#d55e00"
_DASHES = {"p50": "", "p99": "6 3", "p999": "2 3"}


class Svg:
    """Collects shapes; `text()` is the file."""

    def __init__(self, width: int, height: int) -> None:
        self._size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        self._shapes = [f'<rect width="{width}" height="{height}" fill="#ffffff"/>']

    def line(self, points: Iterable[tuple[float, float]], colour: str, **more: Any) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._add("polyline", points=path, fill="none", stroke=colour, **more)

    def dot(self, x: float, y: float, colour: str) -> None:
        self._add("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3.5, fill=colour)

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        width = max(width, 1)
        self._add("rect", x=f"{x:.1f}", y=f"{y:.1f}", width=f"{width:.1f}", height=height,
                  fill=colour)  # fmt: skip

    def words(self, x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> None:
        self._shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'font-family="sans-serif" fill="#222222">{escape(text)}</text>'
        )

    def text(self) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {self._size}>'
        return "\n".join([head, *self._shapes, "</svg>"]) + "\n"

    def _add(self, shape: str, **attributes: Any) -> None:
        words = " ".join(f'{key.replace("_", "-")}="{value}"' for key, value in attributes.items())
        self._shapes.append(f"<{shape} {words}/>")


def ratios(result: dict[str, Any]) -> str | None:
    """A bar for each figure: how many times better or worse than Apache Kafka, on a log scale."""
    shown = [row for row in rows(result) if row.gains and min(row.gains) > 0]
    if not shown:
        return None
    left, right, top, step = 430, 900, 60, 20
    reach = max(2.0, *(max(g, 1 / g) for row in shown for g in row.gains))
    scale = (right - left) / 2 / math.log(reach)
    middle = (left + right) / 2

    def at(gain: float) -> float:
        return middle + math.log(gain) * scale

    svg = Svg(right + 70, top + step * len(shown) + 20)
    svg.words(20, 24, "Barnabas beside Apache Kafka 4.3.1: times better (right) or worse (left)",
              size=15)  # fmt: skip
    bottom = top + step * len(shown)
    for tick in _ticks(1 / reach, reach):
        svg.line([(at(tick), top - 4), (at(tick), bottom)], "#dddddd")
        svg.words(at(tick), top - 10, f"{tick:g}x", "middle", 11)
    for number, row in enumerate(shown):
        _ratio_bar(svg, row, top + number * step, left, middle, at)
    svg.line([(middle, top - 4), (middle, bottom)], "#222222")
    return svg.text()


def _ratio_bar(svg: Svg, row: Row, y: float, left: float, middle: float, at: Any) -> None:
    gain = statistics.median(row.gains)
    end = at(gain)
    svg.words(left - 8, y + 14, f"{row.title}: {row.unit}", "end", 11)
    svg.bar(min(middle, end), y + 4, abs(end - middle), 12, _BETTER if gain >= 1 else _WORSE)
    svg.line([(at(min(row.gains)), y + 10), (at(max(row.gains)), y + 10)], "#222222")
    svg.words(max(at(max(row.gains)), middle) + 6, y + 14, f"{gain:.3g}x", size=11)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... and their inverses within the range; powers of ten when it is wide."""
    digits = (1, 2, 5) if high / low < 2000 else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**exponent for exponent in exponents for digit in digits]
    return [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]


def latencies(result: dict[str, Any]) -> str | None:
    """End-to-end p50, p99 and p99.9 over the offered rate, both axes logarithmic."""
    lines = {
        (kind, share): points
        for kind in KINDS
        for share in _DASHES
        if (points := _points(result, kind, f"e2e_{share}_ms"))
    }
    if not lines:
        return None
    rates = [rate for points in lines.values() for rate, _ in points]
    times = [late for points in lines.values() for _, late in points]
    left, right, top, bottom = 70.0, 640.0, 50.0, 400.0
    x = _log_axis(min(rates) * 0.8, max(rates) * 1.25, left, right)
    y = _log_axis(min(times) * 0.7, max(times) * 1.4, bottom, top)
    svg = Svg(840, 450)
    svg.words(20, 24, "Time from when a record was due until it is received (1 KiB, acks=all)",
              size=15)  # fmt: skip
    for tick in _ticks(min(times) * 0.7, max(times) * 1.4):
        svg.line([(left, y(tick)), (right, y(tick))], "#dddddd")
        svg.words(left - 6, y(tick) + 4, f"{tick:g} ms", "end", 11)
    for rate in sorted(set(rates)):
        svg.line([(x(rate), top), (x(rate), bottom)], "#eeeeee")
        svg.words(x(rate), bottom + 18, f"{rate:,}/s", "middle", 11)
    for number, ((kind, share), points) in enumerate(lines.items()):
        _latency_line(svg, kind, share, [(x(rate), y(late)) for rate, late in points], number)
    return svg.text()


def _latency_line(
    svg: Svg, kind: str, share: str, points: Sequence[tuple[float, float]], number: int
) -> None:
    look = {"stroke_width": 2, "stroke_dasharray": _DASHES[share] or "none"}
    svg.line(points, _COLOURS[kind], **look)
    for point in points:
        svg.dot(*point, _COLOURS[kind])
    height = 70 + number * 20
    svg.line([(655, height - 4), (685, height - 4)], _COLOURS[kind], **look)
    name = {"p50": "p50", "p99": "p99", "p999": "p99.9"}[share]
    svg.words(692, height, f"{_NAMES[kind]} {name}", size=11)


def growth(
    title: str, unit: str, names: dict[str, str], result: dict[str, Any], axis: str
) -> str | None:
    """One axis of growth, both brokers, a dash pattern for each figure; both axes logarithmic."""
    dashes = dict(zip(names, _DASHES.values(), strict=False))
    found = result["axes"].get(axis, {})
    lines = {
        (kind, figure): points
        for kind in KINDS
        for figure in names
        if (points := sorted((float(x), run[figure]) for x, run in found.get(kind, {}).items()))
    }
    values = [value for points in lines.values() for _, value in points if value > 0]
    if not values:
        return None
    places = sorted({x for points in lines.values() for x, _ in points})
    left, right, top, bottom = 70.0, 560.0, 50.0, 400.0
    x = _log_axis(places[0] * 0.8, places[-1] * 1.25, left, right)
    y = _log_axis(min(values) * 0.7, max(values) * 1.4, bottom, top)
    svg = Svg(840, 450)
    svg.words(20, 24, f"{unit} against {title}", size=15)
    for tick in _ticks(min(values) * 0.7, max(values) * 1.4):
        svg.line([(left, y(tick)), (right, y(tick))], "#dddddd")
        svg.words(left - 6, y(tick) + 4, f"{tick:g} {unit}", "end", 11)
    for place in places:
        svg.line([(x(place), top), (x(place), bottom)], "#eeeeee")
        svg.words(x(place), bottom + 18, f"{place:,g}", "middle", 11)
    for number, ((kind, figure), points) in enumerate(lines.items()):
        drawn = [(x(place), y(value)) for place, value in points if value > 0]
        _growth_line(svg, drawn, dashes[figure], kind, names[figure], number)
    return svg.text()


def _growth_line(
    svg: Svg, points: Sequence[tuple[float, float]], dash: str, kind: str, name: str, number: int
) -> None:
    look = {"stroke_width": 2, "stroke_dasharray": dash or "none"}
    svg.line(points, _COLOURS[kind], **look)
    for point in points:
        svg.dot(*point, _COLOURS[kind])
    height = 70 + number * 20
    svg.line([(575, height - 4), (605, height - 4)], _COLOURS[kind], **look)
    svg.words(612, height, f"{_NAMES[kind]}: {name}", size=11)


def _points(result: dict[str, Any], kind: str, figure: str) -> list[tuple[int, float]]:
    points = []
    for workload in result["workloads"].values():
        late = [run[figure] for run in workload["runs"][kind] if figure in run]
        if late:
            points.append((workload["arguments"]["rate"], statistics.median(late)))
    return sorted(points)


def _log_axis(low: float, high: float, start: float, end: float) -> Any:
    scale = (end - start) / math.log(high / low)
    return lambda value: start + math.log(value / low) * scale
