"""From runs to a table: medians, ranges, the ratio of each pair, and the bars."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.targets import KINDS
from benchmarks.workloads import NEITHER, RATES, WORKLOADS, Workload

_LIMIT_MS = 20.0
_UNITS = {
    "mb_s": "MB/s", "records_s": "records/s", "requests_s": "requests/s",
    "produced_s": "produced/s", "consumed_s": "consumed/s", "cpu_s": "broker CPU s",
    "broker_cpu_s": "broker CPU s", "roll_cpu_s": "broker CPU s, rolling",
    "client_cpu_s": "client CPU s", "peak_mib": "peak MiB",
    "idle_mib": "idle MiB", "disk_mib": "disk MiB", "idle_cpu_pct": "idle CPU %",
    "batch_bytes": "bytes a batch", "waiting_cpu_pct": "CPU % with waiting fetches",
    "broker_cpu_us": "broker CPU us a request", "client_cpu_us": "client CPU us a request",
}  # fmt: skip


class Row(NamedTuple):
    """One figure of one workload on both brokers. `ratios` are ours to Kafka's, pair by pair;
    `limits` what the least programs reached (see `Workload.limits`).
    """

    workload: str
    title: str
    figure: str
    ours: list[float]
    theirs: list[float]
    bar: float | None
    limits: dict[str, list[float]] = {}
    most: float | None = None

    @property
    def unit(self) -> str:
        """The figure's name as a person writes it."""
        return _UNITS.get(self.figure, self.figure.replace("_", " "))

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.ours, self.theirs, strict=False) if b]

    @property
    def gains(self) -> list[float]:
        """Ratios turned so that more than 1 is always better for Barnabas; none if neither is."""
        if self.figure in NEITHER:
            return []
        if self.figure in RATES:
            return self.ratios
        return [b / a for a, b in zip(self.ours, self.theirs, strict=False) if a]

    def share_of_limit(self, language: str, values: list[float]) -> float | None:
        """How near these come to the limit: 1 is there, 0.5 is twice the time or half the rate."""
        limit = self.limits.get(language)
        if not limit or not values:
            return None
        reached, best = statistics.median(values), statistics.median(limit)
        above, below = (reached, best) if self.figure in RATES else (best, reached)
        return above / below if below else None

    @property
    def holds(self) -> bool | None:
        if self.most is not None and self.ours:
            return statistics.median(self.ours) <= self.most
        if self.bar is None or not self.ratios:
            return None
        ratio = statistics.median(self.ratios)
        return ratio >= self.bar if self.figure in RATES else ratio <= self.bar


def rows(result: dict[str, Any]) -> Iterator[Row]:
    """Every row of the table, in the order of the workloads."""
    for workload in WORKLOADS:
        if workload.name in result["workloads"]:
            yield from _rows_of(workload, result["workloads"][workload.name])
    if result["idle"]:
        idle = [[result["idle"][kind]["idle_mib"]] for kind in KINDS]
        yield Row("memory", "memory before any load", "idle_mib", idle[0], idle[1], 0.125)
        cpu = [[result["idle"][kind]["idle_cpu_pct"]] for kind in KINDS]
        yield Row("memory", "CPU before any load", "idle_cpu_pct", cpu[0], cpu[1], None)
        peak = [[result["peak_mib"][kind]] for kind in KINDS]
        yield Row("memory", "most memory of the run", "peak_mib", peak[0], peak[1], 0.2)


def _rows_of(workload: Workload, found: dict[str, Any]) -> Iterator[Row]:
    runs = found["runs"]
    for figure in (*workload.figures, *(() if workload.own_broker else ("cpu_s",))):
        ours, theirs = ([run[figure] for run in runs[kind]] for kind in KINDS)
        if ours or theirs:
            bar = workload.bars.get(figure)
            limits = {
                language: [run[figure] for run in done if figure in run]
                for language, done in found.get("limits", {}).items()
                if figure != "client_cpu_s"  # another client
            }
            yield Row(workload.name, workload.title, figure, ours, theirs, bar, limits,
                      workload.most.get(figure))  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """The markdown that README carries."""
    machine = result["machine"]
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['kernel']}; `{result['command']}`, {result['seconds']:.0f} s",
        "",
        "| workload | figure | Barnabas | Apache Kafka 4.3.1 | ratio | bar | of the limit |",
        "|---|---|---|---|---|---|---|",
    ]
    last = ""
    for row in rows(result):
        arrow = "" if row.figure in NEITHER else " ↑" if row.figure in RATES else " ↓"
        cells = [
            row.title if row.title != last else "", f"{row.unit}{arrow}",
            _spread(row.ours), _spread(row.theirs), _ratio(row.ratios), _bar(row), _limit(row),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
        last = row.title
    lines += [
        "",
        "Medians (least to most); ↑ more is better, ↓ less. A ratio is Barnabas to Kafka,",
    ]
    lines.append("taken pair by pair. A bar is what the project asks of itself. Of the limit: what")
    lines.append("Barnabas (Kafka) reaches of the least program that does this work.")
    lines += _limits(result)
    lines += [*_highest_rates(result), *_failures(result)]
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _spread(values: list[float]) -> str:
    if not values:
        return "failed"
    middle = _number(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({_number(min(values))} to {_number(max(values))})"


def _ratio(ratios: list[float]) -> str:
    if not ratios:
        return "-"
    middle = f"**{_number(statistics.median(ratios))}**"
    if len(ratios) == 1:
        return middle
    return f"{middle} ({_number(min(ratios))} to {_number(max(ratios))})"


def _bar(row: Row) -> str:
    if row.holds is None:
        return ""
    verdict = "holds" if row.holds else "**missed**"
    if row.most is not None:
        return f"itself ≤ {row.most:g} {verdict}"
    sign = "≥" if row.figure in RATES else "≤"
    return f"{sign} {row.bar:g} {verdict}"


def _limit(row: Row) -> str:
    """Ours and, in brackets, Kafka's share of what C reaches."""
    ours, theirs = (row.share_of_limit("C", values) for values in (row.ours, row.theirs))
    return f"{ours:.2g} ({theirs:.2g})" if ours is not None and theirs is not None else ""


def _limits(result: dict[str, Any]) -> list[str]:
    """What the least programs reached, each with the share of it that Barnabas and Kafka reach."""
    lines = []
    for row in rows(result):
        for language in row.limits:
            ours, theirs = (row.share_of_limit(language, v) for v in (row.ours, row.theirs))
            if ours is not None and theirs is not None:
                best = _spread(row.limits[language])
                cells = [row.title, language, row.unit, best, f"{ours:.2g}", f"{theirs:.2g}"]
                lines.append(f"| {' | '.join(cells)} |")
    head = ["", "| limit of | in | figure | reached | Barnabas' share | Kafka's |",
            "|---|---|---|---|---|---|"]  # fmt: skip
    return [*head, *lines] if lines else []


def _highest_rates(result: dict[str, Any]) -> list[str]:
    """W4's summary: the highest fixed rate whose end-to-end p99 stays under 20 ms."""
    best = dict.fromkeys(KINDS, 0)
    measured = False
    fixed_rates = [workload.name for workload in WORKLOADS if workload.id == "W4"]
    for name in fixed_rates:
        workload = result["workloads"].get(name)
        if workload is None:
            continue
        rate = workload["arguments"]["rate"]
        for kind, runs in workload["runs"].items():
            late = [run["e2e_p99_ms"] for run in runs if "e2e_p99_ms" in run]
            measured = measured or bool(late)
            if late and statistics.median(late) < _LIMIT_MS:
                best[kind] = max(best[kind], rate)
    if not measured:
        return []
    shown = {kind: f"{rate:,} a second" if rate else "none tried" for kind, rate in best.items()}
    return ["", f"Highest rate with e2e p99 under {_LIMIT_MS:.0f} ms: Barnabas "
            f"{shown['barnabas']}, Apache Kafka {shown['kafka']}."]  # fmt: skip


def _failures(result: dict[str, Any]) -> list[str]:
    found = [
        f"- {name} on {kind}: {text.splitlines()[-1]}"
        for name, workload in result["workloads"].items()
        for kind, text in workload.get("failures", {}).items()
    ]
    return ["", "Failed:", *found] if found else []
