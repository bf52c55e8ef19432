"""What one replica's node tells its core, and what the core wants of it. PURE.

What: what is stored about an election, where a log ends, the configuration, the events that need no
other replica, `Ready`, the effects of a step, and what parts of the core see of the log and of the
whole. The words between replicas are in `events`, which has all of these too.
Why two modules: a quorum of one voter starts without loading the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from replication.raft.voter_set import (
    ZERO_DIRECTORY_ID,
    Endpoint,
    ReplicaKey,
    Voter,
    VoterHistory,
    VoterSet,
)

if TYPE_CHECKING:
    from replication.raft.events import (
        Fetch,
        FetchReply,
        FetchSnapshot,
        FetchSnapshotReply,
        Outgoing,
        Reply,
        VoterChangeReply,
    )
    from replication.raft.leader_state import LeaderState

NO_LEADER = -1
NO_VOTE = -1


class SnapshotId(NamedTuple):
    """`offset` is the first offset not contained, `epoch` that of the last one that is."""

    offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.offset:020d}-{self.epoch:010d}.checkpoint"


class LogPosition(NamedTuple):
    """End of a log: epoch of its last batch and its log end offset. Compares as Raft does."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Kafka's controller.quorum.* of the same names; milliseconds."""

    election_timeout_ms: int = 1000
    election_backoff_max_ms: int = 1000
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    append_linger_ms: int = 25
    """Not waited for: what arrives while a batch is being written goes into the next sync."""
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 8 * 1024 * 1024
    auto_join: bool = False
    """An observer that can vote asks to become a voter (KIP-1186: auto.join.enable)."""


@dataclass(slots=True)
class ElectionState:
    """What must survive a crash for an election to be safe (file `quorum-state`)."""

    epoch: int = 0
    leader_id: int = NO_LEADER
    voted_id: int = NO_VOTE
    voted_directory_id: bytes = ZERO_DIRECTORY_ID


class Peer(NamedTuple):
    """Where a request goes. A bootstrap server, whose node id is not known, has an id below -1."""

    node_id: int
    host: str
    port: int


# --- events ---------------------------------------------------------------------------------------


class Start(NamedTuple):
    """First event: what the disk holds."""

    state: ElectionState
    log: LogPosition


class Tick:
    """Time has passed; `now_ms` says how much."""

    __slots__ = ()


class Flushed(NamedTuple):
    """This voter's log is durable up to (excluding) `log.end_offset`."""

    log: LogPosition


class VotersAppended(NamedTuple):
    """As leader we wrote a VotersRecord or KRaftVersion record at `offset`: effective at once."""

    offset: int
    voters: VoterSet


class Shutdown:
    """Stand for nothing any more; resign when leading. Other events go on being answered."""

    __slots__ = ()


class Resign:
    """Give up leadership of the current epoch (failed append)."""

    __slots__ = ()


# --- effects ------------------------------------------------------------------------------------


class LeaderChange(NamedTuple):
    """Control batch a new leader appends first: itself, the voters, and who voted for it."""

    leader_id: int
    epoch: int
    voters: tuple[ReplicaKey, ...]
    granting_voters: tuple[ReplicaKey, ...]
    voter_set: VoterSet | None = None
    """With this voter set behind it in the same batch (effective as with AppendVoters)."""


class AppendVoters(NamedTuple):
    """Control batch with a new voter set (and kraft.version): effective once appended (K-12)."""

    epoch: int
    voters: VoterSet


class Send(NamedTuple):
    """A request for another node; what comes of it is stepped as `Answered`."""

    to: Peer
    request: Outgoing


@dataclass(slots=True)
class Ready:
    """Effects of one step, to be done in the order of core's module docstring."""

    persist: ElectionState | None = None
    truncate: LogPosition | None = None
    """Cut our log back to where it and the leader's, whose epoch ends here, are the same."""
    accept: FetchReply | None = None
    """Records and high watermark from the leader; answer with `Fetched`."""
    begin_snapshot: SnapshotId | None = None
    """Forget what an earlier download left; parts follow."""
    accept_snapshot: FetchSnapshotReply | None = None
    """A part of it; answer with `SnapshotPart`, or `SnapshotLoaded` when it was the last."""
    append: list[LeaderChange | AppendVoters] = field(default_factory=list)
    send: list[Send] = field(default_factory=list)
    reply: Reply | None = None
    """Answer to the request stepped."""
    serve: Fetch | None = None
    """The fetch stepped may be answered from the log, from its offset on. Nothing there, and its
    high watermark at least ours: keep it until there is news, for its `max_wait_ms` at most."""
    serve_snapshot: FetchSnapshot | None = None
    """The request stepped is to be answered from the snapshot's file."""
    change_reply: VoterChangeReply | None = None
    """Answer to the AddVoter or RemoveVoter that was left without one (there is at most one)."""
    high_watermark: int | None = None


# --- seams --------------------------------------------------------------------------------------


class LogView(Protocol):
    """What the core asks of the log itself, besides its end. Kafka: ReplicatedLog."""

    @property
    def start_offset(self) -> int: ...

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    @property
    def earliest_snapshot(self) -> SnapshotId | None: ...

    def end_offset_for_epoch(self, epoch: int) -> LogPosition:
        """The largest epoch of ours not above `epoch`, and where it ends."""


class Replica(Protocol):
    """A `RaftCore`, as what it is made of sees it: `election`, `fetcher`, `voter_changes`."""

    key: ReplicaKey
    node_id: int
    cluster_id: str | None
    config: RaftConfig
    endpoints: tuple[Endpoint, ...]
    listener_name: str
    bootstrap: tuple[Peer, ...]
    history: VoterHistory
    log: LogPosition
    high_watermark: int

    @property
    def epoch(self) -> int: ...

    @property
    def leader_id(self) -> int: ...

    @property
    def leader(self) -> LeaderState | None: ...

    @property
    def voters(self) -> VoterSet: ...

    @property
    def is_voter(self) -> bool: ...

    @property
    def has_committed_in_epoch(self) -> bool: ...

    def random_below(self, stop: int) -> int: ...

    def peer_of(self, voter: Voter) -> Peer: ...

    def other_voters(self) -> list[Voter]: ...

    def endpoints_of_leader(self) -> tuple[Endpoint, ...]: ...

    def leader_peer(self) -> Peer | None: ...

    def wait_for_leader(self, now_ms: int) -> None: ...

    def follow_high_watermark(self, high_watermark: int, ready: Ready) -> None: ...
