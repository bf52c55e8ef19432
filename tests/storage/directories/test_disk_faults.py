"""A disk that is full, slow to take bytes, broken, or that forgets what was not synced."""

from __future__ import annotations

import errno
import os
import random
import resource
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from storage import files
from storage.config import LogConfig
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.partition_log import PartitionLog
from storage.open_files import FileSlice, OpenFileCache
from storage.recovery import open_log
from testkit.clock import WALL_MS, ManualClock
from tests.storage.log_support import (
    FaultyDisk,
    append,
    batch,
    environment,
    make_log,
    read_from,
    values,
)
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(monkeypatch)


def fails_with_storage_error(log: PartitionLog, *what: str) -> None:
    with pytest.raises(KafkaError) as error:
        append(log, *what)
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR


# --- writes ------------------------------------------------------------------------------------


def test_short_writes_are_finished(tmp_path: Path, disk: FaultyDisk) -> None:
    rng = random.Random(1)
    log = make_log(tmp_path)
    disk.write_short(lambda size: rng.randrange(1, size + 1))
    for number in range(50):
        append(log, f"{number}", "x" * 200)
    disk.repair()
    assert [v for v in values(read_from(log)) if v and len(v) < 3] == [b"%d" % n for n in range(50)]
    assert make_log(tmp_path).log_end_offset == 100


def test_a_write_that_takes_nothing_is_a_full_disk(tmp_path: Path, disk: FaultyDisk) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    disk.write_short(lambda size: 0)
    files_pwrite = files.pwrite
    try:
        files.pwrite = lambda fd, data, position: 0
        fails_with_storage_error(log, "b")
    finally:
        files.pwrite = files_pwrite
    disk.repair()
    assert not log.is_offline
    assert append(log, "b").first_offset == 1


@pytest.mark.parametrize("written", [0, 1, 15, 16, 60, 90])
def test_a_full_disk_fails_the_append_and_nothing_else(
    tmp_path: Path, disk: FaultyDisk, written: int
) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    size = log.size
    real = files.pwrite

    def pwritev(fd: int, buffers: Any, position: int) -> int:
        real(fd, b"".join(buffers)[:written], position)
        raise OSError(errno.ENOSPC, "no space")

    disk._monkeypatch.setattr(files, "pwritev", pwritev)
    for _ in range(3):
        fails_with_storage_error(log, "b")
    assert log.log_end_offset == 1
    assert log.active_segment.path.stat().st_size == log.size == size
    assert values(read_from(log)) == [b"a"]
    assert not log.is_offline
    disk.repair()
    assert append(log, "b").first_offset == 1
    assert values(read_from(make_log(tmp_path))) == [b"a", b"b"]


def test_a_failed_append_does_not_use_up_a_sequence_number(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    log = make_log(tmp_path)
    sent = [
        batch("x", producer_id=5, producer_epoch=0, base_sequence=number) for number in range(2)
    ]
    log.append_as_leader(sent[0], 0, WALL_MS)
    disk.fail("pwritev", errno.ENOSPC)
    with pytest.raises(KafkaError):
        log.append_as_leader(sent[1], 0, WALL_MS)
    info = log.append_as_leader(sent[1], 0, WALL_MS)
    assert (info.duplicate, info.first_offset) == (False, 1)


def test_a_write_error_takes_the_directory_offline(tmp_path: Path, disk: FaultyDisk) -> None:
    failed: list[tuple[Path, OSError]] = []
    env = environment(tmp_path, on_failure=lambda path, error: failed.append((path, error)))
    log = make_log(tmp_path, env=env)
    other = open_log(tmp_path / "other-0", TopicPartition("other", 0), LogConfig(), env)
    append(log, "a")
    disk.fail("pwritev", errno.EIO)
    fails_with_storage_error(log, "b")
    assert log.is_offline
    assert [(path, error.errno) for path, error in failed] == [(tmp_path, errno.EIO)]
    disk.repair()
    fails_with_storage_error(log, "b")
    fails_with_storage_error(other, "b")
    assert len(failed) == 1


def test_a_failed_cut_after_a_failed_write_takes_the_directory_offline(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    disk.fail("pwritev", errno.ENOSPC)
    disk.fail("ftruncate", errno.EIO)
    fails_with_storage_error(log, "b")
    assert log.is_offline
    disk.repair()
    assert make_log(tmp_path).log_end_offset == 1


@pytest.mark.parametrize("at", range(1, 12))
def test_whichever_write_fails_the_log_stays_whole(
    tmp_path: Path, disk: FaultyDisk, at: int
) -> None:
    config = LogConfig(segment_bytes=500, index_interval_bytes=50, segment_index_bytes=10_000)
    log = make_log(tmp_path, config)
    appended: list[bytes] = []
    for name in ("pwritev", "pwrite", "open_file"):
        disk.fail(name, errno.ENOSPC, at=at * 3)
    for number in range(60):
        try:
            append(log, b"%d" % number, "x" * 50)
        except KafkaError as error:
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR  # noqa: PT017
        else:
            appended.append(b"%d" % number)
    disk.repair()
    assert len(appended) < 60
    assert not log.is_offline
    for reader in (log, make_log(tmp_path, config)):
        assert values(read_from(reader))[::2] == appended


# --- fsync -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fsync", "fsync_directory"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_final(tmp_path: Path, disk: FaultyDisk, name: str, error: int) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    disk.fail(name, error)
    with pytest.raises(KafkaError) as failure:
        log.flush()
    assert failure.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.flushed_offset == 0
    # The kernel has forgotten the dirty pages: a second sync would "succeed" (S-4).
    with pytest.raises(KafkaError):
        log.flush()
    assert log.flushed_offset == 0
    fails_with_storage_error(log, "b")


@pytest.mark.parametrize("at", range(1, 51))
def test_whichever_sync_fails_nothing_unsynced_is_called_flushed(
    tmp_path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    config = LogConfig(segment_bytes=400)
    log = make_log(tmp_path, config)
    synced: dict[str, int] = {}
    real = files.fsync
    disk.fail("fsync", errno.EIO, at=at)
    failing = files.fsync

    def fsync(fd: int) -> None:
        failing(fd)
        synced[os.readlink(f"/proc/self/fd/{fd}")] = os.fstat(fd).st_size

    monkeypatch.setattr(files, "fsync", fsync)
    acknowledged = 0
    for number in range(60):
        try:
            append(log, f"{number}", "x" * 30)
            log.flush()
        except KafkaError:
            break
        acknowledged = log.flushed_offset
        assert acknowledged == log.log_end_offset
        for segment in log.segments:
            assert synced.get(str(segment.path), 0) == segment.size
    monkeypatch.setattr(files, "fsync", real)
    assert log.is_offline
    assert log.flushed_offset == acknowledged <= log.log_end_offset


def test_indexes_that_recovery_rebuilt_are_synced_with_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LogConfig(segment_bytes=400)
    log = make_log(tmp_path, config)
    for number in range(10):
        append(log, f"{number}", "x" * 30)
    recovered = make_log(tmp_path, config)
    synced: set[str] = set()
    real = files.fsync

    def fsync(fd: int) -> None:
        real(fd)
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(files, "fsync", fsync)
    recovered.flush()
    assert len(recovered.segments) > 2
    for segment in recovered.segments:
        for path in (segment.path, segment.offset_index.path, segment.time_index.path):
            assert str(path) in synced


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is synced, as it happens."""
    found: list[str] = []

    def note(name: str) -> None:
        real = getattr(files, name)

        def noted(fd: int) -> None:
            real(fd)
            found.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)

        monkeypatch.setattr(files, name, noted)

    note("fsync")
    note("fsync_directory")
    return found


def test_a_flush_syncs_what_is_new_and_nothing_else(tmp_path: Path, synced: list[str]) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    synced.clear()
    log.flush()
    assert synced == [f"{0:020d}.log", "orders-0"]
    log.flush()
    append(log, "b")
    log.flush()
    assert synced == [f"{0:020d}.log", "orders-0", f"{0:020d}.log"]


def test_a_flush_after_a_roll_syncs_the_sealed_segment_whole_and_the_snapshot(
    tmp_path: Path, synced: list[str]
) -> None:
    log = make_log(tmp_path)
    append(log, "a", producer_id=1, producer_epoch=0, base_sequence=0)
    log.flush()
    log.roll()
    synced.clear()
    log.flush()
    first = f"{0:020d}"
    assert set(synced) == {
        f"{first}.log", f"{first}.index", f"{first}.timeindex", f"{1:020d}.snapshot", "orders-0",
    }  # fmt: skip


def test_a_log_that_is_closed_has_the_indexes_of_its_last_segment_on_disk(
    tmp_path: Path, synced: list[str]
) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    log.flush()
    synced.clear()
    log.close()
    assert {f"{0:020d}.index", f"{0:020d}.timeindex"} <= set(synced)


def test_another_name_of_a_log_is_on_disk_with_its_next_flush(
    tmp_path: Path, disk: FaultyDisk, synced: list[str]
) -> None:
    log = make_log(tmp_path)
    log.flush()
    moved = tmp_path / "orders-0.moved"
    log.directory.rename(moved)
    log.change_directory(moved)
    synced.clear()
    log.flush()
    assert synced == [tmp_path.name]
    log.flush()
    assert synced == [tmp_path.name]


@pytest.mark.parametrize("name", ["roll", "rename"])
def test_names_that_a_lack_of_descriptors_left_unsynced_are_synced_by_the_next_flush(
    tmp_path: Path, disk: FaultyDisk, synced: list[str], name: str
) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    log.flush()
    if name == "roll":
        log.roll()
    else:
        log.change_directory(log.directory)
    disk.fail("fsync_directory", errno.EMFILE)
    with pytest.raises(KafkaError):
        log.flush()
    assert not log.is_offline
    synced.clear()
    log.flush()
    assert synced[-1] == ("orders-0" if name == "roll" else tmp_path.name)


def test_snapshots_that_a_lack_of_descriptors_left_unsynced_are_synced_by_the_next_flush(
    tmp_path: Path, disk: FaultyDisk, synced: list[str]
) -> None:
    log = make_log(tmp_path)
    append(log, "a", producer_id=1, producer_epoch=0, base_sequence=0)
    log.roll()
    snapshot = f"{1:020d}.snapshot"
    disk.fail(
        "fsync", errno.EMFILE, only=lambda fd: os.readlink(f"/proc/self/fd/{fd}").endswith(snapshot)
    )
    with pytest.raises(KafkaError):
        log.flush()
    assert not log.is_offline
    synced.clear()
    log.flush()
    assert snapshot in synced


def test_leader_epochs_that_find_no_room_leave_the_directory_online(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    log = make_log(tmp_path)
    disk.fail("replace", errno.ENOSPC, count=9)
    with pytest.raises(KafkaError):
        log.append_as_follower(batch("a", base_offset=0, leader_epoch=5), 5)
    with pytest.raises(KafkaError):
        log.flush()
    assert (log.is_offline, log.flushed_offset) == (False, 0)
    disk.repair()
    log.flush()
    assert (LeaderEpochCache(log.leader_epochs.path).latest_epoch, log.flushed_offset) == (5, 1)


def test_a_file_that_is_gone_from_an_open_log_is_a_failure(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    disk.fail("fsync_directory", errno.ENOENT)
    with pytest.raises(KafkaError):
        log.flush()
    assert log.is_offline
    assert log.flushed_offset == 0


def test_a_flush_in_the_middle_of_a_followers_append_takes_its_epochs_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the flushed offset no batch is read again to find its epoch."""
    log = make_log(tmp_path)
    on_disk: list[int] = []

    def flush() -> None:
        log.flush()
        on_disk.append(LeaderEpochCache(log.leader_epochs.path).latest_epoch)

    monkeypatch.setattr(log, "_sync_epochs", flush)
    log.append_as_follower(batch("a", base_offset=0, leader_epoch=5), 5)
    assert (on_disk, log.flushed_offset) == ([5], 1)


# --- power loss --------------------------------------------------------------------------------


class PowerLoss:
    """Remembers what every file held when it was last synced; `strike` puts that back.

    A file keeps a random part of what was written after its last sync, as a real cache does, in
    whole pages of 512 bytes; a file whose directory entry was never synced may be gone.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path, seed: int) -> None:
        self._root = root
        self._rng = random.Random(seed)
        self._durable: dict[int, bytes] = {}
        self._names: set[Path] = set()
        real_fsync, real_dir = files.fsync, files.fsync_directory

        def fsync(fd: int) -> None:
            real_fsync(fd)
            self._durable[os.fstat(fd).st_ino] = os.pread(fd, os.fstat(fd).st_size, 0)

        def fsync_directory(fd: int) -> None:
            real_dir(fd)
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            self._names = {name for name in self._names if name.parent != path}
            self._names.update(path.iterdir())

        monkeypatch.setattr(files, "fsync", fsync)
        monkeypatch.setattr(files, "fsync_directory", fsync_directory)

    def strike(self) -> None:
        for path in sorted(self._root.rglob("*")):
            if path.is_dir():
                continue
            if path not in self._names and self._rng.random() < 0.5:
                path.unlink()
                continue
            now = path.read_bytes()
            durable = self._durable.get(path.stat().st_ino, b"")
            path.write_bytes(self._mix(durable, now))

    def _mix(self, durable: bytes, now: bytes) -> bytes:
        size = self._rng.choice([len(durable), len(now), self._rng.randint(0, len(now))])
        size = max(size, len(durable)) if len(now) >= len(durable) else size
        mixed = bytearray(size)
        for start in range(0, size, 512):
            source = now if self._rng.random() < 0.5 else durable
            page = source[start : start + 512]
            mixed[start : start + len(page)] = page
        mixed[: len(durable)] = durable[:size]
        return bytes(mixed)


@pytest.mark.parametrize("seed", range(40))
def test_after_a_power_loss_everything_flushed_is_there_and_the_rest_is_a_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    power = PowerLoss(monkeypatch, tmp_path, seed)
    config = LogConfig(segment_bytes=3000, index_interval_bytes=200)
    log = make_log(tmp_path, config)
    written: list[bytes] = []
    for number in range(rng.randrange(20, 150)):
        data = b"%d " % number + rng.randbytes(rng.randrange(200))
        append(log, data, epoch=number // 30)
        written.append(data)
        if rng.random() < 0.1:
            log.flush()
    flushed = log.flushed_offset
    power.strike()
    monkeypatch.undo()
    recovered = make_log(tmp_path, config, recovery_point=flushed)
    found = values(read_from(recovered))
    assert recovered.log_end_offset >= flushed
    assert found == written[: len(found)]
    assert recovered.log_end_offset == len(found)
    assert append(recovered, "next").first_offset == len(found)


# --- descriptors -------------------------------------------------------------------------------


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """A process that may open 64 more files: none below its limit was left free by tests before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    fillers = [os.open(os.devnull, os.O_RDONLY)]
    while fillers[-1] < highest:
        fillers.append(os.open(os.devnull, os.O_RDONLY))
    limit = fillers[-1] + 1 + 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for fd in fillers:
        os.close(fd)


def test_more_logs_than_descriptors_can_be_written_and_read(
    tmp_path: Path, few_descriptors: int
) -> None:
    env = environment(tmp_path, open_files=OpenFileCache(1000))  # a budget that is too large
    logs = [
        open_log(tmp_path / f"t-{number}", TopicPartition("t", number), LogConfig(), env)
        for number in range(200)
    ]
    for round_number in range(3):
        for number, log in enumerate(logs):
            assert append(log, f"{number}").first_offset == round_number
    for number, log in enumerate(logs):
        assert values(read_from(log)) == [b"%d" % number] * 3
    assert not env.is_offline


def test_the_cache_keeps_to_its_budget_and_lets_the_unused_go(tmp_path: Path) -> None:
    cache = OpenFileCache(10)
    env = environment(tmp_path, open_files=cache)
    before = len(os.listdir("/proc/self/fd"))
    logs = [
        open_log(tmp_path / f"t-{number}", TopicPartition("t", number), LogConfig(), env)
        for number in range(60)
    ]
    for number, log in enumerate(logs):
        append(logs[0], "busy")
        append(log, f"{number}")
    assert len(cache) <= 10
    assert len(os.listdir("/proc/self/fd")) - before <= 10
    assert logs[0].active_segment._handle is not None


def test_a_roll_without_a_descriptor_is_tried_again(tmp_path: Path, disk: FaultyDisk) -> None:
    log = make_log(tmp_path, LogConfig(segment_bytes=300))
    append(log, "x" * 150)
    disk.fail("open_file", errno.EMFILE, count=50)
    fails_with_storage_error(log, "y" * 150)
    assert not log.is_offline
    assert [segment.base_offset for segment in log.segments] == [0]
    disk.repair()
    assert append(log, "y" * 150).first_offset == 1
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    assert len(values(read_from(make_log(tmp_path, log.config)))) == 2


@pytest.mark.parametrize("count", range(6, 10))
def test_a_roll_that_fails_leaves_a_segment_that_takes_more_though_its_index_is_full(
    tmp_path: Path, disk: FaultyDisk, count: int
) -> None:
    log = make_log(tmp_path, LogConfig(segment_index_bytes=60, index_interval_bytes=100))
    for number in range(count):
        append(log, "a", timestamp=WALL_MS + number)
    disk.fail("open_file", errno.ENOSPC, only=lambda path, *_: path.suffix == ".log")
    with pytest.raises(KafkaError):
        log.roll()
    for number in range(count, count + 4):
        assert append(log, "a", timestamp=WALL_MS + number).first_offset == number
    assert len(read_from(log)) == count + 4


def test_a_roll_that_fails_leaves_nothing_behind(tmp_path: Path, disk: FaultyDisk) -> None:
    log = make_log(tmp_path, LogConfig(segment_bytes=300))
    sent = [
        batch("x" * 100, producer_id=1, producer_epoch=0, base_sequence=number)
        for number in range(2)
    ]
    log.append_as_leader(sent[0], 0, WALL_MS)
    disk.fail("open_file", errno.ENOSPC, only=lambda path, *_: str(path).endswith(".snapshot"))
    with pytest.raises(KafkaError):
        log.append_as_leader(sent[1], 0, WALL_MS)
    names = [path.name for path in (tmp_path / "orders-0").iterdir()]
    assert [name for name in names if name.startswith("00000000000000000001")] == []
    assert log.append_as_leader(sent[1], 0, WALL_MS).first_offset == 1


def test_a_roll_that_fails_where_nothing_can_be_removed_loses_no_record(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """File systems that copy on write may need space to free some."""
    log = make_log(tmp_path, LogConfig(segment_bytes=300))
    append(log, "x" * 100)
    disk.fail("open_file", errno.ENOSPC, only=lambda path, *_: str(path).endswith(".snapshot"))
    disk.fail("unlink", errno.ENOSPC, count=9)
    fails_with_storage_error(log, "y" * 200)
    assert append(log, "z").first_offset == 1
    disk.repair()
    log.flush()
    log.close()
    reopened = make_log(tmp_path, log.config, had_clean_shutdown=True)
    assert values(read_from(reopened)) == [b"x" * 100, b"z"]
    assert reopened.log_end_offset == 2


# --- readers and deletion ----------------------------------------------------------------------


def test_a_slice_survives_the_deletion_of_its_file(tmp_path: Path) -> None:
    clock = ManualClock()
    config = LogConfig(segment_bytes=300, retention_bytes=0)
    log = make_log(tmp_path, config, env=environment(tmp_path, clock=clock))
    for number in range(8):
        append(log, f"{number}" * 100)
    slices = [log.read(offset, 1 << 20, True, 8).records for offset in range(4)]
    log.update_high_watermark(8)
    assert log.delete_old_segments(clock.wall_ms()) > 3
    # New files reuse the descriptor numbers of closed ones; an open slice must not notice.
    others = [open(tmp_path / str(number), "wb") for number in range(50)]  # noqa: SIM115
    for offset, records in enumerate(slices):
        assert records is not None
        assert b"%d" % offset * 100 in records.read()
        records.close()
        with pytest.raises(ValueError, match="closed"):
            records.read()
    for other in others:
        other.close()


def test_a_slice_longer_than_its_file_is_an_error_not_a_short_answer(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "x" * 100)
    records = log.read(0, 1000, True, 1).records
    assert records is not None
    os.truncate(log.active_segment.path, 50)
    with pytest.raises(OSError, match="shorter"):
        records.read()


def test_a_missing_log_file_takes_the_directory_offline(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "x")
    log.active_segment.close()
    log.active_segment.path.unlink()
    with pytest.raises(KafkaError) as error:
        log.read(0, 1000, True, 1)
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.is_offline


def test_a_broken_batch_chain_is_reported_as_corrupt(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for value in "abc":
        append(log, value)
    with open(log.active_segment.path, "r+b") as file:
        file.seek(8)
        file.write(b"\xff\xff\xff\xff")
    log.active_segment._recent.clear()
    with pytest.raises(KafkaError) as error:
        log.read(1, 1000, True, 3)
    assert error.value.code is ErrorCode.CORRUPT_MESSAGE


# --- while something else goes on ---------------------------------------------------------------


def test_a_flush_that_meets_a_deletion_leaves_the_directory_online(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path, LogConfig(retention_ms=0))
    append(log, "x", timestamp=1)
    log.roll()
    log.update_high_watermark(1)
    sealed = log.segments.items[0]
    sealed.close()  # the flush must open it again
    real = files.open_file

    def open_file(path: Any, *arguments: Any) -> int:
        if str(path) == str(sealed.path) and not sealed.is_deleted:
            monkeypatch.setattr(files, "open_file", real)
            assert log.delete_old_segments(WALL_MS) == 1  # unlinks at once: there is no scheduler
        return real(path, *arguments)

    monkeypatch.setattr(files, "open_file", open_file)
    log.flush()
    assert sealed.is_deleted
    assert not log.is_offline
    assert log.flushed_offset == 1


def test_a_flush_that_meets_the_deletion_of_the_log_leaves_the_directory_online(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path)
    append(log, "x")
    real = files.fsync_directory

    def fsync_directory(fd: int) -> None:
        log.close(is_kept=False)
        log.directory.rename(tmp_path / "gone")
        raise FileNotFoundError(errno.ENOENT, "gone")

    monkeypatch.setattr(files, "fsync_directory", fsync_directory)
    log.flush()
    monkeypatch.setattr(files, "fsync_directory", real)
    assert not log.is_offline
    assert log.flushed_offset == 0
    log.flush()  # a closed log has nothing to flush
    fails_with_storage_error(log, "late")
    assert not log.is_offline


def test_what_was_cut_off_and_written_again_during_a_sync_is_not_called_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path)
    for value in "abc":
        append(log, value)
    real = files.fsync

    def fsync(fd: int) -> None:
        real(fd)
        monkeypatch.setattr(files, "fsync", real)
        log.truncate_to(1)
        append(log, "B")
        append(log, "C")

    monkeypatch.setattr(files, "fsync", fsync)
    log.flush()
    assert log.flushed_offset == 0
    log.flush()
    assert log.flushed_offset == 3


def test_truncated_segments_do_not_come_back_after_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[set[str]] = []
    real = files.fsync_directory

    def fsync_directory(fd: int) -> None:
        real(fd)
        synced.append(set(os.listdir(fd)))

    log = make_log(tmp_path, LogConfig(segment_bytes=200))
    for number in range(6):
        append(log, f"{number}", "x" * 60)
    monkeypatch.setattr(files, "fsync_directory", fsync_directory)
    log.truncate_to(3)
    remaining = {segment.path.name for segment in log.segments}
    assert {name for name in synced[-1] if name.endswith(".log")} == remaining


def test_a_reader_waits_for_a_rename_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has its new name, the segment does not know it yet, and the reader is quick."""
    log = make_log(tmp_path)
    append(log, "x")
    log.roll()
    append(log, "y")
    segment = log.segments.items[0]
    segment.close()
    tried = threading.Event()
    answers: list[object] = []
    real_replace, real_open = files.replace, files.open_file

    def open_file(path: Any, *arguments: Any) -> int:
        tried.set()
        return real_open(path, *arguments)

    def read() -> None:
        try:
            answers.append(log.read(0, 1000, True, 2).records)
        except KafkaError as error:
            answers.append(error.code)

    reader = threading.Thread(target=read)

    def replace(old: Any, new: Any) -> None:
        real_replace(old, new)
        if str(new).endswith(".log.deleted"):
            monkeypatch.setattr(files, "open_file", open_file)
            reader.start()
            assert tried.wait(60)
            reader.join(0.05)  # a reader that does not wait for us has given up by now

    monkeypatch.setattr(files, "replace", replace)
    with log.lock:
        segment.rename_suffix(".deleted")
    reader.join(60)
    assert not log.is_offline
    assert [type(answer) for answer in answers] == [FileSlice]


class WriteBack:
    """The kernel, writing pages to a disk that fails: it tells those who have the file open then,
    at their next sync, and nobody else, whatever they sync later (S-4)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._told: set[int] = set()
        real_open, real_sync = files.open_file, files.fsync

        def open_file(*args: Any) -> int:
            fd = real_open(*args)
            self._told.discard(fd)  # another file under an old number
            return int(fd)

        def fsync(fd: int) -> None:
            if fd in self._told:
                self._told.discard(fd)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real_sync(fd)

        monkeypatch.setattr(files, "open_file", open_file)
        monkeypatch.setattr(files, "fsync", fsync)

    def fail(self, path: Path) -> None:
        """The pages of this file that are not on the disk will never be."""
        self._told |= self._descriptors(path)

    def is_closed(self, path: Path) -> bool:
        return not self._descriptors(path)

    @staticmethod
    def _descriptors(path: Path) -> set[int]:
        found: set[int] = set()
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}") == str(path):
                    found.add(int(name))
        return found


@pytest.mark.parametrize("use", ["flush", "append", "read"])
def test_a_lost_write_is_not_forgotten_when_the_descriptor_is_needed_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    kernel = WriteBack(monkeypatch)
    env = environment(tmp_path, open_files=OpenFileCache(4))
    logs = [
        open_log(tmp_path / f"t-{number}", TopicPartition("t", number), LogConfig(), env)
        for number in range(9)
    ]
    append(logs[0], "lost")
    kernel.fail(logs[0].active_segment.path)
    for log in logs[1:] * 3:
        append(log, "x")
    assert kernel.is_closed(logs[0].active_segment.path)
    with pytest.raises(KafkaError) as error:
        {"flush": logs[0].flush, "append": lambda: append(logs[0], "b"),
         "read": lambda: logs[0].read(0, 100, True, 1)}[use]()  # fmt: skip
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert logs[0].flushed_offset == 0
    assert env.is_offline


def test_who_is_synced_lets_go_of_its_descriptor_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = environment(tmp_path, open_files=OpenFileCache(8))
    logs = [
        open_log(tmp_path / f"t-{number}", TopicPartition("t", number), LogConfig(), env)
        for number in range(12)
    ]
    for log in logs[:4]:
        append(log, "a")
        log.flush()
    syncs: list[str] = []
    monkeypatch.setattr(files, "fsync", lambda fd: syncs.append(os.readlink(f"/proc/self/fd/{fd}")))
    for log in logs[4:]:
        append(log, "a")
    assert [path for path in syncs if path.endswith(".log")] == []


def test_macos_is_asked_to_empty_the_cache_of_the_drive_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    answer: list[OSError] = []

    def fcntl(fd: int, command: int) -> int:
        asked.append((fd, command))
        if answer:
            raise answer[0]
        return 0

    monkeypatch.setattr("fcntl.fcntl", fcntl)
    sync = files._best_sync(51)
    with (tmp_path / "file").open("wb") as file:
        sync(file.fileno())
        assert asked == [(file.fileno(), 51)]
        answer.append(OSError(errno.ENOTSUP, "a network file system"))
        sync(file.fileno())
        answer[0] = OSError(errno.EIO, "the disk failed")
        with pytest.raises(OSError, match="the disk failed"):
            sync(file.fileno())
