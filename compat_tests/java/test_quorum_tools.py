"""kafka-metadata-quorum, kafka-storage and kafka-dump-log against the quorum of three nodes.

`--broker kafka` runs the same against three nodes of Apache Kafka.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testkit import jars
from testkit.brokers.clusters import CLUSTERS, METADATA_LOG, ClusterOfNodes
from testkit.clients.java_tools import Finished, JavaTools
from testkit.require import require
from testkit.wait import eventually

pytestmark = [pytest.mark.java, pytest.mark.slow]

# A snapshot after each few records, so that a short test sees some.
OFTEN = {"metadata.log.max.record.bytes.between.snapshots": 2000}


@pytest.fixture(scope="module")
def start_cluster(
    broker_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., ClusterOfNodes]]:
    """Starts a cluster for the tests of this file; all are killed at their end."""
    if broker_kind == "kafka":
        try:
            jars.libs()
        except jars.JarsUnavailable as missing:
            require(False, f"Apache Kafka: {missing}")
    made: list[ClusterOfNodes] = []

    def start(config: dict[str, Any] | None = None, **options: Any) -> ClusterOfNodes:
        made.append(CLUSTERS[broker_kind](tmp_path_factory.mktemp("quorum"), config, **options))
        made[-1].start()
        return made[-1]

    yield start
    for cluster in made:
        cluster.close()


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., ClusterOfNodes]) -> ClusterOfNodes:
    """Three voters named by the log (kraft.version 1), and a broker that is none of them."""
    return start_cluster(OFTEN, dynamic_quorum=True, broker_only=1)


@pytest.fixture
def quorum_tool(java_tools: JavaTools, cluster: ClusterOfNodes) -> Callable[..., Finished]:
    """`quorum_tool("describe", "--status", at=...)`: kafka-metadata-quorum."""

    def run(*words: str, at: tuple[str, str] | None = None) -> Finished:
        where = at or ("--bootstrap-server", cluster.bootstrap_servers)
        return java_tools.run("MetadataQuorumCommand", *where, *words)

    return run


def at_controller(cluster: ClusterOfNodes, node: int) -> tuple[str, str]:
    return ("--bootstrap-controller", f"127.0.0.1:{cluster.nodes[node].ports['CONTROLLER']}")


def status_of(finished: Finished) -> dict[str, str]:
    """The lines `Name:   value` of `describe --status`."""
    lines = (line.partition(":") for line in finished.ok().splitlines())
    return {name: value.strip() for name, _, value in lines}


def table_of(finished: Finished) -> list[dict[str, str]]:
    """The rows of `describe --replication`, by the names of the columns."""
    head, *rows = (line.split() for line in finished.ok().splitlines() if line.strip())
    return [dict(zip(head, row, strict=False)) for row in rows]


def describes(cluster: ClusterOfNodes, status: dict[str, str]) -> None:
    assert status["ClusterId"] == cluster.cluster_id
    assert int(status["LeaderId"]) in (1, 2, 3)
    assert int(status["LeaderEpoch"]) > 0
    assert int(status["HighWatermark"]) > 0
    voters = {voter["id"]: voter for voter in json.loads(status["CurrentVoters"])}
    assert set(voters) == {1, 2, 3}
    for id_, voter in voters.items():
        node = cluster.nodes[id_]
        assert voter["directoryId"] == node.directory_id
        assert voter["endpoints"] == [f"CONTROLLER://127.0.0.1:{node.ports['CONTROLLER']}"]


def test_the_status_is_the_same_wherever_it_is_asked(
    cluster: ClusterOfNodes, quorum_tool: Callable[..., Finished]
) -> None:
    by_broker = status_of(quorum_tool("describe", "--status"))
    describes(cluster, by_broker)
    for node in (1, 2, 3, 4):
        at = ("--bootstrap-server", cluster.address(node))
        describes(cluster, status_of(quorum_tool("describe", "--status", at=at)))
    for node in (1, 2, 3):
        at = at_controller(cluster, node)
        status = status_of(quorum_tool("describe", "--status", at=at))
        describes(cluster, status)
        assert status["LeaderId"] == by_broker["LeaderId"]
    [observer] = json.loads(by_broker["CurrentObservers"])
    assert observer["id"] == 4
    assert int(by_broker["MaxFollowerLagTimeMs"]) < 10_000


def test_replication_lists_leader_followers_and_observers(
    cluster: ClusterOfNodes, quorum_tool: Callable[..., Finished]
) -> None:
    rows = {int(row["NodeId"]): row for row in table_of(quorum_tool("describe", "--replication"))}
    assert set(rows) == {1, 2, 3, 4}
    leader = int(status_of(quorum_tool("describe", "--status"))["LeaderId"])
    for id_, row in rows.items():
        expected = {leader: "Leader", 4: "Observer"}.get(id_, "Follower")
        assert row["Status"] == expected
        assert int(row["LogEndOffset"]) > 0
        assert 0 <= int(row["Lag"]) < 100
        assert int(row["LastFetchTimestamp"]) > 1_600_000_000_000
        if id_ != 4:
            assert row["DirectoryId"] == cluster.nodes[id_].directory_id
    human = quorum_tool("describe", "--replication", "--human-readable").ok()
    assert "ms ago" in human


def test_a_voter_is_removed_and_added_again(
    cluster: ClusterOfNodes, quorum_tool: Callable[..., Finished]
) -> None:
    leader = int(status_of(quorum_tool("describe", "--status"))["LeaderId"])
    node = cluster.nodes[leader % 3 + 1]
    who = ("--controller-id", str(node.id), "--controller-directory-id", node.directory_id)
    wrong = ("--controller-id", str(node.id), "--controller-directory-id", cluster.cluster_id)
    own = ("--command-config", str(node.config_file))

    twice = quorum_tool(*own, "add-controller")
    assert twice.code != 0
    assert "DuplicateVoterException" in twice.text
    unknown = quorum_tool("remove-controller", *wrong)
    assert unknown.code != 0
    assert "VoterNotFoundException" in unknown.text

    removed = quorum_tool("remove-controller", *who).ok()
    assert f"KRaft controller {node.id} with" in removed
    voters = set(cluster.quorum().voters)
    assert voters == {1, 2, 3} - {node.id}
    eventually(lambda: node.id in cluster.quorum().observers, what="the removed voter observes")
    added = quorum_tool(*own, "add-controller").ok()
    assert f"ontroller {node.id} with" in added
    assert set(cluster.quorum().voters) == {1, 2, 3}
    # At a controller, too.
    quorum_tool("remove-controller", *who, at=at_controller(cluster, node.id)).ok()
    eventually(lambda: node.id in cluster.quorum().observers, what="the removed voter observes")
    quorum_tool(*own, "add-controller", at=at_controller(cluster, leader)).ok()
    describes(cluster, status_of(quorum_tool("describe", "--status")))


def test_the_leader_may_remove_itself(
    cluster: ClusterOfNodes, quorum_tool: Callable[..., Finished]
) -> None:
    node = cluster.nodes[cluster.controller()]
    who = ("--controller-id", str(node.id), "--controller-directory-id", node.directory_id)

    def removed() -> bool:
        """Apache Kafka's leader may have resigned before its answer is made: then that is 6."""
        quorum_tool("remove-controller", *who, at=at_controller(cluster, node.id))
        return node.id not in cluster.quorum().voters

    eventually(removed, what="it is no voter any more")
    eventually(lambda: cluster.controller() != node.id, what="another leader")
    eventually(lambda: node.id in cluster.quorum().observers, what="the old leader observes")

    def added() -> bool:
        """Asked at the new leader: a broker of Apache Kafka goes on asking the old one."""
        at = at_controller(cluster, cluster.controller())
        quorum_tool("--command-config", str(node.config_file), "add-controller", at=at)
        return set(cluster.quorum().voters) == {1, 2, 3}

    eventually(added, what="it is a voter again")


def test_the_status_names_another_leader_when_the_first_is_killed(
    cluster: ClusterOfNodes, quorum_tool: Callable[..., Finished], broker_kind: str
) -> None:
    before = status_of(quorum_tool("describe", "--status"))
    killed = int(before["LeaderId"])
    cluster.kill(killed)
    others = [node for node in (1, 2, 3) if node != killed]
    controllers = ",".join(at_controller(cluster, node)[1] for node in others)
    places = [("--bootstrap-controller", controllers)]
    if broker_kind == "barnabas":
        # A broker of Apache Kafka goes on asking the dead one, for longer than the tool waits.
        places += [("--bootstrap-server", cluster.address(node)) for node in (*others, 4)]
    try:
        for at in places:
            now = eventually(
                lambda at=at: status_of(quorum_tool("describe", "--status", at=at)), what="a leader"
            )
            assert int(now["LeaderId"]) in others
            assert int(now["LeaderEpoch"]) > int(before["LeaderEpoch"])
            rows = table_of(quorum_tool("describe", "--replication", at=at))
            assert {int(row["NodeId"]) for row in rows} >= {1, 2, 3}
    finally:
        cluster.restart(killed)
    eventually(
        lambda: (q := cluster.quorum()).voters.get(killed, -1) >= q.high_watermark,
        what="the killed voter has all",
    )


def test_dump_log_reads_the_metadata_logs_and_snapshots(
    cluster: ClusterOfNodes, java_tools: JavaTools
) -> None:
    where = ("--bootstrap-server", cluster.bootstrap_servers)
    for number in range(30):
        java_tools.run("TopicCommand", *where, "--create", "--topic", f"dumped-{number}",
                       "--partitions", "3", "--replication-factor", "2").ok()  # fmt: skip
    for node in cluster.nodes:
        directory = cluster.node_data_dir(node) / METADATA_LOG
        eventually(lambda d=directory: finished_snapshots(d), what=f"a snapshot at node {node}")
        # Once more if a snapshot let a segment go meanwhile.
        eventually(lambda d=directory: dumped(java_tools, sorted(d.glob("*.log"))), what="a dump")
        text = dumped(java_tools, [finished_snapshots(directory)[-1]])
        assert "SnapshotHeader" in text
        assert "SnapshotFooter" in text
        assert 'KRaftVersion {"version":0,"kRaftVersion":1}' in text.replace(": {", " {")
        for voter in (1, 2, 3):
            assert cluster.nodes[voter].directory_id in text
        assert '"type":"REGISTER_BROKER_RECORD"' in text
        assert '"type":"FEATURE_LEVEL_RECORD"' in text


def finished_snapshots(directory: Path) -> list[Path]:
    """Those that were made while it ran, not the one that formatting wrote."""
    found = sorted(directory.glob("*.checkpoint"))
    return [path for path in found if not path.name.startswith("0" * 20)]


def dumped(java_tools: JavaTools, files: list[Path]) -> str:
    names = ",".join(map(str, files))
    finished = java_tools.run("DumpLogSegments", "--cluster-metadata-decoder", "--files", names)
    text = finished.ok()
    for complaint in ("Exception", "mismatch", "isvalid: false", "corrupt", "Could not"):
        assert complaint not in finished.text, finished.text[-2000:]
    return text


def test_storage_info_knows_the_directory_of_a_voter(
    cluster: ClusterOfNodes, java_tools: JavaTools
) -> None:
    node = cluster.nodes[2]
    text = java_tools.run("kafka.tools.StorageTool", "info", "-c", str(node.config_file)).ok()
    assert f"Found log directory:\n  {node.data_dir}" in text
    assert f"cluster.id={cluster.cluster_id}" in text
    assert f"directory.id={node.directory_id}" in text
    assert "node.id=2" in text
    assert "problem" not in text


def test_static_voters_are_described_and_stay(
    start_cluster: Callable[..., ClusterOfNodes], java_tools: JavaTools
) -> None:
    static = start_cluster()
    where = ("--bootstrap-server", static.bootstrap_servers)
    status = status_of(java_tools.run("MetadataQuorumCommand", *where, "describe", "--status"))
    for node in static.nodes:
        text = dumped(java_tools, sorted((static.node_data_dir(node) / METADATA_LOG).glob("*.log")))
        assert re.search(rf'LeaderChange: \{{"version":\d,"leaderId":{status["LeaderId"]},', text)
        assert '"type":"REGISTER_BROKER_RECORD"' in text
    voters = {voter["id"]: voter for voter in json.loads(status["CurrentVoters"])}
    assert set(voters) == {1, 2, 3}
    for id_, voter in voters.items():
        port = static.nodes[id_].ports["CONTROLLER"]
        assert voter["endpoints"] == [f"CONTROLLER://127.0.0.1:{port}"]
    directory_id = static.nodes[1].directory_id
    refused = java_tools.run(
        "MetadataQuorumCommand", *where, "remove-controller", "--controller-id", "1",
        "--controller-directory-id", directory_id,
    )  # fmt: skip
    assert refused.code != 0
    assert "UnsupportedVersionException" in refused.text
    assert set(static.quorum().voters) == {1, 2, 3}


def test_static_voters_become_dynamic_ones_by_kafka_features(
    start_cluster: Callable[..., ClusterOfNodes], java_tools: JavaTools
) -> None:
    made = start_cluster()
    where = ("--bootstrap-server", made.bootstrap_servers)

    def features(*words: str) -> Finished:
        return java_tools.run("FeatureCommand", *where, *words)

    def upgraded() -> bool:
        """Refused until every voter has told the leader that it supports it."""
        finished = features("upgrade", "--feature", "kraft.version=1")
        assert finished.code == 0 or "not all of the voters support it" in finished.text
        return finished.code == 0

    def is_known() -> bool:
        """A broker tells of it once it has read it, a moment after the leader has written it."""
        found = re.search(r"kraft.version.*FinalizedVersionLevel: (\d)", features("describe").ok())
        return found is not None and found.group(1) == "1"

    eventually(upgraded, what="kraft.version 1")
    eventually(is_known, what="kraft.version 1 at the brokers")
    refused = features("downgrade", "--feature", "kraft.version=0")
    assert refused.code != 0
    assert "Can't downgrade" in refused.text

    def quorum_tool(*words: str) -> Finished:
        """Asked at the leader: a broker of Apache Kafka goes on asking an old one."""
        at = at_controller(made, made.controller())
        return java_tools.run("MetadataQuorumCommand", *at, *words)

    leader = made.controller()
    node = made.nodes[leader % 3 + 1]

    def removed() -> bool:
        quorum_tool("remove-controller", "--controller-id", str(node.id),
                    "--controller-directory-id", node.directory_id)  # fmt: skip
        return node.id not in made.quorum().voters

    eventually(removed, what="it is no voter any more")
    eventually(lambda: node.id in made.quorum().observers, what="the removed voter observes")

    def added() -> bool:
        quorum_tool("--command-config", str(node.config_file), "add-controller")
        return node.id in made.quorum().voters

    eventually(added, what="it is a voter again")
    made.kill(leader)
    made.restart(leader)
    made.await_nodes()
    describes(made, status_of(quorum_tool("describe", "--status")))
    text = dumped(java_tools, sorted((made.node_data_dir(node.id) / METADATA_LOG).glob("*.log")))
    assert 'KRaftVersion {"version":0,"kRaftVersion":1}' in text.replace(": {", " {")


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
def test_nodes_that_apache_kafkas_storage_tool_formatted_form_a_quorum(
    broker_kind: str,
    tmp_path: Path,
    java_tools: JavaTools,
    dynamic: bool,
) -> None:
    made = CLUSTERS[broker_kind](tmp_path, OFTEN, dynamic_quorum=dynamic)
    initial = ",".join(
        f"{node.id}@127.0.0.1:{node.ports['CONTROLLER']}:{node.directory_id}"
        for node in made.nodes.values()
    )
    with made.shown():
        for node in made.nodes.values():
            node.write_properties()
            java_tools.run(
                "kafka.tools.StorageTool", "format", "-t", made.cluster_id,
                "-c", str(node.config_file),
                *(("--initial-controllers", initial) if dynamic else ()),
            ).ok()  # fmt: skip
        made.begin_start()
        made.await_nodes()
        where = ("--bootstrap-server", made.bootstrap_servers)
        status = status_of(java_tools.run("MetadataQuorumCommand", *where, "describe", "--status"))
        assert status["ClusterId"] == made.cluster_id
        assert {voter["id"] for voter in json.loads(status["CurrentVoters"])} == {1, 2, 3}
        java_tools.run("TopicCommand", *where, "--create", "--topic", "t",
                       "--replication-factor", "3").ok()  # fmt: skip
        made.await_full_isr("t")
