"""Mutants that the simulator must notice within a few seeds; `make sim-mutants` hunts all."""

from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS, hunt

QUICK = {
    "truncate follower to HW": "StrongIsr",
    "ack before HW covers the batch": "StrongIsr",
    "ignore the last fetched epoch in Fetch": "SameBelowHW|StrongIsr",
    "ignore the current leader epoch in Fetch": "SameBelowHW|StrongIsr",
    "expand the ISR without the epoch start": "JoinsWithAll (H-6)",
    "skip the broker epoch on ISR join": "StrongIsr",
    "trust offsets from before a skipped epoch": "StrongIsr",
    "a fetch counts in another epoch than it was read in": "StrongIsr",
    "a deleted topic answers a fetch of quiet ones": "NothingHurries",
    "a coordinator's shard resets on any fault": "NobodyElsePays",
    "a log's checkpoints outlive it": "StartsWhereAskedFor",
}


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_noticed(name: str) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    caught = hunt(mutant, seeds=8)
    assert caught is not None, f"{name} lives"
    assert caught.by.split(":")[0] in QUICK[name].split("|"), caught
