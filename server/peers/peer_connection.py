"""One connection of a PeerClient, and the requests that wait for it.

It belongs to one (peer, channel); the channel's name goes on the wire as client id, so that a
trace, a proxy or a test can tell who speaks. Its life:

    idle         not connected, nothing to send
    backing off  connecting failed or the peer hung up: nothing is tried before `retry_ms`
    resolving    the name is looked up, on a thread of its own (getaddrinfo blocks)
    connecting   connect() is under way; the next address is tried if one refuses
    securing     TLS shakes hands, if the peers' listener has it
    introducing  SASL's own requests are sent and answered, likewise
    connected    one request is in flight at most, the others queue: answers come in order

Failures are told as `PeerError`, once for each request:
    no address, connection refused       everything queued on the connection fails at once
    the peer hangs up, or answers what   the request in flight fails; what is queued is sent over a
    cannot be read                       new connection, if it is in time
    timeout                              the request fails; had it been sent, the connection is
                                         closed, for its answer would be taken for the next one's
The pause before connecting again doubles from 50 ms to 1 s with each failure in a row and is
shortened by up to a fifth at random, so that nodes do not knock in step (reconnect.backoff.ms,
reconnect.backoff.max.ms). A request sent meanwhile waits for it: callers may retry at once.

A session that the peer gave a lifetime is not renewed, its connection is made anew between two
requests.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from server.network.poller import READ, WRITE
from server.network.transport import PlaintextTransport, Transport
from server.peers.call import Call, PeerError
from wire.errors import MalformedFrame
from wire.frame import SIZE_BYTES, FrameReader, decode_response_header, encode_request
from wire.messages import response_class

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.security.peer_security import PeerSecurity
    from server.security.sasl.client import SaslClient
    from wire.schema import Request

logger = logging.getLogger(__name__)

RECONNECT_BACKOFF_MS = 50
RECONNECT_BACKOFF_MAX_MS = 1_000
CONNECTION_SETUP_TIMEOUT_MS = 10_000
"""Longest that one address is tried (socket.connection.setup.timeout.ms)."""
FRAME_BYTES_MAX = 104_857_600
SESSION_USED = 0.85
"""Of a session's lifetime; then there is a new connection (Kafka renews after 85 to 95 percent)."""
NEVER_MS = 1 << 62
_WARN_MS = 60_000
_GONE = select.POLLHUP | select.POLLERR


class ConnectionOwner(Protocol):
    """What a connection asks of its client: `server.peers.peer_client.PeerClient`."""

    security: PeerSecurity | None
    now_ms: Callable[[], int]

    def register(self, connection: PeerConnection, sock: socket.socket) -> None: ...

    def set_writing(self, fd: int, writing: bool) -> None: ...

    def unregister(self, sock: socket.socket) -> None: ...

    def resolve(
        self, host: str, port: int, on_done: Callable[[list[Any] | OSError], None]
    ) -> None: ...


class _State(Enum):
    IDLE = "idle"
    RESOLVING = "resolving"
    CONNECTING = "connecting"
    SECURING = "securing"
    INTRODUCING = "introducing"
    CONNECTED = "connected"


_SETTING_UP = (_State.CONNECTING, _State.SECURING, _State.INTRODUCING)


class PeerConnection:
    """One (peer, channel), used by its client's thread only; see the module."""

    def __init__(self, client: ConnectionOwner, host: str, port: int, channel: str) -> None:
        self.calls: deque[Call] = deque()
        self.in_flight: Call | None = None
        self._expires_ms = NEVER_MS
        """No deadline is before this; the calls are looked at when it is reached."""
        self._client = client
        self._host = host
        self._port = port
        self._channel = channel
        self._state = _State.IDLE
        self._socket: socket.socket | None = None
        self._transport: Transport | None = None
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self._outbox: list[Any] = []
        self._writing = True
        self._correlation_id = 0
        self._addresses: deque[Any] = deque()
        self._connect_deadline_ms = 0
        self._failures = 0
        self._retry_ms = 0
        self._sasl: SaslClient | None = None
        self._session_ends_ms = 0
        self._complained_ms = -_WARN_MS

    def __repr__(self) -> str:
        return f"{self._channel}->{self._host}:{self._port}"

    def add(self, call: Call) -> None:
        """Put it behind those that wait."""
        self.calls.append(call)
        self._expires_ms = min(self._expires_ms, call.deadline_ms)

    def due_ms(self) -> int:
        """When `advance` has something to do although nothing arrived; asked if a call waits."""
        if self._state is _State.IDLE:
            return min(self._expires_ms, self._retry_ms)
        if self._state in _SETTING_UP:
            return min(self._expires_ms, self._connect_deadline_ms)
        return self._expires_ms

    def advance(self, now_ms: int) -> None:
        """Expire, connect, send: whatever is due."""
        if self.in_flight is None and not self.calls:
            return
        self._expire(now_ms)
        if self._state in _SETTING_UP and now_ms >= self._connect_deadline_ms:
            self._address_failed("the connection was not accepted in time", now_ms)
        elif self._state is _State.IDLE and self.calls and now_ms >= self._retry_ms:
            self._state = _State.RESOLVING
            self._client.resolve(self._host, self._port, self._resolved)
        elif self._state is _State.CONNECTED:
            self._send_next(now_ms)

    def _expire(self, now_ms: int) -> None:
        if now_ms < self._expires_ms:
            return
        expired = [call for call in self.calls if call.deadline_ms <= now_ms]
        if expired:
            self.calls = deque(call for call in self.calls if call.deadline_ms > now_ms)
        in_flight = self.in_flight
        if in_flight is not None and in_flight.deadline_ms <= now_ms and self._sasl is None:
            self._lost("no answer in time", now_ms)
        elif expired and not self.calls and self._state in _SETTING_UP:
            # Nobody waits for it any more; the next attempt begins afresh.
            self._address_failed("the connection was not accepted in time", now_ms)
        waiting = self.calls if self.in_flight is None else (self.in_flight, *self.calls)
        self._expires_ms = min((call.deadline_ms for call in waiting), default=NEVER_MS)
        for call in expired:
            call.complete(PeerError(f"{self!r}: not sent in time"))

    # -- connecting

    def _resolved(self, found: list[Any] | OSError) -> None:
        if self._state is not _State.RESOLVING:
            return  # closed meanwhile
        now_ms = self._client.now_ms()
        if isinstance(found, OSError):
            self._failed(f"unknown host: {found.strerror or found}", now_ms)
        elif self.calls:
            self._addresses = deque(found)
            self._connect(now_ms)
        else:  # nobody is left who would watch the deadline of a connection
            self._state = _State.IDLE

    def _connect(self, now_ms: int) -> None:
        """Begin with the next address."""
        family, kind, protocol, _name, address = self._addresses.popleft()
        self._state = _State.CONNECTING
        self._connect_deadline_ms = now_ms + CONNECTION_SETUP_TIMEOUT_MS
        try:
            self._socket = sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            set_peer_options(sock)
            with contextlib.suppress(BlockingIOError):
                sock.connect(address)
        except OSError as error:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            self._address_failed(error.strerror or str(error), now_ms)
            return
        self._writing = True
        self._client.register(self, sock)

    def _address_failed(self, reason: str, now_ms: int) -> None:
        self._drop_socket()
        if self._addresses and self.calls:
            self._connect(now_ms)
        else:
            self._failed(reason, now_ms)

    def _failed(self, reason: str, now_ms: int) -> None:
        """The peer cannot be reached: tell everybody who waits for it."""
        self._back_off(now_ms)
        logger.debug("connecting failed connection=%r reason=%s", self, reason)
        calls, self.calls = self.calls, deque()
        for call in calls:
            call.complete(PeerError(f"{self!r}: {reason}"))

    def _back_off(self, now_ms: int) -> None:
        pause_ms = min(RECONNECT_BACKOFF_MS << min(self._failures, 16), RECONNECT_BACKOFF_MAX_MS)
        self._failures += 1
        self._retry_ms = now_ms + pause_ms - pause_ms * os.urandom(1)[0] // 1280
        self._state = _State.IDLE

    def _lost(self, reason: str, now_ms: int) -> None:
        """The connection is over; only the request in flight fails."""
        self._drop_socket()
        self._back_off(now_ms)
        call, self.in_flight = self.in_flight, None
        if call is not None:
            logger.debug("connection lost connection=%r reason=%s", self, reason)
            call.complete(PeerError(f"{self!r}: {reason}"))

    def _drop_socket(self) -> None:
        sock, transport = self._socket, self._transport
        self._socket = self._transport = None
        if sock is not None:
            self._client.unregister(sock)
            if transport is not None:
                transport.close()
            sock.close()
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self._outbox = []
        if self._sasl is not None:
            self._sasl = self.in_flight = None

    def close(self, reason: str) -> None:
        """End for good; everybody who waits is told."""
        self._drop_socket()
        self._state = _State.IDLE
        calls, self.calls = self.calls, deque()
        if self.in_flight is not None:
            calls.appendleft(self.in_flight)
            self.in_flight = None
        for call in calls:
            call.complete(PeerError(f"{self!r}: {reason}"))

    # -- requests and answers

    def on_event(self, event: int, now_ms: int) -> None:
        try:
            if self._state is _State.CONNECTING:
                self._connect_done(event, now_ms)
            elif self._state is _State.SECURING:
                self._shake_hands(now_ms)
            elif self._state in (_State.INTRODUCING, _State.CONNECTED):
                if event & WRITE:
                    self._write()
                assert self._transport is not None
                if event & (READ | _GONE | self._transport.wants):
                    self._read(now_ms)
        except (OSError, MalformedFrame) as error:
            self._broken(getattr(error, "strerror", None) or str(error), now_ms)

    def _broken(self, reason: str, now_ms: int) -> None:
        """What goes wrong before the two know each other is told to all who wait."""
        if self._state not in (_State.SECURING, _State.INTRODUCING):
            self._lost(reason, now_ms)
            return
        if now_ms - self._complained_ms >= _WARN_MS:
            self._complained_ms = now_ms
            logger.warning("cannot authenticate connection=%r reason=%s", self, reason)
        self._drop_socket()
        self._failed(reason, now_ms)

    def _connect_done(self, event: int, now_ms: int) -> None:
        assert self._socket is not None
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._address_failed(os.strerror(code), now_ms)
        elif event & (WRITE | _GONE):
            security = self._client.security
            if security is None:
                self._transport = PlaintextTransport(self._socket)
                self._established(now_ms)
                return
            self._state = _State.SECURING
            self._transport = security.transport(self._socket, self._host)
            self._sasl = security.sasl()
            self._shake_hands(now_ms)

    def _established(self, now_ms: int) -> None:
        self._state = _State.CONNECTED
        self._failures = 0
        lifetime_ms = 0 if self._sasl is None else self._sasl.lifetime_ms
        self._session_ends_ms = now_ms + int(lifetime_ms * SESSION_USED) if lifetime_ms else 0
        self._sasl = None
        self._settle()

    def _shake_hands(self, now_ms: int) -> None:
        assert self._transport is not None
        if not self._transport.handshake():
            self._settle()
        elif self._sasl is None:
            self._established(now_ms)
        else:
            self._state = _State.INTRODUCING
            self._introduce(self._sasl.first())

    def _introduce(self, request: Request) -> None:
        """Send one of SASL's requests; its answer brings the next, or the end of it."""
        kind = response_class(request.api_key)
        call = Call(request, request.versions[1], kind, self._introduced, self._connect_deadline_ms)
        self._send(call, self._client.now_ms())

    def _introduced(self, answer: Any) -> None:
        if isinstance(answer, PeerError) or self._sasl is None:
            return  # the connection was lost: those who wait are told by whoever noticed
        try:
            following = self._sasl.then(answer)
        except ConnectionError as error:
            self._broken(str(error), self._client.now_ms())
            return
        if following is not None:
            self._introduce(following)
        else:
            self._established(self._client.now_ms())

    def _send_next(self, now_ms: int) -> None:
        if self.calls and self.in_flight is None and 0 < self._session_ends_ms <= now_ms:
            self._drop_socket()
            self._state, self._retry_ms, self._session_ends_ms = _State.IDLE, now_ms, 0
        while self.in_flight is None and self.calls and self._state is _State.CONNECTED:
            call = self.calls.popleft()
            if call.is_wanted():
                self._send(call, now_ms)
            else:
                call.complete(PeerError(f"{self!r}: nobody waits for it any more"))

    def _send(self, call: Call, now_ms: int) -> None:
        self.in_flight = call
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        try:
            self._outbox = encode_request(
                call.version, self._correlation_id, self._channel, call.request
            )
        except Exception as error:  # a fault of the caller's, which must not stop the thread
            logger.exception("request cannot be encoded request=%s", type(call.request).__name__)
            self.in_flight = None
            call.complete(PeerError(f"cannot be encoded: {error}"))
            return
        try:
            self._write()
        except OSError as error:
            self._lost(error.strerror or str(error), now_ms)

    def _write(self) -> None:
        assert self._transport is not None
        outbox = self._outbox
        while outbox:
            try:
                sent = self._transport.send(outbox[0])
            except (BlockingIOError, InterruptedError):
                break
            if sent == len(outbox[0]):
                del outbox[0]
            else:
                outbox[0] = memoryview(outbox[0])[sent:]
        self._transport.flush()
        self._settle()

    def _settle(self) -> None:
        """Ask to be told when the socket takes more, if there is more for it."""
        transport = self._transport
        assert transport is not None
        writing = bool(self._outbox or transport.unsent_bytes or transport.wants & WRITE)
        if writing is not self._writing:
            self._writing = writing
            self._client.set_writing(transport.fd, writing)

    def _read(self, now_ms: int) -> None:
        assert self._transport is not None
        reader = self._reader
        try:
            data = self._transport.recv(reader.read_bytes())
        except (BlockingIOError, InterruptedError):
            self._settle()
            return
        if not data:
            self._lost("the peer closed the connection", now_ms)
            return
        reader.feed(data)
        while reader.frames:
            self._answered(reader.frames.popleft())
        if reader.violation is not None:
            raise MalformedFrame(reader.violation)

    def _answered(self, frame: bytes) -> None:
        call = self.in_flight
        if call is None or self._outbox:
            raise MalformedFrame("an answer to no request")
        correlation_id, position = decode_response_header(
            call.request.api_key, call.version, frame, SIZE_BYTES
        )
        if correlation_id != self._correlation_id:
            raise MalformedFrame("an answer to another request")
        response = call.response_class.decode(frame, call.version, position)
        self.in_flight = None
        call.complete(response)


def addresses_of(host: str, port: int, flags: int = 0) -> list[Any]:
    """What getaddrinfo finds. Raises OSError, for what no name can be as well."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, str(error)) from None


def set_peer_options(sock: socket.socket) -> None:
    """Options of a connection to another node: requests leave at once, a dead peer is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
