"""A client's request inside an Envelope, from a broker to the active controller (KIP-590).

    request_data          the client's request as it would come from the client: header and body
    request_principal     int16 version 0, DefaultPrincipalData: who the client is
    client_host_address   4 or 16 bytes: where the client is
    response_data         the answer as the client will see it: header and body

An error of the envelope itself is never shown to the client, but for UNSUPPORTED_VERSION; the
sender answers UNKNOWN_SERVER_ERROR, or tries again after NOT_CONTROLLER. Both directions are here,
`server.peers.controller_channel` sends, `server.handlers.envelope` serves.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from server.network.channel import TokenPrincipal
from server.peers.peer_connection import FRAME_BYTES_MAX
from wire.errors import ErrorCode, KafkaError, MalformedFrame
from wire.frame import SIZE_BYTES, decode_response_header, encode_request
from wire.messages import response_class
from wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from wire.messages.security import DefaultPrincipalData

if TYPE_CHECKING:
    from replication.controller.context import ControllerContext
    from wire.schema import Request, Response

CORRELATION_ID = 0
"""Of the request inside; there is one in each envelope, so it says nothing."""
_PRINCIPAL_VERSION = b"\0\0"
_AROUND_BYTES = 256
"""An envelope's header and lengths take less."""


def wrap(
    request: Request, context: ControllerContext, bytes_max: int = FRAME_BYTES_MAX
) -> EnvelopeRequest:
    """The envelope of a client's request, in the client's version. Raises KafkaError
    INVALID_REQUEST if it would be larger than `bytes_max`, which no controller takes."""
    parts = encode_request(context.api_version, CORRELATION_ID, context.client_id, request)
    frame = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]  # it holds no file
    principal = principal_bytes(context.principal)
    if len(frame) + len(principal) + _AROUND_BYTES > bytes_max:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "too large to be passed on to the controller")
    return EnvelopeRequest(
        request_data=frame[SIZE_BYTES:],
        request_principal=principal,
        client_host_address=_address_bytes(context.client_host),
    )


def unwrap(request: Request, version: int, envelope: EnvelopeResponse) -> Response | KafkaError:
    """The answer inside, or why there is none (NOT_CONTROLLER: ask another node)."""
    code = envelope.error_code
    if code in (ErrorCode.NOT_CONTROLLER, ErrorCode.UNSUPPORTED_VERSION):
        return KafkaError(ErrorCode(code))
    if code or envelope.response_data is None:
        detail = f"the controller refused the envelope: error {code}"
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, detail)
    frame = bytes(envelope.response_data)
    try:
        _, position = decode_response_header(request.api_key, version, frame)
        return response_class(request.api_key).decode(frame, version, position)
    except MalformedFrame as error:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the controller's answer: {error}")


def principal_bytes(principal: str) -> bytes:
    """`Type:name` as the controller reads it."""
    kind, _, name = principal.partition(":")
    data = DefaultPrincipalData(
        type=kind, name=name, token_authenticated=isinstance(principal, TokenPrincipal)
    )
    return _PRINCIPAL_VERSION + data.encode_bytes(0)


def read_principal(data: bytes | None) -> str:
    """`Type:name`; a TokenPrincipal if it is one. Raises KafkaError
    PRINCIPAL_DESERIALIZATION_FAILURE."""
    try:
        if data is None or data[:2] != _PRINCIPAL_VERSION:
            raise MalformedFrame("not version 0 of DefaultPrincipalData")
        principal = DefaultPrincipalData.decode(bytes(data), 0, len(_PRINCIPAL_VERSION))
    except MalformedFrame as error:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(error)) from error
    name = f"{principal.type}:{principal.name}"
    return TokenPrincipal(name) if principal.token_authenticated else name


def _address_bytes(host: str) -> bytes:
    host = host.partition("%")[0]  # without the interface of a link-local address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.inet_pton(family, host)
    except OSError:
        return b"\x7f\0\0\x01"


def read_address(data: bytes) -> str:
    """The client's address as text. Raises KafkaError INVALID_REQUEST."""
    if len(data) not in (4, 16):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a client address of {len(data)} bytes")
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)
