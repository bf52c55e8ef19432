"""What the fuzzer found in storage, each in its shortest form."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage import files
from storage.log.append_source import FROM_COORDINATOR
from testkit.clock import WALL_MS
from tests.sim.world import World
from tests.storage.directories.test_log_manager import ORDERS, Node
from tests.storage.faults.checks import content_of
from tests.storage.faults.disk import FaultyDisk as PowerlessDisk
from tests.storage.log_support import FaultyDisk, append, batch, make_log, read_from, values
from wire.control_records import ControlRecordType, EndTxnMarker
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import patch_for_log
from wire.records import end_txn_marker_batch


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(monkeypatch)


def _is_log(path: Any, *_: Any) -> bool:
    return str(path).endswith(".log")


def _is_directory(path: Any, *_: Any) -> bool:
    return os.path.isdir(path)


def test_a_truncation_brings_no_deleted_record_back(tmp_path: Path) -> None:
    """Nothing was flushed: to there the log start and the high watermark went back on disk."""
    node = Node(tmp_path)
    node.start()
    log = node.create()
    for number in range(10):
        append(log, f"{number}")
    log.update_high_watermark(10)
    log.increment_log_start_offset(3)
    node.manager.upkeep.checkpoint_log_start_offsets()
    node.manager.upkeep.checkpoint_high_watermarks()
    log.truncate_to(8)
    node.crash()
    again = node.start().get(ORDERS)
    assert again is not None
    assert (again.log_start_offset, again.high_watermark, again.log_end_offset) == (3, 8, 8)
    node.stop()


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_new_start_that_a_full_disk_cut_short_leaves_no_gap(
    tmp_path: Path, disk: FaultyDisk, goes_on: bool
) -> None:
    """The recovery point was the new start's while the old segments still had their names."""
    node = Node(tmp_path)
    node.start()
    log = node.create()
    append(log, "a", "b")
    disk.fail("replace", errno.ENOSPC, only=_is_log)
    with pytest.raises(KafkaError):
        log.truncate_fully_and_start_at(16)
    if goes_on:
        log.flush()
    node.manager.upkeep.checkpoint_recovery_points()
    node.crash()
    disk.repair()
    again = node.start().get(ORDERS)
    assert again is not None
    found = values(read_from(again))
    if goes_on:
        assert (again.log_start_offset, again.log_end_offset, found) == (16, 16, [])
    else:
        assert (again.log_start_offset, again.log_end_offset, found) == (0, 2, [b"a", b"b"])
    node.stop()


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_a_new_start_within_the_old_log_that_a_bad_disk_cut_short_leaves_no_offset_twice(
    tmp_path: Path, disk: FaultyDisk, offset: int
) -> None:
    """The old segment was flushed, and reached into the new start's: it was not looked at."""
    node = Node(tmp_path)
    node.start()
    log = node.create()
    append(log, "a", "b")
    append(log, "c", "d")
    log.flush()
    node.manager.upkeep.checkpoint_recovery_points()
    disk.fail("replace", errno.EIO, only=_is_log)
    with pytest.raises(KafkaError):
        log.truncate_fully_and_start_at(offset)
    node.crash()
    disk.repair()
    again = node.start().get(ORDERS)
    assert again is not None
    assert again.log_end_offset == 4
    assert values(read_from(again)) == [b"a", b"b", b"c", b"d"]
    node.stop()


def test_a_new_start_at_the_end_that_a_full_disk_cut_short_leaves_no_gap(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """The newest segment's log was renamed, its index was not; older ones were all there."""
    node = Node(tmp_path)
    node.config = replace(node.config, segment_bytes=100)
    node.start()
    log = node.create()
    for value in "abcdef":
        append(log, value)
    assert len(log.segments) > 3
    log.flush()
    node.manager.upkeep.checkpoint_recovery_points()
    disk.fail("replace", errno.ENOSPC, only=lambda path, *_: str(path).endswith("index"))
    with pytest.raises(KafkaError):
        log.truncate_fully_and_start_at(6)
    node.crash()
    disk.repair()
    again = node.start().get(ORDERS)
    assert again is not None
    assert again.log_end_offset == content_of(again).end == 6
    node.stop()


def test_a_full_disk_lets_a_log_be_deleted(tmp_path: Path, disk: FaultyDisk) -> None:
    """Its other name takes room: the reserve's."""
    node = Node(tmp_path)
    node.start()
    log = node.create()
    disk.fail("replace", errno.ENOSPC, only=_is_directory)
    node.manager.delete(ORDERS)
    assert not log.is_offline
    assert not (tmp_path / "orders-0").exists()
    node.stop()


def test_a_log_that_cannot_be_deleted_takes_its_directory_offline(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """It is closed, and would be in the way of every other of its name."""
    node = Node(tmp_path)
    node.start()
    log = node.create()
    disk.fail("replace", errno.ENOSPC, count=2, only=_is_directory)
    with pytest.raises(KafkaError) as refusal:
        node.manager.delete(ORDERS)
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.is_offline
    node.scheduler.run()
    node.stop()


@pytest.mark.parametrize("seed", range(1, 4))
def test_an_aborted_transaction_is_known_after_a_clean_stop_and_a_power_loss(
    tmp_path: Path, seed: int
) -> None:
    """The name of its index was not on the disk, and that there is none is no sign of harm."""
    root = tmp_path / "root"
    root.mkdir()
    with PowerlessDisk(World(seed), root) as disk:
        log = make_log(root)
        append(log, "a")
        log.flush()
        log.close()
        log = make_log(root, had_clean_shutdown=True)
        log.flush()  # the names there are now
        log.append_as_leader(
            batch("b", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True),
            0,
            WALL_MS,
        )
        marker = end_txn_marker_batch(
            EndTxnMarker(ControlRecordType.ABORT, 0),
            producer_id=7,
            producer_epoch=0,
            timestamp=WALL_MS,
        )
        log.append_as_leader(marker, 0, WALL_MS, FROM_COORDINATOR)
        log.flush()
        log.close()
        disk.strike(root)
        again = make_log(root, had_clean_shutdown=True)
        assert [txn.producer_id for txn in again.aborted_transactions(0, 3)] == [7]
        again.close()


def test_a_start_after_a_crash_syncs_the_names_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who made a log's directory may have died before it synced its name; a flush does not."""
    node = Node(tmp_path)
    node.start()
    node.create()
    node.crash()
    synced: list[Path] = []
    real = files.sync_directory
    monkeypatch.setattr(files, "sync_directory", lambda path: (synced.append(path), real(path)))
    node.start()
    assert tmp_path in synced
    node.stop()


def test_a_followers_failed_append_leaves_no_epoch(tmp_path: Path, disk: FaultyDisk) -> None:
    log = make_log(tmp_path)
    plain = batch("a")
    data = patch_for_log(plain, 3, 5) + plain[16:]
    disk.fail("pwritev", errno.ENOSPC)
    with pytest.raises(KafkaError):
        log.append_as_follower(data, 5)
    assert log.leader_epochs.entries == ()
    log.append_as_follower(data, 5)
    assert log.leader_epochs.entries == ((5, 3),)
    log.close()


def test_what_was_cut_off_is_closed_with_its_log(tmp_path: Path, disk: FaultyDisk) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    disk.fail("replace", errno.EIO, only=_is_log)
    with pytest.raises(KafkaError):
        log.truncate_fully_and_start_at(16)
    assert log.is_offline
    log.close()
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert [path for path in opened if path.startswith(f"{tmp_path}/")] == []
