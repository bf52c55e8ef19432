"""Faults of thought about transactions; `tests.sim.mutants` names them and says what they may cost.

Each is one rule of the transactions reference replaced by what one might have written instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from replication.replicas.transaction_verification import TransactionVerification, Verdict
from server.coordinator.group_shard import GroupShard
from server.coordinator.held import HeldAnswers
from server.coordinator.transactions.coordinator import TransactionCoordinator
from server.coordinator.transactions.shard import TransactionShard
from server.coordinator.transactions.state import TransactionMetadata
from server.peers.transaction_markers import TransactionMarkerChannel
from storage.config import ProducerStateConfig
from storage.log import producer_state
from storage.log.producer_state import ProducerStateManager
from storage.segments.transaction_index import TransactionIndex

Broken = AbstractContextManager[Any]


def send_markers_at_once() -> Broken:
    """TX-3b."""
    real = HeldAnswers.hold

    def hold(self: Any, answers: list[Any], effects: list[Any], now_ms: int) -> Any:
        self._run(effects)
        return real(self, answers, [], now_ms)

    return patch.object(HeldAnswers, "hold", hold)


def forget_decisions() -> Broken:
    """TX-73."""

    def on_loaded(self: TransactionShard) -> None:
        if self._ongoing:
            self._watch_timeouts()

    return patch.object(TransactionShard, "on_loaded", on_loaded)


def complete_at_once() -> Broken:
    """The first word of any partition, and even none, is enough."""
    real = TransactionCoordinator._send_markers

    def send(self: Any, markers: Any, decide: Any) -> None:
        real(self, markers, decide)
        self.runtime.write(markers.transactional_id, decide, lambda _: None)

    return patch.object(TransactionCoordinator, "_send_markers", send)


@contextmanager
def verify_nothing() -> Iterator[None]:
    """T-6: what Produce brings is believed."""

    def start(self: Any, _producer: Any, _sequences: Any, _operation: Any, done: Any) -> None:
        done(Verdict({}, {}))

    config = ProducerStateConfig.__init__

    def init(self: Any, *given: Any, **named: Any) -> None:
        config(self, *given, **named)
        object.__setattr__(self, "requires_verification", False)

    with (
        patch.object(TransactionVerification, "start", start),
        patch.object(ProducerStateConfig, "__init__", init),
    ):
        yield


def believe_any_coordinator() -> Broken:
    """T-5: markers of a coordinator that was replaced are written."""
    real = ProducerStateManager._check_marker

    def check(self: Any, entry: Any, header: Any, marker: Any, version: int) -> None:
        real(self, entry, header, marker._replace(coordinator_epoch=1 << 30), version)

    return patch.object(ProducerStateManager, "_check_marker", check)


def forget_unreplicated_ends() -> Broken:
    """V-2: a marker counts as soon as it is written."""

    def complete(self: ProducerStateManager, completed: Any) -> None:
        del self._ongoing[completed.first_offset]

    return patch.object(ProducerStateManager, "complete_txn", complete)


def show_pending_offsets() -> Broken:
    """T-8."""
    return patch.object(
        GroupShard, "replay_pending", lambda self, record, producer_id: self.replay(record)
    )


def drop_offsets_at_commit() -> Broken:
    """T-8."""
    real = GroupShard.replay_marker
    return patch.object(
        GroupShard, "replay_marker", lambda self, producer_id, _: real(self, producer_id, False)
    )


def keep_the_epoch_at_aborts() -> Broken:
    """T-7."""
    real = TransactionMetadata.prepared

    def prepared(self: TransactionMetadata, is_commit: bool, *given: Any) -> Any:
        step = real(self, is_commit, *given)
        return step if is_commit else step._replace(producer_epoch=self.producer_epoch)

    return patch.object(TransactionMetadata, "prepared", prepared)


def index_nothing() -> Broken:
    """TX-62."""
    return patch.object(TransactionIndex, "append", lambda self, txn: None)


def keep_the_guard() -> Broken:
    """T-6: a yes from before the marker lets a batch in behind it. The epoch says no besides, but
    below version 2."""
    real = ProducerStateManager._end_txn

    def end(self: Any, header: Any, *given: Any) -> Any:
        asked = self._verifications.get(header.producer_id)
        completed = real(self, header, *given)
        if asked is not None:
            self._verifications[header.producer_id] = asked
        return completed

    return patch.object(ProducerStateManager, "_end_txn", end)


def end_any_transaction() -> Broken:
    """TX-60: a marker with the epoch of the open transaction ends it, whose ever it is."""
    return patch.object(producer_state, "_EPOCH_FOR_EACH_TRANSACTION", 99)


def give_markers_up() -> Broken:
    """T-5: what was not answered is not sent again."""

    def place_later(self: Any, transaction: Any, partitions: Any) -> None:
        self._written(transaction, partitions)

    return patch.object(TransactionMarkerChannel, "_place_later", place_later)


def never_time_out() -> Broken:
    """T-10."""
    return patch.object(TransactionMetadata, "is_timed_out", lambda self, now_ms: False)


def fence_nobody() -> Broken:
    """T-4: who comes second shares the epoch of who was first."""
    real = TransactionMetadata.with_next_epoch

    def next_epoch(self: TransactionMetadata, *given: Any) -> Any:
        step = real(self, *given)
        return None if step is None else step._replace(producer_epoch=self.producer_epoch)

    return patch.object(TransactionMetadata, "with_next_epoch", next_epoch)


def trust_the_txn_index() -> Broken:
    """S-10: nobody looks at the transaction indexes when a log is opened."""
    return patch.object(TransactionIndex, "sanity_check", lambda self: None)


_CALM: dict[str, Any] = {
    "crash_every_ms": 0, "cut_every_ms": 0, "pause_every_ms": 0, "power_every_ms": 0,
    "rot_every_ms": 0, "late_every_ms": 0,
}  # fmt: skip

TRANSACTION_MUTANTS: dict[str, tuple[Callable[[], Broken], dict[str, Any]]] = {
    "markers are sent before Prepare is committed": (send_markers_at_once, {}),
    "decisions are not sent again after a load": (forget_decisions, {}),
    "a transaction is complete before its markers": (complete_at_once, {}),
    "transactional batches are not verified": (verify_nothing, {}),
    "a marker of a replaced coordinator is written": (
        believe_any_coordinator, {**_CALM, "late_every_ms": 250, "crash_every_ms": 2_000},
    ),
    "a yes from before the marker is good behind it": (keep_the_guard, {}),
    "a late marker ends the next transaction": (end_any_transaction, {}),
    "markers without an answer are given up": (give_markers_up, {}),
    "the LSO passes a marker above the HW": (forget_unreplicated_ends, {}),
    "pending offsets are shown": (show_pending_offsets, {}),
    "offsets are dropped at the commit": (drop_offsets_at_commit, {}),
    "an abort keeps the epoch": (keep_the_epoch_at_aborts, {}),
    "the second producer has the first one's epoch": (fence_nobody, {}),
    "aborted transactions are not indexed": (index_nothing, {}),
    "a broken transaction index is opened": (
        trust_the_txn_index, {**_CALM, "rot_every_ms": 2_500, "segment_bytes": 800},
    ),
    "transactions never time out": (never_time_out, {}),
}  # fmt: skip
"""By the names of `tests.sim.mutants`: what is broken, and options that bring it about."""
