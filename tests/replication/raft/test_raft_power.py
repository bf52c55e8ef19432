"""What a voter said to others is on its disk, whatever the power took: votes, and where it ends."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
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
from tests.sim.world import Killed
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
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    with FaultyDisk.below(tmp_path) as found:
        yield found


def killed_before_names_are_synced(
    monkeypatch: pytest.MonkeyPatch, what: Callable[[], Any]
) -> None:
    def die(_path: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_directory", die)
        with pytest.raises(Killed):
            what()


def votes_once(disk: FaultyDisk) -> bool:
    """In an epoch, with a power loss after the vote."""
    is_granted = Voter(disk.root).grants(2, epoch=5)
    disk.strike_hard()
    return is_granted and not Voter(disk.root).grants(3, epoch=5)


def test_a_vote_that_a_start_found_is_given_to_nobody_else(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed between the vote's new name and the sync of that."""
    voter = Voter(disk.root)
    voter.step(BeginQuorumEpoch(leader_id=2, epoch=4, voter=ReplicaKey(1)))
    killed_before_names_are_synced(monkeypatch, partial(voter.grants, 2, epoch=5))
    del voter
    assert votes_once(disk)


def test_the_directory_of_the_quorum_is_on_disk_before_a_vote(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed between the directory's making and the sync of its name."""
    monkeypatch.setattr(Path, "mkdir", lambda self, *_, **__: self.is_dir() or files.mkdir(self))
    killed_before_names_are_synced(monkeypatch, partial(Voter, disk.root))
    assert votes_once(disk)


def test_what_a_voter_has_when_it_begins_to_fetch_is_on_its_disk(disk: FaultyDisk) -> None:
    """The leader counts it among those who have the records up to there."""
    voter = Voter(disk.root)
    voter.step(BeginQuorumEpoch(leader_id=2, epoch=1, voter=ReplicaKey(1)))
    voter.log.flush()
    records = [Record(-1, 1_000, None, b"v", ())]
    voter.log.append_as_follower(build_batch(records, base_offset=0, leader_epoch=1), 1)
    del voter  # killed before it synced
    gc.collect()
    voter = Voter(disk.root)
    (fetch,) = (s.request for s in voter.started.send if isinstance(s.request, Fetch))
    assert fetch.offset == 1
    del voter
    disk.strike_hard()
    assert Voter(disk.root).log.end_offset == 1
