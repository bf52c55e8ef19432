"""`python -m benchmarks`: the workloads on Barnabas and on Apache Kafka in turn, and their ratios.

    python -m benchmarks                      everything, about 40 minutes
    python -m benchmarks --quick              the headline rows, less than five
    python -m benchmarks --only W4,produce-100    by id or name; see --list
    python -m benchmarks --only 'cluster-*'   three nodes of each, side by side
    python -m benchmarks --only 'nodes-*'     one, two and four nodes on this machine
    python -m benchmarks --warm-up 60         each kind of load for a minute before it counts
    python -m benchmarks --tiny               seconds for each: does it work, not how fast

With --out DIR the result is written there as result.json (every run, versions, command lines),
table.md, ratios.svg and latencies.svg. The exit status is 1 when a load failed on either broker.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks import machine, plots, report
from benchmarks.runner import Plan, Runner
from benchmarks.workloads import WORKLOADS, Workload
from testkit import jars


def main() -> int:
    arguments = _parser().parse_args()
    chosen, unknown = _chosen(arguments)
    if unknown:
        print(f"unknown workload: {', '.join(unknown)}; see --list", file=sys.stderr)
        return 2
    if arguments.list:
        for workload in chosen:
            when = "quick, full" if workload.quick is not None else "full"
            when = when if workload.default else "by name only"
            print(f"{workload.id:4} {workload.name:28} {when:13} {workload.title}")
        return 0
    try:
        jars.libs()
    except jars.JarsUnavailable as reason:
        print(f"Apache Kafka to compare with cannot be had: {reason}", file=sys.stderr)
        return 2
    result = _run(arguments, chosen)
    print(report.table(result))
    if arguments.out:
        _write(Path(arguments.out), result)
    return 1 if any("failures" in each for each in result["workloads"].values()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="name the workloads")
    parser.add_argument("--only", help="run only these, by id or name, separated by commas")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="headline rows, fewer records and pairs")
    size.add_argument("--tiny", action="store_true", help="next to no records, one pair")
    parser.add_argument(
        "--warm-up", type=float, default=0.0, metavar="S",
        help="first each kind of load for as long on each broker, not counted (60 for a JVM)",
    )  # fmt: skip
    parser.add_argument("--pairs", type=int, help="counted pairs (default 5; quick 3; tiny 1)")
    parser.add_argument(
        "--pin", action="store_true", help="shared brokers on core 0, clients off it"
    )
    parser.add_argument("--out", help="write the result's files to this directory")
    parser.add_argument("--dir", help="where the brokers keep their data (default: temporary)")
    return parser


def _chosen(arguments: argparse.Namespace) -> tuple[list[Workload], list[str]]:
    """The workloads to run, and the names that mean none."""
    if not arguments.only:
        if arguments.quick:
            return [workload for workload in WORKLOADS if workload.quick is not None], []
        return [w for w in WORKLOADS if w.default or arguments.list], []
    names = arguments.only.split(",")
    found = [
        w
        for w in WORKLOADS
        if (w.id in names and w.default) or any(fnmatchcase(w.name, name) for name in names)
    ]
    known = [word for workload in WORKLOADS for word in (workload.id, workload.name)]
    return found, [name for name in names if not any(fnmatchcase(word, name) for word in known)]


def _run(arguments: argparse.Namespace, chosen: list[Workload]) -> dict[str, Any]:
    size = "quick" if arguments.quick else "tiny" if arguments.tiny else "full"
    pairs = arguments.pairs or {"full": 5, "quick": 3, "tiny": 1}[size]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="barnabas-bench-", dir=arguments.dir) as directory:
        facts = machine.describe(Path(directory))
        plan = Plan(chosen, size, pairs, arguments.pin, Path(directory), arguments.warm_up)
        runner = Runner(plan)
        runner.run()
    return {
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
        "seconds": time.monotonic() - began,
        "machine": facts,
        "size": size,
        "idle": runner.idle,
        "peak_mib": runner.peak_mib,
        "workloads": runner.results,
    }


def _write(directory: Path, result: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    (directory / "table.md").write_text(report.table(result) + "\n")
    for name, picture in (("ratios", plots.ratios), ("latencies", plots.latencies)):
        drawn = picture(result)
        if drawn is not None:
            (directory / f"{name}.svg").write_text(drawn)


if __name__ == "__main__":
    sys.exit(main())
