"""What producers and tools are told of ids and transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replication.metadata.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from server.coordinator.runtime import TOPIC_WAIT_MS
from server.coordinator.transactions.config import TransactionConfig
from server.coordinator.transactions.coordinator import TransactionCoordinator
from server.handlers import groups, transactions
from storage.log.producer_snapshot import ProducerStateEntry
from tests.server.coordinator.group_node import Markers, Node
from tests.server.handler_support import Asked, FakeBroker, image_of, surroundings, topic_image
from tests.server.handlers.groups_support import Clientele, clients_of
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import FindCoordinatorRequest
from wire.messages.quorum import AllocateProducerIdsResponse
from wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from wire.primitives import partition_for

E = ErrorCode


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


# ---- transactions: topics t (two partitions) and u (one), a coordinator that has no id yet


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clientele]:
    with clients_of(tmp_path) as clients:
        clients.node.create(TRANSACTION_STATE_TOPIC, 3)
        yield clients


def begun(clients: Clientele, transactional_id: str = "tx", version: int = 5) -> int:
    """The id's producer id, at epoch 0."""
    answer = clients.ask(transactions.init_producer_id, init(transactional_id), version)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    return int(answer.producer_id)


def add_request(
    producer_id: int, epoch: int, topics: dict[str, list[int]], *, verify_only: bool = False
) -> AddPartitionsToTxnRequest:
    """In the words of clients and of brokers."""
    legacy, batched = AddPartitionsToTxnRequest.LegacyTopic, AddPartitionsToTxnRequest.Transaction
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[legacy(name=name, partitions=of) for name, of in topics.items()],
        transactions=[
            batched(
                transactional_id="tx",
                producer_id=producer_id,
                producer_epoch=epoch,
                verify_only=verify_only,
                topics=[batched.Topic(name=name, partitions=of) for name, of in topics.items()],
            )
        ],
    )


def added(clients: Clientele, request: AddPartitionsToTxnRequest, version: int) -> dict:
    answer = clients.ask(transactions.add_partitions_to_txn, request, version)
    topics = answer.results_by_topic_v3_and_below
    if version >= 4:
        assert answer.error_code == 0
        (result,) = answer.results_by_transaction
        assert result.transactional_id == "tx"
        topics = result.topic_results
    return {
        (topic.name, result.partition_index): result.partition_error_code
        for topic in topics
        for result in topic.results_by_partition
    }


def end_request(producer_id: int, epoch: int, committed: bool = True) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id="tx", producer_id=producer_id, producer_epoch=epoch, committed=committed
    )


def described(clients: Clientele, *ids: str) -> list:
    request = DescribeTransactionsRequest(transactional_ids=list(ids))
    answer = clients.ask(transactions.describe_transactions, request, 0)
    return list(answer.transaction_states)


@pytest.mark.parametrize("version", range(1, 7))
def test_the_coordinator_of_a_transactional_id(clients: Clientele, version: int) -> None:
    request = FindCoordinatorRequest(key="tx", key_type=1, coordinator_keys=["tx"])
    answer = clients.ask(groups.find_coordinator, request, version)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id, found.host) == (0, 1, "dialled")


@pytest.mark.parametrize(
    ("version", "code"),
    [(0, 0), (2, 0), (3, E.INVALID_PRODUCER_EPOCH), (4, E.PRODUCER_FENCED), (5, E.PRODUCER_FENCED)],
)
def test_a_fenced_producer_is_told_in_the_words_of_its_time(
    clients: Clientele, version: int, code: int
) -> None:
    """TX-29; before version 3 nobody can say who he is."""
    begun(clients)
    request = init("tx", producer_id=5, producer_epoch=7)
    assert clients.ask(transactions.init_producer_id, request, version).error_code == code


@pytest.mark.parametrize("version", range(6))
def test_partitions_are_added_in_every_version(clients: Clientele, version: int) -> None:
    producer_id = begun(clients)
    topics = {"t": [0, 1], "u": [0]}
    codes = added(clients, add_request(producer_id, 0, topics), version)
    assert codes == {("t", 0): 0, ("t", 1): 0, ("u", 0): 0}
    (found,) = described(clients, "tx")
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [
        ("t", [0, 1]),
        ("u", [0]),
    ]
    fenced = E.INVALID_PRODUCER_EPOCH if version < 2 else E.PRODUCER_FENCED
    assert added(clients, add_request(producer_id, 9, {"u": [0]}), version) == {("u", 0): fenced}
    mapping = E.INVALID_PRODUCER_ID_MAPPING
    assert added(clients, add_request(3, 0, {"u": [0]}), version) == {("u", 0): mapping}
    ended = clients.ask(transactions.end_txn, end_request(producer_id, 0), 5)
    assert (ended.error_code, ended.producer_epoch) == (0, 1)
    assert clients.node.markers.written().transaction_version == 2


@pytest.mark.parametrize("version", range(6))
def test_one_unknown_partition_and_nothing_is_added(clients: Clientele, version: int) -> None:
    """TX-32"""
    producer_id = begun(clients)
    request = add_request(producer_id, 0, {"t": [0, 9], "gone": [0]})
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert added(clients, request, version) == {
        ("t", 0): E.OPERATION_NOT_ATTEMPTED, ("t", 9): unknown, ("gone", 0): unknown,
    }  # fmt: skip
    assert described(clients, "tx")[0].transaction_state == "Empty"


@pytest.mark.parametrize("version", range(6))
def test_only_brokers_add_internal_topics(clients: Clientele, version: int) -> None:
    """TX-31"""
    request = add_request(begun(clients), 0, {GROUP_METADATA_TOPIC: [0], "t": [0]})
    codes = added(clients, request, version)
    assert codes == {
        (GROUP_METADATA_TOPIC, 0): 0 if version >= 4 else E.TOPIC_AUTHORIZATION_FAILED,
        ("t", 0): 0 if version >= 4 else E.OPERATION_NOT_ATTEMPTED,
    }


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_verify_and_add_for_many_at_once(clients: Clientele, version: int) -> None:
    """TX-34"""
    producer_id = begun(clients)
    assert added(clients, add_request(producer_id, 0, {"t": [0]}), version) == {("t", 0): 0}
    verify = add_request(producer_id, 0, {"t": [0, 1]}, verify_only=True)
    assert added(clients, verify, version) == {("t", 0): 0, ("t", 1): E.TRANSACTION_ABORTABLE}
    other = begun(clients, "other")
    (adding,) = add_request(other, 0, {"u": [0]}).transactions
    adding.transactional_id = "other"
    both = AddPartitionsToTxnRequest(transactions=[*verify.transactions, adding])
    answer = clients.ask(transactions.add_partitions_to_txn, both, version)
    assert [
        (result.transactional_id, [p.partition_error_code for p in topic.results_by_partition])
        for result in answer.results_by_transaction
        for topic in result.topic_results
    ] == [("tx", [0, E.TRANSACTION_ABORTABLE]), ("other", [0])]
    nobody = clients.ask(
        transactions.add_partitions_to_txn, AddPartitionsToTxnRequest(transactions=[]), version
    )
    assert nobody.results_by_transaction == []


@pytest.mark.parametrize("version", range(5))
def test_a_groups_offsets_are_added(clients: Clientele, version: int) -> None:
    """TX-35: never as version 2, whatever the version of the request."""
    producer_id = begun(clients)

    def ask(epoch: int) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id="tx", producer_id=producer_id, producer_epoch=epoch, group_id="g"
        )
        return clients.ask(transactions.add_offsets_to_txn, request, version).error_code

    assert ask(1) == (E.INVALID_PRODUCER_EPOCH if version < 2 else E.PRODUCER_FENCED)
    assert ask(0) == 0
    (topic,) = described(clients, "tx")[0].topics
    index = clients.node.groups.partition_for("g")
    assert (topic.topic, topic.partitions) == (GROUP_METADATA_TOPIC, [index])
    clients.ask(transactions.end_txn, end_request(producer_id, 0), 4)
    assert clients.node.markers.written().transaction_version == 0


def test_offsets_are_added_to_a_partition_that_is_known_to_be_there(tmp_path: Path) -> None:
    """The marker for any other is dropped, and the offsets never count."""
    node = Node(tmp_path)
    node.create(TRANSACTION_STATE_TOPIC, 3)
    clients = Clientele(node)
    producer_id = begun(clients)
    node.controller.is_slow = True
    request = AddOffsetsToTxnRequest(
        transactional_id="tx", producer_id=producer_id, producer_epoch=0, group_id="g"
    )
    first = clients.start(transactions.add_offsets_to_txn, request, 4)
    assert not first.answers
    node.create(GROUP_METADATA_TOPIC, 7)  # of more partitions than is configured here
    node.pass_time(TOPIC_WAIT_MS)
    assert [answer.error_code for answer in first.answers] == [E.COORDINATOR_NOT_AVAILABLE]
    assert described(clients, "tx")[0].topics == []
    assert clients.ask(transactions.add_offsets_to_txn, request, 4).error_code == 0
    (topic,) = described(clients, "tx")[0].topics
    assert topic.partitions == [partition_for("g", 7)] != [partition_for("g", 3)]
    node.close()


@pytest.mark.parametrize("version", range(6))
def test_the_end_of_a_transaction_in_every_version(clients: Clientele, version: int) -> None:
    """TX-43"""
    producer_id = begun(clients)
    ended = clients.ask(transactions.end_txn, end_request(producer_id, 0), version)
    assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (
        E.INVALID_TXN_STATE, -1, -1,
    )  # fmt: skip
    added(clients, add_request(producer_id, 0, {"t": [0]}), 3)
    fenced = clients.ask(transactions.end_txn, end_request(producer_id, 1), version)
    assert fenced.error_code == (E.INVALID_PRODUCER_EPOCH if version < 2 else E.PRODUCER_FENCED)
    assert (fenced.producer_id, fenced.producer_epoch) == (-1, -1)
    ended = clients.ask(transactions.end_txn, end_request(producer_id, 0), version)
    assert ended.error_code == 0
    assert (ended.producer_id, ended.producer_epoch) == (
        (producer_id, 1) if version >= 5 else (-1, -1)
    )
    markers = clients.node.markers.written()
    assert markers.producer_epoch == (1 if version >= 5 else 0)


def test_describe_transactions(clients: Clientele) -> None:
    """TX-48"""
    producer_id = begun(clients)
    empty, unknown, nameless = described(clients, "tx", "who", "")
    assert (empty.transaction_state, empty.transaction_start_time_ms, empty.producer_id) == (
        "Empty", -1, producer_id,
    )  # fmt: skip
    assert (unknown.error_code, unknown.transactional_id) == (E.TRANSACTIONAL_ID_NOT_FOUND, "who")
    assert nameless.error_code == E.INVALID_REQUEST
    assert described(clients) == []


@pytest.mark.parametrize("version", range(3))
def test_list_transactions(clients: Clientele, version: int) -> None:
    """TX-49; filters of later versions are not there in earlier ones."""
    producer_id = begun(clients)
    request = ListTransactionsRequest(
        state_filters=["Nope", "Empty"],
        producer_id_filters=[],
        duration_filter=2**62,
        transactional_id_pattern="t.",
    )
    answer = clients.ask(transactions.list_transactions, request, version)
    assert answer.unknown_state_filters == ["Nope"]
    found = [
        (transaction.transactional_id, transaction.producer_id, transaction.transaction_state)
        for transaction in answer.transaction_states
    ]
    assert found == ([("tx", producer_id, "Empty")] if version == 0 else [])


def test_a_pattern_that_is_none_is_refused(clients: Clientele) -> None:
    request = ListTransactionsRequest(
        state_filters=[], producer_id_filters=[], transactional_id_pattern="["
    )
    answer = clients.ask(transactions.list_transactions, request, 2)
    assert (answer.error_code, answer.transaction_states) == (E.INVALID_REGULAR_EXPRESSION, [])
