"""Random histories of one id: what holds whatever is asked, lost, written late or loaded anew."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.server.coordinator.transactions.transaction_support import ID, T0, T1, E, S, World

RETRIABLE = (E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS)


class Producer:
    """A client: what it believes to be, and how it speaks."""

    def __init__(self, version: int, pid: int, epoch: int) -> None:
        self.version = version
        self.pid, self.epoch = pid, epoch


class History:
    """Producers come and go, late words of old ones arrive, brokers die."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(self.chance.choice([1, 2]), transactional_id_expiration_ms=2**40)
        self.producers: list[Producer] = []
        self.newest = (-1, -1)
        """Of the last who came anew: whoever is older must be refused."""

    def step(self) -> None:
        world, chance = self.world, self.chance
        before = self.identity()
        kind = chance.choices(
            ["come", "add", "end", "again", "markers", "time", "die", "refuse", "serve", "ids"],
            [3, 8, 6, 1, 6, 1, 1, 1, 3, 1],
        )[0]
        if kind == "come":
            self.come()
        elif kind in ("add", "end", "again") and self.producers:
            self.speak(kind, chance.choice(self.producers[-3:]))
        elif kind == "markers" and world.markers:
            world.written()
        elif kind == "time":
            world.advance(chance.choice([1, 1_000, 70_000]))
        elif kind == "die":
            world.fail_over()
        elif kind in ("refuse", "serve"):
            world.is_writable = kind == "serve"
        elif kind == "ids":
            world.has_ids = not world.has_ids
        assert self.identity() >= before, "producer ids and epochs never go back"

    def identity(self) -> tuple[int, int]:
        now = self.world.shard.transactions.get(ID)
        return (-1, -1) if now is None else (now.producer_id, now.producer_epoch)

    def come(self) -> None:
        answer = self.world.init()
        if answer in RETRIABLE:
            return
        assert answer > self.newest, "nobody gets what somebody had"
        assert answer[1] < 32_767
        self.newest = answer
        version = self.chance.choice([0, 2])
        self.producers.append(Producer(version, *answer))

    def speak(self, kind: str, producer: Producer) -> None:
        world, who = self.world, (producer.pid, producer.epoch)
        is_old = who < self.newest
        if kind == "add":
            partition = self.chance.choice([T0, T1])
            answer: Any = world.add(partition, pid=who[0], epoch=who[1], version=producer.version)
            is_done = answer == 0
            if is_done:
                assert partition in world.now.partitions
                assert world.now.state is S.ONGOING
        elif kind == "end":
            is_commit = self.chance.random() < 0.5
            answer = world.end(is_commit, pid=who[0], epoch=who[1], version=producer.version)
            is_done = isinstance(answer, tuple)
            if is_done:
                self.ended(producer, is_commit, answer)
        else:
            answer = world.init(*who)
            is_done = isinstance(answer, tuple)
            if is_done:
                producer.pid, producer.epoch = answer
        assert is_done or answer in (
            *RETRIABLE, E.PRODUCER_FENCED, E.INVALID_TXN_STATE, E.INVALID_PRODUCER_ID_MAPPING,
        )  # fmt: skip
        assert not (is_done and is_old), "who was taken over from is refused"

    def ended(self, producer: Producer, is_commit: bool, answer: tuple[int, int]) -> None:
        """As it was asked for, and not otherwise."""
        outcome = {True: (S.PREPARE_COMMIT, S.COMPLETE_COMMIT),
                   False: (S.PREPARE_ABORT, S.COMPLETE_ABORT)}[is_commit]  # fmt: skip
        assert self.world.now.state in outcome
        if producer.version == 2:
            assert answer > (producer.pid, producer.epoch)
            producer.pid, producer.epoch = answer

    def check(self) -> None:
        """What is here is what a failover brings back; who is prepared has markers under way."""
        world = self.world
        loaded = World(world.version)
        loaded.log = list(world.log)
        loaded.fail_over()
        live = world.shard.transactions
        assert loaded.shard.transactions == {
            id_: known._replace(last_producer_epoch=-1) for id_, known in live.items()
        }
        prepared = {id_ for id_, known in live.items() if known.is_prepared}
        assert {markers.transactional_id for markers, _ in loaded.markers} == prepared
        under_way = {markers.transactional_id for markers, _ in world.markers}
        assert prepared <= under_way or ("complete", ID) in world.shard.deadlines


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_what_holds_in_every_history(first: int) -> None:
    for seed in range(first, first + 25):
        history = History(seed)
        if seed % 4 == 0:  # near the end of the epochs
            history.world.put(S.EMPTY, producer_id=7, producer_epoch=32_740)
        for _ in range(40):
            for _ in range(5):
                history.step()
            history.check()
