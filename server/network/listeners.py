"""Listeners: where a node binds, and which addresses it tells others.

    listeners                         NAME://HOST:PORT, each opened; an empty host is every address
    controller.listener.names         those of them for brokers, voters and tools with
                                      --bootstrap-controller; the others are for clients and brokers
    advertised.listeners              what clients and nodes are told instead, by name
    inter.broker.listener.name        the one brokers use among themselves
    listener.security.protocol.map    NAME:PROTOCOL; a protocol's own name needs no entry

A client is told the address that belongs to the listener it came in on, so that each network finds
its own way: the usual PLAINTEXT for containers and PLAINTEXT_HOST for the host.

The dialled-address rule: on a single node a client is told the very address it dialled, unless
`advertised.listeners` is set or the listener has a host name, which is told on as Kafka does (it is
what a certificate is made out to). The most common mistake in setting up Kafka, an advertised
address that clients cannot reach (a container's, a port map's), cannot happen then. In a cluster a
node must know its own address, for the others tell it to their clients.

Checks are Kafka's (KafkaConfig, SocketServerConfigs), gentler in two places: a broker with one
listener need not say that it is the inter-broker one, and a controller listener whose name is no
protocol is PLAINTEXT even if the map is set and does not name it, as long as every other listener
is: where one is secured, nothing is PLAINTEXT by silence.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from server.config.kafka_config import ConfigError, KafkaConfig, is_number

PLAINTEXT = "PLAINTEXT"
PROTOCOLS = {PLAINTEXT: 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
"""Numbers are SecurityProtocol's, as registrations have them."""
_EVERYWHERE = ("", "0.0.0.0", "::")

_LISTENERS = "listeners"
_ADVERTISED = "advertised.listeners"
_INTER_BROKER = "inter.broker.listener.name"
_PROTOCOL_MAP = "listener.security.protocol.map"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener on that host."""
    return host == "localhost" or host == "::1" or host.startswith("127.")


class Listener(NamedTuple):
    """One listener: its name, an address, its protocol. An empty host means every address."""

    name: str
    host: str
    port: int
    protocol: str = PLAINTEXT

    @property
    def protocol_id(self) -> int:
        """The protocol's number, as registrations have it."""
        return PROTOCOLS[self.protocol]


class Listeners(NamedTuple):
    """What a node's configuration says about them."""

    broker: tuple[Listener, ...]
    """Opened for clients and brokers; empty on a node that is only a controller."""
    controller: tuple[Listener, ...]
    """Opened for brokers, voters and administrators."""
    advertised: Mapping[str, Listener]
    """`advertised.listeners` by name; empty when it is not set."""
    inter_broker_name: str
    """Which of `broker` is for brokers; "" on a node that is only a controller."""
    protocols: Mapping[str, str]
    """The security protocol of each, and of the controllers' that this node only dials."""

    def tells_dialled_address(self, name: str) -> bool:
        """Whether a node alone tells clients of that listener the address they dialled."""
        return not self.advertised and any(
            one.name == name and _is_address(one.host) for one in self.broker
        )

    def advertise(
        self, opened: Iterable[Listener], ports: Mapping[str, int], own_host: str
    ) -> list[Listener]:
        """Where others reach the listeners of this node that are opened.

        `ports`: what each is bound to, for one that takes any (port 0). `own_host`: for one that
        listens on every address. When advertised.listeners is set, a broker's listener that it
        does not name is told to nobody.
        """
        told = []
        for listener in opened:
            address = self.advertised.get(listener.name)
            if address is None:
                if self.advertised and listener in self.broker:
                    continue
                address = listener._replace(port=listener.port or ports[listener.name])
            address = address._replace(protocol=listener.protocol)
            if address.host in _EVERYWHERE:
                address = address._replace(host=own_host)
            told.append(address)
        return told


def _is_address(host: str) -> bool:
    if not host:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def own_host_name() -> str:
    """The name of this machine, as Kafka tells it for a listener on every address."""
    return socket.getfqdn()


def parse_listeners(key: str, items: Sequence[str]) -> list[Listener]:
    """Read `NAME://HOST:PORT` items. Raises ConfigError naming the key."""
    listeners = []
    for item in items:
        name, separator, address = item.partition("://")
        host, colon, port = address.rpartition(":")
        if not (separator and colon and is_number(port, 1 << 16)):
            raise ConfigError(key, item, "expected NAME://HOST:PORT, separated by commas")
        listeners.append(Listener(name.upper(), host.strip("[]"), int(port)))
    names = [listener.name for listener in listeners]
    if len(set(names)) != len(names):
        raise ConfigError(key, ",".join(items), "each listener needs a name of its own")
    return listeners


def read_listeners(config: KafkaConfig) -> Listeners:
    """Which listeners this node opens, and what it tells of them. Raises ConfigError."""
    controllers = {name.upper() for name in config.get_list("controller.listener.names")}
    opened = parse_listeners(_LISTENERS, config.get_list(_LISTENERS))
    _check_ports(config, opened)
    is_alien = "controller" not in config.get_list(
        "process.roles"
    )  # it dials what it does not open
    protocols = _protocols(
        config, [listener.name for listener in opened], controllers, controllers if is_alien else ()
    )
    opened = [one._replace(protocol=protocols[one.name]) for one in opened]
    is_broker = "broker" in config.get_list("process.roles")
    broker = tuple(listener for listener in opened if listener.name not in controllers)
    if is_broker and not broker:
        raise ConfigError(_LISTENERS, config.text(_LISTENERS), "expected a listener for clients")
    advertised = _advertised(config, opened)
    return Listeners(
        broker,
        tuple(listener for listener in opened if listener.name in controllers),
        advertised,
        _inter_broker_name(config, broker, advertised) if is_broker else "",
        protocols,
    )


def _check_ports(config: KafkaConfig, opened: Sequence[Listener]) -> None:
    """One port for two listeners is a mistake, unless one is IPv4 and the other IPv6."""
    taken: dict[tuple[int, bool], str] = {}
    for listener in opened:
        key = (listener.port, ":" in listener.host)
        if listener.port and key in taken:
            raise ConfigError(
                _LISTENERS,
                config.text(_LISTENERS),
                f"each listener needs a port of its own, {taken[key]} has {listener.port} too",
            )
        taken[key] = listener.name


def _protocols(
    config: KafkaConfig, opened: Sequence[str], controllers: set[str], dialled: Iterable[str]
) -> dict[str, str]:
    """The protocol of each listener that is opened or dialled."""
    pairs = [pair.strip().upper() for pair in config.get_str(_PROTOCOL_MAP).split(",")]
    if any(pair and ":" not in pair for pair in pairs):
        raise ConfigError(_PROTOCOL_MAP, config.text(_PROTOCOL_MAP), "expected NAME:PROTOCOL pairs")
    mapped = dict(pair.split(":", 1) for pair in pairs if pair)
    mapped = {name.strip(): protocol.strip() for name, protocol in mapped.items()}
    names = dict.fromkeys((*opened, *sorted(dialled)))
    protocols = {name: mapped.get(name, name) for name in names}
    is_secured = any(
        protocol in PROTOCOLS and protocol != PLAINTEXT for protocol in protocols.values()
    )
    for name, protocol in protocols.items():
        if protocol in PROTOCOLS:
            continue
        if name in controllers and name not in mapped and not is_secured:
            protocols[name] = PLAINTEXT
            continue
        raise ConfigError(
            _PROTOCOL_MAP,
            config.text(_PROTOCOL_MAP),
            f"gives no protocol for the listener {name}: expected one of {', '.join(PROTOCOLS)}",
        )
    return protocols


def _advertised(config: KafkaConfig, opened: Sequence[Listener]) -> dict[str, Listener]:
    names = {listener.name for listener in opened}
    advertised = {}
    for listener in parse_listeners(_ADVERTISED, config.get_list(_ADVERTISED)):
        if listener.name not in names:
            raise ConfigError(
                _ADVERTISED,
                config.text(_ADVERTISED),
                f"names {listener.name}, and listeners opens only {', '.join(sorted(names))}",
            )
        if listener.host in _EVERYWHERE:
            raise ConfigError(
                _ADVERTISED,
                config.text(_ADVERTISED),
                "expected a host that clients can reach, not every address",
            )
        advertised[listener.name] = listener
    return advertised


def _inter_broker_name(
    config: KafkaConfig, broker: Sequence[Listener], advertised: Mapping[str, Listener]
) -> str:
    """`inter.broker.listener.name`, or the listener named by security.inter.broker.protocol."""
    protocol = "security.inter.broker.protocol"
    given = config.get_str(_INTER_BROKER).upper()
    if given and config.is_set(protocol):
        raise ConfigError(
            _INTER_BROKER, given, f"only one of it and {protocol} may be set: they mean the same"
        )
    usable = [listener.name for listener in broker if not advertised or listener.name in advertised]
    name = given or config.get_str(protocol).upper()
    if name in usable:
        return name
    if not given and len(usable) == 1:
        return usable[0]
    raise ConfigError(
        _INTER_BROKER,
        given or "not set",
        f"expected a listener that brokers can reach each other on: one of {', '.join(usable)}",
    )
