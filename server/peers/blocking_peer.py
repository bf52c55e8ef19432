"""One blocking connection to one peer: for a thread that has nothing else to do meanwhile.

A fetcher (Kafka's BrokerBlockingSender), and the commands of this project that speak to a broker
(`barnabas health`, `barnabas demo`). It is no client library: no retries, no metadata, no version
negotiation.

With `security` TLS and SASL come before the first request (`server.security.peer_security`).
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from struct import Struct
from typing import TYPE_CHECKING, TypeVar

from server.network.transport import PlaintextTransport, Transport
from server.peers.peer_connection import (
    FRAME_BYTES_MAX,
    SESSION_USED,
    addresses_of,
    set_peer_options,
)
from wire.errors import MalformedFrame
from wire.frame import decode_response_header, encode_request
from wire.messages import response_class

if TYPE_CHECKING:
    from server.security.peer_security import PeerSecurity
    from wire.schema import Request, Response

_R = TypeVar("_R", bound="Response")

_SIZE = Struct(">i")
_TIMEVAL = Struct("@ll")


class PeerClosed(ConnectionError):
    """The peer hung up where an answer was due."""


class BlockingPeer:
    """One request at a time, each answered before the next.

    Connects when it is first needed, and again after a failure. `timeout_s` bounds connecting,
    sending, and waiting for an answer, each. A larger frame than `frame_bytes_max` is not Kafka's.
    One thread uses it; any may `close` it.

    Cost of an answer: two system calls and one copy, out of the kernel, into a `bytes` of its exact
    size. Its records stay a memoryview of that and are valid as long as somebody holds them; the
    C library reuses the memory.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        timeout_s: float = 10.0,
        security: PeerSecurity | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self._host = host
        self._port = port
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._security = security
        self._frame_bytes_max = frame_bytes_max
        self._session_ends_s = math.inf
        self._correlation_id = 0
        self._socket: socket.socket | None = None
        self._transport: Transport | None = None
        self._closed = False
        self._in_use = threading.Lock()

    def exchange(self, request: Request, version: int, response_class: type[_R]) -> _R:
        """Send one request in this version and decode its answer.

        Raises OSError: TimeoutError, ConnectionError for a peer that hangs up, is closed by
        `close`, or gives an answer that is not Kafka's. The connection is closed then.
        """
        with self._in_use:
            try:
                return self._exchange(self._connected(), request, version, response_class)
            except BlockingIOError:  # SO_RCVTIMEO and SO_SNDTIMEO say it so
                self._drop_socket()
                raise TimeoutError(f"{self._host}:{self._port} did not answer in time") from None
            except MalformedFrame as error:
                self._drop_socket()
                raise ConnectionError(f"the answer is not Kafka's: {error}") from error
            except BaseException:
                self._drop_socket()
                raise
            finally:
                if self._closed:
                    self._drop_socket()

    def close(self) -> None:
        """Close for good; an exchange that another thread waits in fails at once."""
        self._closed = True
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        # The descriptor's number must not be given to another file while somebody waits on it, so
        # it is the thread in `exchange`, if there is one, that closes it.
        if self._in_use.acquire(blocking=False):
            self._drop_socket()
            self._in_use.release()

    def _exchange(
        self, transport: Transport, request: Request, version: int, response_class: type[_R]
    ) -> _R:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        for part in encode_request(version, self._correlation_id, self._client_id, request):
            transport.send_all(part)  # type: ignore[arg-type]  # a request holds no file
        deadline_s = time.monotonic() + self._timeout_s
        (size,) = _SIZE.unpack(self._receive(transport, _SIZE.size, deadline_s))
        if not _SIZE.size <= size <= self._frame_bytes_max:
            raise MalformedFrame(f"frame size {size}")
        frame = self._receive(transport, size, deadline_s)
        correlation_id, position = decode_response_header(request.api_key, version, frame)
        if correlation_id != self._correlation_id:
            raise MalformedFrame("it answers another request")
        return response_class.decode(frame, version, position)

    @staticmethod
    def _receive(transport: Transport, size: int, deadline_s: float) -> bytes:
        """Exactly `size` bytes."""
        data = transport.recv_all(size, deadline_s)
        while len(data) < size:  # a timeout, a signal, or the end
            if time.monotonic() >= deadline_s:
                raise BlockingIOError
            more = transport.recv_all(size - len(data), deadline_s)
            if not more:
                raise PeerClosed("the peer closed the connection")
            data += more
        return data

    def _connected(self) -> Transport:
        if self._closed:
            raise ConnectionError("this connection is closed")
        if self._transport is not None and time.monotonic() >= self._session_ends_s:
            self._drop_socket()
        if self._transport is None:
            self._connect()
            assert self._socket is not None
            self._transport = self._secured(self._socket)
        return self._transport

    def _secured(self, sock: socket.socket) -> Transport:
        """The transport once both sides know each other."""
        security = self._security
        if security is None:
            return PlaintextTransport(sock)
        transport = security.transport(sock, self._host)
        transport.shake_hands(time.monotonic() + self._timeout_s)
        client = security.sasl()
        request = None if client is None else client.first()
        while request is not None and client is not None:
            version, kind = request.versions[1], response_class(request.api_key)
            request = client.then(self._exchange(transport, request, version, kind))
        self._session_ends_s = math.inf
        if client is not None and client.lifetime_ms:
            self._session_ends_s = time.monotonic() + client.lifetime_ms * SESSION_USED / 1000
        return transport

    def _connect(self) -> None:
        failure: OSError = ConnectionError(f"unknown host {self._host}")
        deadline = time.monotonic() + self._timeout_s
        for family, kind, protocol, _name, address in addresses_of(self._host, self._port):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            try:
                self._socket = sock = socket.socket(family, kind, protocol)
                if self._closed:  # looked at once `close` finds what to shut down
                    break
                sock.settimeout(left_s)
                sock.connect(address)
                set_peer_options(sock)
                # A blocking socket, whose system calls end by themselves: MSG_WAITALL needs one.
                sock.settimeout(None)
                seconds, rest = divmod(int(self._timeout_s * 1_000_000), 1_000_000)
                timeval = _TIMEVAL.pack(seconds, rest)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
            except OSError as error:
                failure = error
                self._drop_socket()
            else:
                if not self._closed:
                    return
        if self._closed:
            raise ConnectionError("this connection is closed")
        raise failure

    def _drop_socket(self) -> None:
        sock, transport = self._socket, self._transport
        self._socket = self._transport = None
        if transport is not None:
            transport.close()
        if sock is not None:
            sock.close()
