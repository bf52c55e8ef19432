"""Fetching from leaders over the network: what `replication.following.fetcher` needs of sockets.

A `BrokerLeaderEndpoint` (Kafka: RemoteLeaderEndPoint over BrokerBlockingSender) is one blocking
connection to one leader's inter-broker listener, used by one fetcher thread. All brokers run the
same release, so requests go out in our highest versions and nobody asks for ApiVersions.

`cluster_links` is what makes a replica manager part of a cluster; the broker hands it over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from replication.following.fetcher_manager import FetcherThread
from replication.replicas.replica_manager import ClusterLinks
from server.peers.blocking_peer import BlockingPeer
from wire.messages.data import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from replication.controller.controller import Controller
    from replication.following.fetcher import ReplicaFetcher
    from replication.metadata.registrations import Endpoint
    from server.config.kafka_config import KafkaConfig
    from server.network.listeners import Listeners
    from server.peers.controller_channel import ControllerChannel
    from server.security.peer_security import PeerSecurity
    from storage.config import Clock, Scheduler

_ANSWER_BYTES_MAX = (1 << 31) - 1
"""A batch comes whole, whatever it weighs; of several as much as fetch.max.bytes there and
replica.fetch.response.max.bytes here allow (Kafka: NetworkReceive.UNLIMITED)."""
_RESPONSES: dict[type, type[Any]] = {
    FetchRequest: FetchResponse,
    ListOffsetsRequest: ListOffsetsResponse,
}


class BrokerLeaderEndpoint:
    """One leader's address; see `replication.following.fetcher_manager.InterruptibleEndpoint`."""

    def __init__(self, connect: Callable[[], BlockingPeer]) -> None:
        """`connect` gives a connection that is made when it is first used."""
        self._connect = connect
        self._peer = connect()
        self._is_closed = False

    def exchange(
        self, request: FetchRequest | ListOffsetsRequest
    ) -> FetchResponse | ListOffsetsResponse:
        """Send and wait. Raises OSError; the next exchange connects anew then."""
        kind = type(request)
        response: FetchResponse | ListOffsetsResponse = self._peer.exchange(
            request, kind.versions[1], _RESPONSES[kind]
        )
        return response

    def interrupt(self) -> None:
        """Give this connection up, and with it what the leader holds; the next is a new one."""
        if not self._is_closed:
            peer, self._peer = self._peer, self._connect()
            peer.close()

    def close(self) -> None:
        """End a wait at once, for good; from any thread."""
        self._is_closed = True
        self._peer.close()


class _Lifecycle(Protocol):
    @property
    def broker_epoch(self) -> int: ...


class ReplicatingBroker(Protocol):
    """What following other brokers needs of the one that follows."""

    @property
    def node_id(self) -> int: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def config(self) -> KafkaConfig: ...
    @property
    def listeners(self) -> Listeners: ...
    @property
    def controller(self) -> ControllerChannel | Controller: ...
    @property
    def lifecycle(self) -> _Lifecycle | None: ...
    @property
    def scheduler(self) -> Scheduler: ...
    @property
    def mover(self) -> Scheduler: ...
    @property
    def inter_broker_security(self) -> PeerSecurity | None: ...


def cluster_links(broker: ReplicatingBroker) -> ClusterLinks:
    """The broker's links to the rest: its controller, its epoch, its threads."""
    node_id, clock, config = broker.node_id, broker.clock, broker.config
    # A leader may hold a fetch for wait.max.ms, and be slow besides.
    timeout_s = config.get_int("replica.socket.timeout.ms") / 1000

    def run(fetcher: ReplicaFetcher, leader: Endpoint) -> FetcherThread:
        client_id = f"broker-{node_id}-fetcher-{fetcher.number}-leader-{fetcher.leader_id}"

        def connect() -> BlockingPeer:
            return BlockingPeer(
                leader.host,
                leader.port,
                client_id,
                timeout_s,
                broker.inter_broker_security,
                _ANSWER_BYTES_MAX,
            )

        return FetcherThread(fetcher, BrokerLeaderEndpoint(connect), clock)

    def broker_epoch() -> int:
        lifecycle = broker.lifecycle
        return -1 if lifecycle is None else lifecycle.broker_epoch

    return ClusterLinks(
        submit=lambda request, on_complete: broker.controller.submit(request, on_complete),
        broker_epoch=broker_epoch,
        run_fetcher=run,
        listener_name=broker.listeners.inter_broker_name,
        scheduler=broker.scheduler,
        mover=broker.mover,
    )
