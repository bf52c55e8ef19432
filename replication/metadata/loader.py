"""Turns committed batches into images and tells those who act on them (Kafka: MetadataLoader).

What: listens to the quorum, replays what is committed into the next `MetadataImage`, calls the
publishers in order, then tells who waits for it how far the node has come. It also sees when the
log has grown enough for a snapshot (Kafka: SnapshotGenerator). Why: creating logs and applying
configs takes time; the quorum's thread must not wait for it. How: one thread takes all batches
that wait, replays them as one delta and publishes once. Before `start` batches are replayed at
once and nothing is published; `start` publishes the whole image. A snapshot may come at any time,
to a replica that was left too far behind: its image takes the old one's place, and publishers get
what is different. A record that contradicts the
image means that our state cannot be trusted, and who waits for a publication waits for ever when
its callback fails: the process ends (`faults`). A publisher that raises is logged, and
the others go on: one topic's bad directory must not stop the rest. A snapshot that fails is logged
too, the log is still there. A simulator calls `begin` instead of `start`, then `turn` when
`has_work`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from replication.metadata.image import (
    EMPTY_IMAGE,
    METADATA_VERSION,
    MetadataDelta,
    MetadataImage,
    TransactionBuffer,
    delta_between,
    image_records,
)
from replication.metadata.record_serde import MetadataRecordSerde
from replication.raft.driver import CommittedBatch, RaftDriver
from replication.raft.faults import FaultHandler
from replication.raft.snapshots import SnapshotId
from storage.config import Clock

logger = logging.getLogger(__name__)

_LOOK_S = 0.2

MetadataPublisher = Callable[[MetadataDelta, MetadataImage], None]


class _Snapshot(NamedTuple):
    """A whole state, in line with the batches that follow it."""

    id: SnapshotId
    timestamp: int
    records: Sequence[Any]


@dataclass(frozen=True, slots=True)
class SnapshotConfig:
    """When to write a snapshot, by Kafka's names and defaults."""

    max_record_bytes_between_snapshots: int = 20 * 1024 * 1024
    max_snapshot_interval_ms: int = 3_600_000
    """0: none because time passes."""


class MetadataLoader:
    """Owner of the node's current image. Listener of the raft driver."""

    def __init__(
        self,
        driver: RaftDriver,
        clock: Clock,
        *,
        snapshot_config: SnapshotConfig | None = None,
        faults: FaultHandler | None = None,
        run_in_background: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """`run_in_background` writes snapshots; by default on a thread of their own."""
        self.image = EMPTY_IMAGE
        self._driver = driver
        self._clock = clock
        self._snapshot_config = snapshot_config or SnapshotConfig()
        self._faults = faults or FaultHandler()
        self._run_in_background = run_in_background or self._run_on_thread
        self._publishers: list[MetadataPublisher] = []
        self._on_published: list[Callable[[int], None]] = []
        self._transactions = TransactionBuffer()
        self._first_delta: MetadataDelta | None = MetadataDelta(EMPTY_IMAGE)
        self._wake = threading.Condition()
        # Guarded by _wake:
        self._waiting: list[CommittedBatch | _Snapshot] = []
        self._installing: list[tuple[Sequence[MetadataPublisher], threading.Event]] = []
        self._is_busy = False
        self._stopping = False
        self._ended = False
        # Owned by whoever replays:
        self._bytes_since_snapshot = 0
        self._snapshot_ms = clock.now_ms()
        self._snapshot_thread: threading.Thread | None = None
        self._thread: threading.Thread | None = None

    # --- for the broker -------------------------------------------------------------------------

    def wait_until_caught_up(self, timeout_s: float | None = None) -> bool:
        """Before `start`: wait for all that a leader of the quorum had committed. True when here.

        A single voter is caught up as soon as the driver has started.
        """
        return self._driver.wait_until_caught_up(timeout_s)

    def start(self, publishers: Sequence[MetadataPublisher]) -> None:
        """Publish the whole image, then each change. After the driver's start."""
        self.begin(publishers)
        self._thread = self._faults.thread("metadata-loader", self._run)
        self._thread.start()

    def begin(self, publishers: Sequence[MetadataPublisher]) -> None:
        """Publish the whole image; the caller calls `turn` for what follows."""
        self._publishers = list(publishers)
        with self._wake:  # the driver's thread may be replaying
            delta, self._first_delta = self._first_delta, None
        assert delta is not None, "started twice"
        self._publish(delta, self.image)

    def install(self, publishers: Sequence[MetadataPublisher]) -> bool:
        """After `start`: these hear the whole image, then each change, on the loader's thread.

        Returns when they have heard the image; False when the loader ended before.
        """
        done = threading.Event()
        with self._wake:
            self._installing.append((publishers, done))
            self._wake.notify_all()
        while not done.wait(_LOOK_S):
            if self._ended:
                return False
        return True

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
                if self._ended:
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
        snapshot = _Snapshot(snapshot_id, timestamp, records)
        with self._wake:
            if self._first_delta is None:
                self._waiting.append(snapshot)
                self._wake.notify_all()
            else:
                self._first_delta = self._load(snapshot, EMPTY_IMAGE)

    def handle_commit(self, batches: Sequence[CommittedBatch]) -> None:
        if not batches:
            return
        with self._wake:
            if self._first_delta is None:
                self._waiting.extend(batches)
                self._wake.notify_all()
            else:
                self._replay(self._first_delta, batches)

    def handle_leader_change(self, leader_id: int, epoch: int) -> None:
        """Images do not depend on who leads."""

    # --- replaying and publishing ---------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self.turn()
        finally:
            with self._wake:
                self._ended = True
                self._wake.notify_all()

    def _wait_for_work(self) -> bool:
        """False when the loader should end."""
        with self._wake:
            self._is_busy = False
            self._wake.notify_all()
            while not self.has_work and not self._stopping:
                self._wake.wait()
            return not self._stopping

    @property
    def has_work(self) -> bool:
        """Is something committed that is not published to everybody."""
        return bool(self._waiting or self._installing)

    def turn(self) -> None:
        """Replay and publish what waits. An error says that the image cannot be trusted."""
        with self._wake:
            waiting, self._waiting = self._waiting, []
            installing, self._installing = self._installing, []
            self._is_busy = True
        for publishers, done in installing:
            self._introduce(publishers)
            done.set()
        if waiting:
            self._publish(self._next_delta(waiting), self.image)
            self._maybe_write_snapshot()

    def _next_delta(self, waiting: Sequence[CommittedBatch | _Snapshot]) -> MetadataDelta:
        """Bring the image up to date; what is different now."""
        before = self.image
        delta = MetadataDelta(before)
        batches: list[CommittedBatch] = []
        snapshots = [item for item in waiting if isinstance(item, _Snapshot)]
        for item in waiting:
            if not isinstance(item, _Snapshot):
                batches.append(item)
            elif item is snapshots[-1]:
                delta = self._load(item, EMPTY_IMAGE)
                batches = []  # older than the snapshot
        if batches:
            self._replay(delta, batches)
        if not snapshots:
            return delta
        return delta_between(before, self.image)

    def _load(self, snapshot: _Snapshot, base: MetadataImage) -> MetadataDelta:
        """Start over from a snapshot."""
        self._transactions = TransactionBuffer()
        delta = MetadataDelta(base)
        delta.replay_all(snapshot.records)
        self.image = delta.apply(snapshot.id.offset - 1, snapshot.id.epoch, snapshot.timestamp)
        return delta

    def _replay(self, delta: MetadataDelta, batches: Sequence[CommittedBatch]) -> None:
        for batch in batches:
            delta.replay_all(self._transactions.filter(batch.records))
            self._bytes_since_snapshot += batch.size
        last = batches[-1]
        self.image = delta.apply(last.last_offset, last.epoch, last.timestamp)

    def _introduce(self, publishers: Sequence[MetadataPublisher]) -> None:
        self._tell(publishers, delta_between(EMPTY_IMAGE, self.image), self.image)
        self._publishers += publishers

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._tell(self._publishers, delta, image)
        for callback in self._on_published:
            callback(image.offset)

    @staticmethod
    def _tell(
        publishers: Sequence[MetadataPublisher], delta: MetadataDelta, image: MetadataImage
    ) -> None:
        for publisher in publishers:
            try:
                publisher(delta, image)
            except Exception:
                logger.exception("publishing metadata failed offset=%s", image.offset)

    # --- snapshots ------------------------------------------------------------------------------

    def _maybe_write_snapshot(self) -> None:
        config, passed_ms = self._snapshot_config, self._clock.now_ms() - self._snapshot_ms
        due = (
            self._bytes_since_snapshot >= config.max_record_bytes_between_snapshots
            or 0 < config.max_snapshot_interval_ms <= passed_ms
        )
        running = self._snapshot_thread is not None and self._snapshot_thread.is_alive()
        if not due or running or self.in_transaction:
            return
        self._bytes_since_snapshot = 0
        self._snapshot_ms = self._clock.now_ms()
        image = self.image
        self._run_in_background(lambda: self.write_snapshot(image))

    def _run_on_thread(self, job: Callable[[], None]) -> None:
        self._snapshot_thread = self._faults.thread("metadata-snapshot", job)
        self._snapshot_thread.start()

    def write_snapshot(self, image: MetadataImage) -> None:
        """Write a snapshot of `image` on the calling thread; a failure is logged, the log stays.

        Encoded for the image's own metadata.version: who fetches the snapshot may be of a release
        that knows no later one, and the appending serde of a node that is no active controller has
        never heard of the cluster's (Kafka: ImageWriterOptions).
        """
        snapshot_id = SnapshotId(image.offset + 1, image.epoch)
        level = image.feature(METADATA_VERSION)
        serde = MetadataRecordSerde(level) if level else None
        try:
            self._driver.write_snapshot(
                snapshot_id, image.timestamp, image_records(image), serde=serde
            )
            logger.info("wrote snapshot offset=%s epoch=%s", snapshot_id.offset, snapshot_id.epoch)
        except OSError as error:
            logger.error("snapshot failed offset=%s error=%s", snapshot_id.offset, error)
        except Exception:
            logger.exception("snapshot failed offset=%s", snapshot_id.offset)
