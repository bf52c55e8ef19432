"""SaslHandshake and SaslAuthenticate where nobody has to authenticate, or has already.

Before a peer is known its requests do not come this far: `server.security.gates` answers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.errors import ErrorCode
from wire.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from server.handlers.edges import AnyNode
    from server.network.request_context import RequestContext


def sasl_handshake(
    _ctx: RequestContext[AnyNode], _request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """Begin to authenticate: too late, or on a listener without SASL.

    Behaviour: ILLEGAL_SASL_STATE with an empty list; the connection stays (SA-11).
    Versions:  all alike.
    Gaps:      -
    """
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])


def sasl_authenticate(
    _ctx: RequestContext[AnyNode], _request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """A step of an authentication that nobody began.

    Behaviour: ILLEGAL_SASL_STATE; the connection stays (SA-11).
    Versions:  all alike.
    Gaps:      -
    """
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )
