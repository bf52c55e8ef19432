"""The one who authenticates, a node or a command: SaslHandshake, then SaslAuthenticate. PURE.

The exchange is a sequence of ordinary requests; whoever has a connection sends what `first` and
`then` give, until there is nothing left. Where the session has a lifetime the connection is not
authenticated anew (KIP-368) but made anew, which every server takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from server.security.sasl.mechanisms import AuthenticationFailed
from wire.errors import ErrorCode
from wire.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from wire.schema import Request, Response

_TEXT_MAX = 256


class AuthenticationError(ConnectionError):
    """The other side does not know us, or is not who it should be."""


class Mechanism(Protocol):
    """A client's side of a mechanism; see `server.security.sasl.scram`."""

    def evaluate(self, challenge: bytes | None) -> bytes | None: ...


class SaslClient:
    """One connection's authentication. Raises AuthenticationError."""

    def __init__(self, name: str, mechanism: Mechanism) -> None:
        self.lifetime_ms = 0
        """When it is done: how long the session lasts; 0 for ever."""
        self._name = name
        self._mechanism = mechanism

    def first(self) -> Request:
        """What to send first."""
        return SaslHandshakeRequest(mechanism=self._name)

    def then(self, response: Response) -> Request | None:
        """What to send after this answer; None when all is done."""
        challenge: bytes | None
        if isinstance(response, SaslHandshakeResponse):
            if response.error_code:
                offered = ", ".join(response.mechanisms)[:_TEXT_MAX]
                instead = f"but {offered}" if offered else "nor any other: no login is asked for"
                raise AuthenticationError(f"SASL {self._name} is not offered, {instead}")
            challenge = None
        else:
            assert isinstance(response, SaslAuthenticateResponse)
            challenge = self._checked(response)
        try:
            token = self._mechanism.evaluate(challenge)
        except AuthenticationFailed as error:
            raise AuthenticationError(f"SASL {self._name}: {error}") from None
        if token is None:
            assert isinstance(response, SaslAuthenticateResponse)
            self.lifetime_ms = response.session_lifetime_ms
            return None
        return SaslAuthenticateRequest(auth_bytes=token)

    @staticmethod
    def _checked(response: SaslAuthenticateResponse) -> bytes:
        if response.error_code:
            code = response.error_code
            names = {one.value: one.name for one in ErrorCode}
            said = response.error_message or names.get(code, str(code))
            raise AuthenticationError(said[:_TEXT_MAX])
        return bytes(response.auth_bytes)
