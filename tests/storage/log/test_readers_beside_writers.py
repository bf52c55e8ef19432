"""A reader takes no lock, and a writer runs between two of its steps: the answer is one of before
or after, and nobody is harmed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from storage import files
from storage.config import LogConfig
from storage.log.append_source import FROM_COORDINATOR
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.log_reader import LogReader
from storage.log.partition_log import PartitionLog
from storage.open_files import FileHandle, FileSlice
from storage.segments.segment import LogSegment
from storage.segments.transaction_index import TransactionIndex
from testkit.clock import WALL_MS
from tests.storage.log_support import append, batch, interrupt, make_log, read_bytes
from wire.errors import KafkaError
from wire.records import (
    ControlRecordType,
    EndTxnMarker,
    check_crc,
    end_txn_marker_batch,
    iterate_headers,
)

MIB = 1 << 20


class Beside:
    """Another thread, which may have to wait until the first one is done."""

    def __init__(self, job: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=job)

    def __call__(self) -> None:
        self._thread.start()
        self._thread.join(0.3)

    def join(self) -> None:
        self._thread.join()


def ten(tmp_path: Path, config: LogConfig | None = None, high_watermark: int = 5) -> PartitionLog:
    log = make_log(tmp_path, config)
    for number in range(10):
        append(log, f"old {number}" * 5, timestamp=WALL_MS + number)
    log.update_high_watermark(high_watermark)
    return log


def forget_positions(log: PartitionLog) -> None:
    for segment in log.segments:
        segment._recent, segment._older = {}, {}


def newer(log: PartitionLog, first: int, *values: str, **options: Any) -> None:
    """What a new leader sends."""
    log.append_as_follower(batch(*values, base_offset=first, leader_epoch=1, **options), 1)


# --- a truncation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_written_again", [False, True])
@pytest.mark.parametrize(
    "read",
    [
        lambda log: log.read_bytes(3, MIB, 100),
        lambda log: log.offset_for_timestamp(WALL_MS + 7),
        lambda log: log.max_timestamp_offset(),
    ],
    ids=["bytes", "time", "newest"],
)
def test_what_is_cut_off_under_a_reader_is_no_failure_of_the_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[PartitionLog], Any],
    is_written_again: bool,
) -> None:
    log = ten(tmp_path)

    def other() -> None:
        log.truncate_to(5)
        if is_written_again:
            newer(log, 5, *["n" * 7] * 30, timestamp=WALL_MS - 50)

    interrupt(monkeypatch, FileSlice, "read", other)
    found = read(log)
    assert found == read(log)
    assert not log.environment.is_offline


def test_no_record_above_the_high_watermark_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ten(tmp_path)
    forget_positions(log)
    interrupt(
        monkeypatch,
        LogSegment,
        "position_of",
        lambda: log.truncate_to(5),
        only=lambda _, offset: offset == 5,
    )
    found = log.read(3, MIB, True, 5).records
    assert found is not None
    for offset in range(5, 9):
        newer(log, offset, "uncommitted" * 5)
    assert [header.last_offset for _, header in iterate_headers(found.read())] == [3, 4]


def test_a_segment_that_became_the_last_is_read_to_the_upper_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ten(tmp_path)
    log.roll()
    append(log, "later")
    interrupt(
        monkeypatch,
        LogSegment,
        "position_of",
        lambda: log.truncate_to(8),
        after=True,
        only=lambda _, offset: offset == 3,
    )
    found = log.read(3, MIB, True, 5).records
    assert found is not None
    assert [header.last_offset for _, header in iterate_headers(found.read())] == [3, 4]


def test_what_is_being_cut_off_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ten(tmp_path)
    seen: list[int] = []

    def read() -> None:
        data = log.read_bytes(3, MIB, log.high_watermark)
        seen.extend(header.last_offset for _, header in iterate_headers(data))

    reader = Beside(read)
    interrupt(monkeypatch, LeaderEpochCache, "truncate_from_end", reader)
    log.truncate_to(5)
    reader.join()
    assert seen == [3, 4]


def test_a_position_is_not_remembered_beyond_a_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ten(tmp_path, high_watermark=2)
    forget_positions(log)

    def other() -> None:
        log.truncate_to(2)
        newer(log, 2, *["n" * 40] * 30)

    interrupt(
        monkeypatch, LogSegment, "search", other, after=True, only=lambda _, offset: offset == 7
    )
    with suppress(KafkaError):
        log.read(7, MIB, True, 10)
    data = read_bytes(log, 7)
    (first, *_) = (head for at, head in iterate_headers(data) if check_crc(data, at, head))
    assert first.base_offset <= 7 <= first.last_offset


def test_a_truncation_above_the_high_watermark_is_no_corruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ten(tmp_path)
    forget_positions(log)
    interrupt(monkeypatch, files, "read_fully", lambda: log.truncate_to(5), at=2)
    assert log.read(3, MIB, True, 5).records is not None


def test_the_newest_time_is_not_kept_beyond_a_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ten(tmp_path, high_watermark=3)
    log.roll()
    append(log, "second segment", timestamp=WALL_MS + 20)
    log.segments.items[0]._max_timestamp = None  # as after a start: nobody asked yet
    interrupt(
        monkeypatch, LogSegment, "_read_max_timestamp", lambda: log.truncate_to(3), after=True
    )
    log.offset_for_timestamp(WALL_MS + 1)
    found = log.max_timestamp_offset()
    assert found is not None
    assert found.offset == 2


# --- an index that is made anew -------------------------------------------------------------------


def broken_index(tmp_path: Path) -> PartitionLog:
    """Of the first of two segments."""
    log = ten(tmp_path, LogConfig(index_interval_bytes=50), high_watermark=10)
    log.roll()
    append(log, "later")
    log.update_high_watermark(11)
    log.segments.items[0].offset_index._loaded().values[2] += 1
    forget_positions(log)
    return log


def test_a_search_by_time_beside_it_finds_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = broken_index(tmp_path)
    seen: list[Any] = []
    reader = Beside(lambda: seen.append(log.offset_for_timestamp(WALL_MS + 3)))
    interrupt(monkeypatch, LogSegment, "note_batch", reader)
    for offset in range(10):
        log.read(offset, MIB, True, 10)
    reader.join()
    assert [found.offset for found in seen] == [3]


def test_retention_does_not_take_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = broken_index(tmp_path)

    def retention() -> None:
        log.increment_log_start_offset(10)
        log.delete_old_segments(WALL_MS)

    beside = Beside(retention)
    interrupt(monkeypatch, LogReader, "_rebuild_indexes", beside)
    for offset in range(10):
        with suppress(KafkaError):
            log.read(offset, MIB, True, 11)
    beside.join()
    assert not log.environment.is_offline


# --- aborted transactions -------------------------------------------------------------------------


def aborted_one(tmp_path: Path) -> PartitionLog:
    log = make_log(tmp_path)
    producer = {"producer_id": 1, "producer_epoch": 0}
    append(log, "x", base_sequence=0, is_transactional=True, **producer)
    marker = end_txn_marker_batch(
        EndTxnMarker(ControlRecordType.ABORT, 0), timestamp=WALL_MS, **producer
    )
    log.append_as_leader(marker, 0, WALL_MS, FROM_COORDINATOR)
    log.update_high_watermark(2)
    return log


def none_is_hidden(log: PartitionLog) -> bool:
    """An error, which a consumer meets with another try, hides nothing."""
    try:
        found = log.read(0, MIB, True, 2, include_aborted=True)
    except KafkaError:
        return True
    return found.records is None or bool(found.aborted)


def test_none_is_hidden_by_a_log_that_gets_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a topic's deletion gives it, or the end of a move."""
    log = aborted_one(tmp_path)
    log.active_segment.txn_index.close()
    away = log.directory.with_name("orders-0.x-delete")

    def close_and_rename() -> None:
        log.close(is_kept=False)
        os.rename(log.directory, away)

    interrupt(monkeypatch, TransactionIndex, "_read", close_and_rename)
    interrupt(
        monkeypatch, TransactionIndex, "_read", lambda: log.change_directory(away), after=True
    )
    assert none_is_hidden(log)


def test_none_is_hidden_by_a_log_that_is_unlinked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File by file, in any order."""
    log = aborted_one(tmp_path)
    log.close(is_kept=False)
    (index,) = log.directory.glob("*.txnindex")
    interrupt(monkeypatch, TransactionIndex, "_read", index.unlink)
    assert none_is_hidden(log)


def test_none_is_hidden_by_a_segment_that_is_unlinked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has just opened its file."""
    log = aborted_one(tmp_path)
    log.roll()
    append(log, "later")
    log.update_high_watermark(3)
    log.segments.items[0].release_files()

    def retention() -> None:
        log.increment_log_start_offset(2)
        log.delete_old_segments(WALL_MS)

    ran = interrupt(
        monkeypatch,
        FileHandle,
        "open",
        retention,
        after=True,
        only=lambda path, *_: str(path).endswith("0.log"),
    )
    assert none_is_hidden(log)
    assert ran
