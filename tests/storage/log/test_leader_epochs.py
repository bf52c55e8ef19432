"""The cases of Kafka's LeaderEpochFileCacheTest, and truncation rules E-3 and E-4."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from storage.checkpoint import CorruptCheckpoint, read_leader_epochs, write_leader_epochs
from storage.log import leader_epochs
from storage.log.leader_epochs import EpochEntry, LeaderEpochCache
from tests.storage.log_support import FaultyDisk

UNDEFINED = (-1, -1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leader-epoch-checkpoint"


@pytest.fixture
def cache(path: Path) -> LeaderEpochCache:
    return LeaderEpochCache(path)


def fill(cache: LeaderEpochCache, *entries: tuple[int, int]) -> LeaderEpochCache:
    for epoch, offset in entries:
        cache.assign(epoch, offset)
    return cache


# --- assign ------------------------------------------------------------------------------------


def test_nothing_is_known_at_first(cache: LeaderEpochCache) -> None:
    assert cache.latest_epoch == -1
    assert cache.earliest_entry is None
    assert cache.end_offset_for(0, 100) == UNDEFINED
    assert cache.end_offset_for(-1, 100) == UNDEFINED


def test_an_epoch_is_on_disk_when_sync_returns(cache: LeaderEpochCache, path: Path) -> None:
    fill(cache, (2, 6), (3, 8))
    assert cache.settled_epoch < cache.latest_epoch == 3
    cache.sync()
    assert cache.settled_epoch == 3
    assert read_leader_epochs(path) == [(2, 6), (3, 8)]
    assert LeaderEpochCache(path).entries == (EpochEntry(2, 6), EpochEntry(3, 8))


def test_the_same_epoch_again_is_ignored_unless_it_begins_earlier(
    cache: LeaderEpochCache,
) -> None:
    fill(cache, (2, 6), (2, 7))
    assert cache.entries == ((2, 6),)
    fill(cache, (2, 5))
    assert cache.entries == ((2, 5),)


def test_an_assignment_that_changes_nothing_writes_nothing(
    cache: LeaderEpochCache, path: Path
) -> None:
    fill(cache, (2, 6)).sync()
    path.unlink()
    fill(cache, (2, 6), (2, 9)).sync()
    assert not path.exists()


def test_what_changes_while_it_is_written_is_not_called_settled(
    cache: LeaderEpochCache, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, entries: tuple[EpochEntry, ...]) -> None:
        write_leader_epochs(path, entries)
        fill(cache, (3, 8))

    fill(cache, (2, 6))
    with monkeypatch.context() as patch:
        patch.setattr(leader_epochs, "write_leader_epochs", write)
        cache.sync()
    assert cache.settled_epoch < 2
    cache.sync()
    assert cache.settled_epoch == 3
    assert read_leader_epochs(path) == [(2, 6), (3, 8)]


def test_a_failed_write_is_tried_again(
    cache: LeaderEpochCache, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache, (2, 6))
    disk = FaultyDisk(monkeypatch)
    disk.fail("fsync", errno.ENOSPC)
    with pytest.raises(OSError):
        cache.sync()
    assert cache.settled_epoch < 2
    cache.sync()
    assert read_leader_epochs(path) == [(2, 6)]


def test_negative_epochs_and_offsets_are_refused(cache: LeaderEpochCache) -> None:
    for epoch, offset in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="epoch"):
            cache.assign(epoch, offset)
    assert cache.entries == ()


def test_entries_that_contradict_a_new_one_are_dropped(cache: LeaderEpochCache) -> None:
    fill(cache, (1, 5), (2, 10), (3, 15))
    fill(cache, (4, 12))  # begins before epoch 3 did
    assert cache.entries == ((1, 5), (2, 10), (4, 12))
    fill(cache, (3, 20))  # an epoch that went back
    assert cache.entries == ((1, 5), (2, 10), (3, 20))
    fill(cache, (9, 0))
    assert cache.entries == ((9, 0),)


def test_only_a_contradiction_is_warned_of(
    cache: LeaderEpochCache, caplog: pytest.LogCaptureFixture
) -> None:
    fill(cache, (1, 5), (2, 10))
    fill(cache, (3, 10))  # nothing was written in epoch 2
    assert caplog.messages == []
    fill(cache, (4, 8))
    assert "contradicting" in caplog.messages[0]
    fill(cache, (5, 20), (6, 30))
    fill(cache, (7, 20))  # of two that are dropped, the first begins where this does
    assert len(caplog.messages) == 2


def test_a_copy_has_exactly_the_others_epochs(cache: LeaderEpochCache, tmp_path: Path) -> None:
    other = fill(LeaderEpochCache(tmp_path / "other"), (1, 0), (4, 6))
    fill(cache, (1, 0), (2, 3))
    cache.copy_from(other)
    assert cache.entries == other.entries
    cache.sync()
    assert read_leader_epochs(cache.path) == [(1, 0), (4, 6)]


def test_the_earliest_entry_is_the_oldest_epochs(cache: LeaderEpochCache) -> None:
    assert fill(cache, (2, 6), (3, 8)).earliest_entry == (2, 6)


def test_what_was_read_from_the_file_is_on_disk(cache: LeaderEpochCache, path: Path) -> None:
    fill(cache, (2, 6)).sync()
    assert LeaderEpochCache(path).settled_epoch == 2


def test_an_epoch_without_records_is_replaced_by_the_next_at_the_same_offset(
    cache: LeaderEpochCache,
) -> None:
    fill(cache, (1, 0), (2, 6), (3, 6), (4, 6))
    assert cache.entries == ((1, 0), (4, 6))
    assert cache.end_offset_for(1, 6) == (1, 6)


def test_three_fast_elections_without_writes_leave_a_usable_end_offset(
    cache: LeaderEpochCache,
) -> None:
    fill(cache, (0, 0), (1, 100), (2, 100), (3, 100))
    assert cache.end_offset_for(0, 100) == (0, 100)
    assert cache.end_offset_for(1, 100) == (0, 100)
    assert cache.end_offset_for(3, 100) == (3, 100)


# --- end_offset_for ----------------------------------------------------------------------------


def test_the_latest_epoch_ends_at_the_logs_end(cache: LeaderEpochCache) -> None:
    fill(cache, (2, 0), (3, 6))
    assert cache.end_offset_for(3, 9) == (3, 9)


def test_an_epoch_above_all_known_is_undefined(cache: LeaderEpochCache) -> None:
    fill(cache, (2, 0))
    assert cache.end_offset_for(3, 9) == UNDEFINED


def test_the_undefined_epoch_is_undefined(cache: LeaderEpochCache) -> None:
    fill(cache, (2, 0), (3, 6))
    assert cache.end_offset_for(-1, 9) == UNDEFINED


def test_an_epoch_below_all_known_ends_where_the_first_begins(cache: LeaderEpochCache) -> None:
    fill(cache, (5, 11), (6, 12), (7, 13))
    assert cache.end_offset_for(4, 20) == (4, 11)


def test_an_epoch_ends_where_the_next_begins(cache: LeaderEpochCache) -> None:
    fill(cache, (1, 11), (1, 12), (2, 13), (2, 14), (3, 15), (3, 16))
    assert cache.end_offset_for(1, 17) == (1, 13)
    assert cache.end_offset_for(2, 17) == (2, 15)


def test_an_epoch_in_a_gap_is_answered_with_the_one_before(cache: LeaderEpochCache) -> None:
    fill(cache, (0, 10), (2, 13), (4, 17))
    assert cache.end_offset_for(1, 20) == (0, 13)
    assert cache.end_offset_for(2, 20) == (2, 17)
    assert cache.end_offset_for(3, 20) == (2, 17)


def test_random_histories_agree_with_the_rules_read_literally(path: Path) -> None:
    rng = random.Random(11)
    for _ in range(200):
        cache = LeaderEpochCache.empty(path)
        epoch = offset = 0
        for _ in range(rng.randrange(6)):
            epoch += rng.randrange(1, 4)
            cache.assign(epoch, offset)
            offset += rng.randrange(4)
        starts = dict(cache.entries)
        for asked in range(-1, epoch + 3):
            above = [known for known in starts if known > asked]
            below = [known for known in starts if known <= asked]
            if asked == -1 or (not above and asked not in starts):
                expected = UNDEFINED
            elif not above:
                expected = (asked, offset)
            else:
                expected = (max(below) if below else asked, starts[min(above)])
            assert cache.end_offset_for(asked, offset) == expected


# --- truncation --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end_offset", "expected"),
    [
        (-1, [(2, 6), (3, 8), (4, 11)]),
        (0, []),
        (6, []),
        (7, [(2, 6)]),
        (8, [(2, 6)]),
        (9, [(2, 6), (3, 8)]),
        (11, [(2, 6), (3, 8)]),
        (12, [(2, 6), (3, 8), (4, 11)]),
    ],
)
def test_truncation_from_the_end_forgets_epochs_that_begin_there_or_later(
    cache: LeaderEpochCache, path: Path, end_offset: int, expected: list[tuple[int, int]]
) -> None:
    fill(cache, (2, 6), (3, 8), (4, 11))
    cache.truncate_from_end(end_offset)
    cache.sync()
    assert list(cache.entries) == expected
    assert cache.latest_epoch == (expected[-1][0] if expected else -1)
    assert read_leader_epochs(path) == expected


@pytest.mark.parametrize(
    ("start_offset", "expected"),
    [
        (-1, [(2, 6), (3, 8), (4, 11)]),
        (5, [(2, 6), (3, 8), (4, 11)]),
        (6, [(2, 6), (3, 8), (4, 11)]),
        (7, [(2, 7), (3, 8), (4, 11)]),
        (8, [(3, 8), (4, 11)]),
        (9, [(3, 9), (4, 11)]),
        (11, [(4, 11)]),
        (15, [(4, 15)]),
    ],
)
def test_truncation_from_the_start_keeps_the_epoch_it_lies_in(
    cache: LeaderEpochCache, start_offset: int, expected: list[tuple[int, int]]
) -> None:
    fill(cache, (2, 6), (3, 8), (4, 11))
    cache.truncate_from_start(start_offset)
    assert list(cache.entries) == expected


def test_truncation_that_forgets_nothing_writes_nothing(
    cache: LeaderEpochCache, path: Path
) -> None:
    fill(cache, (2, 6), (3, 8)).sync()
    path.unlink()
    cache.truncate_from_end(9)
    cache.truncate_from_start(7)
    cache.sync()
    assert not path.exists()


def test_truncating_nothing_is_harmless(cache: LeaderEpochCache) -> None:
    cache.truncate_from_start(7)
    cache.truncate_from_end(7)
    assert cache.entries == ()


def test_clearing_reaches_the_disk(cache: LeaderEpochCache, path: Path) -> None:
    fill(cache, (2, 6)).sync()
    cache.clear()
    cache.sync()
    assert read_leader_epochs(path) == []
    assert cache.latest_epoch == -1


# --- loading -----------------------------------------------------------------------------------


def test_a_corrupt_file_is_reported_and_can_be_started_over(path: Path) -> None:
    path.write_text("0\n1\nnonsense\n")
    with pytest.raises(CorruptCheckpoint):
        LeaderEpochCache(path)
    cache = LeaderEpochCache.empty(path)
    fill(cache, (1, 0), (2, 5)).sync()
    assert LeaderEpochCache(path).entries == ((1, 0), (2, 5))


def test_a_file_out_of_order_is_loaded_as_if_assigned_in_turn(path: Path) -> None:
    path.write_text("0\n3\n1 0\n3 10\n2 20\n")
    assert LeaderEpochCache(path).entries == ((1, 0), (2, 20))
