"""Offset, time and transaction index: Kafka's bytes, brute-force lookups, hostile files."""

from __future__ import annotations

import errno
import os
import random
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from storage import files
from storage.open_files import OpenFileCache
from storage.segments.index import CorruptIndexError, OffsetIndex, TimeIndex
from storage.segments.segment import LogSegment
from storage.segments.transaction_index import AbortedTxn, TransactionIndex
from testkit.clock import WALL_MS

BASE = 1000
MAX_BYTES = 4096


@pytest.fixture
def offsets(tmp_path: Path) -> OffsetIndex:
    return OffsetIndex(tmp_path / "00000000000000001000.index", BASE, MAX_BYTES)


@pytest.fixture
def times(tmp_path: Path) -> TimeIndex:
    return TimeIndex(tmp_path / "00000000000000001000.timeindex", BASE, MAX_BYTES)


@pytest.fixture
def aborted(tmp_path: Path) -> TransactionIndex:
    return TransactionIndex(tmp_path / "00000000000000001000.txnindex", BASE)


# --- offset index ------------------------------------------------------------------------------


def test_an_empty_offset_index_points_at_the_segments_start(offsets: OffsetIndex) -> None:
    assert offsets.entries == 0
    assert offsets.last_offset == BASE
    assert offsets.lookup(BASE + 500) == (BASE, 0)
    assert offsets.upper_bound_offset(0) is None
    offsets.sanity_check()


def test_offset_entries_are_kafkas_eight_bytes(offsets: OffsetIndex) -> None:
    offsets.append(BASE + 5, 4200)
    offsets.append(BASE + 2**31 - 1, 2**31 - 1)
    offsets.flush()
    assert offsets.path.read_bytes() == struct.pack(">iiii", 5, 4200, 2**31 - 1, 2**31 - 1)
    assert offsets.size == 16


def test_lookups_find_the_largest_entry_not_above_as_a_linear_search_does(tmp_path: Path) -> None:
    rng = random.Random(3)
    for round in range(30):
        index = OffsetIndex(tmp_path / f"{round}.index", BASE, 1 << 20)
        entries: list[tuple[int, int]] = []
        offset, position = BASE, 0
        for _ in range(rng.randrange(200)):
            offset += rng.randrange(1, 50)
            position += rng.randrange(4097, 9000)
            entries.append((offset, position))
            index.append(offset, position)
        if round % 2:
            index.close()  # the rest is read back from the file
        for target in range(BASE - 2, offset + 3):
            below = [entry for entry in entries if entry[0] <= target]
            assert index.lookup(target) == (below[-1] if below else (BASE, 0))
        for bound in range(0, position + 5000, 3001):
            at_or_behind = [entry[0] for entry in entries if entry[1] >= bound]
            assert index.upper_bound_offset(bound) == (at_or_behind[0] if at_or_behind else None)


def test_offsets_must_grow_and_fit(offsets: OffsetIndex) -> None:
    offsets.append(BASE + 5, 4200)
    for offset, position in (
        (BASE + 5, 9000),
        (BASE + 4, 9000),
        (BASE - 1, 9000),
        (BASE + 2**31, 9000),
        (BASE + 6, 2**31),
        (BASE + 6, -1),
    ):
        with pytest.raises(ValueError, match="index"):
            offsets.append(offset, position)
    assert offsets.entries == 1


def test_a_full_offset_index_says_so_and_takes_no_more(tmp_path: Path) -> None:
    index = OffsetIndex(tmp_path / "i", BASE, 8 * 3 + 7)
    for number in range(1, 4):
        assert not index.is_full
        index.append(BASE + number, number * 5000)
    assert index.is_full
    with pytest.raises(ValueError, match="full"):
        index.append(BASE + 9, 50_000)


@pytest.mark.parametrize(
    ("offset", "left"), [(BASE, 0), (BASE + 10, 0), (BASE + 11, 1), (BASE + 20, 1), (BASE + 99, 3)]
)
def test_truncation_drops_entries_at_or_above_the_offset(
    offsets: OffsetIndex, offset: int, left: int
) -> None:
    for number in (1, 2, 3):
        offsets.append(BASE + 10 * number, number * 5000)
    offsets.flush()
    offsets.truncate_to(offset)
    assert offsets.entries == left
    assert offsets.path.stat().st_size == 8 * left
    # What was cut can be appended again.
    offsets.append(BASE + 100, 90_000)
    offsets.close()
    assert offsets.entries == left + 1
    assert offsets.last_offset == BASE + 100


def test_truncation_to_the_base_empties_even_garbage(offsets: OffsetIndex) -> None:
    offsets.path.write_bytes(os.urandom(8 * 50))
    offsets.truncate_to(BASE)
    assert offsets.entries == 0
    offsets.append(BASE + 1, 5000)
    offsets.flush()
    assert offsets.path.read_bytes() == struct.pack(">ii", 1, 5000)


# --- files -------------------------------------------------------------------------------------


def test_no_descriptor_stays_open(offsets: OffsetIndex, times: TimeIndex) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for number in range(1, 200):
        offsets.append(BASE + number, number * 5000)
        times.maybe_append(number, BASE + number)
    offsets.flush()
    offsets.lookup(BASE + 7)
    assert set(os.listdir("/proc/self/fd")) <= before  # garbage of other tests may go meanwhile


def test_a_closed_index_opens_itself_on_use(offsets: OffsetIndex, times: TimeIndex) -> None:
    offsets.append(BASE + 5, 4200)
    times.maybe_append(77, BASE + 5)
    for _ in range(2):
        offsets.close()
        times.close()
        assert offsets.lookup(BASE + 6) == (BASE + 5, 4200)
        assert times.last_entry == (77, BASE + 5)
    offsets.close()
    offsets.append(BASE + 6, 9000)
    assert offsets.entries == 2


def test_flush_and_close_make_the_file_even_when_it_is_empty(
    offsets: OffsetIndex, times: TimeIndex
) -> None:
    offsets.flush()
    times.trim_to_valid_size()
    assert offsets.path.read_bytes() == b""


def test_entries_are_written_in_batches_and_wholly_by_close(offsets: OffsetIndex) -> None:
    for number in range(1, 101):
        offsets.append(BASE + number, number * 5000)
    assert offsets.path.stat().st_size % 8 == 0
    assert offsets.path.stat().st_size < 800
    offsets.close()
    assert offsets.path.stat().st_size == 800


def test_zeros_that_kafka_preallocated_are_no_entries(tmp_path: Path) -> None:
    for count in (0, 1, 5):
        index = OffsetIndex(tmp_path / f"{count}.index", BASE, 10 << 20)
        entries = b"".join(struct.pack(">ii", n, n * 5000) for n in range(1, count + 1))
        index.path.write_bytes(entries + bytes((10 << 20) - len(entries)))
        assert index.entries == count
        index.sanity_check()
        index.trim_to_valid_size()
        assert index.path.read_bytes() == entries
        times = TimeIndex(tmp_path / f"{count}.timeindex", BASE, 10 << 20)
        entries = b"".join(struct.pack(">qi", n, n) for n in range(1, count + 1))
        times.path.write_bytes(entries + bytes((10 << 20) // 12 * 12 - len(entries)))
        assert times.entries == count
        times.close()
        assert times.path.read_bytes() == entries


def test_renaming_and_deleting(offsets: OffsetIndex, tmp_path: Path) -> None:
    moved = tmp_path / "moved.index"
    offsets.rename(moved)  # never written: in name only
    assert offsets.path == moved
    offsets.append(BASE + 1, 5000)
    offsets.flush()
    offsets.rename(tmp_path / "again.index")
    assert offsets.lookup(BASE + 1) == (BASE + 1, 5000)
    assert os.listdir(tmp_path) == ["again.index"]
    offsets.delete()
    offsets.delete()
    offsets.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 7,
        struct.pack(">iiii", 5, 5000, 5, 9000),
        struct.pack(">iiii", 5, 5000, 4, 9000),
        struct.pack(">iiii", 5, 5000, 6, 5000),
        struct.pack(">ii", -5, 5000),
        struct.pack(">ii", 5, -1),
    ],
)
def test_offset_indexes_that_cannot_be_are_corrupt(offsets: OffsetIndex, content: bytes) -> None:
    offsets.path.write_bytes(content)
    with pytest.raises(CorruptIndexError, match=r"1000\.index"):
        offsets.sanity_check()


def test_random_bytes_never_raise_anything_but_corruption(tmp_path: Path) -> None:
    rng = random.Random(5)
    for number in range(200):
        data = rng.randbytes(rng.randrange(200))
        for kind in (OffsetIndex, TimeIndex):
            index = kind(tmp_path / f"{number}.{kind.__name__}", BASE, MAX_BYTES)
            index.path.write_bytes(data)
            try:
                index.sanity_check()
            except CorruptIndexError:
                index.truncate()
            index.lookup(BASE + 7)
            index.truncate_to(BASE + 3)
            index.sanity_check()


def test_a_failed_write_raises_and_a_later_one_catches_up(
    offsets: OffsetIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets.append(BASE + 1, 5000)

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "injected")

    monkeypatch.setattr(files, "write_fully", fail)
    with pytest.raises(OSError, match="injected"):
        offsets.flush()
    monkeypatch.undo()
    offsets.append(BASE + 2, 9000)
    offsets.close()
    assert offsets.entries == 2


def test_lookups_and_flushes_run_beside_appends(offsets: OffsetIndex) -> None:
    offsets.max_entries = 10**9
    problems: list[object] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            offset, position = offsets.lookup(BASE + 10**6)
            if (offset - BASE) * 5000 != position:
                problems.append((offset, position))
            offsets.flush()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for number in range(1, 3000):
            offsets.append(BASE + number, number * 5000)
            if number % 700 == 0:
                offsets.truncate_to(BASE + number)
                offsets.append(BASE + number, number * 5000)
    finally:
        is_over.set()
        thread.join()
    offsets.close()
    assert problems == []
    assert offsets.entries == 2999
    offsets.sanity_check()


# --- time index --------------------------------------------------------------------------------


def test_time_entries_are_kafkas_twelve_bytes(times: TimeIndex) -> None:
    assert times.last_entry == (-1, BASE)
    times.maybe_append(WALL_MS, BASE + 5)
    times.maybe_append(2**62 + 1, BASE + 9)
    times.flush()
    assert times.path.read_bytes() == struct.pack(">qiqi", WALL_MS, 5, 2**62 + 1, 9)
    times.close()
    assert times.entry(0) == (WALL_MS, BASE + 5)
    assert times.last_entry == (2**62 + 1, BASE + 9)


def test_time_only_grows(times: TimeIndex) -> None:
    times.maybe_append(-1, BASE)  # a segment without timestamps
    assert times.entries == 0
    times.maybe_append(50, BASE + 5)
    times.maybe_append(50, BASE + 5)  # roll, then close
    times.maybe_append(50, BASE + 9)  # nothing younger came
    assert times.entries == 1
    for timestamp, offset in ((49, BASE + 9), (60, BASE + 4)):
        with pytest.raises(ValueError, match="below"):
            times.maybe_append(timestamp, offset)


def test_the_last_time_slot_is_kept_for_the_roll(tmp_path: Path) -> None:
    """And there is always room for a last entry: a segment may be closed more than once."""
    times = TimeIndex(tmp_path / "t", BASE, 12 * 3)
    times.maybe_append(1, BASE + 1)
    assert not times.is_full
    times.maybe_append(2, BASE + 2)
    assert times.is_full
    with pytest.raises(ValueError, match="full"):
        times.maybe_append(3, BASE + 3)
    for number in (3, 3, 4):
        times.maybe_append(number, BASE + number, skip_full_check=True)
    assert times.last_entry == (4, BASE + 4)
    assert times.entries == 4


def test_finding_a_time_through_the_index_agrees_with_brute_force(tmp_path: Path) -> None:
    """Batches with random times; the index gets the running maximum as a segment does (S-12)."""
    rng = random.Random(8)
    for round in range(40):
        times = TimeIndex(tmp_path / f"{round}.t", BASE, 1 << 20)
        batches: list[tuple[int, int]] = []  # last offset, max timestamp
        newest, newest_offset = -1, BASE
        offset = BASE
        for _ in range(rng.randrange(1, 120)):
            offset += rng.randrange(1, 20)
            timestamp = rng.choice((-1, rng.randrange(10**6), rng.randrange(10**15)))
            batches.append((offset, timestamp))
            if timestamp > newest:
                newest, newest_offset = timestamp, offset
            if rng.random() < 0.4:
                times.maybe_append(newest, newest_offset)
        times.maybe_append(newest, newest_offset, skip_full_check=True)
        if round % 2:
            times.close()
        targets = [timestamp + delta for _, timestamp in batches for delta in (-1, 0, 1)]
        for target in (0, 10**16, *targets):
            start_timestamp, start_offset = times.lookup(target)
            assert start_timestamp <= max(target, -1)
            expected = next((o for o, timestamp in batches if timestamp >= target), None)
            found = next(
                (o for o, timestamp in batches if o >= start_offset and timestamp >= target), None
            )
            assert found == expected


def test_time_truncation_goes_by_offset(times: TimeIndex) -> None:
    for number in (1, 2, 3):
        times.maybe_append(number * 100, BASE + number * 10)
    assert [times.lookup(timestamp) for timestamp in (99, 100, 199, 200, 999)] == [
        (-1, BASE), (100, BASE + 10), (100, BASE + 10), (200, BASE + 20), (300, BASE + 30),
    ]  # fmt: skip
    times.truncate_to(BASE + 20)
    assert times.last_entry == (100, BASE + 10)
    times.maybe_append(150, BASE + 20)
    times.close()
    assert times.last_entry == (150, BASE + 20)
    times.truncate_to(BASE)
    assert times.last_entry == (-1, BASE)


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 13,
        struct.pack(">qiqi", 5, 1, 5, 2),
        struct.pack(">qiqi", 5, 1, 4, 2),
        struct.pack(">qiqi", 5, 2, 6, 1),
        struct.pack(">qi", -5, 1),
        struct.pack(">qi", 5, -1),
    ],
)
def test_time_indexes_that_cannot_be_are_corrupt(times: TimeIndex, content: bytes) -> None:
    times.path.write_bytes(content)
    with pytest.raises(CorruptIndexError, match=r"1000\.timeindex"):
        times.sanity_check()


# --- transaction index -------------------------------------------------------------------------

TXNS = [
    AbortedTxn(0, BASE, BASE + 10, BASE + 11),
    AbortedTxn(1, BASE + 5, BASE + 15, BASE + 13),
    AbortedTxn(2, BASE + 18, BASE + 35, BASE + 25),
    AbortedTxn(3, BASE + 32, BASE + 50, BASE + 40),
]


def test_aborted_transactions_are_kafkas_34_bytes(aborted: TransactionIndex) -> None:
    assert aborted.aborted == []
    aborted.flush()
    assert not aborted.path.exists()
    for txn in TXNS:
        aborted.append(txn)
    assert aborted.path.read_bytes() == b"".join(struct.pack(">hqqqq", 0, *txn) for txn in TXNS)
    aborted.flush()
    aborted.close()
    assert aborted.aborted == TXNS
    aborted.sanity_check()


def test_a_reader_beside_an_append_hides_no_aborted_transaction(
    aborted: TransactionIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file cache lets the index go, and a reader reads it again, while an entry is written."""
    aborted.append(TXNS[0])
    real = files.ftruncate
    reader = threading.Thread(target=lambda: (aborted.close(), aborted.aborted))

    def ftruncate(fd: int, size: int) -> None:
        monkeypatch.undo()
        reader.start()
        reader.join(0.2)  # a reader that does not wait for us has read by now
        real(fd, size)

    monkeypatch.setattr(files, "ftruncate", ftruncate)
    aborted.append(TXNS[1])
    reader.join(60)
    assert aborted.aborted == TXNS[:2]
    aborted.append(TXNS[2])
    aborted.close()
    assert aborted.aborted == TXNS[:3]


def test_markers_must_come_in_order(aborted: TransactionIndex) -> None:
    aborted.append(TXNS[1])
    with pytest.raises(ValueError, match="not behind"):
        aborted.append(TXNS[0])


@pytest.mark.parametrize(
    ("fetch", "bound", "expected", "is_complete"),
    [
        (0, 100, TXNS, False),
        (0, 32, TXNS[:3], True),
        (0, 35, TXNS, True),
        (0, 40, TXNS, True),
        (10, 35, TXNS, True),
        (11, 35, TXNS[1:], True),
        (20, 41, TXNS[2:], False),
        (51, 60, [], False),
    ],
)
def test_a_fetch_gets_the_aborted_transactions_that_overlap_it(
    aborted: TransactionIndex,
    fetch: int,
    bound: int,
    expected: list[AbortedTxn],
    is_complete: bool,
) -> None:
    for txn in TXNS:
        aborted.append(txn)
    assert aborted.collect_aborted(BASE + fetch, BASE + bound) == (expected, is_complete)


def test_transactions_are_cut_with_their_markers(aborted: TransactionIndex) -> None:
    for txn in TXNS:
        aborted.append(txn)
    aborted.truncate_to(BASE + 51)
    assert aborted.aborted == TXNS
    aborted.truncate_to(BASE + 35)
    assert aborted.aborted == TXNS[:2]
    aborted.append(TXNS[2])
    aborted.close()
    assert aborted.aborted == TXNS[:3]
    aborted.truncate()
    assert aborted.path.read_bytes() == b""


def test_a_torn_entry_is_overwritten_and_an_unknown_version_is_corrupt(
    aborted: TransactionIndex,
) -> None:
    aborted.path.write_bytes(struct.pack(">hqqqq", 0, *TXNS[0]) + b"\0" * 20)
    assert aborted.aborted == TXNS[:1]
    aborted.append(TXNS[1])
    assert aborted.path.stat().st_size == 68
    aborted.path.write_bytes(struct.pack(">hqqqq", 1, *TXNS[0]))
    aborted.close()
    with pytest.raises(CorruptIndexError, match="version 1"):
        aborted.sanity_check()


def test_a_marker_before_its_segment_is_corrupt(aborted: TransactionIndex) -> None:
    aborted.append(AbortedTxn(0, 5, BASE - 1, BASE))
    with pytest.raises(CorruptIndexError, match="before 1000"):
        aborted.sanity_check()


def test_a_failed_append_leaves_the_index_as_it_was(
    aborted: TransactionIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted.append(TXNS[0])

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(files, "write_fully", fail)
    with pytest.raises(OSError, match="injected"):
        aborted.append(TXNS[1])
    monkeypatch.undo()
    assert aborted.aborted == TXNS[:1]
    aborted.delete()
    aborted.rename(aborted.path.with_suffix(".x"))
    aborted.close()
    assert aborted.aborted == []


@pytest.fixture
def told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk refuses what is written, later, and tells who has had the file open since."""
    written: set[int] = set()
    write, close = files.write_fully, files.close

    def write_fully(fd: int, *rest: Any) -> None:
        write(fd, *rest)
        written.add(fd)

    def closing(fd: int) -> None:
        written.discard(fd)
        close(fd)

    def fsync(fd: int) -> None:
        if fd in written:
            raise OSError(errno.EIO, "the pages written before are lost")

    monkeypatch.setattr(files, "write_fully", write_fully)
    monkeypatch.setattr(files, "close", closing)
    monkeypatch.setattr(files, "fsync", fsync)


def test_a_write_of_an_aborted_transaction_that_failed_later_is_told(
    tmp_path: Path, told_once: None
) -> None:
    """The file was closed after each write, and with it went the news; consumers would read what
    was aborted, for no batch contradicts an index without an entry."""
    index = TransactionIndex(tmp_path / "00000000000000001000.txnindex", BASE)
    index.append(AbortedTxn(1, BASE, BASE + 5, BASE + 6))
    with pytest.raises(OSError, match="lost"):
        index.flush()


def test_a_segment_lets_go_of_its_transaction_index_only_synced(
    tmp_path: Path, told_once: None
) -> None:
    segment = LogSegment(
        tmp_path, BASE, index_interval_bytes=4096, index_size_max=1 << 20, created_ms=0,
        open_files=OpenFileCache(4),
    )  # fmt: skip
    segment.create()
    segment.txn_index.append(AbortedTxn(1, BASE, BASE + 5, BASE + 6))
    segment.release_files()
    with pytest.raises(OSError, match="lost"):
        segment.handle()
