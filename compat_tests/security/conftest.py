"""A broker with a listener of every protocol, and a cluster in which everything is encrypted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

import barnabas
from testkit.ports import free_ports

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
ALICE, BOB = "alice-secret", "bob-secret"


class Stores(NamedTuple):
    """PEM files of a throw-away authority."""

    authority: Path
    server: Path
    client: Path
    client_key: Path
    client_chain: Path

    @property
    def server_keys(self) -> dict[str, str]:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
        }


def make_stores(directory: Path) -> Stores:
    ca = trustme.CA()
    stores = Stores(*(directory / n for n in ("ca.pem", "s.pem", "c.pem", "c.key", "c.crt")))
    stores.authority.write_bytes(ca.cert_pem.bytes())
    for path, cert in (
        (stores.server, ca.issue_cert("localhost", "127.0.0.1")),
        (stores.client, ca.issue_cert("c@example.org", common_name="Kafka.Client")),
    ):
        key = load_pem_private_key(cert.private_key_pem.bytes(), None)
        pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain = b"".join(one.bytes() for one in cert.cert_chain_pems)
        path.write_bytes(pkcs8 + chain)
        path.chmod(0o600)
        if path == stores.client:
            stores.client_key.write_bytes(pkcs8)
            stores.client_chain.write_bytes(chain)
    return stores


def jaas_of(listener: str) -> dict[str, str]:
    """Users of a listener: alice by PLAIN; the node itself is admin."""
    prefix = f"listener.name.{listener.lower()}"
    return {
        f"{prefix}.plain.sasl.jaas.config": (
            f'{PLAIN} required username="admin" password="admin-secret"'
            f' user_admin="admin-secret" user_alice="{ALICE}";'
        ),
        f"{prefix}.scram-sha-256.sasl.jaas.config": (
            f'{SCRAM} required username="admin" password="admin-secret";'
        ),
        f"{prefix}.scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
    }


class SecureBroker(NamedTuple):
    """A running broker and how to reach it."""

    broker: barnabas.Broker
    ports: dict[str, int]
    stores: Stores

    def bootstrap(self, protocol: str) -> str:
        return f"localhost:{self.ports[protocol]}"

    def java(self, protocol: str, mechanism: str = "PLAIN", user: str = "alice") -> dict[str, str]:
        """Properties of the Java client."""
        return java_properties(self.stores, protocol, mechanism, user)

    def java_file(self, directory: Path, *login: str) -> Path:
        path = directory / "client.properties"
        path.write_text("".join(f"{k}={v}\n" for k, v in self.java(*login).items()))
        path.chmod(0o600)
        return path


def java_properties(
    stores: Stores, protocol: str, mechanism: str = "PLAIN", user: str = "alice"
) -> dict[str, str]:
    given = {"security.protocol": protocol}
    if "SASL" in protocol:
        module = PLAIN if mechanism == "PLAIN" else SCRAM
        given["sasl.mechanism"] = mechanism
        given["sasl.jaas.config"] = f'{module} required username="{user}" password="{user}-secret";'
    if "SSL" in protocol:
        given["ssl.truststore.type"] = "PEM"
        given["ssl.truststore.location"] = str(stores.authority)
    if protocol == "SSL":
        given["ssl.keystore.type"] = "PEM"
        given["ssl.keystore.location"] = str(stores.client)
    return given


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """A listener of each protocol; bob is a SCRAM user. Only for Barnabas."""
    stores = make_stores(tmp_path_factory.mktemp("stores"))
    ports = dict(zip(PROTOCOLS, free_ports(len(PROTOCOLS)), strict=True))
    config = {
        "listeners": ",".join(f"{name}://localhost:{port}" for name, port in ports.items()),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:.*CN=([^,]*).*/$1/L",
        **stores.server_keys,
        **jaas_of("sasl_plaintext"),
        **jaas_of("sasl_ssl"),
    }
    with barnabas.Broker(config=config) as broker:
        made = SecureBroker(broker, ports, stores)
        add_bob(made)
        yield made
        for secret in (ALICE, BOB, "admin-secret"):
            assert secret not in broker.log_text
            assert secret.encode() not in Path(f"/proc/{broker.pid}/cmdline").read_bytes()


def add_bob(secure: SecureBroker) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient({"bootstrap.servers": secure.bootstrap("PLAINTEXT")})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        info = ScramCredentialInfo(mechanism, 4096)
        change = UserScramCredentialUpsertion("bob", info, BOB.encode())
        for future in admin.alter_user_scram_credentials([change]).values():
            future.result(20)
