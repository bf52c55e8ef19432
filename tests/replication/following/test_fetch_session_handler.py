"""The asking side of a fetch session: who is named in a request, and when it starts over."""

from __future__ import annotations

import random

import pytest

from replication.following.fetch_session_handler import FetchSessionHandler, Key, PartitionData
from replication.partition.requests import FetchPartition, FetchResult
from server.handlers.fetch_session import FetchSessionCache
from wire.errors import ErrorCode, KafkaError
from wire.messages.data import FetchRequest

ORDERS, PAYMENTS = b"orders-topic-id!", b"payments-topicid"


def at(offset: int, epoch: int = 3) -> PartitionData:
    return PartitionData(offset, 0, epoch, epoch)


def named(request: FetchRequest) -> dict[Key, int]:
    return {(t.topic_id, p.partition): p.fetch_offset for t in request.topics for p in t.partitions}


def forgotten(request: FetchRequest) -> set[Key]:
    return {(t.topic_id, i) for t in request.forgotten_topics_data for i in t.partitions}


@pytest.fixture
def handler() -> FetchSessionHandler:
    handler = FetchSessionHandler(1 << 20)
    handler.put((ORDERS, 0), at(5))
    handler.put((PAYMENTS, 1), at(7))
    return handler


def test_the_first_request_names_everything_and_asks_for_a_session(
    handler: FetchSessionHandler,
) -> None:
    request = handler.build()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert named(request) == {(ORDERS, 0): 5, (PAYMENTS, 1): 7}
    partition = request.topics[0].partitions[0]
    assert (partition.current_leader_epoch, partition.last_fetched_epoch) == (3, 3)
    assert partition.partition_max_bytes == 1 << 20


def test_later_requests_name_what_changed_and_what_went(handler: FetchSessionHandler) -> None:
    handler.build()
    assert handler.handle(0, 99)
    handler.put((ORDERS, 0), at(6))
    handler.remove((PAYMENTS, 1))
    request = handler.build()
    assert (request.session_id, request.session_epoch) == (99, 1)
    assert named(request) == {(ORDERS, 0): 6}
    assert forgotten(request) == {(PAYMENTS, 1)}
    handler.handle(0, 99)
    request = handler.build()
    assert request.session_epoch == 2
    assert named(request) == {}
    assert forgotten(request) == set()


def test_what_was_taken_out_and_put_back_is_not_forgotten(handler: FetchSessionHandler) -> None:
    handler.build()
    handler.handle(0, 99)
    handler.remove((ORDERS, 0))
    handler.put((ORDERS, 0), at(9))
    request = handler.build()
    assert named(request) == {(ORDERS, 0): 9}
    assert forgotten(request) == set()


def test_without_room_for_a_session_every_request_is_full(handler: FetchSessionHandler) -> None:
    for _ in range(3):
        assert len(named(handler.build())) == 2
        assert handler.handle(0, 0)


@pytest.mark.parametrize(
    ("code", "session_id"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 99),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 99),
    ],
)
def test_a_refused_session_is_closed_and_a_new_one_asked_for(
    handler: FetchSessionHandler, code: ErrorCode, session_id: int
) -> None:
    handler.build()
    handler.handle(0, 99)
    handler.build()
    assert not handler.handle(int(code), 0)
    request = handler.build()
    assert (request.session_id, request.session_epoch) == (session_id, 0)
    assert len(named(request)) == 2


def test_after_a_lost_answer_nobody_relies_on_the_session(handler: FetchSessionHandler) -> None:
    handler.build()
    handler.handle(0, 99)
    handler.put((ORDERS, 0), at(6))
    handler.build()
    handler.failed()
    request = handler.build()
    assert (request.session_id, request.session_epoch) == (99, 0)
    assert named(request) == {(ORDERS, 0): 6, (PAYMENTS, 1): 7}


def test_an_empty_session_is_asked_once_more_so_that_it_is_closed(
    handler: FetchSessionHandler,
) -> None:
    handler.build()
    handler.handle(0, 99)
    handler.remove((ORDERS, 0))
    handler.remove((PAYMENTS, 1))
    assert not handler.is_idle
    assert len(forgotten(handler.build())) == 2
    handler.handle(0, 0)
    assert handler.is_idle
    handler.put((ORDERS, 0), at(5))
    assert handler.build().session_epoch == 0


def test_epochs_start_over_at_one(handler: FetchSessionHandler) -> None:
    handler.build()
    handler.handle(0, 99)
    handler.epoch = 2**31 - 1
    handler.build()
    handler.handle(0, 99)
    assert handler.build().session_epoch == 1


def test_both_sides_of_a_session_agree_whatever_happens() -> None:
    """Against the broker's own cache: what it would read is what the follower wants read."""
    rng = random.Random(227)
    handler = FetchSessionHandler(1 << 20)
    cache = FetchSessionCache(2)
    for step in range(1500):
        key = (rng.choice((ORDERS, PAYMENTS)), rng.randrange(6))
        if rng.random() < 0.7:
            handler.put(key, at(rng.randrange(1000)))
        else:
            handler.remove(key)
        if rng.random() < 0.5 or handler.is_idle:
            continue
        request = FetchRequest.decode(handler.build().encode_bytes(17), 17)
        if rng.random() < 0.02:
            cache.close(request.session_id)
        try:
            context = cache.context(request, 17, step, lambda topic_id: "t")
        except KafkaError as error:
            handler.handle(int(error.code), 0)
            continue
        asked: list[FetchPartition] = context.requests
        assert {(p.topic_id, p.partition_index): p.fetch_offset for p in asked} == {
            key: data.fetch_offset for key, data in handler.partitions.items()
        }
        context.select([FetchResult(0, rng.randrange(3), 0, 0) for _ in asked], step)
        if rng.random() < 0.1:
            handler.failed()
        else:
            handler.handle(0, context.session_id)
