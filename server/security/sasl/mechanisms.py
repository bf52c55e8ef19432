"""What a SASL mechanism is to the server, and PLAIN (RFC 4616). PURE.

PLAIN's one token is authzid NUL user NUL password. The rules are PlainSaslServer's (PL-1, PL-2):
three parts, neither user nor password empty, the password before the authzid. A user that nobody
knows costs what a wrong password costs, and is told the same.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import Protocol

PLAIN = "PLAIN"
SASLNAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]++|=2C|=3D)++"
"""A name as SCRAM and OAUTHBEARER write it. It never gives back what it took: names half a megabyte
long, of strangers, took a network thread 0.1 s and 60 MiB to refuse."""


class AuthenticationFailed(Exception):
    """The peer is not who it says, or said it wrongly. The text, if any, is for the peer."""


class SaslServer(Protocol):
    """One exchange of one connection."""

    principal: str
    """The user's name once `is_complete`."""
    is_complete: bool
    is_token: bool
    """Was a delegation token shown."""
    lifetime_ms: int | None
    """Once complete: how long what the peer showed is good from now on; None for ever."""

    def evaluate(self, token: bytes) -> bytes:
        """The answer to the peer's token. Raises AuthenticationFailed."""


NewSaslServer = Callable[[], SaslServer]


def unescaped(name: str) -> str:
    """What a SASLNAME says."""
    return name.replace("=2C", ",").replace("=3D", "=")


class PlainServer:
    """PLAIN for the `users` of a listener, name to password."""

    def __init__(self, users: Mapping[str, str], unknown: str) -> None:
        """`unknown`: a random text that is compared for users that are not there."""
        self.principal = ""
        self.is_complete = self.is_token = False
        self.lifetime_ms: int | None = None
        self._users = users
        self._unknown = unknown

    def evaluate(self, token: bytes) -> bytes:
        if self.is_complete:
            raise AuthenticationFailed
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise AuthenticationFailed(
                "Authentication failed: the PLAIN token is not UTF-8"
            ) from None
        if len(parts) != 3:
            raise AuthenticationFailed(
                f"Authentication failed: expected 3 tokens in PLAIN, got {len(parts)}"
            )
        authzid, user, password = parts
        if not user or not password:
            what = "password" if user else "username"
            raise AuthenticationFailed(f"Authentication failed: {what} not specified")
        expected = self._users.get(user)
        is_right = hmac.compare_digest(
            (self._unknown if expected is None else expected).encode(), password.encode()
        )
        if expected is None or not is_right:
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        if authzid and authzid != user:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different"
                " from username"
            )
        self.principal = user
        self.is_complete = True
        return b""
