"""Fetching from a leader over a connection: who says it is asking, in which version, and how it
is stopped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from replication.following.fetcher import FetcherConfig, ReplicaFetcher
from replication.following.replication_quota import ReplicationQuota
from replication.metadata.registrations import Endpoint
from server.peers import replica_transport
from server.peers.replica_transport import BrokerLeaderEndpoint, cluster_links
from storage.config import SystemClock
from wire.messages.data import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)


class Peer:
    """A blocking connection that notes what goes over it."""

    made: list[Peer]

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        timeout_s: float,
        security: object = None,
        frame_bytes_max: int = 0,
    ) -> None:
        self.security = security
        self.frame_bytes_max = frame_bytes_max
        self.address = host, port
        self.client_id = client_id
        self.timeout_s = timeout_s
        self.sent: list[tuple[type, int]] = []
        self.is_closed = False
        Peer.made.append(self)

    def exchange(self, request: Any, version: int, response_class: type) -> Any:
        if self.is_closed:
            raise ConnectionError("closed")
        request.encode(version)
        self.sent.append((type(request), version))
        if response_class is FetchResponse:
            return FetchResponse(error_code=0, session_id=0, responses=[])
        return ListOffsetsResponse(topics=[])

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def peers(monkeypatch: pytest.MonkeyPatch) -> list[Peer]:
    Peer.made = []
    monkeypatch.setattr(replica_transport, "BlockingPeer", Peer)
    return Peer.made


def test_requests_go_out_in_our_highest_versions() -> None:
    endpoint = BrokerLeaderEndpoint(lambda: Peer("h", 1, "c", 1.0))  # type: ignore[arg-type, return-value]
    fetch = FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=0, topics=[])
    assert isinstance(endpoint.exchange(fetch), FetchResponse)
    ends = ListOffsetsRequest(replica_id=1, topics=[])
    assert isinstance(endpoint.exchange(ends), ListOffsetsResponse)
    assert Peer.made[0].sent == [(FetchRequest, 18), (ListOffsetsRequest, 11)]


def test_an_interruption_is_for_one_exchange_and_the_end_for_all() -> None:
    endpoint = BrokerLeaderEndpoint(lambda: Peer("h", 1, "c", 1.0))  # type: ignore[arg-type, return-value]
    endpoint.interrupt()
    assert [peer.is_closed for peer in Peer.made] == [True, False]
    fetch = FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=0, topics=[])
    endpoint.exchange(fetch)
    endpoint.close()
    endpoint.interrupt()
    with pytest.raises(ConnectionError):
        endpoint.exchange(fetch)


def test_a_broker_is_known_by_its_client_id_and_its_epoch(peers: list[Peer]) -> None:
    submitted: list[Any] = []
    broker = SimpleNamespace(
        node_id=3,
        clock=SystemClock(),
        config=SimpleNamespace(get_int=lambda key: {"replica.socket.timeout.ms": 5000}[key]),
        lifecycle=None,
        controller=SimpleNamespace(submit=lambda request, done: submitted.append(request)),
        listeners=SimpleNamespace(inter_broker_name="REPLICATION"),
        scheduler=object(),
        mover=object(),
        inter_broker_security=None,
    )
    links = cluster_links(broker)
    assert links.listener_name == "REPLICATION"
    assert links.broker_epoch() == -1
    broker.lifecycle = SimpleNamespace(broker_epoch=17)
    assert links.broker_epoch() == 17
    links.submit("request", print)
    assert submitted == ["request"]
    fetcher = ReplicaFetcher(
        FetcherConfig(), 1, 3, links.broker_epoch, broker.clock,
        quota=ReplicationQuota(broker.clock), on_progress=print, number=2,
    )  # fmt: skip
    runner = links.run_fetcher(fetcher, Endpoint("leader", 9092, 0))
    runner.shutdown()
    (peer,) = peers
    assert (peer.client_id, peer.address) == ("broker-3-fetcher-2-leader-1", ("leader", 9092))
    assert peer.timeout_s == 5
    assert peer.frame_bytes_max == 2**31 - 1, "whatever a batch of the leader's weighs"
    assert peer.is_closed
