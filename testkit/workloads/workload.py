"""Clients at work while something is done to the cluster, and the verdict on what they saw.

    with Workload(cluster, tmp_path, topic) as load:
        load.await_acked(500)                    # 500 more than now
        cluster.kill(cluster.leader(topic))
        ...
    report = load.prove()        # stop, drain, check the history, compare the replicas

What: idempotent producers (confluent-kafka and kafka-python, acks=all), one consumer assigned to
every partition from the start, and two groups; reliability rules 5.2, "W1". Each library's
producers and all consumers have processes of their own (`workload_worker`), and the history is on
disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from testkit.brokers.clusters import ClusterOfNodes
from testkit.brokers.nodes import die_with_parent
from testkit.checking import replicas
from testkit.checking.checker import Report, assert_clean, check, reader_of
from testkit.checking.history import Fault, History, HistoryWriter, now
from testkit.wait import eventually

ROOT = Path(__file__).resolve().parents[2]
_END_S = 330


def create_topic(
    bootstrap: str,
    topic: str,
    partitions: int,
    replicas: int = 3,
    *,
    login: Mapping[str, Any] = MappingProxyType({}),
    **config: Any,
) -> None:
    """Create it and wait until every partition has a leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **login})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    new = NewTopic(topic, partitions, replicas, config=settings)
    admin.create_topics([new])[topic].result(60)

    def led() -> bool:
        found = admin.list_topics(topic, timeout=5).topics[topic].partitions
        return len(found) == partitions and all(part.leader > 0 for part in found.values())

    eventually(led, timeout_s=60, what=f"{topic} has leaders")


def end_offsets(
    bootstrap: str, topic: str, partitions: int, login: Mapping[str, Any] = MappingProxyType({})
) -> dict[int, int]:
    """The high watermark of each partition, as its leader tells."""
    own = {"bootstrap.servers": bootstrap, "group.id": "ends", "log_level": 0}
    consumer = Consumer({**own, **login})
    try:
        return {
            index: consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=60)[1]
            for index in range(partitions)
        }
    finally:
        consumer.close()


class Child:
    """One worker process and what it last said. Start it from a thread that lives on."""

    def __init__(self, task: dict[str, Any], log: Path) -> None:
        self.log = log
        with open(log, "ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "testkit.workloads.workload_worker", json.dumps(task)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT,
                preexec_fn=die_with_parent,
            )  # fmt: skip
        self.progress: dict[str, dict[str, int]] = {}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.progress = json.loads(line)

    def tell(self, command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def await_end(self) -> None:
        code = self._process.wait(_END_S)
        self._listener.join(10)
        assert code == 0, f"a workload's process ended with {code}: {self.log.read_text()[-3000:]}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def total(self, what: str) -> int:
        return sum(client.get(what, 0) for client in self.progress.values())


class Workload:
    """Producers and consumers on one topic. Starts with `with`; `finish` gives the verdict.

    `rate` is records a second of each producer. `producers` says how many of each library.
    `groups=False` leaves the consumer groups out. `producer_config` goes to confluent-kafka's
    producers, other keywords are the topic's configuration.
    """

    def __init__(
        self,
        cluster: ClusterOfNodes,
        directory: Path,
        topic: str,
        *,
        partitions: int = 6,
        producers: Mapping[str, int] | None = None,
        rate: float = 300,
        size: int = 200,
        groups: bool = True,
        producer_config: Mapping[str, Any] | None = None,
        **topic_config: Any,
    ) -> None:
        self.cluster, self.topic, self.partitions = cluster, topic, partitions
        self._directory = Path(directory) / "history"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._faults = HistoryWriter(self._directory / "faults.jsonl")
        self._topic_config = topic_config
        counts = producers or {"confluent": 2, "kafka-python": 1}
        self._producer_specs = {
            library: [
                {
                    "kind": f"{library}-producer", "who": f"{library}{index}", "rate": rate,
                    "size": size,
                    "config": cluster.login(library)
                    | (dict(producer_config or {}) if library == "confluent" else {}),
                }
                for index in range(count)
            ]
            for library, count in counts.items()
        }  # fmt: skip
        told = cluster.login("confluent")
        self._consumer_specs = [
            {"kind": "confluent-consumer", "who": "assigned", "group": "", "config": told}
        ]
        self.readers = ["assigned"]
        if groups:
            self.readers += ["group-c", "group-k"]
            self._consumer_specs += [
                {"kind": "confluent-consumer", "who": f"group-c/{n}", "group": "group-c",
                 "config": told}
                for n in range(2)
            ]  # fmt: skip
            self._consumer_specs.append(
                {"kind": "kafka-python-consumer", "who": "group-k/0", "group": "group-k",
                 "config": cluster.login("kafka-python")}
            )  # fmt: skip
        self._producing: list[Child] = []
        self._consuming: list[Child] = []

    def __enter__(self) -> Workload:
        bootstrap = self.cluster.bootstrap_servers
        if self.topic not in self.cluster.view(self.cluster.running()[0]).topics:
            told = self.cluster.login("confluent")
            create_topic(bootstrap, self.topic, self.partitions, login=told, **self._topic_config)
        # On every node: a client that meets one without the topic divides nothing among its group,
        # and kafka-python then does not always notice that the topic has come.
        self.cluster.await_full_isr(self.topic)
        self.cluster.on_fault = self.fault
        self._consuming = [self._child("consumers", self._consumer_specs)]
        self._await_partitions()
        self._producing = [
            self._child(library, specs) for library, specs in self._producer_specs.items() if specs
        ]
        return self

    def _await_partitions(self) -> None:
        """Until every reader has its partitions: a group that is forming is not what is tested."""

        def all_have() -> bool:
            have = dict.fromkeys(self.readers, 0)
            for child in self._consuming:
                for who, counts in child.progress.items():
                    have[reader_of(who)] += counts["partitions"]
            assert all(count == self.partitions for count in have.values()), have
            return True

        try:
            eventually(all_have, timeout_s=60, what="partitions for every reader")
        except AssertionError:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        self.cluster.on_fault = lambda what: None
        self.kill()  # again, after a `finish`
        self._faults.close()

    def _child(self, name: str, specs: list[dict[str, Any]]) -> Child:
        task = {
            "bootstrap": self.cluster.bootstrap_servers, "topic": self.topic,
            "partitions": self.partitions, "clients": specs,
            "history": str(self._directory / f"{name}.jsonl"),
        }  # fmt: skip
        return Child(task, self._directory / f"{name}.log")

    # ---- while it runs

    def fault(self, what: str) -> None:
        """Write down what was done to the cluster."""
        self._faults.add(Fault(now(), "test", what))
        self._faults.flush()

    @property
    def acked(self) -> int:
        return sum(child.total("acked") for child in self._producing)

    @property
    def unknown(self) -> int:
        return sum(child.total("unknown") for child in self._producing)

    def await_acked(self, more: int, timeout_s: float = 60.0) -> None:
        """Until that many more records than now are acknowledged."""
        wanted = self.acked + more
        eventually(
            lambda: self.acked >= wanted, timeout_s=timeout_s, every_s=0.02,
            what=f"{more} more acknowledged records (now {self.acked} of {wanted})",
        )  # fmt: skip

    def await_each_producing(self, more: int = 20, timeout_s: float = 60.0) -> None:
        """Until every producer got `more` acknowledgements: none is stuck."""
        eventually(
            lambda: all(child.progress for child in self._producing),
            timeout_s=timeout_s, what="the producers' processes have started",
        )  # fmt: skip
        before = self._acked_by_client()

        def behind() -> list[str]:
            acked = self._acked_by_client()
            return [who for who, count in before.items() if acked[who] < count + more]

        try:
            eventually(lambda: not behind(), timeout_s=timeout_s)
        except AssertionError as late:
            logs = "".join(child.log.read_text()[-3000:] for child in self._producing)
            raise AssertionError(f"stuck: {behind()}; their processes say: {logs}") from late

    def _acked_by_client(self) -> dict[str, int]:
        return {
            who: counts["acked"]
            for child in self._producing
            for who, counts in child.progress.items()
        }

    # ---- the end

    def finish(self) -> Report:
        """Stop the producers, let every reader read to the end, and check the whole history."""
        try:
            for child in self._producing:
                child.tell("stop")
            for child in self._producing:
                child.await_end()
            ends = self._ends()
            for child in self._consuming:
                child.tell(["drain", ends])
            for child in self._consuming:
                child.await_end()
        finally:
            self.kill()
        return check(self.history(), drained=self.readers)

    def _ends(self) -> dict[int, int]:
        where = self.cluster.bootstrap_servers
        return end_offsets(where, self.topic, self.partitions, self.cluster.login("confluent"))

    def prove(self) -> Report:
        """`finish`, and fail on any anomaly or on replicas that are not the same bytes."""
        report = self.finish()
        print(report)
        assert_clean(report)
        self.cluster.await_full_isr(self.topic)
        ends = self._ends()
        view = self.cluster.view(self.cluster.running()[0], self.topic)
        holders = {part.partition: part.replicas for part in view.topics[self.topic]}
        compared = replicas.assert_equal(self.cluster.partition_dir, self.topic, ends, holders)
        print(f"{compared} bytes of replicas are the same below the high watermark")
        return report

    def kill(self) -> None:
        for child in [*self._producing, *self._consuming]:
            child.kill()

    def history(self) -> History:
        return History(sorted(self._directory.glob("*.jsonl")))


def wait(seconds: float) -> None:
    """Let a fault last: the only bare sleep, because what is waited for is that nothing happens."""
    time.sleep(seconds)
