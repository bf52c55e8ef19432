"""What a voter said to others is on its disk, whatever the power took: votes, and where it ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from replication.raft.core import RaftCore
from replication.raft.events import BeginQuorumEpoch, Fetch, Vote
from replication.raft.log import RaftLog
from replication.raft.own_events import LogPosition, Start
from replication.raft.voter_set import ReplicaKey, VoterSet
from storage import files
from testkit.clock import ManualClock
from tests.sim.world import Killed, World
from tests.storage.faults.disk import FaultyDisk
from wire.record_body import Record
from wire.records import build_batch


class Voter:
    """Node 1 of three, its log and its state, until it is killed."""

    def __init__(self, root: Path) -> None:
        self.log = RaftLog.open(root, ManualClock(1_000))
        self.log.voter_history.begin_with(VoterSet.of_ids(1, 2, 3))
        self._core = RaftCore(ReplicaKey(1), self.log.voter_history, Random(1), self.log)
        self.started = self.step(Start(self.log.read_election_state(), self.log.position))

    def step(self, event: Any) -> Any:
        ready = self._core.step(event, 1)
        if ready.persist is not None:
            self.log.write_election_state(ready.persist, self._core.voters.ids)
        return ready

    def grants(self, candidate: int, epoch: int) -> bool:
        vote = Vote(
            ReplicaKey(candidate), epoch, LogPosition(0, 0), False, ReplicaKey(1), None
        )  # fmt: skip
        return bool(self.step(vote).reply.granted)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def disk(root: Path) -> Iterator[FaultyDisk]:
    with FaultyDisk(World(1), root) as found:
        yield found


def lose_power(disk: FaultyDisk, root: Path) -> None:
    gc.collect()  # a dead process has no descriptors
    disk.strike_hard(root)


def die(*_: Any) -> None:
    raise Killed


def test_a_vote_that_a_start_found_is_given_to_nobody_else(
    root: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed between the vote's new name and the sync of that."""
    voter = Voter(root)
    voter.step(BeginQuorumEpoch(leader_id=2, epoch=4, voter=ReplicaKey(1)))
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_directory", die)
        with pytest.raises(Killed):
            voter.grants(2, epoch=5)
    del voter
    voter = Voter(root)
    assert voter.grants(2, epoch=5)
    del voter
    lose_power(disk, root)
    assert not Voter(root).grants(3, epoch=5)


def test_the_directory_of_the_quorum_is_on_disk_before_a_vote(
    root: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed between the directory's making and the sync of its name."""
    monkeypatch.setattr(Path, "mkdir", lambda self, *_, **__: self.is_dir() or files.mkdir(self))
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_directory", die)
        with pytest.raises(Killed):
            Voter(root)
    voter = Voter(root)
    assert voter.grants(2, epoch=5)
    del voter
    lose_power(disk, root)
    assert not Voter(root).grants(3, epoch=5)


def test_what_a_voter_has_when_it_begins_to_fetch_is_on_its_disk(
    root: Path, disk: FaultyDisk
) -> None:
    """The leader counts it among those who have the records up to there."""
    voter = Voter(root)
    voter.step(BeginQuorumEpoch(leader_id=2, epoch=1, voter=ReplicaKey(1)))
    voter.log.flush()
    records = [Record(-1, 1_000, None, b"v", ())]
    voter.log.append_as_follower(build_batch(records, base_offset=0, leader_epoch=1), 1)
    del voter  # killed before it synced
    gc.collect()
    voter = Voter(root)
    (fetch,) = (s.request for s in voter.started.send if isinstance(s.request, Fetch))
    assert fetch.offset == 1
    del voter
    lose_power(disk, root)
    assert Voter(root).log.end_offset == 1
