"""Requests to brokers by id: who is asked where, and who cannot be."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from barnabas.link_proxy import source_of
from server.peers import add_partitions_to_txn, end_offsets, share_persister, transaction_markers
from server.peers.broker_requests import BrokerRequests
from server.peers.call import PeerError
from testkit.clients import raw
from tests.server.handler_support import broker_registration, image_of
from wire.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

REQUEST = WriteTxnMarkersRequest(markers=[])


class Peers:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, peer, request, version, response_class, on_complete, **options):
        self.sent.append((peer.host, request, version, response_class, options))


def requests_of(peers: Peers | None, listener: str = "PLAINTEXT") -> BrokerRequests:
    image = image_of(brokers=[broker_registration(1), broker_registration(2, fenced=True)])
    return BrokerRequests(1, lambda: image, listener, peers)


def ask(requests: BrokerRequests, broker_id: int) -> list[Any]:
    answers: list[Any] = []
    requests.send(broker_id, REQUEST, answers.append, timeout_ms=700, channel="c")
    return answers


def test_another_broker_is_asked_at_its_endpoint_in_our_highest_version() -> None:
    """A fenced one too: it may lead nothing, but who asks knows best why it asks."""
    peers = Peers()
    assert ask(requests_of(peers), 2) == []
    options = {"timeout_ms": 700, "channel": "broker-1-c"}
    assert peers.sent == [("host-2", REQUEST, 2, WriteTxnMarkersResponse, options)]


@pytest.mark.parametrize(
    "module", [add_partitions_to_txn, end_offsets, share_persister, transaction_markers]
)
def test_who_stands_between_brokers_can_tell_whose_requests_these_are(module: ModuleType) -> None:
    """A proxy that isolates a node would let through what it took for a client's."""
    peers = Peers()
    requests_of(peers).send(2, REQUEST, print, timeout_ms=700, channel=module.CHANNEL)
    client_id = peers.sent[0][-1]["channel"]
    assert source_of(raw.frame(raw.header(27, 1, client=client_id))) == "1"


def test_the_node_itself_needs_no_socket() -> None:
    requests = requests_of(None)
    requests.serve_own(WriteTxnMarkersRequest, lambda request, answer: answer(("own", request)))
    assert ask(requests, 1) == [("own", REQUEST)]


@pytest.mark.parametrize(
    ("peers", "listener", "broker_id"),
    [(Peers(), "PLAINTEXT", 3), (Peers(), "OTHER", 2), (None, "PLAINTEXT", 2)],
    ids=["not registered", "not on this listener", "nobody else can be"],
)
def test_who_cannot_be_reached_is_an_answer(
    peers: Peers | None, listener: str, broker_id: int
) -> None:
    (answer,) = ask(requests_of(peers, listener), broker_id)
    assert isinstance(answer, PeerError)


def test_a_request_that_cannot_even_be_made_is_an_answer_too(caplog) -> None:
    """Who asks has noted that an answer is on its way, and asks nothing else before it."""

    class Broken(Peers):
        def send(self, peer, request, version, response_class, on_complete, **options):
            raise ValueError("no such field")

    (answer,) = ask(requests_of(Broken()), 2)
    assert isinstance(answer, PeerError)
    assert "no such field" in caplog.text
