"""A cluster of nodes on this machine, as an object: real processes that tests may kill, stop and
cut off from each other.

    with barnabas.Cluster(nodes=3) as cluster:
        cluster.bootstrap_servers       # "127.0.0.1:...,127.0.0.1:...,127.0.0.1:..."
        cluster.kill(2)                 # as a crash
        cluster.restart(2)
        cluster.partition(1, 3)         # neither hears of the other, clients reach both
        cluster.heal()

Nodes are numbered from 1, like their `node.id`. The first three are controllers too.

In the data directory each node has a folder, `node-1` and so on, with its `server.properties`, its
log `node.log` and its `data`. A cluster made again on the same directory is the same cluster, with
the same ports. `barnabas start --config node-2/server.properties` runs one node by hand.

Partitions need every connection between nodes to pass through a proxy of ours (barnabas.link_proxy,
one process); `proxied=False` leaves it out, for speed.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from barnabas.fresh import HOST, free_ports, random_uuid, taken
from barnabas.link_proxy import LinkProxy
from barnabas.process import (
    SAYS_IT_ALL,
    BrokerError,
    Context,
    Formatting,
    NodeProcess,
    Scratch,
    properties_text,
    property_texts,
    write_private,
    write_whole,
)

if TYPE_CHECKING:
    from barnabas.secured import Acl, Security

__tracebackhide__ = SAYS_IT_ALL
_CONTROLLERS_MAX = 3
_SECURED, _USERS = "security", "users.json"
_CLIENTS, _BROKERS, _CONTROLLERS = "PLAINTEXT", "REPLICATION", "CONTROLLER"
_CLUSTER_FILE = "cluster.properties"
# What the cluster says for each node by itself, and a config for all of them cannot say.
_OF_EACH_NODE = frozenset(
    (
        "advertised.listeners", "broker.id", "controller.listener.names",
        "controller.quorum.bootstrap.servers", "controller.quorum.voters",
        "inter.broker.listener.name", "listeners", "log.dir", "log.dirs", "metadata.log.dir",
        "node.id", "process.roles",
    )
)  # fmt: skip


class Cluster(Context):
    """`nodes` nodes on this machine. A context manager; or call `start` and `stop`.

    nodes      how many; with an existing data directory, as many as it was made with.
    data_dir   where everything lives; None makes a fresh directory that `stop` removes.
    config     properties by Kafka's names, for every node; they win over the cluster's own, but for
               those that are each node's (`listeners`, `node.id`): a ValueError.
    proxied    whether `partition` can be used; see the module.
    base_port  clients reach node i at base_port + i - 1; None takes free ports, or, with an
               existing data directory, its own.
    security   "sasl_ssl" encrypts all of it; `users` and `acls` as of Broker: barnabas.secured. The
               links of what is encrypted cannot be cut.
    """

    def __init__(
        self,
        nodes: int = 3,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, object] | None = None,
        *,
        proxied: bool = True,
        base_port: int | None = None,
        security: str | None = None,
        users: Mapping[str, str] | None = None,
        acls: Iterable[Acl] | None = None,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 60.0,
    ) -> None:
        if not _is_number(nodes) or nodes < 1:
            raise ValueError(f"nodes = {nodes!r}: expected at least 1")
        if base_port is not None and not (_is_number(base_port) and 0 < base_port < 65_536):
            raise ValueError(f"base_port = {base_port!r}: expected a port, 1 to 65535")
        self.nodes: Collection[int] = tuple(range(1, nodes + 1))
        self.cluster_id = ""
        self._config = property_texts(config)
        if wrong := sorted(self._config.keys() & _OF_EACH_NODE):
            raise ValueError(
                f"config {wrong[0]}: a cluster sets this for each of its nodes by itself;"
                " base_port and data_dir choose the ports and the place"
            )
        self._security: Security | None = None
        if (security, users, acls) != (None, None, None):
            from barnabas.secured import Security

            self._security = Security.of(security, users, acls, self._config)
        # The proxy reads in the clear who opened a connection.
        self._proxied = proxied and nodes > 1 and self._security is None
        self._base_port = base_port
        self._scratch: Scratch | None = None
        self._dir: Path | None = None if data_dir is None else Path(data_dir).absolute()
        self._ports: dict[str, int] = {}
        self._processes: dict[int, NodeProcess] = {}
        self._proxy: LinkProxy | None = None
        self._last_logs: dict[int, str] = {}
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s

    @staticmethod
    def is_in(directory: Path) -> bool:
        """Does a directory hold a cluster."""
        return (directory / _CLUSTER_FILE).exists()

    @staticmethod
    def check_place(directory: Path) -> None:
        """Raise BrokerError for the data directory of one broker."""
        if (directory / "meta.properties").exists():
            raise BrokerError(
                f"{directory} is the data of one broker: use another directory for a cluster"
            )

    @staticmethod
    def users_in(directory: Path) -> dict[str, str] | None:
        """The users of a secured cluster that a directory holds; None if it holds none."""
        path = directory / _SECURED / _USERS
        if not path.exists():
            return None
        users: dict[str, str] = json.loads(path.read_text("ascii"))["users"]
        return users

    # ---- what a test asks

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, as any client takes them."""
        return ",".join(self.address(node) for node in self.nodes)

    def address(self, node: int) -> str:
        """Where clients reach one node, "HOST:PORT"."""
        self._check(node)
        if not self._ports:
            raise BrokerError("the cluster was not started: call start(), or use it in a `with`")
        return f"{HOST}:{self._port(node, _CLIENTS)}"

    def client_config(self, user: str, *, library: str, mechanism: str = "PLAIN") -> dict[str, Any]:
        """As of Broker."""
        if self._security is None:
            raise ValueError("the cluster is not secured: it was made without security=")
        return self._security.client_config(self.bootstrap_servers, user, library, mechanism)

    @property
    def data_dir(self) -> Path:
        """The directory that holds all nodes."""
        if self._dir is None:
            raise BrokerError("the cluster has no data directory before it is started")
        return self._dir

    def node_dir(self, node: int) -> Path:
        """One node's folder: server.properties, node.log, data."""
        self._check(node)
        return self.data_dir / f"node-{node}"

    def pid(self, node: int) -> int | None:
        """The process id of a node; None when it does not run."""
        self._check(node)
        process = self._processes.get(node)
        return None if process is None else process.pid

    def log_text(self, node: int) -> str:
        """All a node wrote to its log; of the last run once the cluster has stopped."""
        self._check(node)
        process = self._processes.get(node)
        return self._last_logs.get(node, "") if process is None else process.log_text()

    def last_requests(self, node: int) -> str:
        """What clients and other nodes asked a node last, a line each, while it runs."""
        self._check(node)
        process = self._processes.get(node)
        return "" if process is None else process.last_requests()

    # ---- life

    def start(self) -> Self:
        """Start all nodes that do not run; returns when all are ready.

        Raises BrokerError with the log's end of the node that failed; those that were started are
        ended then.
        """
        nodes = self.begin_start()
        try:
            for node in nodes:
                self.await_ready(node)
        except BrokerError:
            for node in nodes:
                self._processes[node].kill()
            if not any(self.pid(node) for node in self.nodes):
                self._close_proxy()
            raise
        return self

    def begin_start(self) -> list[int]:
        """Start the processes of all nodes that do not run, and wait for none; returns which."""
        self._prepare()
        nodes = [node for node in self.nodes if self.pid(node) is None]
        for node in nodes:
            self._spawn(node)
        return nodes

    def await_ready(self, node: int, /) -> str:
        """Wait for a node that `begin_start` started; returns its address. Raises BrokerError."""
        return self._processes[node].await_ready(self._start_timeout_s)

    def stop(self) -> None:
        """Stop all nodes cleanly, at once. Removes the data directory when it made it.

        Raises BrokerError when one had to be killed, or ended with another exit code than 0, now or
        by itself before.
        """
        failed: list[BrokerError] = []
        for process in self._processes.values():
            if (failure := process.end_by_itself()) is not None:
                failed.append(failure)
            process.begin_end_of_all()
        self._last_logs = {}
        removals: list[threading.Thread] = []
        for node, process in self._processes.items():
            try:
                process.await_end(self._stop_timeout_s)
            except BrokerError as error:
                failed.append(error)
            self._last_logs[node] = process.log_text()
            if self._scratch is not None:  # on a busy disk this takes longer than all the rest
                place = (self.node_dir(node),)
                removals.append(threading.Thread(target=self._scratch.remove, args=place))
                removals[-1].start()
        self._processes.clear()
        self._close_proxy()
        for removal in removals:
            removal.join()
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = self._dir = None
            self._ports = {}
        if failed:
            raise failed[0]

    def kill(self, node: int) -> None:
        """End a node at once (SIGKILL), as a crash would. Its data stays."""
        self._running(node).kill()

    def pause(self, node: int) -> None:
        """Stop a node where it stands (SIGSTOP), as a long pause of its machine would."""
        self._running(node).pause()

    def resume(self, node: int) -> None:
        """Let a paused node go on (SIGCONT)."""
        self._running(node).resume()

    def stop_node(self, node: int) -> None:
        """Stop one node cleanly: its leaderships move to the others first. Raises BrokerError."""
        self._running(node).terminate(self._stop_timeout_s)

    def start_node(self, node: int) -> None:
        """Start one node that does not run; returns when it is ready. Raises BrokerError."""
        self._check(node)
        if self.pid(node) is not None:
            raise BrokerError(f"node {node} runs already (pid {self.pid(node)})")
        self._prepare()
        self._spawn(node)
        self.await_ready(node)

    def restart(self, node: int) -> None:
        """Stop one node cleanly if it runs, and start it again. Raises BrokerError."""
        if self.pid(node) is not None:
            self.stop_node(node)
        self.start_node(node)

    # ---- the links between nodes

    def partition(self, node: int, other: int, *, one_way: bool = False) -> None:
        """Cut the links between two nodes. What they send each other is held back until `heal`.

        one_way  only what `node` sends to `other` is held back.
        """
        self._check(node)
        self._check(other)
        self._cut([(node, other)] if one_way else [(node, other), (other, node)])

    def isolate(self, node: int) -> None:
        """Cut the links between one node and all others; clients still reach it."""
        self._check(node)
        others = [other for other in self.nodes if other != node]
        self._cut([pair for other in others for pair in ((node, other), (other, node))])

    def slow(self, node: int, other: int, ms: float, *, one_way: bool = False) -> None:
        """What two nodes send each other arrives `ms` milliseconds late, until `heal`.

        one_way  only what `node` sends to `other` is late.
        """
        self._check(node)
        self._check(other)
        if ms < 0:
            raise ValueError(f"ms = {ms}: expected 0 or more")
        self._links().delay(str(node), str(other), ms / 1000)
        if not one_way:
            self._links().delay(str(other), str(node), ms / 1000)

    def heal(self) -> None:
        """All links are whole and quick again; what was held back arrives."""
        self._links().heal()

    def _cut(self, links: Iterable[tuple[object, object]]) -> None:
        self._links().cut([(str(sender), str(receiver)) for sender, receiver in links])

    def _links(self) -> LinkProxy:
        if self._proxy is None:
            why = "it does not run"
            if len(self.nodes) == 1:
                why = "one node has none"
            elif not self._proxied:
                why = "it was made with proxied=False"
            if self._security is not None:
                why = "whose they are is encrypted (security=)"
            raise BrokerError(f"the links of this cluster cannot be cut: {why}")
        return self._proxy

    # ---- inside

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            with contextlib.suppress(BrokerError):
                self.stop()
            raise

    def __repr__(self) -> str:
        running = sum(self.pid(node) is not None for node in self.nodes)
        return f"<barnabas.Cluster of {len(self.nodes)} nodes, {running} running>"

    def _check(self, node: int) -> None:
        if node not in self.nodes:
            raise ValueError(f"node {node}: expected 1 to {len(self.nodes)}")

    def _running(self, node: int) -> NodeProcess:
        self._check(node)
        process = self._processes.get(node)
        if process is None or process.pid is None:
            raise BrokerError(f"node {node} does not run; restart({node}) brings it back")
        return process

    def _port(self, node: int, listener: str, suffix: str = "") -> int:
        return self._ports[f"node.{node}.{listener.lower()}{suffix}"]

    def _close_proxy(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None

    def _spawn(self, node: int) -> None:
        process = self._processes.get(node)
        if process is None:
            process = NodeProcess(f"node {node}", self.node_dir(node) / "node.log")
            self._processes[node] = process
        arguments = ["start", "--config", str(self.node_dir(node) / "server.properties")]
        if self._scratch is not None:
            arguments += ["--then-remove", str(self._scratch.path)]
        process.spawn(arguments)

    def _prepare(self) -> None:
        """Directory, ports, properties, formatted data, proxy: what is not there yet."""
        if self._dir is None:
            self._scratch = Scratch(self, "barnabas-cluster-")
            self._dir = self._scratch.path
        self.check_place(self._dir)
        try:
            self._write_files()
        except OSError as error:
            where = error.filename or self._dir
            raise BrokerError(f"{where} cannot be used: {error.strerror or error}") from error
        self._format()
        if self._proxied and self._proxy is None:
            self._proxy = self._make_proxy()

    def _write_files(self) -> None:
        if not self._ports:
            self._load_or_choose()
        self._prepare_security()
        for node in self.nodes:
            self.node_dir(node).mkdir(parents=True, exist_ok=True)
            text = properties_text(self._properties(node))
            path = self.node_dir(node) / "server.properties"
            if not path.exists() or path.read_text("utf-8") != text:
                write_private(path, text)

    def _prepare_security(self) -> None:
        folder = self.data_dir / _SECURED
        known = folder / _USERS
        if self._security is None:
            if known.exists():
                raise BrokerError(
                    f"{self.data_dir} is of a secured cluster: give its security, users and acls"
                )
            return
        if not known.exists() and any(self.data_dir.glob("node-*")):
            raise BrokerError(
                f"{self.data_dir} is of a cluster that is not secured: use another directory"
            )
        self._security.prepare(folder)
        self._security.same_as_in(known)

    def _make_proxy(self) -> LinkProxy:
        targets: dict[str, dict[str, int]] = {}
        ports: dict[str, dict[str, int]] = {}
        for node in self.nodes:
            names = [_BROKERS, *([_CONTROLLERS] if node in self._controllers else [])]
            targets[str(node)] = {name: self._port(node, name) for name in names}
            ports[str(node)] = {name: self._port(node, name, ".proxy") for name in names}
        return LinkProxy(targets, ports)

    def _load_or_choose(self) -> None:
        """The cluster's id and ports: what the directory says, else fresh ones."""
        assert self._dir is not None
        path = self._dir / _CLUSTER_FILE
        if path.exists():
            lines = [line for line in path.read_text("utf-8").splitlines() if "=" in line]
            known = dict(line.split("=", 1) for line in lines)
            if known.get("nodes") != str(len(self.nodes)):
                raise BrokerError(
                    f"{path} is of a cluster of {known.get('nodes')} nodes, not {len(self.nodes)}:"
                    " use that number, or another directory"
                )
            self.cluster_id = known["cluster.id"]
            self._ports = {k: int(v) for k, v in known.items() if k.startswith("node.")}
            if (port := taken(self._ports.values())) is not None:  # its files would be others now
                self._ports = {}
                raise BrokerError(
                    f"port {port} of the cluster in {self._dir} is in use: stop the cluster, which"
                    " runs already, or who else has its port"
                )
            if self._base_port not in (None, self._port(1, _CLIENTS)):
                raise BrokerError(
                    f"{path} is of a cluster whose base port is {self._port(1, _CLIENTS)}, not"
                    f" {self._base_port}: use that port, or another directory"
                )
            missing = [name for name in self._port_names() if name not in self._ports]
            self._choose_ports(missing)
        else:
            self.cluster_id = random_uuid()
            self._choose_ports(list(self._port_names()))
        self._dir.mkdir(parents=True, exist_ok=True)
        known = {"cluster.id": self.cluster_id, "nodes": str(len(self.nodes))}
        known |= {name: str(port) for name, port in self._ports.items()}
        text = "".join(f"{key}={value}\n" for key, value in known.items())
        write_whole(path, text, 0o644)  # half of it would be another cluster

    @property
    def _controllers(self) -> tuple[int, ...]:
        return tuple(self.nodes)[:_CONTROLLERS_MAX]

    def _port_names(self) -> Iterator[str]:
        """Clients' ports first, so that a base port gives them consecutive numbers."""
        for node in self.nodes:
            yield f"node.{node}.{_CLIENTS.lower()}"
        for node in self._controllers:
            yield f"node.{node}.{_CONTROLLERS.lower()}"
        if self._proxied:
            for node in self.nodes:
                yield f"node.{node}.{_BROKERS.lower()}"
                yield f"node.{node}.{_BROKERS.lower()}.proxy"
            for node in self._controllers:
                yield f"node.{node}.{_CONTROLLERS.lower()}.proxy"

    def _choose_ports(self, names: list[str]) -> None:
        if self._base_port is not None:
            first = max([self._base_port - 1, *self._ports.values()]) + 1
            chosen = {name: first + index for index, name in enumerate(names)}
            if (port := taken(chosen.values())) is not None:  # before they are written down
                raise BrokerError(
                    f"port {port} is in use by another process: stop it, or choose another base"
                    f" port (of {first} to {first + len(names) - 1} all must be free)"
                )
            self._ports |= chosen
            return
        ports = free_ports(len(names), not_these=self._ports.values())
        self._ports |= dict(zip(names, ports, strict=True))

    def _properties(self, node: int) -> dict[str, str]:
        is_controller = node in self._controllers
        suffix = ".proxy" if self._proxied else ""
        voters = (f"{n}@{HOST}:{self._port(n, _CONTROLLERS, suffix)}" for n in self._controllers)
        protocol = "PLAINTEXT" if self._security is None else "SASL_SSL"
        ports = {protocol: self._port(node, _CLIENTS)}  # a listener called like its protocol
        told = dict(ports)
        for name in (*([_BROKERS] if self._proxied else []), *([_CONTROLLERS] * is_controller)):
            ports[name] = self._port(node, name)
            told[name] = self._port(node, name, suffix)
        own: dict[str, str] = {}
        if self._security is not None:
            nodes = [_BROKERS, _CONTROLLERS] if self._proxied else [_CONTROLLERS]
            own = self._security.properties(protocol, nodes, self._config)
        replicas = str(min(3, len(self.nodes)))
        in_sync = "2" if len(self.nodes) > 2 else "1"
        return {
            "process.roles": "broker,controller" if is_controller else "broker",
            "node.id": str(node),
            "controller.quorum.voters": ",".join(voters),
            "listeners": _listeners(ports),
            "advertised.listeners": _listeners(told),
            "controller.listener.names": _CONTROLLERS,
            "inter.broker.listener.name": _BROKERS if self._proxied else protocol,
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name in (protocol, _BROKERS, _CONTROLLERS)
            ),
            "log.dirs": str(self.node_dir(node) / "data"),
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            "group.initial.rebalance.delay.ms": "0",
            **self._config,
            **own,
        }

    def _format(self) -> None:
        """Format the nodes that are not, all at once."""
        runs = []
        first = () if self._security is None else self._security.format()
        scratch = None if self._scratch is None else self._scratch.path
        for node in self.nodes:
            folder = self.node_dir(node)
            if not (folder / "data" / "meta.properties").exists():
                config = folder / "server.properties"
                runs.append(Formatting(f"node {node}", config, self.cluster_id, scratch, *first))
        complaints = [complaint for run in runs if (complaint := run.wait()) is not None]
        if complaints:
            raise complaints[0]


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _listeners(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
