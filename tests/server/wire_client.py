"""A small client for server tests: frames out, frames in, over one blocking socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

from wire.frame import SIZE_BYTES, FrameReader, decode_response_header, encode_request
from wire.schema import RESPONSES, Request


def request_bytes(
    request: Request, version: int, correlation_id: int, client_id: str | None = "test"
) -> bytes:
    return b"".join(bytes(p) for p in encode_request(version, correlation_id, client_id, request))


def responses_in(data: bytes, api_key: int, version: int) -> Iterator[tuple[int, Any]]:
    """Correlation id and response of each answer in whole frames."""
    reader = FrameReader(1 << 30)
    reader.feed(data)
    for frame in reader.frames:
        correlation_id, pos = decode_response_header(api_key, version, frame, SIZE_BYTES)
        yield correlation_id, RESPONSES[api_key].decode(frame, version, pos)


class WireClient:
    """Sends requests and reads answers in order; every read is bounded by the socket's timeout."""

    def __init__(self, port: int, timeout: float = 60.0, source: str = "127.0.0.1") -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout, (source, 0))
        self._reader = FrameReader(1 << 30)
        self._next_id = 100

    def send(self, request: Request, version: int, correlation_id: int | None = None) -> int:
        if correlation_id is None:
            correlation_id = self._next_id
            self._next_id += 1
        self.sock.sendall(request_bytes(request, version, correlation_id))
        return correlation_id

    def read_frame(self) -> bytes:
        """The next frame, without its size; EOFError when the broker closed."""
        reader = self._reader
        while not reader.frames:
            data = self.sock.recv(reader.read_bytes())
            if not data:
                raise EOFError
            reader.feed(data)
        return reader.frames.popleft()[4:]

    def read(self, api_key: int, version: int) -> tuple[int, Any]:
        """(correlation id, response) of the next frame."""
        frame = self.read_frame()
        correlation_id, pos = decode_response_header(api_key, version, frame)
        return correlation_id, RESPONSES[api_key].decode(frame, version, pos)

    def ask(self, request: Request, version: int) -> Any:
        sent = self.send(request, version)
        received, response = self.read(request.api_key, version)
        assert received == sent
        return response

    def is_closed(self) -> bool:
        """Waits for the broker to close; True if it did without sending a byte."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
