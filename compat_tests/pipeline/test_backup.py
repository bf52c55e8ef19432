"""An archive is a backup: topics come back as they were, with their settings, empty ones too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from compat_tests.pipeline.conftest import Pipeline
from compat_tests.pipeline.records import create, fill_plain, read_all
from testkit.brokers.nodes import RunningBroker

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

BIG = {"max.message.bytes": "12000000", "retention.ms": "-1"}


def own_configs(bootstrap: str, topic: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_configs([resource])[resource].result(30)
    return {name: found[name].value for name in (*BIG, "cleanup.policy")}


def test_everything_comes_back_on_another_broker_by_one_command(
    fresh_broker: Callable[..., RunningBroker], pipeline: Pipeline, tmp_path: Path
) -> None:
    source = fresh_broker({"log.retention.ms": -1}).bootstrap_servers
    target = fresh_broker({"log.retention.ms": -1}).bootstrap_servers
    create(source, "big", 1, **BIG)
    create(source, "empty", 5, **{"cleanup.policy": "compact"})
    create(source, "wide", 4)
    fill_plain(source, "wide", 30, partitions=2)  # the last two partitions are empty
    producer = Producer({"bootstrap.servers": source, "message.max.bytes": 12_000_000})
    producer.produce("big", bytes(range(250)) * 36_000, key=b"9 MB")
    assert producer.flush(60) == 0
    lake = tmp_path / "lake"
    archive = ("archive", "--bootstrap", source, "--pattern", ".*", "--to", lake)

    would = pipeline(*archive, "--dry-run")
    assert would.returncode == 0, would.stderr
    assert "would read 31 offsets of 3 partitions, of 3 topics" in would.stdout
    assert not lake.exists()
    assert pipeline(*archive).returncode == 0

    replay = ("replay", "--from", lake, "--bootstrap", target, "--keep-partitions")
    would = pipeline(*replay, "--dry-run")
    assert would.returncode == 0, would.stderr
    assert "would replay 31 rows into 3 topics and create 3 of them" in would.stdout
    assert "max.message.bytes=12000000" in would.stdout
    topics = AdminClient({"bootstrap.servers": target}).list_topics(timeout=30).topics
    assert not topics, "a dry run makes nothing"

    done = pipeline(*replay)
    assert done.returncode == 0, done.stdout + done.stderr
    topics = AdminClient({"bootstrap.servers": target}).list_topics(timeout=30).topics
    mine = {name: topic for name, topic in topics.items() if not name.startswith("__")}
    counts = {name: len(topic.partitions) for name, topic in mine.items()}
    assert counts == {"big": 1, "empty": 5, "wide": 4}
    for name in counts:
        assert own_configs(target, name) == own_configs(source, name)
    assert read_all(target, "wide", 4) == read_all(source, "wide", 4)
    assert len(read_all(target, "big", 1)[0]) == 1
    assert "match the archive" in done.stdout
