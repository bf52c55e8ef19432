"""One shard of transactions without a runtime: requests, records, markers and time by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from server.coordinator.deadlines import Moment
from server.coordinator.machine import Decision, Reply
from server.coordinator.transaction_markers import TxnMarkers
from server.coordinator.transactions.config import TransactionConfig
from server.coordinator.transactions.producer_ids import NoProducerId
from server.coordinator.transactions.records import (
    TransactionRecord,
    decode_transaction,
    encode_transaction,
)
from server.coordinator.transactions.shard import Outside, TransactionShard
from server.coordinator.transactions.state import (
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from testkit.clock import WALL_MS
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition

ID = "tx"
PID, EPOCH, NEXT_PID = 7, 5, 100
"""Who the id's producer is; the first producer id that is dealt out."""

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TIMEOUT_MS = 60_000

S = TransactionState
E = ErrorCode


def metadata(state: TransactionState, **changes: Any) -> TransactionMetadata:
    """An id in a state, brought there by producer 7 of version 2, at epoch 5; with partition t-0 if
    a transaction is open.
    """
    is_open = state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT)
    return TransactionMetadata(
        producer_id=PID,
        producer_epoch=EPOCH,
        timeout_ms=TIMEOUT_MS,
        state=state,
        partitions=frozenset({T0}) if is_open else frozenset(),
        start_ms=-1 if state is S.EMPTY else WALL_MS - 1_000,
        last_update_ms=WALL_MS - 500,
        previous_producer_id=PID,
        client_version=2,
    )._replace(**changes)


class World:
    """A shard, driven as the runtime does it: append, replay, effects, deadlines."""

    def __init__(self, version: int = 2, **config: Any) -> None:
        self.version = version
        self.config = TransactionConfig(**config)
        self.moment = Moment(1_000, WALL_MS)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.markers: list[tuple[TxnMarkers, Callable[[TransactionShard], Decision[Any]]]] = []
        self.forgotten: list[tuple[int, int]] = []
        self.next_id = NEXT_PID
        self.has_ids = True
        self.is_writable = True
        self.shard = self._new_shard(leader_epoch=3)
        self.shard.on_loaded()

    def _new_shard(self, leader_epoch: int) -> TransactionShard:
        outside = Outside(
            lambda: self.version,
            self._next_producer_id,
            lambda markers, decide: self.markers.append((markers, decide)),
            lambda partition, epoch: self.forgotten.append((partition, epoch)),
        )
        return TransactionShard(self.config, outside, 11, leader_epoch, self.moment)

    def _next_producer_id(self) -> int:
        if not self.has_ids:
            raise NoProducerId
        self.next_id += 1
        return self.next_id - 1

    # -- what is there

    def put(self, state: TransactionState, id_: str = ID, **changes: Any) -> TransactionMetadata:
        """An id in a state, however it came there."""
        found = metadata(state, **changes)
        self._append([TransactionRecord(id_, found, 1)])
        return found

    def forget(self, id_: str) -> None:
        """Its tombstone."""
        self._append([TransactionRecord(id_, None)])

    @property
    def now(self) -> TransactionMetadata:
        return self.shard.transactions[ID]

    def where(self) -> tuple[TransactionState, int, int]:
        """State, producer id and epoch of the id."""
        now = self.now
        return now.state, now.producer_id, now.producer_epoch

    # -- driving

    def ask(self, decide: Callable[[], Decision[Any]]) -> Any:
        """What one request is answered: a code, (producer id, epoch), or what else it is."""
        try:
            result = self._carry_out(self._decide(decide))
        except KafkaError as error:
            return error.code
        if isinstance(result, KafkaError):
            return result.code
        if hasattr(result, "producer_id"):
            assert result.error_code == 0
            return result.producer_id, result.producer_epoch
        return result

    def _decide(self, decide: Callable[[], Any]) -> Any:
        before = dict(self.shard.transactions), len(self.shard.deadlines)
        try:
            return decide()
        finally:
            after = dict(self.shard.transactions), len(self.shard.deadlines)
            assert before == after, "a decision changes nothing"

    def _carry_out(self, decision: Decision[Any]) -> object:
        if decision.records and not self.is_writable:
            raise KafkaError(E.COORDINATOR_NOT_AVAILABLE)
        if decision.change is not None:
            decision.change()
        self._append(decision.records)
        effects, self.shard.effects[:] = self.shard.effects[:], []
        for effect in effects:
            effect()
        return decision.response

    def _append(self, records: Any) -> None:
        self.log += [encode_transaction(record) for record in records]
        for record in records:
            self.shard.replay(record)

    def advance(self, ms: int) -> None:
        """Let time pass; what is due is done, and what cannot be written comes again."""
        end_ms = self.moment.now_ms + ms
        while True:
            self._run_due()
            wake_ms = self.shard.deadlines.next_wake_ms()
            if wake_ms is None or wake_ms > end_ms:
                break
            self._move(wake_ms)
        self._move(end_ms)

    def _run_due(self) -> None:
        deadlines = self.shard.deadlines
        while (due := deadlines.pop_due(self.moment.now_ms)) is not None:
            key, job = due
            try:
                decision = job()
                if decision is not None:
                    self._carry_out(decision)
            except KafkaError:
                if key not in deadlines:
                    deadlines.set(key, self.moment.now_ms + 500, job)

    def _move(self, now_ms: int) -> None:
        self.moment.wall_ms += now_ms - self.moment.now_ms
        self.moment.now_ms = now_ms

    def written(self) -> TxnMarkers:
        """The oldest markers are in all partitions."""
        markers, decide = self.markers.pop(0)
        self.ask(lambda: decide(self.shard))
        self.advance(0)
        return markers

    def fail_over(self) -> None:
        """The broker is gone; another one loads the log in the next leader epoch."""
        self.markers.clear()
        self.shard = self._new_shard(leader_epoch=4)
        for key, value in self.log:
            record = decode_transaction(key, value)
            assert record is not None
            self.shard.replay(record)
        self.shard.on_loaded()
        for effect in self.shard.effects:
            effect()
        self.shard.effects.clear()

    # -- requests

    def init(self, pid: int = -1, epoch: int = -1, id_: str = ID, timeout_ms: int = 60_000) -> Any:
        given = None if pid == -1 else ProducerIdAndEpoch(pid, epoch)
        return self.ask(lambda: self.shard.init_producer_id(id_, timeout_ms, given))

    def add(
        self, *partitions: TopicPartition, pid: int = PID, epoch: int = EPOCH, version: int = 2
    ) -> Any:
        producer, added = ProducerIdAndEpoch(pid, epoch), frozenset(partitions)
        return self.ask(lambda: self.shard.add_partitions(ID, producer, added, version))

    def verify(self, *partitions: TopicPartition, pid: int = PID, epoch: int = EPOCH) -> Any:
        producer = ProducerIdAndEpoch(pid, epoch)
        try:
            return self.shard.verify_partitions(ID, producer, partitions)
        except KafkaError as error:
            return error.code

    def wait(self, wait_ms: int, id_: str = ID) -> Reply | None:
        """Who waits for the id's transaction to end; None if it is told to go on at once."""

        def reply(_: object) -> None: ...

        decision = self.shard.wait_for_end(id_, wait_ms, reply)
        if decision is None:
            return None
        self.ask(lambda: decision)
        return reply

    def end(self, is_commit: bool, pid: int = PID, epoch: int = EPOCH, version: int = 2) -> Any:
        producer = ProducerIdAndEpoch(pid, epoch)
        return self.ask(lambda: self.shard.end_txn(ID, producer, is_commit, version))
