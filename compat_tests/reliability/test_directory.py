"""The data directory and the process: one owner, clean stop, full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from testkit.clients.rdkafka import read, send_all
from testkit.require import require
from testkit.wait import eventually

MIB = 1 << 20


def values_of(bootstrap: str, topic: str) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False}
    )
    try:
        place = TopicPartition(topic, 0, 0)
        _, high = consumer.get_watermark_offsets(place, timeout=20)
        consumer.assign([place])
        return [message.value() for message in read(consumer, high)]
    finally:
        consumer.close()


def test_a_second_broker_on_the_directory_is_refused(fresh_broker: Any, topic_name: str) -> None:
    first = fresh_broker()
    producer = Producer({"bootstrap.servers": first.bootstrap_servers})
    send_all(producer, topic_name, [b"before"])
    second = fresh_broker(start=False, data_dir=first.data_dir)
    with pytest.raises(Exception):  # noqa: B017 - each broker has its own; it must not start
        second.start()
    send_all(producer, topic_name, [b"after"])
    assert values_of(first.bootstrap_servers, topic_name) == [b"before", b"after"]


def test_a_directory_of_another_node_is_refused_and_left_alone(
    fresh_broker: Any, topic_name: str
) -> None:
    own = fresh_broker()
    send_all(Producer({"bootstrap.servers": own.bootstrap_servers}), topic_name, [b"mine"])
    own.stop()
    other = fresh_broker({"node.id": 77}, start=False, data_dir=own.data_dir)
    with pytest.raises(Exception):  # noqa: B017 - see above
        other.start()
    own.start()
    assert values_of(own.bootstrap_servers, topic_name) == [b"mine"]


def test_sigterm_stops_cleanly(tmp_path: Path, in_kafka: bool, fresh_broker: Any) -> None:
    if in_kafka:
        own = fresh_broker()
        os.kill(own.pid, signal.SIGTERM)
        eventually(lambda: own.exit_code == 143, what="the JVM's exit code for SIGTERM")
        assert (own.data_dir / ".kafka_cleanshutdown").exists()
        return
    data_dir = tmp_path / "data"
    command = [sys.executable, "-m", "barnabas", "start", "--data-dir", str(data_dir),
               "--listen", "127.0.0.1:0"]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("barnabas ready: 127.0.0.1:"), line
        where = line.split()[2]
        send_all(Producer({"bootstrap.servers": where}), "kept", [b"1", b"2"])
        started = time.monotonic()
        process.terminate()
        process.communicate(timeout=20)
        assert process.returncode == 0
        assert time.monotonic() - started < 10
    assert (data_dir / ".kafka_cleanshutdown").exists()


def test_a_broker_dies_with_its_parent(in_kafka: bool, tmp_path: Path) -> None:
    if in_kafka:
        pytest.skip("Apache Kafka makes no such promise")
    program = (
        "import barnabas, sys, time\n"
        f"broker = barnabas.Broker(data_dir={str(tmp_path / 'data')!r})\n"
        "broker.start()\n"
        "print(broker.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        child = int(p.stdout.readline())
        assert psutil.pid_exists(child)
        p.kill()
        eventually(lambda: not psutil.pid_exists(child), timeout_s=10, what="the broker is gone")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 64 MiB."""
    place = tmp_path / "small-disk"
    place.mkdir()
    mounted = sys.platform == "linux" and (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)],
            capture_output=True, check=False,
        ).returncode == 0
    )  # fmt: skip
    require(mounted, "mounting a small tmpfs needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


@pytest.mark.slow
def test_a_full_disk_refuses_writes_serves_reads_and_recovers(
    small_disk: Path, fresh_broker: Any, topic_name: str, in_kafka: bool
) -> None:
    if in_kafka:
        pytest.skip("Apache Kafka halts when its only log directory fails")
    own = fresh_broker(data_dir=small_disk / "data")
    where = own.bootstrap_servers
    once = {"bootstrap.servers": where, "message.send.max.retries": 0, "linger.ms": 0,
            "message.timeout.ms": 10_000}  # fmt: skip
    acked: list[bytes] = []

    def produce(value: bytes) -> int:
        """0, or the error code of the one attempt."""
        codes: list[int] = []
        producer = produce.producer  # type: ignore[attr-defined]
        producer.produce(
            topic_name, value, on_delivery=lambda e, _: codes.append(e.code() if e else 0)
        )
        producer.flush(20)
        if codes == [0]:
            acked.append(value)
        return codes[0]

    produce.producer = Producer(once)  # type: ignore[attr-defined]
    assert produce(b"the first record") == 0
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\x00" * (20 * MIB))
    code = 0
    for number in range(200):
        code = produce(b"%06d" % number + os.urandom(400_000))
        if code:
            break
    assert code == KafkaError.KAFKA_STORAGE_ERROR
    assert values_of(where, topic_name) == acked
    assert produce(os.urandom(400_000)) in (
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    )
    ballast.unlink()
    eventually(
        lambda: produce(b"space again") == 0, timeout_s=40, every_s=0.5, what="writes resume"
    )
    assert values_of(where, topic_name) == acked
    own.stop()
    own.start()
    assert values_of(where, topic_name) == acked
