"""What a log is after a crash: the longest valid prefix, with indexes and state to match."""

from __future__ import annotations

import gc
import itertools
import os
import random
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage import files
from storage.checkpoint import LEADER_EPOCH_CHECKPOINT
from storage.config import LogConfig
from storage.log.append_source import FROM_COORDINATOR
from storage.log.partition_log import PartitionLog
from storage.log.valid_batches import ValidBatches
from storage.open_files import OpenFileCache
from storage.recovery import open_log
from storage.segments.segment import RELATIVE_OFFSET_MAX
from testkit.clock import WALL_MS
from tests.sim.world import Killed
from tests.storage.log_support import (
    PARTITION,
    FaultyDisk,
    append,
    batch,
    environment,
    make_log,
    read_from,
    values,
)
from wire.errors import ErrorCode, KafkaError
from wire.records import (
    ControlRecordType,
    EndTxnMarker,
    check_crc,
    end_txn_marker_batch,
    iterate_headers,
)

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on the disk's cache, and thousands of syncs would take minutes."""
    monkeypatch.setattr(files, "fsync", lambda fd: None)
    monkeypatch.setattr(files, "fsync_directory", lambda fd: None)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where there is such a place: the tests below make tens of thousands of files."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as path:
        yield Path(path)


def crash(source: Path, target: Path) -> Path:
    """The files as they are, as after kill -9: nothing was closed."""
    shutil.copytree(source, target)
    return target


def write_some(root: Path, count: int = 12, config: LogConfig = SMALL) -> PartitionLog:
    log = make_log(root, config)
    for number in range(count):
        append(log, f"value {number} " + "x" * (number * 7 % 40), epoch=number // 4)
    return log


def last_log_file(root: Path) -> Path:
    return max((root / "orders-0").glob("*.log"))


# --- torn tails --------------------------------------------------------------------------------


def test_a_log_cut_at_any_byte_keeps_every_batch_that_is_whole(tmp_path: Path) -> None:
    log = write_some(tmp_path / "a", 5, LogConfig())
    path = log.active_segment.path
    data = path.read_bytes()
    ends = [position + header.size for position, header in iterate_headers(data)]
    for size in range(len(data)):
        root = tmp_path / str(size)
        (root / "orders-0").mkdir(parents=True)
        (root / "orders-0" / path.name).write_bytes(data[:size])
        recovered = make_log(root)
        whole = sum(end <= size for end in ends)
        assert recovered.log_end_offset == whole
        assert [r.offset for r in read_from(recovered)] == list(range(whole))
        assert append(recovered, "next").first_offset == whole
        shutil.rmtree(root)


def test_a_large_log_cut_anywhere_in_its_last_bytes_loses_only_the_last_batch(
    tmp_path: Path,
) -> None:
    config = LogConfig(segment_bytes=1 << 16)
    log = make_log(tmp_path / "a", config)
    for number in range(300):
        append(log, "x" * 800, str(number))
    data = log.active_segment.path.read_bytes()
    ends = [position + header.size for position, header in iterate_headers(data)]
    base = log.active_segment.base_offset
    root = crash(tmp_path / "a", tmp_path / "b")
    path = last_log_file(root)
    env = environment(root)
    for size in sorted(random.Random(1).sample(range(len(data) - 4096, len(data)), 1024)):
        path.write_bytes(data[:size])
        recovered = open_log(root / "orders-0", PARTITION, config, env, recovery_point=base)
        assert recovered.log_end_offset == base + 2 * sum(end <= size for end in ends)
        assert path.stat().st_size == max((end for end in ends if end <= size), default=0)


def test_garbage_after_the_last_batch_is_cut_off(tmp_path: Path) -> None:
    rng = random.Random(2)
    for number, garbage in enumerate(
        [b"\0" * 5000, rng.randbytes(5000), batch("x")[:-1], batch("x", base_offset=3)]
    ):
        root = tmp_path / str(number)
        log = write_some(root, 6)
        with open(log.active_segment.path, "ab") as file:
            file.write(garbage)
        recovered = make_log(root, SMALL)
        assert recovered.log_end_offset == 6
        assert len(values(read_from(recovered))) == 6


def test_a_length_field_that_claims_much_costs_no_memory(tmp_path: Path) -> None:
    log = write_some(tmp_path, 3, LogConfig())
    header = bytearray(batch("x", base_offset=3))
    header[8:12] = (100 << 20).to_bytes(4, "big")
    with open(log.active_segment.path, "ab") as file:
        file.write(header)
        file.truncate(101 << 20)  # sparse: the batch "fits in the file"
    tracemalloc.start()
    try:
        assert make_log(tmp_path).log_end_offset == 3
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


def test_bit_flips_never_reach_a_reader_and_spare_what_is_before_them(tmp_path: Path) -> None:
    rng = random.Random(4)
    log = write_some(tmp_path / "a", 24)
    paths = [segment.path.name for segment in log.segments]
    assert len(paths) >= 4
    originals = {name: (tmp_path / "a" / "orders-0" / name).read_bytes() for name in paths}
    expected = values(read_from(log))
    bounds: dict[str, list[tuple[int, int, int]]] = {
        name: [(pos, pos + h.size, h.base_offset) for pos, h in iterate_headers(data)]
        for name, data in originals.items()
    }
    for _ in range(1000):
        root = tmp_path / "b"
        (root / "orders-0").mkdir(parents=True)
        for name, data in originals.items():
            (root / "orders-0" / name).write_bytes(data)
        name = rng.choice(paths)
        data = bytearray(originals[name])
        bit = rng.randrange(len(data) * 8)
        data[bit // 8] ^= 1 << bit % 8
        (root / "orders-0" / name).write_bytes(data)
        hit = next(base for start, end, base in bounds[name] if start <= bit // 8 < end)
        recovered = make_log(root, SMALL)
        found = values(read_from(recovered))
        assert found == expected[: len(found)]
        # Offset and leader epoch are not in the checksum: such a flip may go unseen, or cut.
        assert len(found) >= hit
        shutil.rmtree(root)


@pytest.mark.slow
def test_ten_thousand_bit_flips(tmp_path: Path) -> None:
    rng = random.Random(5)
    log = write_some(tmp_path, 10, LogConfig())
    expected = values(read_from(log))
    path = log.active_segment.path
    original = path.read_bytes()
    env = environment(tmp_path)
    for _ in range(10_000):
        data = bytearray(original)
        for _ in range(rng.choice([1, 1, 1, 5])):
            bit = rng.randrange(len(data) * 8)
            data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        recovered = open_log(path.parent, PARTITION, LogConfig(), env)
        end = recovered.active_segment.size
        stored = path.read_bytes()
        assert len(stored) == end
        assert all(check_crc(stored, at, header) for at, header in iterate_headers(stored))
        found = values(read_from(recovered))
        assert found == expected[: len(found)]


def test_what_follows_a_damaged_segment_is_deleted(tmp_path: Path) -> None:
    log = write_some(tmp_path, 24)
    damaged = log.segments.items[1]
    data = bytearray(damaged.path.read_bytes())
    data[70] ^= 1
    damaged.path.write_bytes(data)
    recovered = make_log(tmp_path, SMALL)
    assert recovered.log_end_offset == damaged.base_offset
    assert [s.base_offset for s in recovered.segments] == [0, damaged.base_offset]
    assert append(recovered, "next").first_offset == damaged.base_offset


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_segment_whose_tail_was_lost_with_the_page_cache_ends_the_log(
    tmp_path: Path, policy: str
) -> None:
    config = replace(SMALL, cleanup_policy=frozenset({policy}))
    log = write_some(tmp_path, 24, config)
    first = log.segments.items[0]
    last = [position for position, _ in first.batches(0)][-1]
    os.truncate(first.path, last)  # cut between batches: nothing left is invalid
    recovered = make_log(tmp_path, config)
    assert recovered.log_end_offset == log.segments.items[1].base_offset - 1
    assert len(recovered.segments) == 1


@pytest.mark.parametrize("segment_bytes", [1 << 20, 400])
def test_pages_of_before_a_truncation_do_not_come_back_behind_what_was_written_anew(
    tmp_path: Path, segment_bytes: int
) -> None:
    """Found by simulation: a power failure kept the new batches' first pages and the old last ones.

    Every batch is whole and the offsets fit, but the leader epoch goes back.
    """
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=100)
    old, new = make_log(tmp_path / "old", config), make_log(tmp_path / "new", config)
    for number in range(24):
        append(old, f"old {number}")
        append(new, f"new {number}", epoch=1)
    for path, other in zip(
        sorted((tmp_path / "new").rglob("*.log")), sorted((tmp_path / "old").rglob("*.log")),
        strict=True,
    ):  # fmt: skip
        size = path.stat().st_size
        place = next(at for at, header in old.segments.items[0].batches(0) if header.base_offset)
        keep = size if int(path.stem) == 0 and segment_bytes == 400 else place * (size > place)
        path.write_bytes(path.read_bytes()[:keep] + other.read_bytes()[keep:])
    recovered = make_log(tmp_path / "new", config)
    assert {record.value[:3] for record in read_from(recovered)} == {b"new"}
    assert 0 < recovered.log_end_offset < 24


@pytest.mark.parametrize("kept", [0, 1])
def test_what_comes_back_of_before_a_truncation_is_cut_off_again(tmp_path: Path, kept: int) -> None:
    """Found by simulation: a power failure kept a segment's old pages, and none that was written
    anew. A follower with the high watermark of what it had lost served them to consumers; under
    the newer epoch the leader would take them for its own."""
    log = make_log(tmp_path)
    for number in range(3):
        append(log, f"old {number}", epoch=1)
    before = log.active_segment.path.read_bytes()
    log.truncate_to(kept)
    # A follower is told of the epoch by the batch.
    log.append_as_follower(batch("new", base_offset=kept, leader_epoch=2), 2)
    log.active_segment.path.write_bytes(before)
    recovered = make_log(tmp_path)
    assert values(read_from(recovered)) == [b"old 0"][:kept]
    assert recovered.log_end_offset == kept
    assert recovered.latest_epoch == (1 if kept else -1)


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("sent_at_once", [1, 24])
def test_the_copy_of_a_compacted_log_keeps_all_its_records(
    tmp_path: Path, policy: str, sent_at_once: int
) -> None:
    """A follower has the gaps that compaction left in what it copied, above its recovery point too,
    and when it crashes the topic may not be compacted any more."""
    config = replace(SMALL, cleanup_policy=frozenset({policy}))
    log = make_log(tmp_path, config)
    copied = [batch(f"{offset}", base_offset=offset, leader_epoch=0) for offset in range(0, 96, 4)]
    for start in range(0, len(copied), sent_at_once):
        log.append_as_follower(b"".join(copied[start : start + sent_at_once]), 0)
    assert len(log.segments) > 4
    recovered = make_log(tmp_path, config)
    assert [int(value) for value in values(read_from(recovered))] == list(range(0, 96, 4))
    assert recovered.log_end_offset == 93


def test_a_batch_far_above_the_logs_end_begins_a_segment_it_fits_into(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    far = 3 << 31
    for offset in (0, far):
        log.append_as_follower(batch(f"{offset}", base_offset=offset, leader_epoch=0), 0)
    assert [record.offset for record in read_from(log)] == [0, far]
    assert log.segments.active.base_offset == far - (2**31 - 1)


def test_a_segment_keeps_all_offsets_that_fit_its_indexes_and_no_other(tmp_path: Path) -> None:
    base = 5 << 40
    log = make_log(tmp_path, log_start_offset=base)
    for offset in (base, base + RELATIVE_OFFSET_MAX):
        log.append_as_follower(batch(f"{offset}", base_offset=offset, leader_epoch=0), 0)
    assert [segment.base_offset for segment in log.segments] == [base]
    recovered = make_log(crash(tmp_path, tmp_path / "again"))
    assert recovered.log_end_offset == base + RELATIVE_OFFSET_MAX + 1
    with log.active_segment.path.open("ab") as file:
        file.write(batch("x", base_offset=base + RELATIVE_OFFSET_MAX + 1, leader_epoch=0))
    recovered = make_log(crash(tmp_path, tmp_path / "too-far"))
    assert recovered.log_end_offset == base + RELATIVE_OFFSET_MAX + 1


def test_recovery_leaves_the_indexes_that_appends_had_made(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(index_interval_bytes=100))
    for number in range(40):
        append(log, "x" * 30, timestamp=WALL_MS + number * 7 % 100)
    log.roll()  # the last entry of a time index
    segment = log.segments.items[0]
    segment.flush()
    expected = [path.read_bytes() for path in (segment.offset_index.path, segment.time_index.path)]
    recovered = make_log(crash(tmp_path, tmp_path / "again"), log.config).segments.items[0]
    recovered.flush()
    assert expected == [
        path.read_bytes() for path in (recovered.offset_index.path, recovered.time_index.path)
    ]
    assert all(expected)


def test_nothing_is_wrong_with_a_whole_segment(tmp_path: Path) -> None:
    log = write_some(tmp_path, 3)
    batches = ValidBatches(log.active_segment)
    assert len(list(batches)) == 3
    assert batches.problem is None


def test_the_directory_of_a_new_log_is_on_disk_before_the_log_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    make_log(tmp_path).close()
    assert synced[0] == tmp_path
    synced.clear()
    make_log(tmp_path)
    assert tmp_path not in synced


def test_only_what_lies_above_the_recovery_point_is_read_again(tmp_path: Path) -> None:
    log = write_some(tmp_path, 24)
    damaged = log.segments.items[1]
    data = bytearray(damaged.path.read_bytes())
    data[-1] ^= 1
    damaged.path.write_bytes(data)
    flushed = log.segments.items[3].base_offset
    recovered = make_log(tmp_path, SMALL, recovery_point=flushed)
    assert recovered.log_end_offset == 24
    assert recovered.flushed_offset == flushed


def test_an_unclean_start_does_not_claim_to_have_flushed(tmp_path: Path) -> None:
    write_some(tmp_path, 12)
    recovered = make_log(tmp_path, SMALL, recovery_point=100)
    assert recovered.flushed_offset == 12
    recovered = make_log(tmp_path, SMALL, recovery_point=3)
    assert recovered.flushed_offset == 3
    recovered.flush()
    assert recovered.flushed_offset == 12


def test_a_clean_start_reads_back_the_same_log(tmp_path: Path) -> None:
    log = write_some(tmp_path, 24)
    expected = read_from(log)
    log.flush()
    log.close()
    reopened = make_log(tmp_path, SMALL, had_clean_shutdown=True, recovery_point=24)
    assert reopened.flushed_offset == reopened.log_end_offset == 24
    assert read_from(reopened) == expected
    assert reopened.latest_epoch == 5
    assert append(reopened, "next").first_offset == 24


def test_a_long_recovery_tells_how_far_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_some(tmp_path, 24)
    monkeypatch.setattr("storage.recovery._LONG_RECOVERY_BYTES", 100)
    with caplog.at_level("INFO", "storage.recovery"):
        log = make_log(tmp_path, SMALL)
    lines = [r.getMessage() for r in caplog.records if "recovering log" in r.getMessage()]
    assert len(lines) == len(log.segments)
    assert f"partition=orders-0 segment 2/{len(log.segments)}" in lines[1]


def test_records_below_the_log_start_stay_deleted(tmp_path: Path) -> None:
    write_some(tmp_path, 12)
    recovered = make_log(tmp_path, SMALL, log_start_offset=5)
    assert recovered.log_start_offset == 5
    assert read_from(recovered)[0].offset == 5


def test_epochs_of_deleted_records_stay_forgotten(tmp_path: Path) -> None:
    write_some(tmp_path, 12).flush()
    recovered = make_log(tmp_path, SMALL, log_start_offset=5)
    assert recovered.leader_epochs.entries == ((1, 5), (2, 8))


def test_a_log_that_lost_its_files_starts_where_it_was(tmp_path: Path) -> None:
    write_some(tmp_path, 12)
    recovered = make_log(tmp_path, SMALL, log_start_offset=50)
    assert (recovered.log_start_offset, recovered.log_end_offset) == (50, 50)
    assert append(recovered, "next").first_offset == 50


# --- indexes are hints -------------------------------------------------------------------------

Damage = Callable[[Path, random.Random], None]


def _random_bytes(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(path.stat().st_size or 24))


def _zeros(path: Path, rng: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size + 48))


def _cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def _missing(path: Path, rng: random.Random) -> None:
    path.unlink()


def _swapped(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    half = len(data) // 48 * 24
    path.write_bytes(data[half:] + data[:half])


def _another_segments(path: Path, rng: random.Random) -> None:
    others = [other for other in path.parent.glob(f"*{path.suffix}") if other != path]
    path.write_bytes(rng.choice(others).read_bytes())


def _shifted(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for at in range(3, len(data), 4):
        data[at] ^= 1
    path.write_bytes(data)


def _values_of_the_next(path: Path, rng: random.Random) -> None:
    """Every entry points where the next one should: plausible, and too far."""
    width = 8 if path.suffix == ".index" else 12
    data = path.read_bytes()
    entries = [data[at : at + width] for at in range(0, len(data), width)]
    moved = [own[:-4] + following[-4:] for own, following in itertools.pairwise(entries)]
    path.write_bytes(b"".join(moved))


@pytest.mark.parametrize(
    "damage",
    [
        _random_bytes,
        _zeros,
        _cut,
        _missing,
        _swapped,
        _another_segments,
        _shifted,
        _values_of_the_next,
    ],
)
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_damaged_indexes_change_no_answer(
    tmp_path: Path, suffix: str, damage: Damage, is_clean: bool
) -> None:
    rng = random.Random(len(damage.__name__))
    config = LogConfig(segment_bytes=3000, index_interval_bytes=100)
    log = make_log(tmp_path, config)
    times = [WALL_MS + rng.randint(-1000, 1000) for _ in range(120)]
    for offset, time in enumerate(times):
        append(log, f"{offset}", timestamp=time)
    log.flush()
    log.close()
    for path in sorted((tmp_path / "orders-0").glob(f"*{suffix}")):
        damage(path, rng)
    reopened = make_log(tmp_path, config, had_clean_shutdown=is_clean, recovery_point=120)
    assert reopened.log_end_offset == 120
    for offset in rng.sample(range(120), 60):
        assert read_from(reopened, offset, size=100)[0].value == b"%d" % offset
    for target in range(WALL_MS - 1010, WALL_MS + 1010, 97):
        found = reopened.offset_for_timestamp(target)
        expected = next(((t, o) for o, t in enumerate(times) if t >= target), None)
        assert (None if found is None else (found.timestamp, found.offset)) == expected
    assert append(reopened, "next").first_offset == 120
    reopened.roll()
    assert read_from(reopened, 119)[-1].value == b"next"


def test_an_index_without_its_log_is_removed(tmp_path: Path) -> None:
    write_some(tmp_path, 3)
    orphan = tmp_path / "orders-0" / "00000000000000000777.index"
    orphan.write_bytes(b"\0" * 8)
    make_log(tmp_path, SMALL)
    assert not orphan.exists()


def test_an_index_that_turns_bad_while_it_is_used_is_rebuilt(tmp_path: Path) -> None:
    config = LogConfig(index_interval_bytes=100)
    log = write_some(tmp_path, 60, config)
    segment = log.active_segment
    segment.flush()
    index = segment.offset_index
    index.path.write_bytes(bytes([0, 0, 0, 9, 0, 0, 0, 50]) * 7)
    index.close()
    segment._recent.clear()
    assert read_from(log, 30)[0].offset == 30
    assert index.entries > 10


# --- state made from the log -------------------------------------------------------------------


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_epoch_that_was_cut_off_does_not_come_back_with_a_restart(
    tmp_path: Path, is_clean: bool
) -> None:
    """Where it began are now records of an older epoch, from a leader that never heard of it. Were
    it back, the leader would make this replica cut off what is committed."""
    log = make_log(tmp_path, SMALL)
    append(log, "a", epoch=0)
    log.assign_epoch_start(1, 1)
    append(log, "b", epoch=1)
    log.truncate_to(1)
    log.append_as_follower(batch("c", base_offset=1, leader_epoch=0), 2)
    log.flush()
    if is_clean:
        log.close()
    reopened = make_log(tmp_path, SMALL, had_clean_shutdown=is_clean, recovery_point=2)
    assert reopened.latest_epoch == 0
    assert reopened.end_offset_for_epoch(0) == (0, 2)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_restart_does_not_forget_producers(tmp_path: Path, is_clean: bool) -> None:
    log = make_log(tmp_path, SMALL)
    sent = [
        batch("x" * 30, producer_id=7, producer_epoch=2, base_sequence=number)
        for number in range(9)
    ]
    for data in sent:
        log.append_as_leader(data, 0, WALL_MS)
    if is_clean:
        log.flush()
        log.close()
    reopened = make_log(tmp_path, SMALL, had_clean_shutdown=is_clean, recovery_point=9)
    again = reopened.append_as_leader(sent[8], 0, WALL_MS)
    assert (again.duplicate, again.first_offset) == (True, 8)
    with pytest.raises(KafkaError) as error:
        reopened.append_as_leader(
            batch("y", producer_id=7, producer_epoch=2, base_sequence=11), 0, WALL_MS
        )
    assert error.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    new = batch("y", producer_id=7, producer_epoch=2, base_sequence=9)
    assert reopened.append_as_leader(new, 0, WALL_MS).first_offset == 9


@pytest.mark.parametrize("damage", [_random_bytes, _zeros, _cut, _missing])
def test_a_bad_producer_snapshot_is_replaced_by_replaying_the_log(
    tmp_path: Path, damage: Damage
) -> None:
    log = make_log(tmp_path, SMALL)
    sent = [
        batch("x" * 30, producer_id=7, producer_epoch=2, base_sequence=number)
        for number in range(9)
    ]
    for data in sent:
        log.append_as_leader(data, 0, WALL_MS)
    log.flush()
    log.close()
    snapshots = sorted((tmp_path / "orders-0").glob("*.snapshot"))
    assert len(snapshots) > 1
    for path in snapshots:
        damage(path, random.Random(1))
    reopened = make_log(tmp_path, SMALL, had_clean_shutdown=True, recovery_point=9)
    # Replayed from the log, not only the last batch of the producer is known (P-4).
    assert all(reopened.append_as_leader(data, 0, WALL_MS).duplicate for data in sent[4:])


def test_a_producer_whose_batches_were_deleted_is_known_after_a_crash_at_a_roll(
    tmp_path: Path,
) -> None:
    """The recovery point is where a segment begins: the snapshot there stays, and is used."""
    log = make_log(tmp_path / "a")
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    append(log, "first", **producer)
    log.roll()
    append(log, "of another")
    log.update_high_watermark(2)
    log.increment_log_start_offset(1)
    assert log.delete_old_segments(WALL_MS) == 1
    log.roll()
    log.flush()
    root = crash(tmp_path / "a", tmp_path / "b")
    recovered = make_log(root, recovery_point=log.flushed_offset, log_start_offset=1)
    assert append(recovered, "first", **producer).duplicate


def with_aborted_transactions(root: Path, config: LogConfig = SMALL) -> PartitionLog:
    """Nine transactions, six of them aborted, in several segments, and one that goes on."""
    log = make_log(root, config)
    for producer_id, kind in enumerate(
        [ControlRecordType.ABORT, ControlRecordType.COMMIT, ControlRecordType.ABORT] * 3
    ):
        data = batch(
            "x" * 50,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        log.append_as_leader(data, 0, WALL_MS)
        marker = end_txn_marker_batch(
            EndTxnMarker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp=WALL_MS
        )
        log.append_as_leader(marker, 0, WALL_MS, FROM_COORDINATOR)
    open_one = batch("o", producer_id=99, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append_as_leader(open_one, 0, WALL_MS)
    assert len(log.aborted_transactions(0, 100)) == 6
    return log


@pytest.mark.parametrize("is_index_lost", [True, False])
def test_aborted_transactions_are_known_after_a_crash(tmp_path: Path, is_index_lost: bool) -> None:
    log = with_aborted_transactions(tmp_path / "a")
    expected = log.aborted_transactions(0, 100)
    root = crash(tmp_path / "a", tmp_path / "b")
    if is_index_lost:
        for path in (root / "orders-0").glob("*.txnindex"):
            path.unlink()
    recovered = make_log(root, SMALL)
    assert recovered.aborted_transactions(0, 100) == expected
    recovered.update_high_watermark(recovered.log_end_offset)
    assert recovered.last_stable_offset == recovered.log_end_offset - 1


def _other_version(path: Path, _rng: random.Random) -> None:
    path.write_bytes(b"\x00\x01" + path.read_bytes()[2:])


def _cut_short(path: Path, _rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _all_indexes_missing(path: Path, _rng: random.Random) -> None:
    for suffix in (".index", ".timeindex", ".txnindex"):
        path.with_suffix(suffix).unlink()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    "damage", [_random_bytes, _zeros, _other_version, _cut_short, _all_indexes_missing]
)
def test_a_damaged_index_of_a_sealed_segment_hides_no_aborted_transaction(
    tmp_path: Path, damage: Damage, is_clean: bool
) -> None:
    """Or read_committed readers fail at every start, or see what was aborted (V-3)."""
    log = with_aborted_transactions(tmp_path)
    expected = log.aborted_transactions(0, 100)
    end_offset, stable_at = log.log_end_offset, log.log_end_offset - 1
    log.flush()
    log.close()
    paths = sorted(log.directory.glob("*.txnindex"))
    assert len(paths) > 3
    for path in (paths[0], paths[2]):
        damage(path, random.Random(1))
    for _ in range(2):
        again = make_log(tmp_path, SMALL, had_clean_shutdown=is_clean, recovery_point=end_offset)
        assert again.log_end_offset == end_offset
        assert again.aborted_transactions(0, 100) == expected
        again.update_high_watermark(end_offset)
        assert again.last_stable_offset == stable_at
        again.flush()
        again.close()


def test_of_a_segment_that_was_flushed_while_active_no_index_is_believed(tmp_path: Path) -> None:
    """It was rolled where it was flushed: its log is on disk, its indexes may have been lost."""
    config = LogConfig(index_interval_bytes=100)
    log = with_aborted_transactions(tmp_path / "a", config)
    expected, found = log.aborted_transactions(0, 100), log.offset_for_timestamp(WALL_MS)
    log.flush()
    sealed = log.active_segment
    log.roll()
    assert log.active_segment.base_offset == log.flushed_offset
    root = crash(tmp_path / "a", tmp_path / "b")
    indexes = (sealed.offset_index, sealed.time_index, sealed.txn_index)
    paths = [root / "orders-0" / index.path.name for index in indexes]
    for path in paths:
        path.write_bytes(b"")
    recovered = make_log(root, config, recovery_point=log.flushed_offset)
    assert recovered.aborted_transactions(0, 100) == expected
    assert recovered.offset_for_timestamp(WALL_MS) == found
    recovered.flush()
    assert all(path.read_bytes() for path in paths)


def test_a_log_that_recovery_emptied_can_be_flushed(tmp_path: Path) -> None:
    """L2: what recovery deleted is not waiting for its sync, whose failure would be final."""
    write_some(tmp_path, 12)
    recovered = make_log(tmp_path, SMALL, log_start_offset=100)
    assert recovered.log_start_offset == recovered.log_end_offset == 100
    recovered.flush()
    assert not recovered.is_offline
    assert append(recovered, "next").first_offset == 100


@pytest.mark.parametrize("damage", [_random_bytes, _zeros, _missing])
def test_leader_epochs_are_made_anew_from_the_batches(tmp_path: Path, damage: Damage) -> None:
    log = write_some(tmp_path, 12)
    expected = log.leader_epochs.entries
    assert len(expected) == 3
    damage(tmp_path / "orders-0" / LEADER_EPOCH_CHECKPOINT, random.Random(1))
    recovered = make_log(tmp_path, SMALL)
    assert recovered.leader_epochs.entries == expected


def test_epochs_of_what_was_cut_off_are_forgotten(tmp_path: Path) -> None:
    log = write_some(tmp_path, 12)
    log.assign_epoch_start(9, 12)
    os.truncate(log.active_segment.path, 5)
    recovered = make_log(tmp_path, SMALL)
    assert recovered.latest_epoch <= 2
    assert all(e.start_offset < recovered.log_end_offset for e in recovered.leader_epochs.entries)


# --- leftovers ---------------------------------------------------------------------------------


def test_temporary_files_are_removed(tmp_path: Path) -> None:
    write_some(tmp_path, 3)
    directory = tmp_path / "orders-0"
    for name in ("00000000000000000009.log.deleted", "00000000000000000001.log.cleaned"):
        (directory / name).write_bytes(b"x")
    make_log(tmp_path, SMALL)
    assert not [path for path in directory.iterdir() if path.suffix in (".deleted", ".cleaned")]


def test_a_compaction_that_reached_its_swap_is_finished(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=400, cleanup_policy=frozenset({"compact"}))
    log = write_some(tmp_path, 12, config)
    directory = tmp_path / "orders-0"
    bases = [segment.base_offset for segment in log.segments]
    # The first two segments became one, which was renamed to .swap; the old ones are still there.
    compacted = batch("kept", base_offset=bases[2] - 1, leader_epoch=(bases[2] - 1) // 4)
    (directory / "00000000000000000000.log.swap").write_bytes(compacted)
    recovered = make_log(tmp_path, config)
    assert [s.base_offset for s in recovered.segments] == [0, *bases[2:]]
    assert read_from(recovered)[0].value == b"kept"
    assert recovered.log_end_offset == 12
    assert not list(directory.glob("*.swap"))


def test_a_compaction_that_did_not_reach_its_swap_is_undone(tmp_path: Path) -> None:
    log = write_some(tmp_path, 12)
    expected = read_from(log)
    directory = tmp_path / "orders-0"
    # A swap at or above a .cleaned file: not all files of the compaction were renamed.
    (directory / "00000000000000000004.log.swap").write_bytes(batch("no", base_offset=4))
    (directory / "00000000000000000000.log.cleaned").write_bytes(batch("no"))
    recovered = make_log(tmp_path, SMALL)
    assert read_from(recovered) == expected


def test_a_log_that_cannot_be_opened_keeps_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_some(tmp_path, 12)
    env = environment(tmp_path, open_files=OpenFileCache(64))
    FaultyDisk(monkeypatch).fail("replace")
    with pytest.raises(OSError, match="Input/output"):
        open_log(tmp_path / "orders-0", PARTITION, SMALL, env)
    assert len(env.open_files) == 0
    assert len(list((tmp_path / "orders-0").glob("*.log"))) > 1


def test_a_directory_of_another_topic_id_is_not_touched(tmp_path: Path) -> None:
    make_log(tmp_path, topic_id=b"first-topic-id!!")
    with pytest.raises(ValueError, match="another topic id"):
        make_log(tmp_path, topic_id=b"other-topic-id!!")
    assert make_log(tmp_path).topic_id == b"first-topic-id!!"


@pytest.mark.parametrize("damage", [_zeros, _cut_short, _all_indexes_missing])
def test_a_kill_while_indexes_are_made_anew_hides_no_aborted_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage
) -> None:
    """At whichever call of a file it comes; the next start must see what this one did."""
    log = with_aborted_transactions(tmp_path / "whole")
    expected, end_offset = log.aborted_transactions(0, 100), log.log_end_offset
    log.flush()
    log.close()
    damage(sorted(log.directory.glob("*.txnindex"))[2], random.Random(1))
    for step in itertools.count():
        root = crash(tmp_path / "whole", tmp_path / f"{step}")
        left = step

        def call(inner: Callable[..., Any], *args: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return inner(*args)

        with monkeypatch.context() as patch:
            for name in ("open_file", "pwrite", "pwritev", "ftruncate", "unlink", "replace"):
                patch.setattr(files, name, partial(call, getattr(files, name)))
            try:
                make_log(root, SMALL, had_clean_shutdown=True).close()
            except Killed:
                pass
            else:
                break
        again = make_log(root, SMALL, recovery_point=end_offset)
        assert again.aborted_transactions(0, 100) == expected, step
        again.close()
    gc.collect()  # what the kills left open; of a whole run's objects it takes a second
    assert step > 10
