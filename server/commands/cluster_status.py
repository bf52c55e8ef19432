"""`barnabas cluster status`: a cluster's nodes, its quorum, and partitions that lack something.

The first address that answers names the nodes (DescribeCluster, fenced brokers too); then every one
of them is asked, all at once, whether it is there and what it knows of the quorum. So a node that
has just died is missing at once, not when its broker session has ended, and the quorum is lost when
no node knows its leader. Exit code 0 only when nothing is missing, so that scripts can wait for a
cluster to be whole again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from server.commands.health import RightsMissing, Unhealthy, quorum_of, reason
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

if TYPE_CHECKING:
    from server.security.peer_security import PeerSecurity

_CLIENT_ID = "barnabas-status"
Address = tuple[str, int]


class NodeStatus(NamedTuple):
    """One node; None is what is not known, or what it is not."""

    node_id: int
    address: str | None
    broker: str | None
    """"alive", "fenced" or "missing"; None: it is only a controller."""
    quorum_role: str | None
    """"leader", "voter" or "observer"."""
    metadata_behind: int | None
    """Records of the metadata log that it does not have yet."""
    failure: str | None
    """Why it does not answer."""


class PartitionProblem(NamedTuple):
    """A partition that lacks something."""

    topic: str
    partition: int
    problem: str
    not_in_sync: list[int]


class Status(NamedTuple):
    """What was learned."""

    cluster_id: str
    quorum: str
    """Who leads it, or why it is lost."""
    nodes: list[NodeStatus]
    partitions: int
    problems: list[PartitionProblem]
    is_whole: bool
    """Nobody and nothing is missing."""

    def document(self) -> dict[str, object]:
        """All of it, for JSON."""
        return self._asdict() | {
            "nodes": [node._asdict() for node in self.nodes],
            "problems": [problem._asdict() for problem in self.problems],
        }

    def lines(self) -> list[str]:
        """All of it, for people."""
        brokers = [node.broker for node in self.nodes if node.broker is not None]
        return [
            f"cluster {self.cluster_id}: {brokers.count('alive')} of {len(brokers)} brokers alive,"
            f" {self.quorum}",
            *(
                f"  node {node.node_id:<4} {node.address or '-':<24} broker {node.broker or '-':<8}"
                f" {node.quorum_role or '-':<9} metadata behind"
                f" {'-' if node.metadata_behind is None else node.metadata_behind}"
                for node in self.nodes
            ),
            *(
                f"missing: node {node.node_id}: {node.failure}"
                for node in self.nodes
                if node.failure is not None
            ),
            f"partitions: {self.partitions}, {len(self.problems)} with a problem",
            *(
                f"  {one.topic}-{one.partition} {one.problem}, not in sync:"
                f" {','.join(map(str, one.not_in_sync)) or 'none'}"
                for one in self.problems
            ),
        ]


class Probe(NamedTuple):
    """What one node says: why it does not answer (None: it does), and the quorum, if it knows."""

    failure: str | None
    quorum: DescribeQuorumResponse | None
    lacks_rights: bool = False
    """It does not tell this user of the quorum."""


def ask(
    bootstrap: Sequence[Address], timeout_s: float, security: PeerSecurity | None = None
) -> Status:
    """Ask a cluster's nodes, beginning with these addresses. Raises Unhealthy when none answers.

    `security`: of brokers' listeners; controllers are asked the same way.
    """

    def connect(address: Address) -> BlockingPeer:
        return BlockingPeer(*address, _CLIENT_ID, timeout_s, security)

    cluster, metadata = _first_answer(bootstrap, connect, is_plain=security is None)
    nodes = {broker.broker_id: (broker.host, broker.port) for broker in cluster.brokers}
    probes = _probe_all(nodes, connect)
    quorum = _newest([probe.quorum for probe in probes.values()])
    if quorum is not None:  # those that are only controllers are no brokers: the quorum knows them
        controllers = {
            node.node_id: (node.listeners[0].host, node.listeners[0].port)
            for node in quorum.nodes
            if node.node_id not in nodes and node.listeners
        }
        nodes |= controllers
        probes |= _probe_all(controllers, connect)
    return _status(cluster, quorum, nodes, probes, metadata)


def _first_answer(
    bootstrap: Sequence[Address], connect: Callable[[Address], BlockingPeer], *, is_plain: bool
) -> tuple[DescribeClusterResponse, MetadataResponse]:
    failures = []
    for host, port in bootstrap:
        connection = connect((host, port))
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
            failures.append(f"{host}:{port}: {reason(error, is_plain=is_plain)}")
        finally:
            connection.close()
    raise Unhealthy(f"no answer from {'; '.join(failures)}")


def _probe_all(
    nodes: dict[int, Address], connect: Callable[[Address], BlockingPeer]
) -> dict[int, Probe]:
    if not nodes:
        return {}
    with ThreadPoolExecutor(len(nodes)) as threads:
        answers = threads.map(lambda address: _probe(connect(address)), nodes.values())
        return dict(zip(nodes, answers, strict=True))


def _probe(connection: BlockingPeer) -> Probe:
    try:
        connection.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)
        try:
            return Probe(None, quorum_of(connection))
        except OSError as error:
            return Probe(None, None, isinstance(error, RightsMissing))
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
    partitions, problems = _partitions(metadata)
    led, has_quorum = "quorum lost: no node knows a leader of it", False
    if any(probe.lacks_rights for probe in probes.values()):
        led = "quorum not told to this user: that takes describe on the cluster"
    ends: dict[int, int] = {}
    observers: dict[int, int] = {}
    leader, end = -1, 0
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

    def node_status(node: int) -> NodeStatus:
        state = "missing" if node in missing else "fenced" if node in fenced else "alive"
        role = "leader" if node == leader else "voter" if node in ends else "observer"
        known = ends.get(node, observers.get(node))
        return NodeStatus(
            node,
            ":".join(map(str, nodes[node])) if node in nodes else None,
            state if node in brokers else None,
            role if answer else None,
            None if known is None else end - known,
            probes[node].failure if node in missing else None,
        )

    return Status(
        cluster.cluster_id,
        led,
        [node_status(node) for node in sorted({*nodes, *ends, *observers})],
        partitions,
        problems,
        is_whole=not missing and not fenced & brokers and has_quorum and not problems,
    )


def _partitions(metadata: MetadataResponse) -> tuple[int, list[PartitionProblem]]:
    count, problems = 0, []
    for topic in metadata.topics:
        for partition in topic.partitions:
            count += 1
            missing = sorted(set(partition.replica_nodes) - set(partition.isr_nodes))
            what = "no leader" if partition.leader_id < 0 else "under-replicated" if missing else ""
            if what:
                problems.append(
                    PartitionProblem(str(topic.name), partition.partition_index, what, missing)
                )
    return count, problems
