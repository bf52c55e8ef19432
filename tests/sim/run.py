"""Runs seeds of the whole-cluster simulator.

python -m tests.sim.run 17                 one seed, its story if it fails
python -m tests.sim.run 17 --story         its story in any case, with the nodes' own logs
python -m tests.sim.run --seeds 0-299      many, on all cores (--jobs N)
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.sim.cluster import Options, SimCluster, logs_of
from tests.sim.consumer_members import CONFIG as CONSUMER_GROUPS
from tests.sim.transactors import FIRST_EPOCHS, epochs_from
from tests.sim.world import InvariantBroken

TOLD = 60

SCENARIOS: dict[str, dict[str, Any]] = {
    "crashes": {"crash_every_ms": 1_800, "down_ms": 800},
    "network": {"loss": 0.03, "slow": 0.15, "cut_every_ms": 1_500, "crash_every_ms": 6_000},
    "pauses": {"pause_every_ms": 1_500, "lag": 0.4, "lag_ms": 120},
    "power": {"power_every_ms": 2_500, "crash_every_ms": 6_000, "cut_every_ms": 6_000},
    "synced": {
        "flushes": True, "power_every_ms": 2_000, "tear_every_ms": 2_500, "crash_every_ms": 4_000,
    },
    "torn": {"tear_every_ms": 1_500, "crash_every_ms": 4_000},
    "failed syncs": {"flushes": True, "sync_fails_every_ms": 2_000, "power_every_ms": 5_000},
    "reassignments": {"move_every_ms": 1_200, "brokers": 4},
    "topics": {"topic_every_ms": 1_500, "stop_every_ms": 3_000},
    "deletions": {
        "records_every_ms": 300, "topic_every_ms": 900, "crash_every_ms": 1_500, "down_ms": 500,
    },
    "slow threads": {"loss": 0.03, "slow": 0.15, "cut_every_ms": 1_500, "lag": 0.5, "lag_ms": 300},
    "stories": {
        "story_every_ms": 200, "cut_every_ms": 0, "pause_every_ms": 0, "crash_every_ms": 0,
    },
    "rolling": {"stop_every_ms": 1_500, "crash_every_ms": 8_000},
    "directories": {
        "directories": 3, "full_every_ms": 600, "hang_every_ms": 1_500, "shortage_every_ms": 500,
        "crash_every_ms": 3_000, "down_ms": 500,
    },
    "compaction": {
        "clean_every_ms": 150, "segment_bytes": 1_200, "crash_every_ms": 2_000, "down_ms": 500,
    },
    "clocks": {"clocks_disagree": True, "step_every_ms": 400, "crash_every_ms": 3_000},
    "consumer groups": {
        "consumer_members": 4, "partitions": 6, "members": 1, "groups": 1, "producers": 1,
        "work_ms": 12_000,
        "crash_every_ms": 2_500, "pause_every_ms": 4_000, "config": CONSUMER_GROUPS,
    },
    "hostile": {"vandal_every_ms": 150, "crash_every_ms": 3_000},
    "transactions": {
        "transactors": 8, "producers": 1, "groups": 1, "members": 1, "work_ms": 14_000,
        "slow": 0.03, "crash_every_ms": 4_500, "cut_every_ms": 8_000, "pause_every_ms": 5_000,
        "power_every_ms": 12_000, "rot_every_ms": 12_000, "segment_bytes": 2_500, "down_ms": 600,
        "late_every_ms": 1_500, "echoes": 0.5, "stuck_threads": 0.2,
    },
}  # fmt: skip


def options_for(seed: int, **overrides: Any) -> Options:
    """The scenario of a seed: they take turns, each also with 4 and 5 brokers, and with producers
    that soon have no epoch left."""
    names = list(SCENARIOS)
    scenario = SCENARIOS[names[seed % len(names)]]
    brokers = (3, 3, 4, 5)[seed // len(names) % 4]
    first_epoch = FIRST_EPOCHS[seed // len(names) % len(FIRST_EPOCHS)]
    return Options(**{"brokers": brokers, "first_epoch": first_epoch, **scenario, **overrides})


def simulate(seed: int, options: Options, *, tells_logs: bool = False) -> SimCluster:
    """One run; raises InvariantBroken with the story's end and the command that repeats it."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    root = Path(tempfile.mkdtemp(prefix="barnabas-sim-", dir=base))
    cluster = SimCluster(seed, options, root, tells_logs=tells_logs)
    try:
        with cluster.disks, logs_of(cluster), epochs_from(options.first_epoch):
            cluster.run()
    except Exception as error:
        told = "\n".join(cluster.world.story[-TOLD:])
        raise InvariantBroken(
            f"{error}\n{told}\nagain: python -m tests.sim.run {seed} --story"
        ) from error
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return cluster


def run_seeds(first: int, last: int, step: int = 1) -> int:
    """Run seeds one after the other; how many failed."""
    failed = 0
    for seed in range(first, last + 1, step):
        try:
            cluster = simulate(seed, options_for(seed))
        except InvariantBroken as error:
            failed += 1
            print(f"seed {seed} FAILED: {error}\n\n", end="", flush=True)
        else:
            world = cluster.world
            acked = sum(len(v) for p in cluster.producers for v in p.acked.values())
            leaders = len(cluster.check.raft_leaders)
            line = f"seed {seed} ok events={world.events} acked={acked} elections={leaders}"
            # At once: lines of several processes mix only where a buffer is written in pieces.
            # The line and its end at once: other processes write to the same pipe.
            print(f"{line}\n", end="", flush=True)
    return failed


def run_parallel(first: int, last: int, jobs: int) -> int:
    """The seeds spread over processes; how many failed."""
    commands = [
        [
            sys.executable,
            "-m",
            "tests.sim.run",
            "--seeds",
            f"{first + job}-{last}",
            "--step",
            str(jobs),
        ]
        for job in range(jobs)
    ]
    running = [subprocess.Popen(command, env=environment()) for command in commands]
    return sum(process.wait() for process in running)


def environment() -> dict[str, str]:
    """Sets of names must have the same order in every process, or a seed is not a run."""
    return {**os.environ, "PYTHONHASHSEED": "0"}


def with_fixed_hashing(module: str) -> None:
    """Begin this process again in the environment a run needs, unless it has it."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], environment())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--seeds", help="FIRST-LAST")
    parser.add_argument("--step", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--story", action="store_true")
    arguments = parser.parse_args()
    with_fixed_hashing("tests.sim.run")
    if arguments.seeds:
        first, _, last = arguments.seeds.partition("-")
        if arguments.step:
            return run_seeds(int(first), int(last or first), arguments.step)
        began = time.monotonic()
        failed = run_parallel(int(first), int(last or first), arguments.jobs)
        print(f"{failed} of seeds {arguments.seeds} failed, {time.monotonic() - began:.0f} s")
        return int(failed > 0)
    if arguments.story:
        return _tell(arguments.seed)
    return run_seeds(arguments.seed, arguments.seed)


def _tell(seed: int) -> int:
    global TOLD
    TOLD = 1_000_000
    try:
        cluster = simulate(seed, options_for(seed), tells_logs=True)
    except InvariantBroken as error:
        print(error)
        return 1
    print("\n".join(cluster.world.story))
    return 0


if __name__ == "__main__":
    sys.exit(main())
