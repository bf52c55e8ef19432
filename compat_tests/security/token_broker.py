"""A broker that takes tokens, and how the Java client is told to show one.

The provider of identities is a key in a file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from joserfc import jws
from joserfc.jwk import RSAKey

import barnabas
from compat_tests.security.conftest import Stores, make_stores
from testkit.ports import free_ports

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{PACKAGE}.OAuthBearerLoginModule"
HANDLER = "oauthbearer.sasl.server.callback.handler.class"
KEY = RSAKey.generate_key(2048, {"kid": "k1"})


class TokenBroker(NamedTuple):
    """SIGNED takes tokens of KEY over TLS, OPEN any token."""

    broker: barnabas.Broker
    stores: Stores
    signed: str
    open: str


def token(lifetime_s: float = 3600, user: str = "alice", **claims: Any) -> str:
    now = time.time()
    said = {"sub": user, "iat": now, "exp": now + lifetime_s, "aud": "kafka", **claims}
    return jws.serialize_compact({"alg": "RS256", "kid": "k1"}, json.dumps(said), KEY)


@contextmanager
def token_broker(directory: Path) -> Iterator[TokenBroker]:
    stores = make_stores(directory)
    key_set = directory / "keys.json"
    key_set.write_text(json.dumps({"keys": [KEY.as_dict(private=False)]}))
    ports = free_ports(3)
    signed, unsecured = "listener.name.signed.", "listener.name.open."
    config = {
        "listeners": ",".join(
            f"{name}://localhost:{port}"
            for name, port in zip(("PLAINTEXT", "SIGNED", "OPEN"), ports, strict=True)
        ),
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,SIGNED:SASL_SSL,OPEN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{signed}{HANDLER}": f"{PACKAGE}.OAuthBearerValidatorCallbackHandler",
        f"{signed}oauthbearer.sasl.oauthbearer.jwks.endpoint.url": key_set.as_uri(),
        f"{signed}oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
        f"{signed}oauthbearer.sasl.jaas.config": f"{MODULE} required;",
        f"{unsecured}{HANDLER}": (
            f"{PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
        ),
        f"{unsecured}oauthbearer.sasl.jaas.config": (
            f'{MODULE} required unsecuredValidatorAllowableClockSkewMs="3000";'
        ),
        **stores.server_keys,
    }
    with barnabas.Broker(config=config) as broker:
        yield TokenBroker(broker, stores, f"localhost:{ports[1]}", f"localhost:{ports[2]}")
        assert "eyJ" not in broker.log_text


def java_properties(tokens: TokenBroker, directory: Path, *, is_signed: bool) -> dict[str, str]:
    """Kafka's own properties: a token in a file, or one that the client makes up."""
    told = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{MODULE} required unsecuredLoginStringClaim_sub="carol";',
    }
    if is_signed:
        file = directory / "token.jwt"
        file.write_text(token())
        told |= {
            "security.protocol": "SASL_SSL",
            "sasl.jaas.config": f"{MODULE} required;",
            "sasl.login.callback.handler.class": f"{PACKAGE}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": file.as_uri().replace("file:///", "file:/"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(tokens.stores.authority),
        }
    return told
