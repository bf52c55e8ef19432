"""Who is in the cluster, as a node's configuration says it (Kafka: QuorumConfig, KafkaConfig).

What: roles, voters, bootstrap servers, and `check`: do the keys that make nodes a cluster fit
together? Why: a mistake here would show as a node that waits for ever. `config_check` asks this
first, before anything starts.

Two ways to say who votes: `controller.quorum.voters` names them (kraft.version 0, static), or
`controller.quorum.bootstrap.servers` names where to ask, and the voters stand in the metadata log
(kraft.version 1, KIP-853), where `barnabas format` put the first ones.

A node alone, `is_alone`, has both roles and opens no controller listener: nobody else can ever be
in its cluster, and it needs nothing that only clusters need.

Gentler than Kafka's checks in one place: a node with both roles may leave out voters, bootstrap
servers and its controller listener; it is alone then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from server.config.kafka_config import ConfigError, KafkaConfig, is_number
from server.network.listeners import Listener, parse_listeners

BROKER = "broker"
CONTROLLER = "controller"

_ROLES = "process.roles"
_VOTERS = "controller.quorum.voters"
_BOOTSTRAP = "controller.quorum.bootstrap.servers"
_AUTO_JOIN = "controller.quorum.auto.join.enable"
_CONTROLLER_LISTENERS = "controller.listener.names"
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1", ""})


class QuorumVoter(NamedTuple):
    """A static voter: who, and where its controller listener is."""

    node_id: int
    host: str
    port: int


class QuorumConfig(NamedTuple):
    """What the configuration says about the cluster."""

    node_id: int
    roles: frozenset[str]
    voters: tuple[QuorumVoter, ...]
    bootstrap_servers: tuple[tuple[str, int], ...]
    controller_listener_names: tuple[str, ...]
    """Upper case; the first one is dialled."""
    controller_listeners: tuple[Listener, ...]
    """What this node opens."""

    @property
    def is_broker(self) -> bool:
        return BROKER in self.roles

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.roles

    @property
    def is_alone(self) -> bool:
        """Nobody else can ever be in this cluster."""
        return (
            len(self.roles) == 2
            and not self.controller_listeners
            and not self._other_voters
            and not self._other_bootstrap_servers
        )

    @property
    def may_format_itself(self) -> bool:
        """Is this a cluster's only node, as far as its configuration says: then a start with empty
        directories begins a new cluster, and nobody has to say so."""
        return len(self.roles) == 2 and not self._other_voters and not self._other_bootstrap_servers

    @property
    def _other_voters(self) -> list[QuorumVoter]:
        return [voter for voter in self.voters if voter.node_id != self.node_id]

    @property
    def _other_bootstrap_servers(self) -> list[tuple[str, int]]:
        own_ports = {listener.port for listener in self.controller_listeners}
        own_hosts = {listener.host for listener in self.controller_listeners} | _LOCAL_HOSTS
        return [
            (host, port)
            for host, port in self.bootstrap_servers
            if host not in own_hosts or port not in own_ports
        ]


def node_id(config: KafkaConfig) -> int:
    """`node.id`, or its older name `broker.id`. Raises ConfigError when the two differ."""
    node = config.get_int("node.id")
    if config.is_set("broker.id") and config.get_int("broker.id") != node:
        raise ConfigError("broker.id", config.text("broker.id"), f"expected node.id ({node})")
    return node


def parse_voters(key: str, items: Sequence[str]) -> tuple[QuorumVoter, ...]:
    """Read `ID@HOST:PORT` items. Raises ConfigError naming the key."""
    voters = []
    for item in items:
        name, at, address = item.partition("@")
        host, colon, port = address.rpartition(":")
        if not (at and colon and host and is_number(name, 1 << 31) and _is_port(port)):
            raise ConfigError(key, item, "expected ID@HOST:PORT, separated by commas")
        voters.append(QuorumVoter(int(name), host.strip("[]"), int(port)))
    ids = [voter.node_id for voter in voters]
    if len(set(ids)) != len(ids):
        raise ConfigError(key, ",".join(items), "each voter needs an id of its own")
    return tuple(voters)


def parse_addresses(key: str, items: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Read `HOST:PORT` items. Raises ConfigError naming the key."""
    addresses = []
    for item in items:
        host, colon, port = item.rpartition(":")
        if not (colon and host and _is_port(port)):
            raise ConfigError(key, item, "expected HOST:PORT, separated by commas")
        addresses.append((host.strip("[]"), int(port)))
    return tuple(addresses)


def _is_port(text: str) -> bool:
    return is_number(text, 1 << 16) and int(text) > 0


def quorum_config(config: KafkaConfig) -> QuorumConfig:
    """What the configuration says about the cluster. Raises ConfigError for what cannot be read."""
    names = tuple(name.upper() for name in config.get_list(_CONTROLLER_LISTENERS))
    listeners = parse_listeners("listeners", config.get_list("listeners"))
    return QuorumConfig(
        node_id(config),
        frozenset(config.get_list(_ROLES)),
        parse_voters(_VOTERS, config.get_list(_VOTERS)),
        parse_addresses(_BOOTSTRAP, config.get_list(_BOOTSTRAP)),
        names,
        tuple(listener for listener in listeners if listener.name in names),
    )


def check(config: KafkaConfig) -> QuorumConfig:
    """Does everything fit together? Returns what was read. Raises ConfigError."""
    quorum = quorum_config(config)
    if quorum.node_id < 0:
        raise ConfigError("node.id", str(quorum.node_id), "expected at least 0")
    if not quorum.roles:
        raise ConfigError(_ROLES, config.text(_ROLES), "expected broker, controller or both")
    if len(quorum.roles) != len(config.get_list(_ROLES)):
        raise ConfigError(_ROLES, config.text(_ROLES), "names a role twice")
    if len(quorum.roles) == 2:
        _check_combined(config, quorum)
    elif quorum.is_broker:
        _check_broker(config, quorum)
    else:
        _check_controller(config, quorum)
    if not quorum.is_alone:
        _check_controller_names(config, quorum)
    return quorum


def _check_combined(config: KafkaConfig, quorum: QuorumConfig) -> None:
    _check_voters_hold_me(config, quorum)
    if not quorum.is_alone:
        _check_controller_listeners(config, quorum)


def _check_broker(config: KafkaConfig, quorum: QuorumConfig) -> None:
    if not quorum.voters and not quorum.bootstrap_servers:
        raise ConfigError(
            _BOOTSTRAP,
            config.text(_BOOTSTRAP),
            f"a node that is only a broker needs the controllers: HOST:PORT here, or {_VOTERS}",
        )
    if config.get(_AUTO_JOIN):
        raise ConfigError(
            _AUTO_JOIN, "true", "this node is only a broker by process.roles, it cannot vote"
        )
    if quorum.node_id in {voter.node_id for voter in quorum.voters}:
        raise ConfigError(
            _VOTERS,
            config.text(_VOTERS),
            f"this node ({quorum.node_id}) is only a broker by process.roles, it cannot vote",
        )
    if quorum.controller_listeners:
        raise ConfigError(
            "listeners",
            config.text("listeners"),
            f"{quorum.controller_listeners[0].name} is a controller listener"
            f" ({_CONTROLLER_LISTENERS}), and this node is only a broker by process.roles",
        )


def _check_controller(config: KafkaConfig, quorum: QuorumConfig) -> None:
    if not quorum.voters and not quorum.bootstrap_servers:
        raise ConfigError(
            _BOOTSTRAP,
            config.text(_BOOTSTRAP),
            f"a node that is only a controller needs the quorum: HOST:PORT here, or {_VOTERS}",
        )
    _check_voters_hold_me(config, quorum)
    _check_controller_listeners(config, quorum)
    if len(quorum.controller_listeners) != len(config.get_list("listeners")):
        raise ConfigError(
            "listeners",
            config.text("listeners"),
            f"a node that is only a controller may open only listeners of {_CONTROLLER_LISTENERS}"
            f" ({config.text(_CONTROLLER_LISTENERS)})",
        )


def _check_voters_hold_me(config: KafkaConfig, quorum: QuorumConfig) -> None:
    if quorum.voters and quorum.node_id not in {voter.node_id for voter in quorum.voters}:
        raise ConfigError(
            _VOTERS,
            config.text(_VOTERS),
            f"process.roles makes this node ({quorum.node_id}) a controller: it must be in the set",
        )


def _check_controller_listeners(config: KafkaConfig, quorum: QuorumConfig) -> None:
    opened = {listener.name for listener in quorum.controller_listeners}
    if not opened:
        raise ConfigError(
            "listeners",
            config.text("listeners"),
            f"a controller with others in its quorum needs a listener of {_CONTROLLER_LISTENERS}"
            f" ({config.text(_CONTROLLER_LISTENERS) or 'not set'}), such as CONTROLLER://:9093",
        )
    for name in quorum.controller_listener_names:
        if name not in opened:
            raise ConfigError(
                _CONTROLLER_LISTENERS,
                config.text(_CONTROLLER_LISTENERS),
                f"names {name}, which listeners ({config.text('listeners')}) does not open",
            )


def _check_controller_names(config: KafkaConfig, quorum: QuorumConfig) -> None:
    if not quorum.controller_listener_names:
        raise ConfigError(
            _CONTROLLER_LISTENERS, config.text(_CONTROLLER_LISTENERS), "expected such as CONTROLLER"
        )
    inter_broker = config.get_str("inter.broker.listener.name").upper()
    if inter_broker in quorum.controller_listener_names:
        raise ConfigError(
            "inter.broker.listener.name",
            inter_broker,
            f"is a controller listener ({_CONTROLLER_LISTENERS}): brokers talk on their own",
        )
