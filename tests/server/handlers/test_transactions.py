"""What producers and tools are told of ids and transactions."""

from __future__ import annotations

import pytest

from server.coordinator.transactions.config import TransactionConfig
from server.coordinator.transactions.coordinator import TransactionCoordinator
from storage.log.producer_snapshot import ProducerStateEntry
from tests.server.coordinator.group_node import Markers
from tests.server.handler_support import Asked, FakeBroker, image_of, surroundings, topic_image
from wire.errors import ErrorCode, KafkaError
from wire.messages.quorum import AllocateProducerIdsResponse
from wire.messages.transactions import DescribeProducersRequest, InitProducerIdRequest


def init(transactional_id=None, **more):
    return InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60_000, **more
    )


def block(start, length=1000):
    return AllocateProducerIdsResponse(
        error_code=0, producer_id_start=start, producer_id_len=length
    )


@pytest.fixture
def asked():
    broker = FakeBroker(image_of(topic_image("t")))
    broker.transaction_coordinator = TransactionCoordinator(
        TransactionConfig(), surroundings(broker), Markers()
    )
    return Asked(broker)


@pytest.mark.parametrize("version", range(6))
def test_an_idempotent_producer_gets_an_id_when_the_controller_gave_a_block(asked, version):
    assert asked.ask(init(), version) is None
    request, on_complete, _ = asked.broker.controller.submitted.popleft()
    assert (request.broker_id, request.broker_epoch) == (1, 17)
    on_complete(block(5000))
    answer = asked.received(init(), version)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 5000, 0)
    assert asked.ask(init(), version).producer_id == 5001
    assert not asked.broker.controller.submitted


def test_a_recovering_producer_gets_a_fresh_id_and_halves_are_refused(asked):
    assert asked.ask(init(producer_id=7, producer_epoch=3), 4) is None
    asked.broker.controller.submitted.popleft()[1](block(9000))
    assert asked.received(init(), 4).producer_id == 9000
    for half in ({"producer_id": 7}, {"producer_epoch": 3}):
        assert asked.ask(init(**half), 4).error_code == ErrorCode.INVALID_REQUEST


def test_a_failed_allocation_is_answered_retriably_and_tried_again(asked):
    for failure in (KafkaError(ErrorCode.NOT_CONTROLLER), AllocateProducerIdsResponse(
        error_code=77, producer_id_start=0, producer_id_len=0
    )):  # fmt: skip
        assert asked.ask(init(), 4) is None
        asked.broker.controller.submitted.popleft()[1](failure)
        assert asked.received(init(), 4).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert asked.ask(init(), 4) is None
    asked.broker.controller.submitted.popleft()[1](block(0))
    assert asked.received(init(), 4).producer_id == 0


def test_active_producers_are_described(asked):
    entry = ProducerStateEntry(33)
    entry.producer_epoch = 2
    entry.last_timestamp = 1234
    asked.broker.replica_manager.producers["t", 0] = [entry]
    request = DescribeProducersRequest(
        topics=[
            DescribeProducersRequest.Topic(name="t", partition_indexes=[0, 5]),
            DescribeProducersRequest.Topic(name="a/b", partition_indexes=[0]),
        ]
    )
    described, impossible = asked.ask(request, 0).topics
    assert impossible.partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    found, missing = described.partitions
    (producer,) = found.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (33, 2, -1)
    assert (producer.last_timestamp, producer.current_txn_start_offset) == (1234, -1)
    assert (missing.error_code, missing.active_producers) == (3, [])
