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

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from replication.raft.own_events import (
    NO_LEADER,
    NO_VOTE,
    AppendVoters,
    ElectionState,
    Flushed,
    LeaderChange,
    LogPosition,
    Peer,
    RaftConfig,
    Ready,
    Resign,
    Send,
    Shutdown,
    SnapshotId,
    Start,
    Tick,
    VotersAppended,
)
from replication.raft.voter_set import NO_REPLICA, Endpoint, ReplicaKey, Voter, VoterSet
from wire.errors import ErrorCode

NO_EPOCH = -1
UNKNOWN_HIGH_WATERMARK = -1


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


class RaftTransport(Protocol):
    """Carries requests to other nodes. Must not block."""

    def send(
        self,
        to: Peer,
        request: Outgoing,
        on_answer: Callable[[Reply | None], None],
        timeout_ms: int,
    ) -> None:
        """`on_answer` is called exactly once, on any thread; None when there was no answer."""


# --- other events -------------------------------------------------------------------------------


class Answered(NamedTuple):
    """A peer answered `request`; `reply` is None when none came (refused, closed, timed out)."""

    peer: Peer
    request: Outgoing
    reply: Reply | None


class Truncated(NamedTuple):
    """Our log was cut back: `log` is its end now. Voter sets above it are undone."""

    log: LogPosition


class Fetched(NamedTuple):
    """What `Ready.accept` held is appended and durable: `log` is our end now.

    `high_watermark` is the leader's, as its reply said. `voters`: the sets among what was appended,
    each with the offset of its record.
    """

    log: LogPosition
    high_watermark: int
    voters: Sequence[tuple[int, VoterSet]] = ()


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

__all__ = [
    "NO_LEADER",
    "NO_VOTE",
    "AppendVoters",
    "ElectionState",
    "Flushed",
    "LeaderChange",
    "LogPosition",
    "Peer",
    "RaftConfig",
    "Ready",
    "Resign",
    "Send",
    "Shutdown",
    "SnapshotId",
    "Start",
    "Tick",
    "VotersAppended",
    "Vote",
    "BeginQuorumEpoch",
    "EndQuorumEpoch",
    "Fetch",
    "FetchSnapshot",
    "AddVoter",
    "RemoveVoter",
    "UpdateVoter",
    "ProbeVersions",
    "VoteReply",
    "BeginQuorumEpochReply",
    "EndQuorumEpochReply",
    "FetchReply",
    "FetchSnapshotReply",
    "VoterChangeReply",
    "VersionsReply",
    "Answered",
    "Truncated",
    "Fetched",
    "SnapshotPart",
    "SnapshotLoaded",
    "Request",
    "Outgoing",
    "RaftTransport",
    "Reply",
    "Event",
    "NO_EPOCH",
    "UNKNOWN_HIGH_WATERMARK",
]
