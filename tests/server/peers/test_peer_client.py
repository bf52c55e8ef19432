"""PeerClient against peers that are played by the test, over real sockets.

Nothing sleeps: a peer answers when the test says so, and deadlines pass because the test's clock
does.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from server.network.transport import PlaintextTransport
from server.peers.call import Call, PeerError
from server.peers.peer_client import PeerClient
from server.peers.peer_connection import RECONNECT_BACKOFF_MAX_MS, addresses_of
from server.security.sasl.client import AuthenticationError
from testkit.clock import ManualClock
from tests.server.peers.played_peer import PATIENCE_S, Address, PlayedPeer
from wire.frame import RequestHeader
from wire.messages.quorum import VoteRequest, VoteResponse


def vote(term: int) -> VoteRequest:
    partition = VoteRequest.Topic.Partition(
        partition_index=0,
        replica_epoch=term,
        replica_id=1,
        replica_directory_id=bytes(16),
        voter_directory_id=bytes(16),
        last_offset_epoch=0,
        last_offset=0,
        pre_vote=False,
    )
    return VoteRequest(
        cluster_id="c",
        voter_id=2,
        topics=[VoteRequest.Topic(topic_name="__cluster_metadata", partitions=[partition])],
    )


def voted(error_code: int = 0) -> VoteResponse:
    return VoteResponse(error_code=error_code, topics=[])


class Secured:
    """A PeerSecurity without SASL."""

    def __init__(self, transport: Callable[[socket.socket], Any]) -> None:
        self._transport = transport

    def transport(self, sock: socket.socket, _host: str) -> Any:
        return self._transport(sock)

    def sasl(self) -> None:
        return None


class Node:
    """A PeerClient with a clock that stands still, and the answers it was given."""

    def __init__(self, clock: Any = None, security: Any = None) -> None:
        self.clock = clock or ManualClock(1_000)
        self.client = PeerClient(self.clock, "peers-of-node-1", security)
        self.answers: SimpleQueue[Any] = SimpleQueue()
        self.client.start()

    def send(
        self,
        address: Any,
        term: int = 1,
        timeout_ms: int = 1000,
        channel: str = "raft-client-1",
        **more: Any,
    ) -> None:
        self.client.send(
            address,
            vote(term),
            2,
            VoteResponse,
            lambda answer: self.answers.put((term, answer)),
            timeout_ms=timeout_ms,
            channel=channel,
            **more,
        )

    def answer(self) -> tuple[int, Any]:
        return self.answers.get(timeout=PATIENCE_S)

    def pass_time(self, ms: int) -> None:
        """Let time pass, and the client notice it."""
        self.clock.ms += ms
        self.client._post(lambda: None)

    def settle(self) -> None:
        """Return when the client has handled what it was given so far, twice over."""
        for _ in range(2):
            done = threading.Event()
            self.client._post(done.set)
            assert done.wait(PATIENCE_S)


@pytest.fixture
def node():
    node = Node()
    yield node
    node.client.shutdown()


@pytest.fixture
def peer():
    with PlayedPeer() as peer:
        yield peer


def term_of(frame: bytes, header: RequestHeader) -> int:
    request = VoteRequest.decode(frame, header.api_version, header.body_pos)
    return request.topics[0].partitions[0].replica_epoch


def test_an_answer_comes_back_decoded_and_the_peer_sees_who_asks(node, peer):
    node.send(peer.address, channel="raft-client-1")
    connection = peer.accept()
    header, _ = connection.request()
    assert (header.client_id, header.api_key, header.api_version) == ("raft-client-1", 52, 2)
    connection.answer(header, voted(7))
    _, answer = node.answer()
    assert isinstance(answer, VoteResponse)
    assert answer.error_code == 7


def test_one_request_is_in_flight_and_the_others_follow_in_order(node, peer):
    for term in range(1, 6):
        node.send(peer.address, term)
    connection = peer.accept()
    for term in range(1, 6):
        header, frame = connection.request()
        assert term_of(frame, header) == term
        node.settle()
        assert not connection.has_more_to_read()
        connection.answer(header, voted())
        assert node.answer()[0] == term


def test_what_nobody_wants_any_more_when_its_turn_comes_is_not_sent(node, peer):
    is_wanted = [True]
    node.send(peer.address, 1)
    node.send(peer.address, 2, is_wanted=lambda: is_wanted[0])
    node.send(peer.address, 3)
    connection = peer.accept()
    header, _ = connection.request()
    is_wanted[0] = False
    connection.answer(header, voted())
    header, frame = connection.request()
    assert term_of(frame, header) == 3
    connection.answer(header, voted())
    answers = dict(node.answer() for _ in range(3))
    assert isinstance(answers[2], PeerError)
    assert not isinstance(answers[1], PeerError)
    assert not isinstance(answers[3], PeerError)


def test_channels_to_one_peer_do_not_wait_for_each_other(node, peer):
    node.send(peer.address, 1, channel="raft-client-1")
    slow = peer.accept()
    slow.request()
    node.send(peer.address, 2, channel="broker-1-to-controller-heartbeat")
    quick = peer.accept()
    header, _ = quick.request()
    assert header.client_id == "broker-1-to-controller-heartbeat"
    quick.answer(header, voted())
    assert node.answer()[0] == 2


def test_an_answer_in_single_bytes_is_put_together(node, peer):
    node.send(peer.address)
    connection = peer.accept()
    header, _ = connection.request()
    body = struct.pack(">i", header.correlation_id) + b"\0" + voted(3).encode_bytes(2)
    for byte in struct.pack(">i", len(body)) + body:
        connection.sock.sendall(bytes((byte,)))
        node.settle()
    assert node.answer()[1].error_code == 3


def test_a_refused_connection_fails_everything_queued_for_it(node):
    with PlayedPeer() as peer:
        address = peer.address
    node.send(address, 1)
    term, answer = node.answer()
    assert term == 1
    assert isinstance(answer, PeerError)
    assert "refused" in str(answer)


def test_retries_wait_for_the_backoff_which_doubles_up_to_a_second(node):
    with PlayedPeer() as peer:
        address = peer.address
    node.send(address)
    node.answer()
    for pause in (50, 100, 200, 400, 800, 1000, 1000):
        node.send(address, timeout_ms=60_000)
        node.pass_time(pause * 4 // 5 - 2)
        node.settle()
        assert node.answers.empty(), "tried again before the pause was over"
        node.pass_time(pause - pause * 4 // 5 + 3)
        assert isinstance(node.answer()[1], PeerError)
    assert RECONNECT_BACKOFF_MAX_MS == 1000


def test_a_peer_that_comes_back_is_reached_again(node):
    with PlayedPeer() as peer:
        address = peer.address
        node.send(address)
        connection = peer.accept()
        header, _ = connection.request()
        connection.close()
    assert isinstance(node.answer()[1], PeerError)
    with PlayedPeer(address.port) as peer:
        node.send(address, 2)
        node.pass_time(50)
        connection = peer.accept()
        header, _ = connection.request()
        connection.answer(header, voted())
        assert isinstance(node.answer()[1], VoteResponse)


def test_when_the_peer_hangs_up_only_the_request_in_flight_fails(node, peer):
    node.send(peer.address, 1)
    node.send(peer.address, 2)
    connection = peer.accept()
    connection.request()
    node.settle()
    connection.close()
    term, answer = node.answer()
    assert term == 1
    assert "closed" in str(answer) or "reset" in str(answer)
    node.pass_time(50)
    connection = peer.accept()
    header, frame = connection.request()
    assert term_of(frame, header) == 2
    connection.answer(header, voted())
    assert node.answer()[0] == 2


def test_a_silent_peer_times_out_and_its_connection_is_closed(node, peer):
    node.send(peer.address, 1, timeout_ms=1000)
    connection = peer.accept()
    connection.request()
    node.pass_time(999)
    node.settle()
    assert node.answers.empty()
    node.pass_time(1)
    _, answer = node.answer()
    assert isinstance(answer, PeerError)
    assert "no answer in time" in str(answer)
    assert connection.is_closed_by_the_client()


def test_a_request_that_waits_too_long_behind_another_fails_alone(node, peer):
    node.send(peer.address, 1, timeout_ms=5000)
    node.send(peer.address, 2, timeout_ms=1000)
    connection = peer.accept()
    header, _ = connection.request()
    node.pass_time(1000)
    term, answer = node.answer()
    assert term == 2
    assert isinstance(answer, PeerError)
    connection.answer(header, voted())
    assert node.answer()[0] == 1


def test_those_who_wait_are_not_all_looked_at_whenever_something_happens(node, peer, monkeypatch):
    """Clients' requests to the controller go one by one, on the thread of heartbeats and votes."""
    looks = []

    class Looked(Call):
        __slots__ = ("at_ms",)

        @property  # type: ignore[override]
        def deadline_ms(self) -> int:
            looks.append(self)
            return self.at_ms

        @deadline_ms.setter
        def deadline_ms(self, at_ms: int) -> None:
            self.at_ms = at_ms

    monkeypatch.setattr("server.peers.peer_client.Call", Looked)
    count = 300
    for term in range(count):
        node.send(peer.address, term, timeout_ms=30_000)
    connection = peer.accept()
    for term in range(count):
        header, _ = connection.request()
        connection.answer(header, voted())
        assert node.answer()[0] == term
    assert len(looks) < 3 * count


def test_a_peer_that_does_not_accept_times_out_and_is_tried_afresh(node):
    """A host that is gone: packets to it are lost. Here a listener whose backlog is full."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    address = Address(*listener.getsockname())
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(address)
        fillers.append(filler)
    try:
        node.send(address, 1, timeout_ms=2000)
        node.settle()
        assert node.answers.empty()
        node.pass_time(2000)
        assert isinstance(node.answer()[1], PeerError)
    finally:
        for sock in (*fillers, listener):
            sock.close()


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">ii", 4, 12345),
        struct.pack(">iiB", 5, 1, 0),
    ],
    ids=["another protocol", "negative size", "another request's", "body cut off"],
)
def test_an_answer_that_is_not_kafkas_ends_the_connection(node, peer, data):
    node.send(peer.address)
    connection = peer.accept()
    connection.request()
    connection.sock.sendall(data)
    assert isinstance(node.answer()[1], PeerError)
    assert connection.is_closed_by_the_client()


def test_an_answer_nobody_asked_for_ends_the_connection(node, peer):
    node.send(peer.address)
    connection = peer.accept()
    header, _ = connection.request()
    connection.answer(header, voted())
    node.answer()
    connection.answer(header, voted())
    assert connection.is_closed_by_the_client()


def test_shutdown_fails_what_waits_and_what_comes_later(node, peer):
    node.send(peer.address, 1)
    node.send(peer.address, 2)
    connection = peer.accept()
    connection.request()
    node.client.shutdown()
    assert [node.answer()[0] for _ in range(2)] == [1, 2]
    assert connection.is_closed_by_the_client()
    node.send(peer.address, 3)
    term, answer = node.answer()
    assert term == 3
    assert "shut down" in str(answer)
    node.client.shutdown()


def test_a_client_that_never_started_can_be_shut_down():
    answers: list[Any] = []
    client = PeerClient(ManualClock(1_000), "never-started")
    client.send(
        Address("127.0.0.1", 9),
        vote(1),
        2,
        VoteResponse,
        answers.append,
        timeout_ms=1000,
        channel="x",
    )
    client.shutdown()
    assert len(answers) == 1
    assert isinstance(answers[0], PeerError)


def test_a_name_is_looked_up_and_each_of_its_addresses_tried(node, peer):
    node.send(Address("localhost", peer.address.port), timeout_ms=60_000)
    connection = peer.accept()
    header, _ = connection.request()
    connection.answer(header, voted())
    assert isinstance(node.answer()[1], VoteResponse)


@pytest.mark.parametrize(
    "name", ["no-such-host.invalid", "no..host.invalid", "x" * 64 + ".invalid"]
)
def test_an_unknown_name_is_an_error_that_says_so(node, name):
    """So is what no name can be, which another broker may have registered."""
    node.send(Address(name, 9092), timeout_ms=60_000)
    assert "unknown host" in str(node.answer()[1])


def test_a_node_that_has_no_token_says_so_to_those_who_wait(peer, caplog):
    """It is found out when the connection stands, before anything is said on it."""

    class WithoutToken(Secured):
        def sasl(self) -> None:
            raise AuthenticationError("SASL OAUTHBEARER: No such file or directory")

    node = Node(security=WithoutToken(PlaintextTransport))
    try:
        node.send(peer.address, timeout_ms=30_000)
        assert "No such file" in str(node.answer()[1])
    finally:
        node.client.shutdown()
    assert "cannot authenticate" in caplog.text


def test_a_name_that_is_found_when_nobody_waits_any_more_is_not_dialled(node, peer, monkeypatch):
    """Or who comes next would be told that a connection, begun long ago, was not accepted."""
    asked, may_answer = threading.Event(), threading.Event()

    def addresses(_host: str, _port: int, flags: int = 0) -> list[Any]:
        if flags:
            raise socket.gaierror
        asked.set()
        assert may_answer.wait(PATIENCE_S)
        return addresses_of(*peer.address)

    monkeypatch.setattr("server.peers.peer_client.addresses_of", addresses)
    node.send(Address("a-name", 1), 1, timeout_ms=1000)
    assert asked.wait(PATIENCE_S)
    node.pass_time(1000)
    assert "not sent in time" in str(node.answer()[1])
    may_answer.set()
    for thread in threading.enumerate():
        if thread.name == "peers-of-node-1-resolver":
            thread.join(PATIENCE_S)
    node.settle()
    assert not node.client._by_fd
    node.send(Address("a-name", 1), 2, timeout_ms=1000)
    connection = peer.accept()
    header, frame = connection.request()
    assert term_of(frame, header) == 2
    connection.answer(header, voted())
    assert isinstance(node.answer()[1], VoteResponse)


class Holding:
    """A transport that has taken a request and sends it when a ticket has arrived."""

    wants = 0
    kept = b""
    has_ticket = False

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.fd, self.close = sock, sock.fileno(), sock.close

    @property
    def unsent_bytes(self) -> int:
        return len(self.kept)

    def handshake(self) -> bool:
        return True

    def send(self, data: bytes) -> int:
        self.kept += data
        return len(data)

    def flush(self) -> bool:
        if self.has_ticket:
            self.sock.sendall(self.kept)
            self.kept = b""
        return not self.kept

    def recv(self, count: int) -> bytes:
        data = self.sock.recv(count)
        if data == b"ticket":
            self.has_ticket = True
            raise BlockingIOError
        return data


def test_a_request_that_is_sent_in_part_goes_on_when_something_else_than_an_answer_arrives(peer):
    """TLS has encrypted all of it, the socket took some; then the server's tickets come."""

    node = Node(security=Secured(Holding))
    try:
        node.send(peer.address, timeout_ms=30_000)
        connection = peer.accept()
        connection.sock.sendall(b"ticket")
        connection.sock.settimeout(20)
        header, _ = connection.request()
        connection.answer(header, voted())
        assert isinstance(node.answer()[1], VoteResponse)
    finally:
        node.client.shutdown()


def test_a_callback_that_raises_does_not_stop_the_client(node, peer, caplog):
    def broken(_answer: Any) -> None:
        raise RuntimeError("a bug of the caller")

    node.client.send(
        peer.address, vote(1), 2, VoteResponse, broken, timeout_ms=1000, channel="raft-client-1"
    )
    node.send(peer.address, 2)
    connection = peer.accept()
    for _ in range(2):
        header, _ = connection.request()
        connection.answer(header, voted())
    assert node.answer()[0] == 2
    assert "completion failed" in caplog.text


def test_a_request_that_cannot_be_encoded_fails_alone(node, peer, caplog):
    wrong = vote(1)
    wrong.cluster_id = 17  # type: ignore[assignment]
    node.client.send(
        peer.address,
        wrong,
        2,
        VoteResponse,
        lambda answer: node.answers.put((1, answer)),
        timeout_ms=1000,
        channel="raft-client-1",
    )
    node.send(peer.address, 2)
    connection = peer.accept()
    header, frame = connection.request()
    assert term_of(frame, header) == 2
    connection.answer(header, voted())
    (first, error), (second, answer) = node.answer(), node.answer()
    assert (first, second) == (1, 2)
    assert isinstance(error, PeerError)
    assert isinstance(answer, VoteResponse)
    assert "cannot be encoded" in caplog.text
