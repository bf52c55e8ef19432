"""`python -m benchmarks.growth`: cost of a request against how much there is of something.

    python -m benchmarks.growth                   all axes, under 15 minutes on two quiet cores
    python -m benchmarks.growth --only groups,log
    python -m benchmarks.growth --big             10,000 partitions and logs of 10 and 50 GB, too
    python -m benchmarks.growth --tiny            does it work, not how much

Writes growth.json after each point, growth.md, and a picture for each axis to --out; what is there
already, of the same commit, is not measured again (--fresh forgets it). Both brokers in turn, each
axis on brokers of its own; on both the same warm-up goes before.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import machine, plots
from benchmarks.growth import table
from benchmarks.growth.axes import AXES, Axis, Session, one_record
from benchmarks.loads import frames
from benchmarks.loads.base import create_topic
from benchmarks.loads.lifetime import start
from benchmarks.targets import KINDS, make
from testkit import jars

_REQUESTS, _TINY_REQUESTS = 10_000, 200
_WARM_UP_S = 15.0


def main() -> int:
    arguments = _parser().parse_args()
    names = arguments.only.split(",") if arguments.only else [axis.name for axis in AXES]
    unknown = set(names) - {axis.name for axis in AXES}
    if unknown:
        print(f"unknown axis: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    result = _begin(out / "growth.json", fresh=arguments.fresh)
    if result is None:
        print(f"{out} has figures of another commit or machine: --fresh", file=sys.stderr)
        return 2
    if arguments.broker != "barnabas":
        jars.libs()
    for axis in AXES:
        if axis.name in names:
            _measure(axis, _points(axis, arguments), result, arguments)
            (out / "growth.md").write_text(table.table(result, AXES) + "\n")
            for chosen in AXES:
                drawn = plots.growth(chosen.title, chosen.unit, chosen.lines, result, chosen.name)
                if drawn is not None:
                    (out / f"growth-{chosen.name}.svg").write_text(drawn)
    print(table.table(result, AXES))
    return 1 if result["failures"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", help="these axes, separated by commas")
    parser.add_argument("--broker", choices=KINDS, help="this one alone (default: both)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--big", action="store_true", help="the points that take long, too")
    size.add_argument("--tiny", action="store_true", help="two small points of each axis")
    parser.add_argument("--warm-up", type=float, default=_WARM_UP_S, metavar="S",
                        help=f"seconds of requests before each axis ({_WARM_UP_S:g})")  # fmt: skip
    parser.add_argument("--out", default=".cache/growth", help="directory of the result")
    parser.add_argument("--dir", help="where the brokers keep their data (default: temporary)")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    return parser


def _begin(path: Path, *, fresh: bool) -> dict[str, Any] | None:
    """What was measured before, or a new result; None if that was with something else."""
    with tempfile.TemporaryDirectory() as directory:
        facts = machine.describe(Path(directory))
    told = {name: facts[name] for name in ("cpu", "cores", "memory_gib", "kernel")}
    told["commit"] = facts["versions"]["commit"]
    if not fresh and path.exists():
        before: dict[str, Any] = json.loads(path.read_text())
        return before if before["machine"] == told else None
    return {"machine": told, "axes": {}, "failures": {}, "path": str(path)}


def _points(axis: Axis, arguments: argparse.Namespace) -> list[float]:
    if arguments.tiny:
        return list(axis.tiny)
    return [*axis.points, *(axis.big if arguments.big else ())]


def _measure(
    axis: Axis, points: list[float], result: dict[str, Any], arguments: argparse.Namespace
) -> None:
    """The points of this axis that are not there yet, on each broker."""
    for kind in [arguments.broker] if arguments.broker else KINDS:
        found = result["axes"].setdefault(axis.name, {}).setdefault(kind, {})
        missing = [point for point in points if f"{point:g}" not in found]
        if not missing:
            continue
        result["failures"].pop(f"{axis.name} {kind}", None)
        with tempfile.TemporaryDirectory(prefix="barnabas-grow-", dir=arguments.dir) as home:
            broker = make(kind, Path(home, "node"))
            session = Session(broker, _TINY_REQUESTS if arguments.tiny else _REQUESTS)
            try:
                start(broker)
                _warm_up(session, 0.5 if arguments.tiny else arguments.warm_up)
                for point in missing:
                    found[f"{point:g}"] = figures = axis.measure(session, point)
                    Path(result["path"]).write_text(json.dumps(result, indent=1) + "\n")
                    shown = "  ".join(f"{name} {value:,.4g}" for name, value in figures.items())
                    print(f"{axis.name} {point:g} {kind}: {shown}", file=sys.stderr, flush=True)
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                result["failures"][f"{axis.name} {kind}"] = text
                print(f"{axis.name} {kind} FAILED: {text}", file=sys.stderr, flush=True)
            finally:
                broker.kill()


def _warm_up(session: Session, seconds: float) -> None:
    """One-record requests, many in flight, then one at a time."""
    create_topic(session.address, "warm-up")
    request = one_record("warm-up")
    end = time.monotonic() + seconds
    with frames.connect(session.address) as sock:
        while time.monotonic() < end:
            frames.pipelined(sock, [request], 1000, 100)
            frames.one_by_one([sock], [request], 500)


if __name__ == "__main__":
    sys.exit(main())
