"""A clock, a state machine and a disk for tests of the quorum's log and driver."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from replication.raft.driver import CommittedBatch, RaftDriver
from replication.raft.log import RaftLog
from replication.raft.snapshots import SnapshotId
from storage import files
from testkit.clock import ManualClock

WAIT_S = 60.0


class TextSerde:
    """Records are strings."""

    def encode(self, record: str) -> bytes:
        return record.encode()

    def decode(self, value: bytes) -> str:
        return value.decode()


class Recorder:
    """A state machine that remembers what it was told."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.batches: list[CommittedBatch] = []
        self.snapshot: list[str] = []
        self.leaders: list[tuple[int, int]] = []

    def handle_snapshot(
        self, snapshot_id: SnapshotId, timestamp: int, records: Sequence[Any]
    ) -> None:
        self.snapshot = list(records)

    def handle_commit(self, batches: Sequence[CommittedBatch]) -> None:
        with self.changed:
            self.batches.extend(batches)
            self.changed.notify_all()

    def handle_leader_change(self, leader_id: int, epoch: int) -> None:
        with self.changed:
            self.leaders.append((leader_id, epoch))
            self.changed.notify_all()

    @property
    def records(self) -> list[str]:
        return self.snapshot + [record for batch in self.batches for record in batch.records]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), f"waited in vain: {self.records}"

    def wait_for_offset(self, offset: int) -> None:
        self.wait_for(lambda: bool(self.batches) and self.batches[-1].last_offset >= offset)


@contextmanager
def running(
    path: Path, clock: ManualClock | None = None, **options: Any
) -> Iterator[tuple[RaftDriver, Recorder]]:
    """A started single voter on `path` and its state machine; shut down at the end."""
    clock = clock or ManualClock(1_000)
    driver = RaftDriver(1, RaftLog.open(path, clock), clock, TextSerde(), **options)
    recorder = Recorder()
    driver.add_listener(recorder)
    driver.start()
    try:
        yield driver, recorder
    finally:
        driver.shutdown()


class Disk:
    """Fails the n-th change of a file, and forgets what was not synced, as a power cut does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.operations = 0
        self.fail_at: int | None = None
        self.error = errno.EIO
        self.syncs = 0
        self._synced: dict[int, int] = {}
        for name in (
            "pwritev",
            "pwrite",
            "ftruncate",
            "replace",
            "unlink",
            "fsync",
            "fsync_directory",
        ):
            monkeypatch.setattr(files, name, self._counted(getattr(files, name), name))

    def _counted(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.operations += 1
            if self.fail_at is not None and self.operations >= self.fail_at:
                raise OSError(self.error, os.strerror(self.error))
            result = call(*arguments)
            if name == "fsync":
                self.syncs += 1
                status = os.fstat(arguments[0])
                self._synced[status.st_ino] = status.st_size
            return result

        return counted

    def lose_unsynced(self, directory: Path) -> None:
        """Cut each log file back to what the last fsync saw."""
        self.fail_at = None
        for path in directory.rglob("*.log"):
            os.truncate(path, self._synced.get(path.stat().st_ino, 0))
