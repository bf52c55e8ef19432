"""The configuration: what is taken, what is refused and how the refusal reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.config import kafka_config
from server.config.kafka_config import (
    PROFILE,
    ConfigDef,
    ConfigError,
    KafkaConfig,
    Value,
    catalogue,
    load_properties,
    parse_value,
    value_text,
)


def test_every_default_of_the_catalogue_is_valid_by_its_own_rule() -> None:
    for section in catalogue():
        for definition in section.values():
            if definition.default is not None:
                assert parse_value(definition, definition.default) is not None


def test_the_profiles_values_are_valid_and_differ_from_kafkas() -> None:
    for name, text in PROFILE.items():
        definition = catalogue().broker[name]
        parse_value(definition, text)
        assert definition.default != text


def test_synonyms_name_broker_keys_that_exist() -> None:
    for section in (catalogue().topic, catalogue().group):
        for definition in section.values():
            assert set(definition.synonyms) <= set(catalogue().broker)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("num.partitions", "three", "whole number"),
        ("num.partitions", "0", "at least 1"),
        ("num.partitions", "99999999999", "INT"),
        ("num.partitions", "1.5", "whole number"),
        ("log.cleaner.min.cleanable.ratio", "2", "0 to 1"),
        ("log.cleaner.min.cleanable.ratio", "much", "a number"),
        ("log.preallocate", "yes", "true or false"),
        ("log.cleanup.policy", "delete,shred", "compact, delete"),
        ("compression.gzip.level", "10", "1 to 9, or -1"),
        ("log.message.timestamp.type", "Never", "CreateTime, LogAppendTime"),
        ("num.partitons", "1", "did you mean num.partitions?"),
        ("zzz", "1", "unknown key"),
    ],
)
def test_a_mistake_names_the_key_the_value_and_what_was_expected(
    name: str, text: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        KafkaConfig({name: text})
    assert name in str(caught.value)
    assert repr(text) in str(caught.value)
    assert expected in str(caught.value)


def test_the_development_profile_applies_only_without_process_roles() -> None:
    assert KafkaConfig().get_int("offsets.topic.num.partitions") == 1
    roles = {"process.roles": "broker,controller", "node.id": "3"}
    config = KafkaConfig({**roles, "controller.listener.names": "CONTROLLER"})
    assert config.get_int("offsets.topic.num.partitions") == 50
    with pytest.raises(ConfigError, match=r"node\.id: must be set"):
        KafkaConfig({"process.roles": "broker", "controller.listener.names": "C"})


def test_a_listeners_own_key_is_known_by_its_suffix() -> None:
    KafkaConfig({"listener.name.internal.ssl.keystore.location": "x"})
    with pytest.raises(ConfigError):
        KafkaConfig({"listener.name.internal.no.such.key": "x"})


def test_dynamic_values_win_over_static_ones_and_the_brokers_over_the_clusters() -> None:
    config = KafkaConfig({"message.max.bytes": "1000"})
    seen: list[set[str]] = []
    config.listeners.append(seen.append)
    assert config.get("message.max.bytes") == 1000
    assert config.update_dynamic({}, {"message.max.bytes": "2000"}) == {"message.max.bytes"}
    assert config.get("message.max.bytes") == 2000
    config.update_dynamic({"message.max.bytes": "3000"}, {"message.max.bytes": "2000"})
    assert config.get("message.max.bytes") == 3000
    config.update_dynamic({}, {})
    assert config.get("message.max.bytes") == 1000
    assert seen == [{"message.max.bytes"}] * 3
    assert config.update_dynamic({}, {}) == set()


def test_a_topics_value_is_its_override_then_the_broker_synonym_then_the_default() -> None:
    config = KafkaConfig({"log.retention.hours": "2", "message.max.bytes": "5000"})
    assert config.topic_config({}).retention_ms == 2 * 3_600_000
    assert config.topic_config({}).max_message_bytes == 5000
    assert config.topic_config({"retention.ms": "7"}).retention_ms == 7
    assert KafkaConfig().topic_config({}).retention_ms == 604_800_000
    both = KafkaConfig({"log.retention.hours": "2", "log.retention.ms": "9"})
    assert both.topic_config({}).retention_ms == 9


def test_log_dirs_wins_over_log_dir() -> None:
    assert KafkaConfig({"log.dir": "a"}).log_dirs() == [Path("a")]
    assert KafkaConfig({"log.dir": "a", "log.dirs": "b, c"}).log_dirs() == [Path("b"), Path("c")]


@pytest.mark.parametrize("text", ["", " ", ","])
def test_log_dirs_that_name_no_directory_are_not_the_default(text: str) -> None:
    with pytest.raises(ConfigError, match="at least one directory"):
        KafkaConfig({"log.dirs": text}).log_dirs()


def test_a_value_and_what_is_remembered_of_it_come_from_one_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An update comes when a reader has found the text, and has not yet remembered its value."""
    config = KafkaConfig()
    config.update_dynamic({"message.max.bytes": "1000"}, {})
    really = kafka_config.parse_value

    def update_meanwhile(definition: ConfigDef, text: str) -> Value:
        monkeypatch.setattr(kafka_config, "parse_value", really)
        config.update_dynamic({"message.max.bytes": "2000"}, {})
        return really(definition, text)

    monkeypatch.setattr(kafka_config, "parse_value", update_meanwhile)
    assert config.get("message.max.bytes") == 1000, "what was true when it was asked"
    assert config.get("message.max.bytes") == 2000


def test_a_configuration_that_could_be_is_checked_and_changes_nothing() -> None:
    config = KafkaConfig({"message.max.bytes": "1000"})
    asked: list[Value] = []
    config.checks.append(lambda other: asked.append(other.get("message.max.bytes")))
    other = config.with_dynamic({"message.max.bytes": "2000", "my.own.key": "x"}, {})
    assert (other.get("message.max.bytes"), config.get("message.max.bytes")) == (2000, 1000)
    assert asked == [2000]
    with pytest.raises(ConfigError, match="whole number"):
        config.with_dynamic({}, {"message.max.bytes": "many"})


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("log.preallocate", "TRUE", "true"),
        ("num.io.threads", " +9 ", "9"),
        ("log.cleanup.policy", "delete, compact,delete", "delete,compact"),
        ("log.cleaner.min.cleanable.ratio", "0.50", "0.5"),
        ("log.cleaner.io.max.bytes.per.second", "12345678.5", "1.23456785E7"),
        ("log.cleaner.io.max.bytes.per.second", "1.7976931348623157E308", "1.7976931348623157E308"),
        ("log.cleaner.io.max.bytes.per.second", "10000000", "1.0E7"),
        ("compression.type", " gzip ", "gzip"),
    ],
)
def test_a_value_is_told_as_kafka_tells_it(name: str, text: str, shown: str) -> None:
    assert value_text(parse_value(catalogue().broker[name], text)) == shown


def test_a_properties_file_is_read_as_java_does(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("a.b = 1\\\n  2\n# no\nc:\\u0041\n")
    assert load_properties(file) == {"a.b": "12", "c": "A"}
    with pytest.raises(ConfigError, match="No such file"):
        load_properties(tmp_path / "absent")
