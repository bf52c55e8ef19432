"""What a JSON web token of OAUTHBEARER is worth: signed ones, and unsecured ones for trying out.

`SignedTokens` are BrokerJwtValidator's rules (KIP-768; OA-5, OA-6). Signatures are joserfc's work
(`pip install 'barnabas[oauth]'`); what may reach it is pinned here: asymmetric algorithms only, a
key of the algorithm's own kind, so that neither `none` nor an HMAC with a public key as its secret
is ever looked at. Claims: `exp` and `iat` must be there, `nbf` may; `aud` and `iss` as the operator
expects them, and a token for somebody's ears is refused where no audience is expected (jose4j's
rule). Stricter than Kafka: a token of the future (`iat`) is refused, as are those above 64 KiB and
names with control characters.

`UnsecuredTokens` are OAuthBearerUnsecuredValidatorCallbackHandler's (OA-3): nothing is proved by
them. Only where an operator names it.

Reasons never quote a token, nor what stands in it. Time is a parameter.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from server.security.sasl.oauthbearer import NAME_MAX, BearerToken, TokenRefused

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, RSAKey

TOKEN_MAX = 64 << 10
"""Longest token, in characters."""
ALGORITHMS: Mapping[str, str] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
}
"""What signatures are taken, and the kind of key of each."""
_LIFETIME_MAX_MS = 1 << 53

Claims = Mapping[str, Any]


class Keys(Protocol):
    """The keys that tokens are signed with."""

    def find(self, kid: str | None, algorithm: str) -> RSAKey | ECKey | None:
        """The key of this name that fits the algorithm; without a name: the only one that fits."""


class Expected(NamedTuple):
    """What a signed token must say."""

    audiences: Sequence[str]
    issuer: str
    skew_s: int
    subject_claim: str
    scope_claim: str


class SignedTokens:
    """Tokens that somebody signed whose keys we have."""

    def __init__(self, keys: Keys, expected: Expected, now_s: Callable[[], float]) -> None:
        """`now_s`: seconds since 1970."""
        from joserfc.jws import JWSRegistry

        self._keys = keys
        self._expected = expected
        self._now_s = now_s
        self._registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
        self._registry.max_header_length = 16 << 10
        self._registry.max_signature_length = 2 << 10  # in base64: of the longest keys there are

    def __call__(self, token: str) -> BearerToken:
        """Raises TokenRefused."""
        claims = self._verified(token)
        expected, now_s = self._expected, self._now_s()
        _check_audience(claims.get("aud"), expected.audiences)
        if expected.issuer and claims.get("iss") != expected.issuer:
            raise TokenRefused("it has another issuer")
        expires, issued = _time(claims, "exp"), _time(claims, "iat")
        if expires is None or issued is None:
            raise TokenRefused("it does not say when it was issued, or when it ends")
        not_before = _time(claims, "nbf")
        if max(issued, not_before or 0) > now_s + expected.skew_s:
            raise TokenRefused("it is not valid yet")
        if max(issued, not_before or 0) > expires:
            raise TokenRefused("it ends before it begins")
        if expires <= now_s - expected.skew_s:
            raise TokenRefused("it has expired")
        _scopes(claims.get(expected.scope_claim))
        name = _name(claims.get(expected.subject_claim))
        return BearerToken(name, _left_ms(expires, now_s))

    def _verified(self, token: str) -> Claims:
        from joserfc import jws
        from joserfc.errors import JoseError

        header, _payload, signature = _parts(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS or not signature:
            raise TokenRefused("it is not signed with an algorithm that is taken here")
        if "crit" in header or not isinstance(kid, str | None):
            raise TokenRefused("its header asks for what nobody here knows")
        key = self._keys.find(kid, algorithm)
        if key is None:
            raise TokenRefused("nobody knows the key it is signed with")
        try:
            done = jws.deserialize_compact(token.encode(), key, registry=self._registry)
        except (JoseError, ValueError):
            raise TokenRefused("its signature is wrong") from None
        return _json(done.payload)


class UnsecuredTokens:
    """Tokens that anybody may write: `alg` none, no signature."""

    def __init__(
        self,
        now_s: Callable[[], float],
        principal_claim: str = "sub",
        scope_claim: str = "scope",
        required: Sequence[str] = (),
        skew_ms: int = 0,
    ) -> None:
        self._now_s = now_s
        self._principal_claim = principal_claim
        self._scope_claim = scope_claim
        self._required = required
        self._skew_s = skew_ms / 1000

    def __call__(self, token: str) -> BearerToken:
        """Raises TokenRefused."""
        header, claims, signature = _parts(token)
        if header.get("alg") != "none" or signature:
            raise TokenRefused("it is not an unsecured token")
        now_s = self._now_s()
        name = _name(claims.get(self._principal_claim))
        expires, issued = _time(claims, "exp"), _time(claims, "iat")
        if issued is not None and issued > now_s + self._skew_s:
            raise TokenRefused("it is not valid yet")
        if expires is None or expires <= now_s - self._skew_s:
            raise TokenRefused("it has expired, or does not say when it will")
        if issued is not None and expires <= issued:
            raise TokenRefused("it ends before it begins")
        if not set(self._required) <= _scopes(claims.get(self._scope_claim)):
            raise TokenRefused("it lacks a scope", f"[{', '.join(self._required)}]")
        return BearerToken(name, _left_ms(expires, now_s))


def unsecured_token(claims: Claims) -> str:
    """A token that says this, and proves nothing."""
    parts = ({"alg": "none"}, dict(claims))
    return ".".join([*(_encoded(json.dumps(one).encode()) for one in parts), ""])


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _parts(token: str) -> tuple[Claims, Claims, str]:
    """Header, claims and signature, the last as it was written. Raises TokenRefused."""
    parts = token.split(".") if len(token) <= TOKEN_MAX else []
    if len(parts) != 3:
        raise TokenRefused("it has not three parts, or is too long")
    try:
        header, claims = (
            _json(base64.b64decode(one + "=" * (-len(one) % 4), b"-_", validate=True))
            for one in parts[:2]
        )
    except ValueError:
        raise TokenRefused("it is not base64url") from None
    return header, claims, parts[2]


def _json(data: bytes) -> Claims:
    try:
        value = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise TokenRefused("it is not JSON") from None
    if not isinstance(value, dict):
        raise TokenRefused("it is not a JSON object")
    return value


def _no_number(_text: str) -> NoReturn:
    raise ValueError  # Infinity and NaN are Python's, not JSON's


def _time(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"{name} is not a time")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds) or seconds < 0:
        raise TokenRefused(f"{name} is not a time")
    return seconds


def _left_ms(expires: float, now_s: float) -> int:
    return int(min(max(0.0, (expires - now_s) * 1000), _LIFETIME_MAX_MS))


def _name(value: object) -> str:
    name = value.strip() if isinstance(value, str) else ""
    if not name or len(name) > NAME_MAX or not name.isprintable():
        raise TokenRefused("it names nobody, or nobody who could be")
    return name


def _scopes(value: object) -> set[str]:
    """A text is one scope, as Kafka has it."""
    items = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    if not all(isinstance(one, str) for one in items):
        raise TokenRefused("its scopes are no texts")
    scopes = [one.strip() for one in items]
    if len(set(scopes)) != len(scopes):
        raise TokenRefused("a scope stands there twice")
    return set(scopes) - {""}


def _check_audience(value: object, expected: Sequence[str]) -> None:
    said = [value] if isinstance(value, str) else value
    if said is None and not expected:
        return
    if not isinstance(said, list) or not any(one in said for one in expected):
        raise TokenRefused("it is for another audience")
