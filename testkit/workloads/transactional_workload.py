"""Transactional clients at work while something is done to the brokers, and the verdict on it.

    with TransactionalWorkload(cluster.bootstrap_servers, tmp_path, topic) as load:
        load.await_commits(5)                    # of every client, 5 more than now
        cluster.kill(...)
        ...
    report = load.finish()

What: clients of librdkafka and Apache Kafka's own (`transactional_client`), each of which polls and
sends within transactions; beside them two plain readers of everything, one of which is
read_uncommitted: a history with its eyes is the control of the checker (`seen_uncommitted`).
Each client has a process of its own. One that does not come back from a call within `HANG_S` is
killed, which the history names (`Hung`), and one that ends is followed by its next life: librdkafka
2.16 hangs now and then beside brokers that die, and the test goes on.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Producer

from testkit import jars
from testkit.brokers.clusters import SMALL_JVM
from testkit.brokers.nodes import die_with_parent
from testkit.checking.checker import Report, check
from testkit.checking.history import (
    OK,
    Fault,
    History,
    HistoryWriter,
    Hung,
    Send,
    Sent,
    now,
    value_of,
)
from testkit.compiled import java_program
from testkit.wait import eventually
from testkit.workloads.workload import ROOT, Child, create_topic, end_offsets

HANG_S = 40.0
"""Longer than whatever a client may wait for: a transaction's timeout, a new coordinator."""
LIBRDKAFKA, JAVA = "librdkafka", "java"
READERS = {"reader": "read_committed", "careless": "read_uncommitted"}
_JVM_OPTIONS = (*SMALL_JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
_JAVA_PROGRAM = Path(__file__).with_name("TransactionalClient.java")


class TransactionalWorkload:
    """`clients` says how many of each library; `isolation` is what they poll with."""

    def __init__(
        self,
        bootstrap: str,
        directory: Path,
        topic: str,
        *,
        clients: dict[str, int] | None = None,
        partitions: int = 4,
        replicas: int = 3,
        isolation: str = "read_committed",
    ) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._partitions, self._replicas, self._isolation = partitions, replicas, isolation
        self._directory = Path(directory) / "history"
        self._directory.mkdir(parents=True)
        self._own = HistoryWriter(self._directory / "test.jsonl")
        counts = clients or {LIBRDKAFKA: 2, JAVA: 2}
        self._clients = [
            _Client(f"{library}{index}", self._command(library), self._directory)
            for library, count in counts.items()
            for index in range(count)
        ]
        self._readers: list[Child] = []
        self._is_over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> TransactionalWorkload:
        create_topic(self._bootstrap, self._topic, self._partitions, self._replicas)
        for who, isolation in READERS.items():
            reader = {
                "kind": "confluent-consumer", "who": who, "group": "",
                "config": {"isolation.level": isolation},
            }  # fmt: skip
            task = {
                "bootstrap": self._bootstrap, "topic": self._topic, "clients": [reader],
                "partitions": self._partitions, "history": str(self._directory / f"{who}.jsonl"),
            }  # fmt: skip
            self._readers.append(Child(task, self._directory / f"{who}.log"))
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._keeper.join(60)
        for client in self._clients:
            client.kill()
        for reader in self._readers:
            reader.kill()
        self._own.close()

    def _command(self, library: str) -> list[str]:
        if library == JAVA:
            return [
                jars.java(), *_JVM_OPTIONS, *java_program(_JAVA_PROGRAM, jars.class_path()),
            ]  # fmt: skip
        return [sys.executable, "-m", "testkit.workloads.transactional_client"]

    def _keep(self) -> None:
        """Clients start and die with this thread; those that end or hang are followed by others."""
        while not self._is_over.wait(0.1):
            for client in self._clients:
                if not client.runs:
                    client.start(
                        self._bootstrap, self._topic, str(self._partitions), self._isolation
                    )
                elif client.silent_s > HANG_S:
                    client.kill()
                    self._own.add(Hung(now(), client.who, client.call))
        for client in self._clients:
            client.stop()

    # ---- while it runs

    def __repr__(self) -> str:
        return ", ".join(f"{client.who}: {client.ended} ended" for client in self._clients)

    def fault(self, what: str) -> None:
        """Write down what was done to the brokers."""
        self._own.add(Fault(now(), "test", what))
        self._own.flush()

    def await_commits(self, more: int, timeout_s: float = 120.0) -> None:
        """Until every client has ended that many more transactions than now: none is stuck."""
        wanted = {client.name: client.ended + more for client in self._clients}
        eventually(
            lambda: all(client.ended >= wanted[client.name] for client in self._clients),
            timeout_s=timeout_s,
            what=f"every client goes on: {[client.said() for client in self._clients]}",
        )

    # ---- the end

    def finish(self) -> Report:
        """Stop the clients, let the readers read to the end, and check what all but one saw.

        The last record of each partition is a plain one: behind it lies no marker, so its reader
        has read everything, and it can be read only when nothing is open any more.
        """
        self._is_over.set()
        self._keeper.join(HANG_S * 2)
        assert not self._keeper.is_alive(), [client.said() for client in self._clients]
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        for partition in range(self._partitions):
            self._own.add(Send(now(), "last", partition, partition))
            self._own.add(Sent(now(), "last", partition, OK, None))
            producer.produce(self._topic, value_of("last", partition), partition=partition)
        assert producer.flush(60) == 0
        self._own.flush()
        ends = end_offsets(self._bootstrap, self._topic, self._partitions)
        for reader in self._readers:
            reader.tell(["drain", ends])
        for reader in self._readers:
            reader.await_end()
        return check(self.history(), drained=["reader"])

    def history(self, *, careless: bool = False) -> History:
        """What everybody saw, without the read_uncommitted reader or with it."""
        paths = sorted(self._directory.glob("*.jsonl"))
        return History([path for path in paths if careless or path.stem != "careless"])

    def seen_uncommitted(self) -> Report:
        """The control: the same history with the read_uncommitted reader in it."""
        return check(self.history(careless=True), drained=["reader"])


class _Client:
    """The lives of one client, each a process with a history of its own."""

    def __init__(self, name: str, command: list[str], directory: Path) -> None:
        self.name, self.call, self.ended = name, "", 0
        self._command, self._directory = command, directory
        self._lives = 0
        self._heard_at = 0.0
        self._process: subprocess.Popen[str] | None = None

    @property
    def who(self) -> str:
        return f"{self.name}/{self._lives}"

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._heard_at

    def said(self) -> str:
        log = self._log.read_text("utf-8", "replace")[-500:] if self._log.exists() else ""
        return f"{self.who}: {self.ended} ended, in {self.call} for {self.silent_s:.0f} s {log}"

    @property
    def _log(self) -> Path:
        return self._directory / f"{self.name}.log"

    def start(self, bootstrap: str, topic: str, partitions: str, isolation: str) -> None:
        self._close()
        self._lives += 1
        self._heard_at = time.monotonic()
        self.call = "start"
        history = self._directory / f"{self.name}-{self._lives}.jsonl"
        arguments = [bootstrap, topic, partitions, self.who, isolation, str(history)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, text=True, cwd=ROOT, preexec_fn=die_with_parent,
            )  # fmt: skip
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.call, self._heard_at = line.strip(), time.monotonic()
            self.ended += self.call == "ended"
        process.stdout.close()

    def stop(self) -> None:
        """It ends its transaction first; killed if it does not."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(HANG_S / 4)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close()

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
