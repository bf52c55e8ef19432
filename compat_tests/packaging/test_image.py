"""The Dockerfile, built by an engine, and the image at work.

`testkit/delivery/engine.py` says how, and what it cannot prove.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from testkit.brokers.port_map import PortMap
from testkit.clients import rdkafka
from testkit.delivery.engine import BASE, Container, Engine, first_process
from testkit.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "barnabas"
USER = 10001
# The address of the container in its network; a port map leads to it from 127.0.0.1.
INSIDE = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
# What `docker stop` waits before it kills.
STOP_TIMEOUT_S = 10
RECORDS = [b"record %d" % number for number in range(200)]
# What the image adds to its base. Half of it is zstandard; docs/deployment.md tells the size.
ADDED_BYTES_MAX = 60_000_000

# The base is made on a machine that has none yet.
pytestmark = pytest.mark.timeout(400)

Start = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine()
    try:
        engine.build(IMAGE, ROOT, (ROOT / "Dockerfile").read_text())
        yield engine
    finally:
        engine.close()


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    directory = tmp_path / "volume"
    directory.mkdir()
    return directory


@pytest.fixture
def container(engine: Engine, volume: Path) -> Container:
    """One container, its volume a directory that is given to the image's user."""
    return Container(engine, IMAGE, {volume: "/var/lib/barnabas:U"})


@pytest.fixture
def run() -> Iterator[Start]:
    """`docker run`: starts the container's command and gives its ready line, too."""
    processes: list[subprocess.Popen[str]] = []

    def start(
        container: Container, variables: Mapping[str, str], *arguments: str
    ) -> tuple[subprocess.Popen[str], str]:
        process = container.start(variables, *arguments)
        processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("barnabas ready: "), process.communicate(timeout=10)[1]
        return process, line

    yield start
    for process in processes:
        if process.poll() is None:
            first_process(process).kill()
        print(process.communicate()[1])  # shown when the test failed


def stop(process: subprocess.Popen[str], number: int) -> str:
    """`docker stop`; what the broker logged."""
    first_process(process).send_signal(number)
    _out, log = process.communicate(timeout=STOP_TIMEOUT_S)
    assert process.returncode == 0, log
    return log


def consume(bootstrap: str, topic: str, group: str = "first") -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        return sorted(message.value() for message in rdkafka.read(consumer, len(RECORDS)))
    finally:
        consumer.close()


def addresses(bootstrap: str) -> list[str]:
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10)
    return [f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()]


def partitions(bootstrap: str, topic: str) -> int:
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=10)
    return len(metadata.topics[topic].partitions)


def test_the_image_declares_what_its_documentation_says(engine: Engine) -> None:
    config = engine.config(IMAGE)
    assert config["User"] == f"{USER}:{USER}"
    assert config["ExposedPorts"] == {"9092/tcp": {}}
    assert config["Volumes"] == {"/var/lib/barnabas": {}}
    assert config["Entrypoint"][:2] == ["barnabas", "start"]
    assert config["Healthcheck"]["Test"][:3] == ["CMD", "barnabas", "health"]
    with engine.files(IMAGE) as root:
        defaults = (root / "opt/barnabas/image.properties").read_text()
        assert defaults == "listeners=PLAINTEXT://0.0.0.0:9092\nlog.dirs=/var/lib/barnabas\n"
        assert (root / "etc/barnabas/server.properties").read_text() == ""
        volume = root / "var/lib/barnabas"
        assert (volume.stat().st_uid, list(volume.iterdir())) == (USER, [])


def test_the_image_adds_the_wheel_and_its_dependencies_and_no_sources(engine: Engine) -> None:
    with engine.files(IMAGE) as root:
        (packages,) = (root / "opt/barnabas/lib").glob("python3*/site-packages")
        names = {path.name.partition("-")[0].lower() for path in packages.iterdir()}
        assert {"barnabas", "crc32c", "lz4", "zstandard", "xxhash"} <= names
        assert not names & {"pip", "server", "wire", "tests", "pytest", "hatchling", "pyspark"}
        assert not (root / "build").exists()
        added = set(listed(root))
        size = sum(path.lstat().st_size for path in (root / "opt/barnabas").rglob("*"))
    with engine.files(BASE) as root:
        added -= set(listed(root))
    # What buildah mounts leaves an empty file in its place.
    folders = {path.split("/")[0] for path in added} - {"run", "proc", "sys", "dev"}
    assert folders == {"opt", "etc", "var"}
    assert {path for path in added if path.startswith("var/")} == {"var/lib/barnabas"}
    assert size < ADDED_BYTES_MAX


def listed(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob("*")]


def test_the_build_context_is_the_wheels_sources_only(engine: Engine) -> None:
    engine.build("context", ROOT, "FROM scratch\nCOPY . /\n")
    with engine.files("context") as root:
        top = {path.name for path in root.iterdir()}
        packages = {"barnabas", "pipeline", "replication", "server", "storage", "wire"}
        assert top == {"LICENSE", "README.md", "pyproject.toml", *packages}
        assert not [path for path in listed(root) if "__pycache__" in path or "venv" in path]


def test_a_container_serves_through_a_port_map_stops_on_sigterm_and_keeps_its_data(
    engine: Engine, container: Container, run: Start, volume: Path, tmp_path: Path
) -> None:
    (inside,) = free_ports(1)
    variables = {
        "KAFKA_LISTENERS": f"PLAINTEXT://0.0.0.0:{inside}",
        "KAFKA_NUM_PARTITIONS": "3",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
        "CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw",
    }
    process, _line = run(container, variables)
    assert set(first_process(process).uids()) == {USER}
    is_healthy, line = container.health(variables)
    assert is_healthy, line
    assert "5L6g3nShT-eMCtK--X86sw" in line

    with PortMap(INSIDE, inside) as mapped:
        outside = f"127.0.0.1:{mapped.port}"
        # The client dialled 127.0.0.1, but what arrived at the broker is its own address: it tells
        # that one, which the engine's host can reach. See docs/deployment.md.
        assert addresses(outside) == [f"{INSIDE}:{inside}"]
        rdkafka.send_all(Producer({"bootstrap.servers": outside}), "kept", RECORDS)
        assert consume(outside, "kept") == sorted(RECORDS)
        assert partitions(outside, "kept") == 3

    log = stop(process, getattr(signal, engine.config(IMAGE)["StopSignal"]))
    assert "KAFKA_HEAP_OPTS is ignored" in log
    is_healthy, line = container.health(variables)
    assert not is_healthy
    assert "no healthy broker" in line
    assert container.files_of(USER) == ["var/lib/barnabas"]
    assert (volume / "meta.properties").stat().st_uid == USER

    # The next container: the same volume, a mounted server.properties below the environment.
    mounted = tmp_path / "server.properties"
    mounted.write_text("num.partitions=5\nlisteners=PLAINTEXT://:1\n")
    places = {volume: "/var/lib/barnabas:U", mounted: "/etc/barnabas/server.properties:ro"}
    second = Container(engine, IMAGE, places)
    del variables["KAFKA_NUM_PARTITIONS"]
    process, _line = run(second, variables)
    bootstrap = f"{INSIDE}:{inside}"
    assert second.health(variables)[0]
    rdkafka.send_all(Producer({"bootstrap.servers": bootstrap}), "new", [b"x"])
    assert partitions(bootstrap, "new") == 5
    assert consume(bootstrap, "kept", "second") == sorted(RECORDS)
    assert "clean=True" in stop(process, signal.SIGTERM)


def test_with_an_advertised_listener_every_byte_goes_through_the_port_map(
    container: Container, run: Start
) -> None:
    (inside,) = free_ports(1)
    with PortMap(INSIDE, inside) as mapped:
        outside = f"127.0.0.1:{mapped.port}"
        # All the variables that a container of apache/kafka is usually given.
        variables = {
            "KAFKA_NODE_ID": "1",
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_LISTENERS": f"PLAINTEXT://:{inside},CONTROLLER://:9093",
            "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://{outside}",
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
            "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
            "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
            "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
            "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
            "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        }
        run(container, variables)
        is_healthy, line = container.health(variables)
        assert is_healthy, line
        assert addresses(outside) == [outside]
        rdkafka.send_all(Producer({"bootstrap.servers": outside}), "advertised", RECORDS)
        assert consume(outside, "advertised") == sorted(RECORDS)
        assert mapped.bytes_in > sum(map(len, RECORDS))
        assert mapped.connections >= 3


def test_a_wrong_variable_ends_the_container_with_one_line_that_names_it(
    container: Container,
) -> None:
    process = container.start({"KAFKA_NUM_PARTITONS": "3"})
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    line, *_of_buildah = err.splitlines()
    assert "KAFKA_NUM_PARTITONS" in line
    assert "num.partitions" in line


def test_arguments_are_added_to_the_entry_point(container: Container, run: Start) -> None:
    arguments = ("--ephemeral", "--listen", "127.0.0.1:0", "--set", "num.partitions=2")
    process, line = run(container, {}, *arguments)
    ready = re.match(r"barnabas ready: (127\.0\.0\.1:\d+) .*barnabas-ephemeral-", line)
    assert ready is not None, line
    rdkafka.send_all(Producer({"bootstrap.servers": ready[1]}), "two", [b"x"])
    assert partitions(ready[1], "two") == 2
    stop(process, signal.SIGTERM)
