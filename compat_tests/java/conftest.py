"""Apache Kafka's command-line tools for the tests of this folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from testkit import jars
from testkit.brokers.nodes import ApacheKafka, Barnabas, RunningBroker
from testkit.clients.java_tools import Finished, JavaTools
from testkit.ports import free_ports
from testkit.require import require


@pytest.fixture
def hands_of(tmp_path: Path) -> Iterator[Callable[..., dict[str, RunningBroker]]]:
    """`hands_of(config)`: a node of each kind by its name, not started, over one data directory.

    One address, too, as when a machine's program is changed. How a client finds a node that comes
    back elsewhere is the client's affair (librdkafka may take longer than a member's session).
    """
    made: list[RunningBroker] = []

    def make(config: Mapping[str, Any]) -> dict[str, RunningBroker]:
        try:
            jars.libs()
        except jars.JarsUnavailable as missing:
            require(False, f"Apache Kafka: {missing}")
        where = {"data_dir": tmp_path / "data", "port": free_ports(1)[0]}
        made.append(ApacheKafka(tmp_path / "kafka", config, **where))
        made.append(Barnabas(tmp_path / "barnabas", config, **where))
        return {broker.kind: broker for broker in made}

    yield make
    for broker in made:
        broker.kill()


@pytest.fixture
def tool(java_tools: JavaTools, bootstrap: str) -> Callable[..., Finished]:
    """`tool("TopicCommand", "--list")`: one command against the shared broker."""

    def run(name: str, *args: str, stdin: str = "", timeout_s: float = 45.0) -> Finished:
        where = ("--bootstrap-server", bootstrap)
        return java_tools.run(name, *where, *args, stdin=stdin, timeout_s=timeout_s)

    return run


@pytest.fixture
def produce(tool: Callable[..., Finished]) -> Callable[..., None]:
    """`produce(topic, "a", "b")`: the console producer, one record a line."""

    def send(topic: str, *values: str, args: tuple[str, ...] = ()) -> None:
        lines = "".join(f"{value}\n" for value in values)
        finished = tool("ConsoleProducer", "--topic", topic, *args, stdin=lines)
        assert "ERROR" not in finished.ok() + finished.err

    return send


@pytest.fixture
def consume(tool: Callable[..., Finished]) -> Callable[..., list[str]]:
    """`consume(topic, 3)`: the console consumer from the beginning, one line a record."""

    def receive(topic: str, count: int, *args: str) -> list[str]:
        finished = tool(
            "ConsoleConsumer", "--topic", topic, "--from-beginning",
            "--max-messages", str(count), "--timeout-ms", "20000", *args,
        )  # fmt: skip
        lines = finished.ok().splitlines()
        assert f"Processed a total of {count} messages" in finished.err, finished.text
        return lines

    return receive


# ---- groups of consumers


@pytest.fixture
def groups(tool: Callable[..., Finished]) -> Callable[..., Finished]:
    """`groups("--list")`: kafka-consumer-groups."""
    return partial(tool, "ConsumerGroupCommand")


@pytest.fixture
def group_protocol() -> tuple[str, ...]:
    """What tells a console consumer its group's protocol; modules override it."""
    return ()


@pytest.fixture
def consumed(
    produce: Callable[..., None],
    consume: Callable[..., list[str]],
    topic_name: str,
    group_name: str,
    group_protocol: tuple[str, ...],
) -> tuple[str, str]:
    """(topic, group): ten records, all consumed and committed by a group that is empty now."""
    values = [f"value-{i}" for i in range(10)]
    produce(topic_name, *values)
    assert consume(topic_name, 10, "--group", group_name, *group_protocol) == values
    return topic_name, group_name


@pytest.fixture
def staying(
    bootstrap: str, group_protocol: tuple[str, ...]
) -> Callable[..., AbstractContextManager[None]]:
    """`with staying(group, "--topic", topic)`: a console consumer that stays until two records
    came, in a JVM of its own."""

    @contextmanager
    def stay(group: str, *args: str) -> Iterator[None]:
        other = JavaTools()
        command = (
            "ConsoleConsumer", "--bootstrap-server", bootstrap, "--from-beginning",
            "--group", group, "--max-messages", "2", *group_protocol, *args,
        )  # fmt: skip
        thread = threading.Thread(target=partial(other.run, *command, timeout_s=100))
        thread.start()
        try:
            yield
        finally:
            thread.join(60)
            other.close()

    return stay
