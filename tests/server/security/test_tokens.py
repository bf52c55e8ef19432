"""Tokens of OAUTHBEARER: which are worth something, and what hostile ones come to."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc import jws
from joserfc.jwk import ECKey, RSAKey
from joserfc.util import urlsafe_b64encode as base64url

from server.security.jwks import KeySet
from server.security.sasl.mechanisms import AuthenticationFailed
from server.security.sasl.oauthbearer import (
    BearerToken,
    OAuthBearerClient,
    OAuthBearerServer,
    TokenRefused,
)
from server.security.tokens import (
    ALGORITHMS,
    Expected,
    SignedTokens,
    UnsecuredTokens,
    unsecured_token,
)

NOW = 1_700_000_000
RSA = RSAKey.generate_key(2048, {"kid": "r"})
CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
EC = {name: ECKey.generate_key(curve, {"kid": name}) for name, curve in CURVES.items()}
STRANGER = RSAKey.generate_key(2048, {"kid": "r"})
CLAIMS = {"sub": "alice", "iat": NOW - 60, "exp": NOW + 600}
EXPECTED = Expected((), "", 30, "sub", "scope")


def key_set(*keys: Any, **more: Any) -> KeySet:
    listed = [{**key.as_dict(private=False), **more} for key in keys]
    return KeySet(json.dumps({"keys": listed}).encode())


KEYS = key_set(RSA, *EC.values())


def signed(claims: Any = CLAIMS, key: Any = RSA, alg: str = "RS256", **header: Any) -> str:
    body = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    head = {"alg": alg, "kid": key.kid, **header}
    registry = jws.JWSRegistry(algorithms=[alg], strict_check_header=False)
    return jws.serialize_compact(
        {name: v for name, v in head.items() if v is not None}, body, key, registry=registry
    )


def tokens(keys: KeySet = KEYS, **changes: Any) -> SignedTokens:
    return SignedTokens(keys, EXPECTED._replace(**changes), lambda: NOW)


def encoded(data: bytes) -> str:
    return base64url(data).decode()


def by_hand(header: Any, claims: Any, signature: str = "") -> str:
    return (
        f"{encoded(json.dumps(header).encode())}.{encoded(json.dumps(claims).encode())}.{signature}"
    )


@pytest.mark.parametrize("alg", sorted(ALGORITHMS))
def test_a_signed_token_says_who_and_for_how_long(alg: str) -> None:
    token = signed(key=EC.get(alg, RSA), alg=alg)
    assert tokens()(token) == BearerToken("alice", 600_000)


def test_the_longest_keys_that_are_taken_verify() -> None:
    p, q, e = (1 << 4253) - 1, (1 << 3217) - 1, 65537  # Mersenne's primes: none need be looked for
    d = pow(e, -1, (p - 1) * (q - 1))
    made = rsa.RSAPrivateNumbers(
        p, q, d, d % (p - 1), d % (q - 1), rsa.rsa_crt_iqmp(p, q), rsa.RSAPublicNumbers(e, p * q)
    ).private_key(unsafe_skip_rsa_key_validation=True)
    pem = made.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    key = RSAKey.import_key(pem, {"kid": "long"})
    assert tokens(key_set(key))(signed(key=key)).principal == "alice"


def test_headers_of_real_providers_are_no_matter() -> None:
    token = signed(typ="at+jwt", **{"x5t#S256": "a" * 43, "nonce": "b" * 900})
    assert tokens()(token).principal == "alice"


@pytest.mark.parametrize(
    ("expected", "claims"),
    [
        ({"audiences": ("kafka",)}, {"aud": "kafka"}),
        ({"audiences": ("kafka", "b")}, {"aud": ["x", "b"]}),
        ({"issuer": "https://i"}, {"iss": "https://i"}),
        ({"subject_claim": "client_id"}, {"client_id": " bob "}),
        ({}, {"exp": NOW - 29}),
        ({}, {"nbf": NOW + 29}),
        ({}, {"iat": NOW - 0.5, "scope": ["a", "b"]}),
        ({"scope_claim": "scp"}, {"scp": "a b"}),
    ],
)
def test_claims_that_are_as_expected(expected: dict[str, Any], claims: dict[str, Any]) -> None:
    assert tokens(**expected)(signed({**CLAIMS, **claims})).principal


@pytest.mark.parametrize(
    ("expected", "claims"),
    [
        ({}, {"exp": NOW - 30}),
        ({}, {"exp": None}),
        ({}, {"exp": "soon"}),
        ({}, {"exp": True}),
        ({}, {"exp": -1}),
        ({}, {"exp": 10**400}),
        ({}, {"iat": None}),
        ({}, {"iat": NOW + 31}),
        ({}, {"nbf": NOW + 31}),
        ({}, {"nbf": NOW + 20, "exp": NOW + 10}),
        ({}, {"aud": "kafka"}),  # it is for somebody, and nobody said that it is us
        ({"audiences": ("kafka",)}, {}),
        ({"audiences": ("kafka",)}, {"aud": "kafk"}),
        ({"audiences": ("kafka",)}, {"aud": ["other"]}),
        ({"audiences": ("kafka",)}, {"aud": {"kafka": 1}}),
        ({"issuer": "https://i"}, {}),
        ({"issuer": "https://i"}, {"iss": "https://j"}),
        ({"issuer": "https://i"}, {"iss": ["https://i"]}),
        ({}, {"sub": None}),
        ({}, {"sub": " "}),
        ({}, {"sub": ["alice"]}),
        ({}, {"sub": "a\nUser:admin"}),
        ({}, {"sub": "a" * 1025}),
        ({"subject_claim": "client_id"}, {}),
        ({}, {"scope": [1]}),
        ({}, {"scope": ["a", "a"]}),
    ],
)
def test_claims_that_are_not(expected: dict[str, Any], claims: dict[str, Any]) -> None:
    said = {name: v for name, v in {**CLAIMS, **claims}.items() if v is not None}
    with pytest.raises(TokenRefused):
        tokens(**expected)(signed(said))


def hmac_with_the_public_key() -> list[str]:
    """The confusion of algorithms: what everybody knows, as the secret of an HMAC."""
    pem = RSA.public_key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    made = []
    for secret in (pem, pem.strip(), json.dumps(RSA.as_dict(private=False)).encode()):
        text = by_hand({"alg": "HS256", "kid": "r"}, CLAIMS)[:-1]
        made.append(f"{text}.{encoded(hmac.digest(secret, text.encode(), hashlib.sha256))}")
    return made


@pytest.mark.parametrize(
    "token",
    [
        unsecured_token(CLAIMS),
        *(by_hand({"alg": alg, "kid": "r"}, CLAIMS) for alg in ("none", "None", "RS256", 1, None)),
        by_hand({"kid": "r"}, CLAIMS, "AAAA"),
        by_hand({"alg": "RS256", "kid": "r"}, CLAIMS, "A" * 342),
        *hmac_with_the_public_key(),
        signed(key=STRANGER),
        signed(key=EC["ES384"], alg="ES384", kid="ES256"),  # a key that does not fit
        signed(key=EC["ES256"], alg="ES256", kid="r"),
        signed(kid="other"),
        signed(kid=None)[:-4] + "AAAA",
        signed(crit=["b64"], b64=True),
        signed(b"[]"),
        signed(b'{"sub":"a","iat":1,"exp":Infinity}'),
        signed(b"[" * 60_000),
        encoded(b"[" * 40_000) + ".e30.AAAA",
        "",
        ".",
        "..",
        "a.b.c",
        "e30.e30",
        signed() + ".AAAA",
        signed() + "=",
        "!" + signed(),
        signed({**CLAIMS, "more": "x" * 60_000}),
    ],
    ids=lambda _token: "token",
)
def test_a_hostile_token_is_worth_nothing(token: str) -> None:
    with pytest.raises(TokenRefused) as refused:
        tokens()(token)
    assert refused.value.answer == '{"status":"invalid_token"}'
    assert "alice" not in str(refused.value)


def test_without_a_name_the_only_key_that_fits_counts() -> None:
    assert tokens()(signed(kid=None)).principal == "alice"
    with pytest.raises(TokenRefused):
        tokens(key_set(RSA, STRANGER))(signed(kid=None))


@pytest.mark.parametrize(
    "more", [{"use": "enc"}, {"key_ops": ["encrypt"]}, {"alg": "RS512"}, {"kid": "x" * 1001}]
)
def test_a_key_for_something_else_verifies_nothing(more: dict[str, Any]) -> None:
    listed = [{**RSA.as_dict(private=False), **more}, EC["ES256"].as_dict(private=False)]
    keys = KeySet(json.dumps({"keys": listed}).encode())
    with pytest.raises(TokenRefused):
        tokens(keys)(signed(kid=more.get("kid", "r")))


# ---- unsecured ones


def unsecured(**options: Any) -> UnsecuredTokens:
    return UnsecuredTokens(lambda: NOW, **options)


def test_an_unsecured_token_says_whatever_it_likes() -> None:
    assert unsecured()(unsecured_token(CLAIMS)) == BearerToken("alice", 600_000)
    assert unsecured()(unsecured_token({"sub": "a", "exp": NOW + 1})).principal == "a"
    late = unsecured_token({**CLAIMS, "exp": NOW - 1})
    assert unsecured(skew_ms=2000)(late) == BearerToken("alice", 0)


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": None}, {"sub": 1}, {"exp": None}, {"exp": NOW}, {"iat": NOW + 1},
        {"iat": NOW - 1, "exp": NOW - 1}, {"exp": "1"}, {"scope": "a"},
    ],
)  # fmt: skip
def test_an_unsecured_token_too_must_hang_together(claims: dict[str, Any]) -> None:
    said = {name: v for name, v in {**CLAIMS, **claims}.items() if v is not None}
    with pytest.raises(TokenRefused):
        unsecured(required=["a", "b"] if "scope" in claims else [])(unsecured_token(said))


def test_a_lacking_scope_is_named() -> None:
    with pytest.raises(TokenRefused) as refused:
        unsecured(required=["a", "b"])(unsecured_token({**CLAIMS, "scope": ["a"]}))
    assert json.loads(refused.value.answer) == {"status": "insufficient_scope", "scope": "[a, b]"}


def test_a_signature_is_not_looked_at_but_refused() -> None:
    for token in (signed(), by_hand({"alg": "none"}, CLAIMS, "AAAA"), by_hand({}, CLAIMS)):
        with pytest.raises(TokenRefused):
            unsecured()(token)


# ---- the exchange (RFC 7628)


def good(token: str) -> BearerToken:
    if token != "t0ken==":
        raise TokenRefused("no")
    return BearerToken("alice", 5)


def server() -> OAuthBearerServer:
    return OAuthBearerServer(good, lambda _why: None)


@pytest.mark.parametrize(
    "first",
    [
        b"n,,\x01auth=Bearer t0ken==\x01\x01",
        b"n,a=alice,\x01auth=bEARER  t0ken==\x01\x01",
        b"n,,\x01host=h\x01auth=Bearer t0ken==\x01traceId=a b=c\x01\x01",
    ],
)
def test_a_good_first_message(first: bytes) -> None:
    one = server()
    assert one.evaluate(first) == b""
    assert (one.is_complete, one.principal, one.lifetime_ms) == (True, "alice", 5)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer t0ken==\x01",
        b"n,,auth=Bearer t0ken==\x01\x01",
        b"y,,\x01auth=Bearer t0ken==\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer t0ken==\x01\x01",
        b"n,,\x01auth=Basic t0ken==\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer t0ken== x\x01\x01",
        b"n,,\x01auth=Bearer t0ken==\x01auth=Bearer t0ken==\x01\x01",
        b"n,,\x01a1=x\x01auth=Bearer t0ken==\x01\x01",
        b"n,a=bob,\x01auth=Bearer t0ken==\x01\x01",
        "n,,\x01auth=Bearer t0ken==\x01e=ü\x01\x01".encode(),
        b"\xff\xfe",
    ],
)
def test_a_bad_first_message(first: bytes) -> None:
    one = server()
    with pytest.raises(AuthenticationFailed):
        one.evaluate(first)
    assert not one.is_complete


def test_a_refused_token_is_answered_twice_and_has_no_second_chance() -> None:
    heard: list[TokenRefused] = []
    one = OAuthBearerServer(good, heard.append)
    assert one.evaluate(b"n,,\x01auth=Bearer x\x01\x01") == b'{"status":"invalid_token"}'
    assert [str(why) for why in heard] == ["no"]
    with pytest.raises(AuthenticationFailed) as failed:
        one.evaluate(b"\x01")
    assert str(failed.value) == '{"status":"invalid_token"}'
    two = server()
    two.evaluate(b"n,,\x01auth=Bearer x\x01\x01")
    with pytest.raises(AuthenticationFailed):
        two.evaluate(b"n,,\x01auth=Bearer t0ken==\x01\x01")
    assert not two.is_complete


def test_the_client_says_its_token_and_that_it_understood() -> None:
    client, one = OAuthBearerClient("t0ken=="), server()
    first = client.evaluate(None)
    assert first is not None
    assert client.evaluate(one.evaluate(first)) is None
    assert one.principal == "alice"
    assert client.evaluate(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(AuthenticationFailed):
        OAuthBearerClient("a b\x01")
