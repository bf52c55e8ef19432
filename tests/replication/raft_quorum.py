"""Several raft drivers on real directories in one thread: a manual clock, a network in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from replication.raft.driver import RaftDriver
from replication.raft.events import Outgoing, Peer, ProbeVersions, RaftConfig, Reply, VersionsReply
from replication.raft.log import RaftLog
from replication.raft.snapshots import SnapshotId, write_snapshot
from replication.raft.voter_records import voter_controls
from replication.raft.voter_set import Endpoint, Voter, VoterSet
from testkit.clock import ManualClock
from tests.replication.raft_support import (
    Recorder,
    TextSerde,
)
from wire.errors import ErrorCode


class Member:
    """One node: its directory, and while it runs its driver and state machine."""

    def __init__(self, quorum: Quorum, node_id: int, path: Path) -> None:
        self.quorum = quorum
        self.node_id = node_id
        self.path = path
        self.directory_id = bytes([node_id]) * 16
        self.is_voter = True
        self.driver: RaftDriver
        self.recorder: Recorder
        self.is_up = False

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (Endpoint("CONTROLLER", f"host{self.node_id}", self.node_id),)

    @property
    def voter(self) -> Voter:
        return Voter(self.node_id, self.directory_id, self.endpoints)

    def start(self, **options: Any) -> None:
        quorum = self.quorum
        log = RaftLog.open(self.path, quorum.clock, segment_bytes=quorum.segment_bytes)
        static = VoterSet(
            Voter(member.node_id, endpoints=member.endpoints)
            for member in quorum.members.values()
            if member.is_voter
        )
        self.driver = RaftDriver(
            self.node_id,
            log,
            quorum.clock,
            TextSerde(),
            voters=VoterSet() if quorum.is_dynamic else static,
            directory_id=self.directory_id,
            cluster_id="cluster",
            config=quorum.config,
            transport=quorum,
            endpoints=self.endpoints,
            bootstrap_servers=[
                (e.host, e.port) for m in quorum.members.values() for e in m.endpoints
            ],
            random=Random(self.node_id),
            **options,
        )
        self.recorder = Recorder()
        self.driver.add_listener(self.recorder)
        self.driver.begin()
        self.is_up = True

    def stop(self) -> None:
        """The process dies: nothing is said to anybody."""
        self.is_up = False
        self.driver.log.close()

    @property
    def records(self) -> list[str]:
        return self.recorder.records


class Quorum:
    """The members, their clock and their network. RaftTransport of all drivers."""

    def __init__(
        self,
        path: Path,
        voters: int = 3,
        observers: int = 0,
        *,
        dynamic: bool = False,
        segment_bytes: int = 1 << 30,
        config: RaftConfig | None = None,
    ) -> None:
        self.clock = ManualClock(1_000)
        self.config = config or RaftConfig()
        self.segment_bytes = segment_bytes
        self.is_dynamic = dynamic
        self.cut: set[int] = set()
        self.sent: list[tuple[int, Outgoing]] = []
        self.on_turn: Callable[[Member], None] = lambda _: None
        self._network: deque[Callable[[], None]] = deque()
        self.members = {
            number: Member(self, number, path / str(number))
            for number in range(1, voters + observers + 1)
        }
        for member in self.members.values():
            member.is_voter = member.node_id <= voters
        for member in self.members.values():
            member.path.mkdir(parents=True)
            if dynamic:
                self._format(member)
        for member in self.members.values():
            member.start()

    def _format(self, member: Member) -> None:
        voters = [other.voter for other in self.members.values() if other.is_voter]
        directory = member.path / "__cluster_metadata-0"
        directory.mkdir()
        controls = voter_controls(VoterSet(voters if member.is_voter else (), 1))
        write_snapshot(directory, SnapshotId(0, 0), 0, 0, controls, [])

    # --- the network ----------------------------------------------------------------------------

    def send(
        self,
        to: Peer,
        request: Outgoing,
        on_answer: Callable[[Reply | None], None],
        timeout_ms: int,
    ) -> None:
        target = self.members[to.port]
        sender = getattr(request, "replica", None) or getattr(request, "candidate", None)
        source = sender.node_id if sender else getattr(request, "leader_id", 0)
        self.sent.append((to.port, request))

        def is_cut() -> bool:
            return not target.is_up or bool({source, target.node_id} & self.cut)

        def answered(reply: Any) -> None:
            self._network.append(lambda: on_answer(None if is_cut() else reply))

        def deliver() -> None:
            if is_cut():
                on_answer(None)
            elif isinstance(request, ProbeVersions):
                answered(VersionsReply(ErrorCode.NONE, (0, 1)))
            else:
                target.driver.handle(request, answered)

        self._network.append(deliver)

    # --- time -----------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Do all that can be done at this moment."""
        busy = True
        while busy:
            busy = False
            while self._network:
                busy = True
                self._network.popleft()()
            for member in self.members.values():
                while member.is_up and member.driver.has_work():
                    busy = True
                    member.driver.turn()
                    self.on_turn(member)

    def run(self, ms: int) -> None:
        """Let so much time pass."""
        end = self.clock.ms + ms
        self._settle()
        while self.clock.ms < end:
            deadlines = [
                member.driver.deadline_ms
                for member in self.members.values()
                if member.is_up and member.driver.deadline_ms is not None
            ]
            self.clock.ms = min(max(min(deadlines, default=end), self.clock.ms + 1), end)
            for member in self.members.values():
                if member.is_up:
                    member.driver.turn()
                    self.on_turn(member)
            self._settle()

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 30_000) -> int:
        """Until it holds; how long that took."""
        began = self.clock.ms
        while not condition():
            assert self.clock.ms - began < limit_ms, "waited in vain"
            self.run(10)
        return self.clock.ms - began

    # --- leaders and records --------------------------------------------------------------------

    @property
    def leader(self) -> Member | None:
        led = [m for m in self.members.values() if m.is_up and m.driver.is_leader]
        return max(led, key=lambda m: m.driver.leader_epoch, default=None)

    def elect(self) -> Member:
        self.run_until(lambda: self.leader is not None)
        assert self.leader is not None
        return self.leader

    def append(self, *records: str) -> int:
        """By the leader; returns the last offset."""
        leader = self.elect()
        return leader.driver.append(leader.driver.leader_epoch, records)

    def followers(self) -> list[Member]:
        return [m for m in self.members.values() if m.is_up and m is not self.leader]

    def all_have(self, *records: str) -> bool:
        return all(m.records == list(records) for m in self.members.values() if m.is_up)
