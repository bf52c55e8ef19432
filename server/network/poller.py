"""Which sockets are ready: epoll, or what stands for it on a platform without it; and how other
threads wake who waits for them."""

from __future__ import annotations

import contextlib
import select
import socket
from typing import Any

READ = select.EPOLLIN | select.EPOLLRDHUP if hasattr(select, "epoll") else 1
WRITE = select.EPOLLOUT if hasattr(select, "epoll") else 4
GONE = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR if hasattr(select, "epoll") else 0
MUTED = select.EPOLLRDHUP if hasattr(select, "epoll") else 0


class _SelectorPoller:
    """The face of select.epoll on a platform without it."""

    def __init__(self) -> None:
        import selectors

        self._selector = selectors.DefaultSelector()

    @staticmethod
    def _events(mask: int) -> int:
        return (1 if mask & READ else 0) | (2 if mask & WRITE else 0)

    def register(self, fd: int, mask: int) -> None:
        self._selector.register(fd, self._events(mask))

    def modify(self, fd: int, mask: int) -> None:
        events = self._events(mask)
        registered = fd in self._selector.get_map()
        if not events:
            if registered:
                self._selector.unregister(fd)
        elif registered:
            self._selector.modify(fd, events)
        else:
            self._selector.register(fd, events)

    def unregister(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        ready = self._selector.select(timeout)
        return [
            (key.fd, (READ if events & 1 else 0) | (WRITE if events & 2 else 0))
            for key, events in ready
        ]

    def close(self) -> None:
        self._selector.close()


def new_poller() -> Any:
    return select.epoll() if hasattr(select, "epoll") else _SelectorPoller()


class Wakeup:
    """Wakes the one thread that waits in a poller, once for any number of calls.

    The waiting thread sets `is_asleep`, looks at its queues for the last time, polls, and clears it
    again; what it gets for a file descriptor that is none of its own is for `heard`. Others put
    something into a queue and call `wake`: who is not asleep yet will see it.
    """

    __slots__ = ("_is_woken", "_reader", "_writer", "is_asleep")

    def __init__(self, poller: Any) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        poller.register(self._reader.fileno(), READ)
        self.is_asleep = self._is_woken = False

    def wake(self) -> None:
        """Called by any thread; harmless once it is closed."""
        if self.is_asleep and not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(OSError):  # full (it will wake) or closed (it has ended)
                self._writer.send(b"\0")

    def heard(self, fd: int) -> None:
        """Take note, if the event was ours."""
        if fd == self._reader.fileno():
            with contextlib.suppress(BlockingIOError):
                self._reader.recv(4096)
            self._is_woken = False

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
