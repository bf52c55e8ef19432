"""`barnabas.Cluster` and its pytest fixture, as a test author uses them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

import barnabas
from testkit.clients.cli import run
from testkit.wait import eventually

QUICK = {
    "broker.session.timeout.ms": 1500,
    "broker.heartbeat.interval.ms": 200,
    "replica.lag.time.max.ms": 2000,
    "num.partitions": 3,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[barnabas.Cluster]:
    with barnabas.Cluster(config=QUICK) as running:
        yield running


@pytest.fixture(autouse=True)
def all_is_well_at_the_end(cluster: barnabas.Cluster) -> Iterator[None]:
    yield
    cluster.heal()
    for node in cluster.nodes:
        cluster.resume(node)
        if cluster.pid(node) is None:
            cluster.start_node(node)
    eventually(lambda: is_whole(cluster, *cluster.nodes), timeout_s=60)


def is_whole(cluster: barnabas.Cluster, *nodes: int) -> bool:
    """Do these nodes say that nobody and nothing is missing."""
    return all(
        run("cluster", "status", "--bootstrap", cluster.address(node)).returncode == 0
        for node in nodes
    )


def produce(cluster: barnabas.Cluster, topic: str, *values: bytes, at: int = 0) -> None:
    """`at`: the node to begin with; a client that begins with one that is paused waits for it."""
    servers = cluster.address(at) if at else cluster.bootstrap_servers
    producer = KafkaProducer(bootstrap_servers=servers.split(","), acks="all")
    for number, value in enumerate(values):
        producer.send(topic, value, partition=number % 3).get(40)
    producer.close()


def consume(cluster: barnabas.Cluster, topic: str, count: int) -> set[bytes]:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers.split(","),
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
    )
    values = {next(consumer).value for _ in range(count)}
    consumer.close()
    return values


def replicas(cluster: barnabas.Cluster, topic: str) -> int:
    """How many replicas of the topic's partitions lie in the nodes' directories."""
    return sum(len(list(cluster.node_dir(n).glob(f"data/{topic}-*"))) for n in cluster.nodes)


def test_a_topic_has_three_replicas(cluster: barnabas.Cluster) -> None:
    produce(cluster, "replicated", b"a", b"b", b"c")
    assert replicas(cluster, "replicated") == 9
    assert consume(cluster, "replicated", 3) == {b"a", b"b", b"c"}


def test_each_nodes_death_loses_nothing(cluster: barnabas.Cluster) -> None:
    produce(cluster, "killed", b"0", b"1", b"2")
    expected = {b"0", b"1", b"2"}
    for node in cluster.nodes:
        cluster.kill(node)
        assert cluster.pid(node) is None
        values = [b"%d-%d" % (node, number) for number in range(3)]
        produce(cluster, "killed", *values)
        expected |= set(values)
        assert consume(cluster, "killed", len(expected)) == expected
        cluster.restart(node)
        eventually(lambda: is_whole(cluster, *cluster.nodes), timeout_s=60)


def test_a_paused_node_is_fenced_and_comes_back(cluster: barnabas.Cluster) -> None:
    produce(cluster, "paused", b"0", b"1", b"2")
    cluster.pause(2)
    eventually(
        lambda: (
            "2 of 3 brokers alive"
            in run("cluster", "status", "--bootstrap", cluster.address(1)).stdout
        ),
        timeout_s=30,
    )
    produce(cluster, "paused", b"3", b"4", b"5", at=1)
    cluster.resume(2)
    assert consume(cluster, "paused", 6) == {b"%d" % n for n in range(6)}


def test_an_isolated_node_rejoins_when_the_links_heal(cluster: barnabas.Cluster) -> None:
    produce(cluster, "cut", b"0", b"1", b"2")
    cluster.isolate(3)
    eventually(
        lambda: (
            "2 of 3 brokers alive"
            in run("cluster", "status", "--bootstrap", cluster.address(1)).stdout
        ),
        timeout_s=30,
    )
    cluster.heal()
    eventually(lambda: is_whole(cluster, 1, 2, 3), timeout_s=60)
    produce(cluster, "cut", b"3", b"4", b"5")
    assert consume(cluster, "cut", 6) == {b"%d" % n for n in range(6)}


def test_slow_links_make_an_acknowledgement_of_all_late(cluster: barnabas.Cluster) -> None:
    produce(cluster, "slow", b"0")  # and the topic is there
    began = time.monotonic()
    produce(cluster, "slow", b"1")
    quick_s = time.monotonic() - began
    for node, other in ((1, 2), (1, 3), (2, 3)):
        cluster.slow(node, other, 400)
    try:
        began = time.monotonic()
        produce(cluster, "slow", b"2")
        assert time.monotonic() - began > max(0.4, quick_s)
    finally:
        cluster.heal()
    eventually(lambda: is_whole(cluster, 1, 2, 3), timeout_s=60)
    with pytest.raises(ValueError, match="0 or more"):
        cluster.slow(1, 2, -1)


def test_a_killed_parent_leaves_no_files(tmp_path: Path) -> None:
    program = "import barnabas, time\nc = barnabas.Cluster().start()\n"
    program += "print(c.data_dir, flush=True)\ntime.sleep(60)\n"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout is not None
        assert Path(parent.stdout.readline().strip()).is_dir()
        parent.kill()
    eventually(lambda: list(tmp_path.iterdir()) == [], timeout_s=30)


def test_mistakes_are_named(cluster: barnabas.Cluster) -> None:
    with pytest.raises(ValueError, match="expected 1 to 3"):
        cluster.kill(4)
    with pytest.raises(barnabas.BrokerError, match="runs already"):
        cluster.start_node(1)
    with pytest.raises(ValueError, match="at least 1"):
        barnabas.Cluster(nodes=0)
    with pytest.raises(ValueError, match="config listeners: a cluster sets this for each"):
        barnabas.Cluster(config={"listeners": "PLAINTEXT://127.0.0.1:9092"})
    with pytest.raises(barnabas.BrokerError, match="was not started"):
        _ = barnabas.Cluster().bootstrap_servers


def test_a_cluster_is_found_again_in_its_directory_and_stops_in_seconds(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data_dir": tmp_path / "c", "proxied": False, "stop_timeout_s": 20.0}
    first = barnabas.Cluster(config=QUICK, **options)
    with first:
        produce(first, "kept", b"a", b"b", b"c")
        servers, cluster_id = first.bootstrap_servers, first.cluster_id
        with pytest.raises(barnabas.BrokerError, match="proxied=False"):
            first.partition(1, 2)
    again = barnabas.Cluster(config=QUICK, **options)
    with again:
        assert (again.bootstrap_servers, again.cluster_id) == (servers, cluster_id)
        assert consume(again, "kept", 3) == {b"a", b"b", b"c"}
    for node in (1, 2, 3):
        assert again.log_text(node).count("broker stopped") == 2
    with pytest.raises(barnabas.BrokerError, match="of a cluster of 3 nodes"):
        barnabas.Cluster(nodes=5, data_dir=tmp_path / "c").start()


def test_after_a_kill_too_a_cluster_stops_at_once_and_cleanly(tmp_path: Path) -> None:
    """0.4 s on a machine that does nothing else. It took the killed broker's session, nine seconds:
    controlled shutdown waits until all brokers know the new leaders.
    """
    cluster = barnabas.Cluster(data_dir=tmp_path / "c", config={"num.partitions": 3})
    with cluster:
        produce(cluster, "kept", b"a", b"b", b"c")
        cluster.kill(2)
        began = time.monotonic()
    assert time.monotonic() - began < 4
    for node in (1, 3):
        assert (cluster.node_dir(node) / "data" / ".kafka_cleanshutdown").exists()
        assert "broker stopped" in cluster.log_text(node)
    with cluster:
        assert consume(cluster, "kept", 3) == {b"a", b"b", b"c"}


def test_an_idle_cluster_stops_at_once() -> None:
    """The quorum's last leader waited two seconds for a successor, half the time."""
    took_s = []
    for _ in range(4):
        cluster = barnabas.Cluster().start()
        began = time.monotonic()
        cluster.stop()
        took_s.append(time.monotonic() - began)
    assert sum(took_s) < 5, took_s


def test_nodes_beyond_the_third_are_brokers_only() -> None:
    with barnabas.Cluster(nodes=4, proxied=False, config=QUICK) as four:
        status = run("cluster", "status", "--bootstrap", four.address(4))
        assert "4 of 4 brokers alive" in status.stdout
        assert status.stdout.count(" observer ") == 1
        produce(four, "four", b"a", b"b", b"c")
        assert consume(four, "four", 3) == {b"a", b"b", b"c"}


def test_a_failed_start_says_which_node_and_why() -> None:
    with pytest.raises(barnabas.BrokerError, match=r"num\.partitions"):
        barnabas.Cluster(config={"num.partitions": 0}).start()


def test_the_pytest_fixture_works_with_nothing_imported(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import pytest\n"
        "def test_one(barnabas_cluster):\n"
        "    assert len(barnabas_cluster.bootstrap_servers.split(',')) == 3\n"
        "    barnabas_cluster.kill(1)\n"
        "    barnabas_cluster.restart(1)\n"
        "@pytest.mark.barnabas_config({'num.partitions': 'x'})\n"
        "def test_mistaken(barnabas_cluster): pass\n"
        "@pytest.mark.barnabas_config(num_partitions=4)\n"
        "def test_mark(barnabas_cluster): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    mistake = (
        "node 1 cannot be formatted: config num.partitions = 'x': expected a whole number (INT)"
    )
    assert mistake in done.stdout.splitlines(), "nothing is beside the line that says it"
    assert 'expected @pytest.mark.barnabas_config({"num.partitions": 4})' in done.stdout
