"""Random histories of a share partition against a model that keeps one entry per offset."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from server.share.acquisition import AcquireMode
from server.share.in_flight import ACKNOWLEDGED, ACQUIRED, TERMINAL
from server.share.share_partition import Acknowledgement, Limits
from tests.server.share.share_world import MEMBERS, World

HISTORIES = 1_000


def _acknowledge_something(world: World, random: Random) -> None:
    """Mostly what the member has; sometimes what it has not."""
    member = random.choice(MEMBERS)
    mine = sorted(
        at for at, e in world.entries.items() if e.state is ACQUIRED and e.member == member
    )
    acks = []
    if mine and random.random() < 0.85:
        first = random.choice(mine)
        last = first
        while last + 1 in mine and random.random() < 0.8:
            last += 1
        acks.append((first, last))
        rest = [at for at in mine if at > last]
        if rest and random.random() < 0.3:
            acks.append((rest[0], rest[0]))
    else:
        first = random.randint(0, world.log_end + 2)
        acks.append((first, first + random.randint(0, 5)))
    kinds = [1, 1, 2, 3, 0, 4]
    world.acknowledge(
        member,
        *(
            Acknowledgement(
                first,
                last,
                [random.choice(kinds)]
                if random.random() < 0.6
                else [random.choice(kinds) for _ in range(first, last + 1)],
            )
            for first, last in acks
        ),
    )


def _step(world: World, random: Random) -> None:
    match random.choices(range(8), (4, 8, 8, 6, 2, 2, 0.4, 0.6))[0]:
        case 0:
            world.append()
        case 1:
            world.fetch(
                random.choice(MEMBERS),
                random.choice((1, 3, 10, 500)),
                random.choice(tuple(AcquireMode)),
                random.choice((1, 5, 500, 0, -3)),
                random.choice((1, 2, 100)),
            )
        case 2:
            _acknowledge_something(world, random)
        case 3:
            if world.changes:
                world.settle(is_persisted=random.random() < 0.8)
        case 4:
            world.pass_time(random.choice((1, 10, 40)))
        case 5:
            world.release(random.choice(MEMBERS))
        case 6:
            random.choice((world.delete_records, world.compact))()
        case 7:
            world.fail_over()


def run_history(seed: int) -> World:
    """One history from its seed, to the point where everything that is in the log was consumed."""
    random = Random(seed)
    limits = Limits(
        lock_duration_ms=30,
        delivery_count_limit=random.choice((2, 3, 5, 10)),
        max_record_locks=random.choice((5, 20, 2_000)),
    )
    world = World(random, limits)
    for _ in range(random.randint(10, 120)):
        _step(world, random)
        _check_window(world)
    world.drain()
    return world


def _check_window(world: World) -> None:
    partition = world.partition
    runs = [run for batch in partition._flight.batches for run in batch.runs]
    assert partition.complete_count == sum(run.size for run in runs if run.state in TERMINAL)
    assert all(a.last < b.first for a, b in pairwise(runs))
    for batch in partition._flight.batches:
        assert batch.available == [run for run in batch.runs if run.is_available]
    assert not runs or partition.start_offset <= runs[0].first
    first = world.entries.get(partition.start_offset)
    if first is not None and first.pending_of is None:
        assert first.state is not ACKNOWLEDGED


def test_every_record_is_delivered_and_acknowledged_at_most_once() -> None:
    for seed in range(HISTORIES):
        try:
            world = run_history(seed)
        except (AssertionError, ValueError, IndexError) as error:
            pytest.fail(f"seed {seed}: {error!r}")
        in_log = {at for span in world.log for at in range(span.first, span.last + 1)}
        aborted = {at for span in world.aborted for at in range(span.first, span.last + 1)}
        missed = {at for at in in_log - aborted - world.delivered if at >= world.log_start}
        assert not missed, f"seed {seed}: never delivered: {sorted(missed)}"
