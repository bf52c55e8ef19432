"""The bytes of one connection, in and out; what lies between them and the socket is its own.

What: a Transport is what the server's channels and the clients of other nodes read from and write
to (Kafka's TransportLayer). PlaintextTransport hands everything to the socket. Why: with TLS a read
may have to wait until the socket can be written, a write until it can be read, and file slices must
go through memory; who uses a Transport need not know.

A transport never blocks on a socket that does not: what cannot be done now raises BlockingIOError,
and `wants` says what else the socket must be able to do before it can be tried again.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Protocol

_MSG_MORE = getattr(socket, "MSG_MORE", 0)

Buffer = bytes | bytearray | memoryview


def peer_port_of(sock: socket.socket) -> int:
    """The port of the other side; -1 when it has left."""
    try:
        port = sock.getpeername()[1]
    except OSError:
        return -1
    return int(port)


class Transport(Protocol):
    """One connection's bytes. Its methods raise OSError as a socket's do."""

    fd: int
    """What a poller waits for."""
    wants: int
    """`poller.READ` or WRITE: needed by the transport itself, whatever its user waits for; or 0."""

    has_ended: bool
    """The peer's end came with the last bytes that `recv` gave: no poller will tell of it."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were taken and have not left."""

    @property
    def local_address(self) -> tuple[str, int]:
        """Host and port that the peer dialled."""

    @property
    def peer_port(self) -> int:
        """Where it comes from at its own address; -1 when it has left."""

    def handshake(self) -> bool:
        """Go on with it, as a client; True when requests may be sent."""

    def shake_hands(self, deadline_s: float, /) -> None:
        """On a blocking socket: all of it; BlockingIOError if that is not done in time. Of what
        time.monotonic() tells, here and below."""

    def recv(self, count: int, /) -> bytes:
        """About `count` bytes at most; b"" at the end."""

    def recv_all(self, count: int, deadline_s: float, /) -> bytes:
        """On a blocking socket: `count` bytes, fewer only after a signal, a timeout, or the end.
        However little arrives at a time, it ends soon after the deadline, as above."""

    def send(self, data: Buffer, /) -> int:
        """How many of the bytes were taken."""

    def send_all(self, data: Buffer, /) -> None:
        """On a blocking socket: all of them."""

    def send_parts(self, parts: Sequence[Any], is_more: bool) -> int:
        """The same for several buffers at once; `is_more`: record data follow at once."""

    def send_file(self, part: Any, offset: int, count: int) -> int:
        """How many of `count` bytes of a file slice, from `offset` on, were taken."""

    def flush(self) -> bool:
        """Send what was taken and has not left; True when nothing is left."""

    def close(self) -> None: ...


class PlaintextTransport:
    """The socket itself. What is called for each request are the socket's own bound methods."""

    __slots__ = ("close", "fd", "recv", "send", "send_all", "sock", "wants")
    has_ended = False

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.wants = 0
        self.recv = sock.recv
        self.send = sock.send
        self.send_all = sock.sendall
        self.close = sock.close

    @property
    def unsent_bytes(self) -> int:
        return 0

    def flush(self) -> bool:
        return True

    def handshake(self) -> bool:
        return True

    def shake_hands(self, deadline_s: float, /) -> None:
        pass

    @property
    def local_address(self) -> tuple[str, int]:
        host, port = self.sock.getsockname()[:2]
        return host.removeprefix("::ffff:"), port

    @property
    def peer_port(self) -> int:
        return peer_port_of(self.sock)

    def recv_all(self, count: int, deadline_s: float, /) -> bytes:
        # The kernel collects, in one call, and no longer than the socket's time-out.
        return self.sock.recv(count, socket.MSG_WAITALL)

    def send_parts(self, parts: Sequence[Any], is_more: bool) -> int:
        return self.sock.sendmsg(parts, (), _MSG_MORE if is_more else 0)

    def send_file(self, part: Any, offset: int, count: int) -> int:
        sent: int = part.send_to(self.fd, offset, count)
        return sent
