"""`python -m benchmarks`: run the workloads on both brokers in pairs and print the ratios."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import usage
from benchmarks.workloads import RATES, WORKLOADS, Workload
from compat_tests.support.brokers import ApacheKafka, Barnabas, await_answer

# The distribution's own settings (kafka-run-class, kafka-server-start).
JVM_OPTIONS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
_IDLE_S = 5.0
_LOAD_TIMEOUT_S = 300


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.list:
        for workload in WORKLOADS:
            print(f"{workload.name:26} {workload.title}")
        return 0
    names = set(arguments.only.split(",")) if arguments.only else {w.name for w in WORKLOADS}
    names |= {w.after for w in WORKLOADS if w.name in names and w.after}
    unknown = names - {w.name for w in WORKLOADS}
    if unknown:
        print(f"unknown workload: {', '.join(sorted(unknown))}; see --list", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="barnabas-bench-", dir=arguments.dir) as directory:
        result = _run(arguments, names, Path(directory))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")
    print(_table(result))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the workloads")
    parser.add_argument("--only", help="run only these, by name, separated by commas")
    parser.add_argument("--pairs", type=int, default=5, help="counted pairs of each (default 5)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the records, three pairs")
    parser.add_argument("--json", help="also write everything to this file")
    parser.add_argument("--dir", help="where the brokers keep their data (default: temporary)")
    return parser


def _run(arguments: argparse.Namespace, names: set[str], directory: Path) -> dict[str, Any]:
    pairs = 3 if arguments.quick else arguments.pairs
    divisor = 5 if arguments.quick else 1
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
        "pairs": pairs,
        "start": _cold_starts(directory, pairs),
        "workloads": {},
    }
    kafka = ApacheKafka(directory / "kafka", java_options=JVM_OPTIONS)
    barnabas = Barnabas(directory / "barnabas")
    brokers = {"barnabas": barnabas, "kafka": kafka}
    try:
        for broker in brokers.values():
            broker.start()
        time.sleep(_IDLE_S)
        result["idle_mib"] = {k: usage(b.pid).rss_bytes / 2**20 for k, b in brokers.items()}
        for workload in WORKLOADS:
            if workload.name in names:
                result["workloads"][workload.name] = _pairs(workload, brokers, pairs, divisor)
        result["peak_mib"] = {k: usage(b.pid).peak_bytes / 2**20 for k, b in brokers.items()}
    finally:
        for broker in brokers.values():
            broker.kill()
    return result


def _cold_starts(directory: Path, count: int) -> dict[str, list[float]]:
    """Seconds from starting the process to the first answer, in a directory of the last start."""
    seconds: dict[str, list[float]] = {"barnabas": [], "kafka": []}
    for number in range(count):
        for kind in seconds:
            home = directory / f"start-{kind}-{number}"
            broker = Barnabas(home) if kind == "barnabas" else ApacheKafka(home, (), JVM_OPTIONS)
            if isinstance(broker, ApacheKafka):
                broker.start()  # formats; the second start is the one a user waits for
                broker.stop()
            began = time.perf_counter()
            broker.start()
            await_answer("127.0.0.1", broker.port)
            seconds[kind].append(time.perf_counter() - began)
            broker.kill()
            _say(f"start {kind} {seconds[kind][-1]:.3f} s")
    return seconds


def _pairs(
    workload: Workload, brokers: dict[str, Any], pairs: int, divisor: int
) -> dict[str, list[dict[str, float]]]:
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in brokers}
    for number in range(pairs + 1):
        for kind, broker in brokers.items():
            figures = _one_run(workload, broker, number, divisor)
            warm_up = " (warm-up, not counted)" if number == 0 else ""
            shown = "  ".join(f"{name} {value:,.1f}" for name, value in figures.items())
            _say(f"{workload.name} {kind}: {shown}{warm_up}")
            if number:
                runs[kind].append(figures)
    return runs


def _one_run(workload: Workload, broker: Any, number: int, divisor: int) -> dict[str, float]:
    topic = f"{workload.after or workload.name}-{number}"
    arguments = {
        **workload.with_count(divisor),
        "bootstrap": broker.bootstrap_servers,
        "topic": topic,
    }
    before = usage(broker.pid)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.loads", workload.load, json.dumps(arguments)],
        capture_output=True,
        text=True,
        timeout=_LOAD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{workload.name} on {broker.kind} failed: {done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout)
    figures["cpu_s"] = usage(broker.pid).cpu_s - before.cpu_s
    return figures


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _ratio(ours: list[float], theirs: list[float]) -> str:
    ratios = [a / b for a, b in zip(ours, theirs, strict=True) if b]
    if not ratios:
        return "-"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def _table(result: dict[str, Any]) -> str:
    """The markdown table that README carries: medians, and the median, min and max ratio."""
    lines = [
        f"{result['machine']}, Python {result['python']}, {result['pairs']} pairs: "
        f"`{result['command']}`",
        "",
        "| workload | figure | Barnabas | Apache Kafka 4.3.1 | ratio, median (min-max) |",
        "|---|---|---|---|---|",
    ]

    def row(title: str, figure: str, ours: list[float], theirs: list[float]) -> None:
        a, b = statistics.median(ours), statistics.median(theirs)
        better = "more is better" if figure in RATES else "less is better"
        shown = f"{a:,.2f} | {b:,.2f}" if max(a, b) < 100 else f"{a:,.0f} | {b:,.0f}"
        lines.append(f"| {title} | {figure}, {better} | {shown} | {_ratio(ours, theirs)} |")

    row("start to first answer", "seconds", result["start"]["barnabas"], result["start"]["kafka"])
    for workload in WORKLOADS:
        runs = result["workloads"].get(workload.name)
        if runs is None:
            continue
        for figure in (*workload.figures, "cpu_s"):
            ours = [run[figure] for run in runs["barnabas"]]
            row(workload.title, figure, ours, [run[figure] for run in runs["kafka"]])
    for key, title in (("idle_mib", "memory when idle"), ("peak_mib", "peak memory of the run")):
        row(title, "MiB", [result[key]["barnabas"]], [result[key]["kafka"]])
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
