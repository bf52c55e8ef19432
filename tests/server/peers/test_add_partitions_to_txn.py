"""Asking coordinators about partitions: one request under way for each, every question answered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from replication.metadata.image import (
    EMPTY_IMAGE,
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from replication.metadata.topic_names import TRANSACTION_STATE_TOPIC
from replication.replicas.transaction_verification import (
    TransactionalProducer,
    TransactionOperation,
)
from server.network.request_channel import elements_max
from server.peers import add_partitions_to_txn
from server.peers.add_partitions_to_txn import AddPartitionsToTxnManager
from server.peers.call import PeerError
from wire.errors import ErrorCode
from wire.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

NODE, OTHER, THIRD = 1, 2, 3
T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
ADD, VERIFY, VERIFY_OLD = (
    TransactionOperation.ADD,
    TransactionOperation.VERIFY,
    TransactionOperation.VERIFY_OLD,
)
_Result = AddPartitionsToTxnResponse.Transaction


def image_of(*leaders: int, fenced: Collection[int] = ()) -> MetadataImage:
    """__transaction_state with a partition led by each of these."""
    partitions = {
        index: PartitionRegistration((leader,), (bytes(16),), (leader,), leader)
        for index, leader in enumerate(leaders)
    }
    topic = TopicImage(TRANSACTION_STATE_TOPIC, bytes(16), partitions)
    brokers = {
        i: BrokerRegistration(i, 70 + i, bytes(16), {}, fenced=i in fenced)
        for i in (NODE, OTHER, THIRD)
    }
    topics = {topic.name: topic} if leaders else {}
    return replace(EMPTY_IMAGE, brokers=brokers, topics_by_name=topics)


class Own:
    """The node's own coordinator; ids are kept in the partition that their last digit names."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.code = 0

    wait_ms = 100

    def partition_for(self, transactional_id: str) -> int:
        return int(transactional_id[-1])

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[Any],
        request_version: int,
        on_complete: Callable[[int], None],
        wait_ms: int,
    ) -> None:
        assert wait_ms == self.wait_ms
        producer = transactional_id, producer_id, producer_epoch
        self.asked.append(("add", *producer, set(partitions), request_version))
        on_complete(self.code)

    def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[Any],
        on_complete: Callable[[Mapping[Any, int]], None],
    ) -> None:
        producer = transactional_id, producer_id, producer_epoch
        self.asked.append(("verify", *producer, set(partitions)))
        on_complete(dict.fromkeys(partitions, self.code))


class Brokers:
    """Other brokers; what is sent waits for the test to answer it."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, AddPartitionsToTxnRequest, Callable[[Any], None]]] = []

    def send(
        self,
        broker_id: int,
        request: Any,
        on_complete: Callable[[Any], None],
        *,
        timeout_ms: int,
        channel: str,
    ) -> None:
        assert (timeout_ms, channel) == (30_000, "add-partitions-to-txn")
        self.sent.append((broker_id, request, on_complete))

    def take(self) -> tuple[int, list[Any], Callable[[Any], None]]:
        broker_id, request, on_complete = self.sent.pop(0)
        # What goes over the wire is what the version can hold.
        encoded = b"".join(bytes(part) for part in request.encode(5))
        return broker_id, list(type(request).decode(encoded, 5).transactions), on_complete


def answer_of(transactions: list[Any], code: int = 0) -> AddPartitionsToTxnResponse:
    """The same code for every partition that is asked about."""
    topic = _Result.Topic
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            _Result(
                transactional_id=one.transactional_id,
                topic_results=[
                    topic(
                        name=t.name,
                        results_by_partition=[
                            topic.Partition(partition_index=i, partition_error_code=code)
                            for i in t.partitions
                        ],
                    )
                    for t in one.topics
                ],
            )
            for one in transactions
        ]
    )


class Node:
    def __init__(self) -> None:
        self.image = image_of(NODE, OTHER, THIRD)
        self.own, self.brokers = Own(), Brokers()
        self.manager = AddPartitionsToTxnManager(
            NODE, lambda: self.image, self.own, self.brokers, 30_000
        )

    def ask(
        self,
        transactional_id: str,
        *partitions: tuple[str, int],
        pid: int = 9,
        epoch: int = 0,
        operation: TransactionOperation = ADD,
    ) -> list[dict[tuple[str, int], int]]:
        """What the question is told, once it is."""
        told: list[dict[tuple[str, int], int]] = []
        producer = TransactionalProducer(transactional_id, pid, epoch)
        self.manager.verify(producer, partitions or (T0,), operation, told.append)
        return told


@pytest.fixture
def node() -> Node:
    return Node()


# ---- the node itself


def test_the_node_itself_is_asked_without_a_socket(node: Node) -> None:
    assert node.ask("x0", T0, T1) == [{}]
    assert node.ask("x0", U0, operation=VERIFY) == [{}]
    assert node.own.asked == [
        ("add", "x0", 9, 0, {T0, T1}, 5),
        ("verify", "x0", 9, 0, {U0}),
    ]
    node.own.code = int(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert node.ask("x0", T0, T1) == [{T0: 51, T1: 51}]
    assert node.brokers.sent == []


# ---- others


def test_questions_for_one_coordinator_travel_together_while_a_request_is_under_way(
    node: Node,
) -> None:
    first = node.ask("a1", T0, T1, U0)
    later = [node.ask(f"{name}1", T0) for name in "bcd"]
    elsewhere = node.ask("a2", T0)
    assert len(node.brokers.sent) == 2  # one to each coordinator
    broker_id, asked, respond = node.brokers.take()
    assert broker_id == OTHER
    (one,) = asked
    assert (one.transactional_id, one.producer_id, one.producer_epoch) == ("a1", 9, 0)
    assert {(t.name, i) for t in one.topics for i in t.partitions} == {T0, T1, U0}
    respond(answer_of(asked))
    assert (first, later) == ([{}], [[], [], []])
    broker_id, asked, respond_elsewhere = node.brokers.take()
    assert broker_id == THIRD
    respond_elsewhere(answer_of(asked))
    assert elsewhere == [{}]
    broker_id, asked, respond = node.brokers.take()
    assert (broker_id, [one.transactional_id for one in asked]) == (OTHER, ["b1", "c1", "d1"])
    respond(answer_of(asked))
    assert later == [[{}], [{}], [{}]]
    assert node.brokers.sent == []


def test_a_request_has_no_more_elements_than_a_broker_takes(node: Node) -> None:
    """It would refuse the same request each time. What does not fit is asked next."""
    node.ask("busy1")
    _, busy, respond = node.brokers.take()
    partitions = [("t", index) for index in range(1_000)]
    told = [node.ask(f"{number}-1", *partitions) for number in range(150)]
    respond(answer_of(busy))
    while node.brokers.sent:
        _, request, respond = node.brokers.sent.pop()
        frame = b"".join(bytes(part) for part in request.encode(5))
        type(request).decode(frame, 5, 0, elements_max(len(frame)))
        respond(answer_of(request.transactions))
    assert told == [[{}]] * 150


def test_a_question_too_large_for_others_beside_it_is_asked_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(add_partitions_to_txn, "PARTITIONS_MAX", 2)
    node.ask("busy1")
    for name in ("a1", "b1", "c1", "d1"):
        node.ask(name, *((T0, T1, U0) if name == "b1" else (T0,)))
    asked = []
    while node.brokers.sent:
        _, transactions, respond = node.brokers.take()
        asked.append([one.transactional_id for one in transactions])
        respond(answer_of(transactions))
    assert asked == [["busy1"], ["a1"], ["b1"], ["c1", "d1"]]


def test_verifying_only_asks_and_adding_adds(node: Node) -> None:
    for name, operation in (("a2", VERIFY), ("a1", ADD)):
        node.ask(name, operation=operation)
        _, (asked,), _ = node.brokers.take()
        assert asked.verify_only is (operation is VERIFY)


@pytest.mark.parametrize(
    ("first", "second", "told_first", "told_second"),
    [
        (0, 1, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.NONE),
        (1, 1, ErrorCode.NETWORK_EXCEPTION, ErrorCode.NONE),
        (1, 0, ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_an_id_waits_once_in_a_queue(
    node: Node, first: int, second: int, told_first: int, told_second: int
) -> None:
    """TX-54: whose client went away is told to ask again, whose producer is old is fenced."""
    node.ask("busy1")
    _, busy, respond = node.brokers.take()
    one, two = node.ask("a1", T0, epoch=first), node.ask("a1", T1, epoch=second)
    respond(answer_of(busy))
    _, asked, respond = node.brokers.take()
    assert len(asked) == 1
    respond(answer_of(asked))
    assert one == [{T0: told_first} if told_first else {}]
    assert two == [{T1: told_second} if told_second else {}]


@pytest.mark.parametrize(("first", "second"), [((9, 32_766), (10, 0)), ((10, 0), (9, 32_766))])
def test_of_two_producer_ids_only_the_coordinator_knows_the_newer(
    node: Node, first: tuple[int, int], second: tuple[int, int]
) -> None:
    """A producer whose epochs are used up goes on with a fresh id at epoch 0."""
    node.ask("busy1")
    _, busy, respond = node.brokers.take()
    one, two = (node.ask("a1", pid=pid, epoch=epoch) for pid, epoch in (first, second))
    assert one == [{T0: ErrorCode.NETWORK_EXCEPTION}], "its client asks again"
    respond(answer_of(busy))
    _, asked, respond = node.brokers.take()
    assert [(q.producer_id, q.producer_epoch) for q in asked] == [second]
    respond(answer_of(asked))
    assert two == [{}]


@pytest.mark.parametrize(
    ("operation", "code", "told"),
    [
        (ADD, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (VERIFY, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (VERIFY_OLD, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (ADD, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ADD, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
@pytest.mark.parametrize("name", ["a0", "a1"])
def test_codes_are_told_as_the_operations_clients_take_them(
    node: Node, operation: TransactionOperation, code: int, told: int, name: str
) -> None:
    node.own.code = code
    answer = node.ask(name, T0, T1, operation=operation)
    if name == "a1":
        _, asked, respond = node.brokers.take()
        respond(answer_of(asked, code))
    assert answer == [{T0: told, T1: told}]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, {T0: int(ErrorCode.INVALID_TXN_STATE)}),
        (ErrorCode.UNSUPPORTED_VERSION, {}),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, {T0: 14}),
    ],
)
def test_a_code_for_the_whole_request_is_everybodys(node: Node, code: int, told: Any) -> None:
    answer = node.ask("a1")
    _, _, respond = node.brokers.take()
    respond(AddPartitionsToTxnResponse(error_code=code))
    assert answer == [told]


def test_who_does_not_answer_costs_a_network_exception_and_not_the_next_question(
    node: Node,
) -> None:
    first, second = node.ask("a1"), node.ask("b1")
    _, _, respond = node.brokers.take()
    respond(PeerError("the peer closed the connection"))
    assert first == [{T0: int(ErrorCode.NETWORK_EXCEPTION)}]
    _, asked, respond = node.brokers.take()
    respond(answer_of(asked))
    assert second == [{}]


def test_what_an_answer_leaves_out_is_not_verified(node: Node) -> None:
    left_out, partly = node.ask("busy1"), node.ask("a1", T0, T1)
    _, _, respond = node.brokers.take()
    respond(AddPartitionsToTxnResponse())
    assert left_out == [{T0: int(ErrorCode.NETWORK_EXCEPTION)}]
    _, asked, respond = node.brokers.take()
    asked[0].topics[0].partitions.remove(1)
    respond(answer_of(asked))
    assert partly == [{T1: int(ErrorCode.NETWORK_EXCEPTION)}]


@pytest.mark.parametrize(
    "image", [image_of(), image_of(NODE, -1), image_of(NODE, OTHER, fenced=[OTHER])]
)
def test_an_id_that_nobody_coordinates_now_is_told_so(node: Node, image: MetadataImage) -> None:
    node.image = image
    assert node.ask("a1") == [{T0: int(ErrorCode.COORDINATOR_NOT_AVAILABLE)}]


def test_a_question_that_fails_to_go_on_leaves_the_others_be(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(errors: dict[tuple[str, int], int]) -> None:
        raise ValueError("a fault of ours")

    node.ask("busy1")
    _, busy, respond = node.brokers.take()
    node.manager.verify(TransactionalProducer("a1", 9, 0), (T0,), ADD, fail)
    other = node.ask("b1")
    respond(answer_of(busy))
    _, asked, respond = node.brokers.take()
    respond(answer_of(asked))
    assert other == [{}]
    assert "a fault of ours" in caplog.text
