"""A node's security as a whole: its listeners, and what it is to others; read once, then reloaded.

Only listeners that are not PLAINTEXT cost anything: without them nothing of `server.security` is
imported, and no file is looked at.

Stores are looked at again when this broker's dynamic configs change, whichever (TLS-21), and once a
minute. Keys that tokens are signed with are kept fresh by the same worker (`server.security.jwks`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from server.config.kafka_config import ConfigError, KafkaConfig
from server.network.listeners import PLAINTEXT, Listener, read_listeners
from server.node.quorum_config import QuorumConfig

if TYPE_CHECKING:
    from replication.replicas.timer import BackgroundScheduler
    from server.security.listener_security import SecuredListener
    from server.security.peer_security import PeerSecurity
    from server.security.sasl.scram import ScramCredential, TokenCredential

logger = logging.getLogger(__name__)

_LOOK_MS = 60_000
_DAY_MS = 86_400_000
_KEYS_MS = 1000


class NodeSecurity:
    """See the module. `reload` from any thread."""

    def __init__(
        self,
        config: KafkaConfig,
        quorum: QuorumConfig,
        credentials: Callable[[str, str], ScramCredential | None],
        tokens: Callable[[str, str], TokenCredential | None] = lambda _mechanism, _id: None,
        users: Callable[[], Mapping[Any, Any]] = dict,
    ) -> None:
        """Reads every store: what cannot be used shows now. `users`: those of SCRAM in the metadata
        log. Raises ConfigError."""
        self._listeners: Mapping[str, SecuredListener] = {}
        self.towards_brokers: PeerSecurity | None = None
        """As a client of other brokers; None on PLAINTEXT, and on a node alone."""
        self.towards_controllers: PeerSecurity | None = None
        """As a client of controllers, likewise."""
        self._lock = threading.Lock()
        self._among_nodes = ("", "")
        listeners = read_listeners(config)
        _check_names(config, listeners.protocols)
        if all(protocol == PLAINTEXT for protocol in listeners.protocols.values()):
            return
        from server.security.listener_security import secured_listeners
        from server.security.peer_security import controller_security, inter_broker_security
        from server.security.sasl.scram import StrangersSecret

        opened = (*listeners.broker, *listeners.controller)
        secret = StrangersSecret(users, os.urandom(32))
        if quorum.is_alone:
            self._listeners = secured_listeners(config, opened, credentials, tokens, secret=secret)
            return
        dialled = quorum.controller_listener_names[0]
        self._among_nodes = (listeners.inter_broker_name, dialled)
        self._listeners = secured_listeners(
            config, opened, credentials, tokens, self._among_nodes, secret
        )
        if listeners.inter_broker_name:
            self.towards_brokers = inter_broker_security(config, listeners)
        self.towards_controllers = controller_security(config, listeners, dialled)

    @property
    def is_open(self) -> bool:
        """Whether everything is PLAINTEXT."""
        return not self._listeners and not self.towards_brokers and not self.towards_controllers

    def of(self, listeners: tuple[Listener, ...]) -> dict[str, SecuredListener]:
        """The security of those of these listeners that are not PLAINTEXT."""
        return {
            one.name: self._listeners[one.name] for one in listeners if one.name in self._listeners
        }

    def check_reload(self, config: KafkaConfig) -> None:
        """Could all go on with this configuration? Raises ConfigError."""
        for listener in self._listeners.values():
            listener.check_reload(config)

    def reload(self) -> None:
        """Take what changed; never raises."""
        with self._lock:
            for listener in self._listeners.values():
                listener.reload()
            both = (self.towards_brokers, self.towards_controllers)
            for name, peers in zip(self._among_nodes, both, strict=True):
                if peers is not None and not self._is_refused(name):
                    peers.reload()

    def _is_refused(self, name: str) -> bool:
        """Whether the stores of this listener, and so of who dials it, are not to be used."""
        listener = self._listeners.get(name)
        return listener is not None and listener.is_refused

    def watch(self, worker: BackgroundScheduler) -> None:
        """Look at the stores each minute, and warn of certificates that end soon each day."""
        worker.schedule("certificates", _LOOK_MS, self.reload)
        worker.schedule("expiry of certificates", _DAY_MS, self._warn)
        for listener in self._listeners.values():
            if listener.token_keys is not None:
                worker.schedule("keys of tokens", _KEYS_MS, listener.token_keys.look)

    def _warn(self) -> None:
        for listener in self._listeners.values():
            listener.warn_of_expiry()


def _check_names(config: KafkaConfig, known: Mapping[str, str]) -> None:
    """Refuse what is said of a listener that is not there: a slip of the pen in its name would
    leave the real one open. Names of the protocol map are known, for nodes of other roles may share
    a file."""
    mapped = config.get_str("listener.security.protocol.map").split(",")
    names = {*known, *config.get_list("controller.listener.names")}
    names |= {pair.partition(":")[0].strip() for pair in mapped}
    lowered = {name.lower() for name in names}
    for key in config.static:
        name, dot, _rest = key.removeprefix("listener.name.").partition(".")
        if dot and key.startswith("listener.name.") and name not in lowered:
            expected = f"there is no such listener: expected one of {', '.join(sorted(lowered))}"
            raise ConfigError(key, None, expected)
