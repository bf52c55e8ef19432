"""M2 of the scorecard: whole clusters under chance, every invariant after every event."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sim.run import SCENARIOS, options_for, simulate
from tests.sim.seeds import environment

SEEDS = int(os.environ.get("SIM_SEEDS", len(SCENARIOS)))
"""Each scenario once; `make sim` runs hundreds, with each number of brokers, and CI does."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_invariants_hold_and_every_cluster_recovers() -> None:
    """In processes of their own: a seed is a run only where sets of names have one order."""
    command = [sys.executable, "-m", "tests.sim.run", "--seeds", f"0-{SEEDS - 1}"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    runs = [line for line in done.stdout.splitlines() if " ok " in line]
    assert len(runs) == SEEDS
    acked = [int(word[6:]) for line in runs for word in line.split() if word.startswith("acked=")]
    assert min(acked) > 0, "a run in which nothing was acknowledged says nothing"
    assert sum(acked) > 100 * SEEDS


@pytest.mark.parametrize("seed", range(len(SCENARIOS) - 1, -1, -3))
def test_a_seed_gives_the_same_story_each_time(seed: int) -> None:
    stories = []
    for _ in range(2):
        world = simulate(seed, options_for(seed, work_ms=4_000)).world
        stories.append([*world.story, str(world.events)])
    assert stories[0] == stories[1]
