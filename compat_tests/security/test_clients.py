"""Real clients on SSL, SASL_PLAINTEXT and SASL_SSL, by each mechanism."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from compat_tests.security.conftest import SecureBroker
from testkit.clients.java_tools import JavaTools
from testkit.clients.kcat import Kcat
from testkit.wait import eventually

LOGINS = [
    ("SSL", "", ""),
    ("SASL_PLAINTEXT", "PLAIN", "alice"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-512", "bob"),
    ("SASL_SSL", "PLAIN", "alice"),
    ("SASL_SSL", "SCRAM-SHA-256", "bob"),
    ("SASL_SSL", "SCRAM-SHA-512", "bob"),
]
each_login = pytest.mark.parametrize(("protocol", "mechanism", "user"), LOGINS)
COUNT = 300


@pytest.fixture
def topic() -> str:
    return f"secure-{uuid.uuid4().hex[:8]}"


def librdkafka(secure: SecureBroker, protocol: str, mechanism: str, user: str) -> dict[str, Any]:
    conf: dict[str, Any] = {
        "bootstrap.servers": secure.bootstrap(protocol),
        "security.protocol": protocol.lower(),
        "log_level": 0,
    }
    if "SSL" in protocol:
        conf["ssl.ca.location"] = str(secure.stores.authority)
    if protocol == "SSL":
        conf["ssl.key.location"] = str(secure.stores.client_key)
        conf["ssl.certificate.location"] = str(secure.stores.client_chain)
    if mechanism:
        conf |= {
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": f"{user}-secret",
        }
    return conf


@each_login
def test_confluent_kafka(
    secure: SecureBroker, topic: str, protocol: str, mechanism: str, user: str
) -> None:
    conf = librdkafka(secure, protocol, mechanism, user)
    producer = Producer(conf)
    for i in range(COUNT):
        producer.produce(topic, bytes([i % 256]) * 5000)
    assert producer.flush(30) == 0
    consumer = Consumer({**conf, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    got = []
    end = time.monotonic() + 30
    while len(got) < COUNT and time.monotonic() < end:
        message = consumer.poll(0.5)
        if message is not None and not message.error():
            got.append(message.value())
    consumer.close()
    assert got == [bytes([i % 256]) * 5000 for i in range(COUNT)]


def kafka_python(secure: SecureBroker, protocol: str, mechanism: str, user: str) -> dict[str, Any]:
    conf: dict[str, Any] = {
        "bootstrap_servers": secure.bootstrap(protocol),
        "security_protocol": protocol,
    }
    if "SSL" in protocol:
        conf["ssl_cafile"] = str(secure.stores.authority)
    if protocol == "SSL":
        conf["ssl_certfile"] = str(secure.stores.client_chain)
        conf["ssl_keyfile"] = str(secure.stores.client_key)
    if mechanism:
        conf |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": f"{user}-secret",
        }
    return conf


@each_login
def test_kafka_python(
    secure: SecureBroker, topic: str, protocol: str, mechanism: str, user: str
) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    conf = kafka_python(secure, protocol, mechanism, user)
    producer = KafkaProducer(**conf)
    for i in range(COUNT):
        producer.send(topic, f"{i}".encode())
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(
        topic, **conf, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    got = [next(consumer).value for _ in range(COUNT)]
    consumer.close()
    assert got == [f"{i}".encode() for i in range(COUNT)]


@each_login
def test_aiokafka(
    secure: SecureBroker, topic: str, protocol: str, mechanism: str, user: str
) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    conf: dict[str, Any] = {
        "bootstrap_servers": secure.bootstrap(protocol),
        "security_protocol": protocol,
    }
    if "SSL" in protocol:
        context = ssl.create_default_context(cafile=str(secure.stores.authority))
        if protocol == "SSL":
            context.load_cert_chain(secure.stores.client)
        conf["ssl_context"] = context
    if mechanism:
        conf |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": f"{user}-secret",
        }

    async def there_and_back() -> list[bytes]:
        async with AIOKafkaProducer(**conf) as producer:
            for i in range(COUNT):
                await producer.send(topic, f"{i}".encode())
            await producer.flush()
        async with AIOKafkaConsumer(
            topic, **conf, group_id=topic, auto_offset_reset="earliest"
        ) as consumer:
            return [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(COUNT)]

    assert asyncio.run(there_and_back()) == [f"{i}".encode() for i in range(COUNT)]


@pytest.mark.parametrize(("protocol", "mechanism", "user"), LOGINS[:2] + LOGINS[3:4])
def test_kcat(secure: SecureBroker, topic: str, protocol: str, mechanism: str, user: str) -> None:
    """Without SCRAM: librdkafka 2.0 repeats its nonce twice in the final message, which brokers
    refuse since CVE-2024-56128."""
    conf = librdkafka(secure, protocol, mechanism, user)
    Kcat(conf.pop("bootstrap.servers"), conf).there_and_back(topic)


@pytest.mark.java
@each_login
def test_java(
    secure: SecureBroker, topic: str, tmp_path: Path, java_tools: JavaTools,
    protocol: str, mechanism: str, user: str,
) -> None:  # fmt: skip
    file = str(secure.java_file(tmp_path, protocol, mechanism or "PLAIN", user or "alice"))
    where = ("--bootstrap-server", secure.bootstrap(protocol))
    java_tools.run(
        "TopicCommand", *where, "--command-config", file, "--create", "--topic", topic
    ).ok()
    java_tools.run(
        "ConsoleProducer", *where, "--command-config", file, "--topic", topic, stdin="one\ntwo\n"
    ).ok()
    out = java_tools.run(
        "ConsoleConsumer", *where, "--command-config", file, "--topic", topic, "--from-beginning",
        "--max-messages", "2", "--timeout-ms", "30000",
    ).ok()  # fmt: skip
    assert out.splitlines() == ["one", "two"]


@pytest.mark.java
def test_kafka_configs_sets_and_deletes_users(
    secure: SecureBroker, tmp_path: Path, java_tools: JavaTools
) -> None:
    file = str(secure.java_file(tmp_path, "SASL_SSL"))
    flags = ("--bootstrap-server", secure.bootstrap("SASL_SSL"), "--command-config", file,
             "--entity-type", "users", "--entity-name", "carol")  # fmt: skip
    added = "SCRAM-SHA-256=[iterations=8192,password=carol-secret]"
    java_tools.run("ConfigCommand", *flags, "--alter", "--add-config", added).ok()
    known = AdminClient(librdkafka(secure, "SASL_SSL", "PLAIN", "alice"))
    described = known.describe_user_scram_credentials(["carol"])["carol"].result(20)
    (info,) = described.scram_credential_infos
    assert (info.mechanism.name, info.iterations) == ("SCRAM_SHA_256", 8192)
    conf = librdkafka(secure, "SASL_SSL", "SCRAM-SHA-256", "carol")
    assert AdminClient(conf).list_topics(timeout=20).brokers
    java_tools.run("ConfigCommand", *flags, "--alter", "--delete-config", "SCRAM-SHA-256").ok()
    with pytest.raises(KafkaException):
        AdminClient(conf).list_topics(timeout=3)


def test_our_own_commands(secure: SecureBroker, tmp_path: Path) -> None:
    for login in (("SASL_SSL", "SCRAM-SHA-512", "bob"), ("SSL",), ("SASL_PLAINTEXT",)):
        file = str(secure.java_file(tmp_path, *login))
        for words in (["health"], ["topic", "list"], ["cluster", "status"]):
            done = subprocess.run(
                [sys.executable, "-m", "barnabas", *words, "--bootstrap",
                 secure.bootstrap(login[0]), "--client-config", file],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert "secret" not in done.stdout + done.stderr


def test_our_own_commands_say_why_nobody_lets_them_in(secure: SecureBroker, tmp_path: Path) -> None:
    file = secure.java_file(tmp_path, "SASL_SSL", "SCRAM-SHA-512", "bob")
    file.write_text(re.sub(r'(password=")[^"]*', r"\1wrong", file.read_text()))
    done = subprocess.run(
        [sys.executable, "-m", "barnabas", "topic", "list", "--bootstrap",
         secure.bootstrap("SASL_SSL"), "--client-config", str(file)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "invalid credentials" in done.stderr
    assert "--client-config" in done.stderr


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_opens_nothing(secure: SecureBroker, mechanism: str) -> None:
    conf = librdkafka(secure, "SASL_SSL", mechanism, "alice" if mechanism == "PLAIN" else "bob")
    errors: list[Any] = []
    producer = Producer({**conf, "sasl.password": "wrong", "error_cb": errors.append})
    eventually(lambda: producer.poll(0.1) or errors)
    assert any("uthentication" in str(error) for error in errors)
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=2)


def hello(secure: SecureBroker) -> bytes:
    """What a client says first."""
    out = ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=str(secure.stores.authority))
    tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


def p99_ms(took: list[float]) -> float:
    return round(1000 * sorted(took)[len(took) * 99 // 100], 1)


@pytest.mark.timeout(300)
def test_a_thousand_slow_handshakes_harm_nobody(secure: SecureBroker, topic: str) -> None:
    """Hellos that are begun and not finished, and garbage, 1,000 of them at once; a client beside
    them works on, while they come and while they stay: its p99 by the wall clock is below 50 ms.

    A machine that is busy with other things stalls everybody now and then, so the best of three
    rounds counts, and ten times what the client had in the same round without them is as good.
    """
    conf = librdkafka(secure, "SASL_SSL", "PLAIN", "alice")
    producer = Producer({**conf, "acks": "all", "linger.ms": 0})
    first = hello(secure)

    def send() -> float:
        began = time.monotonic()
        producer.produce(topic, b"x")
        assert producer.flush(30) == 0
        return time.monotonic() - began

    def begin(slow: list[socket.socket]) -> None:
        for i in range(1000):
            sock = socket.create_connection(("localhost", secure.ports["SASL_SSL"]), 30)
            slow.append(sock)
            sock.sendall(first if i % 2 else b"\x16\x03\x01" + bytes(40))

    def one_round() -> tuple[float, float, float]:
        slow: list[socket.socket] = []
        alone = [send() for _ in range(500)]
        try:
            with ThreadPoolExecutor(1) as others:
                begun = others.submit(begin, slow)
                coming = [send()]
                while not begun.done() or len(coming) < 500:
                    coming.append(send())
                begun.result()
            staying = [send() for _ in range(500)]
        finally:
            for sock in slow:
                sock.close()
        return p99_ms(alone), p99_ms(coming), p99_ms(staying)

    send()
    rounds: list[tuple[float, float, float]] = []
    held = False
    while not held and len(rounds) < 3:
        alone, coming, staying = one_round()
        rounds.append((alone, coming, staying))
        held = max(coming, staying) < max(50, 10 * alone)
    print("p99 in ms alone, while they come, while they stay:", rounds)
    assert held, rounds
