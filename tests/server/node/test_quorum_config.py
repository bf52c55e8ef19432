"""Which configurations make a node of a cluster, and how a mistake reads."""

from __future__ import annotations

import pytest

from server.config.kafka_config import ConfigError, KafkaConfig
from server.node.quorum_config import QuorumVoter, check, node_id

COMBINED = {
    "process.roles": "broker,controller",
    "node.id": "2",
    "controller.quorum.voters": "1@a:9093,2@b:9093,3@c:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
}
BROKER = {**COMBINED, "process.roles": "broker", "node.id": "4", "listeners": "PLAINTEXT://:9092"}
CONTROLLER = {**COMBINED, "process.roles": "controller", "listeners": "CONTROLLER://:9093"}


def test_the_development_node_is_alone() -> None:
    quorum = check(KafkaConfig({}))
    assert quorum.is_alone
    assert quorum.is_broker
    assert quorum.is_controller
    assert quorum.voters == ()


def test_a_node_of_three() -> None:
    quorum = check(KafkaConfig(COMBINED))
    assert not quorum.is_alone
    assert not quorum.may_format_itself
    assert quorum.voters[2] == QuorumVoter(3, "c", 9093)
    assert [listener.port for listener in quorum.controller_listeners] == [9093]


@pytest.mark.parametrize("config", [BROKER, CONTROLLER])
def test_separate_roles(config: dict[str, str]) -> None:
    quorum = check(KafkaConfig(config))
    assert len(quorum.roles) == 1
    assert not quorum.is_alone


def test_apache_kafkas_own_single_node_file_begins_a_cluster_by_itself() -> None:
    quorum = check(
        KafkaConfig(
            {
                "process.roles": "broker,controller",
                "node.id": "1",
                "controller.quorum.bootstrap.servers": "localhost:9093",
                "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
                "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
                "controller.listener.names": "CONTROLLER",
            }
        )
    )
    assert quorum.may_format_itself
    assert not quorum.is_alone, "others may join it on its controller listener"


def test_a_second_node_does_not_begin_a_cluster_by_itself() -> None:
    config = {**COMBINED, "controller.quorum.bootstrap.servers": "other-host:9093"}
    del config["controller.quorum.voters"]
    assert not check(KafkaConfig(config)).may_format_itself


@pytest.mark.parametrize(
    ("base", "changes", "key", "expected"),
    [
        (COMBINED, {"controller.quorum.voters": "1@a"}, "controller.quorum.voters", "ID@HOST:PORT"),
        (COMBINED, {"controller.quorum.voters": "1@a:0"}, "controller.quorum.voters", "ID@HOST"),
        (COMBINED, {"controller.quorum.voters": "2@a:1,2@b:1"}, "controller.quorum.voters", "own"),
        (COMBINED, {"node.id": "9"}, "controller.quorum.voters", "must be in the set"),
        (COMBINED, {"node.id": "-1"}, "node.id", "at least 0"),
        (COMBINED, {"broker.id": "3"}, "broker.id", "node.id"),
        (COMBINED, {"process.roles": "broker,broker"}, "process.roles", "twice"),
        (COMBINED, {"listeners": "PLAINTEXT://:9092"}, "listeners", "CONTROLLER://:9093"),
        (COMBINED, {"inter.broker.listener.name": "CONTROLLER"}, "inter.broker", "brokers talk"),
        (BROKER, {"node.id": "1"}, "controller.quorum.voters", "cannot vote"),
        (BROKER, {"listeners": COMBINED["listeners"]}, "listeners", "only a broker"),
        (BROKER, {"controller.quorum.voters": ""}, "bootstrap.servers", "needs the controllers"),
        (BROKER, {"controller.listener.names": ""}, "controller.listener.names", "CONTROLLER"),
        (CONTROLLER, {"listeners": COMBINED["listeners"]}, "listeners", "only a controller"),
        (CONTROLLER, {"controller.quorum.voters": ""}, "bootstrap.servers", "needs the quorum"),
        (BROKER, {"controller.quorum.bootstrap.servers": "a"}, "bootstrap.servers", "HOST:PORT"),
    ],
)
def test_a_mistake_names_the_key_and_what_was_expected(
    base: dict[str, str], changes: dict[str, str], key: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as failed:
        check(KafkaConfig({**base, **changes}))
    assert key in failed.value.name
    assert expected in str(failed.value)


def test_broker_id_is_the_older_name_of_node_id() -> None:
    config = dict(COMBINED)
    del config["node.id"]
    assert node_id(KafkaConfig({**config, "broker.id": "3"})) == 3
