"""Verification before the append (TX-51..59): nothing transactional is written unasked."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from replication.partition.requests import AppendRequest, AppendResult
from replication.replicas.purgatory import DelayedOperation
from replication.replicas.transaction_verification import (
    TransactionalProducer,
    TransactionOperation,
    TransactionVerification,
    VerifiedAppend,
)
from storage.log.append_source import FROM_COORDINATOR
from testkit.clock import WALL_MS
from tests.replication.replicas.test_replica_manager import (
    ORDERS,
    ORDERS_0,
    ORDERS_1,
    Answer,
    Broker,
    batch,
    codes,
    led,
    read_from,
    topic,
    values_of,
)
from wire.control_records import ControlRecordType, EndTxnMarker
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition
from wire.records import Record, build_batch, end_txn_marker_batch

ADD, VERIFY, VERIFY_OLD = (
    TransactionOperation.ADD,
    TransactionOperation.VERIFY,
    TransactionOperation.VERIFY_OLD,
)
PID = 7
_Errors = dict[tuple[str, int], int]


def of_transaction(value: bytes, sequence: int = 0, *, epoch: int = 0, pid: int = PID) -> bytes:
    return build_batch(
        [Record(-1, WALL_MS, b"k", value)],
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


class Coordinator:
    """Remembers what it is asked; agrees at once, or when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[TransactionalProducer, set[tuple[str, int]]]] = []
        self.operations: list[TransactionOperation] = []
        self.errors: _Errors = {}
        self.is_slow = False
        self._waiting: list[Callable[[_Errors], None]] = []

    def verify(
        self,
        producer: TransactionalProducer,
        partitions: Collection[tuple[str, int]],
        operation: TransactionOperation,
        on_complete: Callable[[_Errors], None],
    ) -> None:
        self.asked.append((producer, set(partitions)))
        self.operations.append(operation)
        if self.is_slow:
            self._waiting.append(on_complete)
        else:
            on_complete(self.errors)

    def answer(self, errors: _Errors | None = None, *, here: bool = False) -> None:
        """On another thread, as the answers of other brokers come; `here`: on the one that asked,
        which does something else by now."""
        on_complete = self._waiting.pop(0)
        if here:
            on_complete(errors or {})
            return
        thread = threading.Thread(target=on_complete, args=(errors or {},))
        thread.start()
        thread.join()


class Leader:
    """Orders, two partitions, led by a node that verifies."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.coordinator = Coordinator()
        self.is_enabled = True
        self.jobs: list[Callable[[], None]] = []
        self.verification = TransactionVerification(
            broker.manager,
            self.coordinator,
            broker.timer,
            broker.clock.now_ms,
            is_enabled=lambda: self.is_enabled,
            resume=self.jobs.append,
        )
        for log in broker.logs.all_logs():
            log.environment.producers.requires_verification = True

    def produce(
        self,
        *batches: tuple[TopicPartition, bytes],
        operation: TransactionOperation = ADD,
        acks: int = -1,
    ) -> Answer[list[AppendResult]]:
        answer: Answer[list[AppendResult]] = Answer()
        request = AppendRequest(acks, 1000, list(batches), answer)
        self.parked = self.verification.append_records(request, "x", operation)
        return answer

    def end_transaction(
        self, epoch: int = 0, *, commit: bool = False, version: int = 0, pid: int = PID
    ) -> None:
        kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
        marker = end_txn_marker_batch(
            EndTxnMarker(kind, 0), producer_id=pid, producer_epoch=epoch, timestamp=WALL_MS
        )
        answer: Answer[list[AppendResult]] = Answer()
        source = FROM_COORDINATOR._replace(transaction_version=version)
        self.broker.manager.append_records(
            AppendRequest(-1, 1000, [(ORDERS_0, marker)], answer, source=source)
        )
        assert codes(answer) == [0]

    def run_jobs(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()

    def values(self, partition: int = 0) -> list[bytes | None]:
        answer = self.broker.fetch(read_from(0, partition), max_wait_ms=0)
        return [value for value in values_of(answer.value[0]) if value and value[:1] != b"\0"]


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    broker = Broker(tmp_path)
    broker.publish(topic("orders", ORDERS, led(), led()))
    yield Leader(broker)
    broker.manager.shutdown()
    for log in broker.logs.all_logs():
        log.close()


# ---- asking


@pytest.mark.parametrize(
    ("version", "produced", "committed"),
    [
        (3, VERIFY_OLD, VERIFY_OLD),
        (4, VERIFY_OLD, VERIFY),
        (5, VERIFY_OLD, ADD),
        (10, VERIFY_OLD, ADD),
        (11, VERIFY, ADD),
        (12, ADD, ADD),
        (13, ADD, ADD),
    ],
)
def test_what_is_asked_follows_from_the_version(
    version: int, produced: TransactionOperation, committed: TransactionOperation
) -> None:
    assert TransactionOperation.of_produce(version) is produced
    assert TransactionOperation.of_txn_offset_commit(version) is committed


@pytest.mark.parametrize("operation", TransactionOperation)
def test_the_coordinator_is_asked_once_for_each_partition_of_a_transaction(
    leader: Leader, operation: TransactionOperation
) -> None:
    """TX-53: one question before the first batch, none after it, one for all of a request."""
    both = (ORDERS_0, of_transaction(b"a")), (ORDERS_1, of_transaction(b"b"))
    assert codes(leader.produce(*both, operation=operation)) == [0, 0]
    for sequence in (1, 2):
        rows = (ORDERS_0, of_transaction(b"c", sequence))
        assert codes(leader.produce(rows, operation=operation)) == [0]
    producer = TransactionalProducer("x", PID, 0)
    assert leader.coordinator.asked == [(producer, {ORDERS_0, ORDERS_1})]
    assert leader.coordinator.operations == [operation]
    leader.end_transaction()
    assert codes(leader.produce((ORDERS_0, of_transaction(b"d", 3)))) == [0]
    assert leader.coordinator.asked[1:] == [(producer, {ORDERS_0})]


def test_a_transaction_of_an_older_epoch_answers_for_no_newer_one(leader: Leader) -> None:
    leader.produce((ORDERS_0, of_transaction(b"a")))
    leader.coordinator.errors = {ORDERS_0: int(ErrorCode.CONCURRENT_TRANSACTIONS)}
    answer = leader.produce((ORDERS_0, of_transaction(b"b", epoch=1)), operation=VERIFY)
    assert codes(answer) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    plain = leader.broker.produce((ORDERS_0, of_transaction(b"b", epoch=1)))
    assert codes(plain) == [ErrorCode.INVALID_TXN_STATE]
    assert leader.values() == [b"a"]


def test_a_fenced_producer_costs_no_question(leader: Leader) -> None:
    leader.produce((ORDERS_0, of_transaction(b"a", epoch=4)))
    leader.coordinator.asked.clear()
    rows = (ORDERS_0, of_transaction(b"b", 1, epoch=3)), (ORDERS_1, of_transaction(b"c", epoch=3))
    assert codes(leader.produce(*rows)) == [ErrorCode.INVALID_PRODUCER_EPOCH, 0]
    assert [partitions for _, partitions in leader.coordinator.asked] == [{ORDERS_1}]


def test_a_partition_that_is_not_here_is_told_without_a_question(leader: Leader) -> None:
    nowhere = TopicPartition("orders", 9)
    answer = leader.produce((nowhere, of_transaction(b"a")))
    assert codes(answer) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert leader.coordinator.asked == []


def test_several_producers_in_one_request_are_refused(leader: Leader) -> None:
    """TX-51."""
    with pytest.raises(KafkaError) as refused:
        leader.produce((ORDERS_0, of_transaction(b"a")), (ORDERS_1, of_transaction(b"b", epoch=1)))
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert leader.values() == leader.values(1) == []


def test_what_is_no_batch_is_refused_by_the_log_alone(leader: Leader) -> None:
    answer = leader.produce((ORDERS_0, bytes(70)), (ORDERS_1, of_transaction(b"a")))
    refused, appended = answer.value
    assert refused.error_code
    assert appended.error_code == 0


def test_plain_batches_beside_transactional_ones_are_not_asked_about(leader: Leader) -> None:
    answer = leader.produce((ORDERS_0, of_transaction(b"a")), (ORDERS_1, batch(b"b")))
    assert codes(answer) == [0, 0]
    assert [partitions for _, partitions in leader.coordinator.asked] == [{ORDERS_0}]


# ---- waiting


@pytest.mark.parametrize("here", [False, True])
def test_a_produce_that_waits_for_its_coordinator_holds_no_thread(
    leader: Leader, here: bool
) -> None:
    leader.coordinator.is_slow = True
    answer = leader.produce((ORDERS_0, of_transaction(b"a")), (ORDERS_1, of_transaction(b"b")))
    assert answer.is_pending
    assert leader.values() == []
    assert not leader.parked.is_completed
    refused = {ORDERS_1: int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)}
    leader.coordinator.answer(refused, here=here)
    assert answer.is_pending  # whose thread answers must not write records
    leader.run_jobs()
    assert codes(answer) == [0, ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert (leader.values(), leader.values(1)) == ([b"a"], [])
    assert leader.parked.is_completed


def test_answers_stay_in_the_order_of_the_request(leader: Leader) -> None:
    leader.coordinator.errors = {ORDERS_1: int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)}
    answer = leader.produce(
        (ORDERS_1, of_transaction(b"a")),
        (ORDERS_0, of_transaction(b"b")),
        (ORDERS_1, of_transaction(b"c", 1)),
        (ORDERS_0, of_transaction(b"d", 1)),
    )
    assert [result.topic_partition for result in answer.value] == [
        ORDERS_1, ORDERS_0, ORDERS_1, ORDERS_0,
    ]  # fmt: skip
    assert codes(answer) == [49, 0, 49, 0]


def test_a_late_yes_after_a_marker_proves_nothing(leader: Leader) -> None:
    """TX-58: the transaction was aborted while the coordinator's answer travelled."""
    leader.coordinator.is_slow = True
    answer = leader.produce((ORDERS_0, of_transaction(b"a")), operation=VERIFY)
    leader.end_transaction()
    leader.coordinator.answer()
    leader.run_jobs()
    assert codes(answer) == [ErrorCode.INVALID_TXN_STATE]
    assert leader.values() == []


def test_a_marker_that_comes_late_lets_the_next_transaction_begin(leader: Leader) -> None:
    """TX-58: in version 2 the next transaction's epoch is the marker's."""
    leader.produce((ORDERS_0, of_transaction(b"a")))
    leader.coordinator.is_slow = True
    answer = leader.produce((ORDERS_0, of_transaction(b"b", epoch=1)))
    leader.end_transaction(1, commit=True, version=2)
    leader.coordinator.answer()
    leader.run_jobs()
    assert codes(answer) == [0]
    assert leader.values() == [b"a", b"b"]


def test_a_connection_that_ends_while_waiting_appends_nothing(leader: Leader) -> None:
    leader.coordinator.is_slow = True
    answer = leader.produce((ORDERS_0, of_transaction(b"a")))
    assert leader.parked.cancel()
    assert not leader.parked.cancel()
    leader.coordinator.answer()
    leader.run_jobs()
    assert (answer.told, leader.values()) == ([], [])
    leader.coordinator.is_slow = False  # the client's next try
    assert codes(leader.produce((ORDERS_0, of_transaction(b"a")))) == [0]


def test_a_broker_that_stops_answers_who_waits(leader: Leader) -> None:
    leader.coordinator.is_slow = True
    answer = leader.produce((ORDERS_0, of_transaction(b"a")))
    assert leader.parked.force_complete()
    assert codes(answer) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    leader.coordinator.answer()
    leader.run_jobs()
    assert (len(answer.told), leader.values()) == (1, [])


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[Leader]:
    broker = Broker(tmp_path)
    broker.publish(topic("orders", ORDERS, led(isr=(1, 2), replicas=(1, 2))))
    yield Leader(broker)
    broker.manager.shutdown()
    for log in broker.logs.all_logs():
        log.close()


def test_an_append_that_waits_for_followers_is_parked_on(replicated: Leader) -> None:
    answer = replicated.produce((ORDERS_0, of_transaction(b"a")))
    assert answer.is_pending
    assert not replicated.parked.is_completed
    replicated.broker.follower_fetches(0)
    replicated.broker.follower_fetches(1)
    assert codes(answer) == [0]
    assert replicated.parked.is_completed


@pytest.mark.parametrize("is_slow", [False, True])
def test_an_append_that_waits_for_followers_keeps_no_records_alive(
    replicated: Leader, is_slow: bool
) -> None:
    replicated.coordinator.is_slow = is_slow
    records = memoryview(of_transaction(b"a"))
    kept = weakref.ref(records)
    answer = replicated.produce((ORDERS_0, records))  # type: ignore[arg-type]
    del records
    if is_slow:
        gc.collect()
        assert kept() is not None  # it is still to be appended
        replicated.coordinator.answer()
        replicated.run_jobs()
    gc.collect()
    assert kept() is None
    assert answer.is_pending


@pytest.mark.parametrize("end", [VerifiedAppend.cancel, VerifiedAppend.force_complete])
def test_an_append_that_waits_for_followers_ends_with_its_connection_or_broker(
    replicated: Leader, end: Callable[[VerifiedAppend], bool]
) -> None:
    answer = replicated.produce((ORDERS_0, of_transaction(b"a")))
    assert end(replicated.parked)
    assert replicated.parked.is_completed
    assert replicated.broker.manager.parked.produce.delayed == 0
    told = [ErrorCode.REQUEST_TIMED_OUT] if end is VerifiedAppend.force_complete else []
    assert [code for results in answer.told for code in (r.error_code for r in results)] == told


def test_a_connection_that_ends_in_the_middle_of_the_append_waits_for_nobody(
    replicated: Leader,
) -> None:
    append = replicated.verification.append

    def append_and_lose_the_connection(request: AppendRequest) -> DelayedOperation | None:
        operation = append(request)
        replicated.parked.cancel()
        return operation

    replicated.coordinator.is_slow = True
    answer = replicated.produce((ORDERS_0, of_transaction(b"a")))
    replicated.verification.append = append_and_lose_the_connection
    replicated.coordinator.answer()
    replicated.run_jobs()
    assert replicated.broker.manager.parked.produce.delayed == 0
    replicated.broker.pass_time(2000)
    assert answer.told == []


# ---- errors


@pytest.mark.parametrize(
    ("operation", "code", "told"),
    [
        *((op, ErrorCode.NETWORK_EXCEPTION, 19) for op in TransactionOperation),
        *((op, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 19) for op in TransactionOperation),
        *((op, ErrorCode.COORDINATOR_NOT_AVAILABLE, 19) for op in TransactionOperation),
        *((op, ErrorCode.NOT_COORDINATOR, 19) for op in TransactionOperation),
        *((op, ErrorCode.INVALID_TXN_STATE, 48) for op in TransactionOperation),
        *((op, ErrorCode.INVALID_PRODUCER_EPOCH, 47) for op in TransactionOperation),
        (VERIFY_OLD, ErrorCode.CONCURRENT_TRANSACTIONS, 19),
        (VERIFY, ErrorCode.CONCURRENT_TRANSACTIONS, 19),
        (VERIFY, ErrorCode.TRANSACTION_ABORTABLE, 120),
    ],
)
def test_what_a_producer_is_told_it_understands(
    leader: Leader, operation: TransactionOperation, code: int, told: int
) -> None:
    """TX-55."""
    leader.coordinator.errors = {ORDERS_0: int(code)}
    answer = leader.produce((ORDERS_0, of_transaction(b"a")), operation=operation)
    assert codes(answer) == [told]
    assert leader.values() == []
    assert answer.value[0].base_offset == -1


@pytest.mark.parametrize("operation", [VERIFY_OLD, VERIFY, ADD])
@pytest.mark.parametrize("why", ["coordinator", "leader"])
def test_what_follows_a_batch_that_could_not_be_verified_is_refused_too(
    leader: Leader, operation: TransactionOperation, why: str
) -> None:
    """Out of sequence, or taken with the first one never to come: its transaction were aborted."""
    zeroth, first, second = [(ORDERS_0, of_transaction(b"%d" % i, i)) for i in (0, 1, 2)]
    if why == "leader":
        assert codes(leader.produce(zeroth, operation=operation)) == [0]
        leader.broker.publish(topic("orders", ORDERS, led(1, leader=2), led(1)))
        assert codes(leader.produce(first, operation=operation)) == [6]
        leader.broker.publish(topic("orders", ORDERS, led(2), led(2)))
        zeroth = None
    else:
        leader.coordinator.errors = {ORDERS_0: int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)}
        assert codes(leader.produce(zeroth, operation=operation)) == [19]
        leader.coordinator.errors = {}
        assert codes(leader.produce(first, operation=operation)) == [19]
    assert codes(leader.produce(second, operation=operation)) == [19]
    for again in (zeroth, first, second):
        assert again is None or codes(leader.produce(again, operation=operation)) == [0]
    assert leader.values() == [b"0", b"1", b"2"]


def test_a_partition_that_its_coordinator_does_not_know_yet_fails_no_other(leader: Leader) -> None:
    """A topic that was made a moment ago, and one that was there, in one request: both are tried
    again."""
    leader.coordinator.errors = {
        ORDERS_0: int(ErrorCode.OPERATION_NOT_ATTEMPTED),
        ORDERS_1: int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    }
    batches = [(ORDERS_0, of_transaction(b"a")), (ORDERS_1, of_transaction(b"b"))]
    assert codes(leader.produce(*batches)) == [19, 3]
    leader.coordinator.errors = {}
    assert codes(leader.produce(*batches)) == [0, 0]


def test_a_transaction_that_is_being_ended_is_waited_for(leader: Leader) -> None:
    """TX-56: the leader asks again, sooner than the client would."""
    leader.coordinator.errors = {ORDERS_0: int(ErrorCode.CONCURRENT_TRANSACTIONS)}
    answer = leader.produce((ORDERS_0, of_transaction(b"a")))
    for _ in range(2):
        leader.broker.pass_time(20)
        leader.run_jobs()
    assert (answer.told, len(leader.coordinator.asked)) == ([], 3)
    leader.coordinator.errors = {}
    leader.broker.pass_time(20)
    leader.run_jobs()
    assert codes(answer) == [0]
    assert leader.values() == [b"a"]


def test_a_transaction_that_is_not_ended_in_time_is_told(leader: Leader) -> None:
    leader.coordinator.errors = {ORDERS_0: int(ErrorCode.CONCURRENT_TRANSACTIONS)}
    answer = leader.produce((ORDERS_0, of_transaction(b"a")))
    for _ in range(5):
        assert answer.is_pending
        leader.broker.pass_time(20)
        leader.run_jobs()
    assert codes(answer) == [ErrorCode.CONCURRENT_TRANSACTIONS]


def test_a_connection_that_ends_in_a_pause_asks_no_more(leader: Leader) -> None:
    leader.coordinator.errors = {ORDERS_0: int(ErrorCode.CONCURRENT_TRANSACTIONS)}
    answer = leader.produce((ORDERS_0, of_transaction(b"a")))
    leader.parked.cancel()
    leader.broker.pass_time(20)
    leader.run_jobs()
    assert (answer.told, len(leader.coordinator.asked)) == ([], 1)


# ---- transaction.partition.verification.enable


@pytest.mark.parametrize(("operation", "questions"), [(VERIFY_OLD, 0), (VERIFY, 0), (ADD, 1)])
def test_verification_can_be_switched_off_and_adding_cannot(
    leader: Leader, operation: TransactionOperation, questions: int
) -> None:
    leader.is_enabled = False
    for log in leader.broker.logs.all_logs():
        log.environment.producers.requires_verification = False
    assert codes(leader.produce((ORDERS_0, of_transaction(b"a")), operation=operation)) == [0]
    assert len(leader.coordinator.asked) == questions
