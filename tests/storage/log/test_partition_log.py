"""A partition log as producers, consumers and replicas use it."""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from storage import files
from storage.checkpoint import read_leader_epochs
from storage.config import LogConfig
from storage.log.append_source import FROM_CLIENT, FROM_COORDINATOR
from storage.log.partition_log import PartitionLog
from storage.log.segment_swap import replace_segments
from storage.open_files import FileSlice
from storage.segments.index import CorruptIndexError, OffsetIndex
from storage.segments.segment import CorruptSegment, IndexMismatch, LogSegment
from testkit.clock import WALL_MS
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
from wire.records import (
    ControlRecordType,
    EndTxnMarker,
    Record,
    build_batch,
    end_txn_marker_batch,
    iterate_headers,
    read_header,
    read_records,
)

HOUR_MS = 3_600_000


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


# --- append ------------------------------------------------------------------------------------


def test_records_come_back_with_the_offsets_they_were_given(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    first = append(log, "a", "b")
    second = append(log, "c")
    assert (first.first_offset, first.last_offset) == (0, 1)
    assert (second.first_offset, second.last_offset) == (2, 2)
    assert [(r.offset, r.value) for r in read_from(log)] == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert log.log_end_offset == 3


def test_a_stored_batch_differs_from_the_sent_one_only_in_offset_and_epoch(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "before")
    sent = batch("a", "b")
    log.append_as_leader(sent, 7, WALL_MS)
    stored = read_bytes(log, 1)
    assert stored[16:] == sent[16:]
    header = read_header(stored)
    assert (header.base_offset, header.leader_epoch) == (1, 7)


def test_an_append_tells_times_epoch_and_size(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    sent = batch("a", timestamp=WALL_MS - 5)
    info = log.append_as_leader(sent, 3, WALL_MS)
    assert (info.max_timestamp, info.log_append_time_ms) == (WALL_MS - 5, -1)
    assert (info.leader_epoch, info.size, info.log_start_offset) == (3, len(sent), 0)
    assert not info.duplicate
    assert not info.must_flush


@pytest.mark.parametrize(
    ("config", "sent", "code"),
    [
        (LogConfig(max_message_bytes=100), batch("x" * 100), ErrorCode.MESSAGE_TOO_LARGE),
        (LogConfig(segment_bytes=100), batch("x" * 100), ErrorCode.RECORD_LIST_TOO_LARGE),
        (LogConfig(), batch("x")[:-1], ErrorCode.INVALID_RECORD),
        (LogConfig(), batch("x")[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
        (LogConfig(), batch("x", base_offset=5), ErrorCode.INVALID_RECORD),
        (LogConfig(), batch("x") * 2, ErrorCode.INVALID_RECORD),
        (LogConfig(), batch("x", is_control=True), ErrorCode.INVALID_RECORD),
        (LogConfig(), batch("x", timestamp=WALL_MS + HOUR_MS + 1), ErrorCode.INVALID_TIMESTAMP),
        (
            LogConfig(message_timestamp_before_max_ms=1000),
            batch("x", timestamp=WALL_MS - 1001),
            ErrorCode.INVALID_TIMESTAMP,
        ),
        (
            LogConfig(cleanup_policy=frozenset({"compact"})),
            batch("x", key=None),
            ErrorCode.INVALID_RECORD,
        ),
    ],
)
def test_a_batch_that_breaks_a_rule_is_refused_and_leaves_no_trace(
    tmp_path: Path, config: LogConfig, sent: bytes, code: ErrorCode
) -> None:
    log = make_log(tmp_path, config)
    with pytest.raises(KafkaError) as error:
        log.append_as_leader(sent, 0, WALL_MS)
    assert code_of(error) is code
    assert (log.log_end_offset, log.size) == (0, 0)


def test_records_at_fault_are_named(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(cleanup_policy=frozenset({"compact"})))
    rows = [Record(-1, WALL_MS, key, b"v") for key in (b"k", None, b"k", None)]
    with pytest.raises(KafkaError) as error:
        log.append_as_leader(build_batch(rows), 0, WALL_MS)
    assert [index for index, _ in error.value.record_errors] == [1, 3]


def test_a_compacted_log_takes_records_with_keys(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(cleanup_policy=frozenset({"compact", "delete"})))
    append(log, "a", "b")
    assert values(read_from(log)) == [b"a", b"b"]


def test_log_append_time_stamps_the_batch_with_the_brokers_clock(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(message_timestamp_type="LogAppendTime"))
    info = append(log, "a", timestamp=5)
    assert info.log_append_time_ms == info.max_timestamp == WALL_MS
    assert [record.timestamp for record in read_from(log)] == [WALL_MS]


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_compression_type_decides_how_batches_are_stored(tmp_path: Path, codec: str) -> None:
    log = make_log(tmp_path, LogConfig(compression_type=codec))
    log.append_as_leader(batch("a" * 50, "b" * 50, codec=1), 0, WALL_MS)  # producers send gzip
    stored = read_bytes(log, 0)
    assert read_header(stored).codec == ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(
        codec
    )
    assert values(read_records(stored)) == [b"a" * 50, b"b" * 50]


def test_recompression_keeps_the_producers_sequence(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(compression_type="lz4"))
    sent = batch("a", producer_id=9, producer_epoch=1, base_sequence=0)
    log.append_as_leader(sent, 0, WALL_MS)
    assert log.append_as_leader(sent, 0, WALL_MS).duplicate


# --- idempotence and transactions --------------------------------------------------------------


def test_a_repeated_batch_is_answered_with_its_first_offset_and_not_written(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    sent = batch("a", producer_id=0, producer_epoch=0, base_sequence=0)
    first = log.append_as_leader(sent, 0, WALL_MS)
    log.append_as_leader(batch("b", producer_id=0, producer_epoch=0, base_sequence=1), 0, WALL_MS)
    again = log.append_as_leader(sent, 0, WALL_MS)
    assert again.duplicate
    assert (again.first_offset, again.last_offset) == (first.first_offset, first.last_offset)
    assert again.log_append_time_ms == WALL_MS  # as Kafka answers, under CreateTime too
    assert log.log_end_offset == 2


def test_a_repeated_batch_is_found_without_an_append(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    sent = batch("a", "b", producer_id=4, producer_epoch=0, base_sequence=0)
    assert log.find_duplicate(sent, 3, WALL_MS, FROM_CLIENT) is None
    log.append_as_leader(sent, 3, WALL_MS)
    found = log.find_duplicate(sent, 3, WALL_MS, FROM_CLIENT)
    assert found is not None
    assert (found.duplicate, found.first_offset, found.last_offset) == (True, 0, 1)
    other = batch("c", producer_id=4, producer_epoch=0, base_sequence=2)
    assert log.find_duplicate(other, 3, WALL_MS, FROM_CLIENT) is None
    with pytest.raises(KafkaError) as refused:
        log.find_duplicate(sent[:-1] + b"!", 3, WALL_MS, FROM_CLIENT)
    assert code_of(refused) is ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 2


def test_a_repeated_batch_needs_a_flush_as_long_as_it_is_not_flushed(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(flush_messages=2))
    sent = [
        batch("x", producer_id=4, producer_epoch=0, base_sequence=number) for number in range(4)
    ]

    def must_flush(number: int) -> bool:
        return log.append_as_leader(sent[number], 0, WALL_MS).must_flush

    assert [must_flush(0), must_flush(0), must_flush(1), must_flush(0)] == [0, 0, 1, 1]
    log.flush()
    assert [must_flush(1), must_flush(2), must_flush(2)] == [0, 0, 0]
    assert [must_flush(3), must_flush(2), must_flush(1)] == [1, 1, 0]


def test_a_gap_in_sequences_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.append_as_leader(batch("a", producer_id=4, producer_epoch=0, base_sequence=0), 0, WALL_MS)
    with pytest.raises(KafkaError) as error:
        log.append_as_leader(
            batch("c", producer_id=4, producer_epoch=0, base_sequence=2), 0, WALL_MS
        )
    assert code_of(error) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.append_as_leader(batch("b", producer_id=4, producer_epoch=0, base_sequence=1), 0, WALL_MS)
    assert values(read_from(log)) == [b"a", b"b"]


def transactional(value: str, producer_id: int, sequence: int) -> bytes:
    return batch(
        value,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )


def end_transaction(log: PartitionLog, producer_id: int, kind: ControlRecordType) -> None:
    marker = end_txn_marker_batch(
        EndTxnMarker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp=WALL_MS
    )
    log.append_as_leader(marker, 0, WALL_MS, FROM_COORDINATOR)


def test_a_marker_is_checked_by_the_version_of_its_transaction(tmp_path: Path) -> None:
    """TX-60: one of version 2 has an epoch above its records', so a late one ends nothing."""
    log = make_log(tmp_path)
    log.append_as_leader(transactional("a", 1, 0), 0, WALL_MS)
    commit = EndTxnMarker(ControlRecordType.COMMIT, 0)
    late = end_txn_marker_batch(commit, producer_id=1, producer_epoch=0, timestamp=WALL_MS)
    strict = FROM_COORDINATOR._replace(transaction_version=2)
    with pytest.raises(KafkaError) as refused:
        log.append_as_leader(late, 0, WALL_MS, strict)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.log_end_offset == 1
    own = end_txn_marker_batch(commit, producer_id=1, producer_epoch=1, timestamp=WALL_MS)
    for again in range(2):
        assert log.append_as_leader(own, 0, WALL_MS, strict).first_offset == 1 + again
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 3


def test_the_last_stable_offset_waits_for_the_oldest_open_transaction(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "plain")
    log.append_as_leader(transactional("a", 1, 0), 0, WALL_MS)
    log.append_as_leader(transactional("b", 2, 0), 0, WALL_MS)
    log.update_high_watermark(3)
    assert log.last_stable_offset == 1
    end_transaction(log, 1, ControlRecordType.COMMIT)
    # The marker is written but not replicated: the transaction is not decided yet (V-2).
    assert log.last_stable_offset == 1
    log.update_high_watermark(4)
    assert log.last_stable_offset == 2
    end_transaction(log, 2, ControlRecordType.ABORT)
    log.update_high_watermark(5)
    assert log.last_stable_offset == 5


def test_aborted_transactions_are_listed_for_the_range_that_was_read(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(segment_bytes=400))
    for producer_id in range(1, 7):
        log.append_as_leader(transactional("x", producer_id, 0), 0, WALL_MS)
        kind = ControlRecordType.COMMIT if producer_id % 2 else ControlRecordType.ABORT
        end_transaction(log, producer_id, kind)
    log.update_high_watermark(log.log_end_offset)
    assert len(log.segments) > 2
    aborted = log.aborted_transactions(0, log.log_end_offset)
    assert [(txn.producer_id, txn.first_offset) for txn in aborted] == [(2, 2), (4, 6), (6, 10)]
    assert [txn.producer_id for txn in log.aborted_transactions(4, 8)] == [4]
    result = log.read(2, 1 << 20, True, log.last_stable_offset, include_aborted=True)
    assert result.aborted is not None
    assert result.aborted[0].producer_id == 2


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_read_names_the_aborted_transactions_of_what_it_returns(
    tmp_path: Path, size: int
) -> None:
    log = make_log(tmp_path, LogConfig(segment_bytes=400, index_interval_bytes=0))
    for producer_id in range(6):
        log.append_as_leader(transactional("x", producer_id, 0), 0, WALL_MS)
        end_transaction(log, producer_id, ControlRecordType.ABORT)
    end = log.log_end_offset
    assert len(log.segments) > 2
    for offset in range(end):
        result = log.read(offset, size, True, end, include_aborted=True)
        assert result.records is not None
        last = [header.last_offset for _, header in iterate_headers(result.records.read())][-1]
        found = [txn.producer_id for txn in result.aborted or ()]
        assert found == list(range(offset // 2, last // 2 + 1))


@pytest.mark.parametrize("is_unlinked", [True, False])
def test_a_read_that_meets_a_deletion_hides_no_aborted_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_unlinked: bool
) -> None:
    """Without its aborted transactions the records of a read pass for committed ones. It begins
    again below the log start."""
    scheduler = ManualScheduler()
    log = make_log(tmp_path, env=environment(tmp_path, scheduler=scheduler))
    log.append_as_leader(transactional("x", 1, 0), 0, WALL_MS)
    end_transaction(log, 1, ControlRecordType.ABORT)
    log.roll()
    log.update_high_watermark(2)
    log.increment_log_start_offset(1)
    real = LogSegment.upper_bound_offset

    def upper_bound_offset(segment: LogSegment, *end: int) -> int | None:
        monkeypatch.undo()
        log.increment_log_start_offset(2)
        log.delete_old_segments(WALL_MS)
        if is_unlinked:
            scheduler.run("delete-segments")
        return real(segment, *end)

    monkeypatch.setattr(LogSegment, "upper_bound_offset", upper_bound_offset)
    with pytest.raises(KafkaError) as refused:
        log.read(1, 1, True, 2, include_aborted=True)
    assert code_of(refused) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(log.segments) == 1


# --- read --------------------------------------------------------------------------------------


def test_reads_are_bounded_by_start_end_and_upper_offset(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for value in "abcde":
        append(log, value)
    log.update_high_watermark(3)
    log.increment_log_start_offset(1)
    for offset in (0, 6):
        with pytest.raises(KafkaError) as error:
            log.read(offset, 1000, True, 5)
        assert code_of(error) is ErrorCode.OFFSET_OUT_OF_RANGE
    # V-1: between the high watermark and the end there is nothing to see, which is no error.
    for offset in (3, 4, 5):
        assert log.read(offset, 1000, True, 3).records is None
    assert log.read(5, 1000, True, 9).records is None, "whoever asks knows of a later end"
    assert values(read_records(read_bytes(log, 2, upper=3))) == [b"c"]


@pytest.mark.parametrize("upper", range(1, 12))
def test_nothing_at_or_above_the_upper_offset_is_returned(tmp_path: Path, upper: int) -> None:
    log = make_log(tmp_path, LogConfig(segment_bytes=300))
    for number in range(6):
        append(log, f"{number}a", f"{number}b")
    for start in range(0, upper - 1, 2):
        for reader in (log, make_log(tmp_path, log.config)):
            data = read_bytes(reader, start, upper=upper)
            headers = [header for _, header in iterate_headers(data)]
            assert headers
            assert sum(header.size for header in headers) == len(data)
            assert all(header.last_offset < upper for header in headers)


def test_a_read_in_the_middle_of_a_batch_returns_the_whole_batch(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "a", "b", "c")
    assert read_header(read_bytes(log, 1)).base_offset == 0
    assert values(read_from(log, 1)) == [b"b", b"c"]


def test_the_first_batch_comes_whole_or_not_at_all(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    sent = batch("x" * 1000)
    log.append_as_leader(sent, 0, WALL_MS)
    append(log, "y")
    result = log.read(0, 10, True, 2)
    assert result.records is not None
    assert len(result.records) == len(sent)
    assert log.read(0, 10, False, 2).records is None
    assert log.read(0, len(sent) - 1, False, 2).records is None
    alone = log.read(0, len(sent), False, 2).records
    assert alone is not None
    assert len(alone) == len(sent)
    exact = log.read(0, len(sent) + 5, False, 2)
    assert exact.records is not None
    assert len(exact.records) == len(sent) + 5  # the second batch may be cut


def test_any_offset_is_found_at_any_batch_size(tmp_path: Path) -> None:
    rng = random.Random(7)
    log = make_log(tmp_path, LogConfig(segment_bytes=30_000, index_interval_bytes=500))
    expected: list[bytes] = []
    while len(expected) < 3000:
        group = [
            b"%d" % (len(expected) + i) + b"." * rng.randrange(60) for i in range(rng.randint(1, 9))
        ]
        append(log, *group)
        expected += group
    assert len(log.segments) > 3
    cold = make_log(tmp_path, log.config)  # knows no positions
    for offset in rng.sample(range(len(expected)), 500):
        for reader in (log, cold):
            data = read_bytes(reader, offset, size=200)
            record = next(r for r in read_records(data) if r.offset == offset)
            assert record.value == expected[offset]
    assert values(read_from(cold, size=7000)) == expected


def test_a_slice_goes_to_a_socket_without_passing_through_python(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "x" * 5000)
    records = log.read(0, 1 << 20, True, 1).records
    assert records is not None
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        sent = records.send_to(left.fileno(), 0, 1000)
        sent += records.send_to(left.fileno(), sent, len(records) - sent)
        assert sent == len(records)
        assert right.recv(1 << 16) == records.read()
        with pytest.raises(BlockingIOError):
            _send_for_ever(records, left.fileno())


def _send_for_ever(records: FileSlice, fd: int) -> None:
    while True:
        records.send_to(fd, 0, len(records))


def test_where_a_platform_has_no_sendfile_slices_are_read_and_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.files.sendfile", None)
    log = make_log(tmp_path)
    append(log, "x" * 5000)
    records = log.read(0, 1 << 20, True, 1).records
    assert records is not None
    left, right = socket.socketpair()
    with left, right:
        assert records.send_to(left.fileno(), 100, 1000) == 1000
        assert right.recv(1 << 16) == records.read(100, 1000)


def test_readers_see_only_whole_batches_while_a_writer_appends(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(segment_bytes=5000))
    total = 600
    problems: list[str] = []

    def read() -> None:
        seen = 0
        while seen < total and not problems:
            end = log.log_end_offset
            if seen == end:
                continue
            data = read_bytes(log, seen, upper=end)
            for _, header in iterate_headers(data):
                if header.base_offset != seen or header.last_offset >= end:
                    problems.append(f"{header} at {seen}, end {end}")
                seen = header.next_offset

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(total // 2):
        append(log, f"{number}", "x" * 40)
    for reader in readers:
        reader.join(60)
    assert problems == []


def test_readable_bytes_counts_what_lies_between_two_offsets(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(segment_bytes=500))
    sizes = [append(log, "x" * (10 * number)).size for number in range(12)]
    assert len(log.segments) > 2
    for start in range(13):
        for end in range(start, 13):
            assert log.readable_bytes(start, end) == sum(sizes[start:end])
    assert log.readable_bytes(5, 3) == 0


def test_readable_bytes_are_those_of_whole_batches_and_what_is_below_the_log_is_all_of_it(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path)
    log.truncate_fully_and_start_at(100)
    append(log, "a", "b", "c")
    append(log, "d")
    assert log.readable_bytes(100, 102) == 0
    assert log.readable_bytes(50, 101) == log.size
    assert log.readable_bytes(50, 50) == 0


def test_readable_bytes_of_files_that_cannot_be_read_are_an_estimate(tmp_path: Path) -> None:
    """The read that follows tells what is wrong."""
    append(make_log(tmp_path), "a")
    log = make_log(tmp_path)
    log.active_segment.close()
    log.active_segment.path.unlink()
    assert log.readable_bytes(0, 1) == log.size > 0
    assert not log.is_offline


def test_index_entries_are_where_kafka_writes_them(tmp_path: Path) -> None:
    """One for a batch before which more than the interval was written; it ends at the offset."""
    rng = random.Random(9)
    log = make_log(tmp_path, LogConfig(index_interval_bytes=1000))
    times = []
    for number in range(200):
        time = WALL_MS + rng.randint(-500, 500)
        times.append(time)
        rows = [Record(-1, time, b"k", b"x" * rng.randrange(400)) for _ in range(number % 3 + 1)]
        log.append_as_leader(build_batch(rows), 0, WALL_MS)
    segment = log.active_segment
    offsets, newest = [], []
    since, best = 0, (-1, 0)
    for position, header in segment.batches(0):
        best = max(best, (header.max_timestamp, -header.last_offset))
        if since > 1000:
            offsets.append((header.last_offset, position))
            if not newest or best[0] > newest[-1][0]:
                newest.append((best[0], -best[1]))
            since = 0
        since += header.size
    assert len(offsets) > 20
    index, time_index = segment.offset_index, segment.time_index
    assert [index.entry(slot) for slot in range(index.entries)] == offsets
    assert [time_index.entry(slot) for slot in range(time_index.entries)] == newest
    # Recovery writes the same, and the newest time as last entry.
    recovered = make_log(tmp_path, log.config).active_segment
    again = recovered.offset_index
    assert [again.entry(slot) for slot in range(again.entries)] == offsets
    assert recovered.time_index.last_entry == (max(times), recovered.max_timestamp_offset)


# --- time --------------------------------------------------------------------------------------


def test_offsets_are_found_by_time_as_a_full_scan_finds_them(tmp_path: Path) -> None:
    rng = random.Random(3)
    log = make_log(
        tmp_path, LogConfig(segment_bytes=4000, index_interval_bytes=200, segment_ms=2**40)
    )
    times: list[int] = []
    while len(times) < 400:
        stamps = [WALL_MS + rng.randint(-5000, 5000) for _ in range(rng.randint(1, 4))]
        rows = [Record(-1, stamp, b"k", b"v" * 20) for stamp in stamps]
        log.append_as_leader(build_batch(rows, codec=rng.choice([0, 1])), 0, WALL_MS)
        times += stamps
    for target in [rng.randint(WALL_MS - 5200, WALL_MS + 5200) for _ in range(300)]:
        expected = next(((t, o) for o, t in enumerate(times) if t >= target), None)
        found = log.offset_for_timestamp(target)
        assert (None if found is None else (found.timestamp, found.offset)) == expected
    newest = log.max_timestamp_offset()
    assert newest is not None
    assert (newest.timestamp, newest.offset) == (max(times), times.index(max(times)))


def test_a_time_lookup_names_the_leader_epoch_and_skips_deleted_records(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "a", "b", epoch=2)
    append(log, "c", epoch=5)
    log.update_high_watermark(3)
    assert log.offset_for_timestamp(WALL_MS) == (WALL_MS, 0, 2)
    log.increment_log_start_offset(1)
    assert log.offset_for_timestamp(WALL_MS) == (WALL_MS, 1, 2)
    log.increment_log_start_offset(2)
    assert log.offset_for_timestamp(WALL_MS) == (WALL_MS, 2, 5)
    assert log.offset_for_timestamp(WALL_MS + 1) is None


def test_the_newest_record_is_named_where_it_lies_below_the_log_start_too(tmp_path: Path) -> None:
    """ListOffsets -3, as Kafka answers it (UnifiedLog.fetchOffsetByTimestamp)."""
    log = make_log(tmp_path)
    append(log, "a", timestamp=WALL_MS + 5, epoch=2)
    append(log, "b", timestamp=WALL_MS, epoch=3)
    log.update_high_watermark(2)
    log.increment_log_start_offset(1)
    assert log.max_timestamp_offset() == (WALL_MS + 5, 0, 2)


def test_the_newest_record_is_named_while_a_newer_one_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path, LogConfig(index_interval_bytes=0))
    append(log, "a")
    real = LogSegment._append_index_entry
    asked: list[object] = []
    reader = threading.Thread(target=lambda: asked.append(log.max_timestamp_offset()))

    def append_index_entry(segment: LogSegment, last_offset: int, position: int) -> None:
        reader.start()
        reader.join(0.2)  # a reader that does not wait for us has its answer by now
        real(segment, last_offset, position)

    monkeypatch.setattr(LogSegment, "_append_index_entry", append_index_entry)
    append(log, "b", timestamp=WALL_MS + 1)
    reader.join(60)
    assert asked[0] in [(WALL_MS, 0, 0), (WALL_MS + 1, 1, 0)]


def test_time_indexes_of_older_apache_kafka_are_taken_as_they_are(tmp_path: Path) -> None:
    """They name the record that has the time, later ones the last record of its batch."""
    config = LogConfig(index_interval_bytes=0)
    log = make_log(tmp_path, config)
    for number in range(8):
        append(log, "a", "b", "c", timestamp=WALL_MS + number)
        log.roll()
    log.flush()
    log.close()
    indexes = sorted((tmp_path / "orders-0").glob("*.timeindex"))[:8]
    for number, path in enumerate(indexes):
        path.write_bytes(struct.pack(">qi", WALL_MS + number, 0))
    reopened = make_log(tmp_path, config, had_clean_shutdown=True)
    assert reopened.offset_for_timestamp(WALL_MS + 7) == (WALL_MS + 7, 21, 0)
    assert reopened.max_timestamp_offset() == (WALL_MS + 7, 21, 0)
    reopened.flush()
    assert [path.read_bytes()[-4:] for path in indexes] == [bytes(4)] * 8


def test_many_segments_with_a_wrong_index_change_no_answer(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for number in range(8):
        append(log, "a", timestamp=WALL_MS + number)
        log.roll()
    log.flush()
    log.close()
    for path in (tmp_path / "orders-0").glob("*.timeindex"):
        path.write_bytes(struct.pack(">qi", WALL_MS + 100, 0))
    reopened = make_log(tmp_path, had_clean_shutdown=True)
    assert reopened.offset_for_timestamp(WALL_MS + 7) == (WALL_MS + 7, 7, 0)
    newest = [segment.time_index.last_entry for segment in reopened.segments]
    assert newest == [*((WALL_MS + number, number) for number in range(8)), (-1, 8)]


@pytest.mark.parametrize(
    ("failure", "attempts", "code"),
    [
        (lambda log: IndexMismatch(log.active_segment, "x"), 3, ErrorCode.KAFKA_STORAGE_ERROR),
        (lambda log: FileNotFoundError(errno.ENOENT, "x"), 2, ErrorCode.KAFKA_STORAGE_ERROR),
        (lambda log: OSError(errno.EIO, "x"), 1, ErrorCode.KAFKA_STORAGE_ERROR),
        (lambda log: CorruptIndexError("x"), 1, ErrorCode.KAFKA_STORAGE_ERROR),
        (lambda log: CorruptSegment(log.directory, 0, "x"), 2, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_a_read_is_tried_again_where_that_helps_and_not_for_ever(
    tmp_path: Path,
    failure: Callable[[PartitionLog], Exception],
    attempts: int,
    code: ErrorCode,
) -> None:
    """An index is made anew, and a file looked for where its new name is; the rest stays wrong."""
    log = make_log(tmp_path)
    append(log, "a")
    asked = 0

    def look() -> None:
        nonlocal asked
        asked += 1
        assert asked < 10
        raise failure(log)

    with pytest.raises(KafkaError) as refused:
        log.with_valid_indexes(look)
    assert (asked, code_of(refused)) == (attempts, code)
    assert log.is_offline == isinstance(refused.value.__cause__, OSError)


@pytest.mark.parametrize("is_run", [False, True])
def test_a_reader_beside_an_append_finds_no_fault_with_the_index(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_run: bool,
) -> None:
    """The index entry of a batch is seen before the batch is."""
    log = make_log(tmp_path, LogConfig(index_interval_bytes=100))
    for _ in range(3):
        append(log, "v" * 100)
    log.update_high_watermark(3)
    real = OffsetIndex.append
    readers: list[threading.Thread] = []

    def append_and_look(self: OffsetIndex, *entry: int) -> None:
        real(self, *entry)
        if not readers:
            look = partial(log.read, 0, 1 << 20, True, 3, include_aborted=True)
            readers.append(threading.Thread(target=look))
            readers[0].start()
            readers[0].join(0.3)  # it waits for the append, or is done

    monkeypatch.setattr(OffsetIndex, "append", append_and_look)
    sent = [batch("v" * 100) for _ in range(4)]
    if is_run:
        assert log.append_run_as_leader(sent, 0, WALL_MS)
    else:
        for one in sent:
            log.append_as_leader(one, 0, WALL_MS)
    readers[0].join()
    assert "rebuilding" not in caplog.text


def test_bytes_that_are_read_hold_no_file_and_come_at_least_a_batch_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[FileSlice] = []
    monkeypatch.setattr(FileSlice, "close", lambda self: closed.append(self))
    log = make_log(tmp_path)
    sent = batch("x" * 1000)
    log.append_as_leader(sent, 0, WALL_MS)
    assert len(log.read_bytes(0, 10, 1)) == len(sent)
    assert len(closed) == 1
    assert log.read_bytes(1, 10, 1) == b""


@pytest.mark.parametrize("offset", [0, 1, 2, None])
def test_what_was_deleted_before_the_second_look_is_out_of_range(
    tmp_path: Path, offset: int | None
) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    append(log, "b")
    log.update_high_watermark(2)
    asked = []

    def look() -> str:
        asked.append(1)
        if log.increment_log_start_offset(1):
            raise FileNotFoundError(errno.ENOENT, "x")
        return "found"

    if offset == 0:
        with pytest.raises(KafkaError) as refused:
            log.with_valid_indexes(look, offset)
        assert (code_of(refused), len(asked)) == (ErrorCode.OFFSET_OUT_OF_RANGE, 1)
    else:
        assert log.with_valid_indexes(look, offset) == "found"


def test_a_closed_log_is_not_searched_for_its_files(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    log.close()
    asked = []

    def look() -> None:
        asked.append(1)
        raise FileNotFoundError(errno.ENOENT, "x")

    with pytest.raises(KafkaError, match="is closed"):
        log.with_valid_indexes(look)
    assert len(asked) == 1
    assert not log.is_offline


def test_an_epoch_of_a_producer_that_cannot_be_is_refused_by_the_log(tmp_path: Path) -> None:
    """Kafka judges an epoch against what it knows, -1 if nothing; so -1 itself passes."""
    log = make_log(tmp_path)
    with pytest.raises(KafkaError) as refused:
        append(log, "a", producer_id=4, producer_epoch=-2, base_sequence=0)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    append(log, "a", producer_id=4, producer_epoch=-1, base_sequence=7)
    append(log, "a", producer_id=4, producer_epoch=0, base_sequence=0)
    with pytest.raises(KafkaError) as refused:
        append(log, "a", producer_id=4, producer_epoch=-1, base_sequence=8)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_log_without_times_has_no_newest_record(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    assert log.max_timestamp_offset() is None
    append(log, "a", timestamp=-1)
    assert log.max_timestamp_offset() is None
    append(log, "b", timestamp=0)
    assert log.max_timestamp_offset() == (0, 1, 0)


# --- epochs, followers, truncation -------------------------------------------------------------


def test_epochs_are_noted_with_the_first_offset_written_in_them(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "a", epoch=1)
    log.assign_epoch_start(3, 1)
    append(log, "b", epoch=3)
    append(log, "c", epoch=3)
    assert log.latest_epoch == 3
    assert log.end_offset_for_epoch(3) == (3, 3)
    assert log.end_offset_for_epoch(2) == (1, 1)
    assert log.end_offset_for_epoch(9) == (-1, -1)


def stored(value: str, offset: int, epoch: int) -> bytes:
    return batch(value, base_offset=offset, leader_epoch=epoch)


def test_a_follower_stores_what_its_leader_sent_byte_for_byte(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    sent = stored("a", 0, 1) + stored("b", 1, 1) + stored("c", 4, 2)
    info = log.append_as_follower(sent + stored("d", 5, 2)[:-3], 2)
    assert (info.first_offset, info.last_offset, info.size) == (0, 4, len(sent))
    assert read_bytes(log, 0) == sent
    assert [tuple(entry) for entry in log.leader_epochs.entries] == [(1, 0), (2, 4)]


def test_a_follower_keeps_the_valid_prefix_of_a_bad_response(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    bad = bytearray(stored("b", 1, 1))
    bad[-1] ^= 1
    log.append_as_follower(stored("a", 0, 1) + bytes(bad) + stored("c", 2, 1), 1)
    assert log.log_end_offset == 1
    for wrong, code in [
        (bytes(bad), ErrorCode.CORRUPT_MESSAGE),
        (stored("a", 0, 1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (stored("b", 1, 2), ErrorCode.FENCED_LEADER_EPOCH),
        (b"\0" * 100, ErrorCode.CORRUPT_MESSAGE),
    ]:
        with pytest.raises(KafkaError) as error:
            log.append_as_follower(wrong, 1)
        assert code_of(error) is code
    assert log.append_as_follower(stored("b", 1, 1)[:50], 1).size == 0
    assert log.log_end_offset == 1


@pytest.mark.parametrize("to", range(12))
def test_truncation_leaves_exactly_what_was_before(tmp_path: Path, to: int) -> None:
    log = make_log(tmp_path, LogConfig(segment_bytes=300, index_interval_bytes=50))
    for number in range(6):
        append(log, f"{number}a", f"{number}b", epoch=number)
    log.update_high_watermark(4)
    log.flush()
    assert log.truncate_to(to)
    end = to - to % 2  # batches are cut whole
    assert (log.log_end_offset, log.flushed_offset) == (end, end)
    assert [r.offset for r in read_from(log)] == list(range(end))
    assert log.high_watermark == min(4, end)
    assert all(entry.start_offset < end for entry in log.leader_epochs.entries)
    info = append(log, "new", epoch=9)
    assert info.first_offset == end
    assert values(read_from(log))[-1] == b"new"
    assert not log.truncate_to(99)


def test_an_epoch_without_a_record_is_cut_off_at_the_logs_end(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    log.assign_epoch_start(9, None)
    assert not log.truncate_to(1)
    assert log.latest_epoch == 0
    assert read_leader_epochs(log.leader_epochs.path) == [(0, 0)]


def test_a_log_cut_in_a_gap_loses_nothing_in_a_crash(tmp_path: Path) -> None:
    """A follower copies the gaps of a compacted log. A segment that began in one where the cut was
    would be taken for what is left of a loss."""
    log = make_log(tmp_path)
    for offset in (0, 5, 9):
        log.append_as_follower(batch(f"{offset}", base_offset=offset, leader_epoch=0), 0)
    log.truncate_to(8)
    assert log.log_end_offset == 6, "as it is when it is opened again"
    log.roll()
    log.append_as_follower(batch("9", base_offset=9, leader_epoch=0), 0)
    recovered = make_log(tmp_path)
    assert [record.offset for record in read_from(recovered)] == [0, 5, 9]


def test_truncation_forgets_the_producers_of_what_was_cut(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(segment_bytes=300))
    batches = [
        batch("x" * 20, producer_id=1, producer_epoch=0, base_sequence=number)
        for number in range(8)
    ]
    for sent in batches:
        log.append_as_leader(sent, 0, WALL_MS)
    log.truncate_to(5)
    assert log.append_as_leader(batches[4], 0, WALL_MS).duplicate
    assert log.append_as_leader(batches[5], 0, WALL_MS).first_offset == 5
    with pytest.raises(KafkaError) as error:
        log.append_as_leader(batches[7], 0, WALL_MS)
    assert code_of(error) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_snapshot_of_what_was_cut_tells_nothing_of_what_was_written_anew(tmp_path: Path) -> None:
    """It was taken at a stop: no segment that goes takes it along."""
    log = make_log(tmp_path)
    for _ in range(7):
        append(log, "old")
    log.close()
    log = make_log(tmp_path, had_clean_shutdown=True, recovery_point=7)
    log.truncate_to(5)
    anew = [
        batch("new", producer_id=1, producer_epoch=0, base_sequence=number) for number in range(5)
    ]
    for sent in anew:
        log.append_as_leader(sent, 0, WALL_MS)
    log.truncate_to(8)
    assert log.append_as_leader(anew[1], 0, WALL_MS).duplicate


def test_a_log_cut_below_its_first_segment_begins_there(tmp_path: Path) -> None:
    """The leader of an unclean election may end below what its follower has left."""
    log = make_log(tmp_path)
    log.truncate_fully_and_start_at(100)
    append(log, "a", epoch=4)
    log.update_high_watermark(101)
    assert log.truncate_to(50)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (50, 50, 50)
    assert append(log, "b", epoch=5).first_offset == 50
    assert [(record.offset, record.value) for record in read_from(log)] == [(50, b"b")]


def test_a_log_that_started_over_knows_no_epoch_of_before_after_a_crash(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "a", epoch=4)
    log.truncate_fully_and_start_at(100)
    assert make_log(tmp_path).latest_epoch == -1


@pytest.mark.parametrize("offset", [100, 2, 3, 0])
def test_starting_over_leaves_an_empty_log_at_the_new_offset(tmp_path: Path, offset: int) -> None:
    log = make_log(tmp_path, LogConfig(segment_bytes=200))
    for value in "abcd":
        append(log, value, epoch=4)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    log.truncate_fully_and_start_at(offset)
    assert log.view[:4] == (offset,) * 4
    assert (log.size, log.latest_epoch, log.flushed_offset) == (0, -1, offset)
    assert list(log.directory.glob("*.log*")) == [log.active_segment.path]
    assert append(log, "x", epoch=5).first_offset == offset
    reopened = make_log(tmp_path, log.config)
    assert (reopened.log_start_offset, reopened.log_end_offset) == (offset, offset + 1)


def test_the_high_watermark_only_rises_and_never_beyond_the_end(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "a", "b")
    assert log.update_high_watermark(2)
    assert not log.update_high_watermark(2)
    assert not log.update_high_watermark(1)
    assert log.high_watermark == 2
    with pytest.raises(ValueError, match="above log end"):
        log.update_high_watermark(3)


def test_the_log_start_moves_up_to_the_high_watermark(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "a", "b", "c", epoch=1)
    log.update_high_watermark(2)
    with pytest.raises(KafkaError) as error:
        log.increment_log_start_offset(3)
    assert code_of(error) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.increment_log_start_offset(2)
    assert not log.increment_log_start_offset(2)
    assert not log.increment_log_start_offset(1)
    assert values(read_from(log)) == [b"c"]


def test_a_log_start_that_moves_is_to_be_noted(tmp_path: Path) -> None:
    noted: list[int] = []
    env = environment(tmp_path, on_log_start_moved=lambda: noted.append(log.log_start_offset))
    log = make_log(tmp_path, env=env)
    for _ in range(3):
        append(log, "a")
        log.roll()
    log.update_high_watermark(3)
    log.increment_log_start_offset(1)
    log.increment_log_start_offset(1)
    assert noted == [1]
    log.delete_old_segments(WALL_MS + 10**12)
    log.delete_old_segments(WALL_MS + 10**12)
    assert noted == [1, 3]


def test_a_log_needs_to_be_flushed_after_as_many_records_as_configured(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(flush_messages=3))
    assert not append(log, "a", "b").must_flush
    assert append(log, "c").must_flush
    log.flush()
    assert log.flushed_offset == 3
    assert not append(log, "d").must_flush


def test_a_copy_that_takes_over_has_what_its_batches_do_not_tell(tmp_path: Path) -> None:
    current = make_log(tmp_path / "current", LogConfig(retention_bytes=77))
    for number in range(4):
        append(current, f"{number}", epoch=number)
    current.assign_epoch_start(9, None)
    data = read_bytes(current, 0)
    current.update_high_watermark(3)
    current.increment_log_start_offset(2)
    copy = make_log(tmp_path / "copy")
    copy.append_as_follower(data, 3)
    copy.take_over(current)
    assert copy.config == current.config
    assert copy.view[:4] == current.view[:4]
    epochs = current.leader_epochs.entries
    assert read_leader_epochs(copy.leader_epochs.path) == list(epochs)
    short = make_log(tmp_path / "short")
    short.append_as_follower(data[: read_header(data).size], 3)
    short.take_over(current)
    assert (short.log_start_offset, short.high_watermark, short.log_end_offset) == (1, 1, 1)


def test_a_log_whose_directory_was_renamed_works_on(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    log.roll()
    moved = log.directory.rename(tmp_path / "moved")
    log.change_directory(moved)
    for segment in log.segments:
        segment.close()
    append(log, "b", epoch=1)
    assert values(read_from(log)) == [b"a", b"b"]
    log.close()
    assert {path.parent for path in tmp_path.rglob("*.*")} == {moved}


@pytest.mark.parametrize("name", ["append", "append as a follower", "roll", "close"])
def test_a_cut_that_failed_is_finished_before_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    log = make_log(tmp_path)
    for value in "abc":
        append(log, value)
    disk = FaultyDisk(monkeypatch)
    disk.fail("ftruncate", errno.EMFILE)
    with pytest.raises(KafkaError):
        log.truncate_to(1)
    if name == "close":
        log.close()
    else:
        CHANGES[name](log)
    assert log.segments.items[0].path.stat().st_size == log.segments.items[0].size
    reopened = make_log(tmp_path, had_clean_shutdown=name == "close")
    assert reopened.log_end_offset == log.log_end_offset


@pytest.mark.parametrize("how", ["kept", "not kept", "offline"])
def test_only_of_a_log_that_is_kept_something_is_written_when_it_is_closed(
    tmp_path: Path, how: str
) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    if how == "offline":
        log.environment.fail(OSError(errno.EIO, "x"))
    log.close(is_kept=how != "not kept")
    assert bool(list(log.directory.glob("*.snapshot"))) == (how == "kept")


@pytest.mark.parametrize(("producer_id", "is_new"), [(7, True), (7, False), (-1, True)])
def test_a_snapshot_that_tells_of_a_producer_is_on_disk_once_its_log_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, producer_id: int, is_new: bool
) -> None:
    """No batch may be left that would."""
    log = make_log(tmp_path)
    append(log, "a", producer_id=producer_id, producer_epoch=0, base_sequence=0)
    log.flush()
    if not is_new:
        log.close()
        log = make_log(tmp_path, had_clean_shutdown=True)
        log.flush()
    synced: list[str] = []
    for name in ("sync_file", "sync_directory"):
        real = getattr(files, name)

        def sync(path: Path, real: Callable[[Path], None] = real) -> None:
            synced.append(path.suffix or path.name)
            real(path)

        monkeypatch.setattr(files, name, sync)
    log.close()
    of_snapshot = [name for name in synced if name in (".snapshot", log.directory.name)]
    assert of_snapshot == [".snapshot", log.directory.name] * (producer_id >= 0 and is_new)


def test_a_closed_log_has_its_epochs_on_disk_and_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    log.roll()
    append(log, "b")
    disk = FaultyDisk(monkeypatch)
    disk.fail("fsync", errno.ENOSPC)
    with pytest.raises(KafkaError):
        log.assign_epoch_start(5, None)
    assert values(read_from(log)) == [b"a", b"b"]
    log.close()
    assert read_leader_epochs(log.leader_epochs.path) == [(0, 0), (5, 2)]
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert [path for path in opened if path.startswith(f"{tmp_path}/")] == []


@pytest.mark.parametrize("is_deleted", [True, False])
def test_an_epochs_file_that_is_gone_is_a_failure_unless_the_log_went_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    log = make_log(tmp_path)

    def fsync(_fd: int) -> None:
        if is_deleted:
            log.close(is_kept=False)
        raise FileNotFoundError(errno.ENOENT, "x")

    monkeypatch.setattr(files, "fsync", fsync)
    if is_deleted:
        log.assign_epoch_start(5, None)
    else:
        with pytest.raises(KafkaError):
            log.assign_epoch_start(5, None)
    assert log.is_offline != is_deleted


def test_the_producers_of_a_log_are_told(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    assert log.active_producers() == []
    log.append_as_leader(transactional("a", 4, 0), 0, WALL_MS)
    assert [entry.producer_id for entry in log.active_producers()] == [4]


def test_a_transaction_is_verified_until_it_is_open(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    verification = log.start_verification(4, 0, 0, False)
    assert verification is not None
    assert log.start_verification(4, 0, 0, False) is verification
    source = FROM_CLIENT._replace(verification=verification)
    log.append_as_leader(transactional("a", 4, 0), 0, WALL_MS, source)
    assert log.start_verification(4, 0, 1, False) is None


CHANGES: dict[str, Callable[[PartitionLog], object]] = {
    "append": lambda log: append(log, "b"),
    "append as a follower": lambda log: log.append_as_follower(stored("b", 1, 0), 0),
    "note an epoch": lambda log: log.assign_epoch_start(5, None),
    "roll": lambda log: log.roll(),
    "truncate": lambda log: log.truncate_to(0),
    "start over": lambda log: log.truncate_fully_and_start_at(9),
    "raise the start": lambda log: log.increment_log_start_offset(1),
    "delete segments": lambda log: log.delete_old_segments(WALL_MS + 10**12),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("how", ["closed", "offline", "full"])
def test_a_log_that_is_closed_or_has_no_disk_takes_no_change(
    tmp_path: Path, how: str, name: str
) -> None:
    """A full disk takes all but records."""
    log = make_log(tmp_path)
    append(log, "a")
    log.update_high_watermark(1)
    before = log.view[:4], log.latest_epoch, len(log.segments)
    if how == "closed":
        log.close()
    elif how == "offline":
        log.environment.fail(OSError(errno.EIO, "x"))
    else:
        log.environment.is_writable = False
    if how == "full" and not name.startswith("append"):
        CHANGES[name](log)
        return
    with pytest.raises(KafkaError) as refused:
        CHANGES[name](log)
    assert code_of(refused) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.view[:4], log.latest_epoch, len(log.segments)) == before


@pytest.mark.parametrize(
    "act",
    [
        lambda log: log.truncate_to(-1),
        lambda log: log.truncate_fully_and_start_at(-1),
        lambda log: append(log, "b", epoch=-1),
        lambda log: replace_segments(log, log.active_segment, log.segments.items, log.truncations),
    ],
)
def test_what_a_caller_may_not_ask_for_changes_nothing(
    tmp_path: Path, act: Callable[[PartitionLog], object]
) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    before = log.view
    with pytest.raises(AssertionError):
        act(log)
    assert log.view == before
    assert values(read_from(log)) == [b"a"]
