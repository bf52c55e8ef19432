"""The coordinator over real logs: who is answered when, and what a restart brings back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.metadata.topic_names import TRANSACTION_STATE_TOPIC
from replication.replicas.replica_manager import FROM_COORDINATOR, AppendRequest
from server.coordinator.transactions.config import TransactionConfig
from server.coordinator.transactions.records import TransactionRecord, encode_transaction
from tests.server.coordinator.group_node import Node
from tests.server.coordinator.group_support import Answer
from tests.server.coordinator.transactions.transaction_support import S, metadata
from wire.errors import ErrorCode as E
from wire.errors import KafkaError
from wire.messages.transactions import (
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from wire.primitives import TopicPartition
from wire.records import Record, build_batch

T0 = TopicPartition("t", 0)
TWO_REPLICAS = {"replicas": (1, 2), "directories": (b"d" * 16, b"e" * 16), "isr": (1, 2)}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    node.create("t", 1)
    yield node
    node.close()


@pytest.fixture
def ready(node: Node) -> Node:
    node.create(TRANSACTION_STATE_TOPIC, 3)
    return node


def init(node: Node, id_: str | None = "tx", **how: Any) -> Answer:
    answer = Answer()
    how.setdefault("transaction_timeout_ms", 60_000)
    node.transactions.init_producer_id(InitProducerIdRequest(transactional_id=id_, **how), answer)
    return answer


def add(
    node: Node, pid: int, epoch: int, id_: str = "tx", version: int = 4, wait_ms: int = 0
) -> Answer:
    answer = Answer()
    node.transactions.add_partitions(id_, pid, epoch, [T0], version, answer, wait_ms)
    return answer


def verify(node: Node, pid: int, epoch: int, id_: str = "tx") -> Answer:
    answer = Answer()
    node.transactions.verify_partitions(id_, pid, epoch, [("t", 0), T0], answer)  # type: ignore[list-item]
    return answer


def end(node: Node, pid: int, epoch: int, *, is_commit: bool = True, id_: str = "tx") -> Answer:
    answer = Answer()
    request = EndTxnRequest(
        transactional_id=id_, producer_id=pid, producer_epoch=epoch, committed=is_commit
    )
    node.transactions.end_txn(request, 5, answer)
    return answer


def listed(node: Node, **filters: Any) -> Any:
    answer = Answer()
    request = ListTransactionsRequest(**{"state_filters": [], "producer_id_filters": [], **filters})
    node.transactions.list_transactions(request, answer)
    return answer


def names(answer: Answer) -> list[str]:
    return sorted(found.transactional_id for found in answer.response.transaction_states)


def states(node: Node, *ids: str) -> list[tuple[int, str]]:
    answer = Answer()
    node.transactions.describe(ids, answer)
    return [(found.error_code, found.transaction_state) for found in answer.response]


# ---- finding


def test_the_topic_is_made_as_kafka_makes_it_when_somebody_asks(node: Node) -> None:
    """TX-6"""
    node.transaction_config = TransactionConfig(transaction_state_log_num_partitions=7)
    node.restart()
    found = Answer()
    node.transactions.find("tx", found)
    assert found.response.broker_id == 1
    ((request, _),) = node.controller.requests
    (topic,) = request.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (
        "__transaction_state", 7, 3,
    )  # fmt: skip
    assert {config.name: config.value for config in topic.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }
    assert node.transactions.partition_for("tx") == 3716 % 7


def test_who_does_not_coordinate_says_so(node: Node) -> None:
    """TX-4"""
    assert init(node).error == E.NOT_COORDINATOR
    assert end(node, 1, 0).error == E.NOT_COORDINATOR
    assert add(node, 1, 0).response == E.NOT_COORDINATOR
    assert verify(node, 1, 0).response == {T0: E.NOT_COORDINATOR}
    assert states(node, "tx") == [(E.NOT_COORDINATOR, "")]
    assert names(listed(node)) == []


def test_a_coordinator_that_loads_says_so(ready: Node) -> None:
    assert init(ready).error == 0
    ready.loads_slowly = True
    ready.restart()
    assert init(ready).error == E.COORDINATOR_LOAD_IN_PROGRESS
    assert listed(ready).error == E.COORDINATOR_LOAD_IN_PROGRESS, "TX-49: not a part as the whole"
    for load in ready.loads:
        load()
    assert names(listed(ready)) == ["tx"]


def test_after_the_shutdown_nobody_coordinates(ready: Node) -> None:
    ready.transactions.shutdown()
    assert init(ready).error == E.COORDINATOR_NOT_AVAILABLE
    assert listed(ready).error == E.COORDINATOR_NOT_AVAILABLE


def test_an_id_cannot_be_empty(ready: Node) -> None:
    assert init(ready, "").error == E.INVALID_REQUEST
    assert add(ready, 1, 0, "").response == E.INVALID_REQUEST
    assert verify(ready, 1, 0, "").response == {T0: E.INVALID_REQUEST}
    assert end(ready, 1, 0, id_="").error == E.INVALID_REQUEST
    assert states(ready, "") == [(E.INVALID_REQUEST, "")]


# ---- InitProducerId


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"producer_id": 5}, E.INVALID_REQUEST),
        ({"producer_epoch": 5}, E.INVALID_REQUEST),
        ({"enable2_pc": True}, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"keep_prepared_txn": True}, E.UNSUPPORTED_VERSION),
        ({"transaction_timeout_ms": 0}, E.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": -1}, E.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, E.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_000}, 0),
        ({"transaction_timeout_ms": 1}, 0),
    ],
)
def test_what_init_asks_for(ready: Node, how: Any, error: int) -> None:
    """TX-21, TX-22"""
    assert init(ready, **how).error == error


def test_two_phase_commit_never_times_out(ready: Node) -> None:
    ready.transaction_config = TransactionConfig(
        transaction_state_log_num_partitions=3, transaction_two_phase_commit_enable=True
    )
    ready.restart()
    assert init(ready, enable2_pc=True, transaction_timeout_ms=-5).error == 0
    assert init(ready, enable2_pc=True, keep_prepared_txn=True).error == E.UNSUPPORTED_VERSION
    answer = Answer()
    ready.transactions.describe(["tx"], answer)
    assert answer.response[0].transaction_timeout_ms == 2**31 - 1


def test_the_first_producer_waits_for_a_block_of_ids(ready: Node) -> None:
    ready.controller.is_giving = False
    answer, other = init(ready), init(ready, None)
    assert answer.waits
    ready.controller.give()
    ids = {answer.response.producer_id, other.response.producer_id}
    assert len(ids) == 2
    assert ids < set(range(1_000, 1_004))


def test_without_a_controller_a_new_id_is_told_to_ask_again(ready: Node) -> None:
    """TX-30"""
    ready.controller.is_giving = False
    answer = init(ready)
    ready.controller.give(KafkaError(E.REQUEST_TIMED_OUT))
    assert answer.error == E.COORDINATOR_LOAD_IN_PROGRESS


# ---- what is answered is committed


def test_nothing_is_answered_and_no_marker_sent_before_it_is_committed(node: Node) -> None:
    """TX-3"""
    node.create(TRANSACTION_STATE_TOPIC, 3)
    assert init(node).response.producer_id == 1_000
    assert add(node, 1_000, 0).response == 0
    # From now on the other replica is waited for.
    node.create(TRANSACTION_STATE_TOPIC, 3, partition_epoch=1, **TWO_REPLICAS)
    ended, again = end(node, 1_000, 0), end(node, 1_000, 0)
    verified, described = verify(node, 1_000, 0), Answer()
    node.transactions.describe(["tx"], described)
    waiting = (ended, again, verified, described)
    assert all(answer.waits for answer in waiting)
    assert not node.markers.sent
    node.create(TRANSACTION_STATE_TOPIC, 3, partition_epoch=2, **{**TWO_REPLICAS, "isr": (1,)})
    assert (ended.response.producer_id, ended.response.producer_epoch) == (1_000, 1)
    assert again.error == E.CONCURRENT_TRANSACTIONS
    assert verified.response == {T0: E.PRODUCER_FENCED}
    assert described.response[0].transaction_state == "PrepareCommit"
    ((markers, _),) = node.markers.sent
    assert (markers.producer_epoch, markers.is_commit) == (1, True)


@pytest.fixture
def ending(ready: Node) -> Node:
    """The transaction of "tx" is decided; its markers are on their way."""
    assert init(ready).response.producer_id == 1_000
    assert add(ready, 1_000, 0).response == 0
    assert end(ready, 1_000, 0).response.producer_epoch == 1
    return ready


def test_the_next_transaction_waits_for_the_markers_and_not_for_a_timer(ending: Node) -> None:
    """Told CONCURRENT_TRANSACTIONS a producer would sleep for 20 ms or 100, in each transaction."""
    first, second = (add(ending, 1_000, 1, wait_ms=100) for _ in range(2))
    fenced = add(ending, 1_000, 0, wait_ms=100)
    assert first.waits
    assert second.waits
    assert fenced.waits
    ((_, on_done),) = ending.markers.sent
    on_done()
    assert (first.response, second.response) == (0, 0)
    assert fenced.response == E.PRODUCER_FENCED
    assert states(ending, "tx") == [(0, "Ongoing")]


def test_what_takes_too_long_is_not_waited_for(ending: Node) -> None:
    patient, impatient = add(ending, 1_000, 1, wait_ms=100), add(ending, 1_000, 1)
    assert impatient.response == E.CONCURRENT_TRANSACTIONS
    ending.pass_time(99)
    assert patient.waits
    ending.pass_time(1)
    assert patient.response == E.CONCURRENT_TRANSACTIONS
    ((_, on_done),) = ending.markers.sent
    on_done()
    assert states(ending, "tx") == [(0, "CompleteCommit")]


def test_who_waits_while_the_coordinator_moves_is_told_so(ending: Node) -> None:
    waiting = add(ending, 1_000, 1, wait_ms=100)
    ending.create(
        TRANSACTION_STATE_TOPIC, 3, leader=2, leader_epoch=1, partition_epoch=2, **TWO_REPLICAS
    )
    assert waiting.response == E.NOT_COORDINATOR
    ending.pass_time(100)


def test_who_is_deposed_before_the_commit_sends_no_marker(node: Node) -> None:
    """The next leader does, if it has the record."""
    node.create(TRANSACTION_STATE_TOPIC, 3)
    init(node)
    add(node, 1_000, 0)
    node.create(TRANSACTION_STATE_TOPIC, 3, partition_epoch=1, **TWO_REPLICAS)
    ended = end(node, 1_000, 0)
    node.create(
        TRANSACTION_STATE_TOPIC, 3, leader=2, leader_epoch=1, partition_epoch=2, **TWO_REPLICAS
    )
    assert ended.error == E.NOT_COORDINATOR
    assert not node.markers.sent


# ---- markers, and what a restart brings back


def test_a_transaction_from_begin_to_end(ready: Node) -> None:
    pid = init(ready).response.producer_id
    assert add(ready, pid, 0).response == 0
    assert verify(ready, pid, 0).response == {T0: 0}
    assert end(ready, pid, 0).response.producer_epoch == 1
    assert states(ready, "tx") == [(0, "PrepareCommit")]
    (partition,) = ready.markers.written().partitions
    assert str(partition) == "t-0"
    assert states(ready, "tx", "who") == [
        (0, "CompleteCommit"), (E.TRANSACTIONAL_ID_NOT_FOUND, ""),
    ]  # fmt: skip


def test_an_abort_of_nothing_needs_no_sender(ready: Node) -> None:
    pid = init(ready).response.producer_id
    assert end(ready, pid, 0, is_commit=False).response.producer_epoch == 1
    assert not ready.markers.sent
    assert states(ready, "tx") == [(0, "CompleteAbort")]


def test_after_a_restart_everything_is_as_it_was(ready: Node) -> None:
    """TX-73"""
    for id_ in ("open", "decided", "done"):
        pid = init(ready, id_).response.producer_id
        assert add(ready, pid, 0, id_).response == 0
        if id_ != "open":
            end(ready, pid, 0, id_=id_)
    sent = {markers.transactional_id: done for markers, done in ready.markers.sent}
    sent["done"]()
    ready.markers.sent.clear()
    ready.restart()
    assert states(ready, "open", "decided", "done") == [
        (0, "Ongoing"), (0, "PrepareCommit"), (0, "CompleteCommit"),
    ]  # fmt: skip
    assert verify(ready, 1_000, 0, "open").response == {T0: 0}
    assert ready.markers.written().transactional_id == "decided"
    assert states(ready, "decided") == [(0, "CompleteCommit")]


def test_word_that_comes_too_late_is_nobodys(ready: Node) -> None:
    pid = init(ready).response.producer_id
    add(ready, pid, 0)
    end(ready, pid, 0)
    ((_, done),) = ready.markers.sent
    ready.transactions.shutdown()
    assert not ready.markers.sent, "forgotten"
    done()


def test_a_log_with_records_of_another_version_is_loaded_without_them(
    ready: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """TX-14"""
    key, value = encode_transaction(TransactionRecord("known", metadata(S.EMPTY), 1))
    assert value is not None
    records = [(key, value), (b"\0\7" + key[2:], value), (key[:-1] + b"x", b"\0\7" + value[2:])]
    batch = build_batch([Record(-1, 1, k, v, ()) for k, v in records])
    partition = TRANSACTION_STATE_TOPIC, ready.transactions.partition_for("known")
    done: list[Any] = []
    ready.replica_manager.append_records(
        AppendRequest(-1, 1_000, [(partition, batch)], done.append, source=FROM_COORDINATOR)
    )
    with caplog.at_level(logging.WARNING):
        ready.restart()
    assert names(listed(ready)) == ["known"]
    assert caplog.text.count("unknown version") == 2


def test_a_late_transaction_is_aborted_by_the_clock(ready: Node) -> None:
    """TX-70"""
    pid = init(ready, transaction_timeout_ms=2_000).response.producer_id
    add(ready, pid, 0)
    ready.pass_time(10_000)
    (markers, _) = ready.markers.sent[0]
    assert (markers.producer_epoch, markers.is_commit) == (1, False)


# ---- listing


def test_list_with_filters(ready: Node) -> None:
    """TX-49"""
    for id_ in ("orders-1", "orders-2", "empty", "bills"):
        init(ready, id_)
    for id_, pid in (("orders-1", 1_000), ("orders-2", 1_001), ("bills", 1_003)):
        add(ready, pid, 0, id_)
        ready.clock.ms += 1_000
    end(ready, 1_003, 0, id_="bills")
    assert names(listed(ready)) == ["bills", "empty", "orders-1", "orders-2"]
    assert names(listed(ready, state_filters=["Ongoing"])) == ["orders-1", "orders-2"]
    assert names(listed(ready, state_filters=["Empty", "PrepareCommit"])) == ["bills", "empty"]
    only_unknown = listed(ready, state_filters=["Gone", "ongoing"])
    assert names(only_unknown) == []
    assert only_unknown.response.unknown_state_filters == ["Gone", "ongoing"]
    some_unknown = listed(ready, state_filters=["Gone", "Ongoing", "Dead"])
    assert names(some_unknown) == ["orders-1", "orders-2"]
    assert some_unknown.response.unknown_state_filters == ["Gone"]
    assert names(listed(ready, producer_id_filters=[1_001, 1_002, 9])) == ["empty", "orders-2"]
    assert names(listed(ready, duration_filter=2_000)) == ["empty", "orders-1"]
    assert names(listed(ready, duration_filter=0)) == ["bills", "empty", "orders-1", "orders-2"]
    assert names(listed(ready, transactional_id_pattern="orders-.")) == ["orders-1", "orders-2"]
    assert names(listed(ready, transactional_id_pattern="orders")) == [], "the whole id"
    assert len(names(listed(ready, transactional_id_pattern=""))) == 4
    bad = listed(ready, transactional_id_pattern="(")
    assert bad.error == E.INVALID_REGULAR_EXPRESSION
