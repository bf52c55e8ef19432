"""Copiers, each in a process of its own: consume, produce, commit both.

A copier reads a topic in a group and writes what it read to the same partition of another, together
with its offsets in one transaction, some of which it aborts on purpose. Kafka's system tests kill
it and the brokers, and compare output with input. `JavaCopier` is Apache Kafka's own
TransactionalMessageCopier, `LibrdkafkaCopier` the same with librdkafka (`rdkafka_copier.py`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from testkit import jars
from testkit.brokers.clusters import SMALL_JVM
from testkit.brokers.nodes import die_with_parent

TRANSACTION_TIMEOUT_MS = 60_000
_STOP_S = 60


class Copier:
    """One copier; `start` again after `kill` or `stop` is its next incarnation."""

    def __init__(
        self, name: str, bootstrap: str, topics: tuple[str, str], directory: Path, *, group: str
    ) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._command = self.command(bootstrap, *topics, group)

    def command(self, bootstrap: str, source: str, target: str, group: str) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        """A new process, with the same transactional id."""
        assert not self.runs
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=die_with_parent,
            )  # fmt: skip

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_failed(self) -> bool:
        """It ended by itself, and not because nothing was left."""
        return self._process is not None and self._process.poll() not in (None, 0)

    def kill(self) -> None:
        """SIGKILL: its transaction stays open."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM: it ends what it does first; killed if it does not."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def log_text(self) -> str:
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""


class JavaCopier(Copier):
    """Raises jars.JarsUnavailable when Java or the jars cannot be had."""

    def command(self, bootstrap: str, source: str, target: str, group: str) -> list[str]:
        return [
            jars.java(), *SMALL_JVM, "-cp", jars.class_path(),
            "org.apache.kafka.tools.TransactionalMessageCopier",
            "--broker-list", bootstrap,
            "--input-topic", source, "--input-partition", "-1", "--output-topic", target,
            "--transactional-id", self.name, "--consumer-group", group,
            "--transaction-size", "200", "--transaction-timeout", str(TRANSACTION_TIMEOUT_MS),
            "--enable-random-aborts", "--group-mode", "--use-group-metadata",
        ]  # fmt: skip


class LibrdkafkaCopier(Copier):
    def command(self, bootstrap: str, source: str, target: str, group: str) -> list[str]:
        program = "testkit.workloads.rdkafka_copier"
        return [sys.executable, "-m", program, bootstrap, source, target, self.name, group]
