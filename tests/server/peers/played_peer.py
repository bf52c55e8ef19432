"""A peer that a test plays, over real sockets: it reads requests and answers when it likes."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from wire.frame import RequestHeader
from wire.schema import Response

PATIENCE_S = 60.0


class Address(NamedTuple):
    host: str
    port: int


class PlayedPeer:
    """A listener whose connections the test reads from and writes to."""

    def __init__(self, port: int = 0) -> None:
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", port))
        self.listener.listen(8)
        self.listener.settimeout(PATIENCE_S)
        self.address = Address(*self.listener.getsockname())
        self._accepted: list[PlayedConnection] = []

    def accept(self) -> PlayedConnection:
        sock, _ = self.listener.accept()
        sock.settimeout(PATIENCE_S)
        self._accepted.append(PlayedConnection(sock))
        return self._accepted[-1]

    def close(self) -> None:
        self.listener.close()
        for connection in self._accepted:
            connection.close()

    def __enter__(self) -> PlayedPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PlayedConnection:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.stream = sock.makefile("rb")

    def request(self) -> tuple[RequestHeader, bytes]:
        (size,) = struct.unpack(">i", self.stream.read(4))
        frame = self.stream.read(size)
        return RequestHeader.decode(frame), frame

    def answer(self, header: RequestHeader, response: Response) -> None:
        body = response.encode_bytes(header.api_version)
        tags = b"\0" if header.api_key != 18 else b""
        frame = struct.pack(">i", header.correlation_id) + tags + body
        self.sock.sendall(struct.pack(">i", len(frame)) + frame)

    def has_more_to_read(self) -> bool:
        self.sock.setblocking(False)
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            self.sock.settimeout(PATIENCE_S)

    def is_closed_by_the_client(self) -> bool:
        return self.stream.read(1) == b""

    def close(self) -> None:
        self.stream.close()
        self.sock.close()
