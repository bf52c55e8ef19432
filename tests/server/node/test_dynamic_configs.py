"""Configs that are changed while a whole node runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from server.config.kafka_config import KafkaConfig
from server.node.node import Node
from testkit.wait import eventually
from tests.server.network.network_support import wait_until
from tests.server.wire_client import WireClient
from wire.errors import ErrorCode
from wire.messages.admin import (
    AlterClientQuotasRequest,
    AlterReplicaLogDirsRequest,
    CreateTopicsRequest,
    DescribeClientQuotasRequest,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
)

DESCRIBE = DescribeClientQuotasRequest(components=[], strict=False)
BROKER_RESOURCE, SET, DELETE = 4, 0, 1


@pytest.fixture
def broker(tmp_path: Path):
    node = Node(KafkaConfig({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}))
    try:
        node.start()
        yield node
    finally:
        node.shutdown()


def alter(broker: Node, name: str, value: str | None, resource: str = "") -> None:
    """Change one config, cluster-wide or of a broker, and wait until the broker was told of it."""
    make = IncrementalAlterConfigsRequest.Resource
    request = IncrementalAlterConfigsRequest(
        resources=[
            make(
                resource_type=BROKER_RESOURCE,
                resource_name=resource,
                configs=[
                    make.Config(
                        name=name, config_operation=DELETE if value is None else SET, value=value
                    )
                ],
            )
        ],
        validate_only=False,
    )
    server = broker.broker_server
    told = threading.Event()

    def published(_offset: int) -> None:
        if server.metadata.config(BROKER_RESOURCE, resource).get(name) == value:
            told.set()

    server.loader.when_published(published)
    with WireClient(broker.port) as client:
        (answer,) = client.ask(request, 1).responses
        assert (answer.error_code, answer.error_message) == (0, None)
    assert told.wait(30)


def test_what_logs_are_told_of_producers_changes_while_running(broker: Node) -> None:
    producers = broker.broker_server.log_manager.producers
    assert (producers.expiration_ms, producers.requires_verification) == (86_400_000, True)
    alter(broker, "producer.id.expiration.ms", "5000")
    alter(broker, "transaction.partition.verification.enable", "false")
    assert (producers.expiration_ms, producers.requires_verification) == (5000, False)
    alter(broker, "producer.id.expiration.ms", None)
    alter(broker, "transaction.partition.verification.enable", None)
    assert (producers.expiration_ms, producers.requires_verification) == (86_400_000, True)


def test_connection_limits_of_a_listener_count_at_once_and_after_a_restart(tmp_path: Path) -> None:
    config = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    key = "listener.name.plaintext.max.connections"
    first = Node(KafkaConfig(config))
    try:
        first.start()
        alter(first, key, "1")
        only_one_connects(first)
        alter(first, key, None)
        with WireClient(first.port) as one, WireClient(first.port) as two:
            assert one.ask(DESCRIBE, 0).error_code == two.ask(DESCRIBE, 0).error_code == 0
        alter(first, key, "1")
    finally:
        first.shutdown()
    again = Node(KafkaConfig(config))
    try:
        again.start()
        only_one_connects(again)
    finally:
        again.shutdown()


def only_one_connects(node: Node) -> None:
    server = node.broker_server.socket_server
    wait_until(server, lambda: server.quotas.count == 0)
    with WireClient(node.port) as one:
        assert one.ask(DESCRIBE, 0).error_code == 0
        with WireClient(node.port) as two:
            assert two.is_closed()
    wait_until(server, lambda: server.quotas.count == 0)


def test_quotas_of_addresses_count_at_once(broker: Node) -> None:
    set_ip_rate(broker, 1.0)
    server = broker.broker_server.socket_server
    wait_until(server, lambda: server.quotas._ip_rates == {"127.0.0.1": 1.0})
    with WireClient(broker.port), WireClient(broker.port), WireClient(broker.port) as third:
        assert third.is_closed(), "the second one waits for its turn"


def set_ip_rate(broker: Node, rate: float) -> None:
    make = AlterClientQuotasRequest.Entry
    request = AlterClientQuotasRequest(
        entries=[
            make(
                entity=[make.Entity(entity_type="ip", entity_name="127.0.0.1")],
                ops=[make.Op(key="connection_creation_rate", value=rate, remove=False)],
            )
        ],
        validate_only=False,
    )
    with WireClient(broker.port) as client:
        assert client.ask(request, 1).entries[0].error_code == 0


def two_dirs(root: Path, **config: str) -> Node:
    dirs = ",".join(str(root / name) for name in "ab")
    keys = {key.replace("_", "."): value for key, value in config.items()}
    return Node(
        KafkaConfig(
            {"log.dirs": dirs, "listeners": "PLAINTEXT://127.0.0.1:0", "node.id": "1"} | keys
        )
    )


def cordoned_known(node: Node, *paths: Path) -> bool:
    """Does the controller know that just these are cordoned."""
    server = node.broker_server
    registered = server.metadata.brokers[1].cordoned_directories
    return set(registered or ()) == {server.log_manager.directory_id(path) for path in paths}


def created(client: WireClient, name: str, partitions: int = 4) -> int:
    topic = CreateTopicsRequest.Topic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=False)
    return int(client.ask(request, 7).topics[0].error_code)


def described(client: WireClient) -> dict[str, tuple[bool, set[str]]]:
    """Is it cordoned, and topics, by the directory's name."""
    return {
        Path(found.log_dir).name: (found.is_cordoned, {topic.name for topic in found.topics})
        for found in client.ask(DescribeLogDirsRequest(topics=None), 5).results
    }


def test_a_cordoned_directory_takes_no_new_replicas(tmp_path: Path) -> None:
    node = two_dirs(tmp_path)
    a, b = tmp_path / "a", tmp_path / "b"
    try:
        node.start()
        with WireClient(node.port) as client:
            alter(node, "cordoned.log.dirs", str(a), "1")
            assert created(client, "first") == 0
            eventually(lambda: described(client) == {"a": (True, set()), "b": (False, {"first"})})
            move = AlterReplicaLogDirsRequest.Directory
            moved = client.ask(
                AlterReplicaLogDirsRequest(
                    dirs=[
                        move(path=str(a), topics=[move.Topic(name="first", partitions=[0])]),
                    ]
                ),
                2,
            )
            (partition,) = moved.results[0].partitions
            assert partition.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            eventually(lambda: cordoned_known(node, a))
            alter(node, "cordoned.log.dirs", "*", "1")
            eventually(lambda: cordoned_known(node, a, b))
            assert created(client, "second") == ErrorCode.INVALID_REPLICATION_FACTOR
            alter(node, "cordoned.log.dirs", None, "1")
            eventually(lambda: cordoned_known(node))
            assert created(client, "third") == 0
            eventually(lambda: {cordoned for cordoned, _ in described(client).values()} == {False})
    finally:
        node.shutdown()


def test_a_directory_that_is_cordoned_in_the_file_is_from_the_start_on(tmp_path: Path) -> None:
    node = two_dirs(tmp_path, cordoned_log_dirs="*")
    try:
        node.start()
        eventually(lambda: cordoned_known(node, tmp_path / "a", tmp_path / "b"))
        with WireClient(node.port) as client:
            assert created(client, "first") == ErrorCode.INVALID_REPLICATION_FACTOR
    finally:
        node.shutdown()


def test_a_directory_that_was_cordoned_and_taken_away_takes_no_other_config_along(
    tmp_path: Path,
) -> None:
    """Its config is still there at the next start; a retention that was forgotten deletes logs."""
    node, year_ms = two_dirs(tmp_path), 31_536_000_000
    try:
        node.start()
        alter(node, "cordoned.log.dirs", str(tmp_path / "b"), "1")
        alter(node, "log.retention.ms", str(year_ms))
    finally:
        node.shutdown()
    again = two_dirs(tmp_path, log_dirs=str(tmp_path / "a"))
    try:
        again.start()
        server = again.broker_server
        assert server.config.topic_config({}).retention_ms == year_ms
        assert server.log_manager.cordoned_dirs == frozenset()
    finally:
        again.shutdown()
