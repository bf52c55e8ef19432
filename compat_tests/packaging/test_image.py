"""The Dockerfile, performed step by step as an unprivileged user, and the image at work.

`testkit/delivery/image.py` says how, and what it cannot prove.
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
from testkit.delivery.image import BuildError, Ignore, Image, parse
from testkit.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
# The address of the container in its network; a port map leads to it from 127.0.0.1.
INSIDE = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
# What `docker stop` waits before it kills.
STOP_TIMEOUT_S = 10
RECORDS = [b"record %d" % number for number in range(200)]


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    built = Image((ROOT / "Dockerfile").read_text(), ROOT)
    try:
        built.build()
        yield built
    finally:
        built.remove()


@pytest.fixture
def run(image: Image) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`docker run`: starts the image with these variables and awaits its ready line."""
    processes: list[subprocess.Popen[str]] = []

    def start(variables: Mapping[str, str], *arguments: str) -> subprocess.Popen[str]:
        process = image.start(variables, *arguments)
        processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("barnabas ready: "), process.communicate(timeout=10)[1]
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
    image.empty_volumes()


def stop(process: subprocess.Popen[str], number: int) -> str:
    """`docker stop`; what the broker logged."""
    process.send_signal(number)
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


def test_the_image_declares_what_its_documentation_says(image: Image) -> None:
    final = image.final
    assert final.user.split(":")[0] not in ("0", "root")
    assert final.ports == [9092]
    assert final.volumes == ["/var/lib/barnabas"]
    defaults = image.in_root("/opt/barnabas/image.properties").read_text()
    volume = image.in_root("/var/lib/barnabas")
    assert defaults == f"listeners=PLAINTEXT://0.0.0.0:9092\nlog.dirs={volume}\n"
    assert list(volume.iterdir()) == []
    assert image.in_root("/etc/barnabas/server.properties").read_text() == ""


def test_the_image_holds_the_wheel_and_its_dependencies_and_no_sources(image: Image) -> None:
    (packages,) = image.in_root("/opt/barnabas/lib").glob("python3*/site-packages")
    names = {path.name.partition("-")[0].lower() for path in packages.iterdir()}
    assert {"barnabas", "crc32c", "lz4", "zstandard", "javaproperties"} <= names
    assert not names & {"pip", "server", "wire", "tests", "pytest", "hatchling", "pyspark"}
    assert list(image.in_root("/build").iterdir()) == []


def test_a_container_serves_through_a_port_map_stops_on_sigterm_and_keeps_its_data(
    image: Image, run: Callable[..., subprocess.Popen[str]]
) -> None:
    (inside,) = free_ports(1)
    variables = {
        "KAFKA_LISTENERS": f"PLAINTEXT://0.0.0.0:{inside}",
        "KAFKA_NUM_PARTITIONS": "3",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
        "CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw",
    }
    process = run(variables)
    if sys.platform == "linux":
        status = Path(f"/proc/{process.pid}/status").read_text()
        (uids,) = [line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")]
        assert set(uids) == {str(image.uid)}
        assert image.uid != 0
    is_healthy, line = image.is_healthy(variables)
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

    log = stop(process, getattr(signal, image.final.stop_signal))
    assert "KAFKA_HEAP_OPTS is ignored" in log
    is_healthy, line = image.is_healthy(variables)
    assert not is_healthy
    assert "no healthy broker" in line

    # The next container: the same volume, a mounted server.properties below the environment.
    mounted = image.in_root("/etc/barnabas/server.properties")
    mounted.chmod(0o644)
    mounted.write_text("num.partitions=5\nlisteners=PLAINTEXT://:1\n")
    try:
        del variables["KAFKA_NUM_PARTITIONS"]
        process = run(variables)
        bootstrap = f"{INSIDE}:{inside}"
        assert image.is_healthy(variables)[0]
        rdkafka.send_all(Producer({"bootstrap.servers": bootstrap}), "new", [b"x"])
        assert partitions(bootstrap, "new") == 5
        assert consume(bootstrap, "kept", "second") == sorted(RECORDS)
        log = stop(process, signal.SIGTERM)
    finally:
        mounted.write_text("")
    assert "clean=True" in log


def test_with_an_advertised_listener_every_byte_goes_through_the_port_map(
    image: Image,
    run: Callable[..., subprocess.Popen[str]],
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
        run(variables)
        is_healthy, line = image.is_healthy(variables)
        assert is_healthy, line
        assert addresses(outside) == [outside]
        rdkafka.send_all(Producer({"bootstrap.servers": outside}), "advertised", RECORDS)
        assert consume(outside, "advertised") == sorted(RECORDS)
        assert mapped.bytes_in > sum(map(len, RECORDS))
        assert mapped.connections >= 3


def test_a_wrong_variable_ends_the_container_with_one_line_that_names_it(image: Image) -> None:
    process = image.start({"KAFKA_NUM_PARTITONS": "3"})
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    (line,) = err.splitlines()
    assert "KAFKA_NUM_PARTITONS" in line
    assert "num.partitions" in line


def test_arguments_are_added_to_the_entry_point(image: Image) -> None:
    arguments = ("--ephemeral", "--listen", "127.0.0.1:0", "--set", "num.partitions=2")
    process = image.start({}, *arguments)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        ready = re.match(r"barnabas ready: (127\.0\.0\.1:\d+) .*barnabas-ephemeral-", line)
        assert ready is not None, line
        rdkafka.send_all(Producer({"bootstrap.servers": ready[1]}), "two", [b"x"])
        assert partitions(ready[1], "two") == 2
        stop(process, signal.SIGTERM)
    finally:
        process.kill()
        process.communicate()


# ---- the builder can fail


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("RUN false", "RUN false"),
        ("RUN touch /srv/here", "/srv is not a folder"),
        ("RUN touch ../../../outside", "RUN touch"),
        ("COPY nothing.txt /opt/", "nothing.txt is not there"),
        ("COPY Makefile /opt/", "left out by .dockerignore"),
        ("ENTRYPOINT barnabas start", "exec form"),
        ("ADD https://example.org/x /opt/x", "ADD: not known"),
        ("FROM alpine", "FROM alpine"),
    ],
)
def test_a_wrong_step_fails_the_build(image: Image, step: str, message: str) -> None:
    (instruction,) = parse(step)
    with pytest.raises(BuildError, match=message):
        image.perform(instruction)


def test_an_image_that_runs_as_root_is_refused() -> None:
    with pytest.raises(BuildError, match="USER"):
        Image("FROM python:3.11-slim\n", ROOT)


@pytest.mark.parametrize(
    ("path", "is_left_out"),
    [
        (".git/config", True),
        (".venv/bin/python", True),
        ("tests/conftest.py", True),
        ("server", False),
        ("server/handlers/data.py", False),
        ("server/handlers/__pycache__/data.cpython-311.pyc", True),
        ("README.md", False),
    ],
)
def test_the_build_context_is_the_wheels_sources_only(path: str, is_left_out: bool) -> None:
    assert Ignore((ROOT / ".dockerignore").read_text())(path) is is_left_out
