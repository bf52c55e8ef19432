"""Group commit: acknowledge only what is fsynced, with one fsync for everyone who waits.

In page-cache mode (Kafka's default) nobody waits and `target` stays 0. Where `flush.messages` asks,
an append raises `target` to its end; until the log is flushed up to there the leader counts its
flushed offset instead of its log end, so neither consumers nor acknowledgements get ahead of the
disk. At most one request per log is with the flusher; what is appended during that fsync shares the
next one.

Lock: `_lock` guards the request in flight; it is a leaf (order: partition, group commit). `target`
is written under the partition's lock and read anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.log.partition_log import PartitionLog

FlushAsync = Callable[["PartitionLog", Callable[..., object]], object]
"""`LogManager.flush_async(log, callback)`: fsync soon on another thread, then call back."""


class GroupCommit:
    """The fsyncs one leader waits for.

    Invariant: while `log.flushed_offset < target`, a request is in flight or about to be made by
    whoever raised the target, unless an fsync failed: one more must not make it look good (S-4).
    """

    __slots__ = ("_flush_async", "_is_requested", "_lock", "target")

    def __init__(self, flush_async: FlushAsync) -> None:
        self.target = 0
        """Below this offset the leader counts only what is flushed."""
        self._flush_async = flush_async
        self._lock = threading.Lock()
        self._is_requested = False

    def counted_end_offset(self, log: PartitionLog) -> int:
        """How much of its own log a leader may count as replicated on itself."""
        flushed_offset = log.flushed_offset
        return flushed_offset if flushed_offset < self.target else log.view.end_offset

    def must_wait(self, log: PartitionLog, next_offset: int) -> bool:
        """Must records below `next_offset` still be flushed before they are acknowledged?"""
        flushed_offset = log.flushed_offset
        return flushed_offset < next_offset and flushed_offset < self.target

    def begin_leadership(self, log: PartitionLog) -> None:
        """Where fsync is asked for, what a crash left unflushed is flushed before it is served."""
        unflushed = log.log_end_offset - log.flushed_offset
        self.target = log.log_end_offset if unflushed >= log.config.flush_messages else 0

    def request(self, log: PartitionLog, on_tried: Callable[[bool], object]) -> None:
        """Have the flusher fsync the log if somebody waits for it; returns at once.

        `on_tried` is called once it was tried, with whether that succeeded, by whoever asked first;
        what waits by then, be it in another log, is to be requested again. It is held only while
        the request is in flight: a partition and its group commit are no cycle.
        """
        with self._lock:
            if self._is_requested or log.is_closed or log.flushed_offset >= self.target:
                return
            self._is_requested = True
        self._flush_async(log, lambda error: self._tried(error, on_tried))

    def _tried(self, error: BaseException | None, on_tried: Callable[[bool], object]) -> None:
        with self._lock:
            self._is_requested = False
        on_tried(error is None)
