"""Envelope: a broker passes a client's request on to the active controller (KIP-590).

The request inside runs as if the client had come here itself: the same handler, the client's
version, principal and address. Its answer, errors included, goes back inside; only what is wrong
with the envelope is the envelope's error, and NOT_CONTROLLER, which the broker must not show to the
client but ask elsewhere for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from server.network.error_responses import error_response
from server.network.inner_context import InnerContext
from server.network.request_channel import elements_max
from server.network.request_context import RequestContext
from server.peers.envelope import read_address, read_principal
from wire.errors import ErrorCode, KafkaError, MalformedFrame
from wire.frame import RequestHeader, encode_response, response_header_version
from wire.messages.envelope import EnvelopeResponse

if TYPE_CHECKING:
    from server.network.api import Api
    from wire.messages.envelope import EnvelopeRequest
    from wire.schema import Request, Response


def envelope(ctx: RequestContext[Any], request: EnvelopeRequest) -> EnvelopeResponse | None:
    """Run the request inside; answer with its answer inside.

    Behaviour: PRINCIPAL_DESERIALIZATION_FAILURE, INVALID_REQUEST (address, or an API that no broker
               passes on), UNSUPPORTED_VERSION (what is inside cannot be read), NOT_CONTROLLER.
    Versions:  all alike.
    Gaps:      -
    """
    try:
        inner, message = _open(ctx, request)
    except KafkaError as error:
        return EnvelopeResponse(error_code=error.code)
    assert inner.api.handle is not None
    inner.run(inner.api.handle, message)
    return None


def _open(ctx: RequestContext[Any], request: EnvelopeRequest) -> tuple[EnvelopedContext, Request]:
    """The request inside and its context. Raises KafkaError with the envelope's error."""
    principal = read_principal(request.request_principal)
    host = read_address(request.client_host_address)
    frame = bytes(request.request_data)
    try:
        header = RequestHeader.decode(frame)
        api = ctx.broker.apis.get(header.api_key)
        if api is None or not api.is_forwardable:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"API {header.api_key} is not passed on")
        if not api.min_version <= header.api_version <= api.max_version:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        if api.handle is None:
            api.load()
        message = api.request_class.decode(
            frame, header.api_version, header.body_pos, elements_max(len(frame))
        )
    except MalformedFrame as error:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
    return EnvelopedContext(ctx, api, header, principal, host), message


class EnvelopedContext(InnerContext):
    """A request inside an envelope: who asks is the client, the way back is the envelope's."""

    __slots__ = ("_peer_host", "_principal")

    def __init__(
        self,
        outer: RequestContext[Any],
        api: Api,
        header: RequestHeader,
        principal: str,
        peer_host: str,
    ) -> None:
        super().__init__(
            outer, api, header.api_version, header.correlation_id, header.client_id or ""
        )
        self._principal = principal
        self._peer_host = peer_host

    @property
    def principal(self) -> str:
        return self._principal

    @property
    def peer_host(self) -> str:
        return self._peer_host

    def mute_for(self, ms: int) -> None:
        """The broker that the client is connected to does (RequestHandlerHelper)."""

    @property
    def is_forwarded(self) -> bool:
        return True

    def send(self, response: Response) -> None:
        version = self.api_version
        header_version = response_header_version(self.api_key, version)
        parts = encode_response(header_version, version, self.correlation_id, response)
        frame = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]  # no file
        self._outer.send(EnvelopeResponse(error_code=ErrorCode.NONE, response_data=frame[4:]))

    def respond_error(self, request: Request, code: int, message: str | None = None) -> None:
        if code == ErrorCode.NOT_CONTROLLER:
            self._outer.respond(EnvelopeResponse(error_code=code))
        else:
            self.respond(error_response(request, self.api_version, code, message))

    def close(self) -> None:
        """The answer cannot be written: the client is not connected here, so say what happened."""
        self._outer.respond(EnvelopeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
