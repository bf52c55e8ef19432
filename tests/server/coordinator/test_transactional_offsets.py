"""Transactions and the log of a group shard: what is written, what a load makes of it, who may."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.metadata.topic_names import GROUP_METADATA_TOPIC
from replication.replicas.transaction_verification import TransactionOperation
from tests.server.coordinator.group_node import Node
from tests.server.coordinator.group_support import Answer
from wire.errors import ErrorCode as E
from wire.records import iterate_headers, read_records

UNSTABLE = -int(E.UNSTABLE_OFFSET_COMMIT)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    node.find()
    yield node
    node.close()


def code(answer: Answer) -> int:
    """Of a TxnOffsetCommit of one partition."""
    (result,) = answer.results
    return int(getattr(result, "code", None) or result.topics[0].partitions[0].error_code)


def batches(node: Node) -> list[Any]:
    """(header, records) of all that group g's partition holds."""
    key = GROUP_METADATA_TOPIC, node.groups.partition_for("g")
    log = node.replica_manager.partition(key).open_log()
    found = log.read(0, 1 << 20, True, log.log_end_offset).records
    data = found.read()
    found.close()
    return [(h, list(read_records(data, at, h))) for at, h in iterate_headers(data)]


def test_a_transaction_is_its_producers_batch_and_a_marker_behind_it(node: Node) -> None:
    """As Kafka writes it (TX-39, section 6 of the reference)."""
    assert code(node.commit_in(2, 5)) == 0
    assert node.end(2, coordinator=3).results == [E.NONE]
    (data, records), (marker, markers) = batches(node)
    assert (data.producer_id, data.producer_epoch, data.base_sequence) == (2, 0, 0)
    assert data.attributes == 0x10
    assert len(records) == 1
    assert (marker.producer_id, marker.producer_epoch, marker.base_sequence) == (2, 1, -1)
    assert marker.attributes == 0x30
    assert [(r.key.hex(), r.value.hex()) for r in markers] == [("00000001", "000000000003")]


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_open_transaction_is_open_after_a_restart(node: Node, is_commit: bool) -> None:
    node.commit("g", 1)
    node.commit_in(2, 5)
    node.restart()
    assert (node.fetch("g"), node.fetch("g", stable=True)) == (1, UNSTABLE)
    node.end(2, is_commit)
    assert node.fetch("g", stable=True) == (5 if is_commit else 1)
    node.restart()
    assert node.fetch("g", stable=True) == (5 if is_commit else 1)


def test_a_load_lets_the_newest_record_win_as_a_living_shard_does(node: Node) -> None:
    """A plain commit between a transaction's commit and its marker (TX-40)."""
    node.commit_in(2, 5)
    node.commit_in(3, 6)
    node.commit("g", 4)
    node.end(3)
    node.commit_in(3, 8, epoch=1)
    node.end(2)
    assert (node.fetch("g"), node.fetch("g", stable=True)) == (4, UNSTABLE)
    before = [shard.inspect().digest() for shard in node.groups.runtime.shards()]  # type: ignore[union-attr]
    node.restart()
    assert [shard.inspect().digest() for shard in node.groups.runtime.shards()] == before  # type: ignore[union-attr]
    node.end(3, epoch=2)
    assert node.fetch("g", stable=True) == 8


def test_a_marker_while_the_shard_loads_is_refused_and_comes_again(node: Node) -> None:
    node.commit_in(2, 5)
    node.loads_slowly = True
    node.restart()
    assert node.end(2).error == E.COORDINATOR_LOAD_IN_PROGRESS
    assert len(batches(node)) == 1, "it is not in the log without the shard's knowing"
    for load in node.loads:
        load()
    assert node.end(2).results == [E.NONE]
    assert node.fetch("g", stable=True) == 5


def test_a_marker_for_a_partition_of_others_is_turned_away(node: Node) -> None:
    index = node.groups.partition_for("g")
    node.groups.runtime.on_leadership((GROUP_METADATA_TOPIC, index), None)
    assert node.end(2).error == E.NOT_COORDINATOR
    assert node.commit_in(2, 5).error == E.NOT_COORDINATOR


def test_a_marker_that_the_log_refuses_ends_nothing(node: Node) -> None:
    node.commit_in(2, 5)
    node.end(2, coordinator=7)
    node.commit_in(2, 6, epoch=1)
    assert node.end(2, epoch=2, coordinator=6).error == E.TRANSACTION_COORDINATOR_FENCED
    assert node.end(2, epoch=1, coordinator=7).error == E.INVALID_PRODUCER_EPOCH
    assert node.fetch("g", stable=True) == UNSTABLE
    assert node.end(2, epoch=2, coordinator=7).results == [E.NONE]
    assert node.fetch("g", stable=True) == 6


def test_a_fenced_producer_commits_nothing(node: Node) -> None:
    node.commit_in(2, 5, epoch=3)
    assert node.commit_in(2, 6, epoch=2).error == E.INVALID_PRODUCER_EPOCH
    node.end(2, epoch=4)
    assert node.fetch("g") == 5


@pytest.mark.parametrize("producer", [(-1, -1), (-1, 0), (2, -1)])
def test_a_transaction_of_nobody_commits_nothing(node: Node, producer: tuple[int, int]) -> None:
    """Its coordinator would say so, but `transaction.partition.verification.enable=false` asks
    nobody: the offset would be unstable for ever, since no marker has such a producer."""
    producer_id, epoch = producer
    node.commit("g", 1)
    assert node.commit_in(producer_id, 5, epoch=epoch).error == E.UNKNOWN_SERVER_ERROR
    assert node.fetch("g", stable=True) == 1
    node.restart()
    assert node.fetch("g", stable=True) == 1


# ---- verification (TX-37)


@pytest.mark.parametrize(
    ("version", "operation"),
    [
        (0, TransactionOperation.VERIFY_OLD),
        (3, TransactionOperation.VERIFY_OLD),
        (4, TransactionOperation.VERIFY),
        (5, TransactionOperation.ADD),
    ],
)
def test_the_transactions_coordinator_is_asked_first(
    node: Node, version: int, operation: TransactionOperation
) -> None:
    node.commit_in(2, 5, epoch=3, version=version)
    assert node.verifier.asked == [(("tx-2", 2, 3), operation)]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (E.INVALID_TXN_STATE, E.INVALID_TXN_STATE),
        (E.TRANSACTION_ABORTABLE, E.TRANSACTION_ABORTABLE),
        (E.INVALID_PRODUCER_EPOCH, E.INVALID_PRODUCER_EPOCH),
        (E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_PRODUCER_ID_MAPPING),
        (E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
        (E.NETWORK_EXCEPTION, E.COORDINATOR_LOAD_IN_PROGRESS),
        (E.NOT_COORDINATOR, E.NOT_COORDINATOR),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.UNKNOWN_TOPIC_OR_PARTITION, E.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_what_is_not_verified_is_not_written(node: Node, said: E, told: E) -> None:
    node.verifier.error = said
    assert node.commit_in(2, 5).error == told
    assert node.fetch("g", stable=True) == -1


def test_a_late_verification_is_acted_upon_where_records_may_be_written(node: Node) -> None:
    """It comes on the thread that talks to other brokers."""
    node.verifier.is_slow = True
    answer = node.commit_in(2, 5)
    (say,) = node.verifier.answers
    peer = threading.Thread(target=say)
    peer.start()
    peer.join()
    assert answer.waits
    (job,) = node.resumed
    job()
    assert code(answer) == 0
    node.end(2)
    assert node.fetch("g") == 5
