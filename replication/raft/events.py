"""The words of the quorum: what voters ask and answer, what the core is told and wants. PURE.

What: identities, one class per request and per reply between voters, the events that the caller
steps the core with, and the effects (`Ready`) it gets back.
Why: the wire's messages are nested per topic and partition and know versions; the core knows one
log. Whoever owns sockets translates (Vote <-> VoteRequest, Fetch <-> FetchRequest, ...), so that
the core and the simulator never see a codec.
How: a request is the same value on both sides: `Send(to, Vote(...))` at one voter is stepped as
`Vote(...)` at the other, whose `VoteReply` is stepped at the first as `Answered(to, Vote, reply)`.

Every reply names the leader its sender knows (`leader_id`, `epoch`, `leader_endpoints`), NO_LEADER
and () when none: that is how a node that asked the wrong one finds the right one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from replication.raft.voter_set import (
    NO_REPLICA,
    ZERO_DIRECTORY_ID,
    Endpoint,
    ReplicaKey,
    Voter,
    VoterSet,
)
from wire.errors import ErrorCode

NO_LEADER = -1
NO_VOTE = -1
NO_EPOCH = -1
UNKNOWN_HIGH_WATERMARK = -1


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


# --- requests -----------------------------------------------------------------------------------
# `cluster_id`: None when the sender does not say. A wrong one is answered INCONSISTENT_CLUSTER_ID.


class Vote(NamedTuple):
    """A candidate asks for a vote in `epoch`; with `pre_vote`, whether it would get one (KIP-996).

    `voter`: whom it means to ask; NO_REPLICA when it does not say (version 0).
    """

    candidate: ReplicaKey
    epoch: int
    log: LogPosition
    pre_vote: bool = False
    voter: ReplicaKey = NO_REPLICA
    cluster_id: str | None = None


class BeginQuorumEpoch(NamedTuple):
    """A leader announces itself to `voter`, with its own endpoints."""

    leader_id: int
    epoch: int
    leader_endpoints: tuple[Endpoint, ...] = ()
    voter: ReplicaKey = NO_REPLICA
    cluster_id: str | None = None


class EndQuorumEpoch(NamedTuple):
    """A leader resigns; `preferred` are the voters in the order it wants them to succeed it.

    A version 0 request names ids only: their directory ids are then ZERO_DIRECTORY_ID.
    """

    leader_id: int
    epoch: int
    preferred: tuple[ReplicaKey, ...] = ()
    leader_endpoints: tuple[Endpoint, ...] = ()
    cluster_id: str | None = None


class Fetch(NamedTuple):
    """A replica holds durably all below `offset`, whose last epoch is `last_epoch`; it wants more.

    `epoch`: the leader epoch it knows (-1: none). `high_watermark`: the one it knows (KIP-1166);
    2**63 - 1 when the request's version cannot say.
    """

    replica: ReplicaKey
    epoch: int
    offset: int
    last_epoch: int
    max_wait_ms: int = 500
    max_bytes: int = 8 * 1024 * 1024
    high_watermark: int = (1 << 63) - 1
    cluster_id: str | None = None


class FetchSnapshot(NamedTuple):
    """A replica wants the bytes of a snapshot from `position` on."""

    replica: ReplicaKey
    epoch: int
    snapshot_id: SnapshotId
    position: int
    max_bytes: int = 8 * 1024 * 1024
    cluster_id: str | None = None


class AddVoter(NamedTuple):
    """AddRaftVoter (KIP-853): make `voter` one of the voters.

    `timeout_ms`: after that the reply is REQUEST_TIMED_OUT. `ack_when_committed`: False lets the
    reply go when the VotersRecord is appended (version 1).
    """

    voter: Voter
    timeout_ms: int
    ack_when_committed: bool = True
    cluster_id: str | None = None


class RemoveVoter(NamedTuple):
    """RemoveRaftVoter (KIP-853)."""

    voter: ReplicaKey
    cluster_id: str | None = None


class UpdateVoter(NamedTuple):
    """UpdateRaftVoter (KIP-853): a voter tells its present endpoints and kraft.version range."""

    voter: Voter
    epoch: int
    cluster_id: str | None = None


class ProbeVersions(NamedTuple):
    """Outgoing only (ApiVersions): which kraft.version range does the peer support?"""


# --- replies ------------------------------------------------------------------------------------


class VoteReply(NamedTuple):
    error: ErrorCode
    epoch: int
    leader_id: int = NO_LEADER
    granted: bool = False
    leader_endpoints: tuple[Endpoint, ...] = ()


class BeginQuorumEpochReply(NamedTuple):
    error: ErrorCode
    epoch: int
    leader_id: int = NO_LEADER
    leader_endpoints: tuple[Endpoint, ...] = ()


class EndQuorumEpochReply(NamedTuple):
    error: ErrorCode
    epoch: int
    leader_id: int = NO_LEADER
    leader_endpoints: tuple[Endpoint, ...] = ()


class FetchReply(NamedTuple):
    """At most one of `diverging`, `snapshot_id` and `records` says something.

    `diverging`: the largest epoch not above the asked one that the leader has, and where it ends.
    `records`: whole batches, b"" when there is nothing new.
    """

    error: ErrorCode
    epoch: int
    leader_id: int = NO_LEADER
    leader_endpoints: tuple[Endpoint, ...] = ()
    high_watermark: int = UNKNOWN_HIGH_WATERMARK
    log_start_offset: int = -1
    diverging: LogPosition | None = None
    snapshot_id: SnapshotId | None = None
    records: bytes = b""


class FetchSnapshotReply(NamedTuple):
    """`data`: bytes of the file from `position` on, `size` that of the whole file."""

    error: ErrorCode
    epoch: int
    snapshot_id: SnapshotId
    leader_id: int = NO_LEADER
    leader_endpoints: tuple[Endpoint, ...] = ()
    size: int = 0
    position: int = 0
    data: bytes = b""


class VoterChangeReply(NamedTuple):
    """Answer to AddVoter, RemoveVoter and UpdateVoter. `message`: for people, "" when NONE."""

    error: ErrorCode
    epoch: int
    message: str = ""
    leader_id: int = NO_LEADER
    leader_endpoints: tuple[Endpoint, ...] = ()


class VersionsReply(NamedTuple):
    """What the peer of a ProbeVersions supports; (0, 0) when it names no kraft.version."""

    error: ErrorCode
    kraft_versions: tuple[int, int] = (0, 0)


Request = (
    Vote
    | BeginQuorumEpoch
    | EndQuorumEpoch
    | Fetch
    | FetchSnapshot
    | AddVoter
    | RemoveVoter
    | UpdateVoter
)
"""What a node may be asked (RaftDriver.handle)."""
Outgoing = (
    Vote | BeginQuorumEpoch | EndQuorumEpoch | Fetch | FetchSnapshot | UpdateVoter | ProbeVersions
    | AddVoter | RemoveVoter
)  # fmt: skip
"""What a node may ask (RaftTransport.send)."""
Reply = (
    VoteReply
    | BeginQuorumEpochReply
    | EndQuorumEpochReply
    | FetchReply
    | FetchSnapshotReply
    | VoterChangeReply
    | VersionsReply
)


# --- other events -------------------------------------------------------------------------------


class Start(NamedTuple):
    """First event: what the disk holds."""

    state: ElectionState
    log: LogPosition


class Tick(NamedTuple):
    """Time has passed; `now_ms` says how much."""


class Flushed(NamedTuple):
    """This voter's log is durable up to (excluding) `log.end_offset`."""

    log: LogPosition


class Answered(NamedTuple):
    """A peer answered `request`; `reply` is None when none came (refused, closed, timed out)."""

    peer: Peer
    request: Outgoing
    reply: Reply | None


class VotersAppended(NamedTuple):
    """A VotersRecord or KRaftVersion record stands in our log at `offset`: effective at once."""

    offset: int
    voters: VoterSet


class Truncated(NamedTuple):
    """Our log was cut back: `log` is its end now. Voter sets above it are undone."""

    log: LogPosition


class Fetched(NamedTuple):
    """What `Ready.accept` held is appended and durable: `log` is our end now.

    `high_watermark` is the leader's, as its reply said.
    """

    log: LogPosition
    high_watermark: int


class SnapshotPart(NamedTuple):
    """What `Ready.accept_snapshot` held is in the unfinished file; `position`: its size now.

    None: it could not be used, the download begins anew with the next fetch.
    """

    position: int | None


class SnapshotLoaded(NamedTuple):
    """The snapshot is complete and durable, our log begins anew at its end; its voter set counts
    (None: it names none)."""

    log: LogPosition
    voters: VoterSet | None


class Shutdown(NamedTuple):
    """Stand for nothing any more; resign when leading. Other events go on being answered."""


class Resign(NamedTuple):
    """Give up leadership of the current epoch (shutdown, failed append)."""


Event = (
    Request
    | Start
    | Tick
    | Flushed
    | Answered
    | Fetched
    | VotersAppended
    | Truncated
    | SnapshotPart
    | SnapshotLoaded
    | Resign
    | Shutdown
)


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


class Serve(NamedTuple):
    """A fetch that may be answered from the log now, or kept until there is something new.

    The caller reads from `request.offset`; nothing there and `request.high_watermark` at least
    ours: it parks the request, for `request.max_wait_ms` at most.
    """

    request: Fetch


@dataclass(slots=True)
class Ready:
    """Effects of one step, to be done in the order of core's module docstring."""

    persist: ElectionState | None = None
    truncate: LogPosition | None = None
    """Cut our log back to where it and the leader's, whose epoch ends here, are the same."""
    accept: FetchReply | None = None
    """Records and high watermark from the leader; answer with `Fetched`."""
    begin_snapshot: SnapshotId | None = None
    """Prepare an empty unfinished file; parts follow."""
    accept_snapshot: FetchSnapshotReply | None = None
    """A part of it; answer with `SnapshotPart`, or `SnapshotLoaded` when it was the last."""
    append: list[LeaderChange | AppendVoters] = field(default_factory=list)
    send: list[Send] = field(default_factory=list)
    reply: Reply | None = None
    """Answer to the request stepped."""
    serve: Serve | None = None
    """The fetch stepped is to be served from the log."""
    serve_snapshot: FetchSnapshot | None = None
    """The request stepped is to be answered from the snapshot's file."""
    change_reply: VoterChangeReply | None = None
    """Answer to the AddVoter or RemoveVoter that was left without one (there is at most one)."""
    high_watermark: int | None = None
