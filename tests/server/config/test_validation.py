"""Dynamic configs: what Kafka refuses is refused, with Kafka's code. The same rows, asked of a real
broker, stand in compat_tests/kafka_python/test_dynamic_configs.py.
"""

from __future__ import annotations

import pytest

from server.config.kafka_config import ConfigError, KafkaConfig, catalogue
from server.config.validation import (
    check_groups,
    validate_broker_config,
    validate_client_metrics_config,
    validate_group_config,
    validate_reconfiguration,
    validate_topic_config,
)
from server.node import config_check
from wire.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"retention.mss": "1"}, "did you mean retention.ms?"),
        ({"retenton.ms": "1"}, "did you mean retention.ms?"),
        ({"retentoin.ms": "1"}, "did you mean retention.ms?"),
        ({"retention.mz": "1"}, "did you mean retention.ms?"),
        ({"log.retention.ms": "1"}, "did you mean retention.ms?"),
        ({"policy": "1"}, "did you mean cleanup.policy?"),
        ({"retention": "1"}, "unknown key (topic)"),
        ({"retention.ms": "-2"}, "at least -1"),
        ({"cleanup.policy": "compress"}, "compact, delete"),
        ({"cleanup.policy": "delete,,compact"}, "no empty item"),
        ({"cleanup.policy": "delete,"}, "no empty item"),
        ({"cleanup.policy": ","}, "no empty item"),
        ({"remote.storage.enable": " TRUE"}, "tiered storage is not served"),
        *(
            ({f"{side}.replication.throttled.replicas": value}, "partition:broker pairs")
            for side in ("leader", "follower")
            for value in ("0", "0:1,x:2", "0:1,*", "0:-1", "0:1:2", "0=1", "[0:1]", "all")
        ),
        ({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, "at most"),
        *(
            ({"min.cleanable.dirty.ratio": value}, "expected a number")
            for value in ("nan", "NaN", "0_1", "inf", "1e999", "\u0660", ".", "")
        ),
        ({"min.cleanable.dirty.ratio": "-1e-3"}, "0 to 1"),
    ],
)
def test_topic_overrides_are_refused_with_invalid_config(
    values: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A search by similarity takes a millisecond for each key; a request may name 50,000.
    monkeypatch.delattr("difflib.SequenceMatcher.ratio")
    with pytest.raises(KafkaError) as caught:
        validate_topic_config(values)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert expected in caught.value.detail


@pytest.mark.parametrize("value", ["0", "1", ".5", "1.", "+0.5", "5e-1", "50E-2", " 0.5 "])
def test_a_ratio_is_written_as_java_reads_it(value: str) -> None:
    validate_topic_config({"min.cleanable.dirty.ratio": value})


@pytest.mark.parametrize("value", ["", "*", " * ", "0:1", "0:1, 12:345", "0:1,,1:1"])
def test_throttled_replicas_are_a_star_or_pairs(value: str) -> None:
    validate_topic_config(
        {f"{side}.replication.throttled.replicas": value for side in ("leader", "follower")}
    )


@pytest.mark.parametrize("value", ["", "delete, compact", "delete,delete", " delete "])
def test_a_policy_may_be_nothing_and_may_be_said_twice(value: str) -> None:
    validate_topic_config({"cleanup.policy": value})


# ---- groups


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("consumer.session.timeout.ms", "44999"),
        ("consumer.session.timeout.ms", "60001"),
        ("consumer.heartbeat.interval.ms", "4999"),
        ("consumer.heartbeat.interval.ms", "15001"),
        ("consumer.assignment.interval.ms", "15001"),
        ("share.record.lock.duration.ms", "14999"),
        ("share.record.lock.duration.ms", "60001"),
        ("share.delivery.count.limit", "11"),
        ("share.partition.max.record.locks", "4001"),
        ("share.auto.offset.reset", "none"),
        ("share.auto.offset.reset", "LATEST"),
        ("share.auto.offset.reset", "by_duration:"),
        ("share.auto.offset.reset", "by_duration:P"),
        ("share.auto.offset.reset", "by_duration:-PT1H"),
        ("share.auto.offset.reset", "BY_DURATION:PT1H"),
        ("share.isolation.level", "READ_COMMITTED"),
        ("streams.num.standby.replicas", "3"),
        ("streams.session.timeout.ms", "-1"),
        ("no.such.key", "1"),
    ],
)
def test_a_groups_overrides_keep_the_brokers_bounds(key: str, value: str) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_group_config(KafkaConfig(), {key: value})
    assert caught.value.code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("consumer.session.timeout.ms", "45000"),
        ("consumer.heartbeat.interval.ms", "5000"),
        ("share.delivery.count.limit", "2"),
        ("share.auto.offset.reset", "by_duration:PT1H"),
        ("share.auto.offset.reset", "by_duration:P1DT2H3M4.5S"),
        ("share.auto.offset.reset", "by_duration:PT+1H-1M"),
        ("share.auto.offset.reset", "earliest"),
        ("streams.num.standby.replicas", "2"),
    ],
)
def test_what_is_within_the_bounds_is_taken(key: str, value: str) -> None:
    validate_group_config(KafkaConfig(), {key: value})


def test_a_groups_session_is_longer_than_its_heartbeat() -> None:
    config = KafkaConfig({"group.consumer.max.heartbeat.interval.ms": "60000"})
    with pytest.raises(KafkaError, match="more than consumer"):
        validate_group_config(config, {"consumer.heartbeat.interval.ms": "45000"})


def test_the_brokers_own_values_for_groups_keep_the_bounds_at_start() -> None:
    check_groups(KafkaConfig(), {})
    with pytest.raises(ConfigError, match=r"group\.consumer\.max\.assignment\.interval\.ms"):
        config_check.check(KafkaConfig({"group.consumer.assignment.interval.ms": "100000"}))


# ---- client metrics


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("interval.ms", "99", ErrorCode.INVALID_REQUEST),
        ("interval.ms", "3600001", ErrorCode.INVALID_REQUEST),
        ("interval.ms", "x", ErrorCode.INVALID_CONFIG),
        ("no.such.key", "x", ErrorCode.INVALID_REQUEST),
        ("match", "client_id=[", ErrorCode.INVALID_CONFIG),
        ("match", "client_id=(a)\\1", ErrorCode.INVALID_CONFIG),
        ("match", "client_id= *a", ErrorCode.INVALID_CONFIG),
        ("match", "client_id", ErrorCode.INVALID_CONFIG),
        ("match", "client_id= ", ErrorCode.INVALID_CONFIG),
        ("match", "foo=bar", ErrorCode.INVALID_CONFIG),
        ("match", "client_id=a=b", ErrorCode.INVALID_CONFIG),
        ("metrics", "a,,b", ErrorCode.INVALID_CONFIG),
    ],
)
def test_client_metrics_are_checked_by_range_and_pattern(
    key: str, value: str, code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_client_metrics_config({key: value})
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("interval.ms", "100"),
        ("match", ""),
        ("match", " client_id = a.* , client_source_port=1"),
        ("metrics", ""),
        ("metrics", "*"),
        ("metrics", "a,a"),
    ],
)
def test_client_metrics_that_can_be_read_are_taken(key: str, value: str) -> None:
    validate_client_metrics_config({key: value})


# ---- brokers

ALL_BROKER_KEYS = catalogue().broker


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num.partitions", "4"),
        ("node.id", "7"),
        ("num.io.threads", "abc"),
        ("log.segment.bytes", "1"),
        ("log.cleanup.policy", "delete,,compact"),
        ("ssl.keystore.location", "k"),
        ("listener.name.internal.num.network.threads", "x"),
    ],
)
@pytest.mark.parametrize("per_broker", [True, False])
def test_names_and_types_of_brokers_values_are_invalid_requests(
    name: str, value: str, per_broker: bool
) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_broker_config({name: value}, per_broker=per_broker)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "name",
    [
        "listeners",
        "listener.name.internal.ssl.keystore.location",
        "listener.name.internal.message.max.bytes",
        "listener.name.internal.my.plugins.key",
    ],
)
def test_what_is_one_brokers_is_not_set_for_all(name: str) -> None:
    value = "1" if name.endswith(".bytes") else "PLAINTEXT://:1"
    validate_broker_config({name: value}, per_broker=True)
    with pytest.raises(KafkaError) as caught:
        validate_broker_config({name: value}, per_broker=False)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_keys_that_kafka_does_not_know_are_taken_for_plugins() -> None:
    for per_broker in (True, False):
        validate_broker_config({"my.plugins.key": "x"}, per_broker=per_broker)
        validate_reconfiguration(running(), {"my.plugins.key": "x"}, per_broker=per_broker)


def running(**static: str) -> KafkaConfig:
    config = KafkaConfig({key.replace("_", "."): value for key, value in static.items()})
    config.checks.append(config_check.check)
    return config


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num.io.threads", "100"),
        ("num.io.threads", "3"),
        ("num.network.threads", "17"),
        ("num.replica.fetchers", "3"),
        ("background.threads", "21"),
        ("log.cleaner.threads", "0"),
        ("log.cleaner.threads", "3"),
        ("log.cleaner.dedupe.buffer.size", "100"),
        ("log.retention.ms", "0"),
        ("max.connections", "0"),
        ("max.connection.creation.rate", "0"),
        ("listener.name.plaintext.max.connections", "0"),
        ("listener.name.plaintext.max.connection.creation.rate", "0"),
        ("max.connections.per.ip", "0"),
        ("max.connections.per.ip.overrides", "127.0.0.1:x"),
        ("max.connections.per.ip.overrides", "localhost:5"),
        ("metric.reporters", "com.example.Nothing"),
        ("log.local.retention.ms", "-1"),
        ("group.consumer.assignment.interval.ms", "100000"),
    ],
)
@pytest.mark.parametrize("per_broker", [True, False])
def test_what_a_broker_could_not_start_with_it_does_not_take_while_it_runs(
    name: str, value: str, per_broker: bool
) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_reconfiguration(
            running(num_io_threads="8", num_network_threads="8"),
            {name: value},
            per_broker=per_broker,
        )
    assert caught.value.code == ErrorCode.INVALID_REQUEST
    assert name in caught.value.detail


@pytest.mark.parametrize(
    "value", ["nonsense", "EXTRA://127.0.0.1:1", "PLAINTEXT://127.0.0.1:1,OTHER://127.0.0.1:2"]
)
def test_listeners_are_checked_and_stay_those_that_there_are(value: str) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_reconfiguration(running(), {"listeners": value}, per_broker=True)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_a_protocol_map_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(KafkaError, match="NAME:PROTOCOL"):
        validate_reconfiguration(
            running(), {"listener.security.protocol.map": "nonsense"}, per_broker=True
        )


def test_of_the_keys_of_sasl_those_are_taken_that_nobody_uses_here() -> None:
    """librdkafka's suite sets this one (0081_admin), as Apache Kafka lets it: no listener of ours
    speaks Kerberos."""
    kerberos = {"sasl.kerberos.min.time.before.relogin": "58000"}
    validate_reconfiguration(running(), kerberos, per_broker=True)
    with pytest.raises(KafkaError, match="cannot change while the broker runs"):
        validate_reconfiguration(
            running(), {"sasl.login.refresh.buffer.seconds": "60"}, per_broker=True
        )


def test_directories_that_are_not_there_cannot_be_cordoned() -> None:
    with pytest.raises(KafkaError, match="c is not in"):
        validate_reconfiguration(
            running(log_dirs="a,b"), {"cordoned.log.dirs": "c"}, per_broker=True
        )


def test_threads_may_go_from_half_to_double_of_what_they_are() -> None:
    config = running(num_io_threads="8")
    for count in ("4", "8", "16"):
        validate_reconfiguration(config, {"num.io.threads": count}, per_broker=True)
    config.update_dynamic({"num.io.threads": "16"}, {})
    validate_reconfiguration(config, {"num.io.threads": "32"}, per_broker=True)


def test_the_cluster_wide_value_counts_less_than_the_brokers_own() -> None:
    """Kafka: what does not become this broker's value is not asked to fit it."""
    config = running(num_io_threads="8")
    config.update_dynamic({"num.io.threads": "8"}, {})
    validate_reconfiguration(config, {"num.io.threads": "100"}, per_broker=False)


@pytest.mark.parametrize(
    "name",
    [
        "listener.name.plaintext.plain.sasl.jaas.config",
        "sasl.enabled.mechanisms",
        "listener.name.plaintext.ssl.client.auth",
        "ssl.cipher.suites",
        "listener.name.plaintext.connections.max.reauth.ms",
    ],
)
def test_what_would_not_be_obeyed_of_security_is_refused_while_the_broker_runs(name: str) -> None:
    text = {"connections.max.reauth.ms": "1000", "ssl.client.auth": "required"}
    value = next((v for key, v in text.items() if name.endswith(key)), "hunter2")
    with pytest.raises(KafkaError) as caught:
        validate_reconfiguration(running(), {name: value}, per_broker=True)
    assert caught.value.code == ErrorCode.INVALID_REQUEST
    assert "hunter2" not in caught.value.detail
    store = "listener.name.plaintext.ssl.keystore.location"
    validate_reconfiguration(running(), {store: "/a/file"}, per_broker=True)


@pytest.mark.parametrize("key", ["socket.send.buffer.bytes", "message.max.bytes", "node.id", "own"])
def test_of_a_listeners_keys_only_what_is_obeyed_changes_while_the_broker_runs(key: str) -> None:
    prefix = "listener.name.plaintext."
    with pytest.raises(KafkaError) as caught:
        validate_reconfiguration(running(), {prefix + key: "100000"}, per_broker=True)
    assert caught.value.code == ErrorCode.INVALID_REQUEST
    for per_broker in (True, False):
        for limit in ("max.connections", "max.connection.creation.rate"):
            validate_reconfiguration(running(), {prefix + limit: "9"}, per_broker=per_broker)
