"""Running seeds of a simulation, one or many: what the commands of all simulators share.

python -m MODULE 17                 one seed, its story if it fails
python -m MODULE 17 --story         its story in any case
python -m MODULE --seeds 0-299      many, on all cores (--jobs N)
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.sim.world import InvariantBroken


def environment() -> dict[str, str]:
    """Sets of names must have the same order in every process, or a seed is not a run."""
    return {**os.environ, "PYTHONHASHSEED": "0"}


def with_fixed_hashing(module: str) -> None:
    """Begin this process again in the environment a run needs, unless it has it."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], environment())


_MOST_TOLD = 100
"""A process tells by its exit code how many of its seeds failed, up to this: more is as bad."""


def _range_of_seeds(text: str) -> tuple[int, int]:
    """FIRST-LAST, or one seed; an error of argparse for what is neither or holds none."""
    first, _, last = text.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST-LAST, with one seed at least")
    return int(first), int(last or first)


class Runner(NamedTuple):
    """A simulator's command. Both functions raise InvariantBroken with the end of the story."""

    module: str
    tell: Callable[[int], str]
    """Runs a seed; what its line says beside `seed N ok`."""
    story: Callable[[int], str]
    """Runs a seed with all that can be told."""

    def main(self) -> int:
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}")
        parser.add_argument("seed", nargs="?", type=int)
        parser.add_argument("--seeds", type=_range_of_seeds, metavar="FIRST-LAST")
        parser.add_argument("--step", type=int, default=0)
        parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
        parser.add_argument("--story", action="store_true")
        arguments = parser.parse_args()
        with_fixed_hashing(self.module)
        if arguments.seeds:
            first, last = arguments.seeds
            if arguments.step:
                return min(self.run_seeds(first, last, arguments.step), _MOST_TOLD)
            began = time.monotonic()
            failed = self.run_parallel(first, last, arguments.jobs)
            print(f"{failed} of seeds {first}-{last} failed, {time.monotonic() - began:.0f} s")
            return int(failed > 0)
        if arguments.story:
            return self._tell_story(arguments.seed)
        return self.run_seeds(arguments.seed, arguments.seed)

    def run_seeds(self, first: int, last: int, step: int = 1) -> int:
        """Run seeds one after the other; how many failed."""
        failed = 0
        for seed in range(first, last + 1, step):
            try:
                line = f"seed {seed} ok {self.tell(seed)}"
            except InvariantBroken as error:
                failed += 1
                line = f"seed {seed} FAILED: {error}\n"
            # The line and its end at once: other processes write to the same pipe.
            print(f"{line}\n", end="", flush=True)
        return failed

    def run_parallel(self, first: int, last: int, jobs: int) -> int:
        """The seeds spread over processes; how many failed, one at least if a process broke off."""
        running = [
            subprocess.Popen(
                [sys.executable, "-m", self.module, "--seeds", f"{first + job}-{last}",
                 "--step", str(jobs)],
                env=environment(),
            )
            for job in range(min(jobs, last - first + 1))
        ]  # fmt: skip
        ended = [process.wait() for process in running]
        return sum(code if 0 <= code <= _MOST_TOLD else 1 for code in ended)

    def _tell_story(self, seed: int) -> int:
        try:
            print(self.story(seed))
        except InvariantBroken as error:
            print(error)
            return 1
        return 0
