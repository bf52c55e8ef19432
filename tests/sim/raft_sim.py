"""A quorum in one thread: raft cores on a virtual network, clock and disk, driven by one seed.

Each node is a real RaftCore on a log in memory. Messages are delayed, reordered, lost and repeated,
links and whole nodes are cut off, nodes crash and come back with what they had synced, disks are
lost, voters are added and removed. After every event the invariants (`Invariants`) are checked.
Deterministic: the same seed and options give the same run; a failure names them.

    python -m tests.sim.raft_sim SEED     tells the story of one run

Durable is what was synced: a leader's appends are synced some ms later, a follower's before its
next fetch, a vote at once. Mutants (`MUTANTS`) break one rule each; the invariants must notice.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from replication.raft.answers import fetch_reply, snapshot_reply
from replication.raft.core import RaftCore
from replication.raft.events import (
    AddVoter,
    Answered,
    AppendVoters,
    ElectionState,
    Event,
    Fetch,
    Fetched,
    FetchSnapshot,
    Flushed,
    LeaderChange,
    LogPosition,
    Peer,
    ProbeVersions,
    RaftConfig,
    Ready,
    RemoveVoter,
    SnapshotId,
    SnapshotLoaded,
    SnapshotPart,
    Start,
    Tick,
    Truncated,
    VersionsReply,
    Vote,
    VotersAppended,
)
from replication.raft.leader_state import LeaderState
from replication.raft.roles import Role
from replication.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet
from wire.errors import ErrorCode, KafkaError

SNAPSHOT_PIECES = 3
NO_VOTE_KEPT, COMMIT_BY_COUNT, EARLY_COUNT = MUTANTS = (
    "vote not persisted",
    "prior epochs committed by count",
    "leader counts before fsync",
)


class InvariantBroken(AssertionError):
    """The text says which one, and when."""


class Entry(NamedTuple):
    """One record: the epoch it was written in, what it says, the voter set it names."""

    epoch: int
    value: str
    voters: VoterSet | None = None


class Snapshot(NamedTuple):
    id: SnapshotId
    entries: tuple[Entry, ...]
    voters: VoterSet | None


class MemoryLog:
    """A log whose unsynced end is lost in a crash. LogView of the core."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.start_offset = 0
        self.snapshot: Snapshot | None = None
        self.durable_end = 0

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshot.id if self.snapshot else None

    earliest_snapshot = latest_snapshot

    @property
    def position(self) -> LogPosition:
        return self.position_at(self.end_offset)

    def position_at(self, end_offset: int) -> LogPosition:
        if end_offset > self.start_offset:
            return LogPosition(self.entries[end_offset - 1 - self.start_offset].epoch, end_offset)
        return LogPosition(self.snapshot.id.epoch if self.snapshot else 0, end_offset)

    def entry(self, offset: int) -> Entry | None:
        """None below the log's start and at its end."""
        if self.start_offset <= offset < self.end_offset:
            return self.entries[offset - self.start_offset]
        if self.snapshot is not None and offset < self.start_offset:
            return self.snapshot.entries[offset]
        return None

    def end_offset_for_epoch(self, epoch: int) -> LogPosition:
        for offset in range(self.end_offset - 1, self.start_offset - 1, -1):
            found = self.entries[offset - self.start_offset].epoch
            if found <= epoch:
                return LogPosition(found, offset + 1)
        if self.snapshot is not None:
            return LogPosition(self.snapshot.id.epoch, self.snapshot.id.offset)
        return LogPosition(epoch, 0)

    def truncate_to(self, end_offset: int) -> None:
        del self.entries[end_offset - self.start_offset :]
        self.durable_end = min(self.durable_end, end_offset)

    def crash(self) -> None:
        del self.entries[max(self.durable_end - self.start_offset, 0) :]

    def history(self, static: VoterSet) -> VoterHistory:
        """The voter sets that the log names."""
        history = VoterHistory(static)
        if self.snapshot is not None:
            history.restart(self.snapshot.id.offset, self.snapshot.voters)
        for offset in range(self.start_offset, self.end_offset):
            voters = self.entries[offset - self.start_offset].voters
            if voters is not None:
                history.add(offset, voters)
        return history


@dataclass(slots=True)
class Options:
    """What happens in a run; times in virtual ms."""

    nodes: int = 3
    steps_ms: int = 15_000
    quiet_ms: int = 10_000
    loss: float = 0.05
    repeat: float = 0.05
    delay_ms: int = 40
    crash_every_ms: int = 3_000
    down_ms: int = 2_000
    cut_every_ms: int = 3_000
    append_every_ms: int = 60
    snapshot_every: int = 0
    dynamic: bool = False
    """kraft.version 1, voters change, disks are lost."""
    leaders_leave: bool = False
    """With dynamic: who is removed is the leader."""
    down_to_one: bool = False
    """With dynamic: voters are removed until one is left, before others are added."""
    upgrade: bool = False
    """With dynamic: begins with static voters (kraft.version 0)."""
    config: RaftConfig | None = None
    crash_after_vote: float = 0.0
    crash_new_leader: float = 0.0
    entries_per_fetch: int = 10
    mutant: str = ""


@dataclass(slots=True)
class _Parked:
    deadline_ms: int
    request: Fetch
    reply_to: Callable[[Any], None]


class Node:
    """A core, its disk, and what a driver would do for it."""

    def __init__(self, sim: RaftSim, node_id: int) -> None:
        self.sim = sim
        self.node_id = node_id
        self.incarnation = 0
        self.disk = ElectionState()
        self.log = MemoryLog()
        self.directory = bytes(16)
        self.is_up = False
        self.applied = 0
        self.parked: list[_Parked] = []
        self.core: RaftCore
        self.change_reply_to: Callable[[Any], None] | None = None
        self.tick_at: int | None = None
        self.replace_disk()

    def replace_disk(self) -> None:
        """A new, empty disk: another replica (K-11)."""
        self.disk = ElectionState()
        self.log = MemoryLog()
        self.incarnation += 1
        if self.sim.options.dynamic:
            self.directory = bytes([self.node_id, self.incarnation]) + bytes(14)
        self.key = ReplicaKey(self.node_id, self.directory)

    def start(self) -> None:
        sim = self.sim
        self.log.crash()
        self.is_up = True
        self.parked = []
        self.applied = 0
        self.tick_at = None
        careless = sim.options.mutant == COMMIT_BY_COUNT
        self.core = (_CarelessCore if careless else RaftCore)(
            self.key,
            self.log.history(sim.static_voters),
            Random(sim.random.randrange(1 << 30)),
            self.log,
            endpoints=sim.endpoints(self.node_id),
            bootstrap=[("", node_id) for node_id in sim.nodes if node_id != self.node_id],
            cluster_id="sim",
            config=sim.options.config,
        )
        self.step(Start(self.disk, self.log.position))

    def crash(self) -> None:
        self.is_up = False
        self.parked = []

    def step(self, event: Event, reply_to: Callable[[Any], None] | None = None) -> None:
        if not self.is_up:
            return
        core, sim = self.core, self.sim
        was = core.role
        ready = core.step(event, sim.now_ms)
        self._perform(ready, reply_to)
        if core.role is not was:
            sim.tell(f"{self.node_id} is {core.role.value} in epoch {core.epoch}")
            if core.role is Role.LEADER:
                sim.check.elected(self)
                sim.leader_elected(self)
        if was is Role.LEADER and core.role is not was:
            # A driver syncs what it wrote before it looks at anything else.
            self.log.durable_end = self.log.end_offset
            self.step(Flushed(self.log.position))
        self._take(ready)
        self._schedule_tick()
        sim.check.stepped(self)

    def _perform(self, ready: Ready, reply_to: Callable[[Any], None] | None) -> None:
        sim = self.sim
        if ready.persist is not None and (
            ready.persist.voted_id < 0 or sim.options.mutant != NO_VOTE_KEPT
        ):
            self.disk = ready.persist
        for change in ready.append:
            self._append_control(change)
        for to, request in ready.send:
            sim.send(self, to, request)
        if reply_to is not None:
            self._reply(ready, reply_to)
        if ready.change_reply is not None and self.change_reply_to is not None:
            self.change_reply_to(ready.change_reply)
            self.change_reply_to = None
        if ready.high_watermark is not None:
            sim.check.committed(self, ready.high_watermark)
            self.wake()
        if not self.core.is_leader and self.parked:
            parked, self.parked = self.parked, []
            for fetch in parked:
                fetch.reply_to(fetch_reply(self.core, ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _reply(self, ready: Ready, reply_to: Callable[[Any], None]) -> None:
        if ready.reply is not None:
            reply_to(ready.reply)
        elif ready.serve is not None:
            self.serve(ready.serve, reply_to)
        elif ready.serve_snapshot is not None:
            reply_to(self._snapshot_part(ready.serve_snapshot))
        else:
            self.change_reply_to = reply_to

    # --- as leader ------------------------------------------------------------------------------

    def _append_control(self, change: LeaderChange | AppendVoters) -> None:
        if isinstance(change, AppendVoters):
            self.append(Entry(change.epoch, f"voters {change.voters.ids}", change.voters))
        else:
            self.append(Entry(change.epoch, f"leader {self.node_id}", change.voter_set))

    def append(self, entry: Entry) -> None:
        """In the log at once, on the disk later."""
        self.log.entries.append(entry)
        offset, directory = self.log.end_offset - 1, self.directory
        if entry.voters is not None:
            self.step(VotersAppended(offset, entry.voters))
        if self.sim.options.mutant == EARLY_COUNT:
            self.step(Flushed(self.log.position))
        self.wake()
        core = self.core

        def flush() -> None:
            if self.is_up and self.core is core and self.directory == directory:
                self.log.durable_end = self.log.end_offset
                self.step(Flushed(self.log.position))

        self.sim.after(1 + self.sim.random.randrange(15), flush)

    def serve(self, request: Fetch, reply_to: Callable[[Any], None]) -> None:
        if not self._answer(request, reply_to):
            fetch = _Parked(self.sim.now_ms + request.max_wait_ms, request, reply_to)
            self.parked.append(fetch)
            self.sim.after(request.max_wait_ms, lambda: self._expire(fetch))

    def _answer(self, request: Fetch, reply_to: Callable[[Any], None]) -> bool:
        entries = self.log.entries[request.offset - self.log.start_offset :]
        if not entries and self.core.told_high_watermark <= request.high_watermark:
            return False
        # Entries travel beside the reply; its records only say that there are some.
        self.sim.carried = tuple(entries[: self.sim.options.entries_per_fetch])
        reply_to(fetch_reply(self.core, records=b"x" if entries else b""))
        return True

    def wake(self) -> None:
        self.parked = [f for f in self.parked if not self._answer(f.request, f.reply_to)]

    def _expire(self, fetch: _Parked) -> None:
        if fetch in self.parked:
            self.parked.remove(fetch)
            fetch.reply_to(fetch_reply(self.core))

    def _snapshot_part(self, request: FetchSnapshot) -> Any:
        snapshot = self.log.snapshot
        if snapshot is None or snapshot.id != request.snapshot_id:
            return snapshot_reply(self.core, request.snapshot_id, ErrorCode.SNAPSHOT_NOT_FOUND)
        return snapshot_reply(
            self.core, snapshot.id, size=SNAPSHOT_PIECES, position=request.position, data=b"x"
        )

    def take_snapshot(self) -> None:
        """Of what is applied; the log below it is given up."""
        log, offset = self.log, self.applied
        if offset <= log.start_offset or offset > log.durable_end:
            return
        entries = tuple(log.entry(n) for n in range(offset))
        voters = self.core.history.at(offset - 1)
        named = voters if voters.kraft_version else None
        snapshot = Snapshot(SnapshotId(offset, entries[-1].epoch), entries, named)  # type: ignore
        self.sim.snapshots[snapshot.id] = snapshot
        del log.entries[: offset - log.start_offset]
        log.start_offset, log.snapshot = offset, snapshot
        self.core.history.forget_below(offset)

    # --- as follower ----------------------------------------------------------------------------

    def _take(self, ready: Ready) -> None:
        log = self.log
        if ready.truncate is not None:
            ours = log.end_offset_for_epoch(ready.truncate.epoch)
            end = ours.end_offset
            if ours.epoch == ready.truncate.epoch:
                end = min(end, ready.truncate.end_offset)
            log.truncate_to(max(end, log.start_offset))
            self.step(Truncated(log.position))
        elif ready.accept is not None:
            first = log.end_offset
            log.entries.extend(self.sim.carried)
            log.durable_end = log.end_offset
            sets = [
                (offset, entry.voters)
                for offset, entry in enumerate(log.entries[first - log.start_offset :], first)
                if entry.voters is not None
            ]
            self.step(Fetched(log.position, ready.accept.high_watermark, sets))
        elif ready.accept_snapshot is not None:
            reply = ready.accept_snapshot
            position = reply.position + len(reply.data)
            if position < reply.size:
                self.step(SnapshotPart(position))
                return
            snapshot = self.sim.snapshots[reply.snapshot_id]
            log.entries, log.snapshot = [], snapshot
            log.start_offset = log.durable_end = snapshot.id.offset
            self.step(SnapshotLoaded(log.position, snapshot.voters))

    def _schedule_tick(self) -> None:
        deadline = self.core.deadline_ms
        if deadline is None or (self.tick_at is not None and self.tick_at <= deadline):
            return
        self.tick_at = at_ms = max(deadline, self.sim.now_ms + 1)
        core = self.core

        def tick() -> None:
            # One that an earlier deadline has replaced would wake who forgot to ask for a later.
            if self.is_up and self.core is core and self.tick_at == at_ms:
                self.tick_at = None
                self.step(Tick())

        self.sim.at(at_ms, tick)


class Invariants:
    """What must hold after every event. Names are those of the Raft papers and reliability.md."""

    def __init__(self, sim: RaftSim) -> None:
        self.sim = sim
        self.leaders: dict[int, ReplicaKey] = {}
        self.votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self.log: list[Entry] = []
        """Everything ever committed."""
        self._epochs: dict[tuple[int, int], int] = {}
        self._watermarks: dict[int, tuple[RaftCore | None, int]] = {}

    def _broken(self, text: str) -> InvariantBroken:
        return InvariantBroken(f"at {self.sim.now_ms} ms: {text}")

    def elected(self, node: Node) -> None:
        """One leader in an epoch; its log has all that was ever committed."""
        epoch = node.core.epoch
        other = self.leaders.setdefault(epoch, node.key)
        if other != node.key:
            raise self._broken(f"one leader per epoch: {epoch} has {other} and {node.key}")
        for offset, entry in enumerate(self.log):
            found = node.log.entry(offset)
            if found != entry:
                raise self._broken(
                    f"leader completeness: {node.key} leads epoch {epoch} and has {found} at "
                    f"{offset}, committed was {entry}"
                )

    def voted(self, voter: Node, request: Vote) -> None:
        """One vote in an epoch, crash or not."""
        other = self.votes.setdefault((voter.key, request.epoch), request.candidate)
        if other != request.candidate:
            raise self._broken(
                f"one vote: {voter.key} gave {other} and {request.candidate} epoch {request.epoch}"
            )

    def committed(self, node: Node, high_watermark: int) -> None:
        """Nothing committed is ever another; a leader commits what a majority has on disk."""
        core = node.core
        if high_watermark > node.log.end_offset:
            raise self._broken(f"{node.key} commits beyond its log")
        for offset in range(len(self.log), high_watermark):
            entry = node.log.entry(offset)
            assert entry is not None
            self.log.append(entry)
        for offset in range(node.applied, high_watermark):
            entry = node.log.entry(offset)
            if entry != self.log[offset]:
                raise self._broken(
                    f"state machine safety: {node.key} applies {entry} at {offset}, others "
                    f"{self.log[offset]}"
                )
        node.applied = high_watermark
        if core.is_leader:
            last = node.log.entry(high_watermark - 1)
            have = sum(self._has(voter, high_watermark - 1, last) for voter in core.voters)
            if have < core.voters.majority:
                raise self._broken(
                    f"durability: {node.key} commits {high_watermark}, on {have} disks"
                )

    def _has(self, voter: Voter, offset: int, entry: Entry | None) -> bool:
        node = self.sim.nodes[voter.node_id]
        if not voter.accepts(node.key):
            return True  # its disk is gone; when it fetched it had it
        return offset < node.log.durable_end and node.log.entry(offset) == entry

    def stepped(self, node: Node) -> None:
        """Neither an epoch nor, while a node runs, its high watermark ever falls."""
        core = node.core
        key = (node.node_id, node.incarnation)
        if core.epoch < self._epochs.get(key, 0) and (self.sim.options.mutant != NO_VOTE_KEPT):
            raise self._broken(f"epochs never fall: {node.key}")
        self._epochs[key] = core.epoch
        run, watermark = self._watermarks.get(node.node_id, (None, -1))
        if run is core and core.high_watermark < watermark:
            raise self._broken(f"high watermark falls: {node.key}")
        self._watermarks[node.node_id] = (core, core.high_watermark)


class RaftSim:
    """See the module. `run` raises InvariantBroken."""

    def __init__(self, seed: int, options: Options | None = None) -> None:
        self.options = options or Options()
        self.random = Random(seed)
        self.now_ms = 0
        self.story: list[str] = []
        self.check = Invariants(self)
        self.snapshots: dict[SnapshotId, Snapshot] = {}
        self.carried: tuple[Entry, ...] = ()
        self.acknowledged: list[str] = []
        self.faults = True
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._cut: set[tuple[int, int]] = set()
        self._appended = 0
        self.static_voters = VoterSet()
        self.nodes: dict[int, Node] = {}
        for node_id in range(1, self.options.nodes + 1):
            self.nodes[node_id] = Node(self, node_id)
        voters = [self.voter(node) for node in self.nodes.values()]
        if self.options.upgrade:
            voters = [voter._replace(directory_id=bytes(16)) for voter in voters]
        version = int(self.options.dynamic and not self.options.upgrade)
        self.static_voters = VoterSet(voters, version)

    def endpoints(self, node_id: int) -> tuple[Endpoint, ...]:
        return (Endpoint("CONTROLLER", "", node_id),)

    def voter(self, node: Node) -> Voter:
        return Voter(node.node_id, node.directory, self.endpoints(node.node_id))

    def tell(self, text: str) -> None:
        self.story.append(f"{self.now_ms:6d} {text}")

    # --- time -----------------------------------------------------------------------------------

    def at(self, ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (max(ms, self.now_ms), self._sequence, action))

    def after(self, ms: int, action: Callable[[], None]) -> None:
        self.at(self.now_ms + ms, action)

    def run_until(self, ms: int) -> None:
        while self._queue and self._queue[0][0] <= ms:
            self.now_ms, _, action = heapq.heappop(self._queue)
            action()
        self.now_ms = ms

    # --- the network ----------------------------------------------------------------------------

    def send(self, source: Node, to: Peer, request: Any) -> None:
        """Carry a request there and its answer back, if the network is kind; else time out."""
        core = source.core
        done = False

        def answered(reply: Any, carried: tuple[Entry, ...]) -> None:
            nonlocal done
            if not done and source.is_up and source.core is core:
                done = True
                self.carried = carried
                source.step(Answered(to, request, reply))

        target = self.nodes[to.port]

        def reply_to(reply: Any) -> None:
            carried, self.carried = self.carried, ()
            if isinstance(request, Vote) and not request.pre_vote and reply.granted:
                self.check.voted(target, request)
                if self.faults and self.random.random() < self.options.crash_after_vote:
                    self.after(0, lambda: self._crash(target, 200))
            self._carry(target.node_id, source.node_id, lambda: answered(reply, carried))

        def arrive() -> None:
            if not target.is_up:
                self._carry(target.node_id, source.node_id, lambda: answered(None, ()))
            elif isinstance(request, ProbeVersions):
                reply_to(VersionsReply(ErrorCode.NONE, (0, 1)))
            else:
                target.step(request, reply_to)

        self._carry(source.node_id, target.node_id, arrive)
        self.after(core.config.request_timeout_ms, lambda: answered(None, ()))

    def _carry(self, source: int, target: int, action: Callable[[], None]) -> None:
        options, random = self.options, self.random
        times = 1
        if self.faults:
            if random.random() < options.loss:
                return
            times += random.random() < options.repeat
        for _ in range(times):
            delay = 1 + random.randrange(options.delay_ms if self.faults else 5)
            self.after(delay, lambda: None if (source, target) in self._cut else action())

    # --- faults and load ------------------------------------------------------------------------

    def _every(self, period_ms: int, action: Callable[[], None]) -> None:
        def again() -> None:
            if self.faults:
                action()
                self._every(period_ms, action)

        self.after(1 + self.random.randrange(2 * period_ms), again)

    def _crash_one(self) -> None:
        self._crash(self.random.choice(list(self.nodes.values())), self.options.down_ms)

    def _crash(self, node: Node, down_ms: int) -> None:
        if node.is_up:
            self.tell(f"{node.node_id} crashes")
            node.crash()
            self.after(1 + self.random.randrange(down_ms), lambda: self._revive(node))

    def _revive(self, node: Node) -> None:
        if not node.is_up:
            self.tell(f"{node.node_id} restarts")
            node.start()

    def leader_elected(self, node: Node) -> None:
        if self.faults and self.random.random() < self.options.crash_new_leader:
            self.after(self.random.randrange(120), lambda: self._crash(node, 400))

    def _cut_some(self) -> None:
        random, ids = self.random, list(self.nodes)
        self._cut = set()
        kind = random.randrange(4)
        if kind == 0:
            lonely = random.choice(ids)
            self._cut = {(a, b) for a in ids for b in ids if lonely in (a, b)}
        elif kind == 1:
            self._cut = {(a, b) for a in ids for b in ids if random.random() < 0.3}
        elif kind == 2:
            side = {n for n in ids if random.random() < 0.5}
            self._cut = {(a, b) for a in ids for b in ids if (a in side) != (b in side)}
        self.tell(f"links cut: {sorted(self._cut)}")

    def _append(self) -> None:
        leaders = [n for n in self.nodes.values() if n.is_up and n.core.has_committed_in_epoch]
        if leaders:
            node = self.random.choice(leaders)
            self._appended += 1
            node.append(Entry(node.core.epoch, f"value {self._appended}"))

    def _snapshot_one(self) -> None:
        node = self.random.choice(list(self.nodes.values()))
        if node.is_up and node.applied - node.log.start_offset >= self.options.snapshot_every:
            node.take_snapshot()

    def _change_voters(self) -> None:
        """An operator: remove a voter whose disk is gone or any; add a node that is none."""
        leaders = [n for n in self.nodes.values() if n.is_up and n.core.has_committed_in_epoch]
        if not leaders:
            return
        leader = self.random.choice(leaders)
        voters = leader.core.voters
        if voters.kraft_version == 0:
            self._upgrade(leader)
            return
        stale = [v for v in voters if not v.accepts(self.nodes[v.node_id].key)]
        absent = [n for n in self.nodes.values() if n.node_id not in voters]
        request: AddVoter | RemoveVoter | None = None
        shrinks = self.options.down_to_one and len(voters) > 1 and self.random.random() < 0.6
        if stale:
            request = RemoveVoter(stale[0].key)
        elif absent and not shrinks:
            request = AddVoter(self.voter(self.random.choice(absent)), 2000)
        elif shrinks or len(voters) > 2:
            chosen = self.random.choice(list(voters))
            if self.options.leaders_leave:
                chosen = voters.get(leader.node_id) or chosen
            request = RemoveVoter(chosen.key)
        if request is not None:
            name = type(request).__name__
            node_id = request.voter.node_id

            def told(reply: Any) -> None:
                self.tell(f"{name} {node_id}: {reply.error.name} {reply.message}")

            leader.step(request, told)

    def _upgrade(self, leader: Node) -> None:
        try:
            change = leader.core.changes.upgrade(1, False)
        except KafkaError as error:
            self.tell(f"no upgrade: {error.detail}")
            return
        if change is not None:
            self.tell(f"{leader.node_id} raises kraft.version")
            leader._append_control(change)

    def _lose_disk(self) -> None:
        """At most one voter without its disk at a time, or data may be lost for good; none of
        static voters, which would vote twice (K-11)."""
        # All must agree that three voters or more have their disks, and that nothing is changing.
        views = {node.core.voters for node in self.nodes.values() if node.is_up}
        leading = [n.core for n in self.nodes.values() if n.core.leader is not None]
        changing = any(core.changes.pending for core in leading)
        if len(views) != 1 or changing:
            return
        voters = views.pop()
        if len(voters) < 3 or voters.kraft_version == 0:
            return
        for node in self.nodes.values():
            if not node.is_up:
                return
            for voter in node.core.voters:
                if not voter.accepts(self.nodes[voter.node_id].key):
                    return
        committed = max(n.core.high_watermark for n in self.nodes.values())
        if any(n.log.durable_end < committed for n in self.nodes.values()):
            return
        node = self.random.choice(list(self.nodes.values()))
        self.tell(f"{node.node_id} loses its disk")
        node.crash()
        node.replace_disk()
        self.after(self.random.randrange(2000), lambda: self._revive(node))

    # --- a run ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Faults and load for a while, then quiet: the quorum must work again."""
        options = self.options
        for node in self.nodes.values():
            node.start()
        self._every(options.append_every_ms, self._append)
        if options.crash_every_ms:
            self._every(options.crash_every_ms, self._crash_one)
        if options.cut_every_ms:
            self._every(options.cut_every_ms, self._cut_some)
        if options.snapshot_every:
            self._every(700, self._snapshot_one)
        if options.dynamic:
            self._every(1500, self._change_voters)
            self._every(6000, self._lose_disk)
        self.run_until(options.steps_ms)
        self._recover()

    def _recover(self) -> None:
        self.tell("faults end")
        self.faults = False
        self._cut = set()
        for node in self.nodes.values():
            self._revive(node)
        self.run_until(self.now_ms + self.options.quiet_ms)
        leaders = [node for node in self.nodes.values() if node.core.is_leader]
        if len(leaders) != 1:
            raise InvariantBroken(f"liveness: {[n.key for n in leaders]} lead after the quiet")
        leader = leaders[0]
        leader.append(Entry(leader.core.epoch, "last"))
        self.run_until(self.now_ms + 3000)
        for node in self.nodes.values():
            if node.core.leader_id != leader.node_id or (
                node.core.high_watermark != leader.log.end_offset
            ):
                raise InvariantBroken(
                    f"liveness: {node.key} follows {node.core.leader_id} in {node.core.epoch} up "
                    f"to {node.core.high_watermark} of {leader.log.end_offset}"
                )


class _CarelessLeader(LeaderState):
    """Mutant: records of earlier epochs count as committed once a majority has them."""

    __slots__ = ()

    def committed(self) -> int:
        self.epoch_start_offset = -1
        return LeaderState.committed(self)


class _CarelessCore(RaftCore):
    __slots__ = ()

    def step(self, event: Event, now_ms: int) -> Ready:
        if self.leader is not None:
            self.leader.__class__ = _CarelessLeader
        return RaftCore.step(self, event, now_ms)


_HASTY = RaftConfig(
    election_timeout_ms=120, election_backoff_max_ms=100, fetch_timeout_ms=250,
    request_timeout_ms=200, fetch_max_wait_ms=60,
)  # fmt: skip
SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {},
    "elections": {
        "config": _HASTY, "delay_ms": 60, "crash_after_vote": 0.3, "crash_every_ms": 900,
        "down_ms": 400, "cut_every_ms": 700, "steps_ms": 8_000, "append_every_ms": 20,
    },
    "leaders that die young": {
        "config": _HASTY, "delay_ms": 30, "loss": 0.25, "crash_new_leader": 0.8,
        "crash_every_ms": 0, "cut_every_ms": 200, "steps_ms": 8_000, "append_every_ms": 20,
        "entries_per_fetch": 1,
    },
    "quiet network": {"loss": 0.0, "repeat": 0.0, "delay_ms": 5, "cut_every_ms": 0},
    "bad network": {"loss": 0.2, "repeat": 0.2, "delay_ms": 300, "crash_every_ms": 0},
    "crashes": {
        "config": _HASTY, "crash_every_ms": 150, "down_ms": 300, "cut_every_ms": 0, "delay_ms": 20,
        "steps_ms": 8_000, "append_every_ms": 15,
    },
    "snapshots": {"snapshot_every": 10, "crash_every_ms": 1000},
    "voters": {"dynamic": True, "nodes": 4, "crash_every_ms": 5000, "cut_every_ms": 5000},
    "voters and snapshots": {"dynamic": True, "nodes": 5, "snapshot_every": 10},
    "leaders that are removed": {
        "config": _HASTY, "dynamic": True, "leaders_leave": True, "delay_ms": 30, "loss": 0.1,
        "crash_every_ms": 0, "cut_every_ms": 400,
    },
    "voters down to one": {
        "config": _HASTY, "dynamic": True, "leaders_leave": True, "down_to_one": True, "nodes": 2,
        "delay_ms": 30, "crash_every_ms": 3000, "cut_every_ms": 400,
    },
    "static voters that become dynamic": {
        "dynamic": True, "upgrade": True, "nodes": 4, "snapshot_every": 20, "cut_every_ms": 5000,
    },
}  # fmt: skip


def options_for(seed: int, **overrides: Any) -> Options:
    """The scenario of a seed: they take turns, with three to five nodes."""
    names = list(SCENARIOS)
    chosen = {"nodes": 3 + seed % 3, **SCENARIOS[names[seed % len(names)]], **overrides}
    return Options(**chosen)


def run_seed(seed: int, **overrides: Any) -> RaftSim:
    """One run; a failure names the seed and tells the end of the story."""
    sim = RaftSim(seed, options_for(seed, **overrides))
    try:
        sim.run()
    except AssertionError as error:
        told = "\n".join(sim.story[-25:])
        raise InvariantBroken(
            f"seed {seed}: {error}\n{told}\nagain: python -m tests.sim.raft_sim {seed}"
        ) from error
    return sim


if __name__ == "__main__":
    simulation = RaftSim(int(sys.argv[1]), options_for(int(sys.argv[1])))
    try:
        simulation.run()
    finally:
        print("\n".join(simulation.story))
