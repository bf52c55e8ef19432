"""What waits for partitions of this node, and what lets it go on.

Three purgatories keyed by (topic, partition index): produces that wait for the high watermark or
the disk, fetches that wait for records, DeleteRecords that wait for followers. Beside them the
listeners of coordinators, which wait for a high watermark too, but for ever. Whoever changes a
partition says here what happened, once its locks are released.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from replication.replicas.purgatory import Purgatory

if TYPE_CHECKING:
    from replication.partition.partition import Partition
    from replication.replicas.timer import Timer

logger = logging.getLogger(__name__)

Key = tuple[str, int]


class ParkedRequests:
    """See the module. Lock: `_lock` guards the listeners; nothing is called under it."""

    def __init__(self, timer: Timer) -> None:
        self.produce = Purgatory("Produce", timer)
        self.fetch = Purgatory("Fetch", timer)
        self.delete_records = Purgatory("DeleteRecords", timer)
        self._lock = threading.Lock()
        self._high_watermark_listeners: dict[Key, list[Callable[[], object]]] = {}

    def appended(self, appended: Iterable[tuple[Key, bool]]) -> None:
        """Complete what these appends made possible. `is_advanced`: the HW moved, too."""
        fetches = self.fetch.watchers
        for key, is_advanced in appended:
            if key in fetches:
                self.fetch.check_and_complete(key)
            if is_advanced:
                self.produce.check_and_complete(key)
                self.delete_records.check_and_complete(key)
                if key in self._high_watermark_listeners:
                    self._tell_listeners(key)

    def partition_changed(self, partition: Partition) -> None:
        """Role, epoch, HW or flushed offset changed: look at everything parked on it."""
        key = partition.topic_partition
        self.produce.check_and_complete(key)
        self.fetch.check_and_complete(key)
        self.delete_records.check_and_complete(key)
        if key in self._high_watermark_listeners:
            self._tell_listeners(key)

    def add_high_watermark_listener(self, key: Key, listener: Callable[[], object]) -> None:
        """Call `listener` after the partition's high watermark may have moved.

        With no lock held, on whatever thread moved it; also when nothing came of it. It must take
        note and return.
        """
        with self._lock:
            listeners = self._high_watermark_listeners.get(key, [])
            self._high_watermark_listeners[key] = [*listeners, listener]

    def remove_high_watermark_listener(self, key: Key, listener: Callable[[], object]) -> None:
        """Call it no more; an unknown one is ignored."""
        with self._lock:
            listeners = self._high_watermark_listeners.get(key, [])
            rest = [one for one in listeners if one != listener]
            # In one step: who tells looks without the lock, and the others must not miss it.
            if rest:
                self._high_watermark_listeners[key] = rest
            else:
                self._high_watermark_listeners.pop(key, None)

    def _tell_listeners(self, key: Key) -> None:
        for listener in self._high_watermark_listeners.get(key, ()):
            try:
                listener()
            except Exception:
                logger.exception("high watermark listener failed partition=%s-%s", *key)

    def shutdown(self) -> None:
        """Drop every request, and those that come later too."""
        for purgatory in (self.produce, self.fetch, self.delete_records):
            purgatory.shutdown()
