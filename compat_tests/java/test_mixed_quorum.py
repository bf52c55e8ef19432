"""Two nodes of Barnabas and one of Apache Kafka 4.3.1 in one metadata quorum.

The quorum's protocol, log and snapshots are Apache Kafka's only if its own nodes can vote with
ours, follow them and lead them. Nobody should run such a cluster; nothing proves more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.support import jars, replicas, views
from compat_tests.support.clusters import (
    SMALL_JVM,
    ApacheKafkaCluster,
    BarnabasCluster,
    ClusterOfNodes,
    Node,
)
from compat_tests.support.java_tools import JavaTools
from compat_tests.support.wait import eventually

pytestmark = [pytest.mark.java, pytest.mark.slow]

METADATA_LOG = "__cluster_metadata-0"
APACHE = 3
CONFIG = {
    "metadata.log.max.record.bytes.between.snapshots": 3000,
    # Kafka's own, for a JVM that starts beside the others.
    "controller.quorum.election.timeout.ms": 1000,
    "controller.quorum.fetch.timeout.ms": 2000,
    "broker.session.timeout.ms": 9000,
}


class MixedCluster(ClusterOfNodes):
    """Node 3 is Apache Kafka, the others are Barnabas."""

    kind = "mixed"

    def __init__(self, directory: Path) -> None:
        # When a leader dies Apache Kafka's node stands first: either kind must come to lead.
        patient = {"controller.quorum.fetch.timeout.ms": 4000}
        super().__init__(
            directory, CONFIG, dynamic_quorum=True, node_config={1: patient, 2: patient}
        )
        self._class_path = jars.class_path()
        self._java_options = SMALL_JVM

    def _kind(self, node: Node) -> type[ClusterOfNodes]:
        return ApacheKafkaCluster if node.id == APACHE else BarnabasCluster

    def format_command(self, node: Node, *arguments: str) -> list[str]:
        return self._kind(node).format_command(self, node, *arguments)

    def start_command(self, node: Node) -> list[str]:
        return self._kind(node).start_command(self, node)

    def leader_by_any(self, *, other_than: int) -> views.QuorumView:
        """The quorum, as soon as another node leads it."""

        def found() -> views.QuorumView:
            seen = self.quorum()
            assert seen.leader != other_than
            return seen

        return eventually(found, timeout_s=30, what="another leader")

    def let_lead(self, apache: bool) -> int:
        """Kill leaders until one of that kind leads; every node runs again afterwards."""
        for _ in range(10):
            leader = self.quorum().leader
            if (leader == APACHE) == apache:
                return leader
            self.kill(leader)
            self.leader_by_any(other_than=leader)
            self.restart(leader)
            self.await_all()
        raise AssertionError(f"no leader of the kind that was wanted, in ten elections: {leader}")

    def await_all(self) -> None:
        """Until every voter holds what is committed."""

        def all_have() -> bool:
            seen = self.quorum()
            assert set(seen.voters) == set(self.nodes), seen
            assert min(seen.voters.values()) >= seen.high_watermark > 0, seen
            return True

        eventually(all_have, timeout_s=60, what="three voters with all that is committed")


@pytest.fixture(scope="module")
def cluster(
    java_tools: JavaTools, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MixedCluster]:
    made = MixedCluster(tmp_path_factory.mktemp("mixed"))
    try:
        made.start()
        yield made
    finally:
        print(made.log_text())
        made.close()


def create_topics(cluster: MixedCluster, tools: JavaTools, prefix: str, count: int = 10) -> None:
    where = ("--bootstrap-server", cluster.bootstrap_servers)
    for number in range(count):
        tools.run("TopicCommand", *where, "--create", "--topic", f"{prefix}-{number}",
                  "--partitions", "3", "--replication-factor", "3").ok()  # fmt: skip


def same_topics_everywhere(cluster: MixedCluster) -> None:
    def same() -> bool:
        seen = [set(cluster.view(node).topics) for node in cluster.nodes]
        assert seen[0] == seen[1] == seen[2]
        return bool(seen[0])

    eventually(same, timeout_s=30, what="one view of the topics")


def same_bytes_everywhere(cluster: MixedCluster) -> None:
    """Below the high watermark all nodes hold the same batches."""
    cluster.await_all()
    below = cluster.quorum().high_watermark
    logs = {node: cluster.data_dir(node) / METADATA_LOG for node in cluster.nodes}

    def same() -> bool:
        found = replicas.differences(logs, below)
        assert not found, found[:5]
        return True

    eventually(same, timeout_s=20, what="metadata logs are the same")


@pytest.mark.parametrize("apache", [False, True], ids=["barnabas-leads", "kafka-leads"])
def test_either_kind_leads_and_the_other_follows(
    cluster: MixedCluster, java_tools: JavaTools, apache: bool
) -> None:
    cluster.let_lead(apache)
    create_topics(cluster, java_tools, f"led-by-{'kafka' if apache else 'barnabas'}")
    same_topics_everywhere(cluster)
    same_bytes_everywhere(cluster)


@pytest.mark.parametrize("apache", [False, True], ids=["barnabas-leads", "kafka-leads"])
def test_either_kind_joins_by_the_others_snapshot_and_is_made_a_voter(
    cluster: MixedCluster, java_tools: JavaTools, apache: bool
) -> None:
    leader = cluster.let_lead(apache)
    create_topics(cluster, java_tools, f"snapshot-of-{'kafka' if apache else 'barnabas'}", 15)
    directory = cluster.data_dir(leader) / METADATA_LOG
    eventually(lambda: newest_snapshot(directory) > 0, what="a snapshot at the leader")
    joining = 1 if apache else APACHE
    lost_id = cluster.nodes[joining].directory_id
    cluster.kill(joining)
    cluster.wipe(joining)
    cluster.format(joining, joining=True)
    cluster.restart(joining)
    eventually(lambda: joining in cluster.quorum().observers, what="an observer")
    own = cluster.data_dir(joining) / METADATA_LOG
    eventually(lambda: newest_snapshot(own) > 0, what="a snapshot at the one that joins")

    where = ("--bootstrap-server", cluster.bootstrap_servers)
    java_tools.run("MetadataQuorumCommand", *where, "remove-controller", "--controller-id",
                   str(joining), "--controller-directory-id", lost_id).ok()  # fmt: skip
    config = ("--command-config", str(cluster.nodes[joining].config_file))
    java_tools.run("MetadataQuorumCommand", *where, *config, "add-controller").ok()
    cluster.await_all()
    same_topics_everywhere(cluster)
    same_bytes_everywhere(cluster)


def newest_snapshot(directory: Path) -> int:
    """End offset of the newest snapshot in a metadata log's directory; 0 without one."""
    names = (path.name for path in directory.glob("*.checkpoint"))
    return max((int(n[:20]) for n in names if re.fullmatch(r"\d{20}-\d{10}\.checkpoint", n)),
               default=0)  # fmt: skip
