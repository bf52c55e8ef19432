"""What a shard does with decisions that are part of a transaction, and with markers."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import pytest

from server.coordinator.deadlines import Moment
from server.coordinator.machine import Batch, Decision, Transaction
from server.coordinator.shard import AppendOutcome, ShardState
from server.coordinator.transaction_markers import TxnMarker
from tests.server.coordinator.group_support import Answer
from tests.server.coordinator.test_runtime import Counter, MemoryLog, World
from wire.errors import ErrorCode as E


class Ledger(Counter):
    """A number, and what open transactions would add to it."""

    def __init__(self, moment: Moment) -> None:
        super().__init__(moment)
        self.pending: defaultdict[int, int] = defaultdict(int)

    def replay_pending(self, record: int, producer_id: int) -> None:
        self.pending[producer_id] += record

    def replay_marker(self, producer_id: int, is_commit: bool) -> None:
        ended = self.pending.pop(producer_id, 0)
        self.value += ended if is_commit else 0


class BatchLog(MemoryLog):
    """A log that knows whose its batches are."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Batch[int]] = []

    def encode(self, records: Sequence[int], wall_ms: int, transaction: object) -> bytes:
        if isinstance(transaction, TxnMarker):
            assert not records
            return repr(((), transaction.producer_id, transaction.is_commit)).encode()
        producer_id = transaction.producer_id if isinstance(transaction, Transaction) else None
        return repr((list(records), producer_id, None)).encode()

    def append(
        self,
        batch: bytes,
        leader_epoch: int,
        transaction: object,
        on_complete: Callable[[AppendOutcome], None],
    ) -> None:
        told = Batch[int](*ast.literal_eval(batch.decode()))
        super().append(repr([0]).encode(), leader_epoch, transaction, on_complete)
        if not self.refuses:
            self.batches.append(told)

    def read(self) -> Iterator[Batch[int]]:
        return iter(list(self.batches))


class Transactions(World):
    def __init__(self) -> None:
        super().__init__()
        self.log: BatchLog = BatchLog()
        self.shard._log = self.log
        self.shard._new_machine = lambda _, moment: Ledger(moment)

    def add_in(self, producer_id: int, number: int) -> Answer:
        decision = Decision([number], "added", transaction=Transaction(producer_id, 0))
        return self.write(decision)

    def end(self, producer_id: int, is_commit: bool = True) -> Answer:
        marker = TxnMarker(producer_id, 1, is_commit, 0, 2)
        return self.write(Decision(response="ended", transaction=marker))

    def write(self, decision: Decision[int]) -> Answer:
        answer = Answer()
        self.shard.write(lambda _: decision, answer)
        return answer

    def look(self) -> Answer:
        answer = Answer()
        self.shard.read(lambda machine: (machine.value, dict(machine.pending)), answer)  # type: ignore[attr-defined]
        return answer


@pytest.fixture
def world() -> World:
    return Transactions().active()


def test_the_machine_hears_of_a_transaction_in_the_order_of_the_log(world: Transactions) -> None:
    assert world.add_in(7, 5).response == "added"
    world.add(1)
    assert world.look().response == (1, {7: 5})
    assert world.end(7).response == "ended"
    assert world.look().response == (6, {})
    assert world.log.batches == [Batch([5], 7), Batch([1]), Batch((), 7, True)]


def test_a_load_hears_the_same(world: Transactions) -> None:
    world.add_in(7, 5)
    world.add_in(8, 10)
    world.add(1)
    world.end(7)
    world.end(9, is_commit=False)
    before = world.look().response
    world.shard.elected(2)
    assert world.shard.state is ShardState.LOADING
    assert world.end(8).error == E.COORDINATOR_LOAD_IN_PROGRESS
    world.run_jobs()
    assert world.look().response == before == (6, {8: 10})
    world.end(8, is_commit=False)
    assert world.look().response == (6, {})


def test_a_marker_is_told_done_once_it_is_committed(world: Transactions) -> None:
    """The sender takes the answer for good: it will not come again."""
    world.log.replicates = True
    added, ended, look = world.add_in(7, 5), world.end(7), world.look()
    assert added.waits
    assert ended.waits
    assert look.waits, "what a read saw is not committed yet"
    world.log.commit()
    assert (added.response, ended.response, look.response) == ("added", "ended", (5, {}))


def test_a_marker_that_may_be_lost_is_not_told_done(world: Transactions) -> None:
    world.log.replicates = True
    ended = world.end(7)
    world.shard.resigned()
    assert ended.error == E.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (E.INVALID_PRODUCER_EPOCH, E.INVALID_PRODUCER_EPOCH),
        (E.TRANSACTION_COORDINATOR_FENCED, E.TRANSACTION_COORDINATOR_FENCED),
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
    ],
)
def test_what_the_log_refuses_changes_nothing(world: Transactions, refused: int, told: int) -> None:
    world.add_in(7, 5)
    world.log.refuses = refused
    assert world.end(7).error == told
    assert world.add_in(7, 6).error == told
    world.log.refuses = 0
    assert world.look().response == (0, {7: 5})


def test_machines_of_no_transactions_take_no_notice_of_them() -> None:
    """Somebody may write a marker into any topic (kafka-transactions abort)."""

    class Plain(Counter):
        pass

    world = Transactions()
    world.shard._new_machine = lambda _, moment: Plain(moment)
    world.active()
    world.add(3)
    world.add_in(7, 5)
    world.end(7)
    assert world.read().response == 3
