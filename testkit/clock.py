"""Time for tests: it stands still until a test moves it.

`ManualClock` is a clock of the product's kind (a monotonic one for waiting, the wall's for records)
and, called, a function that tells monotonic milliseconds. `ManualTimer` is the same, and runs what
was put off, each job at its moment. `SkippingClock` is for what has threads that really wait: the
machine's clock, and what a test added to it.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable

WALL_MS = 1_700_000_000_000
"""The wall's time where the monotonic one is 0."""


class ManualClock:
    """Time stands still until a test sets `ms`."""

    def __init__(self, ms: int = 0) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return WALL_MS + self.ms

    __call__ = now_ms


class Job:
    """What a timer holds until its moment."""

    def __init__(self, fn: Callable[[], object]) -> None:
        self.fn = fn
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualTimer(ManualClock):
    """A clock, and the jobs that wait for it; of two for one moment the older is first."""

    def __init__(self, ms: int = 0) -> None:
        super().__init__(ms)
        self._queue: list[tuple[int, int, Job]] = []
        self._number = itertools.count()

    @property
    def is_idle(self) -> bool:
        """Nothing waits any more."""
        return all(job.is_cancelled for _, _, job in self._queue)

    def add(self, delay_ms: int, fn: Callable[[], object]) -> Job:
        job = Job(fn)
        heapq.heappush(self._queue, (self.ms + delay_ms, next(self._number), job))
        return job

    def pass_(self, ms: int) -> None:
        """Time goes on by `ms`, and what falls due meanwhile is done."""
        self.run_until(self.ms + ms)

    def run_until(self, end_ms: int) -> None:
        while self._queue and self._queue[0][0] <= end_ms:
            due_ms, _, job = heapq.heappop(self._queue)
            self.ms = max(self.ms, due_ms)
            if not job.is_cancelled:
                job.fn()
        self.ms = end_ms


class SkippingClock:
    """The machine's clock, and what a test added to it."""

    def __init__(self) -> None:
        self.skipped_ms = 0

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self.skipped_ms

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    __call__ = now_ms
