"""What a follower writes: many batches at once, as a leader's log would hold them one by one."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from storage import files
from storage.config import LogConfig
from storage.log.partition_log import PartitionLog
from tests.storage.log_support import batch, make_log, read_bytes
from wire.errors import ErrorCode, KafkaError


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
