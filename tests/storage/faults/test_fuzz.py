"""Programs of operations on a disk that fails: some of each run, and that they would tell."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sim.seeds import environment

pytestmark = pytest.mark.timeout(900)  # it computes, however busy the machine is

SEEDS = int(os.environ.get("FAULT_SEEDS", 300))
QUICK = {
    "a checkpoint is written in place": (
        "FlushedStays|DeletedStaysDeleted|NothingIsLeft|NothingIsLost|CleanStop|EpochsFollow"
    ),
    "a failed roll leaves its segment": "NothingIsLeft|NothingIsLost|NoGap|FlushedStays",
    "the recovery point rises without a sync": "FlushedStays|NothingIsLost|NoGap",
    "the epoch cache is not truncated": "EpochsFollow",
    "a log that cannot be renamed is neither there nor gone": "AllOrNothing",
}


def run(module: str, *arguments: str) -> str:
    """In a process of its own: a seed is a run only where sets of names have one order."""
    command = [sys.executable, "-m", f"tests.storage.faults.{module}", *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    return done.stdout


@pytest.mark.slow
def test_storage_keeps_its_word_whatever_the_disk_does() -> None:
    lines = run("run", "--seeds", f"0-{SEEDS - 1}").splitlines()
    runs = [dict(word.split("=") for word in line.split()[3:]) for line in lines if " ok " in line]
    assert len(runs) == SEEDS
    assert sum(int(one["operations"]) for one in runs) > 10 * SEEDS
    assert sum(int(one["faults"]) for one in runs) > SEEDS, "a disk that never fails says nothing"


@pytest.mark.parametrize("seed", [3, 11])
def test_a_seed_gives_the_same_story_each_time(seed: int) -> None:
    assert run("run", str(seed)) == run("run", str(seed))


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_noticed(name: str) -> None:
    (verdict,) = run("mutants", name).splitlines()
    assert any(f": {invariant}:" in verdict for invariant in QUICK[name].split("|")), verdict
