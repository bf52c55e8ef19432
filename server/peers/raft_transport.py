"""The raft driver's way to other nodes: events out as requests, responses back as replies.

What: `RaftTransport.send` implements the driver's Protocol of the same name over a `PeerClient`
(Kafka: KafkaNetworkChannel). Why apart: the driver must not know sockets, and the simulator puts
its own network here.
How: each request takes one of two connections to the peer, and what cannot be delivered, is not
answered in time or makes no sense is one and the same: no reply.

Connections: the fetches of a replica wait at the leader, so they have a connection of their own;
votes, farewells and changes of voters must not queue behind them. Kafka sends all over one, and an
election waits for a fetch that hangs. Both carry the client id `raft-client-<node id>` first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from replication.raft.events import Fetch, FetchSnapshot
from server.peers.call import PeerError
from server.peers.raft_outbound import reply_event, request_message
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from replication.raft.events import Outgoing, Peer, Reply
    from server.peers.peer_client import PeerClient
    from wire.schema import Response

logger = logging.getLogger(__name__)


class RaftTransport:
    """Sends for one node; `listener` is the controllers' listener whose endpoints are dialled."""

    def __init__(self, peers: PeerClient, node_id: int, listener: str) -> None:
        self._peers = peers
        self._listener = listener
        self._fetches = f"raft-client-{node_id}"
        self._votes = f"raft-client-{node_id}-votes"
        self._strangers: set[Peer] = set()

    def send(
        self,
        to: Peer,
        request: Outgoing,
        on_answer: Callable[[Reply | None], None],
        timeout_ms: int,
    ) -> None:
        """Send `request`; `on_answer` is called exactly once, on any thread, None for no answer."""
        message, version, response_class = request_message(request)

        def complete(response: Response | PeerError) -> None:
            reply: Reply | None = None
            try:
                reply = self._reply(to, request, response)
            except Exception:
                # Whoever asked waits for an answer, even if this one makes no sense.
                logger.exception("answer makes no sense peer=%s request=%r", to, request)
            on_answer(reply)

        self._peers.send(
            to,
            message,
            version,
            response_class,
            complete,
            timeout_ms=timeout_ms,
            channel=self._fetches if isinstance(request, Fetch | FetchSnapshot) else self._votes,
        )

    def _reply(self, to: Peer, request: Outgoing, response: Response | PeerError) -> Reply | None:
        name = type(request).__name__
        if isinstance(response, PeerError):
            logger.debug("no answer request=%s peer=%s error=%s", name, to, response)
            return None
        reply = reply_event(request, response, self._listener)
        if reply is None:
            logger.warning("answer is about another log request=%s peer=%s", name, to)
        elif reply.error is ErrorCode.INCONSISTENT_CLUSTER_ID and to not in self._strangers:
            self._strangers.add(to)  # it is asked again for ever, and somebody must hear why
            logger.error(
                "peer=%s is of another cluster: format this node's directories, or its, with the"
                " id of the others",
                to,
            )
        return reply
