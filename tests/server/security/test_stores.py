"""Key stores and trust stores: what is read, which keys fit together, what is never told."""

from __future__ import annotations

import itertools
import os
import struct
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    load_pem_private_key,
    pkcs12,
)

from server.config.kafka_config import ConfigError, KafkaConfig, ListenerConfig
from server.security.certificates import read_certificate
from server.security.jks import JksError, open_key, read_jks
from server.security.stores import read_key_store, read_trust_store
from server.security.tls import client_tls, expiry_warning, openssl_name, server_tls
from tests.server.security.security_support import (
    KEY_STORE_JKS,
    KEY_STORE_OF_ANOTHER_CURVE,
    KEY_STORE_PKCS12,
    SUBJECT,
    TRUST_STORE_JKS,
    Authority,
    chain,
    pkcs8,
    secured,
)


def values(keys: dict[str, str]) -> ListenerConfig:
    return ListenerConfig(KafkaConfig(keys), "EXT")


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
@pytest.mark.parametrize("data", [KEY_STORE_JKS, KEY_STORE_PKCS12], ids=["jks", "pkcs12"])
def test_stores_of_keytool_are_told_apart_by_their_bytes(
    tmp_path: Path, data: bytes, kind: str
) -> None:
    path = tmp_path / "store"
    path.write_bytes(data)
    keys = {
        "ssl.keystore.type": kind,
        "ssl.keystore.location": str(path),
        "ssl.keystore.password": "changeit",
    }
    made = server_tls(values(keys), client_auth="none")
    assert made.identity.own is not None
    assert made.identity.own.subject == SUBJECT
    for wrong in ("Changeit", "x"):
        with pytest.raises(ConfigError) as failed:
            server_tls(values({**keys, "ssl.keystore.password": wrong}), client_auth="none")
        assert wrong not in str(failed.value)


def test_a_trust_store_of_keytool(tmp_path: Path) -> None:
    path = tmp_path / "trust"
    path.write_bytes(TRUST_STORE_JKS)
    keys = {"ssl.truststore.location": str(path)}
    for given in (keys, {**keys, "ssl.truststore.password": "changeit"}):
        trusted = read_trust_store(values(given))
        assert trusted is not None
        assert [read_certificate(one).subject for one in trusted] == [SUBJECT]
    with pytest.raises(ConfigError, match="password is wrong"):
        read_trust_store(values({**keys, "ssl.truststore.password": "wrong"}))
    path.write_bytes(KEY_STORE_PKCS12)
    with pytest.raises(ConfigError, match="read as empty"):
        read_trust_store(values(keys))


@pytest.mark.parametrize(
    "text",
    ["-----BEGIN A-----", "-----BEGIN A-----\n-", "-----BEGIN ", "A", "-", "-----BEGIN A-----x-y"],
)
def test_what_begins_and_does_not_end_holds_up_nobody(text: str) -> None:
    """Certificates of a running node are a request's text, and a pattern that is looked for lets no
    other thread run."""
    keys = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": text * (32_767 // len(text)),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": text * (32_767 // len(text)),
        "ssl.keystore.certificate.chain": text * (32_767 // len(text)),
    }
    begun = time.process_time()
    for read in (read_key_store, read_trust_store):
        with pytest.raises(ConfigError):
            read(values(keys))
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize("read", [read_key_store, read_trust_store])
@pytest.mark.parametrize("kind", ["PEM", "JKS"])
def test_nobody_waits_for_a_pipe_to_say_what_is_in_a_store(
    tmp_path: Path, kind: str, read: Callable[[ListenerConfig], object]
) -> None:
    """Stores of a running node are named by requests, and read by those who serve others."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    keys = {f"ssl.{one}store.location": str(pipe) for one in ("key", "trust")}
    keys |= {f"ssl.{one}store.type": kind for one in ("key", "trust")}
    if kind == "JKS":
        keys |= {f"ssl.{one}store.password": "changeit" for one in ("key", "trust")}
    said: list[str] = []

    def ask() -> None:
        with pytest.raises(ConfigError) as refused:
            read(values(keys))
        said.append(str(refused.value))

    asks = threading.Thread(target=ask, daemon=True)
    asks.start()
    asks.join(5)
    is_waiting = asks.is_alive()
    if is_waiting:
        pipe.write_bytes(b"x")  # lets it go
    assert not is_waiting
    assert "expected a store: a file" in said[0]


def test_a_store_that_cryptography_cannot_read_is_refused_by_its_key(tmp_path: Path) -> None:
    """While running, too: its own listener stays as it was, and the others are looked at."""
    path = tmp_path / "store"
    path.write_bytes(KEY_STORE_PKCS12)
    keys = {f"ssl.{one}store.location": str(path) for one in ("key", "trust")}
    keys |= {f"ssl.{one}store.password": "changeit" for one in ("key", "trust")}
    listener = secured("SSL", keys)
    path.write_bytes(KEY_STORE_OF_ANOTHER_CURVE)
    assert not listener.reload()
    assert listener.is_refused
    for read in (read_key_store, read_trust_store):
        with pytest.raises(ConfigError, match="cannot be read here"):
            read(values(keys))


@pytest.mark.parametrize(
    ("has_key", "beside", "trusts"),
    [(True, 0, "own"), (True, 1, "own and ca"), (False, 1, "ca")],
    ids=["key", "key and authority", "authority"],
)
def test_who_issued_the_certificate_of_a_key_is_not_trusted_for_that(
    tmp_path: Path, has_key: bool, beside: int, trusts: str
) -> None:
    """PKCS12 as Java reads it (a PrivateKeyEntry beside trustedCertEntries): else whoever has any
    certificate of the company's authority is let in where one was meant."""
    ca = trustme.CA()
    leaf = ca.issue_cert("localhost")
    own = x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes())
    authority = x509.load_pem_x509_certificate(ca.cert_pem.bytes())
    path = tmp_path / "store.p12"
    path.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"node",
            load_pem_private_key(leaf.private_key_pem.bytes(), None) if has_key else None,  # type: ignore[arg-type]
            own if has_key else None,
            [authority] * (has_key + beside),
            BestAvailableEncryption(b"changeit"),
        )
    )
    keys = {f"ssl.{one}store.location": str(path) for one in ("key", "trust")}
    keys |= {f"ssl.{one}store.password": "changeit" for one in ("key", "trust")}
    der = {"own": own.public_bytes(Encoding.DER), "ca": authority.public_bytes(Encoding.DER)}
    assert read_trust_store(values(keys)) == tuple(der[one] for one in trusts.split(" and "))
    if has_key:
        material = read_key_store(values(keys))
        assert material is not None
        assert material.chain == (der["own"], der["ca"])


@pytest.mark.parametrize("data", [KEY_STORE_JKS, TRUST_STORE_JKS], ids=["keys", "trust"])
def test_a_jks_file_that_is_cut_or_changed_is_refused(data: bytes) -> None:
    for cut in range(len(data)):
        with pytest.raises(JksError):
            read_jks(data[:cut], "changeit")
    for at in range(0, len(data), 11):
        with pytest.raises(JksError):
            read_jks(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "changeit")


def test_a_jks_file_that_claims_much_costs_nothing() -> None:
    huge = b"\xfe\xed\xfe\xed" + struct.pack(">ii", 2, 0x7FFFFFFF) + bytes(100)
    with pytest.raises(JksError):
        read_jks(huge, None)
    lie = b"\xfe\xed\xfe\xed" + struct.pack(">iii", 2, 1, 2) + bytes(10)
    with pytest.raises(JksError):
        read_jks(lie + struct.pack(">i", 0x7FFFFFFF) + bytes(40), None)
    for garbage in (b"", bytes(50), b"\x30\x82\xff\xff" + bytes(60)):
        with pytest.raises(JksError):
            open_key(garbage, "x")


def verdict(keys: dict[str, str]) -> bool:
    try:
        read_key_store(values(keys))
    except ConfigError:
        return False
    return True


def test_which_keys_fit_together_is_kafkas_verdict(tmp_path: Path) -> None:
    """All combinations of DefaultSslEngineFactory.createKeystore."""
    cert = Authority(tmp_path).ca.issue_cert("localhost")
    pem, jks = tmp_path / "s.pem", tmp_path / "s.jks"
    pem.write_bytes(pkcs8(cert) + chain(cert))
    jks.write_bytes(KEY_STORE_JKS)
    for kind, location, password, key, certificates in itertools.product(
        ("PEM", "JKS"), *[(False, True)] * 4
    ):
        keys = {"ssl.keystore.type": kind}
        if location:
            keys["ssl.keystore.location"] = str(pem if kind == "PEM" else jks)
        if password:
            keys["ssl.keystore.password"] = "changeit"
        if key:
            keys["ssl.keystore.key"] = pkcs8(cert).decode()
        if certificates:
            keys["ssl.keystore.certificate.chain"] = chain(cert).decode()
        if key or certificates:
            expected = kind == "PEM" and key and certificates and not location and not password
        elif kind == "PEM" and location:
            expected = not password
        else:
            expected = location == password
        assert verdict(keys) is expected, keys.keys()


def pem_keys(path: Path, data: bytes, **more: str) -> dict[str, str]:
    path.write_bytes(data)
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(path), **more}


def test_a_pem_file_holds_key_and_chain_in_any_order(tmp_path: Path) -> None:
    cert = Authority(tmp_path).ca.issue_cert("localhost")
    key, certs, path = pkcs8(cert), chain(cert), tmp_path / "s.pem"
    with_lines = key.replace(b"KEY-----\n", b"KEY-----\nName: value\n", 1)
    for data in (
        key + certs,
        certs + key,
        b"text\n" + certs + b"more\n" + key.rstrip(),
        (key + certs).replace(b"\n", b"\r\n"),
        with_lines + certs,
    ):
        assert server_tls(values(pem_keys(path, data)), client_auth="none").identity.own


def test_what_a_pem_file_may_not_be(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, other = authority.ca.issue_cert("localhost"), authority.ca.issue_cert("localhost")
    key, certs, path = pkcs8(cert), chain(cert), tmp_path / "s.pem"
    for data, message in (
        (key + key + certs, "found 2"),
        (certs, "found 0"),
        (key, "certificate of the key"),
        (cert.private_key_pem.bytes() + certs, "PKCS#8"),
        (pkcs8(cert, "secret") + certs, "ssl.key.password"),
        (pkcs8(other) + certs, "do not fit"),
        (b"", "empty"),
    ):
        with pytest.raises(ConfigError, match=message):
            server_tls(values(pem_keys(path, data)), client_auth="none")
    hidden = pkcs8(cert, "key-secret") + certs
    right = pem_keys(path, hidden, **{"ssl.key.password": "key-secret"})
    assert server_tls(values(right), client_auth="none").identity.own
    with pytest.raises(ConfigError) as failed:
        server_tls(values({**right, "ssl.key.password": "wrong-one"}), client_auth="none")
    assert "wrong-one" not in str(failed.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        server_tls(values({**right, "ssl.keystore.location": "/not/there"}), client_auth="none")


def test_a_certificate_too_weak_for_openssl_is_called_that(tmp_path: Path) -> None:
    """Not "the password is wrong": Java, and so Kafka, takes it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    today = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today)
        .not_valid_after(today + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + made.public_bytes(serialization.Encoding.PEM)
    with pytest.raises(ConfigError, match="too weak for OpenSSL: ee key too small"):
        server_tls(values(pem_keys(tmp_path / "s.pem", pem)), client_auth="none")


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({}, "ssl.keystore.location"),
        ({"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "ssl.enabled.protocols"),
        ({"ssl.enabled.protocols": "SSLv3"}, "ssl.enabled.protocols"),
        ({"ssl.protocol": "SSL"}, "ssl.protocol"),
        ({"ssl.cipher.suites": "TLS_RSA_WITH_NULL_SHA"}, "ssl.cipher.suites"),
        ({"ssl.cipher.suites": "TLS_NO_SUCH"}, "ssl.cipher.suites"),
        ({"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "x"}, "ssl.truststore"),
        ({"ssl.truststore.certificates": "x"}, "ssl.truststore.type"),
        ({"ssl.truststore.password": "x"}, "ssl.truststore.password"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_by_name(
    tmp_path: Path, keys: dict[str, str], named: str
) -> None:
    cert = Authority(tmp_path).ca.issue_cert("localhost")
    own = pem_keys(tmp_path / "s.pem", pkcs8(cert) + chain(cert)) if keys else {}
    with pytest.raises(ConfigError) as failed:
        server_tls(values({**own, **keys}), client_auth="none")
    assert failed.value.name.startswith(named)


def test_a_listeners_own_keys_come_first() -> None:
    given = {"ssl.keystore.location": "a", "listener.name.ext.ssl.keystore.location": "b"}
    assert values(given).text("ssl.keystore.location") == "b"
    other = ListenerConfig(KafkaConfig(given), "INT")
    assert other.text("ssl.keystore.location") == "a"
    assert "listener.name.ext" in str(values(given).error("ssl.keystore.location", "x"))


def test_no_secret_is_told_with_a_mistake() -> None:
    for name in (
        "ssl.keystore.password",
        "ssl.keystore.pasword",
        "listener.name.x.plain.sasl.jaas.config",
        "ssl.keystore.key",
        "ssl.key.password",
        "sasl.oauthbearer.client.credentials.client.secret",
    ):
        assert "hunter2" not in str(ConfigError(name, "hunter2", "expected something"))
    with pytest.raises(ConfigError) as failed:
        KafkaConfig({"ssl.keystore.pasword": "hunter2"})
    assert "hunter2" not in str(failed.value)


def test_suites_of_iana_by_openssls_names() -> None:
    assert openssl_name("TLS_RSA_WITH_AES_256_CBC_SHA") == "AES256-SHA"
    for suite, name in (
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384", "ECDHE-ECDSA-AES256-SHA384"),
        ("TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "DHE-RSA-CHACHA20-POLY1305"),
    ):
        assert openssl_name(suite) == name


def test_a_certificate_that_ends_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(TRUST_STORE_JKS)
    trusted = read_trust_store(values({"ssl.truststore.location": str(path)}))
    assert trusted is not None
    own = read_certificate(trusted[0])
    assert expiry_warning(own) is None
    assert "has expired" in (expiry_warning(own, own.not_after) or "")
    assert expiry_warning(own, own.not_before) is None
    early = own.not_before - timedelta(seconds=1)
    assert "is not valid before 20" in (expiry_warning(own, early) or "")
    assert expiry_warning(None) is None


def test_a_client_needs_no_store_of_its_own() -> None:
    assert client_tls(values({})).context.check_hostname
    unchecked = client_tls(values({"ssl.endpoint.identification.algorithm": ""}))
    assert not unchecked.context.check_hostname
    with pytest.raises(ConfigError):
        client_tls(values({"ssl.endpoint.identification.algorithm": "ldaps"}))
