"""Waiting for what network threads do, without a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable

from server.network.socket_server import SocketServer


def turn(server: SocketServer) -> None:
    """Returns when every network thread has looked at its sockets once more."""
    for processor in server.processors:
        looked = threading.Event()
        processor._command(looked.set)
        assert looked.wait(60), "the network thread stands still"


def wait_until(server: SocketServer, condition: Callable[[], object]) -> None:
    """Look again after each turn of the network threads; pytest's timeout ends what never comes.

    Between two looks this thread waits for another one, so acceptors and handlers get theirs.
    """
    while not condition():
        turn(server)
