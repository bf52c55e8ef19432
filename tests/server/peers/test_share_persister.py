"""The state of share partitions, asked of whoever keeps it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from server.peers import share_persister
from server.peers.call import PeerError
from server.peers.share_persister import ATTEMPTS, BACKOFF_MS, SharePersister
from server.share.share_partition import StateChange
from server.share.state_batches import ShareKey
from wire.errors import ErrorCode as E
from wire.errors import KafkaError
from wire.messages import response_class

KEY = ShareKey("g", b"t" * 16, 0)
OWN, OTHER = 1, 2


class Cluster:
    """Broker 1's persister; broker 2 keeps everything, and answers when it is told to."""

    def __init__(self) -> None:
        self.keeper = OTHER
        self.sent: list[tuple[int, str, Any, Callable[[Any], None]]] = []
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.told: list[tuple[int, object]] = []
        self.persister = SharePersister(
            OWN, self, self, lambda delay, fn: self.timers.append((delay, fn)), 30_000
        )

    def find(self, _key: ShareKey, on_complete: Callable[[Any], None]) -> None:
        on_complete(SimpleNamespace(broker_id=self.keeper))

    def send(
        self, broker_id: int, request: Any, on_complete: Any, *, timeout_ms: int, channel: str
    ) -> None:
        self.sent.append((broker_id, channel, request, on_complete))

    def later(self) -> None:
        """All pauses so far are over."""
        due, self.timers = self.timers, []
        for _, again in due:
            again()

    def write(
        self, partition: int, start_offset: int = 0, group: str = "g", batches: int = 0
    ) -> None:
        key = KEY._replace(partition=partition, group_id=group)
        change = StateChange(start_offset, 0, [(n, n, 0, 1) for n in range(batches)], [])
        self.persister.write(key, 1, 1, change, lambda code: self.told.append((partition, code)))

    def read(self, partition: int) -> None:
        key = KEY._replace(partition=partition)
        self.persister.read(key, 1, lambda found: self.told.append((partition, found)))

    def delete(self, partition: int) -> None:
        key = KEY._replace(partition=partition)
        self.persister.delete(key, lambda code: self.told.append((partition, code)))

    @property
    def requests(self) -> list[tuple[str, list[int]]]:
        """What was sent and not answered: the kind, and the partitions it names."""
        return [
            (_kind(request), [p.partition for t in request.topics for p in t.partitions])
            for _, _, request, _ in self.sent
        ]

    def answer(self, codes: dict[int, E] | PeerError | None = None) -> None:
        """The oldest request, with these codes for its partitions."""
        _, _, request, on_complete = self.sent.pop(0)
        if isinstance(codes, PeerError):
            on_complete(codes)
            return
        kind = response_class(request.api_key)
        struct = kind.Topic.Partition
        topics = [
            kind.Topic(
                topic_id=topic.topic_id,
                partitions=[_result(struct, p.partition, codes or {}) for p in topic.partitions],
            )
            for topic in request.topics
        ]
        on_complete(kind(results=topics))


def _kind(request: Any) -> str:
    return type(request).__name__.removesuffix("ShareGroupStateRequest")


def _result(struct: Any, partition: int, codes: dict[int, E]) -> Any:
    code = int(codes.get(partition, E.NONE))
    if "state_batches" in struct.__annotations__:
        return struct(
            partition=partition, error_code=code, state_epoch=1, start_offset=0, state_batches=[]
        )
    return struct(partition=partition, error_code=code)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_consumers_do_not_wait_behind_an_administrator(cluster: Cluster) -> None:
    """Requests of one connection go one after the other."""
    cluster.persister.summary(KEY, lambda _: None)
    cluster.write(0)
    (_, of_summary, _, _), (_, of_write, _, _) = cluster.sent
    assert of_summary != of_write


def test_what_comes_while_a_request_is_under_way_goes_with_the_next(cluster: Cluster) -> None:
    for partition in range(100):
        cluster.write(partition)
    assert cluster.requests == [("Write", [0])]
    cluster.answer()
    assert cluster.requests == [("Write", list(range(1, 100)))]
    cluster.answer({7: E.FENCED_STATE_EPOCH})
    assert cluster.requests == []
    codes = dict(cluster.told)
    assert sorted(codes) == list(range(100))
    assert codes.pop(7) is E.NOT_LEADER_OR_FOLLOWER
    assert set(codes.values()) == {E.NONE}


def test_a_group_does_not_wait_for_another(cluster: Cluster) -> None:
    """A request is about one group."""
    cluster.write(0)
    cluster.write(0, group="h")
    assert [request.group_id for _, _, request, _ in cluster.sent] == ["g", "h"]


def test_of_one_share_partition_what_was_asked_first_goes_first(cluster: Cluster) -> None:
    cluster.write(0, 1)
    cluster.write(1, 1)
    cluster.write(1, 2)
    cluster.read(2)
    cluster.delete(1)
    cluster.write(2, 1)
    sent = []
    while cluster.sent:
        sent += cluster.requests
        cluster.answer()
        cluster.later()
    assert sent == [
        ("Write", [0]), ("Write", [1]), ("Read", [2]), ("Write", [1]), ("Write", [2]),
        ("Delete", [1]),
    ]  # fmt: skip


@pytest.mark.parametrize("keeper", [OWN, OTHER])
def test_what_is_begun_again_is_not_deleted_afterwards(cluster: Cluster, keeper: int) -> None:
    """The coordinator moves when offsets are deleted, and is back when a member joins: the group
    would have state that nobody keeps, and its members nothing for ever."""
    cluster.keeper = keeper
    cluster.delete(0)
    cluster.answer({0: E.NOT_COORDINATOR})
    cluster.persister.initialize(KEY, 2, -1, lambda code: cluster.told.append((0, code)))
    sent = []
    while cluster.sent or cluster.timers:
        sent += cluster.requests
        if cluster.sent:
            cluster.answer()
        cluster.later()
    assert sent == [("Delete", [0]), ("Initialize", [0])]
    assert cluster.told == [(0, E.NONE), (0, E.NONE)]


def test_different_questions_about_others_are_joined_past_each_other(cluster: Cluster) -> None:
    cluster.write(0)
    for partition in (1, 2, 3):
        cluster.read(partition)
        cluster.write(partition + 10)
    cluster.answer()
    assert cluster.requests == [("Read", [1, 2, 3])]
    cluster.answer()
    assert cluster.requests == [("Write", [11, 12, 13])]


def test_a_request_is_of_bounded_size(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_persister, "PARTITIONS_MAX", 3)
    for partition in range(6):
        cluster.write(partition)
    cluster.answer()
    assert cluster.requests == [("Write", [1, 2, 3])]
    cluster.answer()
    assert cluster.requests == [("Write", [4, 5])]


def test_the_node_itself_is_asked_at_once(cluster: Cluster) -> None:
    cluster.keeper = OWN
    cluster.write(0)
    cluster.write(1)
    assert cluster.requests == [("Write", [0]), ("Write", [1])]


def test_only_what_found_no_coordinator_is_asked_again(cluster: Cluster) -> None:
    for partition in range(3):
        cluster.write(partition)
    cluster.answer()
    cluster.answer({2: E.NOT_COORDINATOR})
    assert cluster.told == [(0, E.NONE), (1, E.NONE)]
    [(delay_ms, again)] = cluster.timers
    assert delay_ms == BACKOFF_MS
    again()
    assert cluster.requests == [("Write", [2])]


def test_a_topic_that_the_coordinator_has_not_heard_of_is_asked_about_again(
    cluster: Cluster,
) -> None:
    """Its metadata may be older than those of who asks."""
    cluster.read(0)
    cluster.answer({0: E.UNKNOWN_TOPIC_OR_PARTITION})
    assert not cluster.told
    while cluster.timers:
        cluster.timers.pop()[1]()
        cluster.answer({0: E.UNKNOWN_TOPIC_OR_PARTITION})
    [(_, error)] = cluster.told
    assert isinstance(error, KafkaError)
    assert error.code is E.UNKNOWN_TOPIC_OR_PARTITION


def test_who_waits_behind_a_broker_that_is_gone_looks_for_another(cluster: Cluster) -> None:
    for partition in range(4):
        cluster.write(partition)
    cluster.keeper = 3
    cluster.answer(PeerError("gone"))
    assert cluster.sent == []
    cluster.later()
    assert [broker_id for broker_id, _, _, _ in cluster.sent] == [3]
    cluster.answer()
    assert cluster.requests == [("Write", [1, 2, 3])]
    cluster.answer()
    assert sorted(cluster.told) == [(partition, E.NONE) for partition in range(4)]


def test_nobody_waits_longer_behind_a_broker_that_is_gone_than_who_came_first(
    cluster: Cluster,
) -> None:
    for partition in range(100):
        cluster.write(partition)
    for _ in range(ATTEMPTS):
        while cluster.sent:
            cluster.answer(PeerError("gone"))
        cluster.later()
    assert cluster.told == [(n, E.UNKNOWN_SERVER_ERROR) for n in range(100)]


def test_an_error_that_is_not_known_here_keeps_nobody_from_his_answer(cluster: Cluster) -> None:
    for partition in range(3):
        cluster.write(partition)
    cluster.answer()
    cluster.answer({1: 9_999})
    assert cluster.told == [(0, E.NONE), (1, E.UNKNOWN_SERVER_ERROR), (2, E.NONE)]


def test_a_request_that_is_joined_is_taken_by_brokers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count the elements of what they decode."""
    monkeypatch.setattr(share_persister, "BATCHES_MAX", 5)
    for partition in range(5):
        cluster.write(partition, batches=3 if partition < 3 else 1)
    cluster.answer()
    assert cluster.requests == [("Write", [1])]
    cluster.answer()
    assert cluster.requests == [("Write", [2, 3, 4])]


def test_one_who_fails_over_his_answer_keeps_nobody_else_from_his(cluster: Cluster) -> None:
    def fail(_: object) -> None:
        raise ValueError("a fault of who asked")

    cluster.write(0)
    cluster.persister.write(KEY._replace(partition=1), 1, 1, StateChange(0, 0, [], []), fail)
    cluster.write(2)
    cluster.answer()
    cluster.answer()
    assert cluster.told == [(0, E.NONE), (2, E.NONE)]
    cluster.write(3)
    assert cluster.requests == [("Write", [3])]
