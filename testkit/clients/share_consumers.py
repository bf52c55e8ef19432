"""Members of share groups: Apache Kafka's own KafkaShareConsumer, many in one JVM, driven from
Python step by step (ShareConsumers.java)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, NamedTuple, Self

from testkit import jars
from testkit.compiled import java_program
from testkit.quick_jvm import KAFKA_JVM

_JVM_OPTIONS = (
    "-Xmx256M", *KAFKA_JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
)  # fmt: skip


class Received(NamedTuple):
    """A record as a member got it."""

    partition: int
    offset: int
    delivery_count: int
    value: str


class ShareClientError(Exception):
    """What a client threw: class and text."""


class ShareMember:
    """One KafkaShareConsumer."""

    def __init__(self, consumers: ShareConsumers, name: str) -> None:
        self._consumers = consumers
        self.name = name

    def poll(self, wait_s: float = 1.0) -> list[Received]:
        """Raises ShareClientError, as everything here."""
        words = self._ask("poll", int(wait_s * 1_000)).split("\t")
        return [
            Received(int(partition), int(offset), int(count), value)
            for partition, offset, count, value in zip(*[iter(words)] * 4, strict=False)
        ]

    def ack(self, record: Received, kind: str = "ACCEPT") -> None:
        """Say what became of a record; sent with the next poll or commit."""
        self._ask("ack", record.partition, record.offset, kind)

    def commit(self) -> dict[int, str]:
        """Send what was said; how it went, partition by partition: "ok" or an exception."""
        told = [one.split("=") for one in self._ask("commit").split()]
        return {int(partition): outcome for partition, outcome in told}

    def close(self) -> None:
        """Leave the group."""
        self._ask("close")

    def _ask(self, what: str, *words: object) -> str:
        return self._consumers.ask(what, self.name, *words)


class ShareConsumers:
    """The JVM; `close` it, which kills its members: they do not say goodbye."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._count = 0
        self._jvm = subprocess.Popen(
            [
                jars.java(), *_JVM_OPTIONS,
                *java_program(Path(__file__).with_name("ShareConsumers.java"), jars.class_path()),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, bufsize=1,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def member(self, topic: str, group: str, **config: Any) -> ShareMember:
        """A new member; `_` in names of its configuration are `.`; it joins with its first poll."""
        self._count += 1
        member = ShareMember(self, f"m{self._count}")
        own = {
            "bootstrap.servers": self._bootstrap,
            "group.id": group,
            "client.id": member.name,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        self.ask("new", member.name, topic, *(f"{key}={value}" for key, value in own.items()))
        return member

    def ask(self, *words: object) -> str:
        """One line to the JVM, one from it."""
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        self._jvm.stdin.write(" ".join(map(str, words)) + "\n")
        answer = self._jvm.stdout.readline()
        if not answer or answer.startswith("!"):
            raise ShareClientError(answer[1:].strip() or "the JVM ended")
        return answer.rstrip("\n")

    def close(self) -> None:
        self._jvm.kill()
        self._jvm.communicate()
