"""Deadlines of one coordinator shard: sessions, join and sync phases, sweeps (PURE).

Why: every heartbeat moves a deadline, and nearly none of them ever passes. So moving a deadline
must cost one attribute store, and only what really expires may cost something.

How: a keyed set of `Deadline`s beside a heap. A deadline that moves later stays where it is in the
heap; when its old time surfaces, it is pushed again at its new time. One that moves earlier is
pushed at once and the old heap entry is skipped. A cancelled deadline leaves the heap when it
surfaces, or when more than half of the heap is dead.

The owner runs `pop_due` until it returns None, and sleeps until `next_wake_ms`. Time is a parameter
(monotonic milliseconds), so tests own it.

Budget: `Deadline.at_ms = x` to move one later; 1 µs to add or cancel.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from server.coordinator.machine import Decision

_COMPACT_ABOVE = 64
"""Heaps smaller than this are not worth compacting."""

Job = Callable[[], "Decision[Any] | None"]


class Once:
    """A Job that does not come again if what it decides cannot be written: whoever asks next
    decides the same, and is told why it cannot."""

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self) -> Decision[Any] | None:
        return self._job()


class Moment:
    """The time of the event being handled: `now_ms` is monotonic, `wall_ms` is the record clock.

    Set by the owner before it hands an event to a pure state machine.
    """

    __slots__ = ("now_ms", "wall_ms")

    def __init__(self, now_ms: int = 0, wall_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.wall_ms = wall_ms


class Deadline:
    """One deadline. Its owner may store a later `at_ms` at any time; everything else goes through
    `Deadlines`.
    """

    __slots__ = ("at_ms", "fn", "heap_ms")

    def __init__(self, at_ms: int, fn: Job | None) -> None:
        self.at_ms = at_ms
        self.fn = fn
        self.heap_ms = at_ms


class Deadlines:
    """At most one deadline per key. Owned by whoever owns the shard; takes no lock."""

    __slots__ = ("_by_key", "_heap", "_keys", "_sequence")

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Deadline] = {}
        self._heap: list[tuple[int, int, Hashable, Deadline]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._by_key

    def set(self, key: Hashable, at_ms: int, fn: Job) -> Deadline:
        """Run `fn` once `at_ms` has come; replaces what the key had."""
        deadline = self._by_key.get(key)
        if deadline is not None and at_ms >= deadline.heap_ms:
            deadline.at_ms = at_ms
            deadline.fn = fn
            return deadline
        if deadline is not None:
            deadline.fn = None  # its heap entry is dead from now on
        deadline = self._by_key[key] = Deadline(at_ms, fn)
        self._push(key, deadline)
        return deadline

    def cancel(self, key: Hashable) -> None:
        """Forget the key's deadline; unknown keys are fine."""
        deadline = self._by_key.pop(key, None)
        if deadline is None:
            return
        deadline.fn = None
        if len(self._heap) > _COMPACT_ABOVE and len(self._by_key) * 2 < len(self._heap):
            self._heap = [entry for entry in self._heap if entry[3].fn is not None]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        """Forget all of them."""
        for deadline in self._by_key.values():
            deadline.fn = None
        self._by_key.clear()
        self._heap.clear()

    def next_wake_ms(self) -> int | None:
        """When the owner should look again: no deadline passes before it (it may be too early)."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> tuple[Hashable, Job] | None:
        """The earliest key and callback whose time has come, taken out; None if there is none."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            _, _, key, deadline = heapq.heappop(heap)
            fn = deadline.fn
            if fn is None:
                continue
            if deadline.at_ms > now_ms:
                deadline.heap_ms = deadline.at_ms
                self._push(key, deadline)
                continue
            del self._by_key[key]
            deadline.fn = None
            return key, fn
        return None

    def _push(self, key: Hashable, deadline: Deadline) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (deadline.heap_ms, self._sequence, key, deadline))
