"""A whole process in which the quorum or the controller meets what nobody expected: it ends with a
line that says so, and its directory is as good as after any kill."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from server.config.kafka_config import KafkaConfig
from server.node.node import Node

_PROGRAM = """
import sys, threading
from replication.controller.controller import Controller
from replication.controller.deferred import DeferredAnswers
from replication.metadata.loader import MetadataLoader
from replication.raft.driver import RaftDriver
from server.config.kafka_config import KafkaConfig
from server.node.node import Node
from wire.messages.admin import CreateTopicsRequest

directory, owner, name = sys.argv[1:]
node = Node(KafkaConfig({"log.dirs": directory, "listeners": "PLAINTEXT://127.0.0.1:0"}))
node.start()

def create(name, then):
    topic = CreateTopicsRequest.Topic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic], validate_only=False)
    node.controller_server.controller.submit(request, then)

def fail(*_):
    raise RuntimeError("nobody thought of this")

done = threading.Event()
create("kept", lambda answer: done.set())
assert done.wait(60)
setattr(globals()[owner], name, fail)
create("more", lambda answer: print("answered", answer))
threading.Event().wait(60)
print("still alive")
"""


def config(directory: Path) -> KafkaConfig:
    return KafkaConfig({"log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0"})


@pytest.mark.parametrize(
    ("owner", "name", "thread"),
    [
        ("RaftDriver", "turn", "raft-driver"),
        ("Controller", "turn", "controller"),
        ("DeferredAnswers", "_valid", "metadata-loader"),
        ("MetadataLoader", "_replay", "metadata-loader"),
    ],
)
def test_a_process_whose_quorum_or_controller_fails_ends_and_starts_again(
    owner: str, name: str, thread: str, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path), owner, name],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    assert f"{thread} failed and the process ends" in ended.stderr
    assert "RuntimeError: nobody thought of this" in ended.stderr
    node = Node(config(tmp_path))
    try:
        node.start()
        assert node.broker_server is not None
        assert "kept" in node.broker_server.metadata.topics_by_name
    finally:
        node.shutdown()
