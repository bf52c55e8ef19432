"""Connect's exactly-once source: every line of a file once in the topic, whoever dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from compat_tests.support import jars
from compat_tests.support.connect import ConnectWorker
from compat_tests.support.require import require
from compat_tests.support.wait import eventually
from compat_tests.support.workload import create_topic

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "lines"
LINES = 1000
"""In each part of the file; a transaction holds at most `BATCH` of them."""
BATCH = 20


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
    written: list[str] = []

    def write() -> None:
        part = [f"line {number}" for number in range(len(written), len(written) + LINES)]
        written.extend(part)
        with source.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in part)

    write()
    config = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "file": str(source), "topic": TOPIC, "tasks.max": 1, "batch.size": BATCH,
        "exactly.once.support": "required", "transaction.boundary": "poll",
        "producer.override.transaction.timeout.ms": 10_000,
    }  # fmt: skip
    reader = lines(broker.bootstrap_servers)

    def await_lines(count: int) -> None:
        def are_there() -> bool:
            worker.restart_raced("file")
            return reader.count() >= count

        eventually(are_there, timeout_s=90, every_s=0.01, what=f"{count} lines")

    with ConnectWorker(broker.bootstrap_servers, tmp_path) as worker:
        worker.start()
        worker.connect("file", config)
        await_lines(BATCH)
        worker.kill()
        write()
        worker.start()
        await_lines(LINES + BATCH)
        broker.kill()
        write()
        broker.start()
        await_lines(2 * LINES + BATCH)
        write()  # the connector holds back the last lines of a file that rests
        await_lines(3 * LINES)
        worker.kill()
        whole = lines(broker.bootstrap_servers)
        eventually(lambda: whole.count() >= 3 * LINES, what="everything from the start")
        assert whole.found == written[: len(whole.found)]
