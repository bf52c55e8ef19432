"""Replication quotas: moved replicas are held to a rate, others never."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from replication.following import replication_quota
from replication.following.replication_quota import ReplicationQuota, is_throttled
from storage.config import LogConfig
from testkit.clock import ManualClock
from tests.replication.interleaving import interleavings


def test_the_rate_is_that_of_the_last_windows() -> None:
    clock = ManualClock(5_000)
    quota = ReplicationQuota(clock, 1000)
    quota.record(900)
    assert not quota.is_exceeded()
    quota.record(200)
    assert quota.is_exceeded()
    clock.ms += 1_200
    assert not quota.is_exceeded(), "1,100 bytes in 1.2 seconds"
    quota.record(5_000)
    assert quota.is_exceeded()
    clock.ms += 4_000
    assert quota.is_exceeded()
    clock.ms += 1_000
    assert not quota.is_exceeded()


def test_over_time_a_replica_gets_what_the_limit_allows() -> None:
    clock = ManualClock(5_000)
    quota = ReplicationQuota(clock, 10_000)
    copied = 0
    for _ in range(6_000):
        clock.ms += 10
        if not quota.is_exceeded():
            quota.record(3_000)
            copied += 3_000
    assert copied / 60 == pytest.approx(10_000, rel=0.1)


def test_fetchers_of_several_leaders_share_a_quota() -> None:
    quotas: list[ReplicationQuota] = []

    def make() -> tuple[Callable[[], object], Callable[[], object]]:
        clock = ManualClock(5_000)
        quota = ReplicationQuota(clock, 1000, window_count=2)
        quota.record(100)
        clock.ms += 5_000
        quotas.append(quota)

        def other() -> None:
            quota.is_exceeded()
            clock.ms += 1_000
            quota.record(4_000)

        return quota.is_exceeded, other

    for _ in interleavings(replication_quota, make, waits=lambda: quotas[-1]._lock.locked()):
        assert quotas[-1].is_exceeded(), "what the other one copied counts"


def test_without_a_limit_nothing_is_held_back() -> None:
    quota = ReplicationQuota(ManualClock(5_000))
    quota.record(1 << 60)
    assert not quota.is_set
    assert not quota.is_exceeded()


@pytest.mark.parametrize(
    ("replicas", "throttled"),
    [((), False), (("*",), True), (("0:1", "3:2"), True), (("3:1", "2:3"), False)],
)
def test_a_topic_names_the_replicas_that_are_throttled(
    replicas: tuple[str, ...], throttled: bool
) -> None:
    assert is_throttled(frozenset(replicas), 3, 2) is throttled


def test_a_replica_is_found_however_many_the_topic_names_without_a_search() -> None:
    """A leader asks for each partition that is behind at each fetch: with a list of 9,000, of 3,000
    partitions, that took 0.6 s of the network thread."""
    named = ",".join(f"{index}:{broker}" for index in range(100) for broker in (1, 2))
    config = LogConfig.from_values({"leader.replication.throttled.replicas": named})
    compared: list[object] = []

    class Pair(str):
        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return str(self) == str(other)

        __hash__ = str.__hash__

    assert Pair("99:2") in config.leader_replication_throttled_replicas
    assert len(compared) <= 2
