"""Where a whole node keeps what."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.config.kafka_config import KafkaConfig
from server.node.node import Node
from storage.directories.log_dirs import LogDirError


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
