"""Which steps an id can take, and which it cannot."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.coordinator.transactions.state import (
    NEVER_MS,
    STATES_BY_WIRE_NAME,
    IllegalTransition,
    TransactionMetadata,
    TransactionState,
)
from testkit.clock import WALL_MS
from tests.server.coordinator.transactions.transaction_support import (
    PID,
    T0,
    T1,
    S,
    metadata,
)

STORED = (
    S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT, S.COMPLETE_COMMIT, S.COMPLETE_ABORT,
)  # fmt: skip
SETTLED = {S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT}

Step = Callable[[TransactionMetadata], TransactionMetadata | None]


@pytest.mark.parametrize(
    ("step", "to", "legal_from"),
    [
        (lambda m: m.with_next_epoch(1, None, 9), S.EMPTY, SETTLED),
        (lambda m: m.with_producer_id(8, 1, True, 9), S.EMPTY, SETTLED),
        (lambda m: m.with_partitions([T1], 2, 9), S.ONGOING, {*SETTLED, S.ONGOING}),
        (lambda m: m.prepared(True, 2, -1, 9), S.PREPARE_COMMIT, {S.ONGOING}),
        (lambda m: m.prepared(True, 0, -1, 9), S.PREPARE_COMMIT, {S.ONGOING}),
        (lambda m: m.prepared(False, 2, -1, 9), S.PREPARE_ABORT, {*SETTLED, S.ONGOING}),
        (lambda m: m.prepared(False, 0, -1, 9), S.PREPARE_ABORT, {S.ONGOING}),
        (lambda m: m.fenced(1, -1, 9), S.PREPARE_ABORT, {S.ONGOING}),
        (lambda m: m.completed(9), None, {S.PREPARE_COMMIT, S.PREPARE_ABORT}),
    ],
)
def test_legal_steps(step: Step, to: TransactionState | None, legal_from: object) -> None:
    complete = {S.PREPARE_COMMIT: S.COMPLETE_COMMIT, S.PREPARE_ABORT: S.COMPLETE_ABORT}
    for state in STORED:
        before = metadata(state, previous_producer_id=PID - 1)
        if state in legal_from:  # type: ignore[operator]
            after = step(before)
            assert after is not None
            assert after.state is (complete[state] if to is None else to)
            assert (after.previous_producer_id, after.last_update_ms) == (PID, 9)
        else:
            with pytest.raises(IllegalTransition):
                step(before)


def test_names_on_the_wire_are_kafkas() -> None:
    assert [state.wire_name for state in S] == [
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
        "Dead", "PrepareEpochFence",
    ]  # fmt: skip
    assert list(S) == list(range(8)) == list(STATES_BY_WIRE_NAME.values())


def test_the_start_is_when_the_first_partition_came() -> None:
    for state in SETTLED:
        begun = metadata(state).with_partitions([T0], 2, 70)
        assert begun.start_ms == 70
        assert begun.with_partitions([T1], 2, 90).start_ms == 70
        assert begun.prepared(True, 2, -1, 95).completed(99).start_ms == 70
        assert metadata(state).prepared(False, 2, -1, 95).start_ms == 95, "an abort of nothing"


def test_the_version_stays_what_the_last_producer_spoke() -> None:
    begun = metadata(S.EMPTY, client_version=2).with_partitions([T0], 0, 1)
    assert begun.client_version == 0
    assert begun.prepared(True, 2, -1, 2).completed(3).client_version == 2
    assert begun.fenced(1, -1, 2).client_version == 0
    assert begun.fenced(2, -1, 2).client_version == 2
    after = metadata(S.COMPLETE_COMMIT, client_version=2).with_next_epoch(1, None, 3)
    assert after is not None
    assert after.client_version == 2


def test_timeouts() -> None:
    started = metadata(S.ONGOING, start_ms=100, timeout_ms=50)
    assert not started.is_timed_out(150)
    assert started.is_timed_out(151)
    assert not started._replace(timeout_ms=NEVER_MS).is_timed_out(WALL_MS)
    assert not started._replace(state=S.PREPARE_ABORT).is_timed_out(WALL_MS)
    assert not metadata(S.EMPTY).is_timed_out(WALL_MS)
