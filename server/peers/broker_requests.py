"""Requests from one broker to another by its id, in our highest version, without waiting.

Why: a transaction coordinator tells partition leaders, partition leaders ask the coordinator, and
each may be on any broker, the asking one included. `BrokerRequests` knows where a broker listens
(the cluster's metadata, on the listener brokers speak over) and asks the own node without a socket.

Threads: none of its own; `send` from any thread. `on_complete` runs once, on the peer client's
thread, or on the caller's before `send` returns if nothing can be sent or the node itself answers
at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from server.peers.call import PeerError
from wire.messages import response_class

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage
    from server.peers.controller_channel import Peers
    from wire.schema import Request

logger = logging.getLogger(__name__)

PARTITIONS_MAX = 10_000
"""Partitions that a request of many transactions should have. A broker takes no request of any
number of elements (`server.network.request_channel.elements_max`), and what it refuses once it
would refuse each time."""

OnAnswer = Callable[[Any], None]
"""Takes the response or a PeerError, once; must not raise."""

OwnHandler = Callable[[Any, OnAnswer], None]
"""Serves a request of this node to itself."""


class BrokerRequests:
    """See the module. `peers` is None where there can be no other broker."""

    def __init__(
        self,
        node_id: int,
        metadata: Callable[[], MetadataImage],
        listener_name: str,
        peers: Peers | None,
    ) -> None:
        self.node_id = node_id
        self._metadata = metadata
        self._listener_name = listener_name
        self._peers = peers
        self._own: dict[type[Request], OwnHandler] = {}

    def serve_own(self, request_class: type[Request], handler: OwnHandler) -> None:
        """How this node answers such a request of its own."""
        self._own[request_class] = handler

    def send(
        self,
        broker_id: int,
        request: Request,
        on_complete: OnAnswer,
        *,
        timeout_ms: int,
        channel: str,
    ) -> None:
        """Ask a broker; requests of one (broker, channel) go one after the other. On the wire the
        channel's name says whose it is, too: "broker-1-txn-markers".
        """
        kind = type(request)
        try:
            if broker_id == self.node_id:
                self._own[kind](request, on_complete)
                return
            broker = self._metadata().brokers.get(broker_id)
            endpoint = None if broker is None else broker.endpoints.get(self._listener_name)
            if endpoint is None or self._peers is None:
                on_complete(PeerError(f"broker {broker_id} is not known"))
                return
            self._peers.send(
                endpoint,
                request,
                kind.versions[1],
                response_class(kind.api_key),
                on_complete,
                timeout_ms=timeout_ms,
                channel=f"broker-{self.node_id}-{channel}",
            )
        except Exception as error:  # who asked waits for `on_complete`, and others behind him
            logger.exception(
                "a request to a broker failed broker=%s channel=%s", broker_id, channel
            )
            on_complete(PeerError(str(error)))
