"""The smallest Kafka client: one connection, one request, then its response.

For the commands of this project that speak to a broker (`barnabas demo`, `barnabas health`), with
the same message classes the broker decodes with. It is no library: no retries, no metadata, no
version negotiation.
"""

from __future__ import annotations

import socket
import struct
from typing import TypeVar

from wire.frame import request_header_version, response_header_version
from wire.schema import Request, Response

_R = TypeVar("_R", bound=Response)

# More than any answer to these commands; the size comes from whoever listens there.
_MAX_RESPONSE_BYTES = 64 << 20


class Connection:
    """One blocking connection; `timeout_s` bounds connecting and each read."""

    def __init__(self, host: str, port: int, client_id: str, timeout_s: float = 10.0) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._client_id = client_id.encode()
        self._correlation_id = 0

    def send(self, request: Request, version: int, response: type[_R]) -> _R:
        """Send one request in this version and decode its response.

        Raises OSError (TimeoutError and ConnectionError are such), and MalformedFrame for an
        answer that is not Kafka's.
        """
        self._correlation_id += 1
        api_key = request.api_key
        header = struct.pack(">hhih", api_key, version, self._correlation_id, len(self._client_id))
        is_flexible = request_header_version(api_key, version) == 2
        header += self._client_id + (b"\0" if is_flexible else b"")
        frame = header + request.encode_bytes(version)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        size, correlation_id = struct.unpack(">ii", self._read(8))
        if correlation_id != self._correlation_id or not 4 <= size <= _MAX_RESPONSE_BYTES:
            raise ConnectionError("the answer is not Kafka's")
        skip = 1 if response_header_version(api_key, version) == 1 else 0
        return response.decode(self._read(size - 4)[skip:], version)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("the broker closed the connection")
            data += chunk
        return bytes(data)
