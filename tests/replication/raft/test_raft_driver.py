"""One voter at work: group commit, delivery, failures of the disk, restarts."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from replication.raft.events import AddVoter, VoterChangeReply
from replication.raft.faults import FaultHandler
from replication.raft.log import RaftLog
from replication.raft.snapshots import SnapshotId, write_snapshot
from replication.raft.voter_records import voter_controls
from replication.raft.voter_set import Endpoint, Voter, VoterSet
from storage import files
from testkit.clock import ManualClock
from testkit.wait import eventually
from tests.replication.raft_support import (
    WAIT_S,
    Disk,
    Recorder,
    TextSerde,
    running,
)
from wire.errors import ErrorCode, KafkaError


def test_records_are_delivered_once_in_order_with_their_offsets(tmp_path: Path) -> None:
    with running(tmp_path) as (driver, recorder):
        assert recorder.leaders == [(1, 1)]
        assert driver.append(1, ["a", "b"]) == 2
        assert driver.append(1, ["c"]) == 3
        recorder.wait_for_offset(3)
        assert recorder.records == ["a", "b", "c"]
        assert [(b.base_offset, b.last_offset) for b in recorder.batches] == [
            (0, 0),
            (1, 2),
            (3, 3),
        ]
        assert driver.high_watermark == 4


def test_a_restart_replays_everything_and_goes_to_the_next_epoch(tmp_path: Path) -> None:
    with running(tmp_path) as (driver, recorder):
        driver.append(1, ["a"])
        recorder.wait_for_offset(1)
    with running(tmp_path) as (driver, recorder):
        assert recorder.records == ["a"]
        assert recorder.leaders == [(1, 2)]
        assert driver.next_offset(2) == 3


def test_appends_that_wait_together_share_one_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    entered, release = threading.Event(), threading.Event()
    with running(tmp_path) as (driver, recorder):
        real = files.fsync

        def slow_sync(fd: int) -> None:
            entered.set()
            assert release.wait(WAIT_S)
            real(fd)

        monkeypatch.setattr(files, "fsync", slow_sync)
        driver.append(1, ["first"])
        assert entered.wait(WAIT_S)
        for number in range(50):
            last = driver.append(1, [str(number)])
        before = disk.syncs
        release.set()
        recorder.wait_for_offset(last)
        assert disk.syncs - before == 2, "one for the first append, one for the other fifty"


def test_nothing_is_delivered_before_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    with running(tmp_path) as (driver, recorder):
        seen: list[int] = []
        real = recorder.handle_commit
        path = tmp_path / "__cluster_metadata-0" / "00000000000000000000.log"

        def check(batches) -> None:  # type: ignore[no-untyped-def]
            seen.append(disk._synced[path.stat().st_ino] - path.stat().st_size)
            real(batches)

        recorder.handle_commit = check  # type: ignore[method-assign]
        for number in range(20):
            driver.append(1, [str(number)])
        recorder.wait_for_offset(20)
    assert set(seen) == {0}


def test_only_the_leader_of_the_epoch_may_append(tmp_path: Path) -> None:
    with running(tmp_path) as (driver, _):
        for epoch in (0, 2):
            with pytest.raises(KafkaError) as refused:
                driver.append(epoch, ["x"])
            assert refused.value.code == ErrorCode.NOT_CONTROLLER
    with pytest.raises(KafkaError):
        driver.append(1, ["x"])


def test_an_append_of_more_than_ten_thousand_records_is_split(tmp_path: Path) -> None:
    with running(tmp_path) as (driver, recorder):
        last = driver.append(1, ["x"] * 25_000)
        recorder.wait_for_offset(last)
        assert [len(batch.records) for batch in recorder.batches[1:]] == [10_000, 10_000, 5_000]


def test_a_batch_above_eight_mebibytes_is_refused_and_takes_no_offset(tmp_path: Path) -> None:
    with running(tmp_path) as (driver, recorder):
        with pytest.raises(KafkaError) as refused:
            driver.append(1, ["x" * (9 << 20)])
        assert refused.value.code == ErrorCode.RECORD_LIST_TOO_LARGE
        recorder.wait_for_offset(driver.append(1, ["small"]))
        assert recorder.records == ["small"]


def test_a_node_alone_that_is_asked_to_add_a_voter_says_that_nobody_answers(tmp_path: Path) -> None:
    """Its log may have been begun by a controller with a listener for others."""
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    directory_id, endpoints = b"1" * 16, (Endpoint("CONTROLLER", "localhost", 9093),)
    controls = voter_controls(VoterSet([Voter(1, directory_id, endpoints)], 1))
    write_snapshot(directory, SnapshotId(0, 0), 0, 0, controls, [])
    replies: list[VoterChangeReply] = []
    with running(tmp_path, directory_id=directory_id) as (driver, recorder):
        request = AddVoter(Voter(2, b"2" * 16, endpoints), timeout_ms=60_000)
        driver.handle(request, replies.append)
        eventually(lambda: bool(replies) or driver.fatal_error is not None)
        assert [reply.error for reply in replies] == [ErrorCode.REQUEST_TIMED_OUT]
        recorder.wait_for_offset(driver.append(1, ["and goes on"]))


# --- failures -----------------------------------------------------------------------------------


def test_a_full_disk_costs_the_leadership_and_only_what_was_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(1_000)
    with running(tmp_path, clock) as (driver, recorder):
        recorder.wait_for_offset(driver.append(1, ["kept"]))
        real = files.pwritev

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(files, "pwritev", full)
        driver.append(1, ["lost"])
        recorder.wait_for(lambda: (-1, 1) in recorder.leaders)
        with pytest.raises(KafkaError):
            driver.append(1, ["refused"])
        monkeypatch.setattr(files, "pwritev", real)
        clock.ms += 5_000
        with driver._wake:
            driver._wake.notify()
        recorder.wait_for(lambda: (1, 2) in recorder.leaders)
        recorder.wait_for_offset(driver.append(2, ["later"]))
        assert recorder.records == ["kept", "later"]
    with running(tmp_path) as (_, recorder):
        assert recorder.records == ["kept", "later"]


def test_a_failed_sync_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    died = threading.Event()
    with running(tmp_path, faults=FaultHandler(lambda error: died.set())) as (driver, recorder):

        def broken(_: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(files, "fsync", broken)
        driver.append(1, ["lost"])
        assert died.wait(WAIT_S)
        monkeypatch.undo()
        assert driver.fatal_error is not None
        assert recorder.records == []
        with pytest.raises(KafkaError):
            driver.append(1, ["refused"])


def test_a_power_cut_at_any_step_takes_nothing_that_was_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail each single change of a file once, lose what was not synced, reopen: acknowledged
    stays.
    """
    disk = Disk(monkeypatch)
    for step in range(1, 30):
        path = tmp_path / str(step)
        path.mkdir()
        died = threading.Event()
        delivered: list[str] = []
        disk.fail_at = disk.operations + step
        try:
            faults = FaultHandler(lambda error, died=died: died.set())
            with running(path, faults=faults) as (driver, recorder):
                for number in range(6):
                    try:
                        offset = driver.append(driver.leader_epoch, [str(number)])
                    except KafkaError:
                        break
                    recorder.wait_for(
                        lambda offset=offset, recorder=recorder, died=died: (
                            died.is_set()
                            or recorder.batches[-1].last_offset >= offset
                            or recorder.leaders[-1][0] == -1
                        )
                    )
                delivered = recorder.records
        except (OSError, KafkaError):
            pass
        disk.lose_unsynced(path)
        with running(path) as (_, recorder):
            assert recorder.records[: len(delivered)] == delivered, f"step {step}"
            assert recorder.records == [str(n) for n in range(len(recorder.records))]


def test_a_start_on_a_full_disk_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    disk.error = errno.ENOSPC
    from replication.raft.driver import RaftDriver

    clock = ManualClock(1_000)
    driver = RaftDriver(1, RaftLog.open(tmp_path, clock), clock, TextSerde())
    disk.fail_at = 0
    with pytest.raises((OSError, KafkaError)):
        driver.start()
    disk.fail_at = None
    driver.shutdown()


# --- snapshots ----------------------------------------------------------------------------------


def test_a_start_from_a_snapshot_sees_it_and_what_came_after(tmp_path: Path) -> None:
    with running(tmp_path) as (driver, recorder):
        recorder.wait_for_offset(driver.append(1, ["a", "b"]))
        driver.write_snapshot(SnapshotId(3, 1), 99, ["A", "B"])
        recorder.wait_for_offset(driver.append(1, ["c"]))
    with running(tmp_path) as (driver, recorder):
        assert recorder.snapshot == ["A", "B"]
        assert recorder.records == ["A", "B", "c"]
        assert driver.log.start_offset == 3


def test_describe_quorum_names_this_voter_with_its_log_end(tmp_path: Path) -> None:
    clock = ManualClock(1_000)
    with running(tmp_path, clock, directory_id=b"\x09" * 16) as (driver, recorder):
        recorder.wait_for_offset(driver.append(1, ["a"]))
        info = driver.describe_quorum()
    assert (info.leader_id, info.leader_epoch, info.high_watermark) == (1, 1, 2)
    assert info.observers == []
    (voter,) = info.voters
    assert (voter.replica_id, voter.directory_id, voter.log_end_offset) == (1, b"\x09" * 16, 2)
    assert voter.last_caught_up_timestamp == clock.wall_ms()


def test_shutdown_writes_what_waits(tmp_path: Path) -> None:
    with running(tmp_path) as (driver, _):
        driver.append(1, ["last"])
    with running(tmp_path) as (_, recorder):
        assert recorder.records == ["last"]


def test_listeners_hear_of_every_commit_before_the_leadership_that_rests_on_it(
    tmp_path: Path,
) -> None:
    order: list[str] = []

    class Ordered(Recorder):
        def handle_commit(self, batches) -> None:  # type: ignore[no-untyped-def]
            order.append(f"commit {sum(len(b.records) for b in batches)}")
            super().handle_commit(batches)

        def handle_leader_change(self, leader_id: int, epoch: int) -> None:
            order.append(f"leader {leader_id}")
            super().handle_leader_change(leader_id, epoch)

    with running(tmp_path) as (driver, recorder):
        recorder.wait_for_offset(driver.append(1, ["a"]))
    clock = ManualClock(1_000)
    from replication.raft.driver import RaftDriver

    driver = RaftDriver(1, RaftLog.open(tmp_path, clock), clock, TextSerde())
    driver.add_listener(Ordered())
    driver.start()
    driver.shutdown()
    assert order == ["commit 1", "commit 0", "leader 1"]
