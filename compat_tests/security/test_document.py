"""docs/security.md, done as written by an operator who has an empty directory and nothing else.

Changed are only ports, and the hosts' names: all is `localhost` here, which is what the page's
certificate is for.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testkit.clients.cli import run
from testkit.ports import free_ports
from testkit.wait import eventually

pytestmark = pytest.mark.slow
PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def block(heading: str, mark: str) -> str:
    """The block below a heading in which the mark stands."""
    section = PAGE.read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (found,) = (text for text in re.findall(r"```\w+\n(.*?)```", section, re.S) if mark in text)
    return str(found)


def private(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    return path


def shell(directory: Path, text: str) -> None:
    """Run a block; `barnabas` is this checkout's."""
    ours = f'barnabas() {{ "{sys.executable}" -m barnabas "$@"; }}\n'
    path = f"PYTHONPATH={PAGE.parents[1]}\nexport PYTHONPATH\n"
    done = subprocess.run(
        ["bash", "-e", "-c", path + ours + text],
        cwd=directory, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "others may read" not in done.stderr


@contextmanager
def started(*directories: Path) -> Iterator[None]:
    """A node in each directory, until they answer, and to their end."""
    nodes = []
    try:
        for directory in directories:
            with (directory / "node.log").open("wb") as log:
                nodes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "barnabas", "start", "--config",
                         "server.properties"],
                        cwd=directory, stdout=log, stderr=log,
                        env={"PYTHONPATH": str(PAGE.parents[1]), "PATH": "/usr/bin:/bin"},
                    )
                )  # fmt: skip
        for directory in directories:
            log_path = directory / "node.log"
            eventually(lambda at=log_path: b"ready: " in at.read_bytes(), timeout_s=90)
        yield
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait(60)


def scram(client: str, user: str) -> str:
    """The page's client file for another user, as the page says."""
    client = client.replace("=PLAIN", "=SCRAM-SHA-256").replace("alice", user)
    return client.replace("plain.PlainLoginModule", "scram.ScramLoginModule")


def test_one_node(tmp_path: Path) -> None:
    address = f"localhost:{free_ports(1)[0]}"
    client = block("One node with users", "security.protocol")
    shell(tmp_path, block("An authority and certificates", "openssl"))
    server = block("One node with users", "node.id").replace("localhost:9094", address)
    private(tmp_path / "server.properties", server)
    shell(tmp_path, "barnabas check-config server.properties")
    shell(
        tmp_path,
        f"ID={run('random-uuid').stdout.strip()}\n"
        + block("Users of SCRAM", "format").replace(" ID ", " $ID "),
    )
    with started(tmp_path):
        private(tmp_path / "client.properties", client)
        health = block("One node with users", "barnabas health").split("\n")[1]
        shell(tmp_path, health.replace("localhost:9094", address))
        private(tmp_path / "client.properties", scram(client, "bob"))
        shell(tmp_path, health.replace("localhost:9094", address))


def test_a_class_that_decides(tmp_path: Path) -> None:
    shell(tmp_path, block("An authority and certificates", "openssl"))
    rules = block("Who may do what", "super.users=").splitlines()
    named = re.findall("authorizer.class.name=team_rules:TeamRules", PAGE.read_text("utf-8"))
    properties = [block("One node with users", "node.id"), *named, rules[1]]
    private(tmp_path / "server.properties", "\n".join(properties))
    (tmp_path / "rules").mkdir()
    private(tmp_path / "rules" / "team_rules.py", block("Who may do what", "class TeamRules"))
    shell(tmp_path, "PYTHONPATH=$PYTHONPATH:rules barnabas check-config server.properties")
    with pytest.raises(AssertionError, match="team_rules"):
        shell(tmp_path, "barnabas check-config server.properties")


def test_a_cluster(tmp_path: Path) -> None:
    ports = iter(free_ports(6))
    addresses = {
        f"host-{n}:{p}": f"localhost:{next(ports)}" for n in (1, 2, 3) for p in (9093, 9094)
    }

    def here(text: str) -> str:
        for there, address in addresses.items():
            text = text.replace(there, address)
        return text

    shell(tmp_path, block("An authority and certificates", "openssl"))
    (tmp_path / "broker.pem").rename(tmp_path / "host-1.pem")
    text = block("A cluster", "node.id")
    listeners = next(line for line in text.splitlines() if line.startswith("listeners="))
    cluster_id = run("random-uuid").stdout.strip()
    first = block("A cluster", "--add-scram").split("barnabas start")[0]
    nodes = [tmp_path / f"node-{number}" for number in (1, 2, 3)]
    for number, node in enumerate(nodes, 1):
        node.mkdir()
        for name in ("ca.pem", "host-1.pem"):
            private(node / name, (tmp_path / name).read_text())
        own = text.replace(listeners, listeners.replace("host-1", f"host-{number}"))
        own = own.replace("node.id=1", f"node.id={number}")
        private(node / "server.properties", here(own))
        shell(node, first.replace(" ID ", f" {cluster_id} "))
    client = block("One node with users", "security.protocol")
    private(tmp_path / "admin.properties", scram(client, "admin"))
    status = here(block("A cluster", "cluster status"))
    with started(*nodes):
        eventually(lambda: shell(tmp_path, status) is None, timeout_s=60)
        where = status.split("--bootstrap")[1]
        shell(tmp_path, f"barnabas topic create t --replication-factor 3 --bootstrap {where}")
