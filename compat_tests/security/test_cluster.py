"""Three nodes in which everything is encrypted and everybody known, through a kill."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from compat_tests.security.conftest import ALICE, jaas_of, make_stores
from testkit.ports import free_ports
from testkit.wait import eventually

pytestmark = pytest.mark.slow
NODES = range(3)
PER_PHASE = 2000


def barnabas(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "barnabas", *words], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


class Nodes:
    """Three processes; brokers know each other by SCRAM, controllers by PLAIN."""

    def __init__(self, directory: Path, mechanism: str) -> None:
        self.directory = directory
        self.stores = make_stores(directory)
        self.brokers, self.controllers = free_ports(3), free_ports(3)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        cluster_id = barnabas("random-uuid").stdout.strip()
        for node in NODES:
            path = self.directory / f"{node}.properties"
            keys = self.keys(node, mechanism)
            path.write_text("".join(f"{k}={v}\n" for k, v in keys.items()))
            done = barnabas(
                "format", "-t", cluster_id, "-c", str(path),
                "--add-scram", "SCRAM-SHA-256=[name=admin,password=admin-secret]",
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert "admin-secret" not in done.stdout + done.stderr

    def keys(self, node: int, mechanism: str) -> dict[str, str]:
        voters = [f"{n + 1}@localhost:{port}" for n, port in enumerate(self.controllers)]
        return {
            "process.roles": "broker,controller",
            "node.id": str(node + 1),
            "log.dirs": str(self.directory / f"data-{node}"),
            "listeners": f"CLIENT://localhost:{self.brokers[node]},"
            f"CTL://localhost:{self.controllers[node]}",
            "listener.security.protocol.map": "CLIENT:SASL_SSL,CTL:SASL_SSL",
            "controller.listener.names": "CTL",
            "controller.quorum.voters": ",".join(voters),
            "inter.broker.listener.name": "CLIENT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "sasl.mechanism.inter.broker.protocol": mechanism,
            "sasl.mechanism.controller.protocol": "PLAIN",
            "connections.max.reauth.ms": "5000",
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "num.partitions": "3",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "3",
            **self.stores.server_keys,
            **jaas_of("client"),
            **jaas_of("ctl"),
        }

    def log(self, node: int) -> Path:
        return self.directory / f"{node}.log"

    def start(self, node: int) -> None:
        with self.log(node).open("ab") as log:
            self.processes[node] = subprocess.Popen(
                [sys.executable, "-m", "barnabas", "start", "--config",
                 str(self.directory / f"{node}.properties")],
                stdout=log, stderr=log,
            )  # fmt: skip

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_nothing_is_lost_when_a_node_is_killed(tmp_path: Path, mechanism: str) -> None:
    nodes = Nodes(tmp_path, mechanism)
    conf = {
        "bootstrap.servers": ",".join(f"localhost:{port}" for port in nodes.brokers),
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(nodes.stores.authority),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": ALICE,
        "log_level": 0,
    }
    acked: set[bytes] = set()
    try:
        for node in NODES:
            nodes.start(node)
        producer = Producer({**conf, "acks": "all", "enable.idempotence": True})

        def phase(number: int) -> None:
            for i in range(number * PER_PHASE, (number + 1) * PER_PHASE):
                producer.produce(
                    "t", str(i).encode(),
                    on_delivery=lambda error, m: error is None and acked.add(m.value()),
                )  # fmt: skip
                producer.poll(0)
            assert producer.flush(90) == 0

        phase(0)
        nodes.processes[0].kill()
        nodes.processes[0].wait()
        phase(1)
        nodes.start(0)
        phase(2)
        assert len(acked) == 3 * PER_PHASE
        consumer = Consumer({**conf, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        got: list[bytes] = []
        end = time.monotonic() + 60
        while len(set(got)) < len(acked) and time.monotonic() < end:
            message = consumer.poll(0.5)
            if message is not None and not message.error():
                got.append(message.value())
        consumer.close()
        assert (set(got), len(got)) == (acked, len(acked))
        file = tmp_path / "client.properties"
        file.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
            "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required"
            f' username="alice" password="{ALICE}";\n'
            f"ssl.truststore.type=PEM\nssl.truststore.location={nodes.stores.authority}\n"
        )
        where = ("--bootstrap", f"localhost:{nodes.brokers[1]}", "--client-config", str(file))
        eventually(lambda: barnabas("cluster", "status", *where).returncode == 0, timeout_s=60)
    finally:
        nodes.stop()
    for node in NODES:
        text = nodes.log(node).read_text()
        assert "admin-secret" not in text
        assert ALICE not in text
