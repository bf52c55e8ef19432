"""Free ports on loopback, for brokers that must know their port before they start."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """`count` different ports nobody listens on now. All are held until all are found."""
    sockets = []
    try:
        for _ in range(count):
            sock = socket.socket()
            sock.bind(("127.0.0.1", 0))
            sockets.append(sock)
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def listens(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
