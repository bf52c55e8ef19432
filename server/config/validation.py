"""May dynamic configs become what somebody asks: topics, groups, client metrics, brokers.

What: each `validate_*` takes all dynamic values a resource would have and raises KafkaError with
the key, the value and what was expected. Codes as Kafka's: INVALID_CONFIG for topics and groups;
INVALID_REQUEST for all of brokers (KAFKA-13609) and most of client metrics.

How (Kafka: ConfigAdminManager, DynamicBrokerConfig, GroupConfig, ClientMetricsConfigs): a broker's
values are checked twice. The controller looks at names and types (`validate_broker_config`). The
broker itself knows its static values: it builds the configuration it would have, checks it as at
start, and asks whether what runs can change so far (`validate_reconfiguration`). Keys of a broker
that Kafka does not know are taken, for plugins; they are described without their value.

Stricter than Kafka: listeners can be neither added nor removed while a broker runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from server import linear_regex
from server.config.kafka_config import (
    ConfigDef,
    ConfigError,
    KafkaConfig,
    Value,
    catalogue,
    nearest,
    parse_value,
    without_listener_prefix,
)
from wire.errors import ErrorCode, KafkaError

# What a topic may ask that this broker cannot give is refused, not taken and ignored.
_REFUSED_TOPIC_VALUES: Mapping[str, tuple[str, str]] = {
    "remote.storage.enable": ("true", "tiered storage is not served; remove the key"),
}

_INTERVAL_MS = "interval.ms"
_INTERVAL_MS_MIN, _INTERVAL_MS_MAX = 100, 3_600_000
_MATCH_PARAMETERS = {
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
}

# Of a running pool of threads: at least half of what it has, at most double (DynamicThreadPool).
_THREADS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
)
_CLASSES = ("metric.reporters", "principal.builder.class")

# Set for one listener only (SslConfigs.RECONFIGURABLE_CONFIGS).
_LISTENER_ONLY = frozenset(
    (
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    )
)


# Of a listener's keys, what may be said of that listener of all brokers at once.
_OF_ANY_BROKERS_LISTENER = frozenset(
    ("max.connections", "max.connection.creation.rate", "num.network.threads")
)

_SECURITY = re.compile(
    r"(ssl|sasl(?!\.kerberos)|security)\..*"
    r"|principal\.builder\.class|listener\.security\.protocol\.map"
    r"|connections\.max\.reauth\.ms|connection\.failed\.authentication\.delay\.ms"
)


def validate_topic_config(values: Mapping[str, str]) -> None:
    """Check a topic's overrides. Raises KafkaError(INVALID_CONFIG)."""
    _parsed(values, catalogue().topic, "topic", ErrorCode.INVALID_CONFIG)
    for name, (refused, why) in _REFUSED_TOPIC_VALUES.items():
        if values.get(name, "").strip().lower() == refused:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"config {name} = {refused!r}: {why}")
    low, high = values.get("min.compaction.lag.ms"), values.get("max.compaction.lag.ms")
    if low is not None and high is not None and int(low) > int(high):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"config min.compaction.lag.ms = {low!r}: expected at most max.compaction.lag.ms"
            f" ({high})",
        )


def _parsed(
    values: Mapping[str, str], known: Mapping[str, ConfigDef], kind: str, unknown: ErrorCode
) -> dict[str, Value]:
    """The typed values. Raises KafkaError: `unknown` for an unknown key, INVALID_CONFIG."""
    parsed = {}
    for name, text in values.items():
        if name not in known:
            raise KafkaError(unknown, f"config {name}: {nearest(name, known)} ({kind})")
        try:
            parsed[name] = parse_value(known[name], text)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return parsed


# ---- groups


def validate_group_config(config: KafkaConfig, values: Mapping[str, str]) -> None:
    """Check a group's overrides against the bounds that the broker's keys set. Raises
    KafkaError(INVALID_CONFIG).
    """
    parsed = _parsed(values, catalogue().group, "group", ErrorCode.INVALID_CONFIG)
    try:
        check_groups(config, parsed)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


def check_groups(config: KafkaConfig, overrides: Mapping[str, Value]) -> None:
    """Do the broker's values for groups, under a group's `overrides`, keep the broker's bounds:
    `group.KIND.min.*` and `.max.*`, and a session longer than a heartbeat. Raises ConfigError.
    """
    for name, key, value in _group_values(config, overrides):
        kind, _, rest = key.removeprefix("group.").partition(".")
        for side in ("min", "max"):
            bound = f"group.{kind}.{side}.{rest.removeprefix('num.')}"
            if bound in catalogue().broker:
                limit = config.get_int(bound)
                if value < limit if side == "min" else value > limit:
                    wanted = "at least" if side == "min" else "at most"
                    raise ConfigError(name, str(value), f"expected {wanted} {bound} ({limit})")
        if rest == "session.timeout.ms":
            heartbeat = f"{kind}.heartbeat.interval.ms"
            interval = overrides.get(heartbeat, config.get_int(f"group.{heartbeat}"))
            assert isinstance(interval, int)
            if value <= interval:
                raise ConfigError(name, str(value), f"expected more than {heartbeat} ({interval})")


def _group_values(
    config: KafkaConfig, overrides: Mapping[str, Value]
) -> Iterator[tuple[str, str, int]]:
    """(who gives the value, its broker key, the value) of group keys that are numbers."""
    for name, definition in catalogue().group.items():
        for key in definition.synonyms:
            value = overrides.get(name, config.get(key))
            if isinstance(value, int):
                yield (name if name in overrides else key), key, value


# ---- client metrics


def validate_client_metrics_config(values: Mapping[str, str]) -> None:
    """Check a client-metrics subscription (KIP-714). Raises KafkaError: INVALID_CONFIG for what
    cannot be read, INVALID_REQUEST for an unknown key or an interval out of range.
    """
    known = catalogue().client_metrics
    parsed = _parsed(values, known, "client-metrics", ErrorCode.INVALID_REQUEST)
    interval = parsed.get(_INTERVAL_MS, _INTERVAL_MS_MIN)
    assert isinstance(interval, int)
    if not _INTERVAL_MS_MIN <= interval <= _INTERVAL_MS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"config {_INTERVAL_MS} = {interval}: expected {_INTERVAL_MS_MIN} to"
            f" {_INTERVAL_MS_MAX} (1 hour)",
        )
    patterns = parsed.get("match", [])
    assert isinstance(patterns, list)
    for pattern in patterns:
        _check_pattern(pattern)


def _check_pattern(pattern: str) -> None:
    """`parameter = regular expression`."""
    parameter, _, expression = pattern.partition("=")
    expression = expression.strip()  # as it is used
    is_legal = expression != "" and "=" not in expression and _is_regex(expression)
    if not is_legal or parameter.strip() not in _MATCH_PARAMETERS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pattern.strip()}"
        )


def _is_regex(expression: str) -> bool:
    try:
        linear_regex.compiled(expression)
    except ValueError:
        return False
    return True


# ---- brokers


def validate_broker_config(values: Mapping[str, str], *, per_broker: bool) -> None:
    """Check the names and types of a broker's dynamic values, or of the cluster-wide ones. Raises
    KafkaError(INVALID_REQUEST).
    """
    known = catalogue().broker
    for name, text in values.items():
        bare = without_listener_prefix(name)
        if bare != name and bare not in _OF_ANY_BROKERS_LISTENER and not per_broker:
            raise _refused(ConfigError(name, None, "must be set for one broker, not cluster-wide"))
        definition = known.get(bare)
        if definition is None:
            continue
        if name in _LISTENER_ONLY:
            raise _refused(ConfigError(name, None, "can only be set for one listener"))
        if name in known and definition.update_mode == "read-only":
            raise _refused(
                ConfigError(name, text, "read-only, can only be set in server.properties")
            )
        if not per_broker and definition.update_mode == "per-broker":
            raise _refused(ConfigError(name, None, "must be set for one broker, not cluster-wide"))
        try:
            parse_value(definition, text)
        except ConfigError as error:
            raise _refused(error) from None


def validate_reconfiguration(
    config: KafkaConfig, values: Mapping[str, str], *, per_broker: bool, named: Iterable[str] = ()
) -> None:
    """Check that this broker, which runs with `config`, could take these values as its own dynamic
    ones, or as the cluster-wide ones; `named` are those that were given, if only some were. Raises
    KafkaError(INVALID_REQUEST).
    """
    validate_broker_config(values, per_broker=per_broker)
    own = values if per_broker else config.dynamic_broker
    default = config.dynamic_default if per_broker else values
    try:
        changed = config.with_dynamic(own, default, named)
        _check_threads(config, changed)
        _check_classes(config, changed)
        _check_listeners(config, changed)
        _check_fixed(config, changed, {**values, **own, **default})
    except ConfigError as error:
        raise _refused(error) from None


def _refused(error: ConfigError) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, str(error))


def _check_threads(now: KafkaConfig, then: KafkaConfig) -> None:
    for name in _THREADS:
        old, new = now.get_int(name), then.get_int(name)
        if old != new and not max(old // 2, 1) <= new <= old * 2:
            raise ConfigError(
                name, str(new), f"expected {max(old // 2, 1)} to {old * 2}: half to double of {old}"
            )


def _check_classes(now: KafkaConfig, then: KafkaConfig) -> None:
    for name in _CLASSES:
        known = {catalogue().broker[name].default, now.text(name), ""}
        if then.text(name) not in known:
            raise ConfigError(name, then.text(name), "there is no such class here")


def _check_fixed(now: KafkaConfig, then: KafkaConfig, values: Mapping[str, str]) -> None:
    """Of the keys of security and of one listener only its stores and its connection limits can
    change while the broker runs; what would be taken and not obeyed is refused (Kafka:
    DynamicListenerConfig). Keys of Kerberos are taken: nobody uses them here."""
    for name in {*values, *now.dynamic_broker, *now.dynamic_default}:
        bare = without_listener_prefix(name)
        if bare in _LISTENER_ONLY or bare in _OF_ANY_BROKERS_LISTENER:
            continue
        if bare == name and not _SECURITY.fullmatch(bare):
            continue
        if now.given(name) != then.given(name):
            raise ConfigError(name, None, "cannot change while the broker runs")


def _check_listeners(now: KafkaConfig, then: KafkaConfig) -> None:
    def names(config: KafkaConfig) -> set[str]:
        return {item.partition("://")[0].upper() for item in config.get_list("listeners")}

    if names(now) != names(then):
        raise ConfigError(
            "listeners", then.text("listeners"), "cannot be added or removed while the broker runs"
        )
