"""BlockingPeer against peers that are played by the test, over real sockets."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from queue import SimpleQueue
from typing import Any

import pytest

from server.peers.blocking_peer import BlockingPeer
from server.security.tls_transport import TlsTransport
from tests.server.peers.played_peer import PATIENCE_S, PlayedPeer
from wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.data import FetchRequest, FetchResponse


@pytest.fixture
def peer():
    with PlayedPeer() as peer:
        yield peer


def test_blocking_exchanges_reuse_one_connection(peer):
    def play() -> None:
        connection = peer.accept()
        for _ in range(3):
            header, _ = connection.request()
            connection.answer(header, ApiVersionsResponse(error_code=0, api_keys=[]))
        connection.close()

    player = threading.Thread(target=play)
    player.start()
    blocking = BlockingPeer(*peer.address, "broker-1-fetcher-0-leader-2", PATIENCE_S)
    for _ in range(3):
        assert blocking.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse).error_code == 0
    player.join()
    with pytest.raises(ConnectionError):
        blocking.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)
    blocking.close()


def test_fetched_records_are_a_view_of_the_answer_and_stay_valid(peer):
    records = bytes(range(256)) * 8192  # 2 MiB: arrives in many segments

    def play() -> None:
        connection = peer.accept()
        for first in (b"a", b"b"):
            header, _ = connection.request()
            partition = FetchResponse.Topic.Partition(
                partition_index=0,
                error_code=0,
                high_watermark=0,
                aborted_transactions=None,
                records=first + records,
            )
            topic = FetchResponse.Topic(topic_id=bytes(16), partitions=[partition])
            connection.answer(header, FetchResponse(error_code=0, responses=[topic]))
        connection.close()

    player = threading.Thread(target=play)
    player.start()
    blocking = BlockingPeer(*peer.address, "broker-1-fetcher-0-leader-2", PATIENCE_S)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=0, topics=[])
    fetched = [
        blocking.exchange(request, 17, FetchResponse).responses[0].partitions[0].records
        for _ in range(2)
    ]
    player.join()
    blocking.close()
    assert [type(view) for view in fetched] == [memoryview, memoryview]
    assert fetched == [b"a" + records, b"b" + records]


def test_a_blocking_exchange_with_a_silent_peer_times_out(peer):
    blocking = BlockingPeer(*peer.address, "broker-1", 0.05)
    with pytest.raises(TimeoutError):
        blocking.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)
    connection = peer.accept()
    connection.request()
    assert connection.is_closed_by_the_client()
    blocking.close()


def failure_of_a_part(peer, blocking, announced):
    """What who asks is told of an answer that announces so many bytes, and stops."""
    failures: SimpleQueue[BaseException] = SimpleQueue()

    def ask() -> None:
        try:
            blocking.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)
        except OSError as error:
            failures.put(error)

    asker = threading.Thread(target=ask)
    asker.start()
    connection = peer.accept()
    connection.request()
    connection.sock.sendall(struct.pack(">ih", announced, 0))
    failure = failures.get(timeout=PATIENCE_S)
    asker.join()
    return failure


def test_a_blocking_peer_that_stops_within_an_answer_times_out(peer):
    blocking = BlockingPeer(*peer.address, "broker-1", 0.05)
    failed = failure_of_a_part(peer, blocking, 100)
    assert isinstance(failed, TimeoutError)


@pytest.mark.parametrize(
    ("bound", "failure"), [({}, ConnectionError), ({"frame_bytes_max": 2**31 - 1}, TimeoutError)]
)
def test_how_much_an_answer_may_hold_is_for_its_asker_to_say(peer, bound, failure):
    """A follower waits for the rest of what its leader began to send; who may have met anything at
    all on that port does not."""
    blocking = BlockingPeer(*peer.address, "broker-1", 0.05, **bound)
    failed = failure_of_a_part(peer, blocking, 200 << 20)
    assert type(failed) is failure


def test_a_blocking_peer_connects_again_after_a_failure(peer):
    blocking = BlockingPeer(*peer.address, "broker-1", PATIENCE_S)
    results: SimpleQueue[Any] = SimpleQueue()

    def ask() -> None:
        for _ in range(2):
            try:
                results.put(blocking.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse))
            except OSError as error:
                results.put(error)

    asker = threading.Thread(target=ask)
    asker.start()
    peer.accept().close()
    assert isinstance(results.get(timeout=PATIENCE_S), ConnectionError)
    connection = peer.accept()
    header, _ = connection.request()
    connection.answer(header, ApiVersionsResponse(error_code=35, api_keys=[]))
    assert results.get(timeout=PATIENCE_S).error_code == 35
    asker.join()
    blocking.close()


def test_closing_aborts_an_exchange_that_waits(peer):
    blocking = BlockingPeer(*peer.address, "broker-1", PATIENCE_S * 60)
    failures: SimpleQueue[BaseException] = SimpleQueue()

    def ask() -> None:
        try:
            blocking.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)
        except OSError as error:
            failures.put(error)

    asker = threading.Thread(target=ask)
    asker.start()
    connection = peer.accept()
    connection.request()
    blocking.close()
    assert isinstance(failures.get(timeout=PATIENCE_S), ConnectionError)
    asker.join()
    with pytest.raises(ConnectionError, match="closed"):
        blocking.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)


def test_closing_before_the_socket_is_known_begins_no_connection(peer, monkeypatch):
    """Found nothing to shut down; a leader that is silent was waited for until the timeout."""
    blocking = BlockingPeer(*peer.address, "broker-1")
    connected: list[Any] = []

    class Socket(socket.socket):
        def __init__(self, *args: int) -> None:
            super().__init__(*args)
            blocking.close()

        def connect(self, address: Any) -> None:
            connected.append(address)

    with monkeypatch.context() as sockets:
        sockets.setattr(socket, "socket", Socket)
        with pytest.raises(ConnectionError, match="closed"):
            blocking.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)
    assert not connected


def test_a_refused_blocking_connection_is_an_os_error():
    with PlayedPeer() as peer:
        address = peer.address
    with pytest.raises(ConnectionRefusedError):
        BlockingPeer(*address, "broker-1").exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)


def test_what_no_name_can_be_is_an_os_error():
    with pytest.raises(OSError, match="label"):
        BlockingPeer("no..host.invalid", 9092, "broker-1").exchange(
            ApiVersionsRequest(), 0, ApiVersionsResponse
        )


class Secured:
    def transport(self, sock: Any, host: str) -> TlsTransport:
        return TlsTransport(sock, ssl.create_default_context(), server_hostname=host)


@pytest.mark.parametrize(
    ("security", "begin"),
    [(None, struct.pack(">i", 1_000)), (Secured(), b"\x16\x03\x03\x20\x00")],
    ids=["answer", "handshake"],
)
def test_what_trickles_in_is_given_up(peer, security, begin):
    """A peer that sends a byte now and then must not hold its follower for ever."""
    is_over = threading.Event()

    def play() -> None:
        connection = peer.accept()
        connection.sock.sendall(begin)
        while not is_over.wait(0.05):
            with contextlib.suppress(OSError):  # it has hung up
                connection.sock.sendall(b"x")

    player = threading.Thread(target=play)
    player.start()
    blocking = BlockingPeer(*peer.address, "broker-1-fetcher-0-leader-2", 0.5, security)
    try:
        with pytest.raises(TimeoutError):
            blocking.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)
    finally:
        is_over.set()
        blocking.close()
        player.join()


def test_a_blocking_answer_that_is_not_kafkas_is_a_connection_error(peer):
    blocking = BlockingPeer(*peer.address, "broker-1", PATIENCE_S)
    failures: SimpleQueue[BaseException] = SimpleQueue()

    def ask() -> None:
        try:
            blocking.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)
        except OSError as error:
            failures.put(error)

    asker = threading.Thread(target=ask)
    asker.start()
    connection = peer.accept()
    connection.request()
    connection.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert "not Kafka's" in str(failures.get(timeout=PATIENCE_S))
    asker.join()
