"""Mutants that the simulator must notice within a few seeds; `make sim-mutants` hunts all."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sim.seeds import environment

QUICK = {
    "truncate follower to HW": "StrongIsr",
    "ack before HW covers the batch": "StrongIsr",
    "ignore the last fetched epoch in Fetch": "SameBelowHW|StrongIsr",
    "ignore the current leader epoch in Fetch": "SameBelowHW|StrongIsr",
    "expand the ISR without the epoch start": "JoinsWithAll (H-6)",
    "skip the broker epoch on ISR join": "StrongIsr",
    "trust offsets from before a skipped epoch": "StrongIsr",
    "a fetch counts in another epoch than it was read in": "SameBelowHW|StrongIsr",
    "a deleted topic answers a fetch of quiet ones": "NothingHurries",
    "a coordinator's shard resets on any fault": "NobodyElsePays",
    "a log's start outlives it": "StartsWhereAskedFor|NotedIsTrue",
    "a high watermark outlives its log": "NotedIsTrue",
    "a deleted log is flushed first": "WorkersSyncRecords",
    "the cleaner takes the newest of a key": "NewestStays",
    "the cleaner keeps what is superseded": "CleanedOnce",
    "markers are sent before Prepare is committed": "PrepareBeforeMarkers",
    "a transaction is complete before its markers": "MarkersBeforeComplete",
    "transactional batches are not verified": "EveryPartitionIsKnown",
    "the second producer has the first one's epoch": "Fencing|Atomicity",
    "aborted transactions are not indexed": "NoAbortedRead",
    "transactions never time out": "Liveness",
    "a partition is given before it was given back": "OwnedByOne|OwnedOnceInAnEpoch",
    "a commit of any member epoch counts": "OnlyOwnersCommit",
    "members have no session after a load": "Liveness",
    "an acknowledgement is told before it is persisted": "AcceptedStays|AcceptedOnce|CountsStay",
    "a record is delivered without limit": "BoundedDeliveries",
    "locks of records never run out": "Liveness",
    "a task runs in two processes": "OwnedByOne|OwnedOnceInAnEpoch",
}


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_noticed(name: str) -> None:
    """In a process of its own: a seed is a run only where sets of names have one order."""
    command = [sys.executable, "-m", "tests.sim.mutants", name, "24"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-5_000:]
    (verdict,) = done.stdout.splitlines()
    assert any(f": {invariant}:" in verdict for invariant in QUICK[name].split("|")), verdict
