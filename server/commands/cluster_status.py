"""`barnabas cluster status`: a cluster's nodes, its quorum, and partitions that lack something.

Asks any broker, with requests every Kafka broker of 4.x serves: DescribeCluster (fenced brokers
too), DescribeQuorum, Metadata. Exit code 0 only when nothing is missing, so that scripts can wait
for a cluster to be whole again.
"""

from __future__ import annotations

from typing import NamedTuple

from server.commands.health import Unhealthy, reason
from server.peers.blocking_peer import BlockingPeer
from wire.errors import ErrorCode
from wire.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from wire.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse

_CLIENT_ID = "barnabas-status"
_Quorum = DescribeQuorumResponse.Topic.Partition


class Status(NamedTuple):
    """What was learned, as lines for people; `is_whole`: nobody and nothing is missing."""

    lines: list[str]
    is_whole: bool


def ask(host: str, port: int, timeout_s: float) -> Status:
    """Ask a broker about its cluster. Raises Unhealthy."""
    connection = BlockingPeer(host, port, _CLIENT_ID, timeout_s)
    try:
        cluster = connection.exchange(
            DescribeClusterRequest(
                include_cluster_authorized_operations=False, include_fenced_brokers=True
            ),
            2,
            DescribeClusterResponse,
        )
        _check(cluster.error_code, "DescribeCluster")
        topic = DescribeQuorumRequest.Topic(
            topic_name="__cluster_metadata",
            partitions=[DescribeQuorumRequest.Topic.Partition(partition_index=0)],
        )
        answer = connection.exchange(
            DescribeQuorumRequest(topics=[topic]), 2, DescribeQuorumResponse
        )
        _check(answer.error_code, "DescribeQuorum")
        metadata = connection.exchange(
            MetadataRequest(topics=None, allow_auto_topic_creation=False), 12, MetadataResponse
        )
    except OSError as error:
        raise Unhealthy(f"no answer from {host}:{port}: {reason(error)}") from None
    finally:
        connection.close()
    return _status(cluster, answer.topics[0].partitions[0], metadata)


def _check(code: int, what: str) -> None:
    if code != ErrorCode.NONE:
        raise Unhealthy(f"{what}: {ErrorCode(code).name}")


def _status(
    cluster: DescribeClusterResponse, quorum: _Quorum, metadata: MetadataResponse
) -> Status:
    alive = [broker for broker in cluster.brokers if not broker.is_fenced]
    lines = [
        f"cluster {cluster.cluster_id}: {len(alive)} of {len(cluster.brokers)} brokers alive,"
        f" quorum led by node {quorum.leader_id} in epoch {quorum.leader_epoch}"
    ]
    ends = {state.replica_id: state.log_end_offset for state in quorum.current_voters}
    observers = {state.replica_id: state.log_end_offset for state in quorum.observers}
    end = ends.get(quorum.leader_id, quorum.high_watermark)
    brokers = {broker.broker_id: broker for broker in cluster.brokers}
    for node in sorted({*ends, *observers, *brokers}):
        broker = brokers.get(node)
        where = f"{broker.host}:{broker.port}" if broker is not None else "-"
        state = "-" if broker is None else "fenced" if broker.is_fenced else "alive"
        role = "leader" if node == quorum.leader_id else "voter" if node in ends else "observer"
        behind = end - ends.get(node, observers.get(node, -1))
        lines.append(
            f"  node {node:<4} {where:<24} broker {state:<8} {role:<9} metadata behind {behind}"
        )
    partitions, problems = _partitions(metadata)
    lines.append(f"partitions: {partitions}, {len(problems)} with a problem")
    lines += problems
    is_whole = len(alive) == len(cluster.brokers) and quorum.leader_id >= 0 and not problems
    return Status(lines, is_whole)


def _partitions(metadata: MetadataResponse) -> tuple[int, list[str]]:
    count, problems = 0, []
    for topic in metadata.topics:
        for partition in topic.partitions:
            count += 1
            missing = sorted(set(partition.replica_nodes) - set(partition.isr_nodes))
            what = "no leader" if partition.leader_id < 0 else "under-replicated" if missing else ""
            if what:
                nodes = ",".join(map(str, missing)) or "none"
                problems.append(
                    f"  {topic.name}-{partition.partition_index} {what}, not in sync: {nodes}"
                )
    return count, problems
