"""WriteTxnMarkers at the handler's edge: what is appended where, and what is answered."""

from __future__ import annotations

from typing import Any

import pytest

from replication.partition.requests import AppendResult
from server.coordinator.transaction_markers import TxnMarker
from server.handlers.transaction_markers import write_own_markers
from server.peers.call import PeerError
from testkit.clock import WALL_MS, ManualClock
from tests.server.handler_support import Asked, FakeBroker, image_of, topic_image
from wire.control_records import ControlRecordType, parse_end_txn_marker
from wire.errors import ErrorCode, KafkaError
from wire.messages.transactions import WriteTxnMarkersRequest
from wire.record_batch import read_header
from wire.records import read_records

OFFSETS = "__consumer_offsets"


class FakeGroups:
    """Answers markers with what a test puts here; keeps them if that is None."""

    def __init__(self) -> None:
        self.completed: list[tuple[int, TxnMarker]] = []
        self.answers: dict[int, Any] = {}
        self.waiting: list[Any] = []

    def complete_transaction(self, partition, marker, on_complete):
        self.completed.append((partition, marker))
        answer = self.answers.get(partition, "done")
        if answer is None:
            self.waiting.append(on_complete)
        else:
            on_complete(answer)


@pytest.fixture
def broker():
    broker = FakeBroker(image_of(topic_image("t", 3)))
    broker.group_coordinator = FakeGroups()
    broker.clock = ManualClock()
    broker.config["request.timeout.ms"] = 30_000
    return broker


@pytest.fixture
def asked(broker):
    return Asked(broker)


def marker(producer_id=7, epoch=3, commit=True, cep=5, tv=2, **topics):
    make = WriteTxnMarkersRequest.Marker
    return make(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=[make.Topic(name=n, partition_indexes=list(p)) for n, p in topics.items()],
        coordinator_epoch=cep,
        transaction_version=tv,
    )


def codes(response):
    return {
        (m.producer_id, t.name, p.partition_index): p.error_code
        for m in response.markers
        for t in m.topics
        for p in t.partitions
    }


@pytest.mark.parametrize(("version", "rule"), [(1, 0), (2, 2)])
@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_one_control_record_for_each_partition(asked, broker, version, rule, commit):
    request = WriteTxnMarkersRequest(markers=[marker(commit=commit, t=(0, 2))])
    assert codes(asked.ask(request, version)) == {(7, "t", 0): 0, (7, "t", 2): 0}
    ((acks, timeout_ms, entries, _),) = broker.replica_manager.appended
    assert (acks, timeout_ms) == (-1, 30_000)
    assert [key for key, _ in entries] == [("t", 0), ("t", 2)]
    # Version 1 knows no versions of transactions: the lenient rule.
    assert [source.transaction_version for source in broker.replica_manager.appended_from] == [rule]
    for _, batch in entries:
        header = read_header(batch)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
        assert header.is_control
        assert header.is_transactional
        (record,) = read_records(batch, 0, header)
        wanted = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
        assert parse_end_txn_marker(record) == (wanted, 5)


def test_the_bytes_of_a_marker_are_kafkas():
    """The worked example of the reference: COMMIT of coordinator epoch 0 (seen in Kafka's log)."""
    batch = TxnMarker(2, 1, True, 0, 2).batch(WALL_MS)
    assert len(batch) == 78
    assert batch[61:] == bytes.fromhex("20000000080000000 10c0000000000 0000".replace(" ", ""))


def test_partitions_fail_alone(asked, broker):
    broker.replica_manager.append_results = {
        ("t", 0): AppendResult(("t", 0), int(ErrorCode.INVALID_PRODUCER_EPOCH)),
        ("t", 1): AppendResult(("t", 1), int(ErrorCode.KAFKA_STORAGE_ERROR)),
    }
    request = WriteTxnMarkersRequest(markers=[marker(t=(0, 1, 2)), marker(8, t=(2,))])
    assert codes(asked.ask(request, 2)) == {
        (7, "t", 0): ErrorCode.INVALID_PRODUCER_EPOCH,
        (7, "t", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # offline: not here
        (7, "t", 2): 0,
        (8, "t", 2): 0,
    }


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("done", ErrorCode.NONE),
        (KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (KafkaError(ErrorCode.NOT_COORDINATOR), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH), ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_offsets_are_completed_by_their_coordinator(asked, broker, answer, told):
    broker.group_coordinator.answers[4] = answer
    request = WriteTxnMarkersRequest(markers=[marker(commit=False, **{OFFSETS: (4,)})])
    assert codes(asked.ask(request, 2)) == {(7, OFFSETS, 4): told}
    assert broker.group_coordinator.completed == [(4, TxnMarker(7, 3, False, 5, 2))]
    assert broker.replica_manager.appended == []


def test_the_answer_waits_for_everything(asked, broker):
    broker.group_coordinator.answers[4] = None
    broker.replica_manager.held_appends = []
    request = WriteTxnMarkersRequest(markers=[marker(t=(0,), **{OFFSETS: (4,)}), marker(8, t=(1,))])
    assert asked.ask(request, 2) is None
    for on_done, results in broker.replica_manager.held_appends:
        on_done(results)
    assert asked.received(request, 2) is None
    broker.group_coordinator.waiting[0]("done")
    assert codes(asked.received(request, 2)) == {
        (7, "t", 0): 0, (7, OFFSETS, 4): 0, (8, "t", 1): 0,
    }  # fmt: skip


@pytest.mark.parametrize("count", [256, 257])
def test_the_own_coordinators_markers_are_written_here_unless_they_are_many(broker, count):
    jobs, answers = [], []
    request = WriteTxnMarkersRequest(markers=[marker(t=range(count - 6)), marker(8, t=range(6))])
    after_answers = []
    write_own_markers(broker, jobs.append, after_answers.append, request, answers.append)
    assert not answers  # whoever ended the transaction is answered first
    assert (len(after_answers), len(jobs)) == ((1, 0) if count == 256 else (0, 1))
    for job in after_answers + jobs:
        job()
    (answer,) = answers
    assert len(codes(answer)) == count


@pytest.mark.parametrize("count", [1, 1_000])
def test_a_fault_while_writing_own_markers_is_an_answer_too(broker, count):
    """Or nothing would be sent to this node any more."""
    jobs, answers = [], []
    broker.replica_manager.append_records = None
    request = WriteTxnMarkersRequest(markers=[marker(t=range(count))])
    write_own_markers(broker, jobs.append, jobs.append, request, answers.append)
    for job in jobs:
        job()
    (answer,) = answers
    assert isinstance(answer, PeerError)


def test_a_partition_that_is_named_twice_gets_one_marker(asked, broker):
    request = WriteTxnMarkersRequest(markers=[marker(t=(0, 0, 1))])
    assert codes(asked.ask(request, 2)) == {(7, "t", 0): 0, (7, "t", 1): 0}
    ((_, _, entries, _),) = broker.replica_manager.appended
    assert [key for key, _ in entries] == [("t", 0), ("t", 1)]


@pytest.mark.parametrize("wrong", [{"producer_id": -1}, {"epoch": -1}])
def test_a_marker_of_no_producer_is_refused_before_anything_is_written(asked, broker, wrong):
    request = WriteTxnMarkersRequest(markers=[marker(t=(0,)), marker(t=(1,), **wrong)])
    found = codes(asked.ask(request, 2))
    assert set(found.values()) == {ErrorCode.INVALID_REQUEST}
    assert broker.replica_manager.appended == []


def test_no_markers_are_answered_with_none(asked):
    assert asked.ask(WriteTxnMarkersRequest(markers=[]), 2).markers == []
