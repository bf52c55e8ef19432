"""A cluster of real processes to test: Apache Kafka 4.3.1, Barnabas, or both, node by node.

What: `BarnabasCluster` and `ApacheKafkaCluster` are `barnabas.Cluster`, the one that is sold: the
same start, kill, pause, stop, restart, partition, isolate and heal, on more shapes than it has.
They also tell what each node itself believes about leaders, in-sync replicas and the quorum.
Why: what a cluster promises must hold for both, under the same faults, with the same settings; and
what users hurt their clusters with is what ours are hurt with.
How: each node is broker and controller (KIP-500 "combined"); `broker_only` adds brokers, and with
`controllers=3` the nodes are brokers only and three controllers are added. Three listeners: CLIENT,
INTERNAL (between brokers) and CONTROLLER. `proxied=True` puts our proxy in front of all of them.
`dynamic_quorum=True` formats with --initial-controllers (KIP-853), else the voters are static.
Nodes are numbered from 1, controllers of their own from 101. A node is ready when it answers and
knows the others, which Apache Kafka's does not say in a line of its own.
Duties of the caller: start JVMs from one thread that lives on (a child dies with the thread that
made it), and `close()` at the end.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

from barnabas.cluster import Cluster
from barnabas.fresh import free_ports, random_uuid
from barnabas.launch import command
from barnabas.link_proxy import CLIENT, LinkProxy
from testkit import jars
from testkit.brokers.node_processes import Node
from testkit.brokers.nodes import (
    LOG_TAIL_BYTES,
    READY_TIMEOUT_S,
    BrokerDied,
    await_answer,
)
from testkit.checking import replicas, views
from testkit.clients import raw
from testkit.clients.secured import Connect
from testkit.quick_jvm import KAFKA_JVM
from testkit.wait import eventually

METADATA_LOG = "__cluster_metadata-0"
LISTENERS = ("CLIENT", "INTERNAL", "CONTROLLER")
SMALL_JVM = ("-Xmx256M", *KAFKA_JVM)

# Shorter timeouts than Kafka's own, so that a fault and its cure fit into seconds.
CHAOS = {
    "broker.heartbeat.interval.ms": 300,
    "broker.session.timeout.ms": 3000,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.election.backoff.max.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1000,
    "replica.lag.time.max.ms": 3000,
    "transaction.max.timeout.ms": 10_000,
}
REPLICATED = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.min.isr": 2,
    "share.coordinator.state.topic.replication.factor": 3,
    "share.coordinator.state.topic.num.partitions": 3,
    "share.coordinator.state.topic.min.isr": 2,
    "group.initial.rebalance.delay.ms": 0,
}


class ClusterOfNodes(Cluster):
    """What both kinds share. Subclasses say with which commands a node is formatted and started.

    `config` holds for all nodes; `node_config`, `environments` and `data_dirs` for one, by id.
    `disks` are the names of each node's log directories, where it has more than one.
    `on_fault` is told of everything that is done to the cluster (a history wants to know).
    """

    kind = ""

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any] | None = None,
        *,
        nodes: int = 3,
        broker_only: int = 0,
        controllers: int = 0,
        proxied: bool = False,
        dynamic_quorum: bool = False,
        node_config: Mapping[int, Mapping[str, Any]] | None = None,
        environments: Mapping[int, Mapping[str, str]] | None = None,
        data_dirs: Mapping[int, Path] | None = None,
        disks: Sequence[str] = ("data",),
    ) -> None:
        super().__init__(nodes, directory, proxied=proxied)
        self.cluster_id = random_uuid()
        self.on_fault: Callable[[str], None] = lambda what: None
        self._dynamic_quorum = dynamic_quorum
        self.nodes: dict[int, Node] = {}
        shapes = [
            (id_, True, not controllers and id_ <= nodes)
            for id_ in range(1, nodes + broker_only + 1)
        ]
        shapes += [(id_, False, True) for id_ in range(101, 101 + controllers)]
        ports = free_ports(2 * len(shapes) * len(LISTENERS))
        for id_, is_broker, is_voter in shapes:
            home = self.data_dir / f"node-{id_}"
            home.mkdir(parents=True, exist_ok=True)
            self.nodes[id_] = Node(
                id_, self.kind_of(id_), home, (data_dirs or {}).get(id_, home / disks[0]),
                {name: ports.pop() for name in LISTENERS},
                {name: ports.pop() for name in LISTENERS}, is_broker, is_voter,
                environment=dict((environments or {}).get(id_, {})), directory_id=random_uuid(),
            )  # fmt: skip
        self._processes = {node.id: node.process for node in self.nodes.values()}
        settings = {**REPLICATED, **CHAOS, **(config or {})}
        for node in self.nodes.values():
            node.properties = self._properties_of(node)
            more = (node.directory / name for name in disks[1:])
            node.properties["log.dirs"] = ",".join(map(str, [node.data_dir, *more]))
            node.properties.update({key: str(value) for key, value in settings.items()})
            own = (node_config or {}).get(node.id, {})
            node.properties.update({key: str(value) for key, value in own.items()})

    # ---- what the kinds differ in

    def kind_of(self, id_: int) -> str:
        """Of which kind a node is."""
        return self.kind

    def format_command(self, node: Node, *arguments: str) -> list[str]:
        raise NotImplementedError

    def start_command(self, node: Node) -> list[str]:
        raise NotImplementedError

    def connect(self, listener: str) -> Connect:
        """How a bare socket is let in on a listener."""
        return raw.connect

    def login(self, library: str) -> dict[str, Any]:
        """What a client of a library, `confluent` or `kafka-python`, is told to be let in."""
        return {}

    # ---- what barnabas.Cluster asks of a cluster that is shaped otherwise than its own

    def _load_or_choose(self) -> None:
        """All was chosen when it was made."""

    def _format(self) -> None:
        for node in self.nodes.values():
            if not (node.data_dir / "meta.properties").exists():
                self.format(node.id)

    def _spawn(self, id_: int) -> None:
        node = self.nodes[id_]
        node.process.run(self.start_command(node), environment=node.environment)

    def _make_proxy(self) -> LinkProxy:
        nodes = self.nodes.values()
        return LinkProxy(
            {str(node.id): node.ports for node in nodes},
            {str(node.id): node.proxy_ports for node in nodes},
        )

    def _properties(self, id_: int) -> dict[str, str]:
        return self.nodes[id_].properties

    # ---- life

    def start(self) -> Self:
        """Format and start every node; return when each knows all the others."""
        self.begin_start()
        self.await_nodes()
        return self

    def format(self, id_: int, *, joining: bool = False) -> None:
        """Format a node's directory; `joining` makes it no voter of its own (KIP-853)."""
        node = self.nodes[id_]
        arguments: tuple[str, ...] = ()
        if self._dynamic_quorum:
            initial = ",".join(
                f"{voter.id}@{self._address(voter, 'CONTROLLER')}:{voter.directory_id}"
                for voter in self.nodes.values()
                if voter.is_voter
            )
            arguments = ("--initial-controllers", initial)
            if joining or not node.is_voter:
                arguments = ("--no-initial-controllers",)
        done = subprocess.run(
            self.format_command(node, *arguments), capture_output=True, text=True,
            cwd=node.directory, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise BrokerDied(f"format of node {id_}: {done.stdout}{done.stderr}")
        text = (node.data_dir / "meta.properties").read_text(encoding="utf-8")
        (node.directory_id,) = re.findall(r"(?m)^directory\.id=(\S+)$", text)

    def await_ready(self, node: int, /) -> str:
        self.await_nodes(node)
        return self.address(node)

    def await_nodes(self, *ids: int, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Until these nodes (by default all that run) answer and know every running one."""
        running = [node for node in self.nodes.values() if node.runs]
        asked = [self.nodes[id_] for id_ in ids] or running
        for node in asked:
            try:
                await_answer(
                    "127.0.0.1", node.port, alive=lambda node=node: node.runs, timeout_s=timeout_s,
                    connect=self.connect("CLIENT" if node.is_broker else "CONTROLLER"),
                )  # fmt: skip
            except BrokerDied as died:
                raise BrokerDied(f"{node.process.error(str(died))}") from died
        expected = {node.id for node in running if node.is_broker}
        for node in (node for node in asked if node.is_broker):
            eventually(
                partial(self._knows, node, expected),
                timeout_s=timeout_s, what=f"node {node.id} knows the brokers {sorted(expected)}",
            )  # fmt: skip

    def _knows(self, node: Node, brokers: set[int]) -> bool:
        return brokers <= set(self.view(node.id).brokers)

    def kill(self, node: int) -> None:
        self.on_fault(f"kill {node}")
        super().kill(node)

    def kill_all(self) -> None:
        """SIGKILL to every node before any of them is waited for."""
        self.on_fault("kill all")
        for node in self.nodes.values():
            if node.runs:
                os.kill(node.pid, signal.SIGKILL)
        for node in self.nodes.values():
            node.process.kill()

    def stop_node(self, node: int) -> None:
        self.on_fault(f"terminate {node}")
        super().stop_node(node)

    def pause(self, node: int) -> None:
        self.on_fault(f"pause {node}")
        super().pause(node)

    def resume(self, node: int) -> None:
        self.on_fault(f"resume {node}")
        super().resume(node)

    def start_node(self, node: int) -> None:
        self.on_fault(f"start {node}")
        super().start_node(node)

    def wipe(self, node: int) -> None:
        """The disk of a node that does not run is replaced by an empty one."""
        self.on_fault(f"wipe {node}")
        assert not self.nodes[node].runs
        shutil.rmtree(self.nodes[node].data_dir)
        self.nodes[node].directory_id = random_uuid()

    def close(self) -> None:
        """End every process of this cluster, as nobody looks at it any more."""
        for node in self.nodes.values():
            node.process.kill()
        self._close_proxy()

    @contextmanager
    def shown(self) -> Iterator[Self]:
        """For one test or more: at the end the nodes' logs are printed, and no process is left."""
        try:
            yield self
        finally:
            print(self.all_logs())
            self.close()

    # ---- links (proxied clusters)

    def partition(self, node: int, other: int, *, one_way: bool = False) -> None:
        self.on_fault(f"cut {node} {other}{'' if one_way else ' both ways'}")
        super().partition(node, other, one_way=one_way)

    def isolate(self, node: int) -> None:
        self.on_fault(f"isolate {node}")
        super().isolate(node)

    def silence(self, node: int) -> None:
        """One way: what the node sends to other nodes is held back; it hears everything."""
        self.on_fault(f"silence {node}")
        self._cut([(node, other) for other in self.nodes if other != node])

    def deafen(self, node: int) -> None:
        """The other way: the node sends, and hears nothing."""
        self.on_fault(f"deafen {node}")
        self._cut([(other, node) for other in self.nodes if other != node])

    def cut_clients_from(self, node: int) -> None:
        """Clients do not reach the node, nor it them; the nodes reach each other."""
        self.on_fault(f"cut clients from {node}")
        self._cut([(CLIENT, node), (node, CLIENT)])

    def heal(self) -> None:
        self.on_fault("heal")
        super().heal()

    def sources(self) -> dict[str, list[str]]:
        """For each listener, "source target" of every connection so far."""
        return self._links().sources()

    # ---- questions

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(
            self._address(node, "CLIENT") for node in self.nodes.values() if node.is_broker
        )

    def address(self, node: int) -> str:
        """Where clients find this node."""
        return self._address(self.nodes[node], "CLIENT")

    def node_data_dir(self, node: int) -> Path:
        """The first log directory of a node."""
        return self.nodes[node].data_dir

    def disks(self, node: int) -> list[Path]:
        """All log directories of a node."""
        return [Path(name) for name in self.nodes[node].properties["log.dirs"].split(",")]

    def partition_dir(self, node: int, topic: str, partition: int) -> Path:
        """Where this node has its replica."""
        paths = [directory / f"{topic}-{partition}" for directory in self.disks(node)]
        found = [path for path in paths if path.is_dir()]
        assert len(found) == 1, f"{topic}-{partition} of node {node}: {found}"
        return found[0]

    def all_logs(self) -> str:
        """The end of every node's log."""
        share = LOG_TAIL_BYTES // len(self.nodes)
        return "\n".join(
            f"--- node {node.id} ({'runs' if node.runs else 'ended'})"
            f"\n{node.process.log_text()[-share:]}"
            for node in self.nodes.values()
        )

    def view(self, node: int, topic: str | None = None) -> views.ClusterView:
        """What this node believes, asked past the proxy."""
        address = f"127.0.0.1:{self.nodes[node].ports['CLIENT']}"
        return views.cluster(address, topic, connect=self.connect("CLIENT"))

    def running(self) -> list[int]:
        """The brokers that run (a paused one counts)."""
        return [node.id for node in self.nodes.values() if node.runs and node.is_broker]

    def controller(self, *, among: Sequence[int] = ()) -> int:
        """The active controller, in the words of the one that says so with the highest epoch."""
        return self.quorum(among=among).leader

    def quorum(self, *, among: Sequence[int] = ()) -> views.QuorumView:
        """The quorum as its leader describes it: each voter is asked on its CONTROLLER listener.

        Not through brokers: one that waits for a paused controller forwards nothing for as long as
        its request timeout, half a minute.
        """

        connect = self.connect("CONTROLLER")

        def ask() -> views.QuorumView:
            found: list[views.QuorumView] = []
            last: Exception | None = None
            for node in self.nodes.values():
                if node.is_voter and node.runs and (not among or node.id in among):
                    try:
                        address = f"127.0.0.1:{node.ports['CONTROLLER']}"
                        found.append(views.quorum(address, 1.0, connect=connect))
                    except (OSError, EOFError, ValueError) as error:
                        last = error
            assert found, f"no voter says that it leads: {last}"
            return max(found, key=lambda view: view.epoch)

        return eventually(ask, timeout_s=30, what="a quorum leader")

    def leader(self, topic: str, partition: int = 0, *, among: Sequence[int] = ()) -> int:
        """The partition's leader, once there is one and that node runs."""

        def ask() -> int:
            for id_ in among or self.running():
                try:
                    leader = self.view(id_, topic).topics[topic][partition].leader
                except (OSError, EOFError, IndexError):
                    continue
                if leader in (among or self.running()):
                    return leader
            return 0

        return eventually(ask, timeout_s=30, what=f"{topic}-{partition} has a leader")

    def await_full_isr(self, *topics: str, timeout_s: float = 60.0) -> None:
        """Until every node that runs sees each partition led, with all its replicas in sync."""

        def whole() -> bool:
            for id_ in self.running():
                known = self.view(id_)
                for topic in topics or known.topics:
                    parts = known.topics[topic]
                    if not parts:
                        return False
                    for part in parts:
                        if part.leader < 0 or set(part.isr) != set(part.replicas):
                            raise AssertionError(f"node {id_}: {topic} {part}")
            return True

        eventually(whole, timeout_s=timeout_s, every_s=0.1, what="all replicas in sync")

    def elect_preferred_leaders(self, topic: str) -> None:
        """Until every partition of the topic is led by the first of its replicas."""
        from confluent_kafka import ElectionType
        from confluent_kafka.admin import AdminClient

        where = {"bootstrap.servers": self.bootstrap_servers}
        admin = AdminClient(where | self.login("confluent"))

        def first_leads() -> bool:
            told = admin.elect_leaders(ElectionType.PREFERRED).result()
            refused = {str(at): str(why) for at, why in told.items() if at.topic == topic and why}
            view = self.view(self.running()[0], topic).topics[topic]
            assert all(part.leader == part.replicas[0] for part in view), (refused, view)
            return True

        eventually(first_leads, timeout_s=30, what=f"preferred leaders of {topic}")

    def await_same_metadata_logs(self) -> None:
        """Until below the high watermark every node's metadata log holds the same bytes."""
        logs = {node: self.node_data_dir(node) / METADATA_LOG for node in self.nodes}

        def same() -> bool:
            # Of now: a log may begin at a snapshot newer than the high watermark of before.
            found = replicas.differences(logs, self.quorum().high_watermark)
            assert not found, found[:5]
            return True

        eventually(same, timeout_s=20, what="metadata logs are the same")

    # ---- inside

    def _address(self, node: Node, listener: str) -> str:
        ports = node.proxy_ports if self._proxied else node.ports
        return f"127.0.0.1:{ports[listener]}"

    def _properties_of(self, node: Node) -> dict[str, str]:
        listeners = [*LISTENERS[:2]] if node.is_broker else []
        listeners += ["CONTROLLER"] if node.is_voter else []
        roles = ["broker"] if node.is_broker else []
        roles += ["controller"] if node.is_voter else []
        listened = (f"{name}://127.0.0.1:{node.ports[name]}" for name in listeners)
        advertised = (f"{name}://{self._address(node, name)}" for name in listeners)
        voters = [other for other in self.nodes.values() if other.is_voter]
        properties = {
            "process.roles": ",".join(roles),
            "node.id": str(node.id),
            "listeners": ",".join(listened),
            "advertised.listeners": ",".join(advertised),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in LISTENERS),
        }
        if node.is_broker:
            properties["inter.broker.listener.name"] = "INTERNAL"
        if self._dynamic_quorum:
            addresses = ",".join(self._address(voter, "CONTROLLER") for voter in voters)
            properties["controller.quorum.bootstrap.servers"] = addresses
        else:
            properties["controller.quorum.voters"] = ",".join(
                f"{voter.id}@{self._address(voter, 'CONTROLLER')}" for voter in voters
            )
        return properties


class ApacheKafkaCluster(ClusterOfNodes):
    """Raises jars.JarsUnavailable when Java or the jars cannot be had."""

    kind = "kafka"

    def __init__(self, *args: Any, java_options: Sequence[str] = SMALL_JVM, **kwargs: Any) -> None:
        self._class_path = jars.class_path()
        self._java_options = tuple(java_options)
        super().__init__(*args, **kwargs)

    def format_command(self, node: Node, *arguments: str) -> list[str]:
        return [
            jars.java(), "-Xmx128M", *KAFKA_JVM, "-cp", self._class_path,
            "kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(node.config_file),
            "--ignore-formatted", *arguments,
        ]  # fmt: skip

    def start_command(self, node: Node) -> list[str]:
        return [
            jars.java(), *self._java_options, "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-cp", self._class_path, "kafka.Kafka", str(node.config_file),
        ]  # fmt: skip


class BarnabasCluster(ClusterOfNodes):
    """Nodes started by the `barnabas` command, as on separate machines."""

    kind = "barnabas"

    def format_command(self, node: Node, *arguments: str) -> list[str]:
        return command(
            "format", "--cluster-id", self.cluster_id, "--config", str(node.config_file),
            "--ignore-formatted", *arguments,
        )  # fmt: skip

    def start_command(self, node: Node) -> list[str]:
        return command("start", "--config", str(node.config_file), "--stop-on-stdin-eof")


CLUSTERS: dict[str, type[ClusterOfNodes]] = {
    "kafka": ApacheKafkaCluster,
    "barnabas": BarnabasCluster,
}
