"""Where a whole node keeps what."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from replication.metadata.image import DIRECTORY_MIGRATING
from server.config.kafka_config import KafkaConfig
from server.node.format import FormatOptions, format_node
from server.node.node import Node
from server.peers.replica_transport import cluster_links
from storage import files
from storage.directories import log_dirs
from storage.directories.log_dirs import LogDirError
from testkit.wait import HANGS_S, eventually
from tests.storage.log_support import append
from wire.errors import KafkaError
from wire.messages.admin import CreateTopicsRequest, UpdateFeaturesRequest
from wire.primitives import TopicPartition


def test_the_metadata_log_may_have_a_directory_of_its_own(tmp_path: Path) -> None:
    metadata_dir, data_dir = tmp_path / "metadata", tmp_path / "data"
    node = Node(
        KafkaConfig(
            {
                "log.dirs": str(data_dir),
                "metadata.log.dir": str(metadata_dir),
                "listeners": "PLAINTEXT://127.0.0.1:0",
            }
        )
    )
    try:
        node.start()
        assert node.broker_server is not None
        assert node.broker_server.log_manager.log_dirs == [data_dir], "no partition goes elsewhere"
    finally:
        node.shutdown()
    assert (metadata_dir / "__cluster_metadata-0" / "quorum-state").exists()
    assert not (data_dir / "__cluster_metadata-0").exists()
    assert (data_dir / "meta.properties").exists()


def test_a_broker_without_one_directory_for_partitions_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    node = Node(
        KafkaConfig(
            {
                "log.dirs": str(tmp_path / "file" / "data"),
                "metadata.log.dir": str(tmp_path / "metadata"),
                "listeners": "PLAINTEXT://127.0.0.1:0",
            }
        )
    )
    try:
        with pytest.raises(LogDirError, match=r"no directory of log.dirs can be used.*file/data"):
            node.start()
    finally:
        node.shutdown()


@pytest.mark.parametrize(
    ("controllers", "starts"),
    [
        ("1@localhost:9093:MvDxzVmcRsaTz33bUuRU6A", True),
        ("1@localhost:9093:MvDxzVmcRsaTz33bUuRU6A,2@localhost:9094:07R5amHmR32VDA6jHkGbTA", False),
    ],
)
def test_a_node_alone_starts_on_the_log_of_a_quorum_of_itself_only(
    tmp_path: Path, controllers: str, starts: bool
) -> None:
    """It could ask nobody else for a vote, and its process ended."""
    own = {"node.id": "1", "log.dirs": str(tmp_path / "data")}
    others = {
        "process.roles": "broker,controller",
        "controller.quorum.bootstrap.servers": "localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    }
    options = FormatOptions(cluster_id="JEXY6aqzQY-32P5TStzaFg", initial_controllers=controllers)
    format_node(KafkaConfig(own | others), options, lambda: b"3" * 16, 1000)
    node = Node(KafkaConfig(own | {"listeners": "PLAINTEXT://127.0.0.1:0"}))
    try:
        if starts:
            node.start()
        else:
            with pytest.raises(LogDirError, match=r"voters are 1, 2, and .* is alone"):
                node.start()
    finally:
        node.shutdown()


def test_a_disk_that_is_missing_at_a_start_is_no_new_one(tmp_path: Path) -> None:
    """On a node alone too: an empty log on the other disk would say that there was never more."""
    disk = tmp_path / "disk"
    with started(tmp_path / "first", disk / "second") as node:
        key = create_on(node, disk / "second")
    disk.rename(tmp_path / "unmounted")
    disk.write_text("no directory can be made here")
    with started(tmp_path / "first", disk / "second") as node:
        assert node.broker_server is not None
        replicas = node.broker_server.replica_manager
        eventually(lambda: replicas.offline_replicas == 1)
        with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
            replicas.partition(key)
        assert not (tmp_path / "first" / f"{key.topic}-{key.partition_index}").exists()
    disk.unlink()
    (tmp_path / "unmounted").rename(disk)
    with started(tmp_path / "first", disk / "second") as node:
        assert node.broker_server is not None
        replicas = node.broker_server.replica_manager
        eventually(lambda: replicas.partition(key).is_leader)


def test_a_node_alone_leads_what_was_on_a_disk_that_was_replaced(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with started(first, second) as node:
        key = create_on(node, second)
    shutil.rmtree(second)
    with started(first, second) as node:
        assert node.broker_server is not None
        replicas = node.broker_server.replica_manager
        eventually(lambda: key in replicas.local.partitions and replicas.partition(key).is_leader)


def test_a_node_whose_metadata_log_is_elsewhere_does_not_begin_anew(tmp_path: Path) -> None:
    """It knew of no topic then, and set the logs of all aside. The first of log.dirs has it."""
    first, second = tmp_path / "first", tmp_path / "second"
    with started(first, second) as node:
        create(node)
        assert node.broker_server is not None
        logs = node.broker_server.log_manager
        eventually(lambda: len(logs.all_logs()) == 2)
    refused = pytest.raises(LogDirError, match=r"first/__cluster_metadata-0 .* in .*second")
    with refused, started(second, first):
        pass
    first.rename(tmp_path / "unmounted")
    for is_there in (False, True):  # as a directory that a disk is mounted on
        if is_there:
            first.mkdir()
        refused = pytest.raises(LogDirError, match=r"first is not formatted, and .*second is")
        with refused, started(first, second):
            pass
        assert [path.name for path in first.parent.glob("first/*")] == []
    first.rmdir()
    (tmp_path / "unmounted").rename(first)
    assert list(tmp_path.glob("*/*-stray")) == []
    with started(first, second) as node:
        assert node.broker_server is not None
        assert len(node.broker_server.log_manager.all_logs()) == 2


def test_a_first_start_that_was_cut_short_begins_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"log.dirs": str(tmp_path / "data"), "metadata.log.dir": str(tmp_path / "metadata")}
    config = KafkaConfig(values | {"listeners": "PLAINTEXT://127.0.0.1:0"})
    write = log_dirs.write_meta_properties

    def once(*arguments: Any) -> None:
        monkeypatch.setattr(log_dirs, "write_meta_properties", killed)
        write(*arguments)

    def killed(*_: Any) -> None:
        raise LogDirError("killed")  # what lets the locks go, as a process that is killed does

    monkeypatch.setattr(log_dirs, "write_meta_properties", once)
    node = Node(config)
    with pytest.raises(LogDirError, match="killed"):
        node.start()
    node.shutdown()
    monkeypatch.undo()
    node = Node(config)
    try:
        node.start()
    finally:
        node.shutdown()


def test_where_replicas_are_is_known_from_the_upgrade_on(tmp_path: Path) -> None:
    """Before 3.7-IV2 no record can say it; after it nothing is started again for that."""
    first, second = tmp_path / "first", tmp_path / "second"
    config = KafkaConfig({"log.dirs": f"{first},{second}"})
    options = FormatOptions("c" * 22, release_version="3.7-IV1")
    format_node(config, options, lambda: os.urandom(16), 1)
    with started(first, second) as node:
        broker = node.broker_server
        assert broker is not None
        create(node)
        eventually(lambda: "t" in broker.metadata.topics_by_name)
        topic = broker.metadata.topics_by_name["t"]
        assert {p.directories for p in topic.partitions.values()} == {(DIRECTORY_MIGRATING,)}
        assert broker.metadata.brokers[broker.node_id].directories == ()
        update = UpdateFeaturesRequest.FeatureUpdate(
            feature="metadata.version", max_version_level=17, upgrade_type=1
        )
        request = UpdateFeaturesRequest(feature_updates=[update], validate_only=False)
        broker.controller.submit(request, lambda answer: None)
        ids = tuple(map(broker.log_manager.directory_id, (first, second)))

        def all_known() -> bool:
            partitions = broker.metadata.topics_by_name["t"].partitions.values()
            registration = broker.metadata.brokers[broker.node_id]
            return registration.directories == ids and all(
                partition.directories[0] in ids for partition in partitions
            )

        eventually(all_known)


@contextmanager
def started(*directories: Path) -> Iterator[Node]:
    paths = ",".join(map(str, directories))
    node = Node(KafkaConfig({"log.dirs": paths, "listeners": "PLAINTEXT://127.0.0.1:0"}))
    try:
        node.start()
        yield node
    finally:
        node.shutdown()


def create(node: Node) -> None:
    """The topic `t` with two partitions."""
    assert node.broker_server is not None
    wanted = CreateTopicsRequest.Topic(
        name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=1000, validate_only=False)
    node.broker_server.controller.submit(request, lambda answer: None)


def create_on(node: Node, log_dir: Path) -> TopicPartition:
    """A partition there, of which the controller knows that it is."""
    create(node)
    broker = node.broker_server
    assert broker is not None
    directory_id = broker.log_manager.directory_id(log_dir)

    def found() -> list[int]:
        topic = broker.metadata.topics_by_name.get("t")
        partitions = topic.partitions if topic is not None else {}
        return [i for i, p in partitions.items() if p.directories == (directory_id,)]

    eventually(found)
    return TopicPartition("t", *found())


def test_a_directory_whose_sync_hangs_delays_no_isr_expiry_and_no_other_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    node = Node(
        KafkaConfig(
            {
                "log.dirs": f"{good},{bad}",  # the first holds the metadata log
                "listeners": "PLAINTEXT://127.0.0.1:0",
            }
        )
    )
    has_hung, answers = threading.Event(), threading.Event()
    real = files.fsync

    def fsync(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(str(bad)):
            has_hung.set()
            answers.wait(HANGS_S)
        real(fd)

    try:
        node.start()
        broker = node.broker_server
        assert broker is not None
        manager, links = broker.log_manager, cluster_links(broker)
        config = broker.topic_config("t")
        keys = {path: TopicPartition(f"in-{path.name}", 0) for path in (bad, good)}
        logs = {
            path: manager.get_or_create(key, b"t" * 16, config, path) for path, key in keys.items()
        }
        for log in logs.values():
            append(log, "a")
        monkeypatch.setattr(files, "fsync", fsync)
        synced = {path: threading.Event() for path in logs}
        for path, log in logs.items():
            log.environment.scheduler.schedule_once("flush", 0, log.flush)  # type: ignore[union-attr]
            manager.flush_async(log, lambda _error, path=path: synced[path].set())
        assert has_hung.wait(60)
        expired = threading.Event()
        links.scheduler.schedule_once("isr-expiration", 0, expired.set)
        assert expired.wait(60)
        assert synced[good].wait(60)
        assert not synced[bad].is_set()
    finally:
        answers.set()
        node.shutdown()
