"""Delegation tokens with Kafka's own command and client, on Barnabas and on Apache Kafka: made,
shown, used, renewed and ended, and what users who have nothing to do with them are told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import barnabas
from compat_tests.security.conftest import PLAIN, SCRAM
from testkit.brokers.nodes import ApacheKafka
from testkit.clients.java_tools import Finished, JavaTools
from testkit.ports import free_ports
from testkit.wait import eventually

pytestmark = pytest.mark.java

USERS = ("alice", "bob", "carol")
SECRET = "the-key-of-all-nodes"


def config(ports: list[int]) -> dict[str, str]:
    users = " ".join(f'user_{name}="{name}-secret"' for name in USERS)
    prefix = "listener.name.sasl_plaintext"
    return {
        "listeners": (
            f"PLAINTEXT://127.0.0.1:{ports[0]},SASL_PLAINTEXT://127.0.0.1:{ports[1]},"
            f"CONTROLLER://127.0.0.1:{ports[2]}"
        ),
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
        ),
        "advertised.listeners": (
            f"PLAINTEXT://127.0.0.1:{ports[0]},SASL_PLAINTEXT://127.0.0.1:{ports[1]}"
        ),
        "controller.quorum.voters": f"1@127.0.0.1:{ports[2]}",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        f"{prefix}.plain.sasl.jaas.config": f"{PLAIN} required {users};",
        f"{prefix}.scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
        "delegation.token.secret.key": SECRET,
    }


@pytest.fixture(scope="module", params=["barnabas", "kafka"])
def bootstrap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, java_tools: JavaTools
) -> Iterator[str]:
    ports = free_ports(3)
    told = config(ports)
    if request.param == "kafka":
        node = ApacheKafka(tmp_path_factory.mktemp("kafka") / "node", told)
        node.port = ports[0]
        with node:
            yield f"127.0.0.1:{ports[1]}"
        return
    with barnabas.Broker(config={"node.id": "1", **told}) as broker:
        yield f"127.0.0.1:{ports[1]}"
        assert SECRET not in broker.log_text


class Client:
    """Somebody with Kafka's commands."""

    def __init__(
        self, tools: JavaTools, bootstrap: str, file: Path, told: Mapping[str, str]
    ) -> None:
        self._tools, self._bootstrap, self._file = tools, bootstrap, file
        file.write_text("".join(f"{name}={text}\n" for name, text in told.items()))

    def run(self, tool: str, *words: str, stdin: str = "") -> Finished:
        where = ("--bootstrap-server", self._bootstrap, "--command-config", str(self._file))
        return self._tools.run(tool, *where, *words, stdin=stdin)

    def tokens(self, *words: str) -> Finished:
        return self.run("DelegationTokenCommand", *words)

    def described(self, *owners: str) -> list[tuple[str, ...]]:
        """Id, secret, owner, requester and renewers of each token."""
        words = [word for owner in owners for word in ("--owner-principal", owner)]
        out = self.tokens("--describe", *words).ok()
        rows = [line.split() for line in out.splitlines() if "User:" in line]
        return [tuple(row[:5]) for row in rows if row[0] != "Calling"]


@pytest.fixture
def users(java_tools: JavaTools, bootstrap: str, tmp_path: Path) -> dict[str, Client]:
    return {
        name: Client(
            java_tools,
            bootstrap,
            tmp_path / name,
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": (
                    f'{PLAIN} required username="{name}" password="{name}-secret";'
                ),
            },
        )
        for name in USERS
    }


def by_token(token_id: str, secret: str, protocol: str = "SASL_PLAINTEXT") -> dict[str, str]:
    """Properties of who shows a token."""
    login = f'username="{token_id}" password="{secret}" tokenauth="true"'
    return {
        "security.protocol": protocol,
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f"{SCRAM} required {login};",
    }


def made(client: Client, *words: str) -> tuple[str, str]:
    out = client.tokens("--create", "--max-life-time-period", "-1", *words).ok()
    found = re.search(r"^(\S{22}) +(\S+==) ", out, re.MULTILINE)
    assert found is not None, out
    return found[1], found[2]


def sees(client: Client, row: tuple[str, ...]) -> None:
    """Soon: a broker of Kafka's reads of a token after the controller has answered."""
    eventually(lambda: row in client.described(row[2]))


def test_the_life_of_a_token(
    users: dict[str, Client], java_tools: JavaTools, bootstrap: str, tmp_path: Path
) -> None:
    token_id, secret = made(users["alice"], "--renewer-principal", "User:bob")
    row = (token_id, secret, "User:alice", "User:alice", "[User:bob]")
    for asks in ("alice", "bob"):
        sees(users[asks], row)
    shown = Client(java_tools, bootstrap, tmp_path / "token", by_token(token_id, secret))
    shown.run("ConsoleProducer", "--topic", "by-token", stdin="one\n").ok()
    out = shown.run(
        "ConsoleConsumer", "--topic", "by-token", "--from-beginning", "--max-messages", "1",
        "--timeout-ms", "30000",
    ).ok()  # fmt: skip
    assert out == "one\n"
    for words in (
        ("--create", "--max-life-time-period", "-1"),
        ("--renew", "--renew-time-period", "-1", "--hmac", secret),
        ("--describe", "--owner-principal", "User:alice"),
    ):
        assert "not allowed" in shown.tokens(*words).text  # tokens make no tokens
    renew = ("--renew", "--renew-time-period", "3600000", "--hmac", secret)
    assert "New expiry date" in users["bob"].tokens(*renew).ok()
    assert "OwnerMismatch" in users["carol"].tokens(*renew).text
    expire = ("--expire", "--expiry-time-period", "-1", "--hmac", secret)
    assert "OwnerMismatch" in users["carol"].tokens(*expire).text
    users["alice"].tokens(*expire).ok()
    eventually(lambda: row not in users["alice"].described("User:alice"))
    assert "NotFound" in users["alice"].tokens(*renew).text
    again = shown.run("TopicCommand", "--list")
    assert again.code == 1
    assert "invalid credentials" in again.text


def test_a_token_for_somebody_else(users: dict[str, Client]) -> None:
    token_id, secret = made(users["alice"], "--owner-principal", "User:carol")
    row = (token_id, secret, "User:carol", "User:alice", "[]")
    sees(users["carol"], row)
    users["carol"].tokens("--expire", "--expiry-time-period", "-1", "--hmac", secret).ok()


def test_what_is_no_token(users: dict[str, Client]) -> None:
    renew = users["alice"].tokens("--renew", "--renew-time-period", "-1", "--hmac", "AAAA")
    assert "NotFound" in renew.text
    create = ("--create", "--max-life-time-period", "-1", "--renewer-principal", "Group:g")
    assert "InvalidPrincipalType" in users["alice"].tokens(*create).text


def test_a_token_of_one_node_opens_all_of_them(java_tools: JavaTools, tmp_path: Path) -> None:
    """Forwarded to the controller inside an Envelope, which knows who showed a token (DT-2)."""
    users = {"alice": "alice-secret"}
    secret_key = {"delegation.token.secret.key": SECRET}
    with barnabas.Cluster(
        3, proxied=False, security="sasl_ssl", users=users, config=secret_key
    ) as cluster:
        told = cluster.client_config("alice", library="java")
        tls = {name: text for name, text in told.items() if name.startswith("ssl.")}
        made_at: dict[str, str] = {}
        for node in cluster.nodes:
            alice = Client(java_tools, cluster.address(node), tmp_path / f"alice-{node}", told)
            token_id, secret = made(alice)
            made_at[token_id] = secret
        for node in cluster.nodes:
            for token_id, secret in made_at.items():
                shown = Client(
                    java_tools,
                    cluster.address(node),
                    tmp_path / "token",
                    {**by_token(token_id, secret, "SASL_SSL"), **tls},
                )
                assert shown.run("TopicCommand", "--list").code == 0
                create = shown.tokens("--create", "--max-life-time-period", "-1")
                assert "not allowed" in create.text
        for node in cluster.nodes:
            assert SECRET not in cluster.log_text(node)
