"""How this node, or a command, reaches a listener that is not PLAINTEXT: as a client of it.

A node speaks to brokers by the keys of the inter-broker listener and to controllers by those of the
first of controller.listener.names, prefix included (LN-8, LN-9): trust store, its own certificate,
`ssl.endpoint.identification.algorithm`, and the user name and password of the JAAS entry, or a
token. A command is told by a file of the Java client's properties.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from server.config.kafka_config import ConfigError, KafkaConfig, ListenerConfig
from server.network.listeners import PLAINTEXT, PROTOCOLS
from server.network.transport import PlaintextTransport, Transport
from server.security.jaas import JaasError, LoginModule, parse_jaas
from server.security.listener_security import check_classes
from server.security.login import JAAS, MODULES, ClientProperties, check_module, server_login
from server.security.oauth_config import token_source
from server.security.sasl.client import AuthenticationError, Mechanism, SaslClient
from server.security.sasl.mechanisms import PLAIN, AuthenticationFailed
from server.security.sasl.oauthbearer import OAUTHBEARER, OAuthBearerClient
from server.security.sasl.scram import HASHES, PlainClient, ScramClient

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
        self.login = ("", "")
        """User name and password; empty without, and with tokens."""
        self.token: Callable[[], str] | None = None
        """With OAUTHBEARER: a token that is good now. Raises OSError, ValueError."""
        if login is not None and mechanism == OAUTHBEARER:
            self.token = token_source(partial(_text, values, mechanism), login, name)
        elif login is not None:
            self.login = _user(login, name)
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
        return SaslClient(self.mechanism, self._client())

    def _client(self) -> Mechanism:
        if self.token is not None:
            try:
                return OAuthBearerClient(self.token())
            except (OSError, ValueError, AuthenticationFailed) as error:
                why = getattr(error, "strerror", None) or "what should be the token is none"
                raise AuthenticationError(f"SASL {self.mechanism}: {why}") from None
        if self.mechanism == PLAIN:
            return PlainClient(*self.login)
        return ScramClient(self.mechanism, *self.login, secrets.token_hex(20))


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
    if mechanism_key == _CONTROLLER and mechanism in HASHES:
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


def _user(login: LoginModule, name: str) -> tuple[str, str]:
    user, password = login.options.get("username", ""), login.options.get("password", "")
    if login.options.get("tokenauth", "").strip().lower() == "true":
        raise ConfigError(name, None, "nodes and commands here log in by no delegation token")
    if not user or not password or "\0" in user + password:
        raise ConfigError(name, None, "expected username and password, to speak to others with")
    return user, password


def _text(values: TlsValues, mechanism: str, name: str) -> str:
    if isinstance(values, ListenerConfig):
        return values.text(name, mechanism)
    return values.text(name)
