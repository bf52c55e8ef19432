"""The metadata quorum: what voters and observers ask each other, and what tools ask about it.

Voters and observers use the controllers' listener: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch of
`__cluster_metadata`, FetchSnapshot, UpdateRaftVoter. Tools may ask on any listener: DescribeQuorum,
AddRaftVoter, RemoveRaftVoter; a broker passes them on to the active controller.

A handler translates (`server.peers.raft_inbound`), hands the event to the raft driver, and answers
from the driver's thread. Fetch and the changes of voters may wait there: such a request ends with
its connection, and is answered BROKER_NOT_AVAILABLE at once when the node stops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from server.handlers.controller import pass_on
from server.peers import raft_inbound as inbound
from server.peers.raft_inbound import OtherLog
from wire.errors import ErrorCode
from wire.messages.data import FetchResponse
from wire.messages.quorum import (
    AddRaftVoterResponse,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    UpdateRaftVoterResponse,
    VoteResponse,
)
from wire.primitives import METADATA_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from replication.raft.driver import ReplicaState
    from replication.raft.events import Request as RaftRequest
    from server.handlers.edges import QuorumNode
    from server.network.request_context import RequestContext
    from wire.messages.data import FetchRequest
    from wire.messages.quorum import (
        AddRaftVoterRequest,
        BeginQuorumEpochRequest,
        EndQuorumEpochRequest,
        RemoveRaftVoterRequest,
        UpdateRaftVoterRequest,
        VoteRequest,
    )
    from wire.schema import Request, Response

_Topic = DescribeQuorumResponse.Topic
_Partition = _Topic.Partition
_Node = DescribeQuorumResponse.Node


# ---- between voters


def vote(ctx: RequestContext[QuorumNode], request: VoteRequest) -> VoteResponse | None:
    """Give a candidate our vote, or tell it whether it would get it (pre-vote, KIP-996).

    Behaviour: INCONSISTENT_CLUSTER_ID, and INVALID_REQUEST for another log, stand at the top;
               FENCED_LEADER_EPOCH, INVALID_VOTER_KEY (meant for another voter, or for the one that
               had this node's id on another disk), INVALID_REQUEST with the partition.
    Versions:  1 directory ids, whom it means to ask, the leader's endpoint. 2 pre-vote.
    Gaps:      -
    """
    try:
        event = inbound.vote_event(request)
    except OtherLog:
        return VoteResponse(error_code=ErrorCode.INVALID_REQUEST, topics=[])
    _ask(ctx, event, inbound.vote_response)
    return None


def begin_quorum_epoch(
    ctx: RequestContext[QuorumNode], request: BeginQuorumEpochRequest
) -> BeginQuorumEpochResponse | None:
    """Hear of a new leader. Errors as those of Vote.

    Versions:  1 directory ids, the leader's endpoints.
    Gaps:      -
    """
    try:
        event = inbound.begin_event(request)
    except OtherLog:
        return BeginQuorumEpochResponse(error_code=ErrorCode.INVALID_REQUEST, topics=[])
    _ask(ctx, event, inbound.begin_response)
    return None


def end_quorum_epoch(
    ctx: RequestContext[QuorumNode], request: EndQuorumEpochRequest
) -> EndQuorumEpochResponse | None:
    """Hear that the leader resigns, and when to stand for election. Errors as those of Vote.

    Versions:  1 directory ids, the leader's endpoints.
    Gaps:      -
    """
    try:
        event = inbound.end_event(request)
    except OtherLog:
        return EndQuorumEpochResponse(error_code=ErrorCode.INVALID_REQUEST, topics=[])
    _ask(ctx, event, inbound.end_response)
    return None


def fetch(ctx: RequestContext[QuorumNode], request: FetchRequest) -> FetchResponse | None:
    """Read the metadata log as a voter or an observer; wait up to max_wait_ms for what is new.

    Behaviour: only the quorum's leader answers with records, a diverging epoch, or the id of a
               snapshot to fetch instead; any other node names the leader it knows. A replica's
               offset is what it holds durably. There are no fetch sessions.
    Versions:  12 diverging epochs and snapshot ids, without which no replica can follow. 13 topic
               ids. 17 directory ids and the leader's endpoint. 18 the replica's high watermark.
    Gaps:      -
    """
    try:
        event = inbound.fetch_event(request, ctx.api_version)
    except OtherLog:
        return FetchResponse(error_code=ErrorCode.INVALID_REQUEST, responses=[])
    _ask(ctx, event, inbound.fetch_response, parked=True)
    return None


def fetch_snapshot(
    ctx: RequestContext[QuorumNode], request: FetchSnapshotRequest
) -> FetchSnapshotResponse | None:
    """Read a piece of a snapshot's file from the leader.

    Behaviour: SNAPSHOT_NOT_FOUND (a newer one took its place), POSITION_OUT_OF_RANGE, and the
               errors of a replica's epoch as in Fetch.
    Versions:  1 directory ids and the leader's endpoint.
    Gaps:      -
    """
    try:
        event = inbound.fetch_snapshot_event(request)
    except OtherLog:
        return _unknown_snapshot(request)
    _ask(ctx, event, inbound.fetch_snapshot_response)
    return None


def _unknown_snapshot(request: FetchSnapshotRequest) -> FetchSnapshotResponse:
    """A snapshot of a partition that is not the metadata log."""
    topic = FetchSnapshotResponse.Topic
    unknown = topic.Partition.blank()
    unknown.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown.unaligned_records = b""
    for asked in request.topics[:1]:
        for partition in asked.partitions[:1]:
            unknown.index = partition.partition
            return FetchSnapshotResponse(
                error_code=ErrorCode.NONE, topics=[topic(name=asked.name, partitions=[unknown])]
            )
    return FetchSnapshotResponse(error_code=ErrorCode.INVALID_REQUEST, topics=[])


def update_raft_voter(
    ctx: RequestContext[QuorumNode], request: UpdateRaftVoterRequest
) -> UpdateRaftVoterResponse | None:
    """Take a voter's present endpoints and kraft.version range into the voter set (KIP-853).

    Behaviour: INVALID_REQUEST without a voter's id and directory id or without the controllers'
               listener, VOTER_NOT_FOUND, REQUEST_TIMED_OUT while another change is under way.
    Gaps:      -
    """
    _ask(ctx, inbound.update_voter_event(request), inbound.update_voter_response)
    return None


# ---- changes that people ask for


def add_raft_voter(
    ctx: RequestContext[QuorumNode], request: AddRaftVoterRequest
) -> AddRaftVoterResponse | None:
    """Make a replica that has caught up a voter (KIP-853).

    Behaviour: one change at a time, or REQUEST_TIMED_OUT; DUPLICATE_VOTER for a voter's id, even
               with another directory id; UNSUPPORTED_VERSION with static voters (kraft.version 0);
               INVALID_REQUEST without a directory id or the controllers' listener.
    Versions:  1 may be answered as soon as the change is appended.
    Gaps:      -
    """
    if _must_forward(ctx):
        _forward(ctx, request, add_raft_voter)
    else:
        _ask(ctx, inbound.add_voter_event(request), inbound.add_voter_response, parked=True)
    return None


def remove_raft_voter(ctx: RequestContext[QuorumNode], request: RemoveRaftVoterRequest) -> None:
    """Take a voter out (KIP-853); a leader that removed itself resigns once that is committed.

    Behaviour: VOTER_NOT_FOUND unless id and directory id are a voter's; the rest as AddRaftVoter.
    Gaps:      -
    """
    if _must_forward(ctx):
        _forward(ctx, request, remove_raft_voter)
    else:
        _ask(ctx, inbound.remove_voter_event(request), inbound.remove_voter_response, parked=True)


def _ask(
    ctx: RequestContext[QuorumNode],
    event: RaftRequest,
    to_response: Callable[[Any, str], Response],
    *,
    parked: bool = False,
) -> None:
    """Hand `event` to the driver; its reply is the answer. `parked`: it may wait there."""
    listener = ctx.listener_name
    if parked:
        raft = ctx.broker.raft
        ctx.on_disconnect(lambda: None)
        ctx.on_stop(lambda: ctx.respond(to_response(inbound.stopping(event, raft), listener)))
    ctx.broker.raft.handle(event, lambda reply: ctx.respond(to_response(reply, listener)))


def _must_forward(ctx: RequestContext[QuorumNode]) -> bool:
    """Is this a broker's listener, and the quorum's leader another node."""
    broker = ctx.broker
    return broker.role == "broker" and not broker.raft.is_leader and not broker.is_alone


def _forward(
    ctx: RequestContext[QuorumNode],
    request: Request,
    handler: Callable[[RequestContext[QuorumNode], Any], Response | None],
) -> None:
    """Have the quorum's leader answer, which this node may have become by then."""

    def came_home() -> None:
        response = handler(ctx, request)
        if response is not None:
            ctx.respond(response)

    pass_on(ctx, request, came_home)


# ---- questions about it


def describe_quorum(
    ctx: RequestContext[QuorumNode], request: DescribeQuorumRequest
) -> DescribeQuorumResponse | None:
    """Leader, voters and observers of `__cluster_metadata`, with their log end offsets.

    Behaviour: only the leader knows: a broker asks it, another controller answers
               NOT_LEADER_OR_FOLLOWER. A request for anything but this one partition, or for more,
               is UNKNOWN_TOPIC_OR_PARTITION for all that it names.
    Versions:  1 adds fetch times. 2 adds directory ids, messages and the voters' listeners.
    Gaps:      -
    """
    if _must_forward(ctx):
        _forward(ctx, request, describe_quorum)
        return None
    named = [
        (topic.topic_name, [partition.partition_index for partition in topic.partitions])
        for topic in request.topics
    ]
    if named != [(METADATA_TOPIC, [0])]:
        return _refused(
            named,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "This server does not host this topic-partition.",
        )
    if not ctx.broker.raft.is_leader:
        return _refused(
            named, ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node does not lead the metadata quorum"
        )
    quorum = ctx.broker.raft.describe_quorum()
    partition = _Partition(
        partition_index=0,
        error_code=ErrorCode.NONE,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.leader_epoch,
        high_watermark=quorum.high_watermark,
        current_voters=_states(quorum.voters),
        observers=_states(quorum.observers),
    )
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        topics=[_Topic(topic_name=METADATA_TOPIC, partitions=[partition])],
        nodes=[
            _Node(
                node_id=voter.node_id,
                listeners=[
                    _Node.Listener(name=one.name, host=one.host, port=one.port)
                    for one in voter.endpoints
                ],
            )
            for voter in quorum.nodes
        ],
    )


def _refused(
    named: Iterable[tuple[str, Iterable[int]]], code: ErrorCode, message: str
) -> DescribeQuorumResponse:
    """`code` stands with each partition, and nothing else: other fields are zero, as Kafka's."""
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        topics=[
            _Topic(
                topic_name=topic, partitions=[_failed(index, code, message) for index in indexes]
            )
            for topic, indexes in named
        ],
    )


def _failed(index: int, code: ErrorCode, message: str) -> _Partition:
    return _Partition(
        partition_index=index,
        error_code=code,
        error_message=message,
        leader_id=0,
        leader_epoch=0,
        high_watermark=0,
        current_voters=[],
        observers=[],
    )


def _states(replicas: Iterable[ReplicaState] | Sequence[Any]) -> list[_Partition.ReplicaState]:
    return [
        _Partition.ReplicaState(
            replica_id=replica.replica_id,
            replica_directory_id=replica.directory_id,
            log_end_offset=replica.log_end_offset,
            last_fetch_timestamp=replica.last_fetch_timestamp,
            last_caught_up_timestamp=replica.last_caught_up_timestamp,
        )
        for replica in replicas
    ]
