"""Apache Kafka's command-line tools for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from testkit import jars
from testkit.brokers.nodes import ApacheKafka, Barnabas, RunningBroker
from testkit.clients.java_tools import Finished, JavaTools
from testkit.require import require


@pytest.fixture(scope="session")
def java_tools() -> Iterator[JavaTools]:
    try:
        jars.libs()
    except jars.JarsUnavailable as missing:
        require(False, f"Apache Kafka's tools: {missing}")
    tools = JavaTools()
    yield tools
    tools.close()


@pytest.fixture
def hands_of(tmp_path: Path) -> Iterator[Callable[..., dict[str, RunningBroker]]]:
    """`hands_of(config)`: a node of each kind by its name, not started, over one data directory."""
    made: list[RunningBroker] = []

    def make(config: Mapping[str, Any]) -> dict[str, RunningBroker]:
        try:
            jars.libs()
        except jars.JarsUnavailable as missing:
            require(False, f"Apache Kafka: {missing}")
        data_dir = tmp_path / "data"
        made.append(ApacheKafka(tmp_path / "kafka", config, data_dir=data_dir))
        made.append(Barnabas(tmp_path / "barnabas", config, data_dir=data_dir))
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
