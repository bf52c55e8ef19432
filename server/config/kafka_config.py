"""The broker's configuration: Kafka's keys, types, defaults and units, checked before anything
starts.

Why: a typing mistake in a configuration must be one clear line that names the key, the value and
what was expected, not a broker that runs with something else. So every key of Kafka 4.3 is known
(`catalogue.txt`, as data), unknown keys are refused with the nearest known one, and values
are parsed and range-checked once.

How a value is found (Kafka's order, DynamicBrokerConfig): this broker's dynamic value, the cluster-
wide dynamic value, the static value (server.properties, --set), the default. A topic's value: the
topic's own override, then the broker keys that are its synonyms in their order, then the default.

Defaults are Kafka's, except DEFAULTS, measured, and PROFILE: a node that is not told its
`process.roles` is a development node of one, where nobody waits for a second replica or for a
rebalance that cannot come (the book, part 7).

Keys that are valid but change nothing here yet are those `server.node.settings` does not know; the
broker names them at start when they are set, and the README's gap ledger lists them by area.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from storage.config import LogConfig
from wire.errors import ErrorCode, KafkaError

Value = bool | int | float | str | list[str] | None

# A development node's defaults, where they differ from Kafka's.
PROFILE: Mapping[str, str] = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "barnabas-data",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
}

# Every node's defaults, where they differ from Kafka's: server.socket_server says why.
DEFAULTS: Mapping[str, str] = {
    "num.network.threads": "1",
    "num.io.threads": "2",
    "queued.max.request.bytes": "134217728",
    "socket.send.buffer.bytes": "393216",
    "socket.receive.buffer.bytes": "-1",
    "socket.listen.backlog.size": "512",
}

_INT_BITS = {"SHORT": 16, "INT": 32, "LONG": 64}
_MINUTES_MS = 60_000
_HOURS_MS = 3_600_000
_RANGE = re.compile(r"\[(-?[\d.]+)?(?:,?\.\.\.)(?:,(-?[\d.]+))?\](?: or (-?\d+))?$")
_THROTTLED_REPLICA = re.compile(r"[0-9]+:[0-9]+")
_CHOICE = re.compile(r"(\(case insensitive\) )?\[([A-Za-z_0-9, :]+)\]$")


class ConfigError(ValueError):
    """A configuration mistake of the user's: names the key, the value and what was expected."""

    def __init__(self, name: str, value: str | None, expected: str) -> None:
        self.name = name
        self.value = value
        self.expected = expected
        shown = "" if value is None else f" = {value!r}"
        super().__init__(f"config {name}{shown}: {expected}")


class ConfigDef(NamedTuple):
    """One key: what it may hold. `synonyms` are the broker keys that give a topic or group key its
    default.
    """

    name: str
    type: str
    default: str | None
    valid: str | None
    importance: str
    update_mode: str
    synonyms: tuple[str, ...]
    internal: bool
    sensitive: bool
    required: bool


class Catalogue(NamedTuple):
    """All keys, by the resource they belong to and by name."""

    broker: Mapping[str, ConfigDef]
    topic: Mapping[str, ConfigDef]
    group: Mapping[str, ConfigDef]
    client_metrics: Mapping[str, ConfigDef]


@cache
def catalogue() -> Catalogue:
    """Read the catalogue that ships beside this module."""
    sections: dict[str, dict[str, ConfigDef]] = {}
    current: dict[str, ConfigDef] = {}
    for line in Path(__file__).with_name("catalogue.txt").read_text("utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            current = sections[line.strip("[]")] = {}
            continue
        name, type_, default, valid, importance, extra, flags = line.split(" | ")
        is_mode = extra in ("read-only", "per-broker", "cluster-wide")
        current[name] = ConfigDef(
            name=name,
            type=type_,
            default=None if default == "-" else "" if default == '""' else default,
            valid=None if valid == "-" else valid,
            importance=importance,
            update_mode=extra if is_mode else "",
            synonyms=() if is_mode or extra == "-" else tuple(extra.split(",")),
            internal="i" in flags,
            sensitive="s" in flags,
            required="n" in flags,
        )
    return Catalogue(**sections)


def parse_value(definition: ConfigDef, text: str) -> Value:
    """Turn a property's text into its typed value; ConfigError names what was expected."""
    text = text.strip()
    type_ = definition.type
    value: Value
    if type_ == "BOOLEAN":
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise ConfigError(definition.name, text, "expected true or false")
        return lowered == "true"
    if type_ in _INT_BITS:
        value = _parse_int(definition, text, _INT_BITS[type_])
    elif type_ == "DOUBLE":
        try:
            value = float(text)
        except ValueError:
            raise ConfigError(definition.name, text, "expected a number") from None
    elif type_ == "LIST":
        value = [item.strip() for item in text.split(",") if item.strip()]
    else:
        value = text
    _check_valid(definition, text, value)
    return value


def _parse_int(definition: ConfigDef, text: str, bits: int) -> int:
    if not re.fullmatch(r"[+-]?\d{1,20}", text):
        raise ConfigError(definition.name, text, f"expected a whole number ({definition.type})")
    value = int(text)
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ConfigError(definition.name, text, f"does not fit {definition.type} ({bits} bits)")
    return value


def is_number(text: str, below: int) -> bool:
    """Is it a whole number from 0, in plain digits (`int` takes more, and raises for thousands)."""
    return text.isascii() and text.isdigit() and len(text) < 20 and int(text) < below


def _check_valid(definition: ConfigDef, text: str, value: Value) -> None:
    valid = definition.valid
    if valid is None:
        return
    if isinstance(value, int | float):
        _check_range(definition, text, value, valid)
    elif valid == "non-empty string" or valid == "non-null string":
        if not value and valid == "non-empty string":
            raise ConfigError(definition.name, text, "expected a non-empty string")
    elif valid == "non-empty list":
        if not value and definition.default != "":
            raise ConfigError(definition.name, text, "expected a non-empty list")
    elif valid.startswith("[partitionId]"):
        _check_throttled_replicas(definition, text, value)
    elif (choice := _CHOICE.match(valid)) is not None:
        _check_choice(definition, text, value, choice)


def _check_range(definition: ConfigDef, text: str, value: int | float, valid: str) -> None:
    match = _RANGE.match(valid)
    if match is None:
        return
    low, high, other = match.groups()
    if other is not None and value == int(other):
        return
    if (low is not None and value < float(low)) or (high is not None and value > float(high)):
        wanted = f"at least {low}" if high is None else f"{low} to {high}"
        raise ConfigError(
            definition.name, text, f"expected {wanted}" + (f", or {other}" if other else "")
        )


def _check_throttled_replicas(definition: ConfigDef, text: str, value: Value) -> None:
    """`*` alone, or partition:broker pairs (Kafka: ThrottledReplicaListValidator). What is not one
    of these would throttle nothing, silently."""
    assert isinstance(value, list)
    if value != ["*"] and not all(_THROTTLED_REPLICA.fullmatch(item) for item in value):
        raise ConfigError(
            definition.name, text, "expected * or partition:broker pairs, separated by commas"
        )


def _check_choice(definition: ConfigDef, text: str, value: Value, choice: re.Match[str]) -> None:
    fold = choice.group(1) is not None
    allowed = [item.strip() for item in choice.group(2).split(",")]
    given = value if isinstance(value, list) else [str(value)]
    wanted = {item.lower() for item in allowed} if fold else set(allowed)
    for item in given:
        if (item.lower() if fold else item) not in wanted and not any(
            option.startswith("by_duration") and item.startswith("by_duration:")
            for option in allowed
        ):
            raise ConfigError(definition.name, text, f"expected one of {', '.join(allowed)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"unknown key; did you mean {close[0]}?" if close else "unknown key"


def load_properties(path: Path) -> dict[str, str]:
    """Read a server.properties file (Java's format). ConfigError when it cannot be read."""
    import javaproperties

    try:
        with path.open("rb") as file:
            return dict(javaproperties.load(file))
    except OSError as error:
        raise ConfigError(str(path), None, f"cannot be read: {error.strerror}") from None
    except (ValueError, javaproperties.InvalidUEscapeError) as error:
        raise ConfigError(str(path), None, f"is not a properties file: {error}") from None


class KafkaConfig:
    """One node's configuration, static values and dynamic ones.

    `listeners` of a changed value are called with the set of changed keys after `update_dynamic`.
    Owner: the metadata publisher's thread writes, everybody reads; a read sees either the old or
    the new mapping, never half of one.
    """

    def __init__(self, static: Mapping[str, str] | None = None) -> None:
        """Check and take the static values. Raises ConfigError."""
        given = dict(static or {})
        if "broker.id" in given:  # node.id's older name: one value for both, as in Kafka
            given.setdefault("node.id", given["broker.id"])
        known = catalogue().broker
        for name in given:
            if name not in known and _without_listener_prefix(name) not in known:
                raise ConfigError(name, given[name], _nearest(name, known))
        self._defaults = DEFAULTS if "process.roles" in given else {**DEFAULTS, **PROFILE}
        self.static: Mapping[str, str] = given
        self.dynamic_broker: Mapping[str, str] = {}
        self.dynamic_default: Mapping[str, str] = {}
        self._parsed: dict[str, Value] = {}
        self.listeners: list[Callable[[set[str]], None]] = []
        for name in given:
            if name in known:
                parse_value(known[name], given[name])
        for name, definition in known.items():
            if definition.required and self.text(name) is None:
                raise ConfigError(name, None, "must be set where process.roles is set")

    def default(self, name: str) -> str | None:
        """The default of `name` as text: ours, where it differs, else Kafka's."""
        ours = self._defaults.get(name)
        return catalogue().broker[name].default if ours is None else ours

    def text(self, name: str) -> str | None:
        """The effective value of a broker key as text; None when it has none."""
        for layer in (self.dynamic_broker, self.dynamic_default, self.static):
            if name in layer:
                return layer[name]
        return self.default(name)

    def is_set(self, name: str) -> bool:
        """Whether somebody gave this key a value (as against its default)."""
        return name in self.static or name in self.dynamic_default or name in self.dynamic_broker

    def get(self, name: str) -> Value:
        """The effective typed value of a broker key."""
        if name in self._parsed:
            return self._parsed[name]
        text = self.text(name)
        value = None if text is None else parse_value(catalogue().broker[name], text)
        self._parsed[name] = value
        return value

    def get_int(self, name: str) -> int:
        """The value of a key whose type is INT, LONG or SHORT."""
        value = self.get(name)
        assert isinstance(value, int), name
        return value

    def get_list(self, name: str) -> list[str]:
        """The value of a LIST key; empty when it has none."""
        value = self.get(name)
        return value if isinstance(value, list) else []

    def get_str(self, name: str) -> str:
        """The value of a STRING key; empty when it has none."""
        value = self.get(name)
        return value if isinstance(value, str) else ""

    def update_dynamic(self, broker: Mapping[str, str], default: Mapping[str, str]) -> set[str]:
        """Take new dynamic values (this broker's and the cluster-wide ones); returns the keys whose
        value changed.
        """
        names = {*self.dynamic_broker, *self.dynamic_default, *broker, *default}
        before = {name: self.text(name) for name in names if name in catalogue().broker}
        self.dynamic_broker, self.dynamic_default = dict(broker), dict(default)
        changed = {name for name, text in before.items() if self.text(name) != text}
        self._parsed = {}
        for listener in self.listeners if changed else ():
            listener(changed)
        return changed

    def log_dirs(self) -> list[Path]:
        """`log.dirs`, else `log.dir`; each path as given. Raises ConfigError if they name none."""
        is_older = self.is_set("log.dir") or self.default("log.dirs") is None
        key = "log.dir" if is_older and not self.is_set("log.dirs") else "log.dirs"
        dirs = [Path(item) for item in self.get_list(key)]
        if not dirs:
            raise ConfigError(key, self.text(key) or "", "expected at least one directory")
        return dirs

    # ---- topics

    def topic_default(self, name: str) -> str | None:
        """A topic key's default on this broker, through its broker synonyms, as text."""
        definition = catalogue().topic[name]
        for synonym in definition.synonyms:
            if self.is_set(synonym) or synonym in self._defaults:
                text = self.text(synonym)
                if text is not None and unit_ms(synonym) != 1:
                    return str(max(int(text) * unit_ms(synonym), -1))  # -1: for ever
                return text
        return definition.default

    def topic_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """The typed configuration of a topic with these overrides."""
        values: dict[str, str] = {}
        for name in catalogue().topic:
            text = overrides.get(name)
            if text is None:
                text = self.topic_default(name)
            if text is not None:
                values[name] = text
        if "internal.segment.bytes" in values:
            values["segment.bytes"] = values["internal.segment.bytes"]
        return LogConfig.from_values(values)


def unit_ms(name: str) -> int:
    """How many ms one unit of this key is, read off its name (Kafka's *.minutes and *.hours)."""
    if name.endswith(".minutes"):
        return _MINUTES_MS
    return _HOURS_MS if name.endswith(".hours") else 1


def _without_listener_prefix(name: str) -> str:
    """`listener.name.<listener>.<key>` configures `<key>` for one listener."""
    if not name.startswith("listener.name."):
        return name
    return name.removeprefix("listener.name.").partition(".")[2]


# What a topic may ask that this broker cannot give is refused, not taken and ignored.
_REFUSED_TOPIC_VALUES: Mapping[str, tuple[str, str]] = {
    "remote.storage.enable": ("true", "tiered storage is not served; remove the key"),
}


def validate_topic_config(values: Mapping[str, str]) -> None:
    """Check a topic's overrides. Raises KafkaError(INVALID_CONFIG) with the key, the value and what
    was expected.
    """
    _validate(values, catalogue().topic, "topic")
    for name, (refused, why) in _REFUSED_TOPIC_VALUES.items():
        if values.get(name, "").lower() == refused:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"config {name} = {refused!r}: {why}")
    low, high = values.get("min.compaction.lag.ms"), values.get("max.compaction.lag.ms")
    if low is not None and high is not None and int(low) > int(high):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"config min.compaction.lag.ms = {low!r}: expected at most max.compaction.lag.ms"
            f" ({high})",
        )


def validate_broker_config(values: Mapping[str, str]) -> None:
    """Check dynamic broker values: known, well-typed, not read-only. Raises
    KafkaError(INVALID_CONFIG).
    """
    known = catalogue().broker
    for name, text in values.items():
        definition = known.get(_without_listener_prefix(name))
        if definition is not None and definition.update_mode == "read-only":
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"config {name} = {text!r}: read-only, can only be set in server.properties",
            )
    _validate(values, known, "broker")


def validate_group_config(values: Mapping[str, str]) -> None:
    """Check a group's overrides. Raises KafkaError(INVALID_CONFIG)."""
    _validate(values, catalogue().group, "group")


def validate_client_metrics_config(values: Mapping[str, str]) -> None:
    """Check a client-metrics subscription. Raises KafkaError(INVALID_CONFIG)."""
    _validate(values, catalogue().client_metrics, "client-metrics")


def _validate(values: Mapping[str, str], known: Mapping[str, ConfigDef], kind: str) -> None:
    for name, text in values.items():
        definition = known.get(name) or known.get(_without_listener_prefix(name))
        if definition is None:
            detail = f"config {name}: {_nearest(name, known)} ({kind})"
            raise KafkaError(ErrorCode.INVALID_CONFIG, detail)
        try:
            parse_value(definition, text)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
