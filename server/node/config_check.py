"""Do all keys of a node fit together: what can be said before anything starts (Kafka:
KafkaConfig.validateValues).

What: `check` goes through the quorum's keys (`quorum_config`), the listeners, bounds that the
catalogue does not know, keys that stand in an order, directories. Why: what cannot work is one
line that names the key, the value and what was expected, in `barnabas check-config`, `format` and
`start` alike, not a node that waits for ever or a traceback later.

Stricter than Kafka where its node would start and never work: times of the quorum that are shorter
than a waiting fetch, or 0; sessions no member could ask for; one directory twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from replication.raft.own_events import RaftConfig
from server.config.kafka_config import ConfigError, KafkaConfig, catalogue, parse_value
from server.config.validation import check_groups
from server.coordinator.group_config import ConsumerConfig
from server.network.listeners import read_listeners
from server.node import quorum_config, settings
from server.node.quorum_config import QuorumConfig

_SESSION = "broker.session.timeout.ms"
_HEARTBEAT = "broker.heartbeat.interval.ms"
_QUEUED = "queued.max.request.bytes"
_REQUEST = "socket.request.max.bytes"
_CONNECTIONS = "max.connections.per.ip"
_DEDUPE = "log.cleaner.dedupe.buffer.size"
_METADATA_DIR = "metadata.log.dir"
_ASSIGNORS = "group.consumer.assignors"
_SHARE_ASSIGNORS = "group.share.assignors"
_PROTOCOLS = "group.coordinator.rebalance.protocols"
_CORDONED = "cordoned.log.dirs"
_DEDUPE_BYTES_MIN = 1 << 20

# Beyond what the catalogue says of one key.
_AT_LEAST: Mapping[str, int] = {
    _HEARTBEAT: 1,
    _SESSION: 1,
    "initial.broker.registration.timeout.ms": 1,
    "controller.quorum.election.timeout.ms": 1,
    "default.replication.factor": 1,
    "group.min.session.timeout.ms": 1,
    "log.cleaner.threads": 1,
    "max.connection.creation.rate": 1,
    "max.connections": 1,
    "offset.metadata.max.bytes": 0,
    "replica.fetch.min.bytes": 0,
    "replica.fetch.wait.max.ms": 0,
    "replica.lag.time.max.ms": 1,
    "replica.socket.timeout.ms": 1,
}
# (the smaller, the larger, what would happen otherwise)
_ORDERED = (
    ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms", "fetches would time out"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms", "idle replicas would leave ISRs"),
    (_HEARTBEAT, _SESSION, "brokers would be fenced"),
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms", "no member could join"),
    ("group.share.max.size", "group.share.max.share.sessions", "members would find no room"),
)
_WAITING_FETCH_MS = RaftConfig().fetch_max_wait_ms


def check(config: KafkaConfig) -> QuorumConfig:
    """Does everything fit together? Returns what it says about the cluster. Raises ConfigError."""
    quorum = quorum_config.check(config)
    read_listeners(config)
    for key, least in _AT_LEAST.items():
        if config.get_int(key) < least:
            raise ConfigError(key, config.text(key), f"expected at least {least}")
    for smaller, larger, why in _ORDERED:
        if config.get_int(smaller) > config.get_int(larger):
            raise ConfigError(
                smaller,
                config.text(smaller),
                f"expected at most {larger} ({config.text(larger)}): {why}",
            )
    if not quorum.is_alone:
        _check_waiting_fetch(config)
    _check_dirs(config)
    _check_connections(config)
    _check_logs(config)
    _check_group_kinds(config)
    check_groups(config, {})
    settings.authorizer(config, lambda: True)
    return quorum


def _check_group_kinds(config: KafkaConfig) -> None:
    known, own = ConsumerConfig().group_consumer_assignors, config.get_list(_ASSIGNORS)
    if not own or not set(own) <= set(known):
        expected = f"expected some of {', '.join(known)}: classes are not loaded"
        raise ConfigError(_ASSIGNORS, config.text(_ASSIGNORS), expected)
    if config.get_list(_SHARE_ASSIGNORS) != ["simple"]:
        expected = "expected simple: classes are not loaded"
        raise ConfigError(_SHARE_ASSIGNORS, config.text(_SHARE_ASSIGNORS), expected)
    if "classic" not in config.get_list(_PROTOCOLS):
        expected = "'classic' must be one of them"
        raise ConfigError(_PROTOCOLS, config.text(_PROTOCOLS), expected)


def _check_waiting_fetch(config: KafkaConfig) -> None:
    """A replica's fetch waits at the leader for news; whoever gives up sooner never follows."""
    for key in ("controller.quorum.request.timeout.ms", "controller.quorum.fetch.timeout.ms"):
        if config.get_int(key) <= _WAITING_FETCH_MS:
            raise ConfigError(
                key,
                config.text(key),
                f"expected more than {_WAITING_FETCH_MS}, which a fetch in the quorum waits for"
                " news: followers would give up a leader that is well",
            )


def _check_dirs(config: KafkaConfig) -> None:
    dirs = config.log_dirs()
    key = "log.dirs" if config.is_set("log.dirs") else "log.dir"
    real = [os.path.realpath(path) for path in dirs]
    for path, known in zip(dirs, real, strict=True):
        if real.count(known) > 1:
            raise ConfigError(key, config.text(key), f"names {path} twice")
    for path in config.cordoned_log_dirs():
        if path not in dirs:
            raise ConfigError(_CORDONED, config.text(_CORDONED), f"{path} is not in {key}")
    metadata_dir = config.get_str(_METADATA_DIR)
    if metadata_dir and Path(metadata_dir) not in dirs and os.path.realpath(metadata_dir) in real:
        raise ConfigError(
            _METADATA_DIR, metadata_dir, f"is in {key} under another name ({config.text(key)})"
        )


def _check_connections(config: KafkaConfig) -> None:
    overrides = settings.socket_server(config).max_connections_per_ip_overrides
    if config.get_int(_CONNECTIONS) == 0 and not overrides:
        raise ConfigError(
            _CONNECTIONS,
            "0",
            f"lets nobody connect: expected more, or some in {_CONNECTIONS}.overrides",
        )
    largest = config.get_int(_REQUEST)
    if config.is_set(_QUEUED) and 0 < config.get_int(_QUEUED) < largest:
        raise ConfigError(
            _QUEUED,
            config.text(_QUEUED),
            f"expected at least {_REQUEST} ({largest}), or -1: the largest request must fit",
        )


def _check_logs(config: KafkaConfig) -> None:
    threads = config.get_int("log.cleaner.threads")
    if config.get_int(_DEDUPE) // threads <= _DEDUPE_BYTES_MIN:
        raise ConfigError(
            _DEDUPE,
            config.text(_DEDUPE),
            f"expected more than {_DEDUPE_BYTES_MIN} for each of log.cleaner.threads ({threads})",
        )
    for key in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        if config.is_set(key) and config.get_int(key) == 0:
            raise ConfigError(key, "0", "expected at least 1, or -1 for ever")
    for unit in ("ms", "bytes"):
        key, local = f"local.retention.{unit}", config.get_int(f"log.local.retention.{unit}")
        whole = int(config.topic_default(f"retention.{unit}") or -1)
        if whole != -1 and local != -2 and not 0 <= local <= whole:
            raise ConfigError(f"log.{key}", str(local), f"expected at most {whole}, or -2 for it")
    for name, definition in catalogue().topic.items():
        key = next((key for key in definition.synonyms if config.is_set(key)), "")
        text = config.topic_default(name) if key else None
        if text is None:
            continue
        try:
            parse_value(definition, text)
        except ConfigError as error:
            raise ConfigError(
                key, config.text(key), f"{error.expected} (the default of topics' {name})"
            ) from None
