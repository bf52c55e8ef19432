"""The quorum's log on disk: recovery, snapshots, the vote file."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.raft.events import ElectionState, Event, LogPosition, Ready, Truncated
from replication.raft.follower import Follower
from replication.raft.log import RaftLog
from replication.raft.quorum_state_store import (
    CorruptQuorumState,
    read_quorum_state,
    write_quorum_state,
)
from replication.raft.snapshots import (
    ControlRecord,
    CorruptSnapshot,
    SnapshotId,
    list_snapshots,
    parse_name,
    read_snapshot,
    write_snapshot,
)
from replication.raft.voter_set import ReplicaKey
from storage import files
from storage.log import partition_log
from testkit.clock import ManualClock
from tests.replication.raft_support import Disk
from wire.control_records import ControlRecordType
from wire.errors import KafkaError
from wire.messages.raft_records import KRaftVersionRecord, VotersRecord
from wire.record_body import Record
from wire.records import build_batch, build_control_batch


def opened(path: Path) -> RaftLog:
    return RaftLog.open(path, ManualClock(1_000))


def batch(offset: int, *values: str, epoch: int = 1) -> bytes:
    records = [Record(-1, 1_000, None, value.encode(), ()) for value in values]
    return build_batch(records, base_offset=offset, leader_epoch=epoch)


def filled(path: Path, count: int = 5, epoch: int = 1) -> RaftLog:
    log = opened(path)
    for _ in range(count):
        log.append(batch(log.end_offset, f"v{log.end_offset}", epoch=epoch), epoch)
    log.flush()
    log.update_high_watermark(log.end_offset)
    return log


def values(log: RaftLog, offset: int = 0) -> list[str]:
    found = log.batches(max(offset, log.start_offset), log.end_offset)
    return [value.decode() for logged in found for value in logged.values()]


def folder(path: Path) -> Path:
    return path / "__cluster_metadata-0"


# --- log ----------------------------------------------------------------------------------------


def test_what_would_break_the_log_is_a_bug_of_the_caller_not_a_write(tmp_path: Path) -> None:
    log = filled(tmp_path, 3, epoch=2)
    with pytest.raises(AssertionError, match="epoch 1 behind one of 2"):
        log.append(batch(3, "older"), 1)
    with pytest.raises(AssertionError, match="below committed 3"):
        log.truncate_to_common(LogPosition(2, 1))
    with pytest.raises(AssertionError, match="above committed 3"):
        log.write_snapshot(SnapshotId(4, 2), 1, [b"x"])
    assert values(log) == ["v0", "v1", "v2"]


def test_what_was_appended_is_read_after_a_reopening(tmp_path: Path) -> None:
    filled(tmp_path).close()
    again = opened(tmp_path)
    assert values(again) == ["v0", "v1", "v2", "v3", "v4"]
    assert again.position == LogPosition(1, 5)


def test_the_directory_has_kafkas_files(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.write_election_state(ElectionState(1, 1), (1,))
    log.close()
    names = set(os.listdir(folder(tmp_path)))
    assert {
        "00000000000000000000.log", "00000000000000000000.index",
        "00000000000000000000.timeindex", "quorum-state", "leader-epoch-checkpoint",
        "partition.metadata",
    } <= names  # fmt: skip
    metadata = (folder(tmp_path) / "partition.metadata").read_text()
    assert metadata == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    assert (folder(tmp_path) / "leader-epoch-checkpoint").read_text() == "0\n1\n1 0\n"


def test_a_tail_torn_at_any_byte_leaves_a_prefix(tmp_path: Path) -> None:
    filled(tmp_path / "whole").close()
    whole = (folder(tmp_path / "whole") / "00000000000000000000.log").read_bytes()
    size = len(whole) // 5
    for cut in range(0, len(whole), 7):
        torn = tmp_path / f"cut-{cut}"
        shutil.copytree(tmp_path / "whole", torn)
        os.truncate(folder(torn) / "00000000000000000000.log", cut)
        log = opened(torn)
        assert values(log) == [f"v{n}" for n in range(cut // size)]
        assert log.end_offset == cut // size
        log.append(batch(log.end_offset, "next"), 1)
        assert values(log)[-1] == "next"
        log.close()


# --- snapshots ----------------------------------------------------------------------------------


def test_the_log_below_a_snapshot_is_given_up_and_older_snapshots_go(tmp_path: Path) -> None:
    log = filled(tmp_path, 5)
    log.update_high_watermark(5)
    for offset in (3, 5):
        log.write_snapshot(SnapshotId(offset, 1), 77, [b"state"])
        log.give_up_below(SnapshotId(offset, 1))
    log.append(batch(5, "v5"), 1)
    log.flush()
    assert list_snapshots(folder(tmp_path)) == [SnapshotId(5, 1)]
    assert log.start_offset == 5
    log.close()
    again = opened(tmp_path)
    assert again.latest_snapshot == SnapshotId(5, 1)
    assert again.read_snapshot(SnapshotId(5, 1)).values == [b"state"]
    assert values(again) == ["v5"]
    assert "00000000000000000000.log" not in os.listdir(folder(tmp_path))


def test_a_log_that_cannot_roll_at_its_snapshot_offers_it_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-9: it began at one snapshot and offered the one before, from whose end nobody could go on:
    who came anew fetched that one again and again, until the next snapshot an hour later."""
    log = filled(tmp_path, 5)
    log.write_snapshot(SnapshotId(3, 1), 77, [b"state"])
    log.give_up_below(SnapshotId(3, 1))
    log.append(batch(5, "v5"), 1)
    log.update_high_watermark(6)
    newest = SnapshotId(6, 1)
    log.write_snapshot(newest, 77, [b"state"])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(files, "open_file", full)
        with pytest.raises(KafkaError):
            log.give_up_below(newest)
    assert log.start_offset == 6
    assert log.earliest_snapshot == log.latest_snapshot == newest
    log.give_up_below(newest)
    assert list_snapshots(folder(tmp_path)) == [newest]


@pytest.mark.parametrize("left", [(), (SnapshotId(3, 1),)])
def test_a_log_whose_snapshot_is_gone_is_refused(
    tmp_path: Path, left: tuple[SnapshotId, ...]
) -> None:
    log = filled(tmp_path, 5)
    log.update_high_watermark(5)
    log.write_snapshot(SnapshotId(5, 1), 77, [b"state"])
    log.give_up_below(SnapshotId(5, 1))
    log.close()
    (folder(tmp_path) / SnapshotId(5, 1).file_name).unlink()
    for given_up in folder(tmp_path).glob("00000000000000000000.*"):
        given_up.unlink()
    for older in left:
        write_snapshot(folder(tmp_path), older, 77, 77, [], [b"state"])
    with pytest.raises(CorruptSnapshot, match="starts at 5"):
        opened(tmp_path)


def test_a_log_that_ends_below_its_snapshot_restarts_at_the_snapshot(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    write_snapshot(folder(tmp_path), SnapshotId(10, 4), 1, 1, [], [b"x"])
    again = opened(tmp_path)
    assert again.position == LogPosition(4, 10)
    assert again.start_offset == 10
    again.append(batch(10, "after", epoch=5), 5)
    assert values(again) == ["after"]


def test_snapshots_from_before_the_one_the_log_begins_at_are_forgotten_at_the_start(
    tmp_path: Path,
) -> None:
    """K-9: a crash while a downloaded one is installed leaves the one before, and Apache Kafka
    keeps several. Who leads with that one as its earliest sends everybody to the latest again and
    again: nobody's log goes on, and there is no quorum until a new snapshot."""
    filled(tmp_path, 3).close()
    older, latest = SnapshotId(3, 1), SnapshotId(10, 4)
    for snapshot_id in (older, latest):
        write_snapshot(folder(tmp_path), snapshot_id, 1, 1, [], [b"x"])
    opened(tmp_path).close()
    again = opened(tmp_path)
    assert again.start_offset == 10
    assert again.earliest_snapshot == again.latest_snapshot == latest
    assert list_snapshots(folder(tmp_path)) == [latest]


def test_a_crash_at_any_step_leaves_no_snapshot_or_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    outcomes = set()
    for step in range(1, 11):
        directory = tmp_path / str(step)
        log = filled(directory, 3)
        disk.fail_at = disk.operations + step
        try:
            log.write_snapshot(SnapshotId(3, 1), 5, [b"a"] * 3000)
            finished = True
        except OSError:
            finished = False
        disk.fail_at = None
        again = opened(directory)
        assert not [name for name in os.listdir(folder(directory)) if name.endswith(".part")]
        found = again.latest_snapshot
        if found is not None:
            assert len(again.read_snapshot(found).values) == 3000
        else:
            assert not finished
        assert values(again) == ([] if found else ["v0", "v1", "v2"])
        outcomes.add((finished, found is not None))
        again.close()
    assert outcomes >= {(False, False), (True, True)}


@pytest.mark.parametrize("operation", ["pwritev", "fsync", "replace"])
def test_a_snapshot_that_fails_leaves_nothing_on_the_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    log = filled(tmp_path, 3)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(files, operation, full)
        with pytest.raises(OSError, match="No space"):
            log.write_snapshot(SnapshotId(3, 1), 5, [b"a"] * 3000)
    assert not [name for name in os.listdir(folder(tmp_path)) if ".checkpoint" in name]
    log.write_snapshot(SnapshotId(3, 1), 5, [b"a"])
    assert list_snapshots(folder(tmp_path)) == [SnapshotId(3, 1)]


def test_a_snapshot_of_records_that_cannot_be_written_leaves_nothing_either(
    tmp_path: Path,
) -> None:
    log = filled(tmp_path, 3)

    def values() -> Iterator[bytes]:
        yield b"a"
        raise ValueError("no such record")

    with pytest.raises(ValueError, match="no such record"):
        log.write_snapshot(SnapshotId(3, 1), 5, values())
    assert not [name for name in os.listdir(folder(tmp_path)) if ".checkpoint" in name]


def test_a_snapshot_without_its_footer_or_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    write_snapshot(tmp_path, SnapshotId(1, 1), 1, 1, [], [b"a", b"b"])
    path = tmp_path / SnapshotId(1, 1).file_name
    data = path.read_bytes()
    for broken in (data[:-75], data[:-1], data + b"x", data[:200] + b"\xff" + data[201:], b""):
        path.write_bytes(broken)
        with pytest.raises(CorruptSnapshot):
            read_snapshot(path)


def test_snapshot_names_are_kafkas() -> None:
    name = "00000000000000000023-0000000002.checkpoint"
    assert SnapshotId(23, 2).file_name == name
    assert parse_name(name) == SnapshotId(23, 2)
    for other in (name + ".part", "bootstrap.checkpoint", "23-2.checkpoint", "x", name[1:]):
        assert parse_name(other) is None


# --- what a leader has a follower do ------------------------------------------------------------


def test_a_truncation_that_the_disk_cannot_take_now_is_told_as_far_as_it_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path, 3)
    for offset in (3, 4):
        log.append(batch(offset, "lost", epoch=2), 2)
    log.flush()
    told: list[Event] = []
    follower = Follower(log, told.append, must_sync=True)
    ready, real = Ready(truncate=LogPosition(1, 3)), files.open_file

    def none_left(*_: object) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def full(path: Any, *rest: Any) -> int:
        if "leader-epoch-checkpoint" in Path(path).name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *rest)

    for module, name, broken, left in (
        (partition_log, "plan_cut", none_left, LogPosition(2, 5)),
        (files, "open_file", full, LogPosition(1, 3)),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, broken)
            follower.take(ready)
        assert told.pop() == Truncated(left)
    log.append(batch(3, "v3", epoch=3), 3)
    assert values(log) == ["v0", "v1", "v2", "v3"]


# --- voters in the log (KIP-853) ----------------------------------------------------------------


def _voter_controls() -> list[ControlRecord]:
    voter = VotersRecord.Voter(
        voter_id=1,
        voter_directory_id=b"\x0a" * 16,
        endpoints=[],
        kraft_version_feature=VotersRecord.Voter.KRaftVersionFeature(
            min_supported_version=0, max_supported_version=1
        ),
    )
    return [
        ControlRecord(
            ControlRecordType.KRAFT_VERSION,
            KRaftVersionRecord(version=0, kraft_version=1).encode_bytes(0),
        ),
        ControlRecord(
            ControlRecordType.KRAFT_VOTERS, VotersRecord(version=0, voters=[voter]).encode_bytes(0)
        ),
    ]


def test_dynamic_voters_are_found_in_the_log_and_kept_in_snapshots(tmp_path: Path) -> None:
    log = opened(tmp_path)
    data = build_control_batch(_voter_controls(), timestamp=1, base_offset=0, leader_epoch=1)
    log.append(data, 1)
    log.flush()
    log.close()
    again = opened(tmp_path)
    assert again.voter_history.latest.kraft_version == 1
    assert again.voter_history.latest.keys == (ReplicaKey(1, b"\x0a" * 16),)
    again.update_high_watermark(2)
    again.write_snapshot(SnapshotId(2, 1), 1, [])
    again.close()
    third = opened(tmp_path)
    assert third.latest_snapshot == SnapshotId(2, 1)
    assert third.voter_history.latest.keys == (ReplicaKey(1, b"\x0a" * 16),)


# --- the vote file ------------------------------------------------------------------------------


def test_the_vote_file_is_written_as_kafka_writes_it(tmp_path: Path) -> None:
    write_quorum_state(tmp_path, ElectionState(3, 1), (1,), 0)
    assert (tmp_path / "quorum-state").read_text() == (
        '{"clusterId":"","leaderId":1,"leaderEpoch":3,"votedId":-1,"appliedOffset":0,'
        '"currentVoters":[{"voterId":1}],"data_version":0}'
    )
    assert read_quorum_state(tmp_path) == ElectionState(3, 1)
    voted = ElectionState(4, -1, 2, b"\x05" * 16)
    write_quorum_state(tmp_path, voted, (1, 2), 1)
    assert read_quorum_state(tmp_path) == voted


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"data_version":9,"leaderEpoch":1}', b'{"a":"\xfe"}']
)
def test_a_vote_file_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "quorum-state").write_bytes(content)
    with pytest.raises(CorruptQuorumState, match="quorum-state"):
        read_quorum_state(tmp_path)


def test_a_crash_while_voting_keeps_the_old_vote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    old, new = ElectionState(1, -1, 1), ElectionState(2, -1, 2)
    write_quorum_state(tmp_path, old, (1,), 0)
    for step in range(1, 4):
        disk.fail_at = disk.operations + step
        with pytest.raises(OSError, match="Input/output"):
            write_quorum_state(tmp_path, new, (1,), 0)
        disk.fail_at = None
        assert read_quorum_state(tmp_path) == old
    write_quorum_state(tmp_path, new, (1,), 0)
    assert read_quorum_state(tmp_path) == new
