"""Runs seeds of the fuzzer of file calls.

python -m tests.storage.faults.run 17                 one seed, its story if it fails
python -m tests.storage.faults.run 17 --story         its story in any case, with storage's own log
python -m tests.storage.faults.run --seeds 0-299      many, on all cores (--jobs N)
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from tests.sim.seeds import Runner
from tests.sim.world import InvariantBroken
from tests.storage.faults.operations import operate
from tests.storage.faults.program import LIVES, Node, one_thread

MODULE = "tests.storage.faults.run"
TOLD = 60


def simulate(seed: int, *, tells_logs: bool = False, told: int = TOLD) -> Node:
    """One run; raises InvariantBroken with the story's end and the command that repeats it."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    above = Path(tempfile.mkdtemp(prefix="barnabas-faults-", dir=base))
    root = above / "root"
    root.mkdir()
    node = Node(seed, root, tells_logs=tells_logs)
    try:
        with node.disk, one_thread(node):
            for _ in range(node.world.between(*LIVES)):
                node.live(operate)
            node.end()
    except Exception as error:
        what = str(error)
        if not isinstance(error, InvariantBroken) or error.__cause__ is not None:
            what += "\n" + "".join(traceback.format_exception(error))
        story = "\n".join(node.world.story[-told:])
        raise InvariantBroken(
            f"{what}\n{story}\nagain: python -m {MODULE} {seed} --story"
        ) from error
    finally:
        shutil.rmtree(above, ignore_errors=True)
    return node


def tell(seed: int) -> str:
    """A seed's line."""
    node = simulate(seed)
    return f"operations={node.operations} faults={node.faults_struck} calls={node.disk.calls}"


def story(seed: int) -> str:
    """All of it; raises as `simulate` does."""
    return "\n".join(simulate(seed, tells_logs=True, told=1_000_000).world.story)


if __name__ == "__main__":
    gc.freeze()
    sys.exit(Runner(MODULE, tell, story).main())
