"""`barnabas acl` and `barnabas user` on a broker that lets nobody do what no rule allows."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import barnabas
from testkit.clients.cli import BARNABAS, assert_one_clear_line, run

Cli = Callable[..., subprocess.CompletedProcess[str]]
PASSWORD = "a long, strange password"


@pytest.fixture(scope="module")
def ruled() -> Iterator[barnabas.Broker]:
    users = {"root": "root-secret", "alice": "alice-secret"}
    config = {"super.users": "User:root"}
    with barnabas.Broker(security="sasl_ssl", users=users, acls=[], config=config) as broker:
        yield broker


@pytest.fixture
def of(ruled: barnabas.Broker, tmp_path: Path) -> Callable[..., Cli]:
    """A command line of a user: `of("root")("acl", "list")`."""

    def cli(user: str, secret: str | None = None, mechanism: str = "SCRAM-SHA-256") -> Cli:
        known = "alice" if secret else user
        told = ruled.client_config(known, library="java", mechanism=mechanism)
        if secret:
            told["sasl.jaas.config"] = (
                "org.apache.kafka.common.security.scram.ScramLoginModule required"
                f' username="{user}" password="{secret}";'
            )
        path = tmp_path / f"{user}.properties"
        path.touch(0o600)
        path.write_text("".join(f"{key}={value}\n" for key, value in told.items()))
        flags = ("--bootstrap", ruled.bootstrap_servers, "--client-config", str(path))
        return lambda *words, stdin=None: run(*words, *flags, stdin=stdin)

    return cli


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_a_user_may_do_what_a_rule_says_until_it_is_removed(of: Callable[..., Cli]) -> None:
    root, alice = of("root"), of("alice")
    ok(root("topic", "create", "orders"))
    assert_one_clear_line(alice("produce", "orders", stdin="no\n"), 1, "orders")
    words = ("alice", "--producer", "--consumer", "--topic", "ord", "--group", "b", "--prefixed")
    assert "added: ALLOW User:alice READ on GROUP b (prefixed)\n" in ok(root("acl", "add", *words))
    ok(alice("produce", "orders", stdin="yes\n"))
    assert ok(alice("consume", "orders", "--group", "billing")) == "yes\n"

    ok(root("acl", "add", "*", "write", "--topic", "orders", "--deny"))
    assert_one_clear_line(alice("produce", "orders", stdin="no\n"), 1, "orders")
    found = ok(root("acl", "list", "--topic", "orders", "--match", "--deny"))
    assert found == "User:*\tDENY\tWRITE\tTOPIC\torders\tLITERAL\t*\n"
    ok(root("acl", "remove", "*", "write", "--topic", "orders", "--deny"))
    ok(alice("produce", "orders", stdin="again\n"))

    (first, *_rest) = json.loads(ok(root("acl", "list", "alice", "--json")))
    assert first["principal"] == "User:alice"
    assert "would be removed" in ok(root("acl", "remove", "alice", "--dry-run"))
    assert len(json.loads(ok(root("acl", "remove", "alice", "--json")))["removed"]) == 5
    assert ok(root("acl", "list")) == ""
    assert_one_clear_line(root("acl", "remove", "alice"), 1, "no such", "barnabas acl list")
    assert_one_clear_line(alice("produce", "orders", stdin="no\n"), 1, "orders")


def test_who_may_not_change_rules_or_users_is_told_in_one_line(of: Callable[..., Cli]) -> None:
    alice = of("alice")
    for words in (("acl", "list"), ("acl", "add", "alice", "all", "--cluster"), ("user", "list")):
        done = alice(*words)
        assert_one_clear_line(done, 1, "CLUSTER_AUTHORIZATION_FAILED", "--client-config")
    done = alice("user", "set", "root", stdin="mine\n")
    assert_one_clear_line(done, 1, "CLUSTER_AUTHORIZATION_FAILED", "--client-config")


def test_a_user_comes_changes_and_goes(of: Callable[..., Cli]) -> None:
    root = of("root")
    created = ok(root("user", "set", "carol", stdin=PASSWORD + "\n"))
    assert created == "created user carol for SCRAM-SHA-256, SCRAM-SHA-512\n"
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert ok(of("carol", PASSWORD, mechanism)("topic", "list")) == ""
    changed = ok(root("user", "set", "carol", "--iterations", "8192", "--json", stdin="other"))
    assert json.loads(changed)["created"] is False
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert of("carol", PASSWORD, mechanism)("topic", "list").returncode == 1
        assert ok(of("carol", "other", mechanism)("topic", "list")) == ""
    listed = "carol\tSCRAM-SHA-256\t8192\ncarol\tSCRAM-SHA-512\t8192\n"
    assert ok(root("user", "list", "carol")) == listed
    ok(root("user", "delete", "carol", "--mechanism", "SCRAM-SHA-256"))
    assert ok(root("user", "list", "carol")) == listed.splitlines(keepends=True)[1]
    assert ok(root("user", "delete", "carol")) == "deleted user carol\n"
    assert of("carol", "other", "SCRAM-SHA-512")("topic", "list").returncode == 1
    assert_one_clear_line(root("user", "delete", "carol"), 1, "carol", "barnabas user list")


def test_a_terminal_is_asked_for_the_password_and_shows_it_nowhere(
    ruled: barnabas.Broker, of: Callable[..., Cli], tmp_path: Path
) -> None:
    root = of("root")
    words = ["user", "set", "dave", "--bootstrap", ruled.bootstrap_servers]
    words += ["--client-config", str(tmp_path / "root.properties")]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(BARNABAS[0], [*BARNABAS, *words])
    shown = b""
    with os.fdopen(terminal, "r+b", buffering=0) as screen:
        for _question in range(2):
            while not shown.endswith((b"dave: ", b"more: ")):
                shown += screen.read(1)
            screen.write(PASSWORD.encode() + b"\n")
            shown += screen.read(1)
        while not shown.endswith(b"SCRAM-SHA-512\r\n"):
            shown += screen.read(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert PASSWORD.encode() not in shown
    assert ok(of("dave", PASSWORD)("topic", "list")) == ""
    ok(root("user", "delete", "dave"))


def test_a_cluster_without_rules_says_so() -> None:
    with barnabas.Broker() as broker:
        done = run("acl", "list", "--bootstrap", broker.bootstrap_servers)
    assert_one_clear_line(done, 1, "no authorizer", "authorizer.class.name")
