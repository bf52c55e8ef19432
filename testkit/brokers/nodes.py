"""A real broker process to test: Apache Kafka 4.3.1 or Barnabas, behind one face.

What: `ApacheKafka` and `Barnabas` start, stop, kill and restart one node on loopback; both offer
`bootstrap_servers`, `pid`, `data_dir` and `log_text()`, and both are context managers.
Why: a test that passes on both is the proof of compatibility; a test that could only run on one
would prove what we believe about the other.
How: Apache Kafka is formatted once and run from Maven's jars with the settings a developer's node
has (replication factor 1, no rebalance delay, one partition per internal topic). Barnabas is
started by its public API, `barnabas.Broker`, exactly as a user would.
A restart keeps port and directory: clients are expected to live through it.
Standard library only (and `barnabas` for its own class): the benchmarks use this module too.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from barnabas.fresh import free_ports, random_uuid
from testkit import jars
from testkit.clients import raw
from testkit.clients.secured import Connect
from testkit.quick_jvm import KAFKA_JVM

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LOG_TAIL_BYTES = 6000

# Enough for tests; a benchmark passes the distribution's own -Xmx1G -Xms1G -XX:+UseG1GC.
TEST_JVM_OPTIONS = ("-Xmx512M", *KAFKA_JVM)


class RunningBroker(Protocol):
    """What tests may ask of a broker, whoever made it."""

    kind: str
    data_dir: Path
    port: int
    """Known before it is started."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def restart(self) -> None: ...
    def log_text(self) -> str: ...


class BrokerDied(Exception):
    """The process ended, or gave no answer in time; the text holds the end of its log."""


class ApacheKafka:
    """One Apache Kafka node, broker and controller in one process.

    `config` overrides server.properties; `java_options` replaces the small JVM for tests.
    Raises jars.JarsUnavailable when Java or the jars cannot be had, BrokerDied when it won't start.
    """

    kind = "kafka"

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any] | None = None,
        java_options: Sequence[str] = TEST_JVM_OPTIONS,
        data_dir: Path | None = None,
        port: int | None = None,
    ) -> None:
        self.directory = Path(directory)
        self.data_dir = Path(data_dir) if data_dir is not None else self.directory / "data"
        self._java_options = tuple(java_options)
        self.directory.mkdir(parents=True, exist_ok=True)
        free, controller_port = free_ports(2)
        self.port = port or free
        self._properties = _kafka_properties(self.port, controller_port, self.data_dir)
        self._properties.update({key: str(value) for key, value in (config or {}).items()})
        self._process: subprocess.Popen[bytes] | None = None
        self._formatted = False

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerDied("Apache Kafka is not running")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last process; None while it runs."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Start the process and return at once (a benchmark times what follows)."""
        class_path = jars.class_path()
        properties = self.directory / "server.properties"
        properties.write_text(
            "".join(f"{key}={value}\n" for key, value in self._properties.items()),
            encoding="utf-8",
        )
        if not self._formatted:
            self._format(class_path, properties)
        command = [
            jars.java(), *self._java_options, "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-cp", class_path, "kafka.Kafka", str(properties),
        ]  # fmt: skip
        with open(self._log_path(), "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
                preexec_fn=die_with_parent,
            )  # fmt: skip

    def await_ready(self) -> None:
        assert self._process is not None
        try:
            await_answer("127.0.0.1", self.port, alive=lambda: self._process.poll() is None)
        except BrokerDied as died:
            self.kill()
            raise BrokerDied(f"{died}\n{self.log_text()[-LOG_TAIL_BYTES:]}") from died

    def stop(self) -> None:
        """SIGTERM, as an operator would; the process is gone when this returns."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL: the crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def log_text(self) -> str:
        path = self._log_path()
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def __enter__(self) -> ApacheKafka:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _log_path(self) -> Path:
        return self.directory / "broker.log"

    def _format(self, class_path: str, properties: Path) -> None:
        done = subprocess.run(
            [jars.java(), "-Xmx128M", *KAFKA_JVM, "-cp", class_path,
             "kafka.tools.StorageTool", "format", "-t", random_uuid(),
             "-c", str(properties), "--ignore-formatted"],
            capture_output=True, text=True, cwd=self.directory, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise BrokerDied(f"format failed: {done.stdout}{done.stderr}")
        self._formatted = True


def die_with_parent() -> None:
    """In the child, before exec: SIGKILL when the test process ends, however it ends (Linux)."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _kafka_properties(port: int, controller_port: int, data_dir: Path) -> dict[str, str]:
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data_dir),
        "group.initial.rebalance.delay.ms": "0",
        # After kill -9 a node may not register again before its old session is over (9 s).
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }
    for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        properties[f"{topic}.replication.factor"] = "1"
        properties[f"{topic}.num.partitions"] = "1"
    properties["transaction.state.log.min.isr"] = "1"
    properties["share.coordinator.state.topic.min.isr"] = "1"
    return properties


class Barnabas:
    """One Barnabas node through its public API; the same face as ApacheKafka."""

    kind = "barnabas"

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any] | None = None,
        data_dir: Path | None = None,
        port: int | None = None,
    ) -> None:
        import barnabas

        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.data_dir = Path(data_dir) if data_dir is not None else self.directory / "data"
        self.port = port or free_ports(1)[0]
        settings = {key: str(value) for key, value in (config or {}).items()}
        self._broker = barnabas.Broker(
            data_dir=self.data_dir, config=settings, listen=f"127.0.0.1:{self.port}"
        )

    @property
    def bootstrap_servers(self) -> str:
        return self._broker.bootstrap_servers

    @property
    def pid(self) -> int:
        pid = self._broker.pid
        if pid is None:
            raise BrokerDied("Barnabas is not running")
        return int(pid)

    def start(self) -> None:
        self._broker.start()

    def stop(self) -> None:
        self._broker.stop()

    def kill(self) -> None:
        self._broker.kill()

    def restart(self) -> None:
        self._broker.restart()

    def log_text(self) -> str:
        text = self._broker.log_text
        return str(text() if callable(text) else text)

    def __enter__(self) -> Barnabas:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.kill()


def await_answer(
    host: str,
    port: int,
    *,
    alive: Any = lambda: True,
    timeout_s: float = READY_TIMEOUT_S,
    connect: Connect = raw.connect,
) -> float:
    """Ask ApiVersions v0 until the broker answers; the seconds it took.

    An open port is not enough: the kernel accepts connections for a process that is not ready.
    Raises BrokerDied when `alive()` turns false or the time is up.
    """
    started = time.monotonic()
    body = struct.pack(">hhih", 18, 0, 1, 4) + b"wait"
    while time.monotonic() - started < timeout_s:
        if not alive():
            raise BrokerDied("the broker's process ended before it was ready")
        try:
            with connect(f"{host}:{port}", 1) as sock:
                sock.settimeout(5)
                sock.sendall(struct.pack(">i", len(body)) + body)
                if len(sock.recv(4)) == 4:
                    return time.monotonic() - started
        except (OSError, EOFError):
            pass
        time.sleep(0.02)
    raise BrokerDied(f"the broker gave no answer in {timeout_s} s")


def rss_bytes(pid: int) -> int:
    """Resident memory of a process (Linux)."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
