"""Deadlines: one thread that runs small callbacks when their time has come, and one for slow jobs.

Why: thousands of parked fetches, session timeouts and request timeouts are added and, nearly
always, cancelled before they expire. Adding and cancelling must therefore cost next to nothing and
must not wake anybody; only expiring may cost something.

How: `TimerQueue` (time is a parameter) is a binary heap of deadlines with lazy deletion. Cancelling
marks the task and drops its callback; the entry leaves the heap when it surfaces, or
when more than half of the heap is dead, so memory stays within twice the live tasks (N-14 of the
reliability rules). Kafka's SystemTimer is a hashed wheel for the same reason; in CPython the heap
wins because `heapq` is C.

`Timer` puts the queue behind a lock and a thread called "expiration-reaper" (Kafka's name for it).
Wake-ups are coalesced twice: the reaper is woken by `add` only if the new deadline is earlier than
the one it sleeps for, and deadlines are rounded up by up to 1/64 of the delay (at most 8 ms), so
that many long polls of 500 ms expire in one wake-up. A deadline is never early.

Budget: `add` then `cancel` under 2 µs together (measured by benchmarks/micro/replication.py).

Duties of the caller: callbacks run on the reaper's thread and delay each other. They must not wait
and must not do disk I/O; `BackgroundScheduler` is the thread for that.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable

from storage.config import STOP_WAIT_S, Clock

logger = logging.getLogger(__name__)

SLACK_MS_MAX = 8
"""Most that a deadline is rounded up, in ms; a power of two."""

_COMPACT_ABOVE = 64
"""Heaps smaller than this are not worth compacting."""

_Job = Callable[[], object]


class TimerTask:
    """One pending callback; `cancel` is all its owner may do with it.

    States: pending (`fn` set) -> cancelled or taken for running (`fn` None).
    """

    __slots__ = ("_queue", "deadline_ms", "fn")

    def __init__(self, queue: TimerQueue, deadline_ms: int, fn: _Job) -> None:
        self._queue = queue
        self.deadline_ms = deadline_ms
        self.fn: _Job | None = fn

    def cancel(self) -> bool:
        """Never run it, if it has not been taken already; True if this call prevented the run."""
        return self._queue.cancel(self)


class TimerQueue:
    """Tasks ordered by deadline; time is a parameter, so that tests decide what time it is.

    Lock: `_lock` is held for heap operations only.
    """

    __slots__ = ("_cancelled", "_heap", "_lock", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimerTask]] = []
        self._sequence = 0
        self._cancelled = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many tasks are pending."""
        return len(self._heap) - self._cancelled

    @property
    def heap_size(self) -> int:
        """Entries held, dead ones included; bounded by twice the live ones plus a constant."""
        return len(self._heap)

    def add(self, now_ms: int, delay_ms: int, fn: _Job) -> TimerTask:
        """Queue `fn` for `delay_ms` after `now_ms`, rounded up by at most 1/64 of the delay."""
        deadline_ms = now_ms + delay_ms
        if delay_ms >= 64:
            slack = delay_ms >> 6
            mask = (SLACK_MS_MAX if slack >= SLACK_MS_MAX else 1 << (slack.bit_length() - 1)) - 1
            deadline_ms = (deadline_ms + mask) & ~mask
        task = TimerTask(self, deadline_ms, fn)
        with self._lock:
            self._sequence += 1
            heapq.heappush(self._heap, (deadline_ms, self._sequence, task))
        return task

    def cancel(self, task: TimerTask) -> bool:
        """Forget the task's callback now and its heap entry later."""
        with self._lock:
            if task.fn is None:
                return False
            task.fn = None
            self._cancelled += 1
            if self._cancelled > _COMPACT_ABOVE and self._cancelled * 2 > len(self._heap):
                self._heap = [entry for entry in self._heap if entry[2].fn is not None]
                heapq.heapify(self._heap)
                self._cancelled = 0
        return True

    def due(self, now_ms: int) -> list[_Job]:
        """Take out the callbacks whose deadline has come, earliest first."""
        jobs: list[_Job] = []
        with self._lock:
            self._drop_dead_head()
            while self._heap and self._heap[0][0] <= now_ms:
                task = heapq.heappop(self._heap)[2]
                if task.fn is not None:
                    jobs.append(task.fn)
                    task.fn = None
                self._drop_dead_head()
        return jobs

    def next_deadline(self) -> int | None:
        """The earliest deadline of a pending task, or None."""
        with self._lock:
            self._drop_dead_head()
            return self._heap[0][0] if self._heap else None

    def _drop_dead_head(self) -> None:
        heap = self._heap
        while heap and heap[0][2].fn is None:
            heapq.heappop(heap)
            self._cancelled -= 1


class Timer:
    """Runs callbacks after a delay, on one daemon thread.

    Lock: `_wakeup` guards `_sleeps_until` and `_stopped`. Order: `_wakeup`, then the queue's lock.
    Neither is held while a callback runs.
    """

    def __init__(self, clock: Clock, name: str = "expiration-reaper") -> None:
        self._clock = clock
        self._queue = TimerQueue()
        self._wakeup = threading.Condition(threading.Lock())
        self._sleeps_until: int | None = None  # None: awake, and about to look at the queue
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __len__(self) -> int:
        """How many callbacks are pending."""
        return len(self._queue)

    def start(self) -> None:
        self._thread.start()

    def shutdown(self) -> None:
        """Stop the thread; pending callbacks are dropped, a running one is waited for, unless it
        hangs, as with a disk that does not answer."""
        with self._wakeup:
            self._stopped = True
            self._wakeup.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(STOP_WAIT_S)
            if self._thread.is_alive():
                logger.error("thread does not end, not waited for name=%s", self._thread.name)

    def add(self, delay_ms: int, fn: _Job) -> TimerTask:
        """Run `fn` after `delay_ms` or a little later; returns the handle that cancels it."""
        task = self._queue.add(self._clock.now_ms(), delay_ms, fn)
        # Reading without the lock is safe: the reaper publishes its deadline before it looks at the
        # queue for the last time, so either it sees this task or we see that it sleeps too long.
        sleeps_until = self._sleeps_until
        if sleeps_until is not None and task.deadline_ms < sleeps_until:
            with self._wakeup:
                self._sleeps_until = None
                self._wakeup.notify()
        return task

    def run_due(self) -> int:
        """Run what is due now, on the calling thread; returns how many ran."""
        jobs = self._queue.due(self._clock.now_ms())
        for job in jobs:
            try:
                job()
            except Exception:
                logger.exception("timer callback failed callback=%r", job)
        return len(jobs)

    def _run(self) -> None:
        while not self._stopped:
            if not self.run_due():
                self._sleep()

    def _sleep(self) -> None:
        """Wait for the next deadline, or until `add` brings an earlier one."""
        forever = 1 << 62
        with self._wakeup:
            if self._stopped:
                return
            self._sleeps_until = forever
            deadline_ms = self._queue.next_deadline()
            if deadline_ms is not None:
                self._sleeps_until = deadline_ms
                wait_s = (deadline_ms - self._clock.now_ms()) / 1000
                if wait_s > 0:
                    self._wakeup.wait(min(wait_s, threading.TIMEOUT_MAX))
            else:
                self._wakeup.wait()
            self._sleeps_until = None


class _PeriodicJob:
    """A job that plans its next run when the last one ended, so that runs never pile up."""

    __slots__ = ("_cancelled", "_fn", "_period_ms", "_task", "_timer", "name")

    def __init__(self, timer: Timer, name: str, fn: _Job, period_ms: int | None) -> None:
        self._timer = timer
        self._fn = fn
        self._period_ms = period_ms
        self._task: TimerTask | None = None
        self._cancelled = False
        self.name = name

    def plan(self, delay_ms: int) -> None:
        self._task = self._timer.add(delay_ms, self.run)
        if self._cancelled:  # cancelled while the task was being made
            self._task.cancel()

    def cancel(self) -> None:
        """No run starts after this; one that is under way ends by itself."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def run(self) -> None:
        if self._cancelled:
            return
        try:
            self._fn()
        except Exception:
            logger.exception("background job failed job=%s", self.name)
        if self._period_ms is not None and not self._cancelled:
            self.plan(self._period_ms)


class BackgroundScheduler:
    """storage's `Scheduler`: slow jobs (retention, checkpoints, deletes), one after the other.

    A job that raises is logged and, if periodic, runs again after its period.
    """

    def __init__(self, clock: Clock, name: str = "background-scheduler") -> None:
        self._timer = Timer(clock, name)

    def start(self) -> None:
        self._timer.start()

    def shutdown(self) -> None:
        """Wait for the job under way, unless it hangs; drop the others."""
        self._timer.shutdown()

    def schedule_once(self, name: str, delay_ms: int, fn: _Job) -> _PeriodicJob:
        """Run `fn` once, after `delay_ms`."""
        return self._plan(name, fn, None, delay_ms)

    def schedule(
        self, name: str, period_ms: int, fn: _Job, delay_ms: int | None = None
    ) -> _PeriodicJob:
        """Run `fn` every `period_ms` (counted from the end of a run), first after `delay_ms`."""
        return self._plan(name, fn, period_ms, period_ms if delay_ms is None else delay_ms)

    def run_due(self) -> int:
        """Run what is due on the calling thread (for callers that own no thread, such as tests)."""
        return self._timer.run_due()

    def _plan(self, name: str, fn: _Job, period_ms: int | None, delay_ms: int) -> _PeriodicJob:
        job = _PeriodicJob(self._timer, name, fn, period_ms)
        job.plan(delay_ms)
        return job
