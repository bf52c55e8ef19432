"""One request on its way through a node: who asks, for what version, and how it is answered.

Why: handlers and those who answer later, on another thread, know no socket and no selector. What
they return or send here is encoded for the client's version and handed to the connection's own
network thread. (Kafka: RequestChannel.Request and RequestContext.)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from server.network.channel import read_small_slices
from server.network.error_responses import error_response
from wire.frame import encode_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.network.api import Api
    from server.network.channel import Channel
    from wire.primitives import Part
    from wire.schema import Request, Response

logger = logging.getLogger(__name__)

B = TypeVar("B", covariant=True)
"""What the handlers of an area ask of the node: a Protocol of `server.handlers.edges`."""

_CLIENT_ID_SHOWN = 256


class RequestContext(Generic[B]):
    """One request on its way: who asked, for what version, and how to answer.

    Exactly one of returning a response from the handler, `respond`, `no_response` and `close` ends
    it; any of them may be called from any thread. After the end of the connection they do nothing.
    """

    __slots__ = (
        "_cancel",
        "_complete_early",
        "api",
        "api_version",
        "broker",
        "client_id",
        "connection",
        "correlation_id",
        "is_partly_answered",
        "received_ms",
        "throttle_ms",
    )

    def __init__(
        self,
        api: Api,
        api_version: int,
        correlation_id: int,
        client_id: str,
        connection: Channel,
        broker: B,
    ) -> None:
        self.api = api
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.connection = connection
        self.broker = broker
        self.received_ms = connection.processor.now_ms
        self.throttle_ms = 0
        self.is_partly_answered = False
        """It stands for several that are served together, and some of them have their answers."""
        self._cancel: Callable[[], Any] | None = None
        self._complete_early: Callable[[], Any] | None = None

    # -- quotas, where there are any (server.network.metering)

    fetch_bytes_max = (1 << 31) - 1
    """The most that one Fetch may read."""

    def mute_for(self, ms: int) -> None:
        """After the answer, which says so, the connection is muted for at least so long."""
        self.throttle_ms = max(self.throttle_ms, ms)

    def begin(self) -> None:
        """Another thread works on it from now on."""

    def wait(self) -> None:
        """Its thread is done with it; if it is not answered, it will be when it may."""

    def exempt(self, *, is_allowed: bool = True) -> None:
        """It is done for the cluster: nobody's quota is used up, unless its sender may not."""

    # -- who asks

    @property
    def api_key(self) -> int:
        return self.api.api_key

    @property
    def listener_name(self) -> str:
        return self.connection.listener_name

    @property
    def local_host(self) -> str:
        """The address the client dialled."""
        return self.connection.local_host

    @property
    def local_port(self) -> int:
        return self.connection.local_port

    @property
    def peer_host(self) -> str:
        return self.connection.peer_host

    @property
    def principal(self) -> str:
        return self.connection.principal

    @property
    def is_forwarded(self) -> bool:
        """Did a broker pass it on, who had asked its own questions about the connection."""
        return False

    # -- answering

    def respond(self, response: Response) -> None:
        """Send the answer. Never raises: an answer that cannot be written ends the connection."""
        try:
            self.send(response)
        except Exception:
            logger.exception("answer failed %r", self)
            self.close()

    def send(self, response: Response) -> None:
        """Send the answer; raises, with nothing done, what encoding or reading its records did."""
        version = self.api_version
        parts = encode_response(
            version >= self.api.response_flexible, version, self.correlation_id, response
        )
        if len(parts) > 1:
            read_small_slices(parts)
        self.send_parts(parts)

    def send_parts(self, parts: list[Part]) -> None:
        """Send the answer, which is encoded already."""
        self._cancel = self._complete_early = None
        connection = self.connection
        connection.processor.complete(connection, self, parts)

    def send_early(self, parts: list[Part]) -> None:
        """Of requests that are served together, send the answers of the first; those of the others
        follow, the last ones with `send_parts`."""
        connection = self.connection
        connection.processor.answer_first(connection, self, parts)

    def respond_error(self, request: Request, code: int, message: str | None = None) -> None:
        """Answer with an error in every place of the response that has one."""
        self.respond(error_response(request, self.api_version, code, message))

    def no_response(self) -> None:
        """The request is done and the client expects no answer (Produce with acks=0)."""
        self._cancel = self._complete_early = None
        self.connection.processor.complete(self.connection, self, [])

    def close(self) -> None:
        """End the connection without an answer."""
        self._cancel = self._complete_early = None
        self.connection.processor.complete(self.connection, self, None)

    # -- waiting

    def park(self, operation: Any) -> None:
        """`operation` (a DelayedOperation, or None) will answer: drop it with the connection.

        It is cancelled when the connection ends, and completed early when the broker stops.
        """
        if operation is not None and not operation.is_completed:
            self.on_stop(operation.force_complete)
            self.on_disconnect(operation.cancel)

    def on_disconnect(self, cancel: Callable[[], Any]) -> None:
        """Call `cancel` if the client leaves before the answer; nothing is answered then."""
        self._cancel = cancel
        if self.connection.has_left and self.cancel():  # after setting it, as who leaves
            self.no_response()

    def on_connection_end(self, callback: Callable[[object], None]) -> None:
        """Call it with the connection when that has ended, however this request went; each
        connection has one such callback. It must return soon, and may be called twice."""
        self.connection.on_closed = callback
        if self.connection.closed:
            callback(self.connection)

    def on_stop(self, complete: Callable[[], Any]) -> None:
        """Call `complete`, which must answer, when the broker stops."""
        self._complete_early = complete

    def cancel(self) -> bool:
        """The connection ended: True if the request only waited and will never answer."""
        cancel, self._cancel = self._cancel, None
        self._complete_early = None
        if cancel is None:
            return False
        cancel()
        return True

    def complete_early(self) -> None:
        """The broker stops: answer now with what there is, if the request can."""
        complete, self._complete_early = self._complete_early, None
        if complete is not None:
            complete()

    def __repr__(self) -> str:
        client = self.client_id[:_CLIENT_ID_SHOWN]
        return f"{self.api.name} v{self.api_version} client={client!r} from={self.connection!r}"
