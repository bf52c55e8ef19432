"""Group commit: one thread syncs logs for everyone who waits for the disk.

An append that must be durable before its answer asks `flush_async` and goes on; the flusher syncs
the log and calls back. Who asks while a sync is running is served by the next one, so the number of
syncs is bounded by the disk and not by the number of waiters.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from storage.log.partition_log import PartitionLog
from wire.errors import KafkaError

logger = logging.getLogger(__name__)

FlushCallback = Callable[[KafkaError | None], object]


class Flusher:
    """Owner of the thread "log-flusher", which starts with the first request.

    Callbacks run on that thread, hold none of its locks and must not wait.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: dict[PartitionLog, list[FlushCallback]] = {}
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def flush_async(self, log: PartitionLog, callback: FlushCallback) -> None:
        """Sync `log` soon, then call back with None, or with the KafkaError that it got.

        After `shutdown` the flush is done by the caller's thread, at once.
        """
        with self._condition:
            if not self._is_stopping:
                self._waiting.setdefault(log, []).append(callback)
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="log-flusher", daemon=True
                    )
                    self._thread.start()
                self._condition.notify()
                return
        _flush(log, [callback])

    def shutdown(self) -> None:
        """Serve who is waiting and end the thread; waits for the disk."""
        with self._condition:
            self._is_stopping = True
            thread = self._thread
            self._condition.notify()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._waiting and not self._is_stopping:
                    self._condition.wait()
                waiting, self._waiting = self._waiting, {}
                if not waiting:
                    return
            for log, callbacks in waiting.items():
                _flush(log, callbacks)


def _flush(log: PartitionLog, callbacks: list[FlushCallback]) -> None:
    error: KafkaError | None = None
    try:
        log.flush()
    except KafkaError as failure:
        error = failure
    for callback in callbacks:
        try:
            callback(error)
        except Exception:
            logger.exception("flush callback failed partition=%s", log.topic_partition)
