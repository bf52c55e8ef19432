"""TLS on a socket that does as it is told."""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from server.network.poller import READ, WRITE
from server.security.tls_transport import PIECE_BYTES, TlsTransport
from tests.server.security.security_support import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(Path(tmp_path_factory.mktemp("authority")))


class Wire:
    """A socket whose peer is the test: what has arrived, what has left, how much it takes."""

    def __init__(self) -> None:
        self.arrived = bytearray()
        self.left = bytearray()
        self.room = 1 << 30
        self.is_over = False

    def fileno(self) -> int:
        return 0

    def setblocking(self, _: bool) -> None: ...

    def close(self) -> None:
        self.is_over = True

    def recv(self, count: int) -> bytes:
        if not self.arrived and not self.is_over:
            raise BlockingIOError
        data = bytes(self.arrived[:count])
        del self.arrived[:count]
        return data

    def sendmsg(self, parts: Sequence[memoryview]) -> int:
        data = b"".join(parts)
        taken = min(self.room, len(data))
        if not taken:
            raise BlockingIOError
        self.left += data[:taken]
        self.room -= taken
        return taken


class Peer:
    """A client's side, which says everything into a Wire."""

    def __init__(
        self, authority: Authority, wire: Wire, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    ) -> None:
        context = ssl.create_default_context(cafile=str(authority.file))
        context.maximum_version = newest
        self.wire, self.incoming, self.outgoing = wire, ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def exchange(self) -> None:
        self.wire.arrived += self.outgoing.read()
        self.incoming.write(self.wire.left)
        self.wire.left.clear()

    def says(self, data: bytes, times: int = 1) -> None:
        for _ in range(times):
            self.tls.write(data)
        self.exchange()

    def hears(self) -> bytes:
        self.exchange()
        heard = b""
        with suppress(ssl.SSLWantReadError):
            while data := self.tls.read(1 << 20):
                heard += data
        return heard


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(authority.key_store("s.pem"))
    return context


@pytest.fixture
def server(context: ssl.SSLContext, wire: Wire) -> TlsTransport:
    return TlsTransport(wire, context)  # type: ignore[arg-type]


class FilePart:
    """A slice of a file."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, offset: int, count: int) -> bytes:
        return self._data[offset : offset + count]


@pytest.fixture
def peer(authority: Authority, wire: Wire, server: TlsTransport) -> Peer:
    """Of a connection whose handshake is done."""
    return shaken(authority, wire, server)


def shaken(authority: Authority, wire: Wire, server: TlsTransport) -> Peer:
    one = Peer(authority, wire)
    shake(one, server)
    return one


def shake(one: Peer, server: TlsTransport) -> None:
    for step in (one.tls.do_handshake, server.handshake, one.tls.do_handshake, server.handshake):
        with suppress(ssl.SSLWantReadError):
            step()
        one.exchange()
    assert server.is_ready
    assert server.wants == 0
    one.hears()  # tickets


def turns(server: TlsTransport, count: int) -> Iterator[bytes]:
    """What each turn of a reader brings, until there is nothing."""
    with suppress(BlockingIOError):
        while data := server.recv(count):
            yield data


def test_a_turn_decrypts_no_more_than_a_piece_however_much_was_asked_for(
    server: TlsTransport, peer: Peer
) -> None:
    """A record of one byte costs what a record costs, so bytes are not what must be counted."""
    peer.says(b"x", times=20_000)
    arrived = len(peer.wire.arrived)
    assert arrived > PIECE_BYTES
    brought = list(turns(server, 1 << 20))
    assert b"".join(brought) == b"x" * 20_000
    assert len(brought) == -(-arrived // PIECE_BYTES)


def test_all_that_arrived_is_given_at_once(server: TlsTransport, peer: Peer) -> None:
    """What stayed inside would wait until the peer says more: no poller sees it."""
    peer.says(b"a" * 16_384, times=4)
    assert server.recv(65_536 + 4_096) == b"a" * 65_536
    with pytest.raises(BlockingIOError):
        server.recv(65_536)


def test_half_a_record_waits_for_its_rest(server: TlsTransport, peer: Peer) -> None:
    peer.says(b"whole")
    rest = bytes(peer.wire.arrived[-3:])
    del peer.wire.arrived[-3:]
    with pytest.raises(BlockingIOError):
        server.recv(100)
    peer.wire.arrived += rest
    assert server.recv(100) == b"whole"


def test_the_end_is_told_again_and_again(server: TlsTransport, peer: Peer) -> None:
    peer.says(b"last")
    peer.wire.is_over = True
    assert [server.recv(4_096), server.recv(4_096), server.recv(4_096)] == [b"last", b"", b""]


def test_what_the_socket_does_not_take_leaves_later_and_nothing_comes_between(
    server: TlsTransport, peer: Peer
) -> None:
    peer.wire.room = 10
    assert server.send(b"first") == 5
    assert server.unsent_bytes > 0
    with pytest.raises(BlockingIOError):
        server.send(b"second")
    assert not server.flush()
    peer.wire.room = 1_000
    assert server.flush()
    assert server.send_parts([b"se", b"cond"], False) == 6
    assert (server.unsent_bytes, peer.hears()) == (0, b"firstsecond")


@pytest.mark.parametrize(
    "send",
    [
        lambda server, data: server.send(data),
        lambda server, data: server.send_parts([data, b"more"], False),
        lambda server, data: server.send_file(FilePart(data), 0, len(data)),
    ],
    ids=["send", "send_parts", "send_file"],
)
def test_a_piece_at_most_is_encrypted_at_once(
    server: TlsTransport, peer: Peer, send: Callable[[TlsTransport, bytes], int]
) -> None:
    data = b"z" * (PIECE_BYTES + 1)
    assert send(server, data) == PIECE_BYTES
    assert peer.hears() == data[:PIECE_BYTES]


class Writer:
    """Writes records of TLS 1.3 as a client whose secret is known (RFC 8446, 5.2 and 7.2)."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._begin()

    def _expanded(self, label: str, size: int) -> bytes:
        name = b"tls13 " + label.encode()
        info = size.to_bytes(2) + bytes([len(name)]) + name + b"\0"
        return HKDFExpand(hashes.SHA384(), size, info).derive(self._secret)

    def _begin(self) -> None:
        self._key, self._iv, self._count = self._expanded("key", 32), self._expanded("iv", 12), 0

    def record(self, kind: int, data: bytes) -> bytes:
        nonce = int.from_bytes(self._iv) ^ self._count
        self._count += 1
        head = b"\x17\x03\x03" + (len(data) + 17).to_bytes(2)
        return head + AESGCM(self._key).encrypt(nonce.to_bytes(12), data + bytes([kind]), head)

    def says(self, data: bytes) -> bytes:
        return self.record(23, data)

    def key_update(self, is_answered: bool) -> bytes:
        made = self.record(22, b"\x18\0\0\1" + bytes([is_answered]))
        self._secret = self._expanded("traffic upd", 48)
        self._begin()
        return made


@pytest.fixture
def writer(authority: Authority, wire: Wire, server: TlsTransport, tmp_path: Path) -> Writer:
    """Of a connection whose handshake is done."""
    one = Peer(authority, wire)
    one.tls.context.keylog_filename = str(tmp_path / "secrets")
    shake(one, server)
    assert one.tls.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
    lines = (tmp_path / "secrets").read_text().splitlines()
    (secret,) = (line.split()[2] for line in lines if line.startswith("CLIENT_TRAFFIC_SECRET_0"))
    return Writer(bytes.fromhex(secret))


@pytest.mark.parametrize("is_answered", [False, True])
def test_keys_may_be_renewed_but_not_for_a_living(
    wire: Wire, server: TlsTransport, writer: Writer, is_answered: bool
) -> None:
    """OpenSSL takes key updates without end, a stranger's before the login too, and 60 µs for each:
    256 KiB of them held up everybody for 0.7 s, at each turn."""
    for _ in range(50):
        wire.arrived += writer.key_update(is_answered) + writer.says(b"x")
    assert b"".join(turns(server, 1 << 20)) == b"x" * 50
    for _ in range(5_000):
        wire.arrived += writer.key_update(is_answered) + writer.says(b"y")
    begun = time.thread_time()
    with pytest.raises(ConnectionAbortedError, match="too many records without data"):
        list(turns(server, 1 << 20))
    assert time.thread_time() - begun < 0.1


def test_who_says_much_may_renew_keys_as_often_as_anybody_does(
    wire: Wire, server: TlsTransport, writer: Writer
) -> None:
    for _ in range(100):
        wire.arrived += writer.key_update(True)
        wire.arrived += b"".join(writer.says(b"z") for _ in range(1_024))
        assert b"".join(turns(server, 1 << 20)) == b"z" * 1_024


def test_records_may_dribble(wire: Wire, server: TlsTransport, writer: Writer) -> None:
    sent = writer.says(b"one") + writer.key_update(False) + writer.says(b"two" * 9)
    heard = b""
    for byte in sent:
        wire.arrived.append(byte)
        heard += b"".join(turns(server, 1 << 20))
    assert heard == b"one" + b"two" * 9


def memory_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("does", ["fetches", "produces"])
def test_who_has_moved_a_megabyte_keeps_no_memory_for_it(
    authority: Authority, context: ssl.SSLContext, does: str
) -> None:
    """What OpenSSL's buffers have held once they keep as long as the connection lasts, and a client
    may have thousands that do nothing any more."""
    connections, count = [], 50
    for _ in range(count + 1):
        wire = Wire()
        server = TlsTransport(wire, context)  # type: ignore[arg-type]
        one = shaken(authority, wire, server)
        if does == "fetches":
            for at in range(0, 1 << 20, PIECE_BYTES):
                assert server.send_file(FilePart(bytes(1 << 20)), at, 1 << 20) == PIECE_BYTES
            wire.left.clear()
        else:
            one.says(bytes(16_384), times=64)
            assert sum(map(len, turns(server, 1 << 20))) == 1 << 20
        del one
        connections.append(server)
        if len(connections) == 1:
            before = memory_bytes()
    assert (memory_bytes() - before) / count < 200_000


def test_a_hello_that_is_refused_is_told_why_by_an_alert(
    authority: Authority, wire: Wire, server: TlsTransport
) -> None:
    one = Peer(authority, wire, newest=ssl.TLSVersion.TLSv1_2)
    with suppress(ssl.SSLWantReadError):
        one.tls.do_handshake()
    one.exchange()
    with pytest.raises(ConnectionAbortedError, match="TLS failed: UNSUPPORTED_PROTOCOL"):
        server.recv(4_096)
    assert wire.left[:1] == b"\x15"  # a record of the type alert


def test_what_is_no_tls_ends_the_connection(wire: Wire, server: TlsTransport) -> None:
    wire.arrived += b"\x00\x00\x00\x10not a hello, a frame of Kafka's"
    told = "TLS failed: WRONG_VERSION_NUMBER, as of a peer that does not encrypt"
    with pytest.raises(ConnectionAbortedError, match=f"^{told}$"):
        server.recv(4_096)


@pytest.mark.parametrize(
    "hello",
    [
        b"\x16\x03\x01\x00\x06\x01\x00\x80\x01\x03\x03",  # of 32,769 bytes, it says
        b"\x16\x03\x01\x00\x06\x01\x01\x00\x00\x03\x03",
        b"\x16\x03\x01\x00\x03\x01\x00\x01\x16\x03\x01\x00\x01\x90",
    ],
    ids=["long", "longer", "crumbs"],
)
def test_a_hello_gets_no_memory_for_what_it_says_will_come(
    wire: Wire, server: TlsTransport, hello: bytes
) -> None:
    """OpenSSL takes up to 131,396 bytes for it at once, for eleven that were sent."""
    wire.arrived += hello[:8]
    assert not server.handshake()
    wire.arrived += hello[8:]
    with pytest.raises(ConnectionAbortedError, match="TLS failed: a hello of another kind"):
        server.handshake()
    assert not wire.left


@pytest.mark.parametrize("size", [b"\x00\x01\x90", b"\x00\x80\x00"])
def test_a_hello_may_say_that_it_has_32_kib_and_be_cut_behind_that(
    wire: Wire, server: TlsTransport, size: bytes
) -> None:
    wire.arrived += b"\x16\x03\x01\x00\x04\x01" + size
    assert not server.handshake()
    wire.arrived += b"\x16\x03\x01\x00\x01\x03"
    assert not server.handshake()
    assert not wire.left


def test_a_hello_may_dribble(authority: Authority, wire: Wire, server: TlsTransport) -> None:
    one = Peer(authority, wire)
    with suppress(ssl.SSLWantReadError):
        one.tls.do_handshake()
    for at in one.outgoing.read():
        assert not wire.left
        wire.arrived.append(at)
        assert not server.handshake()
    assert wire.left


def test_a_certificate_that_the_peer_does_not_believe_is_told_as_ours(
    tmp_path_factory: pytest.TempPathFactory, wire: Wire, server: TlsTransport
) -> None:
    another = Authority(tmp_path_factory.mktemp("another"))
    one = Peer(another, wire)
    with suppress(ssl.SSLWantReadError):
        one.tls.do_handshake()
    one.exchange()
    assert not server.handshake()
    one.exchange()
    with pytest.raises(ssl.SSLCertVerificationError):
        one.tls.do_handshake()
    one.exchange()
    told = "TLSV1_ALERT_UNKNOWN_CA, the peer does not trust who signed our certificate"
    with pytest.raises(ConnectionAbortedError, match=told):
        server.recv(4_096)


def test_who_has_no_certificate_hears_that_one_is_asked_for(
    authority: Authority, wire: Wire
) -> None:
    asking = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    asking.load_cert_chain(authority.key_store("s.pem"))
    asking.verify_mode = ssl.CERT_REQUIRED
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = asking.wrap_bio(incoming, outgoing, server_side=True)
    trusting = ssl.create_default_context(cafile=str(authority.file))
    client = TlsTransport(wire, trusting, server_hostname="localhost")  # type: ignore[arg-type]
    for _ in range(2):
        client.handshake()
        incoming.write(wire.left)
        wire.left.clear()
        with suppress(ssl.SSLError):
            server.do_handshake()
        wire.arrived += outgoing.read()
    with pytest.raises(ConnectionAbortedError, match="the peer asks for a certificate of ours"):
        client.recv(4_096)


def test_a_peer_that_hangs_up_in_the_handshake_is_told_so(wire: Wire) -> None:
    """As a listener does that knows nothing of TLS."""
    context = ssl.create_default_context()
    client = TlsTransport(wire, context, server_hostname="h")  # type: ignore[arg-type]
    assert not client.handshake()
    wire.is_over = True
    with pytest.raises(ConnectionAbortedError, match=r"TLS failed: .*, the peer hung up"):
        client.handshake()


@pytest.mark.parametrize("data", [b"", b"the last"])
def test_the_end_that_came_with_the_last_bytes_is_known(
    server: TlsTransport, peer: Peer, data: bytes
) -> None:
    if data:
        peer.tls.write(data)
    with suppress(ssl.SSLWantReadError):
        peer.tls.unwrap()
    peer.exchange()
    assert not server.has_ended
    assert server.recv(4_096) == data
    assert server.has_ended


def test_closing_says_goodbye(server: TlsTransport, peer: Peer) -> None:
    server.close()
    peer.exchange()
    assert peer.tls.read(1) == b""  # the end, and not a connection that was cut
    assert peer.wire.is_over


def test_a_handshake_waits_for_room_only_until_there_is_some(
    authority: Authority, wire: Wire, server: TlsTransport
) -> None:
    """Who is told that the socket can be written when nothing is to be written goes in circles."""
    one = Peer(authority, wire)
    with suppress(ssl.SSLWantReadError):
        one.tls.do_handshake()
    one.exchange()
    wire.room = 0
    with pytest.raises(BlockingIOError):
        server.recv(65_536)
    assert server.wants == READ | WRITE
    wire.room = 1 << 30
    with pytest.raises(BlockingIOError):
        server.recv(65_536)
    assert (server.wants, server.unsent_bytes) == (READ, 0)
