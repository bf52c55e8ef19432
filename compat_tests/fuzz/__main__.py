"""Wild requests to all listeners of a real node, with honest clients beside them.

    python -m compat_tests.fuzz --requests 100000 --seed 1      (make fuzz N=... SEED=...)

Fails if an honest request fails, if the honest p99 is above 50 ms, if the node ends, writes of a
fault of its own into its log, or takes more memory than it may. The requests go to the broker's
listener, to the controller's, and over SASL_SSL from one who has logged in; of strangers there, who
need a connection for nearly each, are fewer. The same seed sends the same requests; how they meet
each other in the node is left to chance.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from kio.index import load_response_schema
from kio.serial import entity_reader

from barnabas.fresh import random_uuid
from compat_tests.fuzz.honest import await_topic
from compat_tests.security.conftest import make_stores
from testkit.brokers.nodes import await_answer
from testkit.clients import raw
from testkit.ports import free_ports

P99_MS_MAX = 50.0
RSS_MIB_MAX = 700
TOPICS = ("fuzz-a", "fuzz-b", "fuzz-compact")
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_LOGIN = 'mallory="mallory-secret"'
FAULTS = ("Traceback (most recent call last)", "request failed")
_FAULTS_SHOWN = 20


class Node:
    """A node of its own, with a listener for clients and one for controllers."""

    def __init__(self, directory: Path) -> None:
        self._ports = free_ports(3)
        stores = make_stores(directory)
        self.authority = stores.authority
        self.node_id = random.SystemRandom().randrange(100_000, 1 << 30)
        self._log = directory / "node.log"
        settings = {
            "process.roles": "broker,controller",
            "node.id": self.node_id,
            "listeners": (
                f"PLAINTEXT://{self.clients},SECURE://{self.secure},CONTROLLER://{self.controllers}"
            ),
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": f"{_PLAIN} required user_{_LOGIN};",
            **stores.server_keys,
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"{self.node_id}@{self.controllers}",
            "log.dirs": directory / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "share.coordinator.state.topic.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        config = directory / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        barnabas = [sys.executable, "-m", "barnabas"]
        formatting = [*barnabas, "format", "--config", str(config)]
        formatting += ["--cluster-id", random_uuid()]
        subprocess.run(formatting, check=True, capture_output=True)
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*barnabas, "start", "--config", str(config)], stdout=log, stderr=log
            )
        self._host, port = self.clients.split(":")
        await_answer(self._host, int(port), alive=lambda: self.process.poll() is None)

    @property
    def clients(self) -> str:
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def secure(self) -> str:
        return f"localhost:{self._ports[2]}"

    @property
    def controllers(self) -> str:
        return f"127.0.0.1:{self._ports[1]}"

    @property
    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def rss_mib(self) -> float:
        return float(psutil.Process(self.process.pid).memory_info().rss) / (1 << 20)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def topic_ids(bootstrap: str) -> list[str]:
    """The ids of the topics to attack, in hex: from Metadata v12, read by kio."""
    with raw.connect(bootstrap) as sock:
        head = raw.header(raw.METADATA, 12) + b"\0"
        sock.sendall(raw.frame(head + b"\0\0\0\0"))
        answer = raw.read_frame(sock)
    read = entity_reader(load_response_schema(raw.METADATA, 12))
    metadata, _ = read(answer, 5)
    return [one.topic_id.hex for one in metadata.topics if one.name in TOPICS and one.topic_id]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m compat_tests.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", default="1")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory))
        try:
            wrong = fuzz(node, options.requests, options.seed)
        finally:
            node.stop()
        for line in wrong:
            print(f"WRONG: {line}")
        if wrong:
            print(faults_of(node.log_text))
    return 1 if wrong else 0


def faults_of(log: str) -> str:
    """The first lines of each kind of fault in a log, or its end."""
    faults: dict[str, str] = {}
    for fault in re.split(r"\n(?=\d{4}-\d\d-\d\d )", log):
        if re.match(r"\S+ \S+ (ERROR|CRITICAL)", fault) or any(one in fault for one in FAULTS):
            faults.setdefault("".join(fault.splitlines()[-2:]), fault)
    shown = list(faults.values())[:_FAULTS_SHOWN] or log.splitlines()[-_FAULTS_SHOWN:]
    return "\n".join(shown)


def fuzz(node: Node, requests: int, seed: str) -> list[str]:
    """Attack, and say what is wrong afterwards."""
    for topic in TOPICS:
        await_topic(node.clients, topic)
    ids = topic_ids(node.clients)
    honest = subprocess.Popen(
        [sys.executable, "-m", "compat_tests.fuzz.honest", node.clients],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert honest.stdout is not None
    assert honest.stdout.readline() == "ready\n", "the honest clients did not get ready"
    started = time.monotonic()
    stranger = {"FUZZ_CA": str(node.authority)}
    kinds: dict[str, tuple[str, int, dict[str, str]]] = {
        "broker": (node.clients, requests * 2 // 5, {}),
        "controller": (node.controllers, requests * 2 // 5, {}),
        "known": (node.secure, requests // 5, {**stranger, "FUZZ_LOGIN": "mallory:mallory-secret"}),
        "stranger": (node.secure, requests // 100, stranger),
    }
    attacks = [
        subprocess.Popen(
            [sys.executable, "-m", "compat_tests.fuzz.attack", name, to, seed, str(count)],
            stdout=subprocess.PIPE, text=True,
            env={**os.environ, "FUZZ_TOPIC_IDS": " ".join(ids), **login},
        )
        for name, (to, count, login) in kinds.items()
    ]  # fmt: skip
    peak = 0.0
    wrong: list[str] = []
    while any(attack.poll() is None for attack in attacks):
        if node.process.poll() is not None:
            wrong.append(f"the node ended with {node.process.returncode}")
            break
        peak = max(peak, node.rss_mib())
        time.sleep(0.25)
    for name, attack in zip(kinds, attacks, strict=True):
        said = attack.communicate()[0]
        print(f"{name}: {said.strip()}")
        if attack.returncode and not wrong:
            wrong.append(f"the attack on the {name} listener ended with {attack.returncode}")
    report: dict[str, Any] = json.loads(honest.communicate()[0])
    print(f"honest: {json.dumps(report)}")
    print(f"{requests} requests in {time.monotonic() - started:.0f} s, peak RSS {peak:.0f} MiB")
    wrong += [f"honest: {failure}" for failure in report["failures"]]
    if report["p99_ms"] > P99_MS_MAX:
        wrong.append(f"the honest p99 is {report['p99_ms']:.1f} ms, {P99_MS_MAX} are allowed")
    if peak > RSS_MIB_MAX:
        wrong.append(f"the node took {peak:.0f} MiB, {RSS_MIB_MAX} are allowed")
    log = node.log_text
    wrong += [f"the log has {log.count(fault)} of {fault!r}" for fault in FAULTS if fault in log]
    return wrong


if __name__ == "__main__":
    sys.exit(main())
