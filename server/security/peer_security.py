"""How this node, or a command, reaches a listener that is not PLAINTEXT: as a client of it.

A node speaks to brokers by the keys of the inter-broker listener and to controllers by those of the
first of controller.listener.names, prefix included (LN-8, LN-9): trust store, its own certificate,
`ssl.endpoint.identification.algorithm`, and the user name and password of the JAAS entry. A command
is told by a file of the Java client's properties.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from server.config.kafka_config import ConfigError, KafkaConfig, ListenerConfig, catalogue
from server.network.listeners import PLAINTEXT, PROTOCOLS
from server.network.transport import PlaintextTransport, Transport
from server.security.jaas import JaasError, LoginModule, parse_jaas
from server.security.listener_security import check_classes
from server.security.login import JAAS, MODULES, check_module, server_login
from server.security.sasl.client import Mechanism, SaslClient
from server.security.sasl.mechanisms import PLAIN
from server.security.sasl.scram import PlainClient, ScramClient

if TYPE_CHECKING:
    from ssl import SSLContext

    from server.network.listeners import Listeners
    from server.security.tls import TlsValues

logger = logging.getLogger(__name__)

_INTER_BROKER = "sasl.mechanism.inter.broker.protocol"
_CONTROLLER = "sasl.mechanism.controller.protocol"


class PeerSecurity:
    """What a connection to a peer goes through before its first request."""

    def __init__(
        self,
        protocol: str,
        values: TlsValues,
        mechanism: str = "",
        login: LoginModule | None = None,
        name: str = JAAS,
    ) -> None:
        """`name`: the key that `login` stands in. Raises ConfigError."""
        self.protocol = protocol
        self._values = values
        self.mechanism = mechanism
        self.login = ("", "") if login is None else _user(login, name)
        """User name and password."""
        self._seen: tuple[object, ...] = ()
        self.ssl_context = self._new_context() if "SSL" in protocol else None
        """None without TLS."""

    def _new_context(self) -> SSLContext:
        from server.security.tls import client_tls, stores_seen

        self._seen = stores_seen(self._values)
        return client_tls(self._values).context

    def reload(self) -> None:
        """Take stores whose keys or files changed; what cannot be used is left. Never raises."""
        if self.ssl_context is None:
            return
        from server.security.tls import stores_seen

        if stores_seen(self._values) == self._seen:
            return
        try:
            self.ssl_context = self._new_context()
        except ConfigError as error:
            logger.error("the old stores stay error=%s", error)

    def transport(self, sock: socket.socket, host: str) -> Transport:
        """The transport of a connected socket to `host`, whose name is verified."""
        if self.ssl_context is None:
            return PlaintextTransport(sock)
        from server.security.tls_transport import TlsTransport

        try:
            return TlsTransport(sock, self.ssl_context, server_hostname=host.partition("%")[0])
        except ValueError as error:
            raise ConnectionError(f"TLS: {error}") from None

    def sasl(self) -> SaslClient | None:
        """The exchange of a new connection; None without SASL."""
        if not self.mechanism:
            return None
        return SaslClient(self.mechanism, _client(self.mechanism, *self.login))


def inter_broker_security(config: KafkaConfig, listeners: Listeners) -> PeerSecurity | None:
    """Towards other brokers; None if their listener is PLAINTEXT. Raises ConfigError."""
    name = listeners.inter_broker_name
    return _node_security(config, name, listeners.protocols[name], _INTER_BROKER)


def controller_security(
    config: KafkaConfig, listeners: Listeners, name: str
) -> PeerSecurity | None:
    """Towards the controllers on their listener `name`. Raises ConfigError."""
    return _node_security(config, name, listeners.protocols[name], _CONTROLLER)


def _node_security(
    config: KafkaConfig, name: str, protocol: str, mechanism_key: str
) -> PeerSecurity | None:
    if protocol == PLAINTEXT:
        return None
    values = ListenerConfig(config, name)
    check_classes(values)
    if "SASL" not in protocol:
        return PeerSecurity(protocol, values)
    mechanism = config.get_str(mechanism_key)
    if mechanism not in MODULES:
        raise ConfigError(
            mechanism_key, mechanism, f"expected one of {', '.join(MODULES)} for {name}"
        )
    enabled = values.get_list("sasl.enabled.mechanisms")
    if mechanism not in enabled:
        raise ConfigError(
            mechanism_key, mechanism, f"the listener {name} enables only {', '.join(enabled)}"
        )
    if mechanism_key == _CONTROLLER and mechanism != PLAIN:
        raise ConfigError(
            mechanism_key,
            mechanism,
            "expected PLAIN (or SSL with certificates): SCRAM's credentials stand in the metadata"
            " log, which nobody can read before the controllers have let each other in",
        )
    key = f"{values.prefix}{mechanism.lower()}.{JAAS}"
    return PeerSecurity(protocol, values, mechanism, server_login(values, name, mechanism), key)


def client_security(properties: Mapping[str, str]) -> PeerSecurity | None:
    """What a file of the Java client's properties says; None for PLAINTEXT. Raises ConfigError."""
    protocol = properties.get("security.protocol", PLAINTEXT).strip().upper()
    if protocol not in PROTOCOLS:
        raise ConfigError("security.protocol", protocol, f"expected one of {', '.join(PROTOCOLS)}")
    if protocol == PLAINTEXT:
        return None
    values = ClientProperties(properties)
    if "SASL" not in protocol:
        return PeerSecurity(protocol, values)
    mechanism = properties.get("sasl.mechanism", "GSSAPI").strip()
    if mechanism not in MODULES:
        raise ConfigError("sasl.mechanism", mechanism, f"expected one of {', '.join(MODULES)}")
    try:
        login = check_module(parse_jaas(properties.get(JAAS, "")), mechanism, JAAS)
    except JaasError as error:
        raise ConfigError(JAAS, None, str(error)) from None
    return PeerSecurity(protocol, values, mechanism, login)


class ClientProperties:
    """The ssl.* keys of a client's file."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def text(self, name: str) -> str:
        return self._properties.get(name, catalogue().broker[name].default or "").strip()

    def get_list(self, name: str) -> list[str]:
        return [item.strip() for item in self.text(name).split(",") if item.strip()]

    def error(self, name: str, expected: str) -> ConfigError:
        return ConfigError(name, self._properties.get(name), expected)


def _user(login: LoginModule, name: str) -> tuple[str, str]:
    user, password = login.options.get("username", ""), login.options.get("password", "")
    if not user or not password or "\0" in user + password:
        raise ConfigError(name, None, "expected username and password, to speak to others with")
    return user, password


def _client(mechanism: str, user: str, password: str) -> Mechanism:
    if mechanism == PLAIN:
        return PlainClient(user, password)
    return ScramClient(mechanism, user, password, secrets.token_hex(20))
