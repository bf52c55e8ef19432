"""OAUTHBEARER (RFC 7628, KIP-255), as server and as client. PURE.

    client   n,[a=authzid],^Aauth=Bearer TOKEN^A[name=value^A]*^A
    server   nothing if the token is good; else {"status":"invalid_token"}, to which the client
             says ^A, and only then is it refused with the same JSON as the text (OA-2)

What a token is worth is `server.security.tokens`'. Names and values beside `auth` are extensions
that nobody here asks for: they must be well formed, and are dropped (OA-1). Stricter than Kafka:
after a token that was refused there is no second one on the same exchange.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from server.security.sasl.mechanisms import SASLNAME, AuthenticationFailed, unescaped

OAUTHBEARER = "OAUTHBEARER"
NAME_MAX = 1024
"""Longest name of a principal that a token may bring, in characters."""

_FIRST = re.compile(
    rf"n,(?:a=(?P<authzid>{SASLNAME}))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]++=[\x21-\x7e \t\r\n]++\x01)*+)\x01"
)
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")
_TOKEN = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")
_SEPARATOR = "\x01"


class TokenRefused(Exception):
    """Why a token is worth nothing, for the log; never quotes it."""

    def __init__(self, reason: str, scope: str | None = None) -> None:
        """`scope`: what the token would have needed (the status is insufficient_scope)."""
        super().__init__(reason)
        self.scope = scope

    @property
    def answer(self) -> str:
        """What the client learns of it."""
        if self.scope is None:
            return json.dumps({"status": "invalid_token"}, separators=(",", ":"))
        return json.dumps({"status": "insufficient_scope", "scope": self.scope})


class BearerToken(NamedTuple):
    """A token that was found good."""

    principal: str
    lifetime_ms: int
    """How long it is good from now on; 0: it is only just over, within the clock's skew."""


Validate = Callable[[str], BearerToken]
"""Raises TokenRefused."""


class OAuthBearerServer:
    """One exchange of one connection. `refused` hears why a token was."""

    def __init__(self, validate: Validate, refused: Callable[[TokenRefused], object]) -> None:
        self.principal = ""
        self.is_complete = self.is_token = False
        self.lifetime_ms: int | None = None
        self._validate = validate
        self._refused = refused
        self._answer: str | None = None

    def evaluate(self, token: bytes) -> bytes:
        if self._answer is not None and token == _SEPARATOR.encode():
            raise AuthenticationFailed(self._answer)
        if self._answer is not None or self.is_complete:
            raise AuthenticationFailed
        authzid, bearer = _read_first(token)
        try:
            good = self._validate(bearer)
        except TokenRefused as error:
            self._refused(error)
            self._answer = error.answer
            return self._answer.encode()
        if authzid and authzid != good.principal:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different"
                " from the token's principal name"
            )
        self.principal, self.lifetime_ms = good.principal, good.lifetime_ms
        self.is_complete = True
        return b""


def _read_first(message: bytes) -> tuple[str, str]:
    """The authorization id and the token. Raises AuthenticationFailed."""
    try:
        first = _FIRST.fullmatch(message.decode("ascii"))
    except UnicodeDecodeError:
        first = None
    if first is None:
        raise AuthenticationFailed
    pairs = [pair.partition("=") for pair in first["pairs"].split(_SEPARATOR) if pair]
    found = [value for name, _, value in pairs if name == "auth"]
    auth = _AUTH.fullmatch(found[0]) if len(found) == 1 else None
    if auth is None or auth["scheme"].lower() != "bearer":
        raise AuthenticationFailed
    authzid: str = first["authzid"] or ""
    return unescaped(authzid), auth["token"]


class OAuthBearerClient:
    """The client's side, with a token. Raises AuthenticationFailed."""

    def __init__(self, token: str) -> None:
        if _TOKEN.fullmatch(token) is None:
            raise AuthenticationFailed("what should be the token is none")
        self._first = f"n,,\x01auth=Bearer {token}\x01\x01".encode()

    def evaluate(self, challenge: bytes | None) -> bytes | None:
        if challenge is None:
            return self._first
        return _SEPARATOR.encode() if challenge else None  # refused: say so, and hear why
