"""Kafka Streams with exactly_once_v2: what it counted is what was there, however often it dies.

Streams commits what it read, what it wrote and what it knows (a changelog topic) in one transaction
and reads only what is stable, so a position or a count that comes apart from the others shows.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from compat_tests.support import jars
from compat_tests.support.require import require
from compat_tests.support.wait import eventually

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

WORDS = [f"word{i}" for i in range(12)]
_JVM_OPTIONS = (
    "-Xmx192M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip
_PROGRAM = Path(jars.__file__).with_name("CountWords.java")


@pytest.fixture(scope="module")
def class_path() -> str:
    try:
        return jars.streams_class_path()
    except jars.JarsUnavailable as missing:
        require(False, f"Kafka Streams: {missing}")
        raise


@pytest.fixture
def start_counting(class_path: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """One life of the application in a process of its own: `start_counting(bootstrap, "a", "b")`.

    The state directory is lost with each life, as on another machine.
    """
    with ExitStack() as stack:
        lives = 0

        def start(bootstrap: str, source: str, target: str) -> subprocess.Popen[bytes]:
            nonlocal lives
            lives += 1
            state = tmp_path / f"state-{lives}"
            log = stack.enter_context((tmp_path / f"streams-{lives}.log").open("wb"))
            app = subprocess.Popen(
                [
                    jars.java(), *_JVM_OPTIONS, "-cp", class_path, str(_PROGRAM),
                    bootstrap, "count-words", source, target, str(state),
                ],
                stdin=subprocess.PIPE, stdout=log, stderr=log,
            )  # fmt: skip

            def end() -> None:
                app.kill()
                app.wait()
                assert app.stdin is not None
                app.stdin.close()

            stack.callback(end)
            return app

        yield start


class Counts:
    """What a read_committed reader finds in the target: (word, count) in the order of the log."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.found: list[tuple[str, int]] = []
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed",
            auto_offset_reset="earliest",
        )  # fmt: skip
        self._consumer.assign([TopicPartition(topic, i) for i in range(partitions)])

    def read(self) -> int:
        """How many there are by now."""
        for records in self._consumer.poll(timeout_ms=300).values():
            self.found += [(r.key.decode(), int(r.value)) for r in records]
        return len(self.found)

    def close(self) -> None:
        self._consumer.close()


def test_words_are_counted_once_through_deaths_of_application_and_broker(
    fresh_broker: Any, start_counting: Any
) -> None:
    broker = fresh_broker()
    bootstrap = broker.bootstrap_servers
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics(
        {
            "words": {"num_partitions": 3, "replication_factor": 1},
            "counts": {"num_partitions": 2, "replication_factor": 1},
        },
        wait_for_metadata=True,
    )
    admin.close()
    said = 0

    def say(count: int) -> None:
        nonlocal said
        producer = KafkaProducer(bootstrap_servers=bootstrap)
        for i in range(said, said + count):
            producer.send("words", WORDS[i * 7 % len(WORDS)].encode(), partition=i % 3)
        producer.flush()
        producer.close()
        said += count

    say(600)
    counts = Counts(bootstrap, "counts", 2)
    app = start_counting(bootstrap, "words", "counts")
    eventually(lambda: counts.read() >= 100, timeout_s=60, what="the first counts")
    app.kill()
    say(600)
    app = start_counting(bootstrap, "words", "counts")
    eventually(lambda: counts.read() >= 700, timeout_s=60, what="counts of the second life")
    say(600)
    broker.kill()
    broker.start()
    eventually(lambda: counts.read() >= 1_300, timeout_s=90, what="counts of the broker's second")
    app.kill()
    app = start_counting(bootstrap, "words", "counts")
    say(200)
    eventually(lambda: counts.read() >= said, timeout_s=60, what="everything is counted")
    counts.close()
    whole = Counts(bootstrap, "counts", 2)
    eventually(lambda: whole.read() >= said, what="everything from the start")
    whole.close()
    for word in WORDS:
        told = [count for found, count in whole.found if found == word]
        assert told == list(range(1, len(told) + 1)), f"{word} was counted twice, or not"
    assert len(whole.found) == said
