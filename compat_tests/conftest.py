"""Fixtures of the compatibility tests: a shared broker, topics, fresh brokers, fresh clusters.

`pytest compat_tests --broker barnabas` (default) or `--broker kafka` (Apache Kafka 4.3.1 from Maven
Central): the same tests, the same expectations. When a test fails, the end of the log of each
broker it used stands in its report.
"""

from __future__ import annotations

import gc
import os
import re
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testkit import jars
from testkit.brokers.clusters import CLUSTERS, ClusterOfNodes
from testkit.brokers.nodes import LOG_TAIL_BYTES, ApacheKafka, Barnabas, RunningBroker
from testkit.clients.java_tools import JavaTools
from testkit.quick_jvm import SPARK_JVM
from testkit.require import require

# pytest's own filters do not hold yet when it imports conftest files.
warnings.filterwarnings("ignore", "(open|read)_text is deprecated", DeprecationWarning)

# Spark's own variables for its launcher and for each driver that a test starts.
for _name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_name, " ".join(SPARK_JVM))

BROKERS_USED = pytest.StashKey[list[RunningBroker]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--broker",
        choices=["barnabas", "kafka"],
        default="barnabas",
        help="which broker the compatibility tests talk to (default: barnabas)",
    )


def pytest_configure(config: pytest.Config) -> None:
    # kafka-python forgets to close the sockets of attempts that were refused (a killed broker).
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def pytest_sessionfinish() -> None:
    # What was not collected by now is when pytest has let go of that filter: 633 tests passed, and
    # the run failed.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
        gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        for broker in _brokers_of(item):
            if isinstance(broker, ClusterOfNodes):
                log = broker.all_logs()
            else:
                log = broker.log_text()[-LOG_TAIL_BYTES:]
            report.sections.append((f"log of the {broker.kind} broker, {report.when}", log))
    return report


def _brokers_of(item: pytest.Item) -> list[RunningBroker | ClusterOfNodes]:
    used: list[RunningBroker | ClusterOfNodes] = list(item.stash.get(BROKERS_USED, []))
    shared = getattr(item, "funcargs", {}).get("broker")
    return [*used, shared] if shared is not None and shared not in used else used


@pytest.fixture(scope="session")
def broker_kind(request: pytest.FixtureRequest) -> str:
    """`barnabas` or `kafka`: for the few expectations that differ, each with its reason."""
    return str(request.config.getoption("--broker"))


@pytest.fixture(scope="session")
def java_tools() -> Iterator[JavaTools]:
    """Apache Kafka's command-line tools."""
    try:
        jars.libs()
    except jars.JarsUnavailable as missing:
        require(False, f"Apache Kafka's tools: {missing}")
    tools = JavaTools()
    yield tools
    tools.close()


@pytest.fixture(scope="session")
def make_broker(broker_kind: str) -> Callable[..., RunningBroker]:
    """Builds (does not start) the broker under test in a directory, with config overrides."""

    def make(
        directory: Path, config: dict[str, Any] | None = None, data_dir: Path | None = None
    ) -> RunningBroker:
        if broker_kind == "barnabas":
            return Barnabas(directory, config, data_dir=data_dir)
        try:
            jars.libs()
        except jars.JarsUnavailable as missing:
            require(False, f"Apache Kafka: {missing}")
        return ApacheKafka(directory, config, data_dir=data_dir)

    return make


@pytest.fixture(scope="session")
def broker(
    make_broker: Callable[..., RunningBroker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    """The shared broker: default settings, alive for the whole session. Never stop it in a test."""
    running = make_broker(tmp_path_factory.mktemp("shared-broker"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def fresh_broker(
    make_broker: Callable[..., RunningBroker], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., RunningBroker]]:
    """Starts brokers of this test's own: `fresh_broker({"num.partitions": 3})`; killed at its end.

    `start=False` only builds it; `data_dir` puts its data elsewhere (a small disk, for example).
    """
    brokers: list[RunningBroker] = []
    request.node.stash[BROKERS_USED] = brokers

    def start_one(
        config: dict[str, Any] | None = None, *, start: bool = True, data_dir: Path | None = None
    ) -> RunningBroker:
        fresh = make_broker(tmp_path / f"broker-{len(brokers)}", config, data_dir)
        brokers.append(fresh)
        if start:
            fresh.start()
        return fresh

    yield start_one
    for one in brokers:
        one.kill()


@pytest.fixture
def make_cluster(
    broker_kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., ClusterOfNodes]]:
    """Starts a cluster of this test's own (`start=False` only builds it); killed at its end.

    Takes what `clusters.ClusterOfNodes` takes.
    """
    if broker_kind == "kafka":
        try:
            jars.libs()
        except jars.JarsUnavailable as missing:
            require(False, f"Apache Kafka: {missing}")
    made: list[Any] = []
    request.node.stash[BROKERS_USED] = made

    def make(
        config: dict[str, Any] | None = None, *, start: bool = True, **options: Any
    ) -> ClusterOfNodes:
        cluster = CLUSTERS[broker_kind](tmp_path / f"cluster-{len(made)}", config, **options)
        made.append(cluster)
        if start:
            cluster.start()
        return cluster

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def bootstrap(broker: RunningBroker) -> str:
    """`host:port` of the shared broker."""
    return broker.bootstrap_servers


def unique(prefix: str) -> str:
    return f"{prefix[:80]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A legal topic name no other test uses; the topic does not exist yet."""
    return unique(re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name))


@pytest.fixture
def group_name(request: pytest.FixtureRequest) -> str:
    """A group id no other test uses."""
    return unique("group-" + re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name))
