"""A name outlives its log: what was noted of a dead log never reaches the living one (L1, L4).

The node is killed (`kill -9`: what was written is there) at each step of each way in which a log
dies and is made again under its name, and started anew on the directories as they are then.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import files
from storage.checkpoint import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    OffsetCheckpoint,
)
from storage.config import LogConfig
from storage.dir_checkpoints import CHECKPOINTS
from storage.log.partition_log import PartitionLog
from tests.storage.directories.test_log_manager import ORDERS, TOPIC_ID, Node
from tests.storage.log_support import FaultyDisk, append, read_bytes, read_from, values
from wire.errors import ErrorCode, KafkaError

NEW_ID = b"the-id-made-anew"
STEPS = ("replace", "unlink", "fsync", "fsync_directory", "pwritev", "ftruncate")


class Killed(BaseException):
    """The process ends here."""


class Death:
    """Ends the process in front of its n-th change of a file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        for name in ("fsync", "fsync_directory"):  # only a power loss needs real ones
            monkeypatch.setattr(files, name, lambda fd: None)
        monkeypatch.setattr(files, "allocate", lambda fd, size: None)
        self._real = {name: getattr(files, name) for name in STEPS}

    def before(self, step: int) -> None:
        left = itertools.count(-step)
        for name, real in self._real.items():
            self._monkeypatch.setattr(files, name, self._guarded(real, left))

    @staticmethod
    def _guarded(real: Callable[..., Any], left: Iterator[int]) -> Callable[..., Any]:
        def guarded(*args: Any) -> Any:
            if next(left) >= 0:
                raise Killed
            return real(*args)

        return guarded

    def is_averted(self) -> None:
        for name, real in self._real.items():
            self._monkeypatch.setattr(files, name, real)


@pytest.fixture
def death(monkeypatch: pytest.MonkeyPatch) -> Death:
    return Death(monkeypatch)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(monkeypatch)


def write_all_down(node: Node) -> None:
    node.manager.upkeep.checkpoint_recovery_points()
    node.manager.upkeep.checkpoint_log_start_offsets()
    node.manager.upkeep.checkpoint_high_watermarks()


def used_log(node: Node, count: int, start: int, directory: Path | None = None) -> PartitionLog:
    """A log with everything a log can have noted."""
    log = node.manager.get_or_create(ORDERS, TOPIC_ID, node.config, directory)
    for number in range(count):
        append(log, f"old {number}")
    log.update_high_watermark(count)
    log.increment_log_start_offset(start)
    log.flush()
    log.environment.checkpoints.note_cleaned(log, start, log.truncations)
    write_all_down(node)
    return log


def noted(directory: Path) -> dict[str, int]:
    """Every line about ORDERS in the checkpoints of a directory, by file."""
    found: dict[str, int] = {}
    for kind in CHECKPOINTS:
        offsets = OffsetCheckpoint(directory / kind).read()
        if ORDERS in offsets:
            found[kind] = offsets[ORDERS]
    return found


def made_again(node: Node, acknowledged: list[bytes]) -> None:
    """A new topic of the name, written to."""
    log = node.manager.get_or_create(ORDERS, NEW_ID, node.config)
    for number in range(3):
        value = b"new %d" % number
        append(log, value)
        acknowledged.append(value)


def check_made_again(node: Node, acknowledged: list[bytes]) -> None:
    """The new log has all its records, the old one none that were deleted."""
    log = node.manager.get(ORDERS)
    if log is None or log.topic_id is None:
        assert not acknowledged
    elif log.topic_id == NEW_ID:
        assert log.log_start_offset == 0
        assert log.high_watermark == 0
        assert values(read_from(log, 0))[: len(acknowledged)] == acknowledged
        first_dirty = log.environment.checkpoints.get(CLEANER_OFFSET_CHECKPOINT, ORDERS)
        assert first_dirty is None
    else:
        assert not acknowledged
        assert values(read_from(log)) == [b"old 9"]


@pytest.mark.parametrize("way", ["delete", "mark_stray"])
@pytest.mark.parametrize("has_worker_run", [False, True])
def test_a_topic_made_again_keeps_every_record_wherever_the_process_dies(
    tmp_path: Path, death: Death, way: str, has_worker_run: bool
) -> None:
    for step in itertools.count():
        root = tmp_path / str(step)
        node = Node(root)
        node.start()
        used_log(node, 10, 9)
        node.scheduler.run()
        acknowledged: list[bytes] = []
        is_over = False
        death.before(step)
        try:
            getattr(node.manager, way)(ORDERS)
            if has_worker_run:
                node.scheduler.run()
            made_again(node, acknowledged)
            is_over = True
        except Killed:
            pass
        death.is_averted()
        node.crash()
        again = Node(root)
        again.start()
        check_made_again(again, acknowledged)
        again.stop()
        if is_over:
            assert step > 5
            return


def test_a_crash_after_500_acknowledged_records_loses_none_of_them(tmp_path: Path) -> None:
    """As it was seen: DeleteRecords to 900, delete, create, 500 acknowledged, kill, restart."""
    node = Node(tmp_path)
    node.start()
    used_log(node, 1000, 900)
    node.manager.delete(ORDERS)
    log = node.manager.get_or_create(ORDERS, NEW_ID, node.config)
    for number in range(500):
        append(log, f"new {number}")
    log.flush()
    node.crash()
    again = node.start().get(ORDERS)
    assert again is not None
    assert (again.log_start_offset, again.log_end_offset) == (0, 500)
    assert again.high_watermark == 0
    node.stop()


# --- moves between directories -----------------------------------------------------------------


def move(node: Node, to: Path) -> PartitionLog:
    current = node.manager.get(ORDERS)
    assert current is not None
    futures = node.manager.future_logs
    future = futures.create(ORDERS, TOPIC_ID, node.config, to)
    if not future.size:
        future.truncate_fully_and_start_at(current.log_start_offset)
    if future.log_end_offset < current.log_end_offset:
        data = read_bytes(current, future.log_end_offset)
        future.append_as_follower(data, current.latest_epoch)
    futures.prepare(future, current)
    promoted = futures.promote(ORDERS, current)
    promoted.flush()
    node.manager.discard(current)
    return promoted


def test_a_replica_that_moves_to_and_fro_is_whole_wherever_the_process_dies(
    tmp_path: Path, death: Death
) -> None:
    """Both directories know older logs of this name, with other offsets."""
    for step in itertools.count():
        one, other = tmp_path / str(step) / "one", tmp_path / str(step) / "other"
        node = Node(one, other)
        node.start()
        for directory, count in ((other, 4), (one, 5), (one, 3)):
            if node.manager.get(ORDERS) is not None:
                node.manager.delete(ORDERS)
            used_log(node, count, count - 1, directory)
        expected = [b"old 2"]
        is_over = False
        assigned = one
        death.before(step)
        try:
            for to in (other, one):
                assigned = to  # the controller knows before a move ends
                log = move(node, to)
                value = b"after %d" % len(expected)
                append(log, value)
                expected.append(value)
                node.scheduler.run()
            is_over = True
        except Killed:
            pass
        death.is_averted()
        node.crash()
        again = Node(one, other)
        again.start()
        where = again.manager.copies.settle(ORDERS, TOPIC_ID, assigned)
        found = again.manager.get(ORDERS)
        if where is not None:
            found = again.manager.get_or_create(ORDERS, TOPIC_ID, node.config, where)
        assert found is not None
        assert found.log_start_offset == 2
        assert 2 <= found.high_watermark <= 3
        assert values(read_from(found))[: len(expected)] == expected
        again.stop()
        if is_over:
            assert step > 20
            return


def test_nothing_is_noted_where_a_replica_was(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    node = Node(one, other)
    node.start()
    used_log(node, 10, 9, one)
    move(node, other)
    node.scheduler.run()
    assert noted(one) == {}
    assert noted(other) == {
        RECOVERY_POINT_CHECKPOINT: 9,
        LOG_START_OFFSET_CHECKPOINT: 9,
        HIGH_WATERMARK_CHECKPOINT: 10,
    }
    node.stop()


# --- truncation --------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["truncate_to", "truncate_fully_and_start_at"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_what_cannot_be_noted_is_not_cut_off(
    tmp_path: Path, disk: FaultyDisk, cut: str, error: int
) -> None:
    """Or a crash would trust bytes above the cut that were never synced (S-6)."""
    node = Node(tmp_path)
    node.start()
    log = used_log(node, 10, 2)
    disk.fail(
        "open_file", error, count=9, only=lambda path, *_: str(path).endswith("checkpoint.tmp")
    )
    with pytest.raises(KafkaError) as refusal:
        getattr(log, cut)(4)
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.log_end_offset == 10
    assert len(read_from(log)) == 8
    disk.repair()
    getattr(log, cut)(4)
    assert log.log_end_offset == 4
    assert max(noted(tmp_path).values()) <= 4
    node.crash()


@pytest.mark.parametrize("cut", ["truncate_to", "truncate_fully_and_start_at"])
def test_no_line_lies_above_a_cut_whenever_the_process_dies(
    tmp_path: Path, death: Death, cut: str
) -> None:
    """A log start above the cut would delete what is written there afterwards."""
    for step in itertools.count():
        root = tmp_path / str(step)
        node = Node(root)
        node.start()
        log = used_log(node, 10, 8)
        written: list[bytes] = []
        is_over = False
        death.before(step)
        try:
            getattr(log, cut)(4)
            append(log, "again")
            written.append(b"again")
            is_over = True
        except Killed:
            pass
        death.is_averted()
        if written:
            assert max(noted(root).values()) <= 4
        node.crash()
        again = node.start().get(ORDERS)
        assert again is not None
        if written:
            assert values(read_from(again))[-1:] == written
        assert again.log_start_offset <= (4 if written else 8)
        node.stop()
        if is_over:
            assert step > 4
            return


@pytest.mark.parametrize("kind", [RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT])
@pytest.mark.parametrize("event", ["truncated", "deleted"])
def test_what_a_log_said_before_it_was_cut_or_deleted_is_not_written_after_it(
    tmp_path: Path, kind: str, event: str
) -> None:
    node = Node(tmp_path)
    node.start()
    log = used_log(node, 10, 8)

    def say(log: PartitionLog) -> int:
        said = log.flushed_offset if kind == RECOVERY_POINT_CHECKPOINT else log.log_start_offset
        if event == "truncated":
            log.truncate_to(4)
        else:
            node.manager.delete(ORDERS)
            node.scheduler.run()
        return said

    log.environment.checkpoints.note(kind, [log], say)
    assert noted(tmp_path).get(kind, 0) <= (4 if event == "truncated" else 0)
    node.crash()


# --- starts ------------------------------------------------------------------------------------


def test_lines_of_logs_that_are_gone_are_dropped_at_the_start(tmp_path: Path) -> None:
    """An older release, or a crash, left them there."""
    node = Node(tmp_path)
    node.start()
    for kind in CHECKPOINTS:
        OffsetCheckpoint(tmp_path / kind).write({ORDERS: 900})
    node.crash()
    node.start()
    assert noted(tmp_path) == {}
    node.stop()


def test_a_start_lowers_what_lies_above_the_end_that_it_found(tmp_path: Path) -> None:
    """Or a second crash would not check what was written there between the two (L4)."""
    node = Node(tmp_path)
    node.start()
    log = used_log(node, 10, 2)
    path = log.active_segment.path
    node.crash()
    path.write_bytes(path.read_bytes()[:-200])
    for kind in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT):
        assert noted(tmp_path)[kind] == 10
    again = node.start().get(ORDERS)
    assert again is not None
    assert again.log_end_offset < 10
    assert max(noted(tmp_path).values()) <= again.log_end_offset
    node.crash()


@pytest.mark.parametrize("checkpoint", [0, 99])
def test_a_wrong_high_watermark_checkpoint_stays_within_the_log(
    tmp_path: Path, checkpoint: int
) -> None:
    node = Node(tmp_path)
    node.start()
    append(node.create(), "a")
    node.crash()
    OffsetCheckpoint(tmp_path / HIGH_WATERMARK_CHECKPOINT).write({ORDERS: checkpoint})
    log = node.start().get(ORDERS)
    assert log is not None
    assert log.high_watermark == min(checkpoint, 1)
    node.stop()


def test_a_log_that_opens_at_the_second_try_is_still_the_same_log(tmp_path: Path) -> None:
    """Deleted records stay deleted when a damaged file is repaired while the node runs."""
    node = Node(tmp_path, config=LogConfig())
    node.start()
    used_log(node, 10, 8)
    node.crash()
    metadata = tmp_path / "orders-0" / PARTITION_METADATA
    whole = metadata.read_bytes()
    metadata.write_bytes(b"version: 7")
    assert node.start().get(ORDERS) is None
    metadata.write_bytes(whole)
    log = node.create()
    assert (log.log_start_offset, log.high_watermark) == (8, 10)
    node.stop()
