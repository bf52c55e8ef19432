"""What README and docs show in their consoles happens as shown, to somebody who has the wheel only.

Each document is an afternoon at one machine: an environment with nothing but the wheel, an empty
directory, a network of its own (Linux namespaces), so that ports and host names are the written
ones. A block that is not run here is named in ELSEWHERE, with the test that does the same.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testkit.delivery.transcript import Command, console_blocks, missing
from testkit.delivery.wheel import ROOT, build, install
from testkit.require import require
from testkit.wait import eventually

DOCUMENTS = ("README.md", "docs/commands.md", "docs/deployment.md")

ELSEWHERE = {
    ("docs/deployment.md", "Image"): "compat_tests/packaging/test_image.py",
    ("docs/deployment.md", "systemd"): "compat_tests/packaging/test_wheel.py",
    ("docs/deployment.md", "Spark"): "compat_tests/pipeline",
}
"""Blocks that need an engine, a whole system, or Spark."""

BEFORE = {
    ("docs/commands.md", "Topics"): ("barnabas start",),
    ("docs/commands.md", "Records"): (
        "barnabas topic create orders --partitions 2",
        "barnabas topic create copy --partitions 2",
        "echo 1 | barnabas produce orders",
    ),
    ("docs/commands.md", "Groups"): ("barnabas consume orders --group billing",),
    ("docs/commands.md", "Access rules"): (
        "barnabas start --data-dir ruled --set super.users=User:ANONYMOUS --set"
        " authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    ),
    ("docs/commands.md", "When it does not work"): (
        "barnabas start --data-dir other --set listeners=PLAINTEXT://0.0.0.0:9092"
        " --set advertised.listeners=PLAINTEXT://localhost:9092",
    ),
    ("docs/deployment.md", "A cluster"): ("cp three-nodes.properties server.properties",),
}
"""What somebody who reads a block has done before it, by document and heading."""

SERVERS = ("barnabas start", "barnabas cluster start")
HOSTS = "127.0.0.1 localhost a b c other broker\n"
NETWORK = "ip link set lo up && ip address add 10.0.0.5/32 dev lo && mount --bind hosts /etc/hosts"
PATIENCE_S = 120.0


class Terminal:
    """A directory, a network, and a PATH whose `barnabas` is the wheel's. A server that is started
    runs until another is, as if each were started in the same window."""

    def __init__(self, directory: Path, python: Path) -> None:
        self._directory = directory
        self._environment = {
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "HOME": str(directory),
            "LANG": "C.UTF-8",
        }
        self._number = itertools.count(1)
        (directory / "hosts").write_text(HOSTS)
        self._server: subprocess.Popen[bytes] | None = None
        self._network = self._begin(
            "unshare --user --map-root-user --net --mount bash -c"
            f" '{NETWORK} && echo up && exec sleep infinity'",
            subprocess.PIPE,
        )
        assert self._network.stdout is not None
        if (said := self._network.stdout.readline()) != b"up\n":
            self.close()
            require(False, f"no network of its own can be had here: {said.decode()}")

    def run(self, command: Command) -> None:
        """Do what the document says, and compare what is printed and how it ends."""
        output = self._directory / f"output-{next(self._number)}"
        inside = f"nsenter --preserve-credentials -U -n -m -t {self._network.pid}"
        is_server = command.text.startswith(SERVERS)
        if is_server:
            self.stop_server()
        (self._directory / "command.sh").write_text(("exec " if is_server else "") + command.text)
        with output.open("wb") as file:
            process = self._begin(f"{inside} --wd={self._directory} bash command.sh", file)
        expected = int(any(line.startswith("WRONG") for line in command.shown))
        if is_server:
            self._server = process
            eventually(
                lambda: b"ready: " in output.read_bytes() or process.poll() is not None,
                timeout_s=PATIENCE_S,
                what=f"the ready line of {command.text}",
            )
            status = process.poll() or 0
        else:
            status = process.wait(PATIENCE_S)
        printed = output.read_text()
        assert status == expected, f"exit code {status}: $ {command.text}\n{printed}"
        assert not missing(command.shown, printed), f"$ {command.text}\n{printed}"

    def _begin(self, command: str, output: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=output,  # type: ignore[call-overload]
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def stop_server(self) -> None:
        """Cleanly."""
        server, self._server = self._server, None
        if server is not None and server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                assert server.wait(PATIENCE_S) == 0
            finally:
                if server.poll() is None:
                    os.killpg(server.pid, signal.SIGKILL)
                    server.wait()

    def close(self) -> None:
        try:
            self.stop_server()
        finally:
            with self._network:
                self._network.kill()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment that has the wheel."""
    wheel = build(tmp_path_factory.mktemp("dist"))
    return install(wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture
def terminal(python: Path, tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "three-nodes.properties").write_text(_three_nodes(tmp_path / "node-data"))
    terminal = Terminal(tmp_path, python)
    try:
        yield terminal
    finally:
        terminal.close()


def _three_nodes(data: Path) -> str:
    """The properties of docs/deployment.md, as one machine alone can run them: a quorum of one."""
    text = (ROOT / "docs/deployment.md").read_text()
    properties = text.split("## A cluster\n")[1].split("```properties\n")[1].split("```")[0]
    alone = properties.replace(",2@b:9093,3@c:9093", "").replace("/var/lib/barnabas", str(data))
    assert alone.count("\n") == properties.count("\n")
    assert alone != properties
    return alone


@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_is_shown_is_what_happens(document: str, terminal: Terminal) -> None:
    seen = ""
    ran = 0
    for block in console_blocks(ROOT / document):
        if (document, block.heading) in ELSEWHERE:
            continue
        if block.heading != seen:
            for text in BEFORE.get((document, block.heading), ()):
                terminal.run(Command(text, ()))
        seen = block.heading
        assert block.commands, f"{document}:{block.line} has no `$ command`"
        for command in block.commands:
            terminal.run(command)
            ran += 1
    assert ran >= 4, "the blocks of this document were not found"


def test_no_document_with_a_console_is_left_out() -> None:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = {
        (str(path.relative_to(ROOT)), block.heading)
        for path in documents
        for block in console_blocks(path)
    }
    assert {document for document, _ in found} == set(DOCUMENTS)
    assert set(ELSEWHERE) <= found
    assert set(BEFORE) <= found
    assert all((ROOT / test).exists() for test in ELSEWHERE.values())
