"""Where a whole node keeps what."""

from __future__ import annotations

from pathlib import Path

from server.config import KafkaConfig
from server.node import Node


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
