"""The metadata quorum, as clients may ask about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.errors import ErrorCode
from wire.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replication.raft.driver import ReplicaState
    from server.request_channel import RequestContext

METADATA_TOPIC = "__cluster_metadata"

_Topic = DescribeQuorumResponse.Topic
_Partition = _Topic.Partition


def describe_quorum(ctx: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Leader, voters and observers of `__cluster_metadata`, with their log end offsets.

    Behaviour: any other partition is answered UNKNOWN_TOPIC_OR_PARTITION.
    Versions:  1 adds fetch times. 2 adds directory ids, messages and the voters' listeners.
    Gaps:      a voter's listeners are empty: one node has no controller listener.
    """
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        topics=[
            _Topic(
                topic_name=topic.topic_name,
                partitions=[
                    _describe(ctx, topic.topic_name, partition.partition_index)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        nodes=[
            DescribeQuorumResponse.Node(node_id=voter.replica_id, listeners=[])
            for voter in ctx.broker.raft.describe_quorum().voters
        ],
    )


def _describe(ctx: RequestContext, topic: str, index: int) -> _Partition:
    if (topic, index) != (METADATA_TOPIC, 0):
        return _Partition(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"{topic}-{index} is not a quorum",
            leader_id=-1,
            leader_epoch=-1,
            high_watermark=-1,
            current_voters=[],
            observers=[],
        )
    quorum = ctx.broker.raft.describe_quorum()
    return _Partition(
        partition_index=index,
        error_code=ErrorCode.NONE,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.leader_epoch,
        high_watermark=quorum.high_watermark,
        current_voters=_states(quorum.voters),
        observers=_states(quorum.observers),
    )


def _states(replicas: Iterable[ReplicaState]) -> list[_Partition.ReplicaState]:
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
