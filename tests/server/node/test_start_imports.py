"""What a node that only starts does not load: its memory is counted in megabytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

START = """
import sys
from server.config.kafka_config import KafkaConfig
from server.node.node import Node

node = Node(KafkaConfig({"log.dirs": sys.argv[1], "listeners": "PLAINTEXT://127.0.0.1:0"}))
node.start()
node.shutdown()
print(*sys.modules)
"""


def test_a_plain_node_loads_no_openssl_and_no_asyncio(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    loaded = set(done.stdout.split())
    assert "server.node.node" in loaded
    assert not loaded & {"ssl", "_ssl", "hashlib", "_hashlib", "hmac", "asyncio", "cryptography"}
