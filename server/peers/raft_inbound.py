"""What other nodes ask the quorum: messages as events of the core, replies as responses. PURE.

What: `replication.raft.events` knows one log; the wire's messages are nested by topic and partition
and differ by version. Here the receiver's half, one function per word: `vote_event(message)`,
`vote_response(reply)`; the sender's half is `server.peers.raft_outbound`. Why: the core and the
simulator never see a codec, and the handlers are a few lines. Rules (Kafka: RaftUtil): the log is
topic `__cluster_metadata`, partition 0, and nothing else may be asked about; errors that concern
the whole request stand at the top, those of the log with its partition; every answer names the
leader its sender knows, with the endpoint of the listener that was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from replication.raft.events import (
    NO_LEADER,
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
    RemoveVoter,
    SnapshotId,
    UpdateVoter,
    Vote,
    VoterChangeReply,
    VoteReply,
)
from replication.raft.voter_set import NO_REPLICA, Endpoint, ReplicaKey, Voter
from wire.errors import ErrorCode
from wire.messages.data import TOPIC_ID_VERSION, FetchRequest, FetchResponse
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

TOP_LEVEL_ERRORS = frozenset({ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.UNKNOWN_SERVER_ERROR})
"""Errors that stand at the top of a response; all others stand with the partition."""


class OtherLog(Exception):
    """The request is about something that is not the metadata log."""


def only_partition(topics: Sequence[Any], index: str = "partition_index") -> Any:
    """The one partition a request names. Raises OtherLog unless it is the metadata log's."""
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        topic, partition = topics[0], topics[0].partitions[0]
        name = topic.name if hasattr(topic, "name") else topic.topic_name
        if name == METADATA_TOPIC and getattr(partition, index) == 0:
            return partition
    raise OtherLog


def log_topic(topic: Any, **partition: Any) -> list[Any]:
    """The topics that a message is about, `topic` its class of them: the metadata log alone."""
    only = topic.Partition(partition_index=0, **partition)
    return [topic(topic_name=METADATA_TOPIC, partitions=[only])]


# ---- requests as they are received


def vote_event(request: VoteRequest) -> Vote:
    """Raises OtherLog."""
    asked = only_partition(request.topics)
    return Vote(
        ReplicaKey(asked.replica_id, asked.replica_directory_id),
        asked.replica_epoch,
        LogPosition(asked.last_offset_epoch, asked.last_offset),
        asked.pre_vote,
        _asked_voter(request, asked),
        request.cluster_id,
    )


def begin_event(request: BeginQuorumEpochRequest) -> BeginQuorumEpoch:
    """Raises OtherLog."""
    asked = only_partition(request.topics)
    return BeginQuorumEpoch(
        asked.leader_id,
        asked.leader_epoch,
        _endpoints(request.leader_endpoints),
        _asked_voter(request, asked),
        request.cluster_id,
    )


def _asked_voter(request: VoteRequest | BeginQuorumEpochRequest, asked: Any) -> ReplicaKey:
    """Whom the sender means to ask."""
    voter_id = request.voter_id
    return ReplicaKey(voter_id, asked.voter_directory_id) if voter_id >= 0 else NO_REPLICA


def end_event(request: EndQuorumEpochRequest) -> EndQuorumEpoch:
    """Raises OtherLog."""
    asked = only_partition(request.topics)
    preferred = [
        ReplicaKey(one.candidate_id, one.candidate_directory_id)
        for one in asked.preferred_candidates
    ]
    return EndQuorumEpoch(
        asked.leader_id,
        asked.leader_epoch,
        tuple(preferred or map(ReplicaKey, asked.preferred_successors)),
        _endpoints(request.leader_endpoints),
        request.cluster_id,
    )


def fetch_event(request: FetchRequest, version: int) -> Fetch:
    """Raises OtherLog. Before version 13 the log is known by its name."""
    topics = request.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1 or topics[0].partitions[0].partition != 0:
        raise OtherLog
    if version < TOPIC_ID_VERSION:
        known = topics[0].topic == METADATA_TOPIC
    else:
        known = topics[0].topic_id == METADATA_TOPIC_ID
    if not known:
        raise OtherLog
    asked = topics[0].partitions[0]
    replica_id = request.replica_id
    if request.replica_state is not None:
        replica_id = request.replica_state.replica_id
    return Fetch(
        ReplicaKey(replica_id, asked.replica_directory_id),
        asked.current_leader_epoch,
        asked.fetch_offset,
        asked.last_fetched_epoch,
        request.max_wait_ms,
        request.max_bytes,
        asked.high_watermark,
        request.cluster_id,
    )


def fetch_snapshot_event(request: FetchSnapshotRequest) -> FetchSnapshot:
    """Raises OtherLog."""
    asked = only_partition(request.topics, "partition")
    return FetchSnapshot(
        ReplicaKey(request.replica_id, asked.replica_directory_id),
        asked.current_leader_epoch,
        SnapshotId(asked.snapshot_id.end_offset, asked.snapshot_id.epoch),
        asked.position,
        request.max_bytes,
        request.cluster_id,
    )


def add_voter_event(request: AddRaftVoterRequest) -> AddVoter:
    return AddVoter(
        Voter(request.voter_id, request.voter_directory_id, _endpoints(request.listeners)),
        request.timeout_ms,
        request.ack_when_committed,
        request.cluster_id,
    )


def remove_voter_event(request: RemoveRaftVoterRequest) -> RemoveVoter:
    return RemoveVoter(ReplicaKey(request.voter_id, request.voter_directory_id), request.cluster_id)


def update_voter_event(request: UpdateRaftVoterRequest) -> UpdateVoter:
    versions = request.kraft_version_feature
    return UpdateVoter(
        Voter(
            request.voter_id,
            request.voter_directory_id,
            _endpoints(request.listeners),
            (versions.min_supported_version, versions.max_supported_version),
        ),
        request.current_leader_epoch,
        request.cluster_id,
    )


def _endpoints(listeners: Sequence[Any]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(one.name, one.host, one.port) for one in listeners)


# ---- answers as they are sent


def vote_response(reply: VoteReply, listener: str) -> VoteResponse:
    """`listener` is the name of the listener that was asked, here and below."""
    if reply.error in TOP_LEVEL_ERRORS:
        return VoteResponse(error_code=reply.error, topics=[])
    return VoteResponse(
        error_code=ErrorCode.NONE,
        topics=log_topic(
            VoteResponse.Topic,
            error_code=reply.error,
            leader_id=reply.leader_id,
            leader_epoch=reply.epoch,
            vote_granted=reply.granted,
        ),
        node_endpoints=_leader_node(VoteResponse.NodeEndpoint, reply, listener),
    )


def begin_response(reply: BeginQuorumEpochReply, listener: str) -> BeginQuorumEpochResponse:
    response: BeginQuorumEpochResponse = _epoch_response(BeginQuorumEpochResponse, reply, listener)
    return response


def end_response(reply: EndQuorumEpochReply, listener: str) -> EndQuorumEpochResponse:
    response: EndQuorumEpochResponse = _epoch_response(EndQuorumEpochResponse, reply, listener)
    return response


def _epoch_response(make: Any, reply: Any, listener: str) -> Any:
    """BeginQuorumEpoch and EndQuorumEpoch are answered alike."""
    if reply.error in TOP_LEVEL_ERRORS:
        return make(error_code=reply.error, topics=[])
    return make(
        error_code=ErrorCode.NONE,
        topics=log_topic(
            make.Topic,
            error_code=reply.error,
            leader_id=reply.leader_id,
            leader_epoch=reply.epoch,
        ),
        node_endpoints=_leader_node(make.NodeEndpoint, reply, listener),
    )


def fetch_response(reply: FetchReply, listener: str) -> FetchResponse:
    if reply.error in TOP_LEVEL_ERRORS:
        return FetchResponse(error_code=reply.error, responses=[])
    topic = FetchResponse.Topic
    partition = topic.Partition(
        partition_index=0,
        error_code=reply.error,
        high_watermark=reply.high_watermark,
        log_start_offset=reply.log_start_offset,
        aborted_transactions=None,
        records=reply.records,
        current_leader=topic.Partition.LeaderIdAndEpoch(
            leader_id=reply.leader_id, leader_epoch=reply.epoch
        ),
    )
    if reply.diverging is not None:
        partition.diverging_epoch = topic.Partition.EpochEndOffset(
            epoch=reply.diverging.epoch, end_offset=reply.diverging.end_offset
        )
    if reply.snapshot_id is not None:
        partition.snapshot_id = topic.Partition.SnapshotId(
            end_offset=reply.snapshot_id.offset, epoch=reply.snapshot_id.epoch
        )
    return FetchResponse(
        responses=[topic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])],
        node_endpoints=_leader_node(FetchResponse.NodeEndpoint, reply, listener),
    )


def fetch_snapshot_response(reply: FetchSnapshotReply, listener: str) -> FetchSnapshotResponse:
    if reply.error in TOP_LEVEL_ERRORS:
        return FetchSnapshotResponse(error_code=reply.error, topics=[])
    topic = FetchSnapshotResponse.Topic
    return FetchSnapshotResponse(
        error_code=ErrorCode.NONE,
        topics=[
            topic(
                name=METADATA_TOPIC,
                partitions=[
                    topic.Partition(
                        index=0,
                        error_code=reply.error,
                        snapshot_id=topic.Partition.SnapshotId(
                            end_offset=reply.snapshot_id.offset, epoch=reply.snapshot_id.epoch
                        ),
                        size=reply.size,
                        position=reply.position,
                        unaligned_records=reply.data,
                        current_leader=topic.Partition.LeaderIdAndEpoch(
                            leader_id=reply.leader_id, leader_epoch=reply.epoch
                        ),
                    )
                ],
            )
        ],
        node_endpoints=_leader_node(FetchSnapshotResponse.NodeEndpoint, reply, listener),
    )


def add_voter_response(reply: VoterChangeReply, _listener: str) -> AddRaftVoterResponse:
    return AddRaftVoterResponse(error_code=reply.error, error_message=_message(reply))


def remove_voter_response(reply: VoterChangeReply, _listener: str) -> RemoveRaftVoterResponse:
    return RemoveRaftVoterResponse(error_code=reply.error, error_message=_message(reply))


def update_voter_response(reply: VoterChangeReply, listener: str) -> UpdateRaftVoterResponse:
    at = leader_endpoint(reply, listener)
    return UpdateRaftVoterResponse(
        error_code=reply.error,
        current_leader=UpdateRaftVoterResponse.CurrentLeader(
            leader_id=reply.leader_id,
            leader_epoch=reply.epoch,
            host=at.host if at else "",
            port=at.port if at else 0,
        ),
    )


def _message(reply: VoterChangeReply) -> str | None:
    if reply.error is ErrorCode.NONE:
        return None
    return reply.message or reply.error.name


def leader_endpoint(reply: Any, listener: str) -> Endpoint | None:
    """Where the leader that a reply names is reached by that listener; None when it says not."""
    if reply.leader_id != NO_LEADER:
        for endpoint in reply.leader_endpoints:
            if endpoint.name == listener:
                found: Endpoint = endpoint
                return found
    return None


def _leader_node(make: Callable[..., Any], reply: Any, listener: str) -> list[Any]:
    at = leader_endpoint(reply, listener)
    return [] if at is None else [make(node_id=reply.leader_id, host=at.host, port=at.port)]


def stopping(event: Any, raft: Any) -> Any:
    """The reply to a request that waits while its node stops; `raft` is the driver."""
    error, epoch = ErrorCode.BROKER_NOT_AVAILABLE, raft.leader_epoch
    if isinstance(event, Fetch):
        return FetchReply(error, epoch, raft.leader_id)
    return VoterChangeReply(error, epoch, "the node is shutting down", raft.leader_id)
