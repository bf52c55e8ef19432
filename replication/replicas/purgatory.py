"""Delayed operations: requests that wait for an event, a deadline, or the end of their connection.

A `DelayedOperation` is completed exactly once, by whoever comes first: an event that makes
`try_complete` true, its deadline, or `cancel` when its connection is gone. A `Purgatory` keeps
operations under watch keys, so that an event looks only at operations it may concern.

How it goes (KafkaDelayedOperationPurgatory's protocol, KIP-74 and KAFKA-6653 for the race):

    try_complete_else_watch(op, keys)   add to the watch list of every key, *then* try_complete: an
                                        event before the watch is seen by the try, one after it
                                        finds the operation on a list; then start its deadline
    check_and_complete(key)             try_complete each operation on that list
    force_complete()                    the one winner leaves all lists, stops the deadline, and
                                        runs on_complete

Transitions: created -> watched -> completed | expired (completed, then on_expiration) | cancelled.

Differences from Kafka: a completed operation leaves its watch lists at once instead of in a later
purge, so the lists hold live operations only (N-14); `try_complete` may run on several threads at
the same time, so it must only read, or guard what it writes with a lock of its own.

No lock is held while `try_complete` or `on_complete` runs ("complete holding no lock").

Duties of the caller: call `check_and_complete` *after* the state changed and holding no lock that
an operation's `try_complete` or `on_complete` might take.

Budget: `check_and_complete` with nothing watched under 0.3 µs: one dict lookup, no lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

from replication.replicas.timer import Timer, TimerTask

logger = logging.getLogger(__name__)


class Watcher(Protocol):
    """What is on a watch list: a delayed operation, or somebody who only wants to know."""

    @property
    def is_completed(self) -> bool: ...

    def try_complete_at(self, position: int) -> bool:
        """What the key at `position` stands for has changed; with no lock held."""


class DelayedOperation:
    """One parked request. Subclasses define `try_complete` and `on_complete`.

    `delay_ms` is how long it may wait. `is_completed` turns True once and stays.
    """

    __slots__ = ("_keys", "_once", "_purgatory", "_task", "delay_ms", "is_completed")

    def __init__(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        self.is_completed = False
        # A lock that is acquired once and never released is a compare-and-set.
        self._once = threading.Lock()
        self._task: TimerTask | None = None
        self._purgatory: Purgatory | None = None
        self._keys: tuple[Hashable, ...] = ()

    def try_complete(self) -> bool:
        """Complete if the condition holds, through `force_complete`; True if this call did.

        May run on several threads at once, always with no lock held.
        """
        raise NotImplementedError

    def try_complete_at(self, position: int) -> bool:
        """`try_complete` when only what the key at `position` stands for has changed.

        -1: it stands for several. Override it where looking at everything costs more.
        """
        return self.try_complete()

    def on_complete(self) -> None:
        """Answer the request; runs once, on the thread that completed it, with no lock held."""
        raise NotImplementedError

    def on_expiration(self) -> None:
        """Runs after `on_complete` if the deadline completed the operation."""

    def force_complete(self) -> bool:
        """Complete now unless it was completed before; True if this call did."""
        if not self._finish():
            return False
        self.on_complete()
        return True

    def cancel(self) -> bool:
        """Drop the operation without an answer (its connection ended); True if this call did."""
        return self._finish()

    def expire(self) -> None:
        """The deadline has come: complete, then tell `on_expiration`."""
        if self.force_complete():
            self.on_expiration()

    def _finish(self) -> bool:
        if not self._once.acquire(False):
            return False
        self.is_completed = True
        if self._purgatory is not None:
            self._purgatory.unwatch(self, self._keys)
        if self._task is not None:
            self._task.cancel()
        return True

    def _watched_by(self, purgatory: Purgatory, keys: tuple[Hashable, ...]) -> None:
        self._keys = keys
        self._purgatory = purgatory

    def _set_deadline(self, task: TimerTask) -> None:
        self._task = task
        if self.is_completed:  # completed between the watch and this line
            task.cancel()


class Purgatory:
    """Operations of one kind, by watch key.

    Lock: `_lock` guards the operations and watch lists; nothing else is taken and nothing is called
    under it. `watchers` may be read by hot paths as `if key in purgatory.watchers`.
    """

    __slots__ = ("_is_shut_down", "_lock", "_operations", "_timer", "name", "watchers")

    def __init__(self, name: str, timer: Timer) -> None:
        self.name = name
        self._timer = timer
        self._lock = threading.Lock()
        self.watchers: dict[Hashable, dict[Watcher, int]] = {}
        """By key, the operations and the key's position among theirs (-1: given twice)."""
        self._operations: set[DelayedOperation] = set()
        self._is_shut_down = False

    @property
    def delayed(self) -> int:
        """How many operations wait (Kafka's NumDelayedOperations)."""
        return len(self._operations)

    @property
    def watched(self) -> int:
        """How many entries the watch lists hold (Kafka's PurgatorySize)."""
        with self._lock:
            return sum(map(len, self.watchers.values()))

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable]
    ) -> bool:
        """Watch the operation under `keys`, unless it can be completed now; True if it is complete.

        Its deadline starts here. An operation is given to one purgatory, once, with at least one
        key.
        """
        watch_keys = tuple(keys)
        assert watch_keys, "nothing could ever complete an operation without a watch key"
        return self._watch(operation, watch_keys)

    def park(self, operation: DelayedOperation) -> bool:
        """`try_complete_else_watch` without keys: who parks it sees that it is tried again."""
        return self._watch(operation, ())

    def _watch(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> bool:
        with self._lock:
            is_late = self._is_shut_down
            operation._watched_by(self, keys)
            watchers = self.watchers
            for position, key in enumerate(keys):
                operations = watchers.get(key)
                if operations is None:
                    watchers[key] = {operation: position}
                else:
                    operations[operation] = -1 if operation in operations else position
            self._operations.add(operation)
        if operation.is_completed:  # cancelled by another thread before it was on the lists
            self.unwatch(operation, keys)
        elif is_late:
            operation.cancel()
        else:
            try:
                operation.try_complete()
            except BaseException:
                operation.cancel()  # whoever parks it hears of it, and answers in its place
                raise
            if not operation.is_completed:
                operation._set_deadline(self._timer.add(operation.delay_ms, operation.expire))
        return operation.is_completed

    def check_and_complete(self, key: Hashable) -> int:
        """Try the operations watched under `key`; returns how many this call completed.

        Reading the dict without the lock is safe: the caller changed the state first and released
        that state's lock since, so an operation that is not on the list yet will see the new state.
        """
        if key not in self.watchers:
            return 0
        with self._lock:
            operations = tuple(self.watchers.get(key, {}).items())
        completed = 0
        for operation, position in operations:
            try:
                if not operation.is_completed and operation.try_complete_at(position):
                    completed += 1
            except Exception:
                # One operation's failing callback must not leave the others waiting.
                logger.exception("completing a delayed operation failed purgatory=%s", self.name)
        return completed

    def unwatch(self, operation: DelayedOperation, keys: Sequence[Hashable]) -> None:
        """Take a completed operation off its watch lists; again is harmless."""
        with self._lock:
            self._operations.discard(operation)
            watchers = self.watchers
            for key in keys:
                operations = watchers.get(key)
                if operations is not None and operation in operations:
                    del operations[operation]
                    if not operations:
                        del watchers[key]

    def watch(self, watcher: Watcher, key: Hashable) -> None:
        """Tell it of `key`, as its first one, until `stop_watching`; it has no deadline."""
        with self._lock:
            self.watchers.setdefault(key, {})[watcher] = 0

    def stop_watching(self, watcher: Watcher, key: Hashable) -> None:
        with self._lock:
            watching = self.watchers.get(key)
            if watching is not None:
                watching.pop(watcher, None)
                if not watching:
                    del self.watchers[key]

    def shutdown(self) -> None:
        """Cancel every operation, those that come later too: their connections end."""
        with self._lock:
            self._is_shut_down = True
            operations = tuple(self._operations)
        for operation in operations:
            operation.cancel()
