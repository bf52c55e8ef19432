"""Kafka Streams at work (CountWords.java): words go in, counts come out, and what they must be.

Streams commits what it read, what it wrote and what it knows (a changelog topic) in one transaction
and reads only what is stable, so a position or a count that comes apart from the others shows.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from testkit import jars
from testkit.brokers.nodes import die_with_parent
from testkit.compiled import java_program
from testkit.quick_jvm import KAFKA_JVM
from testkit.wait import eventually

APPLICATION = "count-words"
SOURCE, TARGET = "words", "counts"
INTERNAL = (f"{APPLICATION}-words-repartition", f"{APPLICATION}-counts-changelog")
SHORT_SESSIONS = {
    "group.streams.session.timeout.ms": 6_000,
    "group.streams.min.session.timeout.ms": 6_000,
}
"""A broker's, for the streams protocol: a killed application is missed after six seconds."""
_PARTITIONS = {SOURCE: 3, TARGET: 2}
_WORDS = [f"word{i}" for i in range(12)]
_JVM_OPTIONS = (
    "-Xmx192M", *KAFKA_JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip
_PROGRAM = Path(__file__).with_name("CountWords.java")


class CountingWords:
    """The application's lives, what it was told, and what it made of it.

    `start` again after `kill` is the next life; the state directory is lost with each, as on
    another machine. `start` while one lives is another instance beside it. Raises JarsUnavailable
    when there is no Java or no Kafka Streams.
    """

    def __init__(
        self, bootstrap: str, directory: Path, *, replicas: int, protocol: str = "classic"
    ) -> None:
        """`protocol`: classic, or streams (KIP-1071), where the broker gives out the tasks."""
        self._bootstrap, self._directory, self._protocol = bootstrap, directory, protocol
        self._program = java_program(_PROGRAM, jars.streams_class_path())
        self._apps: list[subprocess.Popen[bytes]] = []
        self._lives = self._said = 0
        admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
        admin.create_topics(
            {
                name: {"num_partitions": count, "replication_factor": replicas}
                for name, count in _PARTITIONS.items()
            },
            wait_for_metadata=True,
        )
        admin.close()
        self._counts = Counts(bootstrap)

    def __enter__(self) -> CountingWords:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.kill()
        self._counts.close()
        if kind is not None:
            print(self._log_tail())

    def start(self) -> None:
        self._lives += 1
        state = self._directory / f"state-{self._lives}"
        with (self._directory / f"streams-{self._lives}.log").open("wb") as log:
            app = subprocess.Popen(
                [
                    jars.java(), *_JVM_OPTIONS, *self._program,
                    self._bootstrap, APPLICATION, SOURCE, TARGET, str(state),
                    self._protocol,
                ],
                stdin=subprocess.PIPE, stdout=log, stderr=log, preexec_fn=die_with_parent,
            )  # fmt: skip
        self._apps.append(app)

    def kill(self) -> None:
        """All instances."""
        while self._apps:
            self.kill_eldest()

    def kill_eldest(self) -> None:
        """The instance that has lived longest, which has tasks."""
        app = self._apps.pop(0)
        app.kill()
        app.wait()
        assert app.stdin is not None
        app.stdin.close()

    def say(self, count: int) -> None:
        """That many more words."""
        producer = KafkaProducer(bootstrap_servers=self._bootstrap.split(","), acks="all")
        for number in range(self._said, self._said + count):
            producer.send(SOURCE, _word(number).encode(), partition=number % _PARTITIONS[SOURCE])
        producer.flush()
        producer.close()
        self._said += count

    def await_counts(self, count: int, timeout_s: float = 90) -> None:
        """Until that many counts are there for a read_committed reader."""
        eventually(
            lambda: self._counts.read() >= count,
            timeout_s=timeout_s, what=f"{count} counts of {self._said}",
        )  # fmt: skip

    def look_again(self) -> None:
        """Read the counts anew, from whatever broker there is now."""
        self._counts.close()
        self._counts = Counts(self._bootstrap)

    def await_all(self, timeout_s: float = 90) -> None:
        self.await_counts(self._said, timeout_s)

    def prove(self) -> None:
        """Each word was counted 1, 2, 3, ... as often as it was said, and no further."""
        self.await_all()
        whole = Counts(self._bootstrap)
        eventually(lambda: whole.read() >= self._said, what="everything from the start")
        whole.close()
        computed = Counter(_word(number) for number in range(self._said))
        told = {word: [n for found, n in whole.found if found == word] for word in _WORDS}
        assert told == {word: list(range(1, computed[word] + 1)) for word in _WORDS}

    def _log_tail(self) -> str:
        log = self._directory / f"streams-{self._lives}.log"
        return log.read_text("utf-8", "replace")[-2000:] if log.exists() else ""


class Counts:
    """What a read_committed reader finds in the target: (word, count) in the order of the log."""

    def __init__(self, bootstrap: str) -> None:
        self.found: list[tuple[str, int]] = []
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap.split(","), isolation_level="read_committed",
            auto_offset_reset="earliest", request_timeout_ms=10_000,
        )  # fmt: skip
        self._consumer.assign([TopicPartition(TARGET, i) for i in range(_PARTITIONS[TARGET])])

    def read(self) -> int:
        """How many there are by now."""
        for records in self._consumer.poll(timeout_ms=300).values():
            self.found += [(r.key.decode(), int(r.value)) for r in records]
        return len(self.found)

    def close(self) -> None:
        self._consumer.close()


def _word(number: int) -> str:
    return _WORDS[number * 7 % len(_WORDS)]
