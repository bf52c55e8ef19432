"""When a log starts a new segment, and when it gives an old one up."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from storage import files
from storage.config import LogConfig
from storage.log.partition_log import PartitionLog
from testkit.clock import WALL_MS, ManualClock
from tests.storage.log_support import (
    FaultyDisk,
    ManualScheduler,
    append,
    batch,
    environment,
    make_log,
    read_bytes,
    read_from,
    values,
)
from wire.errors import ErrorCode, KafkaError
from wire.records import Record, build_batch, check_crc, iterate_headers

HOUR_MS = 3_600_000


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


# --- roll (S-11) -------------------------------------------------------------------------------


def test_a_segment_is_filled_up_to_its_limit_and_not_beyond(tmp_path: Path) -> None:
    size = len(batch("x" * 100))
    exact = make_log(tmp_path / "a", LogConfig(segment_bytes=3 * size))
    tight = make_log(tmp_path / "b", LogConfig(segment_bytes=3 * size - 1))
    for _ in range(6):
        append(exact, "x" * 100)
        append(tight, "x" * 100)
    assert bases(exact) == [0, 3]
    assert bases(tight) == [0, 2, 4]


def test_a_batch_as_large_as_a_segment_fits_and_a_larger_one_does_not(tmp_path: Path) -> None:
    size = len(batch("x" * 100))
    log = make_log(tmp_path, LogConfig(segment_bytes=size))
    append(log, "x" * 100)
    append(log, "x" * 100)
    assert bases(log) == [0, 1]
    with pytest.raises(KafkaError) as error:
        append(log, "x" * 101)
    assert error.value.code is ErrorCode.RECORD_LIST_TOO_LARGE


def test_age_is_measured_between_record_times(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(segment_ms=HOUR_MS))
    append(log, "a", timestamp=WALL_MS - 2 * HOUR_MS)
    append(log, "b", timestamp=WALL_MS - HOUR_MS)
    assert bases(log) == [0]
    append(log, "c", timestamp=WALL_MS - HOUR_MS + 1)
    assert bases(log) == [0, 2]


def test_the_age_of_a_segment_survives_a_restart(tmp_path: Path) -> None:
    config = LogConfig(segment_ms=HOUR_MS)
    log = make_log(tmp_path, config)
    append(log, "a", timestamp=WALL_MS - 2 * HOUR_MS)
    log = make_log(tmp_path, config)
    append(log, "b", timestamp=WALL_MS)
    assert bases(log) == [0, 1]


def test_without_record_times_the_segments_own_age_counts(tmp_path: Path) -> None:
    clock = ManualClock()
    log = make_log(tmp_path, LogConfig(segment_ms=HOUR_MS), env=environment(tmp_path, clock=clock))
    append(log, "a", timestamp=-1)
    clock.ms = HOUR_MS
    append(log, "b", timestamp=-1)
    assert bases(log) == [0]
    clock.ms = HOUR_MS + 1
    append(log, "c", timestamp=-1)
    assert bases(log) == [0, 2]


def test_jitter_only_makes_a_roll_earlier(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(segment_ms=HOUR_MS, segment_jitter_ms=HOUR_MS // 2))
    for number in range(20):
        log.roll()
        append(log, f"{number}")
    jitters = {segment.jitter_ms for segment in log.segments}
    assert len(jitters) > 5
    assert all(0 <= jitter < HOUR_MS // 2 for jitter in jitters)


def test_a_full_index_rolls_the_segment(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(index_interval_bytes=0, segment_index_bytes=64))
    for number in range(40):
        append(log, f"{number}", timestamp=WALL_MS + number)
    assert len(log.segments) > 3
    assert all(segment.offset_index.entries <= 8 for segment in log.segments)
    assert values(read_from(log)) == [b"%d" % number for number in range(40)]


@pytest.mark.parametrize("index_bytes", [64, 24, 4])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_lower_limit_of_indexes_holds_from_the_next_segment_on(
    tmp_path: Path, index_bytes: int, is_clean: bool
) -> None:
    log = make_log(tmp_path, LogConfig(index_interval_bytes=0))
    for number in range(20):
        append(log, f"{number}", timestamp=WALL_MS + number)
    log.close()
    config = LogConfig(index_interval_bytes=0, segment_index_bytes=index_bytes)
    log = make_log(tmp_path, config, had_clean_shutdown=is_clean)
    for number in range(20, 30):
        append(log, f"{number}", timestamp=WALL_MS + number)
    assert bases(log)[:2] == [0, 20]
    assert values(read_from(log)) == [b"%d" % number for number in range(30)]
    found = log.offset_for_timestamp(WALL_MS + 25)
    assert found is not None
    assert found.offset == 25
    log.close()


def test_a_log_cut_back_to_full_indexes_rolls_again(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(index_interval_bytes=100, segment_index_bytes=64))
    while len(log.segments) == 1:  # each second batch is noted, by the one before it
        newest = log.log_end_offset % 2 == 1
        append(log, "x" * 10, timestamp=WALL_MS + log.log_end_offset + 100 * newest)
    start = bases(log)[1] - 1
    log.truncate_to(start)
    for number in range(10):
        append(log, f"{number}", timestamp=WALL_MS + 1000 + number)
    assert bases(log)[1] == start
    assert values(read_from(log, start)) == [b"%d" % number for number in range(10)]


def test_an_offset_too_far_from_the_base_starts_a_segment(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(cleanup_policy=frozenset({"compact"})))
    far = 2**31
    log.append_as_follower(batch("a", base_offset=0, leader_epoch=0), 0)
    log.append_as_follower(batch("b", base_offset=far - 1, leader_epoch=0), 0)
    log.append_as_follower(batch("c", base_offset=far, leader_epoch=0), 0)
    assert bases(log) == [0, far]
    assert [record.offset for record in read_from(log)] == [0, far - 1, far]
    recovered = make_log(tmp_path, log.config)
    assert [record.offset for record in read_from(recovered)] == [0, far - 1, far]


def test_a_first_batch_too_far_from_the_base_starts_a_segment_that_reaches_it(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path, LogConfig(cleanup_policy=frozenset({"compact"})))
    log.append_as_follower(batch("a", base_offset=2**31 + 5, leader_epoch=0), 0)
    assert bases(log) == [0, 6]
    assert [record.offset for record in read_from(log)] == [2**31 + 5]


def test_an_empty_segment_is_not_rolled(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    assert log.roll() is log.active_segment
    append(log, "a")
    log.roll()
    assert log.roll() is log.active_segment
    assert bases(log) == [0, 1]


def test_a_roll_writes_the_producers_and_finishes_the_indexes(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(index_interval_bytes=100))
    for number in range(10):
        data = batch("x" * 50, producer_id=1, producer_epoch=0, base_sequence=number)
        log.append_as_leader(data, 0, WALL_MS)
    old = log.active_segment
    log.roll()
    assert (tmp_path / "orders-0" / "00000000000000000010.snapshot").exists()
    assert old.time_index.last_entry == (WALL_MS, 0)
    assert old.offset_index.path.stat().st_size == old.offset_index.entries * 8 > 0


def test_the_newest_time_of_a_finished_segment_is_its_last_time_index_entry(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path)
    append(log, "a", timestamp=WALL_MS - 5)
    append(log, "b", timestamp=WALL_MS)
    append(log, "c", timestamp=WALL_MS - 9)
    rolled = log.active_segment
    log.roll()
    append(log, "d", timestamp=WALL_MS + 1)
    closed = log.active_segment
    log.flush()
    log.close()
    assert rolled.time_index.last_entry == (WALL_MS, 1)
    assert closed.time_index.last_entry == (WALL_MS + 1, 3)


def test_a_rolled_segment_is_flushed_in_the_background(tmp_path: Path) -> None:
    scheduler = ManualScheduler()
    log = make_log(tmp_path, env=environment(tmp_path, scheduler=scheduler))
    append(log, "a")
    log.roll()
    assert log.flushed_offset == 0
    assert [(task.name, task.delay_ms) for task in scheduler.once] == [("flush-log", 0)]
    assert scheduler.run("flush-log") == 1
    assert log.flushed_offset == 1


def test_a_background_flush_of_a_directory_that_has_failed_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = ManualScheduler()
    env = environment(tmp_path, scheduler=scheduler)
    log = make_log(tmp_path, env=env)
    append(log, "a")
    log.roll()
    env.storage_error(OSError(errno.EIO, "gone"), "test")
    caplog.clear()
    assert scheduler.run("flush-log") == 1
    (told,) = caplog.records
    assert told.levelname == "WARNING"
    assert not told.exc_info
    assert str(log.topic_partition) in told.getMessage()


@pytest.mark.parametrize("is_clean", [True, False])
def test_preallocate_leaves_nothing_behind_the_last_batch_of_a_segment(
    tmp_path: Path, is_clean: bool
) -> None:
    """Zeros there are a corrupt batch to a reader, and to recovery the end of the log."""
    config = LogConfig(preallocate=True, segment_bytes=100_000)
    log = make_log(tmp_path, config)
    for value in "abc":
        append(log, value)
        log.roll()
    if is_clean:
        log.flush()
        log.close()
    reopened = make_log(tmp_path, config, had_clean_shutdown=is_clean)
    assert values(read_from(reopened)) == [b"a", b"b", b"c"]
    for segment in reopened.segments:
        assert segment.path.stat().st_size == segment.size


def test_a_leftover_file_where_a_segment_should_begin_is_set_aside(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    (tmp_path / "orders-0" / "00000000000000000001.log").write_bytes(b"leftover")
    (tmp_path / "orders-0" / "00000000000000000001.index").write_bytes(b"leftover")
    log.roll()
    append(log, "b")
    assert values(read_from(log)) == [b"a", b"b"]


# --- retention (S-15) --------------------------------------------------------------------------


def filled(
    root: Path, config: LogConfig, count: int = 10, scheduler: ManualScheduler | None = None
) -> tuple[PartitionLog, ManualClock]:
    """A log with one batch per segment; record times one hour apart, the last one now."""
    clock = ManualClock()
    log = make_log(root, config, env=environment(root, clock=clock, scheduler=scheduler))
    for number in range(count):
        if number:
            log.roll()
        append(log, f"{number}", timestamp=WALL_MS - (count - 1 - number) * HOUR_MS)
    log.update_high_watermark(count)
    return log, clock


def test_segments_older_than_retention_ms_are_deleted(tmp_path: Path) -> None:
    log, clock = filled(tmp_path, LogConfig(retention_ms=3 * HOUR_MS))
    assert log.delete_old_segments(clock.wall_ms()) == 6
    assert (bases(log), log.log_start_offset) == ([6, 7, 8, 9], 6)
    assert log.delete_old_segments(clock.wall_ms()) == 0
    assert values(read_from(log)) == [b"6", b"7", b"8", b"9"]
    with pytest.raises(KafkaError) as error:
        read_bytes(log, 5)
    assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_oldest_segments_beyond_retention_bytes_are_deleted(tmp_path: Path) -> None:
    log, clock = filled(tmp_path, LogConfig(retention_bytes=1, retention_ms=-1))
    segment = log.size // 10
    log.update_config(LogConfig(retention_bytes=4 * segment + segment // 2, retention_ms=-1))
    assert log.delete_old_segments(clock.wall_ms()) == 5
    assert log.log_start_offset == 5
    log.update_config(LogConfig(retention_bytes=4 * segment, retention_ms=-1))
    assert log.delete_old_segments(clock.wall_ms()) == 1, "what is kept fits to the byte"


def test_a_log_of_no_bytes_is_emptied_once(tmp_path: Path) -> None:
    """The empty segment that is left stays, however old its file is."""
    log, clock = filled(tmp_path, LogConfig(retention_bytes=0, retention_ms=0))
    assert log.delete_old_segments(clock.wall_ms()) == 10
    os.utime(log.active_segment.path, ns=(0, 0))
    assert log.delete_old_segments(clock.wall_ms()) == 0
    assert (bases(log), log.log_start_offset) == ([10], 10)


def test_a_log_whose_last_record_expired_is_emptied(tmp_path: Path) -> None:
    log, clock = filled(tmp_path, LogConfig(retention_ms=HOUR_MS))
    clock.ms = 2 * HOUR_MS
    assert log.delete_old_segments(clock.wall_ms()) == 10
    assert (bases(log), log.size, log.log_start_offset) == ([10], 0, 10)
    assert append(log, "next").first_offset == 10


def test_nothing_at_or_above_the_high_watermark_is_deleted(tmp_path: Path) -> None:
    clock = ManualClock()
    log = make_log(tmp_path, LogConfig(retention_ms=0), env=environment(tmp_path, clock=clock))
    for number in range(5):
        append(log, f"{number}", timestamp=WALL_MS - HOUR_MS)
        log.roll()
    for high_watermark, remaining in ((0, 5), (2, 3), (4, 1), (5, 0)):
        log.update_high_watermark(high_watermark)
        log.delete_old_segments(clock.wall_ms())
        assert len(values(read_from(log))) == remaining


def test_without_limits_or_without_the_delete_policy_nothing_is_deleted(tmp_path: Path) -> None:
    for number, config in enumerate(
        [
            LogConfig(retention_ms=-1),
            LogConfig(retention_ms=1, cleanup_policy=frozenset({"compact"})),
            LogConfig(retention_ms=1, cleanup_policy=frozenset()),
        ]
    ):
        log, clock = filled(tmp_path / str(number), config)
        clock.ms = 100 * HOUR_MS
        assert log.delete_old_segments(clock.wall_ms()) == 0


def test_segments_below_the_log_start_are_deleted_whatever_the_policy(tmp_path: Path) -> None:
    log, clock = filled(tmp_path, LogConfig(cleanup_policy=frozenset({"compact"})))
    log.increment_log_start_offset(4)
    assert log.delete_old_segments(clock.wall_ms()) == 4
    assert bases(log)[0] == 4


def test_a_record_from_the_future_does_not_live_for_ever(tmp_path: Path) -> None:
    config = LogConfig(retention_ms=HOUR_MS, message_timestamp_after_max_ms=2**60)
    clock = ManualClock()
    log = make_log(tmp_path, config, env=environment(tmp_path, clock=clock))
    append(log, "from the year 2100", timestamp=4_102_444_800_000)
    log.roll()
    log.update_high_watermark(1)
    path = log.segments.items[0].path
    os.utime(path, ns=(0, (WALL_MS - HOUR_MS // 2) * 1_000_000))
    assert log.delete_old_segments(clock.wall_ms()) == 0
    os.utime(path, ns=(0, (WALL_MS - 2 * HOUR_MS) * 1_000_000))
    assert log.delete_old_segments(clock.wall_ms()) == 1


def test_a_record_of_this_moment_is_not_from_the_future(tmp_path: Path) -> None:
    """Its file's time says nothing: a copy may have brought that along."""
    log, clock = filled(tmp_path, LogConfig(retention_ms=HOUR_MS), count=1)
    os.utime(log.active_segment.path, ns=(0, 0))
    assert log.delete_old_segments(clock.wall_ms()) == 0


def test_files_are_renamed_now_and_unlinked_after_the_delay(tmp_path: Path) -> None:
    scheduler = ManualScheduler()
    config = LogConfig(retention_ms=3 * HOUR_MS, file_delete_delay_ms=1234)
    log, clock = filled(tmp_path, config, scheduler=scheduler)
    directory = tmp_path / "orders-0"
    log.delete_old_segments(clock.wall_ms())
    assert len(list(directory.glob("*.log"))) == 4
    assert len(list(directory.glob("*.log.deleted"))) == 6
    assert {task.delay_ms for task in scheduler.once if task.name == "delete-segments"} == {1234}
    scheduler.run("delete-segments")
    assert not list(directory.glob("*.deleted"))


def test_files_are_unlinked_where_they_are_after_the_log_was_moved(tmp_path: Path) -> None:
    """A copy gets its partition's name when it is whole (Kafka: LogSegment.FUTURE_DIR_PATTERN)."""
    scheduler = ManualScheduler()
    log = make_log(tmp_path, env=environment(tmp_path, scheduler=scheduler))
    append(log, "a")
    log.roll()
    append(log, "b")
    log.truncate_to(0)
    moved = log.directory.with_name("moved-0")
    log.directory.rename(moved)
    log.change_directory(moved)
    assert list(moved.glob("*.deleted"))
    scheduler.run("delete-segments")
    assert list(moved.glob("*.deleted")) == []


def test_snapshots_and_epochs_go_with_the_segments(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(retention_ms=0))
    for number in range(6):
        data = batch("x", producer_id=1, producer_epoch=0, base_sequence=number, timestamp=1)
        log.append_as_leader(data, number, WALL_MS)
        log.roll()
    log.update_high_watermark(6)
    assert log.delete_old_segments(WALL_MS) == 6
    assert [path.name for path in (tmp_path / "orders-0").glob("*.snapshot")] == [
        "00000000000000000006.snapshot"
    ]
    assert [entry.epoch for entry in log.leader_epochs.entries] == [5]
    # The producer is still known: its next batch goes on where it was (P-5).
    data = batch("x", producer_id=1, producer_epoch=0, base_sequence=6)
    assert log.append_as_leader(data, 6, WALL_MS).first_offset == 6


def test_a_deletion_that_a_crash_interrupts_is_finished_at_the_next_start(tmp_path: Path) -> None:
    log, clock = filled(tmp_path, LogConfig(retention_ms=3 * HOUR_MS), scheduler=ManualScheduler())
    log.delete_old_segments(clock.wall_ms())
    reopened = make_log(tmp_path, log.config)
    assert bases(reopened) == [6, 7, 8, 9]
    assert not list((tmp_path / "orders-0").glob("*.deleted"))


def test_a_crash_during_a_deletion_loses_none_of_what_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = filled(tmp_path / "live", LogConfig(retention_ms=HOUR_MS))
    real = files.replace
    crashes: list[Path] = []

    def replace(old: Path, new: Path) -> None:
        crashes.append(tmp_path / f"crash-{len(crashes)}")
        shutil.copytree(tmp_path / "live", crashes[-1])
        real(old, new)

    monkeypatch.setattr(files, "replace", replace)
    assert log.delete_old_segments(WALL_MS) == 8
    monkeypatch.undo()
    assert len(crashes) >= 8
    for path in crashes:
        left = make_log(path)
        assert values(read_from(left)) == [b"%d" % n for n in range(left.log_start_offset, 10)]


def test_a_rename_that_fails_takes_the_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, clock = filled(tmp_path, LogConfig(retention_ms=HOUR_MS))
    FaultyDisk(monkeypatch).fail("replace")
    with pytest.raises(KafkaError) as error:
        log.delete_old_segments(clock.wall_ms())
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.is_offline


def test_readers_get_their_bytes_or_out_of_range_while_segments_are_deleted(
    tmp_path: Path,
) -> None:
    """D8: thousands of reads against hundreds of deletions; never a foreign byte."""
    config = LogConfig(segment_bytes=2000, retention_bytes=6000, file_delete_delay_ms=0)
    log = make_log(tmp_path, config)
    for _ in range(10):
        _append_numbered(log)
    watch = _Watch(log)
    readers = [threading.Thread(target=watch.read) for _ in range(3)]
    for reader in readers:
        reader.start()
    deleted = 0
    while (deleted < 200 or watch.reads <= 1_000) and not watch.problems:
        _append_numbered(log)
        log.update_high_watermark(log.log_end_offset)
        deleted += log.delete_old_segments(WALL_MS)
    watch.stop.set()
    for reader in readers:
        reader.join(60)
    assert watch.problems == []
    assert watch.reads > 1_000


class _Watch:
    """Reads from the log start over and over; notes what should not have come."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.stop = threading.Event()
        self.problems: list[str] = []
        self.reads = 0

    def read(self) -> None:
        while not self.stop.is_set() and not self.problems:
            offset = self.log.log_start_offset
            try:
                data = read_bytes(self.log, offset, size=3000)
            except KafkaError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    self.problems.append(str(error))
                continue
            self.reads += 1
            for position, header in iterate_headers(data):
                if header.base_offset > offset or not check_crc(data, position, header):
                    self.problems.append(f"{header} read at {offset}")
                offset = header.next_offset


def _append_numbered(log: PartitionLog) -> None:
    rows = [Record(-1, WALL_MS, b"k", b"v" * 100) for _ in range(5)]
    log.append_as_leader(build_batch(rows), 0, WALL_MS)
