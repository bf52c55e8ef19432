"""kafka-reassign-partitions with `log_dirs`: a replica moves to another disk of its broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from testkit.brokers.clusters import ClusterOfNodes
from testkit.clients.java_tools import JavaTools
from testkit.wait import eventually
from testkit.workloads.workload import Workload

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

FIRST = 5_000


class Writer(threading.Thread):
    """Goes on producing while the replica moves; every record must be acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.failed: list[Any] = []
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True}
        )
        self._ending = threading.Event()

    def send(self, count: int, size: int = 1_000) -> None:
        def note(error: Any, _message: Any) -> None:
            if error is not None:
                self.failed.append(error)

        for _ in range(count):
            value = b"%d" % self.sent
            self._producer.produce(self._topic, value.ljust(size), on_delivery=note)
            self._producer.poll(0)
            self.sent += 1

    def run(self) -> None:
        while not self._ending.wait(0.005):
            self.send(5)

    def end(self) -> None:
        if self.is_alive():
            self._ending.set()
            self.join(30)
        assert self._producer.flush(60) == 0
        assert self.failed == []


def read_all(bootstrap: str, topic: str, count: int) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe([topic])
    values: list[int] = []
    while len(values) < count:
        found = consumer.consume(min(count - len(values), 1_000), 20)
        assert found, f"{len(values)} of {count}"
        values += [int(message.value()) for message in found]
    consumer.close()
    return values


def test_a_replica_moves_to_another_directory_while_it_is_written_and_read(
    fresh_broker: Callable[..., Any], java_tools: JavaTools, topic_name: str, tmp_path: Path
) -> None:
    dirs = [tmp_path / "disk-a", tmp_path / "disk-b"]
    broker = fresh_broker({"log.dirs": ",".join(map(str, dirs))})

    def tool(name: str, *args: str) -> Any:
        return java_tools.run(name, "--bootstrap-server", broker.bootstrap_servers, *args)

    def where() -> dict[str, bool]:
        """Directory -> is it the future replica."""
        out = tool("LogDirsCommand", "--describe", "--topic-list", topic_name).ok()
        (line,) = [line for line in out.splitlines() if line.startswith("{")]
        return {
            directory["logDir"]: directory["partitions"][0]["isFuture"]
            for directory in json.loads(line)["brokers"][0]["logDirs"]
            if directory["partitions"]
        }

    tool("TopicCommand", "--create", "--topic", topic_name, "--partitions", "1").ok()
    writer = Writer(broker.bootstrap_servers, topic_name)
    writer.send(FIRST)
    before = where()
    assert list(before.values()) == [False]
    (target,) = {str(path) for path in dirs} - set(before)
    node = json.loads(
        tool("LogDirsCommand", "--describe").ok().splitlines()[-1]
    )["brokers"][0]["broker"]  # fmt: skip
    plan = tmp_path / "plan.json"
    row = {"topic": topic_name, "partition": 0, "replicas": [node], "log_dirs": [target]}
    plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
    writer.start()
    execute = ("--execute", "--reassignment-json-file", str(plan))
    out = tool("ReassignPartitionsCommand", *execute).ok()
    assert f"to {target} for replica {topic_name}-0 with broker {node}" in out
    verify = ("--verify", "--reassignment-json-file", str(plan))
    eventually(
        lambda: (
            f"Reassignment of replica {topic_name}-0-{node} completed successfully."
            in tool("ReassignPartitionsCommand", *verify).ok()
        ),
        timeout_s=60,
    )
    assert where() == {target: False}
    writer.end()
    assert read_all(broker.bootstrap_servers, topic_name, writer.sent) == list(range(writer.sent))
    broker.restart()
    assert where() == {target: False}
    assert read_all(broker.bootstrap_servers, topic_name, writer.sent) == list(range(writer.sent))


@pytest.mark.slow
def test_every_replica_of_three_nodes_moves_to_the_other_disk_and_back_under_load(
    make_cluster: Callable[..., ClusterOfNodes],
    java_tools: JavaTools,
    topic_name: str,
    tmp_path: Path,
) -> None:
    """Leaders and followers alike, all at once; a node dies in the middle of the way back."""
    cluster = make_cluster(disks=["disk-a", "disk-b"])
    nodes, plan = sorted(cluster.nodes), tmp_path / "plan.json"

    def move(partitions: int, *options: str) -> dict[tuple[int, int], Path]:
        """Begin; where each (node, partition) will be."""
        targets = {}
        for node in nodes:
            one, other = cluster.disks(node)
            for index in range(partitions):
                now = cluster.partition_dir(node, topic_name, index).parent
                targets[node, index] = other if now == one else one
        rows = [
            {"topic": topic_name, "partition": index, "replicas": nodes,
             "log_dirs": [str(targets[node, index]) for node in nodes]}
            for index in range(partitions)
        ]  # fmt: skip
        plan.write_text(json.dumps({"version": 1, "partitions": rows}))
        assert "Successfully started" in tool("--execute", *options)
        return targets

    def tool(*options: str) -> str:
        words = ("--reassignment-json-file", str(plan), *options)
        where = ("--bootstrap-server", cluster.bootstrap_servers)
        return java_tools.run("ReassignPartitionsCommand", *where, *words).ok()

    throttle = "--replica-alter-log-dirs-throttle"

    def have_moved(targets: dict[tuple[int, int], Path]) -> bool:
        return all(
            cluster.partition_dir(node, topic_name, index).parent == target
            for (node, index), target in targets.items()
        )

    with Workload(cluster, tmp_path, topic_name, partitions=3, rate=100, groups=False) as load:
        load.await_each_producing()
        targets = move(load.partitions)
        eventually(lambda: have_moved(targets), timeout_s=60, what="all have moved")
        eventually(
            lambda: tool("--verify").count("completed successfully") == len(targets),
            what="the tool says so",
        )
        load.await_each_producing()
        targets = move(load.partitions, throttle, "5000")
        first = cluster.disks(nodes[0])
        eventually(lambda: any(list(disk.glob("*-future")) for disk in first), what="it copies")
        cluster.kill(nodes[0])
        assert not have_moved(targets)
        load.await_each_producing()
        cluster.restart(nodes[0])
        tool("--execute", "--additional", throttle, "100000000")
        eventually(lambda: have_moved(targets), timeout_s=60, what="all are back")
        assert not any(list(disk.glob("*-future")) for disk in first)
        load.await_each_producing()
        load.prove()
