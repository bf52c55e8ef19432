"""kafka-reassign-partitions, kafka-features and kafka-leader-election against one node."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.java


@pytest.fixture
def node_id(tool: Any) -> int:
    out = tool("BrokerApiVersionsCommand").ok()
    found = re.search(r"\(id: (\d+) ", out)
    assert found
    return int(found.group(1))


def plan(path: Path, topic: str, *replicas: list[int]) -> str:
    partitions = [
        {"topic": topic, "partition": index, "replicas": wanted}
        for index, wanted in enumerate(replicas)
    ]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def test_a_plan_is_generated_executed_verified_and_its_throttles_are_taken_away(
    tool: Any, topic_name: str, tmp_path: Path, node_id: int
) -> None:
    tool("TopicCommand", "--create", "--topic", topic_name, "--partitions", "2").ok()
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"topics": [{"topic": topic_name}], "version": 1}))
    generated = tool(
        "ReassignPartitionsCommand", "--topics-to-move-json-file", str(topics),
        "--broker-list", str(node_id), "--generate",
    ).ok()  # fmt: skip
    proposed = json.loads(generated.split("Proposed partition reassignment configuration\n")[1])
    assert [p["replicas"] for p in proposed["partitions"]] == [[node_id], [node_id]]

    path = plan(tmp_path / "plan.json", topic_name, [node_id], [node_id])
    executed = tool(
        "ReassignPartitionsCommand", "--reassignment-json-file", path, "--execute",
        "--throttle", "1000000",
    ).ok()  # fmt: skip
    assert "Successfully started partition reassignments" in executed
    throttled = tool(
        "ConfigCommand", "--describe", "--entity-type", "brokers", "--entity-name", str(node_id)
    ).ok()
    assert "leader.replication.throttled.rate=1000000" in throttled

    verified = tool("ReassignPartitionsCommand", "--reassignment-json-file", path, "--verify").ok()
    assert f"Reassignment of partition {topic_name}-1 is completed." in verified
    assert "Clearing broker-level throttles" in verified
    cleared = tool(
        "ConfigCommand", "--describe", "--entity-type", "brokers", "--entity-name", str(node_id)
    ).ok()
    assert "leader.replication.throttled.rate" not in cleared
    assert "No partition reassignments found." in tool("ReassignPartitionsCommand", "--list").ok()


def test_moves_that_cannot_be_are_refused(
    tool: Any, topic_name: str, tmp_path: Path, node_id: int
) -> None:
    tool("TopicCommand", "--create", "--topic", topic_name).ok()
    path = plan(tmp_path / "plan.json", topic_name, [node_id, node_id + 1])
    refused = tool("ReassignPartitionsCommand", "--reassignment-json-file", path, "--execute")
    assert refused.code != 0
    assert f"Unknown broker id {node_id + 1}" in refused.text
    path = plan(tmp_path / "same.json", topic_name, [node_id])
    cancelled = tool("ReassignPartitionsCommand", "--reassignment-json-file", path, "--cancel")
    assert "None of the specified partition reassignments are active." in cancelled.ok()


def test_a_replica_may_be_told_to_be_in_the_directory_it_is_in(
    tool: Any, topic_name: str, tmp_path: Path, node_id: int
) -> None:
    tool("TopicCommand", "--create", "--topic", topic_name).ok()
    described = tool("LogDirsCommand", "--describe", "--topic-list", topic_name).ok()
    (brokers,) = [line for line in described.splitlines() if line.startswith("{")]
    (directory,) = [
        d["logDir"] for d in json.loads(brokers)["brokers"][0]["logDirs"] if d["partitions"]
    ]
    path = tmp_path / "plan.json"
    path.write_text(
        json.dumps(
            {
                "version": 1,
                "partitions": [
                    {
                        "topic": topic_name,
                        "partition": 0,
                        "replicas": [node_id],
                        "log_dirs": [directory],
                    }
                ],
            }
        )
    )
    executed = tool(
        "ReassignPartitionsCommand", "--reassignment-json-file", str(path), "--execute"
    ).ok()
    assert "Successfully started" in executed


def test_features_are_described_upgraded_and_downgraded(tool: Any) -> None:
    feature = "eligible.leader.replicas.version"
    described = tool("FeatureCommand", "describe").ok()
    level = re.search(rf"Feature: {feature}.*FinalizedVersionLevel: (\d)", described)
    assert level
    try:
        off = tool("FeatureCommand", "downgrade", "--feature", f"{feature}=0").ok()
        assert f"{feature} was downgraded to 0" in off
        rehearsed = tool("FeatureCommand", "upgrade", "--feature", f"{feature}=1", "--dry-run")
        assert f"{feature} can be upgraded to 1" in rehearsed.ok()
        assert re.search(
            rf"Feature: {feature}.*FinalizedVersionLevel: 0",
            tool("FeatureCommand", "describe").ok(),
        )
    finally:
        on = tool("FeatureCommand", "upgrade", "--feature", f"{feature}=1")
    assert f"{feature} was upgraded to 1" in on.ok()
    described = tool("FeatureCommand", "describe").ok()
    assert re.search(rf"Feature: {feature}.*FinalizedVersionLevel: 1", described)


def test_a_feature_level_that_would_lose_metadata_is_refused(tool: Any) -> None:
    refused = tool("FeatureCommand", "downgrade", "--metadata", "4.2-IV1")
    assert refused.code != 0
    assert "might delete metadata information" in refused.text
    unknown = tool("FeatureCommand", "upgrade", "--feature", "eligible.leader.replicas.version=7")
    assert unknown.code != 0


def test_leaders_that_lead_already_need_no_election(tool: Any, topic_name: str) -> None:
    tool("TopicCommand", "--create", "--topic", topic_name).ok()
    out = tool(
        "LeaderElectionCommand", "--election-type", "preferred", "--topic", topic_name,
        "--partition", "0",
    ).ok()  # fmt: skip
    assert f"Valid replica already elected for partitions {topic_name}-0" in out


def test_a_broker_that_is_not_registered_cannot_be_unregistered(
    java_tools: Any, bootstrap: str
) -> None:
    refused = java_tools.run(
        "ClusterTool", "unregister", "--bootstrap-server", bootstrap, "--id", "4711"
    )
    assert "is not currently registered" in refused.text or refused.code != 0
