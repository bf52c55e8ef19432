"""Real clients with tokens: signed ones over SASL_SSL, unsecured ones as each client makes them.

The provider of identities is a key in a file; a session lasts as long as its token, which clients
renew while they work (KIP-368).
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from joserfc import jws
from joserfc.jwk import RSAKey

import barnabas
from compat_tests.security.conftest import Stores, make_stores
from testkit import jars
from testkit.clients.java_tools import JavaTools
from testkit.clients.kcat import Kcat
from testkit.ports import free_ports
from testkit.require import require
from testkit.wait import eventually

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{PACKAGE}.OAuthBearerLoginModule"
HANDLER = "oauthbearer.sasl.server.callback.handler.class"
KEY = RSAKey.generate_key(2048, {"kid": "k1"})
COUNT = 50


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


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenBroker]:
    directory = tmp_path_factory.mktemp("tokens")
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


@pytest.fixture
def topic() -> str:
    return f"tokens-{uuid.uuid4().hex[:8]}"


def there_and_back(conf: dict[str, Any], topic: str) -> None:
    producer = Producer(conf)
    for i in range(COUNT):
        producer.produce(topic, f"{i}".encode())
    assert producer.flush(30) == 0
    consumer = Consumer({**conf, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    got: list[Any] = []
    end = time.monotonic() + 30
    while len(got) < COUNT and time.monotonic() < end:
        message = consumer.poll(0.5)
        if message is not None and not message.error():
            got.append(message.value())
    consumer.close()
    assert got == [f"{i}".encode() for i in range(COUNT)]


def confluent(tokens: TokenBroker, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": tokens.signed,
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(tokens.stores.authority),
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _config: (token(), time.time() + 3600),
        "log_level": 0,
        **more,
    }


def test_confluent_kafka(tokens: TokenBroker, topic: str) -> None:
    there_and_back(confluent(tokens), topic)


def test_confluent_kafka_with_tokens_of_its_own(tokens: TokenBroker, topic: str) -> None:
    there_and_back(
        {
            "bootstrap.servers": tokens.open,
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": True,
            "sasl.oauthbearer.config": "principal=carol lifeSeconds=600",
            "log_level": 0,
        },
        topic,
    )


def test_a_client_works_on_over_the_end_of_its_tokens(tokens: TokenBroker, topic: str) -> None:
    """Tokens of six seconds: a client that did not renew them would be cut off."""
    made = []

    def short(_config: str) -> tuple[str, float]:
        made.append(token(6))
        return made[-1], time.time() + 6

    producer = Producer(confluent(tokens, oauth_cb=short, acks="all"))
    failed: list[Any] = []
    end = time.monotonic() + 15
    count = 0
    while time.monotonic() < end:
        producer.produce(topic, b"x", on_delivery=lambda error, _: error and failed.append(error))
        count += 1
        assert producer.flush(10) == 0
        producer.poll(0.2)
    assert len(made) > 2
    assert not failed
    assert count > 20


class TokenEndpoint(BaseHTTPRequestHandler):
    """Gives a token to whoever knows the client's secret (RFC 6749, 4.4)."""

    def do_POST(self) -> None:
        known = base64.b64encode(b"alice:alice-secret").decode()
        is_known = self.headers["Authorization"] == f"Basic {known}"
        told = {"access_token": token(), "token_type": "Bearer", "expires_in": 3600}
        body = json.dumps(told if is_known else {"error": "invalid_client"}).encode()
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[dict[str, str]]:
    """What librdkafka is told, to fetch its tokens itself."""
    with HTTPServer(("127.0.0.1", 0), TokenEndpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "alice",
            "sasl.oauthbearer.client.secret": "alice-secret",
            "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{server.server_port}/token",
        }
        server.shutdown()


def test_confluent_kafka_with_tokens_that_it_fetches(
    tokens: TokenBroker, topic: str, endpoint: dict[str, str]
) -> None:
    conf = {**confluent(tokens), **endpoint}
    del conf["oauth_cb"]
    there_and_back(conf, topic)


def test_kcat(tokens: TokenBroker, topic: str) -> None:
    """With unsecured tokens of its own: Debian's librdkafka fetches none."""
    told = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": "principal=carol lifeSeconds=600",
    }
    Kcat(tokens.open, told).there_and_back(topic)


@pytest.mark.parametrize(
    "bad",
    [token(-60), token(aud="other"), token() + "A", token(nbf=time.time() + 600)],
    ids=["expired", "audience", "signature", "not yet"],
)
def test_a_token_that_is_not_good_opens_nothing(tokens: TokenBroker, bad: str) -> None:
    errors: list[Any] = []
    producer = Producer(
        confluent(tokens, oauth_cb=lambda _config: (bad, time.time() + 600), error_cb=errors.append)
    )
    eventually(lambda: producer.poll(0.1) or errors)
    eventually(lambda: producer.poll(0.1) or "invalid_token" in str(errors))


def test_kafka_python(tokens: TokenBroker, topic: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token()

    conf = {
        "bootstrap_servers": tokens.signed,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(tokens.stores.authority),
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Provider(),
    }
    producer = KafkaProducer(**conf)
    for i in range(COUNT):
        producer.send(topic, f"{i}".encode())
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(
        topic, **conf, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    assert [next(consumer).value for _ in range(COUNT)] == [f"{i}".encode() for i in range(COUNT)]
    consumer.close()


def test_aiokafka(tokens: TokenBroker, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return token()

    conf = {
        "bootstrap_servers": tokens.signed,
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=str(tokens.stores.authority)),
        "sasl_mechanism": "OAUTHBEARER",
    }

    async def there_and_back() -> list[bytes]:
        provider = Provider()
        async with AIOKafkaProducer(**conf, sasl_oauth_token_provider=provider) as producer:
            for i in range(COUNT):
                await producer.send_and_wait(topic, f"{i}".encode())
        async with AIOKafkaConsumer(
            topic, **conf, sasl_oauth_token_provider=provider, auto_offset_reset="earliest"
        ) as consumer:
            return [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(COUNT)]

    assert asyncio.run(there_and_back()) == [f"{i}".encode() for i in range(COUNT)]


def java_file(tokens: TokenBroker, directory: Path, *, is_signed: bool) -> Path:
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
    path = directory / "client.properties"
    path.write_text("".join(f"{k}={v}\n" for k, v in told.items()))
    path.chmod(0o600)
    return path


@pytest.mark.java
@pytest.mark.parametrize("is_signed", [True, False], ids=["signed", "unsecured"])
def test_java(
    tokens: TokenBroker, topic: str, tmp_path: Path, is_signed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    try:
        jars.libs()
    except jars.JarsUnavailable as missing:
        require(False, f"Apache Kafka: {missing}")
    file = str(java_file(tokens, tmp_path, is_signed=is_signed))
    allowed = (tmp_path / "token.jwt").as_uri().replace("file:///", "file:/")
    monkeypatch.setenv(
        "JAVA_TOOL_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={allowed}"
    )
    where = ("--bootstrap-server", tokens.signed if is_signed else tokens.open)
    java = JavaTools()
    try:
        java.run(
            "ConsoleProducer", *where, "--command-config", file, "--topic", topic,
            stdin="one\ntwo\n",
        ).ok()  # fmt: skip
        out = java.run(
            "ConsoleConsumer", *where, "--command-config", file, "--topic", topic,
            "--from-beginning", "--max-messages", "2", "--timeout-ms", "30000",
        ).ok()  # fmt: skip
    finally:
        java.close()
    assert out.splitlines() == ["one", "two"]


@pytest.mark.parametrize("is_signed", [True, False], ids=["signed", "unsecured"])
def test_our_own_commands(tokens: TokenBroker, tmp_path: Path, is_signed: bool) -> None:
    file = str(java_file(tokens, tmp_path, is_signed=is_signed))
    for words in (["health"], ["topic", "list"], ["cluster", "status"]):
        done = subprocess.run(
            [sys.executable, "-m", "barnabas", *words, "--bootstrap",
             tokens.signed if is_signed else tokens.open, "--client-config", file],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "eyJ" not in done.stdout + done.stderr
