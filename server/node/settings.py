"""From Kafka's keys to the frozen configuration of each layer, and what changes nothing here yet.

Each layer's dataclass names its fields like Kafka's keys with `_` for a dot, so most of this is one
function. `notes` says which of the keys that somebody set change nothing here yet, or ask for
trouble.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from replication.controller.context import ControllerConfig
from replication.metadata.loader import SnapshotConfig
from replication.raft.own_events import RaftConfig
from replication.replicas.replica_manager import ReplicaManagerConfig
from replication.replicas.transaction_verification import VerificationConfig
from server.config.kafka_config import (
    PLUGIN_KEYS,
    ConfigError,
    KafkaConfig,
    ListenerConfig,
    catalogue,
    is_number,
    without_listener_prefix,
)
from server.coordinator.group_config import ConsumerConfig, GroupConfig, ShareConfig, StreamsConfig
from server.coordinator.share.config import ShareCoordinatorConfig
from server.coordinator.transactions.config import TransactionConfig
from server.network.addresses import canonical_address
from server.network.limits import NO_LIMIT, ListenerLimits
from server.network.listeners import is_loopback
from server.network.socket_server import SocketServerConfig
from server.node.broker_lifecycle import LifecycleConfig
from storage.cleaning.cleaner import CleanerConfig
from storage.config import LogManagerConfig

if TYPE_CHECKING:
    from server.network.limits import ConnectionQuotas
    from server.network.listeners import Listener
    from server.security.authorizer import Authorizer

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# Broker keys with an effect here, apart from those read through the layers' dataclasses below and
# the topic keys' synonyms. Patterns are whole names.
_OBEYED_ELSEWHERE = re.compile(
    r"log\.dirs?|metadata\.log\.(dir|segment\.bytes)|listeners|advertised\.listeners"
    r"|listener\.security\.protocol\.map|controller\.listener\.names|controller\.quorum\.voters"
    r"|cordoned\.log\.dirs|log\.compressed\.records\.validation|telemetry\.max\.bytes"
    r"|process\.roles|node\.id|broker\.(id|rack)|auto\.create\.topics\.enable|delete\.topic\.enable"
    r"|max\.incremental\.fetch\.session\.cache\.slots|max\.request\.partition\.size\.limit"
    r"|inter\.broker\.listener\.name|security\.inter\.broker\.protocol"
    r"|controller\.quorum\.bootstrap\.servers|replica\.socket\.timeout\.ms"
    r"|broker\.heartbeat\.interval\.ms|(leader|follower)\.replication\.throttled\.rate"
    r"|replica\.alter\.log\.dirs\.io\.max\.bytes\.per\.second"
    r"|authorizer\.class\.name|super\.users|allow\.everyone\.if\.no\.acl\.found"
)

# Keys of security, which listeners may have for themselves (`listener.name.X.`).
_OBEYED_SECURITY = re.compile(
    r"ssl\.(keystore\.(type|location|password|key|certificate\.chain)|key\.password"
    r"|truststore\.(type|location|password|certificates)|client\.auth|cipher\.suites"
    r"|enabled\.protocols|protocol|endpoint\.identification\.algorithm"
    r"|principal\.mapping\.rules|allow\.(dn|san)\.changes)"
    r"|sasl\.(enabled\.mechanisms|server\.max\.receive\.size)|connections\.max\.reauth\.ms"
    r"|sasl\.mechanism\.(inter\.broker|controller)\.protocol"
    r"|connection\.failed\.authentication\.delay\.ms|principal\.builder\.class"
    r"|sasl\.(server|login)\.callback\.handler\.class"
    r"|sasl\.oauthbearer\.(jwks\.endpoint\.(url|refresh\.ms|retry\.backoff(\.max)?\.ms)"
    r"|expected\.(audience|issuer)|clock\.skew\.seconds|(sub|scope)\.claim\.name"
    r"|jwt\.(validator|retriever)\.class|token\.endpoint\.url)"
)

_OF_LISTENERS = ("max.connections", "max.connection.creation.rate")
"""ListenerLimits, in this order: beside the broker's."""

_LOG_MANAGER_KEYS: Mapping[str, str] = {
    "retention_check_interval_ms": "log.retention.check.interval.ms",
    "flush_scheduler_interval_ms": "log.flush.scheduler.interval.ms",
    "flush_offset_checkpoint_interval_ms": "log.flush.offset.checkpoint.interval.ms",
    "flush_start_offset_checkpoint_interval_ms": "log.flush.start.offset.checkpoint.interval.ms",
    "high_watermark_checkpoint_interval_ms": "replica.high.watermark.checkpoint.interval.ms",
    "producer_id_expiration_check_interval_ms": "producer.id.expiration.check.interval.ms",
    "producer_id_expiration_ms": "producer.id.expiration.ms",
}
_SNAPSHOT_KEYS: Mapping[str, str] = {
    "max_record_bytes_between_snapshots": "metadata.log.max.record.bytes.between.snapshots",
    "max_snapshot_interval_ms": "metadata.log.max.snapshot.interval.ms",
}
_RAFT_KEYS: Mapping[str, str] = {
    "election_timeout_ms": "controller.quorum.election.timeout.ms",
    "election_backoff_max_ms": "controller.quorum.election.backoff.max.ms",
    "fetch_timeout_ms": "controller.quorum.fetch.timeout.ms",
    "request_timeout_ms": "controller.quorum.request.timeout.ms",
    "retry_backoff_ms": "controller.quorum.retry.backoff.ms",
    "append_linger_ms": "controller.quorum.append.linger.ms",
    "fetch_max_bytes": "controller.quorum.fetch.max.bytes",
    "auto_join": "controller.quorum.auto.join.enable",
}
_NOT_KEYS = {"node_id", "cluster_id", "features"}
_LAYERS: tuple[tuple[type, Mapping[str, str]], ...] = (
    (SocketServerConfig, {}),
    (ReplicaManagerConfig, {}),
    (GroupConfig, {}),
    (ConsumerConfig, {}),
    (ShareConfig, {}),
    (StreamsConfig, {}),
    (ShareCoordinatorConfig, {}),
    (TransactionConfig, {}),
    (ControllerConfig, {}),
    (LogManagerConfig, _LOG_MANAGER_KEYS),
    (SnapshotConfig, _SNAPSHOT_KEYS),
    (CleanerConfig, {}),
    (VerificationConfig, {}),
    (LifecycleConfig, {}),
    (RaftConfig, _RAFT_KEYS),
)


def _keys(cls: type, names: Mapping[str, str]) -> dict[str, str]:
    """Field -> key, for the fields that are keys of Kafka's."""
    known = catalogue().broker
    keys = {f.name: names.get(f.name, f.name.replace("_", ".")) for f in fields(cls)}
    return {field: key for field, key in keys.items() if field not in _NOT_KEYS and key in known}


def _layer(cls: type[_T], config: KafkaConfig, names: Mapping[str, str], **given: Any) -> _T:
    values = {field: config.get(key) for field, key in _keys(cls, names).items()}
    return cls(**{**values, **given})


def socket_server(config: KafkaConfig) -> SocketServerConfig:
    """The socket servers' configuration."""
    return _layer(
        SocketServerConfig,
        config,
        {},
        max_connections_per_ip_overrides=_ip_overrides(config),
        listener_limits=_listener_limits(config),
    )


def _listener_limits(config: KafkaConfig) -> dict[str, ListenerLimits]:
    """The limits that listeners have for themselves. Raises ConfigError."""
    limits = {}
    for listener in config.get_list("listeners"):
        name = listener.partition("://")[0].upper()
        own = ListenerConfig(config, name)
        limits[name] = ListenerLimits(*(_own_limit(own, key) for key in _OF_LISTENERS))
    return {name: one for name, one in limits.items() if one != ListenerLimits()}


def _own_limit(own: ListenerConfig, key: str) -> int:
    """With 0 nobody could come to set it right (Kafka: ListenerConnectionQuota). Raises
    ConfigError."""
    limit = own.get_int(key) if own.key(key) != key else NO_LIMIT
    if limit < 1:
        raise own.error(key, "expected at least 1")
    return limit


def _ip_overrides(config: KafkaConfig) -> dict[str, int]:
    """`max.connections.per.ip.overrides`: HOST:COUNT pairs, by the address as a peer's is written.

    A name is refused: who obeys new limits at run time must not wait for somebody to look it up.
    """
    key = "max.connections.per.ip.overrides"
    overrides = {}
    for pair in filter(None, (p.strip() for p in config.get_str(key).split(","))):
        host, _colon, count = pair.rpartition(":")
        if not host or not is_number(count, 1 << 31):
            raise ConfigError(key, pair, "expected HOST:COUNT, separated by commas")
        try:
            address = canonical_address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            expected = "expected HOST:COUNT with an address: names are not looked up here"
            raise ConfigError(key, pair, expected) from None
        overrides[address] = int(count)
    return overrides


def apply_connection_limits(config: KafkaConfig, quotas: ConnectionQuotas) -> None:
    """Obey the connection limits as they are now."""
    quotas.set_limits(
        config.get_int("max.connections"),
        config.get_int("max.connections.per.ip"),
        _ip_overrides(config),
        config.get_int("max.connection.creation.rate"),
        _listener_limits(config),
    )


def opens_compressed_records(config: KafkaConfig, listeners: Iterable[Listener]) -> frozenset[str]:
    """Names of the listeners on which compressed batches are decompressed to be checked, as Kafka
    does. `remote`, the default, leaves out those that only this machine reaches: what a developer's
    own producer compressed need not cost its laptop the check."""
    wanted = config.get("log.compressed.records.validation")
    return frozenset(
        listener.name
        for listener in listeners
        if wanted == "always" or (wanted == "remote" and not is_loopback(listener.host))
    )


def replica_manager(config: KafkaConfig) -> ReplicaManagerConfig:
    """The replica manager's configuration."""
    return _layer(ReplicaManagerConfig, config, {})


def log_manager(config: KafkaConfig) -> LogManagerConfig:
    """The log manager's periods."""
    return _layer(LogManagerConfig, config, _LOG_MANAGER_KEYS)


def cleaner(config: KafkaConfig) -> CleanerConfig:
    """How logs are compacted."""
    return _layer(CleanerConfig, config, {})


def snapshots(config: KafkaConfig) -> SnapshotConfig:
    """When the metadata log is snapshotted."""
    return _layer(SnapshotConfig, config, _SNAPSHOT_KEYS)


def raft(config: KafkaConfig) -> RaftConfig:
    """The metadata quorum's times and sizes."""
    return _layer(RaftConfig, config, _RAFT_KEYS)


def controller(config: KafkaConfig, node: int, cluster_id: str) -> ControllerConfig:
    """The controller's configuration."""
    return _layer(ControllerConfig, config, {}, node_id=node, cluster_id=cluster_id)


def lifecycle(config: KafkaConfig) -> LifecycleConfig:
    """How this broker keeps in touch with the controller."""
    return _layer(LifecycleConfig, config, {})


def groups(config: KafkaConfig) -> GroupConfig:
    """The group coordinator's configuration."""
    return _layer(GroupConfig, config, {})


def consumer_groups(config: KafkaConfig) -> ConsumerConfig:
    """How it keeps the groups of KIP-848."""
    return _layer(ConsumerConfig, config, {})


def share_groups(config: KafkaConfig) -> ShareConfig:
    """How it keeps share groups."""
    return _layer(ShareConfig, config, {})


def streams_groups(config: KafkaConfig) -> StreamsConfig:
    """How it keeps streams groups."""
    return _layer(StreamsConfig, config, {})


def share_coordinator(config: KafkaConfig) -> ShareCoordinatorConfig:
    """The share coordinator's configuration."""
    return _layer(ShareCoordinatorConfig, config, {})


def transactions(config: KafkaConfig) -> TransactionConfig:
    """The transaction coordinator's configuration."""
    return _layer(TransactionConfig, config, {})


def verification(config: KafkaConfig) -> VerificationConfig:
    """How partition leaders ask about transactions."""
    return _layer(VerificationConfig, config, {})


def authorizer(config: KafkaConfig, is_caught_up: Callable[[], bool]) -> Authorizer | None:
    """Who decides what clients and nodes may do, if the configuration names somebody. Raises
    ConfigError.
    """
    if not any(key in config.static for key in PLUGIN_KEYS) and not config.get_str(
        "authorizer.class.name"
    ):
        return None
    from server.security.authorizer import load_authorizer

    return load_authorizer(config, is_caught_up)


def _obeyed() -> Callable[[str], bool]:
    keys = {key for cls, names in _LAYERS for key in _keys(cls, names).values()}
    for definition in catalogue().topic.values():
        keys.update(definition.synonyms)

    def is_obeyed(key: str) -> bool:
        bare = without_listener_prefix(key)
        if bare == "sasl.jaas.config":
            return bare != key  # a server has one for each mechanism of a listener
        if _OBEYED_SECURITY.fullmatch(bare) is not None or bare in _OF_LISTENERS:
            return True
        return key in keys or _OBEYED_ELSEWHERE.fullmatch(key) is not None

    return is_obeyed


def notes(config: KafkaConfig, *, has_peers: bool = False) -> list[str]:
    """One line for each key that is valid, but changes nothing here yet or asks for trouble.

    `has_peers`: does the configuration name other voters, or where to ask for them?
    """
    is_obeyed = _obeyed()
    lines = [
        f"config {key} has no effect yet (docs/GAPS.md)"
        for key in sorted(config.static)
        if not is_obeyed(key) and config.static[key] != config.default(without_listener_prefix(key))
    ]
    heartbeat, session = "broker.heartbeat.interval.ms", "broker.session.timeout.ms"
    if 2 * config.get_int(heartbeat) > config.get_int(session):
        lines.append(
            f"config {heartbeat} = {config.text(heartbeat)!r}: more than half of {session}"
            f" ({config.text(session)}), a broker may be fenced for one late heartbeat"
        )
    if has_peers and _locks_nodes_out(config):
        lines.append(
            "config super.users lacks User:ANONYMOUS, which is what nodes are to each other on"
            " PLAINTEXT listeners: no controller can be elected, as only super users pass before"
            " the rules are read"
        )
    return lines


def _locks_nodes_out(config: KafkaConfig) -> bool:
    if "StandardAuthorizer" not in config.get_str("authorizer.class.name"):
        return False
    map_ = (config.text("listener.security.protocol.map") or "").upper()
    names = config.get_list("controller.listener.names")
    is_plain = all(
        f"{name}:" not in map_ or f"{name}:PLAINTEXT" in map_ for name in map(str.upper, names)
    )
    return is_plain and "User:ANONYMOUS" not in config.static.get("super.users", "")


def apply_dynamic(
    config: KafkaConfig, own: Mapping[str, str], default: Mapping[str, str]
) -> set[str]:
    """Take the node's dynamic values and the cluster-wide ones; returns the changed keys.

    Of a key with which this node could not start (another broker took it, an older release, or the
    file says something else since) it keeps the value that it has, and says so. The others are
    taken: without a longer retention that was set logs would be deleted.
    """
    changed = config.update_dynamic(*_possible(config, own, default))
    if changed:
        logger.info("configs changed keys=%s", ",".join(sorted(changed)))
    return changed


def _possible(
    config: KafkaConfig, own: Mapping[str, str], default: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    now = (config.dynamic_broker, config.dynamic_default)
    wanted = (dict(own), dict(default))
    while (error := _objection(config, *wanted)) is not None:
        logger.error("dynamic config could not be applied error=%s", error)
        name = error.name
        for layer, known in zip(wanted, now, strict=True):
            if layer.get(name) != known.get(name):
                _put(layer, name, known.get(name))
                break
        else:
            return _one_by_one(config, wanted)
    return wanted


def _one_by_one(
    config: KafkaConfig, wanted: tuple[dict[str, str], dict[str, str]]
) -> tuple[dict[str, str], dict[str, str]]:
    """Where what is wrong is how some fit with what the file says: each that fits, in its turn."""
    taken = (dict(config.dynamic_broker), dict(config.dynamic_default))
    for layer, given in zip(taken, wanted, strict=True):
        for name in sorted({*layer, *given}):
            known = layer.get(name)
            _put(layer, name, given.get(name))
            if _objection(config, *taken) is not None:
                _put(layer, name, known)
    return taken


def _put(layer: dict[str, str], name: str, text: str | None) -> None:
    if text is None:
        layer.pop(name, None)
    else:
        layer[name] = text


def _objection(
    config: KafkaConfig, own: Mapping[str, str], default: Mapping[str, str]
) -> ConfigError | None:
    try:
        config.with_dynamic(own, default)
    except ConfigError as error:
        return error
    return None
