"""C15, C17: the active controller killed while topics come and go; a voter that lost its disk."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from testkit.brokers.clusters import METADATA_LOG, ClusterOfNodes
from testkit.checking.history import now
from testkit.clients.java_tools import JavaTools
from testkit.faults.rounds import TIMEOUT_S
from testkit.wait import eventually
from testkit.workloads.workload import Workload, wait

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

NEW_CONTROLLER_S = 2.5


class TopicChurn(threading.Thread):
    """Creates five topics a second and deletes every second one; notes what was acknowledged.

    An operation that failed in any way may have happened: its topic is left out of the judgement.
    """

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._ending = threading.Event()
        self.created: set[str] = set()
        self.deleted: set[str] = set()
        self.unknown: set[str] = set()
        self.acks: list[tuple[int, int]] = []  # asked at, acknowledged at

    def run(self) -> None:
        for number in itertools.count():
            if self._ending.wait(0.2):
                return
            name = f"churn-{number}"
            new = NewTopic(name, 2, 3)
            if self._do(name, lambda new=new: self._admin.create_topics([new], request_timeout=8)):
                self.created.add(name)
                drop = number % 2 == 0
                if drop and self._do(
                    name, lambda name=name: self._admin.delete_topics([name], request_timeout=8)
                ):
                    self.created.discard(name)
                    self.deleted.add(name)

    def _do(self, name: str, call: Callable[[], dict[str, Any]]) -> bool:
        asked = now()
        try:
            call()[name].result(15)
        except KafkaException as error:
            self.unknown.add(name)
            self.created.discard(name)
            print(f"{name}: {error}")
            return False
        self.acks.append((asked, now()))
        return True

    def end(self) -> None:
        self._ending.set()
        self.join(60)
        assert not self.is_alive()

    def first_ack_after(self, at: int) -> float:
        """Seconds from then to the first answer to an operation that was asked later."""
        return min(acked - at for asked, acked in self.acks if asked > at) / 1e9


def test_c15_controllers_killed_under_topic_churn_lose_no_acknowledged_change(
    make_cluster: Callable[..., ClusterOfNodes],
    tmp_path: Path,
    topic_name: str,
    rounds: Callable[[int], int],
    slack: float,
) -> None:
    cluster = make_cluster({"log.segment.delete.delay.ms": 1000}, controllers=3)
    kills = []
    with Workload(cluster, tmp_path, topic_name, rate=150) as load:
        load.await_each_producing()
        churn = TopicChurn(cluster.bootstrap_servers)
        churn.start()
        for _ in range(rounds(3)):
            wait(2)
            victim = cluster.controller()
            assert victim > 100
            kills.append(now())
            cluster.kill(victim)
            seen = len(churn.acks)
            eventually(lambda seen=seen: len(churn.acks) > seen + 5, timeout_s=60, what="changes")
            cluster.restart(victim)
            voters = set(cluster.nodes) - set(cluster.running())
            eventually(lambda voters=voters: caught_up(cluster) == voters, what="all voters")
        churn.end()
        report = load.prove()
    times = sorted(churn.first_ack_after(at) for at in kills)
    print(
        f"C15: {len(churn.acks)} changes acknowledged, {len(churn.unknown)} unknown; a new "
        f"controller serves after {', '.join(f'{t:.2f}' for t in times)} s"
    )
    assert report.unknown == 0  # brokers go on without a controller
    assert times[-1] <= NEW_CONTROLLER_S * slack
    assert_same_metadata(cluster)
    topics = set(cluster.view(1).topics)
    assert churn.created <= topics, churn.created - topics
    assert not churn.deleted & topics
    eventually(lambda: not left_on_disk(cluster, churn.deleted), timeout_s=60, what="deletion")
    cluster.await_same_metadata_logs()


def caught_up(cluster: ClusterOfNodes) -> set[int]:
    """The voters that have all but the last of what is committed."""
    seen = cluster.quorum()
    near = seen.high_watermark - 200  # topics come and go all the time
    return {node for node, end in seen.voters.items() if end > max(near, 0)}


def left_on_disk(cluster: ClusterOfNodes, topics: set[str]) -> list[str]:
    return [
        f"node {node}: {path.name}"
        for node in cluster.running()
        for path in cluster.node_data_dir(node).glob("churn-*-*")
        if path.name.rpartition("-")[0] in topics
    ]


def assert_same_metadata(cluster: ClusterOfNodes) -> None:
    """Every broker has come to believe the same about every topic."""

    def same() -> bool:
        seen = [cluster.view(node) for node in cluster.running()]
        assert all(view == seen[0] for view in seen), "brokers differ"
        return True

    eventually(same, timeout_s=30, what="one view of the metadata")


@pytest.mark.java
def test_c17_a_voter_that_lost_its_disk_comes_back_as_a_new_one(
    make_cluster: Callable[..., ClusterOfNodes],
    tmp_path: Path,
    topic_name: str,
    rounds: Callable[[int], int],
    java_tools: JavaTools,
) -> None:
    often = {"metadata.log.max.record.bytes.between.snapshots": 4000}
    cluster = make_cluster(often, dynamic_quorum=True)
    with Workload(cluster, tmp_path, topic_name, rate=150) as load:
        load.await_each_producing()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        for number in range(rounds(2)):
            names = [f"filler-{number}-{n}" for n in range(20)]
            for done in admin.create_topics([NewTopic(name, 3, 3) for name in names]).values():
                done.result(30)
            victim = cluster.controller() if number % 2 else cluster.leader(topic_name)
            lost_id = cluster.nodes[victim].directory_id
            cluster.kill(victim)
            load.await_each_producing()
            eventually(lambda: snapshots_of(cluster), what="a snapshot of the metadata")
            cluster.wipe(victim)
            cluster.format(victim, joining=True)
            cluster.restart(victim)
            replace_voter(cluster, java_tools, victim, lost_id)
            cluster.await_full_isr(timeout_s=120)
            cluster.elect_preferred_leaders(topic_name)  # the new disk's node among them
            load.await_each_producing()
        load.prove()
    assert_same_metadata(cluster)
    cluster.await_same_metadata_logs()


def snapshots_of(cluster: ClusterOfNodes) -> list[Path]:
    node = cluster.controller()
    return [
        path
        for path in (cluster.node_data_dir(node) / METADATA_LOG).glob("*.checkpoint")
        if not path.name.startswith("00000000000000000000-")
    ]


def replace_voter(cluster: ClusterOfNodes, java_tools: JavaTools, node: int, lost_id: str) -> None:
    """The old incarnation leaves the voters, the new one, an observer so far, joins them."""
    where = ("--bootstrap-server", cluster.bootstrap_servers)
    eventually(lambda: node in cluster.quorum().observers, timeout_s=30, what="an observer")
    gone = ("remove-controller", "--controller-id", str(node), "--controller-directory-id", lost_id)
    own = ("--command-config", str(cluster.nodes[node].config_file))
    for command, is_done in (
        ((*where, *gone), lambda: node not in cluster.quorum().voters),
        ((*where, *own, "add-controller"), lambda: node in cluster.quorum().voters),
    ):
        # Told by what is so: a quorum that elects just then refuses, or does it and cannot answer.
        eventually(
            lambda command=command, is_done=is_done: (
                java_tools.run("MetadataQuorumCommand", *command).code == 0 or is_done()
            ),
            timeout_s=60, every_s=1, what=" ".join(command),
        )  # fmt: skip
        eventually(is_done, timeout_s=30, what=f"as {command[-1]} asked")
    eventually(lambda: caught_up(cluster) == set(cluster.nodes), timeout_s=30, what="three voters")
