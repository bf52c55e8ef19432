"""A broker that died, all of it, on another one: `rescue`, then `replay`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.pipeline.conftest import Pipeline
from compat_tests.pipeline.records import (
    create,
    fill_mixed,
    fill_plain,
    fill_transactions,
    read_all,
    transactional,
)
from compat_tests.pipeline.test_backup import (
    BIG,
    commit,
    committed,
    own_configs,
    places,
    rest,
)
from testkit import jars
from testkit.brokers.nodes import ApacheKafka, RunningBroker
from testkit.require import require

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]


def tear(log: Path) -> None:
    """Half a batch behind the last one, as a crash leaves it."""
    data = log.read_bytes()
    log.write_bytes(data + (1000).to_bytes(8, "big") + data[8:100])


@pytest.fixture(params=["broker", "apache_kafka"])
def dead(
    request: pytest.FixtureRequest, fresh_broker: Callable[..., RunningBroker], tmp_path: Path
) -> Iterator[RunningBroker | ApacheKafka]:
    """It runs yet."""
    if request.param == "broker":
        yield fresh_broker({"log.retention.ms": -1})
        return
    try:
        jars.libs()
    except jars.JarsUnavailable as missing:
        require(False, f"Apache Kafka: {missing}")
    broker = ApacheKafka(tmp_path / "apache-kafka", {"log.retention.ms": -1})
    broker.start()
    yield broker
    broker.kill()


def test_a_dead_broker_comes_back_whole(
    dead: RunningBroker | ApacheKafka,
    fresh_broker: Callable[..., RunningBroker],
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    source = dead.bootstrap_servers
    create(source, "big", 1, **BIG)
    create(source, "empty", 5, **{"cleanup.policy": "compact"})
    create(source, "gone", 1)
    fill_plain(source, "gone", 5)
    fill_mixed(source, "mixed", 60)
    create(source, "txn", 2)
    fill_transactions(source, "txn", count=4, records=10)
    admin = AdminClient({"bootstrap.servers": source})
    admin.delete_topics(["gone"])["gone"].result(30)
    stopped = {0: 5, 1: 33}
    commit(source, "reader", "mixed", stopped)
    producer = transactional(source)
    exact = Consumer({"bootstrap.servers": source, "group.id": "exact"})
    producer.begin_transaction()
    producer.produce("txn", b"with its offset", partition=0)
    producer.send_offsets_to_transaction(
        [TopicPartition("mixed", 2, 8)], exact.consumer_group_metadata(), 30
    )
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce("txn", b"never committed", partition=1)
    producer.flush(30)
    before = {name: read_all(source, name, count) for name, count in COUNTS.items()}
    unread = rest(source, "mixed", stopped)
    configs = {name: own_configs(source, name) for name in COUNTS}

    lake = tmp_path / "la[k]e {1}"
    rescue = ("rescue", dead.data_dir, "--to", lake)
    refused = pipeline(*rescue)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "a broker runs on" in refused.stderr
    dead.kill()
    tear(dead.data_dir / "mixed-1" / f"{0:020d}.log")
    would = pipeline(*rescue, "--dry-run")
    assert would.returncode == 0, would.stderr
    assert "would rescue 4 topics" in would.stdout
    assert "committed offsets of 2 groups" in would.stdout
    assert not lake.exists()
    done = pipeline(*rescue)
    assert done.returncode == 0, done.stdout + done.stderr

    # The archive is moved, and the directory is gone with its machine.
    shutil.rmtree(dead.data_dir)
    moved = tmp_path / "moved*?"
    lake.rename(moved)
    target = fresh_broker({"log.retention.ms": -1}).bootstrap_servers
    done = pipeline("replay", "--from", moved, "--bootstrap", target, "--keep-partitions")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name: read_all(target, name, count) for name, count in COUNTS.items()} == before
    assert {name: own_configs(target, name) for name in COUNTS} == configs
    found = places(committed(target, "reader"), "mixed")
    assert rest(target, "mixed", found) == unread
    assert places(committed(target, "exact"), "mixed").keys() == {2}


COUNTS = {"big": 1, "empty": 5, "mixed": 3, "txn": 2}


def test_what_a_disk_has_damaged_is_left_out_and_told(
    fresh_broker: Callable[..., RunningBroker], pipeline: Pipeline, tmp_path: Path
) -> None:
    dead = fresh_broker({"log.retention.ms": -1})
    create(dead.bootstrap_servers, "orders", 1)
    for _ in range(3):  # a batch each
        fill_plain(dead.bootstrap_servers, "orders", 10)
    dead.kill()
    log = dead.data_dir / "orders-0" / f"{0:020d}.log"
    data = log.read_bytes()
    second = 12 + int.from_bytes(data[8:12], "big")
    log.write_bytes(data[: second + 80] + bytes([data[second + 80] ^ 1]) + data[second + 81 :])
    # Killed before it wrote down how far it had come, it would cut its log there when it starts.
    (dead.data_dir / "replication-offset-checkpoint").write_text("0\n1\norders 0 30\n")

    rescue = ("rescue", dead.data_dir, "--to", tmp_path / "lake")
    refused = pipeline(*rescue)
    assert refused.returncode == 1
    assert "the batch at offset 10 has a wrong checksum" in refused.stderr
    assert "--skip-damaged" in refused.stderr
    would = pipeline(*rescue, "--skip-damaged", "--dry-run")
    told = f"{log} is damaged; left out, if they were there: offsets 10 to 19"
    assert (would.returncode, told in would.stdout) == (0, True), would.stdout + would.stderr
    done = pipeline(*rescue, "--skip-damaged")
    assert (done.returncode, told in done.stdout) == (0, True), done.stdout + done.stderr
    assert "rescued 20 rows" in done.stdout
