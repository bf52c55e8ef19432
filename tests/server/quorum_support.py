"""A metadata quorum in one process: real drivers, real logs, real sockets, and no broker around.

Each node has what a controller process has of it: a log in a directory of its own, a RaftDriver, a
PeerClient with the transport, and a listener that serves the controllers' dispatch table. The state
machine on top remembers strings. `kill` ends a node as a crash does as far as others can see: its
listener and connections vanish first and nothing is said; only the disk is left in peace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from replication.metadata.image import MetadataImage
from replication.raft.driver import RaftConfig, RaftDriver
from replication.raft.faults import FaultHandler
from replication.raft.log import RaftLog
from replication.raft.snapshots import ControlRecord, SnapshotId, write_snapshot
from replication.raft.voter_set import Endpoint, Voter, VoterSet
from server.handlers import CONTROLLER_APIS
from server.network.listeners import Listener
from server.network.socket_server import SocketServer, SocketServerConfig, monotonic_ms
from server.peers.peer_client import PeerClient
from server.peers.raft_transport import RaftTransport
from testkit.clock import SkippingClock
from tests.replication.raft_support import Recorder, TextSerde
from tests.server.wire_client import WireClient
from wire.control_records import ControlRecordType
from wire.messages.raft_records import KRaftVersionRecord, VotersRecord

CLUSTER_ID = "quorum-of-tests-000001"
LISTENER = "CONTROLLER"
WAIT_S = 60.0
FETCH_TIMEOUT_MS = 100_000
FAST = {
    "election_timeout_ms": 200,
    "election_backoff_max_ms": 200,
    "fetch_timeout_ms": FETCH_TIMEOUT_MS,
    "request_timeout_ms": FETCH_TIMEOUT_MS,
    "fetch_max_wait_ms": 100,
}
"""Elections are repeated until one succeeds; whom it made leader no slow machine unseats: the fetch
timeout is over only when a test says so (`Quorum.pass_fetch_timeout`).
"""


def directory_id_of(node_id: int, incarnation: int = 1) -> bytes:
    return bytes([node_id] * 15 + [incarnation])


def eventually(condition: Callable[[], Any], what: str = "") -> Any:
    """What `condition` answers as soon as it is true."""
    deadline = time.monotonic() + WAIT_S
    pause = threading.Event()
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited in vain {what}"
        pause.wait(0.01)


class QuorumNode:
    """One node; also what handlers find as `ctx.broker`."""

    role = "controller"
    unlisted_apis: frozenset[int] = frozenset()
    authorizer = None
    apis = CONTROLLER_APIS
    is_alone = False

    def __init__(
        self, path: Path, node_id: int, directory_id: bytes, options: dict[str, Any], port: int = 0
    ) -> None:
        self.node_id = node_id
        self.cluster_id = CLUSTER_ID
        self.directory_id = directory_id
        self.metadata = MetadataImage()
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._options = options
        self.socket_server = SocketServer(
            SocketServerConfig(), [Listener(LISTENER, "127.0.0.1", port)], self, CONTROLLER_APIS
        )
        self.socket_server.bind()
        self.clock = SkippingClock()
        self.recorder = Recorder()
        self.fatal: list[BaseException] = []
        self.running = False

    @property
    def port(self) -> int:
        return self.socket_server.port

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(LISTENER, "127.0.0.1", self.port)

    @property
    def voter(self) -> Voter:
        return Voter(self.node_id, self.directory_id, (self.endpoint,))

    def start(self) -> None:
        self.peers = PeerClient(monotonic_ms, f"peers-{self.node_id}")
        self.peers.start()
        options = dict(self._options)
        self.raft = RaftDriver(
            self.node_id,
            RaftLog.open(self.path, self.clock),
            self.clock,
            TextSerde(),
            directory_id=self.directory_id,
            cluster_id=CLUSTER_ID,
            config=RaftConfig(**{**FAST, **options.pop("config", {})}),
            transport=RaftTransport(self.peers, self.node_id, LISTENER),
            endpoints=(self.endpoint,),
            listener_name=LISTENER,
            faults=FaultHandler(self.fatal.append),
            **options,
        )
        self.raft.add_listener(self.recorder)
        self.raft.start()
        self.socket_server.start()
        self.running = True

    def stop(self) -> None:
        """As a node that is told to stop: the others hear of it."""
        if self.running:
            self.running = False
            self.raft.shutdown(timeout_ms=FETCH_TIMEOUT_MS)
            self.socket_server.shutdown()
            self.peers.shutdown()

    def kill(self) -> None:
        """Vanish without a word."""
        if self.running:
            self.running = False
            self.peers.shutdown()
            self.socket_server.shutdown()
            self.raft.shutdown(timeout_ms=0)

    def pass_fetch_timeout(self) -> None:
        """Whoever waits for a fetch, or for the answer to one, has waited long enough."""
        self.clock.skipped_ms += 2 * FETCH_TIMEOUT_MS
        with self.raft._wake:
            self.raft._wake.notify()

    def append(self, *records: str) -> int:
        return self.raft.append(self.raft.leader_epoch, records)

    def ask(self, request: Any, version: int) -> Any:
        with WireClient(self.port) as client:
            return client.ask(request, version)

    def has(self, *records: str) -> None:
        """Wait until all of these are committed here, in this order."""
        expected = list(records)
        self.recorder.wait_for(lambda: self.recorder.records == expected)


class Quorum:
    """Several nodes, stopped at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nodes: dict[int, QuorumNode] = {}
        self._ports: dict[int, int] = {}

    def add(self, node_id: int, incarnation: int = 1, **options: Any) -> QuorumNode:
        """A node that is bound and not started; takes the place, and port, of one of that id."""
        node = QuorumNode(
            self.path / f"node-{node_id}-{incarnation}",
            node_id,
            directory_id_of(node_id, incarnation),
            options,
            self._ports.get(node_id, 0),
        )
        self.nodes[node_id] = node
        self._ports[node_id] = node.port
        return node

    def start_static(self, *node_ids: int) -> None:
        """Voters named by the configuration (kraft.version 0)."""
        for node_id in node_ids:
            self.add(node_id)
        voters = VoterSet(
            Voter(node.node_id, endpoints=(node.endpoint,)) for node in self.nodes.values()
        )
        for node in self.nodes.values():
            node._options["voters"] = voters
            node.start()

    def start_dynamic(self, *node_ids: int) -> None:
        """Voters named by the first snapshot (kraft.version 1)."""
        nodes = [self.add(node_id) for node_id in node_ids]
        for node in nodes:
            write_first_voters(node.path, [other.voter for other in nodes])
            node._options["bootstrap_servers"] = self.bootstrap_servers
            node.start()

    @property
    def bootstrap_servers(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", node.port) for node in self.nodes.values()]

    def restart(self, node_id: int) -> QuorumNode:
        """Start a node that was killed again, on its directory and port."""
        old = self.nodes[node_id]
        incarnation = old.directory_id[-1]
        node = self.add(node_id, incarnation, **old._options)
        node.start()
        return node

    def running(self) -> list[QuorumNode]:
        return [node for node in self.nodes.values() if node.running]

    def pass_fetch_timeout(self) -> None:
        for node in self.running():
            node.pass_fetch_timeout()

    def leader(self) -> QuorumNode:
        """The one node that leads and that all follow; waits for it.

        For whoever follows one that was killed the fetch timeout passes every second: an answer
        that was on its way when it passed began it anew.
        """
        again_s = time.monotonic() + 1

        def found() -> QuorumNode | None:
            nonlocal again_s
            running = self.running()
            if time.monotonic() > again_s:
                again_s += 1
                for node in running:
                    followed = self.nodes.get(node.raft.leader_id)
                    if followed is not None and not followed.running:
                        node.pass_fetch_timeout()
            known = {(node.raft.leader_id, node.raft.leader_epoch) for node in running}
            leaders = [node for node in running if node.raft.is_leader]
            return leaders[0] if len(leaders) == len(known) == 1 else None

        leader: QuorumNode = eventually(found, "for a leader")
        return leader

    def followers(self) -> list[QuorumNode]:
        leader = self.leader()
        return [node for node in self.running() if node is not leader]

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
            node.socket_server.shutdown()


def write_first_voters(path: Path, voters: Iterable[Voter]) -> None:
    """What formatting with --initial-controllers leaves (KIP-853)."""
    directory = path / "__cluster_metadata-0"
    directory.mkdir(parents=True)
    record = VotersRecord.Voter
    message = VotersRecord(
        version=0,
        voters=[
            record(
                voter_id=voter.node_id,
                voter_directory_id=voter.directory_id,
                endpoints=[
                    record.Endpoint(name=one.name, host=one.host, port=one.port)
                    for one in voter.endpoints
                ],
                kraft_version_feature=record.KRaftVersionFeature(
                    min_supported_version=0, max_supported_version=1
                ),
            )
            for voter in voters
        ],
    )
    version = KRaftVersionRecord(version=0, kraft_version=1)
    controls = [
        ControlRecord(ControlRecordType.KRAFT_VERSION, version.encode_bytes(0)),
        ControlRecord(ControlRecordType.KRAFT_VOTERS, message.encode_bytes(0)),
    ]
    write_snapshot(directory, SnapshotId(0, 0), 0, 0, controls, [])
