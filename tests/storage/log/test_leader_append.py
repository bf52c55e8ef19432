"""A run of batches is written with one call, or not at all; its batches could have come alone."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import pytest

from storage import files
from storage.config import LogConfig
from storage.log.leader_append import RUN_MAX
from storage.log.partition_log import PartitionLog
from storage.segments import segment
from storage.segments.index import TimeIndex
from testkit.clock import WALL_MS
from tests.storage.log_support import append, batch, make_log, read_from, values
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import SEQUENCE_MAX

SENT = [batch("a"), batch("b", "c"), batch("d")]


def run(log: PartitionLog, *batches: bytes, epoch: int = 0) -> list[tuple[int, int]] | None:
    """Where each was written; None: one by one, please."""
    infos = log.append_run_as_leader(batches, epoch, log.environment.clock.wall_ms())
    return None if infos is None else [(info.first_offset, info.last_offset) for info in infos]


def of(producer_id: int, sequence: int, *texts: str, epoch: int = 0, **more: Any) -> bytes:
    return batch(
        *texts,
        producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **more,
    )  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """With a batch in it."""
    log = make_log(tmp_path)
    append(log, "first")
    return log


def test_each_batch_of_a_run_gets_its_offsets_and_all_are_there(log: PartitionLog) -> None:
    assert run(log, *SENT) == [(1, 1), (2, 3), (4, 4)]
    assert values(read_from(log)) == [b"first", b"a", b"b", b"c", b"d"]
    assert log.log_end_offset == 5


def test_a_run_is_one_write(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    write = files.pwritev

    def counted(fd: int, buffers: Any, position: int) -> int:
        calls.append(len(buffers))
        return write(fd, buffers, position)

    monkeypatch.setattr(files, "pwritev", counted)
    run(log, *SENT)
    assert calls == [2 * len(SENT)]


def test_what_a_run_says_of_each_batch_is_what_it_says_alone(tmp_path: Path) -> None:
    config = LogConfig(flush_messages=3)
    alone, together = (make_log(tmp_path / name, config) for name in ("alone", "together"))
    for one in (alone, together):
        append(one, "first")
        one.flush()
    infos = together.append_run_as_leader(SENT, 0, WALL_MS)
    assert infos is not None
    for info, sent in zip(infos, SENT, strict=True):
        other = alone.append_as_leader(sent, 0, WALL_MS)
        for name in type(info).__slots__:
            assert getattr(info, name) == getattr(other, name), name
    assert [info.must_flush for info in infos] == [False, True, True]


def test_the_stamped_time_is_told(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(message_timestamp_type="LogAppendTime"))
    append(log, "first")
    infos = log.append_run_as_leader(SENT, 0, WALL_MS + 7)
    assert infos is not None
    assert {info.log_append_time_ms for info in infos} == {WALL_MS + 7}
    assert [record.timestamp for record in read_from(log, 1)] == [WALL_MS + 7] * 4


@pytest.mark.parametrize(
    "odd",
    [
        [SENT[0], SENT[1][:-1] + b"x"],
        [SENT[0], b""],
        [SENT[0], of(7, 0, "t", is_transactional=True)],
        [of(7, 3, "a"), of(7, 3, "a")],
        [of(7, 3, "a"), of(7, 5, "a")],
        [of(7, 3, "a"), of(7, 4, "a", epoch=1)],
        [of(9, 1, "again"), of(9, 2, "next")],
        [of(9, 5, "a gap"), of(9, 6, "next")],
        [of(9, 1, "old epoch", epoch=0), SENT[0]],
        [SENT[0]] * (RUN_MAX + 1),
    ],
    ids=[
        "checksum", "nothing", "transaction", "twice", "a gap", "an epoch", "a duplicate",
        "a gap behind what is there", "a duplicate beside", "too many",
    ],
)  # fmt: skip
def test_a_run_that_could_not_come_alone_changes_nothing(
    log: PartitionLog, odd: list[bytes]
) -> None:
    append(log, "of 9", producer_id=9, producer_epoch=0, base_sequence=0)
    append(log, "of 9", producer_id=9, producer_epoch=0, base_sequence=1)
    before = log.view, [repr(one) for one in log.active_producers()]
    assert run(log, *odd) is None
    assert (log.view, [repr(one) for one in log.active_producers()]) == before


def test_sequences_go_on_within_a_run_and_after_it(log: PartitionLog) -> None:
    assert run(log, of(7, 4, "a", "b"), SENT[0], of(8, 0, "x"), of(7, 6, "c"))
    (seven,) = [one for one in log.active_producers() if one.producer_id == 7]
    assert seven.last_sequence == 6
    assert run(log, of(7, 7, "d"), of(7, 8, "e"))
    again = log.append_as_leader(of(7, 6, "c"), 0, WALL_MS)
    assert (again.duplicate, again.first_offset) == (True, 5)
    with pytest.raises(KafkaError) as error:
        log.append_as_leader(of(7, 11, "f"), 0, WALL_MS)
    assert error.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producer_0_is_one_too(log: PartitionLog) -> None:
    assert run(log, of(0, 0, "a"), of(0, 1, "b"))
    assert [one.last_sequence for one in log.active_producers()] == [1]
    assert run(log, of(0, 5, "a gap"), of(0, 6, "c")) is None


def test_as_many_as_the_system_takes_in_one_call(log: PartitionLog) -> None:
    assert run(log, *[SENT[0]] * RUN_MAX)


def test_offsets_of_a_run_fit_into_its_segment(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "RELATIVE_OFFSET_MAX", 4)
    assert run(log, *SENT, SENT[0]) is None
    assert run(log, *SENT)


def test_after_the_greatest_sequence_comes_0(log: PartitionLog) -> None:
    assert run(log, of(7, SEQUENCE_MAX - 1, "a", "b"), of(7, 0, "c"))


def test_who_is_asked_about_a_transaction_comes_alone(log: PartitionLog) -> None:
    assert run(log, of(7, 0, "a"), of(7, 1, "b"))
    assert log.start_verification(7, 1, 0, True) is not None
    assert run(log, of(7, 2, "c"), of(7, 3, "d")) is None


def test_a_run_neither_begins_a_segment_nor_rolls_one(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(segment_bytes=3 * len(SENT[0])))
    assert run(log, SENT[0], SENT[2]) is None, "an empty one"
    append(log, "a")
    assert run(log, SENT[0], SENT[2])
    assert run(log, SENT[0], SENT[2]) is None, "a full one"
    assert len(log.segments) == 1


def test_an_epoch_that_is_not_on_disk_yet_is_recorded_first(log: PartitionLog) -> None:
    assert run(log, *SENT, epoch=1) is None
    append(log, "first of the epoch", epoch=1)
    assert run(log, *SENT, epoch=1)


def test_a_log_that_is_closed_takes_no_run(log: PartitionLog) -> None:
    log.close()
    with pytest.raises(KafkaError) as error:
        run(log, *SENT)
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("written", [0, 100])
def test_a_run_that_is_not_written_whole_leaves_nothing(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    write = files.pwritev
    before = log.view

    def full(fd: int, buffers: Any, position: int) -> int:
        write(fd, [b"".join(buffers)[:written]], position)
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(files, "pwritev", full)
    with pytest.raises(KafkaError) as error:
        run(log, *SENT)
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    assert log.view == before
    assert run(log, *SENT) == [(1, 1), (2, 3), (4, 4)]
    assert values(read_from(log)) == [b"first", b"a", b"b", b"c", b"d"]


def test_runs_and_single_batches_leave_the_same_log(tmp_path: Path) -> None:
    """Bytes, indexes and what is known of producers; over segments that roll."""
    rng = random.Random(17)
    config = LogConfig(segment_bytes=4_000, index_interval_bytes=300)
    alone, together = (make_log(tmp_path / name, config) for name in ("alone", "together"))
    sequences = {-1: 0, 7: 0, 8: 0}
    written = 0
    for _ in range(300):
        sent = []
        for _ in range(rng.randrange(1, 9)):
            producer_id = rng.choice(list(sequences))
            texts = ["v" * rng.randrange(80) for _ in range(rng.choice((1, 1, 3)))]
            at = WALL_MS + rng.randrange(50)
            if producer_id < 0:
                sent.append(batch(*texts, timestamp=at))
            else:
                sent.append(of(producer_id, sequences[producer_id], *texts, timestamp=at))
                sequences[producer_id] += len(texts)
        if run(together, *sent) is None:
            for one in sent:
                together.append_as_leader(one, 0, WALL_MS)
        else:
            written += 1
        for one in sent:
            alone.append_as_leader(one, 0, WALL_MS)
    assert written > 150
    for log in (alone, together):
        log.close()
    left, right = (sorted(Path(log.directory).iterdir()) for log in (alone, together))
    assert [path.name for path in left] == [path.name for path in right]
    for one, other in zip(left, right, strict=True):
        if one.suffix in (".log", ".index", ".timeindex", ".snapshot"):
            assert one.read_bytes() == other.read_bytes(), one.name


def test_a_run_that_fails_counts_no_bytes_since_the_last_index_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path, LogConfig(index_interval_bytes=300))
    append(log, "first")
    active = log.active_segment
    before = active.bytes_since_index, active.is_index_full
    real, calls = TimeIndex.maybe_append, []

    def second_fails(self: TimeIndex, *entry: int) -> bool:
        calls.append(entry)
        if len(calls) == 2:
            raise OSError(errno.EMFILE, "simulated")
        return real(self, *entry)

    monkeypatch.setattr(TimeIndex, "maybe_append", second_fails)
    with pytest.raises(KafkaError):
        run(log, *[batch("v" * 100)] * 8)
    assert (active.bytes_since_index, active.is_index_full) == before
    assert log.log_end_offset == 1
