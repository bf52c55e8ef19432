"""Where a whole node keeps what."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from server.config.kafka_config import KafkaConfig
from server.node.node import Node
from server.peers.replica_transport import cluster_links
from storage import files
from storage.directories.log_dirs import LogDirError
from tests.storage.log_support import append
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
            answers.wait(60)
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
