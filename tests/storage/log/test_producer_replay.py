"""Producer state from the batches of a log: whatever is cut, it is that of what is left."""

from __future__ import annotations

import errno
from contextlib import nullcontext
from pathlib import Path

import pytest

from storage.config import LogConfig
from storage.log.partition_log import FROM_COORDINATOR, PartitionLog
from testkit.clock import WALL_MS
from tests.storage.log_support import FaultyDisk, batch, make_log
from wire.control_records import ControlRecordType, EndTxnMarker
from wire.errors import ErrorCode, KafkaError
from wire.records import end_txn_marker_batch, read_header

CONFIG = LogConfig(segment_bytes=300)
"""Some batches to a segment: a snapshot is taken at each roll."""


def of(producer: int, offset: int, sequence: int, *values: str) -> bytes:
    return batch(
        *values or ("v",), base_offset=offset, leader_epoch=0, producer_id=producer,
        producer_epoch=0, base_sequence=sequence, is_transactional=producer < 7,
    )  # fmt: skip


def end(producer: int, offset: int, kind: ControlRecordType) -> bytes:
    return end_txn_marker_batch(
        EndTxnMarker(kind, 0), producer_id=producer, producer_epoch=0, timestamp=WALL_MS,
        base_offset=offset, leader_epoch=0,
    )  # fmt: skip


SENT = [
    of(7, 0, 0),
    of(0, 1, 0, "a", "b"),
    of(7, 3, 1, "c", "d", "e"),
    of(1, 6, 0),
    end(0, 7, ControlRecordType.ABORT),
    of(0, 8, 2),
    of(7, 9, 4),
    end(1, 10, ControlRecordType.COMMIT),
    batch("plain", base_offset=11, leader_epoch=0),
    of(1, 12, 1),
    end(0, 13, ControlRecordType.ABORT),
    of(7, 14, 5, "f", "g"),
    of(0, 16, 3),
]
ENDS = [0, *(read_header(sent).next_offset for sent in SENT)]


def filled(root: Path, count: int = len(SENT)) -> PartitionLog:
    log = make_log(root, CONFIG)
    for sent in SENT[:count]:
        log.append_as_follower(sent, 0)
    return log


def known(log: PartitionLog) -> dict[int, tuple[int, ...]]:
    """What is known of each producer that holds also after a snapshot: the last batch, no more."""
    return {
        entry.producer_id: (
            entry.last_sequence,
            entry.last_data_offset,
            entry.batches[-1].first_offset if entry.batches else -1,
            entry.current_txn_first_offset,
        )
        for entry in log.producer_state.active_producers()
    }


def aborted(log: PartitionLog) -> list[object]:
    return [entry for segment in log.segments for entry in segment.txn_index.aborted]


def test_the_log_of_these_tests_is_what_it_seems(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert len(list(log.segments)) > 3
    assert known(log) == {7: (6, 15, 14, -1), 0: (3, 16, 16, 16), 1: (1, 12, 12, 12)}
    assert len(aborted(log)) == 2


@pytest.mark.parametrize("count", range(len(SENT) + 1))
def test_a_log_that_was_cut_knows_what_one_that_never_had_more_does(
    tmp_path: Path, count: int
) -> None:
    """Who is elected after that must refuse, repeat and wait for just what the others would."""
    log, other = filled(tmp_path / "cut"), filled(tmp_path / "other", count)
    log.truncate_to(ENDS[count])
    assert log.log_end_offset == other.log_end_offset == ENDS[count]
    assert known(log) == known(other)
    assert aborted(log) == aborted(other)
    for one in (log, other):
        one.update_high_watermark(ENDS[count])
    assert log.last_stable_offset == other.last_stable_offset
    assert log.producer_state.map_end_offset == ENDS[count]
    for sent in SENT[count:]:
        log.append_as_follower(sent, 0)
    whole = filled(tmp_path / "whole")
    assert known(log) == known(whole)
    assert aborted(log) == aborted(whole)


@pytest.mark.parametrize("how", ["closed", "closed, its snapshot lost", "crashed"])
def test_a_restart_knows_what_was_known(tmp_path: Path, how: str) -> None:
    log = filled(tmp_path)
    expected, indexed = known(log), aborted(log)
    log.flush()
    if how != "crashed":
        log.close()
    if how == "closed, its snapshot lost":
        (log.directory / f"{17:020d}.snapshot").unlink()
    again = make_log(tmp_path, CONFIG)
    assert known(again) == expected
    assert aborted(again) == indexed
    assert again.producer_state.map_end_offset == 17


@pytest.mark.parametrize("fails", [OSError(errno.ENOSPC, "full"), None], ids=["disk", "index"])
def test_an_abort_that_cannot_be_noted_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: OSError | None
) -> None:
    """Else readers would pass it, and be given records of a transaction that was aborted."""
    from storage.segments.index import CorruptIndexError

    log = filled(tmp_path, 3)

    def broken(_self: object, _entry: object) -> None:
        raise fails or CorruptIndexError("not in order")

    monkeypatch.setattr(type(log.view.segment.txn_index), "append", broken)
    log.append_as_follower(SENT[3], 0)
    with pytest.raises(KafkaError) as error:
        log.append_as_follower(SENT[4], 0)
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.is_offline
    assert log.last_stable_offset <= 1


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("as_leader", [True, False])
def test_an_abort_on_a_full_disk_is_noted_in_its_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_leader: bool, has_room: bool
) -> None:
    """A producer whose records find no room aborts, and its marker fits where they did not."""
    log = filled(tmp_path, 4)
    disk = FaultyDisk(monkeypatch)
    disk.fail(
        "open_file", errno.ENOSPC, count=100, only=lambda path, *_: str(path).endswith(".txnindex")
    )

    def give_reserve() -> bool:
        disk.repair()
        return has_room

    log.environment.make_room = give_reserve
    with nullcontext() if has_room else pytest.raises(KafkaError, match="failed"):
        if as_leader:
            log.append_as_leader(SENT[4], 0, WALL_MS, FROM_COORDINATOR)
        else:
            log.append_as_follower(SENT[4], 0)
    assert log.is_offline is not has_room
    assert len(aborted(log)) == has_room
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == (6 if has_room else 1)
    if has_room:
        assert aborted(make_log(tmp_path, CONFIG)) == aborted(log)
