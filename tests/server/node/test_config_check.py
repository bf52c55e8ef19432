"""What cannot work is refused before anything starts, in one line; what is unwise is said."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from server.commands.main import main
from server.config.kafka_config import ConfigError, KafkaConfig, catalogue
from server.node.config_check import check
from server.node.settings import apply_dynamic, notes, socket_server

COMBINED = {
    "process.roles": "broker,controller",
    "node.id": "2",
    "controller.quorum.voters": "1@a:9093,2@b:9093,3@c:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
}
ALONE: dict[str, str] = {}
FETCH_TIMEOUT, REQUEST_TIMEOUT = (
    "controller.quorum.fetch.timeout.ms",
    "controller.quorum.request.timeout.ms",
)


@pytest.mark.parametrize("given", [ALONE, COMBINED])
def test_what_people_start_with_is_taken_and_nothing_is_noted(given: dict[str, str]) -> None:
    config = KafkaConfig(given)
    check(config)
    assert notes(config) == []


@pytest.mark.parametrize(
    ("base", "changes", "key", "expected"),
    [
        (COMBINED, {"replica.fetch.wait.max.ms": "40000"}, "replica.fetch", "replica.socket"),
        (COMBINED, {"replica.lag.time.max.ms": "400"}, "replica.fetch", "replica.lag.time.max.ms"),
        (COMBINED, {"replica.fetch.wait.max.ms": "-1"}, "replica.fetch.wait", "at least 0"),
        (COMBINED, {"broker.heartbeat.interval.ms": "9001"}, "broker.heartbeat", "9000"),
        (COMBINED, {"broker.session.timeout.ms": "0"}, "broker.session", "at least 1"),
        (COMBINED, {FETCH_TIMEOUT: "500"}, FETCH_TIMEOUT, "more than 500"),
        (COMBINED, {REQUEST_TIMEOUT: "500"}, REQUEST_TIMEOUT, "more than 500"),
        (ALONE, {"controller.quorum.election.timeout.ms": "0"}, "election", "at least 1"),
        (ALONE, {"group.max.session.timeout.ms": "10"}, "group.min.session", "no member"),
        (ALONE, {"group.consumer.assignors": "a.Class"}, "group.consumer.assignors", "not loaded"),
        (ALONE, {"group.share.assignors": "a.Class"}, "group.share.assignors", "not loaded"),
        (ALONE, {"group.share.assignors": "simple,simple"}, "group.share.assignors", "not loaded"),
        (ALONE, {"group.share.max.share.sessions": "199"}, "group.share.max.size", "no room"),
        (
            ALONE,
            {"group.coordinator.rebalance.protocols": "consumer"},
            "group.coordinator.rebalance.protocols",
            "'classic' must be",
        ),
        (ALONE, {"default.replication.factor": "0"}, "default.replication", "at least 1"),
        (ALONE, {"log.dirs": "a,b,./a"}, "log.dirs", "names a twice"),
        (ALONE, {"log.dirs": ","}, "log.dirs", "at least one directory"),
        (ALONE, {"log.dirs": "a", "metadata.log.dir": "b/../a"}, "metadata.log.dir", "another"),
        (ALONE, {"max.connections": "0"}, "max.connections", "at least 1"),
        (ALONE, {"max.connection.creation.rate": "0"}, "creation.rate", "at least 1"),
        (ALONE, {"listener.name.plaintext.max.connections": "0"}, "plaintext", "at least 1"),
        (ALONE, {"max.connections.per.ip": "0"}, "max.connections.per.ip", "nobody"),
        (ALONE, {"max.connections.per.ip.overrides": "here"}, "overrides", "HOST:COUNT"),
        (ALONE, {"max.connections.per.ip.overrides": "a:²"}, "overrides", "HOST:COUNT"),
        (ALONE, {"max.connections.per.ip.overrides": "localhost:5"}, "overrides", "an address"),
        (ALONE, {"listeners": "A://b:" + "9" * 5000}, "listeners", "NAME://HOST:PORT"),
        (ALONE, {"queued.max.request.bytes": "1000"}, "queued.max", "socket.request.max.bytes"),
        (ALONE, {"log.cleaner.dedupe.buffer.size": "1048576"}, "log.cleaner", "more than 1048576"),
        (ALONE, {"log.cleaner.threads": "128"}, "log.cleaner.dedupe", "log.cleaner.threads (128)"),
        (ALONE, {"log.retention.hours": "0"}, "log.retention.hours", "-1 for ever"),
        (ALONE, {"log.retention.ms": "-7"}, "log.retention.ms", "topics' retention.ms"),
        (ALONE, {"log.roll.ms": "0"}, "log.roll.ms", "at least 1"),
        (ALONE, {"listener.security.protocol.map": "PLAINTEXT:TLS"}, "protocol.map", "SASL_SSL"),
        (COMBINED, {"process.roles": ""}, "process.roles", "broker, controller or both"),
        (COMBINED, {"controller.listener.names": "CONTROLLER,C2"}, "controller.listener", "C2"),
        (
            {**COMBINED, "process.roles": "broker", "node.id": "4", "listeners": "PLAINTEXT://:1"},
            {"controller.quorum.auto.join.enable": "true"},
            "auto.join",
            "cannot vote",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_what_was_expected(
    base: dict[str, str],
    changes: dict[str, str],
    key: str,
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigError) as failed:
        check(KafkaConfig({**base, **changes}))
    assert key in failed.value.name
    assert expected in str(failed.value)
    file = tmp_path / "server.properties"
    lines = (f"{name}={text}\n" for name, text in {**base, **changes}.items())
    file.write_text("".join(lines), encoding="latin-1")
    assert main(["check-config", str(file)]) == 2
    assert capsys.readouterr().err == f"barnabas: {failed.value}\n"


@pytest.mark.parametrize(
    "given",
    [
        {"log.retention.hours": "-1"},
        {"log.retention.minutes": "-1"},
        {"queued.max.request.bytes": "-1"},
        {"socket.request.max.bytes": "999999999"},
        {FETCH_TIMEOUT: "100"},
        {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:5"},
        {"log.dirs": "a,b", "metadata.log.dir": "c"},
    ],
)
def test_what_kafka_takes_and_works_here_is_taken(given: dict[str, str]) -> None:
    config = KafkaConfig(given)
    check(config)
    assert config.topic_config({}).retention_ms in (-1, 604_800_000)


@pytest.mark.parametrize(
    "text", ["", "-1", "0", "9" * 9, "9" * 30, "9" * 5000, "a:²", "a,a", "A://b:c"]
)
def test_no_value_of_any_key_is_a_traceback(text: str) -> None:
    for name in catalogue().broker:
        with suppress(ConfigError):
            config = KafkaConfig({**COMBINED, name: text})
            check(config)
            notes(config)


def test_a_heartbeat_that_may_not_be_late_is_noted() -> None:
    config = KafkaConfig({"broker.heartbeat.interval.ms": "5000"})
    check(config)
    (note,) = notes(config)
    assert "more than half of broker.session.timeout.ms (9000)" in note


def test_a_node_that_is_told_nothing_keeps_its_data_where_it_was_started() -> None:
    assert KafkaConfig({}).log_dirs() == [Path("barnabas-data")]
    assert KafkaConfig(COMBINED).log_dirs() == [Path("/tmp/kafka-logs")]


def test_keys_that_change_nothing_are_named() -> None:
    keys = {"num.replica.alter.log.dirs.threads": "4", "num.io.threads": "3"}
    assert notes(KafkaConfig(keys)) == [
        "config num.replica.alter.log.dirs.threads has no effect yet (docs/GAPS.md)"
    ]


def test_an_address_has_its_own_limit_however_it_is_written() -> None:
    text = "0:0:0:0:0:0:0:1:5, [FE80::1]:6, ::ffff:10.0.0.7:7"
    config = KafkaConfig({**ALONE, "max.connections.per.ip.overrides": text})
    limits = socket_server(config).max_connections_per_ip_overrides
    assert limits == {"::1": 5, "fe80::1": 6, "10.0.0.7": 7}


MIN_SESSION, SESSION = (
    "group.consumer.min.session.timeout.ms",
    "group.consumer.session.timeout.ms",
)


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        ({"log.cleaner.threads": "0"}, {"log.cleaner.threads": "2"}),
        ({"log.cleaner.threads": "2", MIN_SESSION: "60000"}, {"log.cleaner.threads": "2"}),
        (
            {"log.cleaner.threads": "x", MIN_SESSION: "60000", SESSION: "60000"},
            {"log.cleaner.threads": "2", MIN_SESSION: "60000", SESSION: "60000"},
        ),
    ],
)
def test_what_cannot_be_applied_keeps_its_value_and_the_others_are_taken(
    wanted: dict[str, str], taken: dict[str, str]
) -> None:
    config = KafkaConfig(ALONE)
    config.checks.append(check)
    apply_dynamic(config, {}, {"log.cleaner.threads": "2"})
    apply_dynamic(config, {"log.retention.ms": "7"}, wanted)
    assert config.dynamic_default == taken
    assert config.get_int("log.retention.ms") == 7
