"""What a power loss, or a kill, takes at the worst moment: nothing that was not synced is there.

Found by reading; each is of a kind that the fuzzer does not do, or hardly ever.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import files
from storage.config import LogConfig
from storage.directories.log_dirs import prepare_log_dirs
from storage.log.partition_log import PartitionLog
from storage.segments.segment import LogSegment
from tests.sim.world import Killed
from tests.storage.directories.test_log_manager import ORDERS, TOPIC_ID, Node, uuids
from tests.storage.faults.disk import FaultyDisk
from tests.storage.log_support import append, batch, make_log
from tests.storage.test_recovery import SMALL as INDEXED
from tests.storage.test_recovery import with_aborted_transactions
from wire.errors import KafkaError
from wire.record_batch import patch_for_log

SMALL = LogConfig(segment_bytes=100, file_delete_delay_ms=0)
PRODUCER = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 0}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    with FaultyDisk.below(tmp_path) as found:
        yield found


def follow(log: PartitionLog, offset: int, *texts: str, epoch: int, **options: Any) -> None:
    plain = batch(*texts, **options)
    log.append_as_follower(patch_for_log(plain, offset, epoch) + plain[16:], epoch)


def fails(number: int) -> Any:
    def fail(*_: Any) -> None:
        raise OSError(number, "simulated")

    return fail


def started(node: Node) -> PartitionLog:
    log = node.start().get(ORDERS)
    assert log is not None
    return log


# --- a clean stop ---------------------------------------------------------------------------------


def with_deleted_batch(node: Node, disk: FaultyDisk) -> PartitionLog:
    """Of a producer that nothing else in the log tells of."""
    node.start()
    append(node.create(), "z")
    node.stop()
    disk.settle(disk.root)
    log = started(node)
    append(log, "a", **PRODUCER)
    append(log, "b")
    log.update_high_watermark(3)
    log.increment_log_start_offset(2)
    return log


def is_known_after_a_stop(node: Node, disk: FaultyDisk) -> bool:
    """And a power loss: its batch, sent again, is not taken a second time."""
    node.stop()
    disk.strike_hard()
    is_known = append(started(node), "a", **PRODUCER).duplicate
    node.stop()
    return is_known


def test_a_producer_whose_records_are_deleted_is_known_after_a_clean_stop(disk: FaultyDisk) -> None:
    """Only the snapshot tells of it."""
    node = Node(disk.root)
    with_deleted_batch(node, disk)
    assert is_known_after_a_stop(node, disk)


def test_a_snapshot_of_a_roll_that_failed_is_synced_by_a_clean_stop(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(disk.root)
    log = with_deleted_batch(node, disk)
    log.flush()
    with monkeypatch.context() as patch:
        patch.setattr(LogSegment, "create", fails(errno.EMFILE))
        with pytest.raises(KafkaError):
            log.roll()
    assert is_known_after_a_stop(node, disk)


def test_a_snapshot_of_a_history_that_was_cut_off_does_not_come_back(disk: FaultyDisk) -> None:
    node = Node(disk.root)
    node.start()
    log = node.create()
    follow(log, 0, "a", epoch=0)
    follow(log, 1, "b", epoch=0, is_transactional=True, **PRODUCER)
    node.stop()  # its snapshot tells of an open transaction
    disk.settle(disk.root)
    log = started(node)
    log.flush()
    log.truncate_to(1)
    follow(log, 1, "c", "d", "e", epoch=1)
    node.stop()
    disk.strike_hard()
    log = started(node)
    log.update_high_watermark(4)
    assert log.producer_state.producer(7) is None
    assert log.last_stable_offset == log.log_end_offset == 4
    node.stop()


# --- deleted records ------------------------------------------------------------------------------


def test_deleted_records_stay_deleted_once_their_segments_went(disk: FaultyDisk) -> None:
    """Their names come back, and what was noted before they went must be noted still."""
    node = Node(disk.root, config=SMALL)
    node.start()
    log = node.create()
    for number in range(6):
        append(log, f"{number}")
    log.update_high_watermark(6)
    log.flush()
    node.manager.upkeep.checkpoint_recovery_points()
    node.manager.upkeep.checkpoint_high_watermarks()
    start = log.segments.items[2].base_offset
    assert log.increment_log_start_offset(start)
    node.manager.upkeep.checkpoint_log_start_offsets()
    assert log.delete_old_segments(node.clock.wall_ms())
    node.manager.upkeep.checkpoint_log_start_offsets()
    node.crash()
    disk.strike_hard()
    assert started(node).log_start_offset == start
    node.stop()


# --- names ----------------------------------------------------------------------------------------


def test_the_names_of_new_log_directories_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    real = files.sync_directory

    def sync(path: Any) -> None:
        synced.append(path)
        real(path)

    monkeypatch.setattr(files, "sync_directory", sync)
    prepare_log_dirs([tmp_path / "a" / "b"], 1, None, uuids()).release()
    assert {tmp_path, tmp_path / "a"} <= set(synced)
    (tmp_path / "c" / "d").mkdir(parents=True)  # by a start that was killed then
    synced.clear()
    prepare_log_dirs([tmp_path / "c" / "d"], 1, None, uuids()).release()
    assert tmp_path / "c" in synced


def test_a_doubtful_index_does_not_hide_that_a_log_began_anew(tmp_path: Path) -> None:
    """The new first segment is there, the old one has its name still, and an index of before."""
    config = LogConfig(index_interval_bytes=1)
    log = make_log(tmp_path, config)
    for number in range(10):
        append(log, f"{number}")
    log.flush()
    log.close()
    folder = tmp_path / "orders-0"
    index = folder / f"{0:020d}.index"
    data = bytearray(index.read_bytes())
    data[-1] ^= 1  # names no batch
    index.write_bytes(data)
    (folder / f"{5:020d}.log").write_bytes(b"")
    log = make_log(tmp_path, config, recovery_point=5)
    assert [s.read_next_offset() for s in log.segments] == [
        *(s.base_offset for s in log.segments.items[1:]), log.log_end_offset
    ]  # fmt: skip
    log.close()


def test_a_transaction_index_that_was_made_anew_is_on_disk_before_it_is_believed(
    disk: FaultyDisk,
) -> None:
    """Its offset index says that it is whole, and names may be on the disk before bytes are."""
    log = with_aborted_transactions(disk.root, INDEXED)
    expected, end_offset = log.aborted_transactions(0, 100), log.log_end_offset
    log.flush()
    log.close()
    broken = sorted(log.directory.glob("*.txnindex"))[2]
    for suffix in (".index", ".timeindex", ".txnindex"):
        broken.with_suffix(suffix).unlink()
    disk.settle(disk.root)
    log = make_log(disk.root, INDEXED, had_clean_shutdown=True, recovery_point=end_offset)
    files.sync_directory(log.directory)
    del log
    disk.strike_hard()
    again = make_log(disk.root, INDEXED, recovery_point=end_offset)
    assert again.aborted_transactions(0, 100) == expected
    again.close()


# --- future logs ----------------------------------------------------------------------------------


def moving(node: Node, source: Path, target: Path) -> PartitionLog:
    """A log of six records, all of which are in the future log, too."""
    node.start()
    log = node.create(directory=source)
    for number in range(6):
        append(log, f"{number}")
    future = node.manager.future_logs.create(ORDERS, TOPIC_ID, node.config, target)
    while future.log_end_offset < 6:
        future.append_as_follower(log.read_bytes(future.log_end_offset, 1 << 20, 6), 0)
    future.flush()
    return log


def killed_while_unlinking(
    node: Node, monkeypatch: pytest.MonkeyPatch, count: int, *, from_end: bool
) -> None:
    """After so many files; a directory lists them in any order."""
    left, real_unlink, real_list = count, files.unlink, os.listdir

    def unlink(path: Any) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        real_unlink(path)

    def listdir(path: Any = ".") -> list[str]:
        return sorted(real_list(path), reverse=from_end)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", listdir)
        patch.setattr(files, "unlink", unlink)
        with pytest.raises(Killed):
            node.scheduler.run()
    node.crash()


def test_a_future_log_of_a_deleted_topic_is_not_taken_for_one_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that tells whose it was is the first to go."""
    one, two = tmp_path / "one", tmp_path / "two"
    node = Node(one, two)
    moving(node, one, two)
    node.manager.delete(ORDERS)
    killed_while_unlinking(node, monkeypatch, 1, from_end=True)
    node.start()
    new_id = b"another topic id"
    node.manager.get_or_create(ORDERS, new_id, node.config, one)
    assert node.manager.future_logs.claim(ORDERS, new_id) is None
    node.stop()


def test_what_is_left_of_a_move_that_was_given_up_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    node = Node(one, two, config=SMALL)
    moving(node, one, two)
    node.manager.future_logs.delete(ORDERS)
    killed_while_unlinking(node, monkeypatch, 3, from_end=False)
    node.start()
    assert node.manager.future_logs.claim(ORDERS, TOPIC_ID) is None
    node.stop()


@pytest.mark.parametrize("call", ["replace", "fsync_directory"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_future_log_that_cannot_be_removed_is_left_whole_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """On a full disk the reserve makes room; a disk that fails is offline, as after any failure."""
    one, two = tmp_path / "one", tmp_path / "two"
    node = Node(one, two)
    moving(node, one, two)
    node.manager.future_logs.delete(ORDERS)
    left = 1
    real = getattr(files, call)

    def first_fails(*args: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise OSError(number, "simulated")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(files, call, first_fails)
        node.scheduler.run()
    assert node.manager._dirs[two].is_online == (number == errno.ENOSPC)
    names = [path.name for path in two.iterdir() if path.is_dir()]
    whole = [name for name in names if list((two / name).glob("*.log"))]
    assert names == whole
    if (call, number) == ("replace", errno.ENOSPC):
        assert names == []
    node.crash()
