from __future__ import annotations

import pytest

from server.config.environment import key_of, overlay, read_environment
from server.config.kafka_config import ConfigError, KafkaConfig


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("KAFKA_NUM_PARTITIONS", "num.partitions"),
        ("KAFKA_A_B__C___D", "a.b_c-d"),
        ("KAFKA_A____B", "a-.b"),
        ("KAFKA_A_____B", "a-_b"),
        ("KAFKA_LISTENER_NAME_PLAINTEXT_NUM_NETWORK_THREADS", None),
        ("KAFKA_KAFKA_METRICS_REPORTERS", "kafka.metrics.reporters"),
    ],
)
def test_underscores_become_dots_underscores_and_dashes(variable: str, key: str | None) -> None:
    assert key_of(variable) == (key or "listener.name.plaintext.num.network.threads")


def test_variables_become_a_configuration_that_the_broker_accepts() -> None:
    environment = read_environment(
        {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_NODE_ID": "7", "PATH": "/bin", "kafka_node_id": "9"}
    )
    config = KafkaConfig(environment.values)
    assert config.get_int("num.partitions") == 3
    assert config.get_int("node.id") == 7
    assert set(environment.values) == {"num.partitions", "node.id"}
    assert environment.cluster_id is None
    assert environment.notes == ()


def test_the_official_images_jvm_and_logging_variables_are_named_and_ignored() -> None:
    variables = ("KAFKA_HEAP_OPTS", "KAFKA_LOG4J_ROOT_LOGLEVEL", "KAFKA_LOG4J_LOGGERS")
    environment = read_environment(dict.fromkeys(variables, "x"))
    assert environment.values == {}
    assert len(environment.notes) == len(variables)
    for variable in variables:
        assert any(variable in note for note in environment.notes)


def test_variables_that_kubernetes_makes_for_a_service_do_not_stop_the_broker() -> None:
    environment = read_environment(
        {
            "KAFKA_PORT": "tcp://10.0.0.1:9092",
            "KAFKA_SERVICE_HOST": "10.0.0.1",
            "KAFKA_SERVICE_PORT": "9092",
            "KAFKA_SERVICE_PORT_CLIENTS": "9092",
            "KAFKA_PORT_9092_TCP": "tcp://10.0.0.1:9092",
            "KAFKA_PORT_9092_TCP_ADDR": "10.0.0.1",
            "KAFKA_UI_PORT_8080_TCP_PROTO": "tcp",
        }
    )
    assert environment.values == {}
    assert len(environment.notes) == 7


def test_listeners_follow_from_advertised_listeners_on_every_address() -> None:
    environment = read_environment(
        {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://broker:9092,CONTROLLER://[::1]:9093"}
    )
    assert environment.values["listeners"] == "PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093"


def test_listeners_that_are_given_stay() -> None:
    environment = read_environment(
        {
            "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:19092",
            "KAFKA_LISTENERS": "PLAINTEXT://:9092",
        }
    )
    assert environment.values["listeners"] == "PLAINTEXT://:9092"


def test_an_unknown_key_is_refused_with_the_name_of_its_variable() -> None:
    environment = read_environment({"KAFKA_NUM_PARTITONS": "3"})
    with (
        pytest.raises(ConfigError, match=r"did you mean num\.partitions.*KAFKA_NUM_PARTITONS"),
        environment.named_in_errors(),
    ):
        KafkaConfig(environment.values)


def test_an_error_about_a_key_from_elsewhere_names_no_variable() -> None:
    environment = read_environment({"KAFKA_NUM_PARTITIONS": "3"})
    with pytest.raises(ConfigError) as caught, environment.named_in_errors():
        KafkaConfig({**environment.values, "num.io.threads": "none"})
    assert "num.io.threads" in str(caught.value)
    assert "KAFKA_" not in str(caught.value)


def test_a_cluster_id_is_taken_and_nonsense_refused() -> None:
    assert read_environment({"CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw"}).cluster_id is not None
    assert read_environment({"CLUSTER_ID": ""}).cluster_id is None
    with pytest.raises(ConfigError, match="CLUSTER_ID"):
        read_environment({"CLUSTER_ID": "two words"})


def test_a_log_dir_above_hides_log_dirs_below() -> None:
    values = {"log.dirs": "/image", "num.partitions": "1"}
    overlay(values, {"log.dir": "/mine"})
    assert values == {"log.dir": "/mine", "num.partitions": "1"}
    overlay(values, {"log.dirs": "/other", "log.dir": "/ignored"})
    assert values["log.dirs"] == "/other"
