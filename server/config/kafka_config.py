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
broker names them at start when they are set, and docs/GAPS.md lists them by area.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import isinf
from pathlib import Path
from typing import NamedTuple

from server.config.secret_files import holds_secrets, warn_of_others
from server.share.durations import by_duration_ms
from storage.config import LogConfig
from storage.properties import MalformedProperties, parse_properties

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

# Every node's defaults, where they differ from Kafka's: server.network.socket_server says why.
DEFAULTS: Mapping[str, str] = {
    "num.network.threads": "1",
    "num.io.threads": "2",
    "queued.max.request.bytes": "134217728",
    "socket.send.buffer.bytes": "393216",
    "socket.receive.buffer.bytes": "-1",
    "socket.listen.backlog.size": "512",
}

# Not Kafka's own, but of the class that authorizer.class.name names; only a node's file has them.
PLUGIN_KEYS = frozenset({"super.users", "allow.everyone.if.no.acl.found"})

_INT_BITS = {"SHORT": 16, "INT": 32, "LONG": 64}
_MINUTES_MS = 60_000
_HOURS_MS = 3_600_000
_RANGE = re.compile(r"\[(-?[\d.]+)?(?:,?\.\.\.)(?:,(-?[\d.]+))?\](?: or (-?\d+))?$")
_DOUBLE = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_THROTTLED_REPLICA = re.compile(r"[0-9]+:[0-9]+")
_CHOICE = re.compile(r"(\(case insensitive\) )?\[([A-Za-z_0-9, :.]+)\]$")
# Keys whose values are never shown, mistyped ones too: those of type PASSWORD and their likes.
_SECRET = re.compile(r"pas+w|pas+phrase|secret|jaas|keystore\.(key|cert)|truststore\.cert", re.I)
_MECHANISMS = r"(?:(?:plain|scram-sha-256|scram-sha-512|oauthbearer|gssapi)\.)?"
_LISTENER_KEY = re.compile(rf"listener\.name\.[^.]*\.{_MECHANISMS}(.*)", re.DOTALL)


class ConfigError(ValueError):
    """A configuration mistake of the user's: names the key, the value and what was expected."""

    def __init__(self, name: str, value: str | None, expected: str) -> None:
        self.name = name
        self.value = value
        self.expected = expected
        shown = "" if value is None else f" = {value!r}"
        if value and _SECRET.search(name):
            shown = " (its value is not shown)"
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
        value = _parse_double(definition, text)
    elif type_ == "LIST":
        value = _parse_list(definition, text)
    else:
        value = text
    _check_valid(definition, text, value)
    return value


def _parse_list(definition: ConfigDef, text: str) -> list[str]:
    """Items without blanks. An empty one is a mistake where only some are allowed (Kafka:
    ValidList)."""
    items = [item.strip() for item in text.split(",")] if text else []
    valid = definition.valid or ""
    if "" in items and (valid == "no empty items" or _CHOICE.match(valid)):
        raise ConfigError(definition.name, text, "expected no empty item between commas")
    return list(filter(None, items))


def value_text(value: Value) -> str | None:
    """A typed value as configs are described (Kafka: ConfigDef.convertToString); what a list holds
    twice is said once.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _java_double(value)
    if isinstance(value, list):
        return ",".join(dict.fromkeys(value))
    return None if value is None else str(value)


def _java_double(value: float) -> str:
    """Double.toString: an exponent below 1e-3 and from 1e7 on."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    from decimal import Decimal  # 5 ms of a start, for what only a dump of the configs shows

    digits, _, exponent = f"{Decimal(repr(value)):E}".partition("E")
    whole, _, fraction = digits.partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}E{int(exponent)}"


def _parse_int(definition: ConfigDef, text: str, bits: int) -> int:
    if not re.fullmatch(r"[+-]?\d{1,20}", text):
        raise ConfigError(definition.name, text, f"expected a whole number ({definition.type})")
    value = int(text)
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ConfigError(definition.name, text, f"does not fit {definition.type} ({bits} bits)")
    return value


def _parse_double(definition: ConfigDef, text: str) -> float:
    """NaN is within no range and outside of none, so that a range would let it in."""
    if not _DOUBLE.fullmatch(text) or isinf(value := float(text)):
        raise ConfigError(definition.name, text, "expected a number")
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
    wanted = {item.lower() if fold else item for item in allowed if ":" not in item}
    for item in given:
        is_duration = "by_duration:" in choice.group(2) and by_duration_ms(item) is not None
        if (item.lower() if fold else item) not in wanted and not is_duration:
            raise ConfigError(definition.name, text, f"expected one of {', '.join(allowed)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say of a key that nobody knows: the one that was probably meant, one slip away or
    under another prefix (`log.retention.ms` of a topic). No search by similarity: a request may
    name tens of thousands of them, and others wait meanwhile.
    """
    close = next((key for key in known if _is_one_slip(name, key)), None) or next(
        (key for key in known if name.endswith(f".{key}") or key.endswith(f".{name}")), None
    )
    return f"unknown key; did you mean {close}?" if close else "unknown key"


def _is_one_slip(typed: str, key: str) -> bool:
    """One character too many, too few, another, or two that changed places."""
    if abs(len(typed) - len(key)) > 1:
        return False
    at = next((i for i, (a, b) in enumerate(zip(typed, key, strict=False)) if a != b), None)
    if at is None:
        return True
    rest, wanted = typed[at:], key[at:]
    return (
        rest[1:] in (wanted, wanted[1:])
        or rest == wanted[1:]
        or (rest[2:] == wanted[2:] and rest[:2] == wanted[1::-1])
    )


def load_properties(path: Path) -> dict[str, str]:
    """Read a file of Java's format, a server's or client's. ConfigError when it cannot be read."""
    try:
        with path.open("rb") as file:
            values = parse_properties(file.read())
            if holds_secrets(values):
                warn_of_others(path, file.fileno())
            return values
    except OSError as error:
        raise ConfigError(str(path), None, f"cannot be read: {error.strerror}") from None
    except MalformedProperties as error:
        raise ConfigError(str(path), None, f"is not a properties file: {error}") from None


class _State(NamedTuple):
    """What a configuration is made of at one moment, and what was parsed of just that."""

    broker: Mapping[str, str]
    default: Mapping[str, str]
    parsed: dict[str, Value]


class KafkaConfig:
    """One node's configuration, static values and dynamic ones.

    `listeners` of a changed value are called with the set of changed keys after `update_dynamic`;
    `checks` say whether the keys fit together (ConfigError), as at start: the node brings them.
    Owner: the metadata publisher's thread writes, everybody reads. An update replaces the whole
    state, and a reader takes the state once: a value and what is remembered of it never come from
    two of them.
    """

    def __init__(self, static: Mapping[str, str] | None = None) -> None:
        """Check and take the static values. Raises ConfigError."""
        given = dict(static or {})
        if "broker.id" in given:  # node.id's older name: one value for both, as in Kafka
            given.setdefault("node.id", given["broker.id"])
        known = catalogue().broker
        for name in given:
            if name in PLUGIN_KEYS:
                continue
            if name not in known and without_listener_prefix(name) not in known:
                raise ConfigError(name, given[name], nearest(name, known))
        self._defaults = DEFAULTS if "process.roles" in given else {**DEFAULTS, **PROFILE}
        self.static: Mapping[str, str] = given
        self._state = _State({}, {}, {})
        self.listeners: list[Callable[[set[str]], None]] = []
        self.checks: list[Callable[[KafkaConfig], object]] = []
        self.named: frozenset[str] = frozenset()
        """What a change names that is to be checked, also where the value is as it was."""
        for name in given:
            if name in known:
                parse_value(known[name], given[name])
        for name, definition in known.items():
            if definition.required and self.text(name) is None:
                raise ConfigError(name, None, "must be set where process.roles is set")

    @property
    def dynamic_broker(self) -> Mapping[str, str]:
        """This broker's own dynamic values, keys that Kafka does not know among them."""
        return self._state.broker

    @property
    def dynamic_default(self) -> Mapping[str, str]:
        """The cluster-wide dynamic values."""
        return self._state.default

    def default(self, name: str) -> str | None:
        """The default of `name` as text: ours, where it differs, else Kafka's."""
        ours = self._defaults.get(name)
        return catalogue().broker[name].default if ours is None else ours

    def text(self, name: str) -> str | None:
        """The effective value of a broker key as text; None when it has none."""
        return self._text(self._state, name)

    def _text(self, state: _State, name: str) -> str | None:
        given = self._given(state, name)
        return self.default(name) if given is None else given

    def _given(self, state: _State, name: str) -> str | None:
        for layer in (state.broker, state.default, self.static):
            if name in layer:
                return layer[name]
        return None

    def given(self, name: str) -> str | None:
        """What somebody gave for exactly this key, a listener's own among them; else None."""
        return self._given(self._state, name)

    def is_set(self, name: str) -> bool:
        """Whether somebody gave this key a value (as against its default)."""
        state = self._state
        return name in self.static or name in state.default or name in state.broker

    def get(self, name: str) -> Value:
        """The effective typed value of a broker key."""
        state = self._state
        if name in state.parsed:
            return state.parsed[name]
        text = self._text(state, name)
        value = None if text is None else parse_value(catalogue().broker[name], text)
        state.parsed[name] = value
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
        before = self._state
        after = self._state = _State(dict(broker), dict(default), {})
        names = {*before.broker, *before.default, *broker, *default}
        known = catalogue().broker.keys()
        changed = {
            name for name in names & known if self._text(before, name) != self._text(after, name)
        }
        changed |= {  # those of one listener have no default
            name
            for name in names - known
            if without_listener_prefix(name) in known
            and self._given(before, name) != self._given(after, name)
        }
        for listener in self.listeners if changed else ():
            listener(changed)
        return changed

    def with_dynamic(
        self, broker: Mapping[str, str], default: Mapping[str, str], named: Iterable[str] = ()
    ) -> KafkaConfig:
        """The configuration this node would have with other dynamic values; checked by its `checks`
        and of the right types. Raises ConfigError.
        """
        other = KafkaConfig(self.static)
        other.named = frozenset(named)
        other.update_dynamic(broker, default)
        known = catalogue().broker
        for name, text in (*default.items(), *broker.items()):
            if name in known:
                parse_value(known[name], text)
        for check in self.checks:
            check(other)
        return other

    def log_dirs(self) -> list[Path]:
        """`log.dirs`, else `log.dir`; each path as given. Raises ConfigError if they name none."""
        is_older = self.is_set("log.dir") or self.default("log.dirs") is None
        key = "log.dir" if is_older and not self.is_set("log.dirs") else "log.dirs"
        dirs = [Path(item) for item in self.get_list(key)]
        if not dirs:
            raise ConfigError(key, self.text(key) or "", "expected at least one directory")
        return dirs

    def cordoned_log_dirs(self) -> list[Path]:
        """Those that take no new replicas (KIP-1066): `cordoned.log.dirs`, where `*` is all."""
        names = self.get_list("cordoned.log.dirs")
        return self.log_dirs() if names == ["*"] else [Path(name) for name in names]

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
                values[name] = text.strip()
        if "internal.segment.bytes" in values:
            values["segment.bytes"] = values["internal.segment.bytes"]
        return LogConfig.from_values(values)


def unit_ms(name: str) -> int:
    """How many ms one unit of this key is, read off its name (Kafka's *.minutes and *.hours)."""
    if name.endswith(".minutes"):
        return _MINUTES_MS
    return _HOURS_MS if name.endswith(".hours") else 1


def without_listener_prefix(name: str) -> str:
    """`listener.name.<listener>.<key>` configures `<key>` for one listener, and
    `listener.name.<listener>.<mechanism>.<key>` for one SASL mechanism on it.
    """
    match = _LISTENER_KEY.fullmatch(name)
    return name if match is None else match[1]


class ListenerConfig:
    """What the keys say for one listener: `listener.name.<name>.<key>`, else `<key>` (LN-1).

    Like AbstractConfig.valuesWithPrefixOverride; the listener's name is lower case in its keys.
    """

    def __init__(self, config: KafkaConfig, listener_name: str) -> None:
        self.config = config
        self.prefix = f"listener.name.{listener_name.lower()}."

    def key(self, name: str, mechanism: str = "") -> str:
        """The key that says it: the most special one that somebody gave."""
        prefixes = [f"{self.prefix}{mechanism.lower()}."] if mechanism else []
        for prefix in (*prefixes, self.prefix):
            if self.config.is_set(prefix + name):
                return prefix + name
        return name

    def text(self, name: str, mechanism: str = "") -> str:
        """The value as text; empty when there is none."""
        text = self.config.given(self.key(name, mechanism))
        return (self.config.default(name) if text is None else text) or ""

    def get(self, name: str, mechanism: str = "") -> Value:
        """The typed value. Raises ConfigError that names the key it stands in."""
        key = self.key(name, mechanism)
        text = self.config.given(key)
        text = self.config.default(name) if text is None else text
        if text is None:
            return None
        return parse_value(catalogue().broker[name]._replace(name=key), text)

    def get_list(self, name: str) -> list[str]:
        """The value of a LIST key."""
        value = self.get(name)
        return value if isinstance(value, list) else []

    def get_int(self, name: str, mechanism: str = "") -> int:
        """The value of a key that is a whole number."""
        value = self.get(name, mechanism)
        assert isinstance(value, int), name
        return value

    def error(self, name: str, expected: str, mechanism: str = "") -> ConfigError:
        """The mistake of this listener's `name`, by the key and value that it has."""
        key = self.key(name, mechanism)
        return ConfigError(key, self.config.given(key), expected)
