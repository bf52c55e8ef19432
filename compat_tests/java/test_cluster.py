"""kafka-broker-api-versions, kafka-metadata-quorum, kafka-cluster, kafka-features."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytestmark = pytest.mark.java

# Apache Kafka 4.3's ranges of what one node must serve (issue: section 5).
RANGES = {
    "Produce": "0 to 13", "Fetch": "4 to 18", "ListOffsets": "1 to 11", "Metadata": "0 to 13",
    "OffsetCommit": "2 to 10", "OffsetFetch": "1 to 10", "FindCoordinator": "0 to 6",
    "JoinGroup": "0 to 9", "Heartbeat": "0 to 4", "LeaveGroup": "0 to 5", "SyncGroup": "0 to 5",
    "DescribeGroups": "0 to 6", "ListGroups": "0 to 5", "ApiVersions": "0 to 4|0 to 5",
    "CreateTopics": "2 to 7", "DeleteTopics": "1 to 6", "DeleteRecords": "0 to 2",
    "InitProducerId": "0 to 5|0 to 6", "OffsetForLeaderEpoch": "2 to 4",
    "DescribeConfigs": "1 to 4", "AlterConfigs": "0 to 2", "DescribeLogDirs": "1 to 5",
    "CreatePartitions": "0 to 3", "DeleteGroups": "0 to 2", "ElectLeaders": "0 to 2",
    "IncrementalAlterConfigs": "0 to 1", "OffsetDelete": "0", "DescribeQuorum": "0 to 2",
    "DescribeCluster": "0 to 2", "DescribeProducers": "0", "ListConfigResources": "0 to 1",
    "DescribeTopicPartitions": "0",
}  # fmt: skip


def test_api_versions_are_those_of_the_imitated_release(tool: Any) -> None:
    out = tool("BrokerApiVersionsCommand").ok()
    offered = dict(re.findall(r"^\t(\w+)\(\d+\): ([0-9]+(?: to [0-9]+)?) \[usable", out, re.M))
    wrong = {
        name: (offered.get(name), span)
        for name, span in RANGES.items()
        if offered.get(name) not in span.split("|")
    }
    assert not wrong
    assert "(id: " in out
    assert "isFenced: false" in out


def test_the_quorum_reports_its_state_and_its_one_voter(tool: Any) -> None:
    status = tool("MetadataQuorumCommand", "describe", "--status").ok()
    leader = re.search(r"LeaderId: +(\d+)", status)
    assert leader
    assert re.search(r"LeaderEpoch: +\d+", status)
    assert int(re.findall(r"HighWatermark: +(\d+)", status)[0]) > 0
    assert re.search(r"MaxFollowerLag: +0\n", status)
    assert re.search(rf'CurrentVoters: +\[{{"id": {leader.group(1)}', status)
    assert re.search(r"CurrentObservers: +\[\]", status)
    for how in ((), ("--human-readable",)):
        replication = tool("MetadataQuorumCommand", "describe", "--replication", *how).ok()
        (row,) = replication.splitlines()[1:]
        fields = row.split("\t")
        assert fields[0].strip() == leader.group(1)
        assert fields[3].strip() == "0"
        assert "Leader" in row


def test_the_cluster_has_an_id_and_an_endpoint(tool: Any, bootstrap: str, java_tools: Any) -> None:
    where = ("--bootstrap-server", bootstrap)
    out = java_tools.run("ClusterTool", "cluster-id", *where).ok()
    assert re.search(r"Cluster ID: [A-Za-z0-9_-]{22}\n", out)
    endpoints = java_tools.run("ClusterTool", "list-endpoints", *where).ok()
    host, port = bootstrap.split(":")
    assert re.search(rf"{re.escape(host)} +{port} +null +unfenced +broker", endpoints)


def test_features_are_described(tool: Any) -> None:
    out = tool("FeatureCommand", "describe").ok()
    assert re.search(r"Feature: metadata.version\s+.*FinalizedVersionLevel: 4\.", out)
