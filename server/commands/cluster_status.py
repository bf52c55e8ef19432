"""`barnabas cluster status`: a cluster's nodes, its quorum, and partitions that lack something.

The first address that answers names the nodes (DescribeCluster, fenced brokers too); then every one
of them is asked, all at once, whether it is there and what it knows of the quorum. So a node that
has just died is missing at once, not when its broker session has ended, and the quorum is lost when
no node knows its leader. Exit code 0 only when nothing is missing, so that scripts can wait for a
cluster to be whole again.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from server.commands.health import Unhealthy, quorum_of, reason
from server.peers.blocking_peer import BlockingPeer
from wire.errors import ErrorCode
from wire.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from wire.messages.quorum import DescribeQuorumResponse

_CLIENT_ID = "barnabas-status"
Address = tuple[str, int]


class Status(NamedTuple):
    """What was learned, as lines for people; `is_whole`: nobody and nothing is missing."""

    lines: list[str]
    is_whole: bool


class Probe(NamedTuple):
    """What one node says: why it does not answer (None: it does), and the quorum, if it knows."""

    failure: str | None
    quorum: DescribeQuorumResponse | None


def ask(bootstrap: Sequence[Address], timeout_s: float) -> Status:
    """Ask a cluster's nodes, beginning with these addresses. Raises Unhealthy when none answers."""
    cluster, metadata = _first_answer(bootstrap, timeout_s)
    nodes = {broker.broker_id: (broker.host, broker.port) for broker in cluster.brokers}
    probes = _probe_all(nodes, timeout_s)
    quorum = _newest([probe.quorum for probe in probes.values()])
    if quorum is not None:  # those that are only controllers are no brokers: the quorum knows them
        controllers = {
            node.node_id: (node.listeners[0].host, node.listeners[0].port)
            for node in quorum.nodes
            if node.node_id not in nodes and node.listeners
        }
        nodes |= controllers
        probes |= _probe_all(controllers, timeout_s)
    return _status(cluster, quorum, nodes, probes, metadata)


def _first_answer(
    bootstrap: Sequence[Address], timeout_s: float
) -> tuple[DescribeClusterResponse, MetadataResponse]:
    failures = []
    for host, port in bootstrap:
        connection = BlockingPeer(host, port, _CLIENT_ID, timeout_s)
        try:
            request = DescribeClusterRequest(
                include_cluster_authorized_operations=False, include_fenced_brokers=True
            )
            cluster = connection.exchange(request, 2, DescribeClusterResponse)
            if cluster.error_code != ErrorCode.NONE:
                raise Unhealthy(f"DescribeCluster: {ErrorCode(cluster.error_code).name}")
            every = MetadataRequest(topics=None, allow_auto_topic_creation=False)
            return cluster, connection.exchange(every, 12, MetadataResponse)
        except OSError as error:
            failures.append(f"{host}:{port}: {reason(error)}")
        finally:
            connection.close()
    raise Unhealthy(f"no answer from {'; '.join(failures)}")


def _probe_all(nodes: dict[int, Address], timeout_s: float) -> dict[int, Probe]:
    if not nodes:
        return {}
    with ThreadPoolExecutor(len(nodes)) as threads:
        answers = threads.map(lambda address: _probe(address, timeout_s), nodes.values())
        return dict(zip(nodes, answers, strict=True))


def _probe(address: Address, timeout_s: float) -> Probe:
    connection = BlockingPeer(*address, _CLIENT_ID, timeout_s)
    try:
        connection.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)
        try:
            return Probe(None, quorum_of(connection))
        except OSError:
            return Probe(None, None)
    except OSError as error:
        return Probe(reason(error), None)
    finally:
        connection.close()


def _newest(answers: Sequence[DescribeQuorumResponse | None]) -> DescribeQuorumResponse | None:
    known = [answer for answer in answers if answer is not None]
    return max(known, key=lambda q: q.topics[0].partitions[0].leader_epoch, default=None)


def _status(
    cluster: DescribeClusterResponse,
    answer: DescribeQuorumResponse | None,
    nodes: dict[int, Address],
    probes: dict[int, Probe],
    metadata: MetadataResponse,
) -> Status:
    fenced = {broker.broker_id for broker in cluster.brokers if broker.is_fenced}
    brokers = {broker.broker_id for broker in cluster.brokers}
    missing = {node for node, probe in probes.items() if probe.failure is not None}
    alive = brokers - fenced - missing
    partitions, problems = _partitions(metadata)
    led = "quorum lost: no node knows a leader of it"
    ends: dict[int, int] = {}
    observers: dict[int, int] = {}
    leader, end, has_quorum = -1, 0, False
    if answer is not None:
        quorum = answer.topics[0].partitions[0]
        leader = quorum.leader_id
        led = f"quorum led by node {leader} in epoch {quorum.leader_epoch}"
        voters = {state.replica_id for state in quorum.current_voters}
        has_quorum = 2 * len(voters - missing) > len(voters)
        if not has_quorum:  # its leader has not noticed yet
            led = f"quorum lost: {len(voters - missing)} of {len(voters)} voters answer"
        ends = {state.replica_id: state.log_end_offset for state in quorum.current_voters}
        observers = {state.replica_id: state.log_end_offset for state in quorum.observers}
        end = ends.get(leader, quorum.high_watermark)
    lines = [f"cluster {cluster.cluster_id}: {len(alive)} of {len(brokers)} brokers alive, {led}"]
    for node in sorted({*nodes, *ends, *observers}):
        state = "-" if node not in brokers else "fenced" if node in fenced else "alive"
        state = "missing" if node in missing else state
        role = "leader" if node == leader else "voter" if node in ends else "observer"
        known = ends.get(node, observers.get(node))
        behind = "-" if known is None else str(end - known)
        where = ":".join(map(str, nodes[node])) if node in nodes else "-"
        lines.append(
            f"  node {node:<4} {where:<24} broker {state:<8} {role if answer else '-':<9}"
            f" metadata behind {behind}"
        )
    lines += [f"missing: node {node}: {probes[node].failure}" for node in sorted(missing)]
    lines.append(f"partitions: {partitions}, {len(problems)} with a problem")
    lines += problems
    is_whole = alive == brokers and not missing and has_quorum and not problems
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
