"""What a log shows while it changes, and whichever call of the operating system fails meanwhile."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import files
from storage.checkpoint import read_leader_epochs
from storage.config import LogConfig
from storage.log.append_source import FROM_COORDINATOR
from storage.log.partition_log import PartitionLog
from storage.log.producer_state import ProducerStateManager
from testkit.clock import WALL_MS
from testkit.wait import HANGS_S
from tests.storage.log_support import (
    FaultyDisk,
    append,
    batch,
    make_log,
    read_from,
    values,
)
from wire.control_records import ControlRecordType, EndTxnMarker
from wire.errors import ErrorCode, KafkaError
from wire.records import end_txn_marker_batch

CONFIG = LogConfig(segment_bytes=2 * len(batch("x" * 100)), index_interval_bytes=0)
SEAMS = (
    "open_file",
    "pread",
    "pwrite",
    "pwritev",
    "ftruncate",
    "unlink",
    "replace",
    "fsync",
    "fsync_directory",
)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(monkeypatch)


def check_view(log: PartitionLog) -> None:
    """The invariants of `LogView`, against the segments and their files."""
    view = log.view
    assert view.log_start_offset <= view.last_stable_offset <= view.high_watermark
    assert view.high_watermark <= view.end_offset
    assert view.segment is log.segments.active
    assert view.segment.base_offset <= view.end_offset
    assert view.position == view.segment.size
    for segment in log.segments:
        assert not segment.is_deleted
        assert segment.path.stat().st_size >= segment.size, "the log shows what is not there"
    assert log.flushed_offset <= view.end_offset


def transactional(value: str, producer_id: int, sequence: int) -> bytes:
    return batch(
        value,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )


def end_transaction(log: PartitionLog, producer_id: int, type: ControlRecordType) -> None:
    marker = end_txn_marker_batch(
        EndTxnMarker(type, 0), producer_id=producer_id, producer_epoch=0, timestamp=WALL_MS
    )
    log.append_as_leader(marker, 0, WALL_MS, FROM_COORDINATOR)


def filled(root: Path, count: int = 9) -> PartitionLog:
    """Segments of two batches, three epochs, producers, half of it replicated."""
    log = make_log(root, CONFIG)
    for number in range(count):
        data = batch(
            f"{number}".rjust(100, "x"), producer_id=1, producer_epoch=0, base_sequence=number
        )
        log.append_as_leader(data, number // 3, WALL_MS)
    log.update_high_watermark(count // 2)
    return log


def expected(offsets: range) -> list[bytes | None]:
    return [f"{number}".rjust(100, "x").encode() for number in offsets]


CHANGES: dict[str, Callable[[PartitionLog], object]] = {
    "truncate within a segment": lambda log: log.truncate_to(7),
    "truncate whole segments": lambda log: log.truncate_to(4),
    "truncate all": lambda log: log.truncate_to(0),
    "start over above": lambda log: log.truncate_fully_and_start_at(50),
    "start over inside": lambda log: log.truncate_fully_and_start_at(5),
    "start over at a segment": lambda log: log.truncate_fully_and_start_at(4),
    "roll": lambda log: log.roll(),
    "append in a new epoch": lambda log: append(log, "y" * 100, epoch=9),
    "delete segments": lambda log: log.delete_old_segments(WALL_MS + 10**12),
    "raise the start": lambda log: log.increment_log_start_offset(3),
}


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("name", CHANGES)
def test_whichever_call_fails_the_log_shows_only_what_is_there(
    tmp_path: Path, disk: FaultyDisk, name: str, error: int
) -> None:
    """As before, or as after, or appends are refused; and what is read is always right."""
    change = CHANGES[name]
    reference = filled(tmp_path / "reference")
    before = reference.view[:4]
    change(reference)
    after = reference.view[:4]
    failures = 0
    for seam in SEAMS:
        for at in range(1, 30):
            log = filled(tmp_path / f"{seam}{at}{error}")
            for segment in log.segments:
                segment.close()  # so that each must be opened
            disk.fail(seam, error, at=at, count=2)  # one more than relief of descriptors mends
            try:
                change(log)
                outcome = None
            except KafkaError as refused:
                outcome = refused.code
                assert outcome is ErrorCode.KAFKA_STORAGE_ERROR
            has_failed = disk.calls[seam] >= at
            disk.repair()
            check_view(log)
            assert log.view[:4] in (before, after)
            if outcome is None:
                assert log.view[:4] == after
            start, end = log.log_start_offset, log.log_end_offset
            if not log.is_offline and end < 50:
                found = values(read_from(log, start))
                assert found[: 9 - start] == expected(range(start, min(end, 9)))
            if not log.is_offline:
                _goes_on(log, change, after)
            failures += has_failed
            if not has_failed:
                break
        else:
            pytest.fail(f"{name} makes more than 29 calls of {seam}")
    assert failures or name == "raise the start"


def _goes_on(
    log: PartitionLog, change: Callable[[PartitionLog], object], after: tuple[int, ...]
) -> None:
    """With the disk in order again the log works, and its files hold what it says."""
    end = log.log_end_offset
    append(log, "after", epoch=max(log.latest_epoch, 0))
    assert log.log_end_offset == end + 1
    check_view(log)
    for segment in log.segments:
        assert segment.path.stat().st_size == segment.size
    names = {path.name for path in log.directory.iterdir() if path.name.endswith(".log")}
    assert names == {segment.path.name for segment in log.segments}
    stored = [(record.offset, record.value) for record in read_from(log)]
    epochs = log.leader_epochs.entries
    again = make_log(log.directory.parent, CONFIG, log_start_offset=log.log_start_offset)
    assert again.log_end_offset == end + 1
    assert [(record.offset, record.value) for record in read_from(again)] == stored
    assert again.leader_epochs.entries == epochs


@pytest.mark.parametrize("to", [0, 3, 4, 7])
def test_a_truncation_that_ran_out_of_descriptors_takes_no_append_before_it_is_done(
    tmp_path: Path, disk: FaultyDisk, to: int
) -> None:
    """L3: the end was on a segment that was gone; what was appended there was acknowledged and
    lost."""
    log = filled(tmp_path)
    disk.fail("fsync_directory", errno.EMFILE, count=2)
    with pytest.raises(KafkaError):
        log.truncate_to(to)
    with pytest.raises(KafkaError) as refused:
        append(log, "refused")
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    info = append(log, "kept", epoch=log.latest_epoch + 1)
    assert info.first_offset == to
    again = make_log(tmp_path, CONFIG)
    assert values(read_from(again)) == [*expected(range(to)), b"kept"]


def test_starting_over_without_a_descriptor_changes_nothing(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    log = filled(tmp_path)
    name = "50.log"
    disk.fail("open_file", errno.EMFILE, count=9, only=lambda path, *_: path.name.endswith(name))
    with pytest.raises(KafkaError):
        log.truncate_fully_and_start_at(50)
    disk.repair()
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (0, 4, 9)
    append(log, "more", epoch=log.latest_epoch + 1)
    assert values(read_from(make_log(tmp_path, CONFIG))) == [*expected(range(9)), b"more"]


def test_a_cut_in_the_middle_of_a_batch_takes_the_flushed_offset_to_its_start(
    tmp_path: Path,
) -> None:
    """Or what is written there next would be taken for synced (S-6)."""
    log = make_log(tmp_path)
    append(log, "a", "b", "c")
    append(log, "d", "e", "f")
    log.flush()
    log.truncate_to(5)
    assert (log.log_end_offset, log.flushed_offset) == (3, 3)


# --- the last stable offset (V-2) --------------------------------------------------------------


def test_the_last_stable_offset_never_moves_while_a_transaction_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L7: it equalled the high watermark between the removal from the open transactions and the
    addition to those whose markers are not replicated."""
    log = make_log(tmp_path)
    append(log, "plain")
    log.append_as_leader(transactional("open", 1, 0), 0, WALL_MS)
    log.update_high_watermark(2)
    seen = []
    add = ProducerStateManager.complete_txn

    class Watched(dict):  # type: ignore[type-arg]
        def __delitem__(self, key: object) -> None:
            super().__delitem__(key)
            seen.append(log.last_stable_offset)

    def complete(state: ProducerStateManager, completed: object) -> None:
        state._ongoing = Watched(state._ongoing)
        add(state, completed)  # type: ignore[arg-type]
        seen.append(log.last_stable_offset)

    monkeypatch.setattr(ProducerStateManager, "complete_txn", complete)
    end_transaction(log, 1, ControlRecordType.COMMIT)
    assert seen == [1, 1]
    assert log.last_stable_offset == 1
    log.update_high_watermark(3)
    assert log.last_stable_offset == 3


def test_readers_without_a_lock_see_offsets_of_one_moment(tmp_path: Path) -> None:
    """L7: the last stable offset iterated over dicts that appends changed."""
    log = make_log(tmp_path)
    stop = threading.Event()
    problems: list[BaseException | tuple[int, ...]] = []

    def read() -> None:
        try:
            while not stop.is_set():
                start, stable, watermark, end = log.view[:4]
                if not start <= stable <= watermark <= end or log.last_stable_offset < stable:
                    problems.append((start, stable, watermark, end))
        except BaseException as error:
            problems.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(300):
        for producer_id in (1, 2):
            log.append_as_leader(transactional("x", producer_id, number), 0, WALL_MS)
        log.update_high_watermark(log.log_end_offset)
        for producer_id in (1, 2):
            end_transaction(log, producer_id, ControlRecordType.ABORT)
        log.update_high_watermark(log.log_end_offset)
    stop.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert log.last_stable_offset == log.log_end_offset


@pytest.mark.parametrize("to", [1, 2, 3, 5])
def test_truncation_makes_the_last_stable_offset_anew(tmp_path: Path, to: int) -> None:
    log = make_log(tmp_path)
    append(log, "plain")
    log.append_as_leader(transactional("a", 1, 0), 0, WALL_MS)
    log.append_as_leader(transactional("b", 2, 0), 0, WALL_MS)
    end_transaction(log, 1, ControlRecordType.COMMIT)
    append(log, "plain")
    append(log, "plain")
    log.update_high_watermark(6)
    assert log.last_stable_offset == 2
    log.truncate_to(to)
    assert log.last_stable_offset == {1: 1, 2: 1, 3: 1, 5: 2}[to]
    check_view(log)


# --- leader epochs are synced without the lock -------------------------------------------------


@pytest.mark.parametrize("how", ["leader", "follower", "told"])
def test_an_epoch_is_synced_without_the_logs_lock_and_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    began, go_on, was_free = threading.Event(), threading.Event(), []
    real = files.fsync

    def fsync(fd: int) -> None:
        began.set()
        go_on.wait(HANGS_S)
        real(fd)

    def change() -> None:
        if how == "leader":
            append(log, "b", epoch=1)
        elif how == "follower":
            log.append_as_follower(batch("b", base_offset=1, leader_epoch=1), 1)
        else:
            log.assign_epoch_start(1, 1)

    monkeypatch.setattr(files, "fsync", fsync)
    thread = threading.Thread(target=change)
    thread.start()
    assert began.wait(60)
    was_free.append(log.lock.acquire(timeout=60))
    log.lock.release()
    assert thread.is_alive(), "it answers before the epoch is on disk"
    go_on.set()
    thread.join()
    assert was_free == [True]
    assert read_leader_epochs(log.leader_epochs.path) == [(0, 0), (1, 1)]


def test_an_epoch_that_did_not_reach_the_disk_takes_no_append(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    disk.fail("fsync", errno.ENOSPC, count=2)
    for _ in range(2):
        with pytest.raises(KafkaError):
            append(log, "b", epoch=1)
        assert log.log_end_offset == 1
    append(log, "b", epoch=1)
    entries = make_log(tmp_path, had_clean_shutdown=True).leader_epochs.entries
    assert [tuple(entry) for entry in entries] == [(0, 0), (1, 1)]


def test_after_a_start_a_marker_above_the_high_watermark_counts_until_it_is_cut_off(
    tmp_path: Path,
) -> None:
    """A snapshot knows that the transaction has ended, not where (as in Apache Kafka)."""
    log = make_log(tmp_path)
    append(log, "plain")
    log.append_as_leader(transactional("a", 1, 0), 0, WALL_MS)
    end_transaction(log, 1, ControlRecordType.COMMIT)
    log.update_high_watermark(2)
    assert log.last_stable_offset == 1
    log.close()
    log = make_log(tmp_path, had_clean_shutdown=True)
    log.update_high_watermark(2)
    assert log.last_stable_offset == 2
    log.truncate_to(2)
    assert log.last_stable_offset == 1
    check_view(log)
