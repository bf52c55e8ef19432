"""Producer ids are given once in a lifetime."""

from __future__ import annotations

import threading

import pytest

from server.coordinator.transactions.producer_ids import NoProducerId, ProducerIds
from tests.server.handler_support import FakeBroker, image_of, surroundings
from wire.errors import ErrorCode
from wire.messages.quorum import AllocateProducerIdsResponse


def block(start, length=1000):
    return AllocateProducerIdsResponse(
        error_code=0, producer_id_start=start, producer_id_len=length
    )


def test_the_next_block_is_asked_for_before_it_is_needed():
    broker = FakeBroker(image_of())
    ids = ProducerIds(surroundings(broker))
    given = []
    ids.take(given.append)
    broker.controller.submitted.popleft()[1](block(0, 200))
    for _ in range(100):
        ids.take(given.append)
    assert len(broker.controller.submitted) == 1
    for _ in range(99):
        ids.take(given.append)
    assert given == list(range(200))
    ids.take(given.append)
    assert len(given) == 200, "this one waits"
    broker.controller.submitted.popleft()[1](block(5000, 200))
    assert given[200:] == [5000]
    assert not broker.controller.submitted


def test_a_block_smaller_than_the_queue_is_followed_by_another():
    broker = FakeBroker(image_of())
    ids = ProducerIds(surroundings(broker))
    given = []
    for _ in range(5):
        ids.take(given.append)
    assert len(broker.controller.submitted) == 1
    broker.controller.submitted.popleft()[1](block(10, 3))
    assert given == [10, 11, 12]
    broker.controller.submitted.popleft()[1](block(20, 3))
    assert given == [10, 11, 12, 20, 21]


def test_an_id_that_nobody_was_told_is_dealt_out_again():
    broker = FakeBroker(image_of())
    ids = ProducerIds(surroundings(broker))
    with pytest.raises(NoProducerId) as refusal:
        ids.next()
    assert refusal.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.controller.submitted.popleft()[1](block(10, 3))
    assert [ids.next(), ids.next()] == [10, 11]
    ids.put_back(11)
    ids.put_back(10)
    given = []
    ids.take(given.append)
    assert sorted([*given, ids.next(), ids.next()]) == [10, 11, 12]


def test_ids_are_unique_over_threads():
    broker = FakeBroker(image_of())
    starts = iter(range(0, 10**9, 1000))
    broker.controller.submit = lambda request, done, *, context: done(block(next(starts)))
    ids = ProducerIds(surroundings(broker))
    given = []
    threads = [
        threading.Thread(target=lambda: [ids.take(given.append) for _ in range(2_000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == len(set(given)) == 8_000
