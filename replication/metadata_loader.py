"""Turns committed batches into images and tells those who act on them (Kafka: MetadataLoader).

What: listens to the quorum, replays what is committed into the next `MetadataImage`, calls the
publishers in order, then tells who waits for it how far the node has come. It also sees when the
log has grown enough for a snapshot (Kafka: SnapshotGenerator). Why: creating logs and applying
configs takes time; the quorum's thread must not wait for it. How: one thread takes all batches
that wait, replays them as one delta and publishes once. Before `start` batches are replayed at
once and nothing is published; `start` publishes the whole image. A record that contradicts the
image means that our state cannot be trusted: `on_fatal`. A publisher that raises is logged, and
the others go on: one topic's bad directory must not stop the rest.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from replication.metadata import (
    EMPTY_IMAGE,
    MetadataDelta,
    MetadataImage,
    TransactionBuffer,
    image_records,
)
from replication.raft.driver import CommittedBatch, RaftDriver
from replication.raft.snapshots import SnapshotId
from storage.config import Clock

logger = logging.getLogger(__name__)

MetadataPublisher = Callable[[MetadataDelta, MetadataImage], None]


@dataclass(frozen=True, slots=True)
class SnapshotConfig:
    """When to write a snapshot, by Kafka's names and defaults."""

    max_record_bytes_between_snapshots: int = 20 * 1024 * 1024
    max_snapshot_interval_ms: int = 3_600_000


class MetadataLoader:
    """Owner of the node's current image. Listener of the raft driver."""

    def __init__(
        self,
        driver: RaftDriver,
        clock: Clock,
        *,
        snapshot_config: SnapshotConfig | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.image = EMPTY_IMAGE
        self._driver = driver
        self._clock = clock
        self._snapshot_config = snapshot_config or SnapshotConfig()
        self._on_fatal = on_fatal
        self._publishers: list[MetadataPublisher] = []
        self._on_published: list[Callable[[int], None]] = []
        self._transactions = TransactionBuffer()
        self._first_delta: MetadataDelta | None = MetadataDelta(EMPTY_IMAGE)
        self._wake = threading.Condition()
        # Guarded by _wake:
        self._waiting: list[CommittedBatch] = []
        self._is_busy = False
        self._stopping = False
        self._failed = False
        # Owned by whoever replays:
        self._bytes_since_snapshot = 0
        self._snapshot_ms = clock.now_ms()
        self._snapshot_thread: threading.Thread | None = None
        self._thread: threading.Thread | None = None

    # --- for the broker -------------------------------------------------------------------------

    def start(self, publishers: Sequence[MetadataPublisher]) -> None:
        """Publish the whole image, then each change. After the driver's start."""
        self._publishers = list(publishers)
        delta, self._first_delta = self._first_delta, None
        assert delta is not None, "started twice"
        self._publish(delta, self.image)
        self._thread = threading.Thread(target=self._run, name="metadata-loader", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Stop after the publication that is under way. Idempotent."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._snapshot_thread is not None:
            self._snapshot_thread.join()

    def when_published(self, callback: Callable[[int], None]) -> None:
        """Call `callback(offset)` after each publication, from the loader's thread."""
        self._on_published.append(callback)

    def caught_up_image(self) -> MetadataImage | None:
        """The image with everything committed until now; waits for the loader's thread.

        None when the loader ended meanwhile.
        """
        with self._wake:
            while self._thread is not None and (self._waiting or self._is_busy):
                if self._stopping or self._failed:
                    return None
                self._wake.wait()
        return self.image

    @property
    def in_transaction(self) -> bool:
        """Does the committed log end inside a metadata transaction."""
        return self._transactions.in_transaction

    # --- listener of the driver -----------------------------------------------------------------

    def handle_snapshot(
        self, snapshot_id: SnapshotId, timestamp: int, records: Sequence[Any]
    ) -> None:
        delta = self._first_delta
        assert delta is not None, "a snapshot is loaded before the start"
        delta.replay_all(records)
        self.image = delta.apply(snapshot_id.offset - 1, snapshot_id.epoch, timestamp)

    def handle_commit(self, batches: Sequence[CommittedBatch]) -> None:
        if not batches:
            return
        if self._first_delta is not None:
            self._replay(self._first_delta, batches)
            return
        with self._wake:
            self._waiting.extend(batches)
            self._wake.notify_all()

    def handle_leader_change(self, leader_id: int, epoch: int) -> None:
        """Images do not depend on who leads."""

    # --- replaying and publishing ---------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._wake:
                self._is_busy = False
                self._wake.notify_all()
                while not self._waiting and not self._stopping:
                    self._wake.wait()
                if self._stopping:
                    return
                batches, self._waiting = self._waiting, []
                self._is_busy = True
            try:
                delta = MetadataDelta(self.image)
                self._replay(delta, batches)
            except Exception as error:
                self._fail(error)
                return
            self._publish(delta, self.image)
            self._maybe_write_snapshot()

    def _replay(self, delta: MetadataDelta, batches: Sequence[CommittedBatch]) -> None:
        for batch in batches:
            delta.replay_all(self._transactions.filter(batch.records))
            self._bytes_since_snapshot += batch.size
        last = batches[-1]
        self.image = delta.apply(last.last_offset, last.epoch, last.timestamp)

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for publisher in self._publishers:
            try:
                publisher(delta, image)
            except Exception:
                logger.exception("publishing metadata failed offset=%s", image.offset)
        for callback in self._on_published:
            callback(image.offset)

    def _fail(self, error: BaseException) -> None:
        logger.critical("metadata cannot be replayed error=%s", error, exc_info=True)
        with self._wake:
            self._failed = True
            self._wake.notify_all()
        if self._on_fatal is not None:
            self._on_fatal(error)

    # --- snapshots ------------------------------------------------------------------------------

    def _maybe_write_snapshot(self) -> None:
        config = self._snapshot_config
        due = (
            self._bytes_since_snapshot >= config.max_record_bytes_between_snapshots
            or self._clock.now_ms() - self._snapshot_ms >= config.max_snapshot_interval_ms
        )
        running = self._snapshot_thread is not None and self._snapshot_thread.is_alive()
        if not due or running or self.in_transaction:
            return
        self._bytes_since_snapshot = 0
        self._snapshot_ms = self._clock.now_ms()
        self._snapshot_thread = threading.Thread(
            target=self.write_snapshot, args=(self.image,), name="metadata-snapshot", daemon=True
        )
        self._snapshot_thread.start()

    def write_snapshot(self, image: MetadataImage) -> None:
        """Write a snapshot of `image` on the calling thread; a failure is logged, the log stays."""
        snapshot_id = SnapshotId(image.offset + 1, image.epoch)
        try:
            self._driver.write_snapshot(snapshot_id, image.timestamp, image_records(image))
            logger.info("wrote snapshot offset=%s epoch=%s", snapshot_id.offset, snapshot_id.epoch)
        except OSError as error:
            logger.error("snapshot failed offset=%s error=%s", snapshot_id.offset, error)
