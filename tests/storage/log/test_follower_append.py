"""What a follower writes: many batches at once, as a leader's log would hold them one by one."""

from __future__ import annotations

import errno
import random
from itertools import pairwise
from pathlib import Path

import pytest

from storage import files
from storage.config import LogConfig
from storage.log.partition_log import PartitionLog
from storage.segments.segment import RELATIVE_OFFSET_MAX, LogSegment
from testkit.clock import WALL_MS
from tests.storage.log_support import FaultyDisk, batch, make_log, read_bytes
from wire.control_records import ControlRecordType, EndTxnMarker
from wire.errors import ErrorCode, KafkaError
from wire.records import build_control_batch, end_txn_marker_batch


def stored(value: str, offset: int, epoch: int, **fields: int) -> bytes:
    return batch(value, base_offset=offset, leader_epoch=epoch, **fields)


def run(count: int, first: int = 0, epoch: int = 0) -> list[bytes]:
    return [stored(f"value {i}", first + i, epoch) for i in range(count)]


def files_of(log: PartitionLog) -> dict[str, bytes]:
    log.flush()
    for segment in log.segments:
        segment.flush()
    return {
        path.name: path.read_bytes()
        for path in sorted(log.directory.iterdir())
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex")
    }


@pytest.mark.parametrize("segment_bytes", [1 << 30, 500, 180])
def test_a_whole_response_leaves_the_same_files_as_its_batches_one_by_one(
    tmp_path: Path, segment_bytes: int
) -> None:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=100)
    at_once = make_log(tmp_path / "at-once", config)
    one_by_one = make_log(tmp_path / "one-by-one", config)
    sent = run(10) + run(10, 10, epoch=2) + [stored("gap", 25, 3)]
    info = at_once.append_as_follower(b"".join(sent), 3)
    for data in sent:
        one_by_one.append_as_follower(data, 3)
    assert (info.first_offset, info.last_offset, info.size) == (0, 25, sum(map(len, sent)))
    assert files_of(at_once) == files_of(one_by_one)
    assert at_once.leader_epochs.entries == one_by_one.leader_epochs.entries
    assert [read_bytes(at_once, i) for i in range(26)] == [
        read_bytes(one_by_one, i) for i in range(26)
    ]


AGED = [stored(f"value {i}", i, 0, timestamp=WALL_MS + 250 * i) for i in range(20)]
EPOCHS = [stored(f"value {i}", i, epoch) for i, epoch in enumerate((0, 1, 2, 2, 3, 3, 3, 4))]
EVEN = [stored(f"value {i}", i, 0) for i in range(9)]
FAR = [stored(f"value {at}", at, 0) for at in (0, 1, RELATIVE_OFFSET_MAX, RELATIVE_OFFSET_MAX + 1)]


@pytest.mark.parametrize(
    ("sent", "config", "jitter_ms", "segments"),
    [
        (AGED, LogConfig(segment_ms=1_000), 0, 4),
        (AGED, LogConfig(segment_ms=1_000), 300, 5),
        (EPOCHS, LogConfig(), 0, 1),
        (EVEN, LogConfig(segment_bytes=3 * len(EVEN[0])), 0, 3),
        (FAR, LogConfig(), 0, 2),
    ],
    ids=["age", "jitter", "epochs", "size", "offsets"],
)
@pytest.mark.parametrize("cuts", [(), (1,), (2, 3)], ids=str)
def test_segments_and_epochs_begin_at_the_very_batch_at_which_they_would_one_by_one(
    tmp_path: Path,
    sent: list[bytes],
    config: LogConfig,
    jitter_ms: int,
    segments: int,
    cuts: tuple[int, ...],
) -> None:
    """However many batches a response happens to have. Else replicas roll at other offsets."""
    logs = make_log(tmp_path / "at-once", config), make_log(tmp_path / "one-by-one", config)
    for log in logs:
        log.view.segment.jitter_ms = jitter_ms
    at_once, one_by_one = logs
    for begin, end in pairwise((0, *cuts, len(sent))):
        at_once.append_as_follower(b"".join(sent[begin:end]), 4)
    for data in sent:
        one_by_one.append_as_follower(data, 4)
    assert files_of(at_once) == files_of(one_by_one)
    assert at_once.leader_epochs.entries == one_by_one.leader_epochs.entries
    assert len(list(at_once.segments)) == segments


def test_each_leader_epoch_begins_where_its_first_batch_does(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.append_as_follower(b"".join(EPOCHS), 4)
    assert log.leader_epochs.entries == ((0, 0), (1, 1), (2, 2), (3, 4), (4, 7))


def test_producers_and_transactions_are_known_as_if_batches_came_one_by_one(
    tmp_path: Path,
) -> None:
    """Who is elected next must know what it has, and which transactions are open or aborted."""

    def of(producer: int, offset: int, sequence: int) -> bytes:
        return batch(
            f"of {producer}", base_offset=offset, leader_epoch=0,
            producer_id=producer, producer_epoch=0, base_sequence=sequence, is_transactional=True,
        )  # fmt: skip

    abort = end_txn_marker_batch(
        EndTxnMarker(ControlRecordType.ABORT, 0),
        producer_id=0, producer_epoch=0, timestamp=WALL_MS, base_offset=3,
    )  # fmt: skip
    sent = [of(0, 0, 0), of(7, 1, 0), stored("plain", 2, 0), abort, of(0, 4, 1)]
    logs = make_log(tmp_path / "at-once"), make_log(tmp_path / "one-by-one")
    logs[0].append_as_follower(b"".join(sent), 0)
    for data in sent:
        logs[1].append_as_follower(data, 0)
    for log in logs:
        log.update_high_watermark(5)
        open_since = {
            entry.producer_id: entry.current_txn_first_offset
            for entry in log.producer_state.active_producers()
        }
        assert open_since == {0: 4, 7: 1}
        assert log.last_stable_offset == 1
    assert files_of(logs[0]) == files_of(logs[1])
    assert files_of(logs[0])["00000000000000000000.txnindex"]
    snapshots = [log.producer_state.take_snapshot() for log in logs]
    assert snapshots[0] is not None
    assert snapshots[1] is not None
    assert snapshots[0].read_bytes() == snapshots[1].read_bytes()


def test_an_append_tells_what_the_response_held(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.append_as_follower(stored("first", 0, 1), 3)
    sent = stored("new", 1, 2, timestamp=WALL_MS + 9) + stored("newer", 2, 3)
    info = log.append_as_follower(sent, 3)
    assert (info.first_offset, info.last_offset, info.size) == (1, 2, len(sent))
    assert (info.max_timestamp, info.log_append_time_ms) == (WALL_MS + 9, -1)
    assert (info.leader_epoch, info.log_start_offset) == (3, 0)


def test_a_response_without_a_whole_batch_appends_nothing(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.append_as_follower(b"".join(run(3)), 0)
    info = log.append_as_follower(run(1, 3)[0][:-1], 0)
    assert (info.first_offset, info.last_offset, info.size) == (3, 2, 0)
    assert (info.max_timestamp, info.log_append_time_ms, info.leader_epoch) == (-1, -1, -1)
    assert log.log_end_offset == 3


def test_a_follower_flushes_after_as_many_records_as_the_topic_says(tmp_path: Path) -> None:
    """flush.messages holds for each replica, or one power cut takes what all acknowledged."""
    log = make_log(tmp_path, LogConfig(flush_messages=3))
    assert not log.append_as_follower(b"".join(run(2)), 0).must_flush
    assert log.append_as_follower(b"".join(run(1, 2)), 0).must_flush
    log.flush()
    assert not log.append_as_follower(b"".join(run(2, 3)), 0).must_flush


def test_a_response_is_one_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path)
    writes: list[int] = []
    write = files.pwritev

    def counted(fd: int, buffers: list[files.Buffer], position: int) -> int:
        writes.append(position)
        return write(fd, buffers, position)

    log.append_as_follower(stored("first", 0, 0), 0)
    monkeypatch.setattr(files, "pwritev", counted)
    log.append_as_follower(b"".join(run(50, 1)), 0)
    assert len(writes) == 1
    assert log.log_end_offset == 51


def test_a_failed_write_leaves_nothing_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path, LogConfig(index_interval_bytes=1))
    log.append_as_follower(b"".join(run(3)), 0)
    before, size = read_bytes(log, 0), log.size

    def full(fd: int, buffers: object, position: int) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(files, "pwritev", full)
        with pytest.raises(KafkaError) as error:
            log.append_as_follower(b"".join(run(3, 3)), 0)
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end_offset, log.size) == (3, size)
    log.append_as_follower(b"".join(run(3, 3)), 0)
    assert read_bytes(log, 0).startswith(before)
    assert log.log_end_offset == 6


def test_a_run_that_failed_leaves_no_trace_of_where_its_batches_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another leader may have the same records in other batches."""
    log = make_log(tmp_path, LogConfig(index_interval_bytes=0))
    disk = FaultyDisk(monkeypatch)
    disk.fail("open_file", errno.ENOSPC, only=lambda path, *_: str(path).endswith("index"))
    with pytest.raises(KafkaError):
        log.append_as_follower(b"".join(run(100)), 0)
    assert log.log_end_offset == 0
    sent = batch(*map(str, range(100)), base_offset=0, leader_epoch=1)
    log.append_as_follower(sent, 1)
    assert [read_bytes(log, offset) == sent for offset in range(100)] == [True] * 100


def test_no_bytes_a_leader_might_send_break_the_log(tmp_path: Path) -> None:
    """E-9: damage a response anywhere but where no checksum covers it (base offset and epoch): the
    longest valid prefix is kept, or nothing.
    """
    rng = random.Random(18723)
    codes: set[int] = set()
    log = make_log(tmp_path)
    for _ in range(600):
        end = log.log_end_offset
        whole = run(4, end)
        for i in rng.choices(range(4), k=rng.randrange(1, 4)):
            damaged = bytearray(whole[i])
            at = rng.randrange(8, len(damaged))
            if not 12 <= at < 16:
                damaged[at] = rng.randrange(256)
            whole[i] = bytes(damaged)
        data = b"".join(whole)
        data = data[: rng.randrange(len(data) + 1)]
        try:
            size = log.append_as_follower(data, 0).size
        except KafkaError as error:
            size = 0
            codes.add(error.code)
        kept = log.log_end_offset - end
        assert size == sum(map(len, whole[:kept]))
    assert codes <= {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
    }
    assert not log.is_offline


def test_a_marker_that_is_none_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """E-9: it was found out when its bytes were in the file, and there they stayed: what came next
    stood behind them, and the next start cut all of it off."""
    log = make_log(tmp_path)
    producer = {"producer_id": 7, "producer_epoch": 0}
    first = stored("a", 0, 0, is_transactional=True, base_sequence=0, **producer)
    strange = build_control_batch(
        [(ControlRecordType.COMMIT, b"short")],
        timestamp=WALL_MS, base_offset=1, leader_epoch=0, is_transactional=True, **producer,
    )  # fmt: skip
    assert log.append_as_follower(first + strange, 0).size == len(first)
    with pytest.raises(KafkaError) as refused:
        log.append_as_follower(strange, 0)
    assert refused.value.code == ErrorCode.INVALID_RECORD
    sent = run(3, 1, epoch=1)
    log.append_as_follower(b"".join(sent), 1)
    log.close()
    again = make_log(tmp_path)
    assert again.log_end_offset == 4
    assert read_bytes(again, 0) == b"".join([first, *sent])


def test_files_of_a_log_go_from_the_end_that_keeps_what_is_left_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in between leaves a log without a gap, up to the cut or up to the new start."""
    gone: list[int] = []
    rename = LogSegment.rename_suffix

    def note(segment: LogSegment, suffix: str) -> None:
        gone.append(segment.base_offset)
        rename(segment, suffix)

    monkeypatch.setattr(LogSegment, "rename_suffix", note)
    log = make_log(tmp_path, LogConfig(segment_bytes=180))
    log.append_as_follower(b"".join(run(10)), 0)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 4
    log.truncate_to(bases[2])
    assert gone == bases[:2:-1]
    gone.clear()
    log.truncate_fully_and_start_at(100)
    assert gone == bases[:3]


def test_an_empty_log_that_begins_within_a_batch_begins_with_the_whole_of_it(
    tmp_path: Path,
) -> None:
    """Records were deleted up to the middle of a batch, and a follower begins anew there."""
    sent = batch("a", "b", "c", base_offset=4, leader_epoch=2) + stored("d", 7, 2)
    log = make_log(tmp_path)
    log.truncate_fully_and_start_at(5)
    info = log.append_as_follower(sent, 2)
    assert (info.first_offset, info.last_offset) == (4, 7)
    assert (log.log_start_offset, log.log_end_offset) == (4, 8)
    assert read_bytes(log, 5) + read_bytes(log, 7) in (sent, sent + read_bytes(log, 7))
    assert [path.name for path in log.directory.glob("*.log")] == ["00000000000000000004.log"]
    again = make_log(tmp_path)
    assert (again.log_start_offset, again.log_end_offset) == (4, 8)


def test_a_log_that_has_only_what_its_leader_deleted_begins_anew_around_its_end(
    tmp_path: Path,
) -> None:
    """It was cut where the leader's log starts, which is in the middle of another batch there."""
    log = make_log(tmp_path)
    log.append_as_follower(b"".join(run(5)), 1)
    sent = batch("c", "d", "e", base_offset=4, leader_epoch=2)
    with pytest.raises(KafkaError):
        log.append_as_follower(sent, 2, leader_start_offset=4)
    log.append_as_follower(sent, 2, leader_start_offset=5)
    assert (log.log_start_offset, log.log_end_offset) == (4, 7)
    assert read_bytes(log, 5) == sent


@pytest.mark.parametrize("start", [7, 3])
def test_a_batch_that_does_not_hold_the_start_of_an_empty_log_is_refused_below_it(
    tmp_path: Path, start: int
) -> None:
    log = make_log(tmp_path)
    log.truncate_fully_and_start_at(7)
    with pytest.raises(KafkaError) as refused:
        log.append_as_follower(batch("a", "b", "c", base_offset=start - 3, leader_epoch=2), 2)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)


def test_a_log_with_records_takes_no_batch_that_begins_below_its_end(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.append_as_follower(stored("x", 0, 2), 2)
    with pytest.raises(KafkaError) as refused:
        log.append_as_follower(batch("a", "b", base_offset=0, leader_epoch=2), 2)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
