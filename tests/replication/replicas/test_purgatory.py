"""Delayed operations: completed exactly once, by event, deadline or the connection's end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from replication.replicas.purgatory import DelayedOperation, Purgatory
from replication.replicas.timer import Timer
from testkit.clock import ManualClock


class Waits(DelayedOperation):
    """Completes once `condition` holds; counts what happened to it."""

    def __init__(self, condition: Callable[[], bool], delay_ms: int = 1000) -> None:
        super().__init__(delay_ms)
        self.condition = condition
        self.completed = 0
        self.expired = 0

    def try_complete(self) -> bool:
        return self.condition() and self.force_complete()

    def on_complete(self) -> None:
        self.completed += 1

    def on_expiration(self) -> None:
        self.expired += 1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timer(clock: ManualClock) -> Timer:
    return Timer(clock)


@pytest.fixture
def purgatory(timer: Timer) -> Purgatory:
    return Purgatory("Test", timer)


def test_an_operation_that_can_complete_now_is_not_kept(purgatory: Purgatory, timer: Timer) -> None:
    operation = Waits(lambda: True)
    assert purgatory.try_complete_else_watch(operation, ["a", "b"]) is True
    assert operation.completed == 1
    assert purgatory.watched == purgatory.delayed == len(timer) == 0
    assert purgatory.watchers == {}


def test_an_event_completes_the_operation_and_removes_it_from_every_key(
    purgatory: Purgatory, timer: Timer
) -> None:
    ready = False
    operation = Waits(lambda: ready)
    assert purgatory.try_complete_else_watch(operation, ["a", "b", "c"]) is False
    assert purgatory.watched == 3
    assert purgatory.delayed == 1
    assert purgatory.check_and_complete("b") == 0
    ready = True
    assert purgatory.check_and_complete("b") == 1
    assert operation.completed == 1
    assert purgatory.check_and_complete("a") == 0
    assert purgatory.watched == purgatory.delayed == len(timer) == 0


def test_an_event_on_another_key_does_not_look_at_the_operation(purgatory: Purgatory) -> None:
    operation = Waits(lambda: True)
    operation.condition = lambda: False
    purgatory.try_complete_else_watch(operation, ["a"])
    operation.condition = lambda: True
    assert purgatory.check_and_complete("z") == 0
    assert operation.completed == 0


def test_an_operation_that_cannot_be_tried_is_its_callers_to_answer(
    purgatory: Purgatory, timer: Timer
) -> None:
    operation = Waits(lambda: 1 // 0 == 1)
    with pytest.raises(ZeroDivisionError):
        purgatory.try_complete_else_watch(operation, ["a"])
    operation.condition = lambda: True
    assert purgatory.check_and_complete("a") == 0
    assert purgatory.watched == purgatory.delayed == len(timer) == operation.completed == 0


def test_the_deadline_completes_the_operation_and_then_reports_expiry(
    purgatory: Purgatory, timer: Timer, clock: ManualClock
) -> None:
    operation = Waits(lambda: False, delay_ms=50)
    purgatory.try_complete_else_watch(operation, ["a"])
    clock.ms = 49
    timer.run_due()
    assert operation.completed == 0
    clock.ms = 50
    timer.run_due()
    assert (operation.completed, operation.expired) == (1, 1)
    assert purgatory.watched == purgatory.delayed == 0


def test_a_completed_operation_does_not_expire(
    purgatory: Purgatory, timer: Timer, clock: ManualClock
) -> None:
    operation = Waits(lambda: False, delay_ms=50)
    purgatory.try_complete_else_watch(operation, ["a"])
    assert operation.force_complete() is True
    clock.ms = 1000
    timer.run_due()
    assert (operation.completed, operation.expired) == (1, 0)


def test_cancelling_drops_the_operation_without_an_answer(
    purgatory: Purgatory, timer: Timer
) -> None:
    operation = Waits(lambda: False)
    purgatory.try_complete_else_watch(operation, ["a"])
    assert operation.cancel() is True
    assert operation.is_completed
    assert operation.completed == 0
    assert operation.force_complete() is False
    assert purgatory.watched == purgatory.delayed == len(timer) == 0


def test_an_operation_cancelled_before_it_is_watched_is_not_kept(
    purgatory: Purgatory, timer: Timer
) -> None:
    operation = Waits(lambda: False)
    operation.cancel()
    assert purgatory.try_complete_else_watch(operation, ["a"]) is True
    assert purgatory.watched == purgatory.delayed == len(timer) == 0


def test_an_event_between_the_callers_check_and_the_watch_is_not_lost(
    purgatory: Purgatory,
) -> None:
    """The race of KAFKA-6653: the state changes before the operation is on the list."""
    state = {"ready": False}
    operation = Waits(lambda: state["ready"])
    state["ready"] = True
    assert purgatory.check_and_complete("a") == 0  # the event comes too early to find it
    assert purgatory.try_complete_else_watch(operation, ["a"]) is True
    assert operation.completed == 1


def test_one_failing_operation_does_not_keep_the_others_waiting(
    purgatory: Purgatory, caplog: pytest.LogCaptureFixture
) -> None:
    ready = False
    broken = Waits(lambda: ready and bool(1 // 0))
    fine = Waits(lambda: ready)
    for operation in (broken, fine):
        purgatory.try_complete_else_watch(operation, ["a"])
    ready = True
    with caplog.at_level(logging.ERROR):
        assert purgatory.check_and_complete("a") == 1
    assert fine.completed == 1
    assert "completing a delayed operation failed" in caplog.text


def test_no_lock_is_held_while_an_operation_completes(purgatory: Purgatory) -> None:
    """A completion may use the same purgatory: a produced record wakes a fetch that parks again."""
    ready = False
    parked_again: list[Waits] = []

    class ParksAgain(Waits):
        def on_complete(self) -> None:
            follow_up = Waits(lambda: False)
            purgatory.try_complete_else_watch(follow_up, ["a"])
            purgatory.check_and_complete("a")
            parked_again.append(follow_up)

    purgatory.try_complete_else_watch(ParksAgain(lambda: ready), ["a"])
    ready = True
    assert purgatory.check_and_complete("a") == 1
    assert len(parked_again) == 1
    assert purgatory.delayed == 1


def test_an_operation_without_keys_has_a_deadline_and_is_counted_while_it_waits(
    purgatory: Purgatory, timer: Timer, clock: ManualClock
) -> None:
    tried, waiting = Waits(lambda: True), Waits(lambda: False)
    assert purgatory.park(tried)
    assert not purgatory.park(waiting)
    assert (tried.completed, purgatory.delayed, len(timer)) == (1, 1, 1)
    clock.ms = 1_100
    timer.run_due()
    assert (waiting.completed, waiting.expired, purgatory.delayed) == (1, 1, 0)


def test_shutdown_cancels_everything(purgatory: Purgatory, timer: Timer) -> None:
    operations = [Waits(lambda: False) for _ in range(5)]
    for index, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, ["a", index])
    purgatory.shutdown()
    assert [operation.completed for operation in operations] == [0] * 5
    assert purgatory.watched == purgatory.delayed == len(timer) == 0


def test_shutdown_cancels_what_has_no_keys_and_what_comes_too_late(
    purgatory: Purgatory, timer: Timer
) -> None:
    """A follower's fetch in a session has no keys, and requests may still be under way."""
    parked, late, late_without_keys = (Waits(lambda: False) for _ in range(3))
    purgatory.park(parked)
    purgatory.shutdown()
    assert parked.is_completed
    assert purgatory.try_complete_else_watch(late, ["a"])
    assert purgatory.park(late_without_keys)
    assert [one.completed for one in (parked, late, late_without_keys)] == [0, 0, 0]
    assert purgatory.watched == purgatory.delayed == len(timer) == 0


def test_ten_thousand_long_polls_dropped_at_once_leave_nothing(
    purgatory: Purgatory, timer: Timer
) -> None:
    operations = [Waits(lambda: False, delay_ms=500) for _ in range(10_000)]
    for index, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, [("topic", index % 50), ("topic", 99)])
    assert purgatory.delayed == 10_000
    for operation in operations:
        operation.cancel()
    assert purgatory.watched == purgatory.delayed == len(timer) == 0
    assert purgatory.watchers == {}


def test_many_threads_complete_each_operation_exactly_once(  # noqa: C901
    purgatory: Purgatory, timer: Timer
) -> None:
    """Watching, events, expiry and cancelling race; every operation ends once, none is left."""
    rounds, threads = 300, 4
    state = [False] * rounds
    operations = [Waits(lambda i=i: state[i], delay_ms=0) for i in range(rounds)]
    cancelled = [False] * rounds
    barrier = threading.Barrier(threads)

    def watch() -> None:
        barrier.wait()
        for index, operation in enumerate(operations):
            purgatory.try_complete_else_watch(operation, [index, "all"])

    def fire() -> None:
        barrier.wait()
        for index in range(rounds):
            state[index] = True
            purgatory.check_and_complete(index)

    def drop() -> None:
        barrier.wait()
        for index in range(0, rounds, 7):
            cancelled[index] = operations[index].cancel()

    def expire() -> None:
        barrier.wait()
        for index in range(0, rounds, 5):
            operations[index].expire()

    workers = [threading.Thread(target=target) for target in (watch, fire, drop, expire)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    purgatory.check_and_complete("all")
    for index, operation in enumerate(operations):
        assert operation.completed == (0 if cancelled[index] else 1)
    assert purgatory.watched == purgatory.delayed == len(timer) == 0
