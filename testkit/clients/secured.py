"""A bare socket that is let in by TLS, and by SASL's PLAIN: `raw.connect` of secured listeners."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable

from testkit.clients import raw

Connect = Callable[[str, float], socket.socket]
"""(address, seconds) to a socket that may ask. Raises OSError or EOFError."""

_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36


def connect(
    address: str,
    timeout_s: float,
    context: ssl.SSLContext,
    login: tuple[str, str] | None = None,
) -> ssl.SSLSocket:
    """Connected, and logged in by PLAIN with a user and a password where `login` is given.

    Raises ssl.SSLError where a certificate is not good (a client's own is refused with TLS 1.3 only
    when it reads), PermissionError for a wrong login, OSError or EOFError.
    """
    plain = raw.connect(address, timeout_s)
    try:
        sock = context.wrap_socket(plain, server_hostname=address.rpartition(":")[0])
    except BaseException:
        plain.close()
        raise
    try:
        if login is not None:
            _log_in(sock, *login)
    except BaseException:
        sock.close()
        raise
    return sock


def _log_in(sock: ssl.SSLSocket, user: str, password: str) -> None:
    token = f"\0{user}\0{password}".encode()
    for request in (
        raw.request(_SASL_HANDSHAKE, 1, raw.string("PLAIN")),
        raw.request(_SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token),
    ):
        sock.sendall(request)
        (error,) = struct.unpack_from(">h", raw.read_frame(sock), 4)
        if error:
            raise PermissionError(f"SASL: error {error}")
