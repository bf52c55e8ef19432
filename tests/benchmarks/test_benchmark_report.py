"""The benchmark's table and pictures say what the runs said, wins and losses alike."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from benchmarks import plots, report
from benchmarks.workloads import WORKLOADS

MACHINE = {"cpu": "a CPU", "cores": 2, "memory_gib": 4, "kernel": "Linux"}
_REST = {"client_cpu_s": 2.0, "batch_bytes": 1.0, "mb_s": 1.0}


def result(**workloads: Any) -> dict[str, Any]:
    return {
        "machine": MACHINE,
        "command": "python -m benchmarks",
        "seconds": 1.0,
        "idle": {},
        "peak_mib": {"barnabas": 1.0, "kafka": 2.0},
        "workloads": {name.replace("_", "-"): value for name, value in workloads.items()},
    }


def runs(ours: list[float], theirs: list[float], figure: str, cpu: float = 1.0) -> dict[str, Any]:
    return {
        "arguments": {},
        "runs": {
            kind: [{**_REST, figure: value, "cpu_s": cpu} for value in values]
            for kind, values in (("barnabas", ours), ("kafka", theirs))
        },
    }


def times(ours: float, theirs: float) -> dict[str, Any]:
    figures = ("p50_us", "p99_us", "p999_us", "cpu_s")
    return {
        "arguments": {},
        "runs": {
            "barnabas": [dict.fromkeys(figures, ours)],
            "kafka": [dict.fromkeys(figures, theirs)],
        },
    }


def row_of(found: dict[str, Any], figure: str) -> report.Row:
    return next(row for row in report.rows(found) if row.figure == figure)


def test_ratios_are_taken_pair_by_pair_not_between_medians() -> None:
    found = result(produce_1000=runs([100, 300, 200], [100, 100, 50], "mb_s"))
    assert row_of(found, "mb_s").ratios == [1, 3, 4]
    assert "**3** (1 to 4)" in report.table(found)


@pytest.mark.parametrize(("ours", "holds"), [(150.0, True), (149.0, False)])
def test_a_rate_holds_its_bar_from_the_ratio_upwards(ours: float, holds: bool) -> None:
    row = row_of(result(produce_1000=runs([ours], [100.0], "mb_s")), "mb_s")
    assert row.bar == 1.5
    assert row.holds is holds
    assert row.gains == [ours / 100]


@pytest.mark.parametrize(("ours", "holds"), [(100.0, True), (101.0, False)])
def test_a_time_holds_its_bar_from_the_ratio_downwards(ours: float, holds: bool) -> None:
    row = row_of(result(ping_pong_all=times(ours, 100.0)), "p50_us")
    assert row.holds is holds
    assert row.gains == [100 / ours]


def test_a_row_is_shown_as_a_share_of_what_the_least_program_reaches() -> None:
    found = runs([300.0], [100.0], "mb_s", cpu=2.0)
    found["limits"] = {"C": [{"mb_s": 600.0, "cpu_s": 0.5, "client_cpu_s": 1.0}]}
    table = report.table(result(produce_1000=found))
    assert "| 0.5 (0.17) |" in table  # half of the rate
    assert "| 0.25 (0.25) |" in table  # four times the CPU
    assert "| produce 1,000 B, acks=1 | C | MB/s | 600 | 0.5 | 0.17 |" in table
    assert row_of(result(produce_1000=found), "client_cpu_s").share_of_limit("C", [1.0]) is None


def test_the_size_of_batches_is_told_and_is_neither_better_nor_worse() -> None:
    found = result(produce_1000=runs([16_077.0], [8_000.0], "batch_bytes"))
    row = row_of(found, "batch_bytes")
    assert (row.unit, row.gains) == ("bytes a batch", [])
    assert "| bytes a batch | 16,077 | 8,000 |" in report.table(found)


@pytest.mark.parametrize(("ours", "verdict"), [(1.9, "holds"), (2.1, "**missed**")])
def test_a_bar_of_its_own_does_not_look_at_kafka(ours: float, verdict: str) -> None:
    figures = ("idle_cpu_pct", "waiting_cpu_pct", "idle_mib")
    both = {"barnabas": [dict.fromkeys(figures, ours)], "kafka": [dict.fromkeys(figures, 0.1)]}
    assert f"itself ≤ 2 {verdict}" in report.table(result(quiet={"arguments": {}, "runs": both}))


def test_a_missed_bar_and_a_failed_load_are_in_the_table() -> None:
    failed = runs([], [100.0], "mb_s") | {"failures": {"barnabas": "LoadFailed: it broke"}}
    table = report.table(result(produce_1000=runs([1.0], [2.0], "mb_s"), consume_1000=failed))
    assert "≥ 1.5 **missed**" in table
    assert "| failed |" in table
    assert "consume-1000 on barnabas: LoadFailed: it broke" in table


def test_pictures_are_well_formed_and_name_every_row() -> None:
    found = result(produce_1000=runs([300], [100], "mb_s"))
    rates = {
        f"rate-{rate}": {
            "arguments": {"rate": rate},
            "runs": {
                kind: [{f"e2e_{share}_ms": late for share in ("p50", "p99", "p999")} | {
                    "publish_p99_ms": late, "cpu_s": 1.0}]
                for kind in ("barnabas", "kafka")
            },
        }
        for rate, late in ((1000, 1.5), (50_000, 30.0))
    }  # fmt: skip
    found["workloads"] |= rates
    ratios, latencies = plots.ratios(found), plots.latencies(found)
    assert ratios is not None
    assert latencies is not None
    ElementTree.fromstring(latencies)
    words = [node.text or "" for node in ElementTree.fromstring(ratios).iter() if node.text]
    assert any("produce 1,000 B, acks=1: MB/s" in word for word in words)
    assert "3x" in words
    assert "Barnabas 1,000 a second, Apache Kafka 1,000 a second." in report.table(found)


def test_every_workload_has_a_name_of_its_own_and_no_id_is_missing() -> None:
    assert len({workload.name for workload in WORKLOADS}) == len(WORKLOADS)
    known = {"C", "F", *(f"W{number}" for number in range(19))}
    assert {workload.id for workload in WORKLOADS} == known
