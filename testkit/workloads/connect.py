"""A distributed worker of Kafka Connect whose sources write exactly once (KIP-618).

Each task's records, and the offsets of its source beside them, go into transactions of an id of its
own, and the leader writes the connectors' configs as a transactional producer, too: a successor
fences what a dead worker left.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from testkit import jars
from testkit.brokers.nodes import die_with_parent
from testkit.ports import free_ports
from testkit.quick_jvm import KAFKA_JVM
from testkit.wait import eventually

_READY_S = 90
_JVM_OPTIONS = (
    "-Xmx256M", *KAFKA_JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip
_GROUP = "connect"


class ConnectWorker:
    """`start` again after `kill` is its next life. Raises JarsUnavailable without Java or jars."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._class_path = jars.connect_class_path()
        self._url = f"http://127.0.0.1:{free_ports(1)[0]}"
        self._log = directory / "connect.log"
        self._properties = directory / "connect.properties"
        converter = "org.apache.kafka.connect.storage.StringConverter"
        properties = {
            "bootstrap.servers": bootstrap, "listeners": self._url, "group.id": _GROUP,
            "exactly.once.source.support": "enabled",
            "config.storage.topic": f"{_GROUP}-configs", "config.storage.replication.factor": 1,
            "offset.storage.topic": f"{_GROUP}-offsets", "offset.storage.replication.factor": 1,
            "offset.storage.partitions": 3,
            "status.storage.topic": f"{_GROUP}-status", "status.storage.replication.factor": 1,
            "status.storage.partitions": 1,
            "key.converter": converter, "value.converter": converter,
            "plugin.discovery": "service_load",
            "session.timeout.ms": 6000, "heartbeat.interval.ms": 500,
            "scheduled.rebalance.max.delay.ms": 0,
        }  # fmt: skip
        lines = (f"{name}={value}\n" for name, value in properties.items())
        self._properties.write_text("".join(lines), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ConnectWorker:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.kill()
        if kind is not None:
            print(self.log_tail())

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    jars.java(), *_JVM_OPTIONS, "-cp", self._class_path,
                    "org.apache.kafka.connect.cli.ConnectDistributed", str(self._properties),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent,
            )  # fmt: skip

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def connect(self, name: str, config: dict[str, Any]) -> None:
        """Create the connector, or change it; waits for the worker."""

        def put() -> bool:
            self._ask("PUT", f"/connectors/{name}/config", config)
            return True

        eventually(put, timeout_s=_READY_S, every_s=0.3, what=f"{name} is there")

    def log_tail(self) -> str:
        return self._log.read_text("utf-8", "replace")[-3000:] if self._log.exists() else ""

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self._url + path, method=method, headers={"Content-Type": "application/json"},
            data=None if body is None else json.dumps(body).encode(),
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
