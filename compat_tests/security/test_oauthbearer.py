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
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from barnabas.process import properties_text, write_private
from compat_tests.security.token_broker import TokenBroker, java_properties, token, token_broker
from testkit import jars
from testkit.clients.java_tools import JavaTools
from testkit.clients.kcat import Kcat
from testkit.require import require
from testkit.wait import eventually

COUNT = 50


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenBroker]:
    with token_broker(tmp_path_factory.mktemp("tokens")) as made:
        yield made


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
    "make",
    [
        lambda: token(-60),
        lambda: token(aud="other"),
        lambda: token() + "A",
        lambda: token(nbf=time.time() + 600),
    ],
    ids=["expired", "audience", "signature", "not yet"],
)
def test_a_token_that_is_not_good_opens_nothing(
    tokens: TokenBroker, make: Callable[[], str]
) -> None:
    bad = make()  # now: tests may have been collected long ago
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
    path = directory / "client.properties"
    told = java_properties(tokens, directory, is_signed=is_signed)
    write_private(path, properties_text(told))
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
