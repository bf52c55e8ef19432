"""Ports that nobody uses and ids that nobody has: what a node must know before it starts."""

from __future__ import annotations

import base64
import contextlib
import errno
import random
import socket
import uuid
from collections.abc import Collection, Iterable

HOST = "127.0.0.1"
# Below the ports that systems lend to outgoing connections: one of those must not sit on the port
# of a node that is down for a moment.
_PORTS = range(10_000, 30_000)
_ATTEMPTS = 1000
_random = random.SystemRandom()  # pytest-randomly gives all workers the same seed


def free_ports(count: int, not_these: Collection[int] = ()) -> list[int]:
    """`count` different ports nobody listens on now, none of `not_these`. Raises OSError."""
    for _attempt in range(_ATTEMPTS):
        ports = _random.sample(_PORTS, count)
        if are_free(ports) and not set(ports) & set(not_these):
            return ports
    raise OSError(f"no {count} free ports found in {_ATTEMPTS} attempts")


def are_free(ports: Iterable[int]) -> bool:
    """Whether nobody listens on any of them: all are taken for a moment."""
    with contextlib.ExitStack() as held:
        try:
            for port in ports:
                held.enter_context(socket.socket()).bind((HOST, port))
        except OSError:
            return False
    return True


def taken(ports: Iterable[int]) -> int | None:
    """The first port that somebody listens on; what was closed a moment ago is free to a broker."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return port
    return None


def random_uuid() -> str:
    """22 characters, as Kafka writes an id; never starts with a dash, as a flag does."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if text[0] != "-":
            return text
