from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server.commands import cluster_status, health
from server.config.kafka_config import KafkaConfig
from server.node.node import Node
from testkit.clock import WALL_MS, ManualClock
from wire.errors import ErrorCode
from wire.messages.cluster import (
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from wire.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from wire.schema import Request, Response


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def test_a_broker_that_answers_is_healthy_and_named(tmp_path: Path) -> None:
    config = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    broker = Node(KafkaConfig(config), cluster_id="5L6g3nShT-eMCtK--X86sw")
    try:
        broker.start()
        line = health.check("127.0.0.1", broker.port, 10.0).line()
    finally:
        broker.shutdown()
    assert line.startswith(f"healthy: 127.0.0.1:{broker.port} (cluster 5L6g3nShT-eMCtK--X86sw, 1 ")


def test_a_closed_port_is_unhealthy(silent: socket.socket) -> None:
    port = silent.getsockname()[1]
    silent.close()
    with pytest.raises(health.Unhealthy, match=f"{port}: Connection refused"):
        health.check("127.0.0.1", port, 5.0)


def test_of_several_addresses_the_first_healthy_one_counts(
    tmp_path: Path, silent: socket.socket
) -> None:
    closed = silent.getsockname()[1]
    silent.close()
    config = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    broker = Node(KafkaConfig(config), cluster_id="5L6g3nShT-eMCtK--X86sw")
    try:
        broker.start()
        wanted = [("127.0.0.1", closed), ("127.0.0.1", broker.port)]
        assert health.check_any(wanted, 10.0).address == f"127.0.0.1:{broker.port}"
    finally:
        broker.shutdown()
    with pytest.raises(health.Unhealthy, match=f"{closed}: .*; .*{broker.port}: Connection ref"):
        health.check_any(wanted, 5.0)


def test_an_open_port_behind_which_nobody_answers_is_unhealthy(silent: socket.socket) -> None:
    with pytest.raises(health.Unhealthy, match="no answer in time"):
        health.check("127.0.0.1", silent.getsockname()[1], 0.05)


HANGS_UP = "no .* the peer closed the connection .a listener with TLS or SASL needs --client-config"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the answer is not Kafka's"),
        (b"", HANGS_UP),
        (b"\0\0\0\6\0\0\0\1\0", HANGS_UP),
    ],
)
@pytest.mark.parametrize(
    "ask", [health.check, lambda *to: cluster_status.ask([to[:2]], to[2])], ids=["health", "status"]
)
def test_something_else_than_a_broker_is_unhealthy(
    silent: socket.socket, answer: bytes, said: str, ask: Callable[[str, int, float], object]
) -> None:
    def serve() -> None:
        connection, _peer = silent.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    server = threading.Thread(target=serve)
    server.start()
    try:
        with pytest.raises(health.Unhealthy, match=said):
            ask("127.0.0.1", silent.getsockname()[1], 5.0)
    finally:
        server.join()


class Cluster:
    """Answers as a connection to a broker of a cluster whose quorum knows `leader`."""

    def __init__(self, leader: int, fenced: bool) -> None:
        self._leader = leader
        self._fenced = fenced

    def exchange(self, request: object, version: int, response: object) -> object:
        if response is DescribeClusterResponse:
            broker = DescribeClusterResponse.Broker(
                broker_id=2, host="b", port=9092, rack=None, is_fenced=self._fenced
            )
            return DescribeClusterResponse(
                error_code=0, cluster_id="c", controller_id=1, brokers=[broker]
            )
        topic = DescribeQuorumResponse.Topic
        partition = topic.Partition(
            partition_index=0,
            error_code=0,
            leader_id=self._leader,
            leader_epoch=1,
            high_watermark=1,
            current_voters=[],
            observers=[],
        )
        return DescribeQuorumResponse(
            error_code=0,
            topics=[topic(topic_name="__cluster_metadata", partitions=[partition])],
            nodes=[],
        )


@pytest.mark.parametrize(
    ("leader", "fenced", "address", "node", "words"),
    [
        (1, True, ("b", 9092), None, "node 2 is fenced"),
        (1, True, ("127.0.0.1", 9092), 2, "node 2 is fenced"),
        (-1, False, ("b", 9092), None, "quorum lost: it has no leader"),
    ],
)
def test_a_cluster_that_cannot_write_is_unhealthy(
    leader: int, fenced: bool, address: tuple[str, int], node: int | None, words: str
) -> None:
    served = {DescribeClusterRequest.api_key: 2, DescribeQuorumRequest.api_key: 2}
    connection: Any = Cluster(leader, fenced)
    with pytest.raises(ConnectionError, match=words):
        health._check_writable(connection, served, address, node)


class Quorum(ManualClock):
    """Of node 1, which leads, and voters that fetch from it at these moments; each question takes
    10 ms."""

    def __init__(self, *fetches_ms: list[int]) -> None:
        super().__init__()
        self._fetches_ms = fetches_ms

    def monotonic(self) -> float:
        return self.ms / 1000

    def sleep(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)

    def exchange(self, request: object, version: int, response: object) -> object:
        self.sleep(0.01)
        told = [self.wall_ms()]
        for fetches in self._fetches_ms:
            past = [WALL_MS + at for at in fetches if at <= self.ms]
            told.append(max(past, default=-1))
        topic = DescribeQuorumResponse.Topic
        partition = topic.Partition(
            partition_index=0,
            error_code=0,
            leader_id=1,
            leader_epoch=1,
            high_watermark=1,
            current_voters=[
                topic.Partition.ReplicaState(
                    replica_id=node, log_end_offset=1, last_fetch_timestamp=at
                )
                for node, at in enumerate(told, 1)
            ],
            observers=[],
        )
        return DescribeQuorumResponse(
            error_code=0,
            topics=[topic(topic_name="__cluster_metadata", partitions=[partition])],
            nodes=[],
        )


NEVER: list[int] = []


@pytest.mark.parametrize(
    ("fetches_ms", "took_ms"),
    [
        (([400], NEVER), 430),
        ((NEVER, [-100, 400]), 430),
        (([-400, 100], [300]), 130),
        ((), 10),
        (([5], [5], NEVER), 10),
        (([5], NEVER, NEVER), None),
        (([0], [0]), 10),
        (([-1], [-1]), None),
        ((NEVER, NEVER), None),
        (([2500], [2500]), None),
    ],
)
def test_a_quorum_has_a_leader_that_hears_of_a_majority_from_now_on(
    monkeypatch: pytest.MonkeyPatch, fetches_ms: tuple[list[int], ...], took_ms: int | None
) -> None:
    """However long it goes on leading without."""
    quorum = Quorum(*fetches_ms)
    monkeypatch.setattr(health, "time", quorum)
    connection: Any = quorum
    served = {DescribeQuorumRequest.api_key: 2}
    if took_ms is not None:
        health._check_writable(connection, served, ("b", 9092), None)
        assert quorum.ms == took_ms
        return
    said = rf"quorum lost: [12] of {len(fetches_ms) + 1} voters were heard of by node 1"
    with pytest.raises(ConnectionError, match=said):
        health._check_writable(connection, served, ("b", 9092), None)
    assert 2000 <= quorum.ms < 2100


class Refusing:
    """Answers as a node that tells this user nothing of its cluster."""

    def __init__(self, serves: type[Request]) -> None:
        self._serves = serves

    def exchange(self, request: Request, version: int, response: type[Response]) -> Any:
        if response is ApiVersionsResponse:
            api = ApiVersionsResponse.ApiKey(
                api_key=self._serves.api_key, min_version=0, max_version=2
            )
            return ApiVersionsResponse(error_code=0, api_keys=[api])
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if response is DescribeQuorumResponse:
            return DescribeQuorumResponse(error_code=code, topics=[], nodes=[])
        return DescribeClusterResponse(error_code=code, cluster_id="", controller_id=-1, brokers=[])

    def close(self) -> None:
        pass


def test_who_may_not_ask_a_broker_is_told_the_right_that_is_missing() -> None:
    connection: Any = Refusing(DescribeQuorumRequest)
    with pytest.raises(ConnectionError, match=r"acl add USER desc"):
        health._check_writable(connection, {DescribeQuorumRequest.api_key: 2}, ("b", 9092), None)


def test_who_may_not_ask_a_controller_is_told_the_right_that_is_missing() -> None:
    connection: Any = Refusing(DescribeClusterRequest)
    with pytest.raises(ConnectionError, match=r"acl add USER alter"):
        health._ask(connection, ("b", 9093), None)


def test_another_node_may_be_fenced() -> None:
    served = {DescribeClusterRequest.api_key: 2, DescribeQuorumRequest.api_key: 2}
    connection: Any = Cluster(1, True)
    health._check_writable(connection, served, ("a", 9092), 1)


@pytest.mark.parametrize(
    ("listeners", "address"),
    [
        ("PLAINTEXT://0.0.0.0:9092", ("127.0.0.1", 9092)),
        ("PLAINTEXT://:19092", ("127.0.0.1", 19092)),
        ("PLAINTEXT://[::]:9092", ("::1", 9092)),
        ("CONTROLLER://:9093,PLAINTEXT://10.1.2.3:9092", ("10.1.2.3", 9092)),
    ],
)
def test_the_local_broker_is_found_by_its_configuration(
    listeners: str, address: tuple[str, int]
) -> None:
    assert health.local_address(KafkaConfig({"listeners": listeners})) == address
