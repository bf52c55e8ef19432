"""Which address a client is told, by a whole node over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from barnabas.fresh import free_ports
from server.config.kafka_config import KafkaConfig
from server.network.listeners import Listener
from server.node import settings
from server.node.node import Node
from server.peers.blocking_peer import BlockingPeer
from wire.messages.cluster import MetadataRequest, MetadataResponse

_KEY = "log.compressed.records.validation"

TWO = {
    "listeners": "PLAINTEXT://127.0.0.1:0,PLAINTEXT_HOST://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
}


@contextmanager
def node(directory: Path, **more: str) -> Iterator[Node]:
    settings = {key.replace("_", "."): value for key, value in more.items()}
    one = Node(KafkaConfig({"log.dirs": str(directory), **TWO, **settings}))
    try:
        one.start()
        yield one
    finally:
        one.shutdown()


def told(one: Node, listener: str) -> list[tuple[str, int]]:
    """The brokers' addresses as a client of that listener is told them."""
    assert one.broker_server is not None
    peer = BlockingPeer("127.0.0.1", one.broker_server.socket_server.ports[listener], "client")
    try:
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        answer = peer.exchange(request, 12, MetadataResponse)
    finally:
        peer.close()
    return [(broker.host, broker.port) for broker in answer.brokers]


def test_each_client_is_told_the_address_it_dialled(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        assert one.broker_server is not None
        ports = one.broker_server.socket_server.ports
        for listener, port in ports.items():
            assert told(one, listener) == [("127.0.0.1", port)]


def test_a_host_name_is_told_on(tmp_path: Path) -> None:
    """A certificate is made out to it, not to the address that it stands for."""
    named = "PLAINTEXT://localhost:0,PLAINTEXT_HOST://127.0.0.1:0"
    with node(tmp_path, listeners=named) as one:
        assert one.broker_server is not None
        ports = one.broker_server.socket_server.ports
        assert told(one, "PLAINTEXT") == [("localhost", ports["PLAINTEXT"])]
        assert told(one, "PLAINTEXT_HOST") == [("127.0.0.1", ports["PLAINTEXT_HOST"])]


def test_each_client_is_told_what_its_listener_advertises(tmp_path: Path) -> None:
    advertised = "PLAINTEXT://broker:19092,PLAINTEXT_HOST://localhost:9092"
    with node(tmp_path, advertised_listeners=advertised) as one:
        assert told(one, "PLAINTEXT") == [("broker", 19092)]
        assert told(one, "PLAINTEXT_HOST") == [("localhost", 9092)]


def test_a_listener_that_is_not_advertised_leads_nowhere(tmp_path: Path) -> None:
    with node(tmp_path, advertised_listeners="PLAINTEXT://broker:19092") as one:
        assert told(one, "PLAINTEXT_HOST") == []


@pytest.mark.parametrize(
    ("more", "expected"),
    [({}, {"OUT"}), ({_KEY: "always"}, {"OUT", "IN", "V6", "NAME"}), ({_KEY: "never"}, set())],
)
def test_compressed_records_are_checked_on_listeners_that_other_machines_reach(
    more: dict[str, str], expected: set[str]
) -> None:
    """P2: as Kafka does on all; a developer's own producer need not pay for it."""
    listeners = [
        Listener("OUT", "0.0.0.0", 1),
        Listener("IN", "127.0.0.1", 2),
        Listener("V6", "::1", 3),
        Listener("NAME", "localhost", 4),
    ]
    assert settings.opens_compressed_records(KafkaConfig(more), listeners) == expected


def test_an_empty_host_is_every_address() -> None:
    listeners = [Listener("OUT", "", 1)]
    assert settings.opens_compressed_records(KafkaConfig({}), listeners) == {"OUT"}


def test_the_only_node_that_votes_is_not_told_that_it_cannot_be_elected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache Kafka's own single-node file with an authorizer: it votes for itself."""
    (port,) = free_ports(1)
    config = {
        "log.dirs": str(tmp_path),
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{port}",
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    one = Node(KafkaConfig(config))
    try:
        one.start()
        assert told(one, "PLAINTEXT")
    finally:
        one.shutdown()
    assert "no controller can be elected" not in caplog.text
