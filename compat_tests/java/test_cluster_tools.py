"""Kafka's tools for clusters, three nodes: what is under-replicated, elections, moves, features."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testkit import jars
from testkit.brokers.clusters import CLUSTERS, ClusterOfNodes
from testkit.clients.java_tools import Finished, JavaTools
from testkit.require import require
from testkit.wait import eventually

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfNodes]:
    """Three nodes for all tests here; who kills one starts it again."""
    try:
        jars.libs()
    except jars.JarsUnavailable as missing:
        require(False, f"Apache Kafka's tools: {missing}")
    shared = CLUSTERS[broker_kind](tmp_path_factory.mktemp("tools-cluster"))
    try:
        shared.start()
        yield shared
    finally:
        shared.close()


@pytest.fixture
def tool(java_tools: JavaTools, cluster: ClusterOfNodes) -> Callable[..., Finished]:
    def run(name: str, *args: str, timeout_s: float = 60.0) -> Finished:
        where = ("--bootstrap-server", cluster.bootstrap_servers)
        return java_tools.run(name, *where, *args, timeout_s=timeout_s)

    return run


@pytest.fixture
def placed(
    cluster: ClusterOfNodes, tool: Callable[..., Finished], topic_name: str
) -> Iterator[Callable[..., str]]:
    """`placed([1, 2], [2, 3])`: a topic with these replicas, one list of equal length a partition.

    At the end every node runs again.
    """

    def make(*replicas: list[int], suffix: str = "", config: str = "") -> str:
        name = topic_name + suffix
        assignment = ",".join(":".join(map(str, nodes)) for nodes in replicas)
        args = ["--create", "--topic", name, "--replica-assignment", assignment]
        args += ["--config", config] if config else []
        assert "Created topic" in tool("TopicCommand", *args).ok()
        cluster.await_full_isr(name)
        return name

    yield make
    for node in cluster.nodes.values():
        if not node.runs:
            cluster.restart(node.id)


def listed(out: str, topic: str) -> set[int]:
    """The partitions of the topic that TopicCommand printed."""
    return {int(p) for p in re.findall(rf"Topic: {re.escape(topic)}\s+Partition: (\d+)", out)}


def described(tool: Any, topic: str) -> dict[int, tuple[str, str, str]]:
    """Leader, replicas and in-sync replicas by partition, as TopicCommand prints them."""
    out = tool("TopicCommand", "--describe", "--topic", topic).ok()
    rows = re.findall(
        r"Partition: (\d+)\s+Leader: (\S+)\s+Replicas: (\S*)\s+Isr: (\S*)", out
    )  # fmt: skip
    return {int(p): (leader, replicas, isr) for p, leader, replicas, isr in rows}


# ---- kafka-topics


def test_topics_tells_what_a_dead_node_leaves_behind(
    cluster: ClusterOfNodes, tool: Any, placed: Any
) -> None:
    pairs = placed([1, 2], [2, 3], [3, 1])
    alone = placed([3], suffix="-alone")
    flags = (
        "--under-replicated-partitions", "--unavailable-partitions",
        "--under-min-isr-partitions", "--at-min-isr-partitions",
    )  # fmt: skip

    def asked(topic: str) -> list[set[int]]:
        return [
            listed(tool("TopicCommand", "--describe", "--topic", topic, flag).ok(), topic)
            for flag in flags
        ]

    def become(of_pairs: list[set[int]], of_alone: list[set[int]]) -> None:
        wanted = [of_pairs, of_alone]
        eventually(
            lambda: [asked(pairs), asked(alone)] == wanted, timeout_s=60, every_s=0.5,
            what=f"{wanted}, not {[asked(pairs), asked(alone)]}",
        )  # fmt: skip

    # min.insync.replicas is 2: a topic with one replica is always below it.
    become([set(), set(), set(), {0, 1, 2}], [set(), set(), {0}, set()])
    cluster.kill(1)
    become([{0, 2}, set(), {0, 2}, {1}], [set(), set(), {0}, set()])
    cluster.restart(1)
    become([set(), set(), set(), {0, 1, 2}], [set(), set(), {0}, set()])
    cluster.kill(3)
    become([{1, 2}, set(), {1, 2}, {0}], [{0}, {0}, {0}, set()])
    assert described(tool, alone)[0][:2] == ("none", "3")
    cluster.restart(3)
    become([set(), set(), set(), {0, 1, 2}], [set(), set(), {0}, set()])


# ---- kafka-leader-election


def test_leader_election_brings_the_preferred_leader_back(
    cluster: ClusterOfNodes, tool: Any, placed: Any, tmp_path: Path
) -> None:
    topic = placed([2, 1, 3], [2, 3, 1], [1, 2, 3])
    cluster.stop_node(2)
    cluster.restart(2)
    cluster.await_full_isr(topic)
    assert {leader for leader, _, _ in described(tool, topic).values()} == {"1", "3"}
    one = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    out = tool("LeaderElectionCommand", *one).ok()
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in out
    assert described(tool, topic)[0][0] == "2"
    out = tool("LeaderElectionCommand", *one).ok()
    assert f"Valid replica already elected for partitions {topic}-0" in out
    file = tmp_path / "elect.json"
    file.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 1}]}))
    by_file = ("--election-type", "preferred", "--path-to-json-file", str(file))
    assert f"{topic}-1" in tool("LeaderElectionCommand", *by_file).ok()
    assert [leader for leader, _, _ in described(tool, topic).values()] == ["2", "2", "1"]
    everything = tool(
        "LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions"
    )
    everything.ok()


def test_leader_election_of_any_replica_is_the_last_resort(
    cluster: ClusterOfNodes, tool: Any, placed: Any
) -> None:
    # A minimum of 1 keeps nobody in the eligible leader replicas (KIP-966).
    topic = placed([2, 3], config="min.insync.replicas=1")
    cluster.stop_node(3)
    # 3 leaves the in-sync replicas, then 2 dies: only a replica that is not in sync is left.
    eventually(lambda: described(tool, topic)[0] == ("2", "2,3", "2"), timeout_s=30, every_s=0.5)
    cluster.kill(2)
    cluster.restart(3)
    eventually(lambda: described(tool, topic)[0][0] == "none", timeout_s=30, every_s=0.5)
    preferred = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    refused = tool("LeaderElectionCommand", *preferred)
    assert refused.code == 1
    assert "PreferredLeaderNotAvailableException" in refused.text
    unclean = ("--election-type", "unclean", "--topic", topic, "--partition", "0")
    out = tool("LeaderElectionCommand", *unclean).ok()
    assert f"Successfully completed leader election (UNCLEAN) for partitions {topic}-0" in out
    assert described(tool, topic)[0][0] == "3"
    cluster.restart(2)
    cluster.await_full_isr(topic)


def test_leader_election_of_an_unknown_partition_is_an_error(tool: Any) -> None:
    which = ("--election-type", "preferred", "--topic", "no-such-topic", "--partition", "0")
    refused = tool("LeaderElectionCommand", *which)
    assert refused.code == 1
    assert "UnknownTopicOrPartitionException" in refused.text


# ---- kafka-reassign-partitions


def plan_file(path: Path, topic: str, *replicas: list[int]) -> str:
    rows = [
        {"topic": topic, "partition": index, "replicas": nodes}
        for index, nodes in enumerate(replicas)
    ]
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(path)


def test_a_plan_is_generated_executed_and_verified(
    cluster: ClusterOfNodes, tool: Any, placed: Any, tmp_path: Path
) -> None:
    topic = placed([1, 2], [1, 2], [1, 2])
    wanted = tmp_path / "topics.json"
    wanted.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    out = tool(
        "ReassignPartitionsCommand", "--generate", "--topics-to-move-json-file", str(wanted),
        "--broker-list", "1,2,3",
    ).ok()  # fmt: skip
    current, proposed = (json.loads(line) for line in out.splitlines() if line.startswith("{"))
    assert [row["replicas"] for row in current["partitions"]] == [[1, 2]] * 3
    assert {node for row in proposed["partitions"] for node in row["replicas"]} == {1, 2, 3}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(proposed))
    execute = ("--execute", "--reassignment-json-file", str(plan))
    out = tool("ReassignPartitionsCommand", *execute).ok()
    assert "Current partition replica assignment" in out
    assert "Successfully started partition reassignments" in out
    verify = ("--verify", "--reassignment-json-file", str(plan))
    out = eventually(
        lambda: _complete(tool("ReassignPartitionsCommand", *verify).ok()), timeout_s=60
    )
    for partition in range(3):
        assert f"Reassignment of partition {topic}-{partition} is completed." in out, out
    assert "Clearing broker-level throttles on brokers 1,2,3" in out
    assert f"Clearing topic-level throttles on topic {topic}" in out
    targets = {row["partition"]: row["replicas"] for row in proposed["partitions"]}
    found = {p: list(map(int, row[1].split(","))) for p, row in described(tool, topic).items()}
    assert found == targets
    assert "No partition reassignments found" in tool("ReassignPartitionsCommand", "--list").ok()


def _complete(out: str) -> str:
    return "" if "still in progress" in out else out


def test_a_throttled_move_is_listed_verified_and_cancelled(
    cluster: ClusterOfNodes, tool: Any, placed: Any, java_tools: JavaTools, tmp_path: Path
) -> None:
    topic = placed([1, 2])
    where = cluster.bootstrap_servers
    java_tools.run(
        "ProducerPerformance", "--topic", topic, "--num-records", "2000", "--record-size", "1000",
        "--throughput", "-1", "--bootstrap-server", where, "--command-property", "acks=all",
    ).ok()  # fmt: skip
    plan = plan_file(tmp_path / "plan.json", topic, [3, 1])
    execute = ("--execute", "--reassignment-json-file", plan, "--throttle", "1000")
    out = tool("ReassignPartitionsCommand", *execute).ok()
    assert "The inter-broker throttle limit was set to 1000 B/s" in out
    assert f"Successfully started partition reassignment for {topic}-0" in out
    listing = tool("ReassignPartitionsCommand", "--list").ok()
    assert re.search(rf"{topic}-0: replicas: \S+ adding: 3\. removing: 2\.", listing), listing
    verify = ("--verify", "--reassignment-json-file", plan)
    out = tool("ReassignPartitionsCommand", *verify).ok()
    assert f"Reassignment of partition {topic}-0 is still in progress." in out
    again = tool("ReassignPartitionsCommand", "--execute", "--reassignment-json-file", plan)
    assert again.code == 1
    assert "Cannot execute because there is an existing partition assignment" in again.text
    cancel = ("--cancel", "--reassignment-json-file", plan)
    out = tool("ReassignPartitionsCommand", *cancel).ok()
    assert f"Successfully cancelled partition reassignment for: {topic}-0" in out
    assert "No partition reassignments found" in tool("ReassignPartitionsCommand", "--list").ok()
    cluster.await_full_isr(topic)
    assert described(tool, topic)[0][1] == "1,2"
    configs = tool("ConfigCommand", "--describe", "--entity-type", "brokers", "--entity-name", "1")
    assert "replication.throttled.rate" not in configs.ok()


def test_a_plan_with_an_unknown_broker_is_refused(
    cluster: ClusterOfNodes, tool: Any, placed: Any, tmp_path: Path
) -> None:
    topic = placed([1, 2])
    plan = plan_file(tmp_path / "plan.json", topic, [1, 77])
    execute = ("--execute", "--reassignment-json-file", plan)
    refused = tool("ReassignPartitionsCommand", *execute)
    assert refused.code == 1
    assert "Unknown broker id 77" in refused.text
    assert described(tool, topic)[0][1] == "1,2"


# ---- kafka-features

ELIGIBLE = "eligible.leader.replicas.version"


def levels(tool: Any) -> dict[str, tuple[str, int]]:
    """Finalized level and epoch of each feature."""
    out = tool("FeatureCommand", "describe").ok()
    rows = re.findall(
        r"Feature: (\S+)\s+SupportedMinVersion: \S+\s+SupportedMaxVersion: \S+\s+"
        r"FinalizedVersionLevel: (\S+)\s+Epoch: (\d+)", out,
    )  # fmt: skip
    return {name: (level, int(epoch)) for name, level, epoch in rows}


def at_level(tool: Any, level: str) -> dict[str, tuple[str, int]] | None:
    """The levels, once the broker that is asked has this one."""
    found = levels(tool)
    return found if found[ELIGIBLE][0] == level else None


def test_features_are_changed_for_the_whole_cluster(cluster: ClusterOfNodes, tool: Any) -> None:
    before = levels(tool)
    assert before["metadata.version"][0].startswith("4.")
    assert before[ELIGIBLE][0] == "1"
    dry = ("downgrade", "--feature", f"{ELIGIBLE}=0", "--dry-run")
    assert f"{ELIGIBLE} can be downgraded to 0" in tool("FeatureCommand", *dry).ok()
    assert levels(tool)[ELIGIBLE][0] == "1"
    out = tool("FeatureCommand", "downgrade", "--feature", f"{ELIGIBLE}=0").ok()
    assert f"{ELIGIBLE} was downgraded to 0" in out
    after = eventually(lambda: at_level(tool, "0"), what="whichever broker is asked knows it")
    assert after[ELIGIBLE][1] > before[ELIGIBLE][1]
    out = tool("FeatureCommand", "upgrade", "--feature", f"{ELIGIBLE}=1").ok()
    assert f"{ELIGIBLE} was upgraded to 1" in out
    eventually(lambda: at_level(tool, "1"), what="whichever broker is asked knows it")


def test_a_feature_level_nobody_supports_is_refused(cluster: ClusterOfNodes, tool: Any) -> None:
    refused = tool("FeatureCommand", "upgrade", "--feature", f"{ELIGIBLE}=99")
    assert refused.code == 1
    assert f"Could not upgrade {ELIGIBLE} to 99" in refused.text
