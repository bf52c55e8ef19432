"""`python -m compat_tests.pipeline.measure_replay [ROWS] [VALUE_BYTES] [TREE]`: replay's clients.

One broker, one archive of a topic of two partitions; `replay` of it into a topic of its own, by a
process of its own, with each client in turn; with a TREE, another checkout, by that one's replay,
too. Prints rows a second, as the command itself tells them, and ratios to the first of the same
turn; every other turn goes backwards.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from compat_tests.pipeline.conftest import ROOT, environment
from compat_tests.pipeline.measure import fill
from testkit.brokers.nodes import Barnabas

TURNS = 5
SPARK = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2")


def run(tree: Path, *arguments: object) -> str:
    words = [sys.executable, tree / "pipeline" / "__main__.py", *arguments, *SPARK]
    done = subprocess.run(
        [str(word) for word in words], cwd=tree, env=environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    ways: dict[str, tuple[Path, list[str]]] = {
        client: (ROOT, ["--client", client]) for client in ("confluent", "kafka-python")
    }
    if len(sys.argv) > 3:
        ways = {"the other tree": (Path(sys.argv[3]).resolve(), []), **ways}
    with tempfile.TemporaryDirectory() as folder, Barnabas(Path(folder, "broker")) as broker:
        at = ("--bootstrap", broker.bootstrap_servers)
        fill(broker.bootstrap_servers, count, size)
        lake = Path(folder, "lake")
        run(ROOT, "archive", *at, "--topics", "measured", "--to", lake)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(TURNS):
            for name, (tree, flags) in list(ways.items())[:: -1 if turn % 2 else 1]:
                topic = f"back-{turn}-{name.replace(' ', '-')}"
                out = run(tree, "replay", *at, "--from", lake, "--topic", topic,
                          "--keep-partitions", *flags)  # fmt: skip
                assert "match the archive" in out
                found = re.search(r"replayed .* \(([\d,]+) rows/s\)", out)
                assert found is not None, out
                rates[name].append(float(found[1].replace(",", "")))
                print(f"{name:15} {rates[name][-1]:10,.0f} rows/s", flush=True)
    first = rates[next(iter(ways))]
    for name, own in rates.items():
        ratios = [one / other for one, other in zip(own, first, strict=True)]
        print(f"{name:15} {median(own):10,.0f} ({min(own):,.0f} to {max(own):,.0f}) rows/s, ratio"
              f" {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")  # fmt: skip


if __name__ == "__main__":
    main()
