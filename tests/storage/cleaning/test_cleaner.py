"""Compaction as the owner of a table-like topic sees it: what stays, what goes, and when."""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from storage import files
from storage.checkpoint import CLEANER_OFFSET_CHECKPOINT
from storage.cleaning.cleaner import CleanerConfig
from storage.cleaning.log_cleaning import Pace, group_segments
from storage.log.partition_log import PartitionLog
from storage.segments.segment import LogSegment
from testkit.clock import WALL_MS, ManualClock
from tests.storage.cleaning.cleaner_support import (
    DAY_MS,
    Cleaned,
    batches,
    committed,
    compacted,
    offsets,
    records,
    table,
)
from tests.storage.log_support import (
    FaultyDisk,
    ManualScheduler,
)
from wire.errors import KafkaError
from wire.records import ControlRecordType, Record, build_batch, read_records

COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def checkpoint(root: Path) -> str:
    path = root / CLEANER_OFFSET_CHECKPOINT
    return path.read_text() if path.exists() else ""


def temporary_files(log: PartitionLog) -> list[str]:
    return [
        name
        for name in os.listdir(log.directory)
        if name.endswith((".cleaned", ".swap", ".deleted"))
    ]


# --- keys --------------------------------------------------------------------------------------


def test_the_newest_record_of_each_key_stays_with_its_offset(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    one.append((b"a", b"1"), (b"b", b"1"))
    one.append((b"a", b"2"))
    one.append((b"c", b"1"), (b"a", b"3"))
    assert one.clean()
    assert [(r.offset, r.key, r.value) for r in records(one.log)] == [
        (1, b"b", b"1"),
        (3, b"c", b"1"),
        (4, b"a", b"3"),
    ]
    assert (one.log.log_start_offset, one.log.log_end_offset) == (0, 5)


def test_long_keys_are_told_apart(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    keys = [b"k" * 100 + bytes([number]) for number in range(20)]
    for value in (b"old", b"new"):
        for key in keys:
            one.append((key, value))
    assert one.clean()
    assert table(records(one.log)) == dict.fromkeys(keys, b"new")
    assert len(records(one.log)) == 20


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
def test_a_batch_keeps_its_codec_times_headers_and_epoch(tmp_path: Path, codec: int) -> None:
    one = Cleaned(tmp_path)
    rows = [
        Record(-1, WALL_MS + 30, b"gone", b"x" * 50),
        Record(-1, WALL_MS - 70, b"kept", b"y" * 50, (("h", b"v"), ("n", None))),
        Record(-1, WALL_MS + 10, b"also", b"", ()),
    ]
    one.log.append_as_leader(build_batch(rows, codec=codec), 7, WALL_MS)
    one.append((b"gone", b"z"))
    assert one.clean()
    (header, data), *_ = batches(one.log)
    assert (header.codec, header.leader_epoch) == (codec, 7)
    assert (header.base_offset, header.last_offset, header.records_count) == (0, 2, 2)
    assert header.max_timestamp == WALL_MS + 10
    kept = list(read_records(data))
    assert [(r.offset, r.timestamp, r.key) for r in kept] == [
        (1, WALL_MS - 70, b"kept"),
        (2, WALL_MS + 10, b"also"),
    ]
    assert list(kept[0].headers) == [("h", b"v"), ("n", None)]


def test_under_log_append_time_the_brokers_time_stays(tmp_path: Path) -> None:
    one = Cleaned(tmp_path, compacted(message_timestamp_type="LogAppendTime"))
    one.append((b"a", b"1"), (b"b", None))
    one.append((b"a", b"2"))
    one.clock.ms += 1000
    assert one.clean()
    assert [r.timestamp for r in records(one.log)] == [WALL_MS, WALL_MS]


def test_what_loses_nothing_is_written_byte_for_byte(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    one.append((b"a", b"1"), codec=1)
    one.append((b"b", b"1"))
    before = [data for _, data in batches(one.log)]
    assert one.clean()
    assert [data for _, data in batches(one.log)] == before


def test_records_without_a_key_cannot_stay_in_a_compacted_log(tmp_path: Path) -> None:
    one = Cleaned(tmp_path, compacted(cleanup_policy=frozenset({"delete"})))
    one.append((None, b"x"), (b"a", b"1"))
    one.log.update_config(compacted())
    assert one.clean()
    assert [r.key for r in records(one.log)] == [b"a"]
    assert one.cleaner.last_stats.invalid_records == 1


def test_a_batch_larger_than_the_read_buffer_is_cleaned(tmp_path: Path) -> None:
    config = CleanerConfig(log_cleaner_io_buffer_size=100)
    one = Cleaned(tmp_path, cleaner_config=config)
    one.append((b"a", b"x" * 200_000), (b"b", b"y" * 200_000))
    one.append((b"a", b"z" * 300_000))
    assert one.clean()
    assert table(records(one.log)) == {b"a": b"z" * 300_000, b"b": b"y" * 200_000}


def test_readers_at_any_offset_find_the_next_record_that_is_left(tmp_path: Path) -> None:
    one = Cleaned(tmp_path, compacted(segment_bytes=300, index_interval_bytes=1))
    for number in range(40):
        one.append((b"k%d" % (number % 7), b"v%d" % number))
    assert one.clean()
    left = offsets(records(one.log))
    for offset in range(one.log.log_end_offset):
        following = [r.offset for _, data in batches(one.log, offset) for r in read_records(data)]
        assert [at for at in following if at >= offset] == [at for at in left if at >= offset]


def test_times_lead_to_what_is_left(tmp_path: Path) -> None:
    one = Cleaned(tmp_path, compacted(index_interval_bytes=1))
    for number in range(20):
        one.clock.ms = number * 10
        one.append((b"k%d" % (number % 3), b"v"))
    assert one.clean()
    found = one.log.offset_for_timestamp(WALL_MS + 50)
    assert found is not None
    assert (found.offset, found.timestamp) == (17, WALL_MS + 170)
    newest = one.log.max_timestamp_offset()
    assert newest is not None
    assert newest.offset == 19


def test_the_newest_time_is_a_records_even_if_a_later_batch_was_emptied(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    one.append((b"a", b"1"))
    one.clock.ms = 500
    one.append((b"b", b"1"))
    assert one.clean()
    one.clock.ms = 100
    one.append((b"b", b"2"))
    assert one.clean()
    newest = one.log.max_timestamp_offset()
    assert newest is not None
    assert (newest.offset, newest.timestamp) == (2, WALL_MS + 100)


def test_a_follower_takes_a_cleaned_log_as_it_is(tmp_path: Path) -> None:
    leader, follower = Cleaned(tmp_path / "leader"), Cleaned(tmp_path / "follower")
    for number in range(12):
        leader.clock.ms = number
        leader.append((b"k%d" % (number % 3), b"%d" % number))
    leader.append((b"x", b"1"), producer_id=4, producer_epoch=0, base_sequence=0)
    leader.append((b"x", b"2"))
    assert leader.clean()
    leader.clock.ms = 5
    leader.append((b"x", b"3"))
    assert leader.clean()
    for _, data in batches(leader.log):
        follower.log.append_as_follower(data, 0)
    assert records(follower.log) == records(leader.log)
    assert follower.log.log_end_offset == leader.log.log_end_offset
    newest = follower.log.max_timestamp_offset()
    assert newest is not None
    assert newest == leader.log.max_timestamp_offset()
    again = build_batch(
        [Record(-1, WALL_MS, b"x", b"1")], producer_id=4, producer_epoch=0, base_sequence=0
    )
    assert follower.log.append_as_leader(again, 0, WALL_MS).duplicate


# --- tombstones --------------------------------------------------------------------------------


def test_a_deletion_stays_visible_for_delete_retention_ms_and_then_goes(tmp_path: Path) -> None:
    one = Cleaned(tmp_path, compacted(delete_retention_ms=DAY_MS))
    one.append((b"a", b"1"), (b"b", b"1"))
    one.append((b"a", None))
    assert one.clean()
    assert [(r.key, r.value) for r in records(one.log)] == [(b"b", b"1"), (b"a", None)]
    header = [header for header, _ in batches(one.log) if header.records_count][1]
    assert header.has_delete_horizon
    assert header.base_timestamp == WALL_MS + DAY_MS
    assert [r.timestamp for r in records(one.log)] == [WALL_MS, WALL_MS]

    one.clock.ms = DAY_MS - 1
    one.append((b"c", b"1"))
    assert one.clean()
    assert [r.key for r in records(one.log)] == [b"b", b"a", b"c"]

    one.clock.ms = DAY_MS
    one.append((b"d", b"1"))
    assert one.clean()
    assert [r.key for r in records(one.log)] == [b"b", b"c", b"d"]


def test_the_horizon_counts_from_the_first_cleaning_and_not_from_the_last(tmp_path: Path) -> None:
    one = Cleaned(tmp_path, compacted(delete_retention_ms=1000))
    one.append((b"a", None))
    for step in range(5):
        one.clock.ms = 300 * step
        one.append((b"b%d" % step, b"1"))
        assert one.clean()
        assert (b"a" in [r.key for r in records(one.log)]) == (one.clock.ms < 1000)


def test_a_value_after_a_deletion_is_no_deletion(tmp_path: Path) -> None:
    one = Cleaned(tmp_path, compacted(delete_retention_ms=0))
    one.append((b"a", b"1"))
    one.append((b"a", None))
    one.append((b"a", b"2"))
    for _ in range(3):
        one.clean()
        one.append((b"other", b"x"))
    assert table(records(one.log)) == {b"a": b"2", b"other": b"x"}


# --- what must wait ----------------------------------------------------------------------------


def test_the_active_segment_is_never_cleaned(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    one.append((b"a", b"1"))
    one.append((b"a", b"2"))
    one.log.update_high_watermark(2)
    assert not one.clean(roll=False)
    assert len(records(one.log)) == 2


def test_nothing_above_the_high_watermark_is_cleaned(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    for number in range(4):
        one.append((b"a", b"%d" % number))
        one.log.roll()
    one.log.update_high_watermark(2)
    assert one.clean(roll=False)
    assert offsets(records(one.log)) == [1, 2, 3]
    one.log.update_high_watermark(4)
    assert one.clean(roll=False)
    assert offsets(records(one.log)) == [3]


def test_an_open_transaction_holds_cleaning_back(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    one.append((b"a", b"1"))
    one.roll()
    one.append(
        (b"a", b"2"), producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    one.append((b"a", b"3"))
    one.clean()
    assert offsets(records(one.log)) == [0, 1, 2]
    one.end_transaction(9, COMMIT)
    assert one.clean()
    assert [r.value for r in records(one.log)] == [b"3"]


def test_young_records_wait_for_min_compaction_lag_ms(tmp_path: Path) -> None:
    one = Cleaned(tmp_path, compacted(min_compaction_lag_ms=1000))
    one.append((b"a", b"1"))
    one.append((b"a", b"2"))
    one.roll()
    one.clock.ms = 500
    one.append((b"a", b"3"))
    assert not one.clean()
    one.clock.ms = 1000
    assert one.clean(roll=False)
    assert [r.value for r in records(one.log)] == [b"2", b"3"]


def test_what_is_not_to_be_cleaned_yet_counts_neither_as_dirty_nor_as_clean(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    one.append((b"a", b"1"))
    one.roll()
    one.append((b"b", b"x" * 1000))
    closed, active = one.log.segments.items
    part = one.cleaner.cleanable_part(one.log)
    assert active.size > closed.size > 0
    assert (part.clean_bytes, part.cleanable_bytes) == (0, closed.size)
    assert part.first_uncleanable_offset == active.base_offset


def test_a_log_waits_for_its_dirty_ratio_but_not_longer_than_max_compaction_lag_ms(
    tmp_path: Path,
) -> None:
    one = Cleaned(tmp_path, compacted(min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=60_000))
    one.append(*((b"k%d" % number, b"v" * 100) for number in range(10)))
    assert one.clean()
    one.append((b"k1", b"new"))
    assert not one.clean()
    one.clock.ms = 60_001
    assert one.clean(roll=False)
    assert len(records(one.log)) == 10
    assert not one.clean(roll=False)


def test_a_segment_is_rolled_in_time_for_max_compaction_lag_ms(tmp_path: Path) -> None:
    one = Cleaned(tmp_path, compacted(max_compaction_lag_ms=60_000))
    one.append((b"a", b"1"))
    one.clock.ms = 60_001
    one.append((b"a", b"2"))
    assert [segment.base_offset for segment in one.log.segments] == [0, 1]


def test_the_dirtiest_log_comes_first(tmp_path: Path) -> None:
    logs = [Cleaned(tmp_path / str(number)) for number in range(3)]
    cleaner = logs[0].cleaner
    cleaner._logs = lambda: [each.log for each in logs]
    for each, dirty in zip(logs, (1, 5, 2), strict=True):
        each.append(*((b"k%d" % number, b"v" * 50) for number in range(10)))
        each.roll()
        assert cleaner.clean_filthiest()
        each.append(*((b"k%d" % number, b"w" * 50) for number in range(dirty)))
        each.roll()
    order = []
    while (chosen := cleaner.choose()) is not None:
        order.append(chosen.log)
        cleaner.clean(chosen)
    assert order == [logs[1].log, logs[2].log, logs[0].log]


def test_a_log_that_is_not_compacted_is_left_alone(tmp_path: Path) -> None:
    one = Cleaned(tmp_path, compacted(cleanup_policy=frozenset({"delete"})))
    one.append((b"a", b"1"))
    one.append((b"a", b"2"))
    assert not one.clean()


def test_a_full_map_cleans_up_to_there_and_goes_on_next_time(tmp_path: Path) -> None:
    config = CleanerConfig(
        log_cleaner_dedupe_buffer_size=4 * 200, log_cleaner_io_buffer_load_factor=1.0
    )
    one = Cleaned(tmp_path, compacted(segment_bytes=250), config)
    latest = {}
    for number in range(60):
        key = b"k%d" % (number * 7 % 13)
        latest[key] = number
        one.append((key, b"v%d" % number))
    rounds = 0
    assert one.clean()
    while one.clean(roll=False):
        rounds += 1
        assert rounds < 60, "no progress"
        assert table(records(one.log)).keys() == latest.keys()
    assert rounds > 5
    assert {r.key: r.offset for r in records(one.log)} == latest
    assert len(records(one.log)) == 13


def test_an_index_that_leads_too_far_lets_no_deleted_value_live_on(tmp_path: Path) -> None:
    config = CleanerConfig(
        log_cleaner_dedupe_buffer_size=4 * 200, log_cleaner_io_buffer_load_factor=1.0
    )
    one = Cleaned(tmp_path, cleaner_config=config)
    for number, key in enumerate((b"a", b"b", b"c", b"d", b"e", b"a", b"f")):
        one.append((key, None if number == 5 else b"1"))
    assert one.clean()
    segment = one.log.segments.items[0]
    last = [position for position, _ in segment.batches(0)][-1]
    index = segment.offset_index
    index.close()
    index.path.write_bytes(struct.pack(">ii", 4, last))
    assert one.clean(roll=False)
    assert [(r.key, r.value) for r in records(one.log) if r.key == b"a"] == [(b"a", None)]


# --- producers and transactions ----------------------------------------------------------------


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_repeated_batch_is_known_after_cleaning_and_restart(
    tmp_path: Path, is_clean: bool
) -> None:
    one = Cleaned(tmp_path)
    for sequence in range(3):
        one.append((b"a", b"1"), producer_id=4, producer_epoch=2, base_sequence=sequence)
    one.append((b"a", b"2"))
    assert one.clean()
    assert [r.value for r in records(one.log)] == [b"2"]
    if is_clean:
        one.log.flush()
        one.log.close()
    for name in os.listdir(one.log.directory):
        if name.endswith(".snapshot"):
            os.unlink(one.log.directory / name)
    one.open(had_clean_shutdown=is_clean, recovery_point=4 if is_clean else 0)
    again = build_batch(
        [Record(-1, WALL_MS, b"a", b"1")], producer_id=4, producer_epoch=2, base_sequence=2
    )
    info = one.log.append_as_leader(again, 0, WALL_MS)
    assert info.duplicate
    assert (info.first_offset, info.last_offset) == (2, 2)
    with pytest.raises(KafkaError, match="expected 3"):
        one.append((b"a", b"x"), producer_id=4, producer_epoch=2, base_sequence=5)
    assert one.append((b"a", b"4"), producer_id=4, producer_epoch=2, base_sequence=3) == 4


def test_a_producer_that_is_forgotten_keeps_no_empty_batch(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    one.append((b"a", b"1"), producer_id=4, producer_epoch=0, base_sequence=0)
    one.append((b"a", b"2"))
    assert one.clean()
    assert [h.producer_id for h, _ in batches(one.log)] == [4, -1]
    one.clock.ms = 2 * DAY_MS
    with one.log.lock:
        one.log.producer_state.remove_expired(one.clock.wall_ms())
    one.append((b"b", b"2"))
    assert one.clean()
    assert [h.producer_id for h, _ in batches(one.log)] == [-1, -1]


def begin(one: Cleaned, producer_id: int, *pairs: tuple[bytes, bytes], sequence: int = 0) -> None:
    one.append(
        *pairs,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )


def test_aborted_records_neither_stay_nor_outdate_committed_ones(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    one.append((b"a", b"committed"))
    begin(one, 9, (b"a", b"aborted"), (b"b", b"aborted"))
    one.end_transaction(9, ABORT)
    begin(one, 8, (b"c", b"committed"))
    one.end_transaction(8, COMMIT)
    one.append((b"d", b"plain"))
    before = committed(_at_end(one).log)
    assert one.clean()
    assert committed(one.log) == before
    assert table(records(one.log)) == {
        b"a": b"committed",
        b"c": b"committed",
        b"d": b"plain",
    }


def _at_end(one: Cleaned) -> Cleaned:
    one.log.update_high_watermark(one.log.log_end_offset)
    return one


def test_a_marker_goes_after_its_records_went_and_its_horizon_passed(tmp_path: Path) -> None:
    one = Cleaned(tmp_path, compacted(delete_retention_ms=1000))
    begin(one, 9, (b"a", b"aborted"))
    one.end_transaction(9, ABORT)
    begin(one, 8, (b"b", b"committed"))
    one.end_transaction(8, COMMIT)
    # Later transactions, so that the markers are not the last the producers wrote.
    begin(one, 9, (b"x", b"1"), sequence=1)
    one.end_transaction(9, COMMIT)
    begin(one, 8, (b"y", b"1"), sequence=1)
    one.end_transaction(8, COMMIT)

    def markers() -> list[int]:
        return [h.base_offset for h, _ in batches(one.log) if h.is_control and h.records_count]

    one.append((b"1", b""))
    assert one.clean()
    assert markers() == [1, 3, 5, 7]
    assert [t.first_offset for t in one.log.aborted_transactions(0, 10)] == [0]

    one.append((b"2", b""), (b"b", b"newer"))  # the horizon of marker 1 is set now
    one.clock.ms = 500
    assert one.clean()
    assert markers() == [1, 3, 5, 7]
    assert one.log.aborted_transactions(0, 10) == []

    one.clock.ms = 1500
    one.append((b"3", b""))
    assert one.clean()  # and that of marker 3, whose record went in the cleaning before
    assert markers() == [3, 5, 7]

    one.clock.ms = 2500
    one.append((b"4", b""))
    assert one.clean()
    assert markers() == [5, 7]
    assert table(committed(_at_end(one).log)) == {
        b"b": b"newer", b"x": b"1", b"y": b"1", b"1": b"", b"2": b"", b"3": b"", b"4": b"",
    }  # fmt: skip


def test_a_transaction_over_several_segments_is_known_to_be_aborted(tmp_path: Path) -> None:
    one = Cleaned(tmp_path, compacted(segment_bytes=200))
    one.append((b"a", b"0"))
    for sequence in range(8):
        begin(one, 9, (b"a", b"aborted %d" % sequence), sequence=sequence)
        one.append((b"k%d" % sequence, b"x"))
    one.end_transaction(9, ABORT)
    one.append((b"z", b"x"))
    before = table(committed(_at_end(one).log))
    assert before[b"a"] == b"0"
    for _ in range(3):
        assert one.clean()
        assert {key: table(committed(one.log)).get(key) for key in before} == before
        one.append((b"more", b"x"))


def with_a_marker_compacted_away(root: Path) -> Cleaned:
    """Its transaction, of which nothing is left, was open when the second segment began."""
    one = Cleaned(root, compacted(delete_retention_ms=0, segment_bytes=2000))
    begin(one, 7, (b"a", b"1"))
    one.append((b"fills", b"x" * 1500))
    one.roll()
    one.end_transaction(7, COMMIT, epoch=1)
    one.append((b"fills too", b"x" * 1500))
    one.roll()
    one.append((b"a", b"2"))
    for _ in range(3):
        one.append((b"k", b"x" * 1500))
        assert one.clean()
        one.clock.ms += 1
    assert [segment.base_offset for segment in one.log.segments][:2] == [0, 2]
    markers = [header for header, _ in batches(one.log) if header.is_control]
    assert not any(header.records_count for header in markers)
    return one


def test_a_transaction_whose_marker_was_compacted_away_stays_ended_after_a_crash(
    tmp_path: Path,
) -> None:
    """The indexes of the segment where the marker was are doubted, and made anew."""
    one = with_a_marker_compacted_away(tmp_path)
    one.open(recovery_point=one.log.segments.items[2].base_offset)
    one.log.update_high_watermark(one.log.log_end_offset)
    assert one.log.last_stable_offset == one.log.log_end_offset


def test_a_transaction_whose_marker_was_compacted_away_stays_ended_after_a_truncation(
    tmp_path: Path,
) -> None:
    """As after an unclean election, to below where the newest snapshots are."""
    log = with_a_marker_compacted_away(tmp_path).log
    log.truncate_to(log.segments.items[2].base_offset - 1)
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset


def test_a_transaction_whose_marker_was_compacted_away_stays_ended_without_newer_snapshots(
    tmp_path: Path,
) -> None:
    one = with_a_marker_compacted_away(tmp_path)
    for path in sorted(one.log.directory.glob("*.snapshot"))[1:]:
        path.write_bytes(b"torn")
    one.open(recovery_point=one.log.log_end_offset)
    one.log.update_high_watermark(one.log.log_end_offset)
    assert one.log.last_stable_offset == one.log.log_end_offset


# --- segments ----------------------------------------------------------------------------------


def test_small_segments_become_one_and_the_next_begins_where_it_ends(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    for number in range(6):
        one.append((b"k%d" % (number // 2), b"v" * 20))
        one.log.roll()
    one.log.update_high_watermark(6)
    one.log.update_config(compacted(segment_bytes=300))
    assert one.clean(roll=False)
    segments = one.log.segments.items
    assert len(segments) < 6
    for segment, following in pairwise(segments):
        assert segment.read_next_offset() == following.base_offset
    assert temporary_files(one.log) == []
    names = sorted(name for name in os.listdir(one.log.directory) if name.endswith(".log"))
    assert names == [segment.path.name for segment in segments]


def test_groups_respect_bytes_indexes_and_offset_range(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)

    def segments(*described: tuple[int, int]) -> list[LogSegment]:
        made = []
        for base_offset, size in described:
            segment = LogSegment(
                tmp_path,
                base_offset,
                index_interval_bytes=1,
                index_size_max=1000,
                created_ms=0,
                open_files=one.log.environment.open_files,
            )
            segment.size = size
            made.append(segment)
        return made

    def bases(groups: list[list[LogSegment]]) -> list[list[int]]:
        return [[segment.base_offset for segment in group] for group in groups]

    some = segments((0, 60), (10, 40), (20, 1), (30, 0))
    assert bases(group_segments(some, 100, 1000, 40)) == [[0, 10], [20, 30]]
    far = segments((0, 1), (2**31 - 5, 1), (2**31 + 5, 1))
    assert bases(group_segments(far, 100, 1000, 2**31 + 9)) == [[0], [2**31 - 5, 2**31 + 5]]
    for number in range(5):
        some[0].offset_index.append(number, number)
        some[1].offset_index.append(10 + number, number)
    assert bases(group_segments(some, 1000, 79, 40)) == [[0], [10, 20, 30]]


def test_the_new_segment_is_as_old_as_the_last_it_was_made_from(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    one.append((b"a", b"1"))
    one.append((b"a", b"2"))
    one.roll()
    os.utime(one.log.segments.items[0].path, (1_000_000, 1_000_000))
    assert one.clean(roll=False)
    assert one.log.segments.items[0].last_modified_ms() == 1_000_000_000


def test_old_files_go_after_file_delete_delay_ms(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    scheduler = ManualScheduler()
    one.log.environment.scheduler = scheduler
    one.append((b"a", b"1"))
    one.append((b"a", b"2"))
    one.roll()
    before = one.log.read(0, 1000, True, 2)
    assert one.clean(roll=False)
    assert sorted(temporary_files(one.log))[0] == "00000000000000000000.index.deleted"
    assert [task.delay_ms for task in scheduler.once if task.name == "delete-segments"] == [60_000]
    scheduler.run()
    assert temporary_files(one.log) == []
    # Who had the old file still reads it.
    assert before.records is not None
    assert [r.value for r in read_records(before.records.read())] == [b"1"]


def test_everything_is_on_disk_before_anything_is_dropped_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Cleaned(tmp_path)
    one.append((b"a", b"1"))
    one.roll()
    one.append((b"a", b"2"))
    one.roll()
    synced_at_rename: list[int] = []
    real = files.replace

    def replace(source: Path, target: Path) -> None:
        synced_at_rename.append(one.log.flushed_offset)
        real(source, target)

    monkeypatch.setattr(files, "replace", replace)
    assert one.clean(roll=False)
    assert min(synced_at_rename) == 2


def test_names_are_on_disk_before_what_leads_to_what_they_replace_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss in between would leave neither the new segment nor the old ones."""
    one = two_dirty_segments(tmp_path)
    one.log.flush()
    done: list[str] = []

    def note(name: str, what: Callable[[Path], str]) -> None:
        real = getattr(files, name)

        def noted(path: Path, *more: Path) -> None:
            real(path, *more)
            done.append(what(path))

        monkeypatch.setattr(files, name, noted)

    note("sync_directory", lambda path: "synced" if path == one.log.directory else "")
    note("replace", lambda path: "renamed" if path.suffix == ".cleaned" else "")
    note("unlink", lambda path: "unlinked" if path.suffix == ".deleted" else "")
    assert one.clean(roll=False)
    assert [name for name, _ in groupby(filter(None, done))] == [
        "synced",
        "renamed",
        "synced",
        "unlinked",
    ]


def test_snapshots_go_with_the_segments_that_began_there(tmp_path: Path) -> None:
    one = two_dirty_segments(tmp_path)
    one.append((b"k0", b"6"))
    one.roll()
    assert one.clean(roll=False)
    bases = [segment.base_offset for segment in one.log.segments]
    assert bases == [0, 7]
    assert [int(path.stem) for path in one.log.directory.glob("*.snapshot")] == [7]


# --- the checkpoint ----------------------------------------------------------------------------


def test_the_first_dirty_offset_survives_a_restart_in_kafkas_format(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    one.append((b"a", b"1"))
    one.append((b"a", b"2"))
    assert one.clean()
    assert checkpoint(tmp_path) == "0\n1\norders 0 2\n"
    one.log.flush()
    one.log.close()
    one.open(had_clean_shutdown=True, recovery_point=2)
    assert not one.clean()
    one.append((b"a", b"3"))
    one.roll()
    chosen = one.cleaner.choose()
    assert chosen is not None
    assert chosen.first_dirty_offset == 2


def test_a_corrupt_checkpoint_only_means_cleaning_again(tmp_path: Path) -> None:
    (tmp_path / CLEANER_OFFSET_CHECKPOINT).write_text("0\n1\nnonsense\n")
    one = Cleaned(tmp_path)
    one.append((b"a", b"1"))
    one.append((b"a", b"2"))
    assert one.clean()
    assert checkpoint(tmp_path) == "0\n1\norders 0 2\n"


def test_a_deletion_written_after_a_truncation_deletes(tmp_path: Path) -> None:
    """Without taking the checkpoint back the tombstone would be taken for a cleaned one, dropped
    after its horizon, and the older value would come back."""
    one = Cleaned(tmp_path, compacted(delete_retention_ms=100))
    one.append((b"a", b"1"))
    one.append((b"x", b"1"))
    one.append((b"y", b"1"))
    assert one.clean()
    one.log.truncate_to(1)
    assert checkpoint(tmp_path) == "0\n1\norders 0 1\n"
    one.append((b"a", None))
    one.append((b"y", b"2"))
    for _ in range(4):
        one.append((b"z", b"1"))
        assert one.clean()
        one.clock.ms += 200
        assert b"a" not in table(records(one.log))


def test_what_recovery_cut_off_is_dirty_again(tmp_path: Path) -> None:
    one = Cleaned(tmp_path, compacted(delete_retention_ms=100))
    one.append((b"a", b"1"))
    one.append((b"x", b"1"))
    assert one.clean()
    one.log.close()
    first = sorted(one.log.directory.glob("*.log"))[0]
    data = first.read_bytes()
    first.write_bytes(data[:-1])
    one.open()
    assert checkpoint(tmp_path) == "0\n1\norders 0 1\n"
    one.append((b"a", None))
    for _ in range(4):
        one.append((b"z", b"1"))
        assert one.clean()
        one.clock.ms += 200
        assert b"a" not in table(records(one.log))


def test_deleted_records_at_the_start_are_not_looked_at(tmp_path: Path) -> None:
    one = Cleaned(tmp_path)
    for number in range(6):
        one.append((b"a", b"%d" % number))
    one.roll()
    one.log.increment_log_start_offset(3)
    chosen = one.cleaner.choose()
    assert chosen is not None
    assert chosen.first_dirty_offset == 3
    assert one.clean(roll=False)
    assert [r.value for r in records(one.log)] == [b"5"]
    assert one.log.log_start_offset == 3


# --- a log that changes meanwhile --------------------------------------------------------------


class Meanwhile:
    """Lets something happen when the cleaner is about to write, or to swap."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def before_swap(self, act: Callable[[], object]) -> None:
        self._around_swap(act, lambda: None)

    def after_swap(self, act: Callable[[], object]) -> None:
        self._around_swap(lambda: None, act)

    def _around_swap(self, before: Callable[[], object], after: Callable[[], object]) -> None:
        from storage.cleaning import log_cleaning as cleaning

        real = cleaning.replace_segments

        def replace_segments(*args: object) -> None:
            self._monkeypatch.setattr(cleaning, "replace_segments", real)
            before()
            real(*args)  # type: ignore[arg-type]
            after()

        self._monkeypatch.setattr(cleaning, "replace_segments", replace_segments)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    return Meanwhile(monkeypatch)


def two_dirty_segments(tmp_path: Path) -> Cleaned:
    one = Cleaned(tmp_path)
    for number in range(6):
        one.append((b"k%d" % (number % 2), b"%d" % number))
        if number % 2:
            one.roll()
    return one


def test_a_truncation_wins_over_the_cleaning(tmp_path: Path, meanwhile: Meanwhile) -> None:
    one = two_dirty_segments(tmp_path)
    meanwhile.before_swap(lambda: one.log.truncate_to(3))
    assert not one.clean(roll=False)
    assert offsets(records(one.log)) == [0, 1, 2]
    assert temporary_files(one.log) == []
    assert "orders" not in checkpoint(tmp_path)
    one.append((b"k0", b"new"))
    assert one.clean()
    assert table(records(one.log)) == {b"k0": b"new", b"k1": b"1"}


def test_a_truncation_right_after_the_last_swap_is_not_forgotten(
    tmp_path: Path, meanwhile: Meanwhile
) -> None:
    one = two_dirty_segments(tmp_path)
    meanwhile.after_swap(lambda: one.log.truncate_to(5))
    assert one.clean(roll=False)
    chosen = one.cleaner.cleanable_part(one.log)
    assert chosen.first_dirty_offset <= 5
    assert "orders 0 6" not in checkpoint(tmp_path)


def test_a_reader_in_a_gap_misses_nothing_when_segments_become_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Kafka's cleaner leaves gaps at the ends of segments. Who looked for offset 2 in the
    first segment must go on in the second, though both have become one by then."""
    one = Cleaned(tmp_path, compacted(segment_bytes=100))
    for base_offset, key in ((0, b"a"), (4, b"b"), (8, b"a")):
        rows = [Record(base_offset, WALL_MS, key, b"x" * 20)]
        one.log.append_as_follower(build_batch(rows, base_offset=base_offset, leader_epoch=0), 0)
    one.log.close()
    for path in one.log.directory.glob("*[15].*"):
        if path.suffix == ".log":  # what is named 1 and 5 begins at 4 and 8
            path.rename(path.with_stem(f"{int(path.stem) + 3:020d}"))
        else:
            path.unlink()
    one.config = compacted()
    one.open(had_clean_shutdown=True)
    assert [segment.base_offset for segment in one.log.segments] == [0, 4, 8]
    one.log.update_high_watermark(9)
    real = LogSegment.position_of

    def position_of(segment: LogSegment, offset: int) -> int | None:
        monkeypatch.setattr(LogSegment, "position_of", real)
        found = real(segment, offset)
        assert one.clean(roll=False)
        assert [segment.base_offset for segment in one.log.segments] == [0, 8]
        return found

    monkeypatch.setattr(LogSegment, "position_of", position_of)
    assert [header.base_offset for header, _ in batches(one.log, 2)] == [4, 8]


def test_retention_wins_over_the_cleaning(tmp_path: Path, meanwhile: Meanwhile) -> None:
    one = two_dirty_segments(tmp_path)

    def delete_first_segment() -> None:
        one.log.increment_log_start_offset(2)
        assert one.log.delete_old_segments(one.clock.wall_ms()) == 1

    meanwhile.before_swap(delete_first_segment)
    assert not one.clean(roll=False)
    assert offsets(records(one.log)) == [2, 3, 4, 5]
    assert temporary_files(one.log) == []
    assert one.clean(roll=False)
    assert offsets(records(one.log)) == [4, 5]


def test_a_closed_log_is_not_touched(tmp_path: Path, meanwhile: Meanwhile) -> None:
    one = two_dirty_segments(tmp_path)
    meanwhile.before_swap(one.log.close)
    before = sorted(p.read_bytes() for p in one.log.directory.glob("*.log"))
    assert not one.clean(roll=False)
    assert sorted(p.read_bytes() for p in one.log.directory.glob("*.log")) == before
    assert temporary_files(one.log) == []
    assert checkpoint(tmp_path) == ""
    assert not one.cleaner.uncleanable


def test_appends_go_on_and_are_kept(tmp_path: Path, meanwhile: Meanwhile) -> None:
    one = two_dirty_segments(tmp_path)
    meanwhile.before_swap(lambda: (one.append((b"k0", b"late")), one.roll()))
    assert one.clean(roll=False)
    assert table(records(one.log)) == {b"k0": b"late", b"k1": b"5"}


def test_stopping_gives_the_cleaning_up(tmp_path: Path) -> None:
    one = two_dirty_segments(tmp_path)
    one.cleaner.shutdown()
    assert not one.clean(roll=False)
    assert len(records(one.log)) == 6
    assert temporary_files(one.log) == []


# --- trouble -----------------------------------------------------------------------------------


def test_a_flipped_bit_is_not_stored_again_under_a_right_checksum(tmp_path: Path) -> None:
    one = two_dirty_segments(tmp_path)
    path = one.log.segments.items[1].path
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    assert not one.clean(roll=False)
    assert path.read_bytes() == data
    assert set(one.cleaner.uncleanable) == {one.log}
    assert one.cleaner.choose() is None
    assert not one.log.is_offline
    assert temporary_files(one.log) == []


def test_a_full_disk_ends_the_cleaning_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    one = two_dirty_segments(tmp_path)
    disk = FaultyDisk(monkeypatch)
    disk.fail("pwritev", errno.ENOSPC, count=100)
    assert not one.clean(roll=False)
    assert not one.log.is_offline
    assert temporary_files(one.log) == []
    assert not one.cleaner.uncleanable
    disk.repair()
    assert one.clean(roll=False)
    assert table(records(one.log)) == {b"k0": b"4", b"k1": b"5"}


@pytest.mark.parametrize("name", ["replace", "fsync_directory"])
def test_a_swap_that_a_full_disk_cut_short_takes_the_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Only a start finds out which files are there."""
    import errno

    one = two_dirty_segments(tmp_path)
    one.log.flush()
    disk = FaultyDisk(monkeypatch)
    disk.fail(name, errno.ENOSPC, at=2)
    assert not one.clean(roll=False)
    assert one.log.is_offline
    disk.repair()
    one.open()
    assert table(records(one.log)) == {b"k0": b"4", b"k1": b"5"}


@pytest.mark.parametrize("name", ["pwritev", "fsync", "replace", "fsync_directory"])
def test_a_disk_that_fails_while_cleaning_goes_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    one = two_dirty_segments(tmp_path)
    one.log.flush()
    disk = FaultyDisk(monkeypatch)
    disk.fail(name, count=100)
    assert not one.clean(roll=False)
    assert one.log.is_offline
    disk.repair()
    one.open()
    assert table(records(one.log)) == {b"k0": b"4", b"k1": b"5"}


# --- speed -------------------------------------------------------------------------------------


def test_the_cleaner_keeps_to_its_bytes_per_second() -> None:
    clock = ManualClock()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.ms += int(seconds * 1000)

    pace = Pace(clock, 1_000_000, wait)
    for _ in range(100):
        clock.ms += 10
        pace.spend(100_000)
    # 10 MB at 1 MB/s, while the work itself took one second.
    assert clock.ms == pytest.approx(10_000, rel=0.1)
    waits.clear()
    pace.bytes_per_second = CleanerConfig().log_cleaner_io_max_bytes_per_second
    for _ in range(100):
        clock.ms += 10
        pace.spend(100_000)
    assert waits == []


@pytest.mark.parametrize("rate", [0, 1e-300, 1])
def test_who_was_slowed_down_too_far_goes_on_when_the_rate_is_put_right(rate: float) -> None:
    clock = ManualClock()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.ms += int(seconds * 1000)
        if len(waits) == 5:
            pace.bytes_per_second = 1e9

    pace = Pace(clock, rate, wait)
    pace.spend(1_000_000)
    assert waits == [1.0] * 5


def test_a_cleaner_that_stands_still_can_be_stopped() -> None:
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return True

    Pace(ManualClock(), 0, wait).spend(1_000_000)
    assert waits == [1.0]


# --- with others at work -----------------------------------------------------------------------


KEYS = 20


def check_like_a_consumer(log: PartitionLog) -> None:
    """Read all; the newest record of each key must be there, in order of offsets."""
    end = log.log_end_offset
    rows = records(log)
    known = offsets(rows)
    assert known == sorted(set(known)), "offsets go back"
    newest = {row.key: row.offset for row in rows}
    for offset in range(max(end - KEYS, 0), end):
        assert newest[b"k%d" % (offset % KEYS)] >= offset, "an old value was served as the newest"


@pytest.fixture
def many_thread_switches() -> Iterator[None]:
    """More interleavings, and no thread waits long for the interpreter."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("many_thread_switches")
def test_readers_and_writers_go_on_while_segments_are_replaced(tmp_path: Path) -> None:
    one = Cleaned(tmp_path, compacted(segment_bytes=4000, index_interval_bytes=200))
    done = threading.Event()
    turns, taken = threading.Semaphore(100), threading.Semaphore(0)
    problems: list[BaseException] = []
    appended = 0

    def repeat(work: Callable[[], object]) -> None:
        try:
            while not done.is_set():
                work()
        except BaseException as error:
            problems.append(error)
            done.set()
            taken.release()

    def append() -> None:
        nonlocal appended
        turns.acquire()
        one.append((b"k%d" % (appended % KEYS), b"%d" % appended))
        appended += 1
        if appended % 100 == 0:
            taken.release()

    def read() -> None:
        check_like_a_consumer(one.log)

    threads = [threading.Thread(target=repeat, args=(work,)) for work in (append, read, read)]
    for thread in threads:
        thread.start()
    try:
        while one.cleaner.cleanings < 8 and not done.is_set():
            taken.acquire()  # a hundred are written while those before are cleaned, and no more
            turns.release(100)
            one.log.update_high_watermark(one.log.log_end_offset)
            one.cleaner.clean_filthiest()
    finally:
        done.set()
        turns.release()
        for thread in threads:
            thread.join()
    assert problems == []
    assert one.clean()
    last = range(appended - KEYS, appended)
    assert table(records(one.log)) == {b"k%d" % (n % KEYS): b"%d" % n for n in last}
