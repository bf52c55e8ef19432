"""Ports on loopback: `barnabas.fresh.free_ports`, and what only tests ask."""

from __future__ import annotations

import socket

from barnabas.fresh import are_free, free_ports

__all__ = ["free_block", "free_ports", "listens"]


def free_block(count: int) -> int:
    """The first of `count` free ports in a row."""
    while True:
        (first,) = free_ports(1)
        if are_free(range(first, first + count)):
            return first


def listens(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
