"""An archive is a backup: topics come back as they were, with their settings, empty ones too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from compat_tests.pipeline.conftest import Pipeline
from compat_tests.pipeline.records import (
    create,
    fill_mixed,
    fill_plain,
    fill_transactions,
    read_all,
)
from testkit.brokers.nodes import RunningBroker
from testkit.wait import eventually

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

BIG = {"max.message.bytes": "12000000", "retention.ms": "-1"}
SMALL = {"max.message.bytes": "1000"}
"""Takes no batch of what a client makes by its defaults."""


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
    create(source, "small", 1, **SMALL)
    careful = Producer({"bootstrap.servers": source, "batch.size": 1000})
    for number in range(60):
        careful.produce("small", b"%0100d" % number)
    assert careful.flush(60) == 0
    lake = tmp_path / "lake"
    archive = ("archive", "--bootstrap", source, "--pattern", ".*", "--to", lake)

    would = pipeline(*archive, "--dry-run")
    assert would.returncode == 0, would.stderr
    assert "would read 91 offsets of 4 partitions, of 4 topics" in would.stdout
    assert not lake.exists()
    assert pipeline(*archive).returncode == 0

    replay = ("replay", "--from", lake, "--bootstrap", target, "--keep-partitions")
    would = pipeline(*replay, "--dry-run")
    assert would.returncode == 0, would.stderr
    assert "would replay 91 rows into 4 topics and create 4 of them" in would.stdout
    assert "max.message.bytes=12000000" in would.stdout
    topics = AdminClient({"bootstrap.servers": target}).list_topics(timeout=30).topics
    assert not topics, "a dry run makes nothing"

    done = pipeline(*replay)
    assert done.returncode == 0, done.stdout + done.stderr
    topics = AdminClient({"bootstrap.servers": target}).list_topics(timeout=30).topics
    mine = {name: topic for name, topic in topics.items() if not name.startswith("__")}
    counts = {name: len(topic.partitions) for name, topic in mine.items()}
    assert counts == {"big": 1, "empty": 5, "wide": 4, "small": 1}
    for name in counts:
        assert own_configs(target, name) == own_configs(source, name)
    assert read_all(target, "wide", 4) == read_all(source, "wide", 4)
    assert len(read_all(target, "big", 1)[0]) == 1
    assert len(read_all(target, "small", 1)[0]) == 60
    assert "match the archive" in done.stdout


def commit(bootstrap: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    places = [TopicPartition(topic, index, one, "noted") for index, one in offsets.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = [ConsumerGroupTopicPartitions(group, places)]

    def is_done() -> bool:
        """False while the coordinator of a group that is new is not there yet."""
        answer = admin.alter_consumer_group_offsets(asked)[group].result(30)
        return all(one.error is None for one in answer.topic_partitions)

    eventually(is_done)


def committed(bootstrap: str, group: str) -> dict[tuple[str, int], tuple[int, str | None]]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    places = found.result(30).topic_partitions
    return {(one.topic, one.partition): (one.offset, one.metadata) for one in places}


def rest(
    bootstrap: str, topic: str, offsets: dict[int, int]
) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """Keys and values from these offsets on."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "rest", "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, index, one) for index, one in offsets.items()])
    found: dict[int, list[tuple[bytes | None, bytes | None]]] = {index: [] for index in offsets}
    open_partitions = set(offsets)
    while open_partitions:
        message = consumer.poll(30)
        assert message is not None, "no end of the topic within 30 s"
        if message.error():
            open_partitions.discard(message.partition())
        else:
            found[message.partition()].append((message.key(), message.value()))
    consumer.close()
    return found


def places(found: dict[tuple[str, int], tuple[int, str | None]], topic: str) -> dict[int, int]:
    return {index: offset for (name, index), (offset, _) in found.items() if name == topic}


def test_groups_go_on_where_they_were(
    fresh_broker: Callable[..., RunningBroker], pipeline: Pipeline, tmp_path: Path
) -> None:
    source = fresh_broker({"log.retention.ms": -1}).bootstrap_servers
    target = fresh_broker({"log.retention.ms": -1}).bootstrap_servers
    fill_mixed(source, "mixed", 40, codecs=("none",))
    create(source, "gaps", 2)
    fill_transactions(source, "gaps", count=6, records=10)  # markers and aborted ones have offsets
    create(source, "cut", 1)
    fill_plain(source, "cut", 20)
    create(source, "none", 2)
    begun = {"mixed": {0: 5, 1: 13, 2: 0}, "gaps": {0: 8, 1: 25}, "cut": {0: 3}, "none": {1: 0}}
    for topic, offsets in begun.items():
        commit(source, "reader", topic, offsets)
    commit(source, "second", "mixed", {2: 7})
    admin = AdminClient({"bootstrap.servers": source})
    cut = [TopicPartition("cut", 0, 9)]
    for future in admin.delete_records(cut).values():
        future.result(30)
    lake = tmp_path / "lake"
    done = pipeline("archive", "--bootstrap", source, "--pattern", ".*", "--to", lake)
    assert done.returncode == 0, done.stderr

    create(target, "mixed", 3)
    fill_plain(target, "mixed", 30, partitions=3)  # so that no offset is what it was
    words = ("replay", "--from", lake, "--bootstrap", target, "--append")
    would = pipeline(*words, "--keep-partitions", "--dry-run")
    assert "set the committed offsets of 2 groups" in would.stdout, would.stderr
    done = pipeline(*words, "--keep-partitions")
    assert done.returncode == 0, done.stdout + done.stderr
    found = committed(target, "reader")
    for topic, offsets in begun.items():
        now = places(found, topic)
        assert now.keys() == offsets.keys()
        assert rest(target, topic, now) == rest(source, topic, offsets)
    assert found["mixed", 0][1] == "noted"
    assert places(found, "mixed")[0] > 5
    assert places(committed(target, "second"), "mixed").keys() == {2}

    # The same command once more; a group that moved on; and one that reads at this moment.
    commit(target, "second", "mixed", {2: 39})
    reader = Consumer({"bootstrap.servers": target, "group.id": "reader"})
    reader.subscribe(["none"])
    reader.poll(5)
    again = pipeline(*words, "--keep-partitions")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1 group with offsets of their own; --groups overwrite sets them" in again.stdout
    assert committed(target, "reader") == found
    commit_lines = [line for line in again.stdout.splitlines() if line.startswith("second")]
    assert "has other offsets there: left alone" in commit_lines[0]
    assert places(committed(target, "second"), "mixed") == {2: 39}
    reader.close()

    # Spread anew over another number of partitions: nothing that was not read is skipped.
    create(target, "wide.mixed", 5)
    spread = ("--topic-prefix", "wide.", "--groups", "overwrite")
    done = pipeline("replay", "--from", lake, "--bootstrap", target, *spread)
    assert done.returncode == 0, done.stdout + done.stderr
    now = places(committed(target, "reader"), "wide.mixed")
    assert now.keys() == set(range(5))
    left = [one for rows in rest(target, "wide.mixed", now).values() for one in rows]
    unread = [one for rows in rest(source, "mixed", begun["mixed"]).values() for one in rows]
    assert not [one for one in unread if one not in left]
    assert len(left) < 40, "what was read is not read again from the start"
