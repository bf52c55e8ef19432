"""A follower's session at its leader: what is looked at, what is watched, and when no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from replication.partition.requests import FetchPartition, FetchResult, QuietAnswer
from replication.replicas import follower_session
from replication.replicas.follower_session import MISSED_MAX, FollowerSession
from replication.replicas.purgatory import Purgatory
from replication.replicas.timer import Timer
from storage.config import SystemClock
from tests.replication.interleaving import interleavings

FOLLOWER = (2, 11)
LOOK_MS = 500
QUIET = QuietAnswer(0, 10, 10, 0)


class Entry:
    def __init__(self, index: int) -> None:
        self.request = FetchPartition("orders", None, index, 0)
        self.told: Any = QUIET


@pytest.fixture
def purgatory() -> Purgatory:
    return Purgatory("Fetch", Timer(SystemClock()))


class Session:
    """A session of five quiet partitions, looked at and settled at 0 ms."""

    def __init__(self, purgatory: Purgatory) -> None:
        self.purgatory = purgatory
        self.session = FollowerSession(purgatory, LOOK_MS)
        self.entries = [Entry(index) for index in range(5)]
        for entry in self.entries:
            self.session.changed(entry)
        self.settle(0)

    def settle(self, now_ms: int | None) -> list[int]:
        """Look, and find that nothing happens anywhere."""
        looked = self.session.take(FOLLOWER, now_ms)
        self.session.put_back(looked, [QUIET] * len(looked))
        return indexes(looked)

    def happens(self, index: int) -> None:
        self.purgatory.check_and_complete(("orders", index))


def indexes(entries: Any) -> list[int]:
    return [entry.request.partition_index for entry in entries]


@pytest.fixture
def made(purgatory: Purgatory) -> Session:
    return Session(purgatory)


def test_only_what_was_touched_is_looked_at(made: Session) -> None:
    assert made.settle(1) == []
    made.happens(3)
    made.session.changed(made.entries[1])
    assert made.settle(2) == [3, 1]
    assert made.settle(3) == []


def test_quiet_partitions_are_only_asked_whether_they_are(made: Session) -> None:
    asked: list[int] = []

    def is_quiet(entry: Any) -> bool:
        asked.extend(indexes([entry]))
        return entry is not made.entries[3]

    made.happens(1)
    assert indexes(made.session.take(FOLLOWER, LOOK_MS, is_quiet)) == [1, 3]
    assert asked == [0, 1, 2, 3, 4]


def test_everything_is_looked_at_now_and_then_and_for_another_incarnation(made: Session) -> None:
    assert made.settle(LOOK_MS - 1) == []
    assert made.settle(LOOK_MS) == [0, 1, 2, 3, 4]
    assert made.settle(LOOK_MS + 1) == []
    assert indexes(made.session.take((2, 12), LOOK_MS + 2)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "result",
    [
        FetchResult(0, 10, 10, 0),  # the limit of bytes left nothing for it
        FetchResult(6),
        QuietAnswer(0, 11, 11, 0),  # not told yet
    ],
)
def test_what_is_not_quiet_or_not_told_is_looked_at_again(
    made: Session, result: FetchResult
) -> None:
    made.happens(2)
    looked = made.session.take(FOLLOWER, 1)
    made.session.put_back(looked, [result])
    assert made.settle(2) == [2]


def test_who_gave_records_goes_behind_who_got_no_turn(made: Session) -> None:
    for index in (0, 1, 2):
        made.happens(index)
    looked = made.session.take(FOLLOWER, 1)
    records: Any = b"records"
    gave = FetchResult(0, 10, 10, 0, records)
    made.session.put_back(looked, [gave, FetchResult(0, 10, 10, 0), gave])
    assert made.settle(2) == [1, 0, 2]


def test_what_happens_while_it_is_looked_at_is_not_lost(made: Session) -> None:
    made.happens(2)
    looked = made.session.take(FOLLOWER, 1)
    made.happens(2)
    made.session.put_back(looked, [QUIET])
    assert made.settle(2) == [2]


def test_what_was_forgotten_is_neither_watched_nor_looked_at(made: Session) -> None:
    made.happens(4)
    made.session.forget(made.entries[4])
    made.session.put_back([made.entries[4]], [FetchResult(6)])
    made.happens(4)
    assert made.settle(LOOK_MS) == [0, 1, 2, 3]
    assert ("orders", 4) not in made.purgatory.watchers


def test_a_closed_session_watches_nothing_and_starts_over_if_it_is_used(made: Session) -> None:
    made.session.close()
    assert not made.purgatory.watchers
    assert made.settle(1) == [0, 1, 2, 3, 4]
    made.happens(0)
    assert made.settle(2) == [0]


def test_a_session_whose_follower_is_gone_stops_watching(made: Session) -> None:
    for _ in range(MISSED_MAX + 1):
        made.happens(1)
    assert not made.purgatory.watchers
    assert made.settle(2) == [1, 0, 2, 3, 4]


def test_a_follower_that_comes_back_while_its_session_stops_watching_misses_nothing() -> None:
    races: list[Session] = []

    def race() -> tuple[Callable[[], object], Callable[[], object]]:
        made = Session(Purgatory("Fetch", Timer(SystemClock())))
        races.append(made)
        return made.session.close, lambda: made.settle(1)

    for _ in interleavings(follower_session, race, waits=lambda: races[-1].session._lock.locked()):
        for index in range(5):
            races[-1].happens(index)
        assert sorted(races[-1].settle(2)) == [0, 1, 2, 3, 4]
    assert len(races) > 1


def test_a_topic_whose_name_becomes_known_is_watched_under_it(made: Session) -> None:
    entry = made.entries[0]
    entry.request = FetchPartition("renamed", None, 0, 0)
    made.session.changed(entry)
    made.settle(1)
    assert ("orders", 0) not in made.purgatory.watchers
    made.purgatory.check_and_complete(("renamed", 0))
    assert made.settle(2) == [0]
