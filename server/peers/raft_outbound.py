"""What this node asks other nodes of the quorum: events as Kafka's messages, responses as replies.
PURE.

The sender's half of the translation between `replication.raft.events` and the wire; the receiver's
half, and the rules, are in `server.peers.raft_inbound`. Requests are made in the highest version,
since all nodes of a cluster run the same release.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from replication.metadata.tables import KRAFT_VERSION
from replication.raft.events import (
    AddVoter,
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    Fetch,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    LogPosition,
    Outgoing,
    ProbeVersions,
    RemoveVoter,
    Reply,
    SnapshotId,
    UpdateVoter,
    VersionsReply,
    Vote,
    VoterChangeReply,
    VoteReply,
)
from replication.raft.voter_set import Endpoint
from server.peers.raft_inbound import OtherLog, log_topic, only_partition
from wire.errors import ErrorCode
from wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.data import FetchRequest, FetchResponse
from wire.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)
from wire.primitives import METADATA_TOPIC, METADATA_TOPIC_ID
from wire.schema import Request, Response

_SOFTWARE = "barnabas"


class Exchange(NamedTuple):
    """A request ready to be sent: the message, its version, and the class of its answer."""

    message: Request
    version: int
    response_class: type[Response]


# ---- requests as they are sent


def request_message(event: Outgoing) -> Exchange:
    """The message for `event`, in the highest version."""
    message = _MESSAGES[type(event)](event)
    response_class = _RESPONSES[type(event)]
    return Exchange(message, type(message).versions[1], response_class)


def _vote_message(event: Vote) -> VoteRequest:
    return VoteRequest(
        cluster_id=event.cluster_id,
        voter_id=event.voter.node_id,
        topics=log_topic(
            VoteRequest.Topic,
            replica_epoch=event.epoch,
            replica_id=event.candidate.node_id,
            replica_directory_id=event.candidate.directory_id,
            voter_directory_id=event.voter.directory_id,
            last_offset_epoch=event.log.epoch,
            last_offset=event.log.end_offset,
            pre_vote=event.pre_vote,
        ),
    )


def _begin_message(event: BeginQuorumEpoch) -> BeginQuorumEpochRequest:
    return BeginQuorumEpochRequest(
        cluster_id=event.cluster_id,
        voter_id=event.voter.node_id,
        topics=log_topic(
            BeginQuorumEpochRequest.Topic,
            voter_directory_id=event.voter.directory_id,
            leader_id=event.leader_id,
            leader_epoch=event.epoch,
        ),
        leader_endpoints=_listeners(BeginQuorumEpochRequest.LeaderEndpoint, event.leader_endpoints),
    )


def _end_message(event: EndQuorumEpoch) -> EndQuorumEpochRequest:
    topic = EndQuorumEpochRequest.Topic
    candidate = topic.Partition.Candidate
    return EndQuorumEpochRequest(
        cluster_id=event.cluster_id,
        topics=log_topic(
            topic,
            leader_id=event.leader_id,
            leader_epoch=event.epoch,
            preferred_candidates=[
                candidate(candidate_id=one.node_id, candidate_directory_id=one.directory_id)
                for one in event.preferred
            ],
        ),
        leader_endpoints=_listeners(EndQuorumEpochRequest.LeaderEndpoint, event.leader_endpoints),
    )


def _fetch_message(event: Fetch) -> FetchRequest:
    topic = FetchRequest.Topic
    return FetchRequest(
        cluster_id=event.cluster_id,
        max_wait_ms=event.max_wait_ms,
        min_bytes=0,
        max_bytes=event.max_bytes,
        isolation_level=0,
        replica_state=FetchRequest.ReplicaState(replica_id=event.replica.node_id),
        topics=[
            topic(
                topic_id=METADATA_TOPIC_ID,
                partitions=[
                    topic.Partition(
                        partition=0,
                        current_leader_epoch=event.epoch,
                        fetch_offset=event.offset,
                        last_fetched_epoch=event.last_epoch,
                        partition_max_bytes=event.max_bytes,
                        replica_directory_id=event.replica.directory_id,
                        high_watermark=event.high_watermark,
                    )
                ],
            )
        ],
    )


def _fetch_snapshot_message(event: FetchSnapshot) -> FetchSnapshotRequest:
    topic = FetchSnapshotRequest.Topic
    return FetchSnapshotRequest(
        cluster_id=event.cluster_id,
        replica_id=event.replica.node_id,
        max_bytes=event.max_bytes,
        topics=[
            topic(
                name=METADATA_TOPIC,
                partitions=[
                    topic.Partition(
                        partition=0,
                        current_leader_epoch=event.epoch,
                        snapshot_id=topic.Partition.SnapshotId(
                            end_offset=event.snapshot_id.offset, epoch=event.snapshot_id.epoch
                        ),
                        position=event.position,
                        replica_directory_id=event.replica.directory_id,
                    )
                ],
            )
        ],
    )


def _add_voter_message(event: AddVoter) -> AddRaftVoterRequest:
    return AddRaftVoterRequest(
        cluster_id=event.cluster_id,
        timeout_ms=event.timeout_ms,
        voter_id=event.voter.node_id,
        voter_directory_id=event.voter.directory_id,
        listeners=_listeners(AddRaftVoterRequest.Listener, event.voter.endpoints),
        ack_when_committed=event.ack_when_committed,
    )


def _remove_voter_message(event: RemoveVoter) -> RemoveRaftVoterRequest:
    return RemoveRaftVoterRequest(
        cluster_id=event.cluster_id,
        voter_id=event.voter.node_id,
        voter_directory_id=event.voter.directory_id,
    )


def _update_voter_message(event: UpdateVoter) -> UpdateRaftVoterRequest:
    minimum, maximum = event.voter.kraft_versions
    return UpdateRaftVoterRequest(
        cluster_id=event.cluster_id,
        current_leader_epoch=event.epoch,
        voter_id=event.voter.node_id,
        voter_directory_id=event.voter.directory_id,
        listeners=_listeners(UpdateRaftVoterRequest.Listener, event.voter.endpoints),
        kraft_version_feature=UpdateRaftVoterRequest.KRaftVersionFeature(
            min_supported_version=minimum, max_supported_version=maximum
        ),
    )


def _probe_message(_event: ProbeVersions) -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name=_SOFTWARE, client_software_version="1")


def _listeners(make: Callable[..., Any], endpoints: Sequence[Endpoint]) -> list[Any]:
    return [make(name=one.name, host=one.host, port=one.port) for one in endpoints]


_MESSAGES: dict[type, Callable[[Any], Request]] = {
    Vote: _vote_message,
    BeginQuorumEpoch: _begin_message,
    EndQuorumEpoch: _end_message,
    Fetch: _fetch_message,
    FetchSnapshot: _fetch_snapshot_message,
    AddVoter: _add_voter_message,
    RemoveVoter: _remove_voter_message,
    UpdateVoter: _update_voter_message,
    ProbeVersions: _probe_message,
}
_RESPONSES: dict[type, type[Response]] = {
    Vote: VoteResponse,
    BeginQuorumEpoch: BeginQuorumEpochResponse,
    EndQuorumEpoch: EndQuorumEpochResponse,
    Fetch: FetchResponse,
    FetchSnapshot: FetchSnapshotResponse,
    AddVoter: AddRaftVoterResponse,
    RemoveVoter: RemoveRaftVoterResponse,
    UpdateVoter: UpdateRaftVoterResponse,
    ProbeVersions: ApiVersionsResponse,
}


# ---- answers as they are received


def reply_event(event: Outgoing, response: Any, listener: str) -> Reply | None:
    """What `response` says to the request that `event` was; None when it makes no sense.

    `listener` names the endpoint that an answer tells of its leader.
    """
    return _REPLIES[type(event)](event, response, listener)


class _Leader(NamedTuple):
    """How an answer names its leader: the last fields of every reply."""

    leader_id: int
    leader_endpoints: tuple[Endpoint, ...]


def _leader_of(response: Any, leader_id: int, listener: str) -> _Leader:
    return _Leader(
        leader_id,
        tuple(
            Endpoint(listener, node.host, node.port)
            for node in response.node_endpoints
            if node.node_id == leader_id >= 0
        ),
    )


def _only(response: Any) -> Any | None:
    """The one partition an answer is about; None unless it is the metadata log's."""
    try:
        return only_partition(response.topics)
    except OtherLog:
        return None


def _vote_reply(_event: Vote, response: VoteResponse, listener: str) -> VoteReply | None:
    if response.error_code:
        return VoteReply(_error(response.error_code), -1)
    said = _only(response)
    if said is None:
        return None
    leader = _leader_of(response, said.leader_id, listener)
    return VoteReply(
        _error(said.error_code),
        said.leader_epoch,
        leader.leader_id,
        said.vote_granted,
        leader.leader_endpoints,
    )


def _begin_reply(
    _event: BeginQuorumEpoch, response: BeginQuorumEpochResponse, listener: str
) -> BeginQuorumEpochReply | None:
    reply: BeginQuorumEpochReply | None = _epoch_reply(BeginQuorumEpochReply, response, listener)
    return reply


def _end_reply(
    _event: EndQuorumEpoch, response: EndQuorumEpochResponse, listener: str
) -> EndQuorumEpochReply | None:
    reply: EndQuorumEpochReply | None = _epoch_reply(EndQuorumEpochReply, response, listener)
    return reply


def _epoch_reply(make: Callable[..., Any], response: Any, listener: str) -> Any:
    if response.error_code:
        return make(_error(response.error_code), -1)
    said = _only(response)
    if said is None:
        return None
    leader = _leader_of(response, said.leader_id, listener)
    return make(_error(said.error_code), said.leader_epoch, *leader)


def _fetch_reply(_event: Fetch, response: FetchResponse, listener: str) -> FetchReply | None:
    if response.error_code:
        return FetchReply(_error(response.error_code), -1)
    topics = response.responses
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    if topics[0].topic_id != METADATA_TOPIC_ID:
        return None
    said = topics[0].partitions[0]
    current = said.current_leader
    epoch = -1 if current is None else current.leader_epoch
    leader = _leader_of(response, -1 if current is None else current.leader_id, listener)
    diverging = said.diverging_epoch
    snapshot_id = said.snapshot_id
    return FetchReply(
        _error(said.error_code),
        epoch,
        leader.leader_id,
        leader.leader_endpoints,
        said.high_watermark,
        said.log_start_offset,
        None if diverging is None else LogPosition(diverging.epoch, diverging.end_offset),
        None if snapshot_id is None else SnapshotId(snapshot_id.end_offset, snapshot_id.epoch),
        _bytes(said.records),
    )


def _fetch_snapshot_reply(
    event: FetchSnapshot, response: FetchSnapshotResponse, listener: str
) -> FetchSnapshotReply | None:
    if response.error_code:
        return FetchSnapshotReply(_error(response.error_code), -1, event.snapshot_id)
    try:
        said = only_partition(response.topics, "index")
    except OtherLog:
        return None
    current = said.current_leader
    leader = _leader_of(response, -1 if current is None else current.leader_id, listener)
    return FetchSnapshotReply(
        _error(said.error_code),
        -1 if current is None else current.leader_epoch,
        SnapshotId(said.snapshot_id.end_offset, said.snapshot_id.epoch),
        leader.leader_id,
        leader.leader_endpoints,
        said.size,
        said.position,
        _bytes(said.unaligned_records),
    )


def _change_reply(_event: Any, response: Any, _listener: str) -> VoterChangeReply:
    return VoterChangeReply(_error(response.error_code), -1, response.error_message or "")


def _update_reply(
    _event: UpdateVoter, response: UpdateRaftVoterResponse, listener: str
) -> VoterChangeReply:
    error, leader = _error(response.error_code), response.current_leader
    if leader is None or leader.leader_id < 0:
        return VoterChangeReply(error, -1 if leader is None else leader.leader_epoch)
    endpoints = (Endpoint(listener, leader.host, leader.port),) if leader.host else ()
    return VoterChangeReply(error, leader.leader_epoch, "", leader.leader_id, endpoints)


def _versions_reply(
    _event: ProbeVersions, response: ApiVersionsResponse, _listener: str
) -> VersionsReply:
    for feature in response.supported_features:
        if feature.name == KRAFT_VERSION:
            return VersionsReply(
                _error(response.error_code), (feature.min_version, feature.max_version)
            )
    return VersionsReply(_error(response.error_code))


def _bytes(records: Any) -> bytes:
    """Records as they were decoded: a view of the frame, which must not outlive it."""
    return bytes(records) if records else b""


def _error(code: int) -> ErrorCode:
    """A code that we do not know is as good as "something went wrong there"."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


_REPLIES: dict[type, Callable[[Any, Any, str], Reply | None]] = {
    Vote: _vote_reply,
    BeginQuorumEpoch: _begin_reply,
    EndQuorumEpoch: _end_reply,
    Fetch: _fetch_reply,
    FetchSnapshot: _fetch_snapshot_reply,
    AddVoter: _change_reply,
    RemoveVoter: _change_reply,
    UpdateVoter: _update_reply,
    ProbeVersions: _versions_reply,
}
