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
from pathlib import Path
from typing import NamedTuple

from replication.controller.context import EffectiveConfig
from server.config.kafka_config import (
    ConfigDef,
    KafkaConfig,
    catalogue,
    unit_ms,
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
        synonyms = [Synonym(name, overrides[name], TOPIC_CONFIG)] if name in overrides else []
        for key in definition.synonyms:
            synonyms += _broker_synonyms(config, key)
        # Kafka names the synonyms of another unit only where somebody set them.
        synonyms = [s for s in synonyms if s.source != DEFAULT_CONFIG or unit_ms(s.name) == 1]
        if synonyms:
            value, source = synonyms[0].value, synonyms[0].source
            if unit_ms(synonyms[0].name) != 1:
                value = config.topic_default(name)
        else:
            value, source = config.topic_default(name), DEFAULT_CONFIG
        entries.append(_entry(definition, value, source, synonyms, read_only=False))
    return entries


def describe_broker(config: KafkaConfig) -> list[ConfigEntry]:
    """Every config of this broker."""
    entries = []
    for name, definition in catalogue().broker.items():
        if definition.internal and not config.is_set(name):
            continue
        synonyms = _broker_synonyms(config, name)
        source = synonyms[0].source if synonyms else DEFAULT_CONFIG
        read_only = definition.update_mode == "read-only"
        entries.append(_entry(definition, config.text(name), source, synonyms, read_only=read_only))
    return entries


def describe_cluster_default(config: KafkaConfig) -> list[ConfigEntry]:
    """The cluster-wide dynamic broker configs (resource BROKER with an empty name): those set."""
    return [
        _entry(
            catalogue().broker[name],
            value,
            DYNAMIC_DEFAULT_BROKER_CONFIG,
            [Synonym(name, value, DYNAMIC_DEFAULT_BROKER_CONFIG)],
            read_only=False,
        )
        for name, value in config.dynamic_default.items()
        if name in catalogue().broker
    ]


def describe_group(config: KafkaConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every config of a group with these overrides."""
    entries = []
    for name, definition in catalogue().group.items():
        synonyms = [Synonym(name, overrides[name], GROUP_CONFIG)] if name in overrides else []
        for key in definition.synonyms:
            synonyms += _broker_synonyms(config, key)
        value = synonyms[0].value if synonyms else definition.default
        source = synonyms[0].source if synonyms else DEFAULT_CONFIG
        entries.append(_entry(definition, value, source, synonyms, read_only=False))
    return entries


def describe_client_metrics(overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every config of a client-metrics subscription."""
    return [
        _entry(
            definition,
            overrides.get(name, definition.default),
            CLIENT_METRICS_CONFIG if name in overrides else DEFAULT_CONFIG,
            (),
            read_only=False,
        )
        for name, definition in catalogue().client_metrics.items()
    ]


def _entry(
    definition: ConfigDef,
    value: str | None,
    source: int,
    synonyms: Sequence[Synonym],
    *,
    read_only: bool,
) -> ConfigEntry:
    if definition.sensitive:
        value, synonyms = None, [s._replace(value=None) for s in synonyms]
    kind = CONFIG_TYPES.get(definition.type, 0)
    return ConfigEntry(
        definition.name, value, read_only, source, definition.sensitive, synonyms, kind
    )


def _broker_synonyms(config: KafkaConfig, name: str) -> list[Synonym]:
    layers = (
        (config.dynamic_broker, DYNAMIC_BROKER_CONFIG),
        (config.dynamic_default, DYNAMIC_DEFAULT_BROKER_CONFIG),
        (config.static, STATIC_BROKER_CONFIG),
    )
    found = [Synonym(name, layer[name], source) for layer, source in layers if name in layer]
    default = config.default(name)
    if default is not None:
        found.append(Synonym(name, default, DEFAULT_CONFIG))
    return found


class ConfigSchema:
    """The controller's view of the catalogue; see replication.controller.context."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config

    def validate(
        self,
        resource_type: int,
        resource_name: str,
        values: Mapping[str, str],
        changed: frozenset[str],
    ) -> None:
        """Check a resource's dynamic values; see the protocol for the errors."""
        if resource_type == TOPIC:
            validate_topic_config(values)
        elif resource_type == BROKER:
            self._validate_broker(resource_name, values, changed)
        elif resource_type == GROUP:
            _require_name(resource_name, "group")
            validate_group_config(values)
        elif resource_type == CLIENT_METRICS:
            _require_name(resource_name, "client-metrics subscription")
            validate_client_metrics_config(values)
        else:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"resource type {resource_type} has no dynamic configs"
            )

    def is_list(self, resource_type: int, name: str) -> bool:
        """Whether APPEND and SUBTRACT make sense for this key."""
        definition = _definitions(resource_type).get(name)
        return definition is not None and definition.type == "LIST"

    def default_value(self, resource_type: int, name: str) -> str | None:
        """The value without any dynamic config of the resource itself."""
        if resource_type == TOPIC:
            return self._config.topic_default(name) if name in catalogue().topic else None
        definition = _definitions(resource_type).get(name)
        if resource_type == BROKER and definition is not None:
            return self._config.static.get(name, self._config.default(name))
        return None if definition is None else definition.default

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

    def _validate_broker(
        self, resource_name: str, values: Mapping[str, str], changed: frozenset[str]
    ) -> None:
        if resource_name and not resource_name.isdigit():
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"broker resource {resource_name!r}: expected a broker id or an empty name",
            )
        validate_broker_config(values)
        known = catalogue().broker
        for name in changed:
            definition = known.get(name)
            if not resource_name and definition and definition.update_mode == "per-broker":
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"config {name}: can only be set for one broker, not cluster-wide",
                )


def _require_name(name: str, what: str) -> None:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the name of a {what} must not be empty")


def _definitions(resource_type: int) -> Mapping[str, ConfigDef]:
    return {
        TOPIC: catalogue().topic,
        BROKER: catalogue().broker,
        GROUP: catalogue().group,
        CLIENT_METRICS: catalogue().client_metrics,
    }.get(resource_type, {})


def selected(entries: Iterable[ConfigEntry], names: Sequence[str] | None) -> list[ConfigEntry]:
    """The entries whose names were asked for; None or none asks for all (an empty list too)."""
    if not names:
        return list(entries)
    wanted = set(names)
    return [entry for entry in entries if entry.name in wanted]
