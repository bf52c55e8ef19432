"""kafka-python's command-line tools: `python -m kafka.admin`, `.producer` and `.consumer`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from testkit.clients.cli import heed_signals
from testkit.wait import eventually


@pytest.fixture
def kafka_admin(bootstrap: str) -> Any:
    """Runs one admin command and answers its JSON (or its text: `raw=True`)."""

    def run(*args: str, raw: bool = False) -> Any:
        output = "raw" if raw else "json"
        done = _run("kafka.admin", "-b", bootstrap, "--format", output, *args)
        assert done.returncode == 0, done.stdout + done.stderr
        if raw:  # kafka-python 3.0.12 cannot print ids and partitions as JSON
            return done.stdout
        return json.loads(done.stdout) if done.stdout.strip() else None

    return run


def _run(module: str, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *args],
        input=stdin, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_topics_and_partitions(kafka_admin: Any, topic_name: str) -> None:
    kafka_admin("topics", "create", "-t", topic_name, "--num-partitions", "2",
                "--replication-factor", "1")  # fmt: skip
    assert topic_name in kafka_admin("topics", "list")
    kafka_admin("partitions", "create", "-p", f"{topic_name}:4")
    described = eventually(lambda: kafka_admin("topics", "describe", "-t", topic_name))
    assert len(described[0]["partitions"]) == 4
    assert topic_name in kafka_admin("partitions", "describe", "-t", topic_name, raw=True)
    kafka_admin("partitions", "elect-leaders", "-p", f"{topic_name}:0", "--no-raise-errors")
    kafka_admin("topics", "delete", "-t", topic_name)
    eventually(lambda: topic_name not in kafka_admin("topics", "list"))


def test_configs(kafka_admin: Any, topic_name: str) -> None:
    kafka_admin("topics", "create", "-t", topic_name)
    where = ("-r", "topic", "-n", topic_name)
    kafka_admin("configs", "alter", *where, "-c", "retention.ms=4321")
    described = kafka_admin("configs", "describe", *where, "--modified")
    assert described["topic"][topic_name]["retention.ms"]["value"] == "4321"
    assert topic_name in str(kafka_admin("configs", "list", "-r", "topic"))
    kafka_admin("configs", "reset", *where, "-c", "retention.ms")
    described = kafka_admin("configs", "describe", *where, "--modified")
    assert "retention.ms" not in described["topic"][topic_name]


def test_cluster(kafka_admin: Any, bootstrap: str) -> None:
    cluster = kafka_admin("cluster", "describe")
    assert bootstrap.split(":")[1] == str(cluster["brokers"][0]["port"])
    assert "metadata.version" in str(kafka_admin("cluster", "describe-features"))
    assert kafka_admin("cluster", "describe-quorum")
    assert kafka_admin("cluster", "describe-log-dirs")[0]["log_dirs"]
    assert kafka_admin("cluster", "api-versions")
    assert kafka_admin("cluster", "broker-version", "--broker", str(_node(cluster)))


def _node(cluster: Any) -> int:
    return int(cluster["brokers"][0]["broker_id"])


def test_the_imitated_release_is_recognised(kafka_admin: Any) -> None:
    node = _node(kafka_admin("cluster", "describe"))
    version = kafka_admin("cluster", "broker-version", "--broker", str(node))
    assert "4" in str(version)
    assert "3" in str(version)


def test_produce_consume_and_group_offsets(
    kafka_admin: Any, bootstrap: str, topic_name: str, group_name: str
) -> None:
    sent = _run("kafka.producer", "-b", bootstrap, "-t", topic_name, stdin="one\ntwo\nthree\n")
    assert sent.returncode == 0, sent.stderr
    command = [sys.executable, "-W", "ignore", "-u", "-m", "kafka.consumer", "-b", bootstrap,
               "-t", topic_name, "-g", group_name, "-C", "auto_offset_reset=earliest",
               "-C", "auto_commit_interval_ms=200"]  # fmt: skip
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=heed_signals,
    ) as consumer:
        assert consumer.stdout is not None
        lines = [consumer.stdout.readline().strip() for _ in range(3)]
        eventually(
            lambda: "3" in str(kafka_admin("groups", "list-offsets", "-g", group_name)),
            what="the commit of offset 3",
        )
        consumer.send_signal(signal.SIGINT)
    assert [line.strip() for line in lines] == ["one", "two", "three"]
    assert group_name in str(kafka_admin("groups", "list"))
    one = f"{topic_name}:0"
    eventually(
        lambda: "Empty" in str(kafka_admin("groups", "describe", "-g", group_name)),
        timeout_s=60, what="the group is empty once the session of the killed member is over",
    )  # fmt: skip
    kafka_admin("groups", "reset-offsets", "-g", group_name, "-p", one, "-s", "earliest")
    kafka_admin("groups", "alter-offsets", "-g", group_name, "-o", f"{one}:2")
    assert "2" in str(kafka_admin("groups", "list-offsets", "-g", group_name))
    kafka_admin("groups", "delete-offsets", "-g", group_name, "-p", one)
    kafka_admin("groups", "delete", "-g", group_name)
    assert group_name not in str(kafka_admin("groups", "list"))


def test_offsets_and_records(kafka_admin: Any, bootstrap: str, topic_name: str) -> None:
    sent = _run("kafka.producer", "-b", bootstrap, "-t", topic_name, stdin="a\nb\nc\n")
    assert sent.returncode == 0, sent.stderr
    latest = str(kafka_admin("partitions", "list-offsets", "-p", f"{topic_name}:0:latest"))
    assert "3" in latest
    kafka_admin("partitions", "delete-records", "-r", f"{topic_name}:0:2", raw=True)
    earliest = str(kafka_admin("partitions", "list-offsets", "-p", f"{topic_name}:0:earliest"))
    assert "2" in earliest
