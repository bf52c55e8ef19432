"""One node of a cluster under test: its process, files and ports, and with what it is started."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from barnabas.process import NodeProcess

# A JVM does not look at its standard input: the kernel ends it with whoever started it (Linux).
_DIES_WITH_PARENT = """\
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
os.execv(sys.argv[1], sys.argv[1:])
"""


class JavaProcess(NodeProcess):
    """A node of Apache Kafka. SIGTERM stops it cleanly, and is what it says it ended by."""

    clean_exits = (0, 128 + signal.SIGTERM)

    def run(
        self,
        line: Sequence[str],
        stdin: int = subprocess.PIPE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().run([sys.executable, "-c", _DIES_WITH_PARENT, *line], stdin, environment)

    def begin_end_of_all(self) -> None:
        self.begin_terminate()


@dataclass(slots=True)
class Node:
    """See the module."""

    id: int
    kind: str
    directory: Path
    data_dir: Path
    ports: dict[str, int]
    proxy_ports: dict[str, int]
    is_broker: bool
    is_voter: bool
    properties: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    directory_id: str = ""
    process: NodeProcess = field(init=False)

    def __post_init__(self) -> None:
        kind = JavaProcess if self.kind == "kafka" else NodeProcess
        self.process = kind(f"node {self.id}", self.directory / "node.log")

    @property
    def runs(self) -> bool:
        return self.process.pid is not None

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def port(self) -> int:
        """Where it answers first of all."""
        return self.ports["CLIENT" if self.is_broker else "CONTROLLER"]

    @property
    def config_file(self) -> Path:
        return self.directory / "server.properties"

    def write_properties(self) -> None:
        lines = (f"{name}={value}\n" for name, value in self.properties.items())
        self.config_file.write_text("".join(lines), encoding="utf-8")
