"""What a configuration says about listeners, and what is refused."""

from __future__ import annotations

import pytest

from server.config.kafka_config import ConfigError, KafkaConfig
from server.network.listeners import Listener, read_listeners

MAP = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT,SECURE:SSL"


def config(**given: str) -> KafkaConfig:
    """`listeners` and its kin, with _ for a dot; process.roles is broker,controller."""
    return KafkaConfig({key.replace("_", "."): value for key, value in given.items()})


def compose() -> KafkaConfig:
    """The compose files of the official image: containers use one listener, the host the other."""
    return config(
        process_roles="broker,controller",
        node_id="1",
        listeners="CONTROLLER://:29093,PLAINTEXT_HOST://:9092,PLAINTEXT://:19092",
        advertised_listeners="PLAINTEXT_HOST://localhost:9092,PLAINTEXT://broker:19092",
        listener_security_protocol_map=MAP,
        inter_broker_listener_name="PLAINTEXT",
        controller_listener_names="CONTROLLER",
        controller_quorum_voters="1@broker:29093",
    )


def test_the_compose_files_of_the_official_image_mean_the_same_here() -> None:
    listeners = read_listeners(compose())
    assert [listener.name for listener in listeners.broker] == ["PLAINTEXT_HOST", "PLAINTEXT"]
    assert listeners.controller == (Listener("CONTROLLER", "", 29093),)
    assert listeners.inter_broker_name == "PLAINTEXT"
    told = listeners.advertise(listeners.broker, {}, "unused")
    assert told == [
        Listener("PLAINTEXT_HOST", "localhost", 9092),
        Listener("PLAINTEXT", "broker", 19092),
    ]


def test_each_listener_has_the_protocol_of_the_map_or_of_its_name() -> None:
    listeners = read_listeners(
        config(
            listeners="SECURE://:9093,SASL_SSL://:9094",
            listener_security_protocol_map=MAP,
            inter_broker_listener_name="SECURE",
        )
    )
    assert [one.protocol for one in listeners.broker] == ["SSL", "SASL_SSL"]
    assert [one.protocol_id for one in listeners.broker] == [1, 3]
    told = listeners.advertise(listeners.broker, {}, "machine.example")
    assert [one.protocol for one in told] == ["SSL", "SASL_SSL"]


def test_a_broker_knows_the_protocol_of_the_controllers_it_only_dials() -> None:
    listeners = read_listeners(
        config(
            process_roles="broker",
            node_id="2",
            listeners="PLAINTEXT://:9092",
            controller_listener_names="SECURE",
            listener_security_protocol_map=MAP,
        )
    )
    assert listeners.protocols == {"PLAINTEXT": "PLAINTEXT", "SECURE": "SSL"}


def test_a_controller_listener_is_told_by_its_own_address_when_it_is_not_advertised() -> None:
    listeners = read_listeners(compose())
    told = listeners.advertise(listeners.controller, {}, "machine.example")
    assert told == [Listener("CONTROLLER", "machine.example", 29093)]


def test_without_advertised_listeners_the_bound_address_is_told() -> None:
    listeners = read_listeners(config(listeners="PLAINTEXT://10.0.0.1:0"))
    told = listeners.advertise(listeners.broker, {"PLAINTEXT": 4711}, "unused")
    assert told == [Listener("PLAINTEXT", "10.0.0.1", 4711)]
    everywhere = read_listeners(config(listeners="PLAINTEXT://:9092"))
    told = everywhere.advertise(everywhere.broker, {}, "machine.example")
    assert told == [Listener("PLAINTEXT", "machine.example", 9092)]


def test_a_listener_that_is_not_advertised_is_told_to_nobody() -> None:
    listeners = read_listeners(
        config(
            listeners="PLAINTEXT://:9092,LOCAL://:9094",
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,LOCAL:PLAINTEXT",
            advertised_listeners="PLAINTEXT://broker:9092",
        )
    )
    told = listeners.advertise(listeners.broker, {}, "unused")
    assert [listener.name for listener in told] == ["PLAINTEXT"]


def test_the_only_listener_is_the_inter_broker_one_whatever_its_name() -> None:
    listeners = read_listeners(
        config(listeners="Outside://:9092", listener_security_protocol_map="OUTSIDE:PLAINTEXT")
    )
    assert listeners.inter_broker_name == "OUTSIDE"


def test_a_node_that_is_only_a_controller_has_no_broker_listener() -> None:
    listeners = read_listeners(
        config(
            process_roles="controller",
            node_id="1",
            listeners="CONTROLLER://:9093",
            controller_listener_names="CONTROLLER",
            controller_quorum_voters="1@localhost:9093",
        )
    )
    assert (listeners.broker, listeners.inter_broker_name) == ((), "")
    assert [listener.port for listener in listeners.controller] == [9093]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {
                "listeners": "SECURE://:9093,CTL://:9094",
                "process_roles": "broker,controller",
                "node_id": "1",
                "controller_listener_names": "CTL",
                "listener_security_protocol_map": MAP,
            },
            "gives no protocol for the listener CTL",
        ),
        ({"listeners": "ODD://:9093"}, "gives no protocol for the listener ODD"),
        ({"listeners": "PLAINTEXT"}, "expected NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://:99999"}, "expected NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "each listener needs a name of its own"),
        (
            {
                "listeners": "PLAINTEXT://:9092,PLAINTEXT_HOST://:9092",
                "listener_security_protocol_map": MAP,
            },
            "each listener needs a port of its own",
        ),
        (
            {"listeners": "CONTROLLER://:9093", "controller_listener_names": "CONTROLLER"},
            "expected a listener for clients",
        ),
        ({"advertised_listeners": "PLAINTEXT://0.0.0.0:9092"}, "not every address"),
        ({"advertised_listeners": "OTHER://host:9092"}, "names OTHER, and listeners opens only"),
        ({"inter_broker_listener_name": "NOWHERE"}, "one of PLAINTEXT"),
        (
            {
                "inter_broker_listener_name": "PLAINTEXT",
                "security_inter_broker_protocol": "PLAINTEXT",
            },
            "only one of it and",
        ),
        (
            {
                "listeners": "PLAINTEXT_HOST://:9092,CLIENT://:9094",
                "listener_security_protocol_map": MAP + ",CLIENT:PLAINTEXT",
            },
            "one of PLAINTEXT_HOST, CLIENT",
        ),
    ],
)
def test_what_cannot_be_served_or_meant_is_one_clear_error(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_listeners(config(**given))
    assert message in str(caught.value)


def test_a_port_may_be_shared_by_an_ipv4_and_an_ipv6_address() -> None:
    listeners = read_listeners(
        config(
            listeners="PLAINTEXT://127.0.0.1:9092,PLAINTEXT_HOST://[::1]:9092",
            listener_security_protocol_map=MAP,
        )
    )
    assert [listener.host for listener in listeners.broker] == ["127.0.0.1", "::1"]
