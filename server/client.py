"""The smallest Kafka client: one connection, one request, then its response.

For the commands of this project that speak to a broker (`barnabas demo`, `barnabas health`), with
the same message classes the broker decodes with. It is no library: no retries, no metadata, no
version negotiation.
"""

from __future__ import annotations

import socket
from typing import TypeVar

from wire.frame import FrameReader, decode_response_header, encode_request
from wire.schema import Request, Response

_R = TypeVar("_R", bound=Response)

# More than any answer to these commands; the size comes from whoever listens there.
_MAX_RESPONSE_BYTES = 64 << 20


class Connection:
    """One blocking connection; `timeout_s` bounds connecting and each read."""

    def __init__(self, host: str, port: int, client_id: str, timeout_s: float = 10.0) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._client_id = client_id
        self._reader = FrameReader(_MAX_RESPONSE_BYTES)
        self._correlation_id = 0

    def send(self, request: Request, version: int, response: type[_R]) -> _R:
        """Send one request in this version and decode its response.

        Raises OSError (TimeoutError and ConnectionError are such), and MalformedFrame for an
        answer that is not Kafka's.
        """
        self._correlation_id += 1
        parts = encode_request(version, self._correlation_id, self._client_id, request)
        for part in parts:
            assert isinstance(part, bytes | bytearray | memoryview), "a request holds no file"
            self._socket.sendall(part)
        frame = self._receive()
        correlation_id, position = decode_response_header(request.api_key, version, frame)
        if correlation_id != self._correlation_id:
            raise ConnectionError("the answer is not Kafka's")
        return response.decode(frame, version, position)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive(self) -> bytes:
        while True:
            received = self._socket.recv_into(self._reader.buffer())
            if not received:
                raise ConnectionError("the broker closed the connection")
            frames = self._reader.advance(received)
            if frames:
                return frames[0]
