"""Listeners: where the broker binds, and which address it tells clients.

The dialled-address rule: on a single node a client is told the very address it dialled, unless
`advertised.listeners` is set. The most common mistake in setting up Kafka, an advertised address
that clients cannot reach (a container's, a port map's), cannot happen then.

Gaps: one PLAINTEXT listener; a CONTROLLER listener may stand in the configuration (every Apache
Kafka server.properties has one) and is not opened, for one node has nobody to talk to there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from server.config import ConfigError, KafkaConfig

PLAINTEXT = 0
_PROTOCOLS = {"PLAINTEXT": PLAINTEXT, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class Listener(NamedTuple):
    """One listener: its name, and an address. An empty host means every address."""

    name: str
    host: str
    port: int


def parse_listeners(key: str, items: Sequence[str]) -> list[Listener]:
    """Read `NAME://HOST:PORT` items. Raises ConfigError naming the key."""
    listeners = []
    for item in items:
        name, separator, address = item.partition("://")
        host, colon, port = address.rpartition(":")
        if not (separator and colon and port.isascii() and port.isdigit() and int(port) < 65536):
            raise ConfigError(key, item, "expected NAME://HOST:PORT, separated by commas")
        listeners.append(Listener(name.upper(), host.strip("[]"), int(port)))
    names = [listener.name for listener in listeners]
    if len(set(names)) != len(names):
        raise ConfigError(key, ",".join(items), "each listener needs a name of its own")
    return listeners


def client_listener(config: KafkaConfig) -> Listener:
    """The one listener clients use. Raises ConfigError for what is not served."""
    controllers = {name.upper() for name in config.get_list("controller.listener.names")}
    listeners = parse_listeners("listeners", config.get_list("listeners"))
    listeners = [listener for listener in listeners if listener.name not in controllers]
    shown = config.text("listeners")
    if not listeners:
        raise ConfigError("listeners", shown, "expected a listener for clients")
    if len(listeners) > 1:
        raise ConfigError("listeners", shown, "only one listener for clients is served yet")
    protocol = _security_protocol(config, listeners[0].name)
    if protocol != "PLAINTEXT":
        raise ConfigError("listeners", shown, f"{protocol} is not served yet, only PLAINTEXT")
    return listeners[0]


def advertised_listener(config: KafkaConfig, client: Listener) -> Listener | None:
    """What `advertised.listeners` says of the client listener; None when it is not set."""
    items = config.get_list("advertised.listeners")
    for listener in parse_listeners("advertised.listeners", items):
        if listener.name == client.name:
            if not listener.host or listener.host == "0.0.0.0":
                raise ConfigError(
                    "advertised.listeners",
                    config.text("advertised.listeners"),
                    "expected a host that clients can reach, not every address",
                )
            return listener
    return None


def _security_protocol(config: KafkaConfig, name: str) -> str:
    """The protocol of a listener by `listener.security.protocol.map`, else by its own name."""
    pairs = config.get_str("listener.security.protocol.map").split(",")
    mapped = dict(pair.strip().upper().split(":", 1) for pair in pairs if ":" in pair)
    protocol = mapped.get(name, name)
    if protocol not in _PROTOCOLS:
        raise ConfigError(
            "listener.security.protocol.map",
            config.text("listener.security.protocol.map"),
            f"gives no protocol for the listener {name}: expected one of {', '.join(_PROTOCOLS)}",
        )
    return protocol
