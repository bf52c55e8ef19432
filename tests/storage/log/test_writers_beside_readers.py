"""What works on a log's files without its lock, and another thread between two of its steps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage import files
from storage.cleaning.log_cleaning import Cleaning
from storage.log.leader_epochs import EpochEntry, LeaderEpochCache
from storage.log.partition_log import PartitionLog
from testkit.clock import WALL_MS
from tests.storage.cleaning.cleaner_support import Cleaned
from tests.storage.log_support import append, interrupt, make_log, read_from
from wire.records import check_crc, iterate_headers

VICTIM = b"another log's bytes" * 5000


def is_open_log(fd: int, *_: object) -> bool:
    return ".log" in os.readlink(f"/proc/self/fd/{fd}")


def ten_records(tmp_path: Path) -> PartitionLog:
    log = make_log(tmp_path)
    for number in range(10):
        append(log, f"value {number}")
    return log


def sealed_keys(tmp_path: Path) -> Cleaned:
    """Ten batches of three keys in a sealed segment, one record behind it."""
    log = Cleaned(tmp_path)
    for number in range(10):
        log.append((b"k%d" % (number % 3), b"v" * 50))
    log.roll()
    log.append((b"z", b"z"))
    log.log.update_high_watermark(11)
    return log


# --- descriptors -------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file that is opened once a log has let go, and so gets its descriptor's number."""
    path = tmp_path / "another log"
    path.write_bytes(VICTIM)
    return path


def test_a_log_that_is_closed_during_a_sync_does_not_fail_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EBADF of a sync would be final for the whole directory."""
    log = ten_records(tmp_path)
    ran = interrupt(monkeypatch, files, "fsync", lambda: log.close(is_kept=False), only=is_open_log)
    log.flush()
    assert ran
    assert not log.environment.is_offline


def test_a_file_that_the_cache_lets_go_while_it_is_cut_is_the_one_that_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: Path
) -> None:
    """Else the log that opens a file then loses its end."""
    log = ten_records(tmp_path)
    opened: list[int] = []

    def let_go() -> None:
        log.active_segment.release_descriptor()
        opened.append(os.open(victim, os.O_RDWR))

    interrupt(monkeypatch, files, "ftruncate", let_go, only=is_open_log)
    log.truncate_to(5)
    os.close(opened[0])
    assert victim.read_bytes() == VICTIM
    assert log.active_segment.path.stat().st_size == log.active_segment.size


def test_a_file_that_the_cache_lets_go_while_it_is_cut_to_a_size_is_the_one_that_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: Path
) -> None:
    """As above, by recovery."""
    segment = ten_records(tmp_path).active_segment
    opened: list[int] = []

    def let_go() -> None:
        segment.release_descriptor()
        opened.append(os.open(victim, os.O_RDWR))

    interrupt(monkeypatch, files, "ftruncate", let_go, only=is_open_log)
    segment.cut_to_size(10)
    os.close(opened[0])
    assert victim.read_bytes() == VICTIM
    assert segment.path.stat().st_size == 10


def test_a_cleaned_file_that_the_cache_lets_go_is_the_one_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: Path
) -> None:
    """Else the log that opens a file then is overwritten from its beginning."""
    log = sealed_keys(tmp_path)
    opened: list[int] = []

    def let_go() -> None:
        for owner in list(log.log.environment.open_files._owners):
            owner.release_descriptor()
        opened.append(os.open(victim, os.O_RDWR))

    interrupt(
        monkeypatch,
        files,
        "write_fully",
        let_go,
        only=lambda fd, *_: os.readlink(f"/proc/self/fd/{fd}").endswith(".cleaned"),
    )
    assert log.clean(roll=False)
    os.close(opened[0])
    assert victim.read_bytes() == VICTIM
    assert [record.offset for record in read_from(log.log)] == [7, 8, 9, 10]


# --- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["orders-0", ".index"])
def test_a_log_whose_directory_is_renamed_during_a_sync_is_synced_under_its_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """The end of a move to another directory is no failure of that directory."""
    log = ten_records(tmp_path)
    log.flush()
    log.roll()
    append(log, "more")
    new = log.directory.with_name("orders-1")

    def promote() -> None:
        with log.lock:
            os.rename(log.directory, new)
            log.change_directory(new)

    ran = interrupt(
        monkeypatch, files, "open_file", promote, only=lambda path, *_: str(path).endswith(missing)
    )
    synced: list[Path] = []
    real = files.sync_directory

    def sync_directory(path: Path) -> None:
        real(path)
        synced.append(path)

    monkeypatch.setattr(files, "sync_directory", sync_directory)
    log.flush()
    assert ran
    assert log.flushed_offset == 11
    assert synced == [new, new.parent]


def test_a_segment_that_is_swapped_while_it_is_opened_does_not_get_the_new_ones_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it reads the new file at its own positions, for as long as a reader has it."""
    log = sealed_keys(tmp_path)
    old = log.log.segments.items[0]
    assert old.position_of(4)  # remembered: nothing else of the segment is read
    old.release_descriptor()
    ran = interrupt(
        monkeypatch,
        files,
        "open_file",
        log.cleaner.clean_filthiest,
        only=lambda path, *_: path == old.path,
    )
    records = log.log.read(4, 1 << 20, True, 11).records
    assert ran
    assert records is not None
    data = records.read()
    found = [header for at, header in iterate_headers(data) if check_crc(data, at, header)]
    assert [header.base_offset for header in found] == [7, 8, 9]


def test_a_cleaning_whose_segments_are_all_deleted_ends_and_the_log_is_cleaned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log is given up for good only where cleaning it cannot work."""
    log = sealed_keys(tmp_path)

    def delete_all() -> None:
        log.log.increment_log_start_offset(10)
        log.log.delete_old_segments(WALL_MS)

    ran = interrupt(monkeypatch, Cleaning, "_fill_map", delete_all, after=True)
    log.clean(roll=False)
    assert ran
    assert not log.cleaner.uncleanable


# --- epochs ------------------------------------------------------------------------------------


class EpochBegins(LeaderEpochCache):
    """Another epoch begins right after the first look at the known ones."""

    is_due = False

    @property
    def _entries(self) -> tuple[EpochEntry, ...]:
        entries = LeaderEpochCache._entries.__get__(self)
        if self.is_due:
            self.is_due = False
            self.assign(2, 10)
        return entries

    @_entries.setter
    def _entries(self, entries: tuple[EpochEntry, ...]) -> None:
        LeaderEpochCache._entries.__set__(self, entries)


def test_a_known_epoch_has_an_end_while_another_begins(tmp_path: Path) -> None:
    """A follower that is told "unknown" takes its high watermark for where to cut its log."""
    epochs = EpochBegins(tmp_path / "leader-epoch-checkpoint")
    epochs.assign(0, 0)
    epochs.is_due = True
    assert epochs.end_offset_for(0, 10) == (0, 10)
    assert epochs.latest_epoch == 2
