"""Connect's exactly-once source: every line of a file once in the topic, whoever dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from testkit import jars
from testkit.require import require
from testkit.wait import eventually
from testkit.workloads.connect import ConnectWorker
from testkit.workloads.workload import create_topic

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "lines"
MORE = 200
"""Lines in each life of worker and broker before something is killed."""


class Writing(threading.Thread):
    """Writes a numbered line into the file after the other, until it is stopped.

    FileStreamSource leaves what it has read beyond its batch.size where it is until the file grows:
    the batch is larger than what is there at any time, and the file rests only in the end.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(daemon=True)
        self.lines: list[str] = []
        self._file = file
        self._is_over = threading.Event()

    def run(self) -> None:
        with self._file.open("a", encoding="utf-8", buffering=1) as file:
            while not self._is_over.wait(0.005):
                self.lines.append(f"line {len(self.lines)}")
                file.write(self.lines[-1] + "\n")

    def stop(self) -> None:
        self._is_over.set()
        self.join()


class Lines:
    """What a read_committed reader finds in the topic, in order."""

    def __init__(self, bootstrap: str) -> None:
        self.found: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0,
                "isolation.level": "read_committed", "reconnect.backoff.max.ms": 500,
            }
        )  # fmt: skip
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def count(self) -> int:
        for message in self._consumer.consume(500, 0.2):
            if message.error() is None:
                self.found.append(message.value().decode())
        return len(self.found)

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def lines() -> Iterator[Callable[[str], Lines]]:
    made: list[Lines] = []

    def read(bootstrap: str) -> Lines:
        made.append(Lines(bootstrap))
        return made[-1]

    yield read
    for each in made:
        each.close()


def test_every_line_is_there_once_though_worker_and_broker_are_killed(
    fresh_broker: Any, tmp_path: Path, lines: Callable[[str], Lines]
) -> None:
    try:
        jars.connect_class_path()
    except jars.JarsUnavailable as missing:
        require(False, f"Kafka Connect: {missing}")
    broker, source = fresh_broker(), tmp_path / "source.txt"
    create_topic(broker.bootstrap_servers, TOPIC, 1, 1)
    reader, writing = lines(broker.bootstrap_servers), Writing(source)
    config = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "file": str(source), "topic": TOPIC, "tasks.max": 1, "batch.size": 100_000,
        "exactly.once.support": "required", "transaction.boundary": "poll",
        "producer.override.transaction.timeout.ms": 10_000,
    }  # fmt: skip

    def await_lines(count: int) -> None:
        eventually(
            lambda: reader.count() >= count, timeout_s=90, every_s=0.01, what=f"{count} lines"
        )

    with ConnectWorker(broker.bootstrap_servers, tmp_path) as worker:
        writing.start()
        worker.start()
        worker.connect("file", config)
        await_lines(MORE)
        worker.kill()
        worker.start()
        await_lines(len(writing.lines) + MORE)
        broker.kill()
        broker.start()
        await_lines(len(writing.lines) + MORE)
        writing.stop()
        await_lines(len(writing.lines))
    whole = lines(broker.bootstrap_servers)
    eventually(lambda: whole.count() >= len(writing.lines), what="everything from the start")
    whole.count()
    assert whole.found == writing.lines
