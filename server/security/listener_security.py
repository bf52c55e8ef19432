"""One listener that is not PLAINTEXT: what its connections go through, and how it changes.

What: `SecuredListener.new_channel` gives an accepted socket its transport and its gate;
`secured_listeners` reads all of a node's, and refuses what cannot be obeyed (a security key that
changes nothing would be a hole). Stores are read again (`reload`) when a key or a file changed;
what cannot be used is refused and the old certificate stays (TLS-20 to TLS-24). Connections keep
what they have; the next handshake uses the new context, which is replaced as a whole.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from server.config.kafka_config import (
    ConfigError,
    KafkaConfig,
    ListenerConfig,
    without_listener_prefix,
)
from server.network.channel import Channel, Gate, SecureChannel, told_as
from server.network.transport import PlaintextTransport
from server.security.gates import SaslGate, SaslPolicy, TlsGate, mapped_name
from server.security.login import MODULES, plain_users, server_login
from server.security.oauth_config import CLASSES, listener_tokens
from server.security.principal_mapping import NameOf, principal_mapper
from server.security.sasl.mechanisms import PLAIN, NewSaslServer, PlainServer
from server.security.sasl.oauthbearer import OAUTHBEARER, OAuthBearerServer, TokenRefused
from server.security.sasl.scram import ScramCredential, ScramServer, TokenCredential

if TYPE_CHECKING:
    from server.network.connection import ConnectionLimits
    from server.network.listeners import Listener
    from server.network.processor import Processor
    from server.network.request_channel import RequestChannel
    from server.security.jwks import Jwks
    from server.security.tls import Tls
    from server.security.tls_transport import HandshakeBudget, TlsTransport

logger = logging.getLogger(__name__)

Credentials = Callable[[str, str], ScramCredential | None]
"""(mechanism, user) to what is kept of the password."""
TokenCredentials = Callable[[str, str], TokenCredential | None]
"""(mechanism, id of a delegation token) to what logs in by it."""

_ENABLED = "sasl.enabled.mechanisms"
_CLIENT_AUTH = "ssl.client.auth"
# Classes that cannot be loaded: a value other than these would be taken and not obeyed (LN-6).
_CLASSES: Mapping[str, str] = {
    "principal.builder.class": (
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
    ),
    "ssl.engine.factory.class": "",
    "sasl.login.class": "",
    "sasl.login.callback.handler.class": "",
    "sasl.client.callback.handler.class": "",
    "sasl.server.callback.handler.class": "",
    "security.providers": "",
}


def secured_listeners(
    config: KafkaConfig,
    listeners: Iterable[Listener],
    credentials: Credentials,
    tokens: TokenCredentials,
    among_nodes: Collection[str] = (),
    secret: Callable[[], bytes] | None = None,
) -> dict[str, SecuredListener]:
    """Those that are not PLAINTEXT, by name, ready to serve. `among_nodes`: names of those where
    nodes speak to each other. `secret`: see SecuredListener. Raises ConfigError."""
    return {
        one.name: SecuredListener(
            config,
            one,
            credentials,
            tokens,
            is_among_nodes=one.name in among_nodes,
            secret=secret,
        )
        for one in listeners
        if one.protocol != "PLAINTEXT"
    }


def check_classes(values: ListenerConfig) -> None:
    """Refuse classes that nobody loads. Raises ConfigError."""
    for name, allowed in _CLASSES.items():
        for mechanism in ("", *MODULES):
            known = CLASSES.get(name, ()) if mechanism == OAUTHBEARER else ()
            if values.text(name, mechanism) not in ("", allowed, *known):
                raise values.error(name, "there is no such class here", mechanism)


class SecuredListener:
    """See the module. `new_channel` on acceptor threads, `reload` on any, one at a time."""

    def __init__(
        self,
        config: KafkaConfig,
        listener: Listener,
        credentials: Credentials,
        tokens: TokenCredentials = lambda _mechanism, _id: None,
        *,
        is_among_nodes: bool = False,
        secret: Callable[[], bytes] | None = None,
    ) -> None:
        """`secret`: what SCRAM's salts of users that are not there are made of; None: the listener
        has one of its own. Raises ConfigError."""
        self.is_refused = False
        """Whether the stores that lie there now were."""
        self._is_among_nodes = is_among_nodes
        self.name = listener.name
        self.protocol = listener.protocol
        self._config = config
        self._credentials = credentials
        self._tokens = tokens
        own_secret = secrets.token_bytes(32)
        self._secret = secret or (lambda: own_secret)
        values = self._values()
        check_classes(values)
        self.token_keys: Jwks | None = None
        """The keys of OAUTHBEARER's tokens, which somebody must keep fresh."""
        self._policy = self._sasl_policy(values) if "SASL" in self.protocol else None
        self._rules = _rules(values)
        self._tls: Tls | None = None
        self._seen: tuple[object, ...] = ()
        self._budgets: dict[int, HandshakeBudget] = {}
        if "SSL" in self.protocol:
            from server.security.tls import stores_seen

            self._seen = stores_seen(values)
            self._tls = self._read_tls(values)
            self.warn_of_expiry()

    def _values(self, config: KafkaConfig | None = None) -> ListenerConfig:
        return ListenerConfig(config or self._config, self.name)

    # -- connections

    def new_channel(
        self,
        sock: socket.socket,
        processor: Processor,
        limits: ConnectionLimits,
        requests: RequestChannel,
        connection_id: int,
        peer_host: str,
    ) -> Channel:
        """The channel of an accepted connection, with its gate."""
        tls = self._tls
        kind = Channel if tls is None else SecureChannel
        transport: PlaintextTransport | TlsTransport
        if tls is None:
            transport = PlaintextTransport(sock)
        else:
            name = told_as(self.name, connection_id, peer_host)
            transport = self._secured(sock, tls, processor, name)
        channel = kind(
            transport,
            processor,
            limits,
            listener_name=self.name,
            connection_id=connection_id,
            peer_host=peer_host,
            security_protocol=self.protocol,
        )
        gate: Gate
        if self._policy is not None:
            gate = SaslGate(channel, requests, self._policy)
        else:
            assert not isinstance(transport, PlaintextTransport)
            gate = TlsGate(transport, requests, partial(mapped_name, self._rules), processor.now_ms)
        channel.gate = gate
        return channel

    def _secured(
        self, sock: socket.socket, tls: Tls, processor: Processor, name: str
    ) -> TlsTransport:
        from server.security.tls_transport import HandshakeBudget, TlsTransport

        budget = self._budgets.get(processor.index)
        if budget is None:
            budget = HandshakeBudget(lambda: processor.now_ms)
            budget = self._budgets.setdefault(processor.index, budget)
        return TlsTransport(sock, tls.context, budget=budget, told_as=name)

    # -- TLS

    def _read_tls(self, values: ListenerConfig) -> Tls:
        from server.security.tls import server_tls, with_nodes

        client_auth = str(values.get(_CLIENT_AUTH))
        if "SASL" in self.protocol and values.key(_CLIENT_AUTH) == _CLIENT_AUTH:
            # Of brokers with SASL_SSL only the listener's own key counts (TLS-9).
            if client_auth != "none" and self._tls is None:
                logger.warning(
                    "%s is not obeyed on %s, which has SASL: %s%s would be",
                    _CLIENT_AUTH, self.name, values.prefix, _CLIENT_AUTH,
                )  # fmt: skip
            client_auth = "none"
        tls = server_tls(values, client_auth=client_auth)
        return with_nodes(values, tls) if self._is_among_nodes and self._tls is None else tls

    def check_reload(self, config: KafkaConfig) -> None:
        """Could the listener go on with the stores of this configuration, if they are others, or a
        change names them? Other changes are taken whatever lies in the files, which are for
        `reload` to refuse (TLS-21). Raises ConfigError."""
        if self._tls is None:
            return
        from server.security.tls import RELOADABLE, check_exchange, stores_named

        values = self._values(config)
        is_told = any(without_listener_prefix(name) in RELOADABLE for name in config.named)
        if is_told or stores_named(values) != stores_named(self._values()):
            check_exchange(values, self._tls, self._read_tls(values))

    def reload(self) -> bool:
        """Take stores whose keys or files changed; whether anything did. Never raises."""
        if self._tls is None:
            return False
        from server.security.tls import check_exchange, stores_seen

        values = self._values()
        seen = stores_seen(values)
        if seen == self._seen:
            return False
        self._seen = seen  # what is refused is not tried again until it changes
        try:
            fresh = check_exchange(values, self._tls, self._read_tls(values))
            self.is_refused = False
        except ConfigError as error:
            self.is_refused = True
            logger.error("the old certificate stays listener=%s error=%s", self.name, error)
            return False
        self._tls = fresh
        logger.info("stores reloaded listener=%s", self.name)
        self.warn_of_expiry()
        return True

    def warn_of_expiry(self) -> None:
        """Say that the certificate ends soon (TLS-24), or is not valid yet."""
        if self._tls is None:
            return
        from server.security.tls import expiry_warning

        warning = expiry_warning(self._tls.identity.own)
        if warning is not None:
            logger.warning("listener=%s %s", self.name, warning)

    # -- SASL

    def _sasl_policy(self, values: ListenerConfig) -> SaslPolicy:
        names = values.get_list(_ENABLED)
        if not names:
            raise values.error(_ENABLED, f"expected some of {', '.join(MODULES)}")
        for name in names:
            if name not in MODULES:
                raise values.error(
                    _ENABLED,
                    f"{name[:32]} is not served: expected some of {', '.join(MODULES)}"
                    " (Kafka's default is GSSAPI)",
                )
        if PLAIN in names and "SSL" not in self.protocol:
            logger.warning(
                "listener %s takes passwords unencrypted (SASL_PLAINTEXT with PLAIN)", self.name
            )
        return SaslPolicy(
            {name: self._new_server(values, name) for name in names},
            values.get_int("sasl.server.max.receive.size"),
            values.config.get_int("connection.failed.authentication.delay.ms"),
            {name: max(0, values.get_int("connections.max.reauth.ms", name)) for name in names},
        )

    def _new_server(self, values: ListenerConfig, mechanism: str) -> NewSaslServer:
        module = server_login(values, self.name, mechanism)
        if mechanism == PLAIN:
            return partial(PlainServer, plain_users(module), secrets.token_urlsafe(32))
        if mechanism == OAUTHBEARER:
            tokens = listener_tokens(values, module)
            self.token_keys = tokens.keys
            if tokens.keys is None:
                logger.warning("listener %s takes tokens that anybody can write", self.name)
            return partial(OAuthBearerServer, tokens.validate, self._refused)

        def scram() -> ScramServer:
            lookup = partial(self._credentials, mechanism)
            token = partial(self._tokens, mechanism)
            return ScramServer(mechanism, lookup, self._secret(), secrets.token_hex(20), token)

        return scram

    def _refused(self, why: TokenRefused) -> None:
        logger.info("token refused listener=%s reason=%s", self.name, why)


def _rules(values: ListenerConfig) -> NameOf:
    name = "ssl.principal.mapping.rules"
    try:
        return principal_mapper(values.text(name))
    except ValueError as error:
        raise values.error(name, str(error)) from None
