"""Runs seeds of the whole-cluster simulator.

python -m tests.sim.run 17                 one seed, its story if it fails
python -m tests.sim.run 17 --story         its story in any case, with the nodes' own logs
python -m tests.sim.run --seeds 0-299      many, on all cores (--jobs N)
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.sim.cluster import Options, SimCluster, logs_of
from tests.sim.consumer_members import CONFIG as CONSUMER_GROUPS
from tests.sim.seeds import Runner
from tests.sim.share_members import CONFIG as SHARE_GROUPS
from tests.sim.streams_members import CONFIG as STREAMS_GROUPS
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
    "share groups": {
        "share_members": 5, "partitions": 3, "members": 0, "groups": 0, "producers": 2,
        "work_ms": 12_000, "member_stops": 0.1,
        "crash_every_ms": 3_500, "pause_every_ms": 2_000, "config": SHARE_GROUPS, "echoes": 0.2,
    },
    "streams groups": {
        "streams_members": 4, "partitions": 6, "members": 1, "groups": 1, "producers": 1,
        "work_ms": 12_000,
        "crash_every_ms": 2_500, "pause_every_ms": 4_000, "config": STREAMS_GROUPS,
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


def simulate(
    seed: int, options: Options, *, tells_logs: bool = False, told: int = TOLD
) -> SimCluster:
    """One run; raises InvariantBroken with the story's end and the command that repeats it."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    root = Path(tempfile.mkdtemp(prefix="barnabas-sim-", dir=base))
    cluster = SimCluster(seed, options, root, tells_logs=tells_logs)
    try:
        with cluster.disks, logs_of(cluster), epochs_from(options.first_epoch):
            cluster.run()
    except Exception as error:
        end = "\n".join(cluster.world.story[-told:])
        raise InvariantBroken(
            f"{error}\n{end}\nagain: python -m tests.sim.run {seed} --story"
        ) from error
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return cluster


def tell(seed: int) -> str:
    """A seed's line."""
    cluster = simulate(seed, options_for(seed))
    acked = sum(len(v) for p in cluster.producers for v in p.acked.values())
    leaders = len(cluster.check.raft_leaders)
    return f"events={cluster.world.events} acked={acked} elections={leaders}"


def story(seed: int) -> str:
    """All of it; raises as `simulate` does."""
    cluster = simulate(seed, options_for(seed), tells_logs=True, told=1_000_000)
    return "\n".join(cluster.world.story)


if __name__ == "__main__":
    sys.exit(Runner("tests.sim.run", tell, story).main())
