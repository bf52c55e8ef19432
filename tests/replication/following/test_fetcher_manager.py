"""Which fetcher a partition ends on, whatever changes beside it on other threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from replication.following import fetcher_manager
from replication.following.fetcher import FetcherConfig, ReplicaFetcher
from replication.following.fetcher_manager import FetcherRunner, ReplicaFetcherManager
from replication.following.replication_quota import ReplicationQuota
from replication.metadata.registrations import Endpoint
from storage.config import LogConfig
from testkit.clock import ManualClock
from tests.replication.interleaving import interleavings
from wire.messages.data import FetchRequest
from wire.primitives import TopicPartition

NODE, LEADER, OTHER = 1, 2, 3
HERE, THERE, ELSEWHERE = Endpoint("a", 1, 0), Endpoint("b", 2, 0), Endpoint("c", 3, 0)


class Log:
    """An empty log, as far as a fetcher looks at it before the first answer."""

    config = LogConfig()
    log_end_offset = log_start_offset = flushed_offset = 0
    latest_epoch = -1


class Followed:
    """A partition, as far as the manager looks at it."""

    def __init__(self, index: int, topic_id: bytes = b"orders-topic-id!") -> None:
        self.topic_partition = TopicPartition("orders", index)
        self.topic_id = topic_id
        self.log: Any = Log()
        self.leader_id = LEADER
        self.leader_epoch = 5

    @property
    def key(self) -> tuple[bytes, int]:
        return self.topic_id, self.topic_partition[1]

    def follow(self, leader_id: int) -> None:
        self.leader_id = leader_id
        self.leader_epoch += 1

    def stop(self) -> None:
        self.log = None


class Runner:
    def __init__(self, fetcher: ReplicaFetcher, address: Endpoint) -> None:
        self.fetcher = fetcher
        self.address = address
        self.is_running = True

    def wake(self) -> None:
        assert self.is_running

    def shutdown(self) -> None:
        self.is_running = False


class Fetchers:
    """A fetcher manager whose runners do nothing but remember whom they ask."""

    def __init__(self, count: int = 1) -> None:
        self.runners: list[Runner] = []
        self.threads_left = 1000
        self.addresses: dict[int, Endpoint] = {LEADER: HERE, OTHER: THERE}
        clock = ManualClock(100)
        self.manager = ReplicaFetcherManager(
            FetcherConfig(), count, NODE, lambda: 71, clock, self._run,
            address_of=self.addresses.get, quota=ReplicationQuota(clock),
            on_progress=lambda partition: None,
        )  # fmt: skip

    def _run(self, fetcher: ReplicaFetcher, address: Endpoint) -> FetcherRunner:
        if not self.threads_left:
            raise RuntimeError("can't start new thread")
        self.threads_left -= 1
        self.runners.append(Runner(fetcher, address))
        return self.runners[-1]

    def update(self, *partitions: Any) -> None:
        self.manager.update(partitions)

    @property
    def running(self) -> list[Endpoint]:
        return [runner.address for runner in self.runners if runner.is_running]

    def fetched(self) -> list[tuple[Endpoint, int, int]]:
        """Address, partition and leader epoch of all that is really asked for, anywhere."""
        asked = []
        for runner in self.runners:
            if not runner.is_running:
                continue
            assert runner.fetcher in self.manager.fetchers, "it runs, and nobody would end it"
            request = runner.fetcher.next_request()
            assert isinstance(request, FetchRequest), "it runs and has nothing to fetch"
            asked += [
                (runner.address, p.partition, p.current_leader_epoch)
                for topic in request.topics
                for p in topic.partitions
            ]
        return sorted(asked)


@pytest.fixture
def fetchers() -> Fetchers:
    return Fetchers()


def test_one_fetcher_serves_all_partitions_of_a_leader(fetchers: Fetchers) -> None:
    partitions = [Followed(index) for index in range(3)]
    fetchers.update(*partitions)
    assert fetchers.running == [HERE]
    assert [index for _, index, _ in fetchers.fetched()] == [0, 1, 2]
    for partition in partitions:
        partition.stop()
    fetchers.update(*partitions)
    assert fetchers.running == []


def test_where_no_thread_can_be_had_what_is_to_be_fetched_is_fetched_later(
    fetchers: Fetchers,
) -> None:
    """A process out of threads for a moment; others of the same change do not suffer from it."""
    here, there = [Followed(0), Followed(2)], Followed(1)
    there.follow(OTHER)
    fetchers.threads_left = 1
    fetchers.update(there, *here)
    assert fetchers.running == [THERE]
    here[1].stop()
    fetchers.update(here[1])
    assert fetchers.running == [THERE]
    fetchers.threads_left = 1
    fetchers.update()
    assert fetchers.fetched() == [(HERE, 0, 5), (THERE, 1, 6)]


def test_a_leader_that_moved_while_no_thread_can_be_had_is_fetched_from_later(
    fetchers: Fetchers,
) -> None:
    partitions = [Followed(0), Followed(1)]
    fetchers.update(*partitions)
    fetchers.addresses[LEADER] = ELSEWHERE
    fetchers.threads_left = 0
    fetchers.update(*partitions)
    assert fetchers.running == []
    partitions[1].follow(OTHER)
    fetchers.update(partitions[1])
    fetchers.threads_left = 2
    fetchers.update()
    assert fetchers.fetched() == [(THERE, 1, 6), (ELSEWHERE, 0, 5)]


def test_a_partition_moves_to_the_fetcher_of_its_new_leader(fetchers: Fetchers) -> None:
    one, other = Followed(0), Followed(1)
    fetchers.update(one, other)
    other.follow(OTHER)
    fetchers.update(other)
    assert fetchers.fetched() == [(HERE, 0, 5), (THERE, 1, 6)]


def test_a_leader_with_a_new_address_is_fetched_from_there(fetchers: Fetchers) -> None:
    partitions = Followed(0), Followed(1)
    fetchers.update(*partitions)
    fetchers.addresses[LEADER] = ELSEWHERE
    fetchers.update(partitions[0])
    assert fetchers.running == [ELSEWHERE]
    assert fetchers.fetched() == [(ELSEWHERE, 0, 5), (ELSEWHERE, 1, 5)]


def test_what_is_led_here_or_by_nobody_or_nobody_knows_where_is_not_fetched(
    fetchers: Fetchers,
) -> None:
    partitions = [Followed(index) for index in range(3)]
    fetchers.update(*partitions)
    for partition, leader_id in zip(partitions, (NODE, -1, 9), strict=True):
        partition.follow(leader_id)
    fetchers.update(*partitions)
    assert fetchers.running == []


def test_partitions_are_spread_over_num_replica_fetchers() -> None:
    fetchers = Fetchers(count=2)
    partitions = [Followed(index) for index in range(8)]
    fetchers.update(*partitions)
    assert len(fetchers.running) == 2
    fetchers.manager.shutdown()
    assert fetchers.running == []
    fetchers.update(partitions[0])
    assert fetchers.running == [], "nothing is followed after the end"


def test_a_topic_created_again_is_fetched_whoever_tells_of_the_old_one_last(
    fetchers: Fetchers,
) -> None:
    old, new = Followed(0), Followed(0, b"created-again-id")
    fetchers.update(old)
    old.stop()
    fetchers.update(new)
    fetchers.update(old)
    assert fetchers.fetched() == [(HERE, 0, 5)]
    (runner,) = (runner for runner in fetchers.runners if runner.is_running)
    assert runner.fetcher.state(new.key) is not None
    assert runner.fetcher.state(old.key) is None


# ---- two threads


class Race:
    """Partitions 0 and 1 are fetched from LEADER; two threads change something."""

    def __init__(self) -> None:
        self.fetchers = Fetchers()
        self.partitions = [Followed(0), Followed(1)]
        self.fetchers.update(*self.partitions)

    def stop(self) -> None:
        """Nothing of these is left at LEADER."""
        stopped = self.partitions[:2]
        for partition in stopped:
            partition.stop()
        self.fetchers.update(*stopped)

    def add(self) -> None:
        new = Followed(2)
        self.partitions.append(new)
        self.fetchers.update(new)

    def go_over(self) -> None:
        self.partitions[0].follow(OTHER)
        self.fetchers.update(self.partitions[0])

    def move(self) -> None:
        """LEADER is reached elsewhere now."""
        self.fetchers.addresses[LEADER] = ELSEWHERE
        self.fetchers.update(*self.partitions)

    def check(self) -> None:
        """What is fetched is what the partitions say."""
        assert self.fetchers.fetched() == sorted(
            (self.fetchers.addresses[p.leader_id], p.topic_partition[1], p.leader_epoch)
            for p in self.partitions
            if p.log is not None
        )


Change = Callable[[Race], None]


CHANGES = [Race.stop, Race.add, Race.go_over, Race.move]


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(CHANGES, 2)))
def test_every_partition_ends_on_a_running_fetcher_whichever_thread_is_faster(
    first: Change, second: Change
) -> None:
    races: list[Race] = []

    def make() -> tuple[Callable[[], None], Callable[[], None]]:
        race = Race()
        races.append(race)
        return partial(first, race), partial(second, race)

    count = 0
    for count in interleavings(fetcher_manager, make):  # noqa: B007
        races[-1].check()
    assert count > 10
