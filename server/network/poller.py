"""Which sockets are ready: epoll, or what stands for it on a platform without it."""

from __future__ import annotations

import select
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
