"""A listener with OAUTHBEARER: what it is told by Kafka's keys, and its sessions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import RSAKey

from server.config.kafka_config import ConfigError
from server.network.socket_server import SocketServer
from server.security.sasl.client import AuthenticationError
from tests.server.security.security_support import secured
from tests.server.security.test_gates import (
    Raw,
    ask_as_known,
    authenticate,
    handshake,
    now,
    peer,
    principals,
    serving,
)
from wire.messages.cluster import ApiVersionsRequest

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{PACKAGE}.OAuthBearerLoginModule"
SIGNED = f"{PACKAGE}.OAuthBearerValidatorCallbackHandler"
UNSECURED = f"{PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
PREFIX = "listener.name.ext.oauthbearer."
HANDLER = f"{PREFIX}sasl.server.callback.handler.class"
URL = f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url"
JAAS = f"{PREFIX}sasl.jaas.config"
KEY = RSAKey.generate_key(2048, {"kid": "k"})
BASE = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    JAAS: f"{MODULE} required;",
    "connection.failed.authentication.delay.ms": "50",
}


def token(lifetime_s: float = 600, key: Any = KEY, **claims: Any) -> str:
    said = {"sub": "alice", "iat": time.time() - 1, "exp": time.time() + lifetime_s, **claims}
    return jws.serialize_compact({"alg": "RS256", "kid": "k"}, json.dumps(said), key)


def first(text: str) -> bytes:
    return b"n,,\x01auth=Bearer " + text.encode() + b"\x01\x01"


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [KEY.as_dict(private=False)]}))
    return path.as_uri()


@pytest.fixture
def server(keys: str) -> Iterator[SocketServer]:
    told = {**BASE, HANDLER: SIGNED, URL: keys, "sasl.oauthbearer.clock.skew.seconds": "0"}
    with serving(secured("SASL_PLAINTEXT", told)) as one:
        yield one


def test_who_has_a_token_is_known_until_it_ends(server: SocketServer) -> None:
    with Raw(server.port) as raw:
        handshake(raw, "OAUTHBEARER")
        answer = authenticate(raw, first(token(1.5)))
        assert answer.error_code == 0
        assert 500 < answer.session_lifetime_ms <= 1500
        assert principals(server) == {"User:alice"}
        assert authenticate(raw, b"").error_code == 34  # served
        now(server, 1050)
        assert handshake(raw, "OAUTHBEARER").error_code == 0
        assert authenticate(raw, first(token(1.2))).error_code == 0  # anew, in good time
        now(server, 600)
        raw.send(ApiVersionsRequest(), 0)
        assert raw.frame() != b""
        now(server, 800)
        raw.send(ApiVersionsRequest(), 0)
        assert raw.frame() == b""


def test_the_shorter_of_the_token_and_the_listener_counts(keys: str) -> None:
    told = {**BASE, URL: keys, "connections.max.reauth.ms": "60000"}
    with serving(secured("SASL_PLAINTEXT", told)) as one:
        for lifetime_s, most_ms in ((600, 60_000), (30, 30_000)):
            with Raw(one.port) as raw:
                handshake(raw, "OAUTHBEARER")
                lived_ms = authenticate(raw, first(token(lifetime_s))).session_lifetime_ms
                assert most_ms - 2000 < lived_ms <= most_ms


def test_a_token_of_somebody_else_renews_nothing(server: SocketServer) -> None:
    with Raw(server.port) as raw:
        handshake(raw, "OAUTHBEARER")
        authenticate(raw, first(token()))
        now(server, 1050)
        assert handshake(raw, "OAUTHBEARER").error_code == 0
        answer = authenticate(raw, first(token(sub="bob")))
        assert answer.error_code == 58
        assert "Cannot change principals" in (answer.error_message or "")
        assert raw.frame() == b""


def test_a_refused_token_is_named_and_then_refused(server: SocketServer) -> None:
    stranger = RSAKey.generate_key(2048)
    for bad in (token(key=stranger), token(-1), token(600, nbf=time.time() + 500), "x.y.z"):
        with Raw(server.port) as raw:
            handshake(raw, "OAUTHBEARER")
            answer = authenticate(raw, first(bad))
            assert answer.error_code == 0
            assert bytes(answer.auth_bytes) == b'{"status":"invalid_token"}'
            refused = authenticate(raw, b"\x01")
            assert (refused.error_code, refused.error_message) == (58, '{"status":"invalid_token"}')
            assert raw.frame() == b""


def test_a_huge_token_is_not_looked_at(server: SocketServer) -> None:
    with Raw(server.port) as raw:
        handshake(raw, "OAUTHBEARER")
        began = time.process_time()
        answer = authenticate(raw, first("a" * 500_000))
        assert bytes(answer.auth_bytes) == b'{"status":"invalid_token"}'
        assert time.process_time() - began < 0.5
    with Raw(server.port) as raw:
        handshake(raw, "OAUTHBEARER")
        raw.sock.sendall((600_000).to_bytes(4, "big"))
        assert raw.frame() == b""


@pytest.mark.parametrize(
    "told",
    [
        {HANDLER: UNSECURED},
        {JAAS: f'{MODULE} required unsecuredValidatorAllowableClockSkewMs="3000";'},
    ],
)
def test_unsecured_tokens_where_the_operator_says_so(told: dict[str, str]) -> None:
    login = f'{MODULE} required unsecuredLoginStringClaim_sub="carol";'
    with serving(secured("SASL_PLAINTEXT", {**BASE, **told})) as one:
        client = peer(
            one, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
            sasl_jaas_config=login,
        )  # fmt: skip
        assert ask_as_known(client).error_code == 34
        assert principals(one) == {"User:carol"}
        client.close()


def test_unsecured_tokens_are_nothing_to_who_wants_signed_ones(server: SocketServer) -> None:
    client = peer(
        server, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=f'{MODULE} required unsecuredLoginStringClaim_sub="carol";',
    )  # fmt: skip
    with pytest.raises(AuthenticationError, match="invalid_token"):
        ask_as_known(client)


def test_a_client_reads_its_token_from_a_file_each_time(
    server: SocketServer, tmp_path: Path
) -> None:
    file = tmp_path / "token.jwt"
    client = peer(
        server, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=f"{MODULE} required;",
        sasl_oauthbearer_token_endpoint_url=file.as_uri(),
    )  # fmt: skip
    with pytest.raises(AuthenticationError, match="No such file"):
        ask_as_known(client)
    file.write_text(token() + "\n")
    assert ask_as_known(client).error_code == 34
    assert principals(server) == {"User:alice"}
    client.close()


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({}, HANDLER.removeprefix(PREFIX)),
        ({HANDLER: SIGNED}, URL.removeprefix(PREFIX)),
        ({HANDLER: UNSECURED, URL: "KEYS"}, HANDLER),
        ({JAAS: f'{MODULE} required unsecuredValidatorRequiredScope="a";', URL: "KEYS"}, "handler"),
        ({JAAS: f'{MODULE} required unsecuredValidatorRequiredScopes="a";'}, "handler"),
        (
            {
                JAAS: f'{MODULE} required unsecuredValidatorRequiredScope="a";',
                HANDLER: SIGNED,
                URL: "KEYS",
            },
            HANDLER,
        ),
        ({HANDLER: "com.example.Handler", URL: "KEYS"}, HANDLER),
        ({"sasl.server.callback.handler.class": UNSECURED}, "sasl.server.callback.handler.class"),
        ({URL: "file:///not/there.json"}, URL),
        ({URL: "http://example.org/keys"}, URL),
        ({URL: "file:///a%00b"}, URL),
        ({URL: "KEYS", "sasl.oauthbearer.jwt.validator.class": "com.example.V"}, "jwt.validator"),
        ({URL: "KEYS", "sasl.oauthbearer.clock.skew.seconds": "much"}, "clock.skew"),
        ({JAAS: f"{PACKAGE}.Other required;", URL: "KEYS"}, JAAS),
        ({JAAS: f'{MODULE} required unsecuredValidatorAllowableClockSkewMs="-1";'}, "handler"),
    ],
)
def test_what_cannot_be_obeyed_refuses_the_start(
    keys: str, told: dict[str, str], named: str
) -> None:
    told = {name: keys if text == "KEYS" else text for name, text in told.items()}
    with pytest.raises(ConfigError) as refused:
        secured("SASL_PLAINTEXT", {**BASE, **told})
    assert named in refused.value.name


def test_a_password_in_the_url_of_the_keys_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="without a password") as refused:
        secured("SASL_PLAINTEXT", {**BASE, URL: "https://me:s3cret@example.org/keys"})
    assert "s3cret" not in str(refused.value)


def test_without_joserfc_it_is_said_what_to_install(
    keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "joserfc", None)
    with pytest.raises(ConfigError, match=r"pip install 'barnabas\[oauth\]'"):
        secured("SASL_PLAINTEXT", {**BASE, URL: keys})


@pytest.mark.parametrize(
    ("options", "properties"),
    [
        ("", {}),
        ("", {"sasl_oauthbearer_token_endpoint_url": "https://example.org/token"}),
        ('unsecuredLoginNumberClaim_x="y"', {}),
        ('unsecuredLoginStringClaim_sub="a" unsecuredLoginLifetimeSeconds="1h"', {}),
    ],
)
def test_a_client_without_a_token_is_told_at_once(
    server: SocketServer, options: str, properties: dict[str, str]
) -> None:
    with pytest.raises(ConfigError):
        peer(
            server, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
            sasl_jaas_config=f"{MODULE} required {options};", **properties,
        )  # fmt: skip
