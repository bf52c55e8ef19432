"""Transactions over the wire, against a whole broker: what clients of each version are told.

TX numbers are those of the rules that Kafka's broker keeps (KIP-98, KIP-360, KIP-890).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.config.kafka_config import KafkaConfig
from server.node.node import Node
from tests.server.wire_client import WireClient
from wire.errors import ErrorCode
from wire.messages.admin import CreateTopicsRequest, IncrementalAlterConfigsRequest
from wire.messages.data import FetchRequest, ListOffsetsRequest, ProduceRequest
from wire.messages.groups import FindCoordinatorRequest
from wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from wire.record_batch import read_header
from wire.records import Record, build_batch, read_records

_STORED = "t"
_PATIENT_S = 30.0


class Client:
    """One transactional producer, spoken byte by byte."""

    def __init__(self, node: Node, transactional_id: str = "x") -> None:
        self.wire = WireClient(node.port)
        self.id = transactional_id
        self.topic_id = node.shared.metadata.topics_by_name[_STORED].topic_id
        self.pid, self.epoch = -1, -1
        self.sequence = 0

    def patiently(self, request: Any, version: int) -> Any:
        """Ask again while the coordinator is being made, or is busy with the transaction before."""
        deadline = time.monotonic() + _PATIENT_S
        while True:
            answer = self.wire.ask(request, version)
            if answer.error_code not in (14, 15, 16, 51) or time.monotonic() > deadline:
                return answer

    def init(self) -> None:
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.id])
        deadline = time.monotonic() + _PATIENT_S
        while self.wire.ask(find, 6).coordinators[0].error_code and time.monotonic() < deadline:
            pass
        request = InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=60_000)
        answer = self.patiently(request, 5)
        assert answer.error_code == 0
        self.pid, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0

    def produce(
        self,
        *values: str,
        version: int = 12,
        partition: int = 0,
        sequence: int | None = None,
        transactional_id: str | None = "",
    ) -> int:
        """The error code."""
        batch = build_batch(
            [Record(value=value.encode()) for value in values],
            producer_id=self.pid,
            producer_epoch=self.epoch,
            base_sequence=self.sequence if sequence is None else sequence,
            is_transactional=True,
        )
        one = ProduceRequest.Topic.Partition(index=partition, records=batch)
        topic = ProduceRequest.Topic(name=_STORED, topic_id=self.topic_id, partition_data=[one])
        request = ProduceRequest(
            transactional_id=self.id if transactional_id == "" else transactional_id,
            acks=-1,
            timeout_ms=5000,
            topic_data=[topic],
        )
        answer = self.wire.ask(request, version)
        code = int(answer.responses[0].partition_responses[0].error_code)
        if not code and sequence is None:
            self.sequence += len(values)
        return code

    def add_partitions(self, *partitions: int) -> list[int]:
        """As a client of transaction version 1 does."""
        topic = AddPartitionsToTxnRequest.LegacyTopic(name=_STORED, partitions=list(partitions))
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.pid,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )
        answer = self.wire.ask(request, 3)
        (topic_answer,) = answer.results_by_topic_v3_and_below
        return [p.partition_error_code for p in topic_answer.results_by_partition]

    def end(self, commit: bool, version: int = 5) -> int:
        request = EndTxnRequest(
            transactional_id=self.id,
            producer_id=self.pid,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = self.wire.ask(request, version)
        if not answer.error_code and version >= 5:
            self.pid, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        return int(answer.error_code)

    # -- what others see

    def fetch(self, isolation: int = 1, partition: int = 0) -> Any:
        one = FetchRequest.Topic.Partition(
            partition=partition, fetch_offset=0, partition_max_bytes=1 << 20
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=isolation,
            session_id=0,
            session_epoch=-1,
            topics=[FetchRequest.Topic(topic=_STORED, partitions=[one])],
        )
        return self.wire.ask(request, 12).responses[0].partitions[0]

    def batches(self, partition: int = 0) -> list[tuple[int, int, list[bytes | None]]]:
        """(attributes, epoch, values) of all batches; a marker's value is its key's type."""
        data, at, found = bytes(self.fetch(0, partition).records), 0, []
        while at < len(data):
            header = read_header(data, at)
            rows = [
                bytes([record.key[3]]) if header.is_control and record.key else record.value
                for record in read_records(data, at)
            ]
            found.append((header.attributes, header.producer_epoch, rows))
            at += header.size
        return found

    def end_offset(self, isolation: int, partition: int = 0) -> int:
        one = ListOffsetsRequest.Topic.Partition(partition_index=partition, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[ListOffsetsRequest.Topic(name=_STORED, partitions=[one])],
        )
        return int(self.wire.ask(request, 7).topics[0].partitions[0].offset)

    def await_stable(self, partition: int = 0) -> None:
        """Until every transaction's marker is there."""
        deadline = time.monotonic() + _PATIENT_S
        while self.end_offset(1, partition) < self.end_offset(0, partition):
            assert time.monotonic() < deadline, "a marker did not come"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(
        KafkaConfig(
            {
                "log.dirs": str(tmp_path),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "transaction.state.log.num.partitions": "2",
                "transaction.state.log.replication.factor": "1",
                "transaction.state.log.min.isr": "1",
            }
        )
    )
    try:
        node.start()
        with WireClient(node.port) as wire:
            topic = CreateTopicsRequest.Topic(
                name=_STORED, num_partitions=3, replication_factor=1, assignments=[], configs=[]
            )
            answer = wire.ask(
                CreateTopicsRequest(topics=[topic], timeout_ms=5000, validate_only=False), 5
            )
            assert answer.topics[0].error_code == 0
        yield node
    finally:
        node.shutdown()


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    client = Client(node)
    client.init()
    yield client
    client.wire.close()


def test_a_producer_of_version_2_adds_its_partitions_by_writing(client: Client) -> None:
    """The worked example: each transaction has its epoch, and its marker the next one."""
    first = client.epoch
    assert client.produce("a", "b") == 0
    assert (client.end_offset(1), client.end_offset(0)) == (0, 2)
    assert client.end(commit=True) == 0
    assert client.epoch == first + 1
    assert client.produce("c") == 0  # at once: the broker waits for the marker itself (TX-56)
    assert client.end(commit=False) == 0
    client.await_stable()
    assert client.batches() == [
        (0x10, first, [b"a", b"b"]),
        (0x30, first + 1, [b"\1"]),
        (0x10, first + 1, [b"c"]),
        (0x30, first + 2, [b"\0"]),
    ]
    seen = client.fetch(isolation=1)
    assert [(t.producer_id, t.first_offset) for t in seen.aborted_transactions] == [(client.pid, 3)]
    assert client.fetch(isolation=0).aborted_transactions is None


def test_a_producer_of_version_1_adds_its_partitions_first(client: Client) -> None:
    assert client.add_partitions(0, 1) == [0, 0]
    assert client.produce("a", version=9) == 0
    assert client.produce("b", version=11, sequence=0, partition=1) == 0
    assert client.end(commit=True, version=3) == 0
    client.await_stable()
    client.await_stable(1)
    markers = [client.batches(partition)[1] for partition in (0, 1)]
    assert markers == [(0x30, client.epoch, [b"\1"])] * 2


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (9, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
        (12, ErrorCode.NONE),
        (13, ErrorCode.NONE),
    ],
)
def test_a_partition_that_was_not_added(client: Client, version: int, code: int) -> None:
    """TX-52: a partition that the coordinator does not count in is written to by nobody, or
    counted in."""
    assert client.add_partitions(1) == [0]
    assert client.produce("a", version=version) == code
    assert client.end_offset(0) == (0 if code else 1)
    assert client.end(commit=False) == 0
    client.await_stable()
    assert client.end_offset(0) == (0 if code else 2)  # with its marker


def test_verification_is_switched_off_and_on_while_running(client: Client) -> None:
    def switch(value: str) -> None:
        config = IncrementalAlterConfigsRequest.Resource.Config(
            name="transaction.partition.verification.enable", config_operation=0, value=value
        )
        resource = IncrementalAlterConfigsRequest.Resource(
            resource_type=4, resource_name="", configs=[config]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        assert client.wire.ask(request, 1).responses[0].error_code == 0

    def await_code(code: int, partition: int) -> None:
        deadline = time.monotonic() + _PATIENT_S
        while client.produce("a", version=11, sequence=0, partition=partition) != code:
            assert time.monotonic() < deadline

    assert client.add_partitions(0) == [0]
    assert client.produce("a", version=11, sequence=0, partition=1) == 120
    switch("false")
    await_code(0, 1)
    switch("true")
    await_code(120, 2)


def test_a_batch_that_is_refused_leaves_its_partition_in_the_transaction(client: Client) -> None:
    """TX-57: it gets a marker without data, which no reader notices (TX-61)."""
    assert client.produce("a", sequence=7) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.end(commit=False) == 0
    deadline = time.monotonic() + _PATIENT_S
    while client.end_offset(0) < 1:
        assert time.monotonic() < deadline
    assert client.batches() == [(0x30, client.epoch, [b"\0"])]
    assert client.end_offset(1) == 1
    assert client.fetch(isolation=1).aborted_transactions == []


def test_no_transactional_id_no_transactional_batch(client: Client) -> None:
    """TX-51."""
    code = client.produce("a", transactional_id=None)
    assert code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert client.end_offset(0) == 0


def test_another_transactions_producer_is_refused(node: Node, client: Client) -> None:
    other = Client(node, "y")
    other.init()
    assert client.produce("a", transactional_id="y") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert client.produce("a", transactional_id="z") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    other.wire.close()


def test_a_fenced_producer_writes_nothing_more(node: Node, client: Client) -> None:
    assert client.produce("a") == 0
    newer = Client(node)
    newer.init()
    assert newer.pid == client.pid
    assert client.produce("zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.produce("zombie", partition=1, sequence=0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert newer.produce("b", partition=1) == 0
    assert newer.end(commit=True) == 0
    newer.await_stable(1)
    assert [values for _, _, values in newer.batches(1)] == [[b"b"], [b"\1"]]
    newer.wire.close()


def test_a_repeated_batch_of_a_transaction_is_written_once(client: Client) -> None:
    for _ in range(3):
        assert client.produce("a", sequence=0) == 0
    assert client.end_offset(0) == 1
    assert client.end(commit=True) == 0
    client.await_stable()
    # The transaction is over, the batch is known: no new question, no hanging transaction (P-1).
    client.epoch -= 1
    assert client.produce("a", sequence=0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.end_offset(1) == 2


def test_describe_producers_tells_of_the_open_transaction(client: Client) -> None:
    assert client.produce("a") == 0
    topic = DescribeProducersRequest.Topic(name=_STORED, partition_indexes=[0])
    answer = client.wire.ask(DescribeProducersRequest(topics=[topic]), 0)
    (producer,) = answer.topics[0].partitions[0].active_producers
    assert (producer.producer_id, producer.producer_epoch) == (client.pid, client.epoch)
    assert producer.current_txn_start_offset == 0
