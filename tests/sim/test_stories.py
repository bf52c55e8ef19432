"""docs/stories.md tells of mutants that exist, and of the invariants that notice them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.mutants import MUTANTS
from tests.sim.seeds import environment

PAGE = Path(__file__).parents[2] / "docs/stories.md"
ASKED = re.compile(r"""^ {4}make sim-mutants ARGS='"(.+)" --story'$""", re.MULTILINE)
SHOWN = re.compile(r"^```text\n(.+): caught by seed \d+: (\w+): ", re.MULTILINE)

STORIES = SHOWN.findall(PAGE.read_text())


def test_there_are_three_and_what_one_types_names_one_each() -> None:
    assert len(STORIES) == 3
    named = [
        [mutant.name for mutant in MUTANTS if typed in mutant.name]
        for typed in dict.fromkeys(ASKED.findall(PAGE.read_text()))
    ]
    assert named == [[name] for name, _ in STORIES]


@pytest.mark.parametrize(("name", "invariant"), STORIES)
def test_it_is_noticed_by_the_invariant_that_the_page_names(name: str, invariant: str) -> None:
    """By the command that the page shows, in a process of its own: where sets of names have another
    order, a seed is another run."""
    command = [sys.executable, "-m", "tests.sim.mutants", name, "--story"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-5_000:]
    verdict, *story = done.stdout.splitlines()
    assert re.match(rf"{re.escape(name)}: caught by seed \d+: {invariant}: ", verdict)
    assert re.match(r" +\d+\.\d{3}  ", story[0])
