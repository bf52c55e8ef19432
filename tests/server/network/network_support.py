"""Waiting for what network threads do, without a clock."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

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


class Full:
    """A selector whose next request for a place, or for another one, fails (ENOSPC, ENOMEM)."""

    def __init__(self, poller: Any) -> None:
        self._poller = poller
        self._is_full = True

    def register(self, fd: int, mask: int) -> None:
        self._fail_once()
        self._poller.register(fd, mask)

    def modify(self, fd: int, mask: int) -> None:
        self._fail_once()
        self._poller.modify(fd, mask)

    def _fail_once(self) -> None:
        if self._is_full:
            self._is_full = False
            raise OSError(errno.ENOSPC, "No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poller, name)
