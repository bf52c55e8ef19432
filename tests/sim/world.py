"""Virtual time, chance and the story of a run: what everything in the simulator shares.

`World` is the true time and the queue of what happens when; equal times keep their order
of entry, and all chance comes from one seeded `Random`, so a seed is a run. `Actor` is what a
thread of the broker is here: it turns when it has work or something is due, a little late, as
threads are; what it does is one bounded piece.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Protocol

from replication.replicas.timer import Timer, TimerTask
from testkit.clock import WALL_MS


class InvariantBroken(AssertionError):
    """The text begins with the invariant's name."""


class Killed(BaseException):
    """The process ends here, in the middle of a file operation. Nobody may catch it."""


class Gone(BaseException):
    """The process of this thread ended while it was not scheduled. Nobody may catch it."""


class World:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.ms = 1_000
        self.events = 0
        self.story: list[str] = []
        self.node = 0
        """Whose code runs now; 0 is nobody's."""
        self.forgetful: set[int] = set()
        """Nodes whose machine ever lost what was not synced: a high watermark that was may have
        outlived the records below it."""
        self.after_event: Callable[[], None] = lambda: None
        self._queue: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0

    def tell(self, text: str) -> None:
        self.story.append(f"{self.ms / 1000:8.3f}  {text}")

    def at(self, ms: int, what: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (max(ms, self.ms), self._count, what))

    def after(self, delay_ms: int, what: Callable[[], object]) -> None:
        self.at(self.ms + delay_ms, what)

    def run_until(self, end_ms: int) -> None:
        queue = self._queue
        while queue and queue[0][0] <= end_ms:
            self.ms, _, what = heapq.heappop(queue)
            what()
            self.events += 1
            self.after_event()
        self.ms = max(self.ms, end_ms)

    def stand_still(self, until: Callable[[], bool], limit_ms: int) -> None:
        """The thread that calls this is not scheduled for a while; everything else goes on."""
        node, end_ms = self.node, self.ms + limit_ms
        while not until() and self.ms < end_ms:
            self.run_until(self.ms + 1)
        self.node = node

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def between(self, low: int, high: int) -> int:
        return self.random.randint(low, high)


class NodeClock:
    """What the clocks of a machine show (`storage.config.Clock`), which may be no other's time.

    The monotonic one began anywhere and runs a little fast or slow, but never back; the wall clock
    is off by `skew_ms`, which may change at any time.
    """

    def __init__(self, world: World, *, disagrees: bool) -> None:
        self.world = world
        self.skew_ms = world.between(-3_000_000, 20_000_000) if disagrees else 0
        self._start_ms = world.between(0, 1_000_000_000) if disagrees else 0
        self._ppm = world.between(-20_000, 20_000) if disagrees else 0

    def now_ms(self) -> int:
        ms = self.world.ms
        return self._start_ms + ms + ms * self._ppm // 1_000_000

    def wall_ms(self) -> int:
        return WALL_MS + self.world.ms + self.skew_ms

    def world_ms(self, now_ms: int) -> int:
        """When it shows this."""
        return -((self._start_ms - now_ms) * 1_000_000 // (1_000_000 + self._ppm))


class Alarms(logging.Handler):
    """What the product logs: errors that must not happen are kept, everything is told if asked."""

    def __init__(self, world: World, *, is_told: bool) -> None:
        super().__init__(logging.INFO if is_told else logging.ERROR)
        self._world = world
        self._is_told = is_told
        self.raised: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_told:
            level = "" if record.levelno < logging.WARNING else record.levelname + " "
            self._world.tell(f"   {self._world.node} {level}{record.getMessage()}")
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, InvariantBroken):
            self.raised.append(str(error))
        elif error is not None and not isinstance(error.__cause__ or error, OSError):
            text = logging.Formatter().formatException(record.exc_info or (None, None, None))
            self.raised.append(f"NoUnexpectedError: {record.getMessage()}\n{text}")
        elif (
            "truncating below the high watermark" in record.msg
            and self._world.node not in self._world.forgetful
        ):
            self.raised.append(f"NoTruncationBelowHW (E-8): {record.getMessage()}")


class Host(Protocol):
    """A node, as its actors see it."""

    world: World
    clock: NodeClock

    def do(self, what: Callable[[], object], incarnation: int) -> None: ...
    def lag_ms(self) -> int: ...


class Actor:
    """A thread of one incarnation of a node. `turn` does what is there to do; `deadline_ms` tells
    when to come again if nobody wakes it, by the node's clock."""

    def __init__(
        self,
        host: Host,
        incarnation: int,
        turn: Callable[[], object],
        deadline_ms: Callable[[], int | None],
    ) -> None:
        self._host = host
        self._incarnation = incarnation
        self._turn = turn
        self._deadline_ms = deadline_ms
        self._planned_ms: int | None = None

    def wake(self) -> None:
        if self._planned_ms is None or self._planned_ms > self._host.world.ms + 1:
            self.plan(self._host.world.ms + self._host.lag_ms())

    def plan(self, at_ms: int) -> None:
        if self._planned_ms is None or at_ms < self._planned_ms:
            self._planned_ms = at_ms
            self._host.world.at(at_ms, partial(self._due, at_ms))

    def _due(self, at_ms: int) -> None:
        if at_ms == self._planned_ms:
            self._host.do(self._run, self._incarnation)

    def _run(self) -> None:
        self._planned_ms = None
        self._turn()
        deadline_ms = self._deadline_ms()
        if deadline_ms is not None:
            at_ms = self._host.clock.world_ms(deadline_ms)
            self.plan(max(at_ms, self._host.world.ms + 1))


class SimTimer(Timer):
    """The broker's timer with an actor for a thread, which may stand still in its work."""

    _is_working = False

    def __init__(self, host: Host, incarnation: int) -> None:
        super().__init__(host.clock)
        self._host = host
        self._actor = Actor(host, incarnation, self._work, self._queue.next_deadline)

    def _work(self) -> None:
        if self._is_working:
            self._actor.plan(self._host.world.ms + 1)
            return
        self._is_working = True
        try:
            while self.run_due():
                pass
        finally:
            self._is_working = False

    def add(self, delay_ms: int, fn: Callable[[], object]) -> TimerTask:
        task = super().add(delay_ms, fn)
        self._actor.plan(self._host.clock.world_ms(task.deadline_ms))
        return task


def describe(message: Any) -> str:
    """A message in a word, for stories."""
    return type(message).__name__.removesuffix("Request")
