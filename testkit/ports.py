"""Free ports on loopback, for brokers that must know their port before they start."""

from __future__ import annotations

import contextlib
import random
import socket


def free_block(count: int) -> int:
    """The first of `count` ports in a row that nobody uses, below those that the kernel gives to
    outgoing connections: nobody takes one between a stop and a start."""
    while True:
        base = random.randrange(10_000, 30_000)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(base, base + count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return base


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
