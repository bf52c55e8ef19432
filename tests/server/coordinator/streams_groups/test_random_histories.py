"""Random histories of members that come, hang, die, and come back, through other coordinators.

What must hold: no task runs in two members that live, a copy is never where the task runs, what
another coordinator loads is what was there, and once faults stop the group settles with all tasks.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from server.coordinator.streams_groups.tasks import pairs
from tests.server.coordinator.streams_groups.streams_support import (
    StreamsWorld,
    image_of,
    standbys,
    subtopology,
    tasks,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages.streams import StreamsGroupHeartbeatRequest

HISTORIES, STEPS = 60, 120
PARTS = (
    subtopology("0", reads=("in",), sinks=("re",), changelogs=("log-0",)),
    subtopology("1", reads=(), repartition={"re": 0}, changelogs=("log-1",)),
)


_REJOIN = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
)


class Client:
    """One thread of Kafka Streams that does what it is told, sometimes late."""

    def __init__(self, world: StreamsWorld, name: str, process: str) -> None:
        self.world, self.name, self.process = world, name, process
        self.epoch = 0
        self.owned: dict[str, list[int]] = {}
        self.copies: dict[str, list[int]] = {}

    def beat(self, *, loses_answer: bool = False) -> None:
        try:
            if self.epoch == 0:
                self.owned, self.copies = {}, {}
                answer = self.world.join(self.name, *PARTS, process_id=self.process)
            else:
                task = StreamsGroupHeartbeatRequest.Task
                copies = [task(subtopology_id=k, partitions=v) for k, v in self.copies.items()]
                answer = self.world.beat(self.name, self.epoch, self.owned, standby_tasks=copies)
        except KafkaError as error:
            if error.code not in _REJOIN:
                raise
            self.epoch, self.owned, self.copies = 0, {}, {}
            return
        if loses_answer:
            return
        self.epoch = answer.member_epoch
        if tasks(answer) is not None:
            self.owned, self.copies = tasks(answer) or {}, standbys(answer)


def check(world: StreamsWorld, clients: dict[str, Client]) -> None:
    members = world.group.members if "g" in world.shard.streams.groups else {}
    running = Counter(
        task for name, client in clients.items() if name in members for task in pairs(client.owned)
    )
    assert not running or max(running.values()) == 1
    here = Counter(
        (member.process_id, task)
        for member in members.values()
        for held in (member.assigned, member.revoking)
        for task in (*pairs(held.active), *pairs(held.standby))
    )
    assert not here or max(here.values()) == 1


def happen(rng: random.Random, world: StreamsWorld, clients: dict[str, Client], step: int) -> None:
    what = rng.random()
    if what < 0.12 and len(clients) < 6:
        clients[f"m{step}"] = Client(world, f"m{step}", f"p{rng.randrange(3)}")
    elif what < 0.16 and clients:
        name = rng.choice(list(clients))
        client = clients.pop(name)
        if client.epoch and rng.random() < 0.5 and name in world.group.members:
            world.beat(name, -1)
    elif what < 0.2 and world.log:
        world.reload()
    elif what < 0.22:
        standby_count = rng.randrange(3)
        world.config = replace(world.config, group_streams_num_standby_replicas=standby_count)
    elif what < 0.3:
        world.later(rng.choice((100, 1_000, 5_000, 50_000)))
    elif clients:
        rng.choice(list(clients.values())).beat(loses_answer=rng.random() < 0.05)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_no_task_runs_twice_and_the_group_settles(seed: int) -> None:
    rng = random.Random(seed)
    world = StreamsWorld()
    count = rng.randrange(1, 7)
    names = {"in": count, "re": count, "log-0": count, "log-1": count}
    world.image = image_of(**names)
    world.config = replace(world.config, group_streams_num_standby_replicas=rng.randrange(3))
    clients: dict[str, Client] = {}
    for step in range(STEPS):
        happen(rng, world, clients, step)
        check(world, clients)
    if not clients:
        return
    for _ in range(40):
        world.later(5_000)
        for client in clients.values():
            client.beat()
            check(world, clients)
    assert world.group.state_name == "Stable"
    owned = Counter(task for client in clients.values() for task in pairs(client.owned))
    assert owned == {(id_, p): 1 for id_ in "01" for p in range(count)}
    world.reload()
