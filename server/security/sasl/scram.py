"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677) as Kafka has them. PURE.

    client-first  n,[a=user],[m=..]n=user,r=nonce[,extensions]
    server-first  r=nonce+ours,s=salt,i=iterations
    client-final  c=biws,r=nonce+ours,p=proof
    server-final  v=signature

No channel binding, no SASLprep (SC-1, SC-3). The signed message is made of the bytes that were
received (SC-2). The nonce of the final message must equal ours, all of it (CVE-2024-56128), and `c`
be the client's own gs2 header, so that a downgrade shows (A-4). For a user that nobody knows the
exchange goes on with a salt that is always the same for that name, and fails at the proof (SC-4):
neither the rounds nor what they hold tell who exists.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from replication.controller.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS
from server.security.sasl.mechanisms import SASLNAME, AuthenticationFailed, unescaped

HASHES = {name: mechanism.hash for name, mechanism in MECHANISMS.items()}
TYPES = {name: mechanism.type for name, mechanism in MECHANISMS.items()}

FIRST_MAX = 4_096
"""Longest client-first message, in characters. It is kept until the next one comes, by whoever
sent it: with no bound but the frame's a stranger held two megabytes."""
_SALT_BITS, _SALT_DIGITS = 130, b"0123456789abcdefghijklmnopqrstuvwxyz"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]++"
_EXTENSIONS = r"(?P<extensions>(?:,(?!p=)[A-Za-z]++=[^,\x00]++)*+)"
_CLIENT_FIRST = re.compile(
    rf"(?P<gs2>n,(?:a=(?P<authzid>{SASLNAME}))?,)"
    rf"(?P<bare>n=(?P<name>{SASLNAME}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS})",
    re.DOTALL,
)
_BASE64 = r"[A-Za-z0-9+/]+={0,2}"
_CLIENT_FINAL = re.compile(
    rf"(?P<unsigned>c=(?P<gs2>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})",
    re.DOTALL,
)
_SERVER_FIRST = re.compile(
    rf"r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE64}),i=(?P<count>[1-9][0-9]{{0,9}}){_EXTENSIONS}",
    re.DOTALL,
)


class ScramCredential(NamedTuple):
    """What is kept of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


def _hmac(mechanism: str, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, HASHES[mechanism])


def _hash(mechanism: str, data: bytes) -> bytes:
    return hashlib.new(HASHES[mechanism], data).digest()


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi() of the RFC; the password's bytes are UTF-8 as given."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def salt_of(secret: bytes) -> bytes:
    """A salt as Kafka's tools make it, of at least 17 secret bytes. All of ours look like it: a
    client is shown the salt, and one of another kind would tell who made the user, or that there
    is none."""
    bits, salt = int.from_bytes(secret) >> (8 * len(secret) - _SALT_BITS), bytearray()
    while bits:
        bits, digit = divmod(bits, len(_SALT_DIGITS))
        salt.append(_SALT_DIGITS[digit])
    return bytes(salt)


class StrangersSecret:
    """What the salts of users that are not there are made of. Any thread.

    A user has one salt on every listener and every node, after a restart, too; so must who is none
    have, or two questions in two places tell them apart. What all nodes know, no client, and seldom
    changes is the server's key of the first user.
    """

    def __init__(self, users: Callable[[], Mapping[Any, Any]], without_users: bytes) -> None:
        """`users`: the UserScramCredentialRecords there are now; another mapping when one changed.
        `without_users`: random, and secret."""
        self._users = users
        self._without_users = without_users
        self._known: tuple[Mapping[Any, Any] | None, bytes] = None, b""

    def __call__(self) -> bytes:
        users = self._users()
        made_of, secret = self._known
        if users is not made_of:
            secret = bytes(users[min(users)].server_key) if users else self._without_users
            self._known = users, secret
        return secret


class TokenCredential(NamedTuple):
    """A delegation token that may log in."""

    credential: ScramCredential
    owner: str
    """The name of the user who is logged in by it."""
    lifetime_ms: int
    """How long it is good from now on."""


class ScramServer:
    """The server's side for one connection.

    `lookup` finds a user's credential, `token` that of a delegation token, for who says
    `tokenauth=true` and a token's id for a name (DT-4); `secret` makes the salts of users that are
    not there, the same for all connections; `nonce` is random and new.
    """

    def __init__(
        self,
        mechanism: str,
        lookup: Callable[[str], ScramCredential | None],
        secret: bytes,
        nonce: str,
        token: Callable[[str], TokenCredential | None] = lambda _id: None,
    ) -> None:
        self.principal = ""
        self.is_complete = self.is_token = False
        self.lifetime_ms: int | None = None
        self._mechanism = mechanism
        self._lookup = lookup
        self._token = token
        self._secret = secret
        self._own_nonce = nonce
        self._first: re.Match[str] | None = None
        self._server_first = ""
        self._name = ""
        self._nonce = ""
        self._is_known = False
        self._credential = ScramCredential(b"", b"", b"", 0)

    def evaluate(self, token: bytes) -> bytes:
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed from None
        if self.is_complete:
            raise AuthenticationFailed
        if self._first is None:
            return self._begin(text)
        return self._finish(self._first, text)

    def _begin(self, text: str) -> bytes:
        first = _CLIENT_FIRST.fullmatch(text) if len(text) <= FIRST_MAX else None
        if first is None:
            raise AuthenticationFailed
        name = unescaped(first["name"])
        authzid = first["authzid"]
        if authzid and unescaped(authzid) != name:
            raise AuthenticationFailed
        if re.search(r",tokenauth=true(,|$)", first["extensions"], re.IGNORECASE):
            self.is_token = True
        self._first, self._name = first, name
        known, unknown = self._known(name), self._unknown(name)  # both, so that they take as long
        self._is_known = known is not None
        shown = self._credential = unknown if known is None else known
        self._nonce = first["nonce"] + self._own_nonce
        salt = base64.b64encode(shown.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={shown.iterations}"
        return self._server_first.encode()

    def _known(self, name: str) -> ScramCredential | None:
        if not self.is_token:
            return self._lookup(name)
        token = self._token(name)
        if token is None:
            return None
        self._name, self.lifetime_ms = token.owner, token.lifetime_ms
        return token.credential

    def _unknown(self, name: str) -> ScramCredential:
        """As Kafka's tools make a credential by default: other bytes, or another length, would tell
        it apart from those of users."""
        digest = _hmac(self._mechanism, self._secret, name.encode())
        return ScramCredential(salt_of(digest), digest, digest, ITERATIONS_MIN)

    def _finish(self, first: re.Match[str], text: str) -> bytes:
        final = _CLIENT_FINAL.fullmatch(text)
        self._first, shown = None, self._credential
        if final is None:
            raise AuthenticationFailed
        signed = f"{first['bare']},{self._server_first},{final['unsigned']}".encode()
        signature = _hmac(self._mechanism, shown.stored_key, signed)
        proof = _decoded(final["proof"])
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        is_right = hmac.compare_digest(_hash(self._mechanism, client_key), shown.stored_key)
        is_bound = _decoded(final["gs2"]) == first["gs2"].encode()
        is_ours = hmac.compare_digest(final["nonce"], self._nonce)
        is_whole = len(proof) == len(signature)
        if not (self._is_known and is_right and is_bound and is_ours and is_whole):
            raise AuthenticationFailed
        if self.is_token and self._known(unescaped(first["name"])) is None:
            raise AuthenticationFailed  # it has ended since; of what has not, less is left
        self.principal = self._name
        self.is_complete = True
        return b"v=" + base64.b64encode(_hmac(self._mechanism, shown.server_key, signed))


class ScramClient:
    """The client's side. Raises AuthenticationFailed with a text for the operator."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._signature: bytes | None = None

    def evaluate(self, challenge: bytes | None) -> bytes | None:
        """The next token; None when the server has proved itself."""
        if challenge is None:
            return b"n,," + self._bare.encode()
        if self._signature is None:
            return self._prove(challenge)
        if not hmac.compare_digest(challenge, b"v=" + base64.b64encode(self._signature)):
            raise AuthenticationFailed("the server does not know the password itself")
        return None

    def _prove(self, challenge: bytes) -> bytes:
        first = _SERVER_FIRST.fullmatch(challenge.decode("ascii", "replace"))
        if first is None or not first["nonce"].startswith(self._nonce):
            raise AuthenticationFailed("the server's answer is not SCRAM's")
        count = int(first["count"])
        if first["nonce"] == self._nonce or not ITERATIONS_MIN <= count <= 10 * ITERATIONS_MAX:
            raise AuthenticationFailed("the server asks for what would be too weak, or too slow")
        salted = salted_password(self._mechanism, self._password, _decoded(first["salt"]), count)
        client_key = _hmac(self._mechanism, salted, b"Client Key")
        unsigned = f"c=biws,r={first['nonce']}"
        signed = f"{self._bare},{challenge.decode()},{unsigned}".encode()
        server_key = _hmac(self._mechanism, salted, b"Server Key")
        self._signature = _hmac(self._mechanism, server_key, signed)
        mask = _hmac(self._mechanism, _hash(self._mechanism, client_key), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, mask, strict=True))
        return f"{unsigned},p={base64.b64encode(proof).decode()}".encode()


class PlainClient:
    """PLAIN's one token."""

    def __init__(self, user: str, password: str) -> None:
        self._token = f"\0{user}\0{password}".encode()

    def evaluate(self, challenge: bytes | None) -> bytes | None:
        return self._token if challenge is None else None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
