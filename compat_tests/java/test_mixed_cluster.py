"""Two nodes of Barnabas and one of Apache Kafka 4.3.1 in one cluster.

Replication and the quorum's protocol, log and snapshots are Apache Kafka's only if its own nodes
can vote with ours, follow them and lead them. Nobody should run such a cluster; nothing proves
more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from testkit import jars
from testkit.brokers.clusters import CLUSTERS, METADATA_LOG, SMALL_JVM, ClusterOfNodes
from testkit.brokers.node_processes import Node
from testkit.clients.java_tools import JavaTools
from testkit.wait import eventually
from testkit.workloads.transactions import Transactions, create, read_committed
from testkit.workloads.workload import Workload

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(400)]

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
        super().__init__(directory, CONFIG, dynamic_quorum=True)
        self._class_path = jars.class_path()
        self._java_options = SMALL_JVM

    def kind_of(self, id_: int) -> str:
        return "kafka" if id_ == APACHE else "barnabas"

    def format_command(self, node: Node, *arguments: str) -> list[str]:
        return CLUSTERS[node.kind].format_command(self, node, *arguments)

    def start_command(self, node: Node) -> list[str]:
        return CLUSTERS[node.kind].start_command(self, node)

    def let_lead(self, apache: bool, tools: JavaTools) -> int:
        """The leader, after one of that kind became it: the others were no voters for a moment.

        Who wins an election among equals is chance; a quorum of one kind has no choice.
        """
        if (self.quorum().leader == APACHE) != apache:
            others = [node for node in self.nodes if (node == APACHE) != apache]
            for node in others:
                self.remove_voter(node, self.nodes[node].directory_id, tools)
            for node in others:
                self.add_voter(node, tools)
            self.await_all()
        leader = self.quorum().leader
        assert (leader == APACHE) == apache, leader
        return leader

    def remove_voter(self, node: int, directory_id: str, tools: JavaTools) -> None:
        """kafka-metadata-quorum remove-controller."""
        self._change_voters(node, False, tools, "remove-controller", "--controller-id", str(node),
                            "--controller-directory-id", directory_id)  # fmt: skip

    def add_voter(self, node: int, tools: JavaTools) -> None:
        """kafka-metadata-quorum add-controller, as an operator runs it on that node."""
        self._change_voters(node, True, tools, "--command-config",
                            str(self.nodes[node].config_file), "add-controller")  # fmt: skip

    def _change_voters(self, node: int, is_voter: bool, tools: JavaTools, *command: str) -> None:
        """Give the command until it is so: either kind's brokers may still ask the last leader."""

        def changed() -> bool:
            if (node in self.quorum().voters) is not is_voter:
                where = ("--bootstrap-server", self.bootstrap_servers)
                print(tools.run("MetadataQuorumCommand", *where, *command).err)
            return (node in self.quorum().voters) is is_voter

        eventually(changed, timeout_s=60, every_s=0.5, what=f"{command[0]} {node}")

    def prove_while_each_node_dies(self, directory: Path) -> None:
        """Either kind leads partitions that the other follows: before, during and after its death
        under load nothing is lost."""
        with Workload(self, directory, "shared", rate=100) as load:
            load.await_each_producing()
            for node in self.nodes:
                led = {self.leader("shared", index) for index in range(load.partitions)}
                assert led == set(self.nodes)
                self.kill(node)
                load.await_each_producing()
                self.restart(node)
                self.await_full_isr("shared")
                self.elect_preferred_leaders("shared")
            load.prove()

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
    with MixedCluster(tmp_path_factory.mktemp("mixed")).shown() as made:
        yield made.start()


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
    cluster.await_same_metadata_logs()


@pytest.mark.parametrize("apache", [False, True], ids=["barnabas-leads", "kafka-leads"])
def test_either_kind_leads_and_the_other_follows(
    cluster: MixedCluster, java_tools: JavaTools, apache: bool
) -> None:
    cluster.let_lead(apache, java_tools)
    create_topics(cluster, java_tools, f"led-by-{'kafka' if apache else 'barnabas'}")
    same_topics_everywhere(cluster)
    same_bytes_everywhere(cluster)


@pytest.mark.parametrize("apache", [False, True], ids=["barnabas-leads", "kafka-leads"])
def test_either_kind_joins_by_the_others_snapshot_and_is_made_a_voter(
    cluster: MixedCluster, java_tools: JavaTools, apache: bool
) -> None:
    leader = cluster.let_lead(apache, java_tools)
    create_topics(cluster, java_tools, f"snapshot-of-{'kafka' if apache else 'barnabas'}", 15)
    directory = cluster.node_data_dir(leader) / METADATA_LOG
    eventually(lambda: newest_snapshot(directory) > 0, what="a snapshot at the leader")
    joining = 1 if apache else APACHE
    lost_id = cluster.nodes[joining].directory_id
    cluster.kill(joining)
    cluster.wipe(joining)
    cluster.format(joining, joining=True)
    cluster.restart(joining)
    eventually(lambda: joining in cluster.quorum().observers, what="an observer")
    own = cluster.node_data_dir(joining) / METADATA_LOG
    eventually(lambda: newest_snapshot(own) > 0, what="a snapshot at the one that joins")

    cluster.remove_voter(joining, lost_id, java_tools)
    cluster.add_voter(joining, java_tools)
    cluster.await_all()
    same_topics_everywhere(cluster)
    same_bytes_everywhere(cluster)


def test_partitions_are_replicated_between_both_kinds_while_each_node_dies(
    cluster: MixedCluster, tmp_path: Path
) -> None:
    cluster.prove_while_each_node_dies(tmp_path)


def test_transactions_reach_both_kinds_while_each_node_dies(
    cluster: MixedCluster, topic_name: str
) -> None:
    """Coordinator on either kind, partitions on the other; librdkafka's protocol."""
    create(cluster, topic_name)
    with Transactions(cluster, topic_name, topic_name) as load:
        for node in cluster.nodes:
            load.await_more(10)
            cluster.kill(node)
            load.await_more(5)
            cluster.restart(node)
            cluster.await_full_isr(topic_name)
            cluster.elect_preferred_leaders(topic_name)
        load.await_more(10)
    load.prove(read_committed(cluster, topic_name))
    print(load)


@pytest.mark.parametrize("level", [2, 1])
def test_either_kind_coordinates_transactions_of_the_java_client(
    cluster: MixedCluster, java_tools: JavaTools, topic_name: str, level: int
) -> None:
    """Markers, and questions whether a partition belongs to a transaction, go both ways."""
    where = ("--bootstrap-server", cluster.bootstrap_servers)
    source, target = f"{topic_name}-source", f"{topic_name}-target"

    def load(topic: str, *more: str) -> None:
        java_tools.run("ProducerPerformance", *where, "--topic", topic, "--num-records", "300",
                       "--throughput", "-1", "--payload-monotonic", *more).ok()  # fmt: skip

    for topic in (source, target):
        java_tools.run("TopicCommand", *where, "--create", "--topic", topic, "--partitions", "3",
                       "--replication-factor", "3").ok()  # fmt: skip
    java_tools.run("FeatureCommand", *where, "upgrade", "--feature", "transaction.version=2")
    if level < 2:
        java_tools.run("FeatureCommand", *where, "downgrade", "--feature",
                       f"transaction.version={level}").ok()  # fmt: skip
    load(source)
    coordinators: set[int] = set()
    loads = 0
    while coordinators != set(cluster.nodes):  # which id goes where is for its hash to say
        assert loads < 60, coordinators
        id_ = f"{topic_name}-{loads}"
        loads += 1
        load(target, "--transactional-id", id_, "--transaction-duration-ms", "10",
             "--command-property", "transaction.timeout.ms=9000")  # fmt: skip
        if loads == 1:  # their topic is there by now; a slow start may have left one node without
            cluster.elect_preferred_leaders("__transaction_state")
        # A coordinator that an election just made does not list what it has not loaded yet.
        found = eventually(partial(listed_row, java_tools, where, id_), what=f"{id_} is listed")
        assert found is not None
        coordinators.add(int(found.group(1)))
    for partition in range(3):
        copied = java_tools.run(
            "TransactionalMessageCopier", "--broker-list", cluster.bootstrap_servers,
            "--transactional-id", f"copier-{target}-{partition}", "--use-group-metadata",
            "--consumer-group", f"group-{target}-{partition}", "--input-topic", source,
            "--input-partition", str(partition), "--output-topic", target,
            "--transaction-size", "50", "--transaction-timeout", "9000", timeout_s=90,
        )  # fmt: skip
        assert '"remaining":0' in copied.ok(), copied.text[-2000:]
    read = java_tools.run(
        "ConsoleConsumer", *where, "--topic", target, "--from-beginning",
        "--isolation-level", "read_committed", "--timeout-ms", "5000",
    )  # fmt: skip
    assert sorted(read.out.splitlines()) == sorted([str(i) for i in range(300)] * (loads + 1))


def listed_row(
    java_tools: JavaTools, where: tuple[str, str], transactional_id: str
) -> re.Match[str] | None:
    """Its line of kafka-transactions: coordinator, producer id, state."""
    listed = java_tools.run("TransactionsCommand", *where, "list").ok()
    return re.search(rf"{re.escape(transactional_id)}\s+(\d)\s+\d+\s+(\w+)", listed)


def newest_snapshot(directory: Path) -> int:
    """End offset of the newest snapshot in a metadata log's directory; 0 without one."""
    names = (path.name for path in directory.glob("*.checkpoint"))
    return max((int(n[:20]) for n in names if re.fullmatch(r"\d{20}-\d{10}\.checkpoint", n)),
               default=0)  # fmt: skip
