"""M1 of the scorecard: the quorum's invariants under chance, and mutants that must not live."""

from __future__ import annotations

import pytest

from tests.sim.raft_sim import (
    COMMIT_BY_COUNT,
    EARLY_COUNT,
    NO_VOTE_KEPT,
    SCENARIOS,
    InvariantBroken,
    Options,
    RaftSim,
    options_for,
    run_seed,
)

SEEDS = 200


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_invariants_hold_and_the_quorum_recovers(scenario: str) -> None:
    first = list(SCENARIOS).index(scenario)
    sims = [run_seed(seed) for seed in range(first, SEEDS, len(SCENARIOS))]
    assert sum(len(sim.check.leaders) for sim in sims) > len(sims), "there were elections"
    assert sum(len(sim.check.log) for sim in sims) > 10 * len(sims), "and commits"


def test_static_voters_do_become_dynamic_and_are_changed_then() -> None:
    options = SCENARIOS["static voters that become dynamic"]
    stories = []
    for seed in range(20):
        sim = RaftSim(seed, Options(**options))
        sim.run()
        assert len({node.core.voters for node in sim.nodes.values()}) == 1
        stories.append("\n".join(sim.story))
    assert sum("raises kraft.version" in story for story in stories) > 10
    assert sum("Voter" in story and ": NONE" in story for story in stories) > 5


def test_a_seed_gives_the_same_story_each_time() -> None:
    stories = []
    for _ in range(2):
        sim = RaftSim(7, options_for(7))
        sim.run()
        stories.append(sim.story)
    assert stories[0] == stories[1]


def test_elections_take_few_rounds() -> None:
    """K-7: of 200 leaders that die, 99 in 100 are replaced within three rounds and four seconds,
    half of them within the fetch timeout and half a second.
    """
    rounds, times = [], []
    for seed in range(50):
        sim = RaftSim(seed, Options(nodes=3 + 2 * (seed % 2), delay_ms=20, quiet_ms=0))
        sim.faults = False
        for node in sim.nodes.values():
            node.start()
        for _ in range(4):
            sim.run_until(sim.now_ms + 3000)
            (leader,) = [node for node in sim.nodes.values() if node.is_up and node.core.is_leader]
            epoch, began_ms = leader.core.epoch, sim.now_ms
            leader.crash()
            while max(sim.check.leaders) == epoch:
                sim.run_until(sim.now_ms + 10)
            rounds.append(max(sim.check.leaders) - epoch)
            times.append(sim.now_ms - began_ms)
            leader.start()
    assert sorted(rounds)[197] <= 3
    assert sorted(times)[197] <= 4000
    assert sorted(times)[100] <= 2500


@pytest.mark.parametrize(
    ("mutant", "scenario", "rule"),
    [
        (NO_VOTE_KEPT, "elections", "one vote"),
        (COMMIT_BY_COUNT, "leaders that die young", "leader completeness|state machine safety"),
        (EARLY_COUNT, "plain", "durability"),
    ],
)
def test_a_mutant_is_noticed(mutant: str, scenario: str, rule: str) -> None:
    options = Options(**{"nodes": 3, **SCENARIOS[scenario], "mutant": mutant, "quiet_ms": 6000})
    with pytest.raises(InvariantBroken, match=rule):
        _run_seeds(300, options)


def _run_seeds(count: int, options: Options) -> None:
    for seed in range(count):
        RaftSim(seed, options).run()
