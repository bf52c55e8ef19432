"""A disk whose fsync hangs holds up who needs that disk, and nobody else (S-20, N6)."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replication.replicas import timer
from replication.replicas.timer import BackgroundScheduler
from server.node.shared_server import SharedServer
from storage import files
from storage.checkpoint import CLEAN_SHUTDOWN, RECOVERY_POINT_CHECKPOINT, OffsetCheckpoint
from storage.config import LogConfig, SystemClock
from storage.directories.log_manager import LogManager
from storage.log.partition_log import PartitionLog
from testkit.wait import HANGS_S
from tests.storage.log_support import append
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition

WAIT_S = 60
CONFIG = LogConfig(file_delete_delay_ms=0)


class HangingDisk:
    """Syncs of files below a directory wait until the disk answers again."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_hung = threading.Event()
        self.answers = threading.Event()
        for name in ("fsync", "fsync_directory"):
            monkeypatch.setattr(files, name, self._hanging(str(root), getattr(files, name)))

    def _hanging(self, root: str, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            if os.readlink(f"/proc/self/fd/{fd}").startswith(root) and not self.answers.is_set():
                self.has_hung.set()
                self.answers.wait(HANGS_S)
            real(fd)

        return sync


class Node:
    """Storage as a broker runs it: a worker for each directory, reports on their own threads."""

    def __init__(self, *dirs: Path) -> None:
        for path in dirs:
            path.mkdir()
        self.failures: list[Path] = []
        self.is_told = threading.Event()
        clock = SystemClock()
        self.workers = {path: BackgroundScheduler(clock, path.name) for path in dirs}
        self.manager = LogManager(
            {path: b"%16d" % index for index, path in enumerate(dirs)},
            CONFIG,
            clock,
            None,
            self._failed,
            workers=self.workers,
            run_urgently=SharedServer.run_urgently,
        )
        for worker in self.workers.values():
            worker.start()
        self.manager.startup(lambda topic: CONFIG)
        self.manager.start_background()

    def _failed(self, path: Path, error: OSError) -> None:
        self.failures.append(path)
        self.is_told.set()

    def log(self, topic: str, directory: Path) -> PartitionLog:
        return self.manager.get_or_create(TopicPartition(topic, 0), b"t" * 16, CONFIG, directory)

    def flushes(self, log: PartitionLog) -> bool:
        """Whether who waits for a sync of this log is told that it is done."""
        done = threading.Event()
        self.manager.flush_async(log, lambda error: error or done.set())
        return done.wait(WAIT_S)

    def worker_gets_round(self, directory: Path) -> bool:
        done = threading.Event()
        self.workers[directory].schedule_once("test", 0, done.set)
        return done.wait(WAIT_S)

    def stop(self) -> None:
        self.manager.shutdown()
        for worker in self.workers.values():
            worker.shutdown()


class Hung:
    """Three directories; the first one's disk hangs, its worker and its flusher with it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bad, self.good, self.third = (root / name for name in ("bad", "good", "third"))
        self.node = Node(self.bad, self.good, self.third)
        self.logs = {path: self.node.log(f"in-{path.name}", path) for path in self.node.workers}
        for log in self.logs.values():
            append(log, "a")
        self.disk = HangingDisk(self.bad, monkeypatch)
        self.logs[self.bad].roll()  # its worker is to sync what was sealed
        assert self.disk.has_hung.wait(WAIT_S)
        self.node.manager.flush_async(self.logs[self.bad], lambda error: None)


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hung]:
    hung = Hung(tmp_path, monkeypatch)
    yield hung
    hung.disk.answers.set()
    hung.node.stop()


def test_other_directories_sync_checkpoint_and_delete(hung: Hung) -> None:
    node, log = hung.node, hung.logs[hung.good]
    assert node.flushes(log)
    assert log.flushed_offset == 1
    log.roll()
    assert node.worker_gets_round(hung.good)
    node.manager.delete(log.topic_partition)
    assert node.worker_gets_round(hung.good)
    assert list(hung.good.glob("in-good*")) == []
    other = node.log("other", hung.good)
    append(other, "b")
    assert node.flushes(other)
    node.manager.upkeep.checkpoint_recovery_points(node.manager._dirs[hung.good])
    recorded = OffsetCheckpoint(hung.good / RECOVERY_POINT_CHECKPOINT).read()
    assert recorded == {other.topic_partition: 1}


def test_the_hanging_disk_itself_takes_appends_and_deletions(hung: Hung) -> None:
    """The page cache does, and the names: what waits is what must be on the disk."""
    log = hung.logs[hung.bad]
    assert append(log, "b").first_offset == 1
    hung.node.manager.delete(log.topic_partition)
    assert hung.node.manager.get(log.topic_partition) is None
    assert [path.name.endswith("-delete") for path in hung.bad.glob("in-bad*")] == [True]


@pytest.mark.parametrize("name", ["bad", "third"])
def test_a_failure_is_reported_at_once(
    hung: Hung, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The hanging disk's own, too: its worker would never get to it."""
    failing = hung.bad if name == "bad" else hung.third
    log = hung.logs[failing]

    def pwritev(*_: object) -> int:
        raise OSError(errno.EIO, "the disk failed")

    with monkeypatch.context() as broken:
        broken.setattr(files, "pwritev", pwritev)
        with pytest.raises(KafkaError) as error:
            append(log, "b")
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert hung.node.is_told.wait(WAIT_S)
    assert hung.node.failures == [failing]
    assert hung.node.manager.get(log.topic_partition) is None


def test_a_deletion_waits_for_no_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting ten partitions cost forty syncs under the metadata thread's locks."""
    node = Node(tmp_path / "only")
    logs = [node.log(f"t{number}", tmp_path / "only") for number in range(10)]
    for log in logs:
        append(log, "a")
    syncing: list[str] = []
    for name in ("fsync", "fsync_directory"):
        real = getattr(files, name)

        def sync(fd: int, real: Callable[[int], None] = real) -> None:
            syncing.append(threading.current_thread().name)
            real(fd)

        monkeypatch.setattr(files, name, sync)
    for log in logs:
        node.manager.delete(log.topic_partition)
    assert node.worker_gets_round(tmp_path / "only")
    assert set(syncing) <= {"only"}
    node.stop()


def test_a_stop_does_not_wait_for_ever(hung: Hung, caplog: pytest.LogCaptureFixture) -> None:
    """It waited for the flusher of the disk that hangs; the others are stopped cleanly."""
    hung.node.manager.shutdown(patience_s=0.01)
    assert f"does not answer, its logs stay open log_dir={hung.bad}" in caplog.text
    assert not (hung.bad / CLEAN_SHUTDOWN).exists()


def test_a_worker_that_hangs_is_not_waited_for(
    hung: Hung, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timer, "STOP_WAIT_S", 0.01)
    hung.node.workers[hung.bad].shutdown()
    assert "thread does not end, not waited for name=bad" in caplog.text


def test_a_stray_log_is_set_aside_without_a_sync(hung: Hung) -> None:
    """Metadata's thread does it, and all that it publishes waited for the disk."""
    log = hung.logs[hung.bad]
    hung.node.manager.mark_stray(log.topic_partition)
    assert [path.name.endswith("-stray") for path in hung.bad.glob("in-bad*")] == [True]
