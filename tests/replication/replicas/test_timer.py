"""The timer: nothing early, nothing lost, nothing kept, and nobody woken for nothing."""

from __future__ import annotations

import logging
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.replicas.timer import SLACK_MS_MAX, BackgroundScheduler, Timer, TimerQueue
from storage.config import SystemClock
from testkit.clock import ManualClock
from testkit.wait import HANGS_S


@settings(deadline=None)
@given(delays=st.lists(st.integers(0, 100_000), max_size=60), step=st.integers(1, 40_000))
def test_every_task_runs_once_never_early_and_at_most_the_slack_late(
    delays: list[int], step: int
) -> None:
    queue = TimerQueue()
    ran: list[tuple[int, int]] = []
    now = 0
    for index, delay in enumerate(delays):
        queue.add(0, delay, lambda index=index: ran.append((index, now)))
    previous = 0
    while len(queue):
        for job in queue.due(now):
            job()
        for index, when in ran:
            assert when >= delays[index]
        previous, now = now, now + step
    assert sorted(index for index, _ in ran) == list(range(len(delays)))
    for index, when in ran:
        assert when - delays[index] <= step + min(SLACK_MS_MAX, delays[index] // 64)
    assert previous <= 100_000 + step + SLACK_MS_MAX


def test_tasks_run_in_the_order_of_their_deadlines() -> None:
    queue = TimerQueue()
    ran: list[str] = []
    queue.add(0, 30, lambda: ran.append("late"))
    queue.add(0, 10, lambda: ran.append("early"))
    queue.add(0, 30, lambda: ran.append("late, added later"))
    for job in queue.due(30):
        job()
    assert ran == ["early", "late", "late, added later"]


def test_a_cancelled_task_never_runs_and_reports_who_cancelled_it() -> None:
    queue = TimerQueue()
    ran: list[int] = []
    task = queue.add(0, 5, lambda: ran.append(1))
    assert task.cancel() is True
    assert task.cancel() is False
    assert queue.due(1000) == []
    assert len(queue) == 0
    assert queue.next_deadline() is None


def test_cancelling_after_the_task_was_taken_says_so() -> None:
    queue = TimerQueue()
    task = queue.add(0, 5, lambda: None)
    assert len(queue.due(5)) == 1
    assert task.cancel() is False
    assert len(queue) == 0


def test_ten_thousand_cancelled_long_polls_leave_no_memory_behind() -> None:
    queue = TimerQueue()
    live = [queue.add(0, 500, lambda: None) for _ in range(10)]
    for _ in range(10_000):
        queue.add(0, 500, lambda: None).cancel()
    assert len(queue) == len(live)
    assert queue.heap_size < 200


def test_long_polls_that_start_in_different_milliseconds_share_deadlines() -> None:
    queue = TimerQueue()
    deadlines = {queue.add(start, 500, lambda: None).deadline_ms for start in range(400)}
    assert len(deadlines) <= 101


def test_short_delays_are_exact() -> None:
    queue = TimerQueue()
    assert [queue.add(7, delay, lambda: None).deadline_ms for delay in range(64)] == [
        7 + delay for delay in range(64)
    ]


def test_a_failing_callback_is_logged_and_the_next_one_still_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    timer = Timer(clock)
    ran: list[int] = []
    timer.add(1, lambda: 1 // 0)
    timer.add(2, lambda: ran.append(1))
    clock.ms = 10
    with caplog.at_level(logging.ERROR):
        assert timer.run_due() == 2
    assert ran == [1]
    assert "timer callback failed" in caplog.text


def test_the_thread_runs_an_earlier_task_that_is_added_while_it_sleeps_for_a_later_one() -> None:
    timer = Timer(SystemClock())
    timer.start()
    try:
        late = timer.add(600_000, lambda: None)
        done = threading.Event()
        timer.add(1, done.set)
        assert done.wait(60)
        late.cancel()
        again = threading.Event()
        timer.add(0, again.set)
        assert again.wait(60)
    finally:
        timer.shutdown()
    assert len(timer) == 0


def test_a_deadline_that_never_comes_does_not_end_the_thread() -> None:
    """Kafka's word for never is the largest long: file.delete.delay.ms of a topic may say it."""
    timer = Timer(SystemClock())
    timer.start()
    try:
        timer.add(2**63 - 1, lambda: None)
        for _ in range(2):
            done = threading.Event()
            timer.add(1, done.set)
            assert done.wait(20)
    finally:
        timer.shutdown()


def test_adding_a_later_deadline_does_not_wake_the_thread() -> None:
    """A wake-up per parked fetch would cost more than the fetch."""
    timer = Timer(SystemClock())
    timer.start()
    try:
        ran = threading.Event()
        timer.add(1, ran.set)
        assert ran.wait(60)
        timer.add(60_000, lambda: None)
        while timer._sleeps_until is None or timer._sleeps_until == 1 << 62:
            pass  # until the reaper sleeps for the 60 s deadline
        notified: list[int] = []
        original = timer._wakeup.notify
        timer._wakeup.notify = lambda n=1: notified.append(n) or original(n)  # type: ignore[assignment]
        for _ in range(100):
            timer.add(120_000, lambda: None).cancel()
        assert notified == []
        timer.add(30_000, lambda: None)
        assert notified == [1]
    finally:
        timer.shutdown()


def test_scheduler_repeats_a_periodic_job_after_each_run_until_it_is_cancelled() -> None:
    clock = ManualClock()
    scheduler = BackgroundScheduler(clock)
    runs: list[int] = []
    handle = scheduler.schedule("retention", 1000, lambda: runs.append(clock.ms), delay_ms=10)
    clock.ms = 9
    assert scheduler.run_due() == 0
    for clock.ms in (10, 500, 1030, 2100):
        scheduler.run_due()
    assert runs == [10, 1030, 2100]
    handle.cancel()
    clock.ms = 10_000
    assert scheduler.run_due() == 0


def test_scheduler_logs_a_job_that_raises_and_runs_it_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    scheduler = BackgroundScheduler(clock)
    attempts: list[int] = []

    def job() -> None:
        attempts.append(clock.ms)
        raise OSError("disk says no")

    scheduler.schedule("checkpoint", 50, job)
    with caplog.at_level(logging.ERROR):
        for clock.ms in (50, 100, 150):
            scheduler.run_due()
    assert attempts == [50, 100, 150]
    assert "background job failed job=checkpoint" in caplog.text


def test_a_job_that_cancels_itself_stops() -> None:
    clock = ManualClock()
    scheduler = BackgroundScheduler(clock)
    runs: list[int] = []

    def job() -> None:
        runs.append(1)
        handle.cancel()

    handle = scheduler.schedule("once is enough", 10, job)
    for clock.ms in (10, 20, 30):
        scheduler.run_due()
    assert runs == [1]


def test_shutdown_waits_for_the_job_under_way_and_drops_the_others() -> None:
    scheduler = BackgroundScheduler(SystemClock())
    started, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def job() -> None:
        started.set()
        may_end.wait(HANGS_S)
        ended.set()

    scheduler.schedule_once("slow", 0, job)
    dropped = threading.Event()
    scheduler.schedule_once("never", 60_000, dropped.set)
    scheduler.start()
    assert started.wait(60)
    threading.Timer(0, may_end.set).start()
    scheduler.shutdown()
    assert ended.is_set()
    assert not dropped.is_set()
