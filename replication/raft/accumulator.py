"""What the active controller appends, until it is written (Kafka: BatchAccumulator).

What: batches with the offsets they will have, in order; the epoch in which they are taken. Why:
whoever appends goes on at once, and all that waits is written and synced together. How: an append
is encoded before the lock and gets its offsets under it, so nothing can come between the check of
the epoch and the place in the log.
Threads: any; one lock, never held while something else is waited for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from replication.raft.batches import PendingBatch, control_batch, record_batches
from replication.raft.own_events import AppendVoters, LeaderChange
from wire.errors import ErrorCode, KafkaError


class BatchAccumulator:
    """See the module. `epoch` is -1 while nothing is taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._waiting: deque[PendingBatch] = deque()
        self._next_offset = -1
        self._epoch = -1
        self._stopped = False

    def __bool__(self) -> bool:
        """Does anything wait."""
        return bool(self._waiting)

    @property
    def epoch(self) -> int:
        return self._epoch

    def open(self, epoch: int) -> None:
        """This node leads `epoch`, and committed in it: its controller may append."""
        with self._lock:
            self._epoch = epoch

    def stop(self) -> None:
        """Take nothing more; what waits is still written."""
        with self._lock:
            self._stopped = True

    def close(self) -> None:
        """Leadership is lost: what waits unwritten is forgotten."""
        with self._lock:
            self._epoch = -1
            self._waiting.clear()

    def next_offset(self, epoch: int) -> int:
        """The offset the next append of `epoch`'s leader gets. Raises KafkaError NOT_CONTROLLER."""
        with self._lock:
            self._check(epoch)
            return self._next_offset

    def append(
        self, epoch: int, records: Sequence[Any], values: Sequence[bytes], wall_ms: int
    ) -> int:
        """Take records, encoded as `values`; returns the last one's offset. Raises KafkaError
        NOT_CONTROLLER, RECORD_LIST_TOO_LARGE.
        """
        made = record_batches(records, values, epoch, wall_ms)
        with self._lock:
            self._check(epoch)
            self._waiting.extend(batch.behind(self._next_offset) for batch in made)
            self._next_offset += len(values)
            return self._next_offset - 1

    def append_control(
        self, change: LeaderChange | AppendVoters, log_end_offset: int, wall_ms: int
    ) -> None:
        """The first records of our epoch, at the end of the log, or a voter set behind all that
        waits."""
        with self._lock:
            starts_epoch = isinstance(change, LeaderChange)
            offset = log_end_offset if starts_epoch else self._next_offset
            batch = control_batch(change, offset, wall_ms)
            self._waiting.append(batch)
            self._next_offset = batch.committed.last_offset + 1

    def drain(self) -> deque[PendingBatch]:
        """All that waits, which is the caller's now."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        return waiting

    def _check(self, epoch: int) -> None:
        if self._epoch != epoch or self._stopped:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this node is not the active controller")
