"""What is told about configuration: DescribeConfigs' entries, and the controller's questions.

`ConfigSchema` answers the controller (`replication.controller.context.ConfigSchema`): is this
change valid, is this key a list, what would a topic's configs be. `describe_*` list a resource's
entries with their source and synonyms as Kafka's ConfigHelper does.

Gaps: documentation (`docs.txt`, our own words) covers topic keys and the broker keys behind
them, some group keys and client metrics; the others have none (null).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

from replication.controller.context import EffectiveConfig
from server.config.kafka_config import (
    ConfigDef,
    ConfigError,
    KafkaConfig,
    catalogue,
    parse_value,
    unit_ms,
    value_text,
    without_listener_prefix,
)
from server.config.validation import (
    validate_broker_config,
    validate_client_metrics_config,
    validate_group_config,
    validate_topic_config,
)
from wire.errors import ErrorCode, KafkaError

# Resource types (org.apache.kafka.common.config.ConfigResource.Type).
TOPIC = 2
BROKER = 4
BROKER_LOGGER = 8
CLIENT_METRICS = 16
GROUP = 32

# Config sources (DescribeConfigs).
TOPIC_CONFIG = 1
DYNAMIC_BROKER_CONFIG = 2
DYNAMIC_DEFAULT_BROKER_CONFIG = 3
STATIC_BROKER_CONFIG = 4
DEFAULT_CONFIG = 5
DYNAMIC_BROKER_LOGGER_CONFIG = 6
CLIENT_METRICS_CONFIG = 7
GROUP_CONFIG = 8

CONFIG_TYPES = {
    name: number
    for number, name in enumerate(
        ("BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD"), 1
    )
}


@cache
def documentation() -> Mapping[str, str]:
    """What keys mean, by name; a topic or group key lends its text to its broker keys.

    Read at the first request that asks for it.
    """
    texts: dict[str, str] = {}
    for line in Path(__file__).with_name("docs.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            name, _, text = line.partition(" | ")
            texts[name] = text
    lent: dict[str, str] = {}
    for definition in (*catalogue().topic.values(), *catalogue().group.values()):
        if definition.name in texts:
            # Of another unit than the text speaks of: log.retention.hours for retention.ms.
            same_unit = (key for key in definition.synonyms if unit_ms(key) == 1)
            lent.update(dict.fromkeys(same_unit, texts[definition.name]))
    return {**lent, **texts}


class Synonym(NamedTuple):
    """One place a value comes from."""

    name: str
    value: str | None
    source: int


class ConfigEntry(NamedTuple):
    """One described config. `value` is None where there is none, or where it must not be told."""

    name: str
    value: str | None
    read_only: bool
    source: int
    is_sensitive: bool
    synonyms: Sequence[Synonym]
    config_type: int


def describe_topic(config: KafkaConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every config of a topic with these overrides."""
    entries = []
    for name, definition in catalogue().topic.items():
        if definition.internal and name not in overrides:
            continue
        value = _text(definition, overrides.get(name, config.topic_default(name)))
        synonyms = [Synonym(name, value, TOPIC_CONFIG)] if name in overrides else []
        synonyms += _broker_synonyms(config, *definition.synonyms)
        entries.append(_entry(definition, value, synonyms))
    return entries


def describe_broker(config: KafkaConfig) -> list[ConfigEntry]:
    """Every config of this broker, those of a plugin's that were set dynamically too."""
    entries = []
    for name, definition in catalogue().broker.items():
        if definition.internal and not config.is_set(name):
            continue
        synonyms = _broker_synonyms(config, *_alternatives(name), of=name)
        entries.append(_entry(definition, _text(definition, config.text(name)), synonyms))
    custom = {**config.dynamic_default, **config.dynamic_broker}.keys() - catalogue().broker.keys()
    for name in sorted(custom):
        definition, synonyms = _custom(name), _broker_synonyms(config, name)
        entries.append(_entry(definition, _text(definition, synonyms[0].value), synonyms))
    return entries


def describe_cluster_default(config: KafkaConfig) -> list[ConfigEntry]:
    """The cluster-wide dynamic broker configs (resource BROKER with an empty name): those set."""
    return [
        _entry(
            catalogue().broker.get(name) or _custom(name),
            value,
            [Synonym(name, value, DYNAMIC_DEFAULT_BROKER_CONFIG)],
        )
        for name, value in config.dynamic_default.items()
    ]


def describe_group(config: KafkaConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every config of a group with these overrides."""
    entries = []
    for name, definition in catalogue().group.items():
        below = _broker_synonyms(config, *definition.synonyms) or [
            Synonym(name, definition.default, DEFAULT_CONFIG)
        ]
        value = _text(definition, overrides.get(name, below[0].value))
        synonyms = [Synonym(name, value, GROUP_CONFIG)] if name in overrides else []
        entries.append(_entry(definition, value, synonyms + below))
    return entries


def describe_client_metrics(overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every config of a client-metrics subscription."""
    entries = []
    for name, definition in catalogue().client_metrics.items():
        value = _text(definition, overrides.get(name, definition.default))
        synonyms = [Synonym(name, value, CLIENT_METRICS_CONFIG)] if name in overrides else []
        entries.append(_entry(definition, value, synonyms))
    return entries


def _entry(definition: ConfigDef, value: str | None, synonyms: Sequence[Synonym]) -> ConfigEntry:
    """The source is that of the first synonym: whoever gave the value."""
    if definition.sensitive:
        value, synonyms = None, [s._replace(value=None) for s in synonyms]
    return ConfigEntry(
        definition.name,
        value,
        definition.update_mode == "read-only",
        synonyms[0].source if synonyms else DEFAULT_CONFIG,
        definition.sensitive,
        synonyms,
        CONFIG_TYPES.get(definition.type, 0),
    )


def _text(definition: ConfigDef, text: str | None) -> str | None:
    """A value as it is understood, not as it was typed: `True` is `true`, ` 5 ` is `5`. What an
    older release has let in, and cannot be understood, is told as it is.
    """
    try:
        return None if text is None else value_text(parse_value(definition, text))
    except ConfigError:
        return text


def _custom(name: str) -> ConfigDef:
    """A key of one listener is as that of all (Kafka: KafkaConfig.configType). Of a key that Kafka
    does not know the value may be a secret.
    """
    known = catalogue().broker.get(without_listener_prefix(name))
    if known is not None:
        return known._replace(name=name)
    return ConfigDef(name, "", None, None, "", "read-only", (), False, True, False)


@cache
def _alternatives(name: str) -> tuple[str, ...]:
    """The broker keys that stand for the same as this one, in other units (Kafka:
    brokerConfigSynonyms). `log.flush.interval.ms` has its default from the scheduler's.
    """
    for definition in catalogue().topic.values():
        keys = definition.synonyms
        if name in keys and len(keys) > 1 and (name == keys[0] or unit_ms(keys[1]) != 1):
            return keys
    return (name,)


def _broker_synonyms(config: KafkaConfig, *names: str, of: str | None = None) -> list[Synonym]:
    """Where the broker key `of` (without it: the first of `names`) has its value from, then what
    would count without it: by layer, within a layer by name. What stands above the key itself is
    left out (Kafka: configSynonyms).
    """
    known = catalogue().broker
    defaults = {name: config.default(name) for name in names if name in known}
    layers: tuple[tuple[Mapping[str, str | None], int], ...] = (
        (config.dynamic_broker, DYNAMIC_BROKER_CONFIG),
        (config.dynamic_default, DYNAMIC_DEFAULT_BROKER_CONFIG),
        (config.static, STATIC_BROKER_CONFIG),
        (defaults, DEFAULT_CONFIG),
    )
    found = [
        Synonym(name, layer[name], source)
        for layer, source in layers
        for name in names
        if layer.get(name) is not None
    ]
    return list(dropwhile(lambda synonym: synonym.name != (of or names[0]), found))


class ConfigSchema:
    """The controller's view of the catalogue; see replication.controller.context."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config

    def validate(self, resource_type: int, resource_name: str, values: Mapping[str, str]) -> None:
        """Check a resource's dynamic values; see the protocol for the errors."""
        if resource_type == TOPIC:
            validate_topic_config(values)
        elif resource_type == BROKER:
            validate_broker_config(values, per_broker=bool(resource_name))
        elif resource_type == GROUP:
            validate_group_config(self._config, values)
        elif resource_type == CLIENT_METRICS:
            validate_client_metrics_config(values)
        else:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"resource type {resource_type} has no dynamic configs"
            )

    def is_list(self, resource_type: int, name: str) -> bool:
        """Whether APPEND and SUBTRACT make sense for this key: of topics and brokers only."""
        known = {TOPIC: catalogue().topic, BROKER: catalogue().broker}.get(resource_type, {})
        return name in known and known[name].type == "LIST"

    def default_value(self, resource_type: int, name: str) -> str | None:
        """The value without any dynamic config of the resource itself, of a key that is a list."""
        if resource_type == TOPIC:
            return self._config.topic_default(name)
        return self._config.static.get(name, self._config.default(name))

    def topic_configs(
        self,
        overrides: Mapping[str, str],
        dynamic_broker: Mapping[str, str],
        dynamic_default: Mapping[str, str],
    ) -> Sequence[EffectiveConfig]:
        """Every config a topic with these overrides would have."""
        config = KafkaConfig(self._config.static)
        config.update_dynamic(dynamic_broker, dynamic_default)
        return [
            EffectiveConfig(e.name, e.value, e.read_only, e.source, e.is_sensitive)
            for e in describe_topic(config, overrides)
        ]


def selected(entries: Iterable[ConfigEntry], names: Sequence[str] | None) -> list[ConfigEntry]:
    """The entries whose names were asked for; None or none asks for all (an empty list too)."""
    if not names:
        return list(entries)
    wanted = set(names)
    return [entry for entry in entries if entry.name in wanted]
